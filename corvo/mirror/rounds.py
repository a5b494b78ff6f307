"""What one step of the mirror reads from the base, and what it makes of that: rows to write, and
what to count. Nothing is written here; `corvo.mirror.view` does that.
"""

from corvo import limits
from corvo._fast import keys
from corvo.kv import documents, queue_documents
from corvo.kv.outbox import Changed
from corvo.kv.reader import Snapshot
from corvo.mirror import rows
from corvo.mirror.facets import Place
from corvo.mirror.tally import Tally
from corvo.model import COMPLETED, PENDING, PRIORITIES, STATES, Job, Queue

_COMPLETED = STATES[COMPLETED]
_SEQ_SIZE = 8  # of the end of a key
_NO_TAGS: dict[str, str] = {}


class Found:
    """What the file has of a job."""

    def __init__(
        self,
        number: int,
        queue: str,
        state: str,
        priority: int,
        errors: int,
        started_ns: int,
    ) -> None:
        self.number = number
        self.place: Place = (queue, state, priority, errors > 0)
        self.errors = errors
        self.started_ns = started_ns


class Round:
    """What one step has read."""

    def __init__(self) -> None:
        self.watermark = 0
        self.stamp_ns = 0  # the clock of the base
        self.behind = False  # there is more in the outbox
        self.scan: bytes | None = None  # the key that the scan goes on with; None = it is done
        self.ids: dict[str, None] = {}
        self.jobs: list[Job] = []
        self.gone: list[str] = []
        self.errors: list[tuple[str, int, bytes]] = []  # job id, slot, document
        self.others = Changed()
        self.queues: list[tuple[str, Queue | None]] = []
        self.oldest: dict[int, int] = {}  # since when the oldest ready job of a queue waits

    def read_documents(
        self, snapshot: Snapshot, found: dict[str, Found], queues: dict[int, Queue]
    ) -> dict[int, Queue]:
        """Read the documents as they are now; the queues as they are then."""
        get = snapshot.get
        for name in dict.fromkeys(self.others.queues):
            row = get(keys.queue(name))
            queue = None if row is None else queue_documents.decode_queue(name, row)
            self.queues.append((name, queue))
        for job_id in self.ids:
            head = get(keys.job(job_id))
            if head is None:
                self.gone.append(job_id)
                continue
            job = documents.decode_head(job_id, head)
            if job.has_extras:
                extras = get(keys.extras(job_id))
                assert extras is not None, f"job {job_id} has no extras"
                job.extras = documents.decode_extras(job_id, extras)
            if job.body_apart:
                body = get(keys.body(job_id))
                assert body is not None, f"job {job_id} has no body"
                documents.decode_body(job, body)
            data = get(keys.data(job_id))
            if data is not None:
                documents.decode_data(job, data)
            self.jobs.append(job)
            if job.error_count:
                old = found.get(job_id)
                for slot in range(0 if old is None else old.errors, job.error_count):
                    row = get(keys.error(job_id, slot))
                    assert row is not None, f"job {job_id} lacks error record {slot}"
                    self.errors.append((job_id, slot, row))
        return self._name_queues(snapshot, queues)

    def _name_queues(self, snapshot: Snapshot, queues: dict[int, Queue]) -> dict[int, Queue]:
        """Know the name of each queue that a job stands in. A queue that was made behind the
        watermark is taken in early."""
        gone = {name for name, queue in self.queues if queue is None}
        if gone:
            queues = {n: queue for n, queue in queues.items() if queue.row_name() not in gone}
        for _, queue in self.queues:
            if queue is not None:
                queues[queue.number] = queue
        for job in self.jobs:
            if job.queue_number not in queues:
                break
        else:
            return queues
        for key, row in snapshot.scan(keys.QUEUE):
            name = keys.parse_queue(key)
            queue = queue_documents.decode_queue(name, row)
            if queue.number not in queues:
                queues[queue.number] = queue
                self.queues.append((name, queue))
        return queues

    def find_oldest(self, snapshot: Snapshot) -> None:
        """Since when the first ready jobs of some of the queues wait."""
        for _, queue in self.queues[: limits.REPORT_QUEUES_MAX]:
            if queue is None or not queue.jobs(PENDING):
                continue
            since: list[int] = []
            for priority in range(PRIORITIES):
                prefix = keys.pending(queue.number, priority, 0)[:-_SEQ_SIZE]
                for _, row in snapshot.take(prefix, prefix, 1):
                    head = snapshot.get(keys.job(keys.parse_id(row)))
                    if head is not None:
                        since.append(documents.decode_head("", head).ready_ns)
            self.oldest[queue.number] = min(since, default=0)


class Changes:
    """The rows that a round leads to."""

    def __init__(
        self,
        read: Round,
        found: dict[str, Found],
        queues: dict[int, Queue],
        next_number: int,
        fulltext: int,
    ) -> None:
        """New jobs get numbers from `next_number` on; those up to `fulltext` are known to full
        text, which has to hear when one of them moves."""
        self.inserts: dict[int, list[list[object]]] = {}  # by shape, see `rows.new_values`
        self.updates: list[rows.Values] = []
        self.places: list[tuple[int, Place, dict[str, str]]] = []  # of new jobs
        self.tags: list[tuple[str, str, int]] = []
        self.moves: list[tuple[int, Place, Place]] = []
        self.requeued: list[int] = []  # jobs in another queue, of which full text knows
        self.errors: list[rows.Values] = []
        self.tally = Tally(read.stamp_ns)
        self.numbers: dict[str, int] = {}
        self.next_number = next_number
        new: dict[int, list[tuple[Job, Place]]] = {}
        for job in read.jobs:
            queue = queues[job.queue_number].name
            place = (queue, STATES[job.state], job.priority, job.error_count > 0)
            old = found.get(job.id)
            if old is None:
                shape, values = rows.new_values(job, queue)
                if shape not in new:
                    new[shape] = []
                    self.inserts[shape] = []
                new[shape].append((job, place))
                self.inserts[shape].append(values)
            else:
                self._change(job, old, queue, place, fulltext)
        for shape, jobs in new.items():  # rows go in in order of their numbers
            for values, (job, place) in zip(self.inserts[shape], jobs, strict=True):
                values[0] = self.next_number
                self._add(job, self.next_number, place)
                self.next_number += 1
        self._add_errors(read)

    def _add(self, job: Job, number: int, place: Place) -> None:
        tags = _NO_TAGS
        if job.tags:
            tags = rows.tags_of(job)
            for key, value in tags.items():
                self.tags.append((key, value, number))
        self.places.append((number, place, tags))
        self.tally.enqueued(job.queue_number, job.created_ns)
        self.tally.see(job, False, 0)
        if job.error_count:
            self.numbers[job.id] = number

    def _change(self, job: Job, old: Found, queue: str, place: Place, fulltext: int) -> None:
        self.updates.append((*rows.changing_values(job, queue), old.number))
        if place != old.place:
            self.moves.append((old.number, old.place, place))
            if place[0] != old.place[0] and old.number <= fulltext:
                self.requeued.append(old.number)
        self.tally.see(job, old.place[1] == _COMPLETED, old.started_ns)
        if job.error_count:
            self.numbers[job.id] = old.number

    def _add_errors(self, read: Round) -> None:
        if not read.errors:
            return
        queues = {job.id: job.queue_number for job in read.jobs if job.error_count}
        for job_id, slot, row in read.errors:
            record = documents.decode_error(job_id, row)
            self.errors.append(rows.error_values(self.numbers[job_id], slot, job_id, record))
            self.tally.failed(queues[job_id], record.kind, record.at_ns)

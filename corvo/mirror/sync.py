"""One sync batch of the mirror: records read from the state store, and the resulting changes.

This module computes rows to write and counters; `corvo.mirror.file` writes them.
"""

from collections.abc import Callable

from corvo import limits
from corvo._fast.codec import keys
from corvo.mirror import rows
from corvo.mirror.counters import ReportCounters
from corvo.mirror.facets import Facet
from corvo.model import COMPLETED, PENDING, PRIORITIES, STATES, Job, Queue
from corvo.storage.reader import Snapshot
from corvo.storage.records import jobs as job_records
from corvo.storage.records import queues as queue_records
from corvo.storage.records.outbox import Changed
from corvo.storage.rows import Row

_COMPLETED = STATES[COMPLETED]
_SEQ_SIZE = 8  # bytes at the end of a key
_NO_TAGS: dict[str, str] = {}

Get = Callable[[bytes], bytes | None]


class ExistingRow:
    """The present row of a job in the mirror file."""

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
        self.facet: Facet = (queue, state, priority, errors > 0)
        self.errors = errors
        self.started_ns = started_ns


class SyncBatch:
    """The records that one step has read."""

    def __init__(self) -> None:
        self.watermark = 0
        self.stamp_ns = 0  # stamp of the last flushed entry
        self.behind = False  # whether the outbox has more rows
        self.scan: bytes | None = None  # next key of the scan; None = complete
        self.ids: dict[str, None] = {}  # jobs named by the outbox
        self.scanned: list[str] = []
        self.jobs: list[Job] = []
        self.gone: list[str] = []
        self.errors: list[tuple[str, int, bytes]] = []  # job id, number of the error, record
        self.others = Changed()
        self.queues: list[tuple[str, Queue | None]] = []
        self.oldest: dict[int, int] = {}  # queue -> when its oldest ready job became ready

    def read_documents(self, snapshot: Snapshot, found: dict[str, ExistingRow]) -> None:
        """Read the current records of the jobs and queues that the outbox names."""
        get = snapshot.get
        for name in dict.fromkeys(self.others.queues):
            row = get(keys.queue(name))
            queue = None if row is None else queue_records.decode_queue(name, row)
            self.queues.append((name, queue))
        for job_id in self.ids:
            head = get(keys.job(job_id))
            if head is None:
                self.gone.append(job_id)
            else:
                old = found.get(job_id)
                known = 0 if old is None else old.errors
                self._read_job(get, job_id, head, known)

    def read_scanned(self, snapshot: Snapshot, heads: list[Row]) -> int:
        """Read scanned jobs, given the rows of their heads, except those that the outbox names.

        Return the number of rows used, because the total size is limited."""
        get = snapshot.get
        ids = [keys.parse_job(key) for key, _ in heads]
        size = 0
        for at, job_id in enumerate(ids):
            if size > limits.MIRROR_SCAN_SIZE:
                return at
            if job_id in self.ids:
                continue
            size += self._read_job(get, job_id, heads[at][1], 0)
            self.scanned.append(job_id)
        return len(ids)

    def _read_job(self, get: Get, job_id: str, head: bytes, known: int) -> int:
        """Read a job and its errors from number `known` on; return the size in bytes."""
        size = len(head)
        job = job_records.decode_head(job_id, head)
        if job.has_options:
            options = get(keys.options(job_id))
            assert options is not None, f"job {job_id} has no options row"
            job.options = job_records.decode_options(job_id, options)
        if job.body_apart:
            body = get(keys.body(job_id))
            assert body is not None, f"job {job_id} has no body row"
            job_records.decode_body(job, body)
            size += len(body)
        if job.data_apart:
            data = get(keys.data(job_id))
            assert data is not None, f"job {job_id} has no data row"
            job_records.decode_data(job, data)
            size += len(data)
        self.jobs.append(job)
        for bucket in range(known, job.error_count):
            row = get(keys.error(job_id, bucket))
            assert row is not None, f"job {job_id} lacks error record {bucket}"
            self.errors.append((job_id, bucket, row))
            size += len(row)
        return size

    def name_queues(self, snapshot: Snapshot, queues: dict[int, Queue]) -> dict[int, Queue]:
        """Update the queues, so that the queue of every read job is known.

        A queue created after the watermark is read early."""
        held = {name: 0 if queue is None else queue.number for name, queue in self.queues}
        if not queues.keys() >= set(held.values()):
            queues = {n: queue for n, queue in queues.items() if not _is_gone(queue, held)}
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
            queue = queue_records.decode_queue(name, row)
            if queue.number not in queues:
                queues[queue.number] = queue
                self.queues.append((name, queue))
        return queues

    def find_oldest(self, snapshot: Snapshot) -> None:
        """Find when the oldest ready job of each changed queue became ready, up to a limit."""
        for _, queue in self.queues[: limits.REPORT_QUEUES_MAX]:
            if queue is None or not queue.jobs(PENDING):
                continue
            since: list[int] = []
            for priority in range(PRIORITIES):
                prefix = keys.pending(queue.number, priority, 0)[:-_SEQ_SIZE]
                for _, row in snapshot.take(prefix, prefix, limits.READY_READ_MAX):
                    head = snapshot.get(keys.job(keys.parse_id(row)))
                    if head is None:
                        continue
                    job = job_records.decode_head("", head)
                    since.append(job.ready_since())
                    if not job.returned_ns:  # the jobs after it became ready later
                        break
            self.oldest[queue.number] = min(since, default=0)


def _is_gone(queue: Queue, held: dict[str, int]) -> bool:
    """Whether a row of the queue, present or final, is deleted or belongs to another queue."""
    number = queue.number
    return any(
        held.get(name, number) != number for name in (queue.row_name(), queue.last_row_name())
    )


class Changes:
    """The rows and counters that a sync batch results in."""

    def __init__(
        self,
        read: SyncBatch,
        found: dict[str, ExistingRow],
        queues: dict[int, Queue],
        next_number: int,
        fulltext: int,
    ) -> None:
        """New jobs get row numbers from `next_number` on.

        Rows up to `fulltext` are in the full-text index, which is updated when a job changes its
        queue."""
        self.inserts: dict[int, list[list[object]]] = {}  # by shape, see `rows.new_values`
        self.updates: list[rows.Values] = []
        self.facets: list[tuple[int, Facet, dict[str, str]]] = []  # of new jobs
        self.tags: list[tuple[str, str, int]] = []
        self.moves: list[tuple[int, Facet, Facet]] = []
        self.requeued: list[int] = []  # jobs of the full-text index that changed their queue
        self.errors: list[rows.Values] = []
        self.report_counters = ReportCounters(read.stamp_ns)
        self.numbers: dict[str, int] = {}
        self.next_number = next_number
        self._new: dict[int, list[tuple[Job, Facet]]] = {}  # by shape
        for job in read.jobs:
            self._see(job, found, queues, fulltext)
        self._number()
        self._add_errors(read, found)

    def _see(
        self, job: Job, found: dict[str, ExistingRow], queues: dict[int, Queue], fulltext: int
    ) -> None:
        queue = queues[job.queue_number]
        name = queue.name
        facet = (name, STATES[job.state], job.priority, job.error_count > 0)
        old = found.get(job.id)
        if old is not None:
            self._change(job, old, name, facet, fulltext)
            return
        shape, values = rows.new_values(job, name)
        if shape not in self._new:
            self._new[shape] = []
            self.inserts[shape] = []
        self._new[shape].append((job, facet))
        self.inserts[shape].append(values)

    def _number(self) -> None:
        """Number the new jobs in the order of their INSERT statements."""
        for shape, jobs in self._new.items():
            for values, (job, facet) in zip(self.inserts[shape], jobs, strict=True):
                values[0] = self.next_number
                self._add(job, self.next_number, facet)
                self.next_number += 1

    def _add(self, job: Job, number: int, facet: Facet) -> None:
        tags = _NO_TAGS
        if job.tags:
            tags = rows.tags_of(job)
            for key, value in tags.items():
                self.tags.append((key, value, number))
        self.facets.append((number, facet, tags))
        self.report_counters.enqueued(job.queue_number, job.created_ns)
        self.report_counters.see(job, False, 0)
        if job.error_count:
            self.numbers[job.id] = number

    def _change(self, job: Job, old: ExistingRow, queue: str, facet: Facet, fulltext: int) -> None:
        self.updates.append((*rows.changing_values(job, queue), old.number))
        if facet != old.facet:
            self.moves.append((old.number, old.facet, facet))
            if facet[0] != old.facet[0] and old.number <= fulltext:
                self.requeued.append(old.number)
        self.report_counters.see(job, old.facet[1] == _COMPLETED, old.started_ns)
        if job.error_count:
            self.numbers[job.id] = old.number

    def _add_errors(self, read: SyncBatch, found: dict[str, ExistingRow]) -> None:
        if not read.errors:
            return
        queues = {job.id: job.queue_number for job in read.jobs if job.error_count}
        for job_id, bucket, row in read.errors:
            old = found.get(job_id)
            if old is not None and bucket < old.errors:
                continue
            record = job_records.decode_error(job_id, row)
            self.errors.append(rows.error_values(self.numbers[job_id], bucket, job_id, record))
            self.report_counters.failed(queues[job_id], record.kind, record.at_ns)

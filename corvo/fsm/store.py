"""The overlay: what changed since the last flush, as native objects, above the base.

Jobs, unique locks, error records and event blocks are looked up here first and in the base behind.
Queues, workers and schedules are few and live in memory altogether. `flush` encodes what is dirty,
once, and writes it in one transaction together with the meta row; when that fails for want of space
nothing here has changed, so the state stays readable and the flush is tried again later.

What a flush has written leaves memory, but for jobs that are active: their workers will be heard
of soon. They are kept, the youngest ones, up to a bound of bytes.
"""

from typing import Final, final

from corvo._fast import keys
from corvo._fast.ready import SEQ_BITS
from corvo.feed import Change
from corvo.fsm import index_rows
from corvo.kv import documents
from corvo.kv.meta import Meta, decode_meta, encode_meta
from corvo.kv.rows import Row, Rows
from corvo.limits import BODY_INSIDE_SIZE_MAX, EVENT_TRIM_BLOCKS_MAX, KIB, MIB
from corvo.model import (
    ACTIVE,
    DIRTY_BODY,
    DIRTY_DATA,
    DIRTY_EXTRAS,
    DIRTY_HEAD,
    ENDED,
    ErrorRecord,
    Extras,
    Job,
    Queue,
    Schedule,
    Worker,
)

JOB_SIZE: Final = KIB  # memory of a job beside its texts
ROW_SIZE: Final = 128  # memory of a row beside its value
KEPT_SIZE_MAX: Final = 16 * MIB

Lock = tuple[str, int, bytes]  # job id, expires_ns (0 = never), full key


def place(job: Job) -> int:
    """Queue and seq in one number: where a live job stands, and its key in a heap."""
    return job.queue_number << SEQ_BITS | job.seq


def _extras_size(extras: Extras) -> int:
    size = JOB_SIZE + len(extras.chain) + len(extras.result_schema)
    for job_id in extras.depends_on:
        size += ROW_SIZE + len(job_id)
    return size


@final
class FlushReport:
    """What one flush wrote: rows, bytes, and the index of the last entry the base now covers."""

    def __init__(self, documents: int, size: int, index: int) -> None:
        self.documents = documents
        self.size = size
        self.index = index


class Store:
    """The overlay and the base under it. Jobs of the overlay are found by id and, until they end,
    by place."""

    def __init__(self, base: Rows) -> None:
        self.base = base
        stored = base.get(keys.META)
        self.meta: Meta = Meta() if stored is None else decode_meta(stored)
        self.jobs: dict[str, Job] = {}
        self.places: dict[int, Job] = {}  # by `place(job)`
        self.jobs_size: int = 0
        self.rows_size: int = 0
        self._clean_size: int = 0  # of jobs that are kept though the base has them
        self._dirty: list[Job] = []
        self._errors: dict[bytes, bytes] = {}
        self._locks: dict[bytes, Lock | None] = {}  # None = released
        self._blocks: list[tuple[int, bytes]] = []  # first seq, event block; in order
        self._queues: list[Queue] = []
        self._workers: list[Worker] = []
        self._schedules: dict[str, Schedule | None] = {}  # None = deleted
        self._deletes: list[bytes] = []  # rows that nothing above stands for

    def documents(self) -> int:
        """How much there is to flush."""
        count = len(self._dirty) + len(self._errors) + len(self._locks) + len(self._blocks)
        count += len(self._queues) + len(self._workers) + len(self._schedules)
        return count + len(self._deletes)

    def dirty_size(self) -> int:
        """Memory of what there is to flush."""
        return self.jobs_size + self.rows_size - self._clean_size

    # Jobs.

    def find(self, job_id: str) -> Job | None:
        """The job as it is now. One that comes from the base enters the overlay by `touch`."""
        job = self.jobs.get(job_id)
        if job is not None:
            return None if job.deleted else job
        return self._load(job_id)

    def _load(self, job_id: str) -> Job | None:
        head = self.base.get(keys.job(job_id))
        if head is None:
            return None
        job = documents.decode_head(job_id, head)
        if job.body_apart:
            body = self.base.get(keys.body(job_id))
            assert body is not None, f"job {job_id} has no body"
            documents.decode_body(job, body)
        data = self.base.get(keys.data(job_id))
        if data is not None:
            documents.decode_data(job, data)
        if job.has_extras:
            extras = self.base.get(keys.extras(job_id))
            assert extras is not None, f"job {job_id} has no extras"
            job.extras = documents.decode_extras(job_id, extras)
        job.stored_row = index_rows.index_key(job)
        return job

    def add(self, job: Job) -> None:
        """Take in a new job."""
        job.dirty = DIRTY_HEAD
        job.body_apart = len(job.payload) + len(job.tags) > BODY_INSIDE_SIZE_MAX
        if job.body_apart:
            job.dirty |= DIRTY_BODY
        if job.checkpoint:
            job.dirty |= DIRTY_DATA
        if job.has_extras:
            job.dirty |= DIRTY_EXTRAS
        self._dirty.append(job)
        self._enter(job)

    def touch(self, job: Job) -> None:
        """The head of `job` changes. Its index may change only after this."""
        if not job.dirty:
            self._dirty.append(job)
            if job.resident:
                self._clean_size -= job.size
            else:
                self._enter(job)
        job.dirty |= DIRTY_HEAD

    def _enter(self, job: Job) -> None:
        job.resident = True
        job.size = JOB_SIZE + len(job.payload) + len(job.tags)
        job.size += len(job.checkpoint) + len(job.progress) + len(job.result)
        if job.extras is not None:
            job.size += _extras_size(job.extras)
        self.jobs[job.id] = job
        self.jobs_size += job.size
        if not ENDED[job.state]:
            self.places[place(job)] = job

    def touch_extras(self, job: Job) -> Extras:
        """The extras of `job`, which is touched, change; it gets some if it has none."""
        if job.extras is None:
            job.extras = Extras()
            job.has_extras = True
            more = _extras_size(job.extras)
            job.size += more
            self.jobs_size += more
        job.dirty |= DIRTY_EXTRAS
        return job.extras

    def set_data(self, job: Job, checkpoint: bytes, progress: bytes, result: bytes) -> None:
        """Replace what the worker sent; an empty text leaves the old one."""
        more = 0
        if checkpoint:
            more += len(checkpoint) - len(job.checkpoint)
            job.checkpoint = checkpoint
        if progress:
            more += len(progress) - len(job.progress)
            job.progress = progress
        if result:
            more += len(result) - len(job.result)
            job.result = result
        job.dirty |= DIRTY_DATA
        job.size += more
        self.jobs_size += more

    def delete(self, job: Job) -> None:
        """The job goes, with all its rows."""
        job.deleted = True
        for slot in range(job.error_count):
            key = keys.error(job.id, slot)
            if self._errors.pop(key, None) is None:
                self._deletes.append(key)

    # What hangs on a job.

    def add_error(self, job: Job, record: ErrorRecord) -> None:
        """Append an error record to the job's."""
        row = documents.encode_error(record)
        self._errors[keys.error(job.id, job.error_count)] = row
        self.rows_size += ROW_SIZE + len(row)
        job.error_count += 1

    def errors(self, job: Job, limit: int) -> list[ErrorRecord]:
        """The newest error records of a job, the oldest of them first."""
        records: list[ErrorRecord] = []
        for slot in range(max(0, job.error_count - limit), job.error_count):
            key = keys.error(job.id, slot)
            row = self._errors.get(key)
            if row is None:
                row = self.base.get(key)
            assert row is not None, f"job {job.id} lacks error record {slot}"
            records.append(documents.decode_error(job.id, row))
        return records

    def lock(self, key: bytes) -> Lock | None:
        """The unique lock in the row `key`, expired or not."""
        if key in self._locks:
            return self._locks[key]
        row = self.base.get(key)
        return None if row is None else documents.decode_lock(row)

    def set_lock(self, key: bytes, lock: Lock | None) -> None:
        """Write the lock, or remove it."""
        if key not in self._locks:
            self.rows_size += ROW_SIZE
        self._locks[key] = lock

    # Queues, workers and schedules.

    def touch_queue(self, queue: Queue) -> None:
        """The queue's row changes."""
        if not queue.dirty:
            queue.dirty = True
            self._queues.append(queue)

    def touch_worker(self, worker: Worker) -> None:
        """The worker's row changes."""
        if not worker.dirty:
            worker.dirty = True
            self._workers.append(worker)

    def delete_worker(self, worker: Worker) -> None:
        """The worker's row goes."""
        self._workers = [other for other in self._workers if other is not worker]
        self._deletes.append(keys.worker(worker.id))

    def touch_schedule(self, schedule: Schedule) -> None:
        """The schedule's row changes."""
        self._schedules[schedule.id] = schedule

    def delete_schedule(self, schedule_id: str) -> None:
        """The schedule's row goes."""
        self._schedules[schedule_id] = None

    # Event log.

    def add_block(self, first_seq: int, block: bytes) -> None:
        """Append the events of one entry."""
        self._blocks.append((first_seq, block))
        self.meta.event_log_size += len(block)
        self.rows_size += ROW_SIZE + len(block)

    def event(self, seq: int) -> Change | None:
        """One event; None when it was trimmed."""
        if seq < self.meta.event_first_seq:
            return None
        if self._blocks and seq >= self._blocks[0][0]:
            low, high = 0, len(self._blocks)
            while high - low > 1:
                middle = (low + high) >> 1
                if self._blocks[middle][0] <= seq:
                    low = middle
                else:
                    high = middle
            first_seq, block = self._blocks[low]
            return documents.decode_event(first_seq, block, seq)
        row = self.base.floor(keys.EVENTS, keys.events(seq))
        if row is None:
            return None
        return documents.decode_event(keys.parse_events(row[0]), row[1], seq)

    def blocks(self) -> list[tuple[int, int]]:
        """(first seq, size) of the oldest blocks of the log, at most as many as a trim may drop
        and one more."""
        found: list[tuple[int, int]] = []
        start = keys.events(self.meta.event_first_seq)
        for key, block in self.base.scan(keys.EVENTS, start):
            found.append((keys.parse_events(key), len(block)))
            if len(found) > EVENT_TRIM_BLOCKS_MAX:
                return found
        for first_seq, block in self._blocks:
            found.append((first_seq, len(block)))
            if len(found) > EVENT_TRIM_BLOCKS_MAX:
                break
        return found

    def trim(self, seq: int) -> None:
        """Drop the blocks that end at or below `seq`, as many as one op may drop."""
        blocks = self.blocks()
        flushed = 0
        dropped = 0
        pending_first = self._blocks[0][0] if self._blocks else 0
        for first_seq, size in blocks:
            end = blocks[dropped + 1][0] if dropped + 1 < len(blocks) else self.meta.event_seq + 1
            if end - 1 > seq or dropped == EVENT_TRIM_BLOCKS_MAX:
                break
            if not self._blocks or first_seq < pending_first:
                self._deletes.append(keys.events(first_seq))
                flushed += 1
            else:
                self.rows_size -= ROW_SIZE + size
            self.meta.event_log_size -= size
            self.meta.event_first_seq = end
            dropped += 1
        del self._blocks[: dropped - flushed]

    # Flush.

    def flush(self) -> FlushReport:
        """Write all that is dirty, and the meta row, in one transaction."""
        # Heads and bodies apart: each list rises by itself, which makes the base's sort cheap.
        puts: list[Row] = [(keys.META, encode_meta(self.meta))]
        heads: list[Row] = []
        bodies: list[Row] = []
        deletes = self._deletes.copy()
        for job in self._dirty:
            self._put_job(job, puts, heads, bodies, deletes)
        puts += heads
        puts += bodies
        puts.extend(self._errors.items())
        for key, lock in self._locks.items():
            if lock is None:
                deletes.append(key)
            else:
                puts.append((key, documents.encode_lock(lock[0], lock[1], lock[2])))
        for first_seq, block in self._blocks:
            puts.append((keys.events(first_seq), block))
        for queue in self._queues:
            puts.append((keys.queue(queue.name), documents.encode_queue(queue)))
        for worker in self._workers:
            puts.append((keys.worker(worker.id), documents.encode_worker(worker)))
        for schedule_id, schedule in self._schedules.items():
            if schedule is None:
                deletes.append(keys.schedule(schedule_id))
            else:
                puts.append((keys.schedule(schedule_id), documents.encode_schedule(schedule)))
        self.base.write(puts, deletes)
        size = 0
        for key, value in puts:
            size += len(key) + len(value)
        self._written()
        return FlushReport(len(puts) + len(deletes), size, self.meta.applied_index)

    def _put_job(
        self,
        job: Job,
        puts: list[Row],
        heads: list[Row],
        bodies: list[Row],
        deletes: list[bytes],
    ) -> None:
        if job.deleted:
            if job.stored_row:
                deletes.append(keys.job(job.id))
                if job.body_apart:
                    deletes.append(keys.body(job.id))
                deletes.append(keys.data(job.id))
                if job.has_extras:
                    deletes.append(keys.extras(job.id))
                deletes.append(job.stored_row)
            return
        key = index_rows.index_key(job)
        if job.stored_row and job.stored_row != key:
            deletes.append(job.stored_row)
        puts.append((key, index_rows.index_value(job)))
        heads.append((keys.job(job.id), documents.encode_head(job)))
        if job.dirty & DIRTY_BODY:
            bodies.append((keys.body(job.id), documents.encode_body(job)))
        if job.dirty & DIRTY_DATA:
            data = documents.encode_data(job)
            if data:
                puts.append((keys.data(job.id), data))
        if job.dirty & DIRTY_EXTRAS:
            assert job.extras is not None
            puts.append((keys.extras(job.id), documents.encode_extras(job.extras)))

    def _written(self) -> None:
        """The base has everything: forget what it will answer."""
        for job in self._dirty:
            job.dirty = 0
            if job.state == ACTIVE and not job.deleted:
                job.stored_row = index_rows.index_key(job)
            else:
                self._leave(job)
        self._dirty.clear()
        if self.jobs_size > KEPT_SIZE_MAX:
            self._evict()
        self._clean_size = self.jobs_size
        self._errors.clear()
        self._locks.clear()
        self._blocks.clear()
        for queue in self._queues:
            queue.dirty = False
        self._queues.clear()
        for worker in self._workers:
            worker.dirty = False
        self._workers.clear()
        self._schedules.clear()
        self._deletes.clear()
        self.rows_size = 0

    def _leave(self, job: Job) -> None:
        job.resident = False
        del self.jobs[job.id]
        self.places.pop(place(job), None)
        self.jobs_size -= job.size

    def _evict(self) -> None:
        """Let the oldest jobs go until the rest keeps the bound; all of them are clean."""
        excess = self.jobs_size - KEPT_SIZE_MAX
        leaving: list[Job] = []
        for job in self.jobs.values():
            if excess <= 0:
                break
            excess -= job.size
            leaving.append(job)
        for job in leaving:
            self._leave(job)

"""The write buffer: records that changed since the last flush, above the state store.

Jobs, unique locks, error records and event blocks are looked up in the buffer first, then in the
state store. Queues, workers, schedules and bulk operations are few and all stay in memory. `flush`
encodes each dirty record once and writes all in one transaction with the meta row. If the disk is
full, the buffer is unchanged: the state stays readable and the flush is tried again later.

After a flush the written records leave memory, except for active jobs, which will change soon. The
newest active jobs are kept, up to a limit of bytes.
"""

from typing import Final, final

from corvo._fast.codec import keys
from corvo._fast.index.ready import SEQ_BITS
from corvo.fsm.state import index_rows
from corvo.fsm.state.event_log import EventLog
from corvo.fsm.state.log_lines import LogRows
from corvo.fsm.state.outbox import Outbox, outbox_rows
from corvo.fsm.state.queue_totals import QueueTotals
from corvo.fsm.state.row_overlay import ROW_SIZE, Links, RowOverlay
from corvo.limits import HEAD_INSIDE_SIZE_MAX, KIB, MIB, PART_INSIDE_SIZE_MAX
from corvo.model import (
    ACTIVE,
    DIRTY_BODY,
    DIRTY_DATA,
    DIRTY_HEAD,
    DIRTY_OPTIONS,
    ENDED,
    PENDING,
    Batch,
    BulkOperation,
    ErrorRecord,
    Job,
    JobOptions,
    Queue,
    Schedule,
    Worker,
)
from corvo.storage.records import bulk as bulk_records
from corvo.storage.records import jobs as job_records
from corvo.storage.records import queues as queue_records
from corvo.storage.records.meta import Meta, decode_meta, encode_meta
from corvo.storage.records.outbox import Changed
from corvo.storage.rows import Row, Rows

JOB_SIZE: Final = KIB  # memory of a job in addition to its texts
SIZE_MAX: Final = (1 << 63) - 1
KEPT_SIZE_MAX: Final = 16 * MIB

Lock = tuple[str, int, bytes]  # job id, expires_ns (0 = never), full key


def position(job: Job) -> int:
    """Return queue number and seq in one number: a live job's position, and its key in a heap."""
    return job.queue_number << SEQ_BITS | job.seq


def _data_too_large(job: Job) -> bool:
    """Return whether the job data, with a body in the head's row, is too large for that row."""
    bound = HEAD_INSIDE_SIZE_MAX - len(job.payload) - len(job.tags) - len(job.unique_key)
    if job.body_apart or bound > PART_INSIDE_SIZE_MAX:
        bound = PART_INSIDE_SIZE_MAX
    return len(job.checkpoint) + len(job.progress) + len(job.result) > bound


def _options_size(options: JobOptions) -> int:
    size = JOB_SIZE + len(options.chain) + len(options.result_schema)
    for job_id in options.depends_on:
        size += ROW_SIZE + len(job_id)
    return size


@final
class FlushReport:
    """Totals of one flush: rows, bytes, and the index of the last entry in the state store."""

    def __init__(self, documents: int, size: int, index: int) -> None:
        self.documents = documents
        self.size = size
        self.index = index


class WriteBuffer:
    """Changed records above the state store. Jobs in the buffer are found by id and, until they
    finish, by queue position."""

    def __init__(self, state_store: Rows) -> None:
        self.state_store = state_store  # what was flushed; written by `flush` only
        stored = state_store.get(keys.META)
        self.meta: Meta = Meta() if stored is None else decode_meta(stored)  # written by each flush
        # Jobs by id: all dirty ones, and clean ones that are active, oldest first. A job is in
        # here if and only if `Job.resident`. Deleted ones stay until the flush.
        self.jobs: dict[str, Job] = {}
        self.positions: dict[int, Job] = {}  # unfinished jobs of `jobs` by `position(job)`
        self.jobs_size: int = 0  # bytes: sum of `Job.size` over `jobs`
        self.rows_size: int = 0  # bytes of the other dirty records, estimated; 0 after a flush
        # Bytes of jobs that are kept although they are flushed; at most KEPT_SIZE_MAX after a
        # flush, and never above `jobs_size`.
        self._clean_size: int = 0
        # Dirty records, in the order in which they became dirty; all are empty after a flush.
        # `touch`, `touch_...`, `set_...`, `add_...` and `delete_...` fill them.
        self._dirty: list[Job] = []  # each once: those with `Job.dirty` != 0
        self._errors: dict[bytes, bytes] = {}  # error records by row key
        self._locks: dict[bytes, Lock | None] = {}  # unique locks by row key; None = released
        self._queues: dict[int, Queue] = {}  # by number: those with `Queue.dirty`
        self._totals = QueueTotals()  # those of the queues in `_queues` are added when it is read
        self._workers: dict[str, Worker] = {}  # by id: those with `Worker.dirty`
        self._schedules: dict[str, Schedule | None] = {}  # by id; None = deleted
        self._operations: dict[str, BulkOperation | None] = {}  # by id; None = deleted
        self._chunks: dict[bytes, bytes | None] = {}  # of operations by row key; None = deleted
        self._deletes: list[bytes] = []  # keys of rows without a record in the buffer
        self._batches: dict[str, Batch | None] = {}  # by id; None = deleted
        self.dependents = Links(state_store, keys.DEPENDENT)  # job -> jobs that depend on it
        self.children = Links(state_store, keys.CHILD)  # job -> its children
        self.members = Links(state_store, keys.BATCH_MEMBER)  # batch -> its jobs
        self.rows = RowOverlay(state_store)  # rows that are read and written as bytes
        self.logs = LogRows(state_store)  # log lines of jobs
        self.events = EventLog(state_store, self.meta)  # blocks of events
        self.outbox: Outbox | None = None  # None on a node without a mirror; set by `Machine`

    def documents(self) -> int:
        """Return how many records wait for a flush."""
        count = len(self._dirty) + len(self._errors) + len(self._locks) + self.events.documents()
        count += len(self._queues) + len(self._workers) + len(self._schedules)
        count += len(self._operations) + len(self._chunks) + self.logs.documents()
        count += len(self._batches) + len(self.rows) + self._links()
        return count + len(self._deletes)

    def _links(self) -> int:
        return len(self.dependents) + len(self.children) + len(self.members)

    def dirty_size(self) -> int:
        """Return the memory of the records that wait for a flush."""
        rows_size = self.rows_size + self.rows.size + self.logs.size + self.events.size
        rows_size += ROW_SIZE * self._links()
        return self.jobs_size + rows_size - self._clean_size

    # Jobs.

    def find(self, job_id: str) -> Job | None:
        """Return the job as it is now. `touch` adds a job of the state store to the buffer."""
        job = self.jobs.get(job_id)
        if job is not None:
            return None if job.deleted else job
        return self._load(job_id)

    def _load(self, job_id: str) -> Job | None:
        head = self.state_store.get(keys.job(job_id))
        if head is None:
            return None
        job = job_records.decode_head(job_id, head)
        if job.body_apart:
            body = self.state_store.get(keys.body(job_id))
            assert body is not None, f"job {job_id} has no body"
            job_records.decode_body(job, body)
        if job.data_apart:
            data = self.state_store.get(keys.data(job_id))
            assert data is not None, f"job {job_id} has no data"
            job_records.decode_data(job, data)
        if job.has_options:
            options = self.state_store.get(keys.options(job_id))
            assert options is not None, f"job {job_id} has no options"
            job.options = job_records.decode_options(job_id, options)
            job.options.blocked = job.state == PENDING and len(job.options.open_dependencies) > 0
        job.stored_row = index_rows.index_key(job)
        job.stored_expiry = index_rows.expiry_key(job)
        return job

    def add(self, job: Job) -> None:
        """Add a new job."""
        job.dirty = DIRTY_HEAD
        job.body_apart = len(job.payload) + len(job.tags) > PART_INSIDE_SIZE_MAX
        if job.body_apart:
            job.dirty |= DIRTY_BODY
        job.data_apart = _data_too_large(job)
        if job.data_apart:
            job.dirty |= DIRTY_DATA
        if job.has_options:
            job.dirty |= DIRTY_OPTIONS
        self._dirty.append(job)
        self._enter(job)

    def touch(self, job: Job) -> None:
        """Mark the head of `job` as dirty. Call this before its index changes."""
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
        if job.options is not None:
            job.size += _options_size(job.options)
        self.jobs[job.id] = job
        self.jobs_size += job.size
        if not ENDED[job.state]:
            self.positions[position(job)] = job

    def touch_options(self, job: Job) -> JobOptions:
        """Mark the options of `job`, which is touched, as dirty; create them if it has none."""
        if job.options is None:
            job.options = JobOptions()
            job.has_options = True
            more = _options_size(job.options)
            job.size += more
            self.jobs_size += more
        job.dirty |= DIRTY_OPTIONS
        return job.options

    def set_data(self, job: Job, checkpoint: bytes, progress: bytes, result: bytes) -> None:
        """Replace the data of `job`, which is touched; an empty text keeps the old value."""
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
        if not job.data_apart:
            job.data_apart = _data_too_large(job)
        if job.data_apart:
            job.dirty |= DIRTY_DATA
        job.size += more
        self.jobs_size += more

    def delete(self, job: Job) -> None:
        """Delete the job with all its rows."""
        job.deleted = True
        for number in range(job.error_count):
            key = keys.error(job.id, number)
            if self._errors.pop(key, None) is None:
                self._deletes.append(key)
        if job.options is not None and job.options.has_logs:
            self.logs.delete(job.id)

    # Error records, unique locks and the outbox.

    def add_error(self, job: Job, record: ErrorRecord) -> None:
        """Append an error record to those of the job."""
        row = job_records.encode_error(record)
        self._errors[keys.error(job.id, job.error_count)] = row
        self.rows_size += ROW_SIZE + len(row)
        job.error_count += 1

    def errors(
        self, job: Job, limit: int, size_max: int = SIZE_MAX, skip: int = 0
    ) -> list[ErrorRecord]:
        """Return the newest error records of a job after `skip` of them, limited by count and by
        bytes but at least one; the oldest comes first."""
        records: list[ErrorRecord] = []
        size = 0
        end = job.error_count - skip
        for number in range(end - 1, max(0, end - limit) - 1, -1):
            key = keys.error(job.id, number)
            row = self._errors.get(key)
            if row is None:
                row = self.state_store.get(key)
            assert row is not None, f"job {job.id} has no error record {number}"
            size += len(row)
            if size > size_max and records:
                break
            records.append(job_records.decode_error(job.id, row))
        records.reverse()
        return records

    def lock(self, key: bytes) -> Lock | None:
        """Return the unique lock in the row `key`, expired or not."""
        if key in self._locks:
            return self._locks[key]
        row = self.state_store.get(key)
        return None if row is None else job_records.decode_lock(row)

    def set_lock(self, key: bytes, lock: Lock | None) -> None:
        """Write the lock; None removes it."""
        if key not in self._locks:
            self.rows_size += ROW_SIZE
        self._locks[key] = lock

    def lock_rows(self, prefix: bytes, after: bytes, limit: int) -> list[tuple[bytes, Lock]]:
        """Return the first locks with this prefix and a key above `after`, also expired ones."""
        changed = sorted(key for key in self._locks if key.startswith(prefix) and key > after)
        found: list[tuple[bytes, Lock]] = []
        at = 0
        for key, row in self.state_store.scan(prefix, max(prefix, after + b"\0")):
            while at < len(changed) and changed[at] < key:
                self._take_lock(changed[at], found)
                at += 1
            if len(found) >= limit:
                break
            if key not in self._locks:
                found.append((key, job_records.decode_lock(row)))
        for key in changed[at:]:
            self._take_lock(key, found)
        return found[:limit]

    def _take_lock(self, key: bytes, found: list[tuple[bytes, Lock]]) -> None:
        lock = self._locks[key]
        if lock is not None:
            found.append((key, lock))

    def drop_outbox(self) -> None:
        """Let the next flush delete all rows of an outbox."""
        self._deletes += outbox_rows(self.state_store)

    # Queues, workers and schedules.

    def touch_queue(self, queue: Queue) -> None:
        """Mark the row of the queue as dirty."""
        if not queue.dirty:
            queue.dirty = True
            self._queues[queue.number] = queue

    def delete_queue(self, queue: Queue) -> None:
        """Delete the row of the queue under its present name."""
        if queue.dirty:
            queue.dirty = False
            del self._queues[queue.number]
        self._deletes.append(keys.queue(queue.row_name()))

    def load_queue(self, queue: Queue) -> None:
        """Count a queue that is loaded."""
        self._totals.count(queue)

    def forget_queue(self, queue: Queue) -> None:
        """Delete the row of a queue whose last job is deleted."""
        self._totals.count(queue)
        self.delete_queue(queue)
        self._totals.drop(queue.number)

    def totals(self) -> QueueTotals:
        """Return the totals over all queues; the caller changes nothing."""
        for queue in self._queues.values():
            self._totals.count(queue)
        return self._totals

    def touch_worker(self, worker: Worker) -> None:
        """Mark the row of the worker as dirty."""
        if not worker.dirty:
            worker.dirty = True
            self._workers[worker.id] = worker

    def delete_worker(self, worker: Worker) -> None:
        """Delete the row of the worker."""
        if worker.dirty:
            worker.dirty = False
            del self._workers[worker.id]
        self._deletes.append(keys.worker(worker.id))

    def touch_schedule(self, schedule: Schedule) -> None:
        """Mark the row of the schedule as dirty."""
        self._schedules[schedule.id] = schedule

    def delete_schedule(self, schedule_id: str) -> None:
        """Delete the row of the schedule."""
        self._schedules[schedule_id] = None

    # Bulk operations.

    def touch_operation(self, operation: BulkOperation) -> None:
        """Mark the row of the bulk operation as dirty."""
        self._operations[operation.id] = operation

    def delete_operation(self, operation: BulkOperation) -> None:
        """Delete the bulk operation with its chunks."""
        self._operations[operation.id] = None
        for number in range(operation.chunks):
            self.set_chunk(operation, number, b"")

    def chunk(self, operation: BulkOperation, number: int) -> bytes:
        """Return a chunk of the job ids of a bulk operation."""
        key = keys.operation_chunk(operation.id, number)
        row = self._chunks[key] if key in self._chunks else self.state_store.get(key)
        assert row is not None, f"bulk operation {operation.id} has no chunk {number}"
        return row

    def set_chunk(self, operation: BulkOperation, number: int, row: bytes) -> None:
        """Write a chunk; empty = delete it."""
        key = keys.operation_chunk(operation.id, number)
        self._chunks[key] = row or None
        self.rows_size += ROW_SIZE + len(row)

    def index_rows(self, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, str]]:
        """Return (key, job id) of up to `limit` index rows with this prefix, from `start` on, as if
        everything were flushed."""
        found: list[tuple[bytes, str]] = []
        for job in self._dirty:
            if not job.deleted:
                key = index_rows.index_key(job)
                if key.startswith(prefix) and key >= start:
                    found.append((key, job.id))
        flushed = 0
        for key, row in self.state_store.scan(prefix, start):
            job_id = index_rows.row_id(key, row)
            kept = self.jobs.get(job_id)
            if kept is None or not kept.dirty:
                found.append((key, job_id))
                flushed += 1
                if flushed == limit:
                    break
        found.sort()
        return found[:limit]

    # Batches.

    def batch(self, batch_id: str) -> Batch | None:
        """Return the batch as it is now. Call `touch_batch` after a change."""
        if batch_id in self._batches:
            return self._batches[batch_id]
        row = self.state_store.get(keys.batch(batch_id))
        return None if row is None else job_records.decode_batch(batch_id, row)

    def touch_batch(self, batch: Batch) -> None:
        """Mark the row of the batch as dirty."""
        if batch.id not in self._batches:
            self.rows_size += ROW_SIZE
        self._batches[batch.id] = batch

    def delete_batch(self, batch: Batch) -> None:
        """Delete a finished batch."""
        self._batches[batch.id] = None
        self.rows.put(keys.batch_finished(batch.finished_ns, batch.id), None)

    # Flush.

    def flush(self) -> FlushReport:
        """Write all dirty records and the meta row in one transaction."""
        # Indexes and heads are already in ascending order, so the sort in the state store is cheap;
        # other parts are few.
        puts: list[Row] = [(keys.META, encode_meta(self.meta))]
        indexes: list[Row] = []
        heads: list[Row] = []
        parts: list[Row] = []
        deletes = self._deletes.copy()
        for job in self._dirty:
            self._put_job(job, indexes, heads, parts, deletes)
        puts += indexes
        puts += heads
        puts += parts
        puts.extend(self._errors.items())
        for key, lock in self._locks.items():
            if lock is None:
                deletes.append(key)
            else:
                puts.append((key, job_records.encode_lock(*lock)))
        for queue in self._queues.values():
            puts.append((keys.queue(queue.row_name()), queue_records.encode_queue(queue)))
        for worker in self._workers.values():
            puts.append((keys.worker(worker.id), job_records.encode_worker(worker)))
        for schedule_id, schedule in self._schedules.items():
            if schedule is None:
                deletes.append(keys.schedule(schedule_id))
            else:
                puts.append((keys.schedule(schedule_id), job_records.encode_schedule(schedule)))
        self._put_operations(puts, deletes)
        self._put_batches(puts, deletes)
        for rows in (self.dependents, self.children, self.members):
            rows.collect(puts, deletes)
        self.rows.collect(puts, deletes)
        self.logs.collect(puts, deletes)
        self.events.collect(puts, deletes)
        if self.outbox is not None:
            puts += self.outbox.collect(self.meta.applied_index, self._changed(), deletes)
        self.state_store.write(puts, deletes)
        size = 0
        for key, value in puts:
            size += len(key) + len(value)
        self._written()
        return FlushReport(len(puts) + len(deletes), size, self.meta.applied_index)

    def _changed(self) -> Changed:
        """Return the names of the records that a flush writes."""
        changed = Changed()
        changed.jobs = [job.id for job in self._dirty]
        changed.batches = list(self._batches)
        changed.queues = [queue.row_name() for queue in self._queues.values()]
        changed.workers = list(self._workers)
        changed.schedules = list(self._schedules)
        changed.locks = list(self._locks)
        for key in self._deletes:
            if key.startswith(keys.QUEUE):
                changed.queues.append(keys.parse_queue(key))
            elif key.startswith(keys.WORKER):
                changed.workers.append(keys.parse_worker(key))
        return changed

    def _put_operations(self, puts: list[Row], deletes: list[bytes]) -> None:
        for operation_id, operation in self._operations.items():
            key = keys.operation(operation_id)
            if operation is None:
                deletes.append(key)
            else:
                puts.append((key, bulk_records.encode_operation(operation)))
        for key, row in self._chunks.items():
            if row is None:
                deletes.append(key)
            else:
                puts.append((key, row))

    def _put_batches(self, puts: list[Row], deletes: list[bytes]) -> None:
        for batch_id, batch in self._batches.items():
            if batch is None:
                deletes.append(keys.batch(batch_id))
                continue
            puts.append((keys.batch(batch_id), job_records.encode_batch(batch)))
            if batch.finished_ns:
                puts.append((keys.batch_finished(batch.finished_ns, batch_id), b""))

    def _put_job(
        self,
        job: Job,
        indexes: list[Row],
        heads: list[Row],
        parts: list[Row],
        deletes: list[bytes],
    ) -> None:
        if job.deleted:
            if job.stored_row:
                deletes.append(keys.job(job.id))
                if job.body_apart:
                    deletes.append(keys.body(job.id))
                if job.data_apart:
                    deletes.append(keys.data(job.id))
                if job.has_options:
                    deletes.append(keys.options(job.id))
                deletes.append(job.stored_row)
                if job.stored_expiry:
                    deletes.append(job.stored_expiry)
            return
        key = index_rows.index_key(job)
        if job.stored_row and job.stored_row != key:
            deletes.append(job.stored_row)
        indexes.append((key, index_rows.index_value(job)))
        if job.options is not None:
            self._put_expiry(job, parts, deletes)
        heads.append((keys.job(job.id), job_records.encode_head(job)))
        if job.dirty & DIRTY_BODY:
            parts.append((keys.body(job.id), job_records.encode_body(job)))
        if job.dirty & DIRTY_DATA:
            parts.append((keys.data(job.id), job_records.encode_data(job)))
        if job.dirty & DIRTY_OPTIONS:
            assert job.options is not None
            parts.append((keys.options(job.id), job_records.encode_options(job.options)))

    def _put_expiry(self, job: Job, puts: list[Row], deletes: list[bytes]) -> None:
        key = index_rows.expiry_key(job)
        if job.stored_expiry and job.stored_expiry != key:
            deletes.append(job.stored_expiry)
        if key:
            puts.append((key, keys.due(index_rows.expires_ns(job), 0, job.id)))

    def _written(self) -> None:
        """Drop the records that the flush has written from memory."""
        alone = len(self._dirty) == len(self.jobs)  # no job is kept from an earlier flush
        kept: list[Job] = []
        for job in self._dirty:
            job.dirty = 0
            if job.state == ACTIVE and not job.deleted:
                job.stored_row = index_rows.index_key(job)
                job.stored_expiry = index_rows.expiry_key(job)
                kept.append(job)
            elif not alone:
                self._leave(job)
        if alone:
            self._keep(kept)
        self._dirty.clear()
        if self.jobs_size > KEPT_SIZE_MAX:
            self._evict()
        self._clean_size = self.jobs_size
        self._errors.clear()
        self._locks.clear()
        for queue in self._queues.values():
            queue.dirty = False
            self._totals.count(queue)
        self._queues.clear()
        for worker in self._workers.values():
            worker.dirty = False
        self._workers.clear()
        self._schedules.clear()
        self._operations.clear()
        self._chunks.clear()
        self._deletes.clear()
        self._batches.clear()
        for rows in (self.dependents, self.children, self.members):
            rows.written()
        self.rows.written()
        self.rows_size = 0
        self.logs.written()
        self.events.written()
        if self.outbox is not None:
            self.outbox.written()

    def _keep(self, kept: list[Job]) -> None:
        """Keep only these jobs."""
        self.jobs.clear()
        self.positions.clear()
        self.jobs_size = 0
        for job in self._dirty:
            job.resident = False
        for job in kept:
            self._enter(job)

    def _leave(self, job: Job) -> None:
        job.resident = False
        del self.jobs[job.id]
        self.positions.pop(position(job), None)
        self.jobs_size -= job.size

    def _evict(self) -> None:
        """Drop the oldest jobs until the rest is within the limit; all of them are clean."""
        excess = self.jobs_size - KEPT_SIZE_MAX
        leaving: list[Job] = []
        for job in self.jobs.values():
            if excess <= 0:
                break
            excess -= job.size
            leaving.append(job)
        for job in leaving:
            self._leave(job)

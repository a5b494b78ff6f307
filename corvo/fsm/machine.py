"""The replicated state machine: applies committed entries and returns results and events."""

from collections.abc import Iterator
from typing import Final

from corvo import ops
from corvo._fast.codec import keys
from corvo._fast.codec.layouts import decode_fields, decode_frame
from corvo._fast.index.ready import SEQ_MASK
from corvo.errors import CorvoError, InvalidName, StorageError, UnknownOp
from corvo.events import Event
from corvo.fsm import failed_entries
from corvo.fsm.ops import (
    Apply,
    actions,
    after_finish,
    batches,
    bulk,
    dependencies,
    due,
    idempotency,
    jobs,
    leases,
    logs,
    queues,
    schedules,
    unique,
)
from corvo.fsm.queries import due as due_queries
from corvo.fsm.queries import pages
from corvo.fsm.state.groups import Group
from corvo.fsm.state.outbox import Outbox
from corvo.fsm.state.queue_index import Obstacle
from corvo.fsm.state.queue_totals import QueueTotals
from corvo.fsm.state.state import State
from corvo.fsm.state.write_buffer import SIZE_MAX, FlushReport
from corvo.limits import (
    BULK_QUEUED_NS,
    DUE_LOOKED_AT_MAX,
    DUE_MAX_NS,
    EVENT_LOG_SIZE_MAX,
    EVENT_TRIM_BLOCKS_MAX,
    EVENTS_LOOKED_AT_MAX,
    PAGE_MAX,
    QUEUES_MAX,
    SCHEDULES_MAX,
    WORKERS_MAX,
)
from corvo.model import (
    ACTIVE,
    OPERATION_QUEUED,
    Batch,
    BulkOperation,
    ErrorRecord,
    Job,
    Log,
    LogLine,
    Queue,
    Schedule,
    UniqueLock,
    Worker,
)
from corvo.storage.records.events import decode_events
from corvo.storage.rows import Rows


def _function(number: int, index: int) -> Apply:
    function = _BY_NUMBER[number] if number < len(_BY_NUMBER) else None
    if function is None:
        name = f" {ops.OPS[number].name}" if number in ops.OPS else ""
        raise UnknownOp(f"entry {index} has op {number}{name}, which this version does not have")
    return function


def idempotent(state: State, payload: bytes) -> object:
    """Apply the inner op once. Repeated requests with its key get the recorded outcome."""
    key: bytes
    fingerprint: bytes
    keep_ns: int
    count: int
    number: int
    inner: bytes
    key, fingerprint, keep_ns, count, number, inner = decode_fields(ops.IDEMPOTENT.layout, payload)
    found = idempotency.find(state, key, fingerprint, keep_ns)
    if found is not None:
        return found[0]
    result = _function(number, state.meta.applied_index + 1)(state, inner)
    idempotency.keep(state, key, fingerprint, result, keep_ns, count)
    return result


_APPLY: Final[dict[int, Apply]] = {
    **actions.APPLY,
    **after_finish.APPLY,
    **batches.APPLY,
    **bulk.APPLY,
    **due.APPLY,
    **jobs.APPLY,
    **logs.APPLY,
    **queues.APPLY,
    **schedules.APPLY,
    **unique.APPLY,
    ops.IDEMPOTENT.number: idempotent,
}
_BY_NUMBER: Final[list[Apply | None]] = [_APPLY.get(n) for n in range(max(ops.OPS) + 1)]


class Machine:
    """The state. `apply` alone changes it, `flush` writes it to the state store. Objects that a
    read returns are live: the caller uses them at once and changes nothing."""

    def __init__(self, state_store: Rows) -> None:
        """Open a state store; the indexes are rebuilt from its rows in one pass."""
        # Index of an entry that takes no effect, see `failed_entries`; 0 = none.
        self.skipped_index: int = 0
        self.refused_ops: int = 0  # because of an InvalidName
        self._state = State(state_store)
        self._buffer = self._state.buffer
        self.restore(state_store)

    def restore(self, state_store: Rows) -> None:
        """Replace the whole state by that of another state store."""
        for _ in self.load(state_store):
            pass

    def load(self, state_store: Rows) -> Iterator[None]:
        """Do the same as `restore`, in slices of some milliseconds. Until the last slice the
        machine keeps its old state, and nothing may be applied meanwhile."""
        state = State(state_store)
        yield from state.load()
        state.buffer.totals().rise(self._buffer.totals())
        self._state = state
        self._buffer = self._state.buffer
        self._meta = self._buffer.meta
        self._in_grace: list[tuple[int, int]] = []  # leases in their grace period

    def adopt(self, cluster_id: bytes) -> None:
        """Bind the state to this cluster unless it is bound. Raises StorageError if it is bound to
        another cluster."""
        found = self._meta.cluster_id
        if found and found != cluster_id:
            raise StorageError(
                f"the state belongs to cluster {found.hex()}, but this node to cluster"
                f" {cluster_id.hex()}: the data comes from another cluster"
            )
        self._meta.cluster_id = cluster_id

    @property
    def applied_index(self) -> int:
        """Index of the last applied entry."""
        return self._meta.applied_index

    @property
    def applied_term(self) -> int:
        """Term of the last applied entry."""
        return self._meta.applied_term

    @property
    def stamp_ns(self) -> int:
        """The clock of the state: the latest stamp. It never decreases."""
        return self._meta.stamp_ns

    @property
    def configuration(self) -> bytes:
        """Members of the cluster, as the log encodes them; empty if no entry has named any."""
        return self._meta.configuration

    @property
    def hash(self) -> bytes:
        """Rolling hash of all events; equal on all nodes at an equal index."""
        return self._meta.hash

    @property
    def fencing(self) -> int:
        """Fencing number of the newest lease."""
        return self._meta.fencing

    @property
    def event_seq(self) -> int:
        """Seq of the newest event."""
        return self._meta.event_seq

    @property
    def write_buffer_size(self) -> int:
        """Memory of the changes that wait for a flush, in bytes."""
        return self._buffer.dirty_size()

    @property
    def write_buffer_records(self) -> int:
        """Number of records that wait for a flush."""
        return self._buffer.documents()

    # Apply.

    def apply(self, index: int, term: int, data: bytes) -> list[object]:
        """Apply one committed entry and return one result for each op after the Stamp.

        The row of an op in `corvo.ops` names the type of its result; a refused op has a CorvoError
        as its result. An op with an InvalidName is refused like any other: an entry that an older
        version has proposed must not stop a node. UnknownOp, StorageError and EntryFailed are
        raised: the node must stop, because its state could differ from that of the other nodes.
        """
        meta = self._meta
        if index != meta.applied_index + 1 or term < meta.applied_term:
            raise StorageError(
                f"entry {index} of term {term} cannot follow entry {meta.applied_index}"
                f" of term {meta.applied_term}"
            )
        results: list[object] = []
        self._state.last_block = b""
        if data and index == self.skipped_index:
            results = failed_entries.skip(self._state, index, term, data)
        elif data:
            try:
                self._apply_frame(index, term, data, results)
            except InvalidName as error:  # in a record that an earlier entry has stored
                raise failed_entries.failure(self._state, index, data, error) from error
            except (CorvoError, OSError, MemoryError):
                raise
            except Exception as error:
                raise failed_entries.failure(self._state, index, data, error) from error
        meta.applied_index = index
        meta.applied_term = term
        return results

    def configure(self, index: int, term: int, data: bytes) -> None:
        """Apply an entry that names the members of the cluster."""
        self.apply(index, term, b"")
        self._meta.configuration = data

    def _apply_frame(self, index: int, term: int, data: bytes, results: list[object]) -> None:
        state = self._state
        state.op_position = 0
        frame = decode_frame(data)
        if not frame or frame[0][0] != ops.STAMP.number:
            raise StorageError(f"entry {index} does not begin with a stamp")
        functions: list[Apply] = []
        for number, _ in frame[1:]:
            functions.append(_function(number, index))
        stamp_ns, seed = decode_fields(ops.STAMP.layout, frame[0][1])
        state.begin(term, stamp_ns, seed)
        for op_position, function in enumerate(functions, 1):
            state.op_position = op_position
            try:
                results.append(function(state, frame[op_position][1]))
            except InvalidName as error:  # the payload is decoded before anything is changed
                self.refused_ops += 1
                results.append(InvalidName(error.message))
            if state.ended or state.pending_dependents:
                after_finish.apply_effects(state)
        state.end()

    def take_events(self) -> list[Event]:
        """Return the events of the last apply, in order."""
        state = self._state
        block = state.last_block
        state.last_block = b""
        return decode_events(state.block.first_seq, block) if block else []

    def take_woken(self) -> list[str]:
        """Return the queues that gained fetchable jobs since the last call."""
        state = self._state
        woken = state.woken
        state.woken = []
        for name in woken:
            queue_index = state.queue_indexes.get(name)
            if queue_index is not None:
                queue_index.woken = False
        return woken

    # Reads.

    def fetchable(self, queue: str, arriving: int = 0, leaving: int = 0, now_ns: int = 0) -> int:
        """Return how many jobs fetches could get at the stamp `now_ns` (0 = the last one), as far
        as pause, limits and groups allow; or could get after ops that add `arriving` jobs and end
        `leaving` leases."""
        queue_index = self._state.queue_indexes.get(queue)
        if queue_index is None:
            return arriving
        return queue_index.fetchable(max(now_ns, self._meta.stamp_ns), arriving, leaving)

    def opens_ns(self, queue: str, now_ns: int) -> int:
        """Return the stamp at which the rate limit of a queue allows the next job; 0 if the rate
        limit does not hold its ready jobs back."""
        queue_index = self._state.queue_indexes.get(queue)
        if queue_index is None or queue_index.window is None or queue_index.first() == 0:
            return 0
        return queue_index.window.opens_ns(max(now_ns, self._meta.stamp_ns))

    def rate_used(self, queue: str, now_ns: int) -> int:
        """Return how many jobs a queue with a rate limit started in the window that ends now."""
        queue_index = self._state.queue_indexes.get(queue)
        if queue_index is None or queue_index.window is None:
            return 0
        return queue_index.window.used(max(now_ns, self._meta.stamp_ns))

    def group_counts(self, queue: str) -> tuple[int, int]:
        """Return the number of groups of a queue, and the number of their ready jobs that cannot be
        fetched because of other jobs of the same group."""
        queue_index = self._state.queue_indexes.get(queue)
        if queue_index is None or queue_index.groups is None:
            return 0, 0
        return len(queue_index.groups.by_key), len(
            queue_index.groups.ready
        ) - queue_index.groups.open

    def group_keys(self, queue: str) -> list[str]:
        """Return the keys of all groups of a queue, in no order."""
        queue_index = self._state.queue_indexes.get(queue)
        if queue_index is None or queue_index.groups is None:
            return []
        return list(queue_index.groups.by_key)

    def group(self, queue: str, key: str) -> Group | None:
        """Return the group of a queue with this key."""
        queue_index = self._state.queue_indexes.get(queue)
        if queue_index is None or queue_index.groups is None:
            return None
        return queue_index.groups.by_key.get(key)

    def obstacles(self, job: Job, now_ns: int) -> list[Obstacle]:
        """Return the reasons why a pending job cannot be fetched now, apart from its queue
        position."""
        queue_index = self._state.queue_index_of(job)
        found = queue_index.obstacles(job, max(now_ns, self._meta.stamp_ns))
        for obstacle in found:
            if obstacle.position:
                seq = obstacle.position & SEQ_MASK
                obstacle.job_id = due_queries.waiting_in(
                    self._state, queue_index.first_position | seq
                )
        return found

    def job(self, job_id: str) -> Job | None:
        """Return the job as of the last applied entry."""
        return self._state.find(job_id)

    def queue(self, name: str) -> Queue | None:
        """Return the queue with this name."""
        queue_index = self._state.queue_indexes.get(name)
        return None if queue_index is None else queue_index.queue

    def queue_of(self, job: Job) -> Queue:
        """Return the queue of a job."""
        return self._state.queue_index_of(job).queue

    def queues(self, after: str = "", limit: int = QUEUES_MAX) -> list[Queue]:
        """Return up to `limit` queues with a name above `after`, sorted by name."""
        state = self._state
        return [state.queue_indexes[name].queue for name in state.queue_names.after(after, limit)]

    def first_queues(self, limit: int) -> list[Queue]:
        """Return the `limit` queues that were created first, in that order."""
        return pages.first_queues(self._state, limit)

    @property
    def queue_count(self) -> int:
        """Return how many queues exist."""
        return len(self._state.queue_indexes)

    def totals(self) -> QueueTotals:
        """Return the totals over all queues."""
        return self._buffer.totals()

    def worker_seen_ns(self, worker_id: str) -> int:
        """Return the time of the last request of a worker; 0 if it is unknown."""
        worker = self._state.workers.get(worker_id)
        return 0 if worker is None else worker.seen_ns

    def workers(
        self, before_ns: int = DUE_MAX_NS, after_id: str = "", limit: int = WORKERS_MAX
    ) -> list[Worker]:
        """Call `pages.workers`."""
        return pages.workers(self._state, before_ns, after_id, limit)

    @property
    def worker_count(self) -> int:
        """Return how many workers are known."""
        return len(self._state.workers)

    def active_workers(self, since_ns: int) -> int:
        """Return how many workers have sent a request since that time."""
        return pages.active_workers(self._state, since_ns)

    def stale_workers(self, cutoff_ns: int, limit: int) -> int:
        """Return a cutoff for RemoveStaleWorkers, at most `cutoff_ns`, that removes about `limit`
        workers; 0 if all workers have sent a request since `cutoff_ns`."""
        return due_queries.stale_workers(self._state, cutoff_ns, limit)

    def schedule(self, key: str) -> Schedule | None:
        """Return the schedule with this id, or else with this name."""
        schedules = self._state.schedules
        return schedules.get(key) or schedules.get(self._state.schedule_names.get(key, ""))

    def schedules(self, after: str = "", limit: int = SCHEDULES_MAX) -> list[Schedule]:
        """Return up to `limit` schedules with a name above `after`, sorted by name."""
        names = self._state.schedule_names
        found = sorted([name for name in names if name > after])[:limit]
        return [self._state.schedules[names[name]] for name in found]

    def batch(self, batch_id: str) -> Batch | None:
        """Return the batch with this id."""
        return self._buffer.batch(batch_id)

    def batch_members(self, batch_id: str, limit: int) -> list[str]:
        """Return the first ids, in order, of unfinished jobs of a batch."""
        return self._buffer.members.members(batch_id, limit)

    def children(self, job_id: str, limit: int) -> list[str]:
        """Return the first ids, in order, of jobs that name this job as their parent."""
        return self._buffer.children.members(job_id, limit)

    def open_dependencies(self, job: Job) -> list[str]:
        """Return the ids of the jobs that this job waits for."""
        return dependencies.still_open(self._state, job)

    def blocked_count(self, queue: str) -> int:
        """Return how many pending jobs of a queue wait for dependencies."""
        queue_index = self._state.queue_indexes.get(queue)
        return 0 if queue_index is None else queue_index.blocked

    @property
    def idempotency_records(self) -> int:
        """Return how many idempotency records are kept."""
        return self._meta.next_idempotency - self._meta.first_idempotency

    def errors(
        self, job_id: str, limit: int = PAGE_MAX, size_max: int = SIZE_MAX, before: int = 0
    ) -> list[ErrorRecord]:
        """Return the newest error records of a job, oldest first, limited by count and by bytes but
        at least one. With `before`, those preceding the record of that number (from 1)."""
        job = self._state.find(job_id)
        if job is None:
            return []
        skip = max(0, job.error_count - before + 1) if before else 0
        return self._buffer.errors(job, limit, size_max, skip)

    def events(
        self, job_id: str, limit: int = PAGE_MAX, size_max: int = SIZE_MAX, before: int = 0
    ) -> list[Event]:
        """Return the newest events of a job, oldest first, limited by count and by bytes but at
        least one. With `before`, those preceding the event with that seq. The chain of events ends
        where the log was trimmed."""
        job = self._state.find(job_id)
        return [] if job is None else pages.events_of_job(self._state, job, before, limit, size_max)

    def event(self, seq: int) -> Event | None:
        """Return the event with this seq; None if it was trimmed."""
        return self._buffer.events.find(seq) if 0 < seq <= self.event_seq else None

    def queue_events(
        self, queue: str, before: int, limit: int, size_max: int
    ) -> tuple[list[Event], int]:
        """Call `pages.events_before`; `before` 0 starts with the newest event."""
        before = before or self.event_seq + 1
        looked_at_max = EVENTS_LOOKED_AT_MAX
        return pages.events_before(self._state, queue, before, limit, size_max, looked_at_max)

    def events_after(self, seq: int, limit: int, size_max: int) -> list[Event]:
        """Return events of all queues with a seq above `seq`, in order, limited by count and
        bytes."""
        return pages.events_after(self._state, seq, limit, size_max)

    @property
    def event_first_seq(self) -> int:
        """Seq of the oldest event that the log still has."""
        return self._meta.event_first_seq

    def log(self, job: Job) -> Log:
        """Return the log of a job: its blocks of lines that are kept."""
        return self._buffer.logs.find(job.id)

    def log_lines(
        self, job: Job, attempt: int, after: int, limit: int, size_max: int
    ) -> tuple[list[LogLine], bool]:
        """Call `log_lines.LogRows.read`."""
        return self._buffer.logs.read(job.id, attempt, after, limit, size_max)

    def locks(self, queue: str, after: bytes, limit: int) -> tuple[list[UniqueLock], bytes]:
        """Call `pages.locks`."""
        return pages.locks(self._state, queue, after, limit)

    def jobs_before(self, job: Job) -> int:
        """Return how many ready jobs of its queue are served before this ready job."""
        return pages.jobs_before(self._state, job)

    def holders(self, queue: str, limit: int) -> list[Job]:
        """Return up to `limit` active jobs of a queue, the longest-held leases first."""
        return pages.holders(self._state, queue, limit)

    def unique_lock(self, queue: str, key: bytes) -> UniqueLock | None:
        """Return the lock on a unique key of a queue, if it is held."""
        return pages.unique_lock(self._state, queue, key)

    def active_by_worker(self) -> dict[str, int] | None:
        """Return the numbers of active jobs by worker; None if there are too many."""
        return pages.active_by_worker(self._state)

    def workers_of(self, queue: str) -> list[Worker]:
        """Return the workers that last requested jobs of this queue, the most recently seen
        first."""
        return pages.workers_of(self._state, queue)

    def operation(self, operation_id: str) -> BulkOperation | None:
        """Return the bulk operation with this id."""
        return self._state.operations.get(operation_id)

    def running_operations(self) -> list[BulkOperation]:
        """Return the bulk operations that have steps left, for BulkStep."""
        return self._state.running

    def abandoned_operations(self, now_ns: int) -> list[BulkOperation]:
        """Return queued bulk operations that have received no job ids for so long that their client
        must be gone."""
        return [
            operation
            for operation in self._state.operations.values()
            if operation.state == OPERATION_QUEUED
            and operation.updated_ns + BULK_QUEUED_NS <= now_ns
        ]

    def operation_results(
        self, operation: BulkOperation, start: int, kind: int, limit: int
    ) -> tuple[list[tuple[str, int]], int]:
        """Return (job id, outcome byte) of jobs with the outcome `kind`, from position `start` on,
        and the next position; 0 if there are no more. See `corvo.fsm.ops.bulk`."""
        return bulk.results(self._state, operation, start, kind, limit)

    def matching(self, action: int, limit: int) -> tuple[int, list[str]]:
        """Return how many jobs an action on all jobs would apply to, and up to `limit` of them."""
        return bulk.matching(self._state, action, limit)

    def active_count(self, queue: str) -> int:
        """Return the number of live leases of a queue."""
        queue_index = self._state.queue_indexes.get(queue)
        return 0 if queue_index is None else len(queue_index.active)

    def oldest_ready_ns(self, queue: str, priority: int) -> int:
        """Return when the job of this priority that has been ready the longest became ready; 0 if
        there is none."""
        queue_index = self._state.queue_indexes.get(queue)
        return 0 if queue_index is None else self._state.oldest_ready_ns(queue_index, priority)

    def lease_token(self, job: Job) -> str:
        """Return the token of the live lease; empty unless the job is active."""
        return leases.token(job) if job.state == ACTIVE else ""

    @property
    def result_schemas(self) -> bool:
        """Whether any job ever had a result schema."""
        return self._meta.result_schemas

    def result_schema(self, job_id: str, token: str) -> bytes:
        """Return the JSON Schema for the result of an ack with this token; empty if there is none,
        or if the ack will be rejected anyway."""
        if not self._meta.result_schemas:
            return b""
        job = self._state.find(job_id)
        if job is None or job.state != ACTIVE or job.options is None:
            return b""
        return b"" if token and token != leases.token(job) else job.options.result_schema

    # Due work: input for the ops that the leader proposes.

    def next_due(self) -> int:
        """Return the stamp of the next promotion, lease end or occurrence; 0 if nothing waits. It
        may be early (that job no longer waits), never late."""
        return due_queries.next_due(self._state)

    def due_promotions(self, now_ns: int, limit: int) -> list[str]:
        """Return the ids of scheduled and retrying jobs that are due, for PromoteDue."""
        looked_at_max = max(limit, DUE_LOOKED_AT_MAX)
        return due_queries.due_promotions(self._state, now_ns, limit, looked_at_max)

    def due_expiries(self, now_ns: int, limit: int) -> list[str]:
        """Return the ids of jobs that have expired or whose hold has timed out, for ExpireJobs."""
        looked_at_max = max(limit, DUE_LOOKED_AT_MAX)
        return due_queries.due_expiries(self._state, now_ns, limit, looked_at_max)

    def due_leases(self, now_ns: int, limit: int, grace_fencing: int = 0) -> list[str]:
        """Return the ids of active jobs whose lease has ended, for ExpireLeases.

        Leases with fencing <= grace_fencing are skipped. They are set aside, where `next_due` does
        not see them, until a call with grace_fencing 0 ends the grace period.
        """
        return due_queries.due_leases(self._state, self._in_grace, now_ns, limit, grace_fencing)

    @property
    def leases_in_grace(self) -> int:
        """Return how many leases are set aside by `due_leases`."""
        return len(self._in_grace)

    def due_schedules(self, now_ns: int, limit: int) -> list[Schedule]:
        """Return the schedules whose next occurrence is due, for FireSchedule."""
        return due_queries.due_schedules(self._state, now_ns, limit)

    @property
    def pending_dependents(self) -> str:
        """Return the first finished job with pending dependents, for ResolveDependents; empty if
        there is none."""
        return self._state.next_pending_dependents[0] if self._state.next_pending_dependents else ""

    def old_batches(self, cutoff_ns: int, limit: int) -> list[str]:
        """Return the ids of batches that finished before the cutoff, for PurgeBatches. Batches that
        are not flushed yet are left out."""
        ids: list[str] = []
        for key, _ in self._buffer.state_store.scan(keys.BATCH_FINISHED):
            finished_ns, batch_id = keys.parse_batch_finished(key)
            if finished_ns > cutoff_ns or len(ids) == limit:
                break
            if self._buffer.batch(batch_id) is not None:
                ids.append(batch_id)
        return ids

    def due_purges(
        self, now_ns: int, default_ns: list[int], start: int, queues: int, limit: int
    ) -> tuple[list[str], int]:
        """Return up to `limit` ids of finished jobs past their retention, for PurgeJobs, and the
        number to continue with (0 at the end). A call reads `queues` queues, from number `start`
        on."""
        return due_queries.due_purges(self._state, now_ns, default_ns, start, queues, limit)

    def stale_locks(self, now_ns: int, start: bytes, limit: int) -> tuple[list[bytes], bytes]:
        """Return row keys of expired unique locks, for CleanUnique, and the key to continue with
        (empty at the end). A call reads `limit` rows, from `start` on."""
        return due_queries.stale_locks(self._state, now_ns, start, limit)

    def trim_point(self) -> int:
        """Return the seq for TrimEvents that brings the event log within its limit, or closer to
        it; 0 if the log is within it."""
        excess = self._meta.event_log_size - EVENT_LOG_SIZE_MAX
        point = 0
        if excess > 0:
            blocks = self._buffer.events.blocks()
            for i in range(min(len(blocks) - 1, EVENT_TRIM_BLOCKS_MAX)):
                if excess <= 0:
                    break
                excess -= blocks[i][1]
                point = blocks[i + 1][0] - 1
        return point

    # Flush.

    def keep_outbox(self, epoch: bytes, replace: bool = False) -> Outbox:
        """Start an outbox, in which each flush names the records that it changed. A new outbox gets
        this epoch. `replace` replaces an outbox that was copied from another node with the state
        store."""
        outbox = Outbox(self._buffer.state_store, epoch, self._meta.applied_index, replace)
        self._buffer.outbox = outbox
        return outbox

    def drop_outbox(self) -> None:
        """Delete the outbox, because no mirror reads it."""
        self._buffer.drop_outbox()

    def flush(self) -> FlushReport:
        """Write all changes to the state store in one transaction. DiskFull means that nothing has
        changed and the flush can be tried again."""
        report = self._buffer.flush()
        due_queries.compact(self._state, self._in_grace)
        return report

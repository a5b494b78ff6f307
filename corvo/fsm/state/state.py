"""The state that ops read and change: the write buffer, its indexes, and the current entry."""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from heapq import heapify, heappush, merge
from typing import Final

from corvo._fast.codec import keys
from corvo._fast.index.digest_table import DigestTable
from corvo._fast.index.ready import SEQ_BITS, SEQ_MASK, DueHeap
from corvo.errors import Conflict, InvalidName
from corvo.events import QUEUE_DRAINED
from corvo.fsm.state import index_rows
from corvo.fsm.state.deadlines import COMPACT_MIN, DueTimes
from corvo.fsm.state.groups import NORMAL, Groups
from corvo.fsm.state.queue_index import QueueIndex
from corvo.fsm.state.rate_limits import Window
from corvo.fsm.state.sorted_names import SortedNames
from corvo.fsm.state.write_buffer import WriteBuffer, position
from corvo.fsm.states import NOWHERE
from corvo.limits import (
    QUEUES_MAX,
    READY_READ_MAX,
    SECOND_NS,
    WORKER_ID_SIZE_MAX,
    WORKER_TOUCH_NS,
    WORKERS_MAX,
)
from corvo.model import (
    ACTIVE,
    ENDED,
    HELD,
    PENDING,
    PRIORITIES,
    RETRYING,
    SCHEDULED,
    BulkOperation,
    Ended,
    Job,
    Queue,
    Schedule,
    Worker,
)
from corvo.storage.records import bulk as bulk_records
from corvo.storage.records import jobs as job_records
from corvo.storage.records import queues as queue_records
from corvo.storage.records.events import EventBlock
from corvo.storage.records.meta import HASH_SIZE
from corvo.storage.rows import Rows

# Expiry entries further in the future than this have not been dropped by the leader.
EXPIRY_READ_NS: Final = 60 * SECOND_NS
LOADED_ROWS: Final = 2_000  # rows per slice: some milliseconds
DUE_SIZE: Final = 16  # bytes before the job id in the value of a row with a time


def _grouped(job: Job) -> bool:
    return job.options is not None and job.options.group_key != ""


class State:
    """State with its indexes. Every transition of a job goes through `move`.

    Results depend only on records: indexes and heaps are rebuilt from index rows, and no result
    depends on the iteration order of a dict or heap, which history could have changed.
    """

    def __init__(self, state_store: Rows) -> None:
        """Create an empty state; `load` fills it."""
        self.buffer = WriteBuffer(state_store)
        self.meta = self.buffer.meta
        # Queues by name, without destroyed ones, and all queues by number. Changed by
        # `_add_queue_index`, `destroy` and `deletion_done` only.
        self.queue_indexes: dict[str, QueueIndex] = {}
        self.numbered: dict[int, QueueIndex] = {}
        self.queue_names = SortedNames()  # those of `queue_indexes`
        self._numbers: list[int] | None = None  # sorted keys of `numbered`; None = out of date
        # By id, in the order of their last requests; at most WORKERS_MAX.
        self.workers: OrderedDict[str, Worker] = OrderedDict()
        self.schedules: dict[str, Schedule] = {}  # by id
        self.schedule_names: dict[str, str] = {}  # name -> id; one for each schedule
        # Heap of (next_ns, id); an entry is live while `Schedule.next_ns` is equal.
        self.occurrences: list[tuple[int, str]] = []
        # Heap of lease ends; an entry is live while `QueueIndex.active` has the same time. Every
        # active job has a live entry.
        self.leases = DueHeap()
        self.leases_room: int = COMPACT_MIN  # size of the heap at which void entries are dropped
        # Heaps of due times; see `DueTimes`. `move` and `extend` keep them.
        self.waiting = DueTimes()  # scheduled and retrying jobs
        self.holds = DueTimes()  # held jobs whose hold times out
        self.expiring = DueTimes()  # unfinished jobs that expire
        self.operations: dict[str, BulkOperation] = {}  # by id
        self.running: list[BulkOperation] = []  # operations with steps left, the oldest first
        # Number of queues that have jobs to delete; while it is 0, no job has to be checked.
        self.queues_pending_deletion: int = 0
        # Finished jobs with dependents that are not resolved yet: id -> state, and a heap of the
        # same ids. Changed by `corvo.fsm.ops.dependencies`.
        self.pending_dependents: dict[str, int] = {}
        # Number of open dependencies by waiting job, see `corvo.fsm.ops.dependencies`. Jobs whose
        # dependencies have not changed since the state was loaded may be missing.
        self.open_dependencies: dict[str, int] = {}
        self.next_pending_dependents: list[str] = []
        # Digest of an idempotency key -> number of the outcome.
        self.idempotency_records = DigestTable()
        self.oldest_idempotency_ns: int = 0  # lower bound of the times of all outcomes
        # Names of queues that gained ready jobs or capacity since `Machine.take_woken`; a queue is
        # in here once, if and only if `QueueIndex.woken`.
        self.woken: list[str] = []
        # The current entry; set by `begin` unless noted.
        self.term: int = 0
        self.stamp_ns: int = 0  # time of the state; never less than that of the entry before
        self.seed: int = 0  # of all random numbers of the entry
        self.op_position: int = 0  # of the op in the entry, from 1; set by `Machine`
        self.block = EventBlock()  # events of the entry so far
        # Encoded events of the last entry; empty if it changed nothing or they were taken.
        self.last_block: bytes = b""
        # Finished jobs whose effects are not applied yet; empty between two ops.
        self.ended: list[Ended] = []
        self.resolved_dependents: int = 0  # in this entry; at most RESOLVED_DEPENDENTS_MAX

    def load(self) -> Iterator[None]:
        """Rebuild the indexes from their rows, in slices; the event loop runs after each."""
        state_store = self.buffer.state_store
        count = 0
        for family, read in (
            (keys.QUEUE, self._read_queue),
            (keys.OPERATION, self._read_operation),
            (keys.WORKER, self._read_worker),
            (keys.SCHEDULE, self._read_schedule),
            (keys.GROUP, self._read_group_row),
            (keys.GRANT, self._read_grant),
            (keys.PENDING, self._read_pending),
            (keys.BLOCKED, self._read_blocked),
            (keys.ACTIVE, self._read_active),
            (keys.SCHEDULED, self._read_scheduled),
            (keys.RETRYING, self._read_retrying),
            (keys.HELD, self._read_held),
            (keys.EXPIRING, self._read_expiring),
            (keys.PENDING_DEPENDENTS, self._read_pending_dependents),
            (keys.IDEMPOTENCY, self._read_idempotency),
        ):
            for key, row in state_store.scan(family):
                read(key, row)
                count += 1
                if count % LOADED_ROWS == 0:
                    yield
        yield from self._order_workers()
        for number in self.numbers():
            queue_index = self.numbered[number]
            if queue_index.groups is not None:
                queue_index.groups.loaded()
                if not queue_index.groups.by_key:
                    queue_index.groups = None
        self.next_pending_dependents = list(self.pending_dependents)
        heapify(self.next_pending_dependents)

    def _read_queue(self, key: bytes, row: bytes) -> None:
        queue = queue_records.decode_queue(keys.parse_queue(key), row)
        self._add_queue_index(queue)
        self.buffer.load_queue(queue)

    def _read_operation(self, key: bytes, row: bytes) -> None:
        self.put_operation(bulk_records.decode_operation(keys.parse_operation(key), row))

    def _read_worker(self, key: bytes, row: bytes) -> None:
        worker = job_records.decode_worker(keys.parse_worker(key), row)
        self.workers[worker.id] = worker

    def _order_workers(self) -> Iterator[None]:
        """Put the workers into their order, in slices."""
        seen = [(worker.seen_ns, worker.id) for worker in self.workers.values()]
        runs = []
        for at in range(0, len(seen), LOADED_ROWS):
            runs.append(sorted(seen[at : at + LOADED_ROWS]))
            yield
        for count, (_, worker_id) in enumerate(merge(*runs), 1):
            self.workers.move_to_end(worker_id)
            if count % LOADED_ROWS == 0:
                yield

    def _read_schedule(self, key: bytes, row: bytes) -> None:
        self.put_schedule(job_records.decode_schedule(keys.parse_schedule(key), row))

    def _read_group_row(self, key: bytes, row: bytes) -> None:
        number, group_number = keys.parse_group_key(key)
        group_key, served = queue_records.decode_group(row)
        queue_index = self.numbered.get(number)
        old = (
            group_number
            if queue_index is None or queue_index.queue.destroyed
            else self._groups(queue_index).load(group_key, group_number, served)
        )
        if old:
            self.buffer.rows.load_old_groups(number, [old])

    def _read_grant(self, key: bytes, row: bytes) -> None:
        number, stamp_ns = keys.parse_grant(key)
        queue_index = self.numbered.get(number)
        window = None if queue_index is None else queue_index.window
        count = queue_records.decode_grant(row)
        if stamp_ns == 0:
            if window is not None:
                window.since_ns = count
            self.buffer.rows.load_old_grants(number, array("Q"))
        elif window is None or stamp_ns < window.since_ns:
            self.buffer.rows.load_old_grants(number, array("Q", (stamp_ns,)))
        else:
            window.load(stamp_ns, count)

    def _read_pending(self, key: bytes, row: bytes) -> None:
        number, priority, seq = keys.parse_pending(key)
        queue_index = self.numbered[number]
        if self._row_pending_deletion(queue_index, row, 0):
            return
        if queue_index.groups is None or not self._read_group(queue_index, PENDING, seq, row, 0):
            queue_index.ready.add(priority, seq)

    def _read_blocked(self, key: bytes, row: bytes) -> None:
        queue_index = self.numbered[keys.parse_placed(key)[0]]
        queue_index.blocked += not self._row_pending_deletion(queue_index, row, 0)

    def _read_active(self, key: bytes, row: bytes) -> None:
        number, seq = keys.parse_placed(key)
        due_ns = keys.parse_due(row)[0]
        queue_index = self.numbered[number]
        queue_index.active[seq] = due_ns
        self.leases.push(due_ns, number << SEQ_BITS | seq)
        self._read_group(queue_index, ACTIVE, seq, row, DUE_SIZE)

    def _read_scheduled(self, key: bytes, row: bytes) -> None:
        number, seq = keys.parse_placed(key)
        self.waiting.push(keys.parse_due(row)[0], number << SEQ_BITS | seq)
        queue_index = self.numbered[number]
        if queue_index.groups is not None and not self._row_pending_deletion(
            queue_index, row, DUE_SIZE
        ):
            self._read_group(queue_index, SCHEDULED, seq, row, DUE_SIZE)

    def _read_retrying(self, key: bytes, row: bytes) -> None:
        number, seq = keys.parse_placed(key)
        self.waiting.push(keys.parse_due(row)[0], number << SEQ_BITS | seq)
        self._read_group(self.numbered[number], RETRYING, seq, row, DUE_SIZE)

    def _read_held(self, key: bytes, row: bytes) -> None:
        number, seq = keys.parse_placed(key)
        due_ns = keys.parse_due(row)[0]
        if due_ns:
            self.holds.push(due_ns, number << SEQ_BITS | seq)
        self._read_group(self.numbered[number], HELD, seq, row, DUE_SIZE)

    def _read_expiring(self, key: bytes, row: bytes) -> None:
        number, seq = keys.parse_placed(key)
        self.expiring.push(keys.parse_due(row)[0], number << SEQ_BITS | seq)

    def _read_pending_dependents(self, key: bytes, row: bytes) -> None:
        self.pending_dependents[keys.parse_pending_dependents(key)] = row[0]

    def _read_idempotency(self, key: bytes, row: bytes) -> None:
        self.idempotency_records.put(
            job_records.idempotency_digest(row), keys.parse_idempotency(key)
        )

    def _row_pending_deletion(self, queue_index: QueueIndex, row: bytes, at: int) -> bool:
        """Return whether a pending or scheduled job is to be deleted; `at` is the offset of its id
        in the index row."""
        if not (self.queues_pending_deletion and queue_index.queue.pending_deletion()):
            return False
        job_id = keys.parse_id(row[at:])
        head = self.buffer.state_store.get(keys.job(job_id))
        assert head is not None, f"job {job_id} has no head"
        return self.pending_deletion(job_records.decode_head(job_id, head))

    def _read_group(
        self, queue_index: QueueIndex, state: int, seq: int, row: bytes, at: int
    ) -> bool:
        """Return whether the job of an index row is a member of a group, to which it is then
        added."""
        if queue_index.groups is None:
            return False
        priority, group_key = keys.parse_group(row, at)
        if group_key:
            queue_index.groups.load_job(group_key, state, priority, seq)
        return group_key != ""

    # The entry.

    def begin(self, term: int, stamp_ns: int, seed: int) -> None:
        """Begin an entry. Its stamp becomes the clock unless the clock is ahead."""
        self.term = term
        self.stamp_ns = max(self.meta.stamp_ns, stamp_ns)
        self.meta.stamp_ns = self.stamp_ns
        self.seed = seed
        self.resolved_dependents = 0
        if self.buffer.rows.old:
            self.buffer.rows.drop_old()
        self.block.begin(self.meta.event_seq + 1, self.stamp_ns)

    def end(self) -> None:
        """End the entry: its events become a block and enter the rolling hash."""
        if not self.block.count:
            return
        block = self.last_block = self.block.done()
        self.buffer.events.add(self.block.first_seq, block)
        self.meta.hash = blake2b(self.meta.hash + block, digest_size=HASH_SIZE).digest()

    def emit(self, queue_index: QueueIndex, job: Job, type: int, data: bytes) -> None:
        """Record an event of a job."""
        self.block.add(type, job.id, queue_index.queue.name, job.event_seq, data)
        self.meta.event_seq += 1
        job.event_seq = self.meta.event_seq

    def emit_queue(self, queue: str, type: int, data: bytes) -> None:
        """Record an event of a queue, or of a schedule that creates jobs in it."""
        self.block.add(type, "", queue, 0, data)
        self.meta.event_seq += 1

    # Queues.

    def _add_queue_index(self, queue: Queue) -> QueueIndex:
        queue_index = QueueIndex(queue)
        if queue.rate_limit:
            queue_index.window = Window(queue, self.buffer.rows)
        if not queue.destroyed:
            self.queue_indexes[queue.name] = queue_index
            self.queue_names.add(queue.name)
        self.numbered[queue.number] = queue_index
        self._numbers = None
        self.queues_pending_deletion += queue.pending_deletion()
        return queue_index

    def numbers(self) -> list[int]:
        """Return the numbers of all queues in ascending order; the caller must not change the
        list."""
        if self._numbers is None:
            self._numbers = sorted(self.numbered)
        return self._numbers

    def next_seqs(self) -> list[int]:
        """Return the next seqs of all queues, in the order of `numbers`."""
        found: list[int] = []
        for number in self.numbers():
            queue_index = self.numbered[number]
            found.append(queue_index.queue.next_seq)
        return found

    def queue_index(self, name: str) -> QueueIndex:
        """Return the queue with this name, created on first use."""
        queue_index = self.queue_indexes.get(name)
        if queue_index is None:
            queue = Queue(self.meta.next_queue_number, name)
            self.meta.next_queue_number += 1
            queue.created_ns = self.stamp_ns
            queue_index = self._add_queue_index(queue)
            self.buffer.touch_queue(queue)
        return queue_index

    def no_room(self, name: str) -> Conflict | None:
        """Return the error if a queue of this name cannot be created; None if it exists or can
        be."""
        if len(self.queue_indexes) < QUEUES_MAX or name in self.queue_indexes:
            return None
        return Conflict(f'there are {QUEUES_MAX} queues, which is the limit: no queue "{name}"')

    def queue_index_of(self, job: Job) -> QueueIndex:
        """Return the queue index of a job."""
        return self.numbered[job.queue_number]

    def wake(self, queue_index: QueueIndex) -> None:
        """Record that more jobs of this queue may be fetchable now."""
        if not queue_index.woken:
            queue_index.woken = True
            self.woken.append(queue_index.queue.name)

    # Pending deletion: jobs of a cleared or destroyed queue are deleted step by step, but reads,
    # counts and indexes exclude them at once.

    def find(self, job_id: str) -> Job | None:
        """Return the job, unless its deletion is pending."""
        job = self.buffer.find(job_id)
        if self.queues_pending_deletion and job is not None and self.pending_deletion(job):
            return None
        return job

    def pending_deletion(self, job: Job) -> bool:
        """Return whether a clear or the deletion of its queue will delete the job."""
        queue = self.numbered[job.queue_number].queue
        if queue.destroyed:
            return True
        return job.state in (PENDING, SCHEDULED) and job.event_seq <= queue.cleared_seq

    def clear(self, queue_index: QueueIndex) -> None:
        """Start the deletion of all pending and scheduled jobs of the queue."""
        self.queues_pending_deletion += not queue_index.queue.pending_deletion()
        queue_index.queue.cleared_seq = self.meta.event_seq
        for state in (PENDING, SCHEDULED):
            for priority in range(PRIORITIES):
                queue_index.queue.counts[state * PRIORITIES + priority] = 0
        queue_index.clear_ready()
        self.buffer.touch_queue(queue_index.queue)

    def destroy(self, queue_index: QueueIndex) -> None:
        """Start the deletion of the queue and all its jobs; its name becomes free."""
        queue = queue_index.queue
        self.queues_pending_deletion += not queue.pending_deletion()
        del self.queue_indexes[queue.name]
        self.queue_names.remove(queue.name)
        self.buffer.delete_queue(queue)
        queue.destroyed = True
        queue.paused = False
        queue.draining = False
        queue.max_concurrency = 0
        queue.rate_limit = 0
        queue.rate_window_ns = 0
        queue.group_concurrency = 0
        queue.aging_after_ns = 0
        queue.counts = [0] * len(queue.counts)
        queue_index.forget(self.stamp_ns)
        self.buffer.touch_queue(queue)

    def deletion_done(self, queue_index: QueueIndex) -> None:
        """Finish a clear or the deletion of a queue, after its last job was deleted."""
        queue = queue_index.queue
        assert queue.pending_deletion()
        self.queues_pending_deletion -= 1
        queue.cleared_seq = 0
        if queue.destroyed:
            del self.numbered[queue.number]
            self._numbers = None
            self.buffer.forget_queue(queue)
        else:
            self.buffer.touch_queue(queue)

    def put_operation(self, operation: BulkOperation) -> None:
        """Add a bulk operation."""
        self.operations[operation.id] = operation
        if operation.running():
            self.running.append(operation)

    # Jobs.

    def add(self, queue_index: QueueIndex, job: Job, state: int) -> None:
        """Add a new job at the tail."""
        queue = queue_index.queue
        job.queue_number = queue.number
        job.seq = queue.next_seq
        queue.next_seq += 1
        queue.enqueued_total += 1
        job.state = state
        self.buffer.add(job)
        self._arrive(queue_index, job)
        if job.options is not None:
            self._rank_group(queue_index, job)
            if job.options.expires_ns:
                self.expiring.push(index_rows.expires_ns(job), position(job))

    def move(self, queue_index: QueueIndex, job: Job, state: int, tail: bool = False) -> None:
        """Move a job from the index of its state into that of the next state.

        Due time and lease in the job must already be those of the next state. With `tail` the job
        gets a new position at the end of the queue.
        """
        if job.options is None:
            self._move(queue_index, queue_index, job, state, tail)
            return
        before = position(job)
        expired_ns = index_rows.expires_ns(job)
        was_active = job.state == ACTIVE
        was_held = job.state == HELD
        self._move(queue_index, queue_index, job, state, tail)
        self._rank_group(queue_index, job)
        self._follow_expiry(job, before, expired_ns, state)
        if was_held:
            options = self.buffer.touch_options(job)
            options.hold_reason = ""
            options.hold_ends_ns = 0
            options.hold_action = 0
        ends = state == NOWHERE or ENDED[state]
        soon_ns = self.stamp_ns + EXPIRY_READ_NS
        if was_active and not ends and 0 < index_rows.expires_ns(job) < soon_ns:
            # The leader may have dropped the entry while the job was active.
            self.expiring.push(index_rows.expires_ns(job), position(job))

    def move_back(self, queue_index: QueueIndex, job: Job, state: int) -> None:
        """Move a job back to an earlier state; its fields must already have their earlier
        values."""
        self.move(queue_index, job, state)
        if not ENDED[state]:
            self.buffer.positions[position(job)] = job
            if index_rows.expires_ns(job):
                self.expiring.push(index_rows.expires_ns(job), position(job))

    def transfer(self, queue_index: QueueIndex, target: QueueIndex, job: Job) -> None:
        """Move a job from its queue to the tail of another one, in the same state."""
        before = position(job)
        expired_ns = index_rows.expires_ns(job)
        due_ns = job.scheduled_ns
        keeps_position = job.keeps_position
        self._move(queue_index, target, job, NOWHERE, True)
        job.scheduled_ns = due_ns
        job.keeps_position = keeps_position
        self._arrive(target, job)
        self._rank_group(queue_index, job)
        self._rank_group(target, job)
        self._follow_expiry(job, before, expired_ns, job.state)

    def _move(
        self, queue_index: QueueIndex, target: QueueIndex, job: Job, state: int, tail: bool
    ) -> None:
        self._depart(queue_index, job)
        if tail:
            self.buffer.positions.pop(position(job), None)
            job.queue_number = target.queue.number
            job.seq = target.queue.next_seq
            target.queue.next_seq += 1
            self.buffer.positions[position(job)] = job
            job.ready_ns = job.returned_ns = 0
        elif state == PENDING and job.ready_ns:
            job.returned_ns = self.stamp_ns
        elif state == NOWHERE:
            self.buffer.positions.pop(position(job), None)
        if state != NOWHERE:
            job.state = state
            self._arrive(target, job)
            if state == ACTIVE:
                self._count_start(queue_index, job)

    def _count_start(self, queue_index: QueueIndex, job: Job) -> None:
        """Count a turn and a grant for a job that starts."""
        if queue_index.groups is not None:
            queue_index.groups.serve(job.options.group_key if job.options is not None else "")
        if queue_index.window is not None:
            queue_index.window.grant(self.stamp_ns)
            self.wake(queue_index)  # the waiting fetches need the time at which the window opens

    def _follow_expiry(self, job: Job, before: int, expired_ns: int, state: int) -> None:
        """Move the expiry entry of a job to its new position, or void it when the job finishes."""
        stays = state != NOWHERE and not ENDED[state]
        if expired_ns > self.stamp_ns and not (stays and before == position(job)):
            self.expiring.leave(before)
        if stays and before != position(job) and index_rows.expires_ns(job):
            self.expiring.push(index_rows.expires_ns(job), position(job))

    def drop_expiry(self, job: Job) -> None:
        """Remove the expiry of a job; the caller has touched the job."""
        if job.options is None or not job.options.expires_ns:
            return
        if index_rows.expires_ns(job) > self.stamp_ns:
            self.expiring.leave(position(job))
        self.buffer.touch_options(job).expires_ns = 0

    def reprioritize(self, queue_index: QueueIndex, job: Job, priority: int) -> None:
        """Change the priority of a job, which keeps its position and the time it became ready."""
        if job.state == PENDING:
            self._depart(queue_index, job)
            job.priority = priority
            self._arrive(queue_index, job)
        else:
            groups = queue_index.groups if _grouped(job) else None
            if groups is not None:
                groups.depart(job)
            counts = queue_index.queue.counts
            counts[job.state * PRIORITIES + job.priority] -= 1
            job.priority = priority
            counts[job.state * PRIORITIES + job.priority] += 1
            if groups is not None:
                groups.arrive(job)
            self.buffer.touch_queue(queue_index.queue)
        self._rank_group(queue_index, job)

    def _groups(self, queue_index: QueueIndex) -> Groups:
        if queue_index.groups is None:
            queue_index.groups = Groups(queue_index.queue, self.buffer.rows)
        return queue_index.groups

    def _rank_group(self, queue_index: QueueIndex, job: Job) -> None:
        """Update the group of the job, if it has one, after a change of the job."""
        groups = queue_index.groups
        if groups is None or job.options is None or not job.options.group_key:
            return
        if groups.rank(job.options.group_key):
            self.wake(queue_index)
        if not groups.by_key:
            queue_index.groups = None

    def _depart(self, queue_index: QueueIndex, job: Job) -> None:
        queue = queue_index.queue
        self.buffer.touch_queue(queue)
        pending_deletion = self.queues_pending_deletion > 0 and self.pending_deletion(job)
        if not pending_deletion:
            queue.counts[job.state * PRIORITIES + job.priority] -= 1
        grouped = _grouped(job)
        if grouped and not pending_deletion and queue_index.groups is not None:
            queue_index.groups.depart(job)
        if job.state == PENDING:
            if job.options is not None and job.options.blocked:
                job.options.blocked = False
                queue_index.blocked -= not pending_deletion
            elif not grouped and not pending_deletion:
                queue_index.ready.remove(job.priority, job.seq)
        elif job.state == ACTIVE:
            del queue_index.active[job.seq]
            if queue.max_concurrency:
                self.wake(queue_index)
            if queue.draining and not queue_index.active:
                queue.draining = False
                self.emit_queue(queue.name, QUEUE_DRAINED, b"")
        elif job.state == HELD:
            if index_rows.hold_ends_ns(job) > self.stamp_ns:
                self.holds.leave(position(job))
        elif not ENDED[job.state]:
            if job.scheduled_ns > self.stamp_ns:  # it leaves before its due time
                self.waiting.leave(position(job))
            job.scheduled_ns = 0
            job.keeps_position = False

    def _arrive(self, queue_index: QueueIndex, job: Job) -> None:
        queue = queue_index.queue
        self.buffer.touch_queue(queue)
        state = job.state
        queue.counts[state * PRIORITIES + job.priority] += 1
        grouped = _grouped(job)
        if state == PENDING:
            if not job.ready_ns:
                job.ready_ns = self.stamp_ns
            if job.options is not None and job.options.open_dependencies:
                job.options.blocked = True
                queue_index.blocked += 1
            elif not grouped:
                queue_index.ready.add(job.priority, job.seq)
                self.wake(queue_index)
        elif state == ACTIVE:
            queue_index.active[job.seq] = job.lease_expires_ns
            self.leases.push(job.lease_expires_ns, queue_index.first_position | job.seq)
        elif ENDED[state]:
            self.buffer.positions.pop(queue_index.first_position | job.seq, None)
        elif state == HELD:
            if index_rows.hold_ends_ns(job):
                self.holds.push(index_rows.hold_ends_ns(job), position(job))
        else:
            self.waiting.push(index_rows.due_ns(job), queue_index.first_position | job.seq)
        if grouped:  # after `blocked` is set above
            self._groups(queue_index).arrive(job)

    def extend(self, queue_index: QueueIndex, job: Job, expires_ns: int) -> None:
        """Extend the lease of an active job."""
        if expires_ns == job.lease_expires_ns:
            return
        job.lease_expires_ns = expires_ns
        queue_index.active[job.seq] = expires_ns
        self.leases.push(expires_ns, queue_index.first_position | job.seq)

    def ready_job(self, queue_index: QueueIndex) -> Job | None:
        """Return the job that a fetch from this queue gets next: a normal job that has waited
        longer than the aging time, or else the first job."""
        first = queue_index.first()
        if first == 0:
            return None
        aging_ns = queue_index.queue.aging_after_ns
        if aging_ns and first >> SEQ_BITS != NORMAL:
            seq = queue_index.first_normal()
            if seq and aging_ns <= self.stamp_ns - self._ready_since(queue_index, seq):
                return self.job_at(queue_index, NORMAL, seq)
        return self.job_at(queue_index, first >> SEQ_BITS, first & SEQ_MASK)

    def _ready_since(self, queue_index: QueueIndex, seq: int) -> int:
        """Return when the normal job with this seq, which is ready, became ready."""
        if queue_index.aging_seq != seq:
            queue_index.aging_seq = seq
            queue_index.aging_ns = self.job_at(queue_index, NORMAL, seq).ready_ns
        return queue_index.aging_ns

    def oldest_ready_ns(self, queue_index: QueueIndex, priority: int) -> int:
        """Return when the job of this priority that has been ready the longest became ready; 0 if
        there is none. Of jobs that returned to their position, only the first ones are read."""
        oldest_ns = 0
        for seq in queue_index.first_ready(priority, READY_READ_MAX):
            job = self.job_at(queue_index, priority, seq)
            since_ns = job.ready_since()
            if oldest_ns == 0 or since_ns < oldest_ns:
                oldest_ns = since_ns
            if not job.returned_ns:  # the jobs after it became ready later
                break
        return oldest_ns

    def job_at(self, queue_index: QueueIndex, priority: int, seq: int) -> Job:
        """Return the ready job at this position."""
        job = self.buffer.positions.get(queue_index.first_position | seq)
        if job is None:
            row = self.buffer.state_store.get(keys.pending(queue_index.queue.number, priority, seq))
            assert row is not None, f"no row for the ready job at {queue_index.queue.name}/{seq}"
            job = self.buffer.find(keys.parse_id(row))
            assert job is not None, f"the ready job at {queue_index.queue.name}/{seq} is missing"
        return job

    def put_schedule(self, schedule: Schedule) -> None:
        """Add or replace a schedule."""
        self.schedules[schedule.id] = schedule
        self.schedule_names[schedule.name] = schedule.id
        if schedule.next_ns:
            heappush(self.occurrences, (schedule.next_ns, schedule.id))

    def record_worker(self, worker_id: str, hostname: str, queues: list[str]) -> None:
        """Record a request of a worker. Its row is rewritten at most every WORKER_TOUCH_NS, or when
        it requests other queues. At the limit the worker that has been silent longest is
        removed."""
        if not worker_id:
            return
        worker = self.workers.get(worker_id)
        if worker is None:
            if len(worker_id.encode()) > WORKER_ID_SIZE_MAX:
                raise InvalidName(f"the worker's id has more than {WORKER_ID_SIZE_MAX} bytes")
            oldest = self.oldest_worker() if len(self.workers) >= WORKERS_MAX else None
            if oldest is not None:
                self.remove_worker(oldest)
            worker = Worker(worker_id)
            worker.started_ns = self.stamp_ns
            self.workers[worker_id] = worker
        elif self.stamp_ns - worker.seen_ns < WORKER_TOUCH_NS and (
            not queues or queues == worker.queues
        ):
            return
        else:
            self.workers.move_to_end(worker_id)
        worker.seen_ns = self.stamp_ns
        worker.hostname = hostname
        if queues:
            worker.queues = queues
        self.buffer.touch_worker(worker)

    def oldest_worker(self) -> Worker | None:
        """Return the worker whose last request is the longest ago, the first by id if there are
        several."""
        oldest: Worker | None = None
        for worker in self.workers.values():
            if oldest is not None and worker.seen_ns != oldest.seen_ns:
                break
            if oldest is None or worker.id < oldest.id:
                oldest = worker
        return oldest

    def remove_worker(self, worker: Worker) -> None:
        """Remove a worker."""
        del self.workers[worker.id]
        self.buffer.delete_worker(worker)

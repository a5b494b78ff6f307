"""What every op works on: the store, the indexes over it, and the entry being applied."""

from collections.abc import Iterator
from hashlib import blake2b
from heapq import heapify, heappush
from typing import Final

from corvo._fast.codec import keys
from corvo._fast.index.digest_table import DigestTable
from corvo._fast.index.ready import SEQ_BITS, SEQ_MASK, DueHeap
from corvo.errors import Conflict
from corvo.events import QUEUE_DRAINED
from corvo.fsm.state import index_rows
from corvo.fsm.state.deadlines import COMPACT_MIN, DueTimes
from corvo.fsm.state.groups import NORMAL, Groups
from corvo.fsm.state.queue_index import Lane
from corvo.fsm.state.rate_limits import Window
from corvo.fsm.state.store import Store, place
from corvo.fsm.states import NOWHERE
from corvo.limits import QUEUES_MAX, SECOND_NS, WORKER_TOUCH_NS, WORKERS_MAX
from corvo.model import (
    ACTIVE,
    ENDED,
    HELD,
    PENDING,
    PRIORITIES,
    RETRYING,
    SCHEDULED,
    Ended,
    Job,
    Queue,
    Schedule,
    Task,
    Worker,
)
from corvo.storage.records import jobs as job_records
from corvo.storage.records import queues as queue_records
from corvo.storage.records.events import EventBlock
from corvo.storage.records.meta import HASH_SIZE
from corvo.storage.rows import Rows

# An entry of an expiry that is further away than this has not been looked at.
EXPIRY_READ_NS: Final = 60 * SECOND_NS
LOADED_ROWS: Final = 2_000  # in a slice: some milliseconds
DUE_SIZE: Final = 16  # of the value of a row that waits for a time, in front of the job id


def _grouped(job: Job) -> bool:
    return job.extras is not None and job.extras.group_key != ""


class Core:
    """State with its indexes. Every move of a job from state to state goes through `move`.

    Whatever a result depends on is in the store: lanes and heaps are rebuilt from index rows, and
    nothing is ever taken from a dict or a heap in an order that history could have changed.
    """

    def __init__(self, base: Rows) -> None:
        """Empty, until `load` is through."""
        self.store = Store(base)
        self.meta = self.store.meta
        self.lanes: dict[str, Lane] = {}
        self.numbered: dict[int, Lane] = {}
        self._numbers: list[int] | None = None  # see `numbers`
        self.workers: dict[str, Worker] = {}
        self.schedules: dict[str, Schedule] = {}
        self.schedule_names: dict[str, str] = {}  # name -> id
        # Heap of (next_ns, id); an entry is live while the schedule says the same time.
        self.slots: list[tuple[int, str]] = []
        # Ends of leases; an entry is live while `Lane.active` says the same time.
        self.leases = DueHeap()
        self.leases_room: int = COMPACT_MIN  # entries before void ones are looked for
        self.waiting = DueTimes()  # scheduled and retrying jobs
        self.holds = DueTimes()  # held jobs whose hold times out
        self.expiring = DueTimes()  # jobs that expire unless they end before
        self.tasks: dict[str, Task] = {}
        self.running: list[Task] = []  # tasks with steps to come, the oldest first
        self.doomed_queues: int = 0  # queues that have doomed jobs
        # Jobs that have ended while some of their dependents have not heard of it: id -> state, and
        # a heap of the ids.
        self.unsettled: dict[str, int] = {}
        self.next_unsettled: list[str] = []
        self.replays = DigestTable()  # digest of an idempotency key -> number of the outcome
        self.oldest_replay_ns: int = 0  # no outcome is older than this
        self.woken: list[str] = []
        # The entry being applied.
        self.term: int = 0
        self.stamp_ns: int = 0
        self.seed: int = 0
        self.position: int = 0  # of the op in the entry
        self.block = EventBlock()
        self.last_block: bytes = b""  # of the last entry; empty when that changed nothing
        self.ended: list[Ended] = []  # what the end of these jobs brings about is yet to be done
        self.settled: int = 0  # dependents that have heard of the end of a job

    def load(self) -> Iterator[None]:
        """Rebuild the indexes from their rows, in slices: others may have a turn after each."""
        base = self.store.base
        count = 0
        for family, read in (
            (keys.QUEUE, self._read_queue),
            (keys.TASK, self._read_task),
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
            (keys.UNSETTLED, self._read_unsettled),
            (keys.REPLAY, self._read_replay),
        ):
            for key, row in base.scan(family):
                read(key, row)
                count += 1
                if count % LOADED_ROWS == 0:
                    yield
        for number in self.numbers():
            groups = self.numbered[number].groups
            if groups is not None:
                groups.settle_all()
        self.next_unsettled = list(self.unsettled)
        heapify(self.next_unsettled)

    def _read_queue(self, key: bytes, row: bytes) -> None:
        self._add_lane(queue_records.decode_queue(keys.parse_queue(key), row))

    def _read_task(self, key: bytes, row: bytes) -> None:
        self.put_task(job_records.decode_task(keys.parse_task(key), row))

    def _read_worker(self, key: bytes, row: bytes) -> None:
        worker = job_records.decode_worker(keys.parse_worker(key), row)
        self.workers[worker.id] = worker

    def _read_schedule(self, key: bytes, row: bytes) -> None:
        self.put_schedule(job_records.decode_schedule(keys.parse_schedule(key), row))

    def _read_group_row(self, key: bytes, row: bytes) -> None:
        number, group_number = keys.parse_group_key(key)
        group_key, served = queue_records.decode_group(row)
        self._groups(self.numbered[number]).load(group_key, group_number, served)

    def _read_grant(self, key: bytes, row: bytes) -> None:
        number, stamp_ns = keys.parse_grant(key)
        window = self.numbered[number].window
        assert window is not None, f"grants of queue {number}, which has no rate limit"
        window.load(stamp_ns, queue_records.decode_grant(row))

    def _read_pending(self, key: bytes, row: bytes) -> None:
        number, priority, seq = keys.parse_pending(key)
        lane = self.numbered[number]
        if self._row_doomed(lane, row, 0):
            return
        if lane.groups is None or not self._read_group(lane, PENDING, seq, row, 0):
            lane.ready.add(priority, seq)

    def _read_blocked(self, key: bytes, row: bytes) -> None:
        lane = self.numbered[keys.parse_placed(key)[0]]
        lane.blocked += not self._row_doomed(lane, row, 0)

    def _read_active(self, key: bytes, row: bytes) -> None:
        number, seq = keys.parse_placed(key)
        due_ns = keys.parse_due(row)[0]
        lane = self.numbered[number]
        lane.active[seq] = due_ns
        self.leases.push(due_ns, number << SEQ_BITS | seq)
        self._read_group(lane, ACTIVE, seq, row, DUE_SIZE)

    def _read_scheduled(self, key: bytes, row: bytes) -> None:
        number, seq = keys.parse_placed(key)
        self.waiting.push(keys.parse_due(row)[0], number << SEQ_BITS | seq)
        lane = self.numbered[number]
        if lane.groups is not None and not self._row_doomed(lane, row, DUE_SIZE):
            self._read_group(lane, SCHEDULED, seq, row, DUE_SIZE)

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

    def _read_unsettled(self, key: bytes, row: bytes) -> None:
        self.unsettled[keys.parse_unsettled(key)] = row[0]

    def _read_replay(self, key: bytes, row: bytes) -> None:
        self.replays.put(job_records.replay_digest(row), keys.parse_replay(key))

    def _row_doomed(self, lane: Lane, row: bytes, at: int) -> bool:
        """Whether a pending or scheduled job is doomed; its id starts at `at` in its index row."""
        if not (self.doomed_queues and lane.queue.doomed()):
            return False
        job_id = keys.parse_id(row[at:])
        head = self.store.base.get(keys.job(job_id))
        assert head is not None, f"job {job_id} has no head"
        return self.doomed(job_records.decode_head(job_id, head))

    def _read_group(self, lane: Lane, state: int, seq: int, row: bytes, at: int) -> bool:
        """Whether the job of an index row stands in a group, which it is put into."""
        if lane.groups is None:
            return False
        priority, group_key = keys.parse_group(row, at)
        if group_key:
            lane.groups.load_job(group_key, state, priority, seq)
        return group_key != ""

    # The entry.

    def begin(self, term: int, stamp_ns: int, seed: int) -> None:
        """Open an entry. Its stamp counts unless the clock is already further."""
        self.term = term
        self.stamp_ns = max(self.meta.stamp_ns, stamp_ns)
        self.meta.stamp_ns = self.stamp_ns
        self.seed = seed
        self.settled = 0
        self.block.begin(self.meta.event_seq + 1, self.stamp_ns)

    def end(self) -> None:
        """Close the entry: its events become a block and go into the rolling hash."""
        if not self.block.count:
            return
        block = self.last_block = self.block.done()
        self.store.events.add(self.block.first_seq, block)
        self.meta.hash = blake2b(self.meta.hash + block, digest_size=HASH_SIZE).digest()

    def emit(self, lane: Lane, job: Job, type: int, data: bytes) -> None:
        """Record an event of a job."""
        self.block.add(type, job.id, lane.queue.name, job.event_seq, data)
        self.meta.event_seq += 1
        job.event_seq = self.meta.event_seq

    def emit_queue(self, queue: str, type: int, data: bytes) -> None:
        """Record an event of a queue, or of a schedule that makes jobs for it."""
        self.block.add(type, "", queue, 0, data)
        self.meta.event_seq += 1

    # Queues.

    def _add_lane(self, queue: Queue) -> Lane:
        lane = Lane(queue)
        if queue.rate_limit:
            lane.window = Window(queue, self.store.rows)
        if not queue.destroyed:
            self.lanes[queue.name] = lane
        self.numbered[queue.number] = lane
        self._numbers = None
        self.doomed_queues += queue.doomed()
        return lane

    def numbers(self) -> list[int]:
        """Numbers of all queues, rising; not to be changed."""
        if self._numbers is None:
            self._numbers = sorted(self.numbered)
        return self._numbers

    def lane(self, name: str) -> Lane:
        """The queue of that name, created on first use."""
        lane = self.lanes.get(name)
        if lane is None:
            queue = Queue(self.meta.next_queue_number, name)
            self.meta.next_queue_number += 1
            queue.created_ns = self.stamp_ns
            lane = self._add_lane(queue)
            self.store.touch_queue(queue)
        return lane

    def no_room(self, name: str) -> Conflict | None:
        """Why there cannot be a queue of that name; None when there is, or can be."""
        if len(self.lanes) < QUEUES_MAX or name in self.lanes:
            return None
        return Conflict(f'there are {QUEUES_MAX} queues, which is the limit: no queue "{name}"')

    def lane_of(self, job: Job) -> Lane:
        """The queue of a job."""
        return self.numbered[job.queue_number]

    def wake(self, lane: Lane) -> None:
        """Something in this queue may be fetched now that could not be before."""
        if not lane.woken:
            lane.woken = True
            self.woken.append(lane.queue.name)

    # Jobs that a clear or the end of their queue has doomed: they are deleted step by step, and to
    # everybody else they are gone already, in counts and indexes too.

    def find(self, job_id: str) -> Job | None:
        """The job, unless it is doomed."""
        job = self.store.find(job_id)
        if self.doomed_queues and job is not None and self.doomed(job):
            return None
        return job

    def doomed(self, job: Job) -> bool:
        """Whether the job is still as a clear of its queue found it, or its queue is destroyed."""
        queue = self.numbered[job.queue_number].queue
        if queue.destroyed:
            return True
        return job.state in (PENDING, SCHEDULED) and job.event_seq <= queue.cleared_seq

    def clear(self, lane: Lane) -> None:
        """Its pending and scheduled jobs are doomed from now on."""
        self.doomed_queues += not lane.queue.doomed()
        lane.queue.cleared_seq = self.meta.event_seq
        for state in (PENDING, SCHEDULED):
            for priority in range(PRIORITIES):
                lane.queue.counts[state * PRIORITIES + priority] = 0
        lane.clear_ready()
        self.store.touch_queue(lane.queue)

    def destroy(self, lane: Lane) -> None:
        """The queue and all its jobs are doomed; its name is free for another one."""
        queue = lane.queue
        self.doomed_queues += not queue.doomed()
        del self.lanes[queue.name]
        self.store.delete_queue(queue)
        queue.destroyed = True
        queue.paused = False
        queue.draining = False
        queue.max_concurrency = 0
        queue.rate_limit = 0
        queue.rate_window_ns = 0
        queue.group_concurrency = 0
        queue.aging_after_ns = 0
        queue.counts = [0] * len(queue.counts)
        lane.forget()
        self.store.touch_queue(queue)

    def no_longer_doomed(self, lane: Lane) -> None:
        """The last doomed job of the queue is gone, and with it a queue that is destroyed."""
        queue = lane.queue
        assert queue.doomed()
        self.doomed_queues -= 1
        queue.cleared_seq = 0
        if queue.destroyed:
            del self.numbered[queue.number]
            self._numbers = None
            self.store.delete_queue(queue)
        else:
            self.store.touch_queue(queue)

    def put_task(self, task: Task) -> None:
        """Take in a task."""
        self.tasks[task.id] = task
        if task.running():
            self.running.append(task)

    # Jobs.

    def add(self, lane: Lane, job: Job, state: int) -> None:
        """A new job takes a place at the tail."""
        queue = lane.queue
        job.queue_number = queue.number
        job.seq = queue.next_seq
        queue.next_seq += 1
        queue.enqueued_total += 1
        job.state = state
        self.store.add(job)
        self._arrive(lane, job)
        if job.extras is not None:
            self._settle_group(lane, job)
            if job.extras.expires_ns:
                self.expiring.push(index_rows.expires_ns(job), place(job))

    def move(self, lane: Lane, job: Job, state: int, tail: bool = False) -> None:
        """Take a job out of the index of its state and into that of the next one.

        Due time and lease in the job must be those of the next state already; with `tail` it
        gives its place up for one at the end of the queue.
        """
        if job.extras is None:
            self._move(lane, lane, job, state, tail)
            return
        before = place(job)
        expired_ns = index_rows.expires_ns(job)
        was_active = job.state == ACTIVE
        was_held = job.state == HELD
        self._move(lane, lane, job, state, tail)
        self._settle_group(lane, job)
        self._follow_expiry(job, before, expired_ns, state)
        if was_held:
            extras = self.store.touch_extras(job)
            extras.hold_reason = ""
            extras.hold_ends_ns = 0
            extras.hold_action = 0
        ends = state == NOWHERE or ENDED[state]
        soon_ns = self.stamp_ns + EXPIRY_READ_NS
        if was_active and not ends and 0 < index_rows.expires_ns(job) < soon_ns:
            # The leader may have dropped the entry because the job was active.
            self.expiring.push(index_rows.expires_ns(job), place(job))

    def come_back(self, lane: Lane, job: Job, state: int) -> None:
        """`move` to a state that the job had before; what belongs to that is in the job again."""
        self.move(lane, job, state)
        if not ENDED[state]:
            self.store.places[place(job)] = job
            if index_rows.expires_ns(job):
                self.expiring.push(index_rows.expires_ns(job), place(job))

    def transfer(self, lane: Lane, target: Lane, job: Job) -> None:
        """Take a job out of its queue and to the tail of another one, in the same state."""
        before = place(job)
        expired_ns = index_rows.expires_ns(job)
        due_ns = job.scheduled_ns
        keeps_place = job.keeps_place
        self._move(lane, target, job, NOWHERE, True)
        job.scheduled_ns = due_ns
        job.keeps_place = keeps_place
        self._arrive(target, job)
        self._settle_group(lane, job)
        self._settle_group(target, job)
        self._follow_expiry(job, before, expired_ns, job.state)

    def _move(self, lane: Lane, target: Lane, job: Job, state: int, tail: bool) -> None:
        self._depart(lane, job)
        if tail:
            self.store.places.pop(place(job), None)
            job.queue_number = target.queue.number
            job.seq = target.queue.next_seq
            target.queue.next_seq += 1
            self.store.places[place(job)] = job
            job.ready_ns = 0
        elif state == NOWHERE:
            self.store.places.pop(place(job), None)
        if state != NOWHERE:
            job.state = state
            self._arrive(target, job)
            if state == ACTIVE:
                self._handed_out(lane, job)

    def _handed_out(self, lane: Lane, job: Job) -> None:
        """A turn and a grant for it."""
        if lane.groups is not None:
            lane.groups.serve(job.extras.group_key if job.extras is not None else "")
        if lane.window is not None:
            lane.window.grant(self.stamp_ns)
            self.wake(lane)  # whoever waits has to know when the window opens

    def _follow_expiry(self, job: Job, before: int, expired_ns: int, state: int) -> None:
        """The entry of its expiry goes with a job: to its new place, or away when it ends."""
        stays = state != NOWHERE and not ENDED[state]
        if expired_ns > self.stamp_ns and not (stays and before == place(job)):
            self.expiring.leave(before)
        if stays and before != place(job) and index_rows.expires_ns(job):
            self.expiring.push(index_rows.expires_ns(job), place(job))

    def drop_expiry(self, job: Job) -> None:
        """The job, which is touched, does not expire any more."""
        if job.extras is None or not job.extras.expires_ns:
            return
        if index_rows.expires_ns(job) > self.stamp_ns:
            self.expiring.leave(place(job))
        self.store.touch_extras(job).expires_ns = 0

    def reprioritize(self, lane: Lane, job: Job, priority: int) -> None:
        """Another priority for a job, which keeps its place and its age there."""
        if job.state == PENDING:
            self._depart(lane, job)
            job.priority = priority
            self._arrive(lane, job)
        else:
            groups = lane.groups if _grouped(job) else None
            if groups is not None:
                groups.depart(job)
            counts = lane.queue.counts
            counts[job.state * PRIORITIES + job.priority] -= 1
            job.priority = priority
            counts[job.state * PRIORITIES + job.priority] += 1
            if groups is not None:
                groups.arrive(job)
            self.store.touch_queue(lane.queue)
        self._settle_group(lane, job)

    def _groups(self, lane: Lane) -> Groups:
        if lane.groups is None:
            lane.groups = Groups(lane.queue, self.store.rows)
        return lane.groups

    def _settle_group(self, lane: Lane, job: Job) -> None:
        """The job, if it has a group key, has come, gone or changed its state."""
        groups = lane.groups
        if groups is None or job.extras is None or not job.extras.group_key:
            return
        if groups.settle(job.extras.group_key):
            self.wake(lane)
        if not groups.by_key:
            lane.groups = None

    def _depart(self, lane: Lane, job: Job) -> None:
        queue = lane.queue
        self.store.touch_queue(queue)
        doomed = self.doomed_queues > 0 and self.doomed(job)
        if not doomed:
            queue.counts[job.state * PRIORITIES + job.priority] -= 1
        grouped = _grouped(job)
        if grouped and not doomed and lane.groups is not None:
            lane.groups.depart(job)
        if job.state == PENDING:
            if job.extras is not None and job.extras.blocked:
                job.extras.blocked = False
                lane.blocked -= not doomed
            elif not grouped and not doomed:
                lane.ready.remove(job.priority, job.seq)
        elif job.state == ACTIVE:
            del lane.active[job.seq]
            if queue.max_concurrency:
                self.wake(lane)
            if queue.draining and not lane.active:
                queue.draining = False
                self.emit_queue(queue.name, QUEUE_DRAINED, b"")
        elif job.state == HELD:
            if index_rows.hold_ends_ns(job) > self.stamp_ns:
                self.holds.leave(place(job))
        elif not ENDED[job.state]:
            if job.scheduled_ns > self.stamp_ns:  # it does not wait for its time
                self.waiting.leave(place(job))
            job.scheduled_ns = 0
            job.keeps_place = False

    def _arrive(self, lane: Lane, job: Job) -> None:
        queue = lane.queue
        self.store.touch_queue(queue)
        state = job.state
        queue.counts[state * PRIORITIES + job.priority] += 1
        grouped = _grouped(job)
        if state == PENDING:
            if not job.ready_ns:
                job.ready_ns = self.stamp_ns
            if job.extras is not None and job.extras.open_dependencies:
                job.extras.blocked = True
                lane.blocked += 1
            elif not grouped:
                lane.ready.add(job.priority, job.seq)
                self.wake(lane)
        elif state == ACTIVE:
            lane.active[job.seq] = job.lease_expires_ns
            self.leases.push(job.lease_expires_ns, lane.first_place | job.seq)
        elif ENDED[state]:
            self.store.places.pop(lane.first_place | job.seq, None)
        elif state == HELD:
            if index_rows.hold_ends_ns(job):
                self.holds.push(index_rows.hold_ends_ns(job), place(job))
        else:
            self.waiting.push(index_rows.due_ns(job), lane.first_place | job.seq)
        if grouped:  # whether it is blocked is known now
            self._groups(lane).arrive(job)

    def extend(self, lane: Lane, job: Job, expires_ns: int) -> None:
        """Let the lease of an active job end later."""
        if expires_ns == job.lease_expires_ns:
            return
        job.lease_expires_ns = expires_ns
        lane.active[job.seq] = expires_ns
        self.leases.push(expires_ns, lane.first_place | job.seq)

    def ready_job(self, lane: Lane) -> Job | None:
        """The job that a fetch from this queue gets next: a normal job that has waited too long,
        or else the first of all."""
        spot = lane.first()
        if spot == 0:
            return None
        aging_ns = lane.queue.aging_after_ns
        if aging_ns and spot >> SEQ_BITS != NORMAL:
            seq = lane.first_normal()
            if seq and aging_ns <= self.stamp_ns - self._ready_since(lane, seq):
                return self.job_at(lane, NORMAL, seq)
        return self.job_at(lane, spot >> SEQ_BITS, spot & SEQ_MASK)

    def _ready_since(self, lane: Lane, seq: int) -> int:
        """When the normal job in this place, which is ready, became so."""
        if lane.aging_seq != seq:
            lane.aging_seq = seq
            lane.aging_ns = self.job_at(lane, NORMAL, seq).ready_ns
        return lane.aging_ns

    def job_at(self, lane: Lane, priority: int, seq: int) -> Job:
        """The ready job in this place."""
        job = self.store.places.get(lane.first_place | seq)
        if job is None:
            row = self.store.base.get(keys.pending(lane.queue.number, priority, seq))
            assert row is not None, f"no row for the ready job at {lane.queue.name}/{seq}"
            job = self.store.find(keys.parse_id(row))
            assert job is not None, f"the ready job at {lane.queue.name}/{seq} is missing"
        return job

    def put_schedule(self, schedule: Schedule) -> None:
        """Take in a schedule, or one that was changed."""
        self.schedules[schedule.id] = schedule
        self.schedule_names[schedule.name] = schedule.id
        if schedule.next_ns:
            heappush(self.slots, (schedule.next_ns, schedule.id))

    def see_worker(self, worker_id: str, hostname: str, queues: list[str]) -> Conflict | None:
        """A worker showed itself; its row is rewritten at most every WORKER_TOUCH_NS, unless it
        asks for other queues. The result says why there cannot be such a worker."""
        if not worker_id:
            return None
        worker = self.workers.get(worker_id)
        if worker is None:
            if len(self.workers) >= WORKERS_MAX:
                return Conflict(
                    f"there are {WORKERS_MAX} workers, which is the limit; one that is not heard of"
                    f' for a day is forgotten: no worker "{worker_id}"'
                )
            worker = Worker(worker_id)
            worker.started_ns = self.stamp_ns
            self.workers[worker_id] = worker
        elif self.stamp_ns - worker.seen_ns < WORKER_TOUCH_NS and (
            not queues or queues == worker.queues
        ):
            return None
        worker.seen_ns = self.stamp_ns
        worker.hostname = hostname
        if queues:
            worker.queues = queues
        self.store.touch_worker(worker)
        return None

"""What every op works on: the store, the indexes over it, and the entry being applied."""

from hashlib import blake2b
from heapq import heappush

from corvo._fast import keys
from corvo._fast.ready import SEQ_BITS, SEQ_MASK, DueHeap
from corvo.feed import Change
from corvo.fsm import index_rows
from corvo.fsm.lane import Lane
from corvo.fsm.states import NOWHERE
from corvo.fsm.store import Store, place
from corvo.kv import documents
from corvo.kv.meta import HASH_SIZE
from corvo.kv.rows import Rows
from corvo.limits import WORKER_TOUCH_NS
from corvo.model import ACTIVE, ENDED, PENDING, PRIORITIES, Job, Queue, Schedule, Worker


class Core:
    """State with its indexes. Every move of a job from state to state goes through `move`.

    Whatever a result depends on is in the store: lanes and heaps are rebuilt from index rows, and
    nothing is ever taken from a dict or a heap in an order that history could have changed.
    """

    def __init__(self, base: Rows) -> None:
        self.store = Store(base)
        self.meta = self.store.meta
        self.lanes: dict[str, Lane] = {}
        self.numbered: dict[int, Lane] = {}
        self.workers: dict[str, Worker] = {}
        self.schedules: dict[str, Schedule] = {}
        self.schedule_names: dict[str, str] = {}  # name -> id
        # Heap of (next_ns, id); an entry is live while the schedule says the same time.
        self.slots: list[tuple[int, str]] = []
        # Ends of leases; an entry is live while `Lane.active` says the same time.
        self.leases = DueHeap()
        # Scheduled and retrying jobs; `left` are the places of those that did not wait for their
        # time. Their entries in the heap are void, and nobody will wait in these places again.
        self.waiting = DueHeap()
        self.left: set[int] = set()
        self.woken: list[str] = []
        # The entry being applied.
        self.term: int = 0
        self.stamp_ns: int = 0
        self.seed: int = 0
        self.position: int = 0  # of the op in the entry
        self.changes: list[Change] = []
        self._read_rows()

    def _read_rows(self) -> None:
        base = self.store.base
        for key, row in base.scan(keys.QUEUE):
            self._add_lane(documents.decode_queue(keys.parse_queue(key), row))
        for key, row in base.scan(keys.WORKER):
            worker = documents.decode_worker(keys.parse_worker(key), row)
            self.workers[worker.id] = worker
        for key, row in base.scan(keys.SCHEDULE):
            self.put_schedule(documents.decode_schedule(keys.parse_schedule(key), row))
        for key, _ in base.scan(keys.PENDING):
            number, priority, seq = keys.parse_pending(key)
            self.numbered[number].ready.add(priority, seq)
        for key, row in base.scan(keys.ACTIVE):
            number, seq = keys.parse_placed(key)
            due_ns = keys.parse_due(row)[0]
            self.numbered[number].active[seq] = due_ns
            self.leases.push(due_ns, number << SEQ_BITS | seq)
        for family in (keys.SCHEDULED, keys.RETRYING):
            for key, row in base.scan(family):
                number, seq = keys.parse_placed(key)
                self.waiting.push(keys.parse_due(row)[0], number << SEQ_BITS | seq)

    # The entry.

    def begin(self, term: int, stamp_ns: int, seed: int) -> None:
        """Open an entry. Its stamp counts unless the clock is already further."""
        self.term = term
        self.stamp_ns = max(self.meta.stamp_ns, stamp_ns)
        self.meta.stamp_ns = self.stamp_ns
        self.seed = seed

    def end(self) -> None:
        """Close the entry: its changes become an event block and go into the rolling hash."""
        changes = self.changes
        if not changes:
            return
        block = documents.encode_events(changes)
        self.store.add_block(changes[0].seq, block)
        self.meta.hash = blake2b(self.meta.hash + block, digest_size=HASH_SIZE).digest()

    def emit(self, lane: Lane, job: Job, type: int, data: bytes) -> None:
        """Record an event of a job."""
        meta = self.meta
        seq = meta.event_seq + 1
        meta.event_seq = seq
        self.changes.append(
            Change(seq, type, job.id, lane.queue.name, self.stamp_ns, data, job.event_seq)
        )
        job.event_seq = seq

    def emit_queue(self, queue: str, type: int, data: bytes) -> None:
        """Record an event of a queue, or of a schedule that makes jobs for it."""
        self.meta.event_seq += 1
        self.changes.append(Change(self.meta.event_seq, type, "", queue, self.stamp_ns, data, 0))

    # Queues.

    def _add_lane(self, queue: Queue) -> Lane:
        lane = Lane(queue)
        self.lanes[queue.name] = lane
        self.numbered[queue.number] = lane
        return lane

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

    def lane_of(self, job: Job) -> Lane:
        """The queue of a job."""
        return self.numbered[job.queue_number]

    def wake(self, lane: Lane) -> None:
        """Something in this queue may be fetched now that could not be before."""
        if not lane.woken:
            lane.woken = True
            self.woken.append(lane.queue.name)

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

    def move(self, lane: Lane, job: Job, state: int, tail: bool = False) -> None:
        """Take a job out of the index of its state and into that of the next one.

        Due time and lease in the job must be those of the next state already; with `tail` it
        gives its place up for one at the end of the queue.
        """
        self._depart(lane, job)
        if tail:
            self.store.places.pop(place(job), None)
            job.seq = lane.queue.next_seq
            lane.queue.next_seq += 1
            self.store.places[place(job)] = job
        if state == NOWHERE:
            self.store.places.pop(place(job), None)
            return
        job.state = state
        self._arrive(lane, job)

    def _depart(self, lane: Lane, job: Job) -> None:
        queue = lane.queue
        self.store.touch_queue(queue)
        queue.counts[job.state * PRIORITIES + job.priority] -= 1
        if job.state == PENDING:
            lane.ready.remove(job.priority, job.seq)
        elif job.state == ACTIVE:
            del lane.active[job.seq]
            if queue.max_concurrency:
                self.wake(lane)
        elif not ENDED[job.state]:
            if job.scheduled_ns > self.stamp_ns:  # it does not wait for its time
                self.left.add(place(job))
            job.scheduled_ns = 0
            job.keeps_place = False

    def _arrive(self, lane: Lane, job: Job) -> None:
        queue = lane.queue
        self.store.touch_queue(queue)
        state = job.state
        queue.counts[state * PRIORITIES + job.priority] += 1
        if state == PENDING:
            job.ready_ns = self.stamp_ns
            lane.ready.add(job.priority, job.seq)
            self.wake(lane)
        elif state == ACTIVE:
            lane.active[job.seq] = job.lease_expires_ns
            self.leases.push(job.lease_expires_ns, lane.first_place | job.seq)
        elif ENDED[state]:
            self.store.places.pop(lane.first_place | job.seq, None)
        else:
            self.waiting.push(index_rows.due_ns(job), lane.first_place | job.seq)

    def extend(self, lane: Lane, job: Job, expires_ns: int) -> None:
        """Let the lease of an active job end later."""
        if expires_ns == job.lease_expires_ns:
            return
        job.lease_expires_ns = expires_ns
        lane.active[job.seq] = expires_ns
        self.leases.push(expires_ns, lane.first_place | job.seq)

    def ready_job(self, lane: Lane) -> Job | None:
        """The job that a fetch from this queue gets next."""
        spot = lane.ready.first()
        if spot == 0:
            return None
        return self.job_at(lane, spot >> SEQ_BITS, spot & SEQ_MASK)

    def job_at(self, lane: Lane, priority: int, seq: int) -> Job:
        """The ready job in this place."""
        job = self.store.places.get(lane.first_place | seq)
        if job is None:
            job_id = self.store.base.get(keys.pending(lane.queue.number, priority, seq))
            assert job_id is not None, f"no row for the ready job at {lane.queue.name}/{seq}"
            job = self.store.find(job_id.decode())
            assert job is not None, f"the ready job at {lane.queue.name}/{seq} is missing"
        return job

    def put_schedule(self, schedule: Schedule) -> None:
        """Take in a schedule, or one that was changed."""
        self.schedules[schedule.id] = schedule
        self.schedule_names[schedule.name] = schedule.id
        if schedule.next_ns:
            heappush(self.slots, (schedule.next_ns, schedule.id))

    def see_worker(self, worker_id: str, hostname: str, queues: list[str]) -> None:
        """A worker showed itself; its row is rewritten at most every WORKER_TOUCH_NS."""
        if not worker_id:
            return
        worker = self.workers.get(worker_id)
        if worker is None:
            worker = Worker(worker_id)
            worker.started_ns = self.stamp_ns
            self.workers[worker_id] = worker
        elif self.stamp_ns - worker.seen_ns < WORKER_TOUCH_NS:
            return
        worker.seen_ns = self.stamp_ns
        worker.hostname = hostname
        if queues:
            worker.queues = queues
        self.store.touch_worker(worker)

"""Reads for the API: pages of events and locks, and the order and holders of jobs.

They change no state, and every function does a bounded amount of work.
"""

from itertools import islice
from typing import Final

from corvo._fast.codec import keys
from corvo.events import Event
from corvo.fsm.ops import unique
from corvo.fsm.queries import due as due_queries
from corvo.fsm.state.state import State
from corvo.limits import ACTIVE_COUNTED_MAX
from corvo.model import PENDING, Job, Queue, UniqueLock, Worker
from corvo.storage.records import events as event_records

# Bytes counted for each event of a page in addition to its data.
EVENT_OVERHEAD: Final = 256
_QUEUE_NAMES_MAX: Final = 50_000  # of workers, read to explain a job


def events_of_job(state: State, job: Job, before: int, limit: int, size_max: int) -> list[Event]:
    """Return the newest events of a job, oldest first, limited by count and by bytes but at least
    one. With `before`, the seq of one of its events, return those preceding it. The chain of events
    ends where the log was trimmed."""
    found: list[Event] = []
    seq = job.event_seq
    if before:
        event = state.buffer.events.find(before)
        seq = event.previous if event is not None and event.job_id == job.id else 0
    size = 0
    while seq and len(found) < limit:
        event = state.buffer.events.find(seq)
        if event is None:
            break
        size += EVENT_OVERHEAD + len(event.data)
        if size > size_max and found:
            break
        found.append(event)
        seq = event.previous
    found.reverse()
    return found


def events_before(
    state: State, queue: str, before: int, limit: int, size_max: int, looked_at_max: int
) -> tuple[list[Event], int]:
    """Return the newest events of a queue and its jobs with a seq below `before`, oldest first, and
    the `before` of the next page: 0 if the log has no more. At most about `looked_at_max` events
    are read, so a page can be empty although more follow."""
    found: list[Event] = []
    size = 0
    looked_at = 0
    for first_seq, block in state.buffer.events.blocks_back(before - 1):
        if looked_at >= looked_at_max:
            break
        changes = event_records.decode_events(first_seq, block)
        looked_at += len(changes)
        for event in reversed(changes):
            if event.seq >= before or event.queue != queue:
                continue
            size += EVENT_OVERHEAD + len(event.data)
            if len(found) == limit or (size > size_max and found):
                found.reverse()
                return found, found[0].seq
            found.append(event)
        before = first_seq
    found.reverse()
    return found, before if before > state.meta.event_first_seq else 0


def events_after(state: State, after: int, limit: int, size_max: int) -> list[Event]:
    """Return events of all queues with a seq above `after`, in order."""
    found: list[Event] = []
    size = 0
    for first_seq, block in state.buffer.events.blocks_from(after + 1):
        for event in event_records.decode_events(first_seq, block, after, limit - len(found) + 1):
            size += EVENT_OVERHEAD + len(event.data)
            if len(found) == limit or (size > size_max and found):
                return found
            found.append(event)
    return found


def locks(state: State, queue: str, after: bytes, limit: int) -> tuple[list[UniqueLock], bytes]:
    """Return unique locks of a queue (empty = of all queues) whose row key is above `after`, and
    the last row key read: empty if there are no more. Expired locks are skipped, so a page can have
    fewer than `limit` although more follow."""
    prefix = keys.UNIQUE
    if queue:
        queue_index = state.queue_indexes.get(queue)
        if queue_index is None:
            return [], b""
        prefix = keys.unique_of(queue_index.queue.number)
    rows = state.buffer.lock_rows(prefix, after, limit + 1)
    found: list[UniqueLock] = []
    for key, (job_id, expires_ns, unique_key) in rows[:limit]:
        if expires_ns and expires_ns <= state.meta.stamp_ns:
            continue
        holder = state.find(job_id)
        if holder is None:  # a clear will delete it
            continue
        name = state.numbered[keys.parse_unique(key)[0]].queue.name
        found.append(UniqueLock(name, unique_key, holder, expires_ns))
    return found, rows[limit - 1][0] if len(rows) > limit else b""


def unique_lock(state: State, queue: str, key: bytes) -> UniqueLock | None:
    """Return the lock on a unique key of a queue, if it is held."""
    queue_index = state.queue_indexes.get(queue)
    lock = None if queue_index is None else unique.live_lock(state, queue_index, key)
    if lock is None:
        return None
    job_id, expires_ns, unique_key = lock
    holder = state.find(job_id)
    return None if holder is None else UniqueLock(queue, unique_key, holder, expires_ns)


def jobs_before(state: State, job: Job) -> int:
    """Return how many ready jobs of its queue precede this ready job. If the queue has groups,
    turns may serve the job earlier or later."""
    assert job.state == PENDING
    queue_index = state.queue_index_of(job)
    count = queue_index.ready.before(job.priority, job.seq)
    if queue_index.groups is not None:
        count += queue_index.groups.ready.before(job.priority, job.seq)
    return count


def holders(state: State, queue: str, limit: int) -> list[Job]:
    """Return up to `limit` active jobs of a queue, the longest-held leases first."""
    queue_index = state.queue_indexes.get(queue)
    if queue_index is None:
        return []
    found: list[Job] = []
    for seq in islice(queue_index.active, limit):
        job = state.find(due_queries.holder(state, queue_index.first_position | seq)[0])
        assert job is not None, f"the active job at {queue}/{seq} is missing"
        found.append(job)
    return found


def active_by_worker(state: State) -> dict[str, int] | None:
    """Return the numbers of active jobs by worker; None if there are too many to count them."""
    queue_indexes = [index for index in state.queue_indexes.values() if index.active]
    if sum(len(index.active) for index in queue_indexes) > ACTIVE_COUNTED_MAX:
        return None
    found: dict[str, int] = {}
    for queue_index in queue_indexes:
        for seq in queue_index.active:
            queue_position = queue_index.first_position | seq
            job = state.buffer.positions.get(queue_position)
            if job is None:
                job = state.find(due_queries.holder(state, queue_position)[0])
            assert job is not None, f"the active job at {queue_index.queue.name}/{seq} is missing"
            found[job.worker_id] = found.get(job.worker_id, 0) + 1
    return found


def first_queues(state: State, limit: int) -> list[Queue]:
    """Return the `limit` queues that were created first, in that order. Destroyed ones that have
    jobs left are skipped."""
    found: list[Queue] = []
    for number in state.numbers():
        queue = state.numbered[number].queue
        if len(found) == limit:
            break
        if not queue.destroyed:
            found.append(queue)
    return found


def workers(state: State, before_ns: int, after_id: str, limit: int) -> list[Worker]:
    """Return up to `limit` workers, the most recently seen first and then by id: those seen before
    `before_ns`, or then with an id above `after_id`."""
    found: list[Worker] = []
    same: list[Worker] = []  # seen at the same time
    for worker in reversed(state.workers.values()):
        if worker.seen_ns > before_ns:
            continue
        if same and worker.seen_ns != same[0].seen_ns:
            found += sorted(same, key=_id)
            same = []
            if len(found) >= limit:
                break
        if worker.seen_ns < before_ns or worker.id > after_id:
            same.append(worker)
    found += sorted(same, key=_id)
    return found[:limit]


def _id(worker: Worker) -> str:
    return worker.id


def active_workers(state: State, since_ns: int) -> int:
    """Return how many workers have sent a request since that time."""
    count = 0
    for worker in reversed(state.workers.values()):
        if worker.seen_ns < since_ns:
            break
        count += 1
    return count


def workers_of(state: State, queue: str) -> list[Worker]:
    """Return the workers that last requested jobs of this queue, the most recently seen first. Only
    the workers that were seen last are read if there are very many."""
    found: list[Worker] = []
    looked_at = 0
    for worker in reversed(state.workers.values()):
        looked_at += 1 + len(worker.queues)
        if looked_at > _QUEUE_NAMES_MAX:
            break
        if queue in worker.queues:
            found.append(worker)
    found.sort(key=_seen_last)
    return found


def _seen_last(worker: Worker) -> tuple[int, str]:
    return -worker.seen_ns, worker.id

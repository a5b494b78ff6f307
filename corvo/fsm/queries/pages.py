"""Reads for people: pages of events and locks, and what stands in the way of a job.

Nothing here changes state, and every function does a bounded amount of work.
"""

from itertools import islice
from typing import Final

from corvo._fast.codec import keys
from corvo.events import Change
from corvo.fsm.queries import due as due_queries
from corvo.fsm.state.state import Core
from corvo.model import PENDING, Job, UniqueLock, Worker
from corvo.storage.records import events as event_records

# Counted for each event of a page beside its data.
EVENT_OVERHEAD: Final = 256


def events_of_job(core: Core, job: Job, before: int, limit: int, size_max: int) -> list[Change]:
    """The newest events of a job, or (with `before`, the seq of one of its events) those in front
    of that one, cut by count and by bytes but never to nothing; the oldest of them first. The chain
    ends where the log was trimmed."""
    found: list[Change] = []
    seq = job.event_seq
    if before:
        change = core.store.events.find(before)
        seq = change.previous if change is not None and change.job_id == job.id else 0
    size = 0
    while seq and len(found) < limit:
        change = core.store.events.find(seq)
        if change is None:
            break
        size += EVENT_OVERHEAD + len(change.data)
        if size > size_max and found:
            break
        found.append(change)
        seq = change.previous
    found.reverse()
    return found


def events_before(
    core: Core, queue: str, before: int, limit: int, size_max: int, looked_at_max: int
) -> tuple[list[Change], int]:
    """The newest events of a queue and its jobs with a seq below `before`, the oldest of them
    first, and the `before` of the next page: 0 when the log has no more. At most about
    `looked_at_max` events are looked at, so a page can be empty though there are more."""
    found: list[Change] = []
    size = 0
    looked_at = 0
    for first_seq, block in core.store.events.blocks_back(before - 1):
        if looked_at >= looked_at_max:
            break
        changes = event_records.decode_events(first_seq, block)
        looked_at += len(changes)
        for change in reversed(changes):
            if change.seq >= before or change.queue != queue:
                continue
            size += EVENT_OVERHEAD + len(change.data)
            if len(found) == limit or (size > size_max and found):
                found.reverse()
                return found, found[0].seq
            found.append(change)
        before = first_seq
    found.reverse()
    return found, before if before > core.meta.event_first_seq else 0


def events_after(core: Core, after: int, limit: int, size_max: int) -> list[Change]:
    """Events of everything with a seq above `after`, in order."""
    found: list[Change] = []
    size = 0
    for first_seq, block in core.store.events.blocks_from(after + 1):
        for change in event_records.decode_events(first_seq, block, after, limit - len(found) + 1):
            size += EVENT_OVERHEAD + len(change.data)
            if len(found) == limit or (size > size_max and found):
                return found
            found.append(change)
    return found


def locks(core: Core, queue: str, behind: bytes, limit: int) -> tuple[list[UniqueLock], bytes]:
    """Unique locks of a queue (empty = of all) whose row is behind a key, and the key of the last
    row looked at: empty when there are no more. Locks whose time is over do not count, so a page
    can have fewer than `limit`."""
    prefix = keys.UNIQUE
    if queue:
        lane = core.lanes.get(queue)
        if lane is None:
            return [], b""
        prefix = keys.unique_of(lane.queue.number)
    rows = core.store.lock_rows(prefix, behind, limit + 1)
    found: list[UniqueLock] = []
    for key, (job_id, expires_ns, unique_key) in rows[:limit]:
        if expires_ns and expires_ns <= core.meta.stamp_ns:
            continue
        holder = core.find(job_id)
        if holder is None:  # a clear has doomed it
            continue
        name = core.numbered[keys.parse_unique(key)[0]].queue.name
        found.append(UniqueLock(name, unique_key, holder, expires_ns))
    return found, rows[limit - 1][0] if len(rows) > limit else b""


def jobs_before(core: Core, job: Job) -> int:
    """How many ready jobs of its queue stand before this one, which is ready too. Where there are
    groups, turns may let it be served earlier or later."""
    assert job.state == PENDING
    lane = core.lane_of(job)
    count = lane.ready.before(job.priority, job.seq)
    if lane.groups is not None:
        count += lane.groups.ready.before(job.priority, job.seq)
    return count


def holders(core: Core, queue: str, limit: int) -> list[Job]:
    """Some active jobs of a queue, those that hold their lease longest first."""
    lane = core.lanes.get(queue)
    if lane is None:
        return []
    found: list[Job] = []
    for seq in islice(lane.active, limit):
        job = core.find(due_queries.holder(core, lane.first_place | seq)[0])
        assert job is not None, f"the active job at {queue}/{seq} is missing"
        found.append(job)
    return found


def workers_of(core: Core, queue: str) -> list[Worker]:
    """The workers that last asked for jobs of this queue, the one heard of last first."""
    found = [worker for worker in core.workers.values() if queue in worker.queues]
    found.sort(key=_seen_last)
    return found


def _seen_last(worker: Worker) -> tuple[int, str]:
    return -worker.seen_ns, worker.id

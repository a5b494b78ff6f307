"""What is due: read by the leader, which then proposes ops that name the jobs.

The heaps may hold entries that are no longer live: a lease that was extended or given back, a job
that was retried by hand. They are dropped when they come to the top, and all at once when a flush
finds that too many of them have gathered.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from corvo._fast import keys
from corvo._fast.ready import SEQ_BITS, SEQ_MASK
from corvo.fsm import index_rows
from corvo.fsm.core import Core
from corvo.model import ACTIVE, RETRYING, SCHEDULED, Schedule

COMPACT_MIN: Final = 1_024


def waiting_id(core: Core, due_ns: int, spot: int) -> str:
    """Id of the scheduled or retrying job with this place and time; empty when it is gone."""
    job = core.store.places.get(spot)
    if job is None:
        number, seq = spot >> SEQ_BITS, spot & SEQ_MASK
        row = core.store.base.get(keys.placed(keys.SCHEDULED, number, seq))
        if row is None:
            row = core.store.base.get(keys.placed(keys.RETRYING, number, seq))
        if row is None:
            return ""
        row_due_ns, _, job_id = keys.parse_due(row)
        if job_id not in core.store.jobs:
            return job_id if row_due_ns == due_ns else ""
        job = core.store.jobs[job_id]
    if job.deleted or job.state not in (SCHEDULED, RETRYING) or index_rows.due_ns(job) != due_ns:
        return ""
    return job.id


def drop_promoted(core: Core) -> None:
    """Take what is due and no longer waits from the top of the heap."""
    heap = core.waiting
    while len(heap) and heap.first_due() <= core.stamp_ns:
        spot = heap.first_key()
        if spot in core.left:
            core.left.remove(spot)
        elif waiting_id(core, heap.first_due(), spot):
            return
        heap.pop()


def due_promotions(core: Core, now_ns: int, limit: int) -> list[str]:
    """Ids of up to `limit` scheduled and retrying jobs that are due, in order of time."""
    heap = core.waiting
    found: list[tuple[int, int]] = []
    ids: list[str] = []
    while len(heap) and heap.first_due() <= now_ns and len(ids) < limit:
        due_ns, spot = heap.first_due(), heap.first_key()
        heap.pop()
        if spot in core.left:
            core.left.remove(spot)
            continue
        job_id = waiting_id(core, due_ns, spot)
        if job_id:
            ids.append(job_id)
            found.append((due_ns, spot))
    for due_ns, spot in found:
        heap.push(due_ns, spot)
    return ids


def lease_live(core: Core, due_ns: int, spot: int) -> bool:
    """Whether an entry of the lease heap is the end of a live lease."""
    return core.numbered[spot >> SEQ_BITS].active.get(spot & SEQ_MASK) == due_ns


def due_leases(
    core: Core, aside: list[tuple[int, int]], now_ns: int, limit: int, grace_fencing: int
) -> list[str]:
    """Ids of up to `limit` active jobs whose lease has ended, in order of time.

    Leases granted up to `grace_fencing` are put `aside`; those that wait there come back first
    when the grace is over.
    """
    heap = core.leases
    if grace_fencing == 0:
        for due_ns, spot in aside:
            heap.push(due_ns, spot)
        aside.clear()
    found: list[tuple[int, int]] = []
    ids: list[str] = []
    while len(heap) and heap.first_due() <= now_ns and len(ids) < limit:
        due_ns, spot = heap.first_due(), heap.first_key()
        heap.pop()
        if not lease_live(core, due_ns, spot) or (found and found[-1] == (due_ns, spot)):
            continue
        job_id, fencing = _holder(core, spot)
        if fencing <= grace_fencing:
            aside.append((due_ns, spot))
            continue
        ids.append(job_id)
        found.append((due_ns, spot))
    for due_ns, spot in found:
        heap.push(due_ns, spot)
    return ids


def _holder(core: Core, spot: int) -> tuple[str, int]:
    """Id and fencing number of the active job in this place."""
    job = core.store.places.get(spot)
    if job is not None:
        assert job.state == ACTIVE
        return job.id, job.fencing
    row = core.store.base.get(keys.placed(keys.ACTIVE, spot >> SEQ_BITS, spot & SEQ_MASK))
    assert row is not None, f"no row for the active job at {spot}"
    _, fencing, job_id = keys.parse_due(row)
    return job_id, fencing


def next_due(core: Core) -> int:
    """When the next promotion, lease end or slot is due; 0 when nothing waits."""
    due_ns = _next_job_due(core)
    slot_ns = next_slot(core)
    return min(due_ns, slot_ns) if due_ns and slot_ns else due_ns or slot_ns


def slot_live(core: Core, slot_ns: int, schedule_id: str) -> bool:
    """Whether an entry of the heap of slots is the next run of a schedule."""
    schedule = core.schedules.get(schedule_id)
    return schedule is not None and schedule.next_ns == slot_ns


def next_slot(core: Core) -> int:
    """The earliest next run of all schedules; 0 when there is none."""
    slots = core.slots
    while slots and not slot_live(core, slots[0][0], slots[0][1]):
        heappop(slots)
    return slots[0][0] if slots else 0


def due_schedules(core: Core, now_ns: int, limit: int) -> list[Schedule]:
    """Up to `limit` schedules whose next run has come, in order of time."""
    found: list[Schedule] = []
    while 0 < next_slot(core) <= now_ns and len(found) < limit:
        schedule = core.schedules[heappop(core.slots)[1]]
        if not found or found[-1] is not schedule:
            found.append(schedule)
    for schedule in found:
        heappush(core.slots, (schedule.next_ns, schedule.id))
    return found


def _next_job_due(core: Core) -> int:
    leases = core.leases
    while len(leases) and not lease_live(core, leases.first_due(), leases.first_key()):
        leases.pop()
    waiting = core.waiting
    while len(waiting) and waiting.first_key() in core.left:
        core.left.remove(waiting.first_key())
        waiting.pop()
    if not len(waiting):
        return leases.first_due() if len(leases) else 0
    if not len(leases):
        return waiting.first_due()
    return min(leases.first_due(), waiting.first_due())


def compact(core: Core, aside: list[tuple[int, int]]) -> None:
    """Rebuild a heap in which most entries are void."""
    live = sum(len(lane.active) for lane in core.numbered.values())
    if len(core.leases) + len(aside) > 2 * live + COMPACT_MIN:
        core.leases.clear()
        aside.clear()
        for lane in core.numbered.values():
            for seq, due_ns in lane.active.items():
                core.leases.push(due_ns, lane.first_place | seq)
    if len(core.left) > len(core.waiting) // 8 + COMPACT_MIN:
        core.waiting.drop(core.left)
        core.left.clear()
    if len(core.slots) > 2 * len(core.schedules) + COMPACT_MIN:
        core.slots = [(row.next_ns, row.id) for row in core.schedules.values() if row.next_ns]
        heapify(core.slots)

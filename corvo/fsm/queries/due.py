"""What is due: read by the leader, which then proposes ops that name the jobs.

The heaps may hold entries that are no longer live: a lease that was extended or given back, a job
that was retried by hand, a hold that was approved. They are dropped when they come to the top, and
all at once when a flush finds that too many of them have gathered.
"""

from bisect import bisect_left
from heapq import heapify, heappop, heappush

from corvo._fast.codec import keys
from corvo._fast.index.ready import SEQ_BITS, SEQ_MASK
from corvo.fsm.state import index_rows
from corvo.fsm.state.deadlines import COMPACT_MIN, DueTimes
from corvo.fsm.state.state import Core
from corvo.fsm.state.store import place
from corvo.model import ACTIVE, ENDINGS, HELD, KEEP_DEFAULT, RETRYING, SCHEDULED, Job, Schedule
from corvo.storage.records import jobs as job_records


def _live(core: Core, due: DueTimes, job: Job, due_ns: int) -> bool:
    """Whether a job in its place waits for this time, in this way."""
    if job.deleted:
        return False
    if due is core.waiting:
        return job.state in (SCHEDULED, RETRYING) and index_rows.due_ns(job) == due_ns
    if due is core.holds:
        return job.state == HELD and index_rows.hold_ends_ns(job) == due_ns
    return job.state != ACTIVE and index_rows.expires_ns(job) == due_ns


def _waiting_id(core: Core, due: DueTimes, due_ns: int, spot: int) -> str:
    """Id of the job with this place that waits for this time; empty when there is none."""
    job = core.store.places.get(spot)
    if job is None:
        row = None
        for family in _families(core, due):
            if row is None:
                row = core.store.base.get(keys.placed(family, spot >> SEQ_BITS, spot & SEQ_MASK))
        if row is None:
            return ""
        row_due_ns, _, job_id = keys.parse_due(row)
        if job_id not in core.store.jobs and due is not core.expiring:
            return job_id if row_due_ns == due_ns else ""
        job = core.store.find(job_id)
        if job is None or place(job) != spot:
            return ""
    return job.id if _live(core, due, job, due_ns) else ""


def _families(core: Core, due: DueTimes) -> tuple[bytes, ...]:
    if due is core.waiting:
        return keys.SCHEDULED, keys.RETRYING
    return (keys.HELD,) if due is core.holds else (keys.EXPIRING,)


def waiting_in(core: Core, spot: int) -> str:
    """Id of the job that waits in this place, which there must be."""
    job = core.store.places.get(spot)
    if job is not None:
        return job.id
    for family in (keys.RETRYING, keys.SCHEDULED, keys.HELD):
        row = core.store.base.get(keys.placed(family, spot >> SEQ_BITS, spot & SEQ_MASK))
        if row is not None:
            return keys.parse_due(row)[2]
    raise AssertionError(f"no job waits at {spot}")


def drop_past(core: Core, due: DueTimes) -> None:
    """Take what is due and no longer waits from the top of the heap."""
    while 0 < due.first_due() <= core.stamp_ns:
        if _waiting_id(core, due, due.first_due(), due.first_spot()):
            return
        due.pop()


def _due_ids(core: Core, due: DueTimes, now_ns: int, limit: int, ids: list[str]) -> None:
    """Add ids of jobs whose time has come, in order of time, until there are `limit`."""
    found: list[tuple[int, int]] = []
    while len(ids) < limit:
        due_ns = due.first_due()
        if not 0 < due_ns <= now_ns:
            break
        spot = due.first_spot()
        due.pop()
        if found and found[-1] == (due_ns, spot):
            continue
        job_id = _waiting_id(core, due, due_ns, spot)
        if job_id:
            ids.append(job_id)
            found.append((due_ns, spot))
    for due_ns, spot in found:
        due.push(due_ns, spot)


def due_promotions(core: Core, now_ns: int, limit: int) -> list[str]:
    """Ids of up to `limit` scheduled and retrying jobs that are due, in order of time."""
    ids: list[str] = []
    _due_ids(core, core.waiting, now_ns, limit, ids)
    return ids


def due_expiries(core: Core, now_ns: int, limit: int) -> list[str]:
    """Ids of up to `limit` jobs that have expired, or whose hold has timed out. An active job
    that has expired is left out: it is seen to when its attempt ends."""
    ids: list[str] = []
    _due_ids(core, core.holds, now_ns, limit, ids)
    _due_ids(core, core.expiring, now_ns, limit, ids)
    return ids


def lease_live(core: Core, due_ns: int, spot: int) -> bool:
    """Whether an entry of the lease heap is the end of a live lease."""
    lane = core.numbered.get(spot >> SEQ_BITS)
    return lane is not None and lane.active.get(spot & SEQ_MASK) == due_ns


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
        job_id, fencing = holder(core, spot)
        if fencing <= grace_fencing:
            aside.append((due_ns, spot))
            continue
        ids.append(job_id)
        found.append((due_ns, spot))
    for due_ns, spot in found:
        heap.push(due_ns, spot)
    return ids


def ended_leases(core: Core, now_ns: int, limit: int) -> list[str]:
    """Like `due_leases`, without a grace and without the heap, which is not the same on all
    nodes."""
    ended = [
        (due_ns, lane.first_place | seq)
        for lane in core.numbered.values()
        for seq, due_ns in lane.active.items()
        if due_ns <= now_ns
    ]
    ended.sort()
    return [holder(core, spot)[0] for _, spot in ended[:limit]]


def holder(core: Core, spot: int) -> tuple[str, int]:
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


def due_purges(
    core: Core, now_ns: int, default_ns: list[int], start: int, queues: int, limit: int
) -> tuple[list[str], int]:
    """See `Machine.due_purges`. What waits for a flush is left for the next time."""
    numbers = core.numbers()
    first = bisect_left(numbers, start)
    ids: list[str] = []
    for number in numbers[first : first + queues]:
        queue = core.numbered[number].queue
        for i in range(len(ENDINGS)):
            if not queue.jobs(ENDINGS[i]):
                continue
            keep_ns = queue.retention_ns[i]
            cutoff_ns = now_ns - (default_ns[i] if keep_ns == KEEP_DEFAULT else keep_ns)
            for key, row in core.store.base.scan(keys.finished_in(number, ENDINGS[i])):
                if keys.parse_finished(key)[2] > cutoff_ns:
                    break
                job_id = row.decode()
                if job_id in core.store.jobs:
                    continue
                if len(ids) == limit:
                    return ids, number
                ids.append(job_id)
    return ids, numbers[first + queues] if len(numbers) > first + queues else 0


def stale_locks(core: Core, now_ns: int, start: bytes, limit: int) -> tuple[list[bytes], bytes]:
    """See `Machine.stale_locks`."""
    stale: list[bytes] = []
    for i, (key, row) in enumerate(core.store.base.scan(keys.UNIQUE, start or None)):
        if i == limit:
            return stale, key
        if 0 < job_records.decode_lock(row)[1] <= now_ns:
            stale.append(key)
    return stale, b""


def _next_job_due(core: Core) -> int:
    leases = core.leases
    while len(leases) and not lease_live(core, leases.first_due(), leases.first_key()):
        leases.pop()
    first_ns = leases.first_due() if len(leases) else 0
    for due in (core.waiting, core.holds, core.expiring):
        due_ns = due.first_due()
        if due_ns and (not first_ns or due_ns < first_ns):
            first_ns = due_ns
    return first_ns


def _compact_leases(core: Core, aside: list[tuple[int, int]]) -> None:
    """Looks at all queues, of which there may be very many: not again before the heap has grown."""
    live = sum(len(lane.active) for lane in core.numbered.values())
    core.leases_room = 2 * live + COMPACT_MIN
    if len(core.leases) + len(aside) > core.leases_room:
        core.leases.clear()
        aside.clear()
        for lane in core.numbered.values():
            for seq, due_ns in lane.active.items():
                core.leases.push(due_ns, lane.first_place | seq)


def compact(core: Core, aside: list[tuple[int, int]]) -> None:
    """Rebuild a heap in which most entries are void."""
    if len(core.leases) + len(aside) > core.leases_room:
        _compact_leases(core, aside)
    core.waiting.compact()
    core.holds.compact()
    core.expiring.compact()
    if len(core.slots) > 2 * len(core.schedules) + COMPACT_MIN:
        core.slots = [(row.next_ns, row.id) for row in core.schedules.values() if row.next_ns]
        heapify(core.slots)

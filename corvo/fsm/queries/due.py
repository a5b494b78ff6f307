"""Reads of due work. The leader calls them and then proposes ops that name the jobs.

The heaps may hold void entries: of a lease that was extended or released, a job that was retried by
hand, a hold that was approved. Such an entry is dropped when it reaches the top, and all of them
are dropped when a flush finds too many.
"""

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from typing import Final

from corvo._fast.codec import keys
from corvo._fast.index.ready import SEQ_BITS, SEQ_MASK
from corvo.fsm.state import index_rows
from corvo.fsm.state.deadlines import COMPACT_MIN, DueTimes
from corvo.fsm.state.state import State
from corvo.fsm.state.write_buffer import position
from corvo.limits import DUE_LOOKED_AT_MAX
from corvo.model import ACTIVE, END_STATES, HELD, KEEP_DEFAULT, RETRYING, SCHEDULED, Job, Schedule
from corvo.storage.records import jobs as job_records

NO_LIMIT: Final = 1 << 62
_RETURNED_MAX: Final = 10_000  # leases that return to the heap in one call


def _live(state: State, due: DueTimes, job: Job, due_ns: int) -> bool:
    """Return whether the job waits for this time in this heap."""
    if job.deleted:
        return False
    if due is state.waiting:
        return job.state in (SCHEDULED, RETRYING) and index_rows.due_ns(job) == due_ns
    if due is state.holds:
        return job.state == HELD and index_rows.hold_ends_ns(job) == due_ns
    return job.state != ACTIVE and index_rows.expires_ns(job) == due_ns


def _waiting_id(state: State, due: DueTimes, due_ns: int, queue_position: int) -> str:
    """Return the id of the job at this queue position that waits for this time; empty if there is
    none."""
    job = state.buffer.positions.get(queue_position)
    if job is None:
        row = None
        for family in _families(state, due):
            if row is None:
                row = state.buffer.state_store.get(
                    keys.placed(family, queue_position >> SEQ_BITS, queue_position & SEQ_MASK)
                )
        if row is None:
            return ""
        row_due_ns, _, job_id = keys.parse_due(row)
        if job_id not in state.buffer.jobs and due is not state.expiring:
            return job_id if row_due_ns == due_ns else ""
        job = state.buffer.find(job_id)
        if job is None or position(job) != queue_position:
            return ""
    return job.id if _live(state, due, job, due_ns) else ""


def _families(state: State, due: DueTimes) -> tuple[bytes, ...]:
    if due is state.waiting:
        return keys.SCHEDULED, keys.RETRYING
    return (keys.HELD,) if due is state.holds else (keys.EXPIRING,)


def waiting_in(state: State, queue_position: int) -> str:
    """Return the id of the job that waits at this queue position. There must be one."""
    job = state.buffer.positions.get(queue_position)
    if job is not None:
        return job.id
    for family in (keys.RETRYING, keys.SCHEDULED, keys.HELD):
        row = state.buffer.state_store.get(
            keys.placed(family, queue_position >> SEQ_BITS, queue_position & SEQ_MASK)
        )
        if row is not None:
            return keys.parse_due(row)[2]
    raise AssertionError(f"no job waits at position {queue_position}")


def drop_past(state: State, due: DueTimes) -> None:
    """Drop due entries that are void from the top of the heap, a limited number of them. No result
    depends on void entries."""
    for _ in range(DUE_LOOKED_AT_MAX):
        if not 0 < due.first_due() <= state.stamp_ns:
            return
        if _waiting_id(state, due, due.first_due(), due.first_position()):
            return
        due.pop()


def _due_ids(
    state: State, due: DueTimes, now_ns: int, limit: int, looked_at_max: int, ids: list[str]
) -> None:
    """Append the ids of due jobs, in order of time, until the list has `limit` or `looked_at_max`
    entries were read, some of which were void."""
    found: list[tuple[int, int]] = []
    looked_at = 0
    while len(ids) < limit and looked_at < looked_at_max:
        looked_at += 1
        due_ns = due.first_due()
        if not 0 < due_ns <= now_ns:
            break
        queue_position = due.first_position()
        due.pop()
        if found and found[-1] == (due_ns, queue_position):
            continue
        job_id = _waiting_id(state, due, due_ns, queue_position)
        if job_id:
            ids.append(job_id)
            found.append((due_ns, queue_position))
    for due_ns, queue_position in found:
        due.push(due_ns, queue_position)


def due_promotions(
    state: State, now_ns: int, limit: int, looked_at_max: int = NO_LIMIT
) -> list[str]:
    """Return the ids of up to `limit` scheduled and retrying jobs that are due, in order of time.
    With `looked_at_max`, which apply must not use, void entries can hide some of them."""
    ids: list[str] = []
    _due_ids(state, state.waiting, now_ns, limit, looked_at_max, ids)
    return ids


def due_expiries(state: State, now_ns: int, limit: int, looked_at_max: int) -> list[str]:
    """Return the ids of up to `limit` jobs that have expired, or whose hold has timed out. An
    active job that has expired is left out: it is handled when its attempt ends."""
    ids: list[str] = []
    _due_ids(state, state.holds, now_ns, limit, looked_at_max, ids)
    _due_ids(state, state.expiring, now_ns, limit, looked_at_max, ids)
    return ids


def lease_live(state: State, due_ns: int, queue_position: int) -> bool:
    """Return whether an entry of the lease heap belongs to a live lease."""
    queue_index = state.numbered.get(queue_position >> SEQ_BITS)
    return queue_index is not None and queue_index.active.get(queue_position & SEQ_MASK) == due_ns


def due_leases(
    state: State, in_grace: list[tuple[int, int]], now_ns: int, limit: int, grace_fencing: int
) -> list[str]:
    """Return the ids of up to `limit` active jobs whose lease has ended, in order of time.

    Leases with fencing <= `grace_fencing` are moved to `in_grace`, a limited number in one call.
    With `grace_fencing` 0, leases in `in_grace` return to the heap first, also in steps.
    """
    heap = state.leases
    if grace_fencing == 0 and in_grace:
        for due_ns, queue_position in in_grace[-_RETURNED_MAX:]:
            heap.push(due_ns, queue_position)
        del in_grace[-_RETURNED_MAX:]
    found: list[tuple[int, int]] = []
    ids: list[str] = []
    looked_at = 0
    looked_at_max = max(limit, DUE_LOOKED_AT_MAX)
    while (
        len(heap) and heap.first_due() <= now_ns and len(ids) < limit and looked_at < looked_at_max
    ):
        looked_at += 1
        due_ns, queue_position = heap.first_due(), heap.first_key()
        heap.pop()
        if not lease_live(state, due_ns, queue_position) or (
            found and found[-1] == (due_ns, queue_position)
        ):
            continue
        job_id, fencing = holder(state, queue_position)
        if fencing <= grace_fencing:
            in_grace.append((due_ns, queue_position))
            continue
        ids.append(job_id)
        found.append((due_ns, queue_position))
    for due_ns, queue_position in found:
        heap.push(due_ns, queue_position)
    return ids


def ended_leases(state: State, now_ns: int, limit: int) -> list[str]:
    """Do the same as `due_leases`, without a grace period and without the heap, whose content
    differs between nodes."""
    ended = [
        (due_ns, queue_index.first_position | seq)
        for queue_index in state.numbered.values()
        for seq, due_ns in queue_index.active.items()
        if due_ns <= now_ns
    ]
    ended.sort()
    return [holder(state, queue_position)[0] for _, queue_position in ended[:limit]]


def holder(state: State, queue_position: int) -> tuple[str, int]:
    """Return the id and fencing number of the active job at this queue position."""
    job = state.buffer.positions.get(queue_position)
    if job is not None:
        assert job.state == ACTIVE
        return job.id, job.fencing
    row = state.buffer.state_store.get(
        keys.placed(keys.ACTIVE, queue_position >> SEQ_BITS, queue_position & SEQ_MASK)
    )
    assert row is not None, f"no row for the active job at position {queue_position}"
    _, fencing, job_id = keys.parse_due(row)
    return job_id, fencing


def next_due(state: State) -> int:
    """Return the time of the next promotion, lease end or occurrence; 0 if nothing waits."""
    due_ns = _next_job_due(state)
    occurrence_ns = next_occurrence(state)
    return min(due_ns, occurrence_ns) if due_ns and occurrence_ns else due_ns or occurrence_ns


def occurrence_live(state: State, occurrence_ns: int, schedule_id: str) -> bool:
    """Return whether an entry of the heap of occurrences is the next run of a schedule."""
    schedule = state.schedules.get(schedule_id)
    return schedule is not None and schedule.next_ns == occurrence_ns


def next_occurrence(state: State) -> int:
    """Return the earliest next run of all schedules; 0 if there is none."""
    occurrences = state.occurrences
    while occurrences and not occurrence_live(state, occurrences[0][0], occurrences[0][1]):
        heappop(occurrences)
    return occurrences[0][0] if occurrences else 0


def due_schedules(state: State, now_ns: int, limit: int) -> list[Schedule]:
    """Return up to `limit` schedules whose next run is due, in order of time."""
    found: list[Schedule] = []
    while 0 < next_occurrence(state) <= now_ns and len(found) < limit:
        schedule = state.schedules[heappop(state.occurrences)[1]]
        if not found or found[-1] is not schedule:
            found.append(schedule)
    for schedule in found:
        heappush(state.occurrences, (schedule.next_ns, schedule.id))
    return found


def due_purges(
    state: State, now_ns: int, default_ns: list[int], start: int, queues: int, limit: int
) -> tuple[list[str], int]:
    """Implement `Machine.due_purges`. Jobs that wait for a flush are left for a later call."""
    numbers = state.numbers()
    first = bisect_left(numbers, start)
    ids: list[str] = []
    for number in numbers[first : first + queues]:
        queue = state.numbered[number].queue
        for i in range(len(END_STATES)):
            if not queue.jobs(END_STATES[i]):
                continue
            keep_ns = queue.retention_ns[i]
            cutoff_ns = now_ns - (default_ns[i] if keep_ns == KEEP_DEFAULT else keep_ns)
            for key, row in state.buffer.state_store.scan(keys.finished_in(number, END_STATES[i])):
                if keys.parse_finished(key)[2] > cutoff_ns:
                    break
                job_id = row.decode()
                if job_id in state.buffer.jobs:
                    continue
                if len(ids) == limit:
                    return ids, number
                ids.append(job_id)
    return ids, numbers[first + queues] if len(numbers) > first + queues else 0


def stale_locks(state: State, now_ns: int, start: bytes, limit: int) -> tuple[list[bytes], bytes]:
    """Implement `Machine.stale_locks`."""
    stale: list[bytes] = []
    for i, (key, row) in enumerate(state.buffer.state_store.scan(keys.UNIQUE, start or None)):
        if i == limit:
            return stale, key
        _, expires_ns, _ = job_records.decode_lock(row)
        if 0 < expires_ns <= now_ns:
            stale.append(key)
    return stale, b""


def stale_workers(state: State, cutoff_ns: int, limit: int) -> int:
    """Implement `Machine.stale_workers`."""
    count = 0
    last_ns = 0
    for worker in state.workers.values():
        if worker.seen_ns >= cutoff_ns:
            break
        if count >= limit and worker.seen_ns != last_ns:
            return worker.seen_ns
        last_ns = worker.seen_ns
        count += 1
    return cutoff_ns if count else 0


def _next_job_due(state: State) -> int:
    leases = state.leases
    while len(leases) and not lease_live(state, leases.first_due(), leases.first_key()):
        leases.pop()
    first_ns = leases.first_due() if len(leases) else 0
    for due in (state.waiting, state.holds, state.expiring):
        due_ns = due.first_due()
        if due_ns and (not first_ns or due_ns < first_ns):
            first_ns = due_ns
    return first_ns


def _compact_leases(state: State, in_grace: list[tuple[int, int]]) -> None:
    """Rebuild the lease heap. This reads all queues, of which there may be very many, so it is not
    repeated before the heap has grown."""
    live = sum(len(queue_index.active) for queue_index in state.numbered.values())
    state.leases_room = 2 * live + COMPACT_MIN
    if len(state.leases) + len(in_grace) > state.leases_room:
        state.leases.clear()
        in_grace.clear()
        for queue_index in state.numbered.values():
            for seq, due_ns in queue_index.active.items():
                state.leases.push(due_ns, queue_index.first_position | seq)


def compact(state: State, in_grace: list[tuple[int, int]]) -> None:
    """Rebuild each heap in which most entries are void."""
    if len(state.leases) + len(in_grace) > state.leases_room:
        _compact_leases(state, in_grace)
    state.waiting.compact()
    state.holds.compact()
    state.expiring.compact()
    if len(state.occurrences) > 2 * len(state.schedules) + COMPACT_MIN:
        state.occurrences = [
            (row.next_ns, row.id) for row in state.schedules.values() if row.next_ns
        ]
        heapify(state.occurrences)

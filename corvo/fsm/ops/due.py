"""Apply of the ops that the leader's timers propose: each names what was due when it was made, and
everything is checked again here."""

from corvo import events, ops
from corvo._fast.codec.layouts import decode_fields
from corvo.fsm import states
from corvo.fsm.ops import actions, finish, leases
from corvo.fsm.queries.due import drop_past, due_promotions, ended_leases
from corvo.fsm.state import index_rows
from corvo.fsm.state.state import Core
from corvo.limits import DUE_IDS_MAX
from corvo.model import (
    ACTIVE,
    ENDED,
    ENDINGS,
    HELD,
    KEEP_DEFAULT,
    SCHEDULED,
    Job,
)


def _named(core: Core, job_id: str) -> Job | None:
    """The job of that id. One that is doomed is deleted here and now."""
    job = core.store.find(job_id)
    if job is not None and core.doomed_queues and core.doomed(job):
        core.store.touch(job)
        finish.delete(core, core.lane_of(job), job)
        return None
    return job


def promote_due(core: Core, payload: bytes) -> object:
    """Scheduled and retrying jobs whose time has come; the result says how many."""
    return _promote(core, decode_fields(ops.PROMOTE_DUE.layout, payload)[0])


def promote(core: Core, payload: bytes) -> object:
    """The same with those that are due by a time, the earliest first."""
    now_ns: int = decode_fields(ops.PROMOTE.layout, payload)[0]
    return _promote(core, due_promotions(core, min(now_ns, core.stamp_ns), DUE_IDS_MAX))


def _promote(core: Core, ids: list[str]) -> int:
    promoted = 0
    for job_id in ids:
        job = _named(core, job_id)
        if job is None:
            continue
        state = states.next_state(job.state, states.PROMOTE)
        if state == states.REFUSED or job.scheduled_ns > core.stamp_ns:
            continue
        core.store.touch(job)
        lane = core.lane_of(job)
        promoted += 1
        if finish.overdue(core, job):
            finish.expire(core, lane, job)
            continue
        tail = job.state == SCHEDULED and not job.keeps_place
        core.move(lane, job, state, tail)
        core.emit(lane, job, events.PROMOTED, b"")
    drop_past(core, core.waiting)
    return promoted


def expire_leases(core: Core, payload: bytes) -> object:
    """Active jobs whose lease has ended; the result says how many."""
    return _expire_leases(core, decode_fields(ops.EXPIRE_LEASES.layout, payload)[0])


def reclaim(core: Core, payload: bytes) -> object:
    """The same with those that have ended by a time, the earliest first."""
    now_ns: int = decode_fields(ops.RECLAIM.layout, payload)[0]
    return _expire_leases(core, ended_leases(core, min(now_ns, core.stamp_ns), DUE_IDS_MAX))


def _expire_leases(core: Core, ids: list[str]) -> int:
    expired = 0
    for job_id in ids:
        job = _named(core, job_id)
        if job is None or job.state != ACTIVE or job.lease_expires_ns > core.stamp_ns:
            continue
        leases.expire(core, core.lane_of(job), job)
        expired += 1
    return expired


def expire_jobs(core: Core, payload: bytes) -> object:
    """Jobs that have not ended in time, and held jobs about which nobody has decided in time;
    the result says how many. An active job is left to its worker."""
    ids: list[str] = decode_fields(ops.EXPIRE_JOBS.layout, payload)[0]
    expired = 0
    for job_id in ids:
        job = _named(core, job_id)
        if job is None or ENDED[job.state] or job.state == ACTIVE:
            continue
        if finish.overdue(core, job):
            core.store.touch(job)
            finish.expire(core, core.lane_of(job), job)
            expired += 1
        elif job.state == HELD and 0 < index_rows.hold_ends_ns(job) <= core.stamp_ns:
            actions.hold_times_out(core, job)
            expired += 1
    drop_past(core, core.holds)
    drop_past(core, core.expiring)
    return expired


def purge_jobs(core: Core, payload: bytes) -> object:
    """Jobs that ended longer ago than they are to be kept; the result says how many. The queue
    says how long that is, or else the server, with the times in the op."""
    ids: list[str]
    default_ns: list[int]
    ids, default_ns = decode_fields(ops.PURGE_JOBS.layout, payload)
    purged = 0
    for job_id in ids:
        job = core.store.find(job_id)
        if job is None or not ENDED[job.state]:
            continue
        lane = core.lane_of(job)
        ending = ENDINGS.index(job.state)
        keep_ns = lane.queue.retention_ns[ending]
        if keep_ns == KEEP_DEFAULT:
            keep_ns = default_ns[ending]
        if index_rows.finished_ns(job) + keep_ns <= core.stamp_ns:
            core.store.touch(job)
            finish.delete(core, lane, job)
            purged += 1
    return purged


def clean_unique(core: Core, payload: bytes) -> object:
    """Rows of unique locks whose time is over; the result says how many."""
    rows: list[bytes] = decode_fields(ops.CLEAN_UNIQUE.layout, payload)[0]
    cleaned = 0
    for key in rows:
        lock = core.store.lock(key)
        if lock is not None and 0 < lock[1] <= core.stamp_ns:
            core.store.set_lock(key, None)
            cleaned += 1
    return cleaned

"""Apply of the ops that the leader's timers propose: each names what was due when it was made, and
everything is checked again here."""

from typing import Final

from corvo import events, ops
from corvo._fast.codec.layouts import decode_fields
from corvo.fsm import states
from corvo.fsm.ops import Apply, actions, finish, leases
from corvo.fsm.queries.due import drop_past, due_promotions, ended_leases
from corvo.fsm.state import index_rows
from corvo.fsm.state.state import State
from corvo.limits import DUE_IDS_MAX
from corvo.model import (
    ACTIVE,
    END_STATES,
    ENDED,
    HELD,
    KEEP_DEFAULT,
    SCHEDULED,
    Job,
)


def _named(state: State, job_id: str) -> Job | None:
    """The job of that id. One that is doomed is deleted here and now."""
    job = state.buffer.find(job_id)
    if job is not None and state.queues_pending_deletion and state.pending_deletion(job):
        state.buffer.touch(job)
        finish.delete(state, state.queue_index_of(job), job)
        return None
    return job


def promote_due(state: State, payload: bytes) -> object:
    """Scheduled and retrying jobs whose time has come; the result says how many."""
    ids: list[str]
    (ids,) = decode_fields(ops.PROMOTE_DUE.layout, payload)
    return _promote(state, ids)


def promote(state: State, payload: bytes) -> object:
    """The same with those that are due by a time, the earliest first."""
    now_ns: int
    (now_ns,) = decode_fields(ops.PROMOTE.layout, payload)
    return _promote(state, due_promotions(state, min(now_ns, state.stamp_ns), DUE_IDS_MAX))


def _promote(state: State, ids: list[str]) -> int:
    promoted = 0
    for job_id in ids:
        job = _named(state, job_id)
        if job is None:
            continue
        job_state = states.next_state(job.state, states.PROMOTE)
        if job_state == states.REFUSED or job.scheduled_ns > state.stamp_ns:
            continue
        state.buffer.touch(job)
        queue_index = state.queue_index_of(job)
        promoted += 1
        if finish.overdue(state, job):
            finish.expire(state, queue_index, job)
            continue
        tail = job.state == SCHEDULED and not job.keeps_position
        state.move(queue_index, job, job_state, tail)
        state.emit(queue_index, job, events.PROMOTED, b"")
    drop_past(state, state.waiting)
    return promoted


def expire_leases(state: State, payload: bytes) -> object:
    """Active jobs whose lease has ended; the result says how many."""
    ids: list[str]
    (ids,) = decode_fields(ops.EXPIRE_LEASES.layout, payload)
    return _expire_leases(state, ids)


def reclaim(state: State, payload: bytes) -> object:
    """The same with those that have ended by a time, the earliest first."""
    now_ns: int
    (now_ns,) = decode_fields(ops.RECLAIM.layout, payload)
    return _expire_leases(state, ended_leases(state, min(now_ns, state.stamp_ns), DUE_IDS_MAX))


def _expire_leases(state: State, ids: list[str]) -> int:
    expired = 0
    for job_id in ids:
        job = _named(state, job_id)
        if job is None or job.state != ACTIVE or job.lease_expires_ns > state.stamp_ns:
            continue
        leases.expire(state, state.queue_index_of(job), job)
        expired += 1
    return expired


def expire_jobs(state: State, payload: bytes) -> object:
    """Jobs that have not ended in time, and held jobs about which nobody has decided in time;
    the result says how many. An active job is left to its worker."""
    ids: list[str]
    (ids,) = decode_fields(ops.EXPIRE_JOBS.layout, payload)
    expired = 0
    for job_id in ids:
        job = _named(state, job_id)
        if job is None or ENDED[job.state] or job.state == ACTIVE:
            continue
        if finish.overdue(state, job):
            state.buffer.touch(job)
            finish.expire(state, state.queue_index_of(job), job)
            expired += 1
        elif job.state == HELD and 0 < index_rows.hold_ends_ns(job) <= state.stamp_ns:
            actions.hold_times_out(state, job)
            expired += 1
    drop_past(state, state.holds)
    drop_past(state, state.expiring)
    return expired


def purge_jobs(state: State, payload: bytes) -> object:
    """Jobs that ended longer ago than they are to be kept; the result says how many. The queue
    says how long that is, or else the server, with the times in the op."""
    ids: list[str]
    default_ns: list[int]
    ids, default_ns = decode_fields(ops.PURGE_JOBS.layout, payload)
    purged = 0
    for job_id in ids:
        job = state.buffer.find(job_id)
        if job is None or not ENDED[job.state]:
            continue
        queue_index = state.queue_index_of(job)
        ending = END_STATES.index(job.state)
        keep_ns = queue_index.queue.retention_ns[ending]
        if keep_ns == KEEP_DEFAULT:
            keep_ns = default_ns[ending]
        if index_rows.finished_ns(job) + keep_ns <= state.stamp_ns:
            state.buffer.touch(job)
            finish.delete(state, queue_index, job)
            purged += 1
    return purged


def clean_unique(state: State, payload: bytes) -> object:
    """Rows of unique locks whose time is over; the result says how many."""
    rows: list[bytes]
    (rows,) = decode_fields(ops.CLEAN_UNIQUE.layout, payload)
    cleaned = 0
    for key in rows:
        lock = state.buffer.lock(key)
        if lock is None:
            continue
        _, expires_ns, _ = lock
        if 0 < expires_ns <= state.stamp_ns:
            state.buffer.set_lock(key, None)
            cleaned += 1
    return cleaned


APPLY: Final[dict[int, Apply]] = {
    ops.PROMOTE.number: promote,
    ops.RECLAIM.number: reclaim,
    ops.PROMOTE_DUE.number: promote_due,
    ops.EXPIRE_LEASES.number: expire_leases,
    ops.EXPIRE_JOBS.number: expire_jobs,
    ops.PURGE_JOBS.number: purge_jobs,
    ops.CLEAN_UNIQUE.number: clean_unique,
}

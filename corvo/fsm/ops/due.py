"""Ops that the leader proposes for due jobs. Each op names jobs that were due when it was proposed;
apply checks each of them again."""

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
    """Return the job with this id. A job whose deletion is pending is deleted at once."""
    job = state.buffer.find(job_id)
    if job is not None and state.queues_pending_deletion and state.pending_deletion(job):
        state.buffer.touch(job)
        finish.delete(state, state.queue_index_of(job), job)
        return None
    return job


def promote_due(state: State, payload: bytes) -> object:
    """Apply PromoteDue to scheduled and retrying jobs; the result is the number of promoted
    jobs."""
    ids: list[str]
    (ids,) = decode_fields(ops.PROMOTE_DUE.layout, payload)
    return _promote(state, ids)


def promote(state: State, payload: bytes) -> object:
    """Apply Promote: promote all jobs that are due at a time, the earliest first."""
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
    """Apply ExpireLeases to active jobs; the result is the number of ended leases."""
    ids: list[str]
    (ids,) = decode_fields(ops.EXPIRE_LEASES.layout, payload)
    return _expire_leases(state, ids)


def reclaim(state: State, payload: bytes) -> object:
    """Apply Reclaim: end all leases that are due at a time, the earliest first."""
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


def _hold_is_over(state: State, job: Job) -> bool:
    """Return whether the hold of a job has timed out, and did so before the job expired."""
    hold_ends_ns = index_rows.hold_ends_ns(job)
    if job.state != HELD or not 0 < hold_ends_ns <= state.stamp_ns:
        return False
    return not finish.overdue(state, job) or hold_ends_ns <= index_rows.expires_ns(job)


def expire_jobs(state: State, payload: bytes) -> object:
    """Apply ExpireJobs to jobs that expire and to held jobs whose hold times out; the result is
    their number. An active job is left to its worker."""
    ids: list[str]
    (ids,) = decode_fields(ops.EXPIRE_JOBS.layout, payload)
    expired = 0
    for job_id in ids:
        job = _named(state, job_id)
        if job is None or ENDED[job.state] or job.state == ACTIVE:
            continue
        if _hold_is_over(state, job):
            actions.hold_times_out(state, job)
            expired += 1
        elif finish.overdue(state, job):
            state.buffer.touch(job)
            finish.expire(state, state.queue_index_of(job), job)
            expired += 1
    drop_past(state, state.holds)
    drop_past(state, state.expiring)
    return expired


def purge_jobs(state: State, payload: bytes) -> object:
    """Apply PurgeJobs: delete finished jobs past their retention; the result is their number. The
    retention is that of the queue, or else the default in the op."""
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
    """Apply CleanUnique: delete rows of expired unique locks; the result is their number."""
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

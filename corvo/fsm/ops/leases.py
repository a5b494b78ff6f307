"""Leases: grant, check of the token, extension, and end. `jobs` applies ack, fail and release."""

from typing import Final

from corvo import events
from corvo._fast.codec.lease_token import SEED_BITS, build_token
from corvo.errors import CorvoError, LeaseLost, NotFound
from corvo.fsm import states
from corvo.fsm.ops import finish
from corvo.fsm.state.queue_index import QueueIndex
from corvo.fsm.state.state import State
from corvo.limits import LEASE_DEFAULT_S, SECOND_NS
from corvo.model import (
    ACTIVE,
    DELIVERY_UNKNOWN,
    LEASE_EXPIRED,
    ErrorRecord,
    Job,
)

EXTENSION_MIN_NS: Final = LEASE_DEFAULT_S * SECOND_NS
_SEED_MASK: Final = (1 << SEED_BITS) - 1

EXPIRED_TEXT: Final = b'"lease expired"'
DELIVERY_UNKNOWN_TEXT: Final = b'"delivery unknown: the worker may never have got the job"'


def token(job: Job) -> str:
    """Return the token of the job's newest lease, live or not."""
    if not job.token and job.fencing:
        job.token = build_token(job.fencing, job.lease_seed)
    return job.token


def not_found(job_id: str) -> NotFound:
    """Return the error for an id without a job."""
    return NotFound(f'job "{job_id}" not found')


def refusal(job: Job, given: str, trigger: int) -> CorvoError | None:
    """Return the error for a worker's call on this job: LEASE_LOST if the token is not that of the
    live lease, or without a token INVALID_STATE if the job is not active. None if the call is
    valid."""
    if given:
        if job.state != ACTIVE or given != token(job):
            return lease_lost(job)
    elif job.state != ACTIVE:
        return states.invalid_state(job.id, job.state, trigger)
    return None


def lease_lost(job: Job) -> LeaseLost:
    """Return the error for a token that is not that of the live lease."""
    return LeaseLost(f'the lease on job "{job.id}" is lost: the token is not the live one')


def grant(state: State, job: Job, worker_id: str, hostname: str, lease_ns: int) -> None:
    """Grant a lease, with the next fencing number."""
    state.meta.fencing += 1
    job.fencing = state.meta.fencing
    job.lease_seed = state.seed & _SEED_MASK
    job.lease_term = state.term
    job.lease_touched = False
    job.lease_ns = lease_ns
    job.lease_expires_ns = state.stamp_ns + lease_ns
    job.token = ""
    job.worker_id = worker_id
    job.hostname = hostname


def beat(
    state: State, queue_index: QueueIndex, job: Job, checkpoint: bytes, progress: bytes
) -> str:
    """Extend the lease after a heartbeat. Return "ok", or "cancel" if the worker should stop."""
    buffer = state.buffer
    buffer.touch(job)
    state.record_worker(job.worker_id, job.hostname, [])
    job.lease_touched = True
    state.extend(queue_index, job, state.stamp_ns + max(EXTENSION_MIN_NS, job.lease_ns))
    if checkpoint or progress:
        buffer.set_data(job, checkpoint, progress, b"")
        job.releases = 0
        if progress:
            state.emit(queue_index, job, events.PROGRESS, progress)
    return "cancel" if job.cancel_requested_ns else "ok"


def expire(state: State, queue_index: QueueIndex, job: Job) -> None:
    """Handle a lease that ended without a call of its worker: a failed attempt, unless the job may
    never have reached the worker or has a cancel request."""
    state.buffer.touch(job)
    queue_index.queue.expired_total += 1
    # A lease of the current term does not qualify, so each term restores at most one attempt.
    phantom = not job.lease_touched and job.lease_term < state.term
    queue_index.queue.failed_total += not phantom
    kind = DELIVERY_UNKNOWN if phantom else LEASE_EXPIRED
    text = DELIVERY_UNKNOWN_TEXT if phantom else EXPIRED_TEXT
    state.buffer.add_error(job, ErrorRecord(job.attempt, kind, text, b"", state.stamp_ns))
    if job.cancel_requested_ns:
        finish.cancel(state, queue_index, job, states.CANCEL_ACKNOWLEDGED)
    elif finish.overdue(state, job) and not _ended_first(job, phantom):
        finish.expire(state, queue_index, job)
    elif phantom:
        job.attempt -= 1
        _reclaim(state, queue_index, job, b'{"reason":"delivery_unknown"}')
    elif job.attempt < job.max_retries:
        _reclaim(state, queue_index, job, b'{"reason":"lease_expired"}')
    else:
        finish.die(state, queue_index, job, b'{"reason":"lease_expired"}')


def _ended_first(job: Job, phantom: bool) -> bool:
    """Return whether the end of the last lease made a job dead before the job expired."""
    if phantom or job.attempt < job.max_retries or job.options is None:
        return False
    return job.lease_expires_ns <= job.options.expires_ns


def _reclaim(state: State, queue_index: QueueIndex, job: Job, reason: bytes) -> None:
    """Return the job to its old queue position, ready at once."""
    finish.end_lease(job)
    state.move(queue_index, job, states.next_state(job.state, states.RECLAIM))
    state.emit(queue_index, job, events.RECLAIMED, reason)

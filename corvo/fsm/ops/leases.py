"""Leases: granting one, checking who speaks, extending, and what happens when one ends."""

from typing import Final

from corvo import events
from corvo._fast.codec.lease_token import SEED_BITS, build_token
from corvo.errors import CorvoError, LeaseLost, NotFound
from corvo.fsm import states
from corvo.fsm.ops import finish
from corvo.fsm.state.queue_index import Lane
from corvo.fsm.state.state import Core
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
    """The token of the job's newest lease, live or not."""
    if not job.token and job.fencing:
        job.token = build_token(job.fencing, job.lease_seed)
    return job.token


def not_found(job_id: str) -> NotFound:
    """The refusal of an id that names no job."""
    return NotFound(f'job "{job_id}" not found')


def refusal(job: Job, given: str, trigger: int) -> CorvoError | None:
    """Why a worker's call on this job is refused: its token is not that of the live lease (in
    any state), or without a token, the job is not active. None if it is welcome."""
    if given:
        if job.state != ACTIVE or given != token(job):
            return lease_lost(job)
    elif job.state != ACTIVE:
        return states.invalid_state(job.id, job.state, trigger)
    return None


def lease_lost(job: Job) -> LeaseLost:
    """The refusal of a token that is not the live one."""
    return LeaseLost(f'the lease on job "{job.id}" is lost: the token is not the live one')


def grant(core: Core, job: Job, worker_id: str, hostname: str, lease_ns: int) -> None:
    """A new lease, with the next fencing number."""
    core.meta.fencing += 1
    job.fencing = core.meta.fencing
    job.lease_seed = core.seed & _SEED_MASK
    job.lease_term = core.term
    job.lease_touched = False
    job.lease_ns = lease_ns
    job.lease_expires_ns = core.stamp_ns + lease_ns
    job.token = ""
    job.worker_id = worker_id
    job.hostname = hostname


def beat(core: Core, lane: Lane, job: Job, checkpoint: bytes, progress: bytes) -> str:
    """A worker keeps its lease; says "cancel" when it should stop."""
    store = core.store
    store.touch(job)
    core.see_worker(job.worker_id, job.hostname, [])
    job.lease_touched = True
    core.extend(lane, job, core.stamp_ns + max(EXTENSION_MIN_NS, job.lease_ns))
    if checkpoint or progress:
        store.set_data(job, checkpoint, progress, b"")
        job.releases = 0
        if progress:
            core.emit(lane, job, events.PROGRESS, progress)
    return "cancel" if job.cancel_requested_ns else "ok"


def expire(core: Core, lane: Lane, job: Job) -> None:
    """A lease has ended in silence: a failed attempt, unless the job may never have reached
    its worker or was to be cancelled anyway."""
    core.store.touch(job)
    lane.queue.expired_total += 1
    # A lease that was granted in this term is none, so a term restores at most one attempt.
    phantom = not job.lease_touched and job.lease_term < core.term
    kind = DELIVERY_UNKNOWN if phantom else LEASE_EXPIRED
    text = DELIVERY_UNKNOWN_TEXT if phantom else EXPIRED_TEXT
    core.store.add_error(job, ErrorRecord(job.attempt, kind, text, b"", core.stamp_ns))
    if job.cancel_requested_ns:
        finish.cancel(core, lane, job, states.WITHDRAW)
    elif finish.overdue(core, job):
        finish.expire(core, lane, job)
    elif phantom:
        job.attempt -= 1
        _reclaim(core, lane, job, b'{"reason":"delivery_unknown"}')
    elif job.attempt < job.max_retries:
        _reclaim(core, lane, job, b'{"reason":"lease_expired"}')
    else:
        finish.die(core, lane, job, b'{"reason":"lease_expired"}')


def _reclaim(core: Core, lane: Lane, job: Job, reason: bytes) -> None:
    """Back to its old place, ready at once."""
    finish.end_lease(job)
    core.move(lane, job, states.next_state(job.state, states.RECLAIM))
    core.emit(lane, job, events.RECLAIMED, reason)

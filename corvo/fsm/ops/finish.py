"""The ways a job ends. Whatever hangs on the end of a job hangs on `complete`, `cancel`, `die` and
`delete`, each of which takes a job that is touched and leaves it in its last state (or nowhere).

Batches, chains and dependents hear of it right after the op (`corvo.fsm.ops.after_finish`), so that
the end of one job can bring about the end of others without recursion.
"""

from typing import Final

from corvo import events
from corvo.fsm import states
from corvo.fsm.ops import unique
from corvo.fsm.state.queue_index import Lane
from corvo.fsm.state.state import Core
from corvo.model import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    DEAD,
    ENDED,
    EXPIRED,
    Ended,
    ErrorRecord,
    Job,
)

# What every job goes through, as C integers.
_ACK: Final = states.ACK
_COMPLETED: Final = events.COMPLETED

EXPIRED_TEXT: Final = b'"job expired"'


def end_lease(job: Job) -> None:
    """The lease ends. What makes its token stays, for an ack that is sent twice."""
    job.lease_expires_ns = 0
    job.cancel_requested_ns = 0
    job.worker_id = ""
    job.hostname = ""


def complete(core: Core, lane: Lane, job: Job, result: bytes, step: bytes) -> None:
    """Its worker has acked it, with a result (empty = none) and a word about its chain."""
    state = states.next_state(job.state, _ACK)
    assert state == COMPLETED
    end_lease(job)
    job.completed_ns = core.stamp_ns
    lane.queue.completed_total += 1
    core.move(lane, job, state)
    if job.unique_key:
        unique.release(core, lane, job, unique.COMPLETED)
    core.emit(lane, job, _COMPLETED, b"")
    if job.extras is not None:
        core.ended.append(Ended(job, state, result, step))


def cancel(core: Core, lane: Lane, job: Job, trigger: int, data: bytes = b"") -> None:
    """The job goes to cancelled, by the trigger that leads there; `data` is the event's."""
    state = states.next_state(job.state, trigger)
    assert state == CANCELLED
    end_lease(job)
    job.failed_ns = core.stamp_ns
    core.move(lane, job, state)
    unique.release(core, lane, job, unique.CANCELLED)
    core.emit(lane, job, events.CANCELLED, data)
    if job.extras is not None:
        core.ended.append(Ended(job, state))


def die(core: Core, lane: Lane, job: Job, reason: bytes, trigger: int = states.EXHAUST) -> None:
    """The job has no attempts left, or goes to dead by another trigger."""
    state = states.next_state(job.state, trigger)
    assert state == DEAD
    end_lease(job)
    job.failed_ns = core.stamp_ns
    lane.queue.dead_total += 1
    core.move(lane, job, state)
    unique.release(core, lane, job, unique.DEAD)
    core.emit(lane, job, events.DEAD, reason)
    if job.extras is not None:
        core.ended.append(Ended(job, state))


def overdue(core: Core, job: Job) -> bool:
    """Whether the time of a job that expires is over."""
    return job.extras is not None and 0 < job.extras.expires_ns <= core.stamp_ns


def expire(core: Core, lane: Lane, job: Job) -> None:
    """The job has not ended in time, and gets no other attempt."""
    core.store.add_error(job, ErrorRecord(job.attempt, EXPIRED, EXPIRED_TEXT, b"", core.stamp_ns))
    core.emit(lane, job, events.EXPIRED, b"")
    trigger = states.EXHAUST if job.state == ACTIVE else states.EXPIRE
    die(core, lane, job, b'{"reason":"expired"}', trigger)


def delete(core: Core, lane: Lane, job: Job) -> None:
    """The job goes, with everything that hangs on it."""
    unique.release(core, lane, job, unique.DELETED)
    if job.extras is not None and not ENDED[job.state]:
        core.ended.append(Ended(job, states.NOWHERE))
    if job.parent_id:
        core.store.children.remove(job.parent_id, job.id)
    core.move(lane, job, states.next_state(job.state, states.DELETE))
    core.emit(lane, job, events.DELETED, b"")
    core.store.delete(job)

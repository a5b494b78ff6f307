"""The ways a job ends. Whatever hangs on the end of a job hangs on `complete`, `cancel`, `die` and
`delete`, each of which takes a job that is touched and leaves it in its last state (or nowhere).

Batches, chains and dependents hear of it right after the op (`corvo.fsm.ops.after_finish`), so that
the end of one job can bring about the end of others without recursion.
"""

from typing import Final

from corvo import events
from corvo.fsm import states
from corvo.fsm.ops import unique
from corvo.fsm.state.queue_index import QueueIndex
from corvo.fsm.state.state import State
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


def complete(state: State, queue_index: QueueIndex, job: Job, result: bytes, step: bytes) -> None:
    """Its worker has acked it, with a result (empty = none) and a word about its chain."""
    job_state = states.next_state(job.state, _ACK)
    assert job_state == COMPLETED
    end_lease(job)
    job.completed_ns = state.stamp_ns
    queue_index.queue.completed_total += 1
    state.move(queue_index, job, job_state)
    if job.unique_key:
        unique.release(state, queue_index, job, unique.COMPLETED)
    state.emit(queue_index, job, _COMPLETED, b"")
    if job.options is not None:
        state.ended.append(Ended(job, job_state, result, step))


def cancel(
    state: State, queue_index: QueueIndex, job: Job, trigger: int, data: bytes = b""
) -> None:
    """The job goes to cancelled, by the trigger that leads there; `data` is the event's."""
    job_state = states.next_state(job.state, trigger)
    assert job_state == CANCELLED
    end_lease(job)
    job.failed_ns = state.stamp_ns
    state.move(queue_index, job, job_state)
    unique.release(state, queue_index, job, unique.CANCELLED)
    state.emit(queue_index, job, events.CANCELLED, data)
    if job.options is not None:
        state.ended.append(Ended(job, job_state))


def die(
    state: State, queue_index: QueueIndex, job: Job, reason: bytes, trigger: int = states.EXHAUST
) -> None:
    """The job has no attempts left, or goes to dead by another trigger."""
    job_state = states.next_state(job.state, trigger)
    assert job_state == DEAD
    end_lease(job)
    job.failed_ns = state.stamp_ns
    queue_index.queue.dead_total += 1
    state.move(queue_index, job, job_state)
    unique.release(state, queue_index, job, unique.DEAD)
    state.emit(queue_index, job, events.DEAD, reason)
    if job.options is not None:
        state.ended.append(Ended(job, job_state))


def overdue(state: State, job: Job) -> bool:
    """Whether the time of a job that expires is over."""
    return job.options is not None and 0 < job.options.expires_ns <= state.stamp_ns


def expire(state: State, queue_index: QueueIndex, job: Job) -> None:
    """The job has not ended in time, and gets no other attempt."""
    state.buffer.add_error(
        job, ErrorRecord(job.attempt, EXPIRED, EXPIRED_TEXT, b"", state.stamp_ns)
    )
    state.emit(queue_index, job, events.EXPIRED, b"")
    trigger = states.EXHAUST if job.state == ACTIVE else states.EXPIRE
    die(state, queue_index, job, b'{"reason":"expired"}', trigger)


def delete(state: State, queue_index: QueueIndex, job: Job) -> None:
    """The job goes, with everything that hangs on it."""
    unique.release(state, queue_index, job, unique.DELETED)
    if job.options is not None and not ENDED[job.state]:
        state.ended.append(Ended(job, states.NOWHERE))
    if job.parent_id:
        state.buffer.children.remove(job.parent_id, job.id)
    state.move(queue_index, job, states.next_state(job.state, states.DELETE))
    state.emit(queue_index, job, events.DELETED, b"")
    state.buffer.delete(job)

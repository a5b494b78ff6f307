"""The ways a job ends. Whatever hangs on the end of a job hangs on these four functions, each of
which takes a job that is touched and leaves it in its last state (or nowhere)."""

from corvo import feed
from corvo.fsm import states, unique
from corvo.fsm.core import Core
from corvo.fsm.lane import Lane
from corvo.model import CANCELLED, COMPLETED, DEAD, Job


def end_lease(job: Job) -> None:
    """The lease ends. What makes its token stays, for an ack that is sent twice."""
    job.lease_expires_ns = 0
    job.cancel_requested_ns = 0
    job.worker_id = ""
    job.hostname = ""


def complete(core: Core, lane: Lane, job: Job) -> None:
    """Its worker has acked it."""
    state = states.next_state(job.state, states.ACK)
    assert state == COMPLETED
    end_lease(job)
    job.completed_ns = core.stamp_ns
    lane.queue.completed_total += 1
    core.move(lane, job, state)
    if job.unique_key:
        unique.release(core, lane, job, unique.COMPLETED)
    core.emit(lane, job, feed.COMPLETED, b"")


def cancel(core: Core, lane: Lane, job: Job, trigger: int) -> None:
    """The job goes to cancelled, by the trigger that leads there."""
    state = states.next_state(job.state, trigger)
    assert state == CANCELLED
    end_lease(job)
    job.failed_ns = core.stamp_ns
    core.move(lane, job, state)
    unique.release(core, lane, job, unique.CANCELLED)
    core.emit(lane, job, feed.CANCELLED, b"")


def die(core: Core, lane: Lane, job: Job, reason: bytes) -> None:
    """The job has no attempts left."""
    state = states.next_state(job.state, states.EXHAUST)
    assert state == DEAD
    end_lease(job)
    job.failed_ns = core.stamp_ns
    lane.queue.dead_total += 1
    core.move(lane, job, state)
    unique.release(core, lane, job, unique.DEAD)
    core.emit(lane, job, feed.DEAD, reason)


def delete(core: Core, lane: Lane, job: Job) -> None:
    """The job goes, with everything that hangs on it."""
    unique.release(core, lane, job, unique.DELETED)
    core.move(lane, job, states.next_state(job.state, states.DELETE))
    core.emit(lane, job, feed.DELETED, b"")
    core.store.delete(job)

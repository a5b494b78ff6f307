"""Batches: jobs whose finishes are counted together, and callbacks that are enqueued then.

A batch is open while it has members: its unfinished jobs. Each member is a row, so a job that
finishes twice counts once. A job that is retried after it finished does not join again.

on_death     is enqueued when the first member is dead, cancelled or deleted
on_complete  is enqueued when the last member has finished
on_success   is enqueued when the last member has finished, if all members completed

A finished batch takes no more members. It is kept for a while, so that it can be read.
"""

from typing import Final, final

from corvo import ops
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import Conflict, CorvoError, NotFound
from corvo.fsm.ops import Apply
from corvo.fsm.state import json_members
from corvo.fsm.state.state import State
from corvo.model import COMPLETED, Batch, Job


@final
class Callback:
    """A callback job of a batch."""

    def __init__(self, name: str, queue: str, payload: bytes) -> None:
        self.name = name
        self.queue = queue
        self.payload = payload


def refusal(state: State, batch_id: str) -> CorvoError | None:
    """Return the error if no job can join the batch."""
    batch = state.buffer.batch(batch_id)
    if batch is None:
        return NotFound(f'batch "{batch_id}" not found')
    if batch.finished_ns:
        return Conflict(f'batch "{batch_id}" has finished and takes no more jobs')
    return None


def read_new_batch(payload: bytes) -> Batch:
    """Decode the batch of an EnqueueBatch (record NEW_BATCH), which is not yet in the state."""
    batch = Batch("")
    (
        # <generated: unpack NEW_BATCH batch>
        batch_id,
        batch.on_success,
        batch.on_complete,
        batch.on_death,
        # </generated>
    ) = decode_fields(ops.BATCH_LAYOUT, payload)
    batch.id = batch_id
    return batch


def check(batch: Batch) -> None:
    """Raise InvalidName if a callback has an invalid queue: it is decoded long after the op that
    brings it."""
    for follower in (batch.on_success, batch.on_complete, batch.on_death):
        if follower:
            decode_fields(ops.FOLLOWER_LAYOUT, follower)


def new_batch(state: State, payload: bytes) -> Batch:
    """Create a batch for the jobs of this op."""
    batch = read_new_batch(payload)
    batch.created_ns = state.stamp_ns
    state.buffer.touch_batch(batch)
    return batch


def join(state: State, job: Job, batch_id: str) -> None:
    """Add a new job to an open batch."""
    batch = state.buffer.batch(batch_id)
    assert batch is not None, f"batch {batch_id} is missing"
    state.buffer.members.add(batch_id, job.id)
    state.buffer.touch_batch(batch)
    batch.total += 1
    batch.pending += 1


def leave(state: State, job: Job, batch_id: str, job_state: int) -> list[Callback]:
    """Remove a finished job from its batch; return the callbacks to enqueue."""
    if not state.buffer.members.has(batch_id, job.id):
        return []
    batch = state.buffer.batch(batch_id)
    assert batch is not None, f"batch {batch_id} is missing"
    state.buffer.members.remove(batch_id, job.id)
    state.buffer.touch_batch(batch)
    batch.pending -= 1
    callbacks: list[Callback] = []
    if job_state == COMPLETED:
        batch.succeeded += 1
    else:
        batch.failed += 1
        if batch.failed == 1:
            _add(callbacks, batch, "death", batch.on_death)
    return callbacks + finish(state, batch)


def finish(state: State, batch: Batch) -> list[Callback]:
    """Finish the batch if it has no members left; return the callbacks to enqueue."""
    callbacks: list[Callback] = []
    if batch.pending == 0:
        batch.finished_ns = state.stamp_ns
        _add(callbacks, batch, "complete", batch.on_complete)
        if batch.failed == 0:
            _add(callbacks, batch, "success", batch.on_success)
    return callbacks


def _add(callbacks: list[Callback], batch: Batch, name: str, follower: bytes) -> None:
    if follower:
        queue: str
        payload: bytes
        queue, payload = decode_fields(ops.FOLLOWER_LAYOUT, follower)
        callbacks.append(Callback(name, queue, callback_payload(batch, payload)))


def callback_payload(batch: Batch, payload: bytes) -> bytes:
    """Return the payload with the added member `batch`; a payload that is not an object is
    wrapped."""
    report = b'{"id":"%s","total":%d,"succeeded":%d,"failed":%d}' % (
        batch.id.encode(),
        batch.total,
        batch.succeeded,
        batch.failed,
    )
    if not payload:
        return json_members.build([("batch", report)])
    theirs = json_members.names(payload)
    if theirs is None:
        return json_members.build([("payload", payload), ("batch", report)])
    name = "batch"
    while name in theirs:
        name = "_" + name
    return json_members.merge([(name, report)], payload)


def purge_batches(state: State, payload: bytes) -> object:
    """Apply PurgeBatches: delete finished batches past their retention. The result is their
    number."""
    ids: list[str]
    keep_ns: int
    ids, keep_ns = decode_fields(ops.PURGE_BATCHES.layout, payload)
    purged = 0
    for batch_id in ids:
        batch = state.buffer.batch(batch_id)
        if batch is not None and 0 < batch.finished_ns <= state.stamp_ns - keep_ns:
            state.buffer.delete_batch(batch)
            purged += 1
    return purged


APPLY: Final[dict[int, Apply]] = {
    ops.PURGE_BATCHES.number: purge_batches,
}

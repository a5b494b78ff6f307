"""Unique keys: at most one job holds a key of a queue.

A lock is taken at enqueue. The mode defines when it ends:

final    the job finishes in any way
start    the job starts for the first time
success  the job completes, or a person cancels or deletes it
period   the period is over, or the job is deleted

In every mode a period, if given, limits the lock; it is checked when the lock is used. A retry by
hand takes the lock again.
"""

from hashlib import blake2b
from typing import Final

from corvo import events, ops
from corvo._fast.codec import keys
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import NotFound, UniqueConflict
from corvo.fsm.ops import Apply
from corvo.fsm.state.queue_index import QueueIndex
from corvo.fsm.state.state import State
from corvo.fsm.state.write_buffer import Lock
from corvo.limits import SECOND_NS
from corvo.model import STATES, Job

# Indexes of model.UNIQUE_UNTIL.
FINAL: Final = 0
START: Final = 1
SUCCESS: Final = 2
PERIOD: Final = 3

# Reasons for a lock to end.
STARTED: Final = 0
COMPLETED: Final = 1
DEAD: Final = 2
CANCELLED: Final = 3
DELETED: Final = 4

# By mode: the reasons that end the lock.
_ENDS: Final = (
    (False, True, True, True, True),
    (True, True, True, True, True),
    (False, True, False, True, True),
    (False, False, False, False, True),
)

PERIOD_DEFAULT_NS: Final = 3_600 * SECOND_NS


def row_key(queue_index: QueueIndex, key: bytes) -> bytes:
    """Return the key of the row of a unique lock."""
    digest = blake2b(key, digest_size=keys.HASH_SIZE).digest()
    return keys.unique(queue_index.queue.number, digest)


def held_by(lock: Lock | None, job_id: str) -> bool:
    """Return whether there is a lock and the job holds it."""
    if lock is None:
        return False
    holder_id, _, _ = lock
    return holder_id == job_id


def live_lock(state: State, queue_index: QueueIndex, key: bytes) -> Lock | None:
    """Return the lock on a key, if it has not expired and the deletion of its holder is not
    pending."""
    lock = state.buffer.lock(row_key(queue_index, key))
    if lock is None:
        return None
    job_id, expires_ns, full_key = lock
    if 0 < expires_ns <= state.stamp_ns or full_key != key:
        return None
    if state.queues_pending_deletion and state.find(job_id) is None:
        return None
    return lock


def take(state: State, queue_index: QueueIndex, job: Job) -> None:
    """Take the lock on the key of the job; it must be free or its own."""
    period_ns = job.unique_period_ns
    if period_ns == 0 and job.unique_until == PERIOD:
        period_ns = PERIOD_DEFAULT_NS
    expires_ns = state.stamp_ns + period_ns if period_ns else 0
    state.buffer.set_lock(
        row_key(queue_index, job.unique_key), (job.id, expires_ns, job.unique_key)
    )


def take_again(
    state: State, queue_index: QueueIndex, job: Job, participle: str
) -> UniqueConflict | None:
    """Take the lock again for a job that is retried or requeued by hand. Return the error if
    another job holds it."""
    lock = live_lock(state, queue_index, job.unique_key)
    if lock is None:
        take(state, queue_index, job)
        return None
    holder_id, _, _ = lock
    if holder_id == job.id:
        return None
    return conflict(state, job, lock, participle)


def conflict(state: State, job: Job, lock: Lock, participle: str) -> UniqueConflict:
    """Return the error for a job whose key another job holds."""
    holder_id, _, _ = lock
    holder = state.buffer.find(holder_id)
    assert holder is not None, f"unique lock of missing job {holder_id}"
    return UniqueConflict(
        f'job "{job.id}" cannot be {participle}: job "{holder.id}" holds its unique key',
        holder_id=holder.id,
        holder_state=STATES[holder.state],
    )


def move(
    state: State, queue_index: QueueIndex, target: QueueIndex, job: Job
) -> UniqueConflict | None:
    """Move the lock that the job holds, if any, to another queue. Return the error if another job
    holds the key there."""
    if not job.unique_key:
        return None
    lock = live_lock(state, queue_index, job.unique_key)
    if not held_by(lock, job.id) or queue_index is target:
        return None
    other = live_lock(state, target, job.unique_key)
    if other is not None:
        return conflict(state, job, other, "moved")
    state.buffer.set_lock(row_key(queue_index, job.unique_key), None)
    state.buffer.set_lock(row_key(target, job.unique_key), lock)
    return None


def release(state: State, queue_index: QueueIndex, job: Job, reason: int) -> None:
    """Release the lock of the job if the mode ends it for this reason."""
    if not job.unique_key or not _ENDS[job.unique_until][reason]:
        return
    key = row_key(queue_index, job.unique_key)
    lock = state.buffer.lock(key)
    if held_by(lock, job.id):
        state.buffer.set_lock(key, None)


def release_lock(state: State, payload: bytes) -> object:
    """Apply ReleaseLock: release the lock of a job, which otherwise continues. The result is the id
    of the job."""
    queue: str
    key: bytes
    job_id: str
    queue, key, job_id = decode_fields(ops.RELEASE_LOCK.layout, payload)
    queue_index = state.queue_indexes.get(queue)
    lock = None if queue_index is None else live_lock(state, queue_index, key)
    if queue_index is None or lock is None or not (job_id == "" or held_by(lock, job_id)):
        who = f'job "{job_id}" does not hold' if job_id else "no job holds"
        return NotFound(f'{who} this unique key of queue "{queue}"')
    holder_id, _, _ = lock
    holder = state.buffer.find(holder_id)
    assert holder is not None, f"unique lock of missing job {holder_id}"
    state.buffer.set_lock(row_key(queue_index, key), None)
    state.buffer.touch(holder)
    state.emit(queue_index, holder, events.UNLOCKED, b"")
    return holder.id


APPLY: Final[dict[int, Apply]] = {
    ops.RELEASE_LOCK.number: release_lock,
}

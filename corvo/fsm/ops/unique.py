"""Unique keys: at most one job holds a key of a queue.

A lock is taken at enqueue and dies in the entry that ends its reason, which the mode names:

    final    the job ends, in whatever way
    start    it is handed out for the first time
    success  it completes; a person cancels or deletes it
    period   its time is over; the job is deleted

A period, when given, bounds the lock in every mode, and whether it is over is looked at when the
lock is used. A manual retry takes the lock again.
"""

from hashlib import blake2b
from typing import Final

from corvo import events, ops
from corvo._fast.codec import keys
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import NotFound, UniqueConflict
from corvo.fsm.state.queue_index import Lane
from corvo.fsm.state.state import Core
from corvo.fsm.state.store import Lock
from corvo.limits import SECOND_NS
from corvo.model import STATES, Job

# Positions in model.UNIQUE_UNTIL.
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

# By mode: which reasons end the lock.
_ENDS: Final = (
    (False, True, True, True, True),
    (True, True, True, True, True),
    (False, True, False, True, True),
    (False, False, False, False, True),
)

PERIOD_DEFAULT_NS: Final = 3_600 * SECOND_NS


def row_key(lane: Lane, key: bytes) -> bytes:
    """Key of the row of a unique lock."""
    digest = blake2b(key, digest_size=keys.HASH_SIZE).digest()
    return keys.unique(lane.queue.number, digest)


def live_lock(core: Core, lane: Lane, key: bytes) -> Lock | None:
    """The lock on a key, if there is one, its time is not over and its holder not doomed."""
    lock = core.store.lock(row_key(lane, key))
    if lock is None or 0 < lock[1] <= core.stamp_ns or lock[2] != key:
        return None
    if core.doomed_queues and core.find(lock[0]) is None:
        return None
    return lock


def take(core: Core, lane: Lane, job: Job) -> None:
    """The job takes the lock on its key, which must be free or its own."""
    period_ns = job.unique_period_ns
    if period_ns == 0 and job.unique_until == PERIOD:
        period_ns = PERIOD_DEFAULT_NS
    expires_ns = core.stamp_ns + period_ns if period_ns else 0
    core.store.set_lock(row_key(lane, job.unique_key), (job.id, expires_ns, job.unique_key))


def take_again(core: Core, lane: Lane, job: Job, asked: str) -> UniqueConflict | None:
    """A job that is retried or requeued by hand takes its lock, unless it has it or another job
    does."""
    lock = live_lock(core, lane, job.unique_key)
    if lock is None:
        take(core, lane, job)
        return None
    if lock[0] == job.id:
        return None
    return conflict(core, job, lock, asked)


def conflict(core: Core, job: Job, lock: Lock, asked: str) -> UniqueConflict:
    """The refusal because another job holds the key."""
    holder = core.store.find(lock[0])
    assert holder is not None, f"unique lock of a job that is gone: {lock[0]}"
    return UniqueConflict(
        f'job "{job.id}" cannot be {asked}: job "{holder.id}" holds its unique key',
        holder_id=holder.id,
        holder_state=STATES[holder.state],
    )


def move(core: Core, lane: Lane, target: Lane, job: Job) -> UniqueConflict | None:
    """The lock that the job holds, if any, goes to another queue with it, unless another job
    holds the key there."""
    if not job.unique_key:
        return None
    lock = live_lock(core, lane, job.unique_key)
    if lock is None or lock[0] != job.id or lane is target:
        return None
    other = live_lock(core, target, job.unique_key)
    if other is not None:
        return conflict(core, job, other, "moved")
    core.store.set_lock(row_key(lane, job.unique_key), None)
    core.store.set_lock(row_key(target, job.unique_key), lock)
    return None


def release(core: Core, lane: Lane, job: Job, reason: int) -> None:
    """Something happened to the job that may end its lock."""
    if not job.unique_key or not _ENDS[job.unique_until][reason]:
        return
    key = row_key(lane, job.unique_key)
    lock = core.store.lock(key)
    if lock is not None and lock[0] == job.id:
        core.store.set_lock(key, None)


def release_lock(core: Core, payload: bytes) -> object:
    """A person takes the lock from the job that holds it, which otherwise goes on as before. The
    result is the id of that job."""
    queue: str
    key: bytes
    job_id: str
    queue, key, job_id = decode_fields(ops.RELEASE_LOCK.layout, payload)
    lane = core.lanes.get(queue)
    lock = None if lane is None else live_lock(core, lane, key)
    if lane is None or lock is None or job_id not in ("", lock[0]):
        who = f'job "{job_id}" does not hold' if job_id else "no job holds"
        return NotFound(f'{who} this unique key of queue "{queue}"')
    holder = core.store.find(lock[0])
    assert holder is not None, f"unique lock of a job that is gone: {lock[0]}"
    core.store.set_lock(row_key(lane, key), None)
    core.store.touch(holder)
    core.emit(lane, holder, events.UNLOCKED, b"")
    return holder.id

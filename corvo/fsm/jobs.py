"""Apply of the ops on jobs. Each function gets the core and the op's payload, returns the op's
result, and has changed nothing when that is a CorvoError."""

from json import dumps
from typing import Final

from corvo import feed, ops
from corvo._fast.codec import decode_fields
from corvo._fast.fields import Reader
from corvo.errors import CorvoError
from corvo.fsm import endings, leases, states, unique
from corvo.fsm.backoff import delay_ms, draw, jittered_ns
from corvo.fsm.core import Core
from corvo.fsm.lane import Lane
from corvo.fsm.timers import drop_promoted
from corvo.limits import (
    RELEASE_DELAY_MAX_NS,
    RELEASE_DELAY_MIN_NS,
    RELEASES_IMMEDIATE,
    TIME_MAX_NS,
)
from corvo.model import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    FAILED,
    PRIORITIES,
    RETRYING,
    SCHEDULED,
    STATES,
    Acked,
    Enqueued,
    ErrorRecord,
    Extras,
    Failed,
    Fetched,
    Job,
)

# Counted for each job of a batch reply beside its texts.
FETCHED_OVERHEAD: Final = 512
# A longer error is in its error record only, not in the event.
EVENT_ERROR_SIZE_MAX: Final = 1_024
# Of a release that is told to wait because there were so many: doublings up to the longest delay.
_DOUBLINGS_MAX: Final = 6

_ENQUEUED_DATA: Final = [
    b'{"state":"%s","priority":%d}' % (state.encode(), priority)
    for state in STATES
    for priority in range(PRIORITIES)
]
_reader = Reader()
_ATTEMPT_DATA: Final = [b'{"attempt":%d' % attempt for attempt in range(64)]


def _attempt_data(attempt: int) -> bytes:
    return _ATTEMPT_DATA[attempt] if attempt < 64 else b'{"attempt":%d' % attempt


def enqueue(core: Core, payload: bytes) -> object:
    """A new job. Its id is unique by construction (the leader mints it), so nobody looks."""
    job, queue, extras = read_enqueue(payload)
    return create(core, job, queue, extras)


def read_enqueue(payload: bytes) -> tuple[Job, str, bytes]:
    """An Enqueue, as a job that nobody knows yet, the name of its queue, and its extras."""
    r = _reader
    r.begin(payload)
    job = Job(r.s())
    queue = r.s()
    job.priority = r.u()
    job.payload = r.b()
    job.tags = r.b()
    job.max_retries = r.u()
    job.backoff = r.u()
    job.base_delay_ms = r.u()
    job.max_delay_ms = r.u()
    job.jitter_ppm = r.u()
    job.scheduled_ns = r.t()
    job.checkpoint = r.b()
    job.parent_id = r.s()
    job.unique_key = r.b()
    job.unique_until = r.u()
    job.unique_period_ns = r.u()
    extras = r.b()
    r.done()
    return job, queue, extras


def create(core: Core, job: Job, queue: str, extras: bytes) -> Enqueued:
    """Take in a new job, whoever asked for it, unless another one holds its unique key."""
    stamp_ns = core.stamp_ns
    lane = core.lane(queue)
    if job.unique_key:
        lock = unique.live_lock(core, lane, job.unique_key)
        if lock is not None:
            holder = core.store.find(lock[0])
            assert holder is not None, f"unique lock of a job that is gone: {lock[0]}"
            result = holder.result if holder.state == COMPLETED else b""
            return Enqueued(holder.id, holder.state, True, result)
    job.created_ns = stamp_ns
    if extras:
        _take_extras(job, extras, stamp_ns)
    trigger = states.SCHEDULE
    if job.scheduled_ns <= stamp_ns:
        job.scheduled_ns = 0
        trigger = states.ENQUEUE
    state = states.next_state(states.NOWHERE, trigger)
    core.add(lane, job, state)
    if job.unique_key:
        unique.take(core, lane, job)
    data = _ENQUEUED_DATA[state * PRIORITIES + job.priority]
    if job.schedule_id:
        data = _scheduled_data(data, job.schedule_id, job.schedule_slot_ns)
    core.emit(lane, job, feed.ENQUEUED, data)
    return Enqueued(job.id, state, False, b"")


def _take_extras(job: Job, payload: bytes, stamp_ns: int) -> None:
    """What a new job has beyond the others. Its hold is the affair of whoever enters it."""
    extras = Extras()
    expire_after_ns: int
    hold_timeout_ns: int
    (
        extras.group_key,
        expire_after_ns,
        extras.batch_id,
        extras.chain_id,
        extras.chain_step,
        extras.chain,
        extras.depends_on,
        extras.on_dependency_failure,
        _,
        extras.hold_reason,
        hold_timeout_ns,
        extras.hold_action,
        extras.result_schema,
    ) = decode_fields(ops.EXTRAS_LAYOUT, payload)
    if expire_after_ns:
        extras.expires_ns = min(stamp_ns + expire_after_ns, TIME_MAX_NS)
    if hold_timeout_ns:
        extras.hold_ends_ns = min(stamp_ns + hold_timeout_ns, TIME_MAX_NS)
    job.extras = extras
    job.has_extras = True


def _scheduled_data(data: bytes, schedule_id: str, slot_ns: int) -> bytes:
    """Data of an enqueued event with its source."""
    data = data[:-1] + b',"schedule_id":' + dumps(schedule_id).encode()
    return data + (b',"schedule_slot_ns":%d}' % slot_ns if slot_ns else b"}")


def enqueue_batch(core: Core, payload: bytes) -> object:
    """Many jobs, each with a result of its own."""
    items: list[bytes] = decode_fields(ops.ENQUEUE_BATCH.layout, payload)[0]
    return [enqueue(core, item) for item in items]


def _start(
    core: Core, lane: Lane, job: Job, worker_id: str, hostname: str, lease_ns: int, worker: bytes
) -> Fetched:
    state = states.next_state(job.state, states.FETCH)
    assert state == ACTIVE
    core.store.touch(job)
    job.attempt += 1
    job.started_ns = core.stamp_ns
    leases.grant(core, job, worker_id, hostname, lease_ns)
    core.move(lane, job, state)
    if job.unique_key:
        unique.release(core, lane, job, unique.STARTED)
    core.emit(lane, job, feed.STARTED, _attempt_data(job.attempt) + worker)
    return Fetched(job, lane.queue.name, leases.token(job))


def _worker_data(worker_id: str) -> bytes:
    """End of the data of a started event."""
    plain = worker_id.isascii() and worker_id.isprintable()
    if plain and '"' not in worker_id and "\\" not in worker_id:
        return b',"worker_id":"' + worker_id.encode() + b'"}'
    return b',"worker_id":' + dumps(worker_id).encode() + b"}"


def fetch(core: Core, payload: bytes) -> object:
    """One job from the first queue in the given order that has one."""
    r = _reader
    r.begin(payload)
    queues = r.texts()
    worker_id = r.s()
    hostname = r.s()
    lease_ns = r.u()
    r.u()  # the size of the reply: one job always fits
    r.done()
    core.see_worker(worker_id, hostname, queues)
    for name in queues:
        lane = core.lanes.get(name)
        if lane is None or lane.full():
            continue
        job = core.ready_job(lane)
        if job is not None:
            worker = _worker_data(worker_id)
            return _start(core, lane, job, worker_id, hostname, lease_ns, worker)
    return None


def fetch_batch(core: Core, payload: bytes) -> object:
    """Up to `count` jobs, round-robin one of each queue, cut by the size of the reply but never
    to nothing."""
    queues: list[str]
    worker_id: str
    hostname: str
    lease_ns: int
    room: int
    count: int
    queues, worker_id, hostname, lease_ns, room, count = decode_fields(
        ops.FETCH_BATCH.layout, payload
    )
    core.see_worker(worker_id, hostname, queues)
    worker = _worker_data(worker_id)
    fetched: list[Fetched] = []
    lanes = [core.lanes[name] for name in queues if name in core.lanes]
    while lanes:
        left: list[Lane] = []
        for lane in lanes:
            if len(fetched) == count:
                return fetched
            job = None if lane.full() else core.ready_job(lane)
            if job is None:
                continue
            room -= FETCHED_OVERHEAD + len(job.payload) + len(job.tags) + len(job.checkpoint)
            if room < 0 and fetched:
                return fetched
            fetched.append(_start(core, lane, job, worker_id, hostname, lease_ns, worker))
            left.append(lane)
        lanes = left
    return fetched


def ack(core: Core, payload: bytes) -> CorvoError | None:
    """The job is done. The token that completed it may say so again."""
    r = _reader
    r.begin(payload)
    job_id = r.s()
    token = r.s()
    result = r.b()
    checkpoint = r.b()
    r.done()
    job = core.store.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    if token and job.state == COMPLETED and token == leases.token(job):
        return None
    refusal = leases.refusal(job, token, states.ACK)
    if refusal is not None:
        return refusal
    core.store.touch(job)
    if result or checkpoint:
        core.store.set_data(job, checkpoint, b"", result)
    lane = core.lane_of(job)
    job.releases = 0
    job.provider_error = False
    endings.complete(core, lane, job)
    return None


def ack_batch(core: Core, payload: bytes) -> object:
    """Many acks, each by the rules of one."""
    items: list[bytes] = decode_fields(ops.ACK_BATCH.layout, payload)[0]
    acked = Acked()
    for i, item in enumerate(items):
        refusal = ack(core, item)
        if refusal is None:
            acked.count += 1
        else:
            acked.refused.append((i, refusal))
    return acked


def fail(core: Core, payload: bytes) -> object:
    """The attempt failed: again later, or dead; cancelled if that was asked for."""
    job_id: str
    token: str
    error: bytes
    backtrace: bytes
    no_retry: bool
    retry_after_ns: int
    provider_error: bool
    job_id, token, error, backtrace, no_retry, retry_after_ns, provider_error = decode_fields(
        ops.FAIL.layout, payload
    )
    job = core.store.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    refusal = leases.refusal(job, token, states.FAIL)
    if refusal is not None:
        return refusal
    core.store.touch(job)
    lane = core.lane_of(job)
    record = ErrorRecord(job.attempt, FAILED, error, backtrace, core.stamp_ns)
    core.store.add_error(job, record)
    job.failed_ns = core.stamp_ns
    job.releases = 0
    job.provider_error = provider_error
    lane.queue.failed_total += 1
    data = _attempt_data(job.attempt)
    if 0 < len(error) <= EVENT_ERROR_SIZE_MAX:
        data += b',"error":' + error
    core.emit(lane, job, feed.FAILED, data + b"}")
    remaining = max(0, job.max_retries - job.attempt)
    if job.cancel_requested_ns:
        endings.cancel(core, lane, job, states.WITHDRAW)
        return Failed(CANCELLED, 0, 0)
    if no_retry or remaining == 0:
        endings.die(core, lane, job, b'{"reason":"failed"}')
        return Failed(job.state, 0, 0)
    return _retry_later(core, lane, job, retry_after_ns, remaining)


def _retry_later(core: Core, lane: Lane, job: Job, retry_after_ns: int, remaining: int) -> Failed:
    delay_ns = retry_after_ns
    if delay_ns < 0:
        delay = delay_ms(job.backoff, job.attempt, job.base_delay_ms, job.max_delay_ms)
        delay_ns = jittered_ns(delay, job.jitter_ppm, draw(core.seed, core.position))
    next_ns = min(core.stamp_ns + delay_ns, TIME_MAX_NS)
    endings.end_lease(job)
    if delay_ns == 0:
        core.move(lane, job, states.next_state(job.state, states.FAIL_AT_ONCE))
    else:
        job.scheduled_ns = next_ns
        core.move(lane, job, states.next_state(job.state, states.FAIL))
    data = b'{"attempts_remaining":%d,"next_attempt_ns":%d}' % (remaining, next_ns)
    core.emit(lane, job, feed.RETRYING, data)
    return Failed(RETRYING, next_ns, remaining)


def heartbeat(core: Core, payload: bytes) -> object:
    """What each job's worker has to know: ok, cancel or lost."""
    beats: list[bytes] = decode_fields(ops.HEARTBEAT.layout, payload)[0]
    answers: dict[str, str] = {}
    for item in beats:
        job_id: str
        token: str
        progress: bytes
        checkpoint: bytes
        job_id, token, progress, checkpoint = decode_fields(ops.BEAT_LAYOUT, item)
        job = core.store.find(job_id)
        if job is None or leases.refusal(job, token, states.HEARTBEAT) is not None:
            answers[job_id] = "lost"
        else:
            answers[job_id] = leases.beat(core, core.lane_of(job), job, checkpoint, progress)
    return answers


def release(core: Core, payload: bytes) -> object:
    """The worker gives the job back, unharmed: the attempt does not count. The result is
    the new state."""
    job_id: str
    token: str
    delay_ns: int
    checkpoint: bytes
    job_id, token, delay_ns, checkpoint = decode_fields(ops.RELEASE.layout, payload)
    job = core.store.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    refusal = leases.refusal(job, token, states.RELEASE)
    if refusal is not None:
        return refusal
    core.store.touch(job)
    lane = core.lane_of(job)
    if checkpoint:
        core.store.set_data(job, checkpoint, b"", b"")
    if job.cancel_requested_ns:
        endings.cancel(core, lane, job, states.WITHDRAW)
        return CANCELLED
    job.attempt -= 1
    job.releases += 1
    delay_ns = max(delay_ns, release_delay_ns(job.releases))
    endings.end_lease(job)
    if delay_ns == 0:
        core.move(lane, job, states.next_state(job.state, states.RELEASE))
    else:
        job.scheduled_ns = min(core.stamp_ns + delay_ns, TIME_MAX_NS)
        job.keeps_place = True
        core.move(lane, job, states.next_state(job.state, states.POSTPONE))
    core.emit(lane, job, feed.RELEASED, b"")
    return job.state


def release_delay_ns(releases: int) -> int:
    """The shortest delay after so many releases in a row without progress."""
    doublings = releases - RELEASES_IMMEDIATE - 1
    if doublings < 0:
        return 0
    return min(RELEASE_DELAY_MIN_NS << min(doublings, _DOUBLINGS_MAX), RELEASE_DELAY_MAX_NS)


def retry_job(core: Core, payload: bytes) -> object:
    """Run again from the start, at the tail of the queue."""
    job_id: str = decode_fields(ops.RETRY_JOB.layout, payload)[0]
    job = core.store.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    state = states.next_state(job.state, states.RETRY)
    if state == states.REFUSED:
        return states.invalid_state(job_id, job.state, states.RETRY)
    lane = core.lane_of(job)
    if job.unique_key:
        conflict = unique.take_again(core, lane, job)
        if conflict is not None:
            return conflict
    core.store.touch(job)
    job.attempt = 0
    job.releases = 0
    job.completed_ns = 0
    job.failed_ns = 0
    job.provider_error = False
    core.move(lane, job, state, tail=True)
    core.emit(lane, job, feed.RETRIED, b"")
    return None


def cancel_job(core: Core, payload: bytes) -> object:
    """Stop a job. An active one is only marked, unless forced."""
    job_id: str
    force: bool
    job_id, force = decode_fields(ops.CANCEL_JOB.layout, payload)
    job = core.store.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    trigger = states.FORCE_CANCEL if force else states.CANCEL
    state = states.next_state(job.state, trigger)
    if state == states.REFUSED:
        return states.invalid_state(job_id, job.state, trigger)
    lane = core.lane_of(job)
    if state == ACTIVE:
        if not job.cancel_requested_ns:
            core.store.touch(job)
            job.cancel_requested_ns = core.stamp_ns
            core.emit(lane, job, feed.CANCELLING, b"")
        return "cancelling"
    core.store.touch(job)
    endings.cancel(core, lane, job, trigger)
    return "cancelled"


def delete_job(core: Core, payload: bytes) -> object:
    """Remove a job and everything that hangs on it; its worker finds the lease lost."""
    job_id: str = decode_fields(ops.DELETE_JOB.layout, payload)[0]
    job = core.store.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    lane = core.lane_of(job)
    core.store.touch(job)
    endings.delete(core, lane, job)
    return None


def promote_due(core: Core, payload: bytes) -> object:
    """Scheduled and retrying jobs whose time has come; the result says how many."""
    ids: list[str] = decode_fields(ops.PROMOTE_DUE.layout, payload)[0]
    promoted = 0
    for job_id in ids:
        job = core.store.find(job_id)
        if job is None:
            continue
        state = states.next_state(job.state, states.PROMOTE)
        if state == states.REFUSED or job.scheduled_ns > core.stamp_ns:
            continue
        core.store.touch(job)
        lane = core.lane_of(job)
        tail = job.state == SCHEDULED and not job.keeps_place
        core.move(lane, job, state, tail)
        core.emit(lane, job, feed.PROMOTED, b"")
        promoted += 1
    drop_promoted(core)
    return promoted


def expire_leases(core: Core, payload: bytes) -> object:
    """Active jobs whose lease has ended; the result says how many."""
    ids: list[str] = decode_fields(ops.EXPIRE_LEASES.layout, payload)[0]
    expired = 0
    for job_id in ids:
        job = core.store.find(job_id)
        if job is None or job.state != ACTIVE or job.lease_expires_ns > core.stamp_ns:
            continue
        leases.expire(core, core.lane_of(job), job)
        expired += 1
    return expired

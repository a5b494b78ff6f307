"""Apply of the ops on jobs. Each function gets the core and the op's payload, returns the op's
result, and has changed nothing when that is a CorvoError."""

from json import dumps
from typing import Final

from corvo import events, ops
from corvo._fast.codec.fields import Reader
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import CorvoError
from corvo.fsm import states
from corvo.fsm.ops import batches, dependencies, finish, leases, unique
from corvo.fsm.ops.backoff import delay_ms, draw, jittered_ns
from corvo.fsm.state.queue_index import Lane
from corvo.fsm.state.state import Core
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
    HELD,
    PRIORITIES,
    RETRYING,
    STATES,
    Acked,
    Enqueued,
    EnqueuedBatch,
    ErrorRecord,
    Extras,
    Failed,
    Fetched,
    Job,
)

# Counted for each job of a batch reply beside its texts.
FETCHED_OVERHEAD: Final = 512
# A fetch gives up when it finds more jobs than this that have expired.
EXPIRED_AT_FETCH_MAX: Final = 100
# A longer error is in its error record only, not in the event.
EVENT_ERROR_SIZE_MAX: Final = 1_024
# Of a release that is told to wait because there were so many: doublings up to the longest delay.
_DOUBLINGS_MAX: Final = 6

_ENQUEUED_DATA: Final = [
    b'{"state":"%s","priority":%d}' % (state.encode(), priority)
    for state in STATES
    for priority in range(PRIORITIES)
]
# What every job goes through, as C integers.
_NOWHERE: Final = states.NOWHERE
_ENQUEUE: Final = states.ENQUEUE
_ENQUEUE_HELD: Final = states.ENQUEUE_HELD
_SCHEDULE: Final = states.SCHEDULE
_FETCH: Final = states.FETCH
_ACK: Final = states.ACK
_ENQUEUED: Final = events.ENQUEUED
_STARTED: Final = events.STARTED
_WORKER_DATA: Final[dict[str, bytes]] = {}
_WORKERS_MAX: Final = 1_024
_reader = Reader()
_ATTEMPT_DATA: Final = [b'{"attempt":%d' % attempt for attempt in range(64)]
_FIRST: Final = _ATTEMPT_DATA[1]


def _attempt_data(attempt: int) -> bytes:
    return _ATTEMPT_DATA[attempt] if attempt < 64 else b'{"attempt":%d' % attempt


def enqueue(core: Core, payload: bytes) -> object:
    """A new job. Its id is unique by construction (the leader mints it), so nobody looks."""
    job, queue, extras = read_enqueue(payload)
    refusal: CorvoError | None = core.no_room(queue)
    if refusal is None and extras:
        refusal = _extras_refusal(core, extras, "")
    return create(core, job, queue, extras) if refusal is None else refusal


def _extras_refusal(core: Core, payload: bytes, opening: str) -> CorvoError | None:
    """Why a job cannot have these extras; `opening` is the batch that this op makes."""
    fields = decode_fields(ops.EXTRAS_LAYOUT, payload)
    batch_id: str = fields[2]
    depends_on: list[str] = fields[6]
    refusal = None
    if batch_id and batch_id != opening:
        refusal = batches.refusal(core, batch_id)
    if refusal is None and depends_on:
        refusal = dependencies.refusal(core, depends_on)
    return refusal


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
    """Take in a new job, whoever asked for it, unless another one holds its unique key. It may
    have got its extras already."""
    stamp_ns = core.stamp_ns
    lane = core.lane(queue)
    if job.unique_key:
        duplicate = _duplicate(core, lane, job.unique_key)
        if duplicate is not None:
            return duplicate
    job.created_ns = stamp_ns
    failed = None
    held = False
    if extras:
        job.extras = Extras()
        job.has_extras = True
        held = _take_extras(core, job.extras, extras)
    if job.extras is not None and job.extras.depends_on:
        failed = dependencies.wait_for(core, job, job.extras.depends_on)
    trigger = _SCHEDULE
    if job.scheduled_ns <= stamp_ns or held:
        job.scheduled_ns = 0
        trigger = _ENQUEUE_HELD if held else _ENQUEUE
    state = states.next_state(_NOWHERE, trigger)
    core.add(lane, job, state)
    if job.unique_key:
        unique.take(core, lane, job)
    data = _ENQUEUED_DATA[state * PRIORITIES + job.priority]
    if job.schedule_id:
        data = _scheduled_data(data, job.schedule_id, job.schedule_slot_ns)
    core.emit(lane, job, _ENQUEUED, data)
    if job.parent_id:
        core.store.children.add(job.parent_id, job.id)
    if job.extras is not None:
        _place_extras(core, lane, job, failed)
    return Enqueued(job.id, job.state, False, b"")


def _place_extras(core: Core, lane: Lane, job: Job, failed: tuple[str, int] | None) -> None:
    """What follows from the extras of a new job that has its place; `failed` is a dependency that
    has ended in a way that ends the job."""
    extras = job.extras
    assert extras is not None
    if job.state == HELD:
        core.emit(lane, job, events.HELD, reason_data(extras.hold_reason, ""))
    if extras.batch_id:
        batches.join(core, job, extras.batch_id)
    if failed is not None:
        dependencies.fail(core, lane, job, failed[0], failed[1])


def _duplicate(core: Core, lane: Lane, unique_key: bytes) -> Enqueued | None:
    """The answer to a new job whose key another one holds."""
    lock = unique.live_lock(core, lane, unique_key)
    if lock is None:
        return None
    holder = core.find(lock[0])
    assert holder is not None, f"unique lock of a job that is gone: {lock[0]}"
    result = holder.result if holder.state == COMPLETED else b""
    return Enqueued(holder.id, holder.state, True, result)


def _take_extras(core: Core, extras: Extras, payload: bytes) -> bool:
    """What a new job has beyond the others; whether it is to be held."""
    stamp_ns = core.stamp_ns
    expire_after_ns: int
    held: bool
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
        held,
        extras.hold_reason,
        hold_timeout_ns,
        extras.hold_action,
        extras.result_schema,
    ) = decode_fields(ops.EXTRAS_LAYOUT, payload)
    if extras.result_schema:
        core.meta.result_schemas = True
    if expire_after_ns:
        extras.expires_ns = min(stamp_ns + expire_after_ns, TIME_MAX_NS)
    if hold_timeout_ns:
        extras.hold_ends_ns = min(stamp_ns + hold_timeout_ns, TIME_MAX_NS)
    return held


def reason_data(reason: str, by: str, more: bytes = b"") -> bytes:
    """Data of an event that somebody caused: why, and who; `more` are other members."""
    parts: list[bytes] = []
    if reason:
        parts.append(b'"reason":' + dumps(reason).encode())
    if by:
        parts.append(b'"by":' + dumps(by).encode())
    if more:
        parts.append(more)
    return b"{" + b",".join(parts) + b"}" if parts else b""


def _scheduled_data(data: bytes, schedule_id: str, slot_ns: int) -> bytes:
    """Data of an enqueued event with its source."""
    data = data[:-1] + b',"schedule_id":' + dumps(schedule_id).encode()
    return data + (b',"schedule_slot_ns":%d}' % slot_ns if slot_ns else b"}")


def enqueue_batch(core: Core, payload: bytes) -> object:
    """Many jobs, taken all or none, and the batch that they make."""
    items: list[bytes]
    opening: bytes
    items, opening = decode_fields(ops.ENQUEUE_BATCH.layout, payload)
    batch_id = ""
    if opening:
        batch_id = decode_fields(ops.BATCH_LAYOUT, opening)[0]
    jobs: list[tuple[Job, str, bytes]] = []
    for index, item in enumerate(items):
        job, queue, extras = read_enqueue(item)
        refusal: CorvoError | None = core.no_room(queue)
        if refusal is None and extras:
            refusal = _extras_refusal(core, extras, batch_id)
        if refusal is not None:
            refusal.fields["index"] = index
            return refusal
        jobs.append((job, queue, extras))
    if opening:
        batches.new_batch(core, opening)
    results = [create(core, job, queue, extras) for job, queue, extras in jobs]
    return EnqueuedBatch(results, batch_id)


def _start(
    core: Core, lane: Lane, job: Job, worker_id: str, hostname: str, lease_ns: int, worker: bytes
) -> Fetched:
    state = states.next_state(job.state, _FETCH)
    assert state == ACTIVE
    core.store.touch(job)
    job.attempt += 1
    job.started_ns = core.stamp_ns
    leases.grant(core, job, worker_id, hostname, lease_ns)
    core.move(lane, job, state)
    if job.unique_key:
        unique.release(core, lane, job, unique.STARTED)
    core.emit(lane, job, _STARTED, _started_data(job.attempt, worker))
    return Fetched(job, lane.queue.name, leases.token(job))


def _started_data(attempt: int, worker: bytes) -> bytes:
    """Data of a started event; `worker` is that of a first attempt, which most are."""
    return worker if attempt == 1 else _attempt_data(attempt) + worker[len(_FIRST) :]


def _worker_data(worker_id: str) -> bytes:
    """Data of the event of a first attempt. Most fetches are of few workers."""
    data = _WORKER_DATA.get(worker_id)
    if data is None:
        if len(_WORKER_DATA) == _WORKERS_MAX:
            _WORKER_DATA.clear()
        data = _WORKER_DATA[worker_id] = _new_worker_data(worker_id)
    return data


def _new_worker_data(worker_id: str) -> bytes:
    plain = worker_id.isascii() and worker_id.isprintable()
    if plain and '"' not in worker_id and "\\" not in worker_id:
        return _FIRST + b',"worker_id":"' + worker_id.encode() + b'"}'
    return _FIRST + b',"worker_id":' + dumps(worker_id).encode() + b"}"


def _next_job(core: Core, lane: Lane) -> Job | None:
    """The job that is served next. Those before it that have expired are dead from now on."""
    job = core.ready_job(lane)
    expired = 0
    while job is not None and job.extras is not None and finish.overdue(core, job):
        if expired == EXPIRED_AT_FETCH_MAX:  # it takes too long: another fetch goes on
            core.wake(lane)
            return None
        core.store.touch(job)
        finish.expire(core, lane, job)
        expired += 1
        job = core.ready_job(lane)
    return job


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
    refusal = core.see_worker(worker_id, hostname, queues)
    if refusal is not None:
        return refusal
    for name in queues:
        lane = core.lanes.get(name)
        if lane is None or lane.full(core.stamp_ns):
            continue
        job = _next_job(core, lane)
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
    refusal = core.see_worker(worker_id, hostname, queues)
    if refusal is not None:
        return refusal
    worker = _worker_data(worker_id)
    fetched: list[Fetched] = []
    lanes = [core.lanes[name] for name in queues if name in core.lanes]
    while lanes:
        left: list[Lane] = []
        for lane in lanes:
            if len(fetched) == count:
                return fetched
            job = None if lane.full(core.stamp_ns) else _next_job(core, lane)
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
    step = r.b()
    r.done()
    job = core.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    if token and job.state == COMPLETED and token == leases.token(job):
        return None
    refusal = leases.refusal(job, token, _ACK)
    if refusal is not None:
        return refusal
    core.store.touch(job)
    if result or checkpoint:
        core.store.set_data(job, checkpoint, b"", result)
    lane = core.lane_of(job)
    job.releases = 0
    job.provider_error = False
    finish.complete(core, lane, job, result, step)
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
    job = core.find(job_id)
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
    core.emit(lane, job, events.FAILED, data + b"}")
    remaining = max(0, job.max_retries - job.attempt)
    if job.cancel_requested_ns:
        finish.cancel(core, lane, job, states.WITHDRAW)
        return Failed(CANCELLED, 0, 0)
    if no_retry or remaining == 0:
        finish.die(core, lane, job, b'{"reason":"failed"}')
        return Failed(job.state, 0, 0)
    if finish.overdue(core, job):
        finish.expire(core, lane, job)
        return Failed(job.state, 0, 0)
    return _retry_later(core, lane, job, retry_after_ns, remaining)


def _retry_later(core: Core, lane: Lane, job: Job, retry_after_ns: int, remaining: int) -> Failed:
    delay_ns = retry_after_ns
    if delay_ns < 0:
        delay = delay_ms(job.backoff, job.attempt, job.base_delay_ms, job.max_delay_ms)
        delay_ns = jittered_ns(delay, job.jitter_ppm, draw(core.seed, core.position))
    next_ns = min(core.stamp_ns + delay_ns, TIME_MAX_NS)
    finish.end_lease(job)
    if delay_ns == 0:
        core.move(lane, job, states.next_state(job.state, states.FAIL_AT_ONCE))
    else:
        job.scheduled_ns = next_ns
        core.move(lane, job, states.next_state(job.state, states.FAIL))
    data = b'{"attempts_remaining":%d,"next_attempt_ns":%d}' % (remaining, next_ns)
    core.emit(lane, job, events.RETRYING, data)
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
        job = core.find(job_id)
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
    undelivered: bool
    job_id, token, delay_ns, checkpoint, undelivered = decode_fields(ops.RELEASE.layout, payload)
    job = core.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    refusal = leases.refusal(job, token, states.RELEASE)
    if refusal is not None:
        return refusal
    core.store.touch(job)
    lane = core.lane_of(job)
    if checkpoint:
        core.store.set_data(job, checkpoint, b"", b"")
    if undelivered and lane.window is not None:
        lane.window.give_back(job.started_ns)
        core.wake(lane)
    if job.cancel_requested_ns:
        finish.cancel(core, lane, job, states.WITHDRAW)
        return CANCELLED
    if finish.overdue(core, job):
        finish.expire(core, lane, job)
        return job.state
    job.attempt -= 1
    job.releases += 1
    delay_ns = max(delay_ns, release_delay_ns(job.releases))
    finish.end_lease(job)
    if delay_ns == 0:
        core.move(lane, job, states.next_state(job.state, states.RELEASE))
    else:
        job.scheduled_ns = min(core.stamp_ns + delay_ns, TIME_MAX_NS)
        job.keeps_place = True
        core.move(lane, job, states.next_state(job.state, states.POSTPONE))
    core.emit(lane, job, events.RELEASED, b"")
    return job.state


def release_delay_ns(releases: int) -> int:
    """The shortest delay after so many releases in a row without progress."""
    doublings = releases - RELEASES_IMMEDIATE - 1
    if doublings < 0:
        return 0
    return min(RELEASE_DELAY_MIN_NS << min(doublings, _DOUBLINGS_MAX), RELEASE_DELAY_MAX_NS)

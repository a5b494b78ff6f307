"""Apply functions of enqueue, fetch, ack, fail, heartbeat and release. Each function gets the state
and the op's payload and returns the op's result. If the result is a CorvoError, it has changed
nothing."""

from json import dumps
from typing import Final

from corvo import events, ops
from corvo._fast.codec.fields import Reader
from corvo._fast.codec.layouts import decode_fields
from corvo.errors import CorvoError, InvalidName
from corvo.fsm import states
from corvo.fsm.ops import Apply, batches, chains, dependencies, finish, leases, unique
from corvo.fsm.ops.backoff import delay_ms, draw, jittered_ns
from corvo.fsm.state.queue_index import QueueIndex
from corvo.fsm.state.state import State
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
    PROVIDER,
    RETRYING,
    STATES,
    Acked,
    Enqueued,
    EnqueuedBatch,
    ErrorRecord,
    Failed,
    Fetched,
    Job,
    JobOptions,
)
from corvo.storage.records.jobs import read_new_options

# Bytes counted for each job of a batch reply in addition to its texts.
FETCHED_OVERHEAD: Final = 512
# A fetch stops after it has found this many expired jobs.
EXPIRED_AT_FETCH_MAX: Final = 100
# A longer error is only in its error record, not in the event.
EVENT_ERROR_SIZE_MAX: Final = 1_024
# Doublings of the delay after many releases in a row, up to the longest delay.
_DOUBLINGS_MAX: Final = 6

_ENQUEUED_DATA: Final = [
    b'{"state":"%s","priority":%d}' % (state.encode(), priority)
    for state in STATES
    for priority in range(PRIORITIES)
]
# States and triggers of the fast path, as C integers.
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


def enqueue(state: State, payload: bytes) -> object:
    """Apply Enqueue. The leader creates a unique id, so apply does not check it."""
    job, queue, options = read_enqueue(payload)
    if not job.id:
        raise InvalidName("the new job has no id")
    refusal: CorvoError | None = state.no_room(queue)
    if refusal is None and options:
        refusal = _options_refusal(state, options, "")
    return create(state, job, queue, options) if refusal is None else refusal


def _options_refusal(state: State, payload: bytes, opening: str) -> CorvoError | None:
    """Return the error if a job cannot have these options; `opening` is the batch that this op
    creates."""
    options = read_options(payload)
    refusal = None
    if options.batch_id and options.batch_id != opening:
        refusal = batches.refusal(state, options.batch_id)
    if refusal is None and options.depends_on:
        refusal = dependencies.refusal(state, options.depends_on)
    return refusal


def read_options(payload: bytes) -> JobOptions:
    """Decode the options of a new job, and check the names in the records inside them."""
    options = JobOptions()
    read_new_options(options, payload)
    if options.chain:
        chains.check(options.chain)
    return options


def read_enqueue(payload: bytes) -> tuple[Job, str, bytes]:
    """Decode an Enqueue into a job that is not in the state yet, the name of its queue, and its
    options."""
    r = _reader
    r.begin(payload)
    job = Job("")
    # <generated: read ENQUEUE job>
    job_id = r.o()
    queue = r.n()
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
    job.parent_id = r.o()
    job.unique_key = r.b()
    job.unique_until = r.u()
    job.unique_period_ns = r.u()
    options = r.b()
    # </generated>
    r.done()
    job.id = job_id
    return job, queue, options


def create(state: State, job: Job, queue: str, options: bytes) -> Enqueued:
    """Add a new job from any op, unless another job holds its unique key. The job may have its
    options already."""
    stamp_ns = state.stamp_ns
    queue_index = state.queue_index(queue)
    if job.unique_key:
        duplicate = _duplicate(state, queue_index, job.unique_key)
        if duplicate is not None:
            return duplicate
    job.created_ns = stamp_ns
    failed = None
    held = False
    if options:
        job.options = JobOptions()
        job.has_options = True
        held = _take_options(state, job.options, options)
    if job.options is not None and job.options.depends_on:
        failed = dependencies.wait_for(state, job, job.options.depends_on)
    trigger = _SCHEDULE
    if job.scheduled_ns <= stamp_ns or held:
        job.scheduled_ns = 0
        trigger = _ENQUEUE_HELD if held else _ENQUEUE
    job_state = states.next_state(_NOWHERE, trigger)
    state.add(queue_index, job, job_state)
    if job.unique_key:
        unique.take(state, queue_index, job)
    data = _ENQUEUED_DATA[job_state * PRIORITIES + job.priority]
    if job.schedule_id:
        data = _scheduled_data(data, job.schedule_id, job.schedule_occurrence_ns)
    state.emit(queue_index, job, _ENQUEUED, data)
    if job.parent_id:
        state.buffer.children.add(job.parent_id, job.id)
    if job.options is not None:
        _place_options(state, queue_index, job, failed)
    return Enqueued(job.id, job.state, False, b"")


def _place_options(
    state: State, queue_index: QueueIndex, job: Job, failed: tuple[str, int] | None
) -> None:
    """Apply the options of a new job after it has its queue position; `failed` is a dependency that
    has finished in a way that ends the job."""
    options = job.options
    assert options is not None
    if job.state == HELD:
        state.emit(queue_index, job, events.HELD, reason_data(options.hold_reason, ""))
    if options.batch_id:
        batches.join(state, job, options.batch_id)
    if failed is not None:
        dependencies.fail(state, queue_index, job, failed[0], failed[1])


def _duplicate(state: State, queue_index: QueueIndex, unique_key: bytes) -> Enqueued | None:
    """Return the result for a new job if another job holds its unique key."""
    lock = unique.live_lock(state, queue_index, unique_key)
    if lock is None:
        return None
    holder_id, _, _ = lock
    holder = state.find(holder_id)
    assert holder is not None, f"unique lock of missing job {holder_id}"
    result = holder.result if holder.state == COMPLETED else b""
    return Enqueued(holder.id, holder.state, True, result)


def _take_options(state: State, options: JobOptions, payload: bytes) -> bool:
    """Decode the options of a new job; return whether the job starts held."""
    stamp_ns = state.stamp_ns
    expire_after_ns, held, hold_timeout_ns = read_new_options(options, payload)
    if options.result_schema:
        state.meta.result_schemas = True
    if expire_after_ns:
        options.expires_ns = min(stamp_ns + expire_after_ns, TIME_MAX_NS)
    if hold_timeout_ns:
        options.hold_ends_ns = min(stamp_ns + hold_timeout_ns, TIME_MAX_NS)
    return held


def reason_data(reason: str, by: str, more: bytes = b"") -> bytes:
    """Return event data with the reason and the person of a request; `more` is further members."""
    parts: list[bytes] = []
    if reason:
        parts.append(b'"reason":' + dumps(reason).encode())
    if by:
        parts.append(b'"by":' + dumps(by).encode())
    if more:
        parts.append(more)
    return b"{" + b",".join(parts) + b"}" if parts else b""


def _scheduled_data(data: bytes, schedule_id: str, occurrence_ns: int) -> bytes:
    """Return the data of an enqueued event with the schedule of the job."""
    data = data[:-1] + b',"schedule_id":' + dumps(schedule_id).encode()
    return data + (b',"schedule_slot_ns":%d}' % occurrence_ns if occurrence_ns else b"}")


def enqueue_batch(state: State, payload: bytes) -> object:
    """Enqueue all jobs or none, and create the batch if the op has one."""
    items: list[bytes]
    opening: bytes
    items, opening = decode_fields(ops.ENQUEUE_BATCH.layout, payload)
    batch_id = ""
    if opening:
        batch = batches.read_new_batch(opening)
        batches.check(batch)
        batch_id = batch.id
    jobs: list[tuple[Job, str, bytes]] = []
    for index, item in enumerate(items):
        job, queue, options = read_enqueue(item)
        if not job.id:
            raise InvalidName(f"new job {index} has no id")
        refusal: CorvoError | None = state.no_room(queue)
        if refusal is None and options:
            refusal = _options_refusal(state, options, batch_id)
        if refusal is not None:
            refusal.fields["index"] = index
            return refusal
        jobs.append((job, queue, options))
    if opening:
        batches.new_batch(state, opening)
    results = [create(state, job, queue, options) for job, queue, options in jobs]
    return EnqueuedBatch(results, batch_id)


def _start(
    state: State,
    queue_index: QueueIndex,
    job: Job,
    worker_id: str,
    hostname: str,
    lease_ns: int,
    worker: bytes,
) -> Fetched:
    job_state = states.next_state(job.state, _FETCH)
    assert job_state == ACTIVE
    state.buffer.touch(job)
    job.attempt += 1
    job.started_ns = state.stamp_ns
    leases.grant(state, job, worker_id, hostname, lease_ns)
    state.move(queue_index, job, job_state)
    if job.unique_key:
        unique.release(state, queue_index, job, unique.STARTED)
    state.emit(queue_index, job, _STARTED, _started_data(job.attempt, worker))
    return Fetched(job, queue_index.queue.name, leases.token(job))


def _started_data(attempt: int, worker: bytes) -> bytes:
    """Return the data of a started event; `worker` is the data of a first attempt, which is
    cached."""
    return worker if attempt == 1 else _attempt_data(attempt) + worker[len(_FIRST) :]


def _worker_data(worker_id: str) -> bytes:
    """Return the data of the started event of a first attempt. It is cached, as few workers do most
    fetches."""
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


def _next_job(state: State, queue_index: QueueIndex) -> Job | None:
    """Return the next job to serve. Expired jobs before it become dead."""
    job = state.ready_job(queue_index)
    expired = 0
    while job is not None and job.options is not None and finish.overdue(state, job):
        if expired == EXPIRED_AT_FETCH_MAX:  # bounds the time of an op: a later fetch continues
            state.wake(queue_index)
            return None
        state.buffer.touch(job)
        finish.expire(state, queue_index, job)
        expired += 1
        job = state.ready_job(queue_index)
    return job


def fetch(state: State, payload: bytes) -> object:
    """Apply Fetch: deliver one job from the first queue in the given order that has one."""
    r = _reader
    r.begin(payload)
    queues = r.texts()
    worker_id = r.s()
    hostname = r.s()
    lease_ns = r.u()
    r.u()  # reply_size_max: one job always fits
    r.done()
    state.record_worker(worker_id, hostname, queues)
    for name in queues:
        queue_index = state.queue_indexes.get(name)
        if queue_index is None or queue_index.full(state.stamp_ns):
            continue
        job = _next_job(state, queue_index)
        if job is not None:
            worker = _worker_data(worker_id)
            return _start(state, queue_index, job, worker_id, hostname, lease_ns, worker)
    return None


def fetch_batch(state: State, payload: bytes) -> object:
    """Apply FetchBatch: deliver up to `count` jobs, one of each queue in turn, limited by the size
    of the reply but at least one."""
    queues: list[str]
    worker_id: str
    hostname: str
    lease_ns: int
    reply_size_max: int
    count: int
    queues, worker_id, hostname, lease_ns, reply_size_max, count = decode_fields(
        ops.FETCH_BATCH.layout, payload
    )
    room = reply_size_max
    state.record_worker(worker_id, hostname, queues)
    worker = _worker_data(worker_id)
    fetched: list[Fetched] = []
    queue_indexes = [state.queue_indexes[name] for name in queues if name in state.queue_indexes]
    while queue_indexes:
        left: list[QueueIndex] = []
        for queue_index in queue_indexes:
            if len(fetched) == count:
                return fetched
            job = None if queue_index.full(state.stamp_ns) else _next_job(state, queue_index)
            if job is None:
                continue
            room -= FETCHED_OVERHEAD + len(job.payload) + len(job.tags) + len(job.checkpoint)
            if room < 0 and fetched:
                return fetched
            fetched.append(_start(state, queue_index, job, worker_id, hostname, lease_ns, worker))
            left.append(queue_index)
        queue_indexes = left
    return fetched


def ack(state: State, payload: bytes) -> CorvoError | None:
    """Apply Ack: complete the job. A repeated ack with the same token succeeds."""
    r = _reader
    r.begin(payload)
    # <generated: locals ACK>
    job_id = r.n()
    token = r.s()
    result = r.b()
    checkpoint = r.b()
    step = r.b()
    # </generated>
    r.done()
    job = state.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    if token and job.state == COMPLETED and token == leases.token(job):
        return None
    refusal = leases.refusal(job, token, _ACK)
    if refusal is not None:
        return refusal
    state.buffer.touch(job)
    if result or checkpoint:
        state.buffer.set_data(job, checkpoint, b"", result)
    queue_index = state.queue_index_of(job)
    job.releases = 0
    job.provider_error = False
    finish.complete(state, queue_index, job, result, step)
    return None


def ack_batch(state: State, payload: bytes) -> object:
    """Apply AckBatch: apply each ack by the rules of a single one."""
    acks: list[bytes]
    (acks,) = decode_fields(ops.ACK_BATCH.layout, payload)
    acked = Acked()
    for i, item in enumerate(acks):
        refusal: CorvoError | None
        try:
            refusal = ack(state, item)
        except InvalidName as error:  # this ack has changed nothing
            refusal = InvalidName(error.message)
        if refusal is None:
            acked.count += 1
        else:
            acked.refused.append((i, refusal))
    return acked


def fail(state: State, payload: bytes) -> object:
    """Apply Fail: retry the job later, or make it dead; a job with a cancel request is
    cancelled."""
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
    job = state.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    refusal = leases.refusal(job, token, states.FAIL)
    if refusal is not None:
        return refusal
    state.buffer.touch(job)
    queue_index = state.queue_index_of(job)
    kind = PROVIDER if provider_error else FAILED
    record = ErrorRecord(job.attempt, kind, error, backtrace, state.stamp_ns)
    state.buffer.add_error(job, record)
    job.failed_ns = state.stamp_ns
    job.releases = 0
    job.provider_error = provider_error
    queue_index.queue.failed_total += 1
    data = _attempt_data(job.attempt)
    if 0 < len(error) <= EVENT_ERROR_SIZE_MAX:
        data += b',"error":' + error
    state.emit(queue_index, job, events.FAILED, data + b"}")
    remaining = max(0, job.max_retries - job.attempt)
    if job.cancel_requested_ns:
        finish.cancel(state, queue_index, job, states.CANCEL_ACKNOWLEDGED)
        return Failed(CANCELLED, 0, 0)
    if no_retry or remaining == 0:
        finish.die(state, queue_index, job, b'{"reason":"failed"}')
        return Failed(job.state, 0, 0)
    if finish.overdue(state, job):
        finish.expire(state, queue_index, job)
        return Failed(job.state, 0, 0)
    return _retry_later(state, queue_index, job, retry_after_ns, remaining)


def _retry_later(
    state: State, queue_index: QueueIndex, job: Job, retry_after_ns: int, remaining: int
) -> Failed:
    delay_ns = retry_after_ns
    if delay_ns < 0:
        delay = delay_ms(job.backoff, job.attempt, job.base_delay_ms, job.max_delay_ms)
        delay_ns = jittered_ns(delay, job.jitter_ppm, draw(state.seed, state.op_position))
    next_ns = min(state.stamp_ns + delay_ns, TIME_MAX_NS)
    finish.end_lease(job)
    if delay_ns == 0:
        state.move(queue_index, job, states.next_state(job.state, states.FAIL_AT_ONCE))
    else:
        job.scheduled_ns = next_ns
        state.move(queue_index, job, states.next_state(job.state, states.FAIL))
    data = b'{"attempts_remaining":%d,"next_attempt_ns":%d}' % (remaining, next_ns)
    state.emit(queue_index, job, events.RETRYING, data)
    return Failed(RETRYING, next_ns, remaining)


def heartbeat(state: State, payload: bytes) -> object:
    """Apply Heartbeat: return "ok", "cancel" or "lost" for each job."""
    beats: list[bytes]
    (beats,) = decode_fields(ops.HEARTBEAT.layout, payload)
    answers: dict[str, str] = {}
    # All are decoded first: an InvalidName refuses the op before it changes anything.
    for values in [decode_fields(ops.BEAT_LAYOUT, item) for item in beats]:
        job_id: str
        token: str
        progress: bytes
        checkpoint: bytes
        job_id, token, progress, checkpoint = values
        job = state.find(job_id)
        if job is None or leases.refusal(job, token, states.HEARTBEAT) is not None:
            answers[job_id] = "lost"
        else:
            answers[job_id] = leases.beat(
                state, state.queue_index_of(job), job, checkpoint, progress
            )
    return answers


def release(state: State, payload: bytes) -> object:
    """Apply Release: the worker returns the job, and the attempt does not count. The result is the
    new state."""
    job_id: str
    token: str
    delay_ns: int
    checkpoint: bytes
    undelivered: bool
    job_id, token, delay_ns, checkpoint, undelivered = decode_fields(ops.RELEASE.layout, payload)
    job = state.find(job_id)
    if job is None:
        return leases.not_found(job_id)
    refusal = leases.refusal(job, token, states.RELEASE)
    if refusal is not None:
        return refusal
    state.buffer.touch(job)
    queue_index = state.queue_index_of(job)
    if checkpoint:
        state.buffer.set_data(job, checkpoint, b"", b"")
    if undelivered and queue_index.window is not None:
        queue_index.window.undo_grant(job.started_ns)
        state.wake(queue_index)
    if job.cancel_requested_ns:
        finish.cancel(state, queue_index, job, states.CANCEL_ACKNOWLEDGED)
        return CANCELLED
    if finish.overdue(state, job):
        finish.expire(state, queue_index, job)
        return job.state
    job.attempt -= 1
    job.releases += 1
    delay_ns = max(delay_ns, release_delay_ns(job.releases))
    finish.end_lease(job)
    if delay_ns == 0:
        state.move(queue_index, job, states.next_state(job.state, states.RELEASE))
    else:
        job.scheduled_ns = min(state.stamp_ns + delay_ns, TIME_MAX_NS)
        job.keeps_position = True
        state.move(queue_index, job, states.next_state(job.state, states.POSTPONE))
    state.emit(queue_index, job, events.RELEASED, b"")
    return job.state


def release_delay_ns(releases: int) -> int:
    """Return the shortest delay after this many releases in a row without progress."""
    doublings = releases - RELEASES_IMMEDIATE - 1
    if doublings < 0:
        return 0
    return min(RELEASE_DELAY_MIN_NS << min(doublings, _DOUBLINGS_MAX), RELEASE_DELAY_MAX_NS)


APPLY: Final[dict[int, Apply]] = {
    ops.ENQUEUE.number: enqueue,
    ops.FETCH.number: fetch,
    ops.FETCH_BATCH.number: fetch_batch,
    ops.ACK.number: ack,
    ops.ACK_BATCH.number: ack_batch,
    ops.FAIL.number: fail,
    ops.HEARTBEAT.number: heartbeat,
    ops.RELEASE.number: release,
}

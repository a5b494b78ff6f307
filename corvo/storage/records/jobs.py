"""Records: the values of the rows of the state store, as bytes.

Each is the fields of a layout (`corvo._fast.codec.layouts`), in the order of the rows of
`corvo.records`. What the key says (job id, queue name, worker id) is not repeated. Times are unix
nanoseconds as `u`, where unset costs one byte; only those that a user can set past the year 2554
are `t`.

- *Job head*: queue position, state, attempt, times, lease, and at its end the data and the body,
  each unless it is large and has a row of its own. Most fields of a waiting job are zero and take
  one byte each.
- *Job body*: payload, tags, retry policy and all other fields that never change.
- *Job data*: checkpoint, progress, result.
- *Job options*: group, expiry, hold, batch, chain, dependencies. Most jobs have no such row; a flag
  in the head tells.
- *Queue*, *group*, *grant*: see `corvo.storage.records.queues`. *Log*, *log block*: see
  `corvo.storage.records.logs`. *Event block*: see `corvo.storage.records.events`.
- *Bulk operation*: see `corvo.storage.records.bulk`.
- *Worker*, *schedule*, *error record*, *unique lock*, *batch*: their fields.
- *Replay*: the digest of an idempotency key in 8 bytes, which the index in memory is rebuilt from,
  then the fields: stamp, full key, fingerprint of the request, outcome.

A record that cannot be decoded means a damaged state store: StorageError.
"""

from typing import Any, Final

from corvo import records
from corvo._fast.codec.fields import Reader, Writer
from corvo._fast.codec.layouts import CodecError, decode_fields, encode_fields
from corvo.errors import StorageError
from corvo.model import (
    Batch,
    ErrorRecord,
    Job,
    JobOptions,
    Schedule,
    Worker,
)
from corvo.records import layout

BODY_LAYOUT: Final = layout(records.JOB_BODY)
OPTIONS_LAYOUT: Final = layout(records.JOB_OPTIONS)
NEW_OPTIONS_LAYOUT: Final = layout(records.NEW_JOB_OPTIONS)
WORKER_LAYOUT: Final = layout(records.WORKER)
SCHEDULE_LAYOUT: Final = layout(records.SCHEDULE)
ERROR_LAYOUT: Final = layout(records.ERROR)
LOCK_LAYOUT: Final = layout(records.LOCK)
BATCH_LAYOUT: Final = layout(records.BATCH)
IDEMPOTENCY_LAYOUT: Final = layout(records.IDEMPOTENCY)
DIGEST_SIZE: Final = 8

_writer = Writer()
_part_writer = Writer()
_reader = Reader()


def decode_document(layout: str, data: bytes, what: str, name: str) -> tuple[Any, ...]:
    """Decode the fields of a record; `what` and `name` are for the error text."""
    try:
        return decode_fields(layout, data)
    except CodecError as error:
        raise StorageError(f"damaged {what} {name!r} in the state store: {error}") from None


def encode_body(job: Job) -> bytes:
    """Encode the fields of a job that never change."""
    _write_job_body(_part_writer, job)
    return _part_writer.done()


def _write_job_body(w: Writer, job: Job) -> None:
    w.begin()
    # <generated: write JOB_BODY job>
    w.b(job.payload)
    w.b(job.tags)
    w.u(job.max_retries)
    w.u(job.backoff)
    w.u(job.base_delay_ms)
    w.u(job.max_delay_ms)
    w.u(job.jitter_ppm)
    w.u(job.created_ns)
    w.s(job.parent_id)
    w.b(job.unique_key)
    w.u(job.unique_until)
    w.u(job.unique_period_ns)
    w.s(job.schedule_id)
    w.u(job.schedule_occurrence_ns)
    # </generated>


def encode_head(job: Job) -> bytes:
    """Encode the head of a job, with its data and body unless they have rows of their own."""
    w = _writer
    w.begin()
    # <generated: write JOB_HEAD job>
    w.u(job.queue_number)
    w.u(job.seq)
    w.u(job.priority)
    w.u(job.state)
    w.u(job.attempt)
    w.t(job.scheduled_ns)
    w.u(job.started_ns)
    w.u(job.completed_ns)
    w.u(job.failed_ns)
    w.u(job.cancel_requested_ns)
    w.u(job.lease_ns)
    w.u(job.lease_expires_ns)
    w.u(job.fencing)
    w.i(job.lease_seed)
    w.u(job.lease_term)
    w.f(job.lease_touched)
    w.u(job.releases)
    w.s(job.worker_id)
    w.s(job.hostname)
    w.u(job.error_count)
    w.u(job.event_seq)
    w.f(job.provider_error)
    w.f(job.keeps_position)
    w.u(job.ready_ns)
    w.f(job.has_options)
    w.f(job.data_apart)
    _write_data(w, job)
    _write_body(w, job)
    if job.returned_ns:  # format 2
        w.u(job.returned_ns)
    # </generated>
    return w.done()


def _write_data(w: Writer, job: Job) -> None:
    """The data inside the head."""
    if job.data_apart or not _has_data(job):
        w.b(b"")
    else:
        _write_job_data(_part_writer, job)
        w.w(_part_writer)


def _write_body(w: Writer, job: Job) -> None:
    """The body inside the head."""
    if job.body_apart:
        w.b(b"")
    else:
        _write_job_body(_part_writer, job)
        w.w(_part_writer)


def decode_head(job_id: str, data: bytes) -> Job:
    """Decode a job from its head row, with data and body unless they have rows of their own. Parts
    that are not in the row keep their defaults."""
    job = Job(job_id)
    try:
        inside, body = _read_head(job, data)
    except CodecError as error:
        raise StorageError(f"damaged job head {job_id!r} in the state store: {error}") from None
    if inside:
        decode_data(job, inside)
    job.body_apart = not body
    if body:
        decode_body(job, body)
    return job


def _read_head(job: Job, row: bytes) -> tuple[bytes, bytes]:
    r = _reader
    r.begin(row)
    # <generated: read JOB_HEAD job>
    job.queue_number = r.u()
    job.seq = r.u()
    job.priority = r.u()
    job.state = r.u()
    job.attempt = r.u()
    job.scheduled_ns = r.t()
    job.started_ns = r.u()
    job.completed_ns = r.u()
    job.failed_ns = r.u()
    job.cancel_requested_ns = r.u()
    job.lease_ns = r.u()
    job.lease_expires_ns = r.u()
    job.fencing = r.u()
    job.lease_seed = r.i()
    job.lease_term = r.u()
    job.lease_touched = r.f()
    job.releases = r.u()
    job.worker_id = r.s()
    job.hostname = r.s()
    job.error_count = r.u()
    job.event_seq = r.u()
    job.provider_error = r.f()
    job.keeps_position = r.f()
    job.ready_ns = r.u()
    job.has_options = r.f()
    job.data_apart = r.f()
    data = r.b()
    body = r.b()
    if r.more():  # format 2
        job.returned_ns = r.u()
    # </generated>
    r.done()
    return data, body


def decode_body(job: Job, data: bytes) -> None:
    """Decode the body into the job."""
    try:
        _read_body(job, data)
    except CodecError as error:
        raise StorageError(f"damaged job body {job.id!r} in the state store: {error}") from None


def _read_body(job: Job, data: bytes) -> None:
    r = _reader
    r.begin(data)
    # <generated: read JOB_BODY job>
    job.payload = r.b()
    job.tags = r.b()
    job.max_retries = r.u()
    job.backoff = r.u()
    job.base_delay_ms = r.u()
    job.max_delay_ms = r.u()
    job.jitter_ppm = r.u()
    job.created_ns = r.u()
    job.parent_id = r.s()
    job.unique_key = r.b()
    job.unique_until = r.u()
    job.unique_period_ns = r.u()
    job.schedule_id = r.s()
    job.schedule_occurrence_ns = r.u()
    # </generated>
    r.done()


def encode_data(job: Job) -> bytes:
    """Encode the data that the worker sent."""
    _write_job_data(_part_writer, job)
    return _part_writer.done()


def _has_data(job: Job) -> bool:
    return len(job.result) > 0 or len(job.checkpoint) > 0 or len(job.progress) > 0


def _write_job_data(w: Writer, job: Job) -> None:
    w.begin()
    # <generated: write JOB_DATA job>
    w.b(job.checkpoint)
    w.b(job.progress)
    w.b(job.result)
    # </generated>


def decode_data(job: Job, data: bytes) -> None:
    """Decode the data into the job."""
    try:
        _read_data(job, data)
    except CodecError as error:
        raise StorageError(f"damaged job data {job.id!r} in the state store: {error}") from None


def _read_data(job: Job, data: bytes) -> None:
    r = _reader
    r.begin(data)
    # <generated: read JOB_DATA job>
    job.checkpoint = r.b()
    job.progress = r.b()
    job.result = r.b()
    # </generated>
    r.done()


def encode_options(options: JobOptions) -> bytes:
    """Encode the options of a job."""
    return encode_fields(
        OPTIONS_LAYOUT,
        (
            # <generated: pack JOB_OPTIONS options>
            options.group_key,
            options.batch_id,
            options.chain_id,
            options.chain_step,
            options.chain,
            options.depends_on,
            options.on_dependency_failure,
            options.result_schema,
            options.expires_ns,
            options.hold_reason,
            options.hold_ends_ns,
            options.hold_action,
            options.feedback,
            options.open_dependencies,
            options.has_dependents,
            options.has_logs,
            # </generated>
        ),
    )


def decode_options(job_id: str, data: bytes) -> JobOptions:
    """Decode the options of a job."""
    options = JobOptions()
    (
        # <generated: unpack JOB_OPTIONS options>
        options.group_key,
        options.batch_id,
        options.chain_id,
        options.chain_step,
        options.chain,
        options.depends_on,
        options.on_dependency_failure,
        options.result_schema,
        options.expires_ns,
        options.hold_reason,
        options.hold_ends_ns,
        options.hold_action,
        options.feedback,
        options.open_dependencies,
        options.has_dependents,
        options.has_logs,
        # </generated>
    ) = decode_document(OPTIONS_LAYOUT, data, "job options", job_id)
    return options


def read_new_options(options: JobOptions, payload: bytes) -> tuple[int, bool, int]:
    """Decode the options of an Enqueue into those of a new job. Return those that are not stored
    unchanged: (expire_after_ns, hold, hold_timeout_ns)."""
    expire_after_ns: int
    hold: bool
    hold_timeout_ns: int
    (
        # <generated: unpack NEW_JOB_OPTIONS options>
        options.group_key,
        expire_after_ns,
        options.batch_id,
        options.chain_id,
        options.chain_step,
        options.chain,
        options.depends_on,
        options.on_dependency_failure,
        hold,
        options.hold_reason,
        hold_timeout_ns,
        options.hold_action,
        options.result_schema,
        # </generated>
    ) = decode_fields(NEW_OPTIONS_LAYOUT, payload)
    return expire_after_ns, hold, hold_timeout_ns


def encode_worker(worker: Worker) -> bytes:
    """Encode a worker."""
    return encode_fields(
        WORKER_LAYOUT,
        (
            # <generated: pack WORKER worker>
            worker.hostname,
            worker.queues,
            worker.started_ns,
            worker.seen_ns,
            # </generated>
        ),
    )


def decode_worker(worker_id: str, data: bytes) -> Worker:
    """Decode a worker."""
    worker = Worker(worker_id)
    try:
        _read_worker(worker, data)
    except CodecError as error:
        raise StorageError(f"damaged worker {worker_id!r} in the state store: {error}") from None
    return worker


def _read_worker(worker: Worker, data: bytes) -> None:
    r = _reader
    r.begin(data)
    # <generated: read WORKER worker>
    worker.hostname = r.s()
    worker.queues = r.texts()
    worker.started_ns = r.u()
    worker.seen_ns = r.u()
    # </generated>
    r.done()


def encode_schedule(schedule: Schedule) -> bytes:
    """Encode a schedule."""
    return encode_fields(
        SCHEDULE_LAYOUT,
        (
            # <generated: pack SCHEDULE schedule>
            schedule.revision,
            schedule.name,
            schedule.cron,
            schedule.timezone,
            schedule.job,
            schedule.enabled,
            schedule.overlap,
            schedule.catch_up,
            schedule.catch_up_limit,
            schedule.created_ns,
            schedule.next_ns,
            schedule.last_occurrence_ns,
            schedule.last_run_ns,
            schedule.last_job_id,
            # </generated>
        ),
    )


def decode_schedule(schedule_id: str, data: bytes) -> Schedule:
    """Decode a schedule."""
    schedule = Schedule(schedule_id)
    (
        # <generated: unpack SCHEDULE schedule>
        schedule.revision,
        schedule.name,
        schedule.cron,
        schedule.timezone,
        schedule.job,
        schedule.enabled,
        schedule.overlap,
        schedule.catch_up,
        schedule.catch_up_limit,
        schedule.created_ns,
        schedule.next_ns,
        schedule.last_occurrence_ns,
        schedule.last_run_ns,
        schedule.last_job_id,
        # </generated>
    ) = decode_document(SCHEDULE_LAYOUT, data, "schedule", schedule_id)
    return schedule


def encode_error(record: ErrorRecord) -> bytes:
    """Encode an error record."""
    return encode_fields(
        ERROR_LAYOUT,
        (
            # <generated: pack ERROR record>
            record.attempt,
            record.kind,
            record.error,
            record.backtrace,
            record.at_ns,
            # </generated>
        ),
    )


def decode_error(job_id: str, data: bytes) -> ErrorRecord:
    """Decode an error record of a job."""
    attempt, kind, error, backtrace, at_ns = decode_document(
        ERROR_LAYOUT, data, "error of job", job_id
    )
    return ErrorRecord(attempt, kind, error, backtrace, at_ns)


def encode_lock(job_id: str, expires_ns: int, key: bytes) -> bytes:
    """Encode a unique lock; `expires_ns` 0 = the mode alone decides when the lock ends."""
    return encode_fields(LOCK_LAYOUT, (job_id, expires_ns, key))


def decode_lock(data: bytes) -> tuple[str, int, bytes]:
    """Decode a unique lock into (job id, expires_ns, full key)."""
    job_id, expires_ns, key = decode_document(LOCK_LAYOUT, data, "unique lock", "")
    return job_id, expires_ns, key


def encode_batch(batch: Batch) -> bytes:
    """Encode a batch."""
    return encode_fields(
        BATCH_LAYOUT,
        (
            # <generated: pack BATCH batch>
            batch.on_success,
            batch.on_complete,
            batch.on_death,
            batch.created_ns,
            batch.finished_ns,
            batch.total,
            batch.pending,
            batch.succeeded,
            batch.failed,
            # </generated>
        ),
    )


def decode_batch(batch_id: str, data: bytes) -> Batch:
    """Decode a batch."""
    batch = Batch(batch_id)
    (
        # <generated: unpack BATCH batch>
        batch.on_success,
        batch.on_complete,
        batch.on_death,
        batch.created_ns,
        batch.finished_ns,
        batch.total,
        batch.pending,
        batch.succeeded,
        batch.failed,
        # </generated>
    ) = decode_document(BATCH_LAYOUT, data, "batch", batch_id)
    return batch


def encode_idempotency(
    digest: int, stamp_ns: int, key: bytes, fingerprint: bytes, outcome: bytes
) -> bytes:
    """Encode the outcome of a request with an idempotency key."""
    fields = encode_fields(IDEMPOTENCY_LAYOUT, (stamp_ns, key, fingerprint, outcome))
    return digest.to_bytes(DIGEST_SIZE, "big") + fields


def idempotency_digest(data: bytes) -> int:
    """Return the digest of the key in an idempotency record."""
    return int.from_bytes(data[:DIGEST_SIZE], "big")


def decode_idempotency(data: bytes) -> tuple[int, bytes, bytes, bytes]:
    """Decode an idempotency record into (stamp_ns, full key, fingerprint, outcome)."""
    stamp_ns, key, fingerprint, outcome = decode_document(
        IDEMPOTENCY_LAYOUT, data[DIGEST_SIZE:], "idempotency record", ""
    )
    return stamp_ns, key, fingerprint, outcome

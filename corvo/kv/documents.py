"""Documents: the values of the base's rows, as bytes.

Each is the fields of a layout (`corvo._fast.codec`), in the order of the tuples below. What the
key says (job id, queue name, worker id) is not repeated. Times are unix nanoseconds as `u`, where
unset costs one byte; only those that a user can set past the year 2554 are `t`.

- *Job head*: place, state, attempt, times, lease. Most fields of a waiting job are zero and take
  a byte each.
- *Job body*: payload, tags, retry policy and everything else that never changes.
- *Job data*: checkpoint, progress, result.
- *Job extras*: group, expiry, hold, batch, chain, dependencies; most jobs have no such row, and
  their head says so.
- *Log*: number of the next line, then its blocks by columns. *Log block*: lines as the op that
  brought them has them (`ops.LINE_LAYOUT`).
- *Queue*, *group*, *grant*: see `corvo.kv.queue_documents`.
- *Worker*, *schedule*, *task*, *error record*, *unique lock*, *batch*: their fields.
- *Task chunk*: job ids, and a byte for each that says what came of it (none before it is done).
- *Replay*: the digest of an idempotency key in 8 bytes, which the index in memory is rebuilt from,
  then the fields: stamp, full key, fingerprint of the request, outcome.
- *Event block*: the events of one log entry, by columns. They carry one time (the entry's stamp)
  and consecutive seqs, of which the key has the first. Queue names are stored once and referred
  to by position; ids are front-coded; the seq of the job's previous event is stored as distance
  (0 = none). A job event takes 8 to 30 bytes and its data.

A document that cannot be decoded means a damaged base: StorageError.
"""

from typing import Any, Final

from corvo._fast.codec import CodecError, decode_fields, encode_fields
from corvo.errors import StorageError
from corvo.feed import Change
from corvo.model import (
    OUTCOMES,
    Batch,
    ErrorRecord,
    Extras,
    Job,
    Log,
    LogBlock,
    Schedule,
    Task,
    Worker,
)

HEAD_LAYOUT: Final = "uuuuutuuuuuuuiufussuuffuf"
BODY_LAYOUT: Final = "bbuuuuuusbuusu"
DATA_LAYOUT: Final = "bbb"
EXTRAS_LAYOUT: Final = "sssibSubtstubSff"
LOG_LAYOUT: Final = "uuUUUUU"
WORKER_LAYOUT: Final = "sSuu"
SCHEDULE_LAYOUT: Final = "usssbfuuuuuuus"
TASK_LAYOUT: Final = "uuusubu" + "u" * len(OUTCOMES) + "uuUUubfuuuu"
CHUNK_LAYOUT: Final = "Sb"
ERROR_LAYOUT: Final = "uubbu"
LOCK_LAYOUT: Final = "stb"
BATCH_LAYOUT: Final = "bbbuuuuuu"
REPLAY_LAYOUT: Final = "ubbb"
DIGEST_SIZE: Final = 8
EVENTS_LAYOUT: Final = "uSUUPUB"


def decode_document(layout: str, data: bytes, what: str, name: str) -> tuple[Any, ...]:
    """The fields of a document."""
    try:
        return decode_fields(layout, data)
    except CodecError as error:
        raise StorageError(f"damaged {what} {name!r} in the base: {error}") from None


def encode_head(job: Job) -> bytes:
    """The job's head."""
    return encode_fields(
        HEAD_LAYOUT,
        (
            job.queue_number,
            job.seq,
            job.priority,
            job.state,
            job.attempt,
            job.scheduled_ns,
            job.started_ns,
            job.completed_ns,
            job.failed_ns,
            job.cancel_requested_ns,
            job.lease_ns,
            job.lease_expires_ns,
            job.fencing,
            job.lease_seed,
            job.lease_term,
            job.lease_touched,
            job.releases,
            job.worker_id,
            job.hostname,
            job.error_count,
            job.event_seq,
            job.provider_error,
            job.keeps_place,
            job.ready_ns,
            job.has_extras,
        ),
    )


def decode_head(job_id: str, data: bytes) -> Job:
    """A job with its head; body and data are at their defaults until they are read."""
    job = Job(job_id)
    (
        job.queue_number,
        job.seq,
        job.priority,
        job.state,
        job.attempt,
        job.scheduled_ns,
        job.started_ns,
        job.completed_ns,
        job.failed_ns,
        job.cancel_requested_ns,
        job.lease_ns,
        job.lease_expires_ns,
        job.fencing,
        job.lease_seed,
        job.lease_term,
        job.lease_touched,
        job.releases,
        job.worker_id,
        job.hostname,
        job.error_count,
        job.event_seq,
        job.provider_error,
        job.keeps_place,
        job.ready_ns,
        job.has_extras,
    ) = decode_document(HEAD_LAYOUT, data, "job head", job_id)
    return job


def encode_body(job: Job) -> bytes:
    """What the job was enqueued with."""
    return encode_fields(
        BODY_LAYOUT,
        (
            job.payload,
            job.tags,
            job.max_retries,
            job.backoff,
            job.base_delay_ms,
            job.max_delay_ms,
            job.jitter_ppm,
            job.created_ns,
            job.parent_id,
            job.unique_key,
            job.unique_until,
            job.unique_period_ns,
            job.schedule_id,
            job.schedule_slot_ns,
        ),
    )


def decode_body(job: Job, data: bytes) -> None:
    """Fill in the job's body."""
    (
        job.payload,
        job.tags,
        job.max_retries,
        job.backoff,
        job.base_delay_ms,
        job.max_delay_ms,
        job.jitter_ppm,
        job.created_ns,
        job.parent_id,
        job.unique_key,
        job.unique_until,
        job.unique_period_ns,
        job.schedule_id,
        job.schedule_slot_ns,
    ) = decode_document(BODY_LAYOUT, data, "job body", job.id)


def encode_data(job: Job) -> bytes:
    """What the job's worker sent; empty when that is nothing, and then there is no row."""
    if not (job.checkpoint or job.progress or job.result):
        return b""
    return encode_fields(DATA_LAYOUT, (job.checkpoint, job.progress, job.result))


def decode_data(job: Job, data: bytes) -> None:
    """Fill in the job's data."""
    job.checkpoint, job.progress, job.result = decode_document(
        DATA_LAYOUT, data, "job data", job.id
    )


def encode_extras(extras: Extras) -> bytes:
    """What only some jobs have."""
    return encode_fields(
        EXTRAS_LAYOUT,
        (
            extras.group_key,
            extras.batch_id,
            extras.chain_id,
            extras.chain_step,
            extras.chain,
            extras.depends_on,
            extras.on_dependency_failure,
            extras.result_schema,
            extras.expires_ns,
            extras.hold_reason,
            extras.hold_ends_ns,
            extras.hold_action,
            extras.feedback,
            extras.open_dependencies,
            extras.has_dependents,
            extras.has_logs,
        ),
    )


def decode_extras(job_id: str, data: bytes) -> Extras:
    """What this job has beyond the others."""
    extras = Extras()
    (
        extras.group_key,
        extras.batch_id,
        extras.chain_id,
        extras.chain_step,
        extras.chain,
        extras.depends_on,
        extras.on_dependency_failure,
        extras.result_schema,
        extras.expires_ns,
        extras.hold_reason,
        extras.hold_ends_ns,
        extras.hold_action,
        extras.feedback,
        extras.open_dependencies,
        extras.has_dependents,
        extras.has_logs,
    ) = decode_document(EXTRAS_LAYOUT, data, "job extras", job_id)
    return extras


def encode_log(log: Log) -> bytes:
    """What the blocks of log lines of a job add up to."""
    blocks = log.blocks
    return encode_fields(
        LOG_LAYOUT,
        (
            log.next_seq,
            log.dropped,
            [block.first_seq for block in blocks],
            [block.attempt for block in blocks],
            [block.count for block in blocks],
            [block.size for block in blocks],
            [block.dropped for block in blocks],
        ),
    )


def decode_log(job_id: str, data: bytes) -> Log:
    """The log of that job, without its lines."""
    log = Log()
    log.next_seq, log.dropped, *columns = decode_document(LOG_LAYOUT, data, "log of job", job_id)
    if len({len(column) for column in columns}) != 1:
        raise StorageError(f"damaged log of job {job_id!r} in the base: columns do not match")
    for first_seq, attempt, count, size, dropped in zip(*columns, strict=True):
        block = LogBlock(first_seq, attempt)
        block.count, block.size, block.dropped = count, size, dropped
        log.blocks.append(block)
    return log


def encode_log_block(lines: list[bytes]) -> bytes:
    """Log lines that were encoded by `ops.LINE_LAYOUT`."""
    return encode_fields("B", (lines,))


def decode_log_block(job_id: str, data: bytes) -> list[bytes]:
    """Encoded log lines of that job."""
    lines: list[bytes] = decode_document("B", data, "log block of job", job_id)[0]
    return lines


def encode_worker(worker: Worker) -> bytes:
    """The worker's row."""
    return encode_fields(
        WORKER_LAYOUT, (worker.hostname, worker.queues, worker.started_ns, worker.seen_ns)
    )


def decode_worker(worker_id: str, data: bytes) -> Worker:
    """The worker of that id."""
    worker = Worker(worker_id)
    worker.hostname, worker.queues, worker.started_ns, worker.seen_ns = decode_document(
        WORKER_LAYOUT, data, "worker", worker_id
    )
    return worker


def encode_schedule(schedule: Schedule) -> bytes:
    """The schedule's row."""
    return encode_fields(
        SCHEDULE_LAYOUT,
        (
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
            schedule.last_slot_ns,
            schedule.last_run_ns,
            schedule.last_job_id,
        ),
    )


def decode_schedule(schedule_id: str, data: bytes) -> Schedule:
    """The schedule of that id."""
    schedule = Schedule(schedule_id)
    (
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
        schedule.last_slot_ns,
        schedule.last_run_ns,
        schedule.last_job_id,
    ) = decode_document(SCHEDULE_LAYOUT, data, "schedule", schedule_id)
    return schedule


def encode_task(task: Task) -> bytes:
    """The task's row."""
    return encode_fields(
        TASK_LAYOUT,
        (
            task.kind,
            task.state,
            task.queue_number,
            task.queue,
            task.action,
            task.arguments,
            task.total,
            *task.counts,
            task.next_chunk,
            task.chunks,
            task.cut_numbers,
            task.cut_seqs,
            task.family,
            task.cursor,
            task.stirred,
            task.rounds,
            task.created_ns,
            task.updated_ns,
            task.finished_ns,
        ),
    )


def decode_task(task_id: str, data: bytes) -> Task:
    """The task of that id."""
    values = decode_document(TASK_LAYOUT, data, "task", task_id)
    task = Task(task_id, values[0])
    (
        task.state,
        task.queue_number,
        task.queue,
        task.action,
        task.arguments,
        task.total,
    ) = values[1:7]
    task.counts = list(values[7 : 7 + len(OUTCOMES)])
    (
        task.next_chunk,
        task.chunks,
        task.cut_numbers,
        task.cut_seqs,
        task.family,
        task.cursor,
        task.stirred,
        task.rounds,
        task.created_ns,
        task.updated_ns,
        task.finished_ns,
    ) = values[7 + len(OUTCOMES) :]
    return task


def encode_chunk(ids: list[str], outcomes: bytes) -> bytes:
    """Some of the jobs of a task."""
    return encode_fields(CHUNK_LAYOUT, (ids, outcomes))


def decode_chunk(data: bytes) -> tuple[list[str], bytes]:
    """(job ids, outcomes)"""
    ids, outcomes = decode_document(CHUNK_LAYOUT, data, "task chunk", "")
    return ids, outcomes


def encode_error(record: ErrorRecord) -> bytes:
    """One failed attempt."""
    return encode_fields(
        ERROR_LAYOUT, (record.attempt, record.kind, record.error, record.backtrace, record.at_ns)
    )


def decode_error(job_id: str, data: bytes) -> ErrorRecord:
    """One failed attempt of that job."""
    attempt, kind, error, backtrace, at_ns = decode_document(
        ERROR_LAYOUT, data, "error of job", job_id
    )
    return ErrorRecord(attempt, kind, error, backtrace, at_ns)


def encode_lock(job_id: str, expires_ns: int, key: bytes) -> bytes:
    """A unique lock; `expires_ns` 0 = it lives as long as its job says."""
    return encode_fields(LOCK_LAYOUT, (job_id, expires_ns, key))


def decode_lock(data: bytes) -> tuple[str, int, bytes]:
    """(job id, expires_ns, full key)"""
    job_id, expires_ns, key = decode_document(LOCK_LAYOUT, data, "unique lock", "")
    return job_id, expires_ns, key


def encode_batch(batch: Batch) -> bytes:
    """The batch's row."""
    return encode_fields(
        BATCH_LAYOUT,
        (
            batch.on_success,
            batch.on_complete,
            batch.on_death,
            batch.created_ns,
            batch.finished_ns,
            batch.total,
            batch.pending,
            batch.succeeded,
            batch.failed,
        ),
    )


def decode_batch(batch_id: str, data: bytes) -> Batch:
    """The batch of that id."""
    batch = Batch(batch_id)
    (
        batch.on_success,
        batch.on_complete,
        batch.on_death,
        batch.created_ns,
        batch.finished_ns,
        batch.total,
        batch.pending,
        batch.succeeded,
        batch.failed,
    ) = decode_document(BATCH_LAYOUT, data, "batch", batch_id)
    return batch


def encode_replay(
    digest: int, stamp_ns: int, key: bytes, fingerprint: bytes, outcome: bytes
) -> bytes:
    """What became of a request with an idempotency key."""
    fields = encode_fields(REPLAY_LAYOUT, (stamp_ns, key, fingerprint, outcome))
    return digest.to_bytes(DIGEST_SIZE, "big") + fields


def replay_digest(data: bytes) -> int:
    """The digest of the key of such a request."""
    return int.from_bytes(data[:DIGEST_SIZE], "big")


def decode_replay(data: bytes) -> tuple[int, bytes, bytes, bytes]:
    """(stamp_ns, full key, fingerprint, outcome)"""
    stamp_ns, key, fingerprint, outcome = decode_document(
        REPLAY_LAYOUT, data[DIGEST_SIZE:], "replay", ""
    )
    return stamp_ns, key, fingerprint, outcome


def encode_events(changes: list[Change]) -> bytes:
    """The changes of one entry as an event block; they have one time and consecutive seqs."""
    queues: dict[str, int] = {}
    types: list[int] = []
    positions: list[int] = []
    ids: list[str] = []
    distances: list[int] = []
    data: list[bytes] = []
    first = changes[0]
    seq = first.seq
    for change in changes:
        assert change.seq == seq and change.at_ns == first.at_ns
        types.append(change.type)
        positions.append(queues.setdefault(change.queue, len(queues)))
        ids.append(change.job_id)
        distances.append(seq - change.previous if change.previous else 0)
        data.append(change.data)
        seq += 1
    return encode_fields(
        EVENTS_LAYOUT, (first.at_ns, list(queues), types, positions, ids, distances, data)
    )


def _event(first_seq: int, columns: tuple[Any, ...], i: int) -> Change:
    at_ns, queues, types, positions, ids, distances, data = columns
    seq = first_seq + i
    distance: int = distances[i]
    return Change(
        seq,
        types[i],
        ids[i],
        queues[positions[i]],
        at_ns,
        data[i],
        seq - distance if distance else 0,
    )


def _columns(first_seq: int, block: bytes) -> tuple[Any, ...]:
    columns = decode_document(EVENTS_LAYOUT, block, "event block", str(first_seq))
    lengths = [len(column) for column in columns[2:]]
    if min(lengths) != max(lengths) or max(columns[3], default=0) >= len(columns[1]):
        raise StorageError(f"damaged event block '{first_seq}' in the base: columns do not match")
    return columns


def decode_events(first_seq: int, block: bytes, after: int = 0, limit: int = 0) -> list[Change]:
    """The events of the block whose key has `first_seq`: those with a seq above `after`, and no
    more than `limit` of them (0 = all)."""
    columns = _columns(first_seq, block)
    start = max(0, after + 1 - first_seq)
    end = min(len(columns[2]), start + limit) if limit else len(columns[2])
    return [_event(first_seq, columns, i) for i in range(start, end)]


def decode_event(first_seq: int, block: bytes, seq: int) -> Change | None:
    """The event of that seq, None when it is not in this block."""
    columns = _columns(first_seq, block)
    i = seq - first_seq
    return _event(first_seq, columns, i) if 0 <= i < len(columns[2]) else None

"""Conversion of state-store records to rows of the mirror tables."""

import functools
import json
from collections.abc import Iterable
from typing import Any, Final

from corvo._fast.codec.keys import parse_unique
from corvo.limits import DUE_MAX_NS, MS_NS
from corvo.mirror.texts import decode_escapes, decode_text, replace_surrogates
from corvo.model import (
    BACKOFFS,
    ERROR_KINDS,
    HELD,
    STATES,
    UNIQUE_UNTIL,
    Batch,
    ErrorRecord,
    Job,
    JobOptions,
    Queue,
    Schedule,
    Worker,
)

Values = tuple[Any, ...]

_NO_OPTIONS: Final = JobOptions()
_NO_REST: Final = (None,) * 8
_TAGS_KEPT: Final = 4_096


def _time(at_ns: int) -> int | None:
    return min(at_ns, DUE_MAX_NS) or None


def tags_of(job: Job) -> dict[str, str]:
    """The tags of a job; of duplicate keys the last one counts."""
    return tags_in(job.tags.decode())


@functools.lru_cache(maxsize=_TAGS_KEPT)
def tags_in(text: str) -> dict[str, str]:
    """Decode tags; the result is cached and shared by jobs with the same tags, so it is
    read-only."""
    return {
        replace_surrogates(key): replace_surrogates(value)
        for key, value in json.loads(text).items()
    }


def json_list(values: Iterable[int | str]) -> str:
    """Encode a list for json_each in a statement."""
    return json.dumps(list(values))


def new_values(job: Job, queue: str) -> tuple[int, list[object]]:
    """The shape and the values of a new row of jobs.

    The values are schema.REQUIRED (with number 0), then the columns of schema.OPTIONAL whose bit is
    set in the shape; empty columns are left out."""
    values: list[object] = [
        0,
        job.id,
        job.payload.decode(),
        job.max_retries,
        BACKOFFS[job.backoff],
        job.base_delay_ms,
        job.max_delay_ms,
        min(job.created_ns, DUE_MAX_NS),
        queue,
        job.queue_number,
        job.seq,
        STATES[job.state],
        job.priority,
        job.attempt,
        job.error_count,
        job.event_seq,
    ]
    shape = 0
    bit = 1
    for value in (
        job.unique_key,
        job.tags,
        job.progress,
        job.checkpoint,
        job.result,
    ):
        if value:
            values.append(value.decode())
            shape |= bit
        bit += bit
    for word in (job.parent_id, job.schedule_id, job.worker_id, job.hostname):
        if word:
            values.append(word)
            shape |= bit
        bit += bit
    for at_ns in (
        job.lease_expires_ns,
        job.scheduled_ns,
        job.started_ns,
        job.completed_ns,
        job.failed_ns,
    ):
        if at_ns:
            values.append(min(at_ns, DUE_MAX_NS))
            shape |= bit
        bit += bit
    rest: tuple[object, ...] = _NO_REST
    if job.options is not None or job.unique_key or job.provider_error:
        rest = _rest_of(job)
    for item in rest:
        if item:
            values.append(item)
            shape |= bit
        bit += bit
    for text in (job.payload, job.tags):
        if b"\\" in text:
            values.append(decode_escapes(text.decode()))
            shape |= bit
        bit += bit
    return shape, values


def _rest_of(job: Job) -> tuple[object, ...]:
    """The last columns of schema.OPTIONAL, which few jobs have."""
    options = job.options or _NO_OPTIONS
    return (
        UNIQUE_UNTIL[job.unique_until] if job.unique_key else "",
        int(job.provider_error),
        options.batch_id,
        options.chain_id,
        options.chain_step,
        options.group_key,
        options.hold_reason if job.state == HELD else "",
        min(options.expires_ns, DUE_MAX_NS),
    )


def changing_values(job: Job, queue: str) -> Values:
    """The values of the columns in schema.CHANGING."""
    options = job.options or _NO_OPTIONS
    return (
        queue,
        job.queue_number,
        job.seq,
        STATES[job.state],
        job.priority,
        job.attempt,
        job.worker_id,
        job.hostname,
        job.progress.decode(),
        job.checkpoint.decode(),
        job.result.decode(),
        int(job.provider_error),
        options.hold_reason if job.state == HELD else "",
        min(job.lease_expires_ns, DUE_MAX_NS),
        min(job.scheduled_ns, DUE_MAX_NS),
        min(options.expires_ns, DUE_MAX_NS),
        min(job.started_ns, DUE_MAX_NS),
        min(job.completed_ns, DUE_MAX_NS),
        min(job.failed_ns, DUE_MAX_NS),
        job.error_count,
        job.event_seq,
    )


def error_values(number: int, bucket: int, job_id: str, record: ErrorRecord) -> Values:
    """A row of job_errors."""
    return (
        number,
        bucket,
        job_id,
        record.attempt,
        ERROR_KINDS[record.kind],
        decode_text(record.error),
        decode_text(record.backtrace) or None,
        min(record.at_ns, DUE_MAX_NS),
    )


def queue_values(row_name: str, queue: Queue) -> Values:
    """A row of queues."""
    return (
        row_name,
        queue.number,
        queue.name,
        queue.paused,
        queue.max_concurrency or None,
        queue.rate_limit or None,
        queue.rate_window_ns // MS_NS or None,
        queue.cleared_seq,
        queue.destroyed,
        min(queue.created_ns, DUE_MAX_NS),
    )


def lock_values(key: bytes, queue: str, lock: tuple[str, int, bytes]) -> Values:
    """A row of unique_locks."""
    job_id, expires_ns, full_key = lock
    return key, queue, full_key.decode(), job_id, _time(expires_ns)


def lock_queue(key: bytes) -> int:
    """The queue number in the key of a unique lock."""
    number: int = parse_unique(key)[0]
    return number


def batch_values(batch: Batch) -> Values:
    """A row of batches."""
    return (
        batch.id,
        batch.total,
        batch.pending,
        batch.succeeded,
        batch.failed,
        min(batch.created_ns, DUE_MAX_NS),
        _time(batch.finished_ns),
    )


def worker_values(worker: Worker) -> Values:
    """A row of workers."""
    queues = json.dumps(worker.queues, ensure_ascii=False)
    return worker.id, worker.hostname or None, queues, worker.seen_ns, worker.started_ns


def schedule_values(schedule: Schedule) -> Values:
    """A row of schedules."""
    return (
        schedule.id,
        schedule.name,
        schedule.cron,
        schedule.timezone,
        schedule.enabled,
        _time(schedule.last_run_ns),
        _time(schedule.next_ns),
        min(schedule.created_ns, DUE_MAX_NS),
    )

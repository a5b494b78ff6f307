"""JSON of jobs, queues, schedules and events, as the API shows them.

Payloads, results, checkpoints, progress and error texts go out as the bytes that came in.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw

from corvo import events, limits, ops
from corvo._fast.codec.fields import Writer
from corvo._fast.codec.layouts import decode_fields
from corvo._fast.http.exchange import Request, header_line
from corvo.engine.reads import UNDOABLE, Group, Reads
from corvo.events import EVENT_TYPES, Event
from corvo.limits import (
    BULK_UNDO_NS,
    DUE_MAX_NS,
    MS_NS,
    SECOND_NS,
    WORKER_OFFLINE_NS,
    WORKER_STALE_NS,
)
from corvo.model import (
    ACTIONS,
    ACTIVE,
    BACKOFFS,
    BULK,
    CATCH_UPS,
    COMPLETED,
    CONFLICT,
    DEAD,
    DONE,
    END_STATES,
    ERROR_KINDS,
    HELD,
    HOLD_ACTIONS,
    KEEP_DEFAULT,
    LOG_LEVELS,
    OPERATION_KINDS,
    OPERATION_STATES,
    OVERLAPS,
    PRIORITIES,
    PRIORITY_NAMES,
    SKIPPED,
    STATES,
    UNIQUE_UNTIL,
    BulkOperation,
    ErrorRecord,
    Fetched,
    Job,
    JobOptions,
    LogLine,
    Queue,
    Schedule,
    UniqueLock,
    Worker,
)
from corvo.net.api.relations import ties_document
from corvo.platform import cron
from corvo.platform.durations import format_duration, format_time
from corvo.records import JOB_BODY, JOB_DATA, JOB_HEAD, JOB_OPTIONS, Field, named

_ENCODE = msgspec.json.Encoder().encode
_SECOND_NS = SECOND_NS
_SHOWN = [field for field in (*JOB_BODY, *JOB_HEAD, *JOB_DATA) if field.json]
_SHOWN_OPTIONS = [field for field in JOB_OPTIONS if field.json]
_writer = Writer()


def reply_json(request: Request, status: int, document: Any) -> None:
    """Answer with a document."""
    request.reply(status, _ENCODE(document))


def reply_array(request: Request, documents: list[dict[str, Any]], following: str) -> None:
    """Answer with a page that is an array. `following` is the query of the next page, or empty;
    the header Link (RFC 8288) leads to it."""
    headers = b""
    if following:
        headers = header_line("Link", f'<{request.route.pattern}?{following}>; rel="next"')
    request.reply(200, _ENCODE(documents), headers)


def fetched_document(job: Fetched) -> bytes:
    """A delivered job, as fetch answers it."""
    w = _writer
    w.begin_text()
    w.raw(b'{"job_id":"')
    w.text(job.job_id)
    w.raw(b'","queue":')
    w.raw(_ENCODE(job.queue))
    w.raw(b',"payload":')
    w.raw(job.payload)
    w.raw(b',"attempt":')
    w.decimal(job.attempt)
    w.raw(b',"max_retries":')
    w.decimal(job.max_retries)
    w.raw(b',"lease_duration":')
    w.decimal(job.lease_ns // _SECOND_NS)
    w.raw(b',"fencing":')
    w.decimal(job.fencing)
    w.raw(b',"lease_token":"')
    w.text(job.token)
    w.raw(b'"')
    if job.checkpoint:
        w.raw(b',"checkpoint":')
        w.raw(job.checkpoint)
    if job.tags:
        w.raw(b',"tags":')
        w.raw(job.tags)
    if job.feedback:
        w.raw(b',"feedback":')
        w.raw(job.feedback)
    if job.schedule_id:
        w.raw(b',"schedule_id":')
        w.raw(_ENCODE(job.schedule_id))
        if job.schedule_occurrence_ns:
            w.raw(b',"schedule_slot":"%b"' % format_time(job.schedule_occurrence_ns).encode())
    if job.result_schema:
        w.raw(b',"result_schema":')
        w.raw(job.result_schema)
    w.raw(b"}")
    return w.done()


def job_document(reads: Reads, job: Job) -> dict[str, Any]:
    """The whole job, errors included."""
    document: dict[str, Any] = {
        "id": job.id,
        "queue": reads.queue_of(job).name,
        "state": STATES[job.state],
        "payload": Raw(job.payload),
        "priority": job.priority,
        "priority_name": PRIORITY_NAMES[job.priority],
        "attempt": job.attempt,
        "max_retries": job.max_retries,
        "retry_backoff": BACKOFFS[job.backoff],
        "retry_base_delay_ms": job.base_delay_ms,
        "retry_max_delay_ms": job.max_delay_ms,
        "retry_jitter": job.jitter_ppm / 1_000_000,
    }
    if job.unique_key:
        document["unique_key"] = job.unique_key.decode()
        document["unique_until"] = UNIQUE_UNTIL[job.unique_until]
    if job.options is not None and job.options.group_key:
        document["group_key"] = job.options.group_key
    if job.parent_id:
        document["parent_id"] = job.parent_id
    document |= ties_document(reads, job)
    if job.schedule_id:
        document["schedule_id"] = job.schedule_id
        if job.schedule_occurrence_ns:
            document["schedule_slot"] = format_time(job.schedule_occurrence_ns)
    if job.state == ACTIVE:
        document["worker_id"] = job.worker_id
        if job.hostname:
            document["hostname"] = job.hostname
        document["fencing"] = job.fencing
    for name, value in (
        ("tags", job.tags),
        ("progress", job.progress),
        ("checkpoint", job.checkpoint),
        ("result", job.result),
    ):
        if value:
            document[name] = Raw(value)
    _show(document, job, _SHOWN)
    for name, at_ns in (
        ("lease_expires_at", job.lease_expires_ns if job.state == ACTIVE else 0),
        ("scheduled_at", job.scheduled_ns),
        ("started_at", job.started_ns),
        ("completed_at", job.completed_ns),
        ("failed_at", job.failed_ns),
        ("cancel_requested_at", job.cancel_requested_ns),
        ("created_at", job.created_ns),
    ):
        if at_ns:
            document[name] = format_time(at_ns)
    if job.options is not None:
        _add_options(document, job, job.options)
    if job.error_count:
        document["error_count"] = job.error_count
        document["errors"] = error_documents(reads, job, limits.PAGE_DEFAULT, 0)
    return document


def _add_options(document: dict[str, Any], job: Job, options: JobOptions) -> None:
    """Add the optional members of a job."""
    if options.expires_ns:
        document["expire_at"] = format_time(options.expires_ns)
    if job.state == HELD:
        document["hold_reason"] = options.hold_reason
        if options.hold_ends_ns:
            document["hold_timeout_at"] = format_time(options.hold_ends_ns)
            document["hold_timeout_action"] = HOLD_ACTIONS[options.hold_action]
    if options.feedback:
        document["feedback"] = Raw(options.feedback)
    _show(document, options, _SHOWN_OPTIONS)


def _show(document: dict[str, Any], source: Any, fields: list[Field]) -> None:
    """Fields that have a member of their own and are set."""
    for field in fields:
        value = getattr(source, field.name)
        if value:
            if field.kind == "b":
                value = Raw(value)
            elif field.kind == "t":
                value = format_time(value)
            document[field.json] = value


def outcome(reads: Reads, job: Job) -> dict[str, Any]:
    """The outcome of a job: its result, or its last error."""
    if job.state == COMPLETED:
        return {"result": Raw(job.result)} if job.result else {}
    errors = reads.errors(job.id, 1)
    return {"last_error": Raw(errors[0].error or b'""')} if errors else {}


def error_documents(reads: Reads, job: Job, limit: int, before: int) -> list[dict[str, Any]]:
    """The newest error records of a job, the oldest of them first, or those in front of the one
    with the number `before`, as many as fit a page."""
    records = reads.errors(job.id, limit, limits.PAGE_SIZE_MAX, before)
    end = min(before, job.error_count + 1) if before else job.error_count + 1
    first = end - len(records)
    return [_error_document(job.id, number, row) for number, row in enumerate(records, first)]


def _error_document(job_id: str, number: int, record: ErrorRecord) -> dict[str, Any]:
    at = format_time(record.at_ns)
    document: dict[str, Any] = {
        "id": number,
        "job_id": job_id,
        "attempt": record.attempt,
        "kind": ERROR_KINDS[record.kind],
        "error": Raw(record.error or b'""'),
        "at": at,
        "created_at": at,
    }
    if record.backtrace:
        document["backtrace"] = Raw(record.backtrace)
    return document


def schedule_summary(schedule: Schedule) -> dict[str, Any]:
    """One schedule, as the list shows it."""
    job = named(ops.ENQUEUE.fields, decode_fields(ops.ENQUEUE.layout, schedule.job))
    document: dict[str, Any] = {
        "id": schedule.id,
        "name": schedule.name,
        "queue": job["queue"],
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "enabled": schedule.enabled,
        "overlap": OVERLAPS[schedule.overlap],
        "catch_up": CATCH_UPS[schedule.catch_up],
        "catch_up_limit": schedule.catch_up_limit,
        "payload": Raw(job["payload"]),
        "priority": job["priority"],
        "priority_name": PRIORITY_NAMES[job["priority"]],
        "max_retries": job["max_retries"],
        "retry_backoff": BACKOFFS[job["backoff"]],
        "retry_base_delay_ms": job["base_delay_ms"],
        "retry_max_delay_ms": job["max_delay_ms"],
        "retry_jitter": job["jitter_ppm"] / 1_000_000,
    }
    if job["tags"]:
        document["tags"] = Raw(job["tags"])
    if job["unique_key"]:
        document["unique_key"] = job["unique_key"].decode()
        document["unique_until"] = UNIQUE_UNTIL[job["unique_until"]]
        if job["unique_period_ns"]:
            document["unique_period"] = format_duration(job["unique_period_ns"])
    for name, at_ns in (
        ("next_run", schedule.next_ns),
        ("last_run", schedule.last_run_ns),
        ("last_slot", schedule.last_occurrence_ns),
        ("created_at", schedule.created_ns),
    ):
        if at_ns:
            document[name] = format_time(at_ns)
    if schedule.last_job_id:
        document["last_job_id"] = schedule.last_job_id
    return document


def schedule_document(reads: Reads, schedule: Schedule, now_ns: int) -> dict[str, Any]:
    """One schedule with its meaning in words and its next runs. A disabled one has those that it
    would have."""
    document = schedule_summary(schedule)
    if "unique_key" in document:
        lock = reads.unique_lock(document["queue"], document["unique_key"].encode())
        if lock is not None:
            document["blocked_by"] = _blocked_by(lock)
    expression = cron.parse(schedule.cron, schedule.timezone)
    document["description"] = expression.explanation
    runs: list[int] = []
    if schedule.next_ns:
        following = islice(expression.after(schedule.next_ns), limits.NEXT_RUNS - 1)
        runs = [schedule.next_ns, *following]
    elif not schedule.enabled:
        runs = [*islice(expression.after(now_ns), limits.NEXT_RUNS)]
    document["next_runs"] = [format_time(run_ns) for run_ns in runs]
    return document


def _blocked_by(lock: UniqueLock) -> dict[str, Any]:
    """The job whose unique key stops a schedule from enqueueing another one."""
    holder = lock.holder
    state = STATES[holder.state]
    blocked: dict[str, Any] = {
        "job_id": holder.id,
        "state": state,
        "unique_key": lock.key.decode(),
        "message": f"runs are skipped: job {holder.id} ({state}) holds the unique key",
    }
    if lock.expires_ns:
        blocked["expires_at"] = format_time(lock.expires_ns)
    if holder.state == DEAD:
        blocked["next"] = "retry or delete that job, or release the key: POST /locks/release"
    return blocked


def event_document(event: Event) -> dict[str, Any]:
    """One event of the event log."""
    document: dict[str, Any] = {
        "seq": event.seq,
        "id": event.seq,
        "type": EVENT_TYPES[event.type],
    }
    if event.job_id:
        document["job_id"] = event.job_id
    document["queue"] = event.queue
    document["at_ns"] = event.at_ns
    document["created_at"] = format_time(event.at_ns)
    if event.data:
        document["data"] = Raw(event_data(event))
    return document


def event_data(event: Event) -> bytes:
    """The data of an event; the event log has a time in it as a number."""
    if event.type != events.RETRYING:
        return event.data
    data = msgspec.json.decode(event.data)
    data["next_attempt_at"] = format_time(data.pop("next_attempt_ns"))
    return msgspec.json.encode(data)


def past_documents(reads: Reads, job: Job, before_ns: int) -> list[dict[str, Any]]:
    """Events rebuilt from the job itself for the time that was trimmed from the event log: its
    creation and its failures."""
    failures = [
        ("failed", record.at_ns, {"attempt": record.attempt, "kind": ERROR_KINDS[record.kind]})
        for record in reads.errors(job.id, limits.PAGE_DEFAULT, limits.PAGE_SIZE_MAX)
        if record.at_ns < before_ns
    ]
    return [
        {
            "type": type_,
            "job_id": job.id,
            "queue": reads.queue_of(job).name,
            "at_ns": at_ns,
            "created_at": format_time(at_ns),
            "data": data,
            "reconstructed": True,
        }
        for type_, at_ns, data in [("enqueued", job.created_ns, {}), *failures]
    ]


def log_line_document(line: LogLine) -> dict[str, Any]:
    """One log line."""
    return {
        "seq": line.seq,
        "attempt": line.attempt,
        "at": format_time(line.at_ns),
        "level": LOG_LEVELS[line.level],
        "message": Raw(line.message),
    }


def lock_document(lock: UniqueLock) -> dict[str, Any]:
    """One unique key that is held."""
    holder = lock.holder
    document: dict[str, Any] = {
        "queue": lock.queue,
        "unique_key": lock.key.decode(),
        "job_id": holder.id,
        "state": STATES[holder.state],
        "unique_until": UNIQUE_UNTIL[holder.unique_until],
    }
    if lock.expires_ns:
        document["expires_at"] = format_time(lock.expires_ns)
    return document


def queue_document(reads: Reads, queue: Queue, now_ns: int) -> dict[str, Any]:
    """One queue with its counters; nothing is counted here."""
    document: dict[str, Any] = {"name": queue.name, "paused": queue.paused}
    if queue.max_concurrency:
        document["max_concurrency"] = queue.max_concurrency
    if queue.draining:
        document["draining"] = True
    if queue.cleared_seq:
        document["clearing"] = True
    retention = {
        STATES[state]: "forever" if keep_ns == DUE_MAX_NS else format_duration(keep_ns)
        for state, keep_ns in zip(END_STATES, queue.retention_ns, strict=True)
        if keep_ns != KEEP_DEFAULT
    }
    if retention:
        document["retention"] = retention
    _add_flow(document, reads, queue, now_ns)
    document["created_at"] = format_time(queue.created_ns)
    document |= {name: queue.jobs(state) for state, name in enumerate(STATES)}
    document["blocked"] = reads.blocked_count(queue.name)
    document["enqueued"] = queue.enqueued_total
    document["failed"] = queue.failed_total
    document["completed_total"] = queue.completed_total
    document["dead_total"] = queue.dead_total
    document["lease_expired_total"] = queue.expired_total
    oldest = [
        ready_ns
        for priority in range(PRIORITIES)
        if (ready_ns := reads.oldest_ready_ns(queue.name, priority))
    ]
    if oldest:
        document["oldest_pending_at"] = format_time(min(oldest))
    return document


def operation_document(operation: BulkOperation) -> dict[str, Any]:
    """A bulk operation and its progress."""
    document: dict[str, Any] = {
        "id": operation.id,
        "status": OPERATION_STATES[operation.state],
        "action": ACTIONS[operation.action]
        if operation.kind == BULK
        else OPERATION_KINDS[operation.kind],
    }
    if operation.queue:
        document["queue"] = operation.queue
    document["total"] = operation.total
    document["processed"] = operation.processed()
    document |= operation_counts(operation)
    document["created_at"] = format_time(operation.created_ns)
    document["updated_at"] = format_time(operation.updated_ns)
    if operation.finished_ns:
        document["finished_at"] = format_time(operation.finished_ns)
    if operation.undoes:
        document["undoes"] = operation.undoes
    if operation.undone_by:
        document["undone_by"] = operation.undone_by
    elif (
        operation.kind == BULK
        and operation.action in UNDOABLE
        and operation.finished_ns
        and not operation.undoes
    ):
        document["undo_until"] = format_time(operation.finished_ns + BULK_UNDO_NS)
    return document


def operation_counts(operation: BulkOperation) -> dict[str, int]:
    """Outcomes of the jobs of a bulk operation so far."""
    done, skipped, conflicts = (operation.counts[kind] for kind in (DONE, SKIPPED, CONFLICT))
    return {"affected": done, "skipped": skipped, "conflicts": conflicts, "errors": 0}


def _add_flow(document: dict[str, Any], reads: Reads, queue: Queue, now_ns: int) -> None:
    """Add the rate limit, groups and aging of a queue."""
    if queue.rate_limit:
        document["rate_limit"] = queue.rate_limit
        document["rate_window_ms"] = queue.rate_window_ns // MS_NS
        document["rate_used"] = reads.rate_used(queue.name, now_ns)
        opens_ns = reads.opens_ns(queue.name, now_ns)
        if opens_ns:
            document["rate_opens_at"] = format_time(opens_ns)
    if queue.group_concurrency:
        document["group_concurrency"] = queue.group_concurrency
    if queue.aging_after_ns:
        seconds, rest_ns = divmod(queue.aging_after_ns, SECOND_NS)
        document["aging_after"] = seconds + rest_ns / SECOND_NS if rest_ns else seconds
    groups, blocked = reads.group_counts(queue.name)
    if groups:
        document["groups"] = groups
        document["group_blocked"] = blocked


def group_document(group: Group) -> dict[str, Any]:
    """One group of a queue."""
    return {
        "group_key": group.key,
        "ready": len(group.ready),
        "active": len(group.active),
        "waiting": len(group.waiting) + len(group.postponed),
        "blocked": len(group.ready) > 0 and group.open == 0,
    }


def worker_document(
    worker: Worker, now_ns: int, active: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """One worker as it last showed itself; `active` are active jobs by worker, if known."""
    silent_ns = now_ns - worker.seen_ns
    status = "healthy" if silent_ns <= WORKER_STALE_NS else "stale"
    if silent_ns > WORKER_OFFLINE_NS:
        status = "offline"
    document: dict[str, Any] = {
        "id": worker.id,
        "hostname": worker.hostname,
        "queues": worker.queues,
        "last_heartbeat": format_time(worker.seen_ns),
        "started_at": format_time(worker.started_ns),
        "status": status,
    }
    if active is not None:
        document["active_jobs"] = active.get(worker.id, 0)
    return document

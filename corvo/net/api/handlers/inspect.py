"""Inspection of jobs: explain, wait, events, errors and log lines; and unique keys."""

from typing import Any

from corvo import limits, ops
from corvo._fast.codec.layouts import encode_fields
from corvo._fast.http.exchange import Request, reply_error
from corvo.engine import validate
from corvo.engine.commands.inputs import json_string, shortened, text_size
from corvo.engine.service import Service
from corvo.errors import CorvoError, ValidationError
from corvo.model import ENDED, LOG_LEVELS, Job, Logged
from corvo.net.api.explain import explain
from corvo.net.api.handlers.wait import wait_for_end
from corvo.net.api.requests import LineBody, LogsBody, ReleaseLockBody, decode
from corvo.net.api.responses import (
    error_documents,
    event_document,
    job_document,
    lock_document,
    log_line_document,
    past_documents,
    reply_json,
)
from corvo.net.http.query import Query
from corvo.platform.durations import parse_time
from corvo.platform.echoes import shown
from corvo.platform.ids import check_job_id

_LEVEL_DEFAULT = "info"
_LEVEL_ALIASES = {"warning": "warn"}


class Inspect:
    """Handlers of inspections, of log lines, and of unique locks."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def _job(self, request: Request) -> Job:
        return self._service.job(check_job_id(request.params[0]))

    # ---- one job ----

    def explain(self, request: Request) -> None:
        """Why the job is not running, or what it does instead."""
        reply_json(request, 200, explain(self._service, self._job(request)))

    def wait(self, request: Request) -> None:
        """200 with the job when it is finished, 202 with its present state at the timeout."""
        query = Query(request)
        job = self._job(request)
        wait_ns = query.duration_ns("timeout", limits.END_WAIT_DEFAULT_S, limits.END_WAIT_MAX_S)
        wait_for_end(self._service, request, job.id, wait_ns, self._on_waited)

    def _on_waited(self, request: Request) -> None:
        try:
            job = self._job(request)
        except CorvoError as error:  # deleted meanwhile
            reply_error(request, error)
            return
        status = 200 if ENDED[job.state] else 202
        reply_json(request, status, job_document(self._service.reads, job))

    def events(self, request: Request) -> None:
        """A page of its timeline, from the end of it; the oldest event comes first."""
        query = Query(request)
        job = self._job(request)
        reads = self._service.reads
        before = query.seq("before")
        limit = query.limit(limits.EVENTS_PAGE_MAX)
        previous, known_from_ns = job.event_seq, self._service.clock.stamp()
        if before:
            end = reads.event(before)
            if end is None or end.job_id != job.id:
                raise ValidationError(
                    f"before {before} is not an event of this job", field="before"
                )
            previous, known_from_ns = end.previous, end.at_ns
        changes = reads.events(job.id, limit, limits.PAGE_SIZE_MAX, before)
        events = [event_document(event) for event in changes]
        if changes:
            previous, known_from_ns = changes[0].previous, changes[0].at_ns
        reply: dict[str, Any] = {"events": events}
        if previous >= reads.event_first_seq:
            reply["before"] = changes[0].seq
        elif previous:
            reply["events"] = past_documents(reads, job, known_from_ns) + events
            reply["trimmed"] = True
        reply_json(request, 200, reply)

    def errors(self, request: Request) -> None:
        """A page of its error records, from the newest; the oldest of them comes first."""
        query = Query(request)
        job = self._job(request)
        errors = error_documents(self._service.reads, job, query.limit(), query.seq("before"))
        reply: dict[str, Any] = {"errors": errors, "error_count": job.error_count}
        if errors and errors[0]["id"] > 1:
            reply["before"] = errors[0]["id"]
        reply_json(request, 200, reply)

    # ---- log lines ----

    def append_logs(self, request: Request) -> None:
        """Add lines to the attempt that runs."""
        body = decode(request.body, LogsBody)
        given = body.lines or []
        validate.count(len(given), "lines", limits.LOG_LINES_MAX)
        now_ns = self._service.clock.stamp()
        lines = _encode_lines(given, now_ns)
        job_id = check_job_id(request.params[0])
        values = (job_id, validate.lease_token(body.lease_token), lines)
        self._service.submit(request.caller, ops.APPEND_LOGS, values, (self._on_logged, request))

    @staticmethod
    def _on_logged(request: Request, result: Any) -> None:
        if isinstance(result, Logged):
            reply_json(request, 200, {"status": "ok", "seq": result.seq, "dropped": result.dropped})
        else:
            reply_error(request, result)

    def logs(self, request: Request) -> None:
        """A page of lines after `after`, in order."""
        query = Query(request)
        job = self._job(request)
        attempt = query.integer("attempt", 0, 1, limits.RETRIES_MAX)
        reads = self._service.reads
        lines, more = reads.log_lines(
            job,
            attempt,
            query.seq("after"),
            query.integer("limit", limits.PAGE_MAX, 1, limits.PAGE_MAX),
            limits.PAGE_SIZE_MAX,
        )
        reply_json(
            request,
            200,
            {
                "lines": [log_line_document(line) for line in lines],
                "dropped": reads.log(job).dropped_of(attempt),
                "has_more": more,
            },
        )

    # ---- unique locks ----

    def locks(self, request: Request) -> None:
        """A page of the unique keys that are held."""
        query = Query(request)
        queue = query.text("queue")
        if queue:
            queue = self._service.queue(validate.queue_name(queue)).name
        found, next_key = self._service.reads.locks(
            queue, _parse_cursor(query.text("cursor")), query.limit()
        )
        reply: dict[str, Any] = {"locks": [lock_document(lock) for lock in found]}
        if next_key:
            reply["cursor"] = next_key.hex()
        reply_json(request, 200, reply)

    def release_lock(self, request: Request) -> None:
        """Take a unique key from the job that holds it."""
        body = decode(request.body, ReleaseLockBody)
        queue = validate.queue_name(body.queue or "")
        key = validate.key(body.unique_key, "unique_key", limits.UNIQUE_KEY_SIZE_MAX)
        if not key:
            raise ValidationError("unique_key is required", field="unique_key")
        job_id = "" if body.job_id is None else check_job_id(body.job_id)
        values = (queue, key.encode(), job_id)
        self._service.submit(request.caller, ops.RELEASE_LOCK, values, (self._on_released, request))

    @staticmethod
    def _on_released(request: Request, result: Any) -> None:
        if isinstance(result, CorvoError):
            reply_error(request, result)
        else:
            reply_json(request, 200, {"status": "released", "job_id": result})

    # ---- events of many jobs ----

    def queue_events(self, request: Request) -> None:
        """A page of the events of a queue and its jobs, from the newest; the oldest comes first."""
        query = Query(request)
        queue = self._service.queue(validate.queue_name(request.params[0]))
        changes, before = self._service.reads.queue_events(
            queue.name, query.seq("before"), query.limit(), limits.PAGE_SIZE_MAX
        )
        reply: dict[str, Any] = {"events": [event_document(event) for event in changes]}
        if before:
            reply["before"] = before
        reply_json(request, 200, reply)

    def all_events(self, request: Request) -> None:
        """A page of all events after `after_seq`, in order."""
        query = Query(request)
        changes = self._service.reads.events_after(
            query.seq("after_seq"), query.limit(), limits.PAGE_SIZE_MAX
        )
        reply_json(request, 200, {"events": [event_document(event) for event in changes]})


def _encode_lines(lines: list[LineBody], now_ns: int) -> list[bytes]:
    encoded = []
    size = 0
    for index, line in enumerate(lines):
        try:
            message = json_string(line.message, "message")
            size += text_size(message) if message else 0
            encoded.append(_encode_line(line, shortened(message), now_ns))
        except CorvoError as error:
            raise validate.of_part(error, f"line {index}", index=index) from None
    validate.json_size(b"", "lines", limits.LOG_CALL_SIZE_MAX, size)
    return encoded


def _encode_line(line: LineBody, message: bytes, now_ns: int) -> bytes:
    if not message:
        raise ValidationError("message is required", field="message")
    level = _LEVEL_DEFAULT if line.level is None else line.level
    level = _LEVEL_ALIASES.get(level, level)
    if level not in LOG_LEVELS:
        raise ValidationError(
            f"level {shown(level)} is unknown (use {', '.join(LOG_LEVELS)})", field="level"
        )
    at_ns = now_ns if line.at is None else parse_time(line.at, "at")
    return encode_fields(ops.LINE_LAYOUT, (LOG_LEVELS.index(level), at_ns, message))


def _parse_cursor(text: str) -> bytes:
    """The position where the last page ended."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValidationError(
            f"cursor {shown(text)} is not one of a response", field="cursor"
        ) from None

"""Cron schedules: list, make, change, pause, run by hand."""

from typing import Any

from msgspec import UNSET

from corvo import limits, ops
from corvo._fast.codec.layouts import decode_fields, encode_fields
from corvo._fast.http.exchange import Request, reply_error
from corvo.engine import validate
from corvo.engine.commands.enqueue import EnqueueCommands
from corvo.engine.commands.inputs import EnqueueBody
from corvo.engine.schedule_runs import next_after_change
from corvo.engine.service import Service
from corvo.errors import CorvoError, ValidationError
from corvo.model import CATCH_UPS, OVERLAPS, Schedule
from corvo.net.api.handlers.enqueue import on_enqueued
from corvo.net.api.handlers.jobs import on_done
from corvo.net.api.requests import ScheduleBody, decode
from corvo.net.api.responses import (
    reply_array,
    reply_json,
    schedule_document,
    schedule_summary,
)
from corvo.net.http.query import Query
from corvo.platform import cron
from corvo.platform.echoes import shown
from corvo.platform.ids import SCHEDULE_PREFIX
from corvo.records import named

# Members of a schedule that describe its job -> field of the Enqueue.
_JOB_MEMBERS = {
    "queue": "queue",
    "priority": "priority",
    "payload": "payload",
    "tags": "tags",
    "max_retries": "max_retries",
    "retry_backoff": "backoff",
    "retry_base_delay": "base_delay_ms",
    "retry_max_delay": "max_delay_ms",
    "retry_jitter": "jitter_ppm",
    "unique_key": "unique_key",
    "unique_until": "unique_until",
    "unique_period": "unique_period_ns",
}


class Schedules:
    """Handlers of /schedules. `{id}` in a path is the id or the name."""

    def __init__(self, service: Service, commands: EnqueueCommands) -> None:
        self._service = service
        self._commands = commands

    def list(self, request: Request) -> None:
        """A page of schedules by name, without their next runs."""
        query = Query(request)
        limit = query.limit(absent=limits.PAGE_MAX)
        found = self._service.reads.schedules(_parse_cursor(query.text("cursor")), limit + 1)
        documents: list[dict[str, Any]] = []
        size = 0
        for schedule in found[:limit]:
            size += len(schedule.job)
            if size > limits.PAGE_SIZE_MAX and documents:
                break
            documents.append(schedule_summary(schedule))
        following = ""
        if len(found) > len(documents):
            cursor = found[len(documents) - 1].name.encode().hex()
            following = query.following(limit, cursor)
        reply_array(request, documents, following)

    def get(self, request: Request) -> None:
        """One schedule and its next runs."""
        schedule = self._service.schedule(request.params[0])
        self._reply(request, 200, schedule)

    def create(self, request: Request) -> None:
        """201 with the new schedule."""
        new = Schedule(self._service.new_schedule_id())
        new.timezone = "UTC"
        new.overlap = OVERLAPS.index("allow")
        new.catch_up = CATCH_UPS.index("last")
        new.catch_up_limit = limits.CATCH_UP_LIMIT_DEFAULT
        request.context = 201
        self._change(request, new, decode(request.body, ScheduleBody))

    def update(self, request: Request) -> None:
        """200 with the schedule; the next run is recomputed."""
        self._update(request, decode(request.body, ScheduleBody))

    def pause(self, request: Request) -> None:
        """Stop runs until it is resumed; occurrences in between are not caught up."""
        self._update(request, ScheduleBody(enabled=False))

    def resume(self, request: Request) -> None:
        """Run again from the next occurrence on."""
        self._update(request, ScheduleBody(enabled=True))

    def _update(self, request: Request, body: ScheduleBody) -> None:
        request.context = 200
        self._change(request, self._service.schedule(request.params[0]), body)

    def run(self, request: Request) -> None:
        """Enqueue a job now, outside the times of the schedule."""
        self._service.run_schedule(request.caller, self._id(request), (on_enqueued, request))

    def delete(self, request: Request) -> None:
        """No more runs; the jobs it made stay."""
        request.context = "deleted"
        self._service.submit(
            request.caller, ops.DELETE_SCHEDULE, (self._id(request),), (on_done, request)
        )

    def _id(self, request: Request) -> str:
        """The id of the named schedule. A missing one is left to apply, which knows whether the
        request is repeated."""
        key = request.params[0]
        schedule = self._service.reads.schedule(key)
        return key if schedule is None else schedule.id

    def _change(self, request: Request, old: Schedule, body: ScheduleBody) -> None:
        """Submit the old schedule with the changes of the body."""
        text = _required("cron", _given(body.cron, old.cron, ""))
        timezone = _given(body.timezone, old.timezone, "UTC")
        expression = cron.parse(text, timezone)
        enabled = _given(body.enabled, old.enabled, True)
        next_ns = 0
        if enabled:
            next_ns = next_after_change(expression, self._service.clock.stamp(), old.next_ns)
        values = (
            old.id,
            old.revision,
            _name(_required("name", _given(body.name, old.name, ""))),
            text,
            timezone,
            self._job(old, body),
            enabled,
            _choice("overlap", _given(body.overlap, OVERLAPS[old.overlap], "allow"), OVERLAPS),
            _choice("catch_up", _given(body.catch_up, CATCH_UPS[old.catch_up], "last"), CATCH_UPS),
            _catch_up_limit(
                _given(body.catch_up_limit, old.catch_up_limit, limits.CATCH_UP_LIMIT_DEFAULT)
            ),
            next_ns,
        )
        self._service.submit(request.caller, ops.SET_SCHEDULE, values, (self._on_changed, request))

    def _job(self, old: Schedule, body: ScheduleBody) -> bytes:
        """The job template with what the body changes. Checks and defaults are those of an
        enqueue."""
        given = {name: getattr(body, name) for name in _JOB_MEMBERS}
        given = {name: value for name, value in given.items() if value is not UNSET}
        if not bytes(body.payload):
            del given["payload"]
        if not old.job:
            values = self._commands.job_values(EnqueueBody(**given))[1]
            return encode_fields(ops.ENQUEUE.layout, ("", *values))
        fields = ops.ENQUEUE.fields
        template = named(fields, decode_fields(ops.ENQUEUE.layout, old.job))
        _, values = self._commands.job_values(EnqueueBody(**{"queue": template["queue"], **given}))
        changed = named(fields, ("", *values))
        for name in given:
            template[_JOB_MEMBERS[name]] = changed[_JOB_MEMBERS[name]]
        return encode_fields(ops.ENQUEUE.layout, tuple(template.values()))

    def _reply(self, request: Request, status: int, schedule: Schedule) -> None:
        now_ns = self._service.clock.stamp()
        document = schedule_document(self._service.reads, schedule, now_ns)
        reply_json(request, status, document)

    def _on_changed(self, request: Request, result: Any) -> None:
        if isinstance(result, CorvoError):
            reply_error(request, result)
        else:
            self._reply(request, request.context, result)


def _given(value: Any, old: Any, default: Any) -> Any:
    """A member of a body: absent leaves the old value, null is the default."""
    if value is UNSET:
        return old
    return default if value is None else value


def _required(field: str, value: str) -> str:
    if not value:
        raise ValidationError(f"{field} is required", field=field)
    return value


def _name(name: str) -> str:
    """A name as of a queue, which cannot be taken for an id."""
    if name.startswith(SCHEDULE_PREFIX):
        raise ValidationError(
            f"name {shown(name)} must not begin with {SCHEDULE_PREFIX}, as ids do",
            field="name",
        )
    return validate.queue_name(name, "name")


def _choice(field: str, value: str, known: tuple[str, ...]) -> int:
    if value not in known:
        raise ValidationError(
            f"{field} {shown(value)} is unknown (use {', '.join(known)})", field=field
        )
    return known.index(value)


def _catch_up_limit(value: int) -> int:
    if not 1 <= value <= limits.CATCH_UP_LIMIT_MAX:
        raise ValidationError(
            f"catch_up_limit {shown(value)} is out of range (1-{limits.CATCH_UP_LIMIT_MAX})",
            field="catch_up_limit",
        )
    return value


def _parse_cursor(cursor: str) -> str:
    try:
        return bytes.fromhex(cursor).decode()
    except ValueError:  # UnicodeDecodeError is one
        raise ValidationError("cursor is not one of this list", field="cursor") from None

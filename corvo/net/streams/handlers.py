"""Handlers of server-sent events: events, job output, bulk progress."""

from typing import Final

from corvo import limits
from corvo._fast.http.exchange import Request
from corvo.engine import validate
from corvo.engine.results import ResultWait
from corvo.engine.service import Service
from corvo.errors import ValidationError
from corvo.events import EVENT_TYPES
from corvo.net.http.open_streams import OpenStreams
from corvo.net.http.query import Query
from corvo.net.streams.bulk_progress import BulkProgressStreams
from corvo.net.streams.events import MESSAGES, NAMED, EventStreams, Filter
from corvo.net.streams.job_output import JobOutputStreams, end_event, keepalive
from corvo.platform.echoes import hint, shown
from corvo.platform.ids import check_job_id

_LAST_EVENT_ID: Final = b"last-event-id"
_JOB: Final = "job."  # optional in front of the types of job events
_TYPES: Final = {name: number for number, name in enumerate(EVENT_TYPES)}


class Streams:
    """Handlers of streams."""

    def __init__(
        self,
        service: Service,
        streams: OpenStreams,
        events: EventStreams,
        job_output: JobOutputStreams,
        operations: BulkProgressStreams,
    ) -> None:
        self._service = service
        self._streams = streams
        self._events = events
        self._job_output = job_output
        self._operations = operations

    def events(self, request: Request) -> None:
        """All events, or those that match the filters, from now on or after an event."""
        query = Query(request)
        after = _last_event_id(request, query)
        start = query.choice("from", ("now", "start"))
        if after is None and start == "start":
            after = 0
        form = MESSAGES if query.choice("format", ("event", "message")) == "message" else NAMED
        filter = read_filter(query.names("queues"), query.names("job_ids"), query.names("types"))
        if self._streams.start(request, self._events.forget, self._events.keepalive):
            self._events.subscribe(request, filter, form, after)

    def job(self, request: Request) -> None:
        """The live output of a job until it is finished."""
        query = Query(request)
        after = _last_event_id(request, query) or 0
        service = self._service
        job_id = service.job(check_job_id(request.params[0])).id

        def gone(request: Request) -> None:
            self._job_output.forget(request)
            service.drop_result_wait(wait)

        def end(request: Request) -> None:
            self._job_output.forget(request)
            request.send(end_event(service.reads, job_id))
            self._streams.end(request)

        now_ns = service.clock.elapsed_ns()
        wait = ResultWait(job_id, now_ns + limits.STREAM_LASTS_NS, request, end)
        if self._streams.start(request, gone, keepalive):
            self._job_output.subscribe(request, job_id, after, now_ns)
            if service.may_end(job_id):
                service.wait_for_result(wait)
            else:
                end(request)

    def operation(self, request: Request) -> None:
        """The progress of a bulk operation until it is finished."""
        self._operations.subscribe(request, self._service.operation(request.params[0]))


def read_filter(queues: list[str], job_ids: list[str], types: list[str]) -> Filter:
    """A filter by its names."""
    numbers = []
    for name in types:
        if name.startswith(_JOB) and "." not in name.removeprefix(_JOB):
            name = name.removeprefix(_JOB)
        if name not in _TYPES:
            raise ValidationError(
                f"unknown event type {shown(name)}{hint(name, _TYPES)}", field="types"
            )
        numbers.append(_TYPES[name])
    return Filter(
        frozenset(validate.queue_name(name, "queues") for name in queues),
        frozenset(check_job_id(job_id, "job_ids") for job_id in job_ids),
        frozenset(numbers),
    )


def _last_event_id(request: Request, query: Query) -> int | None:
    """The last event that the client has received. Browsers repeat the first request when they
    reconnect, so the header is newer than the query."""
    given = (request.rare or {}).get(_LAST_EVENT_ID)
    if given is None:
        return query.seq("last_event_id") if query.has("last_event_id") else None
    if not given.isdigit() or len(given) > 18:
        raise ValidationError("the header Last-Event-ID is not an event id")
    return int(given)

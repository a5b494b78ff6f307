"""Responses: JSON objects whose members are attributes too.

A document is a `dict`, so that members which this version does not know are there as well
(`job["new_member"]`). Declared members that a response lacks are None. Values are those of the
server: texts of states and codes may be newer than this version.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from corvo_client.json_text import raw_member


class Document(dict[str, Any]):
    """A JSON object of a response."""

    _nested: ClassVar[dict[str, "type[Document]"]] = {}
    _origin: tuple[str, tuple[str | int, ...]] | None = None

    if not TYPE_CHECKING:  # so that a misspelled attribute is an error in the editor

        def __getattr__(self, name: str) -> Any:
            if name in self:
                return self[name]
            if any(name in kind.__annotations__ for kind in type(self).__mro__[:-2]):
                return None
            raise AttributeError(f"{type(self).__name__} has no member {name!r}")

    def text(self, name: str) -> str | None:
        """Return the JSON text of a member exactly as the server sent it: digits, order of keys
        and white space included."""
        if self._origin is None:
            return None
        source, path = self._origin
        return raw_member(source, *path, name)


def document(kind: type[Document], value: Any, source: str, *path: str | int) -> Any:
    """Return a decoded object as a document of a kind, nested ones included."""
    if not isinstance(value, dict):
        return value
    made = kind(value)
    made._origin = source, path
    for name, inner in kind._nested.items():
        found = made.get(name)
        if isinstance(found, list):
            made[name] = [
                document(inner, item, source, *path, name, number)
                for number, item in enumerate(found)
            ]
        elif isinstance(found, dict):
            made[name] = document(inner, found, source, *path, name)
    return made


class ErrorRecord(Document):
    """A failed attempt of a job."""

    id: int
    job_id: str
    attempt: int
    kind: str
    error: str
    backtrace: str | None
    at: str


class Job(Document):
    """A job as `get_job` shows it."""

    id: str
    queue: str
    state: str
    payload: Any
    priority: int
    priority_name: str
    attempt: int
    max_retries: int
    tags: dict[str, str] | None
    unique_key: str | None
    group_key: str | None
    batch_id: str | None
    parent_id: str | None
    worker_id: str | None
    hostname: str | None
    progress: Any
    checkpoint: Any
    result: Any
    error_count: int | None
    errors: list[ErrorRecord] | None
    blocked_by: list[str] | None
    hold_reason: str | None
    created_at: str
    scheduled_at: str | None
    started_at: str | None
    completed_at: str | None
    failed_at: str | None
    lease_expires_at: str | None
    cancel_requested_at: str | None
    expire_at: str | None
    _nested: ClassVar[dict[str, type[Document]]] = {"errors": ErrorRecord}


class Enqueued(Document):
    """The answer to an enqueue. `unique_existing` means that `job_id` is an earlier job that
    holds the unique key."""

    job_id: str
    status: str
    unique_existing: bool
    state: str | None
    result: Any
    last_error: str | None


class EnqueuedBatch(Document):
    """The answer to an enqueue of several jobs, in their order."""

    job_ids: list[str]
    batch_id: str | None
    duplicates: int | None


class Delivery(Document):
    """A job that was fetched, with the token of its lease."""

    job_id: str
    queue: str
    payload: Any
    attempt: int
    max_retries: int
    lease_duration: float
    lease_token: str
    fencing: int
    checkpoint: Any
    tags: dict[str, str] | None
    feedback: Any
    schedule_id: str | None
    schedule_slot: str | None
    result_schema: Any
    traceparent: str | None
    tracestate: str | None


class Deliveries(Document):
    """The answer to a fetch of several jobs."""

    jobs: list[Delivery]
    _nested: ClassVar[dict[str, type[Document]]] = {"jobs": Delivery}


class FailResult(Document):
    """The answer to a fail."""

    status: str
    next_attempt_at: str | None
    attempts_remaining: int


class Status(Document):
    """The answer to an action."""

    status: str
    state: str | None
    job_id: str | None
    deleted: int | None
    bulk_operation_id: str | None


class AckResult(Document):
    """The answer to several acks."""

    acked: int
    failed: list[dict[str, Any]] | None


class Beat(Document):
    """The status of one job in the answer to a heartbeat: ok, cancel or lost."""

    status: str


class Heartbeat(Document):
    """The answer to a heartbeat: a status for each job."""

    jobs: dict[str, dict[str, Any]]


class Explanation(Document):
    """Why a job does not run, or what it does."""

    job_id: str
    queue: str
    state: str
    summary: str
    reasons: list[dict[str, Any]]
    jobs_before: int | None


class Event(Document):
    """An event of a job or a queue."""

    seq: int
    id: int
    type: str
    job_id: str | None
    queue: str
    created_at: str
    data: Any


class Events(Document):
    """A page of events."""

    events: list[Event]
    before: int | None
    trimmed: bool | None
    _nested: ClassVar[dict[str, type[Document]]] = {"events": Event}


class Errors(Document):
    """A page of the failed attempts of a job."""

    errors: list[ErrorRecord]
    error_count: int
    before: int | None
    _nested: ClassVar[dict[str, type[Document]]] = {"errors": ErrorRecord}


class LogLine(Document):
    """A log line of a job."""

    seq: int
    attempt: int
    at: str
    level: str
    message: str


class Logs(Document):
    """A page of the log of a job."""

    lines: list[LogLine]
    dropped: int
    has_more: bool
    _nested: ClassVar[dict[str, type[Document]]] = {"lines": LogLine}


class Found(Document):
    """A page of a search."""

    jobs: list[Job]
    total: int
    total_is_exact: bool
    has_more: bool
    cursor: str | None
    duration_ms: float
    _nested: ClassVar[dict[str, type[Document]]] = {"jobs": Job}


class Jobs(Document):
    """Several jobs."""

    jobs: list[Job]
    _nested: ClassVar[dict[str, type[Document]]] = {"jobs": Job}


class Operation(Document):
    """A bulk operation: its progress, or the answer that started it."""

    id: str | None
    bulk_operation_id: str | None
    status: str | None
    action: str | None
    total: int | None
    processed: int | None
    affected: int | None
    skipped: int | None
    conflicts: int | None
    dry_run: bool | None
    matched: int | None
    sample: list[str] | None
    estimated_total: int | None
    undo_until: str | None
    finished_at: str | None


class Batch(Document):
    """A batch and its progress."""

    id: str
    total: int
    pending: int
    succeeded: int
    failed: int
    pending_jobs: list[str] | None
    created_at: str
    finished_at: str | None


class Queue(Document):
    """A queue: its options and the number of jobs in each state."""

    name: str
    paused: bool
    draining: bool | None
    pending: int
    active: int
    scheduled: int
    retrying: int
    held: int
    completed: int
    dead: int
    cancelled: int
    blocked: int
    max_concurrency: int | None
    rate_limit: int | None
    rate_window_ms: int | None
    group_concurrency: int | None
    aging_after: float | None
    oldest_pending_at: str | None


class Queues(Document):
    """A page of queues."""

    queues: list[Queue]
    cursor: str | None
    _nested: ClassVar[dict[str, type[Document]]] = {"queues": Queue}


class Schedule(Document):
    """A schedule, and its next runs."""

    id: str
    name: str
    queue: str
    cron: str
    timezone: str
    enabled: bool
    overlap: str
    catch_up: str
    payload: Any
    next_run: str | None
    next_runs: list[str] | None
    last_run: str | None
    last_job_id: str | None
    description: str | None


class Schedules(Document):
    """The schedules."""

    schedules: list[Schedule]
    cursor: str | None
    _nested: ClassVar[dict[str, type[Document]]] = {"schedules": Schedule}


class WorkerInfo(Document):
    """A worker as the server last saw it."""

    id: str
    hostname: str | None
    queues: list[str]
    status: str
    last_heartbeat: str
    started_at: str


class Workers(Document):
    """The workers."""

    workers: list[WorkerInfo]
    cursor: str | None
    _nested: ClassVar[dict[str, type[Document]]] = {"workers": WorkerInfo}


class Locks(Document):
    """A page of held unique keys."""

    locks: list[dict[str, Any]]
    cursor: str | None


class ServerInfo(Document):
    """Versions of the server and its API."""

    server_version: str
    api_version: str


class ClockTime(Document):
    """The settable clock of a test server."""

    now: str
    frozen: bool


class StreamEvent(Document):
    """An event of a stream; `name` and `id` are those of the stream."""

    name: str
    id: str | None
    type: str | None
    job_id: str | None
    queue: str | None
    data: Any
    delta: str | None
    offset: int | None
    state: str | None
    percent: float | None

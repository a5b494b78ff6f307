"""Options of an enqueue and members of a search filter, as typed keyword arguments."""

from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

Duration = float | str | timedelta  # seconds, or a text such as "1h30m"
Time = datetime | str  # a text is in the form of RFC 3339
Priority = Literal["critical", "high", "normal", 0, 1, 2]


class Follower(TypedDict, total=False):
    """A job that follows another one."""

    queue: str
    payload: Any


class Chain(TypedDict, total=False):
    """Jobs that run one after the other. A handler may be given as the name of its queue."""

    steps: list[Follower]
    on_failure: Follower | str
    on_exit: Follower | str


class BatchCallbacks(TypedDict, total=False):
    """The jobs that a batch enqueues."""

    on_success: Follower
    on_complete: Follower
    on_death: Follower
    callback_queue: str
    callback_payload: Any


class HoldOptions(TypedDict, total=False):
    """How a job waits for approval."""

    reason: str
    timeout: Duration
    timeout_action: Literal["cancel", "approve", "reject", "none"]


class JobOptions(TypedDict, total=False):
    """Everything that one job of an enqueue can have apart from queue and payload."""

    priority: Priority
    max_retries: int
    retry_backoff: Literal["none", "fixed", "linear", "exponential"]
    retry_base_delay: Duration
    retry_max_delay: Duration
    retry_jitter: float
    scheduled_at: Time
    delay: Duration
    tags: dict[str, str | int | float | bool]
    checkpoint: Any
    parent_id: str
    unique_key: str
    unique_until: Literal["start", "success", "completion", "final", "period", "expiry"]
    unique_period: Duration
    expire_after: Duration
    group_key: str
    batch_id: str
    chain: Chain
    chain_id: str
    chain_step: int
    chain_config: Chain
    depends_on: list[str]
    on_dependency_failure: Literal["fail", "cancel", "run"]
    hold: HoldOptions
    result_schema: Any


class EnqueueOptions(JobOptions, total=False):
    """Options of a single enqueue; `wait` answers when the job has ended, or after this time."""

    wait: Duration


class JobItem(JobOptions, total=False):
    """One job of an enqueue of several."""

    queue: str
    payload: Any


class Filter(TypedDict, total=False):
    """Conditions of a search; all of them must hold."""

    queue: str
    state: str | list[str]
    priority: Priority
    tags: dict[str, str]
    payload_contains: str
    payload_jq: str
    created_after: Time
    created_before: Time
    scheduled_after: Time
    scheduled_before: Time
    started_after: Time
    started_before: Time
    completed_after: Time
    completed_before: Time
    expire_after: Time
    expire_before: Time
    attempt_min: int
    attempt_max: int
    unique_key: str
    batch_id: str
    worker_id: str
    parent_id: str
    chain_id: str
    has_errors: bool
    error_contains: str
    job_id_prefix: str


class ScheduleOptions(TypedDict, total=False):
    """Everything that a schedule can have apart from name, cron and queue. None restores the
    default when a schedule is updated."""

    payload: Any
    timezone: str | None
    enabled: bool | None
    overlap: Literal["allow", "skip"] | None
    catch_up: Literal["none", "last", "all"] | None
    catch_up_limit: int | None
    priority: Priority | None
    max_retries: int | None
    retry_backoff: str | None
    retry_base_delay: Duration | None
    retry_max_delay: Duration | None
    retry_jitter: float | None
    tags: dict[str, str | int | float | bool] | None
    unique_key: str | None
    unique_until: str | None
    unique_period: Duration | None


class ScheduleChanges(ScheduleOptions, total=False):
    """Everything that an update of a schedule can change."""

    name: str
    cron: str
    queue: str


class BulkOptions(TypedDict, total=False):
    """Which jobs a bulk action concerns, and how it runs."""

    job_ids: list[str]
    filter: Filter
    all: bool
    dry_run: bool
    background: bool  # `async` in the API: answer before the operation ends
    move_to_queue: str
    reset_attempts: bool
    keep_priority: bool
    priority: Priority
    force: bool
    reason: str
    by: str
    note: str
    feedback: Any
    revise: bool
    timeout: Duration
    timeout_action: Literal["cancel", "approve", "reject", "none"]


class AckOptions(TypedDict, total=False):
    """Everything that an ack can carry."""

    lease_token: str
    result: Any
    checkpoint: Any
    step_status: Literal["continue", "exit"]
    exit_reason: str


class AckItem(AckOptions, total=False):
    """One ack of several."""

    job_id: str


class BeatItem(TypedDict, total=False):
    """One job of a heartbeat."""

    lease_token: str
    progress: Any
    checkpoint: Any
    stream_delta: str


class LineItem(TypedDict, total=False):
    """A log line."""

    message: str
    level: Literal["debug", "info", "warn", "error"]
    at: Time

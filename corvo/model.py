# cython: annotation_typing=True
"""The nouns that apply works on: jobs, queues, workers, and the results of ops.

These are native classes (`model.pxd` has their C fields), not documents: `corvo.kv.documents`
writes and reads them. All times are unix nanoseconds (0 = unset), all texts of JSON values are the
bytes received.
"""

from typing import Final, final

from corvo.errors import CorvoError

# States, by number (the number is stored).
SCHEDULED: Final = 0
PENDING: Final = 1
ACTIVE: Final = 2
HELD: Final = 3
COMPLETED: Final = 4
RETRYING: Final = 5
DEAD: Final = 6
CANCELLED: Final = 7
STATES: Final = (
    "scheduled",
    "pending",
    "active",
    "held",
    "completed",
    "retrying",
    "dead",
    "cancelled",
)

# By state: a job that has ended has no place in its queue any more.
ENDED: Final = (False, False, False, False, True, False, True, True)

PRIORITY_NAMES: Final = ("critical", "high", "normal")
PRIORITIES: Final = len(PRIORITY_NAMES)
BACKOFFS: Final = ("none", "fixed", "linear", "exponential")
UNIQUE_UNTIL: Final = ("final", "start", "success", "period")
OVERLAPS: Final = ("allow", "skip")
CATCH_UPS: Final = ("none", "last", "all")
ON_DEPENDENCY_FAILURE: Final = ("fail", "cancel", "run")
HOLD_ACTIONS: Final = ("cancel", "approve", "reject", "keep")

# Parts of a job that a flush has to write.
DIRTY_HEAD: Final = 1
DIRTY_BODY: Final = 2
DIRTY_DATA: Final = 4
DIRTY_EXTRAS: Final = 8

# Kinds of error records, by number.
FAILED: Final = 0
LEASE_EXPIRED: Final = 1
DELIVERY_UNKNOWN: Final = 2
ERROR_KINDS: Final = (
    "failed",
    "lease_expired",
    "delivery_unknown",
    "expired",
    "rejected",
    "dependency",
    "provider",
)


@final
class Extras:
    """What only some jobs have, a document of its own: the plain path neither reads nor writes
    one. All of it is unset by default."""

    def __init__(self) -> None:
        # As enqueued.
        self.group_key: str = ""
        self.batch_id: str = ""
        self.chain_id: str = ""
        self.chain_step: int = 0  # from 0; -1 = on_exit, -2 = on_failure
        self.chain: bytes = b""  # JSON text of the definition
        self.depends_on: list[str] = []
        self.on_dependency_failure: int = 0
        self.result_schema: bytes = b""
        # Changes.
        self.expires_ns: int = 0  # when a job that has not ended is dead
        self.hold_reason: str = ""
        self.hold_ends_ns: int = 0  # when `hold_action` is taken; 0 = never
        self.hold_action: int = 0


class Job:
    """One job. What is immutable after enqueue is the *body*, what every transition rewrites the
    *head*, what the worker sends the *data*; each is a document of its own."""

    def __init__(self, id: str) -> None:
        # Body.
        self.id = id
        self.payload: bytes = b""
        self.tags: bytes = b""
        self.max_retries: int = 0
        self.backoff: int = 0
        self.base_delay_ms: int = 0
        self.max_delay_ms: int = 0
        self.jitter_ppm: int = 0
        self.created_ns: int = 0
        self.parent_id: str = ""
        self.unique_key: bytes = b""
        self.unique_until: int = 0
        self.unique_period_ns: int = 0  # 0 = as long as the mode says
        self.schedule_id: str = ""  # of the schedule that made it
        self.schedule_slot_ns: int = 0  # 0 = run by hand
        # Head.
        self.queue_number: int = 0
        self.seq: int = 0  # place in its queue; changes only when the job goes to the tail
        self.priority: int = 0
        self.state: int = PENDING
        self.attempt: int = 0
        self.scheduled_ns: int = 0  # when a scheduled or retrying job is due, else 0
        self.keeps_place: bool = False  # scheduled by a release: keeps its seq when promoted
        self.ready_ns: int = 0  # when it last became pending
        self.started_ns: int = 0
        self.completed_ns: int = 0
        self.failed_ns: int = 0  # last failure, death or cancel
        self.cancel_requested_ns: int = 0
        self.lease_ns: int = 0  # length granted at fetch
        self.lease_expires_ns: int = 0
        self.fencing: int = 0  # of the live or last lease; with lease_seed it makes the token
        self.lease_seed: int = 0
        self.lease_term: int = 0  # term the lease was granted in
        self.lease_touched: bool = False  # its worker has spoken since
        self.releases: int = 0  # in a row without progress
        self.worker_id: str = ""
        self.hostname: str = ""
        self.error_count: int = 0
        self.event_seq: int = 0  # newest event of this job; events link backwards from there
        self.provider_error: bool = False
        self.has_extras: bool = False
        self.body_apart: bool = False  # the body is too large for the row of the head
        # Data.
        self.checkpoint: bytes = b""
        self.progress: bytes = b""
        self.result: bytes = b""
        # Extras; None exactly when `has_extras` is false.
        self.extras: Extras | None = None
        # Overlay bookkeeping, never stored.
        self.size: int = 0  # memory it is counted with
        self.token: str = ""  # text of the live lease's token, built on demand
        self.dirty: int = 0
        self.resident: bool = False  # the overlay knows it
        self.deleted: bool = False
        self.stored_row: bytes = b""  # key of the index row in the base; empty = the base lacks it


class Queue:
    """One queue: configuration and counters. Ready indexes and live leases are kept beside it."""

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.paused: bool = False
        self.max_concurrency: int = 0  # 0 = no limit
        self.created_ns: int = 0
        self.next_seq: int = 1
        self.counts: list[int] = [0] * (len(STATES) * PRIORITIES)  # state * PRIORITIES + priority
        self.enqueued_total: int = 0
        self.completed_total: int = 0
        self.failed_total: int = 0  # failed attempts
        self.dead_total: int = 0
        self.expired_total: int = 0  # leases
        self.dirty: bool = False

    def jobs(self, state: int) -> int:
        """How many of its jobs are in this state."""
        return sum(self.counts[state * PRIORITIES : (state + 1) * PRIORITIES])


@final
class Worker:
    """A worker as it last showed itself; written at most every WORKER_TOUCH_NS."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.hostname: str = ""
        self.queues: list[str] = []
        self.started_ns: int = 0
        self.seen_ns: int = 0
        self.dirty: bool = False


@final
class Schedule:
    """A cron schedule. It is replaced by each SetSchedule and rewritten by each firing; slots are
    computed by the leader, so apply knows nothing about cron and zones."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.revision: int = 0  # counts SetSchedule
        self.name: str = ""
        self.cron: str = ""
        self.timezone: str = ""
        self.job: bytes = b""  # Enqueue payload without id
        self.enabled: bool = True
        self.overlap: int = 0
        self.catch_up: int = 0
        self.catch_up_limit: int = 0
        self.created_ns: int = 0
        self.next_ns: int = 0  # the next slot; 0 = none
        self.last_slot_ns: int = 0  # of the last slot that made a job
        self.last_run_ns: int = 0  # when it, or somebody by hand, last made a job
        self.last_job_id: str = ""


@final
class ErrorRecord:
    """One failed attempt. `error` and `backtrace` are JSON string texts as received."""

    def __init__(self, attempt: int, kind: int, error: bytes, backtrace: bytes, at_ns: int) -> None:
        self.attempt = attempt
        self.kind = kind
        self.error = error
        self.backtrace = backtrace
        self.at_ns = at_ns


# Results of ops. An op that is refused has a CorvoError as its result.


class Enqueued:
    """Result of Enqueue, and of each item of EnqueueBatch."""

    def __init__(self, job_id: str, state: int, duplicate: bool, result: bytes) -> None:
        self.job_id = job_id
        self.state = state  # of the new job, or of the job that holds the unique key
        self.duplicate = duplicate
        self.result = result  # of a completed holder


class Fetched:
    """One delivered job: all that the reply needs, so that later ops cannot change it."""

    def __init__(self, job: Job, queue: str, token: str) -> None:
        self.job_id = job.id
        self.queue = queue
        self.payload = job.payload
        self.tags = job.tags
        self.checkpoint = job.checkpoint
        self.attempt = job.attempt
        self.max_retries = job.max_retries
        self.schedule_id = job.schedule_id
        self.schedule_slot_ns = job.schedule_slot_ns
        self.lease_ns = job.lease_ns
        self.fencing = job.fencing
        self.token = token


@final
class Failed:
    """Result of Fail. `state` is RETRYING also when the job is pending again at once."""

    def __init__(self, state: int, next_attempt_ns: int, attempts_remaining: int) -> None:
        self.state = state
        self.next_attempt_ns = next_attempt_ns
        self.attempts_remaining = attempts_remaining


@final
class Acked:
    """Result of AckBatch: how many completed, and why the others did not, by position."""

    def __init__(self) -> None:
        self.count: int = 0
        self.refused: list[tuple[int, CorvoError]] = []

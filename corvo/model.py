# cython: annotation_typing=True
"""The objects that apply works on: jobs, queues, workers, schedules, and the results of ops.

These are native classes (`model.pxd` has their C fields), not stored records:
`corvo.storage.records.jobs` encodes and decodes them. All times are unix nanoseconds (0 = unset).
All JSON values are kept as the bytes received.
"""

from typing import Final, final

from corvo.errors import CorvoError

# States, by number (the number is stored; append only).
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

# By state: whether a job in this state has finished. A finished job has no queue position.
ENDED: Final = (False, False, False, False, True, False, True, True)

# States that have a retention time, and the value of a queue that uses the server's setting.
END_STATES: Final = (COMPLETED, DEAD, CANCELLED)
KEEP_DEFAULT: Final = -1

PRIORITY_NAMES: Final = ("critical", "high", "normal")
PRIORITIES: Final = len(PRIORITY_NAMES)
QUEUE_COUNTS: Final = len(STATES) * PRIORITIES
BACKOFFS: Final = ("none", "fixed", "linear", "exponential")
UNIQUE_UNTIL: Final = ("final", "start", "success", "period")
OVERLAPS: Final = ("allow", "skip")
CATCH_UPS: Final = ("none", "last", "all")
ON_DEPENDENCY_FAILURE: Final = ("fail", "cancel", "run")
HOLD_ACTIONS: Final = ("cancel", "approve", "reject", "none")
LOG_LEVELS: Final = ("debug", "info", "warn", "error")
# Actions of bulk operations, by number (the number is stored; append only).
ACTIONS: Final = (
    "retry",
    "delete",
    "cancel",
    "move",
    "requeue",
    "change_priority",
    "hold",
    "approve",
    "reject",
    "run",
)

# Parts of a job that a flush has to write (bits of `Job.dirty`).
DIRTY_HEAD: Final = 1
DIRTY_BODY: Final = 2
DIRTY_DATA: Final = 4
DIRTY_OPTIONS: Final = 8

# Kinds of error records, by number (the number is stored).
FAILED: Final = 0
LEASE_EXPIRED: Final = 1
DELIVERY_UNKNOWN: Final = 2
EXPIRED: Final = 3
REJECTED: Final = 4
DEPENDENCY: Final = 5
PROVIDER: Final = 6
ERROR_KINDS: Final = (
    "failed",
    "lease_expired",
    "delivery_unknown",
    "expired",
    "rejected",
    "dependency",
    "provider",
)


class JobOptions:
    """Options that most jobs lack. They are a record of their own: the fast path neither reads nor
    writes one. Every option is unset by default."""

    def __init__(self) -> None:
        # <generated: init JOB_OPTIONS>
        self.group_key: str = ""
        self.batch_id: str = ""
        self.chain_id: str = ""
        self.chain_step: int = 0  # from 0; -1 = on_exit, -2 = on_failure
        self.chain: bytes = b""  # definition, record CHAIN
        self.depends_on: list[str] = []
        self.on_dependency_failure: int = 0  # an index of ON_DEPENDENCY_FAILURE
        self.result_schema: bytes = b""  # JSON text
        self.expires_ns: int = 0  # time at which an unfinished job becomes dead; 0 = never
        self.hold_reason: str = ""
        self.hold_ends_ns: int = 0  # time at which `hold_action` is taken; 0 = never
        self.hold_action: int = 0  # an index of HOLD_ACTIONS
        self.feedback: bytes = b""  # JSON text: feedback of the person who rejected the job
        # members of `depends_on`; see corvo.fsm.ops.dependencies
        self.open_dependencies: list[str] = []
        self.has_dependents: bool = False  # rows name jobs that depend on this one, or once did
        self.has_logs: bool = False
        # </generated>
        # State of the write buffer, never stored: pending, but not ready.
        self.blocked: bool = False


class Job:
    """One job. The *body* never changes after enqueue, every transition rewrites the *head*, and
    the worker sends the *data*. Each is a record of its own."""

    def __init__(self, id: str) -> None:
        self.id = id
        # Body.
        # <generated: init JOB_BODY>
        self.payload: bytes = b""
        self.tags: bytes = b""
        self.max_retries: int = 0
        self.backoff: int = 0  # an index of BACKOFFS
        self.base_delay_ms: int = 0
        self.max_delay_ms: int = 0
        self.jitter_ppm: int = 0
        self.created_ns: int = 0
        self.parent_id: str = ""
        self.unique_key: bytes = b""
        self.unique_until: int = 0  # an index of UNIQUE_UNTIL
        self.unique_period_ns: int = 0  # 0 = the mode alone decides
        self.schedule_id: str = ""  # schedule that created the job
        self.schedule_occurrence_ns: int = 0  # 0 = the schedule was run by hand
        # </generated>
        # Head.
        # <generated: init JOB_HEAD>
        self.queue_number: int = 0
        self.seq: int = 0  # queue position; changes only on a move to the tail
        self.priority: int = 0
        self.state: int = PENDING
        self.attempt: int = 0
        self.scheduled_ns: int = 0  # due time of a scheduled or retrying job, else 0
        self.started_ns: int = 0
        self.completed_ns: int = 0
        self.failed_ns: int = 0  # time of the last failure, death or cancellation
        self.cancel_requested_ns: int = 0
        self.lease_ns: int = 0  # length granted at fetch
        self.lease_expires_ns: int = 0
        self.fencing: int = 0  # number of the live or last lease; it and lease_seed make the token
        self.lease_seed: int = 0
        self.lease_term: int = 0  # Raft term in which the lease was granted
        self.lease_touched: bool = False  # the worker has called since the lease was granted
        self.releases: int = 0  # releases in a row without progress
        self.worker_id: str = ""
        self.hostname: str = ""
        self.error_count: int = 0
        self.event_seq: int = 0  # newest event of this job; each event links to the one before it
        self.provider_error: bool = False
        self.keeps_position: bool = False  # scheduled by a release: keeps its seq when promoted
        self.ready_ns: int = 0  # time at which it first became pending at this position
        self.has_options: bool = False
        self.data_apart: bool = False  # the data has a row of its own: it is large, or once was
        self.returned_ns: int = 0  # time at which it last returned to this position; 0 = never
        # </generated>
        # Data.
        # <generated: init JOB_DATA>
        self.checkpoint: bytes = b""
        self.progress: bytes = b""
        self.result: bytes = b""
        # </generated>
        # None exactly when `has_options` is false.
        self.options: JobOptions | None = None
        # State of the write buffer, never stored.
        self.body_apart: bool = False  # the body has a row of its own: it is large, or once was
        self.size: int = 0  # memory it is counted with
        self.token: str = ""  # text of the live lease's token, built on demand
        self.dirty: int = 0
        self.resident: bool = False  # the write buffer holds it
        self.deleted: bool = False
        self.stored_row: bytes = b""  # key of its index row in the state store; empty = no such row
        self.stored_expiry: bytes = b""  # likewise for its expiry row

    def ready_since(self) -> int:
        """The time at which it last became ready."""
        return self.returned_ns or self.ready_ns


class Queue:
    """One queue: configuration and counters. `corvo.fsm.state.queue_index` holds its ready jobs and
    leases."""

    def __init__(self, number: int, name: str) -> None:
        self.name = name
        # <generated: init QUEUE>
        self.number: int = number
        self.paused: bool = False
        self.max_concurrency: int = 0  # 0 = no limit
        self.created_ns: int = 0
        self.next_seq: int = 1
        self.counts: list[int] = [0] * QUEUE_COUNTS  # state * PRIORITIES + priority
        self.enqueued_total: int = 0
        self.completed_total: int = 0
        self.failed_total: int = 0  # failed attempts, with expired leases
        self.dead_total: int = 0
        self.expired_total: int = 0  # expired leases
        self.draining: bool = False  # paused, and some jobs are still active
        self.cleared_seq: int = 0  # event seq of a clear that still has jobs to delete; 0 = none
        # retention of finished jobs, by END_STATES; KEEP_DEFAULT = the server's setting
        self.retention_ns: list[int] = [KEEP_DEFAULT] * len(END_STATES)
        self.rate_limit: int = 0  # jobs that may start within `rate_window_ns`; 0 = no limit
        self.rate_window_ns: int = 0
        self.group_concurrency: int = 0  # active jobs allowed in each group; 0 = no limit
        self.aging_after_ns: int = 0  # a normal job that waited this long is next; 0 = never
        self.turn: int = 0  # the last turn taken, see fsm.state.groups
        self.served: int = 0  # last turn of the jobs without a group key
        # </generated>
        self.destroyed: bool = False  # to be forgotten when its last job is gone
        self.dirty: bool = False

    def row_name(self) -> str:
        """Return the name in the key of its row. A destroyed queue has a name that no other queue
        can have."""
        return self.last_row_name() if self.destroyed else self.name

    def last_row_name(self) -> str:
        """Return the name in the key of its row once it is destroyed."""
        return f"\x7f{self.number}"

    def pending_deletion(self) -> bool:
        """Return whether a clear or the deletion of the queue has jobs left to delete."""
        return self.destroyed or self.cleared_seq > 0

    def jobs(self, state: int) -> int:
        """Return how many of its jobs are in this state."""
        return sum(self.counts[state * PRIORITIES : (state + 1) * PRIORITIES])


class Worker:
    """A worker as of its last request; its row is written at most every WORKER_TOUCH_NS."""

    def __init__(self, id: str) -> None:
        self.id = id
        # <generated: init WORKER>
        self.hostname: str = ""
        self.queues: list[str] = []
        self.started_ns: int = 0
        self.seen_ns: int = 0
        # </generated>
        self.dirty: bool = False


@final
class Schedule:
    """A cron schedule. SetSchedule replaces it and each run rewrites it. The leader computes the
    occurrences, so apply needs no cron and no time zones."""

    def __init__(self, id: str) -> None:
        self.id = id
        # <generated: init SCHEDULE>
        self.revision: int = 0  # number of SetSchedule ops so far
        self.name: str = ""
        self.cron: str = ""
        self.timezone: str = ""
        self.job: bytes = b""  # Enqueue payload without id
        self.enabled: bool = True
        self.overlap: int = 0  # an index of OVERLAPS
        self.catch_up: int = 0  # an index of CATCH_UPS
        self.catch_up_limit: int = 0
        self.created_ns: int = 0
        self.next_ns: int = 0  # time of the next occurrence; 0 = none
        self.last_occurrence_ns: int = 0  # time of the last occurrence that created a job
        self.last_run_ns: int = 0  # when the schedule last created a job, also by hand
        self.last_job_id: str = ""
        # </generated>


# Outcomes of a bulk operation on one job. DONE: the action was applied. SKIPPED: the job does not
# exist or its state does not allow the action. CONFLICT: another job prevents the action.
OUTCOMES: Final = ("done", "skipped", "conflict")
DONE: Final = 0
SKIPPED: Final = 1
CONFLICT: Final = 2

OPERATION_KINDS: Final = ("clear", "destroy", "bulk")
CLEAR: Final = 0
DESTROY: Final = 1
BULK: Final = 2

OPERATION_STATES: Final = ("running", "completed", "cancelled", "queued")
OPERATION_RUNNING: Final = 0
OPERATION_COMPLETED: Final = 1
OPERATION_CANCELLED: Final = 2
OPERATION_QUEUED: Final = 3  # its job ids are still being sent


@final
class Batch:
    """A batch counts the jobs that finish. Each open member is a row of its own and `pending` is
    the number of these rows, so each finish is counted once. A callback is empty or has layout
    ops.FOLLOWER_LAYOUT."""

    def __init__(self, id: str) -> None:
        self.id = id
        # <generated: init BATCH>
        self.on_success: bytes = b""
        self.on_complete: bytes = b""
        self.on_death: bytes = b""
        self.created_ns: int = 0
        self.finished_ns: int = 0  # when the last member finished; no job can join after that
        self.total: int = 0
        self.pending: int = 0
        self.succeeded: int = 0
        self.failed: int = 0
        # </generated>


@final
class Ended:
    """A job that has finished and whose effects on other jobs are still to be applied."""

    def __init__(self, job: Job, state: int, result: bytes = b"", step: bytes = b"") -> None:
        self.job = job
        self.state = state  # COMPLETED, DEAD, CANCELLED, or states.NOWHERE (deleted)
        self.result = result  # the result in the ack
        self.step = step  # the chain step in the ack, layout ops.STEP_LAYOUT


@final
class ErrorRecord:
    """One failed attempt. `error` and `backtrace` are JSON string texts as received."""

    def __init__(self, attempt: int, kind: int, error: bytes, backtrace: bytes, at_ns: int) -> None:
        self.attempt = attempt
        self.kind = kind
        self.error = error
        self.backtrace = backtrace
        self.at_ns = at_ns


@final
class BulkOperation:
    """A bulk operation: a clear, the deletion of a queue, or an action on many jobs. It proceeds in
    steps, a bounded number of jobs in each entry. `counts` are by OUTCOMES."""

    def __init__(self, id: str, kind: int) -> None:
        self.id = id
        # <generated: init OPERATION>
        self.kind: int = kind  # an index of OPERATION_KINDS
        self.state: int = OPERATION_RUNNING
        self.queue_number: int = 0  # of a clear or the deletion of a queue
        self.queue: str = ""
        self.action: int = 0  # an index of ACTIONS
        self.arguments: bytes = b""  # record ACTION
        self.total: int = 0  # jobs in the set when the operation was accepted
        self.counts: list[int] = [0] * len(OUTCOMES)  # by OUTCOMES
        self.next_chunk: int = 0  # of an operation on given jobs: the next chunk of ids
        self.chunks: int = 0  # chunks of results, from 0
        self.cut_numbers: list[int] = []  # numbers of the queues with a cut
        self.cut_seqs: list[int] = []  # only jobs with a seq below that of their queue's cut
        self.family: int = 0  # family of index rows that it scans
        self.cursor: bytes = b""  # next key of the scan
        self.round_changed: bool = False  # the current round of the scan has changed a job
        self.rounds: int = 0  # complete scans of all families
        self.undoes: str = ""  # id of the operation that this one undoes
        self.undone_by: str = ""  # id of the undo of this operation
        self.created_ns: int = 0
        self.updated_ns: int = 0
        self.finished_ns: int = 0
        # </generated>
        # Numbers of queues, ascending, and the seqs of their cuts; None = not read yet.
        self.cuts: tuple[list[int], list[int]] | None = None

    def running(self) -> bool:
        """Return whether the operation has steps left."""
        return self.state == OPERATION_RUNNING

    def processed(self) -> int:
        """Return how many jobs were processed so far."""
        return sum(self.counts)


@final
class LogBlock:
    """A block of log lines of one attempt. Its lines are kept and dropped together."""

    def __init__(self, first_seq: int, attempt: int) -> None:
        self.first_seq = first_seq
        self.attempt = attempt
        self.count: int = 0
        self.size: int = 0
        self.dropped: int = 0  # lines of this attempt that were dropped before this block


@final
class Log:
    """The log lines of a job that are kept. Each line has a number, `seq`, from 1 on."""

    def __init__(self) -> None:
        self.next_seq: int = 1
        self.dropped: int = 0  # dropped lines of attempts that have no block left
        self.blocks: list[LogBlock] = []

    def dropped_of(self, attempt: int) -> int:
        """Return how many lines of an attempt (0 = of all attempts) were dropped."""
        count = 0 if attempt else self.dropped
        for block in self.blocks:
            if attempt in (0, block.attempt):
                count += block.dropped
        return count


@final
class LogLine:
    """One log line. `message` is a JSON string text as received."""

    def __init__(self, seq: int, attempt: int, level: int, at_ns: int, message: bytes) -> None:
        self.seq = seq
        self.attempt = attempt
        self.level = level
        self.at_ns = at_ns
        self.message = message


@final
class UniqueLock:
    """A unique lock that has not expired."""

    def __init__(self, queue: str, key: bytes, holder: Job, expires_ns: int) -> None:
        self.queue = queue
        self.key = key
        self.holder = holder
        self.expires_ns = expires_ns  # 0 = the mode alone decides


# Results of ops. A rejected op has a CorvoError as its result.


class Enqueued:
    """Result of Enqueue, and of each item of EnqueueBatch."""

    def __init__(self, job_id: str, state: int, duplicate: bool, result: bytes) -> None:
        self.job_id = job_id
        self.state = state  # state of the new job, or of the job that holds the unique key
        self.duplicate = duplicate
        self.result = result  # result of the holder if it has completed


@final
class EnqueuedBatch:
    """Result of EnqueueBatch: one Enqueued for each job, and the id of the new batch."""

    def __init__(self, jobs: list[Enqueued], batch_id: str) -> None:
        self.jobs = jobs
        self.batch_id = batch_id


class Fetched:
    """One delivered job, with all fields of the reply, so that later ops cannot change the
    reply."""

    def __init__(self, job: Job, queue: str, token: str) -> None:
        self.job_id = job.id
        self.queue = queue
        self.payload = job.payload
        self.tags = job.tags
        self.checkpoint = job.checkpoint
        self.attempt = job.attempt
        self.max_retries = job.max_retries
        self.schedule_id = job.schedule_id
        self.schedule_occurrence_ns = job.schedule_occurrence_ns
        self.lease_ns = job.lease_ns
        self.fencing = job.fencing
        self.token = token
        self.feedback = b"" if job.options is None else job.options.feedback
        self.result_schema = b"" if job.options is None else job.options.result_schema


@final
class Failed:
    """Result of Fail. `state` is RETRYING even if the job became pending at once."""

    def __init__(self, state: int, next_attempt_ns: int, attempts_remaining: int) -> None:
        self.state = state
        self.next_attempt_ns = next_attempt_ns
        self.attempts_remaining = attempts_remaining


class Acked:
    """Result of AckBatch: how many jobs completed, and the errors of the others by position."""

    def __init__(self) -> None:
        self.count: int = 0
        self.refused: list[tuple[int, CorvoError]] = []


@final
class Logged:
    """Result of AppendLogs: the newest line, and how many lines of this attempt were dropped so
    far."""

    def __init__(self, seq: int, dropped: int) -> None:
        self.seq = seq
        self.dropped = dropped

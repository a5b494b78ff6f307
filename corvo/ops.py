"""The table of ops. An op is the only way to change state.

An op travels inside a log entry as a number and a payload. The payload is one version byte followed
by the fields of the op's row, each of a kind that `corvo.records` defines. Numbers never change,
and fields are only ever appended.

To add an op, write its row here, and its apply function in a module of `corvo.fsm.ops`, where it
also gets a line in `APPLY`.
"""

from typing import Final

from corvo import records
from corvo.records import Field, Record, layout, names

# Order inside an entry: lease ops first, then everything else, fetches last.
LEASES: Final = 0
OTHERS: Final = 1
FETCHES: Final = 2


class Op:
    """One row of the table. The layout is empty while the op is not implemented."""

    def __init__(
        self,
        number: int,
        name: str,
        fields: Record,
        order: int,
        result: str,
        meaning: str,
        takes_key: bool,
        adds_work: bool,
        ends_leases: bool,
    ) -> None:
        self.number = number
        self.name = name
        self.fields = fields
        self.layout: str = layout(fields)
        self.names: tuple[str, ...] = names(fields)
        self.order = order
        # Types of its results, names of `corvo.model` or of Python. A refused op has a CorvoError.
        self.result = result
        self.meaning = meaning
        self.built: bool = len(fields) > 0
        # Its outcome can be kept for an idempotency key. Fetches and heartbeats give each request
        # an answer of its own, and apply checks what the leader proposes by itself.
        self.takes_key = takes_key
        # Refused first when memory or disk runs short; everything else (acks, deletes) frees
        # something or is small.
        self.adds_work = adds_work
        # Jobs can become fetchable in a queue that was at its limit.
        self.ends_leases = ends_leases

    def position(self, name: str) -> int:
        """The position of a field."""
        return self.names.index(name)


OPS: Final[dict[int, Op]] = {}


def _op(
    number: int,
    name: str,
    order: int,
    result: str,
    meaning: str,
    *fields: Field,
    takes_key: bool,
    adds_work: bool = False,
    ends_leases: bool = False,
) -> Op:
    assert number not in OPS
    row = Op(number, name, fields, order, result, meaning, takes_key, adds_work, ends_leases)
    OPS[number] = row
    return row


_JOB_ID: Final = Field("job_id", "n")
_TOKEN: Final = Field("token", "s", "lease token")
_QUEUE_NAME: Final = Field("name", "n", "of the queue")
_OPERATION_ID: Final = Field("operation_id", "n")
_QUEUES: Final = Field("queues", "S")
_WORKER_ID: Final = Field("worker_id", "s")
_HOSTNAME: Final = Field("hostname", "s")
_LEASE_NS: Final = Field("lease_ns", "u")
_SIZE_MAX: Final = Field("reply_size_max", "u")
_CHECKPOINT: Final = Field("checkpoint", "b")

# Opens every frame; it is never proposed.
STAMP: Final = _op(
    0,
    "Stamp",
    OTHERS,
    "None",
    "The leader's clock, and the seed of the randomness in the entry.",
    Field("stamp_ns", "q"),
    Field("seed", "q"),
    takes_key=False,
)
ENQUEUE: Final = _op(
    1,
    "Enqueue",
    OTHERS,
    "Enqueued",
    "A new job.",
    Field("job_id", "o", "empty only inside a schedule", local=True),
    Field("queue", "n", local=True),
    Field("priority", "u"),
    Field("payload", "b"),
    Field("tags", "b", "JSON object text"),
    Field("max_retries", "u"),
    Field("backoff", "u", "an index of model.BACKOFFS"),
    Field("base_delay_ms", "u"),
    Field("max_delay_ms", "u"),
    Field("jitter_ppm", "u"),
    Field("scheduled_ns", "t", "0 = now"),
    _CHECKPOINT,
    Field("parent_id", "o"),
    Field("unique_key", "b"),
    Field("unique_until", "u", "an index of model.UNIQUE_UNTIL"),
    Field("unique_period_ns", "u"),
    Field("options", "b", "record NEW_JOB_OPTIONS; absent on the fast path", local=True),
    takes_key=True,
    adds_work=True,
)
ENQUEUE_BATCH: Final = _op(
    2,
    "EnqueueBatch",
    OTHERS,
    "EnqueuedBatch",
    "Many jobs, all or none, and their new batch.",
    Field("items", "B", "Enqueue payloads"),
    Field("opening", "b", "record NEW_BATCH; absent = none"),
    takes_key=True,
    adds_work=True,
)
FETCH: Final = _op(
    3,
    "Fetch",
    FETCHES,
    "Fetched | None",
    "Hand out one job.",
    _QUEUES,
    _WORKER_ID,
    _HOSTNAME,
    _LEASE_NS,
    _SIZE_MAX,
    takes_key=False,
)
ACK: Final = _op(
    4,
    "Ack",
    LEASES,
    "None",
    "A job is done.",
    _JOB_ID,
    _TOKEN,
    Field("result", "b"),
    _CHECKPOINT,
    Field("step", "b", "record STEP; absent = the chain continues"),
    takes_key=True,
    ends_leases=True,
)
FAIL: Final = _op(
    5,
    "Fail",
    LEASES,
    "Failed",
    "An attempt has failed.",
    _JOB_ID,
    _TOKEN,
    Field("error", "b", "JSON string text"),
    Field("backtrace", "b", "JSON string text"),
    Field("no_retry", "f"),
    Field("retry_after_ns", "i", "-1 = by backoff"),
    Field("provider_error", "f"),
    takes_key=True,
    ends_leases=True,
)
HEARTBEAT: Final = _op(
    6,
    "Heartbeat",
    LEASES,
    "dict",
    "Extend leases: job id -> ok, cancel or lost.",
    Field("beats", "B", "record BEAT"),
    takes_key=False,
)
RETRY_JOB: Final = _op(
    7,
    "RetryJob",
    OTHERS,
    "None",
    "Run a job again from its first attempt.",
    _JOB_ID,
    takes_key=True,
)
CANCEL_JOB: Final = _op(
    8,
    "CancelJob",
    OTHERS,
    "str",
    "Cancel a job: cancelled or cancelling.",
    _JOB_ID,
    Field("force", "f"),
    takes_key=True,
    ends_leases=True,
)
MOVE_JOB: Final = _op(
    9,
    "MoveJob",
    OTHERS,
    "None",
    "Move a job to another queue.",
    _JOB_ID,
    Field("queue", "n"),
    Field("reset_attempts", "f"),
    Field("keep_priority", "f"),
    takes_key=True,
)
DELETE_JOB: Final = _op(10, "DeleteJob", OTHERS, "None", "Delete a job.", _JOB_ID, takes_key=True)
PAUSE_QUEUE: Final = _op(
    11,
    "PauseQueue",
    OTHERS,
    "None",
    "Hand out no jobs of a queue.",
    _QUEUE_NAME,
    Field("drain", "f", "report when no job is active"),
    takes_key=True,
)
RESUME_QUEUE: Final = _op(
    12,
    "ResumeQueue",
    OTHERS,
    "None",
    "Hand out jobs of a queue again.",
    _QUEUE_NAME,
    takes_key=True,
)
CLEAR_QUEUE: Final = _op(
    13,
    "ClearQueue",
    OTHERS,
    "BulkOperation",
    "Delete the jobs of a queue.",
    _QUEUE_NAME,
    _OPERATION_ID,
    takes_key=True,
)
DELETE_QUEUE: Final = _op(
    14,
    "DeleteQueue",
    OTHERS,
    "BulkOperation",
    "Delete a queue with its jobs.",
    _QUEUE_NAME,
    _OPERATION_ID,
    takes_key=True,
)
SET_CONCURRENCY: Final = _op(
    15,
    "SetConcurrency",
    OTHERS,
    "None",
    "Limit the active jobs of a queue.",
    _QUEUE_NAME,
    Field("limit", "u", "0 = none"),
    takes_key=True,
)
SET_THROTTLE: Final = _op(
    16,
    "SetThrottle",
    OTHERS,
    "None",
    "Limit the rate of a queue.",
    _QUEUE_NAME,
    Field("rate", "u"),
    Field("window_ms", "u"),
    takes_key=True,
)
REMOVE_THROTTLE: Final = _op(
    17,
    "RemoveThrottle",
    OTHERS,
    "None",
    "Remove the rate limit of a queue.",
    _QUEUE_NAME,
    takes_key=True,
)
# The leader no longer proposes the next two; PromoteDue and ExpireLeases name the jobs instead.
PROMOTE: Final = _op(
    18,
    "Promote",
    OTHERS,
    "int",
    "Promote all jobs that are due by a time.",
    Field("now_ns", "t"),
    takes_key=False,
)
RECLAIM: Final = _op(
    19,
    "Reclaim",
    OTHERS,
    "int",
    "End all leases that expire by a time.",
    Field("now_ns", "t"),
    takes_key=False,
)
BULK_ACTION: Final = _op(
    20,
    "BulkAction",
    OTHERS,
    "BulkOperation | list",
    "An action on many jobs: their outcomes when it has no id.",
    Field("operation_id", "o", "empty = keep no record of it"),
    Field("ids", "N", "job ids"),
    Field("everything", "f", "all jobs instead of ids"),
    Field("action", "u", "an index of model.ACTIONS"),
    Field("arguments", "b", "record ACTION"),
    Field("more", "f", "more job ids follow in a BulkAdd"),
    takes_key=True,
)
CLEAN_UNIQUE: Final = _op(
    21,
    "CleanUnique",
    OTHERS,
    "int",
    "Remove expired unique locks.",
    Field("rows", "B", "keys of their rows"),
    takes_key=False,
)
ACK_BATCH: Final = _op(
    23,
    "AckBatch",
    LEASES,
    "Acked",
    "Many jobs are done.",
    Field("acks", "B", "Ack payloads"),
    takes_key=True,
    ends_leases=True,
)
FETCH_BATCH: Final = _op(
    25,
    "FetchBatch",
    FETCHES,
    "list",
    "Hand out jobs.",
    _QUEUES,
    _WORKER_ID,
    _HOSTNAME,
    _LEASE_NS,
    _SIZE_MAX,
    Field("count", "u"),
    takes_key=False,
)
EXPIRE_JOBS: Final = _op(
    46,
    "ExpireJobs",
    OTHERS,
    "int",
    "End jobs that have expired, and holds that have timed out.",
    Field("ids", "N", "job ids"),
    takes_key=False,
)
PURGE_JOBS: Final = _op(
    47,
    "PurgeJobs",
    OTHERS,
    "int",
    "Delete finished jobs past their retention.",
    Field("ids", "N", "job ids"),
    Field("default_ns", "U", "retention by model.END_STATES unless the queue has its own"),
    takes_key=False,
)
SET_SCHEDULE: Final = _op(
    48,
    "SetSchedule",
    OTHERS,
    "Schedule",
    "Create or replace a schedule.",
    Field("schedule_id", "n", local=True),
    Field("revision", "u", "that it was made from; 0 = new", local=True),
    Field("name", "s"),
    Field("cron", "s"),
    Field("timezone", "s"),
    Field("job", "b", "Enqueue payload without id"),
    Field("enabled", "f"),
    Field("overlap", "u", "an index of model.OVERLAPS"),
    Field("catch_up", "u", "an index of model.CATCH_UPS"),
    Field("catch_up_limit", "u"),
    Field("next_ns", "u", "0 = none"),
    takes_key=True,
)
DELETE_SCHEDULE: Final = _op(
    49,
    "DeleteSchedule",
    OTHERS,
    "None",
    "Delete a schedule.",
    Field("schedule_id", "s"),
    takes_key=True,
)
FIRE_SCHEDULE: Final = _op(
    50,
    "FireSchedule",
    OTHERS,
    "int",
    "Create the jobs of due occurrences.",
    Field("runs", "B", "record RUN"),
    takes_key=False,
    adds_work=True,
)
REMOVE_STALE_WORKERS: Final = _op(
    59,
    "RemoveStaleWorkers",
    OTHERS,
    "int",
    "Delete workers without recent requests.",
    Field("cutoff_ns", "q"),
    takes_key=False,
)
TRIM_EVENTS: Final = _op(
    61,
    "TrimEvents",
    OTHERS,
    "None",
    "Drop the oldest event blocks.",
    Field("seq", "u", "drop the blocks that end at or below it"),
    takes_key=False,
)
RELEASE: Final = _op(
    62,
    "Release",
    LEASES,
    "int",
    "Give a job back: its new state.",
    _JOB_ID,
    _TOKEN,
    Field("delay_ns", "u", "0 = none"),
    _CHECKPOINT,
    Field("undelivered", "f", "the delivery never left the server"),
    takes_key=True,
    ends_leases=True,
)
EXPIRE_LEASES: Final = _op(
    63,
    "ExpireLeases",
    OTHERS,
    "int",
    "End leases that have expired.",
    Field("ids", "N", "job ids"),
    takes_key=False,
)
PROMOTE_DUE: Final = _op(
    64,
    "PromoteDue",
    OTHERS,
    "int",
    "Promote jobs that are due.",
    Field("ids", "N", "job ids"),
    takes_key=False,
)
BULK_STEP: Final = _op(
    65,
    "BulkStep",
    OTHERS,
    "BulkOperation | None",
    "Do one step of a bulk operation, or stop it.",
    _OPERATION_ID,
    Field("limit", "u", "most jobs to touch"),
    Field("stop", "f"),
    takes_key=True,
)
SET_GROUP_LIMIT: Final = _op(
    66,
    "SetGroupLimit",
    OTHERS,
    "None",
    "Limit the active jobs of each group of a queue.",
    _QUEUE_NAME,
    Field("limit", "u", "0 = none"),
    takes_key=True,
)
SET_QUEUE_OPTIONS: Final = _op(
    67,
    "SetQueueOptions",
    OTHERS,
    "None",
    "Set retention and aging of a queue.",
    _QUEUE_NAME,
    Field("retention", "U", "by model.END_STATES: 0 = default, else ns + 1; empty = as it is"),
    Field("aging", "u", "aging_after_ns + 1; 0 = leave it as it is"),
    takes_key=True,
)
RUN_SCHEDULE: Final = _op(
    68,
    "RunSchedule",
    OTHERS,
    "Enqueued",
    "Create a job of a schedule by hand.",
    Field("schedule_id", "s"),
    _JOB_ID,
    takes_key=True,
    adds_work=True,
)
APPEND_LOGS: Final = _op(
    69,
    "AppendLogs",
    LEASES,
    "Logged",
    "Append log lines of a job.",
    _JOB_ID,
    _TOKEN,
    Field("lines", "B", "record LINE"),
    takes_key=True,
    adds_work=True,
)
RELEASE_LOCK: Final = _op(
    70,
    "ReleaseLock",
    OTHERS,
    "str",
    "Release a unique lock: the id of the job that held it.",
    Field("queue", "s"),
    Field("key", "b"),
    Field("job_id", "s", "that must hold it; empty = any"),
    takes_key=True,
)
# It has the order of the op inside it.
IDEMPOTENT: Final = _op(
    71,
    "Idempotent",
    OTHERS,
    "object",
    "An op that takes effect once, also when it is repeated.",
    Field("key", "b"),
    Field("fingerprint", "b", "of the request"),
    Field("keep_ns", "u", "how long outcomes are kept"),
    Field("count", "u", "how many outcomes are kept"),
    Field("number", "u", "of the op inside"),
    Field("inner", "b", "payload of the op inside"),
    takes_key=False,
)
PURGE_BATCHES: Final = _op(
    72,
    "PurgeBatches",
    OTHERS,
    "int",
    "Delete batches that finished long ago.",
    Field("ids", "N", "batch ids"),
    Field("keep_ns", "u"),
    takes_key=False,
)
# Every entry resolves some pending dependents; the leader proposes this op so that there is one.
RESOLVE_DEPENDENTS: Final = _op(
    73,
    "ResolveDependents",
    OTHERS,
    "int",
    "Resolve more dependents of finished jobs.",
    Field("job_id", "n", "first finished job with pending dependents"),
    takes_key=False,
)
BULK_ADD: Final = _op(
    74,
    "BulkAdd",
    OTHERS,
    "BulkOperation",
    "More jobs of a bulk operation.",
    _OPERATION_ID,
    Field("ids", "N", "job ids"),
    Field("more", "f", "more job ids follow"),
    takes_key=True,
)
BULK_UNDO: Final = _op(
    75,
    "BulkUndo",
    OTHERS,
    "BulkOperation",
    "Undo a bulk operation.",
    _OPERATION_ID,
    Field("undone_id", "s", "id of the operation to undo"),
    takes_key=True,
)

# Ops that this version does not implement. Their numbers are reserved; an entry with one of them
# stops the node. Two will stay unused: a rate limit drops old grants by itself (22), and every
# entry holds many ops (24).
for _number, _name in (
    (22, "CleanRateLimit"),
    (24, "Multi"),
    (26, "SetBudget"),
    (27, "DeleteBudget"),
    (28, "SetProvider"),
    (29, "DeleteProvider"),
    (30, "SetQueueProvider"),
    (31, "CreateNamespace"),
    (32, "DeleteNamespace"),
    (33, "SetAuthRole"),
    (34, "DeleteAuthRole"),
    (35, "AssignAPIKeyRole"),
    (36, "UnassignAPIKeyRole"),
    (37, "SetSSOSettings"),
    (38, "UpsertAPIKey"),
    (39, "DeleteAPIKey"),
    (40, "InsertAuditLog"),
    (41, "UpdateAPIKeyUsed"),
    (42, "UpsertWebhook"),
    (43, "DeleteWebhook"),
    (44, "UpdateWebhookStatus"),
    (45, "SetNamespaceRateLimit"),
    (51, "SetApprovalPolicy"),
    (52, "DeleteApprovalPolicy"),
    (53, "AddScores"),
    (54, "SetOrg"),
    (55, "UpsertOrgMember"),
    (56, "DeleteOrgMember"),
    (57, "UpsertOrgAPIKey"),
    (58, "DeleteOrgAPIKey"),
    (60, "SetWebhookCursor"),
):
    _op(_number, _name, OTHERS, "", "", takes_key=False)

# Layouts of records inside ops.
OPTIONS_LAYOUT: Final = layout(records.NEW_JOB_OPTIONS)
ACTION_LAYOUT: Final = layout(records.ACTION)
CHAIN_LAYOUT: Final = layout(records.CHAIN)
FOLLOWER_LAYOUT: Final = layout(records.FOLLOWER)
STEP_LAYOUT: Final = layout(records.STEP)
BATCH_LAYOUT: Final = layout(records.NEW_BATCH)
BEAT_LAYOUT: Final = layout(records.BEAT)
LINE_LAYOUT: Final = layout(records.LINE)
RUN_LAYOUT: Final = layout(records.RUN)

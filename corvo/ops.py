"""Everything that can happen: the table of ops.

An op is the only way to change state. It travels inside a log entry as a number and a payload;
the payload is one version byte followed by the fields of its layout (`corvo._fast.codec` says how
each letter is written). Numbers never change, and fields are only ever appended.

Adding an op: give its row a layout and write its apply function in `corvo.fsm`.

Layout letters: `s` text, `b` bytes (empty = absent), `u` unsigned integer, `i` signed integer,
`q` 8 bytes fixed, `t` time (unix ns, up to the year 9999, which 8 bytes cannot hold), `f` flag,
`S` list of texts, `B` list of bytes (payloads of another op).
"""

from typing import Final

# Order inside an entry: lease ops first, then everything else, fetches last.
LEASES: Final = 0
OTHERS: Final = 1
FETCHES: Final = 2


class Op:
    """One row of the table. The layout is empty while the op is not built."""

    def __init__(self, number: int, name: str, layout: str, order: int) -> None:
        self.number = number
        self.name = name
        self.layout = layout
        self.order = order
        self.built: bool = layout != ""


OPS: Final[dict[int, Op]] = {}


def _op(number: int, name: str, layout: str, order: int = OTHERS) -> Op:
    assert number not in OPS
    row = Op(number, name, layout, order)
    OPS[number] = row
    return row


# Opens every frame: the leader's stamp (unix ns) and the seed all randomness of the entry is
# drawn from. Nobody proposes it.
STAMP: Final = _op(0, "Stamp", "qq")  # stamp_ns, seed

# job_id, queue, priority, payload, tags (JSON object text), max_retries, backoff (an index of
# model.BACKOFFS), base_delay_ms, max_delay_ms, jitter_ppm, scheduled_ns (0 = now), checkpoint,
# parent_id, unique_key, unique_until (an index of model.UNIQUE_UNTIL), unique_period_ns,
# extras (layout EXTRAS_LAYOUT; absent on the plain path)
ENQUEUE: Final = _op(1, "Enqueue", "ssubbuuuuutbsbuub")
ENQUEUE_BATCH: Final = _op(2, "EnqueueBatch", "B")  # Enqueue payloads
# queues, worker_id, hostname, lease_ns, reply_size_max
FETCH: Final = _op(3, "Fetch", "Sssuu", FETCHES)
# job_id, lease_token, result, checkpoint
ACK: Final = _op(4, "Ack", "ssbb", LEASES)
# job_id, lease_token, error (JSON string text), backtrace (JSON string text), no_retry,
# retry_after_ns (-1 = by backoff), provider_error
FAIL: Final = _op(5, "Fail", "ssbbfif", LEASES)
HEARTBEAT: Final = _op(6, "Heartbeat", "B", LEASES)  # beats, layout BEAT_LAYOUT
RETRY_JOB: Final = _op(7, "RetryJob", "s")
CANCEL_JOB: Final = _op(8, "CancelJob", "sf")  # job_id, force
DELETE_JOB: Final = _op(10, "DeleteJob", "s")
PAUSE_QUEUE: Final = _op(11, "PauseQueue", "s")
RESUME_QUEUE: Final = _op(12, "ResumeQueue", "s")
SET_CONCURRENCY: Final = _op(15, "SetConcurrency", "su")  # queue, max (0 removes)
ACK_BATCH: Final = _op(23, "AckBatch", "B", LEASES)  # Ack payloads
# queues, worker_id, hostname, lease_ns, reply_size_max, count
FETCH_BATCH: Final = _op(25, "FetchBatch", "Sssuuu", FETCHES)
# schedule_id, revision it was made from (0 = new), name, cron, timezone, job (an Enqueue payload
# without id), enabled, overlap (an index of model.OVERLAPS), catch_up (an index of
# model.CATCH_UPS), catch_up_limit, next_ns (0 = none)
SET_SCHEDULE: Final = _op(48, "SetSchedule", "susssbfuuuu")
DELETE_SCHEDULE: Final = _op(49, "DeleteSchedule", "s")  # schedule_id
FIRE_SCHEDULE: Final = _op(50, "FireSchedule", "B")  # firings, layout FIRING_LAYOUT
REMOVE_STALE_WORKERS: Final = _op(59, "RemoveStaleWorkers", "q")  # cutoff_ns
TRIM_EVENTS: Final = _op(61, "TrimEvents", "u")  # drop the blocks that end at or below this seq
# job_id, lease_token, delay_ns (0 = none), checkpoint
RELEASE: Final = _op(62, "Release", "ssub", LEASES)
EXPIRE_LEASES: Final = _op(63, "ExpireLeases", "S")  # job_ids
PROMOTE_DUE: Final = _op(64, "PromoteDue", "S")  # job_ids
RUN_SCHEDULE: Final = _op(68, "RunSchedule", "ss")  # schedule_id, job_id

# Ops that this version does not have. Their numbers are taken all the same; an entry that holds one
# stops the node.
for _number, _name in (
    (9, "MoveJob"),
    (13, "ClearQueue"),
    (14, "DeleteQueue"),
    (16, "SetThrottle"),
    (17, "RemoveThrottle"),
    (18, "Promote"),
    (19, "Reclaim"),
    (20, "BulkAction"),
    (21, "CleanUnique"),
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
    (46, "ExpireJobs"),
    (47, "PurgeJobs"),
    (51, "SetApprovalPolicy"),
    (52, "DeleteApprovalPolicy"),
    (53, "AddScores"),
    (54, "SetOrg"),
    (55, "UpsertOrgMember"),
    (56, "DeleteOrgMember"),
    (57, "UpsertOrgAPIKey"),
    (58, "DeleteOrgAPIKey"),
    (60, "SetWebhookCursor"),
    (65, "BulkStep"),
    (66, "SetGroupLimit"),
    (67, "SetQueueOptions"),
):
    _op(_number, _name, "")

# What only some new jobs have: group_key, expire_after_ns (0 = never), batch_id, chain_id,
# chain_step, chain (JSON text), depends_on, on_dependency_failure (an index of
# model.ON_DEPENDENCY_FAILURE), hold (whether to start held), hold_reason, hold_timeout_ns (0 =
# none), hold_action (an index of model.HOLD_ACTIONS), result_schema (JSON text)
EXTRAS_LAYOUT: Final = "sussibSufsuub"
# One job of a Heartbeat: job_id, lease_token, progress, checkpoint.
BEAT_LAYOUT: Final = "ssbb"
# One slot of a FireSchedule: schedule_id, revision, due_ns (the next run that is stored), slot_ns
# (0 = none: it was missed), next_ns.
FIRING_LAYOUT: Final = "suuuu"

"""Everything that can happen: the table of ops.

An op is the only way to change state. It travels inside a log entry as a number and a payload;
the payload is one version byte followed by the fields of its layout (`corvo._fast.codec` says how
each letter is written). Numbers and the CB1 frame are the contract (spec/ops.md 1.1, D36); layouts
are ours, fields are only ever appended.

Adding an op: mark its row as built by giving it a layout and an order class, and write its apply
function in `corvo.fsm`.

Layout letters: `s` text, `b` bytes (empty = absent), `u` unsigned integer, `i` signed integer,
`q` 8 bytes fixed, `t` time (unix ns, up to the year 9999, which 8 bytes cannot hold), `f` flag,
`S` list of texts, `B` list of bytes (payloads of another op).
"""

from typing import Final, final

# Order inside an entry (design 5): lease ops first, then everything else, fetches last.
LEASE: Final = 0
OTHER: Final = 1
FETCH_CLASS: Final = 2


@final
class Op:
    """One row of the table. `layout` is empty while the op is not built."""

    def __init__(self, number: int, name: str, order: int, layout: str) -> None:
        self.number = number
        self.name = name
        self.order = order
        self.layout = layout

    @property
    def built(self) -> bool:
        return self.layout != ""


OPS: Final[dict[int, Op]] = {}


def _op(number: int, name: str, layout: str = "", order: int = OTHER) -> Op:
    assert number not in OPS
    row = Op(number, name, order, layout)
    OPS[number] = row
    return row


# Opens every frame: the leader's stamp (unix ns) and the seed all randomness of the entry is
# drawn from. Number 0 is ours.
STAMP: Final = _op(0, "Stamp", "qq")  # stamp_ns, seed

# job_id, queue, priority, payload, tags (JSON object text), max_retries, backoff (an index of
# model.BACKOFFS), base_delay_ms, max_delay_ms, jitter_ppm, scheduled_ns (0 = now), checkpoint,
# parent_id, unique_key, unique_until (an index of model.UNIQUE_UNTIL), unique_period_ns
ENQUEUE: Final = _op(1, "Enqueue", "ssubbuuuuutbsbuu")
ENQUEUE_BATCH: Final = _op(2, "EnqueueBatch", "B")  # Enqueue payloads
# queues, worker_id, hostname, lease_ns, reply_size_max
FETCH: Final = _op(3, "Fetch", "Sssuu", FETCH_CLASS)
# job_id, lease_token, result, checkpoint
ACK: Final = _op(4, "Ack", "ssbb", LEASE)
# job_id, lease_token, error (JSON string text), backtrace (JSON string text), no_retry,
# retry_after_ns (-1 = by backoff), provider_error
FAIL: Final = _op(5, "Fail", "ssbbfif", LEASE)
HEARTBEAT: Final = _op(6, "Heartbeat", "B", LEASE)  # beats, layout BEAT_LAYOUT
RETRY_JOB: Final = _op(7, "RetryJob", "s")
CANCEL_JOB: Final = _op(8, "CancelJob", "sf")  # job_id, force
MOVE_JOB: Final = _op(9, "MoveJob")
DELETE_JOB: Final = _op(10, "DeleteJob", "s")
PAUSE_QUEUE: Final = _op(11, "PauseQueue", "s")
RESUME_QUEUE: Final = _op(12, "ResumeQueue", "s")
CLEAR_QUEUE: Final = _op(13, "ClearQueue")
DELETE_QUEUE: Final = _op(14, "DeleteQueue")
SET_CONCURRENCY: Final = _op(15, "SetConcurrency", "su")  # queue, max (0 removes)
SET_THROTTLE: Final = _op(16, "SetThrottle")
REMOVE_THROTTLE: Final = _op(17, "RemoveThrottle")
PROMOTE: Final = _op(18, "Promote")
RECLAIM: Final = _op(19, "Reclaim")
BULK_ACTION: Final = _op(20, "BulkAction")
CLEAN_UNIQUE: Final = _op(21, "CleanUnique")
CLEAN_RATE_LIMIT: Final = _op(22, "CleanRateLimit")
ACK_BATCH: Final = _op(23, "AckBatch", "B", LEASE)  # Ack payloads
MULTI: Final = _op(24, "Multi")
# queues, worker_id, hostname, lease_ns, reply_size_max, count
FETCH_BATCH: Final = _op(25, "FetchBatch", "Sssuuu", FETCH_CLASS)
SET_BUDGET: Final = _op(26, "SetBudget")
DELETE_BUDGET: Final = _op(27, "DeleteBudget")
SET_PROVIDER: Final = _op(28, "SetProvider")
DELETE_PROVIDER: Final = _op(29, "DeleteProvider")
SET_QUEUE_PROVIDER: Final = _op(30, "SetQueueProvider")
CREATE_NAMESPACE: Final = _op(31, "CreateNamespace")
DELETE_NAMESPACE: Final = _op(32, "DeleteNamespace")
SET_AUTH_ROLE: Final = _op(33, "SetAuthRole")
DELETE_AUTH_ROLE: Final = _op(34, "DeleteAuthRole")
ASSIGN_API_KEY_ROLE: Final = _op(35, "AssignAPIKeyRole")
UNASSIGN_API_KEY_ROLE: Final = _op(36, "UnassignAPIKeyRole")
SET_SSO_SETTINGS: Final = _op(37, "SetSSOSettings")
UPSERT_API_KEY: Final = _op(38, "UpsertAPIKey")
DELETE_API_KEY: Final = _op(39, "DeleteAPIKey")
INSERT_AUDIT_LOG: Final = _op(40, "InsertAuditLog")
UPDATE_API_KEY_USED: Final = _op(41, "UpdateAPIKeyUsed")
UPSERT_WEBHOOK: Final = _op(42, "UpsertWebhook")
DELETE_WEBHOOK: Final = _op(43, "DeleteWebhook")
UPDATE_WEBHOOK_STATUS: Final = _op(44, "UpdateWebhookStatus")
SET_NAMESPACE_RATE_LIMIT: Final = _op(45, "SetNamespaceRateLimit")
EXPIRE_JOBS: Final = _op(46, "ExpireJobs")
PURGE_JOBS: Final = _op(47, "PurgeJobs")
# schedule_id, revision it was made from (0 = new), name, cron, timezone, job (an Enqueue payload
# without id), enabled, overlap (an index of model.OVERLAPS), catch_up (an index of
# model.CATCH_UPS), catch_up_limit, next_ns (0 = none)
SET_SCHEDULE: Final = _op(48, "SetSchedule", "susssbfuuuu")
DELETE_SCHEDULE: Final = _op(49, "DeleteSchedule", "s")  # schedule_id
FIRE_SCHEDULE: Final = _op(50, "FireSchedule", "B")  # firings, layout FIRING_LAYOUT
SET_APPROVAL_POLICY: Final = _op(51, "SetApprovalPolicy")
DELETE_APPROVAL_POLICY: Final = _op(52, "DeleteApprovalPolicy")
ADD_SCORES: Final = _op(53, "AddScores")
SET_ORG: Final = _op(54, "SetOrg")
UPSERT_ORG_MEMBER: Final = _op(55, "UpsertOrgMember")
DELETE_ORG_MEMBER: Final = _op(56, "DeleteOrgMember")
UPSERT_ORG_API_KEY: Final = _op(57, "UpsertOrgAPIKey")
DELETE_ORG_API_KEY: Final = _op(58, "DeleteOrgAPIKey")
REMOVE_STALE_WORKERS: Final = _op(59, "RemoveStaleWorkers", "q")  # cutoff_ns
SET_WEBHOOK_CURSOR: Final = _op(60, "SetWebhookCursor")
TRIM_EVENTS: Final = _op(61, "TrimEvents", "u")  # drop the blocks that end at or below this seq
# job_id, lease_token, delay_ns (0 = none), checkpoint
RELEASE: Final = _op(62, "Release", "ssub", LEASE)
EXPIRE_LEASES: Final = _op(63, "ExpireLeases", "S")  # job_ids
PROMOTE_DUE: Final = _op(64, "PromoteDue", "S")  # job_ids
BULK_STEP: Final = _op(65, "BulkStep")
SET_GROUP_LIMIT: Final = _op(66, "SetGroupLimit")
SET_QUEUE_OPTIONS: Final = _op(67, "SetQueueOptions")
RUN_SCHEDULE: Final = _op(68, "RunSchedule", "ss")  # schedule_id, job_id

# One job of a Heartbeat: job_id, lease_token, progress, checkpoint.
BEAT_LAYOUT: Final = "ssbb"
# One slot of a FireSchedule: schedule_id, revision, due_ns (the next run that is stored), slot_ns
# (0 = none: it was missed), next_ns.
FIRING_LAYOUT: Final = "suuuu"

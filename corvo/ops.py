"""The table of ops. An op is the only way to change state.

An op travels inside a log entry as a number and a payload. The payload is one version byte followed
by the fields of the op's layout (`corvo._fast.codec.layouts` defines the encoding of each letter).
Numbers never change, and fields are only ever appended.

To add an op, add a row with a layout here and an apply function in `corvo.fsm.ops`.

Layout letters: `s` text, `b` bytes (empty = absent), `u` unsigned integer, `i` signed integer,
`q` 8 bytes fixed, `t` time (unix ns, up to the year 9999, which 8 bytes cannot hold), `f` flag,
`S` list of texts, `B` list of bytes (payloads of another op).
"""

from typing import Final

# Order inside an entry: ops on leases first, then all other ops, fetches last.
LEASES: Final = 0
OTHERS: Final = 1
FETCHES: Final = 2

_ADD_WORK: Final = frozenset(
    ("Enqueue", "EnqueueBatch", "FireSchedule", "RunSchedule", "AppendLogs")
)
_END_LEASES: Final = frozenset(("Ack", "AckBatch", "Fail", "Release", "CancelJob"))


class Op:
    """One row of the table. The layout is empty while the op is not implemented."""

    def __init__(self, number: int, name: str, layout: str, order: int) -> None:
        self.number = number
        self.name = name
        self.layout = layout
        self.order = order
        self.built: bool = layout != ""
        # These ops are rejected first when memory or disk runs short. All other ops (acks, deletes)
        # free space or are small.
        self.adds_work: bool = name in _ADD_WORK
        self.ends_leases: bool = name in _END_LEASES


OPS: Final[dict[int, Op]] = {}


def _op(number: int, name: str, layout: str, order: int = OTHERS) -> Op:
    assert number not in OPS
    row = Op(number, name, layout, order)
    OPS[number] = row
    return row


# The first op of every entry: the leader's stamp (unix ns) and the random seed of the entry. Only
# the leader adds it; no request proposes it.
STAMP: Final = _op(0, "Stamp", "qq")  # stamp_ns, seed

# job_id, queue, priority, payload, tags (JSON object text), max_retries, backoff (an index of
# model.BACKOFFS), base_delay_ms, max_delay_ms, jitter_ppm, scheduled_ns (0 = now), checkpoint,
# parent_id, unique_key, unique_until (an index of model.UNIQUE_UNTIL), unique_period_ns,
# options (layout OPTIONS_LAYOUT; absent on the fast path), delay_ns (from the stamp of the entry;
# 0 = scheduled_ns counts)
ENQUEUE: Final = _op(1, "Enqueue", "ssubbuuuuutbsbuubu")
# Enqueue payloads, the new batch (layout BATCH_LAYOUT; absent = none)
ENQUEUE_BATCH: Final = _op(2, "EnqueueBatch", "Bb")
# queues, worker_id, hostname, lease_ns, reply_size_max
FETCH: Final = _op(3, "Fetch", "Sssuu", FETCHES)
# job_id, lease_token, result, checkpoint, chain step (layout STEP_LAYOUT; absent = continue)
ACK: Final = _op(4, "Ack", "ssbbb", LEASES)
# job_id, lease_token, error (JSON string text), backtrace (JSON string text), no_retry,
# retry_after_ns (-1 = by backoff), provider_error
FAIL: Final = _op(5, "Fail", "ssbbfif", LEASES)
HEARTBEAT: Final = _op(6, "Heartbeat", "B", LEASES)  # beats, layout BEAT_LAYOUT
RETRY_JOB: Final = _op(7, "RetryJob", "s")
CANCEL_JOB: Final = _op(8, "CancelJob", "sf")  # job_id, force
# job_id, queue, reset_attempts, keep_priority
MOVE_JOB: Final = _op(9, "MoveJob", "ssff")
DELETE_JOB: Final = _op(10, "DeleteJob", "s")
PAUSE_QUEUE: Final = _op(11, "PauseQueue", "sf")  # queue, drain (report when no job is active)
RESUME_QUEUE: Final = _op(12, "ResumeQueue", "s")
# queue, operation_id: the bulk operation that deletes the jobs
CLEAR_QUEUE: Final = _op(13, "ClearQueue", "ss")
DELETE_QUEUE: Final = _op(14, "DeleteQueue", "ss")
SET_CONCURRENCY: Final = _op(15, "SetConcurrency", "su")  # queue, max (0 removes)
SET_THROTTLE: Final = _op(16, "SetThrottle", "suu")  # queue, rate, window_ms
REMOVE_THROTTLE: Final = _op(17, "RemoveThrottle", "s")  # queue
# All jobs that are due at a time. The leader no longer proposes these two ops; PromoteDue and
# ExpireLeases name the jobs instead.
PROMOTE: Final = _op(18, "Promote", "t")  # now_ns
RECLAIM: Final = _op(19, "Reclaim", "t")  # now_ns
# operation_id (empty = keep no record), job_ids, all (instead of job_ids), action (an index of
# model.ACTIONS), arguments (layout ACTION_LAYOUT)
BULK_ACTION: Final = _op(20, "BulkAction", "sSfubf")
CLEAN_UNIQUE: Final = _op(21, "CleanUnique", "B")  # row keys of expired locks
ACK_BATCH: Final = _op(23, "AckBatch", "B", LEASES)  # Ack payloads
# queues, worker_id, hostname, lease_ns, reply_size_max, count
FETCH_BATCH: Final = _op(25, "FetchBatch", "Sssuuu", FETCHES)
EXPIRE_JOBS: Final = _op(46, "ExpireJobs", "S")  # job_ids
# job_ids, default retention for each state of model.END_STATES (a queue may have its own)
PURGE_JOBS: Final = _op(47, "PurgeJobs", "SU")
# schedule_id, expected revision (0 = new), name, cron, timezone, job (an Enqueue payload without
# id), enabled, overlap (an index of model.OVERLAPS), catch_up (an index of model.CATCH_UPS),
# catch_up_limit, next_ns (0 = none)
SET_SCHEDULE: Final = _op(48, "SetSchedule", "susssbfuuuu")
DELETE_SCHEDULE: Final = _op(49, "DeleteSchedule", "s")  # schedule_id
FIRE_SCHEDULE: Final = _op(50, "FireSchedule", "B")  # runs, layout RUN_LAYOUT
REMOVE_STALE_WORKERS: Final = _op(59, "RemoveStaleWorkers", "q")  # cutoff_ns
TRIM_EVENTS: Final = _op(61, "TrimEvents", "u")  # drop the blocks that end at or below this seq
# job_id, lease_token, delay_ns (0 = none), checkpoint, unsent (the delivery never left the server)
RELEASE: Final = _op(62, "Release", "ssubf", LEASES)
EXPIRE_LEASES: Final = _op(63, "ExpireLeases", "S")  # job_ids
PROMOTE_DUE: Final = _op(64, "PromoteDue", "S")  # job_ids
BULK_STEP: Final = _op(65, "BulkStep", "suf")  # operation_id, job limit, stop
SET_GROUP_LIMIT: Final = _op(66, "SetGroupLimit", "su")  # queue, max per group (0 removes)
# queue, retention for each state of model.END_STATES (0 = the server's setting, else the time plus
# 1 ns; empty list = unchanged), aging_after_ns + 1 (0 = unchanged)
SET_QUEUE_OPTIONS: Final = _op(67, "SetQueueOptions", "sUu")
RUN_SCHEDULE: Final = _op(68, "RunSchedule", "ss")  # schedule_id, job_id
# job_id, lease_token, lines (layout LINE_LAYOUT)
APPEND_LOGS: Final = _op(69, "AppendLogs", "ssB", LEASES)
# queue, unique_key, job_id that must hold the key (empty = any holder)
RELEASE_LOCK: Final = _op(70, "ReleaseLock", "sbs")
# key, fingerprint of the request, retention of outcomes (ns), most outcomes kept, number and
# payload of the inner op, which takes effect once; the order is that of the inner op
IDEMPOTENT: Final = _op(71, "Idempotent", "bbuuub")
PURGE_BATCHES: Final = _op(72, "PurgeBatches", "Su")  # batch_ids, keep_ns
# job_id of the first finished job with pending dependents. Every entry resolves some of them; the
# leader proposes this op so that there is an entry.
RESOLVE_DEPENDENTS: Final = _op(73, "ResolveDependents", "s")
BULK_ADD: Final = _op(74, "BulkAdd", "sSf")  # operation_id, more job ids, whether more follow
BULK_UNDO: Final = _op(75, "BulkUndo", "ss")  # operation_id of the undo, operation_id to be undone

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
    _op(_number, _name, "")

# Options that most new jobs lack: group_key, expire_after_ns (0 = never), batch_id, chain_id,
# chain_step, chain (layout CHAIN_LAYOUT), depends_on, on_dependency_failure (an index of
# model.ON_DEPENDENCY_FAILURE), hold (whether to start held), hold_reason, hold_timeout_ns (0 =
# none), hold_action (an index of model.HOLD_ACTIONS), result_schema (JSON text)
OPTIONS_LAYOUT: Final = "sussibSufsuub"
# Arguments of an action on jobs: target queue, reset_attempts and keep_priority (move), priority
# (change_priority), force (cancel), reason, by, note, feedback (JSON text), revise (reject),
# hold_timeout_ns (0 = none), hold_action (an index of model.HOLD_ACTIONS), states (bits of
# model.STATES: a bulk operation skips jobs in other states; 0 = any state)
ACTION_LAYOUT: Final = "sffufsssbfuuu"
# A chain: its steps, then the jobs on_failure and on_exit (absent = none), each of layout
# FOLLOWER_LAYOUT.
CHAIN_LAYOUT: Final = "Bbb"
# A job that follows another one: queue, payload (absent = none).
FOLLOWER_LAYOUT: Final = "sb"
# The chain step in an ack: whether the chain ends here, and the reason.
STEP_LAYOUT: Final = "fs"
# A batch: batch_id, on_success, on_complete, on_death (layout FOLLOWER_LAYOUT, absent = none).
BATCH_LAYOUT: Final = "sbbb"
# One job of a Heartbeat: job_id, lease_token, progress, checkpoint.
BEAT_LAYOUT: Final = "ssbb"
# One line of an AppendLogs: level (an index of model.LOG_LEVELS), at_ns, message (JSON string
# text).
LINE_LAYOUT: Final = "utb"
# One run in a FireSchedule: schedule_id, revision, due_ns (the stored next run), occurrence_ns (0 =
# none: it was missed), next_ns.
RUN_LAYOUT: Final = "suuuu"

"""The table of records: every stored record and every record inside an op, one row a field.

A record is written as its fields in the order of its rows (`corvo._fast.codec.layouts` says how
each kind is written). Rows are only ever appended, so a record keeps its bytes. A row that is
appended after a release has a higher `since` than the rows before it. Records of an earlier format
end before that row, and their readers use its default.

Everything that has to know the order of the fields comes from here. The layout strings are made at
import. The attributes in `corvo.model`, their C types in `corvo/model.pxd`, and the readers and
writers are generated: `python -m tools.records` rewrites the regions between `# <generated: ...>`
and `# </generated>`, and `tests/test_tidy.py` fails while a region does not agree with its rows.

Adding a field to a job: append a row to JOB_OPTIONS, and one to NEW_JOB_OPTIONS when producers set
it; run the generator; and add the field to the request body. A row with `json` needs no code to be
shown by GET /jobs/{id}, one with `max` needs none to be checked.

Kinds of fields: `s` text, `n` name (a text that becomes part of a key), `o` optional name, `b`
bytes (empty = absent), `u` unsigned integer, `i` signed integer, `q` signed integer of 8 bytes, `t`
time (unix ns, up to the year 9999, which 8 bytes cannot hold), `f` flag, `S` list of texts, `N`
list of names, `B` list of bytes, `U` list of unsigned integers, `P` list of texts that share their
beginnings. All times are unix nanoseconds (0 = unset).
"""

from typing import Any, Final, NamedTuple

from corvo.limits import GROUP_KEY_SIZE_MAX


class Field(NamedTuple):
    """One field of a record."""

    name: str
    kind: str  # a letter, see above
    meaning: str = ""
    since: int = 1  # format of the record that it came with; never decreases along a record
    default: str = ""  # Python expression, unless it is the zero of its kind
    c_type: str = ""  # unless it is the usual one of its kind
    max: int = 0  # of a plain option of an enqueue: bytes of a text or JSON, or largest number
    json: str = ""  # member of the job document that shows it when it is set
    repeat: int = 0  # number of fields of this kind that are one list in Python
    local: bool = False  # no attribute: the code around the region has a local variable for it


Record = tuple[Field, ...]


def layout(record: Record) -> str:
    """The letters of a record's fields, as the codec takes them."""
    return "".join(field.kind * (field.repeat or 1) for field in record)


def names(record: Record) -> tuple[str, ...]:
    """The names of a record's fields."""
    return tuple(field.name for field in record)


def formats(record: Record) -> list[Record]:
    """The fields of a record in each of its formats, the newest format first."""
    return [
        tuple(field for field in record if field.since <= since)
        for since in sorted({field.since for field in record}, reverse=True)
    ]


def named(record: Record, values: tuple[Any, ...]) -> dict[str, Any]:
    """Decoded values by name, for code that is not hot and needs few of them."""
    return dict(zip(names(record), values, strict=True))


def folded(record: Record, values: tuple[Any, ...]) -> list[Any]:
    """Decoded values with one list for each field that is repeated."""
    result: list[Any] = []
    position = 0
    for field in record:
        if field.repeat:
            result.append(list(values[position : position + field.repeat]))
        else:
            result.append(values[position])
        position += field.repeat or 1
    assert position == len(values)
    return result


_U64: Final = "unsigned long long"

# Jobs.

# Fields that never change after enqueue.
JOB_BODY: Final[Record] = (
    Field("payload", "b"),
    Field("tags", "b"),
    Field("max_retries", "u"),
    Field("backoff", "u", "an index of BACKOFFS"),
    Field("base_delay_ms", "u"),
    Field("max_delay_ms", "u"),
    Field("jitter_ppm", "u"),
    Field("created_ns", "u"),
    Field("parent_id", "s"),
    Field("unique_key", "b"),
    Field("unique_until", "u", "an index of UNIQUE_UNTIL"),
    Field("unique_period_ns", "u", "0 = the mode alone decides"),
    Field("schedule_id", "s", "schedule that created the job"),
    Field("schedule_occurrence_ns", "u", "0 = the schedule was run by hand"),
)
# Fields that transitions rewrite.
JOB_HEAD: Final[Record] = (
    Field("queue_number", "u", c_type=_U64),
    Field("seq", "u", "queue position; changes only on a move to the tail", c_type=_U64),
    Field("priority", "u"),
    Field("state", "u", default="PENDING"),
    Field("attempt", "u"),
    Field("scheduled_ns", "t", "due time of a scheduled or retrying job, else 0"),
    Field("started_ns", "u"),
    Field("completed_ns", "u"),
    Field("failed_ns", "u", "time of the last failure, death or cancellation"),
    Field("cancel_requested_ns", "u"),
    Field("lease_ns", "u", "length granted at fetch"),
    Field("lease_expires_ns", "u"),
    Field("fencing", "u", "number of the live or last lease; it and lease_seed make the token"),
    Field("lease_seed", "i"),
    Field("lease_term", "u", "Raft term in which the lease was granted"),
    Field("lease_touched", "f", "the worker has called since the lease was granted"),
    Field("releases", "u", "releases in a row without progress"),
    Field("worker_id", "s"),
    Field("hostname", "s"),
    Field("error_count", "u"),
    Field("event_seq", "u", "newest event of this job; each event links to the one before it"),
    Field("provider_error", "f", json="provider_error"),
    Field("keeps_position", "f", "scheduled by a release: keeps its seq when promoted"),
    Field("ready_ns", "u", "time at which it first became pending at this position"),
    Field("has_options", "f"),
    # Each of the two has a row of its own when it is too large for that of the head.
    Field("data_apart", "f", "the data has a row of its own: it is large, or once was"),
    Field("data", "b", "JOB_DATA", local=True),
    Field("body", "b", "JOB_BODY", local=True),
    Field("returned_ns", "u", "time at which it last returned to this position; 0 = never", 2),
)
# Data from the worker.
JOB_DATA: Final[Record] = (
    Field("checkpoint", "b"),
    Field("progress", "b"),
    Field("result", "b"),
)
# Options that most jobs lack.
JOB_OPTIONS: Final[Record] = (
    Field("group_key", "s"),
    Field("batch_id", "s"),
    Field("chain_id", "s"),
    Field("chain_step", "i", "from 0; -1 = on_exit, -2 = on_failure"),
    Field("chain", "b", "definition, record CHAIN"),
    Field("depends_on", "S"),
    Field("on_dependency_failure", "u", "an index of ON_DEPENDENCY_FAILURE"),
    Field("result_schema", "b", "JSON text", json="result_schema"),
    Field("expires_ns", "t", "time at which an unfinished job becomes dead; 0 = never"),
    Field("hold_reason", "s"),
    Field("hold_ends_ns", "t", "time at which `hold_action` is taken; 0 = never"),
    Field("hold_action", "u", "an index of HOLD_ACTIONS"),
    Field("feedback", "b", "JSON text: feedback of the person who rejected the job"),
    Field("open_dependencies", "S", "members of `depends_on`; see corvo.fsm.ops.dependencies"),
    Field("has_dependents", "f", "rows name jobs that depend on this one, or once did"),
    Field("has_logs", "f"),
)
# The options of a new job, inside an Enqueue. Where a name is that of a stored option, it is stored
# as it is. A row with `max` is a plain option: it comes from the member of the same name of the
# request, and the check by its kind and `max` is all that it needs.
NEW_JOB_OPTIONS: Final[Record] = (
    Field("group_key", "s", max=GROUP_KEY_SIZE_MAX),
    Field("expire_after_ns", "u", "0 = never", local=True),
    Field("batch_id", "o"),
    Field("chain_id", "s"),
    Field("chain_step", "i"),
    Field("chain", "b", "record CHAIN"),
    Field("depends_on", "N"),
    Field("on_dependency_failure", "u", "an index of ON_DEPENDENCY_FAILURE"),
    Field("hold", "f", "whether to start held", local=True),
    Field("hold_reason", "s"),
    Field("hold_timeout_ns", "u", "0 = none", local=True),
    Field("hold_action", "u", "an index of HOLD_ACTIONS"),
    Field("result_schema", "b", "JSON text"),
)
# The state of a job before a bulk operation, for an undo.
JOB_BEFORE: Final[Record] = (
    Field("queue", "s"),
    Field("state", "u"),
    Field("priority", "u"),
    Field("attempt", "u"),
    Field("releases", "u"),
    Field("scheduled_ns", "t"),
    Field("keeps_position", "f"),
    Field("completed_ns", "u"),
    Field("failed_ns", "u"),
    Field("provider_error", "f"),
    Field("locked", "f", "it held its unique key"),
    Field("expires_ns", "t"),
    Field("hold_reason", "s"),
    Field("hold_ends_ns", "t"),
    Field("hold_action", "u"),
    Field("event_seq", "u", "of the action"),
)
# One failed attempt.
ERROR: Final[Record] = (
    Field("attempt", "u"),
    Field("kind", "u", "an index of ERROR_KINDS"),
    Field("error", "b", "JSON string text"),
    Field("backtrace", "b", "JSON string text"),
    Field("at_ns", "u"),
)
LOCK: Final[Record] = (
    Field("job_id", "s"),
    Field("expires_ns", "t", "0 = the mode alone decides"),
    Field("key", "b", "the whole key"),
)

# Chains, batches, bulk operations.

# A chain: its steps, then the jobs on_failure and on_exit (absent = none).
CHAIN: Final[Record] = (
    Field("steps", "B", "record FOLLOWER"),
    Field("on_failure", "b", "record FOLLOWER"),
    Field("on_exit", "b", "record FOLLOWER"),
)
# A job that follows another one.
FOLLOWER: Final[Record] = (
    Field("queue", "n"),
    Field("payload", "b"),
)
# The chain step in an ack.
STEP: Final[Record] = (
    Field("leaves", "f", "whether the chain ends here"),
    Field("reason", "s"),
)
# A batch that an EnqueueBatch creates.
NEW_BATCH: Final[Record] = (
    Field("batch_id", "n", local=True),
    Field("on_success", "b", "record FOLLOWER"),
    Field("on_complete", "b", "record FOLLOWER"),
    Field("on_death", "b", "record FOLLOWER"),
)
BATCH: Final[Record] = (
    Field("on_success", "b"),
    Field("on_complete", "b"),
    Field("on_death", "b"),
    Field("created_ns", "u"),
    Field("finished_ns", "u", "when the last member finished; no job can join after that"),
    Field("total", "u"),
    Field("pending", "u"),
    Field("succeeded", "u"),
    Field("failed", "u"),
)
OPERATION: Final[Record] = (
    Field("kind", "u", "an index of OPERATION_KINDS", default="kind"),
    Field("state", "u", default="OPERATION_RUNNING"),
    Field("queue_number", "u", "of a clear or the deletion of a queue"),
    Field("queue", "s"),
    Field("action", "u", "an index of ACTIONS"),
    Field("arguments", "b", "record ACTION"),
    Field("total", "u", "jobs in the set when the operation was accepted"),
    Field("counts", "u", "by OUTCOMES", repeat=3, default="[0] * len(OUTCOMES)"),
    Field("next_chunk", "u", "of an operation on given jobs: the next chunk of ids"),
    Field("chunks", "u", "chunks of results, from 0"),
    # Of an operation on all jobs of some states: those with seq below that of their queue's cut.
    # The number 0 stands for cuts in rows of their own, record CUTS; its seq is their number.
    Field("cut_numbers", "U", "numbers of the queues with a cut"),
    Field("cut_seqs", "U", "only jobs with a seq below that of their queue's cut"),
    Field("family", "u", "family of index rows that it scans"),
    Field("cursor", "b", "next key of the scan"),
    Field("round_changed", "f", "the current round of the scan has changed a job"),
    Field("rounds", "u", "complete scans of all families"),
    Field("undoes", "s", "id of the operation that this one undoes"),
    Field("undone_by", "s", "id of the undo of this operation"),
    Field("created_ns", "u"),
    Field("updated_ns", "u"),
    Field("finished_ns", "u"),
)
# Some of the jobs of an operation.
CHUNK: Final[Record] = (
    Field("ids", "S"),
    Field("outcomes", "b", "an index of OUTCOMES for each job; empty until it is done"),
    Field("befores", "B", "record JOB_BEFORE; empty when it cannot be undone"),
)
# The cuts of some queues, for an operation on all jobs.
CUTS: Final[Record] = (
    Field("numbers", "U"),
    Field("seqs", "U"),
)
# The arguments of an action on jobs.
ACTION: Final[Record] = (
    Field("target", "o", "queue of a move"),
    Field("reset_attempts", "f", "of a move"),
    Field("keep_priority", "f", "of a move", default="True"),
    Field("priority", "u", "of a change_priority"),
    Field("force", "f", "of a cancel"),
    Field("reason", "s"),
    Field("by", "s"),
    Field("note", "s"),
    Field("feedback", "b", "JSON text"),
    Field("revise", "f", "of a reject"),
    Field("hold_timeout_ns", "u", "0 = none"),
    Field("hold_action", "u", "an index of HOLD_ACTIONS"),
    Field("states", "u", "bits of STATES: jobs in other states are skipped; 0 = any"),
)

# Queues, workers, schedules.

QUEUE: Final[Record] = (
    Field("number", "u", default="number", c_type=_U64),
    Field("paused", "f"),
    Field("max_concurrency", "u", "0 = no limit", c_type="object"),
    Field("created_ns", "u"),
    Field("next_seq", "u", default="1", c_type=_U64),
    Field("counts", "u", "state * PRIORITIES + priority", repeat=24, default="[0] * QUEUE_COUNTS"),
    Field("enqueued_total", "u"),
    Field("completed_total", "u"),
    Field("failed_total", "u", "failed attempts, with expired leases"),
    Field("dead_total", "u"),
    Field("expired_total", "u", "expired leases"),
    Field("draining", "f", "paused, and some jobs are still active"),
    Field("cleared_seq", "u", "event seq of a clear that still has jobs to delete; 0 = none"),
    Field("destroyed_name", "s", "its name if it is destroyed, else empty", local=True),
    Field(
        "retention_ns",
        "i",
        "retention of finished jobs, by END_STATES; KEEP_DEFAULT = the server's setting",
        repeat=3,
        default="[KEEP_DEFAULT] * len(END_STATES)",
    ),
    Field("rate_limit", "u", "jobs that may start within `rate_window_ns`; 0 = no limit"),
    Field("rate_window_ns", "u"),
    Field("group_concurrency", "u", "active jobs allowed in each group; 0 = no limit"),
    Field("aging_after_ns", "u", "a normal job that waited this long is next; 0 = never"),
    Field("turn", "u", "the last turn taken, see fsm.state.groups", c_type=_U64),
    Field("served", "u", "last turn of the jobs without a group key", c_type=_U64),
)
GROUP: Final[Record] = (
    Field("key", "s"),
    Field("served", "u", "its last turn"),
)
# Jobs of a queue that started at one stamp.
GRANT: Final[Record] = (Field("count", "u"),)
WORKER: Final[Record] = (
    Field("hostname", "s"),
    Field("queues", "S"),
    Field("started_ns", "u"),
    Field("seen_ns", "u"),
)
SCHEDULE: Final[Record] = (
    Field("revision", "u", "number of SetSchedule ops so far"),
    Field("name", "s"),
    Field("cron", "s"),
    Field("timezone", "s"),
    Field("job", "b", "Enqueue payload without id"),
    Field("enabled", "f", default="True"),
    Field("overlap", "u", "an index of OVERLAPS"),
    Field("catch_up", "u", "an index of CATCH_UPS"),
    Field("catch_up_limit", "u"),
    Field("created_ns", "u"),
    Field("next_ns", "u", "time of the next occurrence; 0 = none"),
    Field("last_occurrence_ns", "u", "time of the last occurrence that created a job"),
    Field("last_run_ns", "u", "when the schedule last created a job, also by hand"),
    Field("last_job_id", "s"),
)
# One occurrence of a FireSchedule.
RUN: Final[Record] = (
    Field("schedule_id", "s"),
    Field("revision", "u"),
    Field("due_ns", "u", "the stored next run"),
    Field("occurrence_ns", "u", "0 = none: it was missed"),
    Field("next_ns", "u"),
)

# Logs of jobs.

LOG: Final[Record] = (
    Field("next_seq", "u", default="1"),
    Field("dropped", "u", "dropped lines of attempts that have no block left"),
    Field("first_seqs", "U", "one of each for every block"),
    Field("attempts", "U"),
    Field("counts", "U"),
    Field("sizes", "U"),
    Field("drops", "U"),
)
LOG_BLOCK: Final[Record] = (Field("lines", "B", "record LINE"),)
LINE: Final[Record] = (
    Field("level", "u", "an index of LOG_LEVELS"),
    Field("at_ns", "t"),
    Field("message", "b", "JSON string text"),
)
# One job of a Heartbeat.
BEAT: Final[Record] = (
    Field("job_id", "n"),
    Field("token", "s"),
    Field("progress", "b"),
    Field("checkpoint", "b"),
)

# The whole state.

META: Final[Record] = (
    Field("applied_index", "u"),
    Field("applied_term", "u"),
    Field("cluster_id", "b"),
    Field("stamp_ns", "u", "the state's clock: no later entry has an earlier stamp"),
    Field("fencing", "u", "last number given to a lease"),
    Field("event_seq", "u", "last event written"),
    Field("event_first_seq", "u", "first event that the log still has", default="1"),
    Field("event_log_size", "u", "bytes of all event blocks"),
    Field("next_queue_number", "u", default="1"),
    Field("hash", "b", "rolling hash of all events", default="bytes(HASH_SIZE)"),
    Field("first_idempotency", "u", "oldest idempotency record kept", default="1"),
    Field("next_idempotency", "u", "number of the next idempotency record", default="1"),
    Field("result_schemas", "f", "some job had a result schema: acks check for one"),
    Field("configuration", "b", "members as the log encodes them; empty if no entry has named any"),
)
# Events of one entry, all by column after the first two fields.
EVENT_BLOCK: Final[Record] = (
    Field("at_ns", "u"),
    Field("queues", "S", "names of the queues, each once"),
    Field("types", "U"),
    Field("positions", "U", "of the queue in `queues`"),
    Field("ids", "P", "of the job"),
    Field("distances", "U", "to the previous event of the same job; 0 = none"),
    Field("data", "B"),
)
# The outcome of a request with an idempotency key.
IDEMPOTENCY: Final[Record] = (
    Field("stamp_ns", "u"),
    Field("key", "b"),
    Field("fingerprint", "b", "of the request"),
    Field("outcome", "b"),
)
# Names of records that a flush changed, by family.
OUTBOX: Final[Record] = (
    Field("jobs", "P"),
    Field("batches", "P"),
    Field("queues", "S", "names in the keys of their rows"),
    Field("workers", "S"),
    Field("schedules", "S"),
    Field("locks", "B", "keys of their rows"),
)
OUTBOX_STATE: Final[Record] = (
    Field("epoch", "b"),
    Field("floor", "u"),
)

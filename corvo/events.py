"""Change records: what apply did, in order, as they are read back from the event log, which apply
writes (`corvo.storage.records.events`).

`data` is a JSON object: enqueued `{"state", "priority", "schedule_id"?,
"schedule_occurrence_ns"?}`, started `{"attempt", "worker_id"}`, progress what the worker sent,
failed `{"attempt", "error"?}` (a long error is in its error record only), retrying
`{"attempts_remaining", "next_attempt_ns"}`, dead and reclaimed `{"reason"}`, cancelled, held and
rejected `{"reason"?, "by"?}`, approved `{"reason"?, "by"?, "note"?}`, moved and reprioritized
`{"from", "to"}`, queue.configured `{"max_concurrency"}` or `{"retention_ns"}`, queue.cleared
`{"jobs"}`, schedule.set `{"schedule_id", "revision"}`, schedule.deleted `{"schedule_id"}`,
schedule.skipped `{"schedule_id", "schedule_slot_ns", "reason"}`, undone `{"action"}`; nothing for
the others.
"""

from typing import Final

# Event types, by number (the number is stored; append only).
EVENT_TYPES: Final = (
    "enqueued",
    "promoted",
    "started",
    "progress",
    "completed",
    "failed",
    "retrying",
    "dead",
    "reclaimed",
    "released",
    "cancelling",
    "cancelled",
    "retried",
    "deleted",
    "queue.paused",
    "queue.resumed",
    "queue.configured",
    "schedule.set",
    "schedule.deleted",
    "schedule.skipped",
    "expired",
    "held",
    "approved",
    "rejected",
    "requeued",
    "moved",
    "reprioritized",
    "queue.drained",
    "queue.cleared",
    "queue.deleted",
    "unblocked",
    "unlocked",
    "undone",
)
ENQUEUED: Final = 0
PROMOTED: Final = 1
STARTED: Final = 2
PROGRESS: Final = 3
COMPLETED: Final = 4
FAILED: Final = 5
RETRYING: Final = 6
DEAD: Final = 7
RECLAIMED: Final = 8
RELEASED: Final = 9
CANCELLING: Final = 10
CANCELLED: Final = 11
RETRIED: Final = 12
DELETED: Final = 13
QUEUE_PAUSED: Final = 14
QUEUE_RESUMED: Final = 15
QUEUE_CONFIGURED: Final = 16
SCHEDULE_SET: Final = 17
SCHEDULE_DELETED: Final = 18
SCHEDULE_SKIPPED: Final = 19
EXPIRED: Final = 20
HELD: Final = 21
APPROVED: Final = 22
REJECTED: Final = 23
REQUEUED: Final = 24
MOVED: Final = 25
REPRIORITIZED: Final = 26
QUEUE_DRAINED: Final = 27
QUEUE_CLEARED: Final = 28
QUEUE_DELETED: Final = 29
UNBLOCKED: Final = 30
UNLOCKED: Final = 31  # its unique lock was released by hand
UNDONE: Final = 32  # an action on many jobs was taken back

# Events with which the life of a job ends, unless it is retried.
END_EVENTS: Final = (COMPLETED, DEAD, CANCELLED, DELETED)


class Event:
    """One change record: one event of one job, queue or schedule."""

    def __init__(
        self, seq: int, type: int, job_id: str, queue: str, at_ns: int, data: bytes, previous: int
    ) -> None:
        self.seq = seq
        self.type = type
        self.job_id = job_id  # empty for events of queues and schedules
        self.queue = queue
        self.at_ns = at_ns
        self.data = data  # JSON object text, or empty
        self.previous = previous  # seq of the event before this one of the same job, 0 = none

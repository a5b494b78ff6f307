"""Events: what apply did, in order. Apply writes them to the event log, from which all readers get
them (`corvo.storage.records.events`).

`data` is a JSON object, by event type:

    enqueued           {"state", "priority", "schedule_id"?, "schedule_slot_ns"?}
    started            {"attempt", "worker_id"}
    progress           the JSON value from the worker
    failed             {"attempt", "error"?}; a long error is in its error record only
    retrying           {"attempts_remaining", "next_attempt_ns"}; shown as "next_attempt_at"
    dead, reclaimed    {"reason"}
    cancelled, held, rejected     {"reason"?, "by"?}
    approved           {"reason"?, "by"?, "note"?}
    moved, reprioritized          {"from", "to"}
    queue.configured   the settings that changed, such as {"max_concurrency"}
    queue.cleared      {"jobs"}
    schedule.set       {"schedule_id", "revision"}
    schedule.deleted   {"schedule_id"}
    schedule.skipped   {"schedule_id", "schedule_slot_ns", "reason"}
    undone             {"action"}
    entry.skipped      {"index", "ops"}; without queue and job

All other events have no data.
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
    "entry.skipped",
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
UNLOCKED: Final = 31  # the unique lock was released by hand
UNDONE: Final = 32  # a bulk operation on the job was undone
ENTRY_SKIPPED: Final = 33  # an operator skipped an entry of the log

# Events that end the life of a job, unless it is retried.
END_EVENTS: Final = (COMPLETED, DEAD, CANCELLED, DELETED)


class Event:
    """One event of one job, queue or schedule."""

    def __init__(
        self, seq: int, type: int, job_id: str, queue: str, at_ns: int, data: bytes, previous: int
    ) -> None:
        self.seq = seq
        self.type = type
        self.job_id = job_id  # empty for events of queues and schedules
        self.queue = queue
        self.at_ns = at_ns
        self.data = data  # JSON object text, or empty
        self.previous = previous  # seq of the previous event of the same job, 0 = none

"""The replicated state machine: committed entries in, results, state and change records out."""

from typing import Final, final

from corvo.feed import Change
from corvo.model import ErrorRecord, Job, Queue, Worker


@final
class FlushReport:
    """What one flush wrote: rows, bytes, and the index of the last entry the base now covers."""

    def __init__(self, documents: int, size: int, index: int) -> None:
        self.documents: Final = documents
        self.size: Final = size
        self.index: Final = index


@final
class Machine:
    """See the methods. Objects handed out by reads are live: use them at once, change nothing.

    Attributes to read: applied_index, applied_term, stamp_ns, hash (16 bytes), fencing (number of
    the newest lease), event_seq (newest event), overlay_size (bytes), overlay_documents.
    """

    def __init__(self, base: object) -> None:
        """Open over a `corvo.kv.base.Base` (or MemoryBase); rebuilds the indexes from its rows."""
        self.applied_index = 0
        self.applied_term = 0
        self.stamp_ns = 0
        self.hash = bytes(16)
        self.fencing = 0
        self.event_seq = 0
        self.overlay_size = 0
        self.overlay_documents = 0

    def apply(self, index: int, term: int, data: bytes) -> list[object]:
        """Apply one committed entry and return one result per op after the Stamp.

        Enqueue -> Enqueued; EnqueueBatch -> list[Enqueued | CorvoError]; Fetch -> Fetched | None;
        FetchBatch -> list[Fetched]; Ack -> None; AckBatch -> Acked; Fail -> Failed; Heartbeat ->
        dict id -> "ok" | "cancel" | "lost"; Release -> state (int); RetryJob, DeleteJob -> None;
        CancelJob -> "cancelled" | "cancelling"; PauseQueue, ResumeQueue, SetConcurrency -> None;
        PromoteDue, ExpireLeases, RemoveStaleWorkers -> count (int); TrimEvents -> None.
        A refused op has a CorvoError instance as its result. UnknownOp and StorageError are
        raised: the node must stop.
        """
        raise NotImplementedError

    def take_changes(self) -> list[Change]:
        """Change records since the last call, in order."""
        raise NotImplementedError

    def take_woken(self) -> list[str]:
        """Queues that gained ready work or a free slot since the last call."""
        raise NotImplementedError

    def fetchable(self, queue: str) -> int:
        """Jobs a fetch could get now: min(ready, free slots); 0 when paused or unknown."""
        raise NotImplementedError

    def job(self, job_id: str) -> Job | None:
        raise NotImplementedError

    def queue(self, name: str) -> Queue | None:
        raise NotImplementedError

    def queue_of(self, job: Job) -> Queue:
        raise NotImplementedError

    def queues(self) -> list[Queue]:
        """All queues sorted by name. Counters: Queue.counts[state * 3 + priority]."""
        raise NotImplementedError

    def workers(self) -> list[Worker]:
        """All workers sorted by id."""
        raise NotImplementedError

    def errors(self, job_id: str) -> list[ErrorRecord]:
        """Error records of a job, oldest first."""
        raise NotImplementedError

    def events(self, job_id: str, limit: int = 1000) -> list[Change]:
        """The newest events of a job, oldest of them first; the chain ends where the log was
        trimmed."""
        raise NotImplementedError

    def active_count(self, queue: str) -> int:
        """Live leases of a queue."""
        raise NotImplementedError

    def oldest_ready_ns(self, queue: str, priority: int) -> int:
        """When the first ready job of this priority became ready; 0 when there is none."""
        raise NotImplementedError

    def lease_token(self, job: Job) -> str:
        """Token of the live lease; empty unless the job is active."""
        raise NotImplementedError

    def next_due(self) -> int:
        """Stamp at which the next promotion or lease end is due; 0 when nothing waits. May be
        early (an entry that is no longer live), never late."""
        raise NotImplementedError

    def due_promotions(self, now_ns: int, limit: int) -> list[str]:
        """Ids of scheduled and retrying jobs that are due, for PromoteDue."""
        raise NotImplementedError

    def due_leases(self, now_ns: int, limit: int, grace_fencing: int = 0) -> list[str]:
        """Ids of active jobs whose lease has ended, for ExpireLeases. Leases with fencing <=
        grace_fencing are passed over and set aside until a call with a lower grace_fencing."""
        raise NotImplementedError

    def trim_point(self) -> int:
        """The seq for TrimEvents that brings the event log within its bound; 0 = nothing to do."""
        raise NotImplementedError

    def flush_wanted(self, now_monotonic_ns: int) -> bool:
        """Whether the overlay is large or old enough to be flushed."""
        raise NotImplementedError

    def flush(self) -> FlushReport:
        """Write the overlay to the base in one transaction. Raises DiskFull and then has changed
        nothing: the overlay stays as it is and the flush can be tried again."""
        raise NotImplementedError

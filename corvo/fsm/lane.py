"""A queue with its indexes in memory, all of which are rebuilt from the index rows at start."""

from corvo._fast.ready import SEQ_BITS, ReadyIndex
from corvo.model import PENDING, Queue


class Lane:
    """`ready` are its pending jobs, `active` its live leases, seq -> lease_expires_ns."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.first_place: int = queue.number << SEQ_BITS  # place of a job = this | seq
        self.ready = ReadyIndex()
        self.active: dict[int, int] = {}
        self.woken: bool = False

    def full(self) -> bool:
        """Whether a pause or the concurrency limit keeps its jobs from being fetched."""
        limit = self.queue.max_concurrency
        return self.queue.paused or (limit > 0 and len(self.active) >= limit)

    def fetchable(self, arriving: int = 0, leaving: int = 0) -> int:
        """How many jobs could be fetched now, or with so many more jobs and fewer leases."""
        queue = self.queue
        if queue.paused:
            return 0
        ready = queue.jobs(PENDING) + arriving
        if queue.max_concurrency > 0:
            return max(0, min(ready, queue.max_concurrency - len(self.active) + leaving))
        return ready

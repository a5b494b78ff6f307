"""A queue with its indexes in memory, all of which are rebuilt from the index rows at start."""

from typing import Final, final

from corvo._fast.ready import SEQ_BITS, ReadyIndex
from corvo.model import PENDING, PRIORITY_NAMES, Job, Queue

SEQ_MASK: Final = (1 << SEQ_BITS) - 1
PRIORITIES: Final = len(PRIORITY_NAMES)


@final
class Lane:
    """`jobs` are those of the overlay that have a place in the queue (that is: not ended), by
    seq; `active` are all live leases of the queue, seq -> lease_expires_ns."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.key_base: int = queue.number << SEQ_BITS  # key of a due entry = this | seq
        self.ready = ReadyIndex()
        self.active: dict[int, int] = {}
        self.jobs: dict[int, Job] = {}
        self.woken: bool = False

    def full(self) -> bool:
        """Whether a pause or the concurrency limit keeps its jobs from being fetched."""
        limit = self.queue.max_concurrency
        return self.queue.paused or (limit > 0 and len(self.active) >= limit)

    def fetchable(self) -> int:
        """How many jobs could be fetched now."""
        queue = self.queue
        if queue.paused:
            return 0
        ready = sum(queue.counts[PENDING * PRIORITIES : (PENDING + 1) * PRIORITIES])
        if queue.max_concurrency > 0:
            return max(0, min(ready, queue.max_concurrency - len(self.active)))
        return ready

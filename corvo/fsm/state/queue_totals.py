"""Totals over all queues, without a walk over them and without a cost for each job.

The numbers of a queue are added when its row is flushed. A read adds the difference of the queues
that wait for a flush, of which there are few.
"""

from corvo.model import STATES, Queue


class QueueTotals:
    """Jobs of all queues by state, and counters that never decrease while the process lives: those
    of a deleted queue stay in them, also when a snapshot replaces the state."""

    def __init__(self) -> None:
        self.jobs: list[int] = [0] * len(STATES)
        self.enqueued: int = 0
        self.completed: int = 0
        self.failed: int = 0  # failed attempts
        self.expired: int = 0  # leases
        # The numbers added so far, by queue number: jobs by state, then the counters.
        self._counted: dict[int, tuple[int, ...]] = {}

    def count(self, queue: Queue) -> None:
        """Bring the numbers of a queue up to date."""
        jobs = [0 if queue.destroyed else queue.jobs(state) for state in range(len(STATES))]
        now = (
            *jobs,
            queue.enqueued_total,
            queue.completed_total,
            queue.failed_total,
            queue.expired_total,
        )
        before = self._counted.get(queue.number)
        self._counted[queue.number] = now
        added = now if before is None else [new - old for new, old in zip(now, before, strict=True)]
        for state in range(len(STATES)):
            self.jobs[state] += added[state]
        self.enqueued += added[-4]
        self.completed += added[-3]
        self.failed += added[-2]
        self.expired += added[-1]

    def rise(self, before: "QueueTotals") -> None:
        """Let no counter be lower than in the state that this one replaces."""
        self.enqueued = max(self.enqueued, before.enqueued)
        self.completed = max(self.completed, before.completed)
        self.failed = max(self.failed, before.failed)
        self.expired = max(self.expired, before.expired)

    def drop(self, queue_number: int) -> None:
        """Forget a queue, which has no jobs left, because its number does not return."""
        self._counted.pop(queue_number, None)

"""A queue with its indexes in memory, which are rebuilt from the index rows at start."""

from typing import Final, final

from corvo._fast.index.ready import SEQ_BITS, ReadyIndex
from corvo.fsm.state.groups import NORMAL, Groups, is_member
from corvo.fsm.state.rate_limits import Window
from corvo.model import Job, Queue

# Reasons why a ready job cannot be fetched.
PAUSED: Final = "paused"
CONCURRENCY: Final = "concurrency"  # the queue has its limit of active jobs
RATE: Final = "rate"  # the queue has started its limit of jobs in the window
GROUP_CONCURRENCY: Final = "group_concurrency"  # the group has its limit of active jobs
GROUP_ORDER: Final = "group_order"  # an earlier job of a FIFO group waits


@final
class Obstacle:
    """One reason why a job cannot be fetched now. `limit` and `count` belong to the setting;
    `opens_ns` is the time at which a rate limit allows the next job; `position` is that of the
    earlier job."""

    def __init__(self, kind: str, limit: int = 0, count: int = 0) -> None:
        self.kind = kind
        self.limit = limit
        self.count = count
        self.opens_ns: int = 0
        self.position: int = 0
        self.job_id: str = ""  # the job at that position


class QueueIndex:
    """`ready` holds the pending jobs without a group key; `groups` those with one, None if there
    are none; `active` the live leases, seq -> lease_expires_ns; `window` the recent starts, None
    without a rate limit."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.first_position: int = queue.number << SEQ_BITS  # position of a job = this | seq
        self.ready = ReadyIndex()
        self.blocked: int = 0  # pending jobs that wait for dependencies
        self.groups: Groups | None = None
        self.active: dict[int, int] = {}
        self.window: Window | None = None
        self.woken: bool = False
        # Cache of the time at which the normal job with this seq became ready, so that a fetch need
        # not read the job.
        self.aging_seq: int = 0
        self.aging_ns: int = 0

    def full(self, stamp_ns: int) -> bool:
        """Return whether a pause or a limit of the queue stops all fetches."""
        limit = self.queue.max_concurrency
        if self.queue.paused or (limit > 0 and len(self.active) >= limit):
            return True
        return self.window is not None and self.window.room(stamp_ns) == 0

    def first(self) -> int:
        """Return the next job to serve as `priority << SEQ_BITS | seq`, 0 if there is none. It
        ignores the limits that `full` checks."""
        ungrouped = self.ready.first()
        return ungrouped if self.groups is None else self.groups.first(ungrouped)

    def first_normal(self) -> int:
        """Return the seq of the oldest normal job that could be served, 0 if there is none."""
        seq = self.ready.first_of(NORMAL)
        other = 0 if self.groups is None else self.groups.first_normal()
        return min(seq, other) if seq and other else seq or other

    def first_ready(self, priority: int, limit: int) -> list[int]:
        """Return the seqs of the first ready jobs of a priority, in order."""
        found = self.ready.first_few(priority, limit)
        if self.groups is not None:
            found = sorted(found + self.groups.ready.first_few(priority, limit))[:limit]
        return found

    def fetchable(self, now_ns: int, arriving: int = 0, leaving: int = 0) -> int:
        """Return how many jobs could be fetched now, or with `arriving` more jobs and `leaving`
        fewer leases."""
        queue = self.queue
        if queue.paused:
            return 0
        count = len(self.ready) + arriving
        if self.groups is not None:
            count += min(len(self.groups.ready), self.groups.open + leaving)
        if queue.max_concurrency > 0:
            count = min(count, queue.max_concurrency - len(self.active) + leaving)
        if self.window is not None:
            count = min(count, self.window.room(now_ns))
        return max(0, count)

    def clear_ready(self) -> None:
        """Remove all pending and scheduled jobs."""
        self.ready = ReadyIndex()
        self.blocked = 0
        if self.groups is not None:
            self.groups.clear_ready()
            if not self.groups.by_key:
                self.groups = None

    def forget(self, stamp_ns: int) -> None:
        """Remove all jobs, and the rate limit."""
        self.clear_ready()
        if self.groups is not None:
            self.groups.forget()
            self.groups = None
        if self.window is not None:
            self.window.forget(stamp_ns)
            self.window = None

    def obstacles(self, job: Job, now_ns: int) -> list[Obstacle]:
        """Return the reasons why a pending job cannot be fetched now, apart from earlier jobs; the
        reason that concerns most jobs comes first."""
        queue = self.queue
        found: list[Obstacle] = []
        if queue.paused:
            found.append(Obstacle(PAUSED))
        if 0 < queue.max_concurrency <= len(self.active):
            found.append(Obstacle(CONCURRENCY, queue.max_concurrency, len(self.active)))
        if self.window is not None and self.window.room(now_ns) == 0:
            rate = Obstacle(RATE, queue.rate_limit, self.window.used(now_ns))
            rate.opens_ns = self.window.opens_ns(now_ns)
            found.append(rate)
        key = "" if job.options is None else job.options.group_key
        group = None if self.groups is None else self.groups.by_key.get(key)
        limit = queue.group_concurrency
        if self.groups is None or group is None or limit == 0 or not is_member(job):
            return found
        if len(group.active) >= limit:
            found.append(Obstacle(GROUP_CONCURRENCY, limit, len(group.active)))
        position = self.groups.in_front(group, job.priority << SEQ_BITS | job.seq)
        if limit == 1 and position:
            order = Obstacle(GROUP_ORDER, limit, len(group.active))
            order.position = position
            found.append(order)
        return found

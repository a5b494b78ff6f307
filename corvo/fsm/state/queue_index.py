"""A queue with its indexes in memory, all of which are rebuilt from the index rows at start."""

from typing import Final, final

from corvo._fast.index.ready import SEQ_BITS, ReadyIndex
from corvo.fsm.state.groups import NORMAL, Groups, stands
from corvo.fsm.state.rate_limits import Window
from corvo.model import Job, Queue

# What keeps a ready job from being fetched.
PAUSED: Final = "paused"
CONCURRENCY: Final = "concurrency"  # the queue has as many active jobs as it may
RATE: Final = "rate"  # so many jobs were handed out lately
GROUP_CONCURRENCY: Final = "group_concurrency"  # its group has as many active jobs as it may
GROUP_ORDER: Final = "group_order"  # its group is a line, and a job in front of it waits


@final
class Obstacle:
    """One reason why a job cannot be fetched now. `limit` and `count` are those of the rule;
    `opens_ns` is when a rate limit lets the next job pass, `position` that of the job in front."""

    def __init__(self, kind: str, limit: int = 0, count: int = 0) -> None:
        self.kind = kind
        self.limit = limit
        self.count = count
        self.opens_ns: int = 0
        self.position: int = 0
        self.job_id: str = ""  # of the job in that place


class QueueIndex:
    """`ready` are its pending jobs without a group key, `groups` those with one, None when there
    are none; `active` its live leases, seq -> lease_expires_ns; `window` what it handed out lately,
    None without a rate limit."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.first_position: int = queue.number << SEQ_BITS  # place of a job = this | seq
        self.ready = ReadyIndex()
        self.blocked: int = 0  # pending jobs that wait for other jobs
        self.groups: Groups | None = None
        self.active: dict[int, int] = {}
        self.window: Window | None = None
        self.woken: bool = False
        # When the normal job in this place became ready: spares reading it at every fetch.
        self.aging_seq: int = 0
        self.aging_ns: int = 0

    def full(self, stamp_ns: int) -> bool:
        """Whether a pause or a limit of the queue keeps its jobs from being fetched."""
        limit = self.queue.max_concurrency
        if self.queue.paused or (limit > 0 and len(self.active) >= limit):
            return True
        return self.window is not None and self.window.room(stamp_ns) == 0

    def first(self) -> int:
        """Which job is served next, as `priority << SEQ_BITS | seq`, 0 when there is none; whether
        it may be is another matter."""
        ungrouped = self.ready.first()
        return ungrouped if self.groups is None else self.groups.first(ungrouped)

    def first_normal(self) -> int:
        """Seq of the oldest normal job that could be served, 0 when there is none."""
        seq = self.ready.first_of(NORMAL)
        other = 0 if self.groups is None else self.groups.first_normal()
        return min(seq, other) if seq and other else seq or other

    def oldest(self, priority: int) -> int:
        """Seq of the oldest ready job of a priority, served next or not; 0 when there is none."""
        seq = self.ready.first_of(priority)
        other = 0 if self.groups is None else self.groups.ready.first_of(priority)
        return min(seq, other) if seq and other else seq or other

    def fetchable(self, now_ns: int, arriving: int = 0, leaving: int = 0) -> int:
        """How many jobs could be fetched now, or with so many more jobs and fewer leases."""
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
        """Its pending and scheduled jobs are gone."""
        self.ready = ReadyIndex()
        self.blocked = 0
        if self.groups is not None:
            self.groups.clear_ready()
            if not self.groups.by_key:
                self.groups = None

    def forget(self) -> None:
        """All its jobs are gone, and its rate limit."""
        self.clear_ready()
        if self.groups is not None:
            self.groups.forget()
            self.groups = None
        if self.window is not None:
            self.window.forget()
            self.window = None

    def obstacles(self, job: Job, now_ns: int) -> list[Obstacle]:
        """What keeps a pending job from being fetched now, beside the jobs in front of it; the
        widest rule comes first."""
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
        if self.groups is None or group is None or limit == 0 or not stands(job):
            return found
        if len(group.active) >= limit:
            found.append(Obstacle(GROUP_CONCURRENCY, limit, len(group.active)))
        position = self.groups.in_front(group, job.priority << SEQ_BITS | job.seq)
        if limit == 1 and position:
            order = Obstacle(GROUP_ORDER, limit, len(group.active))
            order.position = position
            found.append(order)
        return found

"""What the rules say about jobs, queues, batches and schedules, as plain objects: the model that
random programs are compared with."""

from collections.abc import Callable
from typing import Any

from corvo.limits import SECOND_NS
from corvo.model import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    DEAD,
    HELD,
    PENDING,
    RETRYING,
    SCHEDULED,
)

# What a worker sends: nothing, or what is too large for the row of the head now, soon or never.
DATA = [b'{"x":"%b"}' % (b"x" * size) if size else b"" for size in (0, 1, 600, 1_024)]
OVER = (COMPLETED, DEAD, CANCELLED)


class ModelJob:
    """What the rules say about a job, without seqs, rows and indexes."""

    def __init__(self, queue: str, priority: int, max_retries: int, delay_s: int) -> None:
        self.changed: Callable[[ModelJob], None] | None = None  # once it is in
        self.group = ""
        self.ready_ns = 0
        self.started_ns = 0
        self.open: set[str] = set()  # jobs it waits for
        self.queue = queue
        self.priority = priority
        self.max_retries = max_retries
        self.delay_s = delay_s
        self.state = PENDING
        self.attempt = 0
        self.cancelling = False
        self.token = ""
        self.expires_ns = 0
        self.lease_s = 0
        self.due_ns = 0
        self.position = 0
        self.keeps_position = False
        self.releases = 0
        self.term = 0
        self.touched = False
        self.key = ""
        self.expiry_ns = 0
        self.hold_ends_ns = 0
        self.hold_action = 0
        self.ended_ns = 0
        self.lines = 0
        self.default_options = False  # of retries: exponential, with jitter
        self.policy = "fail"
        self.batch = ""
        self.steps: list[str] = []  # queues of a chain
        self.step = 0

    @property
    def state(self) -> int:
        return self._state

    @state.setter
    def state(self, state: int) -> None:
        self._state = state
        if self.changed is not None:
            self.changed(self)

    def stands(self) -> bool:
        """Whether it counts in its group."""
        if self.state == SCHEDULED:
            return self.keeps_position
        ready = self.state == PENDING and not self.open
        return ready or self.state in (ACTIVE, RETRYING, HELD)


class ModelQueues:
    """What the rules say about queues: what they let pass, and in which order."""

    def __init__(self, names: list[str], now_ns: int) -> None:
        self.now_ns = now_ns
        self.jobs: dict[str, ModelJob] = {}
        self.next_place = 0
        self.limits: dict[str, int] = {}
        self.paused: dict[str, bool] = {}
        self.turns: dict[str, int] = {}
        self.served: dict[tuple[str, str], int] = {}  # last turn by queue and group
        self.ungrouped: dict[str, int] = {}
        self.group_limits: dict[str, int] = {}
        self.aging_s: dict[str, int] = {}
        self.rates: dict[str, tuple[int, int]] = {}
        self.grants: dict[str, list[int]] = {}
        for name in names:
            self.forget_queue(name)

    def forget_queue(self, name: str) -> None:
        """A queue without jobs is as a new one."""
        self.limits[name] = self.group_limits[name] = self.aging_s[name] = 0
        self.turns[name] = self.ungrouped[name] = 0
        self.paused[name] = False
        self.rates.pop(name, None)
        self.grants[name] = []

    def take_place(self, job: ModelJob) -> None:
        """The job goes to the tail."""
        self.next_place += 1
        job.position, job.ready_ns = self.next_place, 0

    def turn(self, queue: str) -> int:
        """The next turn of a queue."""
        self.turns[queue] += 1
        return self.turns[queue]

    def enter(self, job_id: str, job: ModelJob) -> None:
        """A new job is there, in its state and place."""
        self.jobs[job_id] = job
        job.changed = self.changed
        self.changed(job)

    def changed(self, job: ModelJob) -> None:
        """A job has another state, or is gone."""
        if job.state == PENDING and not job.ready_ns:
            job.ready_ns = self.now_ns
        self.settle_group(job.queue, job.group)

    def settle_group(self, queue: str, key: str) -> None:
        """A group comes with its first job and goes with its last one."""
        group = queue, key
        standing = any(
            (job.queue, job.group) == group and job.stands() for job in self.jobs.values()
        )
        if not standing:
            self.served.pop(group, None)
        elif key and group not in self.served:
            self.served[group] = self.turn(queue)

    def handed_out(self, job: ModelJob) -> None:
        """A turn and a grant for a job that is active now."""
        job.started_ns = self.now_ns
        if any(queue == job.queue for queue, _ in self.served):
            turn = self.turn(job.queue)
            if job.group:
                self.served[job.queue, job.group] = turn
            else:
                self.ungrouped[job.queue] = turn
        if job.queue in self.rates:
            self.grants[job.queue].append(self.now_ns)

    def alive(self, job_id: str) -> bool:
        """Whether there is such a job, and it has not ended."""
        return job_id in self.jobs and self.jobs[job_id].state not in OVER

    def active(self, queue: str) -> int:
        """How many jobs of a queue are active."""
        return sum(job.queue == queue and job.state == ACTIVE for job in self.jobs.values())

    def next_served(self, queue: str) -> str | None:
        """The job that is next, if the queue lets one pass."""
        lines = [line for group in self.groups(queue) if (line := self.servable(queue, group))]
        if not lines:
            return None
        heads = []
        normals = []
        for line in lines:
            priority, _, job_id = line[0]
            group = self.jobs[job_id].group
            turn = self.served[queue, group] if group else self.ungrouped[queue]
            heads.append((priority, turn, job_id))
            normals += [(position, job_id) for rank, position, job_id in line if rank == 2]
        best = min(heads)
        if self.aging_s[queue] and best[0] != 2 and normals:
            oldest = min(normals)[1]
            if self.jobs[oldest].ready_ns + self.aging_s[queue] * SECOND_NS <= self.now_ns:
                return oldest
        return best[2]

    def room(self, queue: str) -> int:
        """How many jobs the limits of a queue let pass."""
        if self.paused[queue]:
            return 0
        room = 1_000
        if self.limits[queue]:
            room = max(0, self.limits[queue] - self.active(queue))
        if queue in self.rates:
            rate, window_s = self.rates[queue]
            start_ns = self.now_ns - window_s * SECOND_NS
            room = min(room, rate - sum(at_ns >= start_ns for at_ns in self.grants[queue]))
        return max(0, room)

    def groups(self, queue: str) -> list[str]:
        """The keys of the groups of a queue, and the empty one."""
        return ["", *sorted(group for name, group in self.served if name == queue)]

    def servable(self, queue: str, group: str) -> list[tuple[int, int, str]]:
        """The ready jobs of a group in order, as (priority, place, id), if any may be fetched."""
        line = sorted(
            ((job.priority, job.position, job_id), job.state)
            for job_id, job in self.jobs.items()
            if (job.queue, job.group) == (queue, group) and job.stands()
        )
        limit = self.group_limits[queue] if group else 0
        if limit and sum(state == ACTIVE for _, state in line) >= limit:
            return []
        if limit == 1 and line and line[0][1] != PENDING:
            return []
        return [entry for entry, state in line if state == PENDING]

    def fetchable(self, queue: str) -> int:
        """How many jobs fetches could get now."""
        count = 0
        for group in self.groups(queue):
            line = len(self.servable(queue, group))
            if group and self.group_limits[queue]:
                active = sum(
                    (job.queue, job.group, job.state) == (queue, group, ACTIVE)
                    for job in self.jobs.values()
                )
                line = min(line, max(0, self.group_limits[queue] - active))
            count += line
        return min(count, self.room(queue))


class ModelBatch:
    """What the rules say about a batch."""

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.succeeded = self.failed = 0


class ModelSchedule:
    """What the rules say about a schedule whose slots are `every_ns` apart."""

    def __init__(self, revision: int, next_ns: int, **fields: Any) -> None:
        self.revision = revision
        self.next_ns = next_ns
        self.last_job = ""
        self.every_ns: int = fields["every_s"] * SECOND_NS
        self.skip: bool = fields["overlap"] == "skip"
        self.catch_up: str = fields["catch_up"]
        self.limit = 3 if self.catch_up == "all" else 1
        self.queue: str = fields["queue"]
        self.key: str = fields["key"]

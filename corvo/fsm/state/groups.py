"""Groups: jobs of a queue that have the same group key.

Inside a group the order is that of a queue: by priority, then by place. At most
`queue.group_concurrency` jobs of a group are active at a time (0 = no limit). When that is one,
the group is a line: a job that is retrying, held or postponed keeps its place, and what stands
behind it waits.

Between groups turns decide. A queue counts turns; whoever is served takes the next one, and of
those that have a job to give of the highest priority there is, the one whose last turn is longest
ago is served. A new group counts as just served, so a stream of new groups cannot keep an old one
waiting.
All jobs of the queue without a key take turns as if they were one more group, without a limit.

A group exists while jobs stand in it: pending, active, or waiting in their place. Its row holds its
key and its last turn; the index row of each of its jobs names it. Groups that have nothing to give
are not in the rotation and cost nothing.
"""

from typing import Final

from corvo._fast.codec import keys
from corvo._fast.index.ready import SEQ_BITS, SEQ_MASK, Positions, ReadyIndex
from corvo.fsm.state.row_overlay import RowOverlay
from corvo.model import ACTIVE, ENDED, PENDING, PRIORITIES, SCHEDULED, Job, Queue
from corvo.storage.records import queues as queue_records

NORMAL: Final = PRIORITIES - 1


def stands(job: Job) -> bool:
    """Whether the job stands in its group, if it has one: a job that is scheduled takes its place
    when its time comes, and one that waits for other jobs when they have ended."""
    if job.state == PENDING:
        return job.options is None or not job.options.blocked
    return not ENDED[job.state] and (job.state != SCHEDULED or job.keeps_position)


class Group:
    """One group. `ready`, `waiting` (retrying and held jobs) and `postponed` (scheduled ones) hold
    `priority << SEQ_BITS | seq`, `active` holds seqs."""

    def __init__(self, key: str, number: int, served: int) -> None:
        self.key = key
        self.number = number  # the turn at which it was made
        self.served = served  # the turn at which it was served last
        self.ready = Positions()
        self.waiting = Positions()
        self.postponed = Positions()
        self.active = Positions()
        # As the indexes of the queue have it.
        self.open: int = 0  # jobs that a fetch could get now
        self.spot: int = 0  # in the rotation: priority << SEQ_BITS | served
        self.normal: int = 0  # seq of its first normal job

    def empty(self) -> bool:
        """Whether no job stands in it."""
        waits = len(self.waiting) or len(self.postponed)
        return not (len(self.active) or len(self.ready) or waits)


class Groups:
    """The groups of a queue. After each change of the jobs of a group `rank` has to be called."""

    def __init__(self, queue: Queue, rows: RowOverlay) -> None:
        self._queue = queue
        self._rows = rows
        self.by_key: dict[str, Group] = {}
        self._rotation = ReadyIndex()
        self._by_turn: dict[int, Group] = {}  # those in the rotation
        self._normals = Positions()  # first normal jobs of those in the rotation, while jobs age
        self.ready = ReadyIndex()  # all their ready jobs
        self.open: int = 0  # jobs that a fetch could get now

    def load(self, key: str, number: int, served: int) -> None:
        """Take in a row."""
        self.by_key[key] = Group(key, number, served)

    def load_job(self, key: str, state: int, priority: int, seq: int) -> None:
        """Take in a job by its index row. When all are there, `rank_all` follows."""
        self._add(self.by_key[key], state, priority << SEQ_BITS | seq)

    # Jobs.

    def arrive(self, job: Job) -> None:
        """A job that has a group key is in a state and place."""
        assert job.options is not None
        key = job.options.group_key
        if not stands(job):
            return
        group = self.by_key.get(key)
        if group is None:
            turn = self._next_turn()
            group = self.by_key[key] = Group(key, turn, turn)
            self._write(group)
        self._add(group, job.state, job.priority << SEQ_BITS | job.seq)

    def _add(self, group: Group, state: int, position: int) -> None:
        if state == PENDING:
            group.ready.add(position)
            self.ready.add(position >> SEQ_BITS, position & SEQ_MASK)
        elif state == ACTIVE:
            group.active.add(position & SEQ_MASK)
        elif state == SCHEDULED:
            group.postponed.add(position)
        else:
            group.waiting.add(position)

    def depart(self, job: Job) -> None:
        """A job that has a group key leaves its state and place."""
        assert job.options is not None
        if not stands(job):
            return
        group = self.by_key[job.options.group_key]
        position = job.priority << SEQ_BITS | job.seq
        if job.state == PENDING:
            group.ready.remove(position)
            self.ready.remove(job.priority, job.seq)
        elif job.state == ACTIVE:
            group.active.remove(job.seq)
        elif job.state == SCHEDULED:
            group.postponed.remove(position)
        else:
            group.waiting.remove(position)

    def serve(self, key: str) -> None:
        """A job of this group, or one without a group key, is handed out."""
        turn = self._next_turn()
        if key:
            group = self.by_key[key]
            group.served = turn
            self._write(group)
        else:
            self._queue.served = turn

    def _next_turn(self) -> int:
        self._queue.turn += 1
        return self._queue.turn

    def _write(self, group: Group) -> None:
        row = queue_records.encode_group(group.key, group.served)
        self._rows.put(keys.group(self._queue.number, group.number), row)

    # Turns.

    def rank(self, key: str) -> bool:
        """Put a group where it belongs now, or forget it when it is empty. True when a fetch could
        get more jobs than before."""
        group = self.by_key.get(key)
        if group is None:
            return False
        before = group.open
        self._position(group)
        if group.empty():
            del self.by_key[key]
            self._rows.put(keys.group(self._queue.number, group.number), None)
        return group.open > before

    def rank_all(self) -> None:
        """A rule changed, or all groups were read."""
        for group in self.by_key.values():
            self._position(group)

    def _position(self, group: Group) -> None:
        count = self._count(group)
        self.open += count - group.open
        group.open = count
        spot = 0
        normal = 0
        if count:
            spot = group.ready.first() >> SEQ_BITS << SEQ_BITS | group.served
            if self._queue.aging_after_ns:
                normal = group.ready.first_from(NORMAL << SEQ_BITS) & SEQ_MASK
        if spot != group.spot:
            if group.spot:
                self._rotation.remove(group.spot >> SEQ_BITS, group.spot & SEQ_MASK)
                del self._by_turn[group.spot & SEQ_MASK]
            if spot:
                self._rotation.add(spot >> SEQ_BITS, spot & SEQ_MASK)
                self._by_turn[spot & SEQ_MASK] = group
            group.spot = spot
        if normal != group.normal:
            if group.normal:
                self._normals.remove(group.normal)
            if normal:
                self._normals.add(normal)
            group.normal = normal

    def _count(self, group: Group) -> int:
        ready = len(group.ready)
        limit = self._queue.group_concurrency
        if limit == 0 or ready == 0:
            return ready
        if limit == 1 and self.in_front(group, group.ready.first()):
            return 0
        return max(0, min(ready, limit - len(group.active)))

    def in_front(self, group: Group, position: int) -> int:
        """The place of a job that waits in front of this one, 0 when there is none."""
        first = group.waiting.first()
        other = group.postponed.first()
        if other and (first == 0 or other < first):
            first = other
        return first if first < position else 0

    def first(self, ungrouped: int) -> int:
        """Which job is served next, as `priority << SEQ_BITS | seq`, 0 when there is none;
        `ungrouped` is the first of those without a group key, in the same form."""
        spot = self._rotation.first()
        if spot == 0:
            return ungrouped
        if ungrouped and ungrouped >> SEQ_BITS << SEQ_BITS | self._queue.served < spot:
            return ungrouped
        return self._by_turn[spot & SEQ_MASK].ready.first()

    def first_normal(self) -> int:
        """Seq of the oldest normal job that could be fetched, 0 when there is none."""
        return self._normals.first()

    def clear_ready(self) -> None:
        """Pending and scheduled jobs are gone."""
        self.ready = ReadyIndex()
        for key in list(self.by_key):
            self.by_key[key].ready = Positions()
            self.by_key[key].postponed = Positions()
            self.rank(key)

    def forget(self) -> None:
        """All rows go."""
        for group in self.by_key.values():
            self._rows.put(keys.group(self._queue.number, group.number), None)

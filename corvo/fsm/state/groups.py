"""Groups: jobs of a queue that have the same group key.

Inside a group jobs are ordered as in a queue: by priority, then by queue position. At most
`queue.group_concurrency` jobs of a group are active at a time (0 = no limit). If that is one, the
group is strictly FIFO: a job that is retrying, held or postponed keeps its position, and the jobs
after it wait.

Turns decide between groups. A queue counts turns, and each start of a job takes the next one. Among
the groups with a fetchable job of the highest priority, the one with the oldest last turn is
served. A new group counts as just served, so that a stream of new groups cannot starve an old one.
All jobs of the queue without a group key take turns as one more group, without a limit.

A group exists while it has members: jobs that are pending, active, or keep their position while
they wait. Its row holds its key and its last turn. The index row of each member names the group.
Groups without a fetchable job are not in the rotation and cost nothing.
"""

from typing import Final

from corvo._fast.codec import keys
from corvo._fast.index.ready import SEQ_BITS, SEQ_MASK, Positions, ReadyIndex
from corvo.fsm.state.row_overlay import RowOverlay
from corvo.model import ACTIVE, ENDED, PENDING, PRIORITIES, SCHEDULED, Job, Queue
from corvo.storage.records import queues as queue_records

NORMAL: Final = PRIORITIES - 1


def is_member(job: Job) -> bool:
    """Return whether the job is a member of its group, if it has one. A scheduled job becomes a
    member when it is due, and a blocked job when its dependencies have finished."""
    if job.state == PENDING:
        return job.options is None or not job.options.blocked
    return not ENDED[job.state] and (job.state != SCHEDULED or job.keeps_position)


class Group:
    """One group. `ready`, `waiting` (retrying and held jobs) and `postponed` (scheduled jobs) hold
    `priority << SEQ_BITS | seq`; `active` holds seqs."""

    def __init__(self, key: str, number: int, served: int) -> None:
        self.key = key
        self.number = number  # the turn at which it was created
        self.served = served  # its last turn
        self.ready = Positions()
        self.waiting = Positions()
        self.postponed = Positions()
        self.active = Positions()
        # The values that the indexes of the queue have for this group.
        self.open: int = 0  # jobs that a fetch could get now
        self.rank_key: int = 0  # rank in the rotation: priority << SEQ_BITS | served; 0 = none
        self.normal: int = 0  # seq of its first normal job, 0 = none

    def empty(self) -> bool:
        """Return whether the group has no members."""
        waits = len(self.waiting) or len(self.postponed)
        return not (len(self.active) or len(self.ready) or waits)


class Groups:
    """The groups of a queue. Call `rank` after each change of the jobs of a group."""

    def __init__(self, queue: Queue, rows: RowOverlay) -> None:
        self._queue = queue
        self._rows = rows
        self.by_key: dict[str, Group] = {}
        self._rotation = ReadyIndex()
        self._by_turn: dict[int, Group] = {}  # the groups in the rotation
        self._normals = Positions()  # `normal` of the groups in the rotation; only with aging
        self.ready = ReadyIndex()  # all ready jobs of all groups
        self.open: int = 0  # jobs that a fetch could get now

    def load(self, key: str, number: int, served: int) -> int:
        """Load a group from its row; rows are loaded in order of their numbers. Return the number
        of an old group with the same key, 0 if there is none."""
        old = self.by_key.get(key)
        self.by_key[key] = Group(key, number, served)
        return 0 if old is None else old.number

    def load_job(self, key: str, state: int, priority: int, seq: int) -> None:
        """Load a job from its index row. After the last one, call `loaded`."""
        self._add(self.by_key[key], state, priority << SEQ_BITS | seq)

    def loaded(self) -> None:
        """Finish loading: groups without members are old."""
        old = [group for group in self.by_key.values() if group.empty()]
        for group in old:
            del self.by_key[group.key]
        self._rows.load_old_groups(self._queue.number, [group.number for group in old])
        self.rank_all()

    # Jobs.

    def arrive(self, job: Job) -> None:
        """Add a job with a group key to its group, in its present state and position."""
        assert job.options is not None
        key = job.options.group_key
        if not is_member(job):
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
        """Remove a job with a group key from its group, before its state or position changes."""
        assert job.options is not None
        if not is_member(job):
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
        """Take a turn for a job that starts; `key` is its group key, or empty."""
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
        """Update the rank of a group, or delete it when it is empty. Return whether a fetch could
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
        """Rank all groups, after a setting has changed or all rows were loaded."""
        for group in self.by_key.values():
            self._position(group)

    def _position(self, group: Group) -> None:
        count = self._count(group)
        self.open += count - group.open
        group.open = count
        rank_key = 0
        normal = 0
        if count:
            rank_key = group.ready.first() >> SEQ_BITS << SEQ_BITS | group.served
            if self._queue.aging_after_ns:
                normal = group.ready.first_from(NORMAL << SEQ_BITS) & SEQ_MASK
        if rank_key != group.rank_key:
            if group.rank_key:
                self._rotation.remove(group.rank_key >> SEQ_BITS, group.rank_key & SEQ_MASK)
                del self._by_turn[group.rank_key & SEQ_MASK]
            if rank_key:
                self._rotation.add(rank_key >> SEQ_BITS, rank_key & SEQ_MASK)
                self._by_turn[rank_key & SEQ_MASK] = group
            group.rank_key = rank_key
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
        """Return the position of the waiting job that holds this one back, 0 if there is none."""
        first = group.waiting.first()
        other = group.postponed.first()
        if other and (first == 0 or other < first):
            first = other
        return first if first < position else 0

    def first(self, ungrouped: int) -> int:
        """Return the next job to serve as `priority << SEQ_BITS | seq`, 0 if there is none;
        `ungrouped` is the first job without a group key, in the same form."""
        rank_key = self._rotation.first()
        if rank_key == 0:
            return ungrouped
        if ungrouped and ungrouped >> SEQ_BITS << SEQ_BITS | self._queue.served < rank_key:
            return ungrouped
        return self._by_turn[rank_key & SEQ_MASK].ready.first()

    def first_normal(self) -> int:
        """Return the seq of the oldest normal job that could be fetched, 0 if there is none."""
        return self._normals.first()

    def clear_ready(self) -> None:
        """Remove all pending and scheduled jobs."""
        groups = self.by_key
        self.by_key = {}
        self.ready = ReadyIndex()
        self.open = 0
        self._rotation = ReadyIndex()
        self._by_turn = {}
        self._normals = Positions()
        for group in groups.values():
            if len(group.active) or len(group.waiting):
                kept = Group(group.key, group.number, group.served)
                kept.active = group.active
                kept.waiting = group.waiting
                self.by_key[group.key] = kept
        for key in self.by_key:
            del groups[key]
        self._rows.leave_groups(self._queue.number, groups)

    def forget(self) -> None:
        """Delete the rows of all groups."""
        self._rows.leave_groups(self._queue.number, self.by_key)
        self.by_key = {}

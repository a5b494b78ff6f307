"""Indexes in memory: ready jobs for a fetch, and due times for a timer.

`ReadyIndex` holds the positions (seq) of the ready jobs of one queue, per priority: a sorted window
of the next few in front of a roaring bitmap of the rest. A short queue is in the window alone; a
long one pays a refill per 32 jobs. Consecutive new numbers are added to the bitmap as a run, when
the bitmap is read or a number breaks the run. Sizes are our own counts, because `len()` and `min()`
of a bitmap walk all of it.

`Positions` is an ordered set for many sets of which most are small: the same window and bitmap, but
the window grows with its content and the bitmap is made when it is needed.

`DueHeap` is a binary heap of (due, key) packed into 16 bytes an entry. It keeps obsolete entries:
its owner detects one when it reaches the top, and starts a compaction when there are too many.
"""

from array import array
from itertools import islice
from typing import Any

import cython
from pyroaring import BitMap64

PRIORITIES = 3
WINDOW = 32
SEQ_BITS = 40  # of a place: priority above, seq below
SEQ_MASK = (1 << 40) - 1
_PRIORITIES, _WINDOW, _SEQ_BITS = PRIORITIES, WINDOW, SEQ_BITS  # as C integers


class ReadyIndex:
    """The ready jobs of one queue in the order they are served: by priority, then by seq.

    A job's place is `priority << 40 | seq` with 1 <= seq < 2**40; `first()` answers 0 when nothing
    is ready. Every seq in the window is smaller than every seq in the bitmap.
    """

    def __init__(self) -> None:
        i: cython.Py_ssize_t
        self.rest: list[Any] = [None] * _PRIORITIES  # bitmaps, made when they are needed
        if not cython.compiled:
            self.window = [[0] * _WINDOW for _ in range(_PRIORITIES)]
            self.start = [0] * _PRIORITIES
            self.stop = [0] * _PRIORITIES
            self.behind = [0] * _PRIORITIES
            self.run_start = [0] * _PRIORITIES
            self.run_stop = [0] * _PRIORITIES
        for i in range(_PRIORITIES):
            self.start[i] = self.stop[i] = self.behind[i] = 0
            self.run_stop[i] = 0  # no run

    def __len__(self) -> int:
        return self.count(0) + self.count(1) + self.count(2)

    def count(self, priority: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Ready jobs of one priority."""
        assert 0 <= priority < _PRIORITIES
        return self.stop[priority] - self.start[priority] + self.behind[priority]

    def add(self, priority: cython.Py_ssize_t, seq: cython.ulonglong) -> None:
        """Put a job in its place. It must not be there already."""
        assert 0 <= priority < _PRIORITIES and seq > 0 and seq >> _SEQ_BITS == 0
        start: cython.Py_ssize_t = self.start[priority]
        stop: cython.Py_ssize_t = self.stop[priority]
        last: cython.ulonglong = self.window[priority][stop - 1] if stop > start else 0
        if seq > last and (self.behind[priority] > 0 or stop - start == _WINDOW):
            self._put_behind(priority, seq)
            return
        if stop - start == _WINDOW:  # an older seq is added again: move the last one to the bitmap
            self._put_behind(priority, last)
            stop -= 1
        if stop == _WINDOW:
            self._shift(priority, start, stop)
            stop -= start
            start = 0
        at: cython.Py_ssize_t = stop
        while at > start and self.window[priority][at - 1] > seq:
            self.window[priority][at] = self.window[priority][at - 1]
            at -= 1
        assert at == start or self.window[priority][at - 1] != seq, "seq is there already"
        self.window[priority][at] = seq
        self.start[priority] = start
        self.stop[priority] = stop + 1

    def _put_behind(self, priority: cython.Py_ssize_t, seq: cython.ulonglong) -> None:
        if self.run_stop[priority] == seq:
            self.run_stop[priority] = seq + 1
        else:
            self._rank(priority)
            self.run_start[priority] = seq
            self.run_stop[priority] = seq + 1
        self.behind[priority] += 1

    def _rank(self, priority: cython.Py_ssize_t) -> None:
        """The run joins the bitmap."""
        if self.run_stop[priority] > 0:
            if self.rest[priority] is None:
                self.rest[priority] = BitMap64()
            if self.run_stop[priority] - self.run_start[priority] == 1:
                self.rest[priority].add(self.run_start[priority])
            else:
                self.rest[priority].add_range(self.run_start[priority], self.run_stop[priority])
            self.run_stop[priority] = 0

    def remove(self, priority: cython.Py_ssize_t, seq: cython.ulonglong) -> None:
        """Take a job out, wherever it stands. It must be there."""
        assert 0 <= priority < _PRIORITIES
        start: cython.Py_ssize_t = self.start[priority]
        stop: cython.Py_ssize_t = self.stop[priority]
        if start == stop or seq > self.window[priority][stop - 1]:
            self._rank(priority)
            self.rest[priority].remove(seq)
            self.behind[priority] -= 1
            return
        at: cython.Py_ssize_t = start
        while self.window[priority][at] < seq:
            at += 1
        assert self.window[priority][at] == seq, "seq is not there"
        while at > start:
            self.window[priority][at] = self.window[priority][at - 1]
            at -= 1
        self.start[priority] = start + 1

    def before(self, priority: cython.Py_ssize_t, seq: cython.ulonglong) -> cython.Py_ssize_t:
        """How many jobs are served before one that has this place."""
        assert 0 <= priority < _PRIORITIES
        i: cython.Py_ssize_t
        number: cython.Py_ssize_t = 0
        for i in range(priority):
            number += self.count(i)
        for i in range(self.start[priority], self.stop[priority]):
            if self.window[priority][i] >= seq:
                return number
            number += 1
        if self.behind[priority] > 0 and seq > 0:
            self._rank(priority)
            number += self.rest[priority].rank(seq - 1)
        return number

    def first(self) -> cython.ulonglong:
        """The place of the job to serve next, which stays where it is; 0 when none is ready."""
        priority: cython.Py_ssize_t
        for priority in range(_PRIORITIES):
            if self.start[priority] < self.stop[priority] or self.behind[priority] > 0:
                return (cython.cast(cython.ulonglong, priority) << _SEQ_BITS) | self._head(priority)
        return 0

    def first_of(self, priority: cython.Py_ssize_t) -> cython.ulonglong:
        """The seq that is served next in one priority; 0 when none is ready."""
        return 0 if self.count(priority) == 0 else self._head(priority)

    def first_few(self, priority: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> list[int]:
        """The seqs that are served next in one priority."""
        found: list[Any] = []
        i: cython.Py_ssize_t
        for i in range(self.start[priority], self.stop[priority]):
            found.append(self.window[priority][i])
        if len(found) < limit and self.behind[priority] > 0:
            self._rank(priority)
            found += islice(self.rest[priority].iter_equal_or_larger(0), limit - len(found))
        return found[:limit]

    def _head(self, priority: cython.Py_ssize_t) -> cython.ulonglong:
        if self.start[priority] == self.stop[priority]:
            self._refill(priority)
        return self.window[priority][self.start[priority]]

    def _refill(self, priority: cython.Py_ssize_t) -> None:
        """Move the next few from the bitmap into the empty window."""
        self._rank(priority)
        rest = self.rest[priority]
        stop: cython.Py_ssize_t = 0
        seq: cython.ulonglong = 0
        for seq in rest.iter_equal_or_larger(0):
            self.window[priority][stop] = seq
            stop += 1
            if stop == _WINDOW:
                break
        assert stop > 0, "count and bitmap disagree"
        rest.remove_range(self.window[priority][0], seq + 1)
        self.behind[priority] -= stop
        self.start[priority] = 0
        self.stop[priority] = stop

    def _shift(
        self, priority: cython.Py_ssize_t, start: cython.Py_ssize_t, stop: cython.Py_ssize_t
    ) -> None:
        i: cython.Py_ssize_t
        for i in range(start, stop):
            self.window[priority][i - start] = self.window[priority][i]


class Positions:
    """An ordered set of positive numbers below 2**64."""

    def __init__(self) -> None:
        self.window: Any = None  # an array, from the first number on
        self.rest: Any = None  # a BitMap64 of the numbers after the window
        self.room = self.start = self.stop = self.behind = 0

    def __len__(self) -> int:
        return self.stop - self.start + self.behind

    def add(self, position: cython.ulonglong) -> None:
        """Put a number in. It must not be there already."""
        size: cython.Py_ssize_t = self.stop - self.start
        last: cython.ulonglong = self.at[self.stop - 1] if size > 0 else 0
        if position > last and (self.behind > 0 or size == _WINDOW):
            self._put_behind(position)
            return
        if size == _WINDOW:  # a smaller one comes: the last one makes room
            self._put_behind(last)
            self.stop -= 1
        if self.stop == self.room:
            self._make_room()
        i: cython.Py_ssize_t = self.stop
        while i > self.start and self.at[i - 1] > position:
            self.at[i] = self.at[i - 1]
            i -= 1
        assert i == self.start or self.at[i - 1] != position, "it is there already"
        self.at[i] = position
        self.stop += 1

    def remove(self, position: cython.ulonglong) -> None:
        """Take a number out. It must be there."""
        if self.start == self.stop or position > self.at[self.stop - 1]:
            self.rest.remove(position)
            self.behind -= 1
            return
        i: cython.Py_ssize_t = self.start
        while self.at[i] < position:
            i += 1
        assert self.at[i] == position, "it is not there"
        while i > self.start:
            self.at[i] = self.at[i - 1]
            i -= 1
        self.start += 1

    def first(self) -> cython.ulonglong:
        """The smallest number, 0 when there is none."""
        return self.first_from(0)

    def first_from(self, low: cython.ulonglong) -> cython.ulonglong:
        """The smallest number that is not below `low`, 0 when there is none."""
        if self.start == self.stop:
            if self.behind == 0:
                return 0
            self._refill()
        i: cython.Py_ssize_t
        for i in range(self.start, self.stop):
            if self.at[i] >= low:
                return self.at[i]
        if self.behind > 0:
            for position in self.rest.iter_equal_or_larger(low):
                return position
        return 0

    def _put_behind(self, position: cython.ulonglong) -> None:
        if self.rest is None:
            self.rest = BitMap64()
        self.rest.add(position)
        self.behind += 1

    def _make_room(self) -> None:
        """Room for one more at the end of the window, which is not full."""
        i: cython.Py_ssize_t
        if self.start > 0:
            for i in range(self.start, self.stop):
                self.at[i - self.start] = self.at[i]
            self.stop -= self.start
            self.start = 0
            return
        if self.window is None:
            self.window = array("Q")
        self._grow(2 * self.room if self.room else 2)

    def _grow(self, room: cython.Py_ssize_t) -> None:
        self.window.frombytes(bytes(8 * (room - self.room)))
        self.room = room
        self.at = self.window.data.as_ulonglongs if cython.compiled else self.window

    def _refill(self) -> None:
        """Move the next few from the bitmap into the empty window."""
        if self.room < _WINDOW:
            self._grow(_WINDOW)
        stop: cython.Py_ssize_t = 0
        position: cython.ulonglong = 0
        for position in self.rest.iter_equal_or_larger(0):
            self.at[stop] = position
            stop += 1
            if stop == _WINDOW:
                break
        assert stop > 0, "count and bitmap disagree"
        self.rest.remove_range(self.at[0], position + 1)
        self.behind -= stop
        self.start = 0
        self.stop = stop


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _before(
    due_a: cython.longlong, key_a: cython.ulonglong, due_b: cython.longlong, key_b: cython.ulonglong
) -> cython.bint:
    return due_a < due_b or (due_a == due_b and key_a < key_b)


class DueHeap:
    """Entries (due_ns, key) in order of time, ties in order of key."""

    def __init__(self) -> None:
        self.size = 0
        self.room = 0
        self.dues: Any = array("q")
        self.keys: Any = array("Q")
        self._grow()

    def __len__(self) -> int:
        return self.size

    def _grow(self) -> None:
        more: cython.Py_ssize_t = self.room if self.room else 64
        self.dues.frombytes(bytes(8 * more))
        self.keys.frombytes(bytes(8 * more))
        self.room += more
        self._map()

    def _map(self) -> None:
        """Look at the arrays' memory, which moves when they grow."""
        if cython.compiled:
            self.due = self.dues.data.as_longlongs
            self.key = self.keys.data.as_ulonglongs
        else:
            self.due = self.dues
            self.key = self.keys

    def push(self, due_ns: cython.longlong, key: cython.ulonglong) -> None:
        """Add an entry."""
        if self.size == self.room:
            self._grow()
        at: cython.Py_ssize_t = self.size
        self.size += 1
        parent: cython.Py_ssize_t
        while at > 0:
            parent = (at - 1) >> 1
            if not _before(due_ns, key, self.due[parent], self.key[parent]):
                break
            self._copy(parent, at)
            at = parent
        self.due[at] = due_ns
        self.key[at] = key

    def first_due(self) -> cython.longlong:
        """When the first entry is due; the heap must not be empty."""
        assert self.size > 0
        return self.due[0]

    def first_key(self) -> cython.ulonglong:
        """Key of the first entry; the heap must not be empty."""
        assert self.size > 0
        return self.key[0]

    def pop(self) -> None:
        """Drop the first entry."""
        assert self.size > 0
        self.size -= 1
        if self.size:
            self._sink(0, self.due[self.size], self.key[self.size])

    def drop(self, keys: set[Any]) -> None:
        """Drop every entry whose key is in `keys`, and give memory back."""
        kept: cython.Py_ssize_t = 0
        i: cython.Py_ssize_t
        for i in range(self.size):
            if self.key[i] not in keys:
                self._copy(i, kept)
                kept += 1
        self._cut(kept)
        for i in range((kept >> 1) - 1, -1, -1):
            self._sink(i, self.due[i], self.key[i])

    def clear(self) -> None:
        """Drop all entries, and give memory back."""
        self._cut(0)

    def _copy(self, source: cython.Py_ssize_t, target: cython.Py_ssize_t) -> None:
        self.due[target] = self.due[source]
        self.key[target] = self.key[source]

    def _cut(self, size: cython.Py_ssize_t) -> None:
        self.size = size
        self.room = max(64, size)
        del self.dues[self.room :]
        del self.keys[self.room :]
        self._map()

    def _sink(self, at: cython.Py_ssize_t, due_ns: cython.longlong, key: cython.ulonglong) -> None:
        """Put an entry where the hole `at` ends up when smaller children move up."""
        child: cython.Py_ssize_t = 2 * at + 1
        while child < self.size:
            if child + 1 < self.size and _before(
                self.due[child + 1], self.key[child + 1], self.due[child], self.key[child]
            ):
                child += 1
            if not _before(self.due[child], self.key[child], due_ns, key):
                break
            self._copy(child, at)
            at = child
            child = 2 * at + 1
        self.due[at] = due_ns
        self.key[at] = key

"""The log as the core sees it: what storage has, and behind it what is on its way there.

    base      durable   handed out     last
     |            |         |            |
     v            v         v            v
     ...[ storage ][ being written ][ new ]        `commit` may be anywhere
                   <------ the tail ------>

An entry enters the tail, is handed out to be written (`take_new`, in numbered writes) and leaves
the tail when its write is done (`persisted`). An entry that is overwritten meanwhile no longer
counts as part of its write, so the end of an old write says nothing about what replaced it.
Storage is asked only for entries up to `durable`; what it still has above is void.
"""

from collections import deque
from typing import final

from corvo.consensus.log import Entry
from corvo.consensus.raft.messages import SnapshotMeta
from corvo.consensus.raft.storage import Storage


@final
class _Write:
    """Handed out, and not known to be durable."""

    __slots__ = ("last_index", "number", "snapshot")

    def __init__(self, number: int, last_index: int, snapshot: SnapshotMeta | None) -> None:
        self.number = number
        # When it is done the log is durable up to here; lowered when the log is cut.
        self.last_index = last_index
        self.snapshot = snapshot


@final
class LogView:
    """`durable <= last_index`, `base <= commit <= last_index`."""

    def __init__(self, storage: Storage, commit: int) -> None:
        """`commit` is what is known from before the stop; the log may have lost its end since."""
        self._storage = storage
        self._tail: list[Entry] = []
        self._tail_start = storage.last_index() + 1  # index of the first entry of the tail
        self._handed_out = storage.last_index()
        self._writes: deque[_Write] = deque()
        # Not durable yet; stands for everything before the tail.
        self._snapshot: SnapshotMeta | None = None
        self._snapshot_is_new = False  # not handed out
        self.durable = storage.last_index()
        self.commit = max(min(commit, self.durable), storage.base().index)

    # Reading

    def first_index(self) -> int:
        """The oldest entry that can be read."""
        if self._snapshot is not None:
            return self._snapshot.index + 1
        return self._storage.first_index()

    def last_index(self) -> int:
        """The newest entry."""
        return self._tail_start + len(self._tail) - 1

    def last_term(self) -> int:
        """Term of the newest entry, or of what stands before the log."""
        return self.term(self.last_index())

    def term(self, index: int) -> int:
        """Term of the entry at index; -1 if it is not in the log, or not any more."""
        if index >= self._tail_start:
            i = index - self._tail_start
            return self._tail[i].term if i < len(self._tail) else -1
        if self._snapshot is not None:
            return self._snapshot.term if index == self._snapshot.index else -1
        return self._storage.term(index)

    def entries(self, low: int, high: int, size_max: int) -> list[Entry]:
        """Entries low .. high - 1, or the first of them up to this size; at least one."""
        assert self.first_index() <= low <= high <= self.last_index() + 1
        found: list[Entry] = []
        if low < self._tail_start:
            middle = min(high, self._tail_start)
            found = self._storage.entries(low, middle, size_max)
            if high == middle or len(found) < middle - low:
                return found
            low = middle
        size = 0
        for entry in found:
            size += len(entry.data)
        start = self._tail_start
        for i in range(low - start, high - start):
            entry = self._tail[i]
            size += len(entry.data)
            if found and size > size_max:
                break
            found.append(entry)
        return found

    def is_current(self, index: int, term: int) -> bool:
        """Whether a log that ends with this entry has at least what this one has."""
        last_term = self.last_term()
        return term > last_term or (term == last_term and index >= self.last_index())

    def agreement(self, index: int, term: int) -> int:
        """The largest index, up to `index`, whose entry is not newer than `term`.

        Where two logs part, the one side says this of its own end, the other side of the answer:
        a whole term is skipped in each step.
        """
        index = min(index, self.last_index())
        while index >= self.first_index() and self.term(index) > term:
            index -= 1
        return index

    # Writing

    def append(self, entries: list[Entry]) -> None:
        """Take new entries. The first may overwrite, but nothing that is committed."""
        first = entries[0].index
        if first <= self.last_index():
            self._cut(first - 1)
        assert first == self.last_index() + 1, "no gaps"
        self._tail += entries

    def _cut(self, last_index: int) -> None:
        assert last_index >= self.commit, "committed entries stay"
        if last_index >= self._tail_start:
            del self._tail[last_index - self._tail_start + 1 :]
        else:
            self._tail = []
            self._tail_start = last_index + 1
        self._disown(last_index)

    def _disown(self, last_index: int) -> None:
        """What was, or will be, written above last_index is not this log."""
        self.durable = min(self.durable, last_index)
        self._handed_out = min(self._handed_out, last_index)
        for write in self._writes:
            write.last_index = min(write.last_index, last_index)

    def commit_to(self, index: int) -> bool:
        """Everything up to index is committed. Whether that is news."""
        if index <= self.commit:
            return False
        assert index <= self.last_index(), "only what is in the log is committed"
        self.commit = index
        return True

    def restore(self, snapshot: SnapshotMeta) -> None:
        """Replace the whole log by a snapshot that goes beyond what is committed here."""
        assert snapshot.index > self.commit
        self._disown(self.commit)
        self._tail = []
        self._tail_start = snapshot.index + 1
        self._handed_out = snapshot.index
        self._snapshot = snapshot
        self._snapshot_is_new = True
        self.commit = snapshot.index

    # To the disk

    def has_new(self) -> bool:
        """Whether there is something that was not handed out."""
        return self._snapshot_is_new or self._handed_out < self.last_index()

    def new_snapshot(self) -> SnapshotMeta | None:
        """The snapshot to install before the new entries are written."""
        return self._snapshot if self._snapshot_is_new else None

    def take_new(self, number: int) -> list[Entry]:
        """The new entries; they, and a new snapshot, are handed out as write `number`."""
        new = self._tail[self._handed_out + 1 - self._tail_start :]
        self._handed_out = self.last_index()
        self._writes.append(_Write(number, self._handed_out, self.new_snapshot()))
        self._snapshot_is_new = False
        return new

    def is_restoring(self) -> bool:
        """Whether a snapshot is not durable yet."""
        return self._snapshot is not None

    def persisted(self, number: int) -> None:
        """The writes up to number are done; storage shows them."""
        while self._writes and self._writes[0].number <= number:
            write = self._writes.popleft()
            if write.snapshot is not None and write.snapshot is self._snapshot:
                self._snapshot = None
            self.durable = max(self.durable, write.last_index)
        done = self.durable + 1 - self._tail_start
        if done > 0:
            del self._tail[:done]
            self._tail_start += done

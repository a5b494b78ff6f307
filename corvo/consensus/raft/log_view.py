"""The log of the core: durable entries in storage, then the tail of entries being written.

    base      durable   handed out     last
     |            |         |            |
     v            v         v            v
     ...[ storage ][ being written ][ new ]        `commit` can be anywhere
                   <------ the tail ------>

A new entry enters the tail, is handed out in a numbered write (`take_new`), and leaves the tail
when the write is durable (`persisted`). An overwritten entry is removed from its write, so that the
completion of an old write does not mark its replacement as durable. Only storage entries up to
`durable` are read; later ones are void.
"""

from collections import deque
from typing import final

from corvo.consensus.log import Entry
from corvo.consensus.raft.messages import SnapshotMeta
from corvo.consensus.raft.storage import Storage


@final
class _Write:
    """A write that is handed out and not yet durable."""

    __slots__ = ("last_index", "number", "snapshot")

    def __init__(self, number: int, last_index: int, snapshot: SnapshotMeta | None) -> None:
        self.number = number
        # The log is durable up to this index after the write; lowered by a truncation.
        self.last_index = last_index
        self.snapshot = snapshot


@final
class LogView:
    """The log of one node.

    Invariants: `durable <= last_index` and `base <= commit <= last_index`."""

    def __init__(self, storage: Storage, commit: int) -> None:
        """`commit` is a commit index from before the restart; the log may have lost its end
        since."""
        self._storage = storage
        self._tail: list[Entry] = []
        self._tail_start = storage.last_index() + 1  # index of the first entry of the tail
        self._handed_out = storage.last_index()
        self._writes: deque[_Write] = deque()
        # A snapshot that is not durable yet; it replaces everything before the tail.
        self._snapshot: SnapshotMeta | None = None
        self._snapshot_is_new = False  # whether it is not handed out yet
        self.durable = storage.last_index()
        self.commit = max(min(commit, self.durable), storage.base().index)

    # Reading

    def first_index(self) -> int:
        """Index of the oldest entry that can be read."""
        if self._snapshot is not None:
            return self._snapshot.index + 1
        return self._storage.first_index()

    def last_index(self) -> int:
        """Index of the newest entry."""
        return self._tail_start + len(self._tail) - 1

    def last_term(self) -> int:
        """Term of the newest entry, or of the entry before the log if the log is empty."""
        return self.term(self.last_index())

    def term(self, index: int) -> int:
        """Term of the entry at index; -1 if it is not in the log."""
        if index >= self._tail_start:
            i = index - self._tail_start
            return self._tail[i].term if i < len(self._tail) else -1
        if self._snapshot is not None:
            return self._snapshot.term if index == self._snapshot.index else -1
        return self._storage.term(index)

    def entries(self, low: int, high: int, size_max: int) -> list[Entry]:
        """Entries low .. high - 1, limited to `size_max` bytes but at least one."""
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
        """Whether a log that ends with this entry is at least as up to date as this log."""
        last_term = self.last_term()
        return term > last_term or (term == last_term and index >= self.last_index())

    def find_match(self, index: int, term: int) -> int:
        """The largest index up to `index` whose entry has a term of at most `term`.

        After a rejected append, follower and leader call this in turn to find the last matching
        entry; each step skips a whole term.
        """
        index = min(index, self.last_index())
        while index >= self.first_index() and self.term(index) > term:
            index -= 1
        return index

    # Writing

    def append(self, entries: list[Entry]) -> None:
        """Append entries; the first can overwrite uncommitted entries."""
        first = entries[0].index
        if first <= self.last_index():
            self._truncate(first - 1)
        assert first == self.last_index() + 1, "no gaps"
        self._tail += entries

    def _truncate(self, last_index: int) -> None:
        assert last_index >= self.commit, "committed entries stay"
        if last_index >= self._tail_start:
            del self._tail[last_index - self._tail_start + 1 :]
        else:
            self._tail = []
            self._tail_start = last_index + 1
        self._invalidate(last_index)

    def _invalidate(self, last_index: int) -> None:
        """Remove entries after last_index from pending writes and from the durable part."""
        self.durable = min(self.durable, last_index)
        self._handed_out = min(self._handed_out, last_index)
        for write in self._writes:
            write.last_index = min(write.last_index, last_index)

    def commit_to(self, index: int) -> bool:
        """Commit everything up to index; return whether the commit index advanced."""
        if index <= self.commit:
            return False
        assert index <= self.last_index(), "only entries in the log are committed"
        self.commit = index
        return True

    def restore(self, snapshot: SnapshotMeta) -> None:
        """Replace the whole log by a snapshot after the commit index."""
        assert snapshot.index > self.commit
        self._invalidate(self.commit)
        self._tail = []
        self._tail_start = snapshot.index + 1
        self._handed_out = snapshot.index
        self._snapshot = snapshot
        self._snapshot_is_new = True
        self.commit = snapshot.index

    # Writes

    def has_new(self) -> bool:
        """Whether there are entries or a snapshot that are not handed out."""
        return self._snapshot_is_new or self._handed_out < self.last_index()

    def new_snapshot(self) -> SnapshotMeta | None:
        """The snapshot to install before the new entries are written, if any."""
        return self._snapshot if self._snapshot_is_new else None

    def take_new(self, number: int) -> list[Entry]:
        """Hand out the new entries, and a new snapshot, as write `number`."""
        new = self._tail[self._handed_out + 1 - self._tail_start :]
        self._handed_out = self.last_index()
        self._writes.append(_Write(number, self._handed_out, self.new_snapshot()))
        self._snapshot_is_new = False
        return new

    def is_restoring(self) -> bool:
        """Whether there is a snapshot that is not durable yet."""
        return self._snapshot is not None

    def persisted(self, number: int) -> None:
        """Record that the writes up to number are durable and in storage."""
        while self._writes and self._writes[0].number <= number:
            write = self._writes.popleft()
            if write.snapshot is not None and write.snapshot is self._snapshot:
                self._snapshot = None
            self.durable = max(self.durable, write.last_index)
        done = self.durable + 1 - self._tail_start
        if done > 0:
            del self._tail[:done]
            self._tail_start += done

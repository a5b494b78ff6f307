"""The durable log: the interface for the core, and a copy in memory."""

from typing import Protocol, final

from corvo.consensus.log import Entry
from corvo.consensus.raft.messages import ConfState, HardState, SnapshotMeta


class Storage(Protocol):
    """Durable entries `first_index() .. last_index()`, and `base()`, the entry before them.

    The core reads only entries that are reported as durable. The owner of the entries can drop
    older ones at any time, except during a read.
    """

    def hard_state(self) -> HardState:
        """The last stored hard state; read once, at the start."""

    def base(self) -> SnapshotMeta:
        """Index, term and configuration of the last entry before `first_index()`."""

    def first_index(self) -> int:
        """Index of the first entry, `base().index + 1`."""

    def last_index(self) -> int:
        """Index of the last entry; `first_index() - 1` if there are no entries."""

    def term(self, index: int) -> int:
        """Term of the entry, also for base().index; -1 if the entry is not in the log."""

    def entries(self, low: int, high: int, size_max: int) -> list[Entry]:
        """Entries low .. high - 1, limited to `size_max` bytes of data.

        At least one entry if low < high.
        """

    def snapshot(self) -> SnapshotMeta | None:
        """The snapshot that can be sent now, at or after base(); None starts the creation of
        one."""


@final
class MemoryStorage:
    """Entries in memory; the driver adds entries when they are durable."""

    def __init__(self, conf: ConfState) -> None:
        """An empty log of a new cluster with these members."""
        self.state = HardState()
        # Set by tests and drivers when a snapshot is ready.
        self.offered: SnapshotMeta | None = None
        self.wanted = False  # whether the core needs a snapshot
        self._base = SnapshotMeta(0, 0, conf)
        self._entries: list[Entry] = []

    def hard_state(self) -> HardState:
        return self.state

    def base(self) -> SnapshotMeta:
        return self._base

    def first_index(self) -> int:
        return self._base.index + 1

    def last_index(self) -> int:
        return self._base.index + len(self._entries)

    def term(self, index: int) -> int:
        base = self._base
        if index == base.index:
            return base.term
        if base.index < index <= base.index + len(self._entries):
            return self._entries[index - base.index - 1].term
        return -1

    def entries(self, low: int, high: int, size_max: int) -> list[Entry]:
        start = low - self._base.index - 1
        assert start >= 0
        found: list[Entry] = []
        size = 0
        for entry in self._entries[start : high - self._base.index - 1]:
            size += len(entry.data)
            if found and size > size_max:
                break
            found.append(entry)
        return found

    def snapshot(self) -> SnapshotMeta | None:
        self.wanted = True
        return self.offered

    def append(self, entries: list[Entry]) -> None:
        """Add durable entries; they overwrite entries from the first index on."""
        if entries:
            keep = entries[0].index - self._base.index - 1
            assert 0 <= keep <= len(self._entries), "no gaps"
            del self._entries[keep:]
            self._entries += entries

    def install(self, snapshot: SnapshotMeta) -> None:
        """Replace everything by a durable snapshot."""
        self._base = snapshot
        self._entries = []

    def compact(self, base: SnapshotMeta) -> None:
        """Drop the entries up to `base.index`; the log then starts after it."""
        drop = base.index - self._base.index
        if drop > 0:
            assert drop <= len(self._entries), "only entries in the log are dropped"
            del self._entries[:drop]
            self._base = base

"""The durable log as the core reads it, and that log kept in memory."""

from typing import Protocol, final

from corvo.consensus.log import Entry
from corvo.consensus.raft.messages import ConfState, HardState, SnapshotMeta


class Storage(Protocol):
    """Durable entries `first_index() .. last_index()` and what came before them.

    The core asks only for what it has been told to be durable. Whoever holds the entries may
    drop older ones at any time except while they are being read.
    """

    def hard_state(self) -> HardState:
        """What was stored last. Read once, at the start."""

    def base(self) -> SnapshotMeta:
        """What stands for everything before `first_index()`: index, term and members there."""

    def first_index(self) -> int:
        """`base().index + 1`."""

    def last_index(self) -> int:
        """`first_index() - 1` when there are no entries."""

    def term(self, index: int) -> int:
        """Term of the entry; of base().index, too. -1: the entry is not here (any more)."""

    def entries(self, low: int, high: int, size_max: int) -> list[Entry]:
        """Entries low .. high - 1, or the first of them up to this many bytes of data.

        At least one if low < high.
        """

    def snapshot(self) -> SnapshotMeta | None:
        """The snapshot that can be sent now, at or above base(). None: it is being prepared."""


@final
class MemoryStorage:
    """Entries in memory. The driver mirrors into it what it has made durable."""

    def __init__(self, conf: ConfState) -> None:
        """An empty log of a cluster that begins with these members."""
        self.state = HardState()
        # Replaced by tests and drivers whose snapshots take time.
        self.offered: SnapshotMeta | None = None
        self.wanted = False  # somebody asked for a snapshot
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
        """Entries that are durable now; they overwrite what was there from the first on."""
        if entries:
            keep = entries[0].index - self._base.index - 1
            assert 0 <= keep <= len(self._entries), "no gaps"
            del self._entries[keep:]
            self._entries += entries

    def install(self, snapshot: SnapshotMeta) -> None:
        """A snapshot that is durable now replaces everything."""
        self._base = snapshot
        self._entries = []

    def compact(self, base: SnapshotMeta) -> None:
        """Forget the entries up to `base.index`, whose term and members `base` says."""
        drop = base.index - self._base.index
        if drop > 0:
            assert drop <= len(self._entries), "only what is in the log"
            del self._entries[:drop]
            self._base = base

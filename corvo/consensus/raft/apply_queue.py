"""Flow control for committed entries, because the state machine can be slower than the log."""

from collections import deque
from typing import final

from corvo.consensus.log import Entry


@final
class ApplyQueue:
    """Tracks entries that are handed out but not applied, and limits their bytes.

    Invariant: `applied <= handed_out`."""

    __slots__ = ("_batches", "_size", "_size_max", "applied", "handed_out")

    def __init__(self, applied: int, size_max: int) -> None:
        self.applied = applied
        self.handed_out = applied
        self._size_max = size_max
        self._batches: deque[tuple[int, int]] = deque()  # last index and size of each
        self._size = 0

    def has_room(self) -> bool:
        """Whether more entries may be handed out; an idle state machine always gets one."""
        return not self._batches or self._size < self._size_max

    @property
    def room(self) -> int:
        """Number of bytes that may be handed out."""
        return self._size_max - self._size

    def hand_out(self, entries: list[Entry]) -> None:
        """Record entries as handed out; they follow the earlier ones."""
        size = 0
        for entry in entries:
            size += len(entry.data)
        self.handed_out = entries[-1].index
        self._batches.append((self.handed_out, size))
        self._size += size

    def done(self, index: int) -> None:
        """Record that everything up to index is applied; ignore indexes below a restored
        snapshot."""
        assert index <= self.handed_out, "only what was handed out"
        self.applied = max(self.applied, index)
        while self._batches and self._batches[0][0] <= index:
            self._size -= self._batches.popleft()[1]

    def restore(self, index: int) -> None:
        """Hand out a snapshot at index instead of entries; `done` reports the end of the
        restore."""
        self._batches.clear()
        self._size = 0
        self.handed_out = index

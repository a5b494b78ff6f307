"""Committed entries on their way to the state machine, which may be slower than the log."""

from collections import deque
from typing import final

from corvo.consensus.log import Entry


@final
class ApplyQueue:
    """`applied <= handed_out`. The bytes in between are bounded."""

    __slots__ = ("_batches", "_size", "_size_max", "applied", "handed_out")

    def __init__(self, applied: int, size_max: int) -> None:
        self.applied = applied
        self.handed_out = applied
        self._size_max = size_max
        self._batches: deque[tuple[int, int]] = deque()  # last index and size of each
        self._size = 0

    def has_room(self) -> bool:
        """Whether more may be handed out. To a state machine at rest always."""
        return not self._batches or self._size < self._size_max

    @property
    def room(self) -> int:
        """Bytes that may be handed out."""
        return self._size_max - self._size

    def hand_out(self, entries: list[Entry]) -> None:
        """These follow what was handed out before."""
        size = 0
        for entry in entries:
            size += len(entry.data)
        self.handed_out = entries[-1].index
        self._batches.append((self.handed_out, size))
        self._size += size

    def done(self, index: int) -> None:
        """Applied up to index. What a snapshot has overtaken meanwhile is no news."""
        assert index <= self.handed_out, "only what was handed out"
        self.applied = max(self.applied, index)
        while self._batches and self._batches[0][0] <= index:
            self._size -= self._batches.popleft()[1]

    def restore(self, index: int) -> None:
        """A snapshot takes the place of everything up to index; `done` says when."""
        self._batches.clear()
        self._size = 0
        self.handed_out = index

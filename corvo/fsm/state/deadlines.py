"""Due times of waiting jobs: one heap per kind of waiting, keyed by queue position.

An entry becomes void when its job stops waiting. Most jobs then leave their queue position for
good. These positions are kept in a set, so that their entries are known to be void without a lookup
of the job. Other void entries are detected when they reach the top.

The heap may hold an entry more than once. Equal entries leave it one after the other.
"""

from typing import Final

from corvo._fast.index.ready import DueHeap

COMPACT_MIN: Final = 1_024


class DueTimes:
    """A heap of (due_ns, queue position)."""

    def __init__(self) -> None:
        self._heap = DueHeap()
        self._left: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, due_ns: int, queue_position: int) -> None:
        """Add an entry for the job at this position."""
        if queue_position in self._left:  # the job waits again: drop its old entry
            self._drop_left()
        self._heap.push(due_ns, queue_position)

    def leave(self, queue_position: int) -> None:
        """Mark the entries of this position as void; their time must be in the future."""
        self._left.add(queue_position)

    def first_due(self) -> int:
        """Return the time of the first entry, 0 if there is none."""
        heap = self._heap
        while len(heap) and heap.first_key() in self._left:
            left = heap.first_key()
            while len(heap) and heap.first_key() == left:
                heap.pop()
            self._left.remove(left)
        return heap.first_due() if len(heap) else 0

    def first_position(self) -> int:
        """Return the position of the first entry; call `first_due` before."""
        return self._heap.first_key()

    def pop(self) -> None:
        """Drop the first entry."""
        self._heap.pop()

    def compact(self) -> None:
        """Drop the void entries if there are many of them."""
        if len(self._left) > len(self._heap) // 8 + COMPACT_MIN:
            self._drop_left()

    def _drop_left(self) -> None:
        self._heap.drop(self._left)
        self._left.clear()

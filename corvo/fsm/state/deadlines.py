"""Times that jobs wait for: one heap per kind of waiting, keyed by the place of the job.

An entry whose job no longer waits becomes void. Most jobs leave their place for good when they stop
waiting; their places are remembered, so that the entry is known as void without looking for the
job. What became void in another way is found out when it comes to the top.
"""

from typing import Final

from corvo._fast.index.ready import DueHeap

COMPACT_MIN: Final = 1_024


class DueTimes:
    """(due_ns, place) in order of time."""

    def __init__(self) -> None:
        self._heap = DueHeap()
        self._left: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, due_ns: int, spot: int) -> None:
        """The job in this place waits."""
        if spot in self._left:  # it is back: its old entry must not be taken for the new one
            self._drop_left()
        self._heap.push(due_ns, spot)

    def leave(self, spot: int) -> None:
        """The job in this place no longer waits, and its time is still to come."""
        self._left.add(spot)

    def first_due(self) -> int:
        """When the first entry is due, 0 when there is none."""
        heap = self._heap
        while len(heap) and heap.first_key() in self._left:
            self._left.remove(heap.first_key())
            heap.pop()
        return heap.first_due() if len(heap) else 0

    def first_spot(self) -> int:
        """The place of the first entry; `first_due` must have been asked before."""
        return self._heap.first_key()

    def pop(self) -> None:
        """Drop the first entry."""
        self._heap.pop()

    def compact(self) -> None:
        """Drop the void entries when there are many of them."""
        if len(self._left) > len(self._heap) // 8 + COMPACT_MIN:
            self._drop_left()

    def _drop_left(self) -> None:
        self._heap.drop(self._left)
        self._left.clear()

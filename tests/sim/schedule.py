"""The virtual clock: what happens next, in whole microseconds."""

import heapq
from collections.abc import Callable
from typing import Any

MILLISECOND_US = 1_000
SECOND_US = 1_000_000


class Schedule:
    """Actions in order of time; those of one moment in the order in which they were added."""

    def __init__(self) -> None:
        self.now_us = 0
        self.steps = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._added = 0

    def after(self, delay_us: int, action: Callable[..., None], *arguments: Any) -> None:
        """Call the action when so much time has passed."""
        assert delay_us >= 0
        self._added += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._added, action, arguments))

    def step(self) -> bool:
        """Go on to the next action and do it; False when there is none."""
        if not self._heap:
            return False
        self.now_us, _, action, arguments = heapq.heappop(self._heap)
        self.steps += 1
        action(*arguments)
        return True

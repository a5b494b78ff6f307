"""Turns of compressed messages: a few KiB can hold MiB, so the loop decompresses messages of one
call or stream in each of its turns, and serves other requests in between."""

from collections import deque
from collections.abc import Callable

from corvo.platform.loop import Loop


class Turns:
    """Work in order, one piece in each turn of the loop. The work must not raise."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, work: Callable[[], None]) -> None:
        """Do this after the work that waits, not in this turn."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        work = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._next)
        work()

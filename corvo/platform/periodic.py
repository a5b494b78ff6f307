"""Work at a fixed interval on the event loop."""

from collections.abc import Callable
from typing import Any

from corvo.platform.loop import Loop


class Periodic:
    """Calls `tick` every `interval_s` seconds between `start` and `close`.

    The next call is scheduled before each tick: an error of one tick does not end the others.
    """

    def __init__(self, loop: Loop, interval_s: float, tick: Callable[[], None]) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._tick = tick
        self._timer: Any = None  # None = closed

    def start(self) -> None:
        """Begin; the first tick is one interval away."""
        self.close()
        self._arm()

    def close(self) -> None:
        """Stop; `start` may follow."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._run)

    def _run(self) -> None:
        self._arm()
        self._tick()

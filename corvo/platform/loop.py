"""The event loop, as far as most modules need it: callbacks soon and later."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

# A client whose connection waits to be accepted is read in the third turn after this one.
_TURNS: Final = 4


class Loop(Protocol):
    """Schedules callbacks; `call_later` returns a handle with `cancel`."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Any:
        """Call in the next turn."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Any:
        """Call after this many seconds."""


def after_reading(loop: Loop, callback: Callable[[], object], turns: int = _TURNS) -> None:
    """Call back when the loop has read what waits in its sockets.

    A timer that is late, because the process was stopped or busy, fires before the sockets are
    read. Something that ends for want of a request must look at them first."""
    if turns:
        loop.call_soon(partial(after_reading, loop, callback, turns - 1))
    else:
        callback()

"""The event loop, as far as most modules need it: callbacks soon and later."""

from collections.abc import Callable
from typing import Any, Protocol


class Loop(Protocol):
    """Schedules callbacks; `call_later` returns a handle with `cancel`."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Any:
        """Call in the next turn."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Any:
        """Call after this many seconds."""

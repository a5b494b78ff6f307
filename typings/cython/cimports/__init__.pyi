"""C declarations that Cython brings along: nothing is known of their types."""

from typing import Any

def __getattr__(name: str) -> Any: ...

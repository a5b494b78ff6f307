"""Input in error messages: a value as it is shown, and the known name that was probably meant."""

import difflib
import json
from collections.abc import Iterable
from typing import Any, Final

from corvo.errors import ECHO_SIZE_MAX, cut

_RESEMBLING_MAX: Final = 64  # characters; a comparison reads all of them


def shown(value: Any) -> str:
    """A value as an error message shows it: JSON, cut to a few bytes."""
    if isinstance(value, str):
        value = value[:ECHO_SIZE_MAX]
    return cut(json.dumps(value, default=str))


def hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known name that resembles it, if any."""
    if len(name) > _RESEMBLING_MAX:
        return ""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""

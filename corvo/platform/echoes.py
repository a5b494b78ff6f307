"""Input in error messages: a value as it is shown, and the known name that was probably meant."""

import difflib
import json
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from corvo.errors import ECHO_SIZE_MAX, cut

_RESEMBLING_MAX: Final = 64  # characters; a comparison reads all of them


def shown(value: Any) -> str:
    """A value as an error message shows it: JSON, cut to a few bytes."""
    return cut(json.dumps(_beginning(value), default=str))


def _beginning(value: Any) -> Any:
    """At least as much of a value as is shown."""
    if isinstance(value, str):
        return value[:ECHO_SIZE_MAX]
    if isinstance(value, list):
        return [_beginning(item) for item in value[:ECHO_SIZE_MAX]]
    if isinstance(value, dict):
        members = islice(value.items(), ECHO_SIZE_MAX)
        return {_beginning(name): _beginning(item) for name, item in members}
    return value


def hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known name that resembles it, if any."""
    if len(name) > _RESEMBLING_MAX:
        return ""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""

"""Input in error messages: a value as it is shown, and the known name that was probably meant."""

import difflib
import json
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from corvo.errors import ECHO_SIZE_MAX, cut

_NAMED_MAX: Final = 8  # unknown names listed in one error
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


def resembling(name: str, known: Iterable[str]) -> str:
    """The known name that an unknown one resembles; empty if there is none."""
    near = difflib.get_close_matches(name, list(known), 1) if len(name) <= _RESEMBLING_MAX else []
    return near[0] if near else ""


def hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known name that resembles it, if any."""
    near = resembling(name, known)
    return f"; did you mean {near}?" if near else ""


def named(names: list[str], known: Iterable[str], notes: dict[str, str] | None = None) -> str:
    """Unknown names as a message lists them: the first few, each with its note, or with the known
    name that it resembles."""
    found = []
    for name in names[:_NAMED_MAX]:
        near = resembling(name, known)
        note = (notes or {}).get(name) or (f"did you mean {near}?" if near else "")
        found.append(shown(name[:_RESEMBLING_MAX]) + (f" ({note})" if note else ""))
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(found) + more

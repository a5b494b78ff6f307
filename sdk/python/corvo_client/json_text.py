"""JSON as text: values that are sent as they are, and members of a response byte for byte.

The standard decoder keeps integers of any size, but not the digits of every fraction, repeated
keys, or white space. `RawJson` sends a text unchanged, and `raw_member` finds the text of a member.
"""

import dataclasses
import json
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"
_MARK = secrets.token_hex(8)  # stands for a RawJson until its text is inserted


class RawJson:
    """A JSON text that is sent byte for byte, for example a payload with very long fractions."""

    __slots__ = ("text",)

    def __init__(self, text: str, check: bool = True) -> None:
        if check:
            json.loads(text)
        self.text = text

    def __repr__(self) -> str:
        return f"RawJson({self.text!r})"


def encode(value: Any) -> bytes:
    """Return the JSON of a value. Raises TypeError or ValueError if it has none."""
    raw: list[str] = []

    def default(item: Any) -> Any:
        if isinstance(item, RawJson):
            raw.append(item.text)
            return f"{_MARK} {len(raw) - 1}"
        return plain(item)

    text = json.dumps(
        value, default=default, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    for number, inserted in enumerate(raw):
        text = text.replace(f'"{_MARK} {number}"', inserted, 1)
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape
        return b"".join(
            c.encode() if not "\ud800" <= c <= "\udfff" else b"\\u%04x" % ord(c) for c in text
        )


def plain(item: Any) -> Any:
    """Return a value that JSON lacks as one that it has."""
    if isinstance(item, datetime):
        return time_text(item)
    if isinstance(item, timedelta):
        return item.total_seconds()
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {f.name: getattr(item, f.name) for f in dataclasses.fields(item)}
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, set | frozenset):
        return list(item)
    if isinstance(item, Enum):
        return item.value
    if isinstance(item, UUID | Decimal | PurePath):
        return str(item)
    if hasattr(item, "model_dump"):  # a model of pydantic
        return item.model_dump(mode="json")
    if hasattr(item, "__struct_fields__"):  # a struct of msgspec
        return {name: getattr(item, name) for name in item.__struct_fields__}
    raise TypeError(f"{type(item).__name__} is not JSON: convert it, or send it as RawJson")


def time_text(time: datetime) -> str:
    """Return a time in the form of RFC 3339; a time without a zone is refused."""
    if time.tzinfo is None:
        raise ValueError(f"{time!r} has no time zone: use datetime.now(UTC), for example")
    return time.isoformat()


def decode(data: bytes) -> Any:
    """Return the value of a JSON text."""
    return json.loads(data)


def raw_member(text: str, *path: str | int) -> str | None:
    """Return the text of a member of a JSON text, or None. `path` has the names and positions
    that lead to it; of repeated names the last one counts, as in the decoded value."""
    at = _skip(text, 0)
    end = len(text.rstrip(_SPACE))
    for step in path:
        found = _child(text, at, step)
        if found is None:
            return None
        at, end = found
    return text[at:end]


def _child(text: str, at: int, step: str | int) -> tuple[int, int] | None:
    """Start and end of a child of the object or list that begins at a position."""
    if text[at : at + 1] != ("{" if isinstance(step, str) else "["):
        return None
    closing = "}" if text[at] == "{" else "]"
    at = _skip(text, at + 1)
    found = None
    number = 0
    while text[at] != closing:
        key: str | int = number
        if closing == "}":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        if key == step:
            found = at, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
        number += 1
    return found


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _SPACE:
        at += 1
    return at

"""Members of a JSON object as texts: payloads are put together without being read, so that every
number, key and escape of theirs stays as it came in."""

import re
from json import dumps, loads
from typing import Final

_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]')
Member = tuple[str, bytes]  # name, JSON text


def names(value: bytes) -> list[str] | None:
    """The names of an object's members; None when the JSON text is no object."""
    if value[:1] != b"{":
        return None
    found: list[str] = []
    depth = 0
    is_name = False
    for match in _TOKENS.finditer(value):
        token: bytes = match.group()
        first = token[:1]
        if first == b'"':
            if depth == 1 and is_name:
                name: str = loads(token)
                found.append(name)
                is_name = False
        elif first in (b"{", b"["):
            depth += 1
            is_name = depth == 1
        elif first in (b"}", b"]"):
            depth -= 1
        elif first == b"," and depth == 1:
            is_name = True
    return found


def text(value: str) -> bytes:
    """A text as JSON."""
    return dumps(value).encode()


def build(members: list[Member]) -> bytes:
    """An object of these members."""
    return b"{" + b",".join([text(name) + b":" + value for name, value in members]) + b"}"


def merge(members: list[Member], theirs: bytes) -> bytes:
    """An object of these members and of those of the object `theirs`, which win. A value that is
    no object is passed over."""
    taken = names(theirs)
    if not taken:
        return build(members)
    ours = build([(name, value) for name, value in members if name not in taken])
    inner = theirs[1:].lstrip()
    return b"{" + inner if ours == b"{}" else ours[:-1] + b"," + inner

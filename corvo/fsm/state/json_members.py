"""Members of a JSON object as texts. Payloads are composed without parsing their values, so that
every number, key and escape stays as it was received."""

import re
from json import dumps, loads
from typing import Final

_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]')
Member = tuple[str, bytes]  # name, JSON text


def names(value: bytes) -> list[str] | None:
    """Return the names of an object's members; None if the JSON text is not an object."""
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
    """Return a string as JSON text."""
    return dumps(value).encode()


def build(members: list[Member]) -> bytes:
    """Return an object with these members."""
    return b"{" + b",".join([text(name) + b":" + value for name, value in members]) + b"}"


def merge(members: list[Member], theirs: bytes) -> bytes:
    """Return an object with these members and those of the object `theirs`, which win. A value of
    `theirs` that is not an object is ignored."""
    taken = names(theirs)
    if not taken:
        return build(members)
    ours = build([(name, value) for name, value in members if name not in taken])
    inner = theirs[1:].lstrip()
    return b"{" + inner if ours == b"{}" else ours[:-1] + b"," + inner

r"""JSON texts as search sees them: with their escapes decoded.

Clients choose how a JSON text is escaped (`"Zo\u00eb"` or `"Zoë"`, `"a\/b"` or `"a/b"`). Documents
keep the received bytes; comparisons use the texts of this module. Unpaired surrogates, which SQLite
cannot store, are replaced.
"""

import functools
import json
import re
from typing import Final

_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_CONTROLS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_REPLACEMENT: Final = 0xFFFD
_KEPT: Final = 8  # texts; conditions of one query read the same row several times

# SQL functions of connections that read.
FUNCTIONS: Final = ("plain_json",)


def replace_surrogates(text: str) -> str:
    """Replace unpaired surrogates in a text; pairs become one character."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain_literal(text: str) -> str:
    """A text as `plain_json` has it."""
    return replace_surrogates(text).replace("\0", chr(_REPLACEMENT))


def decode_text(text: bytes) -> str:
    """Decode a JSON string; unpaired surrogates are replaced."""
    if not text:
        return ""
    return replace_surrogates(str(json.loads(text)))


def decode_escapes(text: str) -> str:
    """Decode all escapes of a JSON text in place. The result can be searched, not parsed."""
    if "\\" not in text:
        return text
    return replace_surrogates(_ESCAPE.sub(_decode, text))


def _decode(match: re.Match[str]) -> str:
    code, mark = match.groups()
    return chr(int(code, 16)) if code else _CONTROLS.get(mark, mark)


@functools.lru_cache(maxsize=_KEPT)
def plain_json(text: str) -> str:
    """The same JSON value as SQLite can read it: without unneeded escapes, because it finds a key
    only as it is written, and without NUL, where it ends a text."""
    return replace_surrogates(_ESCAPE.sub(_decode_unneeded, text))


def _decode_unneeded(match: re.Match[str]) -> str:
    code, mark = match.groups()
    if not code:
        return "/" if mark == "/" else match.group()
    character = chr(int(code, 16) or _REPLACEMENT)
    return match.group() if character < " " or character in '"\\' else character

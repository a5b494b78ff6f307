r"""Escapes of single surrogates (`\ud800` without a partner) in JSON texts.

JSON's grammar allows them and users send them in backtraces, but the decoder refuses them. So the
first hex digit of each is swapped for a digit that no other escape of the same form has: `\ud800`
becomes `\ue800`, which is a character of its own. Values that are kept as bytes get their digits
back. The texts are only searched and replaced as a whole, so the time grows with their size alone.
"""

import re
from typing import Final

from corvo.errors import ParseError

# A pair of backslashes begins no escape. It is set aside as bytes that no JSON text has.
_PAIR: Final = rb"\\"
_ASIDE: Final = b"\0\0"
_HEX: Final = b"[0-9a-fA-F]"
_HIGH: Final = rb"[dD][89abAB]" + _HEX * 2
_LOW: Final = b"[c-fC-F]" + _HEX * 2


def _lone(digit: bytes) -> re.Pattern[bytes]:
    r"""Finds the `\ud` of single surrogates. A literal beginning makes the search fast."""
    begin = rb"\\u" + digit
    high = b"[89abAB]" + _HEX * 2 + rb"(?!\\u[dD]" + _LOW + b")"
    return re.compile(
        begin + b"(?:(?=" + high + b")|(?<!" + rb"\\u" + _HIGH + begin + b")(?=" + _LOW + b"))"
    )


_LONE: Final = [(digit, _lone(digit)) for digit in (b"d", b"D")]
# Digits that stand for `d` and `D`, the rarest first: private use, then other blocks of characters.
_DIGITS: Final = b"efcba9876543210"


class Halves:
    """A body whose single surrogates are swapped for other escapes."""

    def __init__(self, body: bytes, swaps: list[tuple[bytes, bytes]]) -> None:
        """`swaps` has the digit of some surrogates and the one that stands for it."""
        self.body = body
        self._back = [
            (rb"\u" + new, re.compile(rb"\\u" + new + b"(?=[89a-fA-F])"), rb"\\u" + old)
            for old, new in swaps
        ]
        stands = "".join(f"\\u{new.decode()}800-\\u{new.decode()}fff" for _, new in swaps)
        self._inside = re.compile(f"[{stands}]")

    def restore(self, data: bytes) -> bytes:
        """Part of the body as it was."""
        for begin, pattern, old in self._back:
            if begin in data:
                data = _unset(pattern.sub(old, _set_aside(data)))
        return data

    def inside(self, text: str) -> bool:
        """Whether a text that was decoded holds half of a pair."""
        return self._inside.search(text) is not None


def find_halves(body: bytes) -> Halves | None:
    """The body with its single surrogates swapped; None if it has none, or is no JSON anyway."""
    if rb"\u" not in body or b"\0" in body:
        return None
    text = _set_aside(body)
    swaps: list[tuple[bytes, bytes]] = []
    free = (digit for digit in _DIGITS if not _is_used(text, digit))
    for old, pattern in _LONE:
        if pattern.search(text) is None:
            continue
        digit = next(free, None)
        if digit is None:
            raise ParseError("invalid JSON: half of a surrogate pair among characters of all kinds")
        new = bytes((digit,))
        text = pattern.sub(rb"\\u" + new, text)
        swaps.append((old, new))
    return Halves(_unset(text), swaps) if swaps else None


def _is_used(text: bytes, digit: int) -> bool:
    """Whether a text has a character from the upper half of this block, escaped or not."""
    for spelled in {chr(digit), chr(digit).upper()}:
        if re.search(rb"\\u" + spelled.encode() + b"[89a-fA-F]", text):
            return True
    lead = 0xE0 | int(chr(digit), 16)
    return re.search(re.escape(bytes((lead,))) + b"[\xa0-\xbf]", text) is not None


def _set_aside(data: bytes) -> bytes:
    return data.replace(_PAIR, _ASIDE)


def _unset(data: bytes) -> bytes:
    return data.replace(_ASIDE, _PAIR)

r"""Escapes of single surrogates (`\ud800` without a partner) in JSON texts.

JSON's grammar allows them and users send them in backtraces, but the decoder refuses them. So in a
body that it has refused, the first hex digit of all surrogates is swapped for one that no other
character of the body begins with: `\ud800` becomes `\ue800`, a character like any other. Values
that are kept as bytes get their digits back, and so do decoded texts, which cannot hold a single
surrogate. Everything is searched and replaced as a whole, so the time grows with the size alone.
"""

import re
from typing import Final

from corvo.errors import ParseError

# A pair of backslashes begins no escape. It is set aside as bytes that no JSON text has.
_PAIR: Final = rb"\\"
_ASIDE: Final = b"\0\0"
# Digits that stand for `d` and `D`: that of private characters first.
_DIGITS: Final = "efcba987"


class Halves:
    """A body whose surrogates are swapped for other characters."""

    def __init__(self, body: bytes, swaps: list[tuple[bytes, bytes]]) -> None:
        """`swaps` has the beginnings of escapes and those that stand for them."""
        self.body = body
        self._swaps = swaps
        digits = [new[-1:].decode() for _, new in swaps]
        blocks = "".join(rf"\u{digit}000-\u{digit}fff" for digit in digits)
        self._found = re.compile(f"[{blocks}]")
        high = list(range(256))
        for digit in digits:
            first = int(digit, 16) << 4
            high[first : first + 16] = range(0xD0, 0xE0)
        self._high = bytes(high)

    def restore(self, data: bytes) -> bytes:
        """Part of the body as it was."""
        for old, new in self._swaps:
            if new in data:
                data = data.replace(_PAIR, _ASIDE).replace(new, old).replace(_ASIDE, _PAIR)
        return data

    def restore_text(self, text: str) -> str:
        """A decoded text as it was meant; ParseError if it holds half of a pair."""
        if self._found.search(text) is None:
            return text
        data = bytearray(text.encode("utf-16-be"))
        data[::2] = data[::2].translate(self._high)
        try:
            return data.decode("utf-16-be")
        except UnicodeDecodeError:
            message = "invalid JSON: a name or key contains half of a surrogate pair"
            raise ParseError(message) from None


def find_halves(body: bytes) -> Halves | None:
    """The body with its surrogates swapped; None if it has none, or is no JSON anyway."""
    if b"\0" in body or not (rb"\ud" in body or rb"\uD" in body):
        return None
    text = body.replace(_PAIR, _ASIDE)
    free = (digit for digit in _DIGITS if not _is_used(text, digit))
    swaps: list[tuple[bytes, bytes]] = []
    for old in (rb"\ud", rb"\uD"):
        if old not in text:
            continue
        digit = next(free, "")
        if not digit:
            raise ParseError("invalid JSON: half of a surrogate pair among characters of all kinds")
        new = rb"\u" + digit.encode()
        text = text.replace(old, new)
        swaps.append((old, new))
    return Halves(text.replace(_ASIDE, _PAIR), swaps) if swaps else None


def _is_used(text: bytes, digit: str) -> bool:
    """Whether a text has a character whose code begins with this digit, escaped or not."""
    escapes = rb"\u" + digit.encode(), rb"\u" + digit.upper().encode()
    return any(escape in text for escape in escapes) or 0xE0 | int(digit, 16) in text

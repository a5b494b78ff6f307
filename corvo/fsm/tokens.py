"""Lease tokens: the text a worker has to show.

A token is the fencing number in base 32, without leading zeros, and behind it seven digits that
carry 32 random bits of the entry's seed: nobody guesses it from the fencing number, and there is
exactly one text for each lease. Tokens are compared as texts, never parsed.
"""

from typing import Final

_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = [a + b for a in _DIGITS for b in _DIGITS]
SEED_BITS: Final = 32


def build_token(fencing: int, seed: int) -> str:
    """The token of the lease with this fencing number and these 32 bits."""
    pairs = f"{_PAIRS[(seed >> 20) & 1023]}{_PAIRS[(seed >> 10) & 1023]}{_PAIRS[seed & 1023]}"
    text = f"{_DIGITS[seed >> 30]}{pairs}"
    while fencing >= 1024:
        text = f"{_PAIRS[fencing & 1023]}{text}"
        fencing >>= 10
    return (_PAIRS[fencing] if fencing >= 32 else _DIGITS[fencing] if fencing else "") + text

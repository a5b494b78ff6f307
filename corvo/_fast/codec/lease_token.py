"""Lease tokens: the text a worker has to show.

A token is the fencing number in base 32, without leading zeros, and behind it seven digits that
carry 32 random bits of the entry's seed: nobody guesses it from the fencing number, and there is
exactly one text for each lease. Tokens are compared as texts, never parsed.
"""

import cython

if cython.compiled:
    from cython.cimports.cpython.unicode import PyUnicode_DecodeASCII

_DIGITS = b"0123456789abcdefghjkmnpqrstvwxyz"
_SIZE_MAX = 20
_SEED_DIGITS = 7
SEED_BITS = 32


def build_token(fencing: cython.ulonglong, seed: cython.ulonglong) -> str:
    """The token of the lease with this fencing number and these 32 bits."""
    if cython.compiled:  # noqa: SIM108
        text = cython.declare(cython.char[20])  # type: ignore[misc, valid-type]  # _SIZE_MAX
    else:
        text = bytearray(_SIZE_MAX)
    digits: cython.p_const_char = _DIGITS
    at: cython.Py_ssize_t = _SIZE_MAX
    while at > _SIZE_MAX - _SEED_DIGITS:
        at -= 1
        text[at] = digits[seed & 31]
        seed >>= 5
    while fencing:
        at -= 1
        text[at] = digits[fencing & 31]
        fencing >>= 5
    if cython.compiled:
        start: cython.p_char = cython.cast(cython.p_char, text) + at
        return PyUnicode_DecodeASCII(start, _SIZE_MAX - at, cython.NULL)
    else:
        return text[at:].decode()

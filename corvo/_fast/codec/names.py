"""Names: texts that become parts of keys.

A name has 1 to NAME_SIZE_MAX bytes and no NUL, because a NUL ends the parts of a key and a key of
the state store has a maximum size. Another text in a field for a name is an InvalidName, both when
the field is written and when it is read: an entry of an older version can have one.
"""

import cython

if cython.compiled:
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
    from cython.cimports.libc.string import memchr

from corvo.errors import InvalidName

# Two names and a prefix fit in a key of LMDB, which has at most 511 bytes.
NAME_SIZE_MAX = cython.declare(cython.Py_ssize_t, 128)


def is_name(utf8: cython.p_const_char, size: cython.Py_ssize_t) -> cython.bint:
    """Whether these bytes of UTF-8 are a name."""
    if size == 0 or size > NAME_SIZE_MAX:
        return False
    return memchr(utf8, 0, size) is cython.NULL if cython.compiled else b"\0" not in utf8


def check_name(text: str, number: cython.Py_ssize_t, optional: cython.bint) -> str:
    """Return the text if it is a name, or an empty text that is `optional`. `number` is that of its
    field."""
    if cython.compiled:
        size: cython.Py_ssize_t = 0
        utf8: cython.p_const_char = PyUnicode_AsUTF8AndSize(text, cython.address(size))
    else:
        utf8 = text.encode()
        size = len(utf8)
    if not is_name(utf8, size) and not (size == 0 and optional):
        raise invalid_name(text, number)
    return text


def invalid_name(text: str, number: int) -> InvalidName:
    """The error of a field that is not a name."""
    if not text:
        why = "is empty"
    elif "\0" in text:
        why = "contains a NUL character"
    else:
        why = f"has {len(text.encode())} bytes (limit {NAME_SIZE_MAX})"
    return InvalidName(f"the name in field {number} {why}")

"""Fields one by one, for classes whose fields are C fields: no tuple of objects in between.

`Writer` and `Reader` write and read what `corvo._fast.codec.layouts` does with a layout, byte for
byte, with one call for each field, named by its letter. A document that is written once for each
job is worth these calls; everything else uses a layout. Integers are those of C, so what is read
has at most 63 bits (`u`), which all our counters and times keep. Between `begin_text` and `done`, a
Writer makes a text without version and lengths, of `raw`, `text` and `decimal`.
"""

from __future__ import annotations

from typing import Any

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcpy

from corvo._fast.codec.layouts import CodecError
from corvo._fast.codec.names import check_name, invalid_name, is_name

_VERSION = 1
_ROOM = 4096
_NUMBER_SIZE = 10
_SECOND_NS = 1_000_000_000
_SECONDS_MAX = 253_402_300_799
_I64_MAX = 0x7FFF_FFFF_FFFF_FFFF
_SHARED_MAX = 255


class Writer:
    """Bytes in the making; one object is used again and again, from `begin` to `done`."""

    def __init__(self) -> None:
        self._buffer = bytearray(_ROOM)
        self._map()
        self._at = 0

    def _map(self) -> None:
        """Look at the buffer's memory, which moves when it grows."""
        self._room = len(self._buffer)
        if cython.compiled:
            self._p = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self._buffer))
        else:
            self._p = self._buffer

    def _grow(self, size: cython.Py_ssize_t) -> None:
        self._buffer += bytes(max(size, self._room))
        self._map()

    def begin(self) -> None:
        """Start a document with the version byte."""
        self._p[0] = _VERSION
        self._at = 1

    def begin_text(self) -> None:
        """Start a text, which has no version byte."""
        self._at = 0

    def done(self) -> bytes:
        """The document, or the text."""
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self._p), self._at)
        else:
            return bytes(self._p[: self._at])

    def u(self, value: cython.ulonglong) -> None:
        """An unsigned number, or a count in front of a list."""
        number: cython.ulonglong = value
        at: cython.Py_ssize_t = self._at
        if at + _NUMBER_SIZE > self._room:
            self._grow(_NUMBER_SIZE)
        p: cython.p_uchar = self._p
        while number >= 0x80:
            p[at] = (number & 0x7F) | 0x80
            number >>= 7
            at += 1
        p[at] = number
        self._at = at + 1

    def i(self, value: cython.longlong) -> None:
        """A signed number."""
        number: cython.longlong = value
        self.u(2 * number if number >= 0 else 2 * cython.cast(cython.ulonglong, -(number + 1)) + 1)

    def t(self, value: Any) -> None:
        """A time, which may lie behind the year 2262."""
        if value:
            seconds, rest = divmod(value, _SECOND_NS)
            if not 0 <= seconds <= _SECONDS_MAX:
                raise CodecError(f"{value} is out of range")
            self.u(seconds)
            self.u(rest)
        else:
            self.u(0)
            self.u(0)

    def f(self, value: cython.bint) -> None:
        """A flag."""
        self.u(1 if value else 0)

    def b(self, data: bytes) -> None:
        """Bytes."""
        self._put(
            cython.cast(cython.p_const_char, PyBytes_AS_STRING(data)) if cython.compiled else data,
            len(data),
        )

    def w(self, other: Writer) -> None:
        """The document of another writer, as bytes."""
        if cython.compiled:
            self._put(cython.cast(cython.p_const_char, other._p), other._at)
        else:
            self._put(other._p[: other._at], other._at)

    def fields(self, other: Writer) -> None:
        """The fields of another writer, as if they had been written here."""
        size: cython.Py_ssize_t = other._at - 1
        if cython.compiled:
            self._copy(cython.cast(cython.p_const_char, other._p) + 1, size)
        else:
            self._copy(other._p[1 : other._at], size)

    def s(self, text: str) -> None:
        """A text."""
        if cython.compiled:
            size: cython.Py_ssize_t = 0
            utf8: cython.p_const_char = PyUnicode_AsUTF8AndSize(text, cython.address(size))
            self._put(utf8, size)
        else:
            self.b(text.encode())

    def p(self, text: str, before: str) -> None:
        """A text behind another one, of which it repeats the front."""
        size: cython.Py_ssize_t = 0
        before_size: cython.Py_ssize_t = 0
        shared: cython.Py_ssize_t = 0
        a: cython.p_const_char
        b: cython.p_const_char
        if cython.compiled:
            a = PyUnicode_AsUTF8AndSize(before, cython.address(before_size))
            b = PyUnicode_AsUTF8AndSize(text, cython.address(size))
        else:
            a, b = before.encode(), text.encode()
            before_size, size = len(a), len(b)
        most: cython.Py_ssize_t = min(size, before_size, _SHARED_MAX)
        while shared < most and a[shared] == b[shared]:
            shared += 1
        self._byte(shared)
        self._put(b + shared if cython.compiled else b[shared:], size - shared)

    def raw(self, data: bytes) -> None:
        """Bytes without their length."""
        self._copy(
            cython.cast(cython.p_const_char, PyBytes_AS_STRING(data)) if cython.compiled else data,
            len(data),
        )

    def text(self, text: str) -> None:
        """A text without its length."""
        if cython.compiled:
            size: cython.Py_ssize_t = 0
            utf8: cython.p_const_char = PyUnicode_AsUTF8AndSize(text, cython.address(size))
            self._copy(utf8, size)
        else:
            self.raw(text.encode())

    def decimal(self, value: cython.ulonglong) -> None:
        """A number that is not negative, in digits."""
        number: cython.ulonglong = value
        size: cython.Py_ssize_t = 1
        while number >= 10:
            number //= 10
            size += 1
        number = value
        self.hole(size)
        p: cython.p_uchar = self._p
        at: cython.Py_ssize_t = self._at
        for _ in range(size):
            at -= 1
            p[at] = 48 + number % 10
            number //= 10

    def hole(self, size: cython.Py_ssize_t) -> None:
        """Room for bytes that are written later."""
        if self._at + size > self._room:
            self._grow(size)
        self._at += size

    def _byte(self, value: cython.uchar) -> None:
        if self._at == self._room:
            self._grow(1)
        self._p[self._at] = value
        self._at += 1

    def _put(self, data: cython.p_const_char, size: cython.Py_ssize_t) -> None:
        """A length and as many bytes."""
        self.u(size)
        self._copy(data, size)

    def _copy(self, data: cython.p_const_char, size: cython.Py_ssize_t) -> None:
        """As many bytes."""
        at: cython.Py_ssize_t = self._at
        if at + size > self._room:
            self._grow(size)
        if cython.compiled:
            memcpy(self._p + at, data, size)
        else:
            self._p[at : at + size] = data
        self._at = at + size


class Reader:
    """A document being read, field after field. Everything that `decode_fields` refuses is refused
    with a CodecError."""

    def begin(self, data: bytes) -> None:
        """Start behind the version byte."""
        if len(data) == 0:
            raise CodecError("empty, not even a version byte")
        self._data = data
        self._end = len(data)
        if cython.compiled:
            self._p = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(data))
        else:
            self._p = data
        if self._p[0] != _VERSION:
            raise CodecError(f"version {self._p[0]}, but only {_VERSION} is known here")
        self._at = 1
        self._number = 0

    def more(self) -> cython.bint:
        """Whether fields are left: a record of an earlier format ends before the newer ones."""
        return self._at < self._end

    def done(self) -> None:
        """Nothing may be left."""
        if self._at != self._end:
            raise CodecError(f"{self._end - self._at} bytes left over after the last field")
        self._data = b""

    def _error(self, why: str) -> Any:
        return CodecError(f"field {self._number}: {why} (byte {self._at} of {self._end})")

    def _uvarint(self) -> cython.ulonglong:
        at: cython.Py_ssize_t = self._at
        if at < self._end and self._p[at] < 0x80:  # as most are
            self._at = at + 1
            return self._p[at]
        value: cython.ulonglong = 0
        byte: cython.ulonglong
        shift: cython.int = 0
        while shift <= 63:
            if self._at >= self._end:
                raise self._error("truncated varint")
            byte = self._p[self._at]
            if shift == 63 and byte > 1:
                break
            self._at += 1
            if byte < 0x80:
                if byte == 0 and shift > 0:
                    raise self._error("padded varint")
                return value | (byte << shift)
            value |= (byte & 0x7F) << shift
            shift += 7
        raise self._error("varint of more than 64 bits")

    def _size(self) -> cython.Py_ssize_t:
        size: cython.ulonglong = self._uvarint()
        left: cython.ulonglong = self._end - self._at
        if size > left:
            raise self._error(f"length {size} beyond the end")
        return size

    def u(self) -> cython.Py_ssize_t:
        """An unsigned number."""
        value: cython.ulonglong = self._uvarint()
        if value > _I64_MAX:
            raise self._error("a number of more than 63 bits")
        self._number += 1
        return value

    def i(self) -> cython.Py_ssize_t:
        """A signed number."""
        bits: cython.ulonglong = self._uvarint()
        value: cython.longlong = bits >> 1
        self._number += 1
        return -value - 1 if bits & 1 else value

    def t(self) -> int:
        """A time."""
        seconds: cython.ulonglong = self._uvarint()
        if seconds > _SECONDS_MAX:
            raise self._error("time after the year 9999")
        rest: cython.ulonglong = self._uvarint()
        if rest >= _SECOND_NS:
            raise self._error("more nanoseconds than a second has")
        self._number += 1
        if seconds == 0 and rest == 0:
            return 0
        return cython.cast(object, seconds) * 1_000_000_000 + rest  # type: ignore[operator]

    def f(self) -> cython.bint:
        """A flag."""
        if self._at >= self._end:
            raise self._error("truncated")
        value: cython.int = self._p[self._at]
        if value > 1:
            raise self._error("flag is neither 0 nor 1")
        self._at += 1
        self._number += 1
        return value == 1

    def b(self) -> bytes:
        """Bytes."""
        size: cython.Py_ssize_t = self._size()
        at: cython.Py_ssize_t = self._at
        self._at = at + size
        self._number += 1
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_const_char, self._p) + at, size)
        else:
            return self._data[at : at + size]

    def s(self) -> str:
        """A text."""
        return self._text(self._size())

    def _text(self, size: cython.Py_ssize_t) -> str:
        at: cython.Py_ssize_t = self._at
        try:
            if cython.compiled:
                p: cython.p_const_char = cython.cast(cython.p_const_char, self._p) + at
                text: str = PyUnicode_DecodeUTF8(p, size, cython.NULL)
            else:
                text = self._data[at : at + size].decode()
        except UnicodeDecodeError:
            raise self._error("invalid UTF-8") from None
        self._at = at + size
        self._number += 1
        return text

    def n(self) -> str:
        """A name; another text is an InvalidName."""
        size: cython.Py_ssize_t = self._size()
        at: cython.Py_ssize_t = self._at
        if cython.compiled:
            valid: cython.bint = is_name(cython.cast(cython.p_const_char, self._p) + at, size)
        else:
            valid = is_name(self._data[at : at + size], size)
        text: str = self._text(size)
        if not valid:
            raise invalid_name(text, self._number - 1)
        return text

    def o(self) -> str:
        """A name or an empty text."""
        if self._at < self._end and self._p[self._at] == 0:
            self._at += 1
            self._number += 1
            return ""
        return self.n()

    def texts(self) -> list[str]:
        """A list of texts."""
        found: list[Any] = []
        number: cython.Py_ssize_t = self._number
        count: cython.Py_ssize_t = self._size()
        for _ in range(count):  # each takes a byte at least
            found.append(self.s())
        self._number = number + 1
        return found

    def names(self) -> list[str]:
        """A list of names."""
        found: list[Any] = self.texts()
        for name in found:
            check_name(name, self._number - 1, False)
        return found

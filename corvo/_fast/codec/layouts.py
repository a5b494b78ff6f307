"""Binary forms of op payloads, documents and log entries.

Primitives. An *uvarint* is an unsigned integer of at most 64 bits in base 128, least significant
group first, the top bit of a byte saying that another follows; only the shortest form is valid.
Byte strings and texts (UTF-8) carry their length as an uvarint in front.

Fields (`encode_fields`). One version byte, then the fields of a layout one after another without
names or tags. A layout is a string with one letter a field:

    s  text                     b  bytes (empty = absent)
    n  name (`.names`)          o  name or empty text
    u  uvarint                  i  signed 64 bits as an uvarint: 0, -1, 1, -2 -> 0, 1, 2, 3
    q  signed, 8 bytes, little-endian
    t  time in unix nanoseconds: uvarint seconds, uvarint nanoseconds (< 10**9)
    f  flag, one byte 0 or 1
    S  uvarint count, then texts      B  uvarint count, then byte strings
    U  uvarint count, then uvarints   N  uvarint count, then names
    P  uvarint count, then texts written as the number of leading bytes each shares with the one
       before it (one byte, at most 255) and the rest as a byte string: ids of one batch are alike

Frame (`encode_frame`). The bytes `CB1`, an uvarint count, then for each op its number as an
uvarint and its payload as a byte string.

Decoding is strict, because every node must read the same bytes the same way: a length beyond the
end, a long or padded varint, invalid UTF-8 and bytes left over are a CodecError with its place. No
memory is allocated for a length that the data does not cover; only front-coded texts can be longer
than their data. Encoding fills a scratch buffer that is kept, and copies the result.
"""

from typing import Any

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.long import (
        PyLong_AsLongLongAndOverflow,
        PyLong_AsUnsignedLongLongMask,
    )
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcpy

from corvo._fast.codec.names import check_name

VERSION = cython.declare(cython.uchar, 1)
MAGIC = cython.declare(bytes, b"CB1")
U64_MAX = 0xFFFF_FFFF_FFFF_FFFF
I64_MAX = 0x7FFF_FFFF_FFFF_FFFF
SECOND_NS = cython.declare(cython.ulonglong, 1_000_000_000)
SHARED_MAX = cython.declare(cython.Py_ssize_t, 255)
# 9999-12-31T23:59:59, and the last second whose nanoseconds fit 64 bits.
SECONDS_MAX = cython.declare(cython.ulonglong, 253_402_300_799)
SECONDS_MAX_64 = cython.declare(cython.ulonglong, 18_446_744_072)
UVARINT_SIZE_MAX = cython.declare(cython.Py_ssize_t, 10)
SCRATCH_SIZE = cython.declare(cython.Py_ssize_t, 4096)
_scratch = cython.declare(bytearray, bytearray(4096))


class CodecError(ValueError):
    """Bytes that are not a valid encoding, or a value that has none."""


# Writing: `p` is a pointer or a bytearray; each function returns the position after its bytes.


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _uvarint_size(value: cython.ulonglong) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_uvarint(
    p: cython.p_uchar, at: cython.Py_ssize_t, value: cython.ulonglong
) -> cython.Py_ssize_t:
    while value >= 0x80:
        p[at] = (value & 0x7F) | 0x80
        value >>= 7
        at += 1
    p[at] = value
    return at + 1


@cython.cfunc
@cython.inline
def _put_bytes(p: cython.p_uchar, at: cython.Py_ssize_t, data: bytes) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = len(data)
    at = _put_uvarint(p, at, size)
    if cython.compiled:
        memcpy(p + at, PyBytes_AS_STRING(data), size)
    else:
        p[at : at + size] = data
    return at + size


@cython.cfunc
@cython.inline
def _put_text(p: cython.p_uchar, at: cython.Py_ssize_t, text: str) -> cython.Py_ssize_t:
    if cython.compiled:
        size: cython.Py_ssize_t = 0
        utf8: cython.p_const_char = PyUnicode_AsUTF8AndSize(text, cython.address(size))
        at = _put_uvarint(p, at, size)
        memcpy(p + at, utf8, size)
        return at + size
    else:
        return _put_bytes(p, at, text.encode())


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _text_size(value: object) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = 0
    if type(value) is not str:
        raise TypeError(f"text expected, not {type(value).__name__}")
    if cython.compiled:
        PyUnicode_AsUTF8AndSize(value, cython.address(size))
    else:
        size = len(value.encode())
    return _uvarint_size(size) + size


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _bytes_size(value: object) -> cython.Py_ssize_t:
    if type(value) is not bytes:
        raise TypeError(f"bytes expected, not {type(value).__name__}")
    size: cython.Py_ssize_t = len(cython.cast(bytes, value))
    return _uvarint_size(size) + size


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=True)
def _unsigned(value: object) -> cython.ulonglong:
    """The value as a C integer; OverflowError outside of 0..2**64-1."""
    if type(value) is not int:
        raise TypeError(f"integer expected, not {type(value).__name__}")
    if not cython.compiled and not 0 <= value <= U64_MAX:
        raise OverflowError
    return value


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=True)
def _signed(value: object) -> cython.longlong:
    """The value as a C integer; OverflowError outside of 64 bits."""
    if type(value) is not int:
        raise TypeError(f"integer expected, not {type(value).__name__}")
    if not cython.compiled and not -I64_MAX - 1 <= value <= I64_MAX:
        raise OverflowError
    return value


@cython.cfunc
@cython.exceptval(-1, check=True)
def _seconds(value: object) -> cython.ulonglong:
    """Whole seconds of a time; OverflowError outside of the years 1970 to 9999."""
    if type(value) is not int:
        raise TypeError(f"integer expected, not {type(value).__name__}")
    if cython.compiled:
        overflow: cython.int = 0
        ns: cython.longlong = PyLong_AsLongLongAndOverflow(value, cython.address(overflow))
        if overflow == 0 and ns >= 0:
            return ns // 1_000_000_000
    seconds: cython.ulonglong = _unsigned(value // SECOND_NS)
    if seconds > SECONDS_MAX:
        raise OverflowError
    return seconds


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=True)
def _nanoseconds(value: Any, seconds: cython.ulonglong) -> cython.ulonglong:
    """The rest of a time behind its seconds, which may have more than 64 bits together."""
    if cython.compiled:
        return PyLong_AsUnsignedLongLongMask(value) - seconds * SECOND_NS
    else:
        return value % SECOND_NS


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _shared(
    a: cython.p_const_char,
    a_size: cython.Py_ssize_t,
    b: cython.p_const_char,
    b_size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """How many leading bytes are equal, at most SHARED_MAX."""
    most: cython.Py_ssize_t = min(a_size, b_size, SHARED_MAX)
    i: cython.Py_ssize_t = 0
    while i < most and a[i] == b[i]:
        i += 1
    return i


@cython.cfunc
@cython.exceptval(-1)
def _front_coded(
    items: list[Any], p: cython.p_uchar, at: cython.Py_ssize_t, fill: cython.bint
) -> cython.Py_ssize_t:
    """The position behind the texts of a `P` field; writes them if `fill` is set."""
    raw: cython.p_const_char
    before: cython.p_const_char = b""
    size: cython.Py_ssize_t = 0
    before_size: cython.Py_ssize_t = 0
    for item in items:
        if type(item) is not str:
            raise TypeError(f"text expected, not {type(item).__name__}")
        if cython.compiled:
            raw = PyUnicode_AsUTF8AndSize(item, cython.address(size))
        else:
            raw = item.encode()
            size = len(raw)
        shared: cython.Py_ssize_t = _shared(before, before_size, raw, size)
        rest: cython.Py_ssize_t = size - shared
        if not fill:
            at += 1 + _uvarint_size(rest) + rest
        else:
            p[at] = shared
            at = _put_uvarint(p, at + 1, rest)
            if cython.compiled:
                memcpy(p + at, raw + shared, rest)
            else:
                p[at : at + rest] = raw[shared:]
            at += rest
        before, before_size = raw, size
    return at


@cython.cfunc
@cython.exceptval(-1)
def _field_size(letter: cython.Py_UCS4, value: Any, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """How many bytes the field takes at most. What is wrong with a text, bytes or a list is found
    here, what is wrong with a number when it is written."""
    size: cython.Py_ssize_t
    if letter == "u" or letter == "i" or letter == "q" or letter == "f":
        return UVARINT_SIZE_MAX
    if letter == "s" or letter == "n" or letter == "o":
        size = _text_size(value)
        if letter != "s":
            check_name(value, i, letter == "o")
        return size
    if letter == "b":
        return _bytes_size(value)
    if letter == "t":
        return 2 * UVARINT_SIZE_MAX
    if type(value) is not list:
        raise TypeError(f"list expected, not {type(value).__name__}")
    items: list[Any] = value
    size = _uvarint_size(len(items))
    if letter == "S" or letter == "N":
        for item in items:
            size += _text_size(item)
            if letter == "N":
                check_name(item, i, False)
    elif letter == "B":
        for item in items:
            size += _bytes_size(item)
    elif letter == "U":
        size += UVARINT_SIZE_MAX * len(items)
    else:
        assert letter == "P", f"no such layout letter: {letter!r}"
        size = _front_coded(items, cython.NULL, size, False)
    return size


@cython.cfunc
def _put_field(
    p: cython.p_uchar, at: cython.Py_ssize_t, letter: cython.Py_UCS4, value: Any
) -> cython.Py_ssize_t:
    """Write a field that `_field_size` has found room for."""
    bits: cython.ulonglong
    if letter == "u":
        return _put_uvarint(p, at, _unsigned(value))
    if letter == "s" or letter == "n" or letter == "o":
        return _put_text(p, at, value)
    if letter == "b":
        return _put_bytes(p, at, value)
    if letter == "i":
        signed: cython.longlong = _signed(value)
        return _put_uvarint(p, at, (signed << 1) ^ (signed >> 63))
    if letter == "t":
        seconds: cython.ulonglong = _seconds(value)
        at = _put_uvarint(p, at, seconds)
        return _put_uvarint(p, at, _nanoseconds(value, seconds))
    if letter == "q":
        bits = _signed(value)
        for _ in range(8):
            p[at] = bits & 0xFF
            bits >>= 8
            at += 1
        return at
    if letter == "f":
        if type(value) is not bool:
            raise TypeError(f"flag expected, not {type(value).__name__}")
        p[at] = value is True
        return at + 1
    items: list[Any] = value
    at = _put_uvarint(p, at, len(items))
    if letter == "P":
        return _front_coded(items, p, at, True)
    for item in items:
        if letter == "S" or letter == "N":
            at = _put_text(p, at, item)
        elif letter == "B":
            at = _put_bytes(p, at, item)
        else:
            at = _put_uvarint(p, at, _unsigned(item))
    return at


def encode_fields(layout: str, values: tuple[Any, ...]) -> bytes:
    """The values as a version byte and the fields of `layout`, one value a letter."""
    count: cython.Py_ssize_t = len(layout)
    size: cython.Py_ssize_t = 1
    at: cython.Py_ssize_t = 1
    i: cython.Py_ssize_t = 0
    assert len(values) == count, f"{len(values)} values for layout {layout!r}"
    letter: cython.Py_UCS4
    try:
        for i, letter in enumerate(layout):
            size += _field_size(letter, values[i], i)
        buffer: bytearray = _scratch if size <= SCRATCH_SIZE else bytearray(size)
        if cython.compiled:
            p = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
        else:
            p = buffer
        p[0] = VERSION
        for i, letter in enumerate(layout):
            at = _put_field(p, at, letter, values[i])
    except OverflowError:
        raise CodecError(f"field {i} ({layout[i]}): {values[i]} is out of range") from None
    except UnicodeEncodeError:
        raise CodecError(f"field {i} ({layout[i]}): lone surrogates have no UTF-8") from None
    except TypeError as error:
        raise CodecError(f"field {i} ({layout[i]}): {error}") from None
    assert at <= size
    return p[:at] if cython.compiled else bytes(p[:at])


def encode_frame(ops: list[tuple[int, bytes]]) -> bytes:
    """The CB1 frame of the ops (number, payload), in this order."""
    size: cython.Py_ssize_t = len(MAGIC) + _uvarint_size(len(ops))
    at: cython.Py_ssize_t = len(MAGIC)
    i: cython.Py_ssize_t = 0
    try:
        for i in range(len(ops)):
            number, payload = ops[i]
            size += _uvarint_size(_unsigned(number)) + _bytes_size(payload)
    except OverflowError:
        raise CodecError(f"op {i}: number {number} is out of range") from None
    except TypeError as error:
        raise CodecError(f"op {i}: {error}") from None
    if cython.compiled:
        out: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        p = cython.cast(cython.p_uchar, PyBytes_AS_STRING(out))
        memcpy(p, b"CB1", 3)
    else:
        p = bytearray(size)
        p[:3] = MAGIC
    at = _put_uvarint(p, at, len(ops))
    for number, payload in ops:
        at = _put_uvarint(p, at, _unsigned(number))
        at = _put_bytes(p, at, payload)
    assert at == size
    return out if cython.compiled else bytes(p)


# Reading.


@cython.freelist(4)
@cython.final
@cython.cclass
class _Reader:
    """A position in the data, and the name of the place for error texts."""

    data: bytes
    p: cython.p_uchar
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    what: str
    number: cython.Py_ssize_t


@cython.cfunc
def _read(data: bytes, what: str) -> _Reader:
    reader: _Reader = _Reader.__new__(_Reader)
    reader.data = data
    if cython.compiled:
        reader.p = cython.cast(cython.p_uchar, PyBytes_AS_STRING(data))
    else:
        reader.p = data
    reader.at = 0
    reader.end = len(data)
    reader.what = what
    reader.number = 0
    return reader


@cython.cfunc
def _error(reader: _Reader, why: str) -> CodecError:
    return CodecError(f"{reader.what} {reader.number}: {why} (byte {reader.at} of {reader.end})")


@cython.cfunc
@cython.exceptval(-1, check=True)
def _get_uvarint(reader: _Reader) -> cython.ulonglong:
    value: cython.ulonglong = 0
    byte: cython.ulonglong
    shift: cython.int = 0
    while shift <= 63:
        if reader.at >= reader.end:
            raise _error(reader, "truncated varint")
        byte = reader.p[reader.at]
        if shift == 63 and byte > 1:
            break
        reader.at += 1
        if byte < 0x80:
            if byte == 0 and shift > 0:
                raise _error(reader, "padded varint")
            return value | (byte << shift)
        value |= (byte & 0x7F) << shift
        shift += 7
    raise _error(reader, "varint of more than 64 bits")


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _get_size(reader: _Reader, unit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """A length or count whose items take at least `unit` bytes of the data that is left."""
    size: cython.ulonglong = _get_uvarint(reader)
    left: cython.ulonglong = (reader.end - reader.at) // unit
    if size > left:
        raise _error(reader, f"length {size} beyond the end")
    return size


@cython.cfunc
@cython.inline
def _get_bytes(reader: _Reader) -> bytes:
    size: cython.Py_ssize_t = _get_size(reader, 1)
    at: cython.Py_ssize_t = reader.at
    reader.at = at + size
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, reader.p) + at, size)
    else:
        return reader.data[at : at + size]


@cython.cfunc
@cython.inline
def _get_text(reader: _Reader) -> str:
    size: cython.Py_ssize_t = _get_size(reader, 1)
    at: cython.Py_ssize_t = reader.at
    reader.at = at + size
    if cython.compiled:
        return PyUnicode_DecodeUTF8(cython.cast(cython.p_char, reader.p) + at, size, cython.NULL)
    else:
        return reader.data[at : at + size].decode()


@cython.cfunc
def _get_time(reader: _Reader) -> object:
    seconds: cython.ulonglong = _get_uvarint(reader)
    if seconds > SECONDS_MAX:
        raise _error(reader, "time after the year 9999")
    ns: cython.ulonglong = _get_uvarint(reader)
    if ns >= SECOND_NS:
        raise _error(reader, "more nanoseconds than a second has")
    if seconds <= SECONDS_MAX_64:
        return seconds * SECOND_NS + ns
    return cython.cast(object, seconds) * SECOND_NS + ns  # type: ignore[operator]


@cython.cfunc
def _get_field(reader: _Reader, letter: cython.Py_UCS4) -> object:
    bits: cython.ulonglong = 0
    i: cython.Py_ssize_t
    if letter == "s":
        return _get_text(reader)
    if letter == "b":
        return _get_bytes(reader)
    if letter == "u":
        return _get_uvarint(reader)
    if letter == "n" or letter == "o":
        return check_name(_get_text(reader), reader.number, letter == "o")
    if letter == "t":
        return _get_time(reader)
    if letter == "i":
        bits = _get_uvarint(reader)
        signed: cython.longlong = bits >> 1
        return -signed - 1 if bits & 1 else signed
    if letter == "q":
        if reader.end - reader.at < 8:
            raise _error(reader, "truncated")
        for i in range(8):
            bits |= cython.cast(cython.ulonglong, reader.p[reader.at + i]) << (8 * i)
        reader.at += 8
        if cython.compiled:
            return cython.cast(cython.longlong, bits)
        else:
            return bits - (1 << 64) if bits > I64_MAX else bits
    if letter == "f":
        if reader.at >= reader.end:
            raise _error(reader, "truncated")
        if reader.p[reader.at] > 1:
            raise _error(reader, "flag is neither 0 nor 1")
        reader.at += 1
        return reader.p[reader.at - 1] == 1
    return _get_list(reader, letter)


@cython.cfunc
def _get_list(reader: _Reader, letter: cython.Py_UCS4) -> list[Any]:
    items: list[Any] = []
    before: bytes = b""
    count: cython.Py_ssize_t = _get_size(reader, 2 if letter == "P" else 1)
    for _ in range(count):
        if letter == "S":
            items.append(_get_text(reader))
        elif letter == "N":
            items.append(check_name(_get_text(reader), reader.number, False))
        elif letter == "B":
            items.append(_get_bytes(reader))
        elif letter == "U":
            items.append(_get_uvarint(reader))
        else:
            assert letter == "P", f"no such layout letter: {letter!r}"
            before = _get_front_coded(reader, before)
            items.append(before.decode())
    return items


@cython.cfunc
def _get_front_coded(reader: _Reader, before: bytes) -> bytes:
    """The next text as bytes, given the one before it."""
    if reader.at >= reader.end:
        raise _error(reader, "truncated")
    shared: cython.Py_ssize_t = reader.p[reader.at]
    if shared > len(before):
        raise _error(reader, "shares more than the text before it has")
    reader.at += 1
    return before[:shared] + _get_bytes(reader)


def decode_fields(layout: str, data: bytes) -> tuple[Any, ...]:
    """The values of the fields; those with capital letters are lists."""
    reader: _Reader = _read(data, "field")
    values: list[Any] = []
    letter: cython.Py_UCS4
    if reader.end == 0:
        raise CodecError("empty, not even a version byte")
    if reader.p[0] != VERSION:
        raise CodecError(f"version {reader.p[0]}, but only {VERSION} is known here")
    reader.at = 1
    try:
        for letter in layout:
            values.append(_get_field(reader, letter))
            reader.number += 1
    except UnicodeDecodeError:
        raise _error(reader, "invalid UTF-8") from None
    if reader.at != reader.end:
        raise CodecError(f"{reader.end - reader.at} bytes left over after the last field")
    return tuple(values)


def decode_frame(data: bytes) -> list[tuple[int, bytes]]:
    """The ops (number, payload) of a CB1 frame."""
    reader: _Reader = _read(data, "op")
    ops: list[Any] = []
    i: cython.Py_ssize_t
    if not data.startswith(MAGIC):
        raise CodecError("not a CB1 frame")
    reader.at = len(MAGIC)
    reader.what = "op count"
    count: cython.Py_ssize_t = _get_size(reader, 2)
    reader.what = "op"
    for i in range(count):
        reader.number = i
        number: cython.ulonglong = _get_uvarint(reader)
        ops.append((number, _get_bytes(reader)))
    if reader.at != reader.end:
        raise CodecError(f"{reader.end - reader.at} bytes left over after the last op")
    return ops

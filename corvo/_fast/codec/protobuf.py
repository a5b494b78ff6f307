"""Protocol Buffers, proto3: bytes to dicts and back, by tables of fields.

A message is a dict by the names of its fields. A field that is not there has its default value; a
field without presence of its own that has its default value is never there, so that equal dicts are
equal messages. Repeated fields are lists, maps are dicts, messages are dicts again; where a message
is written, it may be given as its bytes, and a repeated field as the bytes of all it adds.

What is read from the wire: unknown fields, groups, and fields with another wire type than theirs
are skipped. The last value of a field counts, parts of a message are merged, elements are appended.
Texts must be UTF-8. The number of elements of all lists and maps is bounded, as each costs far more
in memory than on the wire.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

import cython

# Kinds of fields.
STRING: Final = 0
INT32: Final = 1
INT64: Final = 2
UINT64: Final = 3
BOOL: Final = 4
DOUBLE: Final = 5
MESSAGE: Final = 6
_STRING, _INT32, _INT64, _UINT64, _BOOL, _DOUBLE, _MESSAGE = range(7)
_VARINT, _FIXED64, _SIZED, _GROUP, _END_GROUP, _FIXED32 = range(6)
_WIRES: Final = (_SIZED, _VARINT, _VARINT, _VARINT, _VARINT, _FIXED64, _SIZED)
_DEFAULTS: Final = ("", 0, 0, 0, False, 0.0, None)
_DEPTH_MAX = 100
_FIELDS_PER_ITEM = 16  # of the messages with the most items
_TAG_MAX = 0xFFFFFFFF
_ALL_BITS = 0xFFFFFFFFFFFFFFFF
_DOUBLE_BYTES: Final = struct.Struct("<d")
_SHORT: Final = tuple(bytes((number,)) for number in range(128))


class ProtobufError(ValueError):
    """The bytes are no such message."""


class Field:
    """One field of a message."""

    def __init__(
        self,
        number: int,
        name: str,
        kind: int,
        repeated: bool = False,
        optional: bool = False,
        message: Message | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.kind = kind
        self.repeated = repeated
        self.optional = optional  # has presence of its own
        self.message = message  # type of a message, or of the entries of a map
        self.is_map = message is not None and message.is_entry
        self.wire = _WIRES[kind]
        self.tag = encode_varint(number << 3 | self.wire)
        self.default = _DEFAULTS[kind]


class Message:
    """A type of messages: its fields, in the order of their numbers."""

    def __init__(self, name: str, is_entry: bool = False) -> None:
        self.name = name
        self.is_entry = is_entry
        self.fields: list[Field] = []
        self.by_number: dict[int, Field] = {}

    def set_fields(self, fields: Iterable[Field]) -> None:
        """Give a type its fields; comes later than the type, as types may hold each other."""
        self.fields = sorted(fields, key=lambda field: field.number)
        self.by_number = {field.number: field for field in self.fields}


def decode(message: Message, data: bytes, items_max: cython.Py_ssize_t) -> dict[str, Any]:
    """The message in some bytes; ProtobufError if they are none, or one with too many elements."""
    reader = _Reader(data, items_max)
    values: dict[str, Any] = {}
    reader._read_message(message, len(data), values, 0)
    return values


def encode(message: Message, values: dict[str, Any]) -> bytes:
    """A message as bytes."""
    pieces: list[bytes] = []
    _put_message(message, values, pieces)
    return b"".join(pieces)


def encode_varint(value: Any) -> bytes:
    """A number below 2**64, seven bits a byte."""
    if value < 128:
        return _SHORT[value]
    left: cython.ulonglong = value
    if cython.compiled:
        digits = cython.declare(cython.uchar[10])  # type: ignore[misc, valid-type]
        size: cython.Py_ssize_t = 0
        while left >= 128:
            digits[size] = cython.cast(cython.uchar, left & 0x7F | 0x80)
            size += 1
            left >>= 7
        digits[size] = cython.cast(cython.uchar, left)
        return cython.cast(cython.p_uchar, digits)[: size + 1]
    else:
        text = bytearray()
        while left >= 128:
            text.append(left & 0x7F | 0x80)
            left >>= 7
        text.append(left)
        return bytes(text)


def varint_size(value: cython.ulonglong) -> cython.Py_ssize_t:
    """How many bytes a number below 2**63 takes."""
    size: cython.Py_ssize_t = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


class _Reader:
    """Goes through the bytes once."""

    def __init__(self, data: bytes, items_max: cython.Py_ssize_t) -> None:
        self.data = data
        self.at = 0
        self.items_left = items_max
        self.items_max = items_max
        self.fields_left = items_max * _FIELDS_PER_ITEM

    def _read_message(
        self, message: Message, end: cython.Py_ssize_t, values: dict[Any, Any], depth: cython.int
    ) -> None:
        """The fields up to `end`, into what there is of the message."""
        if depth > _DEPTH_MAX:
            raise ProtobufError("messages are nested too deeply")
        fields: dict[Any, Any] = message.by_number
        while self.at < end:
            tag: cython.ulonglong = self._read_varint(end)
            if tag > _TAG_MAX or tag < 8:
                raise ProtobufError(f"{tag} is no tag of a field")
            wire: cython.int = tag & 7
            self._count_field()
            found = fields.get(tag >> 3)
            if found is None:
                self._skip(tag >> 3, wire, end, depth)
                continue
            field: Field = found
            if field.wire != wire:
                self._skip(tag >> 3, wire, end, depth)
            elif field.kind == _MESSAGE:
                self._read_part(field, self._read_size(end), values, depth)
            elif field.repeated:
                self._count_item()
                values.setdefault(field.name, []).append(self._read_scalar(field, end))
            else:
                value = self._read_scalar(field, end)
                if field.optional or not _is_default(field, value):
                    values[field.name] = value
                else:
                    values.pop(field.name, None)

    def _read_part(
        self, field: Field, end: cython.Py_ssize_t, values: dict[Any, Any], depth: cython.int
    ) -> None:
        """A message inside another one, of which this may be a part only."""
        assert field.message is not None
        if field.is_map:
            self._count_item()
            entry: dict[str, Any] = {}
            self._read_message(field.message, end, entry, depth + 1)
            key_field: Field = field.message.fields[0]
            value_field: Field = field.message.fields[1]
            default: Any = {} if value_field.kind == _MESSAGE else value_field.default
            key = entry.get("key", key_field.default)
            values.setdefault(field.name, {})[key] = entry.get("value", default)
        elif field.repeated:
            self._count_item()
            item: dict[str, Any] = {}
            items: list[Any] = values.setdefault(field.name, [])
            items.append(item)
            try:
                self._read_message(field.message, end, item, depth + 1)
            except ProtobufError as error:
                raise ProtobufError(f"{field.name}[{len(items) - 1}]: {error}") from None
        else:
            self._read_message(field.message, end, values.setdefault(field.name, {}), depth + 1)

    def _read_scalar(self, field: Field, end: cython.Py_ssize_t) -> Any:
        """The value of a field that is no message."""
        kind: cython.int = field.kind
        if kind == _STRING:
            stop: cython.Py_ssize_t = self._read_size(end)
            start: cython.Py_ssize_t = self.at
            self.at = stop
            try:
                return self.data[start:stop].decode("utf-8")
            except UnicodeDecodeError:
                raise ProtobufError(f"{field.name} is not UTF-8") from None
        if kind == _DOUBLE:
            if end - self.at < 8:
                raise _cut_off()
            self.at += 8
            return _DOUBLE_BYTES.unpack_from(self.data, self.at - 8)[0]
        value: cython.ulonglong = self._read_varint(end)
        if kind == _BOOL:
            return value != 0
        if kind == _UINT64:
            return value
        if kind == _INT64:
            if value >> 63:
                return -1 - cython.cast(cython.longlong, _ALL_BITS - value)
            return value
        low: cython.longlong = value & 0xFFFFFFFF
        return low - 0x100000000 if low >> 31 else low

    def _read_varint(self, end: cython.Py_ssize_t) -> cython.ulonglong:
        """A number; bits beyond the 64th are dropped."""
        p: cython.p_const_uchar = self.data
        at: cython.Py_ssize_t = self.at
        value: cython.ulonglong = 0
        shift: cython.int = 0
        byte: cython.ulonglong
        while at < end:
            byte = p[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                return value & _ALL_BITS
            shift += 7
            if shift > 63:
                raise ProtobufError("a number of more than ten bytes")
        raise _cut_off()

    def _read_size(self, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """A size, and where what has it ends."""
        size: cython.ulonglong = self._read_varint(end)
        left: cython.Py_ssize_t = end - self.at
        if size > cython.cast(cython.ulonglong, left):
            raise _cut_off()
        return self.at + cython.cast(cython.Py_ssize_t, size)

    def _skip(
        self, number: cython.ulonglong, wire: cython.int, end: cython.Py_ssize_t, depth: cython.int
    ) -> None:
        """Go behind the value of a field."""
        if wire == _VARINT:
            self._read_varint(end)
        elif wire == _SIZED:
            self.at = self._read_size(end)
        elif wire in (_FIXED64, _FIXED32):
            size: cython.Py_ssize_t = 8 if wire == _FIXED64 else 4
            if end - self.at < size:
                raise _cut_off()
            self.at += size
        elif wire == _GROUP:
            self._skip_group(number, end, depth + 1)
        else:
            raise ProtobufError("the end of a group that did not begin, or no wire type")

    def _skip_group(
        self, number: cython.ulonglong, end: cython.Py_ssize_t, depth: cython.int
    ) -> None:
        """Go behind the end of a group."""
        if depth > _DEPTH_MAX:
            raise ProtobufError("groups are nested too deeply")
        while self.at < end:
            tag: cython.ulonglong = self._read_varint(end)
            if tag > _TAG_MAX or tag < 8:
                raise ProtobufError(f"{tag} is no tag of a field")
            wire: cython.int = tag & 7
            if wire == _END_GROUP:
                if tag >> 3 != number:
                    raise ProtobufError("the end of another group")
                return
            self._count_field()
            self._skip(tag >> 3, wire, end, depth)
        raise _cut_off()

    def _count_field(self) -> None:
        """One more field, known or not; one of two bytes takes as much time as a longer one."""
        self.fields_left -= 1
        if self.fields_left < 0:
            raise ProtobufError(f"more than {self.items_max * _FIELDS_PER_ITEM} fields")

    def _count_item(self) -> None:
        """One more element of a list or map."""
        self.items_left -= 1
        if self.items_left < 0:
            raise ProtobufError(f"more than {self.items_max} elements")


def _cut_off() -> ProtobufError:
    return ProtobufError("the message ends too early")


def _is_default(field: Field, value: Any) -> cython.bint:
    """Whether a value stands for its absence. Minus zero is another number than zero."""
    if field.kind == _DOUBLE:
        return _DOUBLE_BYTES.pack(value) == b"\x00\x00\x00\x00\x00\x00\x00\x00"
    return not value


def _put_message(message: Message, values: dict[Any, Any], pieces: list[Any]) -> None:
    field: Field
    for field in message.fields:
        value = values.get(field.name)
        if value is None:
            continue
        if field.is_map:
            for key, item in value.items():
                _put_value(field, {"key": key, "value": item}, pieces)
        elif field.repeated and isinstance(value, bytes):
            pieces.append(value)
        elif field.repeated:
            for item in value:
                _put_value(field, item, pieces)
        elif field.optional or field.kind == _MESSAGE or not _is_default(field, value):
            _put_value(field, value, pieces)


def _put_value(field: Field, value: Any, pieces: list[Any]) -> None:
    kind: cython.int = field.kind
    pieces.append(field.tag)
    if kind == _STRING:
        text: bytes = value.encode("utf-8")
        pieces.append(encode_varint(len(text)))
        pieces.append(text)
    elif kind == _MESSAGE:
        body: bytes
        if isinstance(value, bytes):
            body = value
        else:
            assert field.message is not None
            parts: list[bytes] = []
            _put_message(field.message, value, parts)
            body = b"".join(parts)
        pieces.append(encode_varint(len(body)))
        pieces.append(body)
    elif kind == _DOUBLE:
        pieces.append(_DOUBLE_BYTES.pack(value))
    elif kind == _BOOL:
        pieces.append(_SHORT[1 if value else 0])
    else:
        pieces.append(encode_varint(value if value >= 0 else value & 0xFFFFFFFFFFFFFFFF))

"""The JSON form of messages (the JSON mapping of proto3).

Names are lowerCamelCase, and those of the file are read as well; numbers of 64 bits are texts;
times are RFC 3339; what has its default value is left out, and null is nothing. Unknown members are
ignored, as unknown fields are on the wire.

A JSON text is decoded into Structs made of the fields, so that members that are unknown or of
another type are never built: nested lists take far more time and memory than their text.
"""

import functools
import math
import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from corvo._fast.codec import protobuf
from corvo._fast.codec.protobuf import Field, Message, ProtobufError
from corvo.errors import CorvoError
from corvo.limits import SECOND_NS, TIME_MAX_NS
from corvo.net.rpc.proto_file import TIMESTAMP
from corvo.platform.durations import parse_time
from corvo.platform.echoes import shown

_ENCODE: Final = msgspec.json.Encoder().encode
_RANGES: Final = {
    protobuf.INT32: (-(1 << 31), (1 << 31) - 1),
    protobuf.INT64: (-(1 << 63), (1 << 63) - 1),
    protobuf.UINT64: (0, (1 << 64) - 1),
}
_CAPITAL: Final = re.compile("[A-Z]")
_TEXT_NUMBERS: Final = (protobuf.INT64, protobuf.UINT64)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,99})(?:\.[0-9]{1,99})?(?:[eE][+-]?[0-9]{1,3})?")


def encode(message: Message, values: dict[str, Any]) -> bytes:
    """A message as JSON."""
    return _ENCODE(_object(message, values))


def decode(message: Message, data: bytes, items_max: int) -> dict[str, Any]:
    """The message in a JSON text; ProtobufError if there is none."""
    try:
        return _Reader(items_max).read(message, _decoded(_decoder(message), data))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtobufError(f"invalid JSON: {error}") from None
    except RecursionError:
        raise ProtobufError("invalid JSON: nested too deeply") from None


# ---- out ----


def _object(message: Message, values: dict[str, Any]) -> Any:
    if message.name == TIMESTAMP:
        return _time_text(values)
    document: dict[str, Any] = {}
    for field in message.fields:
        value = values.get(field.name)
        if value is None:
            continue
        name = _camel(field.name)
        if field.is_map:
            of = _value_field(field)
            document[name] = {key: _plain(of, item) for key, item in value.items()}
        elif field.repeated:
            document[name] = [_plain(field, item) for item in value]
        elif value or field.optional or field.message is not None or _is_minus_zero(value):
            document[name] = _plain(field, value)
    return {name: value for name, value in document.items() if value != [] and value is not None}


def _plain(field: Field, value: Any) -> Any:
    if field.message is not None:
        return _object(field.message, value)
    if field.kind in _TEXT_NUMBERS:
        return str(value)
    if field.kind == protobuf.DOUBLE and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _is_minus_zero(value: Any) -> bool:
    return isinstance(value, float) and math.copysign(1, value) < 0


def _time_text(values: dict[str, Any]) -> str:
    seconds, nanos = values.get("seconds", 0), values.get("nanos", 0)
    assert 0 <= seconds <= TIME_MAX_NS // SECOND_NS and 0 <= nanos < SECOND_NS
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    for digits, unit in ((0, SECOND_NS), (3, 1_000_000), (6, 1_000), (9, 1)):
        if nanos % unit == 0:
            fraction = f".{nanos // unit:0{digits}d}" if digits else ""
            return f"{text}{fraction}Z"
    raise AssertionError("nanoseconds are whole")


# ---- in ----


@functools.cache
def _decoder(message: Message) -> msgspec.json.Decoder[Any]:
    """The decoder of a message."""
    return msgspec.json.Decoder(_type(message))


@functools.cache
def _type(message: Message) -> Any:
    """The type of a message in JSON: a Struct with each field by both of its names."""
    if message.name == TIMESTAMP:
        return str
    members = []
    for field, name, other in _rows(message):
        # The elements of lists and maps are counted before they are decoded.
        kind = _kind(field)
        if field.is_map:
            kind = dict[str, Raw]
        elif field.repeated:
            kind = list[Raw]
        for spelled in filter(None, (name, other)):
            members.append((spelled, kind | UnsetType | None, UNSET))
    return msgspec.defstruct(message.name, members)


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes | Raw) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        text = str(error).replace("`", "")
        message, _, path = text.rpartition(" - at $.")
        if message:
            text = f"{_CAPITAL.sub(_lower, path)}: {message}"
        raise ProtobufError(text) from None


def _lower(capital: re.Match[str]) -> str:
    return "_" + capital.group().lower()


@functools.cache
def _element_decoder(field: Field) -> msgspec.json.Decoder[Any]:
    """The decoder of an element of a list or map."""
    return msgspec.json.Decoder(_kind(field))


def _kind(field: Field) -> Any:
    """The type of one value of a field."""
    if field.message is not None:
        return _type(field.message)
    if field.kind == protobuf.STRING:
        return str
    return bool if field.kind == protobuf.BOOL else int | float | str


@functools.cache
def _rows(message: Message) -> list[tuple[Field, str, str]]:
    """The fields of a message with their names in JSON, and in the file if that is another one."""
    rows = [(field, _camel(field.name)) for field in message.fields]
    return [(field, name, "" if name == field.name else field.name) for field, name in rows]


class _Reader:
    def __init__(self, items_max: int) -> None:
        self._items_left = items_max
        self._items_max = items_max

    def read(self, message: Message, document: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for field, name, other in _rows(message):
            value = getattr(document, name)
            if other and (value is UNSET or getattr(document, other) is not UNSET):
                if value is not UNSET:
                    raise ProtobufError(f"{field.name} is repeated")
                value = getattr(document, other)
            if value is None or value is UNSET:
                continue
            if field.is_map:
                values[field.name] = self._map(field, value)
            elif field.repeated:
                values[field.name] = self._list(field, value)
            else:
                found = self._value(field, value)
                if field.optional or field.message is not None or not _is_default(found):
                    values[field.name] = found
        return {name: value for name, value in values.items() if value != []}

    def _map(self, field: Field, value: dict[str, Raw]) -> dict[str, Any]:
        self._count(len(value))
        of = _value_field(field)
        found: dict[str, Any] = {}
        for key, item in value.items():
            try:
                found[key] = self._value(of, _decoded(_element_decoder(of), item))
            except ProtobufError as error:
                raise ProtobufError(f"{field.name}[{shown(key)}]: {error}") from None
        return found

    def _list(self, field: Field, value: list[Raw]) -> list[Any]:
        self._count(len(value))
        found: list[Any] = []
        for index, item in enumerate(value):
            try:
                found.append(self._value(field, _decoded(_element_decoder(field), item)))
            except ProtobufError as error:
                raise ProtobufError(f"{field.name}[{index}]: {error}") from None
        return found

    def _count(self, items: int) -> None:
        self._items_left -= items
        if self._items_left < 0:
            raise ProtobufError(f"more than {self._items_max} elements")

    def _value(self, field: Field, value: Any) -> Any:
        if field.message is not None:
            if field.message.name == TIMESTAMP:
                return _read_time(field.name, value)
            return self.read(field.message, value)
        if field.kind in (protobuf.STRING, protobuf.BOOL):
            return value
        number = _number(field, value)
        if number is None:
            raise ProtobufError(f"{field.name} has a value of another type, or out of range")
        return number


def _value_field(field: Field) -> Field:
    """The field that describes the values of a map."""
    assert field.message is not None
    return field.message.fields[1]


def _number(field: Field, value: int | float | str) -> int | float | None:
    """A number, None if it is none of the kind."""
    if isinstance(value, str):
        if field.kind == protobuf.DOUBLE and value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if not _NUMBER.fullmatch(value):
            return None
        value = float(value) if any(mark in value for mark in ".eE") else int(value)
    if field.kind == protobuf.DOUBLE:
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None
    if isinstance(value, float):
        if not value.is_integer():
            return None
        value = int(value)
    low, high = _RANGES[field.kind]
    return value if low <= value <= high else None


def _is_default(value: Any) -> bool:
    return not value and not _is_minus_zero(value)


def _read_time(name: str, value: str) -> dict[str, Any]:
    try:
        at_ns = parse_time(value, name)
    except CorvoError as error:
        raise ProtobufError(error.message) from None
    seconds, nanos = divmod(at_ns, SECOND_NS)
    found = {"seconds": seconds, "nanos": nanos}
    return {name: number for name, number in found.items() if number}


@functools.cache
def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)

"""Reads a .proto file into tables of message types, so that it is the one place that names fields.

It knows the part of the language that our own file uses: proto3, messages on the top level with
scalar fields of a few types, other messages, `repeated`, `optional`, maps with texts as keys, and
the type `google.protobuf.Timestamp`. Anything else is an error.
"""

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

from corvo._fast.codec import protobuf
from corvo._fast.codec.protobuf import Field, Message

TIMESTAMP: Final = "google.protobuf.Timestamp"

_SCALARS: Final = {
    "string": protobuf.STRING,
    "int32": protobuf.INT32,
    "int64": protobuf.INT64,
    "uint64": protobuf.UINT64,
    "bool": protobuf.BOOL,
    "double": protobuf.DOUBLE,
}
_COMMENT: Final = re.compile(r"//[^\n]*")
_MESSAGE: Final = re.compile(r"\bmessage (\w+) \{([^{}]*)\}")
_FIELD: Final = re.compile(
    r"(?:(optional|repeated) )?(?:map<string, ([\w.]+)>|([\w.]+)) (\w+) = (\d+)"
)


def load(name: str) -> dict[str, Message]:
    """The message types of a file of this package, by name."""
    return parse(files("corvo.net.rpc").joinpath(name).read_text("utf-8"))


def parse(text: str) -> dict[str, Message]:
    """The message types of a .proto file, by name."""
    bodies = dict(_MESSAGE.findall(_COMMENT.sub("", text)))
    types = {name: Message(name) for name in bodies}
    stamp = types[TIMESTAMP] = Message(TIMESTAMP)
    stamp.set_fields(
        (Field(1, "seconds", protobuf.INT64), Field(2, "nanos", protobuf.INT32)),
    )
    for name, body in bodies.items():
        types[name].set_fields(_fields(body, types))
    return types


def _fields(body: str, types: dict[str, Message]) -> Iterator[Field]:
    for statement in body.split(";"):
        words = statement.split()
        if not words:
            continue
        found = _FIELD.fullmatch(" ".join(words))
        if found is None:
            raise ValueError(f"not a field that is known here: {' '.join(words)}")
        label, of_map, kind, name, number = found.groups()
        if of_map is not None:
            entry = Message(f"entry of {name}", is_entry=True)
            entry.set_fields((Field(1, "key", protobuf.STRING), _field(2, "value", of_map, types)))
            yield Field(int(number), name, protobuf.MESSAGE, repeated=True, message=entry)
        else:
            yield _field(int(number), name, kind, types, label or "")


def _field(number: int, name: str, kind: str, types: dict[str, Message], label: str = "") -> Field:
    """A field that is no map."""
    repeated, optional = label == "repeated", label == "optional"
    if kind not in _SCALARS:
        return Field(number, name, protobuf.MESSAGE, repeated, optional, types[kind])
    scalar = _SCALARS[kind]
    if repeated and scalar != protobuf.STRING:
        raise ValueError(f"{name}: lists of numbers are not known here")
    return Field(number, name, scalar, repeated, optional)

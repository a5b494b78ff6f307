from collections.abc import Iterable
from typing import Any, Final

STRING: Final = 0
INT32: Final = 1
INT64: Final = 2
UINT64: Final = 3
BOOL: Final = 4
DOUBLE: Final = 5
MESSAGE: Final = 6

class ProtobufError(ValueError):
    """The bytes are no such message."""

class Field:
    """One field of a message."""

    number: int
    name: str
    kind: int
    repeated: bool
    optional: bool
    message: Message | None
    is_map: bool
    wire: int
    tag: bytes
    default: Any
    def __init__(
        self,
        number: int,
        name: str,
        kind: int,
        repeated: bool = False,
        optional: bool = False,
        message: Message | None = None,
    ) -> None: ...

class Message:
    """A type of messages: its fields, in the order of their numbers."""

    name: str
    is_entry: bool
    fields: list[Field]
    by_number: dict[int, Field]
    def __init__(self, name: str, is_entry: bool = False) -> None: ...
    def set_fields(self, fields: Iterable[Field]) -> None:
        """Give a type its fields; comes later than the type, as types may hold each other."""

def decode(message: Message, data: bytes, items_max: int) -> dict[str, Any]:
    """The message in some bytes; ProtobufError if they are none, or one with too many elements."""

def encode(message: Message, values: dict[str, Any]) -> bytes:
    """A message as bytes."""

def encode_varint(value: int) -> bytes:
    """A number below 2**64, seven bits a byte."""

def varint_size(value: int) -> int:
    """How many bytes a number below 2**63 takes."""

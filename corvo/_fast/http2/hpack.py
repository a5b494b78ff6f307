"""HPACK (RFC 7541): the compressed form of header fields in HTTP/2.

Each side keeps a table of fields that the other side has sent before. A block is a row of
instructions, told apart by their first bits; numbers fill the rest of the byte and may go on in
base 128, texts have their length and one bit for Huffman code in front:

    1xxxxxxx  a field of a table: 1 to 61 of the static one, from 62 the newest first
    01xxxxxx  a field to remember: number of its name, or 0 and the name; the value
    001xxxxx  a new size of the table, at the start of a block only
    0001xxxx  as above, and must never be remembered by anybody
    0000xxxx  as above, not to remember
"""

from collections.abc import Iterable
from typing import Final

import cython

from corvo._fast.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault
from corvo._fast.http2.headers import Field
from corvo._fast.http2.huffman import huffman_decode, huffman_encode, huffman_size

TABLE_SIZE_MAX: Final = 4096
_NUMBER_MAX: Final = 0xFFFF_FFFF
_RESIZES_MAX: Final = 2
_STATIC_COUNT = 61

_STATIC_FIELDS: Final = (
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
)
_STATIC: Final = [Field(name, value) for name, value in _STATIC_FIELDS]
_STATIC_FOUND: Final = {field: at for at, field in enumerate(_STATIC_FIELDS, 1)}
_STATIC_NAMES: Final = {name: at for at, (name, _) in reversed(tuple(enumerate(_STATIC_FIELDS, 1)))}
# Whoever can guess at these byte by byte must not learn from a length that a guess was right.
_SECRET: Final = frozenset((b"authorization", b"proxy-authorization", b"cookie", b"x-api-key"))


class FieldTable:
    """The fields one side remembers: the oldest are dropped when their sizes exceed the limit."""

    def __init__(self) -> None:
        self.size = 0
        self.size_max = TABLE_SIZE_MAX
        self._fields: list[Field] = []

    def add(self, field: Field) -> None:
        """Remember a field; one that is larger than the table empties it."""
        self._make_room(field.size)
        if field.size <= self.size_max:
            self._fields.append(field)
            self.size += field.size

    def get(self, number: cython.longlong) -> Field | None:
        """The field of this number, in both tables; None when there is none."""
        if 0 < number <= _STATIC_COUNT:
            return _STATIC[number - 1]
        at: cython.Py_ssize_t = len(self._fields) + _STATIC_COUNT - number
        if number == 0 or at < 0:
            return None
        return self._fields[at]

    def find(self, name: bytes, value: bytes) -> tuple[int, int]:
        """The number of the field, 0 = none, and that of one with its name."""
        number = _STATIC_FOUND.get((name, value), 0)
        named = _STATIC_NAMES.get(name, 0)
        count = len(self._fields)
        for at in range(count - 1, -1, -1):
            if number:
                break
            field: Field = self._fields[at]
            if field.name == name:
                named = named or _STATIC_COUNT + count - at
                if field.value == value:
                    number = _STATIC_COUNT + count - at
        return number, named

    def resize(self, size_max: cython.Py_ssize_t) -> None:
        """Another limit."""
        self.size_max = size_max
        self._make_room(0)

    def _make_room(self, size: cython.Py_ssize_t) -> None:
        dropped: cython.Py_ssize_t = 0
        field: Field
        while dropped < len(self._fields) and self.size + size > self.size_max:
            field = self._fields[dropped]
            self.size -= field.size
            dropped += 1
        if dropped:
            del self._fields[:dropped]


class Decoder:
    """Reads the blocks of one peer, in order.

    Clients say the same again and again, so the last block is kept with its fields. It means the
    same as long as the table does not change.
    """

    def __init__(self, list_size_max: int, list_size_fatal: int) -> None:
        self.table = FieldTable()
        self._list_size_max = list_size_max
        self._list_size_fatal = list_size_fatal
        self._at = 0  # behind what was read last
        self._known_block = b""
        self._known_fields: list[Field] = []

    def decode(self, block: bytes) -> list[Field] | None:
        """The fields of a whole block; None when they are too large in all to be kept.

        A block that is far too large, or no valid one, is a fault of the connection. Sizes count as
        the limit that peers are told does: each field with 32 bytes on top.
        """
        if block == self._known_block and block:
            return self._known_fields
        p: cython.p_const_uchar = block
        end: cython.Py_ssize_t = len(block)
        changed: cython.bint = False
        fields: list[Field] = []
        resizes: cython.int = 0
        size: cython.Py_ssize_t = 0
        field: Field
        self._at = 0
        while self._at < end:
            first: cython.int = p[self._at]
            if first & 0xE0 == 0x20:
                resizes += 1
                if size or resizes > _RESIZES_MAX:
                    raise _fault("a table size at the wrong place")
                changed = True
                self._resize(block)
                continue
            if first & 0x80:
                field = self._known(self._number(block, 0x7F))
            elif first & 0x40:
                field = self._literal(block, 0x3F)
                changed = True
                self.table.add(field)
            else:
                field = self._literal(block, 0x0F)
            size += field.size
            if size > self._list_size_fatal:
                raise ConnectionFault(ENHANCE_YOUR_CALM, "far too many fields", "header_block")
            if size <= self._list_size_max:
                fields.append(field)
        if size > self._list_size_max:
            changed = True
        self._known_block = b"" if changed else block
        self._known_fields = fields
        return fields if size <= self._list_size_max else None

    def _resize(self, block: bytes) -> None:
        size: cython.longlong = self._number(block, 0x1F)
        if size > TABLE_SIZE_MAX:
            raise _fault("a table larger than it may be")
        self.table.resize(size)

    def _known(self, number: cython.longlong) -> Field:
        field = self.table.get(number)
        if field is None:
            raise _fault("the number of no field")
        return field

    def _literal(self, block: bytes, mask: cython.int) -> Field:
        number: cython.longlong = self._number(block, mask)
        name: bytes = self._known(number).name if number else self._text(block)
        return Field(name, self._text(block))

    def _number(self, block: bytes, mask: cython.int) -> cython.longlong:
        """The number that begins in the low bits of the next byte; five bytes at most follow."""
        p: cython.p_const_uchar = block
        end: cython.Py_ssize_t = len(block)
        at: cython.Py_ssize_t = self._at
        number: cython.longlong
        shift: cython.int = 0
        if at < end:
            number = p[at] & mask
            at += 1
            if number < mask:
                self._at = at
                return number
            while at < end and shift <= 28:
                number += cython.cast(cython.longlong, p[at] & 0x7F) << shift
                shift += 7
                at += 1
                if p[at - 1] < 0x80:
                    if number > _NUMBER_MAX:
                        break
                    self._at = at
                    return number
        raise _fault("a number that is cut off or too large")

    def _text(self, block: bytes) -> bytes:
        p: cython.p_const_uchar = block
        packed: cython.bint = self._at < len(block) and p[self._at] >= 0x80
        size: cython.longlong = self._number(block, 0x7F)
        start: cython.Py_ssize_t = self._at
        if size > len(block) - start:
            raise _fault("a text that is cut off")
        self._at = start + size
        if not packed:
            return p[start : start + size]
        text = huffman_decode(block, start, self._at)
        if text is None:
            raise _fault("a text in no valid Huffman code")
        return text


def _fault(text: str) -> ConnectionFault:
    return ConnectionFault(COMPRESSION_ERROR, text, "compression")


class Encoder:
    """Writes the blocks for one peer, in order.

    The table never grows beyond the size that every peer starts with, whatever is offered.
    """

    def __init__(self) -> None:
        self.table = FieldTable()
        self._resized_to = -1

    def set_size(self, size_max: int) -> None:
        """The peer allows a table of this size; the next block will say what we make of it."""
        size = min(size_max, TABLE_SIZE_MAX)
        if size != self.table.size_max:
            self.table.resize(size)
            self._resized_to = size if self._resized_to < 0 else min(size, self._resized_to)

    def start_block(self) -> bytes:
        """What must stand in front of the next block: the new size of the table, if any."""
        if self._resized_to < 0:
            return b""
        # The smallest one counts too: it may have dropped what the last one would keep.
        sizes = sorted({self._resized_to, self.table.size_max})
        self._resized_to = -1
        return b"".join([encode_number(size, 0x1F, 0x20) for size in sizes])

    def encode(self, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The instructions for these pairs of name and value."""
        pieces = []
        for name, value in fields:
            number, named = self.table.find(name, value)
            if number and name not in _SECRET:
                pieces.append(encode_number(number, 0x7F, 0x80))
                continue
            if name in _SECRET:
                pieces.append(encode_number(named, 0x0F, 0x10))
            else:
                pieces.append(encode_number(named, 0x3F, 0x40))
                self.table.add(Field(name, value))
            if not named:
                pieces.append(encode_text(name))
            pieces.append(encode_text(value))
        return b"".join(pieces)


def encode_number(number: int, mask: int, bits: int) -> bytes:
    """A number in the low bits of a byte whose others are given, and behind it if need be."""
    if number < mask:
        return bytes((bits | number,))
    number -= mask
    out = [bits | mask]
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_text(text: bytes) -> bytes:
    """A text with its length in front, in Huffman code if that is shorter."""
    size = huffman_size(text)
    if size < len(text):
        return encode_number(size, 0x7F, 0x80) + huffman_encode(text)
    return encode_number(len(text), 0x7F, 0) + text

"""Messages in a stream of bytes, as Connect and gRPC frame them: a byte of flags, four bytes of
size (the first is the highest), and the message. Bit 0 of the flags means compressed; bit 1 the end
of a Connect stream, which only servers send.

Bytes come in any pieces. A size is looked at before anything of its message is kept.
"""

import struct
import zlib
from typing import Final

from corvo.net.rpc.status import RpcError

COMPRESSED: Final = 1
END_STREAM: Final = 2

_HEAD: Final = struct.Struct(">BI")
_GZIP: Final = 31  # window bits, and a gzip header around


class Envelopes:
    """The receiving end of one stream."""

    def __init__(self, size_max: int, gzip: bool) -> None:
        """`gzip`: the client declared that messages may be compressed with it."""
        self._size_max = size_max
        self._gzip = gzip
        self._rest = bytearray()
        self.more = False  # messages may be complete that were not returned yet
        self.fault: RpcError | None = None  # the error after the messages that were returned

    @property
    def size(self) -> int:
        """Bytes of messages that were not returned yet."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete now; RpcError when the stream is broken. Messages before
        a fault are returned, and the next call raises it. A compressed message is the
        first one of a call, so that only one of them is kept in full: call again while there may
        be `more`."""
        if self.fault is not None:
            raise self.fault
        found: list[bytes] = []
        try:
            self._split(data, found)
        except RpcError as error:
            if not found:
                raise
            self.fault = error
        return found

    def _split(self, data: bytes, found: list[bytes]) -> None:
        rest: bytes | bytearray = data
        if self._rest:
            self._rest += data
            rest = self._rest
        at = 0
        self.more = False
        while len(rest) - at >= _HEAD.size:
            flags, size = _HEAD.unpack_from(rest, at)
            self._check(flags, size)
            end = at + _HEAD.size + size
            if len(rest) < end:
                break
            if flags and found:
                self.more = True
                break
            message = bytes(rest[at + _HEAD.size : end])
            at = end
            if flags and message:
                message = gunzip(message, self._size_max)
            found.append(message)
        if at or rest is data:  # else all of it waits for the rest of its message: copy nothing
            self._rest = bytearray(rest[at:])

    def finish(self) -> None:
        """The peer sends no more; RpcError when it stopped inside a message."""
        if self.fault is not None:
            raise self.fault
        if self._rest:
            raise RpcError("invalid_argument", "the stream ends inside a message")

    def _check(self, flags: int, size: int) -> None:
        if flags & ~COMPRESSED:
            raise RpcError("invalid_argument", f"unknown flags {flags} of a message")
        if flags and not self._gzip:
            raise RpcError("internal", "a compressed message, but no compression was declared")
        if size > self._size_max:
            raise too_large(size, self._size_max)


class Boundaries:
    """Knows where messages end in bytes that are passed on, and keeps none of them."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0  # of a message
        self.ended = False  # the last message arrived

    @property
    def inside(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._head) or self._left > 0

    def feed(self, data: bytes) -> None:
        """More of them."""
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            more = data[at : at + _HEAD.size - len(self._head)]
            self._head += more
            at += len(more)
            if len(self._head) == _HEAD.size:
                flags, self._left = _HEAD.unpack(self._head)
                self.ended = self.ended or flags & END_STREAM != 0
                self._head = b""


def envelope(message: bytes, flags: int = 0) -> bytes:
    """A message as it is sent."""
    return _HEAD.pack(flags, len(message)) + message


def gunzip(data: bytes, size_max: int) -> bytes:
    """Decompress a message of bounded size."""
    inflater = zlib.decompressobj(_GZIP)
    try:
        message = inflater.decompress(data, size_max + 1)
    except zlib.error as error:
        raise RpcError("invalid_argument", f"not compressed with gzip: {error}") from None
    if len(message) > size_max:
        raise RpcError("resource_exhausted", f"message too large: over {size_max} bytes")
    if not inflater.eof or inflater.unused_data:
        raise RpcError("invalid_argument", "not compressed with gzip: too short or too long")
    return message


def too_large(size: int, size_max: int) -> RpcError:
    """A message that is not taken."""
    return RpcError("resource_exhausted", f"message too large: {size} bytes (max {size_max})")

"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): read one after the other, and written.

A frame is nine bytes of head and its payload, big-endian:

    offset  size  field
    0       3     size of the payload, at most FRAME_SIZE_MAX here
    3       1     type
    4       1     flags, by type
    5       4     stream, 31 bits; 0 = the connection
    9       n     payload

The reader checks what can be said about a frame by itself: size, stream or connection, padding.
What it may mean on its connection is for `corvo._fast.http2.connection`. Every slip is a fault of
the whole connection, also where the standard would let us reset one stream only: a client that
makes us send resets makes us work for it.
"""

import struct
from collections.abc import Iterable
from typing import Final

import cython

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE = 0, 1, 2, 3, 4, 5
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9

END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT = 0, 1, 2, 3, 4
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = 5, 6, 7, 8, 9
ENHANCE_YOUR_CALM = 11

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 2, 3, 4
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE, NO_RFC7540_PRIORITIES = 5, 6, 9

FRAME_HEAD_SIZE, FRAME_SIZE_MAX = 9, 16_384
WINDOW_MAX: Final = 0x7FFF_FFFF
_pack: Final = struct.Struct(">HBBBI").pack

# As C numbers, where every frame passes.
_DATA, _HEADERS, _CONTINUATION = DATA, HEADERS, CONTINUATION
_END_STREAM, _END_HEADERS, _PADDED, _WITH_PRIORITY = END_STREAM, END_HEADERS, PADDED, WITH_PRIORITY
_HEAD_SIZE, _SIZE_MAX = FRAME_HEAD_SIZE, FRAME_SIZE_MAX

_CONNECTION, _STREAM = 1, 2
# What a frame of each type belongs to, 0 = both; and the size of its payload, -1 = it varies.
_BELONGS: Final = bytes((2, 2, 2, 2, 1, 2, 1, 1, 0, 2))
_SIZES: Final = (-1, -1, 5, 4, -1, -1, 8, -1, 4, -1)


class ConnectionFault(Exception):
    """The peer broke the protocol or asked too much: GOAWAY with this code, then close.

    `reason` is how it is counted (`corvo._fast.http.abuse_counters`).
    """

    def __init__(self, code: int, text: str, reason: str = "protocol") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.reason = reason


def too_many(reason: str) -> ConnectionFault:
    """The budget of this reason is used up."""
    return ConnectionFault(ENHANCE_YOUR_CALM, f"too many {reason.replace('_', ' ')}", reason)


def window_too_large() -> ConnectionFault:
    """A flow-control window over the limit of the RFC."""
    return ConnectionFault(FLOW_CONTROL_ERROR, "a window wider than 2**31 - 1", "windows")


def idle_stream() -> ConnectionFault:
    """A frame of a stream that the peer has not opened yet."""
    return ConnectionFault(PROTOCOL_ERROR, "a frame for a stream that was never opened")


def after_the_end() -> ConnectionFault:
    """A frame of a stream on which the peer may send nothing more."""
    return ConnectionFault(STREAM_CLOSED, "a frame behind the end of its stream")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _get_u32(p: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.uint:
    return (
        cython.cast(cython.uint, p[at]) << 24
        | cython.cast(cython.uint, p[at + 1]) << 16
        | cython.cast(cython.uint, p[at + 2]) << 8
        | p[at + 3]
    )


class FrameReader:
    """The frame it has read last; one object serves a whole connection.

    `start` and `end` bound the payload without padding and the priority of a HEADERS frame.
    """

    def __init__(self) -> None:
        self.type = 0
        self.flags = 0
        self.ends_stream = False
        self.ends_headers = False
        self.stream_id = 0
        self.size = 0  # of the whole payload, as flow control counts it
        self.start = 0
        self.end = 0
        self.following = 0  # where the next frame begins
        self.value = 0  # error code, increment, promised or last stream

    def read(self, data: bytes, pos: cython.Py_ssize_t) -> cython.bint:
        """Read the frame at `pos`; False when there is not all of it."""
        p: cython.p_const_uchar = data
        left: cython.Py_ssize_t = len(data) - pos
        if left < _HEAD_SIZE:
            return False
        size: cython.Py_ssize_t = _get_u32(p, pos) >> 8
        if size > _SIZE_MAX:
            raise ConnectionFault(
                FRAME_SIZE_ERROR, f"a frame of {size} bytes; the limit is {FRAME_SIZE_MAX}"
            )
        self.type = p[pos + 3]
        self.flags = p[pos + 4]
        self.ends_stream = self.flags & _END_STREAM != 0
        self.ends_headers = self.flags & _END_HEADERS != 0
        self.stream_id = _get_u32(p, pos + 5) & WINDOW_MAX
        self.size = size
        if self.type <= _CONTINUATION:
            self._check_head()
        if left < _HEAD_SIZE + size:
            return False
        self.start = pos + _HEAD_SIZE
        self.end = self.following = self.start + size
        if self.type == _DATA:
            if self.flags & _PADDED:
                self._take_padding(p)
        elif self.type == _HEADERS:
            self._take_headers(p)
        elif self.type == WINDOW_UPDATE:
            self.value = _get_u32(p, self.start) & WINDOW_MAX
            if self.value == 0:
                raise ConnectionFault(PROTOCOL_ERROR, "a window update by nothing")
        elif self.type == RST_STREAM:
            self.value = _get_u32(p, self.start)
        elif self.type == PRIORITY:
            self._check_priority(p)
        elif self.type == GOAWAY:
            self.value = _get_u32(p, self.start) & WINDOW_MAX
        elif self.type == PUSH_PROMISE:
            self._take_promise(p)
        return True

    def _check_head(self) -> None:
        kinds: cython.p_const_uchar = _BELONGS
        belongs: cython.int = kinds[self.type]
        if belongs == _STREAM and self.stream_id == 0:
            raise ConnectionFault(PROTOCOL_ERROR, "a frame that belongs to a stream names none")
        if belongs == _CONNECTION and self.stream_id != 0:
            raise ConnectionFault(PROTOCOL_ERROR, "a frame of the connection names a stream")
        if self.type <= _HEADERS:
            return
        expected: cython.Py_ssize_t = _SIZES[self.type]
        wrong: cython.bint = expected >= 0 and self.size != expected
        if self.type == SETTINGS:
            wrong = self.size % 6 != 0 or (self.flags & ACK != 0 and self.size != 0)
        elif self.type == GOAWAY:
            wrong = self.size < 8
        if wrong:
            raise ConnectionFault(
                FRAME_SIZE_ERROR, f"a frame of type {self.type} with {self.size} bytes"
            )

    def _take_padding(self, p: cython.p_const_uchar) -> None:
        if self.size == 0 or p[self.start] >= self.size:
            raise ConnectionFault(PROTOCOL_ERROR, "more padding than frame")
        self.end -= p[self.start]
        self.start += 1

    def _take_headers(self, p: cython.p_const_uchar) -> None:
        if self.flags & _PADDED:
            self._take_padding(p)
        if self.flags & _WITH_PRIORITY:
            if self.end - self.start < 5:
                raise ConnectionFault(FRAME_SIZE_ERROR, "a priority that is cut off")
            self._check_priority(p)
            self.start += 5

    def _check_priority(self, p: cython.p_const_uchar) -> None:
        # Priorities are not followed, only checked.
        if _get_u32(p, self.start) & WINDOW_MAX == self.stream_id:
            raise ConnectionFault(PROTOCOL_ERROR, "a stream that depends on itself")

    def _take_promise(self, p: cython.p_const_uchar) -> None:
        if self.flags & _PADDED:
            self._take_padding(p)
        if self.end - self.start < 4:
            raise ConnectionFault(FRAME_SIZE_ERROR, "a promise that is cut off")
        self.value = _get_u32(p, self.start) & WINDOW_MAX
        self.start += 4
        if self.value == 0 or self.value & 1:
            raise ConnectionFault(PROTOCOL_ERROR, "a promised stream that no server can open")


def frame_head(
    size: cython.Py_ssize_t, kind: cython.int, flags: cython.int, stream_id: cython.uint
) -> bytes:
    """The nine bytes in front of a payload."""
    if cython.compiled:
        head = cython.declare(cython.uchar[9])  # type: ignore[misc, valid-type]
        head[0] = (size >> 16) & 0xFF
        head[1] = (size >> 8) & 0xFF
        head[2] = size & 0xFF
        head[3] = kind
        head[4] = flags
        head[5] = stream_id >> 24
        head[6] = (stream_id >> 16) & 0xFF
        head[7] = (stream_id >> 8) & 0xFF
        head[8] = stream_id & 0xFF
        return cython.cast(cython.p_uchar, head)[:9]
    else:
        return _pack(size >> 8, size & 0xFF, kind, flags, stream_id)


def frame(kind: cython.int, flags: cython.int, stream_id: cython.uint, payload: bytes) -> bytes:
    """A whole frame."""
    return frame_head(len(payload), kind, flags, stream_id) + payload


def u32_frame(kind: cython.int, stream_id: cython.uint, value: cython.uint) -> bytes:
    """A RST_STREAM or WINDOW_UPDATE frame: its payload is one number."""
    return frame_head(4, kind, 0, stream_id) + value.to_bytes(4, "big")


def settings_frame(values: Iterable[tuple[int, int]]) -> bytes:
    """A SETTINGS frame with these pairs of identifier and value."""
    payload = b"".join([key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values])
    return frame(SETTINGS, 0, 0, payload)


def goaway_frame(last_stream: int, code: int, text: str) -> bytes:
    """A GOAWAY frame; the text is for whoever reads a trace of the connection."""
    payload = last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()
    return frame(GOAWAY, 0, 0, payload)

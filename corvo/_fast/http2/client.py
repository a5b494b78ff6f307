"""The client's half of HTTP/2 without sockets: requests in, bytes out; bytes in, events out.

What is written for a stream waits inside until the windows of the server allow it; what is read is
given back to the windows at once, so whoever uses this takes events as they come. Enough for
talking to our own server: no priorities, no push, and a server that breaks the rules loses the
connection (ConnectionFault).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import cython

from corvo._fast.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_MAX,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    PING,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    WINDOW_MAX,
    WINDOW_UPDATE,
    ConnectionFault,
    FrameReader,
    frame,
    frame_head,
    settings_frame,
    u32_frame,
)
from corvo._fast.http2.hpack import Decoder, Encoder

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WINDOW_DEFAULT: Final = 65_535
_STREAM_ROOM: Final = 1 << 20
_ROOM: Final = 1 << 24
_FIELDS_SIZE_MAX: Final = 65_536
_NO_STREAM: Final = 0


class Event:
    """Something that came: fields or data of a stream, the reset of one, or a good-bye."""

    def __init__(
        self,
        stream_id: int,
        fields: list[tuple[bytes, bytes]] | None = None,
        data: bytes = b"",
        ended: bool = False,
        code: int = -1,
    ) -> None:
        self.stream_id = stream_id  # of a good-bye the last one that the server serves
        self.fields = fields  # pairs of bytes, None = data
        self.data = data
        self.ended = ended  # nothing more comes on this stream
        self.code = code  # of a reset or good-bye, else -1
        self.leaving = False  # a good-bye


class _Stream:
    """One exchange."""

    def __init__(self, window: int) -> None:
        self.window = window  # what the server takes
        self.credit = 0  # what was read and not given back yet
        self.waiting: deque[bytes] = deque()  # data for which there is no window
        self.ends = False  # behind them
        self.open = True  # for writing


class H2Client:
    """One connection to a server."""

    def __init__(self, authority: bytes, scheme: bytes = b"http") -> None:
        self._target = [(b":scheme", scheme), (b":authority", authority)]
        self._streams: dict[Any, Any] = {}
        self._next_id = 1
        self._encoder = Encoder()
        self._decoder = Decoder(_FIELDS_SIZE_MAX, _FIELDS_SIZE_MAX)
        self._reader = FrameReader()
        self._rest = b""
        self._window = _WINDOW_DEFAULT
        self._initial_window = _WINDOW_DEFAULT
        self._credit = 0
        self._block: list[bytes] = []
        self._block_ends = False
        self._blocked: dict[int, _Stream] = {}  # streams with data that waits for a window
        self._events: list[Event] = []
        self.streams_max = 100  # until the server says
        self.leaving = False  # the server takes no new streams
        self._out = [
            _PREFACE,
            settings_frame(((ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, _STREAM_ROOM))),
            u32_frame(WINDOW_UPDATE, 0, _ROOM - _WINDOW_DEFAULT),
        ]

    @property
    def streams(self) -> int:
        """How many exchanges are going on."""
        return len(self._streams)

    @property
    def unsent_size(self) -> int:
        """Bytes of requests that wait for the windows of the server."""
        size: cython.Py_ssize_t = 0
        for stream in self._blocked.values():
            size += sum(map(len, stream.waiting))
        return size

    def post(
        self,
        path: bytes,
        fields: Iterable[tuple[bytes, bytes]],
        body: bytes = b"",
        ends: bool = True,
    ) -> int:
        """Begin a request; the number of its stream."""
        stream_id = self._next_id
        self._next_id += 2
        self._streams[stream_id] = _Stream(self._initial_window)
        block = self._encoder.start_block()
        block += self._encoder.encode(
            [(b":method", b"POST"), (b":path", path), *self._target, *fields]
        )
        alone = ends and not body
        self._out.append(frame(HEADERS, END_HEADERS | alone * END_STREAM, stream_id, block))
        if alone:
            self._streams[stream_id].open = False
        else:
            self.send(stream_id, body, ends)
        return stream_id

    def send(self, stream_id: int, data: bytes, ends: bool = False) -> None:
        """More of a request; nothing, when the stream is over."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.open:
            return
        if data:
            stream.waiting.append(data)
        stream.ends = ends
        self._write(stream_id, stream)

    def reset(self, stream_id: int, code: int) -> None:
        """Give up an exchange."""
        if self._streams.pop(stream_id, None) is not None:
            self._blocked.pop(stream_id, None)
            self._out.append(u32_frame(RST_STREAM, stream_id, code))

    def data_to_send(self) -> bytes:
        """What may leave now."""
        out = self._out
        if not out:
            return b""
        self._out = []
        return out[0] if len(out) == 1 else b"".join(out)

    def feed(self, data: bytes) -> list[Event]:
        """What the bytes say, in order."""
        if self._rest:
            data = self._rest + data
        pos: cython.Py_ssize_t = 0
        reader = self._reader
        while reader.read(data, pos):
            self._take_frame(data)
            pos = reader.following
        self._rest = data[pos:]
        if self._credit * 2 >= _ROOM:
            self._out.append(u32_frame(WINDOW_UPDATE, 0, self._credit))
            self._credit = 0
        events, self._events = self._events, []
        return events

    # Writing.

    def _write(self, stream_id: int, stream: _Stream) -> None:
        """Send of a stream what the windows allow."""
        while stream.waiting:
            data = stream.waiting.popleft()
            size = min(len(data), FRAME_SIZE_MAX, stream.window, self._window)
            if size <= 0:
                stream.waiting.appendleft(data)
                self._blocked[stream_id] = stream
                return
            if size < len(data):
                stream.waiting.appendleft(data[size:])
                data = data[:size]
            stream.window -= size
            self._window -= size
            last = stream.ends and not stream.waiting
            self._out.append(frame_head(size, DATA, END_STREAM if last else 0, stream_id))
            self._out.append(data)
            if last:
                stream.open = False
        self._blocked.pop(stream_id, None)
        if stream.ends and stream.open:
            stream.open = False
            self._out.append(frame_head(0, DATA, END_STREAM, stream_id))

    # Reading.

    def _take_frame(self, data: bytes) -> None:
        reader = self._reader
        kind = reader.type
        if self._block and kind != CONTINUATION:
            raise ConnectionFault(PROTOCOL_ERROR, "another frame inside a header block")
        if kind == DATA:
            self._take_data(data)
        elif kind in (HEADERS, CONTINUATION):
            self._take_block(data)
        elif kind == WINDOW_UPDATE:
            self._take_update()
        elif kind == RST_STREAM:
            self._drop(reader.stream_id)
            self._events.append(Event(reader.stream_id, ended=True, code=reader.value))
        elif kind == SETTINGS:
            self._take_settings(data)
        elif kind == PING and not reader.flags & ACK:
            self._out.append(frame(PING, ACK, 0, data[reader.start : reader.end]))
        elif kind == GOAWAY:
            self.leaving = True
            code = int.from_bytes(data[reader.start + 4 : reader.start + 8], "big")
            event = Event(reader.value, code=code)
            event.leaving = True
            self._events.append(event)

    def _take_data(self, data: bytes) -> None:
        reader = self._reader
        self._credit += reader.size
        stream = self._streams.get(reader.stream_id)
        if stream is None:
            return  # one that was given up
        stream.credit += reader.size
        if stream.credit * 2 >= _STREAM_ROOM and not reader.ends_stream:
            self._out.append(u32_frame(WINDOW_UPDATE, reader.stream_id, stream.credit))
            stream.credit = 0
        body = data[reader.start : reader.end]
        self._events.append(Event(reader.stream_id, data=body, ended=reader.ends_stream))
        if reader.ends_stream:
            self._drop(reader.stream_id)

    def _take_block(self, data: bytes) -> None:
        reader = self._reader
        if reader.type == HEADERS:
            self._block_ends = reader.ends_stream
        self._block.append(data[reader.start : reader.end])
        if not reader.ends_headers:
            return
        block = b"".join(self._block)
        self._block = []
        found = self._decoder.decode(block) or []
        if reader.stream_id in self._streams:
            fields = [(field.name, field.value) for field in found]
            self._events.append(Event(reader.stream_id, fields, ended=self._block_ends))
            if self._block_ends:
                self._drop(reader.stream_id)

    def _take_update(self) -> None:
        reader = self._reader
        if reader.stream_id == _NO_STREAM:
            self._window += reader.value
            if self._window > WINDOW_MAX:
                raise ConnectionFault(FLOW_CONTROL_ERROR, "a window wider than 2**31 - 1")
            for stream_id, stream in list(self._blocked.items()):
                self._write(stream_id, stream)
            return
        updated = self._streams.get(reader.stream_id)
        if updated is not None:
            updated.window += reader.value
            if reader.stream_id in self._blocked:
                self._write(reader.stream_id, updated)

    def _take_settings(self, data: bytes) -> None:
        reader = self._reader
        if reader.flags & ACK:
            return
        for at in range(reader.start, reader.end, 6):
            key = int.from_bytes(data[at : at + 2], "big")
            value = int.from_bytes(data[at + 2 : at + 6], "big")
            if key == INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream.window += value - self._initial_window
                self._initial_window = value
            elif key == MAX_CONCURRENT_STREAMS:
                self.streams_max = value
        self._out.append(frame(SETTINGS, ACK, 0, b""))
        for stream_id, stream in list(self._blocked.items()):
            self._write(stream_id, stream)

    def _drop(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)
        self._blocked.pop(stream_id, None)

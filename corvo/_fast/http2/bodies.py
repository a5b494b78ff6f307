"""Bodies of requests over HTTP/2, as they come.

Most are collected, and the request is handed over when it is whole. Their bytes are returned to the
windows of the peer at once: what may lie around is bounded by the size of a body and by the budget
for all bodies.

Some requests go on for as long as somebody talks (`H1Context.takes_pieces` tells which). They are
handed over with their head, and again whenever there is more; `Request.take_body` returns what has
come, and only then the peer may send as much again on that stream.
"""

from typing import Final

import cython

from corvo._fast.http.exchange import reply_error
from corvo._fast.http2.control import Control, after_the_end, too_many
from corvo._fast.http2.frames import (
    END_HEADERS,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    HEADERS,
    PROTOCOL_ERROR,
    WINDOW_MAX,
    WINDOW_UPDATE,
    ConnectionFault,
    FrameReader,
    frame,
    u32_frame,
)
from corvo._fast.http2.streams import Stream
from corvo.errors import Overloaded, PayloadTooLarge, RequestTimeout

_CONTINUE: Final = b"\x08\x03100"
_OVERLOADED_RETRY_MS: Final = 1_000


class Bodies(Control):
    """The part of a connection that takes DATA; `corvo._fast.http2.connection` reads all other
    frames."""

    def __init__(self, context, peer="", on_output=None):
        Control.__init__(self, context, peer, on_output)
        http2 = self._limits
        self._ready = []
        self._tiny_data = http2.tiny_data
        self._stream_room = http2.stream_window_size
        self._receiving = {}
        self._continues = []
        self._room = http2.window_size
        self._room_max = http2.window_size
        self._credit = 0
        self._empty_left = http2.empty_data_max
        self._tiny_left = http2.tiny_data_budget

    def _begin_body(self, stream):
        """What the head says about the body; or complete the request if there is none."""
        request = stream.request
        length = request.content_length
        if length is not None:
            if not length.isdigit():
                return "a content-length that is no number"
            stream.expected = int(length) if len(length) <= 18 else WINDOW_MAX
        if not stream.open:
            return self._end_body(stream)
        takes_pieces = self.context.takes_pieces
        if takes_pieces is not None and takes_pieces(request):
            stream.by_pieces = True
            stream.body = bytearray()
            request.receiving = True
            self._tell(stream)
        elif stream.expected > self.context.body_size_max:
            raise self._body_too_large()
        else:
            self._receiving[stream.id] = stream
        if request.expect is not None and request.expect.lower() == b"100-continue":
            self._continues.append(stream)
        return None

    def _take_data(self, data):
        reader: FrameReader = self._reader
        size: cython.Py_ssize_t = reader.size
        self._room -= size
        if self._room < 0:
            raise ConnectionFault(
                FLOW_CONTROL_ERROR, "data beyond the connection's window", "windows"
            )
        self._credit += size
        if self._credit * 2 >= self._room_max:
            self._push(u32_frame(WINDOW_UPDATE, 0, self._credit))
            self._room += self._credit
            self._credit = 0
        stream: Stream = self._streams.get(reader.stream_id)
        if stream is None:
            self._take_late(reader.stream_id)
            return
        if not stream.open:
            raise after_the_end()
        stream.room -= size
        if stream.room < 0:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "data beyond the stream's window", "windows")
        if not reader.ends_stream:
            self._charge(stream, reader.end - reader.start)
        if stream.discards:
            stream.open = not reader.ends_stream
            return
        stream.read_ns = self._read_ns
        malformed = self._add_data(stream, data)
        if malformed is None and reader.ends_stream and not (stream.discards or stream.gone):
            malformed = self._end_body(stream)
        if malformed is not None:
            self._reset(stream, PROTOCOL_ERROR, "malformed")

    def _charge(self, stream, length):
        """What a frame with little or no data costs; given back when the request is whole."""
        stream.credit += self._reader.size
        if not (stream.discards or stream.by_pieces):
            self._give_room(stream)
        if length == 0:
            self._empty_left -= 1
            if self._empty_left < 0:
                raise too_many("empty_frames")
        elif length < self._tiny_data:
            stream.tiny += self._tiny_data - length
            self._tiny_left -= self._tiny_data - length
            if self._tiny_left < 0:
                raise too_many("tiny_frames")

    def _give_room(self, stream):
        """Let the peer send more on a stream, when it is worth a frame."""
        if stream.credit * 2 >= self._stream_room:
            self._push(u32_frame(WINDOW_UPDATE, stream.id, stream.credit))
            stream.room += stream.credit
            stream.credit = 0

    def _add_data(self, stream, data):
        reader: FrameReader = self._reader
        context = self.context
        length: cython.Py_ssize_t = reader.end - reader.start
        stream.received += length
        if stream.expected >= 0 and stream.received > stream.expected:
            return "more data than content-length says"
        full: cython.bint = context.bodies_size + length > context.bodies_in_flight_size_max
        if stream.by_pieces:
            if full:
                self._reset(stream, ENHANCE_YOUR_CALM, "bodies_in_flight")
                return None
            self._tell(stream)
        elif stream.received > context.body_size_max:
            self._refuse(stream, self._body_too_large(), "body_size")
            return None
        elif full:
            error = Overloaded(
                "too many request bodies in flight", retry_after_ms=_OVERLOADED_RETRY_MS
            )
            self._refuse(stream, error, "bodies_in_flight")
            return None
        context.bodies_size += length
        stream.held += length
        if stream.body is not None:
            stream.body += data[reader.start : reader.end]
        elif reader.ends_stream:
            stream.request.body = data[reader.start : reader.end]
        else:
            stream.body = bytearray(data[reader.start : reader.end])
        return None

    def _end_body(self, stream):
        """The end of a request: it is complete, unless it is not what it said."""
        stream.open = False
        if stream.discards:
            return None
        if stream.expected >= 0 and stream.received != stream.expected:
            return "less data than content-length says"
        request = stream.request
        if stream.by_pieces:
            request.receiving = False
            self._tell(stream)
            return None
        if stream.body is not None:
            request.body = bytes(stream.body)
            stream.body = None
        if self._receiving:
            self._receiving.pop(stream.id, None)
        request._body_size = stream.held
        stream.held = 0
        self._tiny_left += stream.tiny
        stream.tiny = 0
        request.arrived_ns = self._read_ns
        self._ready.append(request)
        return None

    # Bodies in pieces.

    def _tell(self, stream):
        """Have a request handed over: it is new, or there is more of it."""
        if not stream.told:
            stream.told = True
            self._ready.append(stream.request)

    def _take_body(self, request):
        stream: Stream = self._streams.get(request._stream_id)
        if stream is None or not stream.by_pieces or stream.gone:
            return b""
        stream.told = False
        self._tiny_left += stream.tiny
        stream.tiny = 0
        data = bytes(stream.body)
        stream.body = bytearray()
        if stream.open:
            try:
                self._give_room(stream)
            except ConnectionFault as fault:
                self._give_up(fault)
        return data

    def _keep_body(self, request, size):
        stream: Stream = self._streams.get(request._stream_id)
        if stream is not None and stream.by_pieces and not stream.gone:
            left: cython.Py_ssize_t = size + len(stream.body)
            self.context.bodies_size += left - stream.held
            stream.held = left

    def _send_continues(self):
        """Ask for the bodies that are awaited, when they are not there already."""
        stream: Stream
        for stream in self._continues:
            if stream.open and not stream.gone and not stream.discards and not stream.received:
                self._push(frame(HEADERS, END_HEADERS, stream.id, _CONTINUE))
        self._continues = []

    # Ending.

    def _refuse(self, stream, error, reason):
        """Answer a request with an error before it is whole, and ignore the rest of it."""
        self.context.abuse_counters.count(reason)
        self._drop_body(stream)
        stream.discards = True
        reply_error(stream.request, error)

    def _drop_body(self, stream):
        self._receiving.pop(stream.id, None)
        self.context.bodies_size -= stream.held
        stream.held = 0
        stream.body = None
        self._tiny_left += stream.tiny
        stream.tiny = 0

    def _stream_ended(self, stream):
        self._drop_body(stream)
        stream.request.receiving = False
        if stream.open:
            self._remember(stream.id)
        if not self._streams and (self._ended or self._accepts_max != WINDOW_MAX):
            self._close()

    def _body_too_large(self):
        return PayloadTooLarge(f"the request body is over {self.context.body_size_max} bytes")

    def _check_bodies(self, now_ns):
        context = self.context
        stream: Stream
        for stream in list(self._receiving.values()):
            took_ns: cython.longlong = now_ns - stream.started_ns
            if now_ns - stream.read_ns > context.body_idle_ns:
                error = RequestTimeout("the body did not arrive in time")
                self._refuse(stream, error, "body_time")
            elif took_ns > context.body_idle_ns and (
                stream.received * 1_000_000_000 < context.body_rate_min * took_ns
            ):
                rate = context.body_rate_min
                error = RequestTimeout(f"the body arrives slower than {rate} bytes a second")
                self._refuse(stream, error, "body_time")

"""Replies on one connection of HTTP/2: made in any order, sent as the windows of the peer allow.

Streams with something to send form a ring; each gets a frame in turn, so that a large reply does
not hold up small ones. A stream that may not send, because its window or that of the connection is
used up, is parked until the peer widens one of them. Frames of control leave before all of this.
"""

from collections import deque
from typing import Final

import cython

from corvo._fast.http.exchange import HttpConn
from corvo._fast.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_MAX,
    HEADERS,
    NO_ERROR,
    RST_STREAM,
    ConnectionFault,
    frame_head,
    u32_frame,
)
from corvo._fast.http2.hpack import Encoder, encode_number

# As C numbers, where every frame passes.
_DATA, _HEADERS, _END_HEADERS, _END_STREAM = DATA, HEADERS, END_HEADERS, END_STREAM
_SIZE_MAX = FRAME_SIZE_MAX

# What is given away between two writes, and about what a head takes.
_TURN_SIZE, _HEAD_SIZE = 262_144, 128

# Fields of a reply that no table has to remember, so that they are the same for each peer: the
# number of their names in the static table, or the name itself.
_STATUSES: Final = {
    200: b"\x88",
    204: b"\x89",
    304: b"\x8b",
    400: b"\x8c",
    404: b"\x8d",
    500: b"\x8e",
}
_STATUS: Final = b"\x08\x03%d"
_DATE: Final = b"\x0f\x12"
_REQUEST_ID: Final = b"\x00\x0cx-request-id"
_TIMING: Final = b"\x00\x0dserver-timing%cproc;dur=%d"
_INDEX: Final = b"\x00\x0dx-corvo-index"
_TYPE: Final = b"\x0f\x10"
_LENGTH: Final = b"\x0f\x0d"
_JSON_TYPE: Final = _TYPE + b"\x10application/json"
_JSON: Final = b"application/json"

_SIZES: Final = tuple(bytes((n,)) for n in range(127))
_READY: Final = 1000
# Three digits and the point follow.
_TIMINGS: Final = tuple(_TIMING % (13 + len(str(n)), n) for n in range(_READY))
_THOUSANDTHS: Final = tuple(b".%03d" % n for n in range(1000))
_LENGTHS: Final = tuple(_LENGTH + bytes((len(str(n)),)) + b"%d" % n for n in range(_READY))
_JSON_LENGTHS: Final = tuple(_JSON_TYPE + line for line in _LENGTHS)


def _plain(text):
    """A text behind its length, as it is."""
    size: cython.Py_ssize_t = len(text)
    if size < 127:
        return cython.cast(bytes, _SIZES[size]) + text
    return encode_number(len(text), 0x7F, 0) + text


class Stream:
    """One request and its reply, on their way."""

    def __init__(self, stream_id, request, window, room):
        self.id = stream_id
        self.request = request
        # Receiving: what the peer may still send, and what of it is not returned yet.
        self.open = True
        self.room = room
        self.credit = 0
        self.expected = -1  # bytes of body as announced, -1 = not announced
        self.received = 0
        self.held = 0  # bytes of it that count in the budget for all bodies
        self.body = None
        self.discards = False  # the body is not wanted any more
        self.by_pieces = False  # the body is handed over as it comes
        self.told = False  # who takes it knows that there is more
        self.tiny = 0  # charged for data in crumbs
        self.started_ns = 0
        self.read_ns = 0
        # Sending.
        self.window = window
        self.head_sent = False
        self.sent = 0
        self.gone = False  # reset while it was in the ring
        self.idle = False  # has sent all there is, but not all there will be
        self.parked_ns = 0  # since when it cannot go on
        self.urgent = False  # has waited long enough to send crumbs


class ReplyStreams(HttpConn):
    """The answering half of a connection; a subclass reads."""

    def __init__(self, context, peer="", on_output=None):
        HttpConn.__init__(self, context, peer, on_output)
        http2 = context.http2
        self._streams = {}
        self._ring = deque()
        self._parked = {}
        self._control = []
        self._control_size = 0
        self._control_max = http2.control_queue_max
        self._announced = False
        self._window = 65_535
        self._initial_window = 65_535
        self._small_data = http2.small_data
        self._updates_earned = 0
        self._encoder = Encoder()
        self._starts = {}
        self._date = b""
        self._index = -1
        self._index_field = b""

    def data_to_send(self):
        """What may leave now, joined; replies count as delivered with their last byte."""
        self._announced = False
        pieces = self._control
        if pieces:
            self._control = []
            self.unsent_size -= self._control_size
            self._control_size = 0
        else:
            pieces = []
        room: cython.Py_ssize_t = _TURN_SIZE
        emptied = []
        while self._ring and room > 0:
            stream: Stream = self._ring.popleft()
            if stream.gone:
                continue
            if stream.request._pieces is None:
                room -= self._send_turn(stream, pieces)
            else:
                room -= self._send_pieces(stream, pieces)
                if stream.idle:
                    emptied.append(stream.request)
        for request in emptied:
            if request.on_writable is not None:
                request.on_writable(request)
        if self._ring:
            self._announce()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _announce(self):
        """There is something to send."""
        if not self._announced:
            self._announced = True
            if self.on_output is not None:
                self.on_output()

    def _push(self, frame):
        """Send a frame of control, ahead of all replies."""
        if len(self._control) >= self._control_max:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "answers that are not read", "control_frames")
        self._control.append(frame)
        self._control_size += len(frame)
        self.unsent_size += len(frame)
        self._announce()

    def _answered(self, request):
        stream: Stream = self._streams[request._stream_id]
        self.context.bodies_size -= request._body_size
        request._body_size = 0
        self.unsent_size += _HEAD_SIZE + len(request._reply_body)
        self._ring.append(stream)
        self._announce()

    def _piece_added(self, request, size):
        self.unsent_size += size
        self._wake(request)

    def _pieces_end(self, request):
        self._wake(request)

    def _wake(self, request):
        """Go on with a reply that has more to say, or nothing more."""
        stream: Stream = self._streams[request._stream_id]
        if stream.idle:
            stream.idle = False
            self._ring.append(stream)
            self._announce()

    def _send_pieces(self, stream, pieces):
        """The next frame of a reply that comes in pieces; how much it was."""
        request = stream.request
        taken: cython.Py_ssize_t = 0
        if not stream.head_sent:
            taken = self._put_head(stream, pieces, request.head_only)
            if request.head_only:
                self._finish(stream, pieces)
                return taken
        left: cython.Py_ssize_t = request.unsent_size
        if left == 0 and request.streaming:
            stream.idle = True
            return taken
        size: cython.Py_ssize_t = min(left, _SIZE_MAX, stream.window, self._window)
        if left and (size <= 0 or (size < left and size < self._small_data and not stream.urgent)):
            self._park(stream)
            return taken
        ends: cython.bint = size == left and not request.streaming
        if left or not request._trailers:
            last: cython.bint = ends and not request._trailers
            pieces.append(frame_head(size, _DATA, _END_STREAM if last else 0, stream.id))
            pieces.append(self._take_pieces(stream, size))
        if ends and request._trailers:
            block = self._encoder.start_block()
            block += self._encoder.encode(_fields_of(request._trailers))
            flags: cython.int = _END_HEADERS | _END_STREAM
            pieces.append(frame_head(len(block), _HEADERS, flags, stream.id))
            pieces.append(block)
        stream.window -= size
        self._window -= size
        self.unsent_size -= size
        self._updates_earned += 1
        stream.parked_ns = 0
        stream.urgent = False
        if ends:
            self._finish(stream, pieces)
        else:
            self._ring.append(stream)
        return taken + size

    def _take_pieces(self, stream, size):
        """So much of what waits to be sent; `sent` is how much of the first piece has left."""
        request = stream.request
        waiting: list = request._pieces
        whole: bytes = waiting[0] if len(waiting) == 1 else b"".join(waiting)
        start: cython.Py_ssize_t = stream.sent
        request.unsent_size -= size
        if request.unsent_size:
            request._pieces = [whole]
            stream.sent = start + size
        else:
            request._pieces = []
            stream.sent = 0
        return whole if size == len(whole) else whole[start : start + size]

    def _put_head(self, stream, pieces, ends):
        """The head of a reply; its size."""
        block = self._render_head(stream.request)
        flags: cython.int = _END_HEADERS | _END_STREAM if ends else _END_HEADERS
        pieces.append(frame_head(len(block), _HEADERS, flags, stream.id))
        pieces.append(block)
        stream.head_sent = True
        self.unsent_size -= _HEAD_SIZE
        return len(block)

    def _send_turn(self, stream, pieces):
        """The next frame of a reply, with the head if it is the first; how much it was."""
        request = stream.request
        body: bytes = b"" if request.head_only else request._reply_body
        left: cython.Py_ssize_t = len(body) - stream.sent
        taken: cython.Py_ssize_t = 0
        if not stream.head_sent:
            taken = self._put_head(stream, pieces, left == 0)
            if request.head_only:
                self.unsent_size -= len(request._reply_body)
            if left == 0:
                self._finish(stream, pieces)
                return taken
        size: cython.Py_ssize_t = min(left, _SIZE_MAX, stream.window, self._window)
        if size <= 0 or (size < left and size < self._small_data and not stream.urgent):
            # Crumbs cost more than they carry; the next update may allow more.
            self._park(stream)
            return taken
        pieces.append(frame_head(size, _DATA, _END_STREAM if size == left else 0, stream.id))
        pieces.append(body if size == len(body) else body[stream.sent : stream.sent + size])
        stream.sent += size
        stream.window -= size
        self._window -= size
        self.unsent_size -= size
        self._updates_earned += 1
        stream.parked_ns = 0
        stream.urgent = False
        if size == left:
            self._finish(stream, pieces)
        else:
            self._ring.append(stream)
        return taken + size

    def _park(self, stream):
        if stream.parked_ns == 0:
            stream.parked_ns = self.context.monotonic()
        self._parked[stream.id] = stream

    def _unpark(self, stream):
        """Go on with a stream that could not."""
        if self._parked.pop(stream.id, None) is not None:
            self._ring.append(stream)
            self._announce()

    def _unpark_all(self):
        """The window of the connection, or that of all streams, has changed."""
        stream: Stream
        for stream in list(self._parked.values()):
            if stream.window > 0:
                self._unpark(stream)

    def _finish(self, stream, pieces):
        request = stream.request
        request.delivered = True
        request.on_abandoned = None
        del self._streams[stream.id]
        self._idle_ns = request._replied_ns
        if request._pieces is not None:
            self._idle_ns = self.context.monotonic()
        if stream.open:
            # The reply is all there will be: what is left of the request is not wanted.
            pieces.append(u32_frame(RST_STREAM, stream.id, NO_ERROR))
        self._stream_ended(stream)

    def _forget(self, stream):
        """Drop a stream in the middle of whatever it does; who works for it is told."""
        request = stream.request
        stream.gone = True
        del self._streams[stream.id]
        self._parked.pop(stream.id, None)
        if request.replied:
            if request._pieces is None:
                self.unsent_size -= len(request._reply_body) - stream.sent
            else:
                self.unsent_size -= request.unsent_size
            if not stream.head_sent:
                self.unsent_size -= _HEAD_SIZE
        self.context.bodies_size -= request._body_size
        request._body_size = 0
        self._idle_ns = self.context.monotonic()
        self._stream_ended(stream)
        request._abandon()

    def _stream_ended(self, stream):
        """A stream is done with, one way or the other; the reading half has its own about it."""
        raise NotImplementedError

    def _render_head(self, request):
        """The header block of a reply."""
        date: bytes = self.context._get_date(request._replied_ns)
        if date is not self._date:
            self._date = date
            self._starts = {}
        start = self._starts.get(request._status)
        if start is None:
            start = self._starts[request._status] = self._render_start(request._status)
        took_us: cython.longlong = max(0, request._replied_ns - request.arrived_ns) // 1000
        took_ms: cython.longlong = took_us // 1000
        given: bytes = request.request_id
        pieces = [
            self._encoder.start_block(),
            start,
            _plain(given),
            _TIMINGS[took_ms] if took_ms < _READY else _TIMING % (13 + len(str(took_ms)), took_ms),
            _THOUSANDTHS[took_us % 1000],
        ]
        if request._index >= 0:
            pieces.append(self._render_index(request._index))
        size: cython.Py_ssize_t = len(request._reply_body)
        if request._pieces is not None:
            pieces.append(_TYPE + _plain(request._reply_type))
        elif request._status == 204 or request._status == 304:
            pass  # no body, hence no length either
        elif size and size < _READY and request._reply_type == _JSON:
            pieces.append(_JSON_LENGTHS[size])
        else:
            if size:
                pieces.append(_TYPE + _plain(request._reply_type))
            pieces.append(_LENGTH + _plain(b"%d" % size))
        if request._reply_headers:
            pieces.append(self._encoder.encode(_fields_of(request._reply_headers)))
        return b"".join(pieces)

    def _render_start(self, status):
        known = _STATUSES.get(status) or _STATUS % status
        return b"".join((known, _DATE, _plain(self._date), _REQUEST_ID))

    def _render_index(self, index):
        """A whole batch of replies names the same index."""
        if index != self._index:
            self._index = index
            self._index_field = _INDEX + _plain(b"%d" % index)
        return self._index_field


def _fields_of(lines):
    """Name and value of header lines."""
    pairs = [line.split(b": ", 1) for line in lines.split(b"\r\n") if line]
    return [(name.lower(), value) for name, value in pairs]

"""HTTP/2 without sockets: bytes in, requests out; replies in, bytes out (RFC 9113).

The connection gives the shell the same view as `corvo._fast.http.http1`, and handlers the same
requests. It goes through four phases:

    PREFACE   the 24 bytes by which a client says that it means HTTP/2
    SETTINGS  the first frame, which has to be its settings
    OPEN      all others
    STOPPED   further input is ignored: after a fault, a last GOAWAY, or the end of the stream

A header block may come in several frames, with nothing between them; they are collected and decoded
as one. Bodies are copied out of the frames at once (`corvo._fast.http2.bodies`).
"""

import re
from base64 import urlsafe_b64decode
from typing import Final

import cython

from corvo._fast.http.abuse_counters import reason_of
from corvo._fast.http.exchange import Request
from corvo._fast.http.head import HOST, REQUEST_ID
from corvo._fast.http2.bodies import Bodies
from corvo._fast.http2.control import after_the_end, too_many
from corvo._fast.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFault,
    FrameReader,
)
from corvo._fast.http2.headers import check_trailers, read_fields
from corvo._fast.http2.hpack import Decoder
from corvo._fast.http2.streams import Stream
from corvo.errors import (
    BadRequest,
    CorvoError,
    HeadersTooLarge,
    UriTooLong,
)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SWITCHING: Final = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
)

_PREFACE, _SETTINGS, _OPEN, _STOPPED = 0, 1, 2, 3
# As C numbers, where every frame passes.
_DATA, _HEADERS, _WINDOW_UPDATE, _CONTINUATION = DATA, HEADERS, WINDOW_UPDATE, CONTINUATION

_BASE64URL: Final = re.compile(rb"(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2,3})?")


class H2Conn(Bodies):
    """One HTTP/2 connection without its socket."""

    def __init__(self, context, peer="", on_output=None):
        Bodies.__init__(self, context, peer, on_output)
        http2 = self._limits
        self._decoder = Decoder(context.head_size_max, http2.fields_size_fatal)
        # The header block being read.
        self._block = []
        self._block_size = 0
        self._block_ends_stream = False
        self._block_empty = 0
        # Streams.
        self._frames_max = http2.frames_per_turn
        self._priorities_per_stream = http2.priorities_per_stream
        self._streams_max = http2.streams_max

    # What the shell asks.

    @property
    def has_input(self):
        """Whether bytes wait that a further `feed` could turn into requests."""
        return self._more

    def is_holding(self):
        """Whether the peer should not be read from for now."""
        return self._more

    @property
    def paused(self):
        """Never: replies that the peer does not take hold up requests, not frames."""
        return False

    @property
    def idle(self):
        """Whether no request is being read or answered."""
        return not self._streams

    def adopt(self, request, settings):
        """Go on with a request of HTTP/1.1 that offered to switch, as the first stream.

        The settings are those of its header. Comes before the first `feed`, which returns it.
        """
        request.conn = self
        request._stream_id = self._last_id = 1
        stream = Stream(1, request, self._initial_window, self._stream_room)
        stream.open = False
        self._streams[1] = stream
        try:
            self._apply_settings(settings, 0, len(settings))
        except ConnectionFault as fault:
            self._give_up(fault)
            return
        self._control.insert(0, SWITCHING)
        self._control_size += len(SWITCHING)
        self.unsent_size += len(SWITCHING)
        self._ready.append(request)

    def feed(self, data):
        """Take what was read; return the requests that are complete, in order.

        So many frames and requests are taken at once. When `has_input` says that there is more, the
        caller gives others a turn and calls again, with no data.
        """
        ready = self._ready
        if self._phase == _STOPPED:
            return []
        if data:
            self._read_ns = self.context.monotonic()
        if self._rest:
            data = self._rest + data
        pos: cython.Py_ssize_t = 0
        frames: cython.Py_ssize_t = 0
        requests_max: cython.Py_ssize_t = self.context.pipeline_max
        reader: FrameReader = self._reader
        self._more = True
        try:
            if self._phase == _PREFACE:
                pos = self._read_preface(data)
            while (
                frames < self._frames_max and len(ready) < requests_max and self._phase != _STOPPED
            ):
                if self._phase == _PREFACE or not reader.read(data, pos):
                    self._more = False
                    break
                self._take_frame(data)
                pos = reader.following
                frames += 1
            if self._continues:
                self._send_continues()
        except ConnectionFault as fault:
            self._give_up(fault)
        if self._phase == _STOPPED:
            self._more = False
            self._rest = b""
        elif self._more and pos < len(data):
            self.context.abuse_counters.count("turns")
            self._rest = data[pos:]
        else:
            self._rest = data[pos:] if pos else data
        if self._ended and not self._more:
            self._finish_input()
        self._ready = []
        return ready

    def check_time(self, now_ns):
        """Reset or close what took too long; called every now and then with the present time."""
        if self.want_close:
            return
        try:
            self._check_parked(now_ns)
            if self._phase == _PREFACE or self._phase == _SETTINGS:
                if now_ns - self._opened_ns > self.context.head_wait_ns:
                    self.context.abuse_counters.count("head_time")
                    self._close()
            elif self._phase == _OPEN:
                self._check_bodies(now_ns)
                self._check_peer(now_ns)
        except ConnectionFault as fault:
            self._give_up(fault)

    def eof(self):
        """The peer sends no more: what is in flight is answered, parked requests are cancelled."""
        self._ended = True
        if not self._more:
            self._finish_input()

    def closed(self):
        """The connection is gone: forget everything, tell whoever waits."""
        self._close()
        self.on_output = None
        self._forget_all()

    # Reading.

    def _read_preface(self, data):
        size: cython.Py_ssize_t = min(len(data), len(PREFACE))
        if data[:size] != PREFACE[:size]:
            raise ConnectionFault(PROTOCOL_ERROR, "this is not HTTP/2")
        if size < len(PREFACE):
            return 0
        self._phase = _SETTINGS
        return size

    def _take_frame(self, data):
        reader: FrameReader = self._reader
        kind: cython.int = reader.type
        if self._phase == _SETTINGS:
            if kind != SETTINGS or reader.flags & ACK:
                raise ConnectionFault(PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._phase = _OPEN
        if self._block_stream and (kind != _CONTINUATION or reader.stream_id != self._block_stream):
            raise ConnectionFault(PROTOCOL_ERROR, "another frame inside a header block")
        if kind == _DATA:
            self._take_data(data)
        elif kind == _HEADERS:
            self._take_headers(data)
        elif kind == _WINDOW_UPDATE:
            self._take_update()
        elif kind == _CONTINUATION:
            self._take_continuation(data)
        elif kind == RST_STREAM:
            self._take_reset()
        elif kind == PING:
            self._take_ping(data)
        elif kind == SETTINGS:
            self._take_settings(data)
        elif kind == PRIORITY:
            if not self._priorities.take(self._read_ns):
                raise too_many("priorities")
        elif kind == GOAWAY:
            # It wants no streams of ours, of which there are none; what it asked for it still gets.
            self._slip()
        elif kind == PUSH_PROMISE:
            raise ConnectionFault(PROTOCOL_ERROR, "a client that pushes")
        else:
            self._slip()

    def _take_headers(self, data):
        reader: FrameReader = self._reader
        stream: Stream = self._streams.get(reader.stream_id)
        if stream is not None:
            if not stream.open:
                raise after_the_end()
            if not reader.ends_stream:
                raise ConnectionFault(PROTOCOL_ERROR, "a trailer section that does not end")
        elif reader.stream_id & 1 == 0:
            raise ConnectionFault(PROTOCOL_ERROR, "a client opens streams with odd numbers")
        elif reader.stream_id <= self._last_id:
            self._take_late(reader.stream_id)
        self._block_ends_stream = reader.ends_stream
        if reader.ends_headers:
            self._end_block(reader.stream_id, data[reader.start : reader.end])
            return
        self._block_stream = reader.stream_id
        self._block_ns = self._read_ns
        self._block_empty = 0
        self._block = [data[reader.start : reader.end]]
        self._block_size = reader.end - reader.start

    def _take_continuation(self, data):
        reader: FrameReader = self._reader
        limits = self._limits
        if not self._block_stream:
            raise ConnectionFault(PROTOCOL_ERROR, "a continuation of nothing")
        self._block.append(data[reader.start : reader.end])
        self._block_size += reader.size
        self._block_empty += reader.size == 0
        if (
            len(self._block) > limits.continuations_max + 1
            or self._block_size > limits.block_size_max
            or self._block_empty > 1
        ):
            raise ConnectionFault(ENHANCE_YOUR_CALM, "a header block without end", "header_block")
        if reader.ends_headers:
            block = b"".join(self._block)
            self._block = []
            self._block_stream = 0
            self._end_block(reader.stream_id, block)

    def _end_block(self, stream_id, block):
        """A whole header block: of a request, of its trailers, or of what we have ended."""
        fields = self._decoder.decode(block)
        stream: Stream = self._streams.get(stream_id)
        if stream is not None:
            malformed = None if fields is None else check_trailers(fields)
            if malformed is None:
                malformed = self._end_body(stream)
            if malformed is not None:
                self._reset(stream, PROTOCOL_ERROR, "malformed")
        elif stream_id > self._last_id:
            self._last_id = stream_id
            self._priorities.add(self._priorities_per_stream)
            self._strikes = 0
            if stream_id > self._accepts_max:
                self._remember(stream_id)
            elif len(self._streams) >= self._streams_max:
                self._send_reset(stream_id, REFUSED_STREAM, "streams")
            else:
                self._open(stream_id, fields)

    def _open(self, stream_id, fields):
        """A new request."""
        request = Request(self)
        request._stream_id = stream_id
        stream = Stream(stream_id, request, self._initial_window, self._stream_room)
        stream.open = not self._block_ends_stream
        stream.started_ns = stream.read_ns = request.arrived_ns = self._read_ns
        self._streams[stream_id] = stream
        try:
            malformed = self._take_head(request, fields)
            if malformed is None:
                malformed = self._begin_body(stream)
        except CorvoError as error:
            self._refuse(stream, error, reason_of(error))
            return
        if malformed is not None:
            self._reset(stream, PROTOCOL_ERROR, "malformed")

    def _take_head(self, request, fields):
        context = self.context
        if fields is None:
            request.request_id = context._new_request_id()
            raise HeadersTooLarge(f"the header fields are over {context.head_size_max} bytes")
        malformed = None
        try:
            malformed = read_fields(request, fields)
        finally:
            given = request.request_id
            if given is None or not REQUEST_ID.fullmatch(given):
                request.request_id = context._new_request_id()
        if malformed is not None:
            return malformed
        if len(fields) > context.head_fields_max:
            raise HeadersTooLarge(f"more than {context.head_fields_max} header fields")
        if len(request.path) + len(request.query) > context.target_size_max:
            raise UriTooLong(f"the request target is over {context.target_size_max} bytes")
        host = request.host
        if host is None:
            raise BadRequest("header Host is missing")
        if host != context._valid_host:
            if not HOST.fullmatch(host):
                raise BadRequest("header Host is not a host name with an optional port")
            context._valid_host = host
        return None

    def _finish_input(self):
        """The stream has ended: drop what is not whole, cancel the parked, close when all is said.

        With no window to come, a reply that does not fit into those there are is cut off by time.
        """
        self._phase = _STOPPED
        stream: Stream
        for stream in list(self._streams.values()):
            request = stream.request
            waits: cython.bint = not request.replied or request.streaming
            if stream.open or (request.on_abandoned is not None and waits):
                self._forget(stream)
        if not self._streams:
            self._close()


def parse_offer(head):
    """The settings in a request that offers to go on in HTTP/2; None = it makes no valid offer.

    A proxy that does not know what it passes on would drop the header field Connection and all that
    it names, so both must be there (RFC 7540, 3.2).
    """
    fields = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    found = [(name.lower(), value.strip(b" \t")) for name, _, value in fields]
    settings = [value for name, value in found if name == b"http2-settings"]
    upgrades, connections = (
        {
            token.strip(b" \t").lower()
            for name, value in found
            if name == wanted
            for token in value.split(b",")
        }
        for wanted in (b"upgrade", b"connection")
    )
    if b"h2c" not in upgrades or not connections >= {b"upgrade", b"http2-settings"}:
        return None
    if len(settings) != 1 or not _BASE64URL.fullmatch(settings[0]):
        return None
    payload = urlsafe_b64decode(settings[0] + b"=" * (-len(settings[0]) % 4))
    return payload if len(payload) % 6 == 0 else None

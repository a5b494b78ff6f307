"""The HTTP/2 connection state machine, without sockets (RFC 9113).

Bytes go in and requests come out; replies go in and bytes come out. The server uses it like
`corvo._fast.http.http1`, and handlers get the same requests. A connection has four phases:

    AWAIT_PREFACE   the 24 bytes with which a client starts HTTP/2
    AWAIT_SETTINGS  the first frame, which must be SETTINGS
    RUNNING         all other frames
    STOPPED         input is ignored: after a fault, a final GOAWAY, or the end of the stream

Each request and its reply are a `Stream`. Its state is one of RFC 9113 5.1, and `_TRANSITIONS` is
the table of what changes it. A server that never pushes needs no reserved states. A stream that
was never opened, or is closed, has no `Stream`: `_last_id` tells the two apart.

Requests. A header block may span several frames, with no other frame in between; they are
collected and decoded as one. A body is copied out of its frames at once. Most bodies are
collected, and the request is handed over when it is complete. Requests for which
`H1Context.takes_pieces` is true are handed over with their head, and again whenever more of the
body has arrived; `Request.take_body` returns it, and only then the stream's window opens again.

Replies are made in any order and sent as the peer's windows allow. Streams with something to send
form a ring; each sends one frame in turn, so that a large reply does not hold up small ones. A
stream without window is parked until a WINDOW_UPDATE. Control frames are sent before all replies.

Abuse. Everything that a peer can repeat without end at little cost to itself has a budget, and a
peer that exceeds it loses the connection with ENHANCE_YOUR_CALM. Violations that cannot happen by
accident are faults of the connection as well, not of one stream: a reset is a reply that an
attacker could farm.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import cython

from corvo._fast.http.abuse_counters import reason_of
from corvo._fast.http.exchange import H1Context, HttpConn, Request, reply_error
from corvo._fast.http.token_bucket import TokenBucket
from corvo._fast.http2.frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_MAX,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    NO_ERROR,
    NO_RFC7540_PRIORITIES,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    SETTINGS_TIMEOUT,
    WINDOW_MAX,
    WINDOW_UPDATE,
    ConnectionFault,
    FrameReader,
    after_the_end,
    frame,
    frame_head,
    goaway_frame,
    idle_stream,
    settings_frame,
    too_many,
    u32_frame,
    window_too_large,
)
from corvo._fast.http2.headers import Field, check_trailers, read_head
from corvo._fast.http2.hpack import TABLE_SIZE_MAX, Decoder
from corvo._fast.http2.reply_head import ReplyHeads
from corvo.errors import CorvoError, Overloaded, PayloadTooLarge, RequestTimeout

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SWITCHING: Final = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
)

# Phases of a connection.
_AWAIT_PREFACE, _AWAIT_SETTINGS, _RUNNING, _STOPPED = 0, 1, 2, 3

# States of a stream (RFC 9113 5.1), and the events that change them.
_IDLE, _OPEN, _HALF_CLOSED_LOCAL, _HALF_CLOSED_REMOTE, _CLOSED = 0, 1, 2, 3, 4
_GOT_HEADERS, _GOT_END, _SENT_END, _RESET = 0, 1, 2, 3
_TRANSITIONS: Final = {
    (_IDLE, _GOT_HEADERS): _OPEN,
    (_OPEN, _GOT_END): _HALF_CLOSED_REMOTE,
    (_OPEN, _SENT_END): _HALF_CLOSED_LOCAL,
    (_OPEN, _RESET): _CLOSED,
    (_HALF_CLOSED_REMOTE, _SENT_END): _CLOSED,
    (_HALF_CLOSED_REMOTE, _RESET): _CLOSED,
    # Left at once: what the client would still send is not wanted, so the stream is reset.
    (_HALF_CLOSED_LOCAL, _RESET): _CLOSED,
    (_CLOSED, _RESET): _CLOSED,
}
# The table as an array: `_NEXT[state << 2 | event]`.
_INVALID = 255
_NEXT: Final = bytes(_TRANSITIONS.get((at >> 2, at & 3), _INVALID) for at in range(20))

# How the body of a request is handled.
_COLLECT, _STREAM, _DISCARD = 0, 1, 2

# As C numbers, because every frame passes them.
_DATA, _HEADERS, _WINDOW_UPDATE, _CONTINUATION = DATA, HEADERS, WINDOW_UPDATE, CONTINUATION
_END_HEADERS, _END_STREAM, _SIZE_MAX = END_HEADERS, END_STREAM, FRAME_SIZE_MAX

_TURN_SIZE = 262_144  # bytes of replies that one `data_to_send` returns
_HEAD_SIZE = 128  # what the head of a reply counts in `unsent_size`, about its size
_WINDOW_DEFAULT: Final = 65_535
_OVERLOADED_RETRY_MS: Final = 1_000
_CONTINUE: Final = b"\x08\x03100"
_KEEP_ALIVE_PING: Final = b"corvo-up"
_DRAIN_PING: Final = b"corvo-go"


class Stream:
    """One request and its reply."""

    def __init__(
        self,
        stream_id: cython.uint,
        request: Request,
        send_window: cython.longlong,
        receive_window: cython.Py_ssize_t,
    ) -> None:
        self.id = stream_id
        self.request = request
        self.state = _IDLE
        # Receiving: flow control.
        self.receive_window = receive_window  # bytes that the peer may still send
        self.consumed = 0  # bytes received for which no WINDOW_UPDATE was sent yet
        self.tiny_charge = 0  # taken from the connection's budget for tiny DATA frames
        # Receiving: the body.
        self.body_mode = _COLLECT
        self.body: Any = None  # a bytearray while it is collected
        self.expected = -1  # content-length, -1 = not given
        self.received = 0
        self.held = 0  # bytes of the body that count in `H1Context.bodies_size`
        self.handed_over = False  # streamed bodies: in `_ready`, or not taken since
        self.started_ns = 0
        self.read_ns = 0  # last DATA
        # Sending.
        self.send_window = send_window
        self.head_sent = False
        self.sent = 0  # bytes of the reply body, or of its first piece
        self.drained = False  # a streamed reply with nothing to send now; not in the ring
        self.parked_ns = 0  # since when the windows block it, 0 = they do not
        self.urgent = False  # blocked for so long that small DATA frames are sent, too

    def advance(self, event: cython.int) -> None:
        """Change the state as `_TRANSITIONS` says."""
        state: cython.int = _NEXT[self.state << 2 | event]
        assert state != _INVALID, f"event {event} in state {self.state}"
        self.state = state


class H2Conn(HttpConn):
    """One HTTP/2 connection without its socket."""

    def __init__(
        self, context: H1Context, peer: str = "", on_output: Callable[[], None] | None = None
    ) -> None:
        HttpConn.__init__(self, context, peer, on_output)
        http2 = self._limits = context.http2
        now_ns = self._idle_ns
        # Connection.
        self._phase = _AWAIT_PREFACE
        self._opened_ns = now_ns
        self._read_ns = now_ns  # last input
        # Input.
        self._reader = FrameReader()
        self._rest = b""  # bytes not read yet
        self._more = False  # `_rest` may hold a whole frame
        self._ended = False  # the peer has closed its side
        self._frames_max = http2.frames_per_turn
        self._ready: list[Request] = []  # requests for the caller of `feed`
        # The header block being read.
        self._decoder = Decoder(context.head_size_max, http2.fields_size_fatal)
        self._block: list[bytes] = []
        self._block_size = 0
        self._block_empty = 0  # empty CONTINUATION frames
        self._block_stream = 0  # its stream, 0 = no block is being read
        self._block_ends_stream = False
        self._block_ns = 0  # when it began
        # Streams.
        self._streams: dict[int, Stream] = {}  # all but idle and closed ones
        self._streams_max = http2.streams_max
        self._last_id = 0  # highest stream that the peer has opened
        self._accepts_max = WINDOW_MAX  # highest stream that is served
        self._late: dict[int, None] = {}  # closed by us; frames of them may be in flight
        # Receiving bodies.
        self._receive_window = http2.window_size
        self._receive_window_max = http2.window_size
        self._stream_window = http2.stream_window_size
        self._consumed = 0  # bytes received for which no WINDOW_UPDATE was sent yet
        self._receiving: dict[int, Stream] = {}  # streams whose bodies are collected
        self._continues: list[Stream] = []  # streams that wait for 100 Continue
        # Sending.
        self._heads = ReplyHeads(context)
        self._control: list[bytes] = []
        self._control_size = 0
        self._control_max = http2.control_queue_max
        self._ring: deque[Stream] = deque()  # streams with something to send
        self._parked: dict[int, Stream] = {}  # streams that the windows block
        self._announced = False  # `on_output` was called since the last `data_to_send`
        self._send_window = _WINDOW_DEFAULT
        self._initial_window = _WINDOW_DEFAULT  # of new streams
        self._small_data = http2.small_data
        # Due from the peer, by when: 0 = nothing.
        self._settings_due_ns = now_ns + http2.settings_wait_ns
        self._ping_due_ns = 0
        self._leave_due_ns = 0
        # Budgets.
        self._resets = TokenBucket(http2.resets_burst, http2.resets_rate, now_ns)
        self._own_resets = TokenBucket(http2.own_resets_burst, http2.own_resets_rate, now_ns)
        self._own_resets_left = http2.own_resets_max
        self._settings = TokenBucket(http2.settings_burst, http2.settings_rate, now_ns)
        self._pings = TokenBucket(http2.pings_burst, http2.pings_rate, now_ns)
        self._pinged_ns = 0
        self._strikes = 0  # pings in quick succession without a stream
        self._priorities = TokenBucket(http2.priorities_burst, 0, now_ns)
        self._priorities_per_stream = http2.priorities_per_stream
        self._updates = TokenBucket(http2.updates_burst, 0, now_ns)
        self._updates_earned = 0  # DATA frames sent since the last WINDOW_UPDATE
        self._slips = TokenBucket(http2.slips_burst, http2.slips_rate, now_ns)
        self._empty_left = http2.empty_data_max
        self._tiny_left = http2.tiny_data_budget
        self._tiny_data = http2.tiny_data
        self._push(_first_frames(context))

    # The interface of the server.

    @property
    def has_input(self) -> bool:
        """Whether there is input that a further `feed` may turn into requests."""
        return self._more

    def is_holding(self) -> bool:
        """Whether the peer should not be read from for now."""
        return self._more

    @property
    def paused(self) -> bool:
        """Always False: unread replies hold up requests, not frames."""
        return False

    @property
    def idle(self) -> bool:
        """Whether no request is being read or answered."""
        return not self._streams

    def in_flight(self) -> int:
        """The number of requests whose response is not complete."""
        return len(self._streams)

    def adopt(self, request: Request, settings: bytes) -> None:
        """Continue an HTTP/1.1 request that offered an upgrade, as stream 1.

        `settings` is the payload of its header HTTP2-Settings. To be called before the first
        `feed`, which returns the request.
        """
        request.conn = self
        request._stream_id = self._last_id = 1
        stream = Stream(1, request, self._initial_window, self._stream_window)
        stream.advance(_GOT_HEADERS)
        stream.advance(_GOT_END)
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

    def feed(self, data: bytes) -> list[Request]:
        """Take input; return the requests that are complete, in order.

        A call takes a bounded number of frames and requests. If `has_input` is true afterwards,
        the caller gives other connections a turn and then calls again without data.
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
            if self._phase == _AWAIT_PREFACE:
                pos = self._read_preface(data)
            while (
                frames < self._frames_max and len(ready) < requests_max and self._phase != _STOPPED
            ):
                if self._phase == _AWAIT_PREFACE or not reader.read(data, pos):
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

    def check_time(self, now_ns: cython.longlong) -> None:
        """Reset or close whatever exceeds its time; to be called every now and then."""
        if self.want_close:
            return
        try:
            self._check_parked(now_ns)
            if self._phase == _AWAIT_PREFACE or self._phase == _AWAIT_SETTINGS:
                if now_ns - self._opened_ns > self.context.head_wait_ns:
                    self.context.abuse_counters.count("head_time")
                    self._close()
            elif self._phase == _RUNNING:
                self._check_bodies(now_ns)
                self._check_peer(now_ns)
        except ConnectionFault as fault:
            self._give_up(fault)

    def drain(self) -> None:
        """Answer the requests that are in flight, also those on the wire, then close.

        The first GOAWAY tells the peer to stop opening streams. All that the peer sent before it
        read that has arrived when it acknowledges the PING that follows.
        """
        if self._phase == _AWAIT_PREFACE:
            self._close()
        elif self._phase != _STOPPED and not self._leave_due_ns:
            self._leave_due_ns = self.context.monotonic() + self._limits.leave_wait_ns
            self._push(goaway_frame(WINDOW_MAX, NO_ERROR, "") + frame(PING, 0, 0, _DRAIN_PING))

    def eof(self) -> None:
        """The peer sends no more: answer what is in flight, cancel requests that only wait."""
        self._ended = True
        if not self._more:
            self._finish_input()

    def closed(self) -> None:
        """The connection is gone: forget all streams and abandon their requests."""
        self._close()
        self.on_output = None
        self._forget_all()

    # Reading frames.

    def _read_preface(self, data: bytes) -> cython.Py_ssize_t:
        size: cython.Py_ssize_t = min(len(data), len(PREFACE))
        if data[:size] != PREFACE[:size]:
            raise ConnectionFault(PROTOCOL_ERROR, "this is not HTTP/2")
        if size < len(PREFACE):
            return 0
        self._phase = _AWAIT_SETTINGS
        return size

    def _take_frame(self, data: bytes) -> None:
        reader: FrameReader = self._reader
        kind: cython.int = reader.type
        if self._phase == _AWAIT_SETTINGS:
            if kind != SETTINGS or reader.flags & ACK:
                raise ConnectionFault(PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._phase = _RUNNING
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
            # It forbids streams that we open, of which there are none; its own are answered.
            self._slip()
        elif kind == PUSH_PROMISE:
            raise ConnectionFault(PROTOCOL_ERROR, "a client that pushes")
        else:
            self._slip()

    # Header blocks.

    def _take_headers(self, data: bytes) -> None:
        reader: FrameReader = self._reader
        stream: Stream | None = self._streams.get(reader.stream_id)
        if stream is not None:
            if stream.state != _OPEN:
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

    def _take_continuation(self, data: bytes) -> None:
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

    def _end_block(self, stream_id: cython.uint, block: bytes) -> None:
        """A whole header block: of a request, of its trailers, or of a stream that we closed."""
        fields = self._decoder.decode(block)
        stream: Stream | None = self._streams.get(stream_id)
        if stream is not None:
            malformed = None if fields is None else check_trailers(fields)
            if malformed is None:
                stream.advance(_GOT_END)
                malformed = self._complete(stream)
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

    def _open(self, stream_id: cython.uint, fields: list[Field] | None) -> None:
        """Open a stream with a new request."""
        request = Request(self)
        request._stream_id = stream_id
        stream = Stream(stream_id, request, self._initial_window, self._stream_window)
        stream.advance(_GOT_HEADERS)
        if self._block_ends_stream:
            stream.advance(_GOT_END)
        stream.started_ns = stream.read_ns = request.arrived_ns = self._read_ns
        self._streams[stream_id] = stream
        try:
            malformed = read_head(request, fields)
            if malformed is None:
                malformed = self._begin_body(stream)
        except CorvoError as error:
            self._refuse(stream, error, reason_of(error))
            return
        if malformed is not None:
            self._reset(stream, PROTOCOL_ERROR, "malformed")

    # Bodies of requests.

    def _begin_body(self, stream: Stream) -> str | None:
        """Prepare for the body that the head announces, or complete a request without one."""
        request = stream.request
        length = request.content_length
        if length is not None:
            if not length.isdigit():
                return "a content-length that is no number"
            stream.expected = int(length) if len(length) <= 18 else WINDOW_MAX
        if stream.state != _OPEN:
            return self._complete(stream)
        takes_pieces = self.context.takes_pieces
        if takes_pieces is not None and takes_pieces(request):
            stream.body_mode = _STREAM
            stream.body = bytearray()
            request.receiving = True
            self._hand_over(stream)
        elif stream.expected > self.context.body_size_max:
            raise self._body_too_large()
        else:
            self._receiving[stream.id] = stream
        if request.expect is not None and request.expect.lower() == b"100-continue":
            self._continues.append(stream)
        return None

    def _take_data(self, data: bytes) -> None:
        reader: FrameReader = self._reader
        size: cython.Py_ssize_t = reader.size
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(
                FLOW_CONTROL_ERROR, "data beyond the connection's window", "windows"
            )
        self._consumed += size
        if self._consumed * 2 >= self._receive_window_max:
            self._push(u32_frame(WINDOW_UPDATE, 0, self._consumed))
            self._receive_window += self._consumed
            self._consumed = 0
        stream: Stream | None = self._streams.get(reader.stream_id)
        if stream is None:
            self._take_late(reader.stream_id)
            return
        if stream.state != _OPEN:
            raise after_the_end()
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "data beyond the stream's window", "windows")
        if not reader.ends_stream:
            self._charge(stream, reader.end - reader.start)
        if stream.body_mode == _DISCARD:
            if reader.ends_stream:
                stream.advance(_GOT_END)
            return
        stream.read_ns = self._read_ns
        malformed = self._add_data(stream, data)
        if malformed is None and reader.ends_stream and stream.state == _OPEN:
            stream.advance(_GOT_END)
            malformed = self._complete(stream)
        if malformed is not None:
            self._reset(stream, PROTOCOL_ERROR, "malformed")

    def _charge(self, stream: Stream, length: cython.Py_ssize_t) -> None:
        """Charge a frame with little or no data; given back when the request is complete."""
        stream.consumed += self._reader.size
        if stream.body_mode == _COLLECT:
            self._open_window(stream)
        if length == 0:
            self._empty_left -= 1
            if self._empty_left < 0:
                raise too_many("empty_frames")
        elif length < self._tiny_data:
            stream.tiny_charge += self._tiny_data - length
            self._tiny_left -= self._tiny_data - length
            if self._tiny_left < 0:
                raise too_many("tiny_frames")

    def _open_window(self, stream: Stream) -> None:
        """Send a WINDOW_UPDATE for a stream once half of its window is used."""
        if stream.consumed * 2 >= self._stream_window:
            self._push(u32_frame(WINDOW_UPDATE, stream.id, stream.consumed))
            stream.receive_window += stream.consumed
            stream.consumed = 0

    def _add_data(self, stream: Stream, data: bytes) -> str | None:
        """Add the DATA frame just read to a body; returns the reason if that is malformed."""
        reader: FrameReader = self._reader
        context = self.context
        length: cython.Py_ssize_t = reader.end - reader.start
        stream.received += length
        if stream.expected >= 0 and stream.received > stream.expected:
            return "more data than content-length says"
        full: cython.bint = context.bodies_size + length > context.bodies_in_flight_size_max
        if stream.body_mode == _STREAM:
            if full:
                self._reset(stream, ENHANCE_YOUR_CALM, "bodies_in_flight")
                return None
            self._hand_over(stream)
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

    def _complete(self, stream: Stream) -> str | None:
        """The peer has ended the stream: hand its request over, or return why it is malformed."""
        if stream.body_mode == _DISCARD:
            return None
        if stream.expected >= 0 and stream.received != stream.expected:
            return "less data than content-length says"
        request = stream.request
        if stream.body_mode == _STREAM:
            request.receiving = False
            self._hand_over(stream)
            return None
        if stream.body is not None:
            request.body = bytes(stream.body)
            stream.body = None
        if self._receiving:
            self._receiving.pop(stream.id, None)
        request._body_size = stream.held
        stream.held = 0
        self._tiny_left += stream.tiny_charge
        stream.tiny_charge = 0
        request.arrived_ns = self._read_ns
        self._ready.append(request)
        return None

    def _hand_over(self, stream: Stream) -> None:
        """Return a request with a streamed body from `feed`: it is new, or has more of a body."""
        if not stream.handed_over:
            stream.handed_over = True
            self._ready.append(stream.request)

    def _take_body(self, request: Request) -> bytes:
        stream: Stream | None = self._streams.get(request._stream_id)
        if stream is None or stream.body_mode != _STREAM:
            return b""
        stream.handed_over = False
        self._tiny_left += stream.tiny_charge
        stream.tiny_charge = 0
        data = bytes(stream.body)
        stream.body = bytearray()
        if stream.state == _OPEN:
            try:
                self._open_window(stream)
            except ConnectionFault as fault:
                self._give_up(fault)
        return data

    def _keep_body(self, request: Request, size: cython.Py_ssize_t) -> None:
        stream: Stream | None = self._streams.get(request._stream_id)
        if stream is not None and stream.body_mode == _STREAM:
            left: cython.Py_ssize_t = size + len(stream.body)
            self.context.bodies_size += left - stream.held
            stream.held = left

    def _send_continues(self) -> None:
        """Send 100 Continue for bodies of which nothing has arrived yet."""
        stream: Stream
        for stream in self._continues:
            if stream.state == _OPEN and stream.body_mode != _DISCARD and not stream.received:
                self._push(frame(HEADERS, END_HEADERS, stream.id, _CONTINUE))
        self._continues = []

    def _refuse(self, stream: Stream, error: CorvoError, reason: str) -> None:
        """Answer an incomplete request with an error, and discard the rest of it."""
        self.context.abuse_counters.count(reason)
        self._drop_body(stream)
        stream.body_mode = _DISCARD
        reply_error(stream.request, error)

    def _drop_body(self, stream: Stream) -> None:
        self._receiving.pop(stream.id, None)
        self.context.bodies_size -= stream.held
        stream.held = 0
        stream.body = None
        self._tiny_left += stream.tiny_charge
        stream.tiny_charge = 0

    def _body_too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the request body is over {self.context.body_size_max} bytes")

    # Control frames.

    def _take_update(self) -> None:
        reader: FrameReader = self._reader
        if self._updates_earned:
            self._updates.add(self._updates_earned * self._limits.updates_per_data)
            self._updates_earned = 0
        if not self._updates.take(self._read_ns):
            raise too_many("window_updates")
        if reader.stream_id == 0:
            self._send_window += reader.value
            if self._send_window > WINDOW_MAX:
                raise window_too_large()
            if self._parked:
                self._unpark_all()
            return
        stream: Stream | None = self._streams.get(reader.stream_id)
        if stream is not None:
            stream.send_window += reader.value
            if stream.send_window > WINDOW_MAX:
                self._reset(stream, FLOW_CONTROL_ERROR, "windows")
            elif stream.send_window > 0:
                self._unpark(stream)
        elif reader.stream_id > self._last_id:
            raise idle_stream()

    def _take_reset(self) -> None:
        reader: FrameReader = self._reader
        if not self._resets.take(self._read_ns):
            raise too_many("resets")
        stream: Stream | None = self._streams.get(reader.stream_id)
        if stream is not None:
            stream.advance(_RESET)
            self._forget(stream)
        elif reader.stream_id > self._last_id:
            raise idle_stream()
        else:
            self._late.pop(reader.stream_id, None)

    def _take_ping(self, data: bytes) -> None:
        reader: FrameReader = self._reader
        payload = data[reader.start : reader.end]
        if reader.flags & ACK:
            if payload == _DRAIN_PING and self._leave_due_ns:
                self._leave()
            elif payload != _KEEP_ALIVE_PING or not self._ping_due_ns:
                self._slip()
            self._ping_due_ns = 0
            return
        limits = self._limits
        if not self._pings.take(self._read_ns):
            raise too_many("pings")
        if not self._streams:
            if self._pinged_ns and self._read_ns - self._pinged_ns < limits.ping_spacing_ns:
                self._strikes += 1
                if self._strikes > limits.ping_strikes:
                    raise too_many("pings")
            self._pinged_ns = self._read_ns
        self._push(frame(PING, ACK, 0, payload))

    def _take_settings(self, data: bytes) -> None:
        reader: FrameReader = self._reader
        if reader.flags & ACK:
            if not self._settings_due_ns:
                self._slip()
            self._settings_due_ns = 0
            return
        if not self._settings.take(self._read_ns):
            raise too_many("settings")
        if reader.size > self._limits.settings_entries_max * 6:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many settings in one frame", "settings")
        self._apply_settings(data, reader.start, reader.end)
        self._push(frame(SETTINGS, ACK, 0, b""))

    def _apply_settings(
        self, data: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> None:
        for at in range(start, end, 6):
            key = int.from_bytes(data[at : at + 2], "big")
            value = int.from_bytes(data[at + 2 : at + 6], "big")
            if key == INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif key == HEADER_TABLE_SIZE:
                self._heads.set_table_size(value)
            elif key == ENABLE_PUSH:
                if value > 1:
                    raise ConnectionFault(PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
            elif key == MAX_FRAME_SIZE and not FRAME_SIZE_MAX <= value < 1 << 24:
                raise ConnectionFault(PROTOCOL_ERROR, "a MAX_FRAME_SIZE that cannot be")

    def _resize_windows(self, size: cython.longlong) -> None:
        """Apply SETTINGS_INITIAL_WINDOW_SIZE; windows of existing streams change by as much."""
        if size > WINDOW_MAX:
            raise window_too_large()
        stream: Stream
        for stream in self._streams.values():
            stream.send_window += size - self._initial_window
            if stream.send_window > WINDOW_MAX:
                raise window_too_large()
        self._initial_window = size
        self._unpark_all()

    def _slip(self) -> None:
        """Charge an oddity that is harmless as long as it is rare."""
        if not self._slips.take(self._read_ns):
            raise too_many("slips")

    # Sending.

    def data_to_send(self) -> bytes:
        """The output that may be sent now; a reply counts as delivered with its last byte."""
        self._announced = False
        pieces = self._control
        if pieces:
            self._control = []
            self.unsent_size -= self._control_size
            self._control_size = 0
        else:
            pieces = []
        room: cython.Py_ssize_t = _TURN_SIZE
        emptied: list[Request] = []
        while self._ring and room > 0:
            stream: Stream = self._ring.popleft()
            if stream.state == _CLOSED:
                continue  # reset while it was in the ring
            if stream.request._pieces is None:
                room -= self._send_turn(stream, pieces)
            else:
                room -= self._send_pieces(stream, pieces)
                if stream.drained:
                    emptied.append(stream.request)
        for request in emptied:
            if request.on_writable is not None:
                request.on_writable(request)
        if self._ring:
            self._announce()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _announce(self) -> None:
        """Tell the server once that there is output."""
        if not self._announced:
            self._announced = True
            if self.on_output is not None:
                self.on_output()

    def _push(self, frame: bytes) -> None:
        """Send a control frame, ahead of all replies."""
        if len(self._control) >= self._control_max:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "answers that are not read", "control_frames")
        self._control.append(frame)
        self._control_size += len(frame)
        self.unsent_size += len(frame)
        self._announce()

    def _answered(self, request: Request) -> None:
        stream: Stream = self._streams[request._stream_id]
        self.context.bodies_size -= request._body_size
        request._body_size = 0
        self.unsent_size += _HEAD_SIZE + len(request._reply_body)
        self._ring.append(stream)
        self._announce()

    def _piece_added(self, request: Request, size: cython.Py_ssize_t) -> None:
        self.unsent_size += size
        self._wake(request)

    def _pieces_end(self, request: Request) -> None:
        self._wake(request)

    def _wake(self, request: Request) -> None:
        """Continue a streamed reply that has more to send, or has ended."""
        stream: Stream = self._streams[request._stream_id]
        if stream.drained:
            stream.drained = False
            self._ring.append(stream)
            self._announce()

    def _send_turn(self, stream: Stream, pieces: list[bytes]) -> cython.Py_ssize_t:
        """Append the next frame of a reply, after its head if it is the first; returns the size."""
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
        size: cython.Py_ssize_t = min(left, _SIZE_MAX, stream.send_window, self._send_window)
        if size <= 0 or (size < left and size < self._small_data and not stream.urgent):
            # A small frame costs more than it carries; the next update may allow a larger one.
            self._park(stream)
            return taken
        pieces.append(frame_head(size, _DATA, _END_STREAM if size == left else 0, stream.id))
        pieces.append(body if size == len(body) else body[stream.sent : stream.sent + size])
        stream.sent += size
        self._count_sent(stream, size)
        if size == left:
            self._finish(stream, pieces)
        else:
            self._ring.append(stream)
        return taken + size

    def _send_pieces(self, stream: Stream, pieces: list[bytes]) -> cython.Py_ssize_t:
        """Append the next frame of a streamed reply; returns the size."""
        request = stream.request
        taken: cython.Py_ssize_t = 0
        if not stream.head_sent:
            taken = self._put_head(stream, pieces, request.head_only)
            if request.head_only:
                self._finish(stream, pieces)
                return taken
        left: cython.Py_ssize_t = request.unsent_size
        if left == 0 and request.streaming:
            stream.drained = True
            return taken
        size: cython.Py_ssize_t = min(left, _SIZE_MAX, stream.send_window, self._send_window)
        if left and (size <= 0 or (size < left and size < self._small_data and not stream.urgent)):
            self._park(stream)
            return taken
        ends: cython.bint = size == left and not request.streaming
        if left or not request._trailers:
            last: cython.bint = ends and not request._trailers
            pieces.append(frame_head(size, _DATA, _END_STREAM if last else 0, stream.id))
            pieces.append(self._take_pieces(stream, size))
        if ends and request._trailers:
            block = self._heads.render_trailers(request._trailers)
            flags: cython.int = _END_HEADERS | _END_STREAM
            pieces.append(frame_head(len(block), _HEADERS, flags, stream.id))
            pieces.append(block)
        self._count_sent(stream, size)
        if ends:
            self._finish(stream, pieces)
        else:
            self._ring.append(stream)
        return taken + size

    def _take_pieces(self, stream: Stream, size: cython.Py_ssize_t) -> bytes:
        """Remove bytes from the front of a streamed reply, and return them."""
        request = stream.request
        waiting: list[bytes] = request._pieces
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

    def _put_head(
        self, stream: Stream, pieces: list[bytes], ends: cython.bint
    ) -> cython.Py_ssize_t:
        """Append the HEADERS frame of a reply; returns the size."""
        block = self._heads.render(stream.request)
        flags: cython.int = _END_HEADERS | _END_STREAM if ends else _END_HEADERS
        pieces.append(frame_head(len(block), _HEADERS, flags, stream.id))
        pieces.append(block)
        stream.head_sent = True
        self.unsent_size -= _HEAD_SIZE
        return len(block)

    def _count_sent(self, stream: Stream, size: cython.Py_ssize_t) -> None:
        stream.send_window -= size
        self._send_window -= size
        self.unsent_size -= size
        self._updates_earned += 1
        stream.parked_ns = 0
        stream.urgent = False

    def _park(self, stream: Stream) -> None:
        if stream.parked_ns == 0:
            stream.parked_ns = self.context.monotonic()
        self._parked[stream.id] = stream

    def _unpark(self, stream: Stream) -> None:
        """Let a parked stream send again."""
        if self._parked.pop(stream.id, None) is not None:
            self._ring.append(stream)
            self._announce()

    def _unpark_all(self) -> None:
        """The window of the connection, or those of all streams, have changed."""
        stream: Stream
        for stream in list(self._parked.values()):
            if stream.send_window > 0:
                self._unpark(stream)

    # Ending streams.

    def _finish(self, stream: Stream, pieces: list[bytes]) -> None:
        """The last frame of a reply is in `pieces`: close the stream."""
        request = stream.request
        request.delivered = True
        request.on_abandoned = None
        del self._streams[stream.id]
        self._idle_ns = request._replied_ns
        if request._pieces is not None:
            self._idle_ns = self.context.monotonic()
        stream.advance(_SENT_END)
        if stream.state == _HALF_CLOSED_LOCAL:
            # The rest of the request is not wanted.
            pieces.append(u32_frame(RST_STREAM, stream.id, NO_ERROR))
            stream.advance(_RESET)
            self._remember(stream.id)
        self._release(stream)

    def _forget(self, stream: Stream) -> None:
        """Drop a stream whatever it is doing, and abandon its request."""
        request = stream.request
        if stream.state == _OPEN:
            self._remember(stream.id)
        stream.advance(_RESET)
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
        self._release(stream)
        request._abandon()

    def _release(self, stream: Stream) -> None:
        """Free what a closed stream holds; close a connection that only waited for it."""
        self._drop_body(stream)
        stream.request.receiving = False
        if not self._streams and (self._ended or self._accepts_max != WINDOW_MAX):
            self._close()

    def _take_late(self, stream_id: cython.longlong) -> None:
        """A frame of a stream that is not there: legal only if we closed it."""
        if stream_id > self._last_id:
            raise idle_stream()
        if stream_id not in self._late:
            raise after_the_end()
        self._slip()

    def _remember(self, stream_id: cython.longlong) -> None:
        """Accept frames of a closed stream that the peer sent before it knew."""
        self._late[stream_id] = None
        if len(self._late) > self._limits.late_max:
            del self._late[next(iter(self._late))]

    def _reset(self, stream: Stream, code: cython.int, reason: str) -> None:
        self._forget(stream)
        self._send_reset(stream.id, code, reason)

    def _send_reset(self, stream_id: cython.longlong, code: cython.int, reason: str) -> None:
        """Reset a stream for a fault of the peer, which must not be frequent."""
        self.context.abuse_counters.count(reason)
        self._own_resets_left -= 1
        if self._own_resets_left < 0 or not self._own_resets.take(self._read_ns):
            raise too_many("faulty_requests")
        self._remember(stream_id)
        self._push(u32_frame(RST_STREAM, stream_id, code))

    # Time.

    def _check_parked(self, now_ns: cython.longlong) -> None:
        limits = self._limits
        stream: Stream
        for stream in list(self._parked.values()):
            waited_ns: cython.longlong = now_ns - stream.parked_ns
            if waited_ns > self.context.write_stall_ns:
                self._reset(stream, CANCEL, "unread_replies")
            elif (
                waited_ns > limits.small_data_wait_ns
                and stream.send_window > 0
                and self._send_window > 0
            ):
                stream.urgent = True
                self._unpark(stream)

    def _check_bodies(self, now_ns: cython.longlong) -> None:
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

    def _check_peer(self, now_ns: cython.longlong) -> None:
        """Check that the peer is alive, does what is due, and is not idle for too long."""
        limits = self._limits
        if self._block_stream and now_ns - self._block_ns > self.context.head_wait_ns:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "a slow header block", "header_block")
        if self._settings_due_ns and now_ns > self._settings_due_ns:
            raise ConnectionFault(SETTINGS_TIMEOUT, "the settings were not acknowledged", "silence")
        if self._leave_due_ns and now_ns > self._leave_due_ns:
            self._leave()
        elif self._ping_due_ns:
            if now_ns > self._ping_due_ns:
                raise ConnectionFault(NO_ERROR, "the peer does not answer", "silence")
        elif not self._streams:
            if now_ns - self._idle_ns > self.context.keep_alive_idle_ns:
                self._leave()
        elif now_ns - self._read_ns > limits.ping_idle_ns:
            self._ping_due_ns = now_ns + limits.ping_wait_ns
            self._push(frame(PING, 0, 0, _KEEP_ALIVE_PING))

    # Closing.

    def _finish_input(self) -> None:
        """The input has ended: drop incomplete and waiting requests; close after the last reply.

        No WINDOW_UPDATE can arrive any more, so a reply that does not fit into the windows is cut
        off when its time is up.
        """
        self._phase = _STOPPED
        stream: Stream
        for stream in list(self._streams.values()):
            request = stream.request
            waits: cython.bint = not request.replied or request.streaming
            if stream.state == _OPEN or (request.on_abandoned is not None and waits):
                self._forget(stream)
        if not self._streams:
            self._close()

    def _leave(self) -> None:
        """Serve no new streams; close after the last one."""
        self._leave_due_ns = 0
        if self._accepts_max == WINDOW_MAX:
            self._accepts_max = self._last_id
            self._push(goaway_frame(self._last_id, NO_ERROR, ""))
        if not self._streams:
            self._close()

    def _give_up(self, fault: ConnectionFault) -> None:
        """Drop all streams and close with a GOAWAY that gives the reason."""
        self.context.abuse_counters.count(fault.reason)
        self._close()
        self._forget_all()
        last = goaway_frame(self._last_id, fault.code, fault.text)
        self._control.append(last)
        self._control_size += len(last)
        self.unsent_size += len(last)
        self._announce()

    def _close(self) -> None:
        self._phase = _STOPPED
        self._rest = b""
        self._more = False
        self.want_close = True
        self._announce()

    def _forget_all(self) -> None:
        stream: Stream
        for stream in list(self._streams.values()):
            self._forget(stream)


def _first_frames(context: H1Context) -> bytes:
    """The SETTINGS of a server, and the window of the connection."""
    http2 = context.http2
    settings = (
        (HEADER_TABLE_SIZE, TABLE_SIZE_MAX),
        (MAX_CONCURRENT_STREAMS, http2.streams_max),
        (INITIAL_WINDOW_SIZE, http2.stream_window_size),
        (MAX_FRAME_SIZE, FRAME_SIZE_MAX),
        (MAX_HEADER_LIST_SIZE, context.head_size_max),
        (NO_RFC7540_PRIORITIES, 1),
    )
    update = u32_frame(WINDOW_UPDATE, 0, http2.window_size - _WINDOW_DEFAULT)
    return settings_frame(settings) + update

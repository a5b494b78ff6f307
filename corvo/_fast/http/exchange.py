"""Replies of one connection: made in any order, released in the order of the requests.

A `Request` also holds its reply. The requests of a connection are linked in the order of arrival,
and finished replies are taken from the front of the list only. Released bytes wait as output until
the shell takes them, all in one piece.

A reply can also be streamed: `start` fixes its head, each `send` adds to the body, `end` ends it.
It keeps its position like any other, and pieces sent before its turn wait. Pieces stay with the
request until the shell takes output, so that `unsent_size` shows the sender how far the peer lags;
then `on_writable` is called. If the peer disconnects first, `on_abandoned` is called.

Over HTTP/2 the body of a request can be streamed too: while `receiving`, `on_body` is called when
more of it, or its end, has arrived, and `take_body` returns the part that has arrived.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy

from corvo._fast.http.abuse_counters import AbuseCounters
from corvo._fast.http.monotonic import MonotonicClock
from corvo._fast.metrics import RouteMetrics
from corvo.errors import CorvoError, honest

_REASONS: Final = {
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "No Content",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    499: "Client Closed Request",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
    507: "Insufficient Storage",
}
_STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {reason}\r\n".encode() for status, reason in _REASONS.items()
}
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_JSON: Final = b"application/json"
_JSON_LINE: Final = b"Content-Type: application/json\r\n"
_FIELD_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FIELD_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")

# Lines with numbers below this are ready made: nearly every reply is quick, and many are short.
_READY: Final = 1000
_TIMING_LINE: Final = b"\r\nServer-Timing: proc;dur=%d"
_TIMINGS: Final = tuple(_TIMING_LINE % number for number in range(_READY))
_THOUSANDTHS: Final = tuple(b".%03d\r\n" % number for number in range(1000))
_LENGTH_LINE: Final = b"Content-Length: %d\r\n\r\n"
_JSON_LENGTHS: Final = tuple(_JSON_LINE + _LENGTH_LINE % number for number in range(_READY))
# The end of a request id; what is in front changes with every 4096th only.
_ID_ENDS: Final = tuple(b"%03x" % number for number in range(4096))

_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class UnsafeHeader(ValueError):
    """A header line that could split the response."""


def header_line(name: str, value: str) -> bytes:
    """One response header line; UnsafeHeader if the value could split the response.

    Visible ASCII, spaces and tabs only: whatever else a job id or a queue name may hold has to be
    percent-encoded by the caller.
    """
    if not _FIELD_NAME.fullmatch(name):
        raise UnsafeHeader(f"{name!r} is not a header name")
    if not _FIELD_VALUE.fullmatch(value):
        raise UnsafeHeader(f"header {name}: {value!r} holds characters that no header may")
    return f"{name}: {value}\r\n".encode("ascii")


def reply_error(request: Request, error: CorvoError) -> None:
    """Answer with the error as JSON: text, code and its extra fields.

    `retry_after_ms` and `allow` become headers too. Retry-After counts whole seconds, so it is
    rounded up.
    """
    error = honest(error, request.unsure)
    headers = b""
    retry_after_ms = error.fields.get("retry_after_ms")
    if retry_after_ms is not None:
        headers = b"Retry-After: %d\r\n" % ((retry_after_ms + 999) // 1000)
    allow = error.fields.get("allow")
    if allow is not None:
        headers += header_line("Allow", allow)
    body = {"error": error.message, "code": error.code, **error.fields}
    request.reply(error.status, _encode_json(body).encode(), headers)


def join(a: bytes, b: bytes, c: bytes, d: bytes, e: bytes, f: bytes, g: bytes) -> bytes:
    """Seven pieces in a row; a list of them to join would cost more than the copy."""
    if cython.compiled:
        size: cython.Py_ssize_t = len(a) + len(b) + len(c) + len(d) + len(e) + len(f) + len(g)
        joined: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        p = cython.cast(cython.p_uchar, PyBytes_AS_STRING(joined))
        p = _put(_put(_put(_put(_put(_put(_put(p, a), b), c), d), e), f), g)
        return joined
    else:
        return b"".join((a, b, c, d, e, f, g))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(p: cython.p_uchar, piece: bytes) -> cython.p_uchar:
    memcpy(p, PyBytes_AS_STRING(piece), len(piece))
    return p + len(piece)


class H1Context:
    """State that all connections of one server share: limits, clock, body budget, request ids."""

    def __init__(
        self,
        limits: Any,
        monotonic: MonotonicClock | Callable[[], int],
        date: Callable[[], bytes],
        request_id_prefix: bytes,
    ) -> None:
        self.head_size_max = limits.head_size_max
        self.head_fields_max = limits.head_fields_max
        self.target_size_max = limits.target_size_max
        self.body_size_max = limits.body_size_max
        self.bodies_in_flight_size_max = limits.bodies_in_flight_size_max
        self.trailer_fields_max = limits.trailer_fields_max
        self.trailer_size_max = limits.trailer_size_max
        self.chunks_max = limits.chunks_max
        self.chunk_mean_min = limits.chunk_mean_min
        self.chunk_mean_after = limits.chunk_mean_after
        self.feed_slice = limits.feed_slice
        self.pipeline_max = limits.pipeline_max
        self.pipeline_resume = limits.pipeline_resume
        self.unsent_size_max = limits.unsent_size_max
        self.head_wait_ns = limits.head_wait_ns
        self.body_idle_ns = limits.body_idle_ns
        self.body_rate_min = limits.body_rate_min
        self.keep_alive_idle_ns = limits.keep_alive_idle_ns
        self.write_stall_ns = limits.write_stall_ns
        self.http2 = limits.http2
        self.keeps_fields = False  # every header field stays with its request
        self.takes_pieces: Callable[[Request], bool] | None = (
            None  # says of a request whether its handler takes a body in pieces
        )
        self._monotonic = (
            monotonic if isinstance(monotonic, MonotonicClock) else MonotonicClock(monotonic)
        )
        self.abuse_counters = AbuseCounters()
        self.browser_guard: Any = None  # see corvo.net.http.browser_guard; None = no checks
        self.cached: Any = None  # heads that HTTP/1.1 connections have read before
        self.bodies_size = 0
        self.index = -1
        self.draining = False
        self._date = date
        self._date_text = b""
        self._date_line = b""
        self._date_until_ns = -1
        self._index_line = b""
        self._line_index = -1
        self._starts: dict[int, bytes] = {}
        self._request_id_prefix = request_id_prefix
        self._id_start = request_id_prefix + b"0"
        self._requests = 0
        self._valid_host: bytes | None = None

    def monotonic(self) -> cython.longlong:
        """The time now, in nanoseconds."""
        return self._monotonic.elapsed_ns()

    def _take_host(self, request: Request) -> None:
        """Check the host of a request, which is well formed, and remember it."""
        if self.browser_guard is None or self.browser_guard.check_host(request):
            self._valid_host = request.host

    def _check_origin(self, request: Request) -> None:
        """Check where a request with an Origin or Sec-Fetch-Site header was made."""
        if self.browser_guard is not None:
            self.browser_guard.check_origin(request)

    def _new_request_id(self) -> bytes:
        self._requests += 1
        end: cython.int = self._requests & 4095
        if end == 0:
            self._id_start = b"%b%x" % (self._request_id_prefix, self._requests >> 12)
        return join(self._id_start, _ID_ENDS[end], b"", b"", b"", b"", b"")

    def _get_start(self, status: cython.int, now_ns: cython.longlong) -> bytes:
        """The reply up to its request id. It names the time, so it lasts for a second."""
        if now_ns >= self._date_until_ns:
            self._renew_date(now_ns)
        start = self._starts.get(status)
        if start is None:
            assert status in _STATUS_LINES, f"no reason phrase for status {status}"
            start = self._starts[status] = _STATUS_LINES[status] + self._date_line
        return start

    def _get_date(self, now_ns: cython.longlong) -> bytes:
        """The text of the Date header; the same object for a second."""
        if now_ns >= self._date_until_ns:
            self._renew_date(now_ns)
        return self._date_text

    def _renew_date(self, now_ns: cython.longlong) -> None:
        self._date_text = self._date()
        self._date_line = (
            b"Date: %b\r\nX-Content-Type-Options: nosniff\r\nX-Request-Id: " % self._date_text
        )
        self._date_until_ns = now_ns + 1_000_000_000
        self._starts = {}

    def _get_index_line(self, index: cython.longlong) -> bytes:
        """The X-Corvo-Index header; a whole batch of replies names the same index."""
        if index != self._line_index:
            self._line_index = index
            self._index_line = b"X-Corvo-Index: %d\r\n" % index if index >= 0 else b""
        return self._index_line


class Request:
    """One complete request, and its reply."""

    def __init__(self, conn: HttpConn) -> None:
        self.conn = conn
        self.peer = self.conn.peer
        self.method = "GET"
        self.path = b""
        self.query = b""
        self.body = b""
        self.params: tuple[str, ...] = ()
        self.keep_alive = True
        self._reply_body = b""
        self._reply_headers = b""
        self._reply_type = _JSON
        self._index = -1
        self._trailers = b""
        if not cython.compiled:  # fields of C begin as None, false and 0
            self._set_blank()

    def _set_blank(self) -> None:
        self.host: bytes | None = None
        self.content_type: bytes | None = None
        self.content_length: bytes | None = None
        self.authorization: bytes | None = None
        self.api_key: bytes | None = None
        self.cookie: bytes | None = None
        self.request_id: Any = None  # bytes, once the head was read
        self.idempotency_key: bytes | None = None
        self.namespace: bytes | None = None
        self.min_index: bytes | None = None
        self.client_name: bytes | None = None
        self.client_version: bytes | None = None
        self.forwarded: bytes | None = None  # another node has passed it on
        self.expect: bytes | None = None
        self.origin: bytes | None = None
        self.fetch_site: bytes | None = None  # Sec-Fetch-Site
        self.cors_headers: bytes | None = None  # lines of every reply to an allowed origin
        self.rare: dict[bytes, bytes] | None = (
            None  # header fields that few requests have, by lower-case name
        )
        self.fields: list[tuple[bytes, bytes]] | None = (
            None  # all of them, as pairs, where the context keeps them
        )
        self.head_only = False
        self.arrived_ns = 0
        self.replied = False
        self.delivered = False
        self.abandoned = False
        self.on_abandoned: Callable[[Request], None] | None = None
        self.on_writable: Callable[[Request], None] | None = None
        self.on_body: Callable[[Request], None] | None = None
        self.receiving = False  # there will be more of the body
        self.streaming = False  # started, not ended, and the peer is connected
        self.unsent_size = 0  # of the pieces
        self.context: Any = None  # the handler's own, until it answers
        self.route_metrics: RouteMetrics | None = None  # metrics of the route
        self.route: Any = None  # the row of the route table, once it is looked up
        self.caller: Any = None  # the caller that it acts for, once its route is known
        self.unsure = False  # it may have been done already, by another node
        self._next: Request | None = None
        self._stream_id = 0  # HTTP/2
        self._old_client = False
        self._codings: bytes | None = None
        self._upgrade_offered = False
        self._body_size = 0
        self._replied_ns = 0
        self._status = 0
        self._pieces: Any = None  # a list of bytes once the reply was started
        self._head_sent = False

    def reply(
        self,
        status: cython.int,
        body: bytes = b"",
        headers: bytes = b"",
        content_type: bytes = _JSON,
    ) -> None:
        """Complete the reply, exactly once; replies leave in the order of the requests.

        `headers` are lines made by `header_line`. When the connection is gone the reply is
        dropped: a handler that must undo its work then looks at `abandoned` first, or sets
        `on_abandoned`.
        """
        assert not self.replied, "a request is answered once"
        self.replied = True
        if self.abandoned:
            return
        conn = self.conn
        assert status != 204 or not body, "204 has no body"
        self._replied_ns = conn.context.monotonic()
        if self.route_metrics is not None:
            self.route_metrics.answered(status, self._replied_ns - self.arrived_ns)
        self._status = status
        self._reply_body = body
        self._reply_headers = headers if self.cors_headers is None else headers + self.cors_headers
        self._reply_type = content_type
        self._index = conn.context.index
        conn._answered(self)

    def start(self, status: int, headers: bytes = b"", content_type: bytes = _JSON) -> None:
        """Begin a reply whose body comes in pieces."""
        assert not self.replied, "a request is answered once"
        assert status != 204 and status != 304, "these have no body"
        self.replied = True
        if self.abandoned:
            return
        conn = self.conn
        self._replied_ns = conn.context.monotonic()
        if self.route_metrics is not None:
            self.route_metrics.answered(status, self._replied_ns - self.arrived_ns)
        self._status = status
        self._reply_headers = headers if self.cors_headers is None else headers + self.cors_headers
        self._reply_type = content_type
        self._index = conn.context.index
        self._pieces = []
        self.streaming = not self.head_only
        conn._answered(self)

    def send(self, data: bytes) -> None:
        """Add to the body of a reply that was started; dropped when the peer is gone."""
        if self.streaming and data:
            self._pieces.append(data)
            self.unsent_size += len(data)
            self.conn._piece_added(self, len(data))

    def end(self, trailers: bytes = b"") -> None:
        """End a reply that was started; `trailers` are lines made by `header_line`."""
        if self.streaming:
            self.streaming = False
            self._trailers = trailers
            self.conn._pieces_end(self)

    def take_body(self) -> bytes:
        """Part of the body that arrived since the last call; the peer may then send as much."""
        if self.body:
            data = self.body
            self.body = b""
            return data
        return self.conn._take_body(self)

    def keep_body(self, size: cython.Py_ssize_t) -> None:
        """Say how much of what was taken is still kept: it counts among the bodies in flight."""
        self.conn._keep_body(self, size)

    def _abandon(self) -> None:
        self.abandoned = True
        self.streaming = False
        self.on_writable = None
        self.on_body = None
        callback = self.on_abandoned
        self.on_abandoned = None
        if callback is not None:
            callback(self)

    def _render(self, close: cython.bint) -> bytes:
        """The whole reply as bytes; `close` announces that it is the last one."""
        context = self.conn.context
        took_us: cython.longlong = max(0, self._replied_ns - self.arrived_ns) // 1000
        took_ms: cython.longlong = took_us // 1000
        body = self._reply_body
        size: cython.Py_ssize_t = len(body)
        lines = context._get_index_line(self._index)
        if close:
            lines += b"Connection: close\r\n"
        elif self._old_client:
            lines += b"Connection: keep-alive\r\n"
        if self._reply_headers:
            lines += self._reply_headers
        if self._pieces is not None:
            length = b"Content-Type: %b\r\n" % self._reply_type
            length += b"\r\n" if self._old_client else b"Transfer-Encoding: chunked\r\n\r\n"
        elif self._status == 204 or self._status == 304:
            length = b"\r\n"  # no body, hence no length either
        elif size and size < _READY and self._reply_type is _JSON:
            length = _JSON_LENGTHS[size]
        elif size:
            length = b"Content-Type: %b\r\n" % self._reply_type + _LENGTH_LINE % size
        else:
            length = _LENGTH_LINE % 0
        return join(
            context._get_start(self._status, self._replied_ns),
            self.request_id,
            _TIMINGS[took_ms] if took_ms < _READY else _TIMING_LINE % took_ms,
            _THOUSANDTHS[took_us % 1000],
            lines,
            length,
            b"" if self.head_only else body,
        )


class HttpConn:
    """Interface of a connection to the shell and to requests, for both protocols.

    `on_output` is called when output appears where there was none. `blocked` is set by the shell
    while the peer does not take what was sent.
    """

    def __init__(
        self, context: H1Context, peer: str = "", on_output: Callable[[], None] | None = None
    ) -> None:
        self.context = context
        self.peer = peer
        self.on_output = on_output
        self.want_close = False
        self.blocked = False
        self.unsent_size = 0
        self._idle_ns = context.monotonic()

    def feed(self, data: bytes) -> list[Request]:
        """Take what was read; return the requests that are complete, in order."""
        raise NotImplementedError

    def data_to_send(self) -> bytes:
        """All output there is, which counts as delivered from now on."""
        raise NotImplementedError

    def is_holding(self) -> cython.bint:
        """Whether the peer should not be read from for now."""
        raise NotImplementedError

    def in_flight(self) -> int:
        """The number of requests whose response is not complete."""
        raise NotImplementedError

    def _answered(self, request: Request) -> None:
        """A request has its reply, or the head of it."""
        raise NotImplementedError

    def _piece_added(self, request: Request, size: cython.Py_ssize_t) -> None:
        """There is more of a reply that comes in pieces."""
        raise NotImplementedError

    def _pieces_end(self, request: Request) -> None:
        """The streamed reply has ended."""
        raise NotImplementedError

    def _take_body(self, request: Request) -> bytes:
        """Part of a streamed body that has arrived: nothing if all bodies arrive whole."""
        return b""

    def _keep_body(self, request: Request, size: cython.Py_ssize_t) -> None:
        """How much of such a body is still kept."""


class ReplyQueue(HttpConn):
    """The answering half of a connection of HTTP/1.1; a subclass reads.

    While the peer does not take what was sent, and while the pipeline is full, nothing is read.
    """

    def __init__(
        self, context: H1Context, peer: str = "", on_output: Callable[[], None] | None = None
    ) -> None:
        HttpConn.__init__(self, context, peer, on_output)
        self.pending = 0
        self._full = False
        self._continue_due = False
        # Requests without a released reply, in order; released ones that were not yet sent.
        self._first: Request | None = None
        self._last: Request | None = None
        self._out: list[bytes] = []
        self._leaving: list[Request] = []

    @property
    def paused(self) -> bool:
        """Whether reading has to wait: for replies to be made, or for the peer to take them."""
        return self._is_paused()

    def in_flight(self) -> int:
        """The number of requests whose response is not complete."""
        return self.pending

    def data_to_send(self) -> bytes:
        """All released replies, joined; they count as delivered from now on."""
        first = self._first
        if first is not None and first.streaming and first._head_sent and first._pieces:
            self._take_pieces(first)
        else:
            first = None
        if not self._out:
            return b""
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out = []
        self.unsent_size = 0
        request: Request
        for request in self._leaving:
            request.delivered = True
            request.on_abandoned = None
        self._leaving = []
        if first is not None and first.on_writable is not None:
            first.on_writable(first)
        return data

    def _is_paused(self) -> cython.bint:
        return self._full or self.blocked or self.unsent_size > self.context.unsent_size_max

    def _ends_here(self) -> cython.bint:
        """Whether no further request will come; told by the reading half."""
        raise NotImplementedError

    def _stop(self) -> None:
        """Have the reading half read no more."""
        raise NotImplementedError

    def _close(self) -> None:
        self._stop()
        self.want_close = True

    def _enqueue(self, request: Request) -> None:
        if self._last is None:
            self._first = request
        else:
            self._last._next = request
        self._last = request
        self.pending += 1
        if self.pending >= self.context.pipeline_max:
            if not self._full:
                self.context.abuse_counters.count("pipeline")
            self._full = True

    def _answered(self, request: Request) -> None:
        self._release()

    def _pieces_end(self, request: Request) -> None:
        self._release()

    def _release(self) -> None:
        """Move finished replies from the front of the queue to the output."""
        request = self._first
        if request is None or not request.replied or self.want_close:
            return
        was_empty = not self._out
        while request is not None and request.replied:
            following = request._next
            close = not request.keep_alive or (following is None and self._ends_here())
            if request._pieces is None:
                self._put(request._render(close))
            else:
                close = self._release_stream(request, close)
                if request.streaming:
                    break
            request._next = None
            self.pending -= 1
            self.context.bodies_size -= request._body_size
            self._leaving.append(request)
            self._idle_ns = request._replied_ns
            request = following
            if close:
                self._close()
                break
        self._first = request
        if request is None:
            self._last = None
        if self.pending <= self.context.pipeline_resume:
            self._full = False
        self._send_continue()
        if was_empty and self.on_output is not None:
            self.on_output()

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self.unsent_size += len(data)

    def _release_stream(self, request: Request, close: cython.bint) -> cython.bint:
        """Release the pieces of a streamed reply; return whether it is the last of the connection.

        A client of HTTP/1.0 supports no chunks: the end of the connection is the end of its body,
        and later requests on the connection get no reply.
        """
        if not request._head_sent:
            request._head_sent = True
            if close or request._old_client:
                request.keep_alive = False
                self._stop()
            self._put(request._render(not request.keep_alive))
        if request.streaming:
            return False
        self._take_pieces(request)
        request._replied_ns = self.context.monotonic()
        if not request._old_client and not request.head_only:
            self._put(b"0\r\n%b\r\n" % request._trailers)
        return close or not request.keep_alive

    def _piece_added(self, request: Request, size: cython.Py_ssize_t) -> None:
        if request is self._first and not self.blocked and self.on_output is not None:
            self.on_output()

    def _take_pieces(self, request: Request) -> None:
        """Make one chunk of all pieces, so that frequent small ones cost little."""
        if not request._pieces:
            return
        pieces = request._pieces
        request._pieces = []
        size: cython.Py_ssize_t = request.unsent_size
        request.unsent_size = 0
        if not request._old_client:
            pieces.insert(0, b"%x\r\n" % size)
            pieces.append(b"\r\n")
        self._out += pieces
        self.unsent_size += size

    def _send_continue(self) -> None:
        """Ask for an awaited body, once it is this request's turn to be answered."""
        if self._continue_due and self._first is None:
            self._continue_due = False
            self._put(_CONTINUE)

    def _cancel_parked(self) -> None:
        """Answer for requests whose handlers only wait: an empty 204, so that later
        replies can leave. Streamed replies end if they have a callback for it."""
        request = self._first
        while request is not None:
            following = request._next
            if request.streaming and request.on_abandoned is not None:
                request._abandon()
            elif not request.replied and request.on_abandoned is not None:
                request._abandon()
                request.replied = True
                request._status = 204
                request._replied_ns = self.context.monotonic()
            request = following
        self._release()

    def _abandon_all(self) -> None:
        request: Request | None
        gone = self._leaving
        self._leaving = []
        self._out = []
        self.unsent_size = 0
        request = self._first
        self._first = self._last = None
        self.pending = 0
        while request is not None:
            gone.append(request)
            self.context.bodies_size -= request._body_size
            following = request._next
            request._next = None
            request = following
        left: Request
        for left in gone:
            left._abandon()

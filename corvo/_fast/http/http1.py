"""HTTP/1.1 without sockets: bytes in, requests out; replies in, bytes out.

A connection is read in four phases:

    LINE     the request line is collected and checked here, because llhttp is more lenient than
             RFC 9112 (double spaces, RTSP, HTTP/0.9, HTTP/2.0)
    FIELDS   header fields go through llhttp, up to the blank line that we find ourselves. It only
             says that they are well formed; a callback for each would cost more than all the
             rest, so those we keep are then picked out of the bytes. A head that came whole and
             is plain (`corvo._fast.http.head.is_cacheable_head`) does not need it, nor does its
             body
    LENGTH   a body of Content-Length bytes
    CHUNKED  a chunked body; its pieces are cut at every blank line, since one of them ends it

So the parser never sees the end of one message and the start of the next in the same piece, which
makes every limit exact and lets a connection stop between two pipelined requests. A fifth phase,
STOPPED, ignores all further input: after an error, `Connection: close`, or the end of the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import cython
import httptools

from corvo._fast.http.abuse_counters import reason_of
from corvo._fast.http.exchange import H1Context, ReplyQueue, Request, reply_error
from corvo._fast.http.head import (
    REQUEST_ID,
    find_byte,
    find_head_end,
    is_cacheable_head,
    read_fields,
)
from corvo._fast.http.head_cache import HeadCache
from corvo._fast.http.http1_rules import (
    CHUNKED,
    check_host,
    is_foreign,
    parse_upgrade_offer,
    read_framing,
    take_line,
    target_too_long,
)
from corvo._fast.http2.connection import H2Conn
from corvo.errors import (
    BadRequest,
    CorvoError,
    HeadersTooLarge,
    Overloaded,
    PayloadTooLarge,
    RequestTimeout,
)

_LINE, _FIELDS, _LENGTH, _CHUNKED, _STOPPED = 0, 1, 2, 3, 4
_CHUNKED_BODY = CHUNKED
_LF, _CR, _A, _Z = 10, 13, 65, 90

# A request line is refused unfinished only when no method and version could still fit.
_LINE_EXTRA_MAX: Final = 64
_OVERLOADED_RETRY_MS: Final = 1_000

_PLAIN_METHODS: Final = frozenset(("GET", "POST", "PUT", "DELETE", "PATCH"))
_BLANK_LINE: Final = b"\r\n\r\n"
_PREFACE_LINE: Final = b"PRI * HTTP/2.0\r\n"


class _ChunkedBody:
    """What the parser of a chunked body calls: also for each field behind the last chunk."""

    def __init__(self, conn: H1Conn) -> None:
        self.on_header = conn.on_trailer
        self.on_headers_complete = conn.on_headers_complete
        self.on_chunk_header = conn.on_chunk_header
        self.on_body = conn.on_body
        self.on_message_complete = conn.on_message_complete


class H1Conn(ReplyQueue):
    """One HTTP/1.1 connection without its socket; `switches` = it goes on in HTTP/2 when asked."""

    def __init__(
        self,
        context: H1Context,
        peer: str = "",
        on_output: Callable[[], None] | None = None,
        switches: bool = True,
    ) -> None:
        ReplyQueue.__init__(self, context, peer, on_output)
        if context.cached is None:
            context.cached = HeadCache()
        self._cached = context.cached
        self._switches = switches
        self._phase = _LINE
        self.successor: H2Conn | None = None
        self.unread = b""
        self._ended = False
        self._served = False
        self._read_ns = self._idle_ns
        self._started_ns = self._idle_ns
        self._parser: Any = httptools.HttpRequestParser(self)
        self._refusal: CorvoError | None = None
        self._refusal_reason = ""
        # Input: bytes not looked at yet, an unfinished line, the last bytes before a piece.
        self._rest = b""
        self._line = b""
        self._tail = b""
        # The message being read.
        self._request: Any = None  # a Request while one is read
        self._ready: list[Request] = []
        self._began = False
        self._head: list[bytes] = []
        self._authority: bytes | None = None
        self._upgraded = False
        self._plain = False
        self._muted = False
        self._head_size = 0
        self._body_left = 0
        self._body: bytearray | None = None
        self._body_size = 0
        self._rate_size = 0
        self._chunks = 0
        self._trailer_fields = 0
        self._trailer_size = 0
        self._framing_run = 0

    # What the shell asks.

    @property
    def has_input(self) -> bool:
        """Whether bytes wait that a further `feed` could turn into requests."""
        return len(self._rest) > 0

    def is_holding(self) -> bool:
        """Whether the peer should not be read from for now."""
        return len(self._rest) > 0 or self._is_paused()

    @property
    def idle(self) -> bool:
        """Whether no request is being read or answered."""
        return self._first is None and self._between_requests()

    def feed(self, data: bytes) -> list[Request]:
        """Take what was read; return the requests that are complete, in order.

        At most `pipeline_max` come at once. When `has_input` says that there is more, the caller
        gives others a turn and calls again, with no data, unless `paused`.
        """
        ready = self._ready = []
        if self._phase == _STOPPED:
            return ready
        if data:
            self._read_ns = self.context.monotonic()
        if self._rest:
            data = self._rest + data
        if self._line:
            data = self._line + data
            self._line = b""
        pos: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t = len(data)
        turn_max: cython.Py_ssize_t = self.context.pipeline_max
        while (
            pos < size
            and len(ready) < turn_max
            and self._phase != _STOPPED
            and not self._is_paused()
        ):
            if self._phase == _LINE:
                pos = self._read_cached(data, pos) or self._read_line(data, pos)
            elif self._phase == _FIELDS:
                pos = self._read_fields(data, pos)
            elif self._phase == _LENGTH:
                pos = self._read_length(data, pos)
            else:
                pos = self._read_chunked(data, pos)
        if self.successor is not None:
            self.unread = data[pos:]
        elif pos < size and len(ready) >= turn_max:
            self.context.abuse_counters.count("turns")
        self._rest = b"" if pos >= size or self._phase == _STOPPED else data[pos:]
        self._send_continue()
        if self._ended and not self._rest:
            self._finish_input()
        self._ready = []
        return ready

    def check_time(self, now_ns: int) -> None:
        """Refuse or close what took too long; called every now and then with the present time."""
        context = self.context
        if self._phase == _STOPPED:
            return
        if self._is_paused():
            # It is us who do not read: the peer's time stands still.
            self._read_ns = self._started_ns = self._idle_ns = now_ns
            self._rate_size = 0
        elif self._phase == _LENGTH or self._phase == _CHUNKED:
            took_ns = now_ns - self._started_ns
            if now_ns - self._read_ns > context.body_idle_ns:
                self._refuse(RequestTimeout("the body did not arrive in time"), "body_time")
            elif took_ns > context.body_idle_ns and (
                self._rate_size * 1_000_000_000 < context.body_rate_min * took_ns
            ):
                rate = context.body_rate_min
                error = RequestTimeout(f"the body arrives slower than {rate} bytes a second")
                self._refuse(error, "body_time")
        elif self._began:
            if now_ns - self._started_ns > context.head_wait_ns:
                error = RequestTimeout("the request head did not arrive in time")
                self._refuse(error, "head_time")
        elif self._first is None:
            wait_ns = context.keep_alive_idle_ns if self._served else context.head_wait_ns
            if now_ns - self._idle_ns > wait_ns:
                if not self._served:
                    context.abuse_counters.count("head_time")
                self._close()

    def drain(self) -> None:
        """Close at once when idle; else the last reply of what is in flight will close."""
        if self.idle:
            self._close()

    def eof(self) -> None:
        """The peer sends no more: what is in flight is answered, parked requests are cancelled.

        A parked request is one whose handler set `on_abandoned` and has not answered. Its slot
        gets an empty 204, so that replies behind it can leave.
        """
        self._ended = True
        if not self._rest:
            self._finish_input()

    def closed(self) -> None:
        """The connection is gone: forget everything, tell whoever waits."""
        self._close()
        self._parser = None
        self.on_output = None
        self._abandon_all()

    # Reading.

    def _between_requests(self) -> cython.bint:
        return self._phase == _LINE and not self._began and not self._rest

    def _ends_here(self) -> cython.bint:
        if self._ended:
            return not self._rest
        return self.context.draining and self._between_requests()

    def _read_cached(self, data: bytes, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The end of a head at `pos` that is known already; 0 = it is to be read."""
        if self._began or self._head_size:
            return 0
        cached = self._cached.find(data, pos)
        if cached is None:
            return 0
        request = self._request = Request(self)
        cached.fill(request)
        self._began = True
        self._choose_framing(request)
        self._end_cacheable_head(request)
        return pos + len(cached.head)

    def _read_line(self, data: bytes, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Check the request line at `pos`. It stays in the data: the parser reads it again."""
        context = self.context
        if not self._began:
            self._began = True
            self._started_ns = self._read_ns
        # What is refused does not depend on how much of the line is there.
        p: cython.p_const_uchar = data
        if not _A <= p[pos] <= _Z and p[pos] != _CR:
            self._refuse(BadRequest("this is not an HTTP request"), "malformed")
            return len(data)
        end: cython.Py_ssize_t = find_byte(data, _LF, pos) + 1
        size: cython.Py_ssize_t = (end or len(data)) - pos
        if size > context.target_size_max + _LINE_EXTRA_MAX:
            self._refuse(target_too_long(context.target_size_max), "head_size")
            return len(data)
        if end == 0:
            self._line = data[pos:]
            return len(data)
        line: bytes = p[pos:end]
        if line == b"\r\n":
            # Blank lines before a request are legal (RFC 9112 2.2); they count as its head.
            self._began = False
            self._head_size += 2
            if self._head_size > context.head_size_max:
                self._refuse_head()
            return end
        request = Request(self)
        self._request = request
        try:
            self._authority = take_line(request, line, context.target_size_max)
        except CorvoError as error:
            if self._switches and not self._served and self._first is None:
                if line == _PREFACE_LINE:
                    self._give_way(None, b"")
                    return pos
                if is_foreign(line):
                    context.abuse_counters.count("malformed")
                    self._close()
                    return end
            self._refuse(error, reason_of(error))
            return end
        self._phase = _FIELDS
        self._tail = b""
        return pos

    def _read_fields(self, data: bytes, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        context = self.context
        end: cython.Py_ssize_t = self._next_cut(data, pos)
        room: cython.Py_ssize_t = context.head_size_max - self._head_size
        if end - pos > room:
            end = pos + room
        p: cython.p_const_uchar = data
        piece: bytes = p[pos:end]
        self._head_size += end - pos
        request = self._request
        if (
            not self._head
            and request.method in _PLAIN_METHODS
            and not request._old_client
            and self._authority is None
            and is_cacheable_head(piece)
        ):
            self._take_cacheable_head(piece)
            return end
        self._head.append(piece)
        self._parse(piece)
        if self._phase == _CHUNKED:
            self._read_body_by(_ChunkedBody(self), b"Transfer-Encoding: chunked")
        elif self._phase == _FIELDS:
            if self._head_size >= context.head_size_max:
                self._refuse_head()
            self._keep_tail(piece)
        return end

    def _take_cacheable_head(self, head: bytes) -> None:
        """A whole head that says nothing special: llhttp is not asked, nor for its body."""
        request = self._request
        try:
            self._take_fields(request, head)
        except CorvoError as error:
            self._refuse(error, reason_of(error))
            return
        self._cached.learn(request, head)
        self._end_cacheable_head(request)

    def _end_cacheable_head(self, request: Request) -> None:
        request.keep_alive = True
        self._name_request(request)
        if self._phase == _LENGTH:
            self._plain = True
        else:
            self._complete()

    def _read_length(self, data: bytes, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        end: cython.Py_ssize_t = min(pos + self._body_left, len(data))
        self._body_left -= end - pos
        p: cython.p_const_uchar = data
        piece: bytes = p[pos:end]
        if not self._plain:
            self._parse(piece)
            return end
        try:
            self.on_body(piece)
        except CorvoError as error:
            self._refuse(error, reason_of(error))
            return end
        if self._body_left == 0:
            self._complete()
        return end

    def _read_chunked(self, data: bytes, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        end = min(self._next_cut(data, pos), pos + self.context.feed_slice)
        piece = data[pos:end]
        body_size = self._body_size
        self._parse(piece)
        if self._phase == _CHUNKED:
            # llhttp puts no bound on chunk extensions and unfinished trailer lines.
            self._framing_run = 0 if self._body_size > body_size else self._framing_run + len(piece)
            if self._framing_run > 2 * self.context.trailer_size_max:
                error = BadRequest("chunk extensions or trailers are too long")
                self._refuse(error, "chunks")
            self._keep_tail(piece)
        return end

    def _next_cut(self, data: bytes, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The end of the next blank line, which may have begun in an earlier piece."""
        if self._tail:
            seam = (self._tail + data[pos : pos + 3]).find(_BLANK_LINE)
            if seam >= 0:
                return pos + seam + 4 - len(self._tail)
        end: cython.Py_ssize_t = find_head_end(data, pos)
        return end if end >= 0 else len(data)

    def _keep_tail(self, piece: bytes) -> None:
        tail = self._tail + piece if len(piece) < 3 else piece
        self._tail = tail[max(0, len(tail) - 3) :]

    def _parse(self, piece: bytes) -> None:
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._resume_after_upgrade()
        except httptools.HttpParserCallbackError:
            if self._refusal is None:
                raise
            self._refuse(self._refusal, self._refusal_reason)
        except httptools.HttpParserError as error:
            self._refuse(BadRequest(f"malformed HTTP: {error}"), "malformed")

    def _resume_after_upgrade(self) -> None:
        """Read on as plain HTTP/1.1 after an offer to upgrade that is not taken up.

        llhttp takes the head of such a request for the end of it and drops the body.
        """
        self._upgraded = False
        if self._phase == _FIELDS and self._may_give_way():
            settings = parse_upgrade_offer(b"".join(self._head))
            if settings is not None:
                self._give_way(self._request, settings)
                return
        self.context.abuse_counters.count("upgrade")
        if self._phase == _LENGTH:
            self._read_body_by(self, b"Content-Length: %d" % self._body_left)
        elif self._phase != _CHUNKED:
            self._parser = httptools.HttpRequestParser(self)
            self._complete()

    def _may_give_way(self) -> cython.bint:
        """Only a request without a body, with nothing left to answer before it."""
        return (
            self._switches
            and self._first is None
            and not self._request._old_client
            and not self._ended
        )

    def _give_way(self, request: Request | None, settings: bytes) -> None:
        """Go on in HTTP/2, with the request that offered it if there is one."""
        if request is not None:
            request.arrived_ns = self._read_ns
        self._request = None
        self._stop()
        conn = H2Conn(self.context, self.peer, self.on_output)
        if request is not None:
            conn.adopt(request, settings)
        self.on_output = None
        self.successor = conn

    def _read_body_by(self, callbacks: Any, framing: bytes) -> None:
        """Go on with a fresh parser that is told nothing but how the body is framed."""
        self._parser = httptools.HttpRequestParser(callbacks)
        self._muted = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self._muted = False

    # Called by the parser.

    def on_headers_complete(self) -> None:
        """The head is there: decide whether and how the body is read."""
        if self._muted:
            return
        request = self._request
        pieces = self._head
        try:
            self._take_fields(request, pieces[0] if len(pieces) == 1 else b"".join(pieces))
        except CorvoError as error:
            self._fail(error, reason_of(error))
        request.keep_alive = self._parser.should_keep_alive()
        self._upgraded = request._upgrade_offered and self._parser.should_upgrade()
        self._name_request(request)
        if self._phase != _FIELDS and request.expect is not None and not request._old_client:
            self._continue_due = request.expect.lower() == b"100-continue"

    def _take_fields(self, request: Request, head: bytes) -> None:
        read_fields(request, head, self.context.head_fields_max)
        check_host(request, self._authority)
        self._choose_framing(request)

    def _name_request(self, request: Request) -> None:
        given = request.request_id
        if given is None or not REQUEST_ID.fullmatch(given):
            request.request_id = self.context._new_request_id()
        self._started_ns = self._read_ns

    def on_chunk_header(self) -> None:
        """A chunk begins: refuse bodies made of crumbs, which cost far more than they carry."""
        context = self.context
        whole = self._chunks
        self._chunks += 1
        if whole > context.chunk_mean_after and self._body_size < whole * context.chunk_mean_min:
            mean = context.chunk_mean_min
            self._fail(BadRequest(f"chunks of less than {mean} bytes on average"), "chunks")

    def on_body(self, data: bytes) -> None:
        """Some of the body."""
        context = self.context
        size: cython.Py_ssize_t = len(data)
        if self._body_size + size > context.body_size_max:
            self._fail(self._body_too_large(), "body_size")
        if self._chunks > context.chunks_max:
            self._fail(BadRequest(f"more than {context.chunks_max} chunks"), "chunks")
        if context.bodies_size + size > context.bodies_in_flight_size_max:
            error = Overloaded(
                "too many request bodies in flight", retry_after_ms=_OVERLOADED_RETRY_MS
            )
            self._fail(error, "bodies_in_flight")
        context.bodies_size += size
        self._body_size += size
        self._rate_size += size
        self._continue_due = False
        if self._body is not None:
            self._body += data
        elif self._body_left == 0 and self._phase == _LENGTH:
            self._request.body = data
        else:
            self._body = bytearray(data)

    def on_message_complete(self) -> None:
        """The message is over, unless llhttp only says so because of an offered upgrade."""
        if not self._upgraded and not self._muted:
            self._complete()

    def _fail(self, error: CorvoError, reason: str) -> None:
        """Stop the parser from inside a callback; `_parse` then refuses."""
        self._refusal = error
        self._refusal_reason = reason
        raise error

    def _choose_framing(self, request: Request) -> None:
        size: cython.longlong = read_framing(request)
        if size == _CHUNKED_BODY:
            self._phase = _CHUNKED
        elif size > self.context.body_size_max:
            raise self._body_too_large()
        elif size:
            self._phase = _LENGTH
            self._body_left = size

    def on_trailer(self, name: bytes, value: bytes) -> None:
        """Trailers are counted and forgotten: none of them may pass for a header."""
        if self._muted:
            return
        self._trailer_fields += 1
        self._trailer_size += len(name) + len(value) + 4
        if (
            self._trailer_fields > self.context.trailer_fields_max
            or self._trailer_size > self.context.trailer_size_max
        ):
            self._fail(BadRequest("the trailer section is too large"), "trailers")

    def _complete(self) -> None:
        request = self._request
        if self._body is not None:
            request.body = bytes(self._body)
        request._body_size = self._body_size
        request.arrived_ns = self._read_ns
        self._body_size = 0
        if self._phase == _CHUNKED:
            self._parser = httptools.HttpRequestParser(self)
        self._reset_message()
        self._phase = _LINE if request.keep_alive else _STOPPED
        self._served = True
        self._enqueue(request)
        self._ready.append(request)

    def _reset_message(self) -> None:
        self._request = None
        self._head = []
        self._began = False
        self._authority = None
        self._upgraded = False
        self._plain = False
        self._continue_due = False
        self._head_size = 0
        self._body_left = 0
        self._body = None
        self._rate_size = 0
        self._chunks = 0
        self._trailer_fields = 0
        self._trailer_size = 0
        self._framing_run = 0
        self._tail = b""

    # Refusing and closing.

    def _refuse(self, error: CorvoError, reason: str) -> None:
        """Answer the message being read with an error, after which the connection closes.

        Whatever follows on it cannot be trusted to start where we think it does.
        """
        self.context.abuse_counters.count(reason)
        request = self._request
        if request is None:
            request = Request(self)
        if request.request_id is None or not REQUEST_ID.fullmatch(request.request_id):
            request.request_id = self.context._new_request_id()
        self._stop()
        request.body = b""
        request.keep_alive = False
        request.arrived_ns = self._read_ns
        self._served = True
        self._enqueue(request)
        reply_error(request, error)

    def _refuse_head(self) -> None:
        error = HeadersTooLarge(f"the request head is over {self.context.head_size_max} bytes")
        self._refuse(error, "head_size")

    def _body_too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the request body is over {self.context.body_size_max} bytes")

    def _stop(self) -> None:
        """Read no more, and give back what the unfinished message holds."""
        self._phase = _STOPPED
        self._rest = b""
        self._line = b""
        self.context.bodies_size -= self._body_size
        self._body_size = 0
        self._refusal = None
        self._reset_message()

    def _finish_input(self) -> None:
        """The stream has ended: drop half a message, cancel the parked, close when all is said."""
        self._stop()
        self._cancel_parked()
        if self._first is None:
            self.want_close = True

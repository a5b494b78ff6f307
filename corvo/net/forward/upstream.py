"""One connection to the leader, with one request at a time.

A response has a length or is chunked. One with a length is passed on when it is complete. A chunked
one is passed on as it arrives: the head, each chunk, the end with its trailers. While the client
does not read, the connection is not read either, so that back pressure reaches the leader and
nothing accumulates here.

The peer is another node of the cluster. Its responses are checked all the same, and a malformed one
closes the connection.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, Protocol, cast

from corvo import limits
from corvo._fast.http.exchange import Request
from corvo.limits import SECOND_NS
from corvo.net.http.router import Route

logger = logging.getLogger(__name__)

FORWARDED: Final = b"X-Corvo-Forwarded: 1\r\n"
_JSON: Final = b"application/json"
# Fields of an answer that the front end writes itself.
OWN_FIELDS: Final = frozenset(
    (
        b"connection",
        b"content-length",
        b"content-type",
        b"date",
        b"keep-alive",
        b"server-timing",
        b"transfer-encoding",
        b"x-content-type-options",
        b"x-corvo-forwarded",
        b"x-corvo-index",
        b"x-request-id",
    )
)
_CHUNK_LINE_MAX: Final = 18


async def connect(
    loop: asyncio.AbstractEventLoop,
    address: str,
    protocol: asyncio.Protocol,
    trust: ssl.SSLContext | None,
) -> None:
    """Connect to the leader at this address: host:port, with https:// in front if it uses TLS.
    Raises OSError or ValueError if that fails or takes too long."""
    scheme, _, authority = address.rpartition("//")
    host, _, port = authority.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    tls = trust if scheme == "https:" else None
    async with asyncio.timeout(limits.PROXY_CONNECT_NS / SECOND_NS):
        await loop.create_connection(
            lambda: protocol,
            host,
            int(port),
            ssl=tls,
            server_hostname=host if tls is not None else None,
        )


class ForwardedRequest:
    """A request on its way to the leader. `request` is None when no client waits for the answer;
    otherwise its route is known."""

    __slots__ = ("data", "lasts", "request", "returned_by", "since_ns", "started", "until_ns")

    def __init__(self, request: Request | None, data: bytes, now_ns: int) -> None:
        route: Route | None = None if request is None else request.route
        self.request = request
        self.data = data
        # True for long polls and streams, which may hold a connection for minutes.
        self.lasts = route is not None and (
            route.waits or (route.stream and not route.names_leader)
        )
        # The response hands out jobs: pattern of the route that gives one back, else empty.
        self.returned_by = "" if route is None else route.returned_by
        self.since_ns = now_ns  # arrived, or sent, or the last part of its response arrived
        self.until_ns = 0  # no retry after this
        self.started = False  # a part of the response went to the client

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent twice."""
        request = self.request
        return self.lasts or (request is not None and request.idempotency_key is not None)

    @property
    def wanted(self) -> bool:
        """Whether a response is still of use."""
        return self.request is None or not (self.request.abandoned or self.request.replied)


class Answer:
    """The HTTP response of the leader."""

    __slots__ = ("body", "chunked", "content_type", "headers", "index", "last", "length", "status")

    def __init__(self, head: bytes) -> None:
        """Parse the head. Raises ValueError if it is not that of a node."""
        lines = head.split(b"\r\n")
        if not lines[0].startswith(b"HTTP/1.1 "):
            raise ValueError("not HTTP/1.1")
        self.status = int(lines[0][9:12])
        self.content_type = _JSON
        self.index = -1
        self.length = 0
        self.chunked = False
        self.last = False  # on its connection
        self.headers = FORWARDED
        self.body = b""
        for line in lines[1:]:
            name, _, value = line.partition(b": ")
            name = name.lower()
            if name == b"content-length":
                self.length = int(value)
            elif name == b"content-type":
                self.content_type = value
            elif name == b"x-corvo-index":
                self.index = int(value)
            elif name == b"connection":
                self.last = value == b"close"
            elif name == b"transfer-encoding":
                self.chunked = value == b"chunked"
                if not self.chunked:
                    raise ValueError("unknown transfer coding")
            elif name not in OWN_FIELDS:
                self.headers += line + b"\r\n"
        if self.length == 0 and not self.chunked and self.content_type is not _JSON:
            # A reply without a body names no type by itself.
            self.headers += b"Content-Type: " + self.content_type + b"\r\n"


class Chunks:
    """Decodes a chunked body."""

    def __init__(self) -> None:
        self.trailers: bytes | None = None  # lines; then it has ended
        self.after_end = b""  # bytes after the end
        self._rest = b""
        self._left = 0  # of a chunk and the end of its line
        self._ending = False

    def feed(self, data: bytes) -> list[bytes]:
        """Pieces of the body. Raises ValueError if the data is not chunked."""
        pieces: list[bytes] = []
        data = self._rest + data
        at = 0
        while at < len(data) and not self._ending:
            if self._left:
                end = min(at + self._left, len(data))
                piece = data[at : min(end, max(at, at + self._left - 2))]
                if piece:
                    pieces.append(piece)
                self._left -= end - at
                at = end
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            size = int(data[at:end], 16)
            at = end + 2
            self._ending = size == 0
            self._left = size + 2 if size else 0
        self._rest = data[at:]
        if self._ending:
            self._end()
        elif not self._left and len(self._rest) > _CHUNK_LINE_MAX:
            raise ValueError("chunk without a size")
        return pieces

    def _end(self) -> None:
        lines, blank, rest = (b"\r\n" + self._rest).partition(b"\r\n\r\n")
        if blank:
            self.trailers = lines[2:] + b"\r\n" if len(lines) > 2 else b""
            self.after_end = rest
        elif len(self._rest) > limits.TRAILER_SIZE_MAX:
            raise ValueError("trailers without end")


class Sender(Protocol):
    """The owner of the connections: it sends requests and is called back with their fates."""

    def answered(self, upstream: "Upstream", forwarded: ForwardedRequest, answer: Answer) -> None:
        """The answer to a request is complete."""

    def began(self, forwarded: ForwardedRequest, answer: Answer) -> bool:
        """The head of a chunked response arrived; False if no client waits for it."""

    def ended(self, upstream: "Upstream", forwarded: ForwardedRequest, trailers: bytes) -> None:
        """The answer that began is complete."""

    def lost(self, upstream: "Upstream", forwarded: ForwardedRequest | None) -> None:
        """A connection has ended, with or without a request on it."""


class Upstream(asyncio.Protocol):
    """A connection to the leader, with at most one request on it."""

    def __init__(self, sender: Sender, address: str, elapsed_ns: Callable[[], int]) -> None:
        self.address = address
        self.forwarded: ForwardedRequest | None = None
        self.idle_ns = 0
        self.paused = False
        self._sender = sender
        self._elapsed_ns = elapsed_ns
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._pieces: list[bytes] = []  # of a body that comes in several
        self._missing = 0
        self._answer: Answer | None = None
        self._chunks: Chunks | None = None

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready for a request."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Collect an answer."""
        try:
            self._take(data)
        except ValueError as error:
            logger.warning("malformed response from %s: %s", self.address, error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection closed, on either side."""
        self._transport = None
        forwarded, self.forwarded = self.forwarded, None
        self._sender.lost(self, forwarded)

    # Called by the proxy.

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, forwarded: ForwardedRequest, now_ns: int) -> None:
        """Send a request; its answer, or the end of the connection, will come."""
        assert self.forwarded is None and self._transport is not None
        self.forwarded = forwarded
        forwarded.since_ns = now_ns
        self._transport.write(forwarded.data)
        forwarded.data = b""  # the request has all that is needed to ask again

    def close(self) -> None:
        """Close, now that nothing is awaited."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # An answer.

    def _take(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            if self._buffer:
                data = self._buffer + data
            end = data.find(b"\r\n\r\n")
            if end < 0 and len(data) <= limits.HEAD_SIZE_MAX:
                self._buffer = data
                return
            answer = self._answer = Answer(data[:end])
            data = data[end + 4 :]
            self._buffer = b""
            self._missing = answer.length
            if answer.chunked and not self._begin(answer):
                return
        if self._chunks is not None:
            self._pass_on(self._chunks, data)
            return
        self._missing -= len(data)
        if self._missing > 0:
            self._pieces.append(data)
            return
        if self._missing < 0 or self.forwarded is None:
            raise ValueError("unexpected data")
        if self._pieces:
            data = b"".join([*self._pieces, data])
            self._pieces = []
        answer.body = data
        self._sender.answered(self, self._done(answer), answer)

    def _done(self, answer: Answer) -> ForwardedRequest:
        forwarded, self.forwarded = self.forwarded, None
        assert forwarded is not None
        self._answer = None
        if answer.last:
            self.close()
        return forwarded

    def _begin(self, answer: Answer) -> bool:
        forwarded = self.forwarded
        if forwarded is None:
            raise ValueError("unexpected data")
        if not self._sender.began(forwarded, answer):
            self.abort()
            return False
        forwarded.started = True
        self._chunks = Chunks()
        request = forwarded.request
        assert request is not None
        request.on_abandoned = lambda _request: self.abort()
        request.on_writable = self._on_writable
        return True

    def _pass_on(self, chunks: Chunks, data: bytes) -> None:
        forwarded, answer = self.forwarded, self._answer
        if forwarded is None or forwarded.request is None or answer is None:
            raise ValueError("unexpected data")
        forwarded.since_ns = self._elapsed_ns()
        request = forwarded.request
        for piece in chunks.feed(data):
            request.send(piece)
        if chunks.trailers is not None:
            if chunks.after_end:
                raise ValueError("unexpected data")
            self._chunks = None
            self._sender.ended(self, self._done(answer), chunks.trailers)
        elif request.unsent_size > limits.STREAM_UNSENT_SIZE_MAX and self.open:
            assert self._transport is not None
            self.paused = True
            self._transport.pause_reading()

    def _on_writable(self, request: Request) -> None:
        """The client has taken something."""
        if self.paused and request.unsent_size <= limits.STREAM_UNSENT_SIZE_MAX and self.open:
            assert self._transport is not None
            self.paused = False
            if self.forwarded is not None:
                self.forwarded.since_ns = self._elapsed_ns()
            self._transport.resume_reading()

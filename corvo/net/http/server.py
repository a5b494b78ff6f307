"""The socket shell of the HTTP front end: sockets, timers and limits around the connections.

One `Protocol` object per connection moves bytes between its transport and the sans-io connection,
which is an `H1Conn`, and an `H2Conn` once the client has chosen HTTP/2. Handlers are
plain functions that get a request and answer it now or later; no task, future or timer is made for
a request. What becomes ready to send leaves in one write per connection and loop turn: connections
with output enter a list that one callback flushes.

Time is that of the injected clock. One coarse timer looks over all connections, and only while
there are any.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, cast

from corvo import limits
from corvo._fast.http.exchange import H1Context, Request, UnsafeHeader, reply_error
from corvo._fast.http.http1 import H1Conn
from corvo._fast.http2.connection import H2Conn
from corvo._fast.metrics import TurnMetrics
from corvo.errors import ECHO_SIZE_MAX, CorvoError
from corvo.platform.clock import Clock

log = logging.getLogger(__name__)

TICK_S = 0.25
BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The bounds of the front end; the defaults are `corvo.limits`."""

    head_size_max: int = limits.HEAD_SIZE_MAX
    head_fields_max: int = limits.HEAD_FIELDS_MAX
    target_size_max: int = limits.TARGET_SIZE_MAX
    body_size_max: int = limits.BODY_SIZE_MAX
    bodies_in_flight_size_max: int = limits.BODIES_IN_FLIGHT_SIZE_MAX
    trailer_fields_max: int = limits.TRAILER_FIELDS_MAX
    trailer_size_max: int = limits.TRAILER_SIZE_MAX
    chunks_max: int = limits.CHUNKS_MAX
    chunk_mean_min: int = limits.CHUNK_MEAN_MIN
    chunk_mean_after: int = limits.CHUNK_MEAN_AFTER
    feed_slice: int = limits.FEED_SLICE
    pipeline_max: int = limits.PIPELINE_MAX
    pipeline_resume: int = limits.PIPELINE_RESUME
    unsent_size_max: int = limits.UNSENT_SIZE_MAX
    connections_max: int = limits.CONNECTIONS_MAX
    connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX
    handshake_wait_s: float = limits.HANDSHAKE_WAIT_NS / limits.SECOND_NS
    head_wait_ns: int = limits.HEAD_WAIT_NS
    body_idle_ns: int = limits.BODY_IDLE_NS
    body_rate_min: int = limits.BODY_RATE_MIN
    keep_alive_idle_ns: int = limits.KEEP_ALIVE_IDLE_NS
    write_stall_ns: int = limits.WRITE_STALL_NS
    linger_ns: int = limits.LINGER_NS
    http2: limits.Http2Limits = limits.HTTP2


class Server:
    """All connections of one process, and what they share.

    `handle` is called with every request. A `CorvoError` from it becomes the JSON reply of that
    error; any other exception is logged and becomes a 500, and the connection lives on.
    """

    def __init__(
        self,
        handle: Callable[[Request], None],
        clock: Clock,
        http_limits: HttpLimits | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.handle = handle
        self.clock = clock
        self.limits = http_limits or HttpLimits()
        self.loop = loop or asyncio.get_running_loop()
        self.context = H1Context(self.limits, clock, self._date, self._id_prefix())
        self.on_drain: Callable[[], None] | None = None
        self.turns: TurnMetrics | None = None
        self.connections: set[Connection] = set()
        self.by_address: dict[str, int] = {}
        self.admitted = 0
        self.draining = False
        self._dirty: list[Connection] = []
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: list[asyncio.Server] = []
        self._all_gone: asyncio.Event = asyncio.Event()

    async def listen(self, host: str, port: int, protocol: Callable[[], Any] | None = None) -> int:
        """Accept connections at an address; returns the port, which matters for port 0.

        `protocol` makes what stands between the socket and a connection, if anything does.
        """
        listener = await self.loop.create_server(
            protocol or cast(Any, self.protocol), host, port, backlog=BACKLOG, start_serving=True
        )
        self._listeners.append(listener)
        sockets = cast(Any, listener).sockets  # not the tuple that asyncio promises: a list
        bound: int = sockets[0].getsockname()[1]
        return bound

    def protocol(self) -> "Connection":
        """A new connection, not yet open; the protocol factory of the listeners."""
        return Connection(self)

    def flush(self) -> None:
        """Send everything that is ready, one write per connection."""
        self._flush_due = False
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, answer what is in flight, close; after the timeout close the rest.

        `on_drain` is called first, so that the owner of parked requests can answer them.
        """
        if not self.draining:
            self.draining = self.context.draining = True
            for listener in self._listeners:
                listener.close()
            if self.on_drain is not None:
                self.on_drain()
        for connection in list(self.connections):
            connection.drain()
        self.flush()
        if not self.connections:
            return
        self._all_gone.clear()
        try:
            await asyncio.wait_for(self._all_gone.wait(), timeout_s)
        except TimeoutError:
            log.warning("closing %d connections that did not finish", len(self.connections))
            for connection in list(self.connections):
                connection.abort()
            await self._all_gone.wait()

    def admit(self, transport: asyncio.Transport) -> str | None:
        """Count a new connection under the address it returns, or close it: it is one too many."""
        peer = transport.get_extra_info("peername")
        address = peer[0] if isinstance(peer, tuple) else ""
        count = self.by_address.get(address, 0)
        if (
            self.draining
            or self.admitted >= self.limits.connections_max
            or count >= self.limits.connections_per_address_max
        ):
            self.context.abuse_counters.count("connections")
            transport.abort()
            return None
        self.by_address[address] = count + 1
        self.admitted += 1
        return address

    def release(self, address: str) -> None:
        """An admitted connection has closed."""
        self.admitted -= 1
        left = self.by_address[address] - 1
        if left:
            self.by_address[address] = left
        else:
            del self.by_address[address]

    def requests_in_flight(self) -> int:
        """The number of requests whose response is not complete."""
        https = [connection.http for connection in self.connections]
        return sum(http.in_flight() for http in https if http is not None)

    def opened(self, connection: "Connection") -> None:
        """Keep an admitted connection, and the timer running."""
        self.connections.add(connection)
        if self._timer is None:
            self._timer = self.loop.call_later(TICK_S, self._tick)

    def gone(self, connection: "Connection") -> None:
        """Forget a connection that was open."""
        self.connections.discard(connection)
        self.release(connection.peer)
        if not self.connections:
            self._all_gone.set()

    def mark(self, connection: "Connection") -> None:
        """Have a connection with new output flushed at the next turn, if not before."""
        self._dirty.append(connection)
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        if self._flush_due:
            self.flush()

    def serve(self, requests: list[Request]) -> None:
        """Hand requests to the handler, turning what it raises into replies."""
        for request in requests:
            if request.abandoned or (request.replied and request.on_body is None):
                continue  # neither the answer nor the rest of the body is of use
            try:
                if request.on_body is None:
                    self.handle(request)
                else:
                    request.on_body(request)
            except Exception as error:
                if isinstance(error, UnsafeHeader):
                    self.context.abuse_counters.count("reply_headers")
                if isinstance(error, CorvoError) and not request.replied:
                    reply_error(request, error)
                    continue
                log.exception(
                    "handler of %s %r failed", request.method, request.path[:ECHO_SIZE_MAX]
                )
                if not request.replied:
                    reply_error(request, CorvoError("internal error"))

    def _tick(self) -> None:
        self._timer = None
        now_ns = self.clock.elapsed_ns()
        for connection in list(self.connections):
            connection.check_time(now_ns)
        if self.connections:
            self._timer = self.loop.call_later(TICK_S, self._tick)

    def _date(self) -> bytes:
        return formatdate(self.clock.stamp() // limits.SECOND_NS, usegmt=True).encode()

    @staticmethod
    def _id_prefix() -> bytes:
        return os.urandom(4).hex().encode() + b"-"


class Connection:
    """Moves bytes between one transport and its sans-io connection.

    An `asyncio.Protocol` by its methods, not by inheritance, so that it can be compiled.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.peer = ""
        self.transport: asyncio.Transport | None = None
        self.http: H1Conn | H2Conn | None = None
        self._dirty = False
        self._reading = True
        self._next_due = False
        self._held: list[Request] = []  # not handled yet, because replies wait to be sent
        self._ended = False
        self._secure = False
        self._lingers_until_ns = 0
        self._stalled_since_ns = 0
        self._stalled_size = 0

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or close it when there are too many."""
        transport = cast(asyncio.Transport, transport)
        address = self.server.admit(transport)
        if address is not None:
            self.open(transport, address, "")

    def open(self, transport: asyncio.Transport, address: str, protocol: str) -> None:
        """Begin, with a connection that was admitted; `protocol` is what the handshake of TLS
        agreed on, empty without TLS: the first bytes then tell."""
        server = self.server
        if server.draining:
            transport.abort()
            server.release(address)
            return
        self.transport = transport
        self.peer = address
        self._secure = protocol != ""
        if protocol == "h2":
            self.http = H2Conn(server.context, address, self._on_output)
        else:
            self.http = H1Conn(server.context, address, self._on_output, not protocol)
        server.opened(self)

    def data_received(self, data: bytes) -> None:
        """Read, let the handlers run, and send what they answered at once, in one write."""
        if self.http is not None and not self._lingers_until_ns:
            if self.server.turns is not None:
                self.server.turns.begin()
            self._dirty = True
            self._serve(self._feed(self.http, data))
            self.flush()

    def eof_received(self) -> bool:
        """The peer sends no more: answer the requests in flight, then close."""
        if self.http is None or self._lingers_until_ns:
            return False
        self._dirty = True
        self._ended = True
        self.http.eof()
        self.flush()
        return not self._secure  # TLS has no half-closed connections

    def pause_writing(self) -> None:
        """The peer does not take its replies: stop reading its requests."""
        assert self.http is not None and self.transport is not None
        self.http.blocked = True
        self._stalled_since_ns = self.server.clock.elapsed_ns()
        self._stalled_size = self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        assert self.http is not None
        self.http.blocked = False
        self._on_output()
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed by either side: abandon the requests in flight."""
        http, self.http, self.transport = self.http, None, None
        if http is not None:
            self.server.gone(self)
            http.closed()

    # Called by the server.

    def flush(self) -> None:
        """Write what is ready, then read on, wait or close."""
        self._dirty = False
        http, transport = self.http, self.transport
        if http is None or transport is None:
            return
        if not http.blocked:
            data = http.data_to_send()
            if data:
                transport.write(data)
        if http.want_close:
            if not http.unsent_size:
                self._linger()
        elif self._held or http.is_holding() or not self._reading:
            self._read_on()

    def check_time(self, now_ns: int) -> None:
        """End what takes too long: requests, stalled writes, lingering."""
        http, transport = self.http, self.transport
        assert http is not None and transport is not None
        if http.blocked:
            size = transport.get_write_buffer_size()
            if size != self._stalled_size:
                self._stalled_size = size
                self._stalled_since_ns = now_ns
            elif now_ns - self._stalled_since_ns > self.server.limits.write_stall_ns:
                self.server.context.abuse_counters.count("unread_replies")
                self.abort()
                return
        if self._lingers_until_ns:
            if now_ns >= self._lingers_until_ns:
                transport.close()
            return
        http.check_time(now_ns)
        if http.want_close:
            self._on_output()

    def drain(self) -> None:
        """Close when idle, or else with the last reply."""
        if self.http is not None:
            self.http.drain()
            self._on_output()

    def abort(self) -> None:
        """Close at once, whatever is unsent."""
        if self.transport is not None:
            self.transport.abort()

    def _on_output(self) -> None:
        if not self._dirty:
            self._dirty = True
            self.server.mark(self)

    def _read_on(self) -> None:
        """Go on with input that waits, or with reading, as far as the connection allows."""
        http, transport = self.http, self.transport
        assert http is not None and transport is not None
        if self._reading == http.is_holding():
            self._reading = not self._reading
            if self._reading:
                transport.resume_reading()
            else:
                transport.pause_reading()
        more = (self._held and self._may_serve(http)) or (http.has_input and not http.paused)
        if more and not self._next_due:
            self._next_due = True
            self.server.loop.call_soon(self._feed_rest)

    def _feed(self, http: H1Conn | H2Conn, data: bytes) -> list[Request]:
        """Have bytes read, by the protocol that they turn out to be in."""
        requests = http.feed(data)
        if not requests and isinstance(http, H1Conn) and http.successor is not None:
            self.http = http.successor
            return self.http.feed(http.unread)
        return requests

    def _serve(self, requests: list[Request]) -> None:
        """Have requests handled, but no more of a pipeline while its replies pile up unsent."""
        if self._held:
            self._held += requests
            return
        if len(requests) < 2:
            self.server.serve(requests)
            return
        http = self.http
        assert http is not None
        for number, request in enumerate(requests):
            self.server.serve([request])
            if not self._may_serve(http):
                self._held = requests[number + 1 :]
                return

    def _may_serve(self, http: H1Conn | H2Conn) -> bool:
        return not http.blocked and http.unsent_size <= self.server.limits.unsent_size_max

    def _feed_rest(self) -> None:
        self._next_due = False
        if self.http is not None and not self._lingers_until_ns:
            self._dirty = True
            held, self._held = self._held, []
            self._serve(held)
            self._serve(self._feed(self.http, b""))
            self.flush()

    def _linger(self) -> None:
        """Send the end of the stream and read on for a moment.

        Closing a socket with unread input resets it, and the reset may overtake the last reply.
        """
        transport = self.transport
        assert transport is not None
        if self._lingers_until_ns:
            return
        server = self.server
        linger_ns = limits.LINGER_DRAINING_NS if server.draining else server.limits.linger_ns
        self._lingers_until_ns = server.clock.elapsed_ns() + linger_ns
        if self._ended:
            transport.close()
            return
        if transport.can_write_eof():
            transport.write_eof()
        if not self._reading:
            self._reading = True
            transport.resume_reading()

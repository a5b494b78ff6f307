"""Relays lifecycle streams from a follower to the leader.

A client that can reach this node only sends `X-Corvo-Proxy-Stream: 1` when it opens a stream. The
stream is then relayed to the leader over an HTTP/2 connection of its own, with its header fields
and `X-Corvo-Forwarded: 1`: it is not relayed again, and a node that does not lead answers so in the
stream. Bytes are relayed as they arrive, without decoding.

Nothing accumulates here in either direction. Data from the client stays in the window of its stream
until the windows of the leader accept it; while the client does not read, the connection to the
leader is not read.

When one side is gone, the other side is closed. A client that disconnects cuts the connection. A
connection that breaks, or whose node stops leading, ends the stream with `unavailable`: frames with
a response were done, frames without one may have been done, and the client can open another stream
here at once. A response that breaks off inside a message has no place for that status, and just
ends.

Jobs in responses that the leader sent and a disconnected client did not read return when their
leases expire, and the attempt counts: most of them are in transit between the two nodes by then.
"""

import asyncio
import logging
import ssl
from typing import Final, cast

from corvo import limits
from corvo._fast.http.exchange import Request, header_line
from corvo._fast.http2.client import Event, H2Client
from corvo._fast.http2.frames import ConnectionFault
from corvo.net.forward.proxy import passed_on
from corvo.net.forward.upstream import OWN_FIELDS, connect
from corvo.net.rpc.envelopes import Boundaries
from corvo.net.rpc.status import RpcError
from corvo.net.rpc.wire import Wire

logger = logging.getLogger(__name__)

RELAY: Final = b"x-corvo-proxy-stream"
_LOST: Final = "the leader was lost; frames without a response may have taken effect"
Fields = list[tuple[bytes, bytes]]


class StreamRelays:
    """All relayed streams of this node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext | None) -> None:
        """`tls` is for leaders with an https:// address."""
        self._loop = loop
        self._tls = tls
        self._relays: dict[StreamRelay, None] = {}

    def __len__(self) -> int:
        return len(self._relays)

    def wants(self, request: Request) -> bool:
        """Whether the client asks for its stream to be passed on, and no node did so before."""
        rare = request.rare
        return request.forwarded is None and rare is not None and rare.get(RELAY) == b"1"

    def open(self, wire: Wire, url: str) -> None:
        """Relay a stream to the leader at this URL."""
        relay = StreamRelay(self, wire, url)
        self._relays[relay] = None
        relay.connecting = self._loop.create_task(self._connect(relay, url))

    async def _connect(self, relay: "StreamRelay", url: str) -> None:
        try:
            await connect(self._loop, url, relay, self._tls)
        except (OSError, ValueError) as error:
            logger.info("cannot connect to the leader at %s: %s", url, error)
            relay.over("the leader cannot be reached; nothing was done")

    def turn_to(self, address: str) -> None:
        """The node at this address leads: end the streams to other nodes."""
        authority = address.rpartition("//")[2]
        for relay in list(self._relays):
            if relay.authority != authority:
                relay.over()

    def end_all(self) -> None:
        """The server stops."""
        for relay in list(self._relays):
            relay.over("the server is stopping")

    def forget(self, relay: "StreamRelay") -> None:
        """A relayed stream has ended."""
        self._relays.pop(relay, None)


class StreamRelay(asyncio.Protocol):
    """One stream, between the request of a client and a connection to the leader."""

    def __init__(self, relays: StreamRelays, wire: Wire, url: str) -> None:
        scheme, _, self.authority = url.partition("://")
        self.connecting: asyncio.Task[None] | None = None
        self._relays = relays
        self._wire = wire
        self._request = request = wire.request
        self._client = H2Client(self.authority.encode(), scheme.encode())
        self._answers = Boundaries()
        self._stream = 0
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._sent_all = False  # the body of the client is complete
        self._over = False
        self._refused = False  # the leader's answer is no stream of messages
        request.on_abandoned = self._on_abandoned

    # ---- called by the loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected: begin the stream there."""
        self._transport = cast(asyncio.Transport, transport)
        if self._over:
            self._transport.abort()
            return
        request = self._request
        fields = [(name.lower(), value) for name, value in passed_on(request)]
        target = request.path + b"?" + request.query if request.query else request.path
        self._stream = self._client.post(target, [*fields, (b"te", b"trailers")], ends=False)
        request.on_body = self._on_body
        request.on_writable = self._on_writable
        self._pass_on()

    def data_received(self, data: bytes) -> None:
        """Something of the answer, or room for more of the request."""
        if self._over:
            return
        try:
            for event in self._client.feed(data):
                self._take(event)
        except ConnectionFault as fault:
            logger.warning("the leader at %s violates HTTP/2: %s", self.authority, fault)
            self.over()
            return
        if not self._over:
            self._pass_on()

    def pause_writing(self) -> None:
        """The leader is slow: its windows bound what waits here."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection closed, on either side."""
        self._transport = None
        self.over()

    # ---- from the client to the leader ----

    def _pass_on(self) -> None:
        request, client = self._request, self._client
        while not self._sent_all and not client.unsent_size:
            data = request.take_body()
            if data:
                client.send(self._stream, data)
            elif request.receiving:
                break
            else:
                self._sent_all = True
                client.send(self._stream, b"", ends=True)
        if not request.abandoned:
            request.keep_body(client.unsent_size)
        out = client.data_to_send()
        if out and self._transport is not None:
            self._transport.write(out)

    # ---- from the leader to the client ----

    def _take(self, event: Event) -> None:
        request = self._request
        if self._over or event.leaving:
            return
        if event.code >= 0:  # reset, before its end
            self.over()
        elif event.fields is not None:
            self._take_fields(event.fields, event.ended)
        else:
            self._answers.feed(event.data)
            request.send(event.data)
            if request.unsent_size > limits.STREAM_UNSENT_SIZE_MAX:
                self._pause(True)
            if event.ended:
                self._end()

    def _take_fields(self, fields: Fields, ended: bool) -> None:
        """The head of the answer, which may be all of it, or its trailers."""
        request = self._request
        lines = b"".join(
            header_line(name.decode(), value.decode("latin-1"))
            for name, value in fields
            if not name.startswith(b":") and name not in OWN_FIELDS
        )
        if request.replied:
            self._end(lines)
            return
        found = dict(fields)
        status, media = int(found[b":status"]), found.get(b"content-type", b"")
        if ended:
            if media:
                lines += header_line("Content-Type", media.decode())
            self._close()
            request.reply(status, b"", lines)
        else:
            self._refused = status != 200
            request.start(status, lines, media)

    def _pause(self, paused: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing() or paused == self._paused:
            return
        self._paused = paused
        if paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    # ---- the end ----

    def over(self, why: str = _LOST) -> None:
        """It cannot go on."""
        if self._over:
            return
        if self._answers.inside or self._answers.ended or self._refused:
            self._end()  # no place for a status inside a message
        else:
            self._close()
            self._wire.end(RpcError("unavailable", why))

    def _end(self, trailers: bytes = b"") -> None:
        self._close()
        self._request.end(trailers)

    def _close(self) -> None:
        self._over = True
        request = self._request
        request.on_abandoned = request.on_body = request.on_writable = None
        if self.connecting is not None:
            self.connecting.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._relays.forget(self)

    # ---- callbacks of the client connection ----

    def _on_body(self, _request: Request) -> None:
        self._pass_on()

    def _on_writable(self, request: Request) -> None:
        if request.unsent_size <= limits.STREAM_UNSENT_SIZE_MAX:
            self._pause(False)

    def _on_abandoned(self, _request: Request) -> None:
        self._close()

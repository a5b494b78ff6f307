"""Lifecycle streams by way of a follower: passes the frames of one on to the leader, and back.

A client that can reach this node only says `X-Corvo-Proxy-Stream: 1` when it opens a stream. The
stream then goes on to the leader over a connection of HTTP/2 of its own, with what the front end
has kept of its fields and with `X-Corvo-Forwarded: 1`: it is not passed on again, a node that does
not lead says so in the stream, as it would to the client itself. Bytes are passed on as they come;
what they say is not looked at.

Neither way piles anything up here. What the client sends stays in the window of its stream until
the windows of the leader take it; while the client does not take what comes, the connection to the
leader is not read.

When one side is gone the other one is told. A client that leaves cuts the connection. A connection
that breaks, or leads to a node that leads no more, ends the stream with `unavailable`: what has an
answer was done, what has none may have been done, and another stream can be opened here at once. An
answer that broke off inside a message has no room for that word, and just ends.

Jobs in answers that the leader has sent, but a client that leaves has not taken, come back when
their leases end, at the cost of an attempt: most of them are between the two nodes by then, where
nobody knows what is in the bytes.
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
_LOST: Final = "the leader was lost; what has no answer may have been done"
Fields = list[tuple[bytes, bytes]]


class StreamRelays:
    """All of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext | None) -> None:
        """`tls` is for leaders whose address says that they speak it."""
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
        """Pass a stream on to the leader at this URL."""
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
        """The node at this address leads: streams that go elsewhere are over."""
        authority = address.rpartition("//")[2]
        for relay in list(self._relays):
            if relay.authority != authority:
                relay.over()

    def end_all(self) -> None:
        """The server stops."""
        for relay in list(self._relays):
            relay.over("the server is stopping")

    def forget(self, relay: "StreamRelay") -> None:
        """One of them is over."""
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
        self._sent_all = False  # the client has said all it will
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
            logger.warning("the leader at %s breaks the rules: %s", self.authority, fault)
            self.over()
            return
        if not self._over:
            self._pass_on()

    def pause_writing(self) -> None:
        """The leader is slow: its windows bound what waits here."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone, whoever closed it."""
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
            self._end()  # what was passed on does not go on with a message that says why
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

    # ---- what the connection of the client says ----

    def _on_body(self, _request: Request) -> None:
        self._pass_on()

    def _on_writable(self, request: Request) -> None:
        if request.unsent_size <= limits.STREAM_UNSENT_SIZE_MAX:
            self._pause(False)

    def _on_abandoned(self, _request: Request) -> None:
        self._close()

"""Lifecycle streams by way of a follower: passes the frames of one on to the leader, and back.

A client that can reach this node only says `X-Corvo-Proxy-Stream: 1` when it opens a stream. The
stream then goes on to the leader over a connection of HTTP/2 of its own, with what the front end
has kept of its fields and with `X-Corvo-Forwarded: 1`: it is not passed on again, a node that does
not lead says so in the stream, as it would to the client itself. Bytes are passed on as they come;
what they say is not looked at.

Neither way piles anything up here. What the client sends stays in the window of its stream until
the windows of the leader take it; while the client does not take what comes, the connection to the
leader is not read. When one side is gone the other one is told: a client that leaves cuts the
connection, and a connection that breaks, or leads to a node that leads no more, ends the stream
without the word that all went well, so that the client opens another one.
"""

import asyncio
import logging
import ssl
from typing import Final, cast

from corvo import limits
from corvo._fast.frames import ConnectionFault
from corvo._fast.h2client import Event, H2Client
from corvo._fast.replies import Request, header_line
from corvo.limits import SECOND_NS
from corvo.net.proxy import passed_on
from corvo.net.upstream import OWN_FIELDS

logger = logging.getLogger(__name__)

RELAY: Final = b"x-corvo-proxy-stream"
Fields = list[tuple[bytes, bytes]]


def wants_relay(request: Request) -> bool:
    """Whether the stream of this request is to be passed on, and was not already."""
    rare = request.rare
    return request.forwarded is None and rare is not None and rare.get(RELAY) == b"1"


class StreamRelays:
    """All of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext | None) -> None:
        """`tls` is for leaders whose address says that they speak it."""
        self._loop = loop
        self._tls = tls
        self._relays: dict[StreamRelay, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._relays)

    def open(self, request: Request, url: str) -> None:
        """Pass a stream on to the leader at this URL."""
        scheme, _, authority = url.partition("://")
        relay = StreamRelay(self, request, authority, scheme)
        self._relays[relay] = None
        task = self._loop.create_task(self._connect(relay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, relay: "StreamRelay") -> None:
        host, _, port = relay.authority.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        tls = self._tls if relay.scheme == "https" else None
        try:
            async with asyncio.timeout(limits.PROXY_CONNECT_NS / SECOND_NS):
                await self._loop.create_connection(
                    lambda: relay,
                    host,
                    int(port),
                    ssl=tls,
                    server_hostname=host if tls is not None else None,
                )
        except (OSError, ValueError) as error:
            logger.info("cannot connect to the leader at %s: %s", relay.authority, error)
            relay.over()

    def turn_to(self, address: str) -> None:
        """The node at this address leads: streams that go elsewhere are over."""
        authority = address.rpartition("//")[2]
        for relay in list(self._relays):
            if relay.authority != authority:
                relay.over()

    def end_all(self) -> None:
        """The server stops."""
        for relay in list(self._relays):
            relay.over()

    def forget(self, relay: "StreamRelay") -> None:
        """One of them is over."""
        self._relays.pop(relay, None)


class StreamRelay(asyncio.Protocol):
    """One stream, between the request of a client and a connection to the leader."""

    def __init__(self, relays: StreamRelays, request: Request, authority: str, scheme: str) -> None:
        self.authority = authority
        self.scheme = scheme
        self._relays = relays
        self._request = request
        self._client = H2Client(authority.encode(), scheme.encode())
        self._stream = 0
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._sent_all = False  # the client has said all it will
        self._over = False
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

    def over(self) -> None:
        """It cannot go on."""
        if not self._over:
            if not self._request.replied:
                self._request.start(200, b"", self._request.content_type or b"")
            self._end()

    def _end(self, trailers: bytes = b"") -> None:
        self._close()
        self._request.end(trailers)

    def _close(self) -> None:
        self._over = True
        request = self._request
        request.on_abandoned = request.on_body = request.on_writable = None
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

"""One connection between two nodes: a handshake (`peer_protocol`), then frames in both directions.

A `Link` belongs to an `Owner`, which decides which peers are accepted. The dialing side sends a
PING regularly, and the other side replies with PONG: both detect a half-open connection, and the
dialer measures the round-trip time.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, cast

from corvo.consensus.cluster.peer_protocol import (
    MESSAGES,
    PING,
    PONG,
    REFUSAL,
    Accepting,
    Dialing,
    FrameReader,
    Hello,
    PeerRefused,
    decode_here,
    encode_frame,
    encode_where,
)
from corvo.limits import PEER_FRAME_SIZE_MAX, PEER_GREETING_SIZE_MAX
from corvo.platform.noop import noop

_STAMP_SIZE: Final = 8
CHANNEL_UNSENT_SIZE_MAX: Final = 256 * 1024
CHANNEL_FRAMES_MAX: Final = 8  # unread frames; at this number the socket is not read any more


class Tls(NamedTuple):
    """TLS contexts for both sides of connections between nodes."""

    accepting: ssl.SSLContext
    dialing: ssl.SSLContext

    def renew(self, certificate: str, key: str) -> None:
        """Use another certificate for new connections (paths of PEM files)."""
        for context in self:
            context.load_cert_chain(certificate, key)


def mutual_tls(certificate: str, key: str, authority: str) -> Tls:
    """Mutual TLS: both sides need a certificate of this CA (paths of PEM files).

    Host names are not verified: the CA signs only for nodes of this cluster, and the handshake
    identifies the node.
    """
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    dialing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    dialing.check_hostname = False
    for context in (accepting, dialing):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    return Tls(accepting, dialing)


async def query_api_address(
    host: str, port: int, secret: bytes, nonce: bytes, tls: ssl.SSLContext | None
) -> str:
    """Query a peer port for the API address of its node. Raises OSError or PeerRefused."""
    reader, writer = await asyncio.open_connection(
        host, port, ssl=tls, server_hostname=None if tls is None else host
    )
    try:
        writer.write(encode_where(secret, nonce))
        frames = FrameReader()
        while data := await reader.read(PEER_GREETING_SIZE_MAX):
            for kind, payload in frames.feed(data):
                return decode_here(secret, nonce, kind, payload)
        raise ConnectionResetError("no response")
    finally:
        writer.close()


class Owner(Protocol):
    """The transport, as far as links need it."""

    def monotonic_ns(self) -> int:
        """The monotonic time."""

    def judge(self, hello: Hello) -> str:
        """Why an authenticated node that connected is refused, or ""."""

    def judge_incarnation(self, node_id: str, incarnation: str) -> str:
        """Why a node with this incarnation, which this node connected to, is refused, or ""."""

    def established(self, link: "Link") -> None:
        """Handle the end of the handshake."""

    def refused(self, link: "Link", error: PeerRefused) -> None:
        """Handle a protocol violation; the link is being closed."""

    def lost(self, link: "Link") -> None:
        """Handle the end of the connection."""


class Link(asyncio.Protocol):
    """A connection, dialed or accepted according to its handshake."""

    def __init__(self, owner: Owner, handshake: Dialing | Accepting, timeout_s: float) -> None:
        self.owner = owner
        self.handshake = handshake
        self.dialed = isinstance(handshake, Dialing)
        self.established = False
        self.node_id = handshake.hello.target if isinstance(handshake, Dialing) else ""
        self.channel = handshake.hello.channel if isinstance(handshake, Dialing) else MESSAGES
        self.round_trip_ns = 0
        self.sent_size = 0
        self.received_size = 0
        # Called with all frames except those of the handshake and pings.
        self.receive: Callable[[int, bytes], None] = noop
        self.on_writable: Callable[[], None] = noop
        # Completed at the end of the handshake: None, or an exception.
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self._timeout = asyncio.get_running_loop().call_later(timeout_s, self._too_slow)
        self._made = False
        self._silence = 0  # pings since the last received bytes
        self._reading = True
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected, including TLS; the dialing side starts the handshake."""
        self._made = True
        self._transport = cast(asyncio.Transport, transport)
        if isinstance(self.handshake, Dialing):
            self.write(self.handshake.begin())

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes of frames."""
        self._silence = 0
        self.received_size += len(data)
        try:
            for kind, payload in self._reader.feed(data):
                if self._transport is None:
                    return
                self._take(kind, payload)
        except PeerRefused as error:
            self.refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: closed by either side."""
        self._transport = None
        self._timeout.cancel()
        self._fail(ConnectionResetError("closed during the handshake"))
        self.gone.set()
        self.on_writable()
        self.owner.lost(self)

    def resume_writing(self) -> None:
        """asyncio: the write buffer has drained."""
        self.on_writable()

    # Called by the owner.

    @property
    def open(self) -> bool:
        return self._transport is not None

    @property
    def unsent_size(self) -> int:
        """Number of bytes in the write buffer."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Send encoded frames; asyncio joins the writes of one event-loop turn."""
        if self._transport is not None:
            self.sent_size += len(data)
            self._transport.write(data)

    def ping(self, silence_max: int) -> None:
        """Send a PING, or abort after more than `silence_max` pings without any received bytes.

        Pings are counted instead of timed: a process that was paused has not read its sockets.
        """
        if self._reading:
            self._silence += 1
        if self._silence > silence_max:
            self.abort()
        elif self.dialed:
            now_ns = self.owner.monotonic_ns()
            self.write(encode_frame(PING, now_ns.to_bytes(_STAMP_SIZE, "big")))

    def read_more(self, wanted: bool) -> None:
        """Resume or pause reading from the socket."""
        if self._transport is None or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._silence = 0
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close after the written data is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, or cancel a connection that is not open yet."""
        if self._transport is not None:
            self._transport.abort()
        elif not self._made:
            self._timeout.cancel()
            self.gone.set()

    def refuse(self, error: PeerRefused) -> None:
        """Send the reason if the handshake is not over, and close."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        if self.established:
            transport.abort()
        else:
            self._fail(error)
            if not self.dialed:
                transport.write(encode_frame(REFUSAL, error.reason.encode()))
            transport.close()
        self.owner.refused(self, error)

    def _fail(self, error: Exception) -> None:
        """Fail the future of the handshake."""
        if not self.greeted.done():
            self.greeted.set_exception(error)
            self.greeted.exception()

    def _too_slow(self) -> None:
        if self._made:
            self.refuse(PeerRefused("slow", "the handshake took too long"))
        elif not self.dialed:
            # asyncio does not report a failed TLS handshake of an accepted connection.
            self.owner.refused(self, PeerRefused("certificate", "no TLS"))
            self.owner.lost(self)

    def _take(self, kind: int, payload: bytes) -> None:
        if self.established:
            if kind == PING and not self.dialed and len(payload) == _STAMP_SIZE:
                self.write(encode_frame(PONG, payload))
            elif kind == PONG and self.dialed and len(payload) == _STAMP_SIZE:
                sent_ns = int.from_bytes(payload, "big")
                self.round_trip_ns = self.owner.monotonic_ns() - sent_ns
            elif kind > PONG:
                self.receive(kind, payload)
            else:
                raise PeerRefused("frame", f"unexpected type {kind}")
            return
        self._greet(kind, payload)

    def _greet(self, kind: int, payload: bytes) -> None:
        handshake = self.handshake
        if isinstance(handshake, Dialing):
            answer = handshake.take(kind, payload)
            if handshake.done and handshake.peer is not None:
                reason = self.owner.judge_incarnation(self.node_id, handshake.peer.incarnation)
                if reason:
                    raise PeerRefused(reason, f"node {self.node_id!r}")
        else:
            answer = handshake.take(kind, payload, self.owner.judge)
            if handshake.done and handshake.peer is not None:
                self.node_id = handshake.peer.node_id
                self.channel = handshake.peer.channel
        if answer:
            self.write(answer)
        if handshake.done:
            self._timeout.cancel()
            self.established = True
            self._reader.size_max = PEER_FRAME_SIZE_MAX
            self.greeted.set_result(None)
            self.owner.established(self)


class Channel:
    """A link whose frames one coroutine reads and writes in order.

    Both directions have backpressure, so buffers are bounded."""

    def __init__(self, link: Link) -> None:
        self.node_id = link.node_id
        self._link = link
        self._frames: deque[tuple[int, bytes]] = deque()
        self._changed = asyncio.Event()
        link.receive = self._on_frame
        link.on_writable = self._changed.set

    async def receive(self) -> tuple[int, bytes]:
        """Return type and payload of the next frame. Raises ConnectionResetError at the end."""
        while not self._frames:
            await self._change()
        frame = self._frames.popleft()
        if not self._frames:
            self._link.read_more(True)
        return frame

    async def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a frame when the write buffer has room. Raises ConnectionResetError."""
        while self._link.unsent_size > CHANNEL_UNSENT_SIZE_MAX:
            await self._change()
        if not self._link.open:
            raise ConnectionResetError("the channel is closed")
        self._link.write(encode_frame(kind, payload))

    def close(self) -> None:
        """Close after the written data is sent."""
        self._link.close()

    async def _change(self) -> None:
        if not self._link.open:
            raise ConnectionResetError("the channel is closed")
        self._changed.clear()
        await self._changed.wait()

    def _on_frame(self, kind: int, payload: bytes) -> None:
        self._frames.append((kind, payload))
        if len(self._frames) >= CHANNEL_FRAMES_MAX:
            self._link.read_more(False)
        self._changed.set()

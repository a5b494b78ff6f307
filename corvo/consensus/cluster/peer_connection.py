"""One connection between two nodes: the handshake of `peers`, then frames in both directions.

A `Link` belongs to an `Owner` which knows who may come in. The side that dialled sends a PING now
and then, which the other side answers: both notice a connection that is only half there, and the
dialler learns how long a round trip takes.
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
    Dialling,
    FrameReader,
    Hello,
    PeerRefused,
    decode_here,
    encode_frame,
    encode_where,
)
from corvo.limits import PEER_FRAME_SIZE_MAX, PEER_GREETING_SIZE_MAX

_STAMP_SIZE: Final = 8
CHANNEL_UNSENT_SIZE_MAX: Final = 256 * 1024
CHANNEL_FRAMES_MAX: Final = 8  # that wait to be read; then the other side is not read from


class Tls(NamedTuple):
    """Both sides of TLS between nodes."""

    accepting: ssl.SSLContext
    dialling: ssl.SSLContext

    def renew(self, certificate: str, key: str) -> None:
        """Show this certificate on the connections to come (paths of PEM files)."""
        for context in self:
            context.load_cert_chain(certificate, key)


def mutual_tls(certificate: str, key: str, authority: str) -> Tls:
    """TLS in which both sides must show a certificate of this authority (paths of PEM files).

    Host names are not compared: the authority signs for nodes of this cluster and nobody else, and
    which node it is the handshake tells.
    """
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    dialling.check_hostname = False
    for context in (accepting, dialling):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    return Tls(accepting, dialling)


async def ask_where(
    host: str, port: int, secret: bytes, nonce: bytes, tls: ssl.SSLContext | None
) -> str:
    """Where the node that listens for others here serves HTTP. Raises OSError or PeerRefused."""
    reader, writer = await asyncio.open_connection(
        host, port, ssl=tls, server_hostname=None if tls is None else host
    )
    try:
        writer.write(encode_where(secret, nonce))
        frames = FrameReader()
        while data := await reader.read(PEER_GREETING_SIZE_MAX):
            for kind, payload in frames.feed(data):
                return decode_here(secret, nonce, kind, payload)
        raise ConnectionResetError("no answer")
    finally:
        writer.close()


class Owner(Protocol):
    """What links need of the transport."""

    def monotonic_ns(self) -> int:
        """The time."""

    def judge(self, hello: Hello) -> str:
        """Why a node that dialled and has proved itself is refused, or ""."""

    def judge_incarnation(self, node_id: str, incarnation: str) -> str:
        """The same of a node that was dialled."""

    def established(self, link: "Link") -> None:
        """The handshake is over."""

    def refused(self, link: "Link", error: PeerRefused) -> None:
        """The link broke a rule and is being closed."""

    def lost(self, link: "Link") -> None:
        """The connection is gone."""


class Link(asyncio.Protocol):
    """A connection, dialled or accepted as its handshake says."""

    def __init__(self, owner: Owner, handshake: Dialling | Accepting, timeout_s: float) -> None:
        self.owner = owner
        self.handshake = handshake
        self.dialled = isinstance(handshake, Dialling)
        self.established = False
        self.node_id = handshake.hello.target if isinstance(handshake, Dialling) else ""
        self.channel = handshake.hello.channel if isinstance(handshake, Dialling) else MESSAGES
        self.round_trip_ns = 0
        self.sent_size = 0
        self.received_size = 0
        # Frames other than those of the handshake and of the link itself.
        self.receive: Callable[[int, bytes], None] = _ignore
        self.on_writable: Callable[[], None] = _nothing
        # Ends with the handshake: None, or why it failed.
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self._timeout = asyncio.get_running_loop().call_later(timeout_s, self._too_slow)
        self._made = False
        self._silence = 0  # pings since something was heard
        self._reading = True
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bytes can flow, over TLS if there is any: begin, if it is on us."""
        self._made = True
        self._transport = cast(asyncio.Transport, transport)
        if isinstance(self.handshake, Dialling):
            self.write(self.handshake.begin())

    def data_received(self, data: bytes) -> None:
        """Take what came, unless it breaks a rule."""
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
        """Gone, whoever closed it."""
        self._transport = None
        self._timeout.cancel()
        self._fail(ConnectionResetError("closed during the handshake"))
        self.gone.set()
        self.on_writable()
        self.owner.lost(self)

    def resume_writing(self) -> None:
        """The other side has taken most of what was written."""
        self.on_writable()

    # Called by the owner.

    @property
    def open(self) -> bool:
        return self._transport is not None

    @property
    def unsent_size(self) -> int:
        """Bytes that the other side has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Send frames. What is written in a turn of the loop leaves together."""
        if self._transport is not None:
            self.sent_size += len(data)
            self._transport.write(data)

    def ping(self, silence_max: int) -> None:
        """Ask whether the other side is there, or give up when so many pings brought nothing.

        They are counted, not timed: a process that did not run for a while has not listened.
        """
        if self._reading:
            self._silence += 1
        if self._silence > silence_max:
            self.abort()
        elif self.dialled:
            now_ns = self.owner.monotonic_ns()
            self.write(encode_frame(PING, now_ns.to_bytes(_STAMP_SIZE, "big")))

    def read_more(self, wanted: bool) -> None:
        """Take bytes from the socket, or leave them there."""
        if self._transport is None or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._silence = 0
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Send what was written, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, or never begin."""
        if self._transport is not None:
            self._transport.abort()
        elif not self._made:
            self._timeout.cancel()
            self.gone.set()

    def refuse(self, error: PeerRefused) -> None:
        """Say why, if the other side waits for it, and close."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        if self.established:
            transport.abort()
        else:
            self._fail(error)
            if not self.dialled:
                transport.write(encode_frame(REFUSAL, error.reason.encode()))
            transport.close()
        self.owner.refused(self, error)

    def _fail(self, error: Exception) -> None:
        """Tell who waits for the end of the handshake, if anybody does."""
        if not self.greeted.done():
            self.greeted.set_exception(error)
            self.greeted.exception()

    def _too_slow(self) -> None:
        if self._made:
            self.refuse(PeerRefused("slow", "the handshake took too long"))
        elif not self.dialled:
            # Nobody tells us when TLS fails on a connection that was accepted.
            self.owner.refused(self, PeerRefused("certificate", "no TLS"))
            self.owner.lost(self)

    def _take(self, kind: int, payload: bytes) -> None:
        if self.established:
            if kind == PING and not self.dialled and len(payload) == _STAMP_SIZE:
                self.write(encode_frame(PONG, payload))
            elif kind == PONG and self.dialled and len(payload) == _STAMP_SIZE:
                sent_ns = int.from_bytes(payload, "big")
                self.round_trip_ns = self.owner.monotonic_ns() - sent_ns
            elif kind > PONG:
                self.receive(kind, payload)
            else:
                raise PeerRefused("frame", f"type {kind} is out of turn")
            return
        self._greet(kind, payload)

    def _greet(self, kind: int, payload: bytes) -> None:
        handshake = self.handshake
        if isinstance(handshake, Dialling):
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
    """A link whose frames are read and written one after the other, by one coroutine. Both sides
    wait for each other: nothing piles up."""

    def __init__(self, link: Link) -> None:
        self.node_id = link.node_id
        self._link = link
        self._frames: deque[tuple[int, bytes]] = deque()
        self._changed = asyncio.Event()
        link.receive = self._on_frame
        link.on_writable = self._changed.set

    async def receive(self) -> tuple[int, bytes]:
        """Type and payload of the next frame. ConnectionResetError: there will be none."""
        while not self._frames:
            await self._change()
        frame = self._frames.popleft()
        if not self._frames:
            self._link.read_more(True)
        return frame

    async def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a frame, once the ones before are mostly gone. Raises ConnectionResetError."""
        while self._link.unsent_size > CHANNEL_UNSENT_SIZE_MAX:
            await self._change()
        if not self._link.open:
            raise ConnectionResetError("the channel is closed")
        self._link.write(encode_frame(kind, payload))

    def close(self) -> None:
        """Send what was written, then close."""
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


def _ignore(_kind: int, _payload: bytes) -> None:
    pass


def _nothing() -> None:
    pass

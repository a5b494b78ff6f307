"""Transport: Raft messages between the nodes of a cluster, over TCP.

Each node dials every peer and retries with backoff, doubling up to a second. A node sends on the
connections that it opened and receives on the connections that peers opened. `peer_protocol`
describes the frames, the handshake and which nodes are accepted.

The transport guarantees only authenticity: messages can be lost or late, which Raft tolerates. A
message that cannot be sent (no connection, or PEER_UNSENT_SIZE_MAX unsent bytes for a slow peer) is
dropped, counted and reported by `on_unreachable`. `send` never waits: it writes all messages of a
call to the sockets, with one write per peer.

A node that left the configuration is not dialed any more. Connections that it opened stay for a
short time, so that a leader that removed itself can still commit its removal; new connections are
checked again.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from corvo._fast.codec.layouts import CodecError
from corvo.consensus.cluster.peer_connection import Channel, Link, Tls
from corvo.consensus.cluster.peer_protocol import (
    MESSAGE,
    MESSAGES,
    NONCE_SIZE,
    REASONS,
    SECRET_SIZE_MIN,
    SNAPSHOTS,
    STATE,
    WIRE_VERSION,
    Accepting,
    Dialing,
    Hello,
    PeerRefused,
    encode_frame,
)
from corvo.consensus.raft.messages import Message, decode_message, encode_message
from corvo.limits import PEER_GREETINGS_MAX, PEER_UNSENT_SIZE_MAX, SECOND_NS
from corvo.platform.clock import Clock

logger = logging.getLogger(__name__)

_INDEX_SIZE: Final = 8
_LOG_AGAIN_NS: Final = 60 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Pace:
    """Timing of the transport."""

    connect_s: float = 2.0
    greeting_s: float = 3.0
    ping_s: float = 1.0
    silence_max: int = 4  # pings without a response before a connection counts as dead
    retry_min_s: float = 0.05
    retry_max_s: float = 1.0
    leaving_s: float = 10.0  # how long connections of a removed node stay


class PeerStatus(NamedTuple):
    """Status of a peer for operators; counters start with this process."""

    node_id: str
    address: str
    connected: bool  # whether messages can be sent to it
    error: str  # why it is not connected
    connects: int
    refusals: dict[str, int]  # refused connections to it, by reason
    sent: int  # messages
    received: int
    dropped: int
    sent_size: int
    received_size: int
    round_trip_ns: int  # 0 = unknown


class _Peer:
    """Another node of the cluster."""

    def __init__(self, node_id: str, address: str, incarnation: str) -> None:
        self.node_id = node_id
        self.address = address
        self.incarnation = incarnation  # "" = unknown
        self.link: Link | None = None
        self.task: asyncio.Task[None] | None = None
        self.error = "not connected yet"
        self.connects = 0
        self.refusals: dict[str, int] = {}
        self.sent = 0
        self.received = 0
        self.dropped = 0
        self.sent_size = 0  # this and the next: of closed connections
        self.received_size = 0
        self.round_trip_ns = 0


class _PeerBatch:
    """Frames of one `send` call to one peer."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.room = PEER_UNSENT_SIZE_MAX - link.unsent_size
        self.frames: list[bytes] = []


class Transport:
    """All connections of a node with its peers."""

    def __init__(
        self,
        node_id: str,
        cluster_id: str,
        incarnation: str,
        secret: bytes,
        bind: str,
        on_message: Callable[[Message], None],
        on_unreachable: Callable[[str], None],
        *,
        clock: Clock,
        on_channel: Callable[[Channel], None] | None = None,
        tls: Tls | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`bind` is host:port.

        The callbacks run on the event loop, never inside `send`. They get received messages, ids of
        peers to which messages are lost, and channels that peers opened for snapshots."""
        assert len(secret) >= SECRET_SIZE_MIN
        self.node_id = node_id
        self.port = 0
        self.on_state: Callable[[str, int, bytes], None] = _ignore_state
        self.api = ""  # API address of this node, the response to WHERE
        self.refusals = dict.fromkeys(REASONS, 0)  # refused connections of other nodes
        self._peers: dict[str, _Peer] = {}
        self._cluster_id = cluster_id
        self._incarnation = incarnation
        self._secret = secret
        self._bind = bind
        self._on_message = on_message
        self._on_unreachable = on_unreachable
        self._on_channel = on_channel
        self._clock = clock
        self._tls = tls
        self._pace = pace or Pace()
        self._configuration = 0
        self._greeting: dict[Link, None] = {}  # accepted links in the handshake, in order
        self._accepted: dict[tuple[str, int], Link] = {}  # by node and channel
        self._channels: dict[Link, None] = {}  # dialed channels
        self._lost_to: dict[str, None] = {}  # peers to report as unreachable
        self._logged_ns: dict[tuple[str, str], int] = {}
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # ---- calls of the driver ----

    async def start(self) -> None:
        """Listen, and start to dial the peers. Raises OSError if the address is unavailable."""
        self._loop = asyncio.get_running_loop()
        host, port = split_address(self._bind)
        tls = None if self._tls is None else self._tls.accepting
        timeout_s = None if tls is None else self._pace.greeting_s
        self._listener = await self._loop.create_server(
            self._accept, host or None, port, ssl=tls, ssl_handshake_timeout=timeout_s
        )
        self.port = cast(Any, self._listener).sockets[0].getsockname()[1]
        self._tick()
        for peer in self._peers.values():
            self._dial_forever(peer)

    def set_peers(
        self,
        addresses: dict[str, str],
        configuration: int,
        incarnations: dict[str, str] | None = None,
    ) -> None:
        """Set the members of the cluster and their addresses; this node itself is ignored.

        `configuration` is the index of the log entry with this configuration; 0 = none (a new node
        that has the addresses from its settings). `incarnations` are the known incarnations; others
        are taken from the first connection.
        """
        self._configuration = configuration
        known = incarnations or {}
        for node_id in [node_id for node_id in self._peers if node_id not in addresses]:
            self._leave(self._peers.pop(node_id))
        for node_id, address in addresses.items():
            if node_id == self.node_id:
                continue
            peer = self._peers.get(node_id)
            if peer is None:
                peer = self._peers[node_id] = _Peer(node_id, address, known.get(node_id, ""))
                if self._listener is not None:
                    self._dial_forever(peer)
                continue
            if known.get(node_id, peer.incarnation) != peer.incarnation:
                peer.incarnation = known[node_id]
                self._hang_up(peer.link)
                self._hang_up(self._accepted.get((node_id, MESSAGES)))
            if address != peer.address:
                peer.address = address
                self._hang_up(peer.link)

    def send(self, messages: list[Message]) -> None:
        """Send the messages that can be sent, and drop the rest."""
        batches: dict[str, _PeerBatch] = {}
        for message in messages:
            node_id = message.to_id
            batch = batches.get(node_id)
            if batch is None:
                link = self._link_to(node_id)
                if link is None:
                    self._lose(node_id)
                    continue
                batch = batches[node_id] = _PeerBatch(link)
            frame = encode_frame(MESSAGE, encode_message(message))
            if len(frame) > batch.room:
                self._lose(node_id)
                continue
            batch.room -= len(frame)
            batch.frames.append(frame)
        for node_id, batch in batches.items():
            batch.link.write(b"".join(batch.frames))
            peer = self._peers.get(node_id)
            if peer is not None:
                peer.sent += len(batch.frames)

    def send_state_hash(self, index: int, hash: bytes) -> None:
        """Send the state hash after an entry to all reachable peers."""
        frame = encode_frame(STATE, index.to_bytes(_INDEX_SIZE, "big") + hash)
        for node_id in self._peers:
            link = self._link_to(node_id)
            if link is not None and link.unsent_size < PEER_UNSENT_SIZE_MAX:
                link.write(frame)

    def status(self) -> list[PeerStatus]:
        """The status of each peer, in the order of their ids."""
        return [self._status(peer) for _, peer in sorted(self._peers.items())]

    def _status(self, peer: _Peer) -> PeerStatus:
        links = [self._accepted.get((peer.node_id, MESSAGES)), peer.link]
        return PeerStatus(
            peer.node_id,
            peer.address,
            peer.link is not None,
            peer.error,
            peer.connects,
            dict(peer.refusals),
            peer.sent,
            peer.received,
            peer.dropped,
            peer.sent_size + sum(link.sent_size for link in links if link is not None),
            peer.received_size + sum(link.received_size for link in links if link is not None),
            peer.round_trip_ns,
        )

    async def open_channel(self, node_id: str) -> Channel:
        """Open a separate connection to a peer for a snapshot.

        Raises OSError, also for a refusal or a timeout."""
        peer = self._peers.get(node_id)
        if peer is None:
            raise ConnectionRefusedError(f"node {node_id!r} is not a peer")
        try:
            link = await self._dial(peer, SNAPSHOTS)
        except PeerRefused as error:
            raise ConnectionRefusedError(str(error)) from None
        if link.open:
            self._channels[link] = None
        return Channel(link)

    async def close(self) -> None:
        """Close all connections; no callback is called after this."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        tasks = [peer.task for peer in self._peers.values() if peer.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        links = [*self._greeting, *self._accepted.values(), *self._channels]
        links += [peer.link for peer in self._peers.values() if peer.link is not None]
        for link in links:
            link.abort()
        for link in links:
            await link.gone.wait()

    # ---- calls of links ----

    def monotonic_ns(self) -> int:
        """See `Owner`."""
        return self._clock.monotonic_ns()

    def judge(self, hello: Hello) -> str:
        """See `Owner`."""
        reason = self.judge_incarnation(hello.node_id, hello.incarnation)
        if reason:
            return reason
        stranger = hello.node_id not in self._peers
        return "unknown" if stranger and hello.configuration <= self._configuration else ""

    def judge_incarnation(self, node_id: str, incarnation: str) -> str:
        """See `Owner`."""
        peer = self._peers.get(node_id)
        if peer is not None:
            peer.incarnation = peer.incarnation or incarnation
            if peer.incarnation != incarnation:
                return "incarnation"
        return "unknown" if node_id == self.node_id else ""

    def established(self, link: Link) -> None:
        """See `Owner`."""
        if link.dialed:
            return
        self._greeting.pop(link, None)
        key = (link.node_id, link.channel)
        former = self._accepted.get(key)
        if former is not None:
            former.abort()
        self._accepted[key] = link
        if link.channel == SNAPSHOTS and self._on_channel is not None:
            self._on_channel(Channel(link))
        elif link.channel == MESSAGES:
            link.receive = self._receiver(link)

    def refused(self, link: Link, error: PeerRefused) -> None:
        """See `Owner`."""
        if not link.dialed:
            self.refusals[error.reason] += 1
        self._log_refusal(link, error)

    def lost(self, link: Link) -> None:
        """See `Owner`."""
        self._greeting.pop(link, None)
        self._channels.pop(link, None)
        key = (link.node_id, link.channel)
        if not link.dialed and self._accepted.get(key) is link:
            del self._accepted[key]
        peer = self._peers.get(link.node_id)
        if peer is not None:
            peer.sent_size += link.sent_size
            peer.received_size += link.received_size

    # ---- dialing ----

    def _dial_forever(self, peer: _Peer) -> None:
        peer.task = self._loop.create_task(self._keep_dialing(peer))

    async def _keep_dialing(self, peer: _Peer) -> None:
        pace = self._pace
        pause_s = pace.retry_min_s
        while True:
            try:
                link = await self._dial(peer, MESSAGES)
            except (OSError, PeerRefused) as error:
                if isinstance(error, PeerRefused):
                    peer.refusals[error.reason] = peer.refusals.get(error.reason, 0) + 1
                peer.error = str(error) or type(error).__name__
            else:
                pause_s = pace.retry_min_s
                link.receive = self._receiver(link)
                peer.link = link
                peer.connects += 1
                peer.error = ""
                logger.info("connected to node %s at %s", peer.node_id, peer.address)
                await link.gone.wait()
                peer.link = None
                peer.error = "connection lost"
                self._report(peer.node_id)
                logger.info("lost the connection to node %s", peer.node_id)
            # Jitter between 0.5 and 1, so that nodes do not dial at the same time.
            spread = self._clock.random_bytes(1)[0] / 255
            await asyncio.sleep(pause_s * (1 + spread) / 2)
            pause_s = min(2 * pause_s, pace.retry_max_s)

    async def _dial(self, peer: _Peer, channel: int) -> Link:
        """Connect and complete the handshake. Raises OSError or PeerRefused."""
        host, port = split_address(peer.address)
        hello = Hello(
            WIRE_VERSION,
            channel,
            self._cluster_id,
            self.node_id,
            self._incarnation,
            peer.node_id,
            self._configuration,
            self._clock.random_bytes(NONCE_SIZE),
        )
        link = Link(self, Dialing(hello, self._secret), self._pace.greeting_s)
        tls = None if self._tls is None else self._tls.dialing
        name = None if tls is None else host
        try:
            # Not `wait_for`, which can swallow the cancellation of the task.
            async with asyncio.timeout(self._pace.connect_s):
                await self._loop.create_connection(
                    lambda: link, host, port, ssl=tls, server_hostname=name
                )
            await link.greeted
        except ssl.SSLError as error:
            raise PeerRefused("certificate", str(error)) from None
        except BaseException:
            link.abort()
            raise
        return link

    def _hang_up(self, link: Link | None) -> None:
        if link is not None:
            link.abort()

    def _leave(self, peer: _Peer) -> None:
        if peer.task is not None:
            peer.task.cancel()
        if peer.link is not None:
            peer.link.close()
            peer.link = None
        if not self._closed and self._listener is not None:
            self._loop.call_later(self._pace.leaving_s, self._forget, peer.node_id)

    def _forget(self, node_id: str) -> None:
        if node_id not in self._peers:
            for (other, _), link in list(self._accepted.items()):
                if other == node_id:
                    link.abort()

    # ---- accepting ----

    def _accept(self) -> asyncio.Protocol:
        nonce = self._clock.random_bytes(NONCE_SIZE)
        accepting = Accepting(
            self._cluster_id, self.node_id, self._incarnation, self._secret, nonce, self.api
        )
        link = Link(self, accepting, self._pace.greeting_s)
        if len(self._greeting) >= PEER_GREETINGS_MAX:
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.refuse(PeerRefused("crowded"))
        self._greeting[link] = None
        return link

    # ---- messages ----

    def _receiver(self, link: Link) -> Callable[[int, bytes], None]:
        def receive(kind: int, payload: bytes) -> None:
            if kind == STATE and not self._closed:
                index = int.from_bytes(payload[:_INDEX_SIZE], "big")
                self.on_state(link.node_id, index, payload[_INDEX_SIZE:])
                return
            if kind != MESSAGE:
                raise PeerRefused("frame", f"type {kind} on the channel of messages")
            try:
                message = decode_message(payload)
            except CodecError as error:
                raise PeerRefused("message", str(error)) from None
            if message.from_id != link.node_id or message.to_id != self.node_id:
                raise PeerRefused("message", f"from {message.from_id!r} to {message.to_id!r}")
            peer = self._peers.get(link.node_id)
            if peer is not None:
                peer.received += 1
            if not self._closed:
                self._on_message(message)

        return receive

    def _link_to(self, node_id: str) -> Link | None:
        peer = self._peers.get(node_id)
        link = None if peer is None else peer.link
        if link is None:
            link = self._accepted.get((node_id, MESSAGES))
        return link if link is not None and link.open else None

    def _lose(self, node_id: str) -> None:
        peer = self._peers.get(node_id)
        if peer is not None:
            peer.dropped += 1
        self._report(node_id)

    def _report(self, node_id: str) -> None:
        """Report a peer as unreachable to the driver, in the next event-loop turn."""
        if not self._lost_to:
            self._loop.call_soon(self._report_all)
        self._lost_to[node_id] = None

    def _report_all(self) -> None:
        lost_to, self._lost_to = self._lost_to, {}
        for node_id in lost_to:
            if not self._closed:
                self._on_unreachable(node_id)

    # ---- time ----

    def _tick(self) -> None:
        for link in [*self._accepted.values(), *self._channels]:
            link.ping(self._pace.silence_max)
        for peer in self._peers.values():
            if peer.link is not None:
                peer.link.ping(self._pace.silence_max)
                peer.round_trip_ns = peer.link.round_trip_ns
        self._timer = self._loop.call_later(self._pace.ping_s, self._tick)

    def _log_refusal(self, link: Link, error: PeerRefused) -> None:
        """Log each kind of refusal at most once a minute, so that a client cannot fill the log."""
        key = (link.node_id, error.reason)
        now_ns = self.monotonic_ns()
        if now_ns - self._logged_ns.get(key, now_ns - _LOG_AGAIN_NS - 1) > _LOG_AGAIN_NS:
            self._logged_ns[key] = now_ns
            peer = f"node {link.node_id}" if link.node_id else "a connection"
            logger.warning("refused %s: %s", peer, error)


def split_address(address: str) -> tuple[str, int]:
    """Split "host:port" into host, without brackets, and port. Raises OSError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise OSError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _ignore_state(_node_id: str, _index: int, _hash: bytes) -> None:
    pass

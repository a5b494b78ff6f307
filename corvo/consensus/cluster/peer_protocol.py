"""Sans-I/O peer protocol: framing and handshake.

A frame, integers big-endian:

    length:4  type:1  payload  crc:4

`length` is the size of the payload; `crc` is the CRC32C of everything before it. The dialer starts:

    dialer                                acceptor
    HELLO      own id, wanted node    ->
                                      <-  CHALLENGE  own id
    PROOF                             ->
                                      <-  WELCOME    proof of the acceptor
    then frames of the channel in HELLO

A proof is the HMAC-SHA256, keyed with the cluster secret, of a label for the side and of the
digests of HELLO and CHALLENGE, which each contain 32 random bytes of their sender. So a proof is
valid only for one connection, one direction and exactly these messages. The dialer sends its proof
first, so a client without the secret receives nothing that helps to guess it.

Instead of HELLO, a node that knows only this port can query the address of the HTTP API: WHERE with
32 random bytes and a proof; the response is HERE with an address and a proof.

At any point the acceptor can send REFUSAL with a reason and close. Until WELCOME this module passes
no data of the other side on.

The acceptor checks, in this order:

    version        the wire version is the same
    cluster        the cluster id is the same: data of two clusters never mixes
    target         the wanted node is this node
    secret         the proof is valid
    incarnation    it equals that of the member in the configuration, or the first one seen. A node
                   that lost its disk is another node, in spite of its name
    unknown        the node is a member, or it has a newer configuration than this node

The last rule lets nodes join. A new node gets the secret from its operator, and the cluster id and
the addresses of the members over HTTP from the node that it joins through. The leader appends a
configuration with the new node and then dials it: the new node has no configuration, so that of the
leader is newer. A member without this entry sees an unknown node with a higher configuration index.
The proof shows that the node belongs to the cluster, so the member concludes that its own
configuration is outdated. For the same reason a member that was down for a long time accepts an
unknown leader. A removed node has a configuration index that the members have, too, but is not in
that configuration; it is refused. Replies to a node with an unknown address use the connection that
the node opened.

The secret authenticates the other side. It neither encrypts nor protects later frames: on an
untrusted network use TLS.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from corvo._fast.codec.layouts import CodecError, decode_fields, encode_fields
from corvo._fast.codec.wal_record import crc32c
from corvo.limits import PEER_FRAME_SIZE_MAX, PEER_GREETING_SIZE_MAX

WIRE_VERSION: Final = 1
NONCE_SIZE: Final = 32
SECRET_SIZE_MIN: Final = 16

# Types of frames.
HELLO: Final = 1
CHALLENGE: Final = 2
PROOF: Final = 3
WELCOME: Final = 4
REFUSAL: Final = 5
PING: Final = 6  # 8 opaque bytes, which PONG repeats
PONG: Final = 7
MESSAGE: Final = 8  # a message, see `raft.messages`
OFFER: Final = 9  # this and the next three: see `snapshots`
RESUME: Final = 10
CHUNK: Final = 11
DONE: Final = 12
WHERE: Final = 13
HERE: Final = 14
STATE: Final = 15  # the hash of the sender's state: index:8 hash
_TYPE_MAX: Final = STATE

# Channels.
MESSAGES: Final = 1
SNAPSHOTS: Final = 2

# Reasons why a connection is refused; also labels of its counters.
REASONS: Final = (
    "version",
    "cluster",
    "target",
    "secret",
    "incarnation",
    "unknown",
    "frame",  # invalid length, type or checksum, or an unexpected frame
    "message",  # it cannot be decoded, or has another sender or receiver
    "slow",  # handshake timeout
    "crowded",  # too many concurrent handshakes
    "certificate",  # TLS failed
)

_HEAD_SIZE: Final = 5
_CRC_SIZE: Final = 4
_HELLO: Final = "uussssub"
_CHALLENGE: Final = "ussb"
_DIALER: Final = b"corvo peer dialler"  # wire format, hence the spelling
_ACCEPTOR: Final = b"corvo peer acceptor"
_QUERY: Final = b"corvo peer asker"
_RESPONSE: Final = b"corvo peer teller"
_PROOF_SIZE: Final = 32


class PeerRefused(Exception):
    """The connection is refused and closed; `reason` is one of REASONS."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Hello(NamedTuple):
    """First frame of a dialer: its own identity and the wanted node."""

    version: int
    channel: int
    cluster_id: str
    node_id: str
    incarnation: str
    target: str
    configuration: int  # index of its newest configuration, 0 = none
    nonce: bytes


class Challenge(NamedTuple):
    """Reply of an acceptor to HELLO: its own identity."""

    version: int
    node_id: str
    incarnation: str
    nonce: bytes


# Returns why an authenticated node is refused, or "".
Judge = Callable[[Hello], str]


def encode_frame(kind: int, payload: bytes = b"") -> bytes:
    """Encode a frame."""
    head = len(payload).to_bytes(4, "big") + bytes((kind,))
    crc = crc32c(crc32c(0, head), payload)
    return b"".join((head, payload, crc.to_bytes(4, "big")))


class FrameReader:
    """Splits received bytes into frames; buffers at most one incomplete frame."""

    def __init__(self) -> None:
        self.size_max = PEER_GREETING_SIZE_MAX  # until the handshake is over
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield type and payload of the complete frames. Raises PeerRefused.

        `size_max` can change between two frames; the caller must consume all frames.
        """
        rest = self._rest
        rest += data
        at = 0
        while len(rest) - at >= _HEAD_SIZE:
            size = int.from_bytes(rest[at : at + 4], "big")
            kind = rest[at + 4]
            # Checked before the payload arrives: an invalid length allocates no buffer.
            if size > self.size_max:
                raise PeerRefused("frame", f"{size} bytes exceed the limit of {self.size_max}")
            if not 0 < kind <= _TYPE_MAX:
                raise PeerRefused("frame", f"unknown type {kind}")
            end = at + _HEAD_SIZE + size
            if len(rest) < end + _CRC_SIZE:
                break
            with memoryview(rest) as view:
                body = bytes(view[at:end])
            if crc32c(0, body) != int.from_bytes(rest[end : end + _CRC_SIZE], "big"):
                raise PeerRefused("frame", "wrong checksum")
            at = end + _CRC_SIZE
            yield kind, body[_HEAD_SIZE:]
        del rest[:at]


class Dialing:
    """The handshake of the dialing side."""

    def __init__(self, hello: Hello, secret: bytes) -> None:
        assert len(hello.nonce) == NONCE_SIZE
        self.done = False
        self.hello = hello
        self.peer: Challenge | None = None
        self._secret = secret
        self._hello = encode_fields(_HELLO, tuple(hello))
        self._challenge_bytes = b""

    def begin(self) -> bytes:
        """Return the first frame to send."""
        return encode_frame(HELLO, self._hello)

    def take(self, kind: int, payload: bytes) -> bytes:
        """Handle a frame and return the reply to send. Raises PeerRefused; sets `done` at the
        end."""
        if kind == REFUSAL:
            reason = payload.decode("ascii", "replace")
            raise PeerRefused(reason if reason in REASONS else "frame", "reported by the peer")
        if kind == CHALLENGE and self.peer is None:
            self.peer = challenge = _decode_challenge(payload)
            if challenge.version != WIRE_VERSION:
                raise PeerRefused("version", f"the peer has version {challenge.version}")
            if challenge.node_id != self.hello.target:
                raise PeerRefused("target", f"{challenge.node_id!r} responded")
            self._challenge_bytes = payload
            return encode_frame(
                PROOF, _prove(self._secret, _DIALER, self._hello, self._challenge_bytes)
            )
        if kind == WELCOME and self.peer is not None:
            _check(self._secret, _ACCEPTOR, self._hello, self._challenge_bytes, payload)
            self.done = True
            return b""
        raise PeerRefused("frame", f"unexpected type {kind}")


class Accepting:
    """The handshake of the accepting side."""

    def __init__(
        self,
        cluster_id: str,
        node_id: str,
        incarnation: str,
        secret: bytes,
        nonce: bytes,
        api: str = "",
    ) -> None:
        """`api` is the API address of this node."""
        assert len(nonce) == NONCE_SIZE
        self.done = False
        self._api = api
        self.peer: Hello | None = None
        self._cluster_id = cluster_id
        self._secret = secret
        self._challenge = Challenge(WIRE_VERSION, node_id, incarnation, nonce)
        self._answer = encode_fields(_CHALLENGE, tuple(self._challenge))
        self._hello = b""

    def take(self, kind: int, payload: bytes, judge: Judge) -> bytes:
        """Handle a frame and return the reply to send. Raises PeerRefused.

        `done` is set at the end; only then `peer` is authenticated."""
        if kind == HELLO and self.peer is None:
            self.peer = hello = _decode_hello(payload)
            if hello.version != WIRE_VERSION:
                raise PeerRefused("version", f"the peer has version {hello.version}")
            if hello.cluster_id != self._cluster_id:
                raise PeerRefused("cluster", f"{hello.node_id!r} belongs to {hello.cluster_id!r}")
            if hello.target != self._challenge.node_id:
                raise PeerRefused("target", f"{hello.node_id!r} wants {hello.target!r}")
            if hello.channel not in (MESSAGES, SNAPSHOTS):
                raise PeerRefused("frame", f"unknown channel {hello.channel}")
            self._hello = payload
            return encode_frame(CHALLENGE, self._answer)
        if kind == PROOF and self.peer is not None:
            _check(self._secret, _DIALER, self._hello, self._answer, payload)
            reason = judge(self.peer)
            if reason:
                raise PeerRefused(reason, f"node {self.peer.node_id!r}")
            self.done = True
            return encode_frame(WELCOME, _prove(self._secret, _ACCEPTOR, self._hello, self._answer))
        if kind == WHERE and self.peer is None:
            nonce, proof = payload[:NONCE_SIZE], payload[NONCE_SIZE:]
            _check_nonce(nonce)
            _check(self._secret, _QUERY, nonce, b"", proof)
            api = self._api.encode()
            return encode_frame(HERE, _prove(self._secret, _RESPONSE, nonce, api) + api)
        raise PeerRefused("frame", f"unexpected type {kind}")


def encode_where(secret: bytes, nonce: bytes) -> bytes:
    """Encode a query for the address of the HTTP API."""
    return encode_frame(WHERE, nonce + _prove(secret, _QUERY, nonce, b""))


def decode_here(secret: bytes, nonce: bytes, kind: int, payload: bytes) -> str:
    """Decode the response to `encode_where`. Raises PeerRefused."""
    if kind != HERE:
        reason = payload.decode("ascii", "replace") if kind == REFUSAL else "frame"
        raise PeerRefused(reason if reason in REASONS else "frame", "reported by the peer")
    proof, api = payload[:_PROOF_SIZE], payload[_PROOF_SIZE:]
    _check(secret, _RESPONSE, nonce, api, proof)
    return api.decode("utf-8", "replace")


def _prove(secret: bytes, side: bytes, hello: bytes, challenge: bytes) -> bytes:
    transcript = hashlib.sha256(hello).digest() + hashlib.sha256(challenge).digest()
    return hmac.digest(secret, side + transcript, "sha256")


def _check(secret: bytes, side: bytes, hello: bytes, challenge: bytes, proof: bytes) -> None:
    if not hmac.compare_digest(_prove(secret, side, hello, challenge), proof):
        raise PeerRefused("secret", "the proof of the peer is wrong")


def _decode_hello(payload: bytes) -> Hello:
    try:
        hello = Hello._make(decode_fields(_HELLO, payload))
    except CodecError as error:
        raise PeerRefused("frame", str(error)) from None
    _check_nonce(hello.nonce)
    return hello


def _decode_challenge(payload: bytes) -> Challenge:
    try:
        challenge = Challenge._make(decode_fields(_CHALLENGE, payload))
    except CodecError as error:
        raise PeerRefused("frame", str(error)) from None
    _check_nonce(challenge.nonce)
    return challenge


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_SIZE:
        raise PeerRefused("frame", f"a nonce of {len(nonce)} bytes")


assert PEER_GREETING_SIZE_MAX < PEER_FRAME_SIZE_MAX

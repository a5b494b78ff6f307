"""What nodes say to each other on a connection, without the connection: frames and the handshake.

A frame, integers big-endian:

    length:4  type:1  payload  crc:4

`length` is that of the payload, `crc` the CRC32C of all that is in front of it. Who dials begins:

    dialler                               acceptor
    HELLO      who am I, whom I want  ->
                                      <-  CHALLENGE  who am I
    PROOF                             ->
                                      <-  WELCOME    my proof, too
    then frames of the channel that HELLO asked for

A proof is the HMAC-SHA256, keyed with the secret of the cluster, of a label for the side and of
the digests of both HELLO and CHALLENGE, which each hold 32 random bytes of their sender. So it
is good for one connection, one direction and exactly what was said on it. The dialler proves
itself first: who does not know the secret gets nothing to guess it from by knocking at the door.
Instead of HELLO a node that only knows this port may ask where the HTTP API of the node is: WHERE
with 32 random bytes and their proof, answered by HERE with an address and its proof.

At any point the acceptor may send REFUSAL with a reason and close; until WELCOME nothing that
came from the other side has left this module.

Who is let in. The acceptor compares, in this order:

    version        of the wire, the same
    cluster        the same id: data of two clusters never mixes
    target         the node that is wanted is this one
    secret         the proof is right
    incarnation    of a member: as the configuration has it, or as first seen. A node that lost its
                   disk is not the one that it was, whatever its name
    unknown        the node is a member; or it knows a newer configuration than we do

The last rule is what lets nodes join. A newcomer is given the secret by its operator and learns the
id of the cluster and the addresses of the members from whoever let it join, over HTTP. The leader
appends the configuration that names it and from then on has it among its peers, and dials it: the
newcomer knows no configuration, so that everybody knows a newer one. Members that the leader's
entry has not reached find an unknown node which names the index of a configuration that they do
not have; its proof shows that it belongs to the cluster, so they believe that it is they who are
behind. For the same reason a member that was away for long lets in a leader that it never heard of.
A node that was removed names a configuration that we have, in which it is not, and stays outside.
Answers to a node whose address is not known here go out on the connection that it made.

The secret shows who is at the other end. It neither hides nor protects what follows: on a network
that others can tamper with, use TLS beneath.
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
PING: Final = 6  # 8 bytes of the sender's own, which PONG repeats
PONG: Final = 7
MESSAGE: Final = 8  # of `raft.messages`
OFFER: Final = 9  # of snapshots, see `snapshots`
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

# Why a connection is refused: the names under which it is counted.
REASONS: Final = (
    "version",
    "cluster",
    "target",
    "secret",
    "incarnation",
    "unknown",
    "frame",  # garbage: a length, type or checksum that cannot be, or a frame out of turn
    "message",  # it does not decode, or was written by or for another node
    "slow",  # the handshake did not end in time
    "crowded",  # too many handshakes at once
    "certificate",  # TLS failed
)

_HEAD_SIZE: Final = 5
_CRC_SIZE: Final = 4
_HELLO: Final = "uussssub"
_CHALLENGE: Final = "ussb"
_DIALLER: Final = b"corvo peer dialler"
_ACCEPTOR: Final = b"corvo peer acceptor"
_ASKER: Final = b"corvo peer asker"
_TELLER: Final = b"corvo peer teller"
_PROOF_SIZE: Final = 32


class PeerRefused(Exception):
    """The connection ends here; `reason` is one of REASONS."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Hello(NamedTuple):
    """What a dialler says of itself, and of whom it wants."""

    version: int
    channel: int
    cluster_id: str
    node_id: str
    incarnation: str
    target: str
    configuration: int  # index of the newest configuration it knows, 0 = none
    nonce: bytes


class Challenge(NamedTuple):
    """What an acceptor says of itself. The dialler has named cluster and node already."""

    version: int
    node_id: str
    incarnation: str
    nonce: bytes


# Says why a node that has proved itself is refused all the same, or "".
Judge = Callable[[Hello], str]


def encode_frame(kind: int, payload: bytes = b"") -> bytes:
    """A frame as it travels."""
    head = len(payload).to_bytes(4, "big") + bytes((kind,))
    crc = crc32c(crc32c(0, head), payload)
    return b"".join((head, payload, crc.to_bytes(4, "big")))


class FrameReader:
    """Cuts what arrives into frames. Holds at most one frame that is not complete."""

    def __init__(self) -> None:
        self.size_max = PEER_GREETING_SIZE_MAX  # until the other side is known
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Type and payload of the frames that are complete now. Raises PeerRefused.

        `size_max` may be changed between two of them; all of them must be taken.
        """
        rest = self._rest
        rest += data
        at = 0
        while len(rest) - at >= _HEAD_SIZE:
            size = int.from_bytes(rest[at : at + 4], "big")
            kind = rest[at + 4]
            # Checked before the payload has come: nothing is collected for a length of garbage.
            if size > self.size_max:
                raise PeerRefused("frame", f"{size} bytes are over the limit of {self.size_max}")
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


class Dialling:
    """The handshake of the side that dials."""

    def __init__(self, hello: Hello, secret: bytes) -> None:
        assert len(hello.nonce) == NONCE_SIZE
        self.done = False
        self.hello = hello
        self.peer: Challenge | None = None
        self._secret = secret
        self._said = encode_fields(_HELLO, tuple(hello))
        self._answered = b""

    def begin(self) -> bytes:
        """What to send first."""
        return encode_frame(HELLO, self._said)

    def take(self, kind: int, payload: bytes) -> bytes:
        """What to send in answer to a frame. Raises PeerRefused; `done` says when it is over."""
        if kind == REFUSAL:
            reason = payload.decode("ascii", "replace")
            raise PeerRefused(reason if reason in REASONS else "frame", "says the other side")
        if kind == CHALLENGE and self.peer is None:
            self.peer = challenge = _decode_challenge(payload)
            if challenge.version != WIRE_VERSION:
                raise PeerRefused("version", f"the other side speaks {challenge.version}")
            if challenge.node_id != self.hello.target:
                raise PeerRefused("target", f"{challenge.node_id!r} answers")
            self._answered = payload
            return encode_frame(PROOF, _prove(self._secret, _DIALLER, self._said, self._answered))
        if kind == WELCOME and self.peer is not None:
            _check(self._secret, _ACCEPTOR, self._said, self._answered, payload)
            self.done = True
            return b""
        raise PeerRefused("frame", f"type {kind} is out of turn")


class Accepting:
    """The handshake of the side that is called."""

    def __init__(
        self,
        cluster_id: str,
        node_id: str,
        incarnation: str,
        secret: bytes,
        nonce: bytes,
        api: str = "",
    ) -> None:
        """`api` is the address of the HTTP API of this node."""
        assert len(nonce) == NONCE_SIZE
        self.done = False
        self._api = api
        self.peer: Hello | None = None
        self._cluster_id = cluster_id
        self._secret = secret
        self._challenge = Challenge(WIRE_VERSION, node_id, incarnation, nonce)
        self._answer = encode_fields(_CHALLENGE, tuple(self._challenge))
        self._heard = b""

    def take(self, kind: int, payload: bytes, judge: Judge) -> bytes:
        """What to send in answer to a frame. Raises PeerRefused; `done` says when it is over. Only
        then `peer` is who it says."""
        if kind == HELLO and self.peer is None:
            self.peer = hello = _decode_hello(payload)
            if hello.version != WIRE_VERSION:
                raise PeerRefused("version", f"the other side speaks {hello.version}")
            if hello.cluster_id != self._cluster_id:
                raise PeerRefused("cluster", f"{hello.node_id!r} belongs to {hello.cluster_id!r}")
            if hello.target != self._challenge.node_id:
                raise PeerRefused("target", f"{hello.node_id!r} wants {hello.target!r}")
            if hello.channel not in (MESSAGES, SNAPSHOTS):
                raise PeerRefused("frame", f"unknown channel {hello.channel}")
            self._heard = payload
            return encode_frame(CHALLENGE, self._answer)
        if kind == PROOF and self.peer is not None:
            _check(self._secret, _DIALLER, self._heard, self._answer, payload)
            reason = judge(self.peer)
            if reason:
                raise PeerRefused(reason, f"node {self.peer.node_id!r}")
            self.done = True
            return encode_frame(WELCOME, _prove(self._secret, _ACCEPTOR, self._heard, self._answer))
        if kind == WHERE and self.peer is None:
            nonce, proof = payload[:NONCE_SIZE], payload[NONCE_SIZE:]
            _check_nonce(nonce)
            _check(self._secret, _ASKER, nonce, b"", proof)
            api = self._api.encode()
            return encode_frame(HERE, _prove(self._secret, _TELLER, nonce, api) + api)
        raise PeerRefused("frame", f"type {kind} is out of turn")


def encode_where(secret: bytes, nonce: bytes) -> bytes:
    """The question where the HTTP API is, as it travels."""
    return encode_frame(WHERE, nonce + _prove(secret, _ASKER, nonce, b""))


def decode_here(secret: bytes, nonce: bytes, kind: int, payload: bytes) -> str:
    """The answer to that question. Raises PeerRefused."""
    if kind != HERE:
        reason = payload.decode("ascii", "replace") if kind == REFUSAL else "frame"
        raise PeerRefused(reason if reason in REASONS else "frame", "says the other side")
    proof, api = payload[:_PROOF_SIZE], payload[_PROOF_SIZE:]
    _check(secret, _TELLER, nonce, api, proof)
    return api.decode("utf-8", "replace")


def _prove(secret: bytes, side: bytes, hello: bytes, challenge: bytes) -> bytes:
    said = hashlib.sha256(hello).digest() + hashlib.sha256(challenge).digest()
    return hmac.digest(secret, side + said, "sha256")


def _check(secret: bytes, side: bytes, hello: bytes, challenge: bytes, proof: bytes) -> None:
    if not hmac.compare_digest(_prove(secret, side, hello, challenge), proof):
        raise PeerRefused("secret", "the other side does not know it")


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

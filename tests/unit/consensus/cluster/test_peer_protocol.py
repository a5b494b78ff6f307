"""Frames and the handshake between nodes: accepted and refused peers, and invalid bytes."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corvo._fast.codec.layouts import encode_fields
from corvo.consensus.cluster.peer_protocol import (
    CHALLENGE,
    HELLO,
    MESSAGE,
    MESSAGES,
    PROOF,
    REASONS,
    REFUSAL,
    WELCOME,
    WIRE_VERSION,
    Accepting,
    Dialing,
    FrameReader,
    Hello,
    PeerRefused,
    encode_frame,
)
from corvo.limits import PEER_GREETING_SIZE_MAX

CLUSTER = "c" * 32
SECRET = b"a secret of the cluster"


def hello(**changes: object) -> Hello:
    fields = Hello(WIRE_VERSION, MESSAGES, CLUSTER, "a", "1" * 16, "b", 7, b"d" * 32)
    return fields._replace(**changes)


def accepting(secret: bytes = SECRET, nonce: bytes = b"n" * 32) -> Accepting:
    return Accepting(CLUSTER, "b", "2" * 16, secret, nonce)


def frames(data: bytes) -> list[tuple[int, bytes]]:
    return list(FrameReader().feed(data))


def shake(
    dialing: Dialing, acceptor: Accepting, judge: object = lambda hello: ""
) -> Iterator[bytes]:
    """What goes over the wire, until both are done."""
    data = dialing.begin()
    while data:
        yield data
        ((kind, payload),) = frames(data)
        data = acceptor.take(kind, payload, judge)
        if not data:
            return
        yield data
        ((kind, payload),) = frames(data)
        data = dialing.take(kind, payload)


def refusal(dialing: Dialing, acceptor: Accepting, **options: object) -> str:
    with pytest.raises(PeerRefused) as caught:
        list(shake(dialing, acceptor, **options))
    assert caught.value.reason in REASONS
    assert not (dialing.done and acceptor.done)
    return caught.value.reason


# Frames.


@given(st.lists(st.tuples(st.integers(1, 12), st.binary(max_size=300))), st.data())
@settings(deadline=None)
def test_frames_survive_any_cutting(sent: list[tuple[int, bytes]], data: st.DataObject) -> None:
    wire = b"".join(encode_frame(kind, payload) for kind, payload in sent)
    reader = FrameReader()
    got = []
    while wire:
        size = data.draw(st.integers(1, len(wire)))
        got += list(reader.feed(wire[:size]))
        wire = wire[size:]
    assert got == sent


@given(st.data())
@settings(deadline=None)
def test_a_flipped_bit_is_noticed(data: st.DataObject) -> None:
    wire = bytearray(encode_frame(MESSAGE, b"payload") + encode_frame(MESSAGE, b"next"))
    bit = data.draw(st.integers(0, 8 * len(wire) - 1))
    wire[bit // 8] ^= 1 << bit % 8
    whole = [(MESSAGE, b"payload"), (MESSAGE, b"next")]
    try:
        got = frames(bytes(wire))
    except PeerRefused as error:
        assert error.reason == "frame"
    else:
        assert got in (whole[:1], [])  # a length that grew: it waits for more


@given(st.binary(max_size=2000))
@settings(deadline=None)
def test_garbage_is_refused_or_waits_for_more(data: bytes) -> None:
    try:
        assert frames(data) == []
    except PeerRefused as error:
        assert error.reason == "frame"


def test_a_length_of_garbage_collects_nothing() -> None:
    """Before the handshake is over a frame is small, and refused by its head alone."""
    for head in (b"GET / HTTP/1.1\r\n", b"\xff" * 5):
        with pytest.raises(PeerRefused, match="frame"):
            frames(head)
    with pytest.raises(PeerRefused, match="limit"):
        frames((PEER_GREETING_SIZE_MAX + 1).to_bytes(4, "big") + bytes([HELLO]))
    with pytest.raises(PeerRefused, match="type"):
        frames((1).to_bytes(4, "big") + bytes([99]))


def test_the_bound_may_be_raised_between_two_frames_of_a_packet() -> None:
    reader = FrameReader()
    big = bytes(2 * PEER_GREETING_SIZE_MAX)
    got = []
    for kind, payload in reader.feed(encode_frame(WELCOME, b"w") + encode_frame(MESSAGE, big)):
        got.append((kind, payload))
        reader.size_max = len(big)
    assert got == [(WELCOME, b"w"), (MESSAGE, big)]


# The handshake.


def test_two_that_know_the_secret() -> None:
    dialing, acceptor = Dialing(hello(), SECRET), accepting()
    wire = list(shake(dialing, acceptor))
    assert [frames(data)[0][0] for data in wire] == [HELLO, CHALLENGE, PROOF, WELCOME]
    assert dialing.done and acceptor.done
    assert acceptor.peer == hello()
    assert dialing.peer is not None and dialing.peer.incarnation == "2" * 16
    assert SECRET not in b"".join(wire)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "version"),
        ({"cluster_id": "d" * 32}, "cluster"),
        ({"target": "c"}, "target"),
        ({"channel": 9}, "frame"),
    ],
)
def test_what_the_acceptor_refuses(changes: dict[str, object], reason: str) -> None:
    acceptor = accepting()
    assert refusal(Dialing(hello(**changes), SECRET), acceptor) == reason
    assert not acceptor.done


def test_a_wrong_secret_on_either_side() -> None:
    acceptor = accepting()
    assert refusal(Dialing(hello(), b"x" * 23), acceptor) == "secret"
    assert not acceptor.done
    # The acceptor does not know it and lets everybody in: the dialer notices.
    dialing = Dialing(hello(), SECRET)
    ((_, said),) = frames(dialing.begin())
    ((kind, challenge),) = frames(accepting(b"y" * 23).take(HELLO, said, lambda hello: ""))
    dialing.take(kind, challenge)
    with pytest.raises(PeerRefused, match="secret"):
        dialing.take(WELCOME, b"z" * 32)
    assert not dialing.done


def test_who_judges_does_so_behind_the_proof() -> None:
    seen: list[Hello] = []

    def judge(hello: Hello) -> str:
        seen.append(hello)
        return "unknown"

    assert refusal(Dialing(hello(), b"x" * 23), accepting(), judge=judge) == "secret"
    assert not seen
    assert refusal(Dialing(hello(), SECRET), accepting(), judge=judge) == "unknown"
    assert seen == [hello()]


def test_another_node_answers() -> None:
    """The address belongs to somebody else now."""
    dialing = Dialing(hello(target="c"), SECRET)
    other = Accepting(CLUSTER, "c", "3" * 16, SECRET, b"n" * 32)
    ((_, said),) = frames(dialing.begin())
    ((kind, challenge),) = frames(other.take(HELLO, said, lambda hello: ""))
    with pytest.raises(PeerRefused, match="target"):
        Dialing(hello(), SECRET).take(kind, challenge)


def test_a_proof_is_good_for_one_connection_and_one_direction() -> None:
    wire = list(shake(Dialing(hello(), SECRET), accepting()))
    ((_, said),), ((_, proof),), ((_, welcome),) = (frames(wire[at]) for at in (0, 2, 3))
    # Replayed on a new connection, which has a nonce of its own.
    acceptor = accepting(nonce=b"m" * 32)
    acceptor.take(HELLO, said, lambda hello: "")
    with pytest.raises(PeerRefused, match="secret"):
        acceptor.take(PROOF, proof, lambda hello: "")
    # Sent back to where it came from.
    acceptor = accepting()
    acceptor.take(HELLO, said, lambda hello: "")
    with pytest.raises(PeerRefused, match="secret"):
        acceptor.take(PROOF, welcome, lambda hello: "")
    # A proof of what was not said: somebody changed it on the way.
    acceptor = accepting()
    ((_, other),) = frames(Dialing(hello(configuration=8), SECRET).begin())
    acceptor.take(HELLO, other, lambda hello: "")
    with pytest.raises(PeerRefused, match="secret"):
        acceptor.take(PROOF, proof, lambda hello: "")


@pytest.mark.parametrize("kind", range(1, 13))
def test_frames_out_of_turn(kind: int) -> None:
    if kind != HELLO:
        with pytest.raises(PeerRefused, match="frame"):
            accepting().take(kind, b"", lambda hello: "")
    acceptor = accepting()
    ((_, said),) = frames(Dialing(hello(), SECRET).begin())
    acceptor.take(HELLO, said, lambda hello: "")
    if kind != PROOF:
        with pytest.raises(PeerRefused, match="frame"):
            acceptor.take(kind, said, lambda hello: "")
    if kind not in (CHALLENGE, REFUSAL):
        with pytest.raises(PeerRefused, match="frame"):
            Dialing(hello(), SECRET).take(kind, b"")


@given(st.binary(max_size=200), st.sampled_from([HELLO, CHALLENGE, PROOF, WELCOME, REFUSAL]))
@settings(deadline=None)
def test_garbage_inside_frames(payload: bytes, kind: int) -> None:
    for take in (
        lambda: accepting().take(kind, payload, lambda hello: ""),
        lambda: Dialing(hello(), SECRET).take(kind, payload),
    ):
        with pytest.raises(PeerRefused) as caught:
            take()
        assert caught.value.reason in REASONS


def test_a_short_nonce_is_refused() -> None:
    with pytest.raises(AssertionError):
        Dialing(hello(nonce=b"short"), SECRET)
    short = encode_fields("uussssub", tuple(hello(nonce=b"short")))
    with pytest.raises(PeerRefused, match="nonce"):
        accepting().take(HELLO, short, lambda hello: "")


def test_the_acceptor_says_why() -> None:
    with pytest.raises(PeerRefused) as caught:
        Dialing(hello(), SECRET).take(REFUSAL, b"cluster")
    assert caught.value.reason == "cluster"
    with pytest.raises(PeerRefused) as caught:
        Dialing(hello(), SECRET).take(REFUSAL, b"\xff\x00 whatever")
    assert caught.value.reason == "frame"

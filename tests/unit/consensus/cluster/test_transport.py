"""The transport over real sockets: who gets in, what is lost and said to be, what garbage does."""

import asyncio
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from lib.peer_nodes import Node, acquaint, append, nodes, play, until

from corvo import limits
from corvo.consensus.cluster import transport as transport_module
from corvo.consensus.cluster.peer_connection import (
    CHANNEL_FRAMES_MAX,
    CHANNEL_UNSENT_SIZE_MAX,
    Tls,
    mutual_tls,
)
from corvo.consensus.cluster.peer_protocol import (
    CHUNK,
    HELLO,
    MESSAGE,
    OFFER,
    PING,
    encode_frame,
)
from corvo.consensus.cluster.transport import Pace
from corvo.consensus.raft.messages import APPEND_REPLY, Message


def test_messages_arrive_whole_and_in_order() -> None:
    async def story() -> None:
        a, b, c = Node("a"), Node("b"), Node("c")
        async with nodes(a, b, c):
            await until(lambda: all(x.connected(y) for x, y in [(a, "b"), (a, "c"), (b, "a")]))
            sizes = [0, 1, 5000, 300_000, limits.ENTRY_SIZE_MAX]
            a.transport.send([append("a", to, bytes(size)) for size in sizes for to in "bc"])
            await until(lambda: len(b.got) == len(c.got) == len(sizes))
            assert [len(message.entries[0].data) for message in b.got] == sizes
            assert all(message.from_id == "a" and message.to_id == "c" for message in c.got)
            b.transport.send([Message(APPEND_REPLY, "a", from_id="b", term=3, index=8)])
            await until(lambda: a.got)
            await until(lambda: a.peer("b").round_trip_ns)
            status = a.peer("b")
            assert (status.sent, status.received, status.dropped) == (len(sizes), 1, 0)
            assert status.sent_size > sum(sizes) and status.received_size > 0
            assert b.peer("a").received == len(sizes)
            assert not a.unreachable and not any(a.transport.refusals.values())

    play(story)


def test_a_turn_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        a, b = Node("a"), Node("b")
        async with nodes(a, b):
            await until(lambda: a.connected("b"))
            writes: list[int] = []
            link = a.transport._peers["b"].link
            assert link is not None
            write = link.write
            monkeypatch.setattr(link, "write", lambda data: (writes.append(len(data)), write(data)))
            a.send("b", count=50)
            assert len(writes) == 1
            await until(lambda: len(b.got) == 50)

    play(story)


def test_what_cannot_be_sent_is_dropped_and_reported() -> None:
    async def story() -> None:
        a, b = Node("a"), Node("b")
        async with nodes(a, b, know=False):
            a.transport.set_peers({"a": a.address, "b": "127.0.0.1:1"}, 1)
            a.send("b", count=3)
            a.send("nobody")
            assert not a.unreachable, "never inside send"
            await until(lambda: a.unreachable)
            assert a.unreachable == ["b", "nobody"]
            assert a.peer("b").dropped == 3
            await until(lambda: "refused" in a.peer("b").error)
            # The right address after all.
            b.transport.set_peers({"a": a.address}, 1)
            a.transport.set_peers({"b": b.address}, 2)
            await until(lambda: a.connected("b"))
            a.send("b")
            await until(lambda: b.got)

    play(story)


def test_a_peer_that_does_not_read_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "PEER_UNSENT_SIZE_MAX", 3_000_000)

    async def story() -> None:
        a, b = Node("a"), Node("b")
        async with nodes(a, b):
            await until(lambda: a.connected("b") and ("a", 1) in b.transport._accepted)
            b.transport._accepted["a", 1].read_more(False)
            link = a.transport._peers["b"].link
            assert link is not None
            for _ in range(40):
                a.send("b", bytes(1_000_000))
                await asyncio.sleep(0)
            assert link.unsent_size <= 3_000_000
            await until(lambda: a.unreachable)
            dropped = a.peer("b").dropped
            assert dropped > 10
            assert a.connected("b")
            b.transport._accepted["a", 1].read_more(True)
            await until(lambda: len(b.got) == 40 - dropped)

    play(story)


def test_a_connection_that_breaks_is_made_again() -> None:
    async def story() -> None:
        a, b = Node("a"), Node("b")
        async with nodes(a, b):
            await until(lambda: a.connected("b"))
            port = b.transport.port
            await b.transport.close()
            await until(lambda: not a.connected("b"))
            await until(lambda: a.unreachable)
            b = Node("b", bind=f"127.0.0.1:{port}")
            async with nodes(b, know=False):
                b.transport.set_peers({"a": a.address}, 1)
                await until(lambda: a.connected("b"))
                a.send("b")
                await until(lambda: b.got)
                assert a.peer("b").connects == 2

    play(story)


def test_a_silent_connection_is_given_up() -> None:
    """The other side is gone without a word: it accepts, and then nothing."""

    async def story() -> None:
        a, b = Node("a"), Node("b", pace=Pace(ping_s=60))
        async with nodes(a, b):
            await until(lambda: a.connected("b") and ("a", 1) in b.transport._accepted)
            b.transport._accepted["a", 1].read_more(False)
            await until(lambda: a.unreachable)
            await until(lambda: a.peer("b").connects == 2)

    play(story)


# Who is let in.


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cluster_id": "d" * 32}, "cluster"),
        ({"secret": b"another secret, also long"}, "secret"),
        ({"incarnation": "0" * 16}, "incarnation"),
    ],
)
def test_refused_before_any_message(options: dict[str, Any], reason: str) -> None:
    async def story() -> None:
        a, b = Node("a", **options), Node("b")
        async with nodes(a, b, know=False):
            a.transport.set_peers({"b": b.address}, 9)
            b.transport.set_peers({"a": a.address}, 1, {"a": "a" * 16})
            await until(lambda: b.transport.refusals[reason] > 1)
            await until(lambda: reason in a.peer("b").error)
            assert a.peer("b").refusals[reason]
            # It is refused by whom it dials, too.
            assert not a.connected("b") and not b.connected("a")
            a.send("b")
            assert not b.got and not a.got

    play(story)


def test_strangers() -> None:
    async def story() -> None:
        a, b = Node("a"), Node("b")
        async with nodes(a, b, know=False):
            # b knows a configuration as new as a's, without a in it: a was removed.
            a.transport.set_peers({"b": b.address}, 7)
            b.transport.set_peers({}, 7)
            await until(lambda: b.transport.refusals["unknown"])
            assert not a.connected("b")
            # a knows a newer one: b is behind, and answers on the connection that a made.
            a.transport.set_peers({"b": b.address}, 8)
            await until(lambda: a.connected("b"))
            a.send("b")
            await until(lambda: b.got)
            b.send("a")
            await until(lambda: a.got)

    play(story)


def test_a_newcomer_lets_everybody_in_and_comes_in() -> None:
    async def story() -> None:
        leader, other, newcomer = Node("a"), Node("b"), Node("n")
        async with nodes(leader, other, newcomer, know=False):
            members = {"a": leader.address, "b": other.address}
            other.transport.set_peers(members, 1)
            newcomer.transport.set_peers({}, 0)
            leader.transport.set_peers(members | {"n": newcomer.address}, 5)
            await until(lambda: leader.connected("n"))
            leader.send("n")
            await until(lambda: newcomer.got)
            newcomer.send("a")
            await until(lambda: leader.got)
            # It has the entry with the configuration, b has not.
            newcomer.transport.set_peers(members, 5)
            await until(lambda: newcomer.connected("b") and newcomer.connected("a"))

    play(story)


def test_a_node_that_left_may_finish_but_not_come_back() -> None:
    async def story() -> None:
        a, b = Node("a"), Node("b", pace=Pace(leaving_s=0.1))
        async with nodes(a, b):
            await until(lambda: a.connected("b") and b.connected("a"))
            b.transport.set_peers({}, 4)
            a.send("b")
            await until(lambda: b.got)
            b.send("a")
            await until(lambda: a.got)
            await until(lambda: not a.connected("b"))
            await until(lambda: b.transport.refusals["unknown"])

    play(story)


def test_a_node_that_lost_its_disk_is_another_one() -> None:
    """The first incarnation that was seen counts, until the node is removed."""

    async def story() -> None:
        a, b = Node("a"), Node("b")
        async with nodes(a, b):
            await until(lambda: a.connected("b") and b.connected("a"))
            await a.transport.close()
            again = Node("a", incarnation="f" * 16)
            async with nodes(again, know=False):
                again.transport.set_peers({"b": b.address}, 1)
                await until(lambda: b.transport.refusals["incarnation"])
                b.transport.set_peers({"a": again.address}, 2)
                await until(lambda: b.peer("a").refusals.get("incarnation"))
                b.transport.set_peers({"a": again.address}, 3, {"a": "f" * 16})
                await until(lambda: b.connected("a") and again.connected("b"))

    play(story)


def test_the_newest_connection_of_a_node_counts() -> None:
    async def story() -> None:
        a, b = Node("a"), Node("b")
        async with nodes(a, b):
            await until(lambda: ("a", 1) in b.transport._accepted)
            first = b.transport._accepted["a", 1]
            double = Node("a")
            async with nodes(double, know=False):
                double.transport.set_peers({"b": b.address}, 1)
                await until(lambda: b.transport._accepted.get(("a", 1)) not in (first, None))
                assert not first.open

    play(story)


# Hostile bytes.


async def knock(node: Node, data: bytes) -> bytes:
    """Send bytes to a node; what it says until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.transport.port)
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_garbage_at_the_door() -> None:
    async def story() -> None:
        a = Node("a")
        async with nodes(a):
            for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, encode_frame(PING, b"x" * 8)):
                answer = await knock(a, data)
                assert b"frame" in answer and len(answer) < 20
            assert a.transport.refusals["frame"] == 3
            await knock(a, encode_frame(HELLO, b"\x01\x02"))
            await knock(a, encode_frame(HELLO, b"x")[:-1] + b"x")
            assert a.transport.refusals["frame"] == 5
            assert await knock(a, b"\x00\x00") != b"", "who says no more is too slow"
            assert a.transport.refusals["slow"] == 1
            assert not a.transport._greeting and not a.got

    play(story)


def test_a_storm_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "PEER_GREETINGS_MAX", 8)

    async def story() -> None:
        a, b = Node("a", pace=Pace(greeting_s=10)), Node("b")
        async with nodes(a, b, know=False):
            storm = [socket.create_connection(("127.0.0.1", a.transport.port)) for _ in range(50)]
            await until(lambda: a.transport.refusals["crowded"] == 42)
            assert len(a.transport._greeting) == 8
            acquaint(a, b)
            await until(lambda: b.connected("a"))
            for connection in storm:
                connection.close()
            await until(lambda: not a.transport._greeting)

    play(story)


def test_a_member_that_talks_nonsense_is_cut_off() -> None:
    async def story() -> None:
        a, b = Node("a"), Node("b")
        async with nodes(a, b):
            for data, reason in (
                (encode_frame(MESSAGE, b"nonsense"), "message"),
                (encode_frame(CHUNK, b"in the wrong channel"), "frame"),
                (encode_frame(HELLO), "frame"),
                (b"\x7f" + bytes(100), "frame"),
            ):
                await until(lambda: a.connected("b"))
                before = b.transport.refusals[reason]
                link = a.transport._peers["b"].link
                assert link is not None
                link.write(data)
                await link.gone.wait()
                assert b.transport.refusals[reason] == before + 1
            await until(lambda: a.connected("b"))
            a.transport.send([append("c", "b", b"in the name of another")])
            await until(lambda: b.transport.refusals["message"] == 2)
            assert not b.got

    play(story)


# Channels.


def test_a_channel_carries_frames_both_ways_and_waits_for_its_reader() -> None:
    async def story() -> None:
        a, b = Node("a", pace=Pace()), Node("b", pace=Pace())
        async with nodes(a, b):
            channel = await a.transport.open_channel("b")
            await until(lambda: b.channels)
            other = b.channels[0]
            assert other.node_id == "a" and channel.node_id == "b"
            await channel.send(OFFER, b"offer")
            assert await other.receive() == (OFFER, b"offer")
            sent = 0

            async def flood() -> None:
                nonlocal sent
                for number in range(400):
                    await channel.send(CHUNK, number.to_bytes(4) + bytes(100_000))
                    sent += 1

            task = asyncio.create_task(flood())
            await until(lambda: len(other._frames) >= CHANNEL_FRAMES_MAX)
            await until(lambda: channel._link.unsent_size > CHANNEL_UNSENT_SIZE_MAX)
            assert sent < 300, "nobody has read"
            for number in range(400):
                kind, payload = await other.receive()
                assert (kind, payload[:4]) == (CHUNK, number.to_bytes(4))
            await task
            await until(lambda: a.connected("b"))
            other.close()
            with pytest.raises(ConnectionResetError):
                await channel.receive()
            with pytest.raises(ConnectionResetError):
                await channel.send(OFFER)

    play(story)


def test_a_channel_that_cannot_be_opened() -> None:
    async def story() -> None:
        a, b = Node("a", secret=b"another secret, also long"), Node("b")
        async with nodes(a, b):
            with pytest.raises(ConnectionRefusedError, match="secret"):
                await a.transport.open_channel("b")
            with pytest.raises(ConnectionRefusedError, match="is not a peer"):
                await a.transport.open_channel("x")

    play(story)


# TLS.


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> list[Tls]:
    """Certificates of two authorities."""
    made = []
    for name in ("ours", "theirs"):
        path = tmp_path_factory.mktemp(name)
        made.append(issue(path))
    return made


def issue(path: Path) -> Tls:
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=path)

    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(*new, "-x509", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(*new, "-subj", "/CN=node", "-keyout", "key.pem", "-out", "node.csr")
    sign = ["x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key"]
    openssl(*sign, "-CAcreateserial", "-out", "node.pem")
    return mutual_tls(f"{path}/node.pem", f"{path}/key.pem", f"{path}/ca.pem")


def test_mutual_tls(authorities: list[Tls]) -> None:
    ours, theirs = authorities

    async def story() -> None:
        a, b = Node("a", tls=ours), Node("b", tls=ours)
        stranger, plain = Node("x", tls=theirs), Node("y")
        async with nodes(a, b, stranger, plain):
            await until(lambda: a.connected("b") and b.connected("a"))
            a.send("b", bytes(3_000_000), count=3)
            await until(lambda: len(b.got) == 3)
            await until(lambda: stranger.peer("a").refusals.get("certificate"))
            await until(lambda: a.peer("x").refusals.get("certificate"))
            await until(lambda: a.transport.refusals["certificate"] > 2)
            await until(
                lambda: plain.transport.refusals["frame"],
            )
            for node in (a, b):
                assert not node.connected("x") and not node.connected("y")
            channel = await a.transport.open_channel("b")
            await channel.send(OFFER, b"offer")
            await until(lambda: b.channels)
            assert await b.channels[0].receive() == (OFFER, b"offer")

    play(story)


def test_certificates_without_a_name_are_enough(authorities: list[Tls]) -> None:
    assert authorities[0].dialing.verify_mode == ssl.CERT_REQUIRED
    assert authorities[0].accepting.verify_mode == ssl.CERT_REQUIRED

"""Streams that are passed on to a leader: what their clients hear when it is lost, or was never
reached."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from lib.peer_nodes import cut_off, play, until
from lib.stream_peer import Ended, Stream, encode, open_stream

from corvo._fast.http.exchange import Request
from corvo.net.forward.stream_relay import StreamRelays
from corvo.net.http.server import Server
from corvo.net.routes import takes_pieces
from corvo.net.rpc.envelopes import END_STREAM, envelope
from corvo.net.rpc.wire import STREAMING, find_wire, media_type
from corvo.platform.clock import TestClock

KINDS = ["grpc", "proto", "json"]
UNREACHED = "the leader cannot be reached; nothing was done"
LOST = "the leader was lost; frames without a response may have taken effect"
ANSWER = envelope(encode({"request_id": 7}, "LifecycleStreamResponse"))


class Node:
    """A front end."""

    def __init__(self, handle: Callable[[Request], None]) -> None:
        self.server = Server(handle, TestClock())
        self.server.context.takes_pieces = takes_pieces
        self.port = 0

    async def start(self) -> "Node":
        self.port = await self.server.listen("127.0.0.1", 0)
        return self

    async def stop(self) -> None:
        """As kill -9 does."""
        await cut_off(self.server)


@contextlib.asynccontextmanager
async def follower(url: str) -> AsyncIterator[tuple[Node, StreamRelays]]:
    """A node that passes all streams on to this URL."""
    relays = StreamRelays(asyncio.get_running_loop(), None)

    def handle(request: Request) -> None:
        wire = find_wire(request, STREAMING)
        assert wire is not None
        relays.open(wire, url)

    node = await Node(handle).start()
    try:
        yield node, relays
    finally:
        relays.end_all()
        await node.stop()


async def heard(stream: Stream) -> str:
    """How the stream ends."""
    with pytest.raises(Ended) as ended:
        await asyncio.to_thread(stream.receive)
    await asyncio.to_thread(stream.close)
    return f"{ended.value.code}: {ended.value.message}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_leader_that_is_lost_between_two_answers(kind: str) -> None:
    async def story() -> None:
        def answer(request: Request) -> None:
            request.start(200, b"", media_type(request))
            request.send(envelope(b'{"requestId":"7"}') if kind == "json" else ANSWER)

        leader = await Node(answer).start()
        async with follower(f"http://127.0.0.1:{leader.port}") as (node, relays):
            stream = await asyncio.to_thread(open_stream, node.port, kind)
            assert await asyncio.to_thread(stream.exchange, request_id=7) == {"request_id": 7}
            await leader.stop()
            assert await heard(stream) == f"unavailable: {LOST}"
            assert not relays

    play(story)


async def received(stream: Stream, relays: StreamRelays) -> None:
    assert await asyncio.to_thread(stream.receive) == {"request_id": 7}


async def ended_well(stream: Stream, relays: StreamRelays) -> None:
    with pytest.raises(Ended) as ended:
        await asyncio.to_thread(stream.receive)
    assert ended.value.code == "ok"


async def refused(stream: Stream, relays: StreamRelays) -> None:
    await until(lambda: len(relays) and next(iter(relays._relays))._refused)


@pytest.mark.parametrize(
    ("status", "sent", "before"),
    [
        (200, ANSWER + ANSWER[:-1], received),
        (200, envelope(b"{}", END_STREAM), ended_well),
        (503, b"starting", refused),
    ],
    ids=["inside an answer", "behind its last message", "while it refuses"],
)
def test_no_message_says_why_where_none_can_stand(
    status: int, sent: bytes, before: Callable[[Stream, StreamRelays], Awaitable[None]]
) -> None:
    """The leader is lost."""

    async def story() -> None:
        def answer(request: Request) -> None:
            request.start(status, b"", media_type(request) if status == 200 else b"text/plain")
            request.send(sent)

        leader = await Node(answer).start()
        async with follower(f"http://127.0.0.1:{leader.port}") as (node, relays):
            stream = await asyncio.to_thread(open_stream, node.port, "proto")
            await before(stream, relays)
            await leader.stop()
            with pytest.raises(AssertionError, match="without saying how"):
                await asyncio.to_thread(stream.receive)
            await asyncio.to_thread(stream.close)
            assert not relays

    play(story)


@pytest.mark.parametrize("kind", KINDS)
def test_a_leader_that_is_not_there(kind: str) -> None:
    async def story() -> None:
        leader = await Node(lambda request: None).start()
        await leader.stop()
        async with follower(f"http://127.0.0.1:{leader.port}") as (node, _):
            stream = await asyncio.to_thread(open_stream, node.port, kind)
            if kind == "grpc":
                stream.send(request_id=1)
            assert await heard(stream) == f"unavailable: {UNREACHED}"

    play(story)


def test_a_server_that_stops_does_not_wait_for_connections_that_are_being_made() -> None:
    async def story() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(0)
            place = silent.getsockname()
            with socket.create_connection(place):  # nobody else gets in
                async with follower(f"http://127.0.0.1:{place[1]}") as (node, relays):
                    stream = await asyncio.to_thread(open_stream, node.port, "proto")
                    await until(lambda: len(relays))
                    (relay,) = relays._relays
                    operation = relay.connecting
                    relays.end_all()
                    assert operation is not None
                    with pytest.raises(asyncio.CancelledError):
                        await operation
                    assert await heard(stream) == "unavailable: the server is stopping"
                    assert not relays

    play(story)

"""Transports with what their drivers are told, for tests of what goes between nodes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvloop

from corvo.consensus.cluster.peer_connection import Channel
from corvo.consensus.cluster.transport import Pace, Transport
from corvo.consensus.log import Entry
from corvo.consensus.raft.messages import APPEND, Message
from corvo.net.http.server import Server
from corvo.platform.clock import Clock

CLUSTER = "c" * 32
SECRET = b"a secret of the cluster"
QUICK = Pace(
    connect_s=1, greeting_s=0.5, ping_s=0.05, silence_max=20, retry_min_s=0.01, retry_max_s=0.05
)

Story = Callable[[], Awaitable[None]]


def play(story: Story) -> None:
    """Run a story on the loop that the server uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(story(), 60))


class Node:
    """A transport, and what its driver was told."""

    def __init__(self, node_id: str, **options: Any) -> None:
        self.node_id = node_id
        self.got: list[Message] = []
        self.unreachable: list[str] = []
        self.channels: list[Channel] = []
        self.changed = asyncio.Event()
        fields = {
            "cluster_id": CLUSTER,
            "incarnation": node_id * 16,
            "secret": SECRET,
            "bind": "127.0.0.1:0",
            "clock": Clock(),
            "on_channel": self.on_channel,
            "pace": QUICK,
        } | options
        self.transport = Transport(
            node_id, on_message=self.on_message, on_unreachable=self.on_unreachable, **fields
        )

    def on_message(self, message: Message) -> None:
        self.got.append(message)
        self.changed.set()

    def on_unreachable(self, node_id: str) -> None:
        self.unreachable.append(node_id)
        self.changed.set()

    def on_channel(self, channel: Channel) -> None:
        self.channels.append(channel)
        self.changed.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.transport.port}"

    def peer(self, node_id: str) -> Any:
        return next(peer for peer in self.transport.status() if peer.node_id == node_id)

    def connected(self, node_id: str) -> bool:
        return self.peer(node_id).connected

    def send(self, to_id: str, data: bytes = b"x", count: int = 1) -> None:
        self.transport.send([append(self.node_id, to_id, data) for _ in range(count)])


def append(from_id: str, to_id: str, data: bytes) -> Message:
    entries = [Entry(8, 3, data)]
    return Message(APPEND, to_id, from_id=from_id, term=3, index=7, entries=entries)


@contextlib.asynccontextmanager
async def nodes(*made: Node, know: bool = True) -> AsyncIterator[None]:
    """Started, and acquainted with each other."""
    for node in made:
        await node.transport.start()
    if know:
        acquaint(*made)
    try:
        yield
    finally:
        for node in made:
            await node.transport.close()


def acquaint(*made: Node, configuration: int = 1) -> None:
    addresses = {node.node_id: node.address for node in made}
    for node in made:
        node.transport.set_peers(addresses, configuration)


async def until(condition: Callable[[], Any]) -> None:
    """Give the loop turns until something is true; `play` bounds it."""
    while not condition():
        await asyncio.sleep(0.002)


async def cut_off(server: Server) -> None:
    """Take a front end away, as kill -9 does."""
    for listener in server._listeners:
        listener.close()
    for connection in list(server.connections):
        connection.abort()
    await until(lambda: not server.connections)

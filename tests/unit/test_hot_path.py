"""Limits on the work of enqueue, fetch and ack: no task, future or timer for a request, one write
to a connection in a turn of the loop, one sync of the log for an entry, no reference cycles.

All parts from the connection to the state store are real. The event loop, the transports and the
files count calls.
"""

import asyncio
import gc
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corvo.config import load
from corvo.consensus.single_log import SingleLog
from corvo.consensus.wal.inline_thread import InlineSync
from corvo.engine.pipeline import Pipeline
from corvo.engine.scheduler import Scheduler
from corvo.engine.service import Service
from corvo.fsm.machine import Machine
from corvo.net.api.handlers.admin import Admin
from corvo.net.http.router import Router
from corvo.net.http.server import Connection, Server
from corvo.net.hub import StreamHub
from corvo.net.routes import routes
from corvo.platform.clock import Clock
from corvo.platform.files import Files
from corvo.platform.ids import JobIds
from corvo.storage.data_dir import Identity
from corvo.storage.memory import MemoryStore

CONNECTIONS = 16


class CountingLoop:
    """Has callbacks and timers, which never fire, and nothing that a future or task needs."""

    def __init__(self) -> None:
        self.soon: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self.timers = 0

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.soon.append((callback, args))

    def call_later(self, delay: float, callback: Any, *args: Any) -> "CountingLoop":
        self.timers += 1
        return self

    def cancel(self) -> None:
        pass


class CountingFiles(Files):
    """The file system, with its flushes counted."""

    syncs = 0

    def sync(self, fd: int, how: int) -> None:
        self.syncs += how != 0
        super().sync(fd, how)


class Transport:
    """Keeps what is written in a turn."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("10.0.0.1", 1)

    def write(self, data: bytes) -> None:
        self.writes.append(data)


class Rig:
    """A server without sockets and timers."""

    def __init__(self, path: Path) -> None:
        self.loop = CountingLoop()
        self.files = CountingFiles()
        loop: Any = self.loop
        disk: Any = None
        clock = Clock()
        self.log = SingleLog(
            str(path / "wal"),
            Identity("0" * 32, "node-1", "0" * 16),
            durable=True,
            new_salt=lambda: 1,
            segment_size=32 * 1024 * 1024,
            files=self.files,
            flusher=InlineSync(self.files),
        )
        machine = Machine(MemoryStore())
        self.pipeline = Pipeline(loop, clock, self.log, machine, disk, 1_000)
        self.log.start(0, 0, loop)
        self.pipeline.start()
        Scheduler(loop, clock, machine, self.pipeline).start()
        service = Service(load({}, {}), clock, machine, self.pipeline, JobIds(clock.random_bytes))
        admin = Admin(service, dict, bytes, lambda: ("leader", ""))
        live = StreamHub(loop, service)
        router = Router(routes(service, admin, live, False))
        self.server = Server(router.handle, clock, None, loop)
        self.pipeline.on_applied.append(self.server.flush)
        self.connections: list[tuple[Connection, Transport]] = []
        for _ in range(CONNECTIONS):
            connection, transport = self.server.protocol(), Transport()
            made: Any = connection.connection_made
            made(transport)
            self.connections.append((connection, transport))
        self.run()

    def run(self) -> None:
        """Turns of the loop until it has nothing to do."""
        while self.loop.soon:
            for _ in range(len(self.loop.soon)):
                callback, args = self.loop.soon.popleft()
                callback(*args)
            for _, transport in self.connections:
                assert len(transport.writes) <= 1

    def ask(self, requests: list[tuple[str, str]]) -> list[str]:
        """One request on each connection; the replies."""
        for (connection, transport), (path, body) in zip(self.connections, requests, strict=True):
            transport.writes.clear()
            head = f"POST /api/v1/{path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.data_received((head + body).encode())
        self.run()
        return [transport.writes[0].decode() for _, transport in self.connections]

    def live(self, *, fetch_first: bool = False) -> None:
        """A whole life on each connection. Fetches that come first park until there is work."""
        fetch = ("fetch", '{"queues":["q"],"worker_id":"w","timeout":30}')
        enqueue = ("enqueue", '{"queue":"q","payload":{"n":1}}')
        if fetch_first:
            half = CONNECTIONS // 2
            fetched = self.ask([fetch] * half + [enqueue] * half)[:half]
        else:
            self.ask([enqueue] * CONNECTIONS)
            fetched = self.ask([fetch] * CONNECTIONS)
        acks = []
        for reply in fetched:
            found = re.search(r'"job_id":"(\w+)".*"lease_token":"(\w+)"', reply)
            assert found is not None, reply
            acks.append((f"ack/{found[1]}", f'{{"lease_token":"{found[2]}"}}'))
        acks += [enqueue] * (CONNECTIONS - len(acks))
        for reply in self.ask(acks):
            assert reply.startswith("HTTP/1.1 20"), reply


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a future or task was made")

    for name in ("Future", "Task", "create_task", "ensure_future"):
        monkeypatch.setattr(asyncio, name, refuse)
    rig = Rig(tmp_path)
    rig.live()
    yield rig
    rig.log.close()


def test_no_timer_is_made_for_a_request(rig: Rig) -> None:
    before = rig.loop.timers
    for _ in range(10):
        rig.live()
    assert rig.loop.timers == before


def test_no_timer_is_made_for_a_fetch_that_is_served_by_its_turn(rig: Rig) -> None:
    before = rig.loop.timers
    for _ in range(10):
        rig.live(fetch_first=True)
    assert rig.loop.timers <= before + 1  # the one for all waiting fetches


def test_one_write_for_what_a_read_brings(rig: Rig) -> None:
    connection, transport = rig.connections[0]
    transport.writes.clear()
    body = '{"queue":"q"}'
    head = f"POST /api/v1/enqueue HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.data_received((head + body).encode() * 16)
    rig.run()
    assert len(transport.writes) == 1 and transport.writes[0].count(b"201 Created") == 16


def test_one_flush_for_an_entry(rig: Rig) -> None:
    syncs, entries = rig.files.syncs, rig.pipeline.metrics.entries
    for _ in range(5):
        rig.live()
    assert rig.pipeline.metrics.entries == entries + 15
    assert rig.files.syncs == syncs + 15


def test_requests_leave_no_cycles(rig: Rig) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            rig.live()
        assert gc.collect() == 0
    finally:
        gc.enable()

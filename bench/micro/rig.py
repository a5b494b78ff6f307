"""The server without sockets, for measuring: connections that are fed bytes, everything from the
HTTP parser to the state store behind them, and a loop that runs on request."""

import asyncio
import gc
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from corvo import limits
from corvo._fast.http.http1 import H1Conn
from corvo.config import load
from corvo.consensus.single_log import SingleLog
from corvo.consensus.wal.inline_thread import InlineSync
from corvo.consensus.wal.wal import new_flusher
from corvo.engine.pipeline import Pipeline
from corvo.engine.service import Service
from corvo.fsm.machine import Machine
from corvo.net.api.handlers.admin import Admin
from corvo.net.http.router import Router
from corvo.net.http.server import Server
from corvo.net.hub import StreamHub
from corvo.net.routes import routes, takes_pieces
from corvo.platform.clock import Clock
from corvo.platform.files import Files
from corvo.platform.ids import JobIds
from corvo.storage.data_dir import Identity
from corvo.storage.lmdb import StateStore
from corvo.storage.memory import MemoryStore

MAP_SIZE = 4096 * limits.MIB  # what Valgrind has room for
PAYLOAD = b'{"data":"%s"}' % (b"x" * 136)
HEAD = (
    b"POST /api/v1/%b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)


def http_request(path: bytes, body: bytes) -> bytes:
    """A request as a client library sends it."""
    return HEAD % (path, len(body), body)


ENQUEUE = http_request(b"enqueue", b'{"queue":"bench","payload":%b}' % PAYLOAD)
FETCH = http_request(b"fetch", b'{"queues":["bench"],"worker_id":"w1","timeout":1}')


class Loop:
    """Callbacks wait until `run`; timers never fire."""

    def __init__(self) -> None:
        self._soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._soon.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> "Loop":
        return self

    def cancel(self) -> None:
        """Of a timer, which this loop stands for as well."""

    def run(self) -> None:
        soon = self._soon
        while soon:
            callback, args = soon.popleft()
            callback(*args)


class Rig:
    """Everything between the sockets and the disk. With a real loop the log is durable, else the
    disk's flushes are not measured; with `memory` neither is the state store."""

    def __init__(
        self,
        connections: int,
        memory: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        gc.freeze()
        gc.set_threshold(50_000, 20, 1_000_000_000)  # as the server does
        self._directory = tempfile.TemporaryDirectory()
        path = Path(self._directory.name)
        self.loop = cast(Any, loop or Loop())
        self.clock = Clock()
        files = Files()
        self.log = SingleLog(
            str(path / "wal"),
            Identity("0" * 32, "bench", "0" * 16),
            durable=loop is not None,
            new_salt=lambda: 1,
            files=files,
            flusher=new_flusher(files) if loop else InlineSync(files),
        )
        state_store = MemoryStore() if memory else StateStore.open(path, MAP_SIZE)
        self.machine = Machine(state_store)
        disk: Any = Disk()
        self.pipeline = Pipeline(
            self.loop, self.clock, self.log, self.machine, disk, limits.PENDING_OPS_MAX
        )
        self.log.start(0, 0, self.loop)
        self.pipeline.start()
        config = load({"stream-max-fps": "0"}, {})  # timers never fire here
        ids = JobIds(self.clock.random_bytes)
        service = Service(config, self.clock, self.machine, self.pipeline, ids)
        admin = Admin(service, dict, bytes, lambda: ("leader", ""))
        live = StreamHub(self.loop, service)
        self.router = Router(routes(service, admin, live, False))
        self.server = Server(self.router.handle, self.clock, None, self.loop)
        self.server.context.takes_pieces = takes_pieces
        self.connections = [H1Conn(self.server.context, "::1") for _ in range(connections)]
        if loop is None:
            self.loop.run()

    def turn(self, requests: list[bytes]) -> list[bytes]:
        """One request on each connection, until all are answered."""
        serve = self.server.serve
        for connection, request in zip(self.connections, requests, strict=True):
            serve(connection.feed(request))
        self.loop.run()
        return [connection.data_to_send() for connection in self.connections]


class Disk:
    """Has room."""

    def disk_free(self) -> int:
        return 1 << 40

    def restore_ballast(self) -> bool:
        return True

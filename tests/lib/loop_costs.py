"""CPU time of the event loop for one request: a server without sockets, and requests that are fed
to it as bytes. Everything else from the connection to the state store is real, and what a request
leaves dirty is flushed before its time is taken."""

import gc
import json
import re
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack

from corvo._fast.codec.protobuf import ProtobufError
from corvo.config import load
from corvo.consensus.single_log import SingleLog
from corvo.consensus.wal.inline_thread import InlineSync
from corvo.engine.caller import ANONYMOUS
from corvo.engine.commands.enqueue import EnqueueCommands
from corvo.engine.commands.work import WorkCommands
from corvo.engine.pipeline import Pipeline
from corvo.engine.service import Service
from corvo.fsm.machine import Machine
from corvo.limits import MIB
from corvo.net.api import requests
from corvo.net.api.handlers.admin import Admin
from corvo.net.http.router import Route, Router
from corvo.net.http.server import Server
from corvo.net.hub import StreamHub
from corvo.net.routes import routes
from corvo.net.rpc.codecs import CODECS
from corvo.net.rpc.worker_service import WorkerCalls
from corvo.net.rpc.worker_session import LifecycleSession
from corvo.platform.clock import Clock
from corvo.platform.files import Files
from corvo.platform.ids import JobIds
from corvo.storage.data_dir import Identity
from corvo.storage.lmdb import StateStore

_READ_SIZE: Final = 256_000  # what the event loop reads at once
_MAP_SIZE: Final = 4096 * MIB
# Answers of the mirror that are not bytes to be passed on.
_ANSWERS: Final = {"ids": {"ids": [], "next": 0, "upto": 1}}


class _Loop:
    """Callbacks wait until `run`; timers never fire."""

    def __init__(self) -> None:
        self.soon: deque[tuple[Any, tuple[Any, ...]]] = deque()

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.soon.append((callback, args))

    def call_later(self, delay: float, callback: Any, *args: Any) -> "_Loop":
        return self

    def cancel(self) -> None:
        """Of a timer, which this loop is as well."""

    def run(self) -> None:
        while self.soon:
            callback, args = self.soon.popleft()
            callback(*args)


class _Disk:
    def disk_free(self) -> int:
        return 1 << 40

    def restore_ballast(self) -> bool:
        return True


class _Mirror:
    """Encodes a question as the channel to the sidecar does, and answers at once."""

    def ask(self, method: str, arguments: Any, wait_s: float, completion: Any) -> None:
        callback, argument = completion
        msgpack.packb([0, 1, method, arguments, 1])
        callback(argument, {} if method == "rebuild" else (_ANSWERS.get(method, b"{}"), False))


def _metrics() -> Generator[None, None, bytes]:
    """A page of metrics in two steps."""
    yield
    return b""


class _Members:
    """A cluster that takes any change."""

    def check_proof(self, given: str, *facts: str) -> None:
        pass

    def add(self, *facts: Any) -> None:
        facts[-1](True)

    def remove(self, member_id: str, answer: Any) -> None:
        answer(None)

    promote = remove

    def transfer(self, member_id: str) -> str:
        return member_id


class _Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    abort = pause_reading = resume_reading = close


class Cost(NamedTuple):
    """CPU time of the loop, bytes of the request, and the response."""

    seconds: float
    size: int
    status: int
    response: bytes

    @property
    def text(self) -> str:
        """The body of the response."""
        return self.response.partition(b"\r\n\r\n")[2].decode("utf-8", "replace")


class CostRig:
    """A server whose requests are measured."""

    def __init__(self, path: Path) -> None:
        self.loop = _Loop()
        loop: Any = self.loop
        disk: Any = _Disk()
        clock, files = Clock(), Files()
        self.log = SingleLog(
            str(path / "wal"),
            Identity("0" * 32, "node-1", "0" * 16),
            durable=False,
            new_salt=lambda: 1,
            files=files,
            flusher=InlineSync(files),
        )
        self.machine = Machine(StateStore.open(path, _MAP_SIZE))
        self.pipeline = Pipeline(loop, clock, self.log, self.machine, disk, 1 << 20)
        self.log.start(0, 0, loop)
        self.pipeline.start()
        ids = JobIds(clock.random_bytes)
        service = Service(load({}, {}), clock, self.machine, self.pipeline, ids)
        service.mirror = _Mirror()
        admin = Admin(service, dict, _metrics, lambda: ("leader", ""))
        members: Any = _Members()
        hub = StreamHub(loop, service)
        work = WorkCommands(service, hub.job_output)
        self._calls = WorkerCalls(service, EnqueueCommands(service), work)
        self.routes: list[Route] = routes(service, admin, hub, True, members)
        self.server = Server(Router(self.routes).handle, clock, None, loop)
        self.pipeline.on_applied.append(self.server.flush)
        self.loop.run()

    def send(self, data: bytes, read_size: int = _READ_SIZE) -> Cost:
        """A request on a connection of its own, in reads of this size."""
        connection: Any = self.server.protocol()
        transport = _Transport()
        began = time.thread_time()
        connection.connection_made(transport)
        for at in range(0, len(data), read_size):
            connection.data_received(data[at : at + read_size])
            self.loop.run()
        self._flush()
        seconds = time.thread_time() - began
        connection.connection_lost(None)
        self.loop.run()
        response = b"".join(transport.written)
        found = re.match(
            rb"HTTP/1.1 (\d+)", response.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        )
        return Cost(seconds, len(data), int(found[1]) if found else 0, response)

    def frame(self, data: bytes) -> Cost:
        """A frame of a lifecycle stream, in the binary form."""
        codec = CODECS["proto"]
        sent: list[bytes] = []
        session = LifecycleSession(
            self._calls,
            ANONYMOUS,
            "127.0.0.1",
            lambda values: sent.append(codec.encode("LifecycleStreamResponse", values)),
            lambda error: None,
            codec.jobs,
        )
        began = time.thread_time()
        with suppress(ProtobufError):
            session.receive(self._calls.read_frame(codec, data))
            self.loop.run()
        self._flush()
        seconds = time.thread_time() - began
        session.close()
        self.loop.run()
        return Cost(seconds, len(data), 200 if sent else 400, b"\r\n\r\n" + b"".join(sent))

    def _flush(self) -> None:
        if self.machine.write_buffer_records:
            self.pipeline.flusher.flush()
            self.loop.run()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """A request of /api/v1 that must succeed; its document."""
        data = b"" if body is None else json.dumps(body).encode()
        cost = self.send(request(method.encode(), b"/api/v1" + path.encode(), data))
        assert cost.status < 300, cost.response
        return json.loads(cost.text or "null")


def request(method: bytes, target: bytes, body: bytes = b"", lines: bytes = b"") -> bytes:
    """The bytes of a request; `lines` are header lines."""
    head = b"%b %b HTTP/1.1\r\nHost: localhost\r\n%b" % (method, target, lines)
    if body or method != b"GET":
        head += b"Content-Length: %d\r\n" % len(body)
    return head + b"\r\n" + body


class _Recorded(dict[Any, Any]):
    """Decoders of bodies by their type; notes which types are looked up."""

    kinds: list[Any]

    def get(self, kind: Any, default: Any = None) -> Any:
        self.kinds.append(kind)
        return super().get(kind, default)


@contextmanager
def decoded_kinds() -> Iterator[list[Any]]:
    """The types of the bodies that are decoded meanwhile."""
    before = requests._DECODERS
    recorded = _Recorded(before)
    recorded.kinds = []
    requests._DECODERS = recorded
    try:
        yield recorded.kinds
    finally:
        requests._DECODERS = before


@contextmanager
def server_memory() -> Iterator[None]:
    """Garbage is collected as in the server."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 1_000_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()

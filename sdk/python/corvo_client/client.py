"""The client that blocks: plain sockets, a pool of connections, safe to share between threads."""

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack

from corvo_client.api import Api, Hook
from corvo_client.core import (
    ClientOptions,
    Close,
    Emissions,
    Emit,
    Open,
    Read,
    Reply,
    Request,
    Server,
    Sleep,
    Steps,
)
from corvo_client.endpoints import Blocking
from corvo_client.errors import Unreachable
from corvo_client.wire import FAILURES, READ_SIZE, Wire, tls_context, unreachable

T = TypeVar("T")
_IDLE_MAX = 64  # connections kept open
_CONNECT_S = 10.0


class _Connection:
    """A connection to a server."""

    def __init__(self, server: Server, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        plain = socket.create_connection((server.host, server.port), min(timeout_s, _CONNECT_S))
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket = tls.wrap_socket(plain, server_hostname=server.host) if tls else plain
        except BaseException:
            plain.close()
            raise
        self.wire = Wire()

    def exchange(self, request: Request) -> Reply:
        """Send a request and read the response."""
        deadline = time.monotonic() + request.timeout_s
        self.socket.settimeout(request.timeout_s)
        self.socket.sendall(self.wire.start(request))
        reply = None
        while reply is None:
            reply = self.wire.feed(self.receive(deadline))
        return reply

    def receive(self, deadline: float) -> bytes:
        """Return the next bytes, none at the end."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)
        return self.socket.recv(READ_SIZE)

    def broken(self) -> bool:
        """Whether the server has closed the idle connection, or sent bytes unasked."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


class _Pool:
    """Idle connections, the one used last first."""

    def __init__(self, ca_file: str | None) -> None:
        self._ca_file = ca_file
        self._idle: list[tuple[Server, _Connection]] = []
        self._lock = threading.Lock()
        self._tls: dict[Server, ssl.SSLContext | None] = {}
        self._process = os.getpid()

    def take(self, server: Server, timeout_s: float) -> _Connection:
        """Return an idle connection or a new one."""
        with self._lock:
            if self._process != os.getpid():  # a fork shares no connection with its parent
                self._idle, self._process = [], os.getpid()
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place][0] == server:
                    connection = self._idle.pop(place)[1]
                    if not connection.broken():
                        return connection
                    connection.close()
            if server not in self._tls:
                self._tls[server] = tls_context(server, self._ca_file)
        return _Connection(server, self._tls[server], timeout_s)

    def put(self, server: Server, connection: _Connection) -> None:
        """Keep a connection for the next request."""
        with self._lock:
            if len(self._idle) < _IDLE_MAX and self._process == os.getpid():
                self._idle.append((server, connection))
                return
        connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            for _, connection in self._idle:
                connection.close()
            self._idle = []


class _Stream:
    """A response that is read in parts."""

    def __init__(self, server: Server, connection: _Connection) -> None:
        self.server, self.connection = server, connection
        self.first = b""
        self.ended = False

    def read(self, timeout_s: float) -> bytes:
        """Return the next part, empty at the end."""
        data, self.first = self.first, b""
        deadline = time.monotonic() + timeout_s
        try:
            while not data and not self.ended:
                received = self.connection.receive(deadline)
                _, data, self.ended = self.connection.wire.feed_stream(received)
        except FAILURES as error:
            raise unreachable(self.server, error, True, timeout_s) from error
        return data


class Client(Api, Blocking):
    """A client that returns results. It may be used by several threads, and after a fork.

    `base_url` is a URL or several; the other options are the fields of `Settings`. Each function of
    `before_enqueue` takes a job as a dict, and returns another one or None.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        before_enqueue: Sequence[Hook] = (),
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(base_url, before_enqueue, options)
        self._pool = _Pool(self.core.settings.ca_file)

    def run(self, steps: Steps[T]) -> T:
        """Carry out the steps and return their result."""
        outcome: Any = None
        failed: Unreachable | None = None
        try:
            while True:
                step = steps.throw(failed) if failed is not None else steps.send(outcome)
                outcome = failed = None
                try:
                    outcome = self._take(step)
                except Unreachable as error:
                    failed = error
        except StopIteration as stop:
            result: T = stop.value
            return result

    def iterate(self, steps: Emissions[T]) -> Iterator[T]:
        """Carry out the steps and yield the values that they emit."""
        outcome: Any = None
        failed: Unreachable | None = None
        stream: _Stream | None = None
        try:
            while True:
                try:
                    step = steps.throw(failed) if failed is not None else steps.send(outcome)
                except StopIteration:
                    return
                outcome = failed = None
                if isinstance(step, Emit):
                    yield step.value
                    continue
                try:
                    outcome = self._take(step)
                except Unreachable as error:
                    failed = error
                if isinstance(step, Open) and outcome is not None:
                    stream = outcome[1]
        finally:
            steps.close()
            if stream is not None:
                stream.connection.close()

    def _take(self, step: Any) -> Any:
        """Carry out one step."""
        if isinstance(step, Request):
            return self._send(step)
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)
        if isinstance(step, Open):
            return self._open(step.request)
        if isinstance(step, Read):
            return step.stream.read(step.timeout_s)
        assert isinstance(step, Close)
        return step.stream.connection.close()

    def _send(self, request: Request) -> Reply:
        connection = self._connect(request)
        try:
            reply = connection.exchange(request)
        except FAILURES as error:
            connection.close()
            raise unreachable(request.server, error, True, request.timeout_s) from error
        except BaseException:
            connection.close()
            raise
        if connection.wire.reusable:
            self._pool.put(request.server, connection)
        else:
            connection.close()
        return reply

    def _open(self, request: Request) -> tuple[Reply, _Stream | None]:
        connection = self._connect(request)
        try:
            connection.socket.settimeout(request.timeout_s)
            connection.socket.sendall(connection.wire.start(request))
            deadline = time.monotonic() + request.timeout_s
            head, stream = None, _Stream(request.server, connection)
            while head is None and not stream.ended:
                received = connection.receive(deadline)
                head, stream.first, stream.ended = connection.wire.feed_stream(received)
            if head is None:
                raise EOFError("the connection closed before the response")
            if head.status == 200:
                return head, stream
            body = b""
            while part := stream.read(request.timeout_s):
                body += part
        except FAILURES as error:
            connection.close()
            raise unreachable(request.server, error, True, request.timeout_s) from error
        connection.close()
        return Reply(head.status, head.headers, body), None

    def _connect(self, request: Request) -> _Connection:
        try:
            return self._pool.take(request.server, request.timeout_s)
        except OSError as error:
            raise unreachable(request.server, error, False, _CONNECT_S) from error

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

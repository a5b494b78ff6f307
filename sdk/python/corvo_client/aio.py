"""The client of asyncio: the same requests and decisions over the streams of the event loop."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
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
from corvo_client.endpoints import Awaiting
from corvo_client.errors import Unreachable
from corvo_client.wire import FAILURES, READ_SIZE, Wire, tls_context, unreachable

T = TypeVar("T")
_IDLE_MAX = 64
_BUSY_MAX = 100  # requests at a time, apart from those that wait by intention
_CONNECT_S = 10.0


class _Connection:
    """A connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.wire = Wire()

    async def exchange(self, request: Request) -> Reply:
        """Send a request and read the response."""
        async with asyncio.timeout(request.timeout_s):
            self.writer.write(self.wire.start(request))
            await self.writer.drain()
            reply = None
            while reply is None:
                reply = self.wire.feed(await self.reader.read(READ_SIZE))
            return reply

    def close(self) -> None:
        """Close the connection."""
        with suppress(RuntimeError):  # the loop may be closed already
            self.writer.close()


class _Stream:
    """A response that is read in parts."""

    def __init__(self, server: Server, connection: _Connection) -> None:
        self.server, self.connection = server, connection
        self.first = b""
        self.ended = False

    async def read(self, timeout_s: float) -> bytes:
        """Return the next part, empty at the end."""
        data, self.first = self.first, b""
        try:
            async with asyncio.timeout(timeout_s):
                while not data and not self.ended:
                    received = await self.connection.reader.read(READ_SIZE)
                    _, data, self.ended = self.connection.wire.feed_stream(received)
        except FAILURES as error:
            raise unreachable(self.server, error, True, timeout_s) from error
        return data


class AsyncClient(Api, Awaiting):
    """A client that returns coroutines and asynchronous iterators; it belongs to one event loop.

    The options are those of `Client`.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        before_enqueue: Sequence[Hook] = (),
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(base_url, before_enqueue, options)
        self._idle: list[tuple[Server, _Connection]] = []
        self._busy = asyncio.Semaphore(_BUSY_MAX)
        self._tls: dict[Server, ssl.SSLContext | None] = {}

    async def run(self, steps: Steps[T]) -> T:
        """Carry out the steps and return their result."""
        outcome: Any = None
        failed: Unreachable | None = None
        while True:
            try:
                step = steps.throw(failed) if failed is not None else steps.send(outcome)
            except StopIteration as stop:
                result: T = stop.value
                return result
            outcome = failed = None
            try:
                outcome = await self._take(step)
            except Unreachable as error:
                failed = error

    async def iterate(self, steps: Emissions[T]) -> AsyncIterator[T]:
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
                    outcome = await self._take(step)
                except Unreachable as error:
                    failed = error
                if isinstance(step, Open) and outcome is not None:
                    stream = outcome[1]
        finally:
            steps.close()
            if stream is not None:
                stream.connection.close()

    async def _take(self, step: Any) -> Any:
        """Carry out one step."""
        if isinstance(step, Request):
            return await self._send(step)
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Open):
            return await self._open(step.request)
        if isinstance(step, Read):
            return await step.stream.read(step.timeout_s)
        assert isinstance(step, Close)
        return step.stream.connection.close()

    async def _send(self, request: Request) -> Reply:
        if request.waits:
            return await self._send_now(request)
        async with self._busy:
            return await self._send_now(request)

    async def _send_now(self, request: Request) -> Reply:
        connection = await self._connect(request)
        try:
            reply = await connection.exchange(request)
        except FAILURES as error:
            connection.close()
            raise unreachable(request.server, error, True, request.timeout_s) from error
        except BaseException:  # a cancelled request has no response that could be read later
            connection.close()
            raise
        if connection.wire.reusable and len(self._idle) < _IDLE_MAX:
            self._idle.append((request.server, connection))
        else:
            connection.close()
        return reply

    async def _open(self, request: Request) -> tuple[Reply, _Stream | None]:
        connection = await self._connect(request)
        try:
            head, stream = None, _Stream(request.server, connection)
            async with asyncio.timeout(request.timeout_s):
                connection.writer.write(connection.wire.start(request))
                await connection.writer.drain()
                while head is None and not stream.ended:
                    received = await connection.reader.read(READ_SIZE)
                    head, stream.first, stream.ended = connection.wire.feed_stream(received)
            if head is None:
                raise EOFError("the connection closed before the response")
            if head.status == 200:
                return head, stream
            body = b""
            while part := await stream.read(request.timeout_s):
                body += part
        except FAILURES as error:
            connection.close()
            raise unreachable(request.server, error, True, request.timeout_s) from error
        except BaseException:
            connection.close()
            raise
        connection.close()
        return Reply(head.status, head.headers, body), None

    async def _connect(self, request: Request) -> _Connection:
        """Return an idle connection or a new one."""
        server = request.server
        for place in range(len(self._idle) - 1, -1, -1):
            if self._idle[place][0] == server:
                connection = self._idle.pop(place)[1]
                if not connection.reader.at_eof() and not connection.writer.is_closing():
                    return connection
                connection.close()
        try:
            if server not in self._tls:
                self._tls[server] = tls_context(server, self.core.settings.ca_file)
            async with asyncio.timeout(min(_CONNECT_S, request.timeout_s)):
                reader, writer = await asyncio.open_connection(
                    server.host, server.port, ssl=self._tls[server]
                )
        except OSError as error:
            raise unreachable(server, error, False, _CONNECT_S) from error
        return _Connection(reader, writer)

    async def close(self) -> None:
        """Close the idle connections."""
        for _, connection in self._idle:
            connection.close()
        self._idle = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

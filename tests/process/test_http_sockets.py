"""The front end on real sockets: uvloop, raw clients and curl."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from corvo._fast.http.exchange import Request
from corvo.limits import MIB
from corvo.net.http.router import PUBLIC, THIS_NODE, Route, Router
from corvo.net.http.server import HttpLimits, Server
from corvo.platform.clock import Clock

GET = b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n"


FACTS: Any = {"at": THIS_NODE, "needs": PUBLIC}


class App:
    """A server with a route that answers, one that echoes sizes, and one that parks."""

    def __init__(self, limits: HttpLimits) -> None:
        self.parked: list[Request] = []
        self.arrived = asyncio.Event()
        self.abandoned = asyncio.Event()
        router = Router(
            [
                Route("GET", "/ok", lambda request: request.reply(200, b"{}"), "ok", **FACTS),
                Route("POST", "/size", self.size, "size", **FACTS),
                Route("POST", "/park", self.park, "park", **FACTS),
                Route(
                    "GET",
                    "/large",
                    lambda request: request.reply(200, b"x" * MIB),
                    "large",
                    **FACTS,
                ),
            ]
        )
        self.server = Server(router.handle, Clock(), limits)
        self.port = 0

    def size(self, request: Request) -> None:
        request.reply(200, b"%d" % len(request.body))

    def park(self, request: Request) -> None:
        request.on_abandoned = self._on_abandoned
        self.parked.append(request)
        self.arrived.set()

    def _on_abandoned(self, request: Request) -> None:
        self.abandoned.set()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def curl(self, *args: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "curl", "-s", "-S", *args, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return out.decode()


@contextlib.asynccontextmanager
async def running(limits: HttpLimits | None = None) -> AsyncIterator[App]:
    app = App(limits or HttpLimits())
    app.port = await app.server.listen("127.0.0.1", 0)
    yield app
    await app.server.drain(0)


def on_uvloop(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def run() -> None:
        async with running() as app:
            reader, writer = await app.open()
            bodies = [b"x" * n for n in range(300)]
            for body in bodies:
                writer.write(
                    b"POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b"
                    % (len(body), body)
                )
            for n in range(300):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 OK")
                assert await reader.readexactly(len(str(n))) == b"%d" % n
            writer.close()

    on_uvloop(run)


@pytest.mark.parametrize(
    ("limit", "status", "body"),
    [(4 * MIB, "200", str(2 * MIB)), (MIB, "413", "PAYLOAD_TOO_LARGE")],
)
def test_curl_uploads_with_expect(tmp_path: Path, limit: int, status: str, body: str) -> None:
    upload = tmp_path / "upload"
    upload.write_bytes(b"x" * (2 * MIB))

    async def run() -> None:
        async with running(HttpLimits(body_size_max=limit)) as app:
            for expect in ("Expect: 100-continue", "Expect:"):
                out = await app.curl(
                    *("-H", expect, "--expect100-timeout", "60", "--data-binary", f"@{upload}"),
                    *("-w", "\n%{http_code}", f"http://127.0.0.1:{app.port}/size"),
                )
                text, _, code = out.rpartition("\n")
                assert code == status and body in text

    on_uvloop(run)


def test_curl_offers_an_upgrade() -> None:
    async def run() -> None:
        async with running() as app:
            out = await app.curl("--http2", "--data", "hello", f"http://127.0.0.1:{app.port}/size")
            assert out == "5"

    on_uvloop(run)


def test_curl_head_and_errors() -> None:
    async def run() -> None:
        async with running() as app:
            base = f"http://127.0.0.1:{app.port}"
            head = await app.curl("-I", f"{base}/ok")
            assert head.startswith("HTTP/1.1 200 OK") and "Content-Length: 2" in head
            assert '"code":"NOT_FOUND"' in await app.curl(f"{base}/nothing")
            refused = await app.curl("-i", "-X", "DELETE", f"{base}/ok")
            assert "405 Method" in refused and "Allow: GET, HEAD, OPTIONS" in refused

    on_uvloop(run)


def test_half_close_gets_its_answer() -> None:
    async def run() -> None:
        async with running() as app:
            reader, writer = await app.open()
            writer.write(GET)
            writer.write_eof()
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
            writer.close()

    on_uvloop(run)


def test_half_close_cancels_a_parked_request() -> None:
    async def run() -> None:
        async with running() as app:
            reader, writer = await app.open()
            writer.write(b"POST /park HTTP/1.1\r\nHost: a\r\n\r\n")
            await app.arrived.wait()
            writer.write_eof()
            await app.abandoned.wait()
            assert (await reader.read()).startswith(b"HTTP/1.1 204 No Content")
            writer.close()

    on_uvloop(run)


def test_a_reset_abandons_a_parked_request() -> None:
    async def run() -> None:
        async with running() as app:
            _, writer = await app.open()
            writer.write(b"POST /park HTTP/1.1\r\nHost: a\r\n\r\n")
            await app.arrived.wait()
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await app.abandoned.wait()
            assert app.parked[0].abandoned and app.server.connections == set()

    on_uvloop(run)


def test_a_reader_that_does_not_read_stops_the_server_reading() -> None:
    async def run() -> None:
        async with running() as app:
            reader, writer = await app.open()
            writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n" * 40)
            total = 0
            while total < 40 * MIB:
                total += len(await reader.read(64 * 1024))
                (connection,) = app.server.connections
                assert connection.http is not None and connection.http.unsent_size <= 64 * 2 * MIB
            writer.close()

    on_uvloop(run)


def test_drain_loses_no_reply() -> None:
    async def run() -> None:
        async with running() as app:
            idle_reader, idle_writer = await app.open()
            idle_writer.write(GET)
            await idle_reader.readuntil(b"{}")
            reader, writer = await app.open()
            writer.write(b"POST /park HTTP/1.1\r\nHost: a\r\n\r\n")
            await app.arrived.wait()
            app.server.on_drain = lambda: app.parked[0].reply(204)
            drained = asyncio.ensure_future(app.server.drain(10))
            assert await idle_reader.read() == b""
            idle_writer.close()
            last = await reader.read()
            assert last.startswith(b"HTTP/1.1 204") and b"Connection: close" in last
            writer.close()
            await drained
            with pytest.raises(ConnectionRefusedError):
                await app.open()

    on_uvloop(run)


def test_drain_gives_up_after_its_time() -> None:
    async def run() -> None:
        async with running() as app:
            reader, writer = await app.open()
            writer.write(b"POST /park HTTP/1.1\r\nHost: a\r\n\r\n")
            await app.arrived.wait()
            await app.server.drain(0.01)
            assert await reader.read() == b""
            writer.close()
            assert app.parked[0].abandoned

    on_uvloop(run)


def test_no_task_is_made_for_a_request() -> None:
    async def run() -> None:
        async with running() as app:
            reader, writer = await app.open()
            writer.write(GET)
            await reader.readuntil(b"{}")
            loop = asyncio.get_running_loop()
            made: list[str] = []
            loop.set_task_factory(lambda *args, **kwargs: made.append("task"))  # type: ignore
            writer.write(GET * 20)
            for _ in range(20):
                await reader.readuntil(b"{}")
            loop.set_task_factory(None)
            writer.close()
            assert made == []

    on_uvloop(run)

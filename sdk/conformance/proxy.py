"""A proxy before a server that breaks responses on request, and counts what arrives.

It speaks as much of HTTP/1.1 as the clients under test need: requests with a Content-Length. It
runs on a thread of its own.
"""

import asyncio
import fnmatch
import json
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

_TRICKLE_S = 0.001


@dataclass
class Arrived:
    """A request that arrived."""

    route: str  # method and path, without /api/v1 and the query
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)


@dataclass
class Message:
    """A request or a response as bytes: its head with the empty line, and its body."""

    head: bytes
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return {name.lower(): value.strip() for name, _, value in pairs}


class Proxy:
    """One proxy. `faults` may be changed between cases."""

    def __init__(self, host: str, port: int) -> None:
        self.upstream = host, port
        self.port = 0
        self.faults: list[dict[str, Any]] = []
        self.arrived: list[Arrived] = []
        self.cut = False  # the network is down: connections end, new ones are refused
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        """The URL of the proxy."""
        return f"http://127.0.0.1:{self.port}"

    def reset(self, faults: list[dict[str, Any]]) -> None:
        """Begin a case."""
        self.arrived = []
        self.faults = [{"nth": 1, **fault, "seen": 0} for fault in faults]

    def set_cut(self, cut: bool) -> None:
        """Cut the network, or mend it."""
        self.cut = cut

        def end() -> None:
            for writer in self._writers:
                writer.transport.abort()

        if cut:
            self._loop.call_soon_threadsafe(end)

    def __enter__(self) -> Self:
        self._thread.start()
        work = asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self._server = asyncio.run_coroutine_threadsafe(work, self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        def end() -> None:
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            self._loop.call_later(0.05, self._loop.stop)

        self._loop.call_soon_threadsafe(end)
        self._thread.join(5)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while not self.cut and (request := await read_message(reader)) is not None:
                if not await self._exchange(request, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            self._writers.discard(writer)
            with suppress(OSError):
                writer.close()

    async def _exchange(
        self, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer a request; return whether the connection can carry another one."""
        method, target = request.head.decode("latin-1").split(" ")[:2]
        route = f"{method} {target.removeprefix('/api/v1').partition('?')[0]}"
        self.arrived.append(Arrived(route, request.headers, request.body))
        fault = self._fault(route)
        kind = fault.get("do")
        if kind == "refuse":
            return False
        if kind == "answer":
            reply = answer(fault)
        else:
            found = await self._ask(request, reader)
            if found is None:
                return False
            reply = found
        if kind == "drop_reply":
            return False
        if kind == "replace":
            document = {**json.loads(reply.body), **fault["body"]}
            reply = answer({"status": int(reply.head.split()[1]), "body": document})
        data = reply.head + reply.body
        if kind == "reset_body":
            writer.write(data[: len(reply.head) + len(reply.body) // 2])
            await writer.drain()
            reset(writer)
            return False
        if kind == "half_close":
            writer.write(reply.head[: len(reply.head) // 2])
            await writer.drain()
            writer.write_eof()
            await reader.read()
            return False
        if kind == "trickle":
            for at in range(len(data)):
                writer.write(data[at : at + 1])
                await writer.drain()
                await asyncio.sleep(_TRICKLE_S)
            return True
        writer.write(data)
        await writer.drain()
        return True

    def _fault(self, route: str) -> dict[str, Any]:
        """Return the fault of a request, which may be empty."""
        for fault in self.faults:
            if fnmatch.fnmatch(route, fault["on"]):
                fault["seen"] += 1
                if fault["nth"] in (0, fault["seen"]):
                    return fault
        return {}

    async def _ask(self, request: Message, reader: asyncio.StreamReader) -> Message | None:
        """Send a request to the server, and return its response; None if the client leaves."""
        server_reader, server_writer = await asyncio.open_connection(*self.upstream)
        try:
            server_writer.write(request.head + request.body)
            response = asyncio.ensure_future(read_message(server_reader, request.head[:4]))
            left = asyncio.ensure_future(reader.read(1))
            await asyncio.wait({response, left}, return_when=asyncio.FIRST_COMPLETED)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            if not response.done():
                response.cancel()
                return None
            return response.result()
        finally:
            server_writer.close()


async def read_message(reader: asyncio.StreamReader, method: bytes = b"") -> Message | None:
    """Return the next message of a connection, None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    message = Message(head, b"")
    size = int(message.headers.get("content-length", 0))
    if size and method != b"HEAD":
        message.body = await reader.readexactly(size)
    return message


def answer(fault: dict[str, Any]) -> Message:
    """Return the response that a fault describes."""
    body = fault.get("body", {})
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **fault.get("headers", {})}
    lines = [f"HTTP/1.1 {fault['status']} X", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return Message("\r\n".join([*lines, "", ""]).encode(), data)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with a reset instead of a proper end."""
    plain: socket.socket = writer.get_extra_info("socket")
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

"""GET /healthz of a worker, for orchestrators."""

import asyncio
import json
from collections.abc import Callable
from typing import Any


async def serve_health(address: str, health: Callable[[], dict[str, Any]]) -> asyncio.Server:
    """Serve the health at host:port: 200 while the worker is well, 503 when it is deaf."""
    host, _, port = address.rpartition(":")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n\r\n")
            state = health()
            status = "503 Service Unavailable" if state["status"] == "deaf" else "200 OK"
            body = json.dumps(state).encode()
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, host or "127.0.0.1", int(port))

"""The conformance service of Connect on our front end: what the official runner talks to.

    python tests/conformance/server.py DIRECTORY

The directory holds the modules that protoc makes of the service's own definitions. The runner says
on standard input what it wants of the server, and is told on standard output where it listens. The
wire is that of the worker service (`corvo.net.rpc.wire`); messages and handlers are for this test.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import uvloop
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from corvo._fast.http.exchange import Request, header_line
from corvo.errors import CorvoError
from corvo.limits import MS_NS, RPC_MESSAGE_SIZE_MAX, SECOND_NS
from corvo.net.http.server import Server
from corvo.net.http.tls import Certificate, Handshakes
from corvo.net.rpc.status import HTTP_STATUS, RpcError
from corvo.net.rpc.wire import STREAMING, UNARY, Wire, find_wire
from corvo.platform.clock import Clock

sys.path.insert(0, sys.argv[1])
server_compat_pb2: Any = import_module("connectrpc.conformance.v1.server_compat_pb2")
service_pb2: Any = import_module("connectrpc.conformance.v1.service_pb2")

PATH: Final = b"/connectrpc.conformance.v1.ConformanceService/"
CODES: Final = dict(enumerate(HTTP_STATUS, 1))


class Call:
    """One call: its messages, and what is to be said of it."""

    def __init__(self, wire: Wire, method: str) -> None:
        self.wire = wire
        self.method = method
        self.request = wire.request
        self.envelopes = wire.envelopes()  # anew when the head is read
        self.messages: list[Any] = []  # read, and not shown yet
        self.unread: list[bytes] = []
        self.news = asyncio.Event()
        self.headers = b""
        self.trailers: list[tuple[str, str]] = []
        self.request.on_body = lambda _request: self.news.set()

    def decode(self, data: bytes) -> Any:
        message = getattr(service_pb2, f"{self.method}Request")()
        try:
            if self.wire.form == "proto":
                message.ParseFromString(data)
            else:
                json_format.Parse(data, message, ignore_unknown_fields=True)
        except (DecodeError, json_format.ParseError, UnicodeDecodeError) as error:
            raise RpcError("invalid_argument", str(error)) from None
        self.messages.append(message)
        return message

    async def read(self) -> Any:
        """The next message of the request, None = there is none."""
        while not self.unread:
            data = self.request.take_body()
            if data or self.envelopes.more:
                self.unread += self.envelopes.feed(data)
                self.request.keep_body(self.envelopes.size)
            elif self.request.receiving:
                self.news.clear()
                await self.news.wait()
            else:
                self.envelopes.finish()
                return None
        return self.decode(self.unread.pop(0))

    def define(self, definition: Any) -> None:
        """Take over what is said about headers and trailers."""
        self.headers = b"".join(
            header_line(header.name, value)
            for header in definition.response_headers
            for value in header.value
        )
        self.trailers = [
            (header.name, value)
            for header in definition.response_trailers
            for value in header.value
        ]

    def info(self, whole: bool = True) -> Any:
        """What was seen of the request."""
        info = service_pb2.ConformancePayload.RequestInfo()
        if whole:
            values: dict[str, list[str]] = {}
            for name, value in self.request.fields or ():
                values.setdefault(name.decode(), []).append(value.decode())
            for text, several in values.items():
                info.request_headers.add(name=text, value=several)
            if self.wire.timeout_ns:
                info.timeout_ms = self.wire.timeout_ns // MS_NS
        for message in self.messages:
            info.requests.add().Pack(message)
        return info

    def send(self, data: bytes, info: Any = None) -> None:
        response = getattr(service_pb2, f"{self.method}Response")()
        response.payload.data = data
        if info is not None:
            response.payload.request_info.CopyFrom(info)
        if self.wire.form == "proto":
            self.wire.send(response.SerializeToString())
        else:
            self.wire.send(json_format.MessageToJson(response).encode())

    def error(self, wanted: Any, info: Any = None) -> RpcError:
        details = [(any.type_url.rpartition("/")[2], any.value) for any in wanted.details]
        if info is not None:
            details.append((info.DESCRIPTOR.full_name, info.SerializeToString()))
        return RpcError(CODES[wanted.code], wanted.message, tuple(details))


async def unary(call: Call) -> None:
    await answer(call, call.decode(call.wire.message()).response_definition)


async def client_stream(call: Call) -> None:
    first = await call.read()
    while await call.read() is not None:
        pass
    definition = service_pb2.UnaryResponseDefinition()
    if first is not None:
        definition = first.response_definition
    await answer(call, definition)


async def answer(call: Call, definition: Any) -> None:
    """One message, or an error."""
    call.define(definition)
    await asyncio.sleep(definition.response_delay_ms / 1000)
    if definition.HasField("error"):
        raise call.error(definition.error, call.info())
    call.wire.start(call.headers)
    call.send(definition.response_data, call.info())
    call.wire.end(None, call.trailers)


async def server_stream(call: Call) -> None:
    definition = call.decode(call.wire.message()).response_definition
    call.define(definition)
    await rest(call, definition, 0)


async def bidi_stream(call: Call) -> None:
    first = message = await call.read()
    sent = 0
    if first is None:
        call.wire.end()
        return
    definition = first.response_definition
    call.define(definition)
    if first.full_duplex and definition.response_data:
        call.wire.start(call.headers)
    while message is not None:
        if first.full_duplex:
            if sent == len(definition.response_data):
                break
            await asyncio.sleep(definition.response_delay_ms / 1000)
            call.send(definition.response_data[sent], call.info(whole=sent == 0))
            call.messages = []
            sent += 1
        message = await call.read()
    await rest(call, definition, sent)


async def rest(call: Call, definition: Any, sent: int) -> None:
    """What was not sent yet, and the end. Without fields and messages it is one with the end."""
    if not call.request.replied and (call.headers or definition.response_data):
        call.wire.start(call.headers)
    for number in range(sent, len(definition.response_data)):
        await asyncio.sleep(definition.response_delay_ms / 1000)
        call.send(definition.response_data[number], call.info() if number == 0 else None)
    if definition.HasField("error"):
        nothing_sent = not definition.response_data
        raise call.error(definition.error, call.info() if nothing_sent else None)
    call.wire.end(None, call.trailers, call.headers)


async def unimplemented(_call: Call) -> None:
    raise RpcError("unimplemented", "not here")


METHODS: Final[dict[str, Callable[[Call], Awaitable[None]]]] = {
    "Unary": unary,
    "IdempotentUnary": unary,
    "Unimplemented": unimplemented,
    "ClientStream": client_stream,
    "ServerStream": server_stream,
    "BidiStream": bidi_stream,
}


class Service:
    """Runs each call as a task."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, request: Request) -> None:
        method = request.path.removeprefix(PATH).decode()
        if method not in METHODS:
            request.reply(404)
            return
        if request.method != "POST":
            request.reply(405, b"", header_line("Allow", "POST"))
            return
        streams = method.endswith("Stream")
        wire = find_wire(request, STREAMING if streams else UNARY, self._size_max)
        if wire is not None:
            task = asyncio.create_task(self._serve(Call(wire, method)))
            request.on_abandoned = lambda _request: task.cancel()
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, call: Call) -> None:
        wire = call.wire
        try:
            wire.read_head()
            call.envelopes = wire.envelopes()
            async with asyncio.timeout(_patience_s(wire.timeout_ns)):
                await METHODS[call.method](call)
        except TimeoutError:
            wire.end(RpcError("deadline_exceeded", "too late"), call.trailers, call.headers)
        except RpcError as error:
            wire.end(error, call.trailers, call.headers)
        except CorvoError as error:
            wire.end(RpcError("internal", error.message))


async def run() -> None:
    """Serve until the runner ends this process."""
    size = int.from_bytes(sys.stdin.buffer.read(4), "big")
    wanted = server_compat_pb2.ServerCompatRequest.FromString(sys.stdin.buffer.read(size))
    service = Service(wanted.message_receive_limit or RPC_MESSAGE_SIZE_MAX)
    server = Server(service.handle, Clock())
    server.context.keeps_fields = True
    server.context.takes_pieces = lambda request: request.path == PATH + b"BidiStream"
    response = server_compat_pb2.ServerCompatResponse(host="127.0.0.1")
    protocol = None
    if wanted.use_tls:
        protocol = Handshakes(server, _certificate(wanted.server_creds)).protocol
        response.pem_cert = wanted.server_creds.cert
    response.port = await server.listen("127.0.0.1", 0, protocol)
    data = response.SerializeToString()
    sys.stdout.buffer.write(len(data).to_bytes(4, "big") + data)
    sys.stdout.buffer.flush()
    await asyncio.Event().wait()


def _patience_s(timeout_ns: int) -> float | None:
    """A little less than the caller's own: when both end at once, the runner's client may see the
    end of its connection first."""
    return max(timeout_ns - 20 * MS_NS, timeout_ns // 2) / SECOND_NS if timeout_ns else None


def _certificate(credentials: Any) -> Certificate:
    with tempfile.TemporaryDirectory() as directory:
        cert, key = Path(directory) / "cert.pem", Path(directory) / "key.pem"
        cert.write_bytes(credentials.cert)
        key.write_bytes(credentials.key)
        return Certificate(str(cert), str(key))


if __name__ == "__main__":
    uvloop.run(run())

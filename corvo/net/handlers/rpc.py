"""The worker service over HTTP: Connect calls, and Connect streams that only the server writes.

POST /corvo.v1.WorkerService/<Method>; the content type says which protocol and which of the two
forms of messages. Streams that both sides write need HTTP/2, but a single frame, as plain JSON, can
be exchanged here too: some clients do that.
"""

from collections.abc import Callable
from typing import Any, Final

from corvo import limits
from corvo._fast import protobuf
from corvo._fast.protobuf import Message
from corvo._fast.replies import ReplyQueue, Request, header_line
from corvo.errors import CorvoError, VersionNotSupported
from corvo.feed import EVENT_TYPES, Change
from corvo.limits import MS_NS, SECOND_NS
from corvo.net import proto_json
from corvo.net.envelopes import END_STREAM, Envelopes, envelope, gunzip, too_large
from corvo.net.event_streams import Form
from corvo.net.handlers.streams import read_filter
from corvo.net.lifecycle import LifecycleSession
from corvo.net.live import Live
from corvo.net.proto_file import load
from corvo.net.rpc_status import (
    HTTP_STATUS,
    RpcError,
    connect_end,
    connect_error,
    grpc_trailers,
    rpc_error,
)
from corvo.net.worker_calls import Call, Values, WorkerCalls
from corvo.pipeline import Loop

TYPES: Final = load("worker.proto")

_UNARY: Final = {b"application/proto": "proto", b"application/json": "json"}
_STREAMING: Final = {b"application/connect+proto": "proto", b"application/connect+json": "json"}
_GRPC: Final = {
    b"application/grpc": "proto",
    b"application/grpc+proto": "proto",
    b"application/grpc+json": "json",
}
_GRPC_UNITS_NS: Final = {
    b"H": 3600 * SECOND_NS,
    b"M": 60 * SECOND_NS,
    b"S": SECOND_NS,
    b"m": MS_NS,
    b"u": 1_000,
    b"n": 1,
}
_ONE_MESSAGE: Final = 1
_LIFECYCLE: Final = "StreamLifecycle"
_SUBSCRIBE: Final = "Subscribe"


class Codec:
    """One of the two forms of messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._module: Any = protobuf if name == "proto" else proto_json

    def encode(self, type: str, values: Values) -> bytes:
        """A message."""
        data: bytes = self._module.encode(TYPES[type], values)
        return data

    def decode(self, type: str, data: bytes) -> Values:
        """A message; ProtobufError when it is none."""
        message: Message = TYPES[type]
        values: Values = self._module.decode(message, data, limits.RPC_ITEMS_MAX)
        return values


CODECS: Final = {name: Codec(name) for name in ("proto", "json")}


class Unary(Call):
    """A call of one message each way."""

    def __init__(self, request: Request, timeout_ns: int, codec: Codec, type: str) -> None:
        super().__init__(request, timeout_ns)
        self._codec = codec
        self._type = type
        self.timer: Any = None

    def answer(self, values: Values) -> None:
        """See `Call`."""
        if self._finish():
            self._reply(self._codec.encode(self._type, values))

    def fail(self, error: Exception) -> None:
        """See `Call`."""
        if self._finish():
            self._refuse(rpc_error(error))

    def _finish(self) -> bool:
        """Whether this is the one answer."""
        if self.timer is not None:
            self.timer.cancel()
        first = not self.done
        self.done = True
        return first

    def _reply(self, data: bytes) -> None:
        raise NotImplementedError

    def _refuse(self, error: RpcError) -> None:
        raise NotImplementedError


class ConnectUnary(Unary):
    """By the Connect protocol: status and body say it all."""

    def _reply(self, data: bytes) -> None:
        content_type = f"application/{self._codec.name}"
        # An empty reply has no type by itself, but an empty message has one.
        headers = b"" if data else header_line("Content-Type", content_type)
        self.request.reply(200, data, headers, content_type.encode())

    def _refuse(self, error: RpcError) -> None:
        _reply_error(self.request, error)


class GrpcUnary(Unary):
    """By gRPC: one envelope, and trailers that say how it went; an error is trailers only."""

    def _reply(self, data: bytes) -> None:
        self.request.start(200, b"", self._content_type())
        self.request.send(envelope(data))
        self.request.end(grpc_trailers(None))

    def _refuse(self, error: RpcError) -> None:
        _reply_grpc_error(self.request, error, self._content_type())

    def _content_type(self) -> bytes:
        return f"application/grpc+{self._codec.name}".encode()


class Rpc:
    """Handlers of the worker service."""

    def __init__(self, loop: Loop, calls: WorkerCalls, live: Live) -> None:
        self._loop = loop
        self._calls = calls
        self._live = live

    def call(self, request: Request) -> None:
        """Any method."""
        method = request.params[0]
        content_type = (request.content_type or b"").partition(b";")[0].strip().lower()
        try:
            if content_type.startswith(b"application/grpc"):
                self._grpc(request, method, content_type)
            elif method in self._calls.methods:
                self._unary(request, method, _UNARY.get(content_type))
            elif method == _SUBSCRIBE:
                self._subscribe(request, _STREAMING.get(content_type))
            elif method == _LIFECYCLE:
                self._lifecycle(request, content_type)
            else:
                request.reply(404, connect_error(RpcError("unimplemented", "no such method")))
        except VersionNotSupported:
            raise
        except Exception as error:
            if request.replied or not isinstance(
                error, CorvoError | RpcError | protobuf.ProtobufError
            ):
                raise
            _reply_error(request, rpc_error(error))

    # ---- one message each way ----

    def _unary(self, request: Request, method: str, form: str | None) -> None:
        if form is None:
            _refuse_type(request, _UNARY)
            return
        codec = CODECS[form]
        values = codec.decode(f"{method}Request", _message(request))
        call = ConnectUnary(request, _timeout_ns(request), codec, f"{method}Response")
        self._run(call, lambda: self._calls.methods[method](values, call))

    def _grpc(self, request: Request, method: str, content_type: bytes) -> None:
        """A method by gRPC."""
        if isinstance(request.conn, ReplyQueue) and request.forwarded is None:
            raise VersionNotSupported("gRPC needs HTTP/2")
        form = _GRPC.get(content_type)
        if form is None:
            _refuse_type(request, _GRPC)
            return
        try:
            if method not in self._calls.methods:
                raise RpcError("unimplemented", "no such method, or not by gRPC")
            codec = CODECS[form]
            gzip = _gzip(request, b"grpc-encoding")
            values = codec.decode(f"{method}Request", _one_message(request.body, gzip))
            call = GrpcUnary(request, _grpc_timeout_ns(request), codec, f"{method}Response")
        except (RpcError, protobuf.ProtobufError) as error:
            _reply_grpc_error(request, rpc_error(error), content_type)
            return
        self._run(call, lambda: self._calls.methods[method](values, call))

    def _run(self, call: Unary, start: Callable[[], None]) -> None:
        """Start a call, and its time if there is a bound."""
        try:
            start()
        except CorvoError as error:
            call.fail(error)
        if call.timeout_ns and not call.done:
            call.timer = self._loop.call_later(call.timeout_ns / SECOND_NS, self._too_late, call)

    def _too_late(self, call: Unary) -> None:
        if call.request.replied:  # let go, because its client sends no more
            return
        abandoned = call.request.on_abandoned
        call.request.on_abandoned = None
        call.fail(RpcError("deadline_exceeded", "there was no answer in time; it may still happen"))
        if abandoned is not None:
            abandoned(call.request)

    # ---- streams ----

    def _lifecycle(self, request: Request, content_type: bytes) -> None:
        """One frame; whoever wants to send more needs HTTP/2."""
        if content_type in _STREAMING:
            raise VersionNotSupported("StreamLifecycle with more than one frame needs HTTP/2")
        form = _UNARY.get(content_type)
        if form != "json":
            _refuse_type(request, ("application/json", *_names(_STREAMING)))
            return
        codec = CODECS[form]
        values = codec.decode("LifecycleStreamRequest", _message(request))
        call = ConnectUnary(request, _timeout_ns(request), codec, "LifecycleStreamResponse")
        session = LifecycleSession(self._calls, request.peer, call.answer, _nothing)
        request.on_abandoned = lambda _request: session.close()
        self._run(call, lambda: session.receive(values))

    def _subscribe(self, request: Request, form: str | None) -> None:
        """Events, as messages of a stream."""
        if form is None:
            _refuse_type(request, _STREAMING)
            return
        codec = CODECS[form]
        content_type = f"application/connect+{form}".encode()
        try:
            values = codec.decode("SubscribeRequest", _only_message(request))
            filter = read_filter(*(values.get(name, []) for name in ("queues", "job_ids", "types")))
            after = values.get("last_event_id") or _from_start(request)
            timeout_ns = _timeout_ns(request)
        except (CorvoError, RpcError, protobuf.ProtobufError) as error:
            request.start(200, b"", content_type)
            request.send(envelope(connect_end(rpc_error(error)), END_STREAM))
            request.end()
            return
        events, streams = self._live.events, self._live.streams
        timer: Any = None

        def gone(request: Request, error: RpcError | None = None) -> None:
            events.forget(request)
            request.send(envelope(connect_end(error), END_STREAM))
            if timer is not None:
                timer.cancel()

        def too_late() -> None:
            gone(request, RpcError("deadline_exceeded", "the time of the call is over"))
            streams.end(request)

        if streams.start(request, gone, events.keepalive, b"", content_type):
            events.subscribe(request, filter, _FORMS[form], after)
            if timeout_ns:
                timer = self._loop.call_later(timeout_ns / SECOND_NS, too_late)


class EnvelopeForm(Form):
    """Events as messages of a stream; one without a type only says that the stream is alive."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def event(self, change: Change) -> bytes:
        """See `Form`."""
        values: Values = {
            "seq": change.seq,
            "type": EVENT_TYPES[change.type],
            "job_id": change.job_id,
            "queue": change.queue,
            "at_ns": change.at_ns,
            "data_json": change.data.decode(),
        }
        return self._envelope(values)

    def gap(self, after: int, resumed_after: int, reason: str) -> bytes:
        """See `Form`."""
        data = f'{{"after":{after},"resumed_after":{resumed_after},"reason":"{reason}"}}'
        return self._envelope({"seq": resumed_after, "type": "gap", "data_json": data})

    def keepalive(self, seq: int) -> bytes:
        """See `Form`."""
        return self._envelope({"seq": seq})

    def _envelope(self, values: Values) -> bytes:
        return envelope(self._codec.encode("SubscribeEvent", values))


_FORMS: Final = {name: EnvelopeForm(codec) for name, codec in CODECS.items()}


def _names(types: Any) -> tuple[str, ...]:
    return tuple(name.decode() if isinstance(name, bytes) else name for name in types)


def _refuse_type(request: Request, types: Any) -> None:
    request.reply(415, b"", header_line("Accept-Post", ", ".join(_names(types))))


def _reply_error(request: Request, error: RpcError) -> None:
    request.reply(HTTP_STATUS[error.code], connect_error(error))


def _reply_grpc_error(request: Request, error: RpcError, content_type: bytes) -> None:
    lines = header_line("Content-Type", content_type.decode()) + grpc_trailers(error)
    request.reply(200, b"", lines)


def _nothing(_error: RpcError | None) -> None:
    pass


def _header(request: Request, name: bytes) -> bytes | None:
    return None if request.rare is None else request.rare.get(name)


def _gzip(request: Request, name: bytes) -> bool:
    """Whether the caller has compressed what it sent, as far as we can tell."""
    coding = _header(request, name)
    if coding in (None, b"", b"identity"):
        return False
    if coding != b"gzip":
        raise RpcError("unimplemented", "the only compression known here is gzip")
    return True


def _check_version(request: Request) -> None:
    if _header(request, b"connect-protocol-version") not in (None, b"1"):
        raise RpcError("invalid_argument", "the only Connect-Protocol-Version known here is 1")


def _message(request: Request) -> bytes:
    """The message of a unary call."""
    _check_version(request)
    gzip = _gzip(request, b"content-encoding")
    size_max = limits.RPC_MESSAGE_SIZE_MAX
    if len(request.body) > size_max:
        raise too_large(len(request.body), size_max)
    return gunzip(request.body, size_max) if gzip and request.body else request.body


def _only_message(request: Request) -> bytes:
    """The one message of a stream that only the server goes on to write."""
    _check_version(request)
    gzip = _gzip(request, b"connect-content-encoding")
    return _one_message(request.body, gzip)


def _one_message(data: bytes, gzip: bool) -> bytes:
    envelopes = Envelopes(limits.RPC_MESSAGE_SIZE_MAX, gzip)
    messages = envelopes.feed(data)
    envelopes.finish()
    if len(messages) != _ONE_MESSAGE:
        raise RpcError("unimplemented", f"{len(messages)} messages where there must be one")
    return messages[0]


def _timeout_ns(request: Request) -> int:
    """How long the caller waits, 0 = as long as it takes."""
    text = _header(request, b"connect-timeout-ms")
    if text is None:
        return 0
    if not text.isdigit() or len(text) > limits.RPC_TIMEOUT_DIGITS_MAX:
        raise RpcError("invalid_argument", "Connect-Timeout-Ms is no number of up to ten digits")
    return max(1, int(text) * MS_NS)


def _grpc_timeout_ns(request: Request) -> int:
    """How long the caller waits, 0 = as long as it takes."""
    text = _header(request, b"grpc-timeout")
    if text is None:
        return 0
    unit_ns = _GRPC_UNITS_NS.get(text[-1:])
    if unit_ns is None or not text[:-1].isdigit() or len(text) > 9:
        raise RpcError("invalid_argument", "grpc-timeout is not up to eight digits and a unit")
    return max(1, int(text[:-1]) * unit_ns)


def _from_start(request: Request) -> int | None:
    """Where a stream of events begins that does not name one: now, or at the oldest."""
    return 0 if _header(request, b"x-corvo-from") == b"start" else None

"""The worker service over HTTP: by Connect and gRPC, in both forms of messages.

POST /corvo.v1.WorkerService/<Method>; the content type selects the protocol and the form. A stream
that both sides write needs HTTP/2, but a single frame of it, as plain JSON, can be exchanged by
HTTP/1.1 too: some clients do that.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from corvo._fast.codec import protobuf
from corvo._fast.http.exchange import ReplyQueue, Request, reply_error
from corvo.errors import CorvoError, VersionNotSupported, honest
from corvo.events import EVENT_TYPES, Event
from corvo.limits import SECOND_NS
from corvo.net.api.responses import event_data
from corvo.net.http.open_streams import OpenStreams
from corvo.net.rpc.codecs import CODECS, Codec
from corvo.net.rpc.envelopes import envelope
from corvo.net.rpc.status import RpcError, connect_error, rpc_error
from corvo.net.rpc.wire import STREAMING, UNARY, Wire, find_wire, header, media_type
from corvo.net.rpc.worker_service import Call, Values, WorkerCalls
from corvo.net.rpc.worker_session import LifecycleSession
from corvo.net.rpc.worker_streams import LifecycleStreams
from corvo.net.streams.events import EventStreams, Form
from corvo.net.streams.handlers import read_filter
from corvo.platform.loop import Loop

logger = logging.getLogger(__name__)

_LIFECYCLE: Final = "StreamLifecycle"
_SUBSCRIBE: Final = "Subscribe"
# One frame alone, or a stream of them.
_FRAMES: Final = {b"application/json": UNARY[b"application/json"], **STREAMING}


class Unary(Call):
    """A call of one message each way."""

    def __init__(self, wire: Wire, codec: Codec, type: str) -> None:
        super().__init__(wire.request, wire.timeout_ns)
        self._wire = wire
        self._codec = codec
        self._type = type
        self.timer: Any = None

    def answer(self, values: Values) -> None:
        """See `Call`."""
        if self._finish():
            self._wire.send(self._codec.encode(self._type, values))
            self._wire.end()

    def fail(self, error: Exception) -> None:
        """See `Call`."""
        if self._finish():
            if isinstance(error, CorvoError):
                error = honest(error, self.request.unsure)
            self._wire.end(rpc_error(error))

    def _finish(self) -> bool:
        """Whether this is the one answer."""
        if self.timer is not None:
            self.timer.cancel()
        first = not self.done
        self.done = True
        return first


class Rpc:
    """Handlers of the worker service."""

    def __init__(
        self,
        loop: Loop,
        calls: WorkerCalls,
        streams: OpenStreams,
        events: EventStreams,
        lifecycles: LifecycleStreams,
    ) -> None:
        self._loop = loop
        self._calls = calls
        self._streams = streams
        self._events = events
        self._lifecycles = lifecycles

    def handler(self, method: str) -> Callable[[Request], None]:
        """The handler of one method, by its name; of all other names for one that is unknown."""
        return partial(self._call, method)

    def _call(self, method: str, request: Request) -> None:
        known = UNARY
        serve: Callable[[Wire, str], None] = self._unary
        if method == _SUBSCRIBE:
            known, serve = STREAMING, self._subscribe
        elif method == _LIFECYCLE:
            known, serve = _FRAMES, self._lifecycle
        elif method not in self._calls.methods:
            serve = _no_method
            if media_type(request) not in UNARY:
                request.reply(404, connect_error(RpcError("unimplemented", "no such method")))
                return
        wire = find_wire(request, known)
        if wire is None:
            return
        if wire.is_compressed() and not request.receiving:
            self._lifecycles.turns.add(partial(self._serve_later, serve, wire, method))
        else:
            self._serve(serve, wire, method)

    @staticmethod
    def _serve_later(serve: Callable[[Wire, str], None], wire: Wire, method: str) -> None:
        request = wire.request
        if request.abandoned:
            return
        try:
            Rpc._serve(serve, wire, method)
        except Exception as error:
            refusal = error if isinstance(error, CorvoError) else CorvoError("internal error")
            if refusal is not error:
                logger.exception("a compressed call of %s failed", method)
            if not request.replied:
                reply_error(request, refusal)

    @staticmethod
    def _serve(serve: Callable[[Wire, str], None], wire: Wire, method: str) -> None:
        request = wire.request
        try:
            serve(wire, method)
        except VersionNotSupported:
            raise
        except Exception as error:
            known_error = isinstance(error, CorvoError | RpcError | protobuf.ProtobufError)
            if request.replied or not known_error:
                raise
            wire.end(rpc_error(error))

    # ---- one message each way ----

    def _unary(self, wire: Wire, method: str) -> None:
        wire.read_head()
        codec = CODECS[wire.form]
        values = codec.decode(f"{method}Request", wire.message())
        call = Unary(wire, codec, f"{method}Response")
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
        call.fail(
            RpcError("deadline_exceeded", "no result in time; the call may still take effect")
        )
        if abandoned is not None:
            abandoned(call.request)

    # ---- streams ----

    def _lifecycle(self, wire: Wire, _method: str) -> None:
        """A stream of frames, or one frame."""
        request, codec = wire.request, CODECS[wire.form]
        if media_type(request) in STREAMING:
            if isinstance(request.conn, ReplyQueue):
                raise VersionNotSupported("StreamLifecycle with more than one frame needs HTTP/2")
            self._lifecycles.open(wire, codec, self._calls)
            return
        wire.read_head()
        values = codec.decode("LifecycleStreamRequest", wire.message())
        call = Unary(wire, codec, "LifecycleStreamResponse")
        session = LifecycleSession(
            self._calls, request.caller, request.peer, call.answer, _nothing, codec.jobs
        )
        request.on_abandoned = lambda _request: session.close()
        self._run(call, lambda: session.receive(values))

    def _subscribe(self, wire: Wire, _method: str) -> None:
        """Events, as messages of a stream."""
        wire.read_head()
        values = CODECS[wire.form].decode("SubscribeRequest", wire.message())
        filter = read_filter(*(values.get(name, []) for name in ("queues", "job_ids", "types")))
        after = values.get("last_event_id") or _from_start(wire.request)
        events, streams = self._events, self._streams
        timer: Any = None

        def gone(request: Request, error: RpcError | None = None) -> None:
            events.forget(request)
            wire.end(error)
            if timer is not None:
                timer.cancel()

        def too_late() -> None:
            gone(wire.request, RpcError("deadline_exceeded", "the deadline of the call has passed"))
            streams.end(wire.request)

        if streams.start(wire.request, gone, events.keepalive, b"", wire.content_type()):
            events.subscribe(wire.request, filter, _FORMS[wire.form], after)
            if wire.timeout_ns:
                timer = self._loop.call_later(wire.timeout_ns / SECOND_NS, too_late)


class EnvelopeForm(Form):
    """Events as messages of a stream; one without a type is a keepalive."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def event(self, change: Event) -> bytes:
        """See `Form`."""
        values: Values = {
            "seq": change.seq,
            "type": EVENT_TYPES[change.type],
            "job_id": change.job_id,
            "queue": change.queue,
            "at_ns": change.at_ns,
            "data_json": event_data(change).decode(),
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


def _no_method(wire: Wire, _method: str) -> None:
    if wire.content_type().startswith(b"application/grpc"):
        raise RpcError("unimplemented", "no such method")
    wire.request.reply(404, connect_error(RpcError("unimplemented", "no such method")))


def _nothing(_error: RpcError | None) -> None:
    pass


def _from_start(request: Request) -> int | None:
    """Where a stream of events without a last event begins: now, or at the oldest."""
    return 0 if header(request, b"x-corvo-from") == b"start" else None

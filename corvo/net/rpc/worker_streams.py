"""The lifecycle streams of this server: frames over HTTP/2, by Connect or gRPC, in either form.

A stream is a request whose body arrives in pieces and a response that is sent in pieces. One frame
of a stream is in progress at a time; frames sent ahead wait in the window of the stream, which
grows only as frames are read. So a client that does not read its responses, sends too fast, or
sends garbage, slows down itself only.

All streams share two limits: the number of open streams, and of frames in progress. Further frames
wait in line for a bounded time. When a client disconnects before a response arrives, its jobs
return to their queues. When the server stops, each stream ends after the frame in progress.
"""

import logging
from collections import deque
from typing import Any, Final, Protocol

from corvo import limits
from corvo._fast.codec import protobuf
from corvo._fast.http.exchange import Request
from corvo.config import Config
from corvo.errors import NotReady
from corvo.limits import SECOND_NS
from corvo.net.rpc.codecs import Codec
from corvo.net.rpc.status import RpcError, rpc_error
from corvo.net.rpc.turns import Turns
from corvo.net.rpc.wire import Wire, header
from corvo.net.rpc.worker_service import Values, WorkerCalls
from corvo.net.rpc.worker_session import NOT_LEADER, Leader, LifecycleSession
from corvo.platform.clock import Clock
from corvo.platform.loop import Loop

logger = logging.getLogger(__name__)

SATURATED: Final = "OVERLOADED: lifecycle stream saturated"
_CREDIT: Final = b"x-corvo-credit"
_RESPONSE = "LifecycleStreamResponse"


class Relays(Protocol):
    """Lifecycle streams that this node passes on to the leader."""

    def __len__(self) -> int: ...

    def wants(self, request: Request) -> bool:
        """Whether the client asks for its stream to be passed on, and no node did so before."""

    def open(self, wire: Wire, url: str) -> None:
        """Pass a stream on to the leader at this URL."""

    def end_all(self) -> None:
        """End all of them: the server stops."""


class LifecycleStreams:
    """All lifecycle streams of this node."""

    def __init__(self, loop: Loop, clock: Clock, config: Config) -> None:
        self.loop = loop
        self.clock = clock
        self.leader: Leader = _here
        self.turns = Turns(loop)  # of compressed messages
        self.relays: Relays | None = None  # of a node in a cluster
        self.frames = 0
        self.opened = 0
        self.overloads = 0
        self.at_work = 0
        self._open_max = config.stream_max_open
        self._at_work_max = config.stream_max_inflight
        fps = config.stream_max_fps
        self.frame_ns = SECOND_NS // fps if fps else 0
        self._streams: dict[LifecycleStream, None] = {}
        self._line: deque[LifecycleStream] = deque()
        self._timer: Any = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, wire: Wire, codec: Codec, calls: WorkerCalls) -> None:
        """Begin a stream. Raises RpcError or CorvoError if it cannot."""
        wire.read_head()
        if self._closed:
            raise NotReady("the server is stopping")
        relays = self.relays
        count = len(self._streams) + (len(relays) if relays is not None else 0)
        if self._open_max and count >= self._open_max:
            raise RpcError("resource_exhausted", "too many open lifecycle streams")
        address = self.leader()
        if address and relays is not None and relays.wants(wire.request):
            relays.open(wire, address)
            return
        self.opened += 1
        wire.start()
        if address is not None:
            stray = {"request_id": 0, "error": NOT_LEADER, "leader_addr": address}
            wire.send(codec.encode(_RESPONSE, stray))
            wire.end()
            return
        if wire.request.streaming:
            stream = LifecycleStream(self, wire, codec, calls)
            self._streams[stream] = None
            stream.read()

    def end_all(self) -> None:
        """The server stops."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self._streams):
            stream.leave()
        if self.relays is not None:
            self.relays.end_all()

    # ---- what the streams call ----

    def forget(self, stream: "LifecycleStream") -> None:
        """A stream is over."""
        self._streams.pop(stream, None)

    def take_turn(self, stream: "LifecycleStream") -> bool:
        """Whether a frame may begin now; otherwise its stream is called back in its turn, or when
        it has waited too long."""
        if self.at_work < self._at_work_max:
            self.at_work += 1
            return True
        stream.due_ns = self.clock.elapsed_ns() + limits.LIFECYCLE_TURN_WAIT_NS
        self._line.append(stream)
        self._arm()
        return False

    def give_turn(self) -> None:
        """A frame is done; another one may begin."""
        self.at_work -= 1
        while self._line and self.at_work < self._at_work_max:
            stream = self._line.popleft()
            if stream.waits:
                self.at_work += 1
                self.loop.call_soon(stream.go_on)  # which may be done at once, and so on

    def _arm(self) -> None:
        if self._timer is None and self._line:
            due_ns = max(0, self._line[0].due_ns - self.clock.elapsed_ns())
            self._timer = self.loop.call_later(due_ns / SECOND_NS, self._look)

    def _look(self) -> None:
        """Refuse the frames that have waited too long."""
        self._timer = None
        now_ns = self.clock.elapsed_ns()
        while self._line and self._line[0].due_ns <= now_ns:
            stream = self._line.popleft()
            if stream.waits:
                self.overloads += 1
                stream.turn_away()
        self._arm()


class LifecycleStream:
    """One lifecycle stream, between the connection and the session."""

    def __init__(
        self, streams: LifecycleStreams, wire: Wire, codec: Codec, calls: WorkerCalls
    ) -> None:
        self.due_ns = 0  # until when a frame waits for its turn
        self._streams = streams
        self._wire = wire
        self._request = request = wire.request
        self._codec = codec
        self._calls = calls
        self._envelopes = wire.envelopes()
        self._messages: deque[bytes] = deque()
        self._ahead = 0  # their bytes
        self._waiting: Values | None = None  # the frame that waits for its turn
        self._has_turn = False
        self._not_before_ns = 0  # the next frame
        self._timer: Any = None
        self._deadline: Any = None
        self._queued = False  # a turn of compressed messages will come
        self._left = False  # there is more to read, now that it may be
        self._leaving = False
        self._over = False
        by_credit = header(request, _CREDIT) == b"1"
        self._session = LifecycleSession(
            calls,
            request.caller.without_key(),
            request.peer,
            self._send,
            self._end,
            codec.jobs,
            streams.leader,
            by_credit,
        )
        request.on_body = self._on_body
        request.on_writable = self._on_writable
        request.on_abandoned = self._on_abandoned
        if wire.timeout_ns:
            after_s = wire.timeout_ns / SECOND_NS
            self._deadline = streams.loop.call_later(after_s, self._too_late)

    @property
    def waits(self) -> bool:
        """Whether a frame waits for its turn."""
        return self._waiting is not None

    def go_on(self) -> None:
        """It is the turn of the frame that waits."""
        values, self._waiting = self._waiting, None
        if values is None:  # the stream has ended meanwhile
            self._streams.give_turn()
            return
        self._has_turn = True
        try:
            self._session.receive(values)
        except Exception as error:
            self._fail(error)

    def turn_away(self) -> None:
        """Refuse the frame that waits: its time is over."""
        values, self._waiting = self._waiting, None
        assert values is not None
        self._session.refuse(values, SATURATED)
        self.read()

    def leave(self) -> None:
        """The server stops: end when no frame is at work."""
        self._leaving = True
        if not self._session.waiting:
            self._session.leave(RpcError("unavailable", "the server is stopping"))

    def read(self) -> None:
        """Go on with what the client has sent, as far as the stream may."""
        if not self._wire.gzip:
            self._read()
        elif not self._queued:
            self._queued = True
            self._streams.turns.add(self._take_turn)

    def _take_turn(self) -> None:
        self._queued = False
        self._read()

    def _read(self) -> None:
        came = True
        fed = False
        try:
            while not self._over:
                if not self._may_begin():
                    more = self._envelopes.more or self._envelopes.fault is not None
                    left = came or more or self._messages or not self._request.receiving
                    self._left = self._left or bool(left)
                    return
                came = False
                if self._messages:
                    message = self._messages.popleft()
                    self._keep(-len(message))
                    self._take(message)
                elif fed and self._wire.gzip:
                    self.read()  # the next message in the next turn
                    return
                elif not self._take_body():
                    return
                fed = True
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, RpcError | protobuf.ProtobufError):
            logger.exception("a lifecycle stream failed")
        self._session.leave(rpc_error(error))

    def _may_begin(self) -> bool:
        """Whether the next frame can be looked at now; if not, something will happen later."""
        if self._session.waiting or self.waits or self._timer is not None:
            return False
        if self._request.unsent_size > limits.STREAM_UNSENT_SIZE_MAX:
            return False
        wait_ns = self._not_before_ns - self._streams.clock.elapsed_ns()
        if wait_ns <= 0 or not (self._messages or self._request.receiving):
            return True
        self._timer = self._streams.loop.call_later(wait_ns / SECOND_NS, self._on_timer)
        return False

    def _take_body(self) -> bool:
        """Read the body so far; whether there are messages."""
        data = self._request.take_body()
        if data or self._envelopes.more or self._envelopes.fault is not None:
            messages = self._envelopes.feed(data)
            self._messages.extend(messages)
            self._keep(sum(map(len, messages)))
            return bool(self._messages)
        if not self._request.receiving:
            self._envelopes.finish()
            self._session.end_of_input()
        return False

    def _keep(self, more: int) -> None:
        """Count bytes that wait to be processed; negative when they no longer do."""
        self._ahead += more
        self._request.keep_body(self._envelopes.size + self._ahead)

    def _take(self, message: bytes) -> None:
        """One frame."""
        streams = self._streams
        values = self._calls.read_frame(self._codec, message)
        streams.frames += 1
        pause_ns = max(streams.frame_ns, self._session.strikes * limits.LIFECYCLE_STRIKE_NS)
        if pause_ns:
            self._not_before_ns = streams.clock.elapsed_ns() + pause_ns
        if not _has_work(values):
            self._session.receive(values)
        elif streams.take_turn(self):
            self._has_turn = True
            self._session.receive(values)
        else:
            self._waiting = values

    # ---- callbacks of the session ----

    def _send(self, response: Values) -> None:
        self._wire.send(self._codec.encode(_RESPONSE, response))
        if response.get("error", "").startswith("OVERLOADED"):
            self._streams.overloads += 1
        if not self._session.waiting:
            self._rest()

    def _rest(self) -> None:
        """No frame is at work."""
        if self._has_turn:
            self._has_turn = False
            self._streams.give_turn()
        if self._leaving:
            self.leave()
        elif self._left and not self._over:
            self._left = False
            self._streams.loop.call_soon(self.read)

    def _end(self, error: RpcError | None) -> None:
        self._close()
        self._request.on_abandoned = self._on_lost
        self._wire.end(error)

    # ---- callbacks of the connection ----

    def _on_body(self, _request: Request) -> None:
        self.read()

    def _on_writable(self, _request: Request) -> None:
        self._session.delivered()
        self.read()

    def _on_abandoned(self, _request: Request) -> None:
        self._close()
        self._session.close()

    def _on_lost(self, _request: Request) -> None:
        """The end of the answer, and what was in front of it, did not arrive."""
        self._session.close()

    def _on_timer(self) -> None:
        self._timer = None
        self.read()

    def _too_late(self) -> None:
        self._deadline = None
        self._close()
        self._session.close()
        self._wire.end(RpcError("deadline_exceeded", "the deadline of the call has passed"))

    def _close(self) -> None:
        """The stream has ended, on either side."""
        self._over = True
        self._waiting = None
        self._request.on_abandoned = self._request.on_body = self._request.on_writable = None
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        self._timer = self._deadline = None
        self._streams.forget(self)
        if self._has_turn:
            self._has_turn = False
            self._streams.give_turn()


def _has_work(values: Values) -> bool:
    return (
        values.get("fetch_count", 0) > 0
        or "acks" in values
        or "enqueues" in values
        or "fails" in values
    )


def _here() -> None:
    return None

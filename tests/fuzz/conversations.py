"""A lifecycle stream over the front end without sockets: what a client may say, in any pieces."""

import heapq
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from corvo import ops
from corvo._fast.codec.fast_proto import FastAcks, FastEnqueues, FastFrames
from corvo._fast.codec.layouts import decode_fields
from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http2.client import H2Client
from corvo._fast.http2.connection import H2Conn
from corvo.config import load
from corvo.engine.caller import ANONYMOUS
from corvo.errors import CorvoError, NotFound, ValidationError
from corvo.limits import SECOND_NS
from corvo.model import Acked, EnqueuedBatch
from corvo.net.http.server import HttpLimits
from corvo.net.routes import LIFECYCLE_PATH, takes_pieces
from corvo.net.rpc.codecs import CODECS
from corvo.net.rpc.wire import STREAMING, find_wire
from corvo.net.rpc.worker_service import Values, read_frame
from corvo.net.rpc.worker_streams import LifecycleStreams
from corvo.platform.ids import check_job_id


class Loop:
    """A loop whose time passes when there is nothing to do."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._soon: deque[tuple[Callable[..., Any], Any]] = deque()
        self._timers: list[tuple[int, int, SimpleNamespace]] = []
        self._made = 0

    def elapsed_ns(self) -> int:
        return self.now_ns

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self._soon.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Any:
        timer = SimpleNamespace(callback=callback, args=args, cancel=lambda: None)
        timer.cancel = lambda: setattr(timer, "callback", None)
        self._made += 1
        due_ns = self.now_ns + int(delay * SECOND_NS)
        heapq.heappush(self._timers, (due_ns, self._made, timer))
        return timer

    def run(self) -> None:
        while self._soon or self._timers:
            while self._soon:
                callback, args = self._soon.popleft()
                callback(*args)
            if self._timers:
                self.now_ns, _, timer = heapq.heappop(self._timers)
                if timer.callback is not None:
                    self._soon.append((timer.callback, timer.args))


class Calls:
    """Answers what is proposed, a little later: nobody has jobs, new ones get numbers."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._made = 0
        self._plain = FastFrames(b"", b"", 1_000, 1_000)

    def read_frame(self, codec: Any, data: bytes) -> Values:
        return read_frame(self._plain, codec, data, False)

    def ack_items(
        self,
        _caller: Any,
        items: list[Values] | FastAcks,
        _refuse: Callable[[int, CorvoError], None],
        answer: Callable[[Any], None],
    ) -> None:
        for item in items if isinstance(items, list) else ():
            check_job_id(item["job_id"])
        result = Acked()
        result.count = len(items)
        self._loop.call_soon(answer, result)

    def fail_job(self, _caller: Any, values: Values, answer: Callable[[Any], None]) -> None:
        check_job_id(values.get("job_id", ""))
        self._loop.call_soon(answer, NotFound("no such job"))

    def enqueue_all(
        self,
        _caller: Any,
        items: list[Values] | FastEnqueues,
        refuse: Callable[[int, CorvoError], None],
        answer: Callable[[Any], None],
    ) -> bool:
        jobs: list[Any] = []
        if isinstance(items, FastEnqueues):
            ids = [f"job_{self._made + n:026}" for n in range(1, items.count + 1)]
            decode_fields(ops.ENQUEUE_BATCH.layout, items.encode(ids))
            jobs = [SimpleNamespace(job_id=job_id) for job_id in ids]
            self._made += items.count
            items = []
        for position, item in enumerate(items):
            if item.get("queue"):
                self._made += 1
                jobs.append(SimpleNamespace(job_id=f"job_{self._made}"))
            else:
                refuse(position, ValidationError("queue is required"))
        if jobs:
            self._loop.call_soon(answer, EnqueuedBatch(jobs, ""))
        return bool(jobs)

    def fetch_for(
        self, _caller: Any, _body: Any, _count: int, answer: Callable[[Any], None]
    ) -> Any:
        self._loop.call_soon(answer, [])
        return SimpleNamespace()

    def abandon(self, _wait: Any) -> None:
        pass


def converse(content_type: bytes, pieces: list[bytes], ends: bool) -> tuple[bytes, list[Any]]:
    """What is answered to a body in these pieces, and the trailers; nothing is left behind."""
    loop = Loop()
    context = H1Context(HttpLimits(), loop.elapsed_ns, lambda: b"now", b"t-")
    context.takes_pieces = takes_pieces
    conn, client = H2Conn(context), H2Client(b"a")
    config = load({"stream-max-fps": "0"}, {})
    clock: Any = loop
    streams = LifecycleStreams(loop, clock, config)
    calls: Any = Calls(loop)
    answered = b""
    trailers: list[Any] = []

    def serve(request: Request) -> None:
        if request.abandoned:
            return
        if request.on_body is not None:
            request.on_body(request)
            return
        request.caller = ANONYMOUS
        wire = find_wire(request, STREAMING)
        assert wire is not None
        streams.open(wire, CODECS[wire.form], calls)

    def talk() -> None:
        nonlocal answered, trailers
        sent = True
        while sent:
            said = client.data_to_send()
            requests = conn.feed(said)
            while conn.has_input:
                requests += conn.feed(b"")
            for request in requests:
                serve(request)
            loop.run()
            heard = conn.data_to_send()
            for event in client.feed(heard):
                answered += event.data
                if event.ended and event.fields is not None:
                    trailers = event.fields
            sent = bool(said or heard)

    stream = client.post(LIFECYCLE_PATH, [(b"content-type", content_type)], ends=False)
    talk()
    for piece in pieces:
        client.send(stream, piece)
        talk()
    if ends:
        client.send(stream, b"", ends=True)
        talk()
        assert client.streams == 0 and conn.idle, "it has ended, one way or the other"
    conn.closed()
    assert context.bodies_size == 0 and len(streams) == 0 and streams.at_work == 0
    return answered, trailers

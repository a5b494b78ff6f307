"""One lifecycle stream of a worker: a request frame in, a response frame out, in order.

A frame carries acks, fails, a fetch and enqueues. All of them are proposed at once, so that they
land in one log entry, together with those of all other streams of that turn; there the acks come
first, so that the slots they free are there for the fetch. The response goes out when the last
result is in. A fetch that finds nothing waits a moment for work, unless the frame had other work
to do. The moment is short, since a worker sends nothing on the stream while it waits.

Errors of a part are named in the response, the first of them only, and the other parts stand.
After too many frames in a row with errors the stream ends, and so it does when this node leads no
more. Nothing here knows how frames travel.

By credit, which a worker requests when it opens the stream, `fetch_count` adds to the number of
jobs that the server may push: frames with `request_id` 0 carry them.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from corvo import limits
from corvo._fast.codec.fast_proto import FastAcks, FastEnqueues
from corvo.engine.caller import Caller
from corvo.engine.parked import Wait
from corvo.errors import CorvoError, NoLeader, OutcomeUnknown
from corvo.limits import SECOND_NS
from corvo.model import Acked, EnqueuedBatch, Fetched
from corvo.net.rpc.status import RpcError, rpc_error
from corvo.net.rpc.worker_service import Values, WorkerCalls, fetch_body

_OVERLOADED: Final = "resource_exhausted"
NOT_LEADER: Final = "NOT_LEADER"

# Where the leader is; None = here, empty = unknown.
Leader = Callable[[], str | None]


class Recipient:
    """The end of a stream that receives the jobs of a fetch, until it is abandoned."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.abandoned = False


class _Frame:
    """One request frame and its progress."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.open = 1  # results that are awaited; one for reading the frame
        self.response: Values = {"request_id": values.get("request_id", 0)}
        self.wait: Wait | None = None
        self.error = ""
        self.overloaded = False
        self.strayed = False  # this node does not lead

    def note(self, part: str, error: Exception, item: int | None = None) -> None:
        """Note an error of a part, or of one of its items."""
        self.strayed = self.strayed or isinstance(error, NoLeader)
        found = rpc_error(error)
        overloaded = found.code == _OVERLOADED
        if not self.error:
            prefix = "OVERLOADED: " if overloaded else ""
            if item is None and part == "enqueue" and isinstance(error, CorvoError):
                item = error.fields.get("index")  # of a refusal of all of them
            one = len(self.values.get(part + "s", ())) == 1
            where = "" if item is None or one else f"item {item}: "
            self.error = f"{prefix}{part}: {where}{found.message}"
            self.overloaded = overloaded


class LifecycleSession:
    """The server's end of a lifecycle stream.

    `send` is called with each response, `end` once when the stream ends from this side; `shape`
    makes of delivered jobs what a response has of them.
    """

    def __init__(
        self,
        calls: WorkerCalls,
        caller: Caller,
        peer: str,
        send: Callable[[Values], None],
        end: Callable[[RpcError | None], None],
        shape: Callable[[list[Fetched]], Any],
        leader: Leader = lambda: None,
        by_credit: bool = False,
    ) -> None:
        self._calls = calls
        self._shape = shape
        self._leader = leader
        self._pushes: Pushes | None = None
        if by_credit:
            self._pushes = Pushes(calls, caller, Recipient(peer), self._push, self._lost)
        self._caller = caller
        self._recipient = Recipient(peer)
        self._send = send
        self._end = end
        self._frames: deque[_Frame] = deque()
        self._sent: list[Wait] = []  # their jobs are in transit to the worker
        self.strikes = 0  # frames in a row with errors
        self._input_ended = False
        self._closed = False

    @property
    def waiting(self) -> int:
        """Frames without a response yet: the feeder of the session should not run ahead."""
        return len(self._frames)

    def receive(self, values: Values) -> None:
        """A request frame."""
        if self._closed:
            return
        self._frames.append(_Frame(values))
        if len(self._frames) == 1:
            self._begin()

    def end_of_input(self) -> None:
        """The worker sends no more: answer its frames, then end the stream."""
        self._input_ended = True
        if not self._frames:
            self._finish(None)

    def close(self) -> None:
        """The worker is gone. Jobs of a pending fetch return to their queues."""
        self._closed = True
        self._recipient.abandoned = True
        if self._pushes is not None:
            self._pushes.close()
        waits = [frame.wait for frame in self._frames if frame.wait is not None]
        for wait in self._sent + waits:
            self._calls.abandon(wait)
        self._sent = []
        self._let_go()

    def delivered(self) -> None:
        """Everything that was sent has left."""
        self._sent = []
        if self._pushes is not None:
            self._pushes.go_on()

    def refuse(self, values: Values, error: str) -> None:
        """Answer a frame with an error before it begins; no other frame is in progress."""
        self._send({"request_id": values.get("request_id", 0), "error": error})

    def leave(self, error: RpcError | None) -> None:
        """End the stream from this side; no frame is in progress."""
        self._finish(error)

    def _push(self, wait: Wait, jobs: list[Fetched]) -> None:
        """Jobs on credit."""
        self._sent.append(wait)
        self._send({"request_id": 0, "jobs": self._shape(jobs)})

    def _lost(self) -> None:
        """This node does not lead: no more jobs on credit. A frame in progress reports it
        itself."""
        if not self._frames and not self._closed:
            self._stray(_Frame({}))

    # ---- one frame ----

    def _begin(self) -> None:
        frame = self._frames[0]
        values = frame.values
        if self._leader() is not None:
            frame.strayed = True
            self._done(frame)
            return
        self._ack(frame, values.get("acks", []))
        if "fails" in values:
            self._fail_all(frame, values["fails"])
        self._enqueue(frame, values.get("enqueues", []))
        if values.get("fetch_count", 0) > 0:
            if self._pushes is None:
                self._fetch(frame)
            else:
                self._pushes.add(frame, values)
        self._done(frame)

    def _propose(
        self,
        frame: _Frame,
        part: str,
        propose: Callable[[Callable[[Any], None]], None],
        take: Callable[[Any], None] | None = None,
        item: int | None = None,
    ) -> None:
        """Have something proposed, of which the result belongs to the frame; `item` is its number
        among the items of the part."""

        def answer(result: Any) -> None:
            if isinstance(result, CorvoError):
                frame.note(part, result, item)
            elif take is not None:
                take(result)
            self._done(frame)

        frame.open += 1
        try:
            propose(answer)
        except CorvoError as error:
            frame.open -= 1
            frame.note(part, error, item)

    def _next_caller(self) -> Caller:
        """The caller of the next op: an idempotency key covers the first op only."""
        caller = self._caller
        if caller.idempotency is not None:
            self._caller = caller.without_key()
        return caller

    def _ack(self, frame: _Frame, acks: list[Values] | FastAcks) -> None:
        if len(acks) > limits.ACK_BATCH_MAX:
            frame.note("ack", RpcError("invalid_argument", "too many items"))
            return
        items = acks
        if not isinstance(acks, FastAcks):
            items = [item for item in acks if item.get("job_id")]
            if len(items) < len(acks):
                missing = next(n for n, item in enumerate(acks) if not item.get("job_id"))
                frame.note("ack", RpcError("invalid_argument", "job_id is required"), missing)
        if items:

            def take(result: Acked) -> None:
                frame.response["acked"] = result.count

            caller = self._next_caller()
            self._propose(
                frame,
                "ack",
                lambda answer: self._calls.ack_items(
                    caller, items, partial(frame.note, "ack"), answer
                ),
                take,
            )

    def _fail_all(self, frame: _Frame, items: list[Values]) -> None:
        if len(items) > limits.ACK_BATCH_MAX:
            frame.note("fail", RpcError("invalid_argument", "too many items"))
            return
        for number, item in enumerate(items):
            self._fail(frame, item, number)

    def _fail(self, frame: _Frame, item: Values, number: int) -> None:
        caller = self._next_caller()
        self._propose(
            frame,
            "fail",
            lambda answer: self._calls.fail_job(caller, item, answer),
            item=number,
        )

    def _enqueue(self, frame: _Frame, enqueues: list[Values] | FastEnqueues) -> None:
        if len(enqueues) > limits.LIFECYCLE_ENQUEUES_MAX:
            frame.note("enqueue", RpcError("invalid_argument", "too many items"))
            return
        if not enqueues:
            return

        def take(result: EnqueuedBatch) -> None:
            if isinstance(enqueues, FastEnqueues):  # none of them can be a duplicate
                frame.response["enqueued_job_ids"] = enqueues.ids
            else:
                frame.response["enqueued_job_ids"] = [item.job_id for item in result.jobs]

        caller = self._next_caller()

        def propose(answer: Callable[[Any], None]) -> None:
            refuse = partial(frame.note, "enqueue")
            if not self._calls.enqueue_all(caller, enqueues, refuse, answer):
                frame.open -= 1

        self._propose(frame, "enqueue", propose, take)

    def _fetch(self, frame: _Frame) -> None:
        values = frame.values
        wait_ns = 0 if frame.open > 1 or frame.error else limits.LIFECYCLE_IDLE_NS
        count = min(values["fetch_count"], limits.FETCH_BATCH_MAX)
        caller = self._next_caller()

        def propose(answer: Callable[[Any], None]) -> None:
            body = fetch_body(values, wait_ns / SECOND_NS)
            frame.wait = self._calls.fetch_for(caller, self._recipient, body, count, answer)

        def take(result: list[Fetched]) -> None:
            if result:
                frame.response["jobs"] = self._shape(result)

        self._propose(frame, "fetch", propose, take)

    def _done(self, frame: _Frame) -> None:
        """One result less to wait for."""
        frame.open -= 1
        if frame.open or self._closed:
            return
        self._frames.popleft()
        if frame.strayed:
            self._stray(frame)
            return
        if frame.error:
            frame.response["error"] = frame.error
        self.strikes = self.strikes + 1 if frame.error and not frame.overloaded else 0
        if frame.wait is not None:
            self._sent.append(frame.wait)
            frame.wait = None  # the two would keep each other alive
        self._send(frame.response)
        if self.strikes >= limits.LIFECYCLE_STRIKES_MAX:
            self._finish(RpcError("resource_exhausted", "too many consecutive errors"))
        elif self._frames:
            self._begin()
        elif self._input_ended:
            self._finish(None)

    def _stray(self, frame: _Frame) -> None:
        """Another node leads: name it, and end the stream."""
        frame.response |= {"error": NOT_LEADER, "leader_addr": self._leader() or ""}
        self._send(frame.response)
        self._finish(None)

    def _finish(self, error: RpcError | None) -> None:
        if not self._closed:
            self._closed = True
            self._frames.clear()
            if self._pushes is not None:
                self._pushes.close()
            end = self._end
            self._let_go()
            end(error)

    def _let_go(self) -> None:
        """Drop the callbacks: session and stream would keep each other alive."""
        self._send = self._end = _ignore
        self._pushes = None


def _ignore(_argument: Any) -> None:
    pass


class Pushes:
    """Jobs requested in advance by credit, pushed as they arrive."""

    def __init__(
        self,
        calls: WorkerCalls,
        caller: Caller,
        recipient: Recipient,
        push: Callable[[Wait, list[Fetched]], None],
        lost: Callable[[], None],
    ) -> None:
        self._calls = calls
        self._caller = caller
        self._recipient = recipient
        self._push = push
        self._lost = lost
        self._asked: Values = {}  # the last frame with credit: its worker and queues
        self._wait: Wait | None = None
        self._fetching = False
        self._held_up = False  # until what was sent has left
        self.credit = 0

    def add(self, frame: _Frame, values: Values) -> None:
        """Add credit for jobs."""
        try:
            fetch_body(values, 0)
        except CorvoError as error:
            frame.note("fetch", error)
            return
        self._asked = values
        self.credit = min(self.credit + values["fetch_count"], limits.LIFECYCLE_CREDIT_MAX)
        self._fetch()

    def go_on(self) -> None:
        """The last push was delivered."""
        self._held_up = False
        self._fetch()

    def close(self) -> None:
        """The stream is over."""
        self.credit = 0
        self._recipient.abandoned = True
        if self._wait is not None:
            self._calls.abandon(self._wait)

    def _fetch(self) -> None:
        if self.credit == 0 or self._fetching or self._held_up:
            return
        body = fetch_body(self._asked, limits.LIFECYCLE_CREDIT_WAIT_NS / SECOND_NS)
        count = min(self.credit, limits.FETCH_BATCH_MAX)
        self._fetching = True
        try:
            self._wait = self._calls.fetch_for(
                self._caller, self._recipient, body, count, self._take
            )
        except CorvoError:
            self._fetching = False  # the next frame reports why

    def _take(self, result: Any) -> None:
        wait, self._wait = self._wait, None
        self._fetching = False
        if self._recipient.abandoned:
            return
        if isinstance(result, CorvoError):
            if isinstance(result, NoLeader):
                self._lost()
            elif isinstance(result, OutcomeUnknown):  # if it got jobs, their leases end
                self._fetch()
        elif result and wait is not None:
            self.credit = max(0, self.credit - len(result))
            self._held_up = True
            self._push(wait, result)
        else:
            self._fetch()

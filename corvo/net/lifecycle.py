"""One lifecycle stream of a worker: a request frame in, a response frame out, in order.

A frame carries acks, fails, a fetch and enqueues. All of them are proposed at once, so that they
land in one log entry, together with those of all other streams of that turn; there the acks come
first, so that the slots they free are there for the fetch. The response goes out when the last
result is in. A fetch that finds nothing waits a moment for work, unless the frame had other work
to do: long only if the caller has no jobs to acknowledge, since it says nothing while it waits.

Errors of a part are named in the response, the first of them only, and the other parts stand.
After too many frames in a row with errors the stream ends. Nothing here knows how frames travel.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from corvo import limits
from corvo.errors import CorvoError
from corvo.limits import SECOND_NS
from corvo.model import Acked, EnqueuedBatch, Fetched
from corvo.net.rpc_status import RpcError, rpc_error
from corvo.net.worker_calls import Values, WorkerCalls, fetch_body, job_values
from corvo.waiting import Wait

_OVERLOADED: Final = "resource_exhausted"


class Caller:
    """Who a fetch is for: a wait looks at `abandoned`."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.abandoned = False


class _Frame:
    """One request and what has become of it so far."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.open = 1  # results that are awaited; one for reading the frame
        self.response: Values = {"request_id": values.get("request_id", 0)}
        self.wait: Wait | None = None
        self.error = ""
        self.overloaded = False

    def note(self, part: str, error: Exception) -> None:
        """An error of a part."""
        found = rpc_error(error)
        overloaded = found.code == _OVERLOADED
        if not self.error:
            prefix = "OVERLOADED: " if overloaded else ""
            self.error = f"{prefix}{part}: {found.message}"
            self.overloaded = overloaded


class LifecycleSession:
    """The server's end of a lifecycle stream.

    `send` is called with each response, `end` once when the stream ends from this side.
    """

    def __init__(
        self,
        calls: WorkerCalls,
        peer: str,
        send: Callable[[Values], None],
        end: Callable[[RpcError | None], None],
    ) -> None:
        self._calls = calls
        self._caller = Caller(peer)
        self._send = send
        self._end = end
        self._frames: deque[_Frame] = deque()
        self._sent: list[Wait] = []  # their jobs are under way to the caller
        self._held: set[str] = set()  # jobs that the caller has yet to acknowledge
        self._strikes = 0
        self._input_ended = False
        self._closed = False

    @property
    def waiting(self) -> int:
        """Frames that have no response yet: whoever feeds the session should not run ahead."""
        return len(self._frames)

    def receive(self, values: Values) -> None:
        """A request frame."""
        if self._closed:
            return
        self._frames.append(_Frame(values))
        if len(self._frames) == 1:
            self._begin()

    def end_of_input(self) -> None:
        """The caller sends no more: what it sent is answered, then the stream ends."""
        self._input_ended = True
        if not self._frames:
            self._finish(None)

    def close(self) -> None:
        """The caller is gone. Jobs that a fetch still brings go back to their queues."""
        self._closed = True
        self._caller.abandoned = True
        waits = [frame.wait for frame in self._frames if frame.wait is not None]
        for wait in self._sent + waits:
            self._calls.abandon(wait)

    def delivered(self) -> None:
        """Everything that was sent has left."""
        self._sent = []

    # ---- one frame ----

    def _begin(self) -> None:
        frame = self._frames[0]
        values = frame.values
        self._ack(frame, values.get("acks", []))
        for item in values.get("fails", []):
            self._fail(frame, item)
        self._enqueue(frame, values.get("enqueues", []))
        if values.get("fetch_count", 0) > 0:
            self._fetch(frame)
        self._done(frame)

    def _propose(
        self,
        frame: _Frame,
        part: str,
        propose: Callable[[Callable[[Any], None]], None],
        take: Callable[[Any], None] | None = None,
    ) -> None:
        """Have something proposed, of which the result belongs to the frame."""

        def answer(result: Any) -> None:
            if isinstance(result, CorvoError):
                frame.note(part, result)
            elif take is not None:
                take(result)
            self._done(frame)

        frame.open += 1
        try:
            propose(answer)
        except CorvoError as error:
            frame.open -= 1
            frame.note(part, error)

    def _ack(self, frame: _Frame, acks: list[Values]) -> None:
        if len(acks) > limits.ACK_BATCH_MAX:
            frame.note("ack", RpcError("invalid_argument", "too many items"))
            return
        items = [item for item in acks if item.get("job_id")]
        if len(items) < len(acks):
            frame.note("ack", RpcError("invalid_argument", "job_id is required"))
        if items:
            self._held.difference_update(item["job_id"] for item in items)

            def take(result: Acked) -> None:
                frame.response["acked"] = result.count

            self._propose(frame, "ack", lambda answer: self._calls.ack_items(items, answer), take)

    def _fail(self, frame: _Frame, item: Values) -> None:
        self._held.discard(item.get("job_id", ""))
        self._propose(frame, "fail", lambda answer: self._calls.fail_job(item, answer))

    def _enqueue(self, frame: _Frame, enqueues: list[Values]) -> None:
        if len(enqueues) > limits.LIFECYCLE_ENQUEUES_MAX:
            frame.note("enqueue", RpcError("invalid_argument", "too many items"))
            return
        queues, jobs = [], []
        for item in enqueues:
            try:
                queue, values = self._calls.enqueue_values(item)
            except CorvoError as error:
                frame.note("enqueue", error)
            else:
                queues.append(queue)
                jobs.append(values)
        if jobs:

            def take(result: EnqueuedBatch) -> None:
                frame.response["enqueued_job_ids"] = [item.job_id for item in result.jobs]

            self._propose(
                frame,
                "enqueue",
                lambda answer: self._calls.enqueue_all(queues, jobs, answer),
                take,
            )

    def _fetch(self, frame: _Frame) -> None:
        values = frame.values
        wait_ns = limits.LIFECYCLE_IDLE_NS if self._held else limits.LIFECYCLE_IDLE_FREE_NS
        if frame.open > 1 or frame.error:
            wait_ns = 0
        count = min(values["fetch_count"], limits.FETCH_BATCH_MAX)

        def propose(answer: Callable[[Any], None]) -> None:
            body = fetch_body(values, wait_ns / SECOND_NS)
            frame.wait = self._calls.fetch_for(self._caller, body, count, answer)

        def take(result: list[Fetched]) -> None:
            self._held.update(job.job_id for job in result)
            frame.response["jobs"] = [job_values(job) for job in result]

        self._propose(frame, "fetch", propose, take)

    def _done(self, frame: _Frame) -> None:
        """One result less to wait for."""
        frame.open -= 1
        if frame.open or self._closed:
            return
        self._frames.popleft()
        if frame.error:
            frame.response["error"] = frame.error
        self._strikes = self._strikes + 1 if frame.error and not frame.overloaded else 0
        if frame.wait is not None:
            self._sent.append(frame.wait)
        self._send(frame.response)
        if self._strikes >= limits.LIFECYCLE_STRIKES_MAX:
            self._finish(RpcError("resource_exhausted", "too many consecutive errors"))
        elif self._frames:
            self._begin()
        elif self._input_ended:
            self._finish(None)

    def _finish(self, error: RpcError | None) -> None:
        if not self._closed:
            self._closed = True
            self._frames.clear()
            self._end(error)

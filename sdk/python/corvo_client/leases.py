"""The jobs that a worker has: their contexts, and what waits to be sent for each of them.

Handlers write from any thread, the thread of the worker's I/O reads. `wake` is called when
something waits to be sent with the next heartbeat.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Literal

from corvo_client.client import Client
from corvo_client.context import Context, Level
from corvo_client.documents import Delivery
from corvo_client.json_text import encode
from corvo_client.options import LineItem

_LINES_MAX = 10_000  # log lines that wait to be sent, for each job
_CALL_LINES_MAX = 1000
_CALL_SIZE_MAX = 200 * 1024
_DELTA_MAX = 16_000  # characters of live output in a heartbeat
_OUTPUT_MAX = 1_000_000  # characters of live output that wait; older ones are dropped
_MESSAGE_SIZE_MAX = 16 * 1024


class Lease:
    """One delivery: the lease of a job, and what its handler has reported."""

    def __init__(self, job: Delivery, now: float, wake: Callable[[], None]) -> None:
        self.job = job
        self.ctx = Context(job, self)
        self.confirmed_at = now  # when the server last renewed the lease
        self.stop: Callable[[], None] = lambda: None  # ends a handler that ignores its cancel
        self.cancelled_at: float | None = None
        self.stopped = False
        self.dropped_lines = 0
        self._wake = wake
        self._lock = threading.Lock()
        self._values: dict[str, Any] = {}  # for the next heartbeat
        self._waiters: list[Future[None]] = []
        self._lines: deque[LineItem] = deque()

    # ---- called by the handler ----

    def note(self, kind: Literal["progress", "stream"], value: Any) -> None:
        """Send a value with the next heartbeat."""
        with self._lock:
            if kind == "stream":
                text = self._values.get("stream_delta", "") + str(value)
                self._values["stream_delta"] = text[-_OUTPUT_MAX:]
            else:
                self._values[kind] = value
        self._wake()

    def log(self, message: str, level: Level) -> None:
        """Append a log line; the oldest one that waits is dropped if there are too many."""
        line: LineItem = {
            "message": message[:_MESSAGE_SIZE_MAX],
            "level": level,
            "at": datetime.now(UTC),
        }
        with self._lock:
            if len(self._lines) >= _LINES_MAX:
                self._lines.popleft()
                self.dropped_lines += 1
            self._lines.append(line)

    def checkpoint(self, value: Any) -> None:
        """Store a checkpoint, and return when the server has it."""
        self._put_checkpoint(value).result()

    async def checkpoint_async(self, value: Any) -> None:
        """Do the same without blocking the event loop."""
        await asyncio.wrap_future(self._put_checkpoint(value))

    def _put_checkpoint(self, value: Any) -> "Future[None]":
        encode(value)  # what is not JSON fails here, in the handler
        waiter: Future[None] = Future()
        with self._lock:
            self._values["checkpoint"] = value
            self._waiters.append(waiter)
        if self.ctx.lost:
            self.confirm([waiter], RuntimeError("the lease is lost"))
        self._wake()
        return waiter

    # ---- called by the worker ----

    @property
    def dirty(self) -> bool:
        """Whether something waits for a heartbeat."""
        return bool(self._values)

    def take_values(self) -> tuple[dict[str, Any], list["Future[None]"]]:
        """Return what the next heartbeat carries, and the handlers that wait for it."""
        with self._lock:
            values, waiters = self._values, self._waiters
            self._values, self._waiters = {}, []
            output = values.get("stream_delta", "")
            if len(output) > _DELTA_MAX:
                values["stream_delta"] = output[:_DELTA_MAX]
                self._values["stream_delta"] = output[_DELTA_MAX:]
        return values, waiters

    def put_back(self, values: dict[str, Any], waiters: list["Future[None]"]) -> None:
        """Keep what could not be sent, unless there is something newer."""
        with self._lock:
            delta = values.pop("stream_delta", "") + self._values.pop("stream_delta", "")
            self._values = values | self._values
            if delta:
                self._values["stream_delta"] = delta
            self._waiters = waiters + self._waiters

    @staticmethod
    def confirm(waiters: list["Future[None]"], error: Exception | None = None) -> None:
        """Let the handlers continue that wait for their checkpoint."""
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    def take_lines(self) -> list[LineItem]:
        """Return the log lines of the next call."""
        lines: list[LineItem] = []
        size = 0
        with self._lock:
            if self.dropped_lines and self._lines:
                text = f"{self.dropped_lines} log lines were dropped"
                lines.append({"message": text, "level": "warn", "at": self._lines[0]["at"]})
                self.dropped_lines = 0
            while self._lines and len(lines) < _CALL_LINES_MAX and size < _CALL_SIZE_MAX:
                lines.append(self._lines.popleft())
                size += len(lines[-1]["message"].encode("utf-8", "replace")) + 80
        return lines

    def cancel(self, now: float) -> None:
        """Ask the handler to stop."""
        if self.cancelled_at is None:
            self.cancelled_at = now
        self.ctx.cancelled.set()

    def stop_once(self) -> None:
        """End a handler that ignores its cancel, so that its cleanup is not disturbed again."""
        stop, self.stop = self.stop, lambda: None
        stop()

    def lose(self, now: float) -> None:
        """Note that another worker may have the job."""
        self.ctx.lost.set()
        self.cancel(now)
        _, waiters = self.take_values()
        self.confirm(waiters, RuntimeError("the lease is lost"))


class DrainedLease(Lease):
    """A lease of `Worker.drain`, which has no heartbeats: what is reported is sent at once."""

    def __init__(self, job: Delivery, client: Client) -> None:
        super().__init__(job, 0.0, lambda: None)
        self._client = client

    def checkpoint(self, value: Any) -> None:
        """Store a checkpoint."""
        with self._lock:
            self._values["checkpoint"] = value
        self.send()

    async def checkpoint_async(self, value: Any) -> None:
        """Store a checkpoint."""
        self.checkpoint(value)

    def send(self) -> None:
        """Send the values that wait."""
        while self.dirty:
            values, _ = self.take_values()
            beat: Any = {"lease_token": self.job.lease_token, **values}
            status = self._client.heartbeat({self.job.job_id: beat}).jobs[self.job.job_id]["status"]
            if status != "ok":
                self.ctx.cancelled.set()
            if status == "lost":
                self.ctx.lost.set()

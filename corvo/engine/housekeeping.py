"""Work that the leader does bit by bit beside the requests: the steps of tasks on many jobs, the
purge of jobs that ended long ago, and the sweep of unique locks whose time is over.

Each bit is one op of bounded size, which stops the loop for part of a millisecond, and there is a
pause behind it, three times as long as the last flush of the base, so that most requests do not
wait for any of them, and none for more than one. The flushes are gentle meanwhile
(`corvo.engine.flusher`). What the log waits for its disk stops nobody and does not count.
"""

import contextlib
from typing import Any, Final

from corvo import limits, ops
from corvo._fast.codec.layouts import encode_fields
from corvo.engine.pipeline import Pipeline
from corvo.errors import CorvoError
from corvo.fsm.machine import Machine
from corvo.platform.clock import Clock
from corvo.platform.loop import Loop

_TICK_S: Final = 1.0
_PAUSE_MIN_S: Final = 0.001
_AGAIN_S: Final = 0.1  # after a refusal: there is no space in the log, say
_QUEUES_LOOKED_AT: Final = 100
_LOCKS_LOOKED_AT: Final = 1_000


class Housekeeping:
    """Proposes BulkStep, PurgeJobs and CleanUnique, at most one of each at a time."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        machine: Machine,
        pipeline: Pipeline,
        retention_ns: list[int],
        interval_ns: int,
    ) -> None:
        """`retention_ns` by model.ENDINGS, for queues that do not say."""
        self._loop = loop
        self._clock = clock
        self._machine = machine
        self._pipeline = pipeline
        self._retention_ns = retention_ns
        self._interval_ns = interval_ns
        self._timers: dict[int, Any] = {}  # by op; None while the op is in flight
        self._turn = 0
        self._purge_ns = 0  # when the next purge begins
        self._purge_queue = 0  # the queue it goes on with
        self._lock = b""  # the lock that the sweep goes on with
        self._leadership = 0  # which start this is; 0 = stopped
        self._starts = 0
        pipeline.on_applied.append(self.check)
        clock.on_jump.append(self._look)

    def start(self) -> None:
        """Begin; again after a `close`, too."""
        self._starts += 1
        self._leadership = self._starts
        self._tick()

    def close(self) -> None:
        """Stop all timers."""
        self._leadership = 0
        for timer in self._timers.values():
            if timer is not None:
                timer.cancel()
        self._timers.clear()
        self._pipeline.flusher.throttled = False

    def check(self) -> None:
        """Called after each apply: a task may have been accepted."""
        if not self._leadership:
            return
        if ops.BULK_STEP.number not in self._timers and self._machine.running_operations():
            self._step()

    def _tick(self) -> None:
        self._timers[0] = self._loop.call_later(_TICK_S, self._tick)
        self._look()

    def _look(self) -> None:
        if not self._leadership:
            return
        self.check()
        for operation in self._machine.abandoned_operations(self._clock.stamp()):
            values = encode_fields(ops.BULK_STEP.layout, (operation.id, 0, True))
            with contextlib.suppress(CorvoError):  # the next look comes soon
                self._pipeline.submit(ops.BULK_STEP, values, None)
        if ops.PURGE_JOBS.number not in self._timers:
            self._purge()
        if ops.CLEAN_UNIQUE.number not in self._timers:
            self._sweep()

    def _step(self) -> None:
        """The tasks take turns."""
        running = self._machine.running_operations()
        if running:
            self._turn += 1
            operation = running[self._turn % len(running)]
            self._submit(ops.BULK_STEP, (operation.id, limits.STEP_JOBS, False), self._step)

    def _purge(self) -> None:
        now_ns = self._clock.stamp()
        if now_ns < self._purge_ns:
            return
        ids, self._purge_queue = self._machine.due_purges(
            now_ns,
            self._retention_ns,
            self._purge_queue,
            _QUEUES_LOOKED_AT,
            limits.PURGE_JOBS_MAX,
        )
        if ids:
            self._submit(ops.PURGE_JOBS, (ids, self._retention_ns), self._purge)
        elif self._purge_queue:
            self._again(ops.PURGE_JOBS, _PAUSE_MIN_S, self._purge)
        else:
            self._purge_ns = now_ns + self._interval_ns

    def _sweep(self) -> None:
        keys, self._lock = self._machine.stale_locks(
            self._clock.stamp(), self._lock, _LOCKS_LOOKED_AT
        )
        if keys:
            self._submit(ops.CLEAN_UNIQUE, (keys,), _nothing)

    def _submit(self, op: ops.Op, values: tuple[Any, ...], then: Any) -> None:
        self._timers[op.number] = None
        self._pipeline.flusher.throttled = True
        try:
            payload = encode_fields(op.layout, values)
            self._pipeline.submit(op, payload, (self._on_done, (op, then, self._leadership)))
        except CorvoError:
            self._again(op, _AGAIN_S, then)

    def _on_done(self, argument: tuple[ops.Op, Any, int], result: Any) -> None:
        op, then, leadership = argument
        if leadership != self._leadership:
            return
        if isinstance(result, CorvoError):
            self._again(op, _AGAIN_S, then)
        else:
            flush_s = self._pipeline.flusher.flush_ns_last / 1e9
            self._again(op, max(3 * flush_s, _PAUSE_MIN_S), then)

    def _again(self, op: ops.Op, pause_s: float, then: Any) -> None:
        if self._leadership:
            self._timers[op.number] = self._loop.call_later(pause_s, self._go_on, op.number, then)

    def _go_on(self, number: int, then: Any) -> None:
        del self._timers[number]
        then()
        self._pipeline.flusher.throttled = len(self._timers) > 1  # the tick is always there


def _nothing() -> None:
    pass

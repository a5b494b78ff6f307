"""Background work of the leader: steps of bulk operations, the purge of jobs that ended long ago,
and the removal of expired unique locks.

Each step is one op of bounded size, which blocks the loop for a fraction of a millisecond. After it
comes a pause of three times the duration of the last flush to LMDB, so that most requests wait for
no step, and none for more than one. Flushes are throttled meanwhile (`corvo.engine.flusher`). The
time that the log waits for its disk blocks no request and does not count.
"""

import contextlib
from typing import Any, Final

from corvo import limits, ops
from corvo._fast.codec.layouts import encode_fields
from corvo.engine.due_counters import DueCounter
from corvo.engine.pipeline import Pipeline
from corvo.errors import CorvoError
from corvo.fsm.machine import Machine
from corvo.platform.clock import Clock
from corvo.platform.loop import Loop
from corvo.platform.noop import noop
from corvo.platform.periodic import Periodic

_TICK_S: Final = 1.0
_PAUSE_MIN_S: Final = 0.001
_AGAIN_S: Final = 0.1  # after a refusal, for example because the log is full
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
        """`retention_ns` by model.ENDINGS, for queues without a retention of their own."""
        self._loop = loop
        self._clock = clock
        self._machine = machine
        self._pipeline = pipeline
        self._retention_ns = retention_ns
        self._interval_ns = interval_ns
        self._ticker = Periodic(loop, _TICK_S, self._look)
        # Pause before the next op of a kind, by number of the op; None while one is in flight.
        self._timers: dict[int, Any] = {}
        self._turn = 0  # steps so far: bulk operations take turns
        self.purged = DueCounter()
        self._purge_ns = 0  # stamp at which the next purge begins
        self._purge_queue = 0  # number of the queue where the purge continues; 0 = at the first
        self._lock = b""  # key of the unique lock where the sweep continues; empty = at the first
        # Number of the present start, 0 = closed. A result of an op from an earlier one is ignored.
        self._leadership = 0
        self._starts = 0  # calls of `start`
        pipeline.on_applied.append(self.check)
        clock.on_jump.append(self._look)

    def start(self) -> None:
        """Begin; may follow a `close`."""
        self._starts += 1
        self._leadership = self._starts
        self._ticker.start()
        self._look()

    def close(self) -> None:
        """Stop all timers."""
        self._leadership = 0
        self._ticker.close()
        for timer in self._timers.values():
            if timer is not None:
                timer.cancel()
        self._timers.clear()
        self._pipeline.flusher.throttled = False

    def check(self) -> None:
        """Called after each apply: a bulk operation may have been accepted."""
        if not self._leadership:
            return
        if ops.BULK_STEP.number not in self._timers and self._machine.running_operations():
            self._step()

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
        """Propose a step of the bulk operation whose turn it is."""
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
            self._submit(ops.CLEAN_UNIQUE, (keys,), noop)

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
        if op is ops.PURGE_JOBS:
            self.purged.done(result, self._clock.stamp())
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
        self._pipeline.flusher.throttled = bool(self._timers)

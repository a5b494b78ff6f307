"""The path of a write: ops become log entries, and each op is resolved once its entry is applied.

Ops that arrive while the last entry is being written become the next entry; there is no timer, and
a lone request waits for one disk flush and nothing else. *Seal late*: a committed entry is first
applied and its requests are answered, then the loop reads its sockets once, then the next entry is
sealed, so that the clients just answered can still join it. *Gather*: while each turn of the loop
brings more ops, entries are sealed at least a millisecond apart, because each entry costs a flush
and two wake-ups, however many ops it has.

An op in flight is a completion (a callback and its argument), not a task, future or timer.
Completions are kept by log index and called with the results of apply.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol

from corvo import limits, ops
from corvo._fast.batcher import Batcher
from corvo._fast.metrics import Histogram
from corvo.consensus.log import FRAME, Entry, Log
from corvo.engine.feed import Feed
from corvo.engine.fetches import Fetches, Queues
from corvo.engine.flusher import Disk, Flushable, StoreFlusher
from corvo.engine.parked import Wait
from corvo.engine.results import WaitingForResults
from corvo.errors import CorvoError, DiskFull, NoLeader, NotReady, OutcomeUnknown, Overloaded
from corvo.events import Event
from corvo.platform import failpoints
from corvo.platform.clock import Clock
from corvo.platform.loop import Loop
from corvo.platform.noop import noop
from corvo.platform.periodic import Periodic

logger = logging.getLogger(__name__)

Completion = tuple[Callable[[Any, Any], None], Any]

_FETCH = ops.FETCH
_FETCH_BATCH = ops.FETCH_BATCH
_PENDING_SIZE_MAX = limits.PENDING_SIZE_MAX
_WRITE_BUFFER_SIZE_MAX = limits.WRITE_BUFFER_SIZE_MAX

# While more and more arrives, an entry is not sealed sooner than this after the one before it.
_GATHER_NS = limits.GATHER_NS
_ENTRY_SEAL_SIZE = limits.ENTRY_SEAL_SIZE

_TICK_S = 1.0

# Bounds of the durations of an entry's steps: 50 µs to 1 s.
ENTRY_BOUNDS_NS = tuple(
    us * 1_000
    for us in (
        50,
        100,
        200,
        500,
        1_000,
        2_000,
        5_000,
        10_000,
        20_000,
        50_000,
        100_000,
        200_000,
        500_000,
        1_000_000,
    )
)


class State(Flushable, Queues, Protocol):
    """Methods of `corvo.fsm.machine.Machine` that the pipeline, flusher and fetches call."""

    def apply(self, index: int, term: int, data: bytes) -> list[object]: ...
    def configure(self, index: int, term: int, data: bytes) -> None: ...
    def take_events(self) -> list[Event]: ...
    def take_woken(self) -> list[str]: ...


class PipelineMetrics:
    """Counters of the pipeline, read at scrape time."""

    def __init__(self) -> None:
        self.entries = 0  # proposed
        self.ops = 0  # in those entries
        self.overloads = 0  # ops refused with Overloaded
        self.queue_time = Histogram(ENTRY_BOUNDS_NS)  # ns from the first op of a batch to its seal
        self.apply_time = Histogram(ENTRY_BOUNDS_NS)  # ns of apply for one entry


class Pipeline:
    """Batches ops into entries, applies committed entries, and resolves their ops.

    An op is in the batch, in flight, or resolved. It leaves the batch when its entry is proposed
    and leaves the flight when an entry with that index is applied.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        log: Log,
        machine: State,
        disk: Disk,
        pending_max: int,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._log = log
        self._machine = machine
        self._pending_max = pending_max  # ops that add work are refused at this many pending ops
        # The batch: ops of the entry to be sealed next. Filled by `add`, emptied by `_seal`, which
        # leaves ops that do not fit in one entry, and by `follow`.
        self._batcher = Batcher(limits.ENTRY_OPS_MAX, limits.ENTRY_SEAL_SIZE)
        self._batch_began_ns = 0  # monotonic time of the first op of the batch, or of its last seal
        self._leaving = 0  # ops in the batch that end a lease; 0 after each seal
        # Jobs that the batch adds, by queue, by `expect`; emptied when fetches are dispatched.
        self._arriving: dict[str, int] = {}
        # Those of the queue named last, not in the dict yet: in most batches it is the only one.
        self._arriving_queue = ""
        self._arriving_count = 0
        # A call of `_gather` or `_seal_late` is due; set where it is scheduled, reset by `_seal`.
        self._seal_scheduled = False
        self._gathered = 0  # ops and new fetches that waited for the next entry one turn ago
        self._sealed_ns = 0  # monotonic time of the last proposal
        # Entries proposed here and not applied yet, by index, in order of proposal: completions
        # (None = no request waits), monotonic time of the proposal (or of OutcomeUnknown), term,
        # and size in bytes. Added by `_seal`, removed by `_take_flight` only.
        self._in_flight: dict[int, tuple[list[Any], int, int, int]] = {}
        self._in_flight_ops = 0  # sum of completions in `_in_flight`
        self._in_flight_size = 0  # sum of sizes in `_in_flight`, bytes
        # Bytes of the machine's write buffer after the last apply; it may have been flushed since.
        self._write_buffer_size = 0
        self.feed = Feed()
        self.fetches = Fetches(loop, clock, machine, self)
        self._fetch_completed = self.fetches.completed  # the callback of completions of fetches
        self.results = WaitingForResults(loop, clock.elapsed_ns, self.feed)
        self.flusher = StoreFlusher(loop, clock, log, machine, disk, self._fatal)
        self.metrics = PipelineMetrics()
        self._ticker = Periodic(loop, _TICK_S, self._tick)
        # Ops are taken: this node leads and neither stops nor has failed. Changed by `start`,
        # `lead`, `follow`, `drain`, `close` and `_fatal`.
        self.open = False
        self.draining = False  # the server stops; never reset
        # The error of ops while not `open`.
        self._refusal: CorvoError = NotReady("the server is starting")
        # Set by the node. `on_entry(index)`: an entry is applied, its ops are not resolved yet.
        self.on_entry: Callable[[int], None] = noop
        # Called at the end of each turn that resolved ops or applied entries.
        self.on_applied: list[Callable[[], None]] = []
        self.on_fatal: Callable[[Exception], None] | None = None  # None = raise the error
        # Takes the completion of an op that was not done because this node lost leadership; True
        # if the request is sent to the next leader, False if it is to be refused here.
        self.on_lost: Callable[[Completion], bool] = _declines
        log.on_committed = self._on_committed
        log.on_idle = self._on_idle

    # ---- life ----

    def start(self, *, leading: bool = True) -> None:
        """Begin to apply entries and, if this node leads, to take ops."""
        self.open = leading
        self._refusal = NoLeader("this node does not lead")
        self._write_buffer_size = self._machine.write_buffer_size
        self._clock.on_jump.append(self._on_clock_jump)
        self._ticker.start()

    def drain(self) -> None:
        """Take no more ops and answer all requests that wait; ops in flight still finish."""
        self.open = False
        self.draining = True
        self._refusal = NotReady("the server is stopping")
        self.fetches.answer_all()
        self.results.answer_all()

    def lead(self) -> None:
        """Take ops: this node leads, and has applied all entries committed before its term."""
        self.open = not self.draining

    def follow(self) -> None:
        """Take no ops: this node lost leadership. Ops in flight may still be committed; ops of the
        batch and parked fetches are handed to `on_lost`."""
        if not self.open:
            return
        self.open = False
        if self._batcher.count:
            self._leaving = 0
            _, completions = self._batcher.seal(self._clock.stamp(), 0)
            self._lose(completions)
        self.fetches.hand_over(self.on_lost, self._refusal)
        self.after_turn()

    def restored(self, index: int) -> None:
        """The state was replaced by a snapshot at this index: the outcome of ops in flight up to
        it is unknown."""
        error = OutcomeUnknown("this node was cut off; the write may have happened")
        for lost in [at for at in self._in_flight if at <= index]:
            completions = self._take_flight(lost)[0]
            self._resolve(completions, [error] * len(completions))
        self._write_buffer_size = self._machine.write_buffer_size
        self.on_entry(index)
        self.results.answer_all()
        self.after_turn()

    def _lose(self, completions: list[Any]) -> None:
        """Resolve ops that were not done and never will be."""
        for completion in completions:
            if completion is not None and not self.on_lost(completion):
                self._resolve([completion], [self._refusal])

    def _take_flight(self, index: int) -> tuple[list[Any], int, int, int]:
        flight = self._in_flight.pop(index)
        self._in_flight_ops -= len(flight[0])
        self._in_flight_size -= flight[3]
        return flight

    @property
    def idle(self) -> bool:
        """No op is in the batch or in flight."""
        return not self._in_flight and self._batcher.count == 0

    def close(self) -> None:
        """Stop the timers and flush dirty state."""
        self.open = False
        self._ticker.close()
        self.fetches.close()
        self.results.close()
        self.flusher.close()

    @property
    def pending(self) -> int:
        """Number of ops in the batch or in flight."""
        return self._batcher.count + self._in_flight_ops

    # ---- in ----

    def submit(
        self, op: ops.Op, payload: bytes, completion: Completion | None, number: int = -1
    ) -> None:
        """Put an op into the next entry; `completion` is called with (argument, result) after
        apply. If the op travels inside another one, `number` and `payload` are those of the outer
        op.

        Raises Overloaded, DiskFull, NoLeader or NotReady; then the op was not accepted.
        """
        if not self.open:
            raise self._refusal
        size = len(payload)
        if op.adds_work:
            self._refuse_if_short(size)
        self.add(op, payload, completion, number)
        self.request_seal()

    def add(
        self, op: ops.Op, payload: bytes, completion: Completion | None, number: int = -1
    ) -> None:
        """Put an op into the batch unchecked, even when ops are refused; see `request_seal`."""
        if not self._batcher.count:
            self._batch_began_ns = self._clock.monotonic_ns()
        if op.ends_leases:
            self._leaving += 1
        self._batcher.add(op.order, op.number if number < 0 else number, payload, completion)

    def later(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back in the next turn of the loop, and send the replies that it makes."""
        self._loop.call_soon(self._later, callback, args)

    def _later(self, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.flusher.turns is not None:
            self.flusher.turns.begin()
        callback(*args)
        self.after_turn()

    def begins_entry(self) -> bool:
        """Whether the next op is the first of its batch."""
        return self._batcher.count == 0

    def expect(self, queue: str, count: int) -> None:
        """Jobs for a queue were just submitted: fetches in the same entry can take them."""
        if queue != self._arriving_queue:
            self._list_arriving()
            self._arriving_queue = queue
        self._arriving_count += count

    def _list_arriving(self) -> None:
        if self._arriving_count:
            queue = self._arriving_queue
            self._arriving[queue] = self._arriving.get(queue, 0) + self._arriving_count
            self._arriving_count = 0

    def _refuse_if_short(self, size: int) -> None:
        pending = self._batcher.count + self._in_flight_ops
        pending_size = self._batcher.size + self._in_flight_size + size
        if self.flusher.disk_full:
            raise DiskFull("the disk is full: no new jobs are taken until there is space again")
        if (
            pending >= self._pending_max
            or pending_size > _PENDING_SIZE_MAX
            or (
                self._write_buffer_size > _WRITE_BUFFER_SIZE_MAX
                and self._machine.write_buffer_size > _WRITE_BUFFER_SIZE_MAX
            )
        ):
            self.metrics.overloads += 1
            wait_ms = min(
                limits.RETRY_AFTER_MAX_MS, limits.RETRY_AFTER_MIN_MS + pending * 50 // 16_384
            )
            raise Overloaded(
                f"too much work in flight: {pending} ops, {pending_size - size} bytes "
                f"(limits {self._pending_max} ops, {limits.PENDING_SIZE_MAX} bytes)",
                retry_after_ms=wait_ms,
            )

    def fetch(self, wait: Wait) -> None:
        """Answer a fetch with jobs as soon as its queues have some, or with none at its deadline.
        Raises NoLeader or NotReady."""
        if not self.open:
            raise self._refusal
        self.fetches.park(wait)
        self.request_seal()

    def abandon(self, wait: Wait) -> None:
        """The client of a fetch is gone; see `Fetches.abandon`."""
        self.fetches.abandon(wait)

    # ---- sealing ----

    def request_seal(self) -> None:
        """Have the batch sealed soon: when the log is idle, at the end of this turn."""
        if not self._seal_scheduled and not self._log.busy:
            self._schedule_seal()

    def _schedule_seal(self) -> None:
        self._seal_scheduled = True
        self._gathered = 0
        self._loop.call_soon(self._gather)

    def _seal_late(self) -> None:
        self._gathered = self._gathering()
        self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        """Seal, unless the last turn of the loop brought more and the entry before was sealed a
        moment ago: a disk flush costs the same for one op as for a hundred."""
        count = self._gathering()
        if (
            count > self._gathered
            and self._clock.monotonic_ns() - self._sealed_ns < _GATHER_NS
            and self._batcher.size < _ENTRY_SEAL_SIZE
        ):
            self._gathered = count
            self._loop.call_soon(self._gather)
        else:
            self._seal()

    def _gathering(self) -> int:
        """Number of ops and new fetches that wait for the next entry."""
        return self._batcher.count + len(self.fetches.new)

    def _seal(self) -> None:
        self._seal_scheduled = False
        if self._log.busy:
            return
        self._add_fetches()
        batcher = self._batcher
        if batcher.count == 0:
            return
        self._leaving = 0
        frame, completions = batcher.seal(self._clock.stamp(), self._clock.seed64())
        try:
            index, term = self._log.propose(frame)
        except NoLeader:
            self._lose(completions)
            self.after_turn()
            return
        except CorvoError as error:
            self._resolve(completions, [error] * len(completions))
            self.after_turn()
            if batcher.count:
                self._schedule_seal()
            return
        except Exception as error:
            self._fatal(error)
            return
        now_ns = self._clock.monotonic_ns()
        self.metrics.queue_time.observe(now_ns - self._batch_began_ns)
        self._batch_began_ns = self._sealed_ns = now_ns
        if index in self._in_flight:  # of an earlier term; this entry replaces it
            self._lose(self._take_flight(index)[0])
        self._in_flight[index] = (completions, now_ns, term, len(frame))
        self._in_flight_ops += len(completions)
        self._in_flight_size += len(frame)
        self.metrics.entries += 1
        self.metrics.ops += len(completions)
        if batcher.count and not self._log.busy:
            self._schedule_seal()
        if self.flusher.wanted:
            self.flusher.flush()

    def _on_idle(self) -> None:
        if not self._seal_scheduled and (self._batcher.count or self.fetches.to_check):
            self._seal_scheduled = True
            self._loop.call_soon(self._seal_late)

    def _add_fetches(self) -> None:
        """Make ops of the parked fetches that can be served."""
        self._list_arriving()
        arriving = self._arriving
        if not arriving and not self.fetches.to_check:
            return
        self._arriving = {}
        for wait in self.fetches.take(arriving, self._leaving):
            op = _FETCH_BATCH if wait.batch else _FETCH
            self.add(op, wait.payload, (self._fetch_completed, wait))

    # ---- out ----

    def _on_committed(self, entries: list[Entry]) -> None:
        machine = self._machine
        if self.flusher.turns is not None:
            self.flusher.turns.begin()
        ops_applied = 0
        for entry in entries:
            began_ns = self._clock.monotonic_ns()
            try:
                if failpoints.armed:
                    failpoints.reach("apply.before")
                results: list[object] = []
                if entry.kind == FRAME:
                    results = machine.apply(entry.index, entry.term, entry.data)
                else:
                    machine.configure(entry.index, entry.term, entry.data)
                if failpoints.armed:
                    failpoints.reach("apply.after")
            except Exception as error:
                self._fatal(error)
                return
            self.metrics.apply_time.observe(self._clock.monotonic_ns() - began_ns)
            self.on_entry(entry.index)
            if entry.index in self._in_flight:
                completions, _, term, _ = self._take_flight(entry.index)
                ops_applied += len(completions)
                if term == entry.term:
                    self._resolve(completions, results)
                else:
                    self._lose(completions)
            if self.feed.readers:
                self.feed.publish(machine.take_events())
        self._write_buffer_size = machine.write_buffer_size
        self.fetches.after_apply(machine.take_woken())
        self.after_turn()  # replies go out before a flush to LMDB blocks the loop
        self.flusher.after_apply(ops_applied)
        self._on_idle()

    def _resolve(self, completions: list[Any], results: list[Any]) -> None:
        assert len(completions) == len(results)
        for i in range(len(completions)):
            completion = completions[i]
            if completion is None:
                continue
            try:
                completion[0](completion[1], results[i])
            except Exception:
                logger.exception("answering a request failed")

    def after_turn(self) -> None:
        """Send the replies made in this turn of the loop, and look at what has become due."""
        for callback in self.on_applied:
            callback()

    def _fatal(self, error: Exception) -> None:
        """Stop: state and log no longer agree, or LMDB has failed."""
        self.open = False
        self._refusal = NotReady("the server is stopping")
        if self.on_fatal is None:
            raise error
        self.on_fatal(error)

    # ---- timers ----

    def _tick(self) -> None:
        """Once a second: answer ops that are stuck, and check for disk space."""
        now_ns = self._clock.monotonic_ns()
        for index in list(self._in_flight):
            completions, proposed_ns, term, size = self._in_flight[index]
            if now_ns - proposed_ns <= limits.OUTCOME_WAIT_NS:
                break
            error = OutcomeUnknown("the write did not reach the disk in time; it may still happen")
            # A fetch keeps its completion, which returns the jobs to their queues.
            kept = [
                completion if completion and completion[0] is self._fetch_completed else None
                for completion in completions
            ]
            self._in_flight[index] = (kept, now_ns, term, size)
            self._resolve(completions, [error] * len(completions))
            self.after_turn()
        self.flusher.tick()

    def _on_clock_jump(self) -> None:
        self.results.check_time()
        self.fetches.check_time()


def _declines(_completion: Completion) -> bool:
    return False

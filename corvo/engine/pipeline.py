"""The way of a write: ops in, log entries out, results back to whoever asked.

What arrives while the last entry is on its way to the disk becomes the next entry; there is no
timer, and a lone request waits for one flush and nothing else. *Seal late*: when an entry is
committed it is first applied and answered, then the loop reads its sockets once, then the next
entry is sealed, so that the clients just answered can still join it. *Gather*: while each turn of
the loop brings more, entries are not sealed closer together than a millisecond, because each
costs a flush and two wake-ups, whatever is in it.

A request in flight is a slot (a callback and its argument) and not a task, future or timer. Slots
are kept by log index and resolved by apply.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol

from corvo import limits, ops
from corvo._fast.batcher import Batcher
from corvo._fast.codec.layouts import encode_fields
from corvo._fast.metrics import Histogram
from corvo.consensus.log import FRAME, Entry, Log
from corvo.engine.fetches import (
    DONE,
    IN_FLIGHT,
    PARKED,
    Reopenings,
    Wait,
    WaitingFetches,
    WaitingForResults,
)
from corvo.engine.flusher import Disk, Flushable, StoreFlusher
from corvo.errors import CorvoError, DiskFull, NoLeader, NotReady, OutcomeUnknown, Overloaded
from corvo.events import Event
from corvo.model import Fetched
from corvo.platform import failpoints
from corvo.platform.clock import Clock
from corvo.platform.loop import Loop

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
# A stamp may run a little late against the loop's timer; waking again this much later is enough.
_LATE_S = 0.001

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


class State(Flushable, Protocol):
    """What the pipeline needs of `corvo.fsm.machine.Machine`."""

    def apply(self, index: int, term: int, data: bytes) -> list[object]: ...
    def configure(self, index: int, term: int, data: bytes) -> None: ...
    def take_events(self) -> list[Event]: ...
    def take_woken(self) -> list[str]: ...
    def fetchable(
        self, queue: str, arriving: int = 0, leaving: int = 0, now_ns: int = 0
    ) -> int: ...
    def opens_ns(self, queue: str, now_ns: int) -> int: ...
    def worker_seen_ns(self, worker_id: str) -> int: ...


class PipelineMetrics:
    """What the pipeline has done, read at scrape time."""

    def __init__(self) -> None:
        self.entries = 0
        self.ops = 0
        self.overloads = 0
        self.queue_time = Histogram(ENTRY_BOUNDS_NS)
        self.apply_time = Histogram(ENTRY_BOUNDS_NS)


class Pipeline:
    """Collects ops into entries, and applies and answers what is committed."""

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
        self._pending_max = pending_max
        self._batcher = Batcher(limits.ENTRY_OPS_MAX, limits.ENTRY_SEAL_SIZE)
        self._in_flight: dict[int, tuple[list[Any], int, int, int]] = {}  # see _seal
        self._in_flight_ops = 0
        self._in_flight_size = 0
        self._batch_began_ns = 0
        self._write_buffer_size = 0  # after the last apply
        self._leaving = 0  # ops in the batch that end a lease
        self._seal_scheduled = False
        self._gathered = 0  # what waited for the next entry a turn ago
        self._sealed_ns = 0  # when the last entry was sealed
        self._arriving: dict[str, int] = {}  # jobs that the batch adds, by queue
        self._arriving_queue = ""  # those of the last queue, not in the dict yet
        self._arriving_count = 0
        self._to_check: dict[str, None] = {}
        self._new_waits: list[Wait] = []
        self._tried_in_vain: list[Wait] = []
        self._deadline_timer: Any = None
        self._deadline_armed_ns = 0
        self._reopenings = Reopenings()
        self._opening_timer: Any = None
        self._opening_armed_ns = 0
        self._tick_timer: Any = None
        self.waiting = WaitingFetches()
        self.results = WaitingForResults(loop, clock.elapsed_ns)
        self.flusher = StoreFlusher(loop, clock, log, machine, disk, self._fatal)
        self.metrics = PipelineMetrics()
        self.open = False
        self.draining = False
        self._refusal: CorvoError = NotReady("the server is starting")
        self._fetched = self._on_fetched  # one object for all slots
        self.on_entry: Callable[[int], None] = _nobody  # before the answers of an entry
        self.watch: Callable[[list[Event]], None] | None = None  # told what each entry changed
        self.on_applied: list[Callable[[], None]] = []
        self.on_fatal: Callable[[Exception], None] | None = None
        # Takes a slot whose op was not done, because this node does not lead any more; True when
        # it will be asked for again elsewhere.
        self.on_lost: Callable[[Completion], bool] = _keeps_nothing
        log.on_committed = self._on_committed
        log.on_idle = self._on_idle

    # ---- life ----

    def start(self, *, leading: bool = True) -> None:
        """Begin to apply and, when this node leads, to take ops."""
        self.open = leading
        self._refusal = NoLeader("this node does not lead")
        self._write_buffer_size = self._machine.write_buffer_size
        self._clock.on_jump.append(self._on_clock_jump)
        self._tick_timer = self._loop.call_later(_TICK_S, self._tick)

    def drain(self) -> None:
        """Take no more ops and answer the waiting fetches; what is in flight still finishes."""
        self.open = False
        self.draining = True
        self._refusal = NotReady("the server is stopping")
        for wait in self.waiting.all():
            self._finish(wait, [])
        self.results.answer_all()

    def lead(self) -> None:
        """This node leads, and has applied all that was committed before."""
        self.open = not self.draining

    def follow(self) -> None:
        """This node does not lead any more. What was proposed may still be committed; all else,
        and whoever waits for jobs, has to turn to the next leader."""
        if not self.open:
            return
        self.open = False
        if self._batcher.count:
            self._leaving = 0
            _, completions = self._batcher.seal(self._clock.stamp(), 0)
            self._lose(completions)
        for wait in self.waiting.all():
            if self.on_lost((self._fetched, wait)):
                wait.state = DONE
                wait.request = None
            else:
                self._answer(wait, self._refusal)
        self._after_turn()

    def restored(self, index: int) -> None:
        """The state has jumped to this entry: what became of ops up to there cannot be known."""
        error = OutcomeUnknown("this node was cut off; the write may have happened")
        for lost in [at for at in self._in_flight if at <= index]:
            completions = self._take_flight(lost)[0]
            self._resolve(completions, [error] * len(completions))
        self._write_buffer_size = self._machine.write_buffer_size
        self.on_entry(index)
        self.results.answer_all()
        self._after_turn()

    def _lose(self, completions: list[Any]) -> None:
        """These ops were not done."""
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
        """Nothing is batched and nothing is in flight."""
        return not self._in_flight and self._batcher.count == 0

    def close(self) -> None:
        """Write what is dirty to the base and stop the timers."""
        self.open = False
        for timer in (self._deadline_timer, self._opening_timer, self._tick_timer):
            if timer is not None:
                timer.cancel()
        self._deadline_timer = self._opening_timer = self._tick_timer = None
        self.results.close()
        self.flusher.close()

    @property
    def pending(self) -> int:
        """Ops that are batched or in flight."""
        return self._batcher.count + self._in_flight_ops

    # ---- in ----

    def submit(
        self, op: ops.Op, payload: bytes, completion: Completion | None, number: int = -1
    ) -> None:
        """Put an op into the next entry; `completion` is called with (argument, result) after
        apply. `number` and `payload` are those of the op around it, if it travels inside another
        one.

        Raises Overloaded, DiskFull or NotReady, and then nothing has happened.
        """
        if not self.open:
            raise self._refusal
        size = len(payload)
        if op.adds_work:
            self._refuse_if_short(size)
        self._add(op, payload, completion, number)
        if not self._seal_scheduled and not self._log.busy:
            self._schedule_seal()

    def _add(
        self, op: ops.Op, payload: bytes, completion: Completion | None, number: int = -1
    ) -> None:
        if not self._batcher.count:
            self._batch_began_ns = self._clock.monotonic_ns()
        if op.ends_leases:
            self._leaving += 1
        self._batcher.add(op.order, op.number if number < 0 else number, payload, completion)

    def later(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back when other requests have had their turn; an answer given then goes out."""
        self._loop.call_soon(self._later, callback, args)

    def _later(self, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        callback(*args)
        self._after_turn()

    def begins_entry(self) -> bool:
        """Whether the next op is the first of its entry."""
        return self._batcher.count == 0

    def expect(self, queue: str, count: int) -> None:
        """Jobs for a queue were just submitted: fetches in the same entry may count on them."""
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
            # What was applied last may have been flushed since.
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
        """Answer a fetch with jobs as soon as its queues have some, or with none in the end."""
        if not self.open:
            raise self._refusal
        self.waiting.park(wait)
        self._new_waits.append(wait)
        for name in wait.queues:
            self._to_check[name] = None
        if not self._seal_scheduled and not self._log.busy:
            self._schedule_seal()

    def abandon(self, wait: Wait) -> None:
        """The client of a fetch is gone, and has not got the answer if there was one. A fetch in
        flight is seen to when it comes back."""
        if wait.state == PARKED:
            self.waiting.remove(wait)
            wait.state = DONE
            wait.request = None
        elif wait.state == DONE:
            self._give_back(wait.jobs)
            wait.jobs = []

    # ---- sealing ----

    def _schedule_seal(self) -> None:
        self._seal_scheduled = True
        self._gathered = 0
        self._loop.call_soon(self._gather)

    def _seal_late(self) -> None:
        self._gathered = self._gathering()
        self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        """Seal, unless the last turn of the loop has brought more and the entry before this one is
        very young: a flush costs as much for one op as for a hundred."""
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
        """How much waits for the next entry."""
        return self._batcher.count + len(self._new_waits)

    def _seal(self) -> None:
        self._seal_scheduled = False
        if self._log.busy:
            return
        self._dispatch_fetches()
        batcher = self._batcher
        if batcher.count == 0:
            return
        self._leaving = 0
        frame, completions = batcher.seal(self._clock.stamp(), self._clock.seed64())
        try:
            index, term = self._log.propose(frame)
        except NoLeader:
            self._lose(completions)
            self._after_turn()
            return
        except CorvoError as error:
            self._resolve(completions, [error] * len(completions))
            self._after_turn()
            if batcher.count:
                self._schedule_seal()
            return
        except Exception as error:
            self._fatal(error)
            return
        now_ns = self._clock.monotonic_ns()
        self.metrics.queue_time.observe(now_ns - self._batch_began_ns)
        self._batch_began_ns = self._sealed_ns = now_ns
        if index in self._in_flight:  # of an earlier leadership; this entry takes its place
            self._lose(self._take_flight(index)[0])
        # By index: who waits, since when, and the term and size of the entry.
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
        if not self._seal_scheduled and (self._batcher.count or self._to_check):
            self._seal_scheduled = True
            self._loop.call_soon(self._seal_late)

    def _dispatch_fetches(self) -> None:
        """Turn parked fetches into ops, as many as their queues can serve. Jobs that arrive in
        the same entry count, because fetches come last in it."""
        self._list_arriving()
        check = self._to_check
        arriving = self._arriving
        if not check and not arriving:
            return
        self._to_check = {}
        self._arriving = {}
        for name in arriving:
            check[name] = None
        now_ns = self._clock.stamp()
        for name in check:
            waiters = self.waiting.waiting(name)
            if not waiters:
                continue
            count = self._machine.fetchable(name, arriving.get(name, 0), self._leaving, now_ns)
            for _ in range(min(waiters, count)):
                wait = self.waiting.take(name)
                if wait is None:
                    break
                self._try(wait)
            if count < waiters:
                opens_ns = self._machine.opens_ns(name, now_ns)
                if opens_ns:
                    self._reopenings.expect(name, opens_ns)
                    self._arm_opening()
        self._settle_new_waits()

    def _try(self, wait: Wait) -> None:
        self._add(_FETCH_BATCH if wait.batch else _FETCH, wait.payload, (self._fetched, wait))

    def _settle_new_waits(self) -> None:
        """What has just arrived and found nothing either waits or is told so. Now and then it is
        proposed all the same, so that a worker of empty queues is seen to be alive."""
        new = self._new_waits
        if not new:
            return
        self._new_waits = []
        answered = False
        tried: set[str] = set()
        for wait in new:
            if wait.state != PARKED:
                continue
            seen_ns = self._machine.worker_seen_ns(wait.worker_id)
            unseen = self._clock.stamp() - seen_ns > limits.WORKER_UNSEEN_NS
            if unseen and wait.worker_id not in tried:
                tried.add(wait.worker_id)
                self.waiting.remove(wait)
                wait.state = IN_FLIGHT
                wait.out_of_turn = True
                self._try(wait)
            elif wait.deadline_ns:
                self.waiting.list_deadline(wait)
            else:
                self.waiting.remove(wait)
                self._finish(wait, [])
                answered = True
        self._arm_deadline()
        if answered:
            self._after_turn()

    def _on_fetched(self, wait: Wait, result: Any) -> None:
        if isinstance(result, CorvoError):
            self._answer(wait, result)
            return
        jobs = result if isinstance(result, list) else [] if result is None else [result]
        if len(wait.queues) > 1:
            # It was counted on for one of its queues and may have been served by another.
            for name in wait.queues:
                self._to_check[name] = None
        if jobs or wait.state == DONE or not self._may_wait_on(wait):
            self._finish(wait, jobs)
        elif wait.out_of_turn:
            wait.out_of_turn = False
            self._park(wait, front=False)
        else:
            self._tried_in_vain.append(wait)

    def _park_again(self) -> None:
        """Fetches that were tried in vain go back to the front, in the order they had."""
        if self._tried_in_vain:
            for wait in reversed(self._tried_in_vain):
                self._park(wait, front=True)
            self._tried_in_vain = []

    def _park(self, wait: Wait, front: bool) -> None:
        self.waiting.park(wait, front)
        self.waiting.list_deadline(wait)
        self._arm_deadline()

    def _may_wait_on(self, wait: Wait) -> bool:
        return (
            self.open and not wait.request.abandoned and wait.deadline_ns > self._clock.elapsed_ns()
        )

    def _finish(self, wait: Wait, jobs: list[Fetched]) -> None:
        """Hand jobs to a fetch, or back to their queue when nobody is there to take them."""
        if wait.state == DONE or wait.request.abandoned:
            self._give_back(jobs)
            jobs = []
        else:
            wait.jobs = jobs
        self._answer(wait, jobs)

    def _answer(self, wait: Wait, answer: list[Fetched] | CorvoError) -> None:
        """Once, and not to a client that is gone: the connection has answered in our place."""
        if wait.state != DONE:
            wait.state = DONE
            if not wait.request.abandoned:
                wait.answer(wait, answer)
            wait.request = None

    def _give_back(self, jobs: list[Fetched]) -> None:
        for job in jobs:
            payload = encode_fields(ops.RELEASE.layout, (job.job_id, job.token, 0, b"", True))
            self._add(ops.RELEASE, payload, None)
        if jobs and not self._seal_scheduled and not self._log.busy:
            self._schedule_seal()

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
            if self.results.count or self.watch is not None:
                changes = machine.take_events()
                self.results.take(changes)
                if self.watch is not None:
                    self.watch(changes)
        self._write_buffer_size = machine.write_buffer_size
        self._park_again()
        for name in machine.take_woken():
            if self.waiting.waiting(name):
                self._to_check[name] = None
        self._after_turn()  # the answers go out before a flush of the base stops the loop
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

    def _after_turn(self) -> None:
        for callback in self.on_applied:
            callback()

    def _fatal(self, error: Exception) -> None:
        """State and log no longer agree, or the base is broken: this node must not go on."""
        self.open = False
        self._refusal = NotReady("the server is stopping")
        if self.on_fatal is None:
            raise error
        self.on_fatal(error)

    # ---- timers ----

    def _tick(self) -> None:
        """Once a second: give up on what is stuck, look for space again."""
        self._tick_timer = self._loop.call_later(_TICK_S, self._tick)
        now_ns = self._clock.monotonic_ns()
        for index in list(self._in_flight):
            completions, proposed_ns, term, size = self._in_flight[index]
            if now_ns - proposed_ns <= limits.OUTCOME_WAIT_NS:
                break
            error = OutcomeUnknown("the write did not reach the disk in time; it may still happen")
            # A fetch keeps its slot: its jobs, if they come, are given back.
            kept = [
                completion if completion and completion[0] is self._fetched else None
                for completion in completions
            ]
            self._in_flight[index] = (kept, now_ns, term, size)
            self._resolve(completions, [error] * len(completions))
            self._after_turn()
        self.flusher.tick()

    def _arm_deadline(self) -> None:
        due_ns = self.waiting.next_deadline_ns()
        if not due_ns or (self._deadline_timer is not None and self._deadline_armed_ns <= due_ns):
            return
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline_armed_ns = due_ns
        delay = max(0, due_ns - self._clock.elapsed_ns()) / 1e9
        self._deadline_timer = self._loop.call_later(delay, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline_timer = None
        for wait in self.waiting.expired(self._clock.elapsed_ns()):
            self._finish(wait, [])
        self._arm_deadline()
        self._after_turn()

    def _arm_opening(self) -> None:
        """Wake when the first of the rate limits opens that fetches wait for."""
        opens_ns = self._reopenings.next_ns()
        if not opens_ns or (self._opening_timer is not None and self._opening_armed_ns <= opens_ns):
            return
        if self._opening_timer is not None:
            self._opening_timer.cancel()
        self._opening_armed_ns = opens_ns
        delay = max(0, opens_ns - self._clock.stamp()) / 1e9
        self._opening_timer = self._loop.call_later(delay + _LATE_S, self._on_opening)

    def _on_opening(self) -> None:
        self._opening_timer = None
        for name in self._reopenings.due(self._clock.stamp()):
            self._to_check[name] = None
        self._arm_opening()
        if self._to_check and not self._seal_scheduled and not self._log.busy:
            self._schedule_seal()

    def _on_clock_jump(self) -> None:
        if self._opening_timer is not None:
            self._opening_timer.cancel()
        self._on_opening()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        self.results.check_time()
        self._on_deadline()


def _nobody(_index: int) -> None:
    pass


def _keeps_nothing(_completion: Completion) -> bool:
    return False

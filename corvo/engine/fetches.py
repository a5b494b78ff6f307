"""Fetches: requests of workers for jobs, which wait until one of their queues has some.

A parked fetch costs nothing: no timer, no task, no polling. A queue is looked at when it may have
something to give: jobs arrive in the batch or were put back, a rate limit reopens, or a fetch is
new. As many fetches as the queue can serve then become ops of the next entry, first come, first
served. One that gets nothing (another op of the entry took the job) returns to the front.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol

from corvo import limits, ops
from corvo._fast.codec.layouts import encode_fields
from corvo.engine.parked import DONE, IN_FLIGHT, PARKED, Deadlines, Wait
from corvo.errors import CorvoError
from corvo.model import Fetched
from corvo.platform.clock import Clock
from corvo.platform.loop import Loop

# A stamp may run a little late against the loop's timer; waking again this much later is enough.
_LATE_S = 0.001
TAKEN_MAX = 1_000  # fetches that become ops of one entry

logger = logging.getLogger(__name__)


class Queues(Protocol):
    """Reads of `corvo.fsm.machine.Machine` that decide which fetches to dispatch."""

    def fetchable(
        self, queue: str, arriving: int = 0, leaving: int = 0, now_ns: int = 0
    ) -> int: ...
    def opens_ns(self, queue: str, now_ns: int) -> int: ...
    def worker_seen_ns(self, worker_id: str) -> int: ...


class Proposer(Protocol):
    """Methods of `corvo.engine.pipeline.Pipeline` that fetches call."""

    @property
    def open(self) -> bool: ...
    def add(self, op: ops.Op, payload: bytes, completion: None) -> None: ...
    def request_seal(self) -> None: ...
    def after_turn(self) -> None: ...


class WaitingFetches:
    """The waiter lists of all queues."""

    def __init__(self) -> None:
        # Waiters by queue, in the order they are served; no empty lists.
        self._queues: dict[str, OrderedDict[Wait, None]] = {}
        self._deadlines = Deadlines()  # of the parked fetches that `list_deadline` was called for
        self.count = 0  # parked fetches, each once however many queues it names

    def park(self, wait: Wait, front: bool = False) -> None:
        """Put a fetch on the lists of its queues."""
        wait.state = PARKED
        self.count += 1
        for name in wait.queues:
            waiters = self._queues.get(name)
            if waiters is None:
                waiters = self._queues[name] = OrderedDict()
            waiters[wait] = None
            if front:
                waiters.move_to_end(wait, last=False)

    def remove(self, wait: Wait) -> None:
        """Take a parked fetch off all its lists."""
        assert wait.state == PARKED
        self.count -= 1
        for name in wait.queues:
            waiters = self._queues.get(name)
            if waiters is not None and wait in waiters:
                del waiters[wait]
                if not waiters:
                    del self._queues[name]
        self._deadlines.remove(wait)

    def in_queue(self, queue: str) -> int:
        """Number of fetches on a queue's list."""
        waiters = self._queues.get(queue)
        return 0 if waiters is None else len(waiters)

    def take(self, queue: str) -> Wait | None:
        """The first fetch of a queue's list, taken off all lists and marked in flight."""
        waiters = self._queues.get(queue)
        if waiters is None:
            return None
        wait = next(iter(waiters))
        self.remove(wait)
        wait.state = IN_FLIGHT
        return wait

    def list_deadline(self, wait: Wait) -> None:
        """Record the deadline of a parked fetch. Not part of `park`, because most fetches under
        load are taken in the turn in which they arrive."""
        self._deadlines.add(wait)

    def next_deadline_ns(self) -> int:
        """The next deadline, on Clock.elapsed_ns; 0 = there is none."""
        return self._deadlines.next_ns()

    def expired(self, now_ns: int) -> list[Wait]:
        """Take the fetches whose deadline has passed off all lists."""
        gone: list[Wait] = []
        for wait in self._deadlines.take_expired(now_ns):
            assert isinstance(wait, Wait)
            self.remove(wait)
            gone.append(wait)
        return gone

    def take_all(self) -> list[Wait]:
        """Take every parked fetch off all lists."""
        gone: list[Wait] = []
        while self._queues:
            for wait in list(next(iter(self._queues.values()))):
                self.remove(wait)
                gone.append(wait)
        return gone


class Reopenings:
    """Queues whose rate limit holds fetches back, and the time at which each limit allows a job."""

    def __init__(self) -> None:
        # (stamp in ns, queue); an entry counts only if `_times` has the same stamp for the queue.
        self._heap: list[tuple[int, str]] = []
        self._times: dict[str, int] = {}  # the stamp at which each queue opens

    def expect(self, queue: str, opens_ns: int) -> None:
        """Record the stamp at which a queue opens; it replaces an earlier one."""
        if self._times.get(queue) != opens_ns:
            self._times[queue] = opens_ns
            heappush(self._heap, (opens_ns, queue))

    def next_ns(self) -> int:
        """The next stamp at which a queue opens, 0 = none does."""
        heap = self._heap
        while heap and self._times.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else 0

    def due(self, stamp_ns: int) -> list[str]:
        """Take out the queues that are open at this stamp."""
        names: list[str] = []
        while 0 < self.next_ns() <= stamp_ns:
            name = heappop(self._heap)[1]
            del self._times[name]
            names.append(name)
        return names


class Fetches:
    """Parks fetches, selects those that their queues can serve now, and answers them."""

    def __init__(self, loop: Loop, clock: Clock, machine: Queues, proposer: Proposer) -> None:
        self._loop = loop
        self._clock = clock
        self._machine = machine
        self._proposer = proposer
        self.waiting = WaitingFetches()  # all fetches that are PARKED
        # Queues to look at when the next entry is sealed. Filled here, emptied by `take`.
        self.to_check: dict[str, None] = {}
        # Fetches since the last `take`, in order of arrival; some may be PARKED no more. The
        # queues of each are in `to_check`.
        self.new: list[Wait] = []
        # IN_FLIGHT fetches that the entries applied in this turn gave no job, in the order in
        # which they were tried; `after_apply` parks them again.
        self._unserved: list[Wait] = []
        self._deadline_timer: Any = None  # None = no deadline is listed
        self._deadline_armed_ns = 0  # when that timer fires, on Clock.elapsed_ns
        self._reopenings = Reopenings()  # queues with waiters whose rate limit is exhausted
        self._opening_timer: Any = None  # None = no reopening is expected
        self._opening_armed_ns = 0  # when that timer fires, as a stamp
        self.completed = self._on_fetched  # one object for the completions of all fetches

    # ---- parking ----

    def park(self, wait: Wait) -> None:
        """Let a new fetch wait for its queues."""
        self.waiting.park(wait)
        self.new.append(wait)
        for name in wait.queues:
            self.to_check[name] = None

    def abandon(self, wait: Wait) -> None:
        """The client of a fetch is gone, and has not received the answer if there was one: jobs
        of the answer return to their queues. A fetch in flight is handled when it completes."""
        if wait.state == PARKED:
            self.waiting.remove(wait)
            wait.state = DONE
            wait.request = None
        elif wait.state == DONE:
            self._give_back(wait.jobs)
            wait.jobs = []

    def answer_all(self) -> None:
        """Answer all parked fetches with no jobs."""
        for wait in self.waiting.take_all():
            self._finish(wait, [])

    def hand_over(self, takes: Callable[[tuple[Any, Any]], bool], error: CorvoError) -> None:
        """Offer the completion of each parked fetch to `takes`; answer those that it declines
        with an error."""
        for wait in self.waiting.take_all():
            if takes((self.completed, wait)):
                wait.state = DONE
                wait.request = None
            else:
                self._answer(wait, error)

    def close(self) -> None:
        """Stop the timers."""
        for timer in (self._deadline_timer, self._opening_timer):
            if timer is not None:
                timer.cancel()
        self._deadline_timer = self._opening_timer = None

    # ---- dispatch ----

    def take(self, arriving: dict[str, int], leaving: int) -> list[Wait]:
        """Take the fetches that are to be ops of the entry being sealed, as many as their queues
        can serve. Jobs that the entry adds (`arriving`, by queue) count, because fetches come last
        in it, and so do the `leaving` leases that it ends."""
        check = self.to_check
        self.to_check = {}
        for name in arriving:
            check[name] = None
        taken: list[Wait] = []
        now_ns = self._clock.stamp()
        for name in check:
            waiters = self.waiting.in_queue(name)
            if not waiters:
                continue
            count = self._machine.fetchable(name, arriving.get(name, 0), leaving, now_ns)
            wanted = min(waiters, count)
            if wanted > TAKEN_MAX - len(taken):
                wanted = TAKEN_MAX - len(taken)
                self.to_check[name] = None  # the rest is for the next entry
            for _ in range(wanted):
                wait = self.waiting.take(name)
                if wait is None:
                    break
                taken.append(wait)
            if count < waiters:
                opens_ns = self._machine.opens_ns(name, now_ns)
                if opens_ns:
                    self._reopenings.expect(name, opens_ns)
                    self._arm_opening()
        if self.new:
            self._settle_new(taken)
        return taken

    def _settle_new(self, taken: list[Wait]) -> None:
        """Let new fetches that found no job wait, or answer them if they do not want to wait.
        Now and then one is taken all the same, so that a worker of empty queues counts as alive."""
        new = self.new
        self.new = []
        answered = False
        touched: set[str] = set()
        for wait in new:
            if wait.state != PARKED:
                continue
            seen_ns = self._machine.worker_seen_ns(wait.worker_id)
            unseen = self._clock.stamp() - seen_ns > limits.WORKER_UNSEEN_NS
            if unseen and wait.worker_id not in touched and len(taken) < TAKEN_MAX:
                touched.add(wait.worker_id)
                self.waiting.remove(wait)
                wait.state = IN_FLIGHT
                wait.out_of_turn = True
                taken.append(wait)
            elif wait.deadline_ns:
                self.waiting.list_deadline(wait)
            elif self.to_check and not self.to_check.keys().isdisjoint(wait.queues):
                self.new.append(wait)  # more were taken than fit in one entry
            else:
                self.waiting.remove(wait)
                self._finish(wait, [])
                answered = True
        self._arm_deadline()
        if answered:
            self._proposer.after_turn()

    def after_apply(self, woken: list[str]) -> None:
        """Entries were applied: park the fetches that got nothing at the front, in the order they
        had, and note the queues that have work again."""
        if self._unserved:
            for wait in reversed(self._unserved):
                self._park_again(wait, front=True)
            self._unserved = []
        for name in woken:
            if self.waiting.in_queue(name):
                self.to_check[name] = None

    def _park_again(self, wait: Wait, front: bool) -> None:
        self.waiting.park(wait, front)
        self.waiting.list_deadline(wait)
        self._arm_deadline()

    # ---- answers ----

    def _on_fetched(self, wait: Wait, result: Any) -> None:
        if isinstance(result, CorvoError):
            self._answer(wait, result)
            return
        jobs = result if isinstance(result, list) else [] if result is None else [result]
        if len(wait.queues) > 1:
            # One of its queues counted on it, but another one may have served it.
            for name in wait.queues:
                self.to_check[name] = None
        if jobs or wait.state == DONE or not self._may_wait_on(wait):
            self._finish(wait, jobs)
        elif wait.out_of_turn:
            wait.out_of_turn = False
            self._park_again(wait, front=False)
        else:
            self._unserved.append(wait)

    def _may_wait_on(self, wait: Wait) -> bool:
        return (
            self._proposer.open
            and not wait.request.abandoned
            and wait.deadline_ns > self._clock.elapsed_ns()
        )

    def _finish(self, wait: Wait, jobs: list[Fetched]) -> None:
        """Answer a fetch with jobs, or return them to their queues if its client is gone."""
        if wait.state == DONE or wait.request.abandoned:
            self._give_back(jobs)
            jobs = []
        else:
            wait.jobs = jobs
        self._answer(wait, jobs)

    def _answer(self, wait: Wait, answer: list[Fetched] | CorvoError) -> None:
        """Answer once, and not if the client is gone: the connection has answered already."""
        if wait.state != DONE:
            wait.state = DONE
            if not wait.request.abandoned:
                try:
                    wait.answer(wait, answer)
                except Exception:  # the fetches taken in the same turn must still become ops
                    logger.exception("answering a fetch failed")
            wait.request = None

    def _give_back(self, jobs: list[Fetched]) -> None:
        for job in jobs:
            payload = encode_fields(ops.RELEASE.layout, (job.job_id, job.token, 0, b"", True))
            self._proposer.add(ops.RELEASE, payload, None)
        if jobs:
            self._proposer.request_seal()

    # ---- timers ----

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
        self._proposer.after_turn()

    def _arm_opening(self) -> None:
        """Set the timer to the first reopening of a rate limit that fetches wait for."""
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
            self.to_check[name] = None
        self._arm_opening()
        if self.to_check:
            self._proposer.request_seal()

    def check_time(self) -> None:
        """The clock has jumped: do what is due now, and set the timers again."""
        self.close()
        self._on_opening()
        self._on_deadline()

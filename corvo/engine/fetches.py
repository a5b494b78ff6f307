"""Requests that wait: fetches for work, and others for the end of a job. There is no timer, no task
and no polling per request.

A waiting fetch costs nothing until one of its queues has something to give. Order is first come,
first served per queue; a fetch that was tried in vain goes back to the front.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol

from corvo.events import END_EVENTS, Event
from corvo.limits import MS_NS

logger = logging.getLogger(__name__)

_BUCKET_NS = 100 * MS_NS

PARKED = 0
IN_FLIGHT = 1
DONE = 2


class Loop(Protocol):
    """What waiting needs of the event loop."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Any: ...


class Parked:
    """A request that waits until a deadline at most."""

    __slots__ = ("deadline_ns", "listed")

    def __init__(self, deadline_ns: int) -> None:
        self.deadline_ns = deadline_ns  # on Clock.elapsed_ns
        self.listed = False  # has an entry among the deadlines


class Deadlines:
    """When parked requests give up, to a tenth of a second."""

    def __init__(self) -> None:
        self._parked: dict[int, dict[Parked, None]] = {}
        self._buckets: list[int] = []

    def add(self, parked: Parked) -> None:
        """Remember the deadline of a request, once."""
        if parked.listed:
            return
        parked.listed = True
        bucket = parked.deadline_ns // _BUCKET_NS
        waits = self._parked.get(bucket)
        if waits is None:
            waits = self._parked[bucket] = {}
            heappush(self._buckets, bucket)
        waits[parked] = None

    def remove(self, parked: Parked) -> None:
        """Forget the deadline of a request that does not wait any more."""
        if parked.listed:
            parked.listed = False
            del self._parked[parked.deadline_ns // _BUCKET_NS][parked]

    def next_ns(self) -> int:
        """When the next request gives up, 0 = none waits."""
        while self._buckets:
            if self._parked[self._buckets[0]]:
                return (self._buckets[0] + 1) * _BUCKET_NS
            del self._parked[heappop(self._buckets)]
        return 0

    def take_expired(self, now_ns: int) -> list[Parked]:
        """Forget those that have waited long enough, and return them."""
        gone: list[Parked] = []
        while self._buckets and (self._buckets[0] + 1) * _BUCKET_NS <= now_ns:
            for parked in self._parked.pop(heappop(self._buckets)):
                parked.listed = False
                gone.append(parked)
        return gone


class Wait(Parked):
    """One fetch: what it asks for, how long it waits, and who gets the answer.

    `answer(wait, jobs)` is called once, with a list of `Fetched` (empty = nothing came) or with a
    CorvoError.
    """

    __slots__ = (
        "answer",
        "batch",
        "jobs",
        "out_of_turn",
        "payload",
        "queues",
        "request",
        "state",
        "worker_id",
    )

    def __init__(
        self,
        queues: list[str],
        worker_id: str,
        payload: bytes,
        batch: bool,
        deadline_ns: int,
        request: Any,
        answer: Callable[["Wait", Any], None],
    ) -> None:
        # As in Parked, whose __init__ would be a call more for each fetch.
        self.deadline_ns = deadline_ns  # 0 = do not wait
        self.listed = False
        self.queues = queues
        self.worker_id = worker_id
        self.payload = payload  # of the Fetch or FetchBatch op
        self.batch = batch
        self.request = request  # None once answered: the two would keep each other alive
        self.answer = answer
        self.state = PARKED
        self.jobs: list[Any] = []  # what it was answered with
        self.out_of_turn = False  # was tried though others waited longer


class WaitingFetches:
    """The waiter lists of all queues."""

    def __init__(self) -> None:
        self._queues: dict[str, OrderedDict[Wait, None]] = {}
        self._deadlines = Deadlines()
        self.count = 0

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

    def waiting(self, queue: str) -> int:
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
        """Remember when a parked fetch gives up. Kept out of `park`, because most fetches under
        load are taken in the turn they arrive in."""
        self._deadlines.add(wait)

    def next_deadline_ns(self) -> int:
        """When the next fetch gives up (monotonic), 0 = none waits."""
        return self._deadlines.next_ns()

    def expired(self, now_ns: int) -> list[Wait]:
        """Take off the lists what has waited long enough."""
        gone: list[Wait] = []
        for wait in self._deadlines.take_expired(now_ns):
            assert isinstance(wait, Wait)
            self.remove(wait)
            gone.append(wait)
        return gone

    def all(self) -> list[Wait]:
        """Take every parked fetch off the lists (drain)."""
        gone: list[Wait] = []
        while self._queues:
            for wait in list(next(iter(self._queues.values()))):
                self.remove(wait)
                gone.append(wait)
        return gone


class ResultWait(Parked):
    """One request that waits for the end of a job; `answer(request)` is called once."""

    __slots__ = ("answer", "job_id", "request")

    def __init__(
        self, job_id: str, deadline_ns: int, request: Any, answer: Callable[[Any], None]
    ) -> None:
        super().__init__(deadline_ns)
        self.job_id = job_id
        self.request = request  # None once answered or dropped
        self.answer = answer


class WaitingForResults:
    """Requests that wait for the end of jobs. They are found by the change records of apply, and
    one timer serves all of their deadlines; without any nothing is looked at."""

    def __init__(self, loop: Loop, elapsed_ns: Callable[[], int]) -> None:
        self._loop = loop
        self._elapsed_ns = elapsed_ns
        self._jobs: dict[str, dict[ResultWait, None]] = {}
        self._deadlines = Deadlines()
        self._timer: Any = None
        self._armed_ns = 0
        self.count = 0

    def park(self, wait: ResultWait) -> None:
        """Let a request wait for its job."""
        self._jobs.setdefault(wait.job_id, {})[wait] = None
        self._deadlines.add(wait)
        self.count += 1
        self._arm()

    def drop(self, wait: ResultWait) -> None:
        """The client is gone."""
        if wait.request is not None:
            self._remove(wait)
            wait.request = None

    def take(self, changes: list[Event]) -> None:
        """Answer those whose jobs have ended according to these change records."""
        for event in changes:
            if event.type in END_EVENTS and event.job_id in self._jobs:
                for wait in list(self._jobs[event.job_id]):
                    self._answer(wait)

    def answer_all(self) -> None:
        """Answer everybody as things are now (drain)."""
        for waits in list(self._jobs.values()):
            for wait in list(waits):
                self._answer(wait)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check_time(self) -> None:
        """Answer those that have waited long enough."""
        self.close()
        for wait in self._deadlines.take_expired(self._elapsed_ns()):
            assert isinstance(wait, ResultWait)
            self._answer(wait)
        self._arm()

    def _answer(self, wait: ResultWait) -> None:
        self._remove(wait)
        request, wait.request = wait.request, None
        try:
            wait.answer(request)
        except Exception:
            logger.exception("answering a request failed")

    def _remove(self, wait: ResultWait) -> None:
        self._deadlines.remove(wait)
        self.count -= 1
        waits = self._jobs[wait.job_id]
        del waits[wait]
        if not waits:
            del self._jobs[wait.job_id]

    def _arm(self) -> None:
        due_ns = self._deadlines.next_ns()
        if not due_ns or (self._timer is not None and self._armed_ns <= due_ns):
            return
        self.close()
        self._armed_ns = due_ns
        delay = max(0, due_ns - self._elapsed_ns()) / 1e9
        self._timer = self._loop.call_later(delay, self.check_time)


class Reopenings:
    """Queues whose rate limit keeps fetches waiting, and when each lets the next job pass."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._times: dict[str, int] = {}

    def expect(self, queue: str, opens_ns: int) -> None:
        """The queue opens at this stamp, and not when it was said before."""
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

"""Fetches that wait for work: per-queue lists and deadlines, no timer and no polling per fetch.

A waiting fetch costs nothing until one of its queues has something to give. Order is first come,
first served per queue; a fetch that was tried in vain goes back to the front.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from corvo.limits import MS_NS

_BUCKET_NS = 100 * MS_NS

PARKED = 0
IN_FLIGHT = 1
DONE = 2


class Wait:
    """One fetch: what it asks for, how long it waits, and who gets the answer.

    `answer(wait, jobs)` is called once, with a list of `Fetched` (empty = nothing came) or with a
    CorvoError.
    """

    __slots__ = (
        "answer",
        "batch",
        "deadline_ns",
        "jobs",
        "listed",
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
        self.queues = queues
        self.worker_id = worker_id
        self.payload = payload  # of the Fetch or FetchBatch op
        self.batch = batch
        self.deadline_ns = deadline_ns  # on Clock.elapsed_ns; 0 = do not wait
        self.request = request  # None once answered: the two would keep each other alive
        self.answer = answer
        self.state = PARKED
        self.jobs: list[Any] = []  # what it was answered with
        self.out_of_turn = False  # was tried though others waited longer
        self.listed = False  # has an entry among the deadlines


class WaitingFetches:
    """The waiter lists of all queues."""

    def __init__(self) -> None:
        self._queues: dict[str, OrderedDict[Wait, None]] = {}
        self._deadlines: dict[int, dict[Wait, None]] = {}
        self._buckets: list[int] = []
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
        if wait.listed:
            wait.listed = False
            bucket = wait.deadline_ns // _BUCKET_NS
            waits = self._deadlines[bucket]
            del waits[wait]

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
        if wait.listed:
            return
        wait.listed = True
        bucket = wait.deadline_ns // _BUCKET_NS
        waits = self._deadlines.get(bucket)
        if waits is None:
            waits = self._deadlines[bucket] = {}
            heappush(self._buckets, bucket)
        waits[wait] = None

    def next_deadline_ns(self) -> int:
        """When the next fetch gives up (monotonic), 0 = none waits."""
        while self._buckets:
            if self._deadlines[self._buckets[0]]:
                return (self._buckets[0] + 1) * _BUCKET_NS
            del self._deadlines[heappop(self._buckets)]
        return 0

    def expired(self, now_ns: int) -> list[Wait]:
        """Take off the lists what has waited long enough."""
        gone: list[Wait] = []
        while self._buckets and (self._buckets[0] + 1) * _BUCKET_NS <= now_ns:
            for wait in list(self._deadlines[self._buckets[0]]):
                self.remove(wait)
                gone.append(wait)
            del self._deadlines[heappop(self._buckets)]
        return gone

    def all(self) -> list[Wait]:
        """Take every parked fetch off the lists (drain)."""
        gone: list[Wait] = []
        while self._queues:
            for wait in list(next(iter(self._queues.values()))):
                self.remove(wait)
                gone.append(wait)
        return gone


class Openings:
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

"""Requests that wait until a deadline at most. One timer serves all of them: their deadlines are
kept in buckets of a hundredth of a second, so that a request costs no timer and no task.

A fetch is here, next to its parent class: a compiled class has no fast constructor if its parent
is in another module.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from corvo.limits import MS_NS

_BUCKET_NS = 10 * MS_NS
EXPIRED_MAX = 250  # requests that are answered in one turn of the loop

# States of a `Wait`.
PARKED = 0
IN_FLIGHT = 1
DONE = 2


class Parked:
    """A request that waits until a deadline at most."""

    __slots__ = ("deadline_ns", "listed")

    def __init__(self, deadline_ns: int) -> None:
        self.deadline_ns = deadline_ns  # on Clock.elapsed_ns
        self.listed = False  # whether it is in a `Deadlines`, which changes this


class Wait(Parked):
    """One fetch: its queues, its deadline, and the request to answer.

    `answer(wait, jobs)` is called once, with a list of `Fetched` (empty = no job by the deadline)
    or with a CorvoError.
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
        # As in Parked, whose __init__ would be one call more for each fetch.
        self.deadline_ns = deadline_ns  # on Clock.elapsed_ns; 0 = do not wait
        self.listed = False  # see Parked
        self.queues = queues  # names; the fetch is on the waiter list of each while PARKED
        self.worker_id = worker_id
        self.payload = payload  # of the Fetch or FetchBatch op
        self.batch = batch  # whether `payload` is that of a FetchBatch
        self.request = request  # None if and only if DONE: the two would keep each other alive
        self.answer = answer
        # PARKED -> IN_FLIGHT when its op joins the batch, back to PARKED if it got no job; DONE
        # is final. Changed by WaitingFetches and Fetches.
        self.state = PARKED
        self.jobs: list[Any] = []  # `Fetched` that it was answered with; empty unless DONE
        # Dispatched although others waited longer, to record that the worker is alive.
        self.out_of_turn = False


class Deadlines:
    """Deadlines of parked requests, to a hundredth of a second."""

    def __init__(self) -> None:
        # Requests by bucket: deadline_ns // _BUCKET_NS. All of them are `listed`.
        self._parked: dict[int, dict[Parked, None]] = {}
        self._buckets: list[int] = []  # heap of the keys of `_parked`

    def add(self, parked: Parked) -> None:
        """Add a request, unless it is listed already."""
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
        """Remove a request that waits no longer; it need not be listed."""
        if parked.listed:
            parked.listed = False
            del self._parked[parked.deadline_ns // _BUCKET_NS][parked]

    def next_ns(self) -> int:
        """The next deadline, rounded up; 0 = no request is listed."""
        while self._buckets:
            if self._parked[self._buckets[0]]:
                return (self._buckets[0] + 1) * _BUCKET_NS
            del self._parked[heappop(self._buckets)]
        return 0

    def take_expired(self, now_ns: int) -> list[Parked]:
        """Remove and return requests whose deadline has passed, at most EXPIRED_MAX."""
        gone: list[Parked] = []
        while self._buckets and (self._buckets[0] + 1) * _BUCKET_NS <= now_ns:
            bucket = self._parked[self._buckets[0]]
            while bucket and len(gone) < EXPIRED_MAX:
                parked = bucket.popitem()[0]
                parked.listed = False
                gone.append(parked)
            if bucket:
                break
            del self._parked[heappop(self._buckets)]
        return gone

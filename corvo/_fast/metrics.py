"""Histograms and counters as C fields: an observation touches no dict and makes no object.

They are read at scrape time only. All belong to the loop thread; none is locked.
"""

from collections.abc import Callable
from typing import Any

import cython

BUCKETS_MAX = 16

# 100 µs to 0.5 s, finest where a pause begins to be felt.
TURN_BOUNDS_NS = tuple(
    us * 1_000
    for us in (
        100,
        200,
        500,
        1_000,
        2_000,
        3_000,
        4_000,
        5_000,
        6_000,
        8_000,
        10_000,
        15_000,
        20_000,
        50_000,
        100_000,
        500_000,
    )
)


class Histogram:
    """How long things took, counted in buckets with fixed upper bounds, in nanoseconds."""

    def __init__(self, bounds_ns: tuple[Any, ...]) -> None:
        assert 0 < len(bounds_ns) <= BUCKETS_MAX and list(bounds_ns) == sorted(bounds_ns)
        if not cython.compiled:
            self._bounds = [0] * BUCKETS_MAX
            self._counts = [0] * (BUCKETS_MAX + 1)
        self.bounds_ns = bounds_ns
        self.count = 0
        self.sum_ns = 0
        self._size = len(bounds_ns)
        at: cython.int
        for at in range(self._size):
            self._bounds[at] = bounds_ns[at]
        for at in range(BUCKETS_MAX + 1):
            self._counts[at] = 0

    def observe(self, length_ns: cython.ulonglong) -> None:
        """Something took this long."""
        at: cython.int = 0
        while at < self._size and length_ns > self._bounds[at]:
            at += 1
        self._counts[at] += 1
        self.count += 1
        self.sum_ns += length_ns

    def buckets(self) -> list[tuple[int | None, int]]:
        """Upper bound and number of observations up to it, rising; the last bound is None."""
        found = []
        total: cython.ulonglong = 0
        at: cython.int
        for at in range(self._size):
            total += self._counts[at]
            found.append((self.bounds_ns[at], total))
        found.append((None, self.count))
        return found


class RouteMetrics:
    """What one route has answered: how often, how often with an error, how fast."""

    def __init__(self, bounds_ns: tuple[Any, ...]) -> None:
        self.requests = 0
        self.errors = 0
        self.duration = Histogram(bounds_ns)

    def answered(self, status: cython.int, length_ns: cython.longlong) -> None:
        """One request was answered."""
        self.requests += 1
        if status >= 400:
            self.errors += 1
        self.duration.observe(length_ns)


class TurnMetrics:
    """How long the loop is busy in those of its turns that bring requests, committed entries or
    flushes of the base: from the first of them until the callbacks behind it have run. Nobody else
    is heard meanwhile."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], monotonic_ns: Callable[[], int]
    ) -> None:
        self._call_soon = call_soon
        self._monotonic_ns = monotonic_ns
        self._running = False
        self._began_ns = 0
        self.duration = Histogram(TURN_BOUNDS_NS)

    def begin(self) -> None:
        """Something happens; only the first time in a turn counts."""
        if not self._running:
            self._running = True
            self._began_ns = self._monotonic_ns()
            self._call_soon(self._end)

    def _end(self) -> None:
        self._running = False
        now_ns: cython.longlong = self._monotonic_ns()
        self.duration.observe(now_ns - self._began_ns)

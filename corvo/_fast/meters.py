"""Histograms and counters as C fields: an observation touches no dict and makes no object.

They are read at scrape time only. All belong to the loop thread; none is locked.
"""

import cython

BUCKETS_MAX = 16


class Histogram:
    """How long things took, counted in buckets with fixed upper bounds, in nanoseconds."""

    def __init__(self, bounds_ns: tuple) -> None:
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

    def observe(self, length_ns):
        """Something took this long."""
        at: cython.int = 0
        while at < self._size and length_ns > self._bounds[at]:
            at += 1
        self._counts[at] += 1
        self.count += 1
        self.sum_ns += length_ns

    def buckets(self) -> list:
        """Upper bound and number of observations up to it, rising; the last bound is None."""
        found = []
        total: cython.ulonglong = 0
        at: cython.int
        for at in range(self._size):
            total += self._counts[at]
            found.append((self.bounds_ns[at], total))
        found.append((None, self.count))
        return found


class RouteMeter:
    """What one route has answered: how often, how often with an error, how fast."""

    def __init__(self, bounds_ns: tuple) -> None:
        self.requests = 0
        self.errors = 0
        self.duration = Histogram(bounds_ns)

    def answered(self, status, length_ns):
        """One request was answered."""
        self.requests += 1
        if status >= 400:
            self.errors += 1
        self.duration.observe(length_ns)

"""The monotonic clock as a C integer: a request is timed twice, and asking Python costs as much as
checking a head."""

from collections.abc import Callable

import cython

if cython.compiled:
    from cython.cimports.posix.time import CLOCK_MONOTONIC, clock_gettime, timespec


class MonotonicClock:
    """Nanoseconds that never go back, from `source`; `native` says that this is the system's
    monotonic clock, which is then read directly."""

    def __init__(self, source: Callable[[], int], native: bool = False) -> None:
        self._source = source
        self._native = native and cython.compiled

    def monotonic_ns(self) -> cython.longlong:
        """For what the server does for itself."""
        if not self._native:
            return self._source()
        now = cython.declare(timespec)
        clock_gettime(CLOCK_MONOTONIC, cython.address(now))
        return cython.cast(cython.longlong, now.tv_sec) * 1_000_000_000 + now.tv_nsec

    def elapsed_ns(self) -> cython.longlong:
        """For what clients are promised (waits, time-outs). A clock that is set by hand takes it
        along."""
        return self.monotonic_ns()

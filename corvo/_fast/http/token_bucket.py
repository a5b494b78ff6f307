"""A budget for what a peer may ask for again and again: some at once, and so many a second."""

import cython


class TokenBucket:
    """Holds up to `capacity` tokens and gets `rate` new ones each second."""

    def __init__(self, capacity: int, rate: int, now_ns: int) -> None:
        self._full = capacity * 1_000_000_000
        self._rate = rate
        self._level = self._full
        self._filled_ns = now_ns

    def take(self, now_ns: cython.longlong) -> cython.bint:
        """Take a token; False when there is none."""
        if self._rate:
            # Bounded before it is multiplied: a long silence must not overflow.
            passed_ns: cython.longlong = min(now_ns - self._filled_ns, self._full // self._rate + 1)
            self._level = min(self._full, self._level + passed_ns * self._rate)
            self._filled_ns = now_ns
        if self._level < 1_000_000_000:
            return False
        self._level -= 1_000_000_000
        return True

    def add(self, tokens: cython.longlong) -> None:
        """Give tokens beyond those of time."""
        self._level = min(self._full, self._level + tokens * 1_000_000_000)

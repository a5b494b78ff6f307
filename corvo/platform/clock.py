"""Time and randomness of a node: entry stamps and random seeds.

Stamps are the unix nanoseconds that the leader writes into entries. They follow the monotonic clock
and are slewed toward the wall clock, so that stamps keep advancing when the wall clock is set
back:

- a stamp advances by half to twice the elapsed time, and never goes back;
- if the wall clock is ahead by more than STAMP_STEP_MAX_NS, stamps follow in steps, at most one per
  second, each twice as long as the one before. So a short clock error does little harm (stamps
  cannot go back afterwards), and a correct jump is followed within seconds, not hours. Each step
  counts as a pause;
- a *pause* is a time in which this process did not run, so heartbeats of workers may be unread:
  leases get a grace period after it. Pauses are detected because the event loop calls `tick` every
  half a second.
"""

import os
import time
from collections.abc import Callable
from typing import ClassVar

from corvo import limits
from corvo._fast.http.monotonic import MonotonicClock
from corvo.errors import ValidationError
from corvo.platform.durations import format_time

# A year below DUE_MAX_NS, because leases end after the stamp.
_SET_MAX_NS = limits.DUE_MAX_NS - 366 * limits.LEASE_MAX_S * limits.SECOND_NS


class Clock(MonotonicClock):
    """The clock of a node; tests can inject the time sources and the entropy source."""

    def __init__(
        self,
        monotonic: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        MonotonicClock.__init__(self, monotonic, monotonic is time.monotonic_ns)
        self.random_bytes = entropy
        self.pauses = 0
        self.on_pause: list[Callable[[], None]] = []
        self.on_jump: list[Callable[[], None]] = []  # called when time is set, to rearm timers
        self._wall = wall
        self._last_ns = monotonic()
        self._stamp_ns = wall()
        self._tick_ns: int | None = None
        self._step_ns = limits.STAMP_STEP_MAX_NS
        self._stepped_ns = self._last_ns - limits.SECOND_NS

    def seed64(self) -> int:
        """Return 64 random bits as a signed number, for one entry."""
        return int.from_bytes(self.random_bytes(8), "big", signed=True)

    def observe(self, stamp_ns: int) -> None:
        """Raise the clock to at least this stamp, which an applied entry has."""
        self._stamp_ns = max(self._stamp_ns, stamp_ns)

    def tick(self) -> None:
        """Record that the event loop runs; must be called every half a second."""
        self.stamp()
        self._tick_ns = self._last_ns

    def stamp(self) -> int:
        """Return the current time in unix nanoseconds, never below an earlier stamp."""
        now_ns = self.monotonic_ns()
        passed_ns = now_ns - self._last_ns
        self._last_ns = now_ns
        stamp_ns = self._stamp_ns + passed_ns
        ahead_ns = self._wall() - stamp_ns
        paused = False
        if ahead_ns < 0:
            stamp_ns -= min(-ahead_ns, passed_ns // 2)
        elif ahead_ns <= limits.STAMP_STEP_MAX_NS:
            stamp_ns += min(ahead_ns, passed_ns)
            self._step_ns = limits.STAMP_STEP_MAX_NS
        elif now_ns - self._stepped_ns >= limits.SECOND_NS:
            stamp_ns += min(ahead_ns, self._step_ns)
            self._step_ns *= 2
            self._stepped_ns = now_ns
            paused = True
        self._stamp_ns = stamp_ns
        if self._tick_ns is not None and now_ns - self._tick_ns > limits.PAUSE_NOTICED_NS:
            self._tick_ns = now_ns
            paused = True
        if paused:
            self.pauses += 1
            for listener in self.on_pause:
                listener()
        return stamp_ns


class TestClock(Clock):
    """A settable clock for tests.

    It starts at real time. Its offset is lost at a restart. A manual jump does not count as a
    pause."""

    __test__: ClassVar[bool] = False  # tells pytest that this class is not a test

    _shift_ns = 0
    _frozen_ns: int | None = None

    @property
    def frozen(self) -> bool:
        """Whether the clock is frozen."""
        return self._frozen_ns is not None

    def stamp(self) -> int:
        """Return the set time in unix nanoseconds, never below an earlier stamp."""
        real_ns = super().stamp()
        return real_ns + self._shift_ns if self._frozen_ns is None else self._frozen_ns

    def elapsed_ns(self) -> int:
        """Return the set time; like the stamp, it never goes back."""
        return self.stamp()

    def observe(self, stamp_ns: int) -> None:
        """Raise the clock to at least this stamp, which an applied entry has."""
        behind_ns = stamp_ns - self.stamp()
        if behind_ns > 0:
            self._move(behind_ns)

    def advance(self, length_ns: int) -> None:
        """Jump forward by a length of time."""
        if length_ns < 0:
            raise ValidationError(f"advance must be 0 or more, not {length_ns} ns")
        self._jump_to(self.stamp() + length_ns, "advance")

    def set(self, stamp_ns: int) -> None:
        """Jump to a time that is not in the past."""
        now_ns = self.stamp()
        if stamp_ns < now_ns:
            raise ValidationError(
                f"set must not be before now ({format_time(now_ns)}), not {format_time(stamp_ns)}"
            )
        self._jump_to(stamp_ns, "set")

    def freeze(self, frozen: bool) -> None:
        """Freeze the clock, or let it continue from the frozen time."""
        if frozen == self.frozen:
            return
        shown_ns = self.stamp()
        if frozen:
            self._frozen_ns = shown_ns
        else:
            self._frozen_ns = None
            self._shift_ns += shown_ns - self.stamp()
        self._notify()

    def _jump_to(self, stamp_ns: int, field: str) -> None:
        if stamp_ns > _SET_MAX_NS:
            raise ValidationError(
                f"{field} must not exceed {format_time(_SET_MAX_NS)},"
                f" not {format_time(min(stamp_ns, limits.TIME_MAX_NS))}"
            )
        self._move(max(0, stamp_ns - self.stamp()))
        self._notify()

    def _move(self, length_ns: int) -> None:
        if self._frozen_ns is None:
            self._shift_ns += length_ns
        else:
            self._frozen_ns += length_ns

    def _notify(self) -> None:
        for listener in self.on_jump:
            listener()

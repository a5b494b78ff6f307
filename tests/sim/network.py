"""A network that delays, loses, repeats and reorders messages, and falls apart."""

import random
from collections.abc import Callable
from typing import Any

from sim.options import Options
from sim.schedule import Schedule

Deliver = Callable[[str, str, Any], None]  # source, target, message

SLOW_FACTOR = 20


class Network:
    """Directed links between named nodes."""

    def __init__(
        self,
        schedule: Schedule,
        draw: random.Random,
        options: Options,
        deliver: Deliver,
        lost: Deliver,
    ) -> None:
        """`lost` is told what did not arrive."""
        self.sent = 0
        self._lost = lost
        self._schedule = schedule
        self._draw = draw
        self._options = options
        self._deliver = deliver
        self._faulty = True
        self._cut: set[tuple[str, str]] = set()
        self._clogged: dict[tuple[str, str], list[Any]] = {}
        self._slow: set[tuple[str, str]] = set()
        self._resets: dict[tuple[str, str], int] = {}
        self._last_us: dict[tuple[str, str], int] = {}

    def send(self, source: str, target: str, message: Any) -> None:
        """Put a message on its way, if there is one."""
        self.sent += 1
        link = (source, target)
        options, draw = self._options, self._draw
        if link in self._cut or (self._faulty and draw.random() < options.drop):
            self._lost(source, target, message)
            return
        copies = 2 if self._faulty and draw.random() < options.duplicate else 1
        for _ in range(copies):
            if link in self._clogged:
                self._clogged[link].append(message)
            else:
                self._carry(link, message)

    def _carry(self, link: tuple[str, str], message: Any) -> None:
        options = self._options
        delay_us = self._draw.randint(options.latency_min_us, options.latency_max_us)
        if link in self._slow:
            delay_us *= SLOW_FACTOR
        if options.in_order:  # as a connection does
            arrival_us = max(self._schedule.now_us + delay_us, self._last_us.get(link, 0))
            self._last_us[link] = arrival_us
            delay_us = arrival_us - self._schedule.now_us
        self._schedule.after(delay_us, self._arrive, link, message, self._resets.get(link, 0))

    def _arrive(self, link: tuple[str, str], message: Any, resets: int) -> None:
        if link in self._cut or resets != self._resets.get(link, 0):
            self._lost(*link, message)
            return
        self._deliver(link[0], link[1], message)

    # What the world does to it.

    def cut(self, source: str, target: str) -> None:
        """Nothing passes in this direction any more, what is under way included."""
        self._cut.add((source, target))

    def reset(self, source: str, target: str) -> None:
        """The connection breaks and is made again: what is under way is lost."""
        self._resets[source, target] = self._resets.get((source, target), 0) + 1

    def clog(self, source: str, target: str) -> None:
        """What is sent in this direction waits, until the link is unclogged."""
        self._clogged.setdefault((source, target), [])

    def unclog(self, source: str, target: str) -> None:
        for message in self._clogged.pop((source, target), []):
            self._carry((source, target), message)

    def slow(self, source: str, target: str) -> None:
        """Messages in this direction take much longer."""
        self._slow.add((source, target))

    def heal(self) -> None:
        """All links work, but each message may still meet its own accident."""
        self._cut.clear()
        self._slow.clear()
        for source, target in sorted(self._clogged):
            self.unclog(source, target)

    def calm(self) -> None:
        """All links work, and no message is lost or repeated any more."""
        self.heal()
        self._faulty = False

    def reaches(self, source: str, target: str) -> bool:
        """Whether messages pass, sooner or later."""
        return (source, target) not in self._cut

"""Work at a fixed interval."""

from types import SimpleNamespace
from typing import Any

import pytest

from corvo.platform.periodic import Periodic


class Timers:
    """The event loop's part: the timers that are set."""

    def __init__(self) -> None:
        self.set: list[Any] = []

    def call_later(self, delay: float, callback: Any) -> Any:
        timer = SimpleNamespace(delay=delay, callback=callback)
        timer.cancel = lambda: self.set.remove(timer)
        self.set.append(timer)
        return timer

    def fire(self) -> None:
        self.set.pop().callback()


def test_it_ticks_until_it_is_closed() -> None:
    timers, ticks = Timers(), []
    periodic = Periodic(timers, 0.5, lambda: ticks.append(1))
    periodic.close()
    periodic.start()
    assert ticks == [] and [timer.delay for timer in timers.set] == [0.5]
    timers.fire()
    timers.fire()
    assert len(ticks) == 2 and len(timers.set) == 1
    periodic.close()
    assert timers.set == []
    periodic.start()
    periodic.start()
    assert len(timers.set) == 1


def test_a_tick_that_fails_is_followed_by_the_next_one() -> None:
    timers = Timers()
    periodic = Periodic(timers, 1.0, lambda: [][0])
    periodic.start()
    with pytest.raises(IndexError):
        timers.fire()
    assert len(timers.set) == 1


def test_a_tick_can_close() -> None:
    timers = Timers()
    periodic = Periodic(timers, 1.0, lambda: periodic.close())
    periodic.start()
    timers.fire()
    assert timers.set == []

"""The leader's timers over a scripted machine and pipeline."""

from typing import Any

from corvo import ops
from corvo.errors import DiskFull
from corvo.limits import SECOND_NS
from corvo.scheduler import Scheduler

NOW_NS = 1_000 * SECOND_NS


class Timer:
    def cancel(self) -> None:
        pass


class Loop:
    """Keeps what is to run: at once, and later with its delay."""

    def __init__(self) -> None:
        self.soon: list[Any] = []
        self.later: list[tuple[float, Any, tuple[Any, ...]]] = []

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.soon.append(callback)

    def call_later(self, delay_s: float, callback: Any, *args: Any) -> Timer:
        self.later.append((delay_s, callback, args))
        return Timer()


class Clock:
    """Stands still."""

    def __init__(self) -> None:
        self.on_jump: list[Any] = []
        self.on_pause: list[Any] = []

    def stamp(self) -> int:
        return NOW_NS

    def tick(self) -> None:
        pass


class Machine:
    """One job is due for promotion."""

    fencing = 0
    unsettled = ""

    def old_batches(self, cutoff_ns: int, limit: int) -> list[str]:
        return []

    def next_due(self) -> int:
        return NOW_NS - 1

    def due_promotions(self, now_ns: int, limit: int) -> list[str]:
        return ["job_1"]

    def due_expiries(self, now_ns: int, limit: int) -> list[str]:
        return []

    def due_leases(self, now_ns: int, limit: int, grace_fencing: int) -> list[str]:
        return []

    def due_schedules(self, now_ns: int, limit: int) -> list[Any]:
        return []

    def trim_point(self) -> int:
        return 0

    def workers(self) -> list[Any]:
        return []


class Pipeline:
    """Keeps the slots of what is proposed."""

    def __init__(self) -> None:
        self.on_applied: list[Any] = []
        self.slots: list[Any] = []

    def submit(self, op: ops.Op, payload: bytes, slot: Any) -> None:
        assert op is ops.PROMOTE_DUE
        self.slots.append(slot)


def test_what_is_refused_is_not_proposed_again_at_once() -> None:
    loop, pipeline = Loop(), Pipeline()
    parts: tuple[Any, ...] = (loop, Clock(), Machine(), pipeline)
    scheduler = Scheduler(*parts)
    scheduler.start()
    callback, number = pipeline.slots.pop()
    callback(number, DiskFull("no space"))
    scheduler.check()
    assert loop.soon == []
    for delay_s, wake, args in list(loop.later):
        if delay_s < 0.1:
            wake(*args)
    assert pipeline.slots == []
    again = [(wake, args) for delay_s, wake, args in loop.later if delay_s == 0.1]
    for wake, args in again:
        wake(*args)
    for wake in loop.soon:
        wake()
    assert len(pipeline.slots) == 1

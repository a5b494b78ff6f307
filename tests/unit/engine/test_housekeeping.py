"""The leader's background work over a real machine and a pipeline that applies at once."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from lib.fsm_driver import Driver

from corvo import ops
from corvo._fast.codec.layouts import encode_fields, encode_frame
from corvo.engine.housekeeping import Housekeeping
from corvo.errors import DiskFull
from corvo.limits import PURGE_JOBS_MAX, SECOND_NS, STEP_JOBS

DAY_NS = 86_400 * SECOND_NS


class Timer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Rig:
    """Loop, clock and pipeline in one."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.later: list[tuple[float, Any, tuple[Any, ...]]] = []
        self.on_jump: list[Any] = []
        self.on_applied: list[Any] = []
        self.submitted: list[tuple[int, bytes, Any]] = []
        self.fails = False
        self.flusher = SimpleNamespace(throttled=False, flush_ns_last=0)
        rig = cast(Any, self)
        self.housekeeping = Housekeeping(
            rig, rig, self.driver.machine, rig, [7 * DAY_NS] * 3, 3_600 * SECOND_NS
        )

    def stamp(self) -> int:
        return self.driver.now_ns

    def monotonic_ns(self) -> int:
        return self.driver.now_ns

    def call_soon(self, callback: Any, *args: Any) -> None:
        callback(*args)

    def call_later(self, delay: float, callback: Any, *args: Any) -> Any:
        self.later.append((delay, callback, args))
        return Timer()

    def submit(self, op: ops.Op, payload: bytes, slot: Any) -> None:
        if self.fails:
            raise DiskFull("full")
        self.submitted.append((op.number, payload, slot))

    def apply(self, result: Any = None) -> int:
        """Apply what was submitted first, and answer; which op it was."""
        number, payload, (callback, argument) = self.submitted.pop(0)
        data = result
        if result is None:
            frame = [(0, encode_fields("qq", (self.driver.now_ns, 1))), (number, payload)]
            machine = self.driver.machine
            data = machine.apply(machine.applied_index + 1, 1, encode_frame(frame))[0]
        callback(argument, data)
        return number

    def wake(self, delay: float | None = None) -> None:
        """Run what waits behind the pause of an op."""
        waiting, self.later = self.later, []
        for due, callback, args in waiting:
            if callback == self.housekeeping._tick:
                self.later.append((due, callback, args))
            else:
                assert delay is None or due == delay
                callback(*args)

    def tick(self) -> None:
        self.later = [row for row in self.later if row[1] != self.housekeeping._tick]
        self.housekeeping._tick()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def numbers(rig: Rig) -> list[int]:
    return [number for number, _, _ in rig.submitted]


def test_tasks_go_on_one_step_at_a_time_in_turns(rig: Rig) -> None:
    for queue in ("a", "b"):
        for n in range(3 * STEP_JOBS):
            rig.driver.enqueue(f"{queue}{n}", queue=queue)
        rig.driver.do(ops.CLEAR_QUEUE, queue, f"bulk_{queue}")
    rig.housekeeping.start()
    steps = 0
    while rig.submitted:
        assert numbers(rig) == [ops.BULK_STEP.number]
        rig.housekeeping.check()
        assert len(rig.submitted) == 1, "one at a time"
        rig.apply()
        assert not rig.submitted, "there is a pause"
        rig.housekeeping.check()
        rig.wake()
        steps += 1
    assert rig.driver.machine.running_operations() == []
    assert steps == 6, "two for the pending ones of each, and one that finds no more"


def test_a_refused_step_is_tried_again(rig: Rig) -> None:
    for n in range(2 * STEP_JOBS):
        rig.driver.enqueue(f"j{n}")
    rig.driver.do(ops.CLEAR_QUEUE, "q", "bulk_1")
    rig.fails = True
    rig.housekeeping.start()
    assert not rig.submitted
    rig.fails = False
    rig.wake(delay=0.1)
    rig.apply(DiskFull("full"))
    rig.wake(delay=0.1)
    rig.apply()
    rig.wake()
    rig.apply()
    rig.wake()
    assert rig.driver.machine.running_operations() == []


def test_old_jobs_are_looked_for_once_in_an_interval(rig: Rig) -> None:
    for n in range(2 * PURGE_JOBS_MAX):
        rig.driver.enqueue(f"j{n}")
        rig.driver.cancel(f"j{n}")
    rig.driver.machine.flush()
    rig.housekeeping.start()
    assert not rig.submitted
    rig.driver.now_ns += 8 * DAY_NS
    for left in (PURGE_JOBS_MAX, 0):
        rig.tick()
        assert numbers(rig) == [ops.PURGE_JOBS.number]
        rig.apply()
        rig.driver.machine.flush()
        queue = rig.driver.machine.queue("q")
        assert queue is not None and queue.jobs(7) == left
        if left:
            rig.wake()
    rig.wake()
    assert not rig.submitted
    rig.driver.enqueue("late")
    rig.driver.cancel("late")
    rig.driver.machine.flush()
    rig.driver.now_ns += 3_599 * SECOND_NS
    rig.tick()
    assert not rig.submitted


def test_stale_locks_are_swept(rig: Rig) -> None:
    rig.driver.enqueue("j", unique_key=b"k", unique_until=3, unique_period_ns=SECOND_NS)
    rig.driver.machine.flush()
    rig.driver.advance(2)
    rig.housekeeping.start()
    assert rig.apply() == ops.CLEAN_UNIQUE.number
    rig.wake()
    rig.driver.machine.flush()
    rig.tick()
    assert not rig.submitted


def test_nothing_happens_after_close(rig: Rig) -> None:
    for n in range(2 * STEP_JOBS):
        rig.driver.enqueue(f"j{n}")
    rig.driver.do(ops.CLEAR_QUEUE, "q", "bulk_1")
    rig.housekeeping.start()
    assert rig.flusher.throttled
    rig.housekeeping.close()
    assert not rig.flusher.throttled
    before = len(rig.later)
    rig.apply()
    assert len(rig.later) == before


def test_the_pause_is_that_of_the_last_flush(rig: Rig) -> None:
    for n in range(4 * STEP_JOBS):
        rig.driver.enqueue(f"j{n}")
    rig.driver.do(ops.CLEAR_QUEUE, "q", "bulk_1")
    rig.housekeeping.start()
    rig.apply()
    rig.wake(delay=0.001)
    rig.flusher.flush_ns_last = 2_000_000
    rig.apply()
    rig.wake(delay=0.006)
    assert numbers(rig) == [ops.BULK_STEP.number]

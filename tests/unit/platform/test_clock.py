"""The clock: slewing, steps, pauses, and the clock that can be set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo import limits
from corvo.errors import ValidationError
from corvo.platform.clock import Clock, TestClock

SECOND = limits.SECOND_NS
START = 1_770_724_800 * SECOND


class World:
    """The real time that a clock under test sees."""

    def __init__(self, kind: type[Clock] = Clock) -> None:
        self.monotonic = 17 * SECOND
        self.wall = START
        self.clock = kind(lambda: self.monotonic, lambda: self.wall, lambda n: bytes(range(n)))

    def passes(self, length_ns: int) -> None:
        self.monotonic += length_ns
        self.wall += length_ns

    def runs(self, seconds: int) -> None:
        """The loop ticks each second."""
        for _ in range(seconds):
            self.passes(SECOND)
            self.clock.tick()


def test_follows_the_wall_clock() -> None:
    world = World()
    world.runs(100)
    assert world.clock.stamp() == START + 100 * SECOND
    assert world.clock.pauses == 0


def test_wall_set_back_halves_the_pace() -> None:
    world = World()
    world.wall -= 3600 * SECOND
    before = world.clock.stamp()
    world.passes(10 * SECOND)
    assert world.clock.stamp() - before == 5 * SECOND
    world.runs(7200)
    assert world.clock.stamp() == world.wall
    assert world.clock.pauses == 0


def test_wall_slightly_ahead_doubles_the_pace() -> None:
    world = World()
    world.wall += 4 * SECOND
    before = world.clock.stamp()
    world.passes(SECOND)
    assert world.clock.stamp() - before == 2 * SECOND
    world.runs(4)
    assert world.clock.stamp() == world.wall
    assert world.clock.pauses == 0


def test_wall_far_ahead_is_followed_in_growing_steps() -> None:
    world = World()
    world.wall += 2 * 365 * 86_400 * SECOND
    steps = []
    for _ in range(40):
        before = world.clock.stamp()
        world.passes(SECOND)
        for _ in range(10):  # no matter how often the clock is asked
            world.clock.stamp()
        steps.append(world.clock.stamp() - before - SECOND)
    assert steps[:3] == [limits.STAMP_STEP_MAX_NS * n for n in (2, 4, 8)]
    assert world.clock.stamp() == world.wall
    assert world.clock.pauses > 20


def test_wall_wrong_for_a_moment_does_little_harm() -> None:
    world = World()
    world.wall += 86_400 * SECOND
    world.clock.stamp()
    world.wall -= 86_400 * SECOND
    assert world.clock.stamp() - world.wall == limits.STAMP_STEP_MAX_NS
    assert world.clock.pauses == 1


def test_floor_from_the_state() -> None:
    world = World()
    world.clock.observe(START + 60 * SECOND)
    assert world.clock.stamp() == START + 60 * SECOND
    world.clock.observe(START)
    assert world.clock.stamp() == START + 60 * SECOND
    world.runs(120)
    assert world.clock.stamp() == world.wall


@pytest.mark.parametrize("first", ["tick", "stamp"])
def test_stopped_process_is_noticed_once(first: str) -> None:
    world = World()
    heard: list[int] = []
    world.clock.on_pause.append(lambda: heard.append(world.clock.stamp()))
    world.runs(3)
    world.passes(limits.PAUSE_NOTICED_NS + 1)
    getattr(world.clock, first)()
    world.clock.stamp()
    world.runs(3)
    assert heard == [START + 3 * SECOND + limits.PAUSE_NOTICED_NS + 1]
    assert world.clock.pauses == 1


def test_idle_clock_that_nobody_ticks_has_no_pauses() -> None:
    world = World()
    world.passes(3600 * SECOND)
    world.clock.stamp()
    assert world.clock.pauses == 0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20 * SECOND),
            st.integers(-(10**6) * SECOND, 10**6 * SECOND),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_never_goes_back(moves: list[tuple[int, int, bool]]) -> None:
    world = World()
    last = world.clock.stamp()
    for passed, wall_set, observed in moves:
        world.passes(passed)
        world.wall += wall_set
        if observed:
            world.clock.observe(last + passed)
            last += passed
        now = world.clock.stamp()
        assert now >= last
        if not observed:
            assert now - last >= passed // 2
        last = now


def test_randomness() -> None:
    assert World().clock.seed64() == int.from_bytes(bytes(range(8)), "big")
    assert World().clock.random_bytes(3) == b"\0\1\2"
    assert Clock().seed64() != Clock().seed64()


def settable() -> tuple[World, TestClock, list[int]]:
    world = World(TestClock)
    clock = world.clock
    assert isinstance(clock, TestClock)
    jumps: list[int] = []
    clock.on_jump.append(lambda: jumps.append(clock.stamp()))
    return world, clock, jumps


def test_jumps_are_reported_and_are_no_pauses() -> None:
    world, clock, jumps = settable()
    world.runs(1)
    clock.advance(3600 * SECOND)
    world.runs(1)
    clock.set(START + 86_400 * SECOND)
    world.runs(1)
    assert jumps == [START + 3601 * SECOND, START + 86_400 * SECOND]
    assert clock.stamp() == START + 86_401 * SECOND
    assert clock.pauses == 0


def test_frozen_clock_stands_and_goes_on_from_there() -> None:
    world, clock, jumps = settable()
    clock.freeze(True)
    clock.freeze(True)
    assert clock.frozen
    world.runs(100)
    assert clock.stamp() == START
    clock.advance(5 * SECOND)
    assert clock.stamp() == START + 5 * SECOND
    clock.freeze(False)
    clock.freeze(False)
    assert not clock.frozen
    world.runs(2)
    assert clock.stamp() == START + 7 * SECOND
    assert len(jumps) == 3


def test_settable_clock_never_goes_back() -> None:
    world, clock, jumps = settable()
    world.runs(10)
    with pytest.raises(ValidationError, match="set must not be before now"):
        clock.set(START)
    with pytest.raises(ValidationError, match="advance"):
        clock.advance(-1)
    with pytest.raises(ValidationError, match="exceed 2261"):
        clock.set(limits.TIME_MAX_NS)
    clock.observe(START + 60 * SECOND)
    clock.observe(START)
    world.runs(1)
    assert clock.stamp() == START + 61 * SECOND  # at the full pace
    assert jumps == []

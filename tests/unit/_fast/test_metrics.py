"""Histograms and turns."""

from bisect import bisect_left
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo._fast.metrics import BUCKETS_MAX, Histogram, TurnMetrics


@given(
    st.lists(st.integers(1, 10**12), min_size=1, max_size=BUCKETS_MAX, unique=True),
    st.lists(st.integers(0, 10**12)),
)
def test_histogram_counts_like_bisect(bounds: list[int], lengths: list[int]) -> None:
    bounds.sort()
    histogram = Histogram(tuple(bounds))
    expected = [0] * (len(bounds) + 1)
    for length in [*lengths, *bounds]:  # a bound belongs to its own bucket
        histogram.observe(length)
        expected[bisect_left(bounds, length)] += 1
    sums = [sum(expected[: at + 1]) for at in range(len(expected))]
    assert histogram.buckets() == list(zip([*bounds, None], sums, strict=True))
    assert histogram.count == len(lengths) + len(bounds)
    assert histogram.sum_ns == sum(lengths) + sum(bounds)
    assert histogram.bounds_ns == tuple(bounds)


@pytest.mark.parametrize("bounds", [(), (2, 1), tuple(range(BUCKETS_MAX + 1))])
def test_histogram_refuses_bounds(bounds: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        Histogram(bounds)


def test_turns_are_measured_from_the_first_event_to_the_callbacks_behind_it() -> None:
    now_ns = 0
    soon: list[Callable[[], None]] = []
    turns = TurnMetrics(soon.append, lambda: now_ns)
    for length_ns in (50_000, 3_500_000, 600_000_000):
        turns.begin()
        now_ns += length_ns // 2
        turns.begin()  # the same turn
        now_ns += length_ns // 2
        assert len(soon) == 1
        soon.pop()()
        now_ns += 7_000_000_000  # nobody does anything
    assert (turns.duration.count, turns.duration.sum_ns) == (3, 603_550_000)
    below = dict(turns.duration.buckets())
    assert [below[bound] for bound in (1_000_000, 3_000_000, 4_000_000, None)] == [1, 1, 2, 3]

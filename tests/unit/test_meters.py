"""Histograms."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo._fast.meters import BUCKETS_MAX, Histogram


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

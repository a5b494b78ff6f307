"""Majorities, as pure functions."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo.consensus.raft.quorum import LOST, PENDING, WON, majority, majority_has, tally


@pytest.mark.parametrize(
    ("count", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)]
)
def test_majority(count: int, needed: int) -> None:
    assert majority(count) == needed


@pytest.mark.parametrize("count", range(1, 8))
def test_any_two_majorities_meet(count: int) -> None:
    groups = list(combinations(range(count), majority(count)))
    assert all(set(a) & set(b) for a in groups for b in groups)


@pytest.mark.parametrize(
    ("values", "has"),
    [
        ([], 0),
        ([5], 5),
        ([5, 9], 5),
        ([9, 5, 7], 7),
        ([0, 0, 9], 0),
        ([1, 2, 3, 4], 2),
        ([9, 9, 1, 1, 1], 1),
        ([9, 9, 9, 1, 1], 9),
    ],
)
def test_the_index_that_a_majority_has(values: list[int], has: int) -> None:
    assert majority_has(values) == has


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9))
def test_what_a_majority_has_is_the_largest_such_number(values: list[int]) -> None:
    best = max(n for n in range(21) if sum(v >= n for v in values) >= majority(len(values)))
    assert majority_has(values) == best


@pytest.mark.parametrize(
    ("voters", "granted", "refused", "result"),
    [
        ("A", "A", "", WON),
        ("AB", "A", "", PENDING),
        ("AB", "A", "B", LOST),
        ("ABC", "AB", "", WON),
        ("ABC", "A", "B", PENDING),
        ("ABC", "", "AB", LOST),
        ("ABCD", "AB", "C", PENDING),
        ("ABCD", "AB", "CD", LOST),
        ("ABCD", "ABC", "", WON),
        ("ABC", "AXYZ", "", PENDING),
        ("ABC", "", "AXYZ", PENDING),
    ],
)
def test_tally(voters: str, granted: str, refused: str, result: int) -> None:
    votes = dict.fromkeys(granted, True) | dict.fromkeys(refused, False)
    assert tally(list(voters), votes) == result

"""Counts of jobs, against a plain recount."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corvo import limits
from corvo.mirror import filters
from corvo.mirror.facets import Facet, Facets
from corvo.model import PRIORITY_NAMES

PLACES = st.tuples(
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["pending", "dead"]),
    st.integers(0, 2),
    st.booleans(),
)
TAGS = st.dictionaries(st.sampled_from(["t", "u"]), st.sampled_from(["x", "y"]))
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "queue": st.sampled_from(["a", "b", "zzz", "*"]),
        "state": st.sampled_from([["pending"], ["pending", "dead"], ["held"]]),
        "priority": st.sampled_from(PRIORITY_NAMES),
        "tags": st.sampled_from([{"t": "x"}, {"t": "x", "u": "y"}, {"never": "x"}]),
        "has_errors": st.booleans(),
        "attempt_min": st.just(1),
    },
)


class Rows:
    """The rows as a dict, beside the facets."""

    def __init__(self) -> None:
        self.facets = Facets()
        self.rows: dict[int, tuple[Facet, dict[str, str]]] = {}

    def apply(self, number: int, facet: Facet | None, tags: dict[str, str]) -> None:
        old = self.rows.get(number)
        if old is None and facet is not None:
            self.facets.add([(number, facet, tags)])
            self.rows[number] = facet, tags
        elif old is not None and facet is None:
            self.facets.remove(number, *old)
            del self.rows[number]
        elif old is not None and facet is not None:
            self.facets.move(number, old[0], facet)
            self.rows[number] = facet, old[1]


def holds(row: tuple[Facet, dict[str, str]], filter: dict[str, Any]) -> bool:
    (queue, state, priority, failed), tags = row
    return (
        filter.get("queue", queue) in (queue, "*")
        and state in filter.get("state", [state])
        and filter.get("priority", PRIORITY_NAMES[priority]) == PRIORITY_NAMES[priority]
        and filter.get("has_errors", failed) == failed
        and filter.get("tags", {}).items() <= tags.items()
    )


CHANGES = st.lists(st.tuples(st.integers(1, 8), st.none() | PLACES, TAGS), max_size=30)


@settings(deadline=None)
@given(CHANGES, FILTERS)
def test_they_count_what_is_there(changes: Any, fields: dict[str, Any]) -> None:
    rows = Rows()
    for change in changes:
        rows.apply(*change)
    found, exact = rows.facets.select(filters.parse(fields))
    assert exact == (fields.get("queue") != "*" and "attempt_min" not in fields)
    wanted = {number: row for number, row in rows.rows.items() if holds(row, fields)}
    assert set(found) == wanted.keys()
    split = rows.facets.split
    assert split(found, "queue") == Counter(row[0][0] for row in wanted.values())
    assert split(found, "state") == Counter(row[0][1] for row in wanted.values())
    names = Counter(PRIORITY_NAMES[row[0][2]] for row in wanted.values())
    assert split(found, "priority") == names
    tags = Counter(row[1]["t"] for row in wanted.values() if "t" in row[1])
    assert split(found, "tag:t") == tags


def test_a_key_with_too_many_values_is_not_counted() -> None:
    facets = Facets()
    for number in range(limits.FACET_VALUES_MAX + 2):
        facets.add([(number, ("q", "pending", 2, False), {"order": str(number), "tenant": "x"})])
    assert not facets.counts("order") and facets.counts("tenant")
    found, exact = facets.select(filters.parse({"tags": {"order": "5"}}))
    assert not exact and len(found) == limits.FACET_VALUES_MAX + 2
    facets.remove(5, ("q", "pending", 2, False), {"order": "5", "tenant": "x"})
    assert facets.split(facets.all, "tag:order") == {}


def test_one_key_too_many_is_not_counted() -> None:
    facets = Facets()
    for number in range(limits.FACET_KEYS_MAX + 1):
        facets.add([(number, ("q", "pending", 2, False), {f"key-{number}": "x"})])
    assert facets.counts("key-0")
    assert not facets.counts(f"key-{limits.FACET_KEYS_MAX}")
    assert not facets.counts("a key that nobody has")


def test_the_most_frequent_values_are_shown() -> None:
    facets = Facets()
    for number in range(300):
        facets.add([(number, (f"q{number % 150 if number < 299 else 0}", "pending", 2, False), {})])
    shown = facets.split(facets.all, "queue")
    assert len(shown) == limits.FACET_VALUES_SHOWN
    assert next(iter(shown.items())) == ("q0", 3)


@pytest.mark.parametrize("number", [0, 2**32, 2**60])
def test_numbers_of_any_size(number: int) -> None:
    facets = Facets()
    facets.add([(number, ("q", "pending", 2, False), {})])
    assert list(facets.all) == [number]

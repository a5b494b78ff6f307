"""Facets: sets of row numbers (bitmaps) by state, queue, priority and tag.

The intersection of sets gives the number of matches of a filter immediately, at any size. Tag sets
are limited: a key with too many values, or beyond the maximum number of keys, has no sets, and
queries count its values in SQL.
"""

from collections.abc import Iterable
from typing import Any, Final

from pyroaring import BitMap64

from corvo import limits
from corvo.mirror.filters import Filter
from corvo.model import PRIORITY_NAMES

RowSet = BitMap64
Facet = tuple[str, str, int, bool]  # queue, state, priority, has errors
TAG_PREFIX: Final = "tag:"
DIMENSIONS: Final = ("state", "queue", "priority")


class Facets:
    """The row sets of a mirror file, updated by its writer."""

    def __init__(self) -> None:
        self.all = BitMap64()
        self._facets: tuple[dict[Any, BitMap64], ...] = ({}, {}, {}, {})
        self._tags: dict[str, dict[str, BitMap64]] = {}
        self._uncounted: set[str] = set()  # tag keys with too many values

    # ---- changes ----

    def add(self, new: list[tuple[int, Facet, dict[str, str]]]) -> None:
        """Add new rows, each with number, facet and tags."""
        self.all.update([number for number, _, _ in new])
        for position, sets in enumerate(self._facets):
            numbers: dict[Any, list[int]] = {}
            for number, facet, _ in new:
                numbers.setdefault(facet[position], []).append(number)
            for value, added in numbers.items():
                sets.setdefault(value, BitMap64()).update(added)
        for number, _, tags in new:
            for key, value in tags.items():
                if key in self._tags or self._take_key(key):
                    values = self._tags[key]
                    _add(values, value, number)
                    if len(values) > limits.FACET_VALUES_MAX:
                        del self._tags[key]
                        self._uncounted.add(key)

    def _take_key(self, key: str) -> bool:
        full = len(self._tags) + len(self._uncounted) >= limits.FACET_KEYS_MAX
        if full or key in self._uncounted:
            return False
        self._tags[key] = {}
        return True

    def move(self, number: int, old: Facet, new: Facet) -> None:
        """Move a changed row to the sets of its new facet."""
        for sets, before, after in zip(self._facets, old, new, strict=True):
            if before != after:
                _remove(sets, before, number)
                _add(sets, after, number)

    def remove(self, number: int, facet: Facet, tags: dict[str, str]) -> None:
        """Remove a deleted row from all sets."""
        self.all.discard(number)
        for sets, value in zip(self._facets, facet, strict=True):
            _remove(sets, value, number)
        for key, value in tags.items():
            if key in self._tags:
                _remove(self._tags[key], value, number)

    # ---- queries ----

    def select(self, filter: Filter) -> tuple[BitMap64, bool]:
        """The rows that the filter can match, and whether the sets decide the filter exactly."""
        found, decided = self.in_order(filter)
        _, _, priorities, failed = self._facets
        if (priority := filter.get("priority")) is not None:
            found = found & priorities.get(priority, _NOTHING)
            decided += 1
        if (has_errors := filter.get("has_errors")) is not None:
            found = found & failed.get(has_errors, _NOTHING)
            decided += 1
        if filter.get("error_contains") is not None:
            found = found & failed.get(True, _NOTHING)
        tags = filter.get("tags") or {}
        counted = [key for key in tags if self.counts(key)]
        for key in counted:
            found = found & self._tags.get(key, {}).get(tags[key], _NOTHING)
        decided += bool(tags) and len(counted) == len(tags)
        return found, decided == len(filter.values)

    def in_order(self, filter: Filter) -> tuple[BitMap64, int]:
        """The rows that match the queue and the states of the filter, and the number of these
        members.

        A SQL index can return exactly these rows in order."""
        queues, states, _, _ = self._facets
        found = self.all
        decided = 0
        if (queue := filter.get("queue")) is not None and "*" not in queue:
            found = found & queues.get(queue, _NOTHING)
            decided += 1
        if (wanted := filter.get("state")) is not None:
            found = found & _union(states.get(state, _NOTHING) for state in wanted)
            decided += 1
        return found, decided

    def counts(self, key: str) -> bool:
        """Whether this tag key has sets."""
        full = len(self._tags) + len(self._uncounted) >= limits.FACET_KEYS_MAX
        return key in self._tags or not (key in self._uncounted or full)

    def split(self, found: BitMap64, dimension: str) -> dict[str, int]:
        """Count rows by state, queue, priority or tag value, the most frequent values first."""
        queues, states, priorities, _ = self._facets
        sets: dict[str, BitMap64]
        if dimension == "state":
            sets = states
        elif dimension == "queue":
            sets = queues
        elif dimension == "priority":
            sets = {PRIORITY_NAMES[number]: rows for number, rows in priorities.items()}
        else:
            sets = self._tags.get(dimension.removeprefix(TAG_PREFIX), {})
        if found is self.all:
            counts = [(len(rows), value) for value, rows in sets.items()]
        else:
            counts = [(found.intersection_cardinality(rows), value) for value, rows in sets.items()]
        return ranked([(count, value) for count, value in counts if count])


def ranked(counts: list[tuple[int, str]]) -> dict[str, int]:
    """Sort values by frequency and keep the most frequent."""
    counts.sort(key=lambda item: (-item[0], item[1]))
    return {value: count for count, value in counts[: limits.FACET_VALUES_SHOWN]}


_NOTHING: Final = BitMap64()


def _union(sets: Iterable[BitMap64]) -> BitMap64:
    return BitMap64.union(BitMap64(), *sets)


def _add(sets: dict[Any, BitMap64], value: Any, number: int) -> None:
    rows = sets.get(value)
    if rows is None:
        rows = sets[value] = BitMap64()
    rows.add(number)


def _remove(sets: dict[Any, BitMap64], value: Any, number: int) -> None:
    rows = sets[value]
    rows.discard(number)
    if not rows:
        del sets[value]

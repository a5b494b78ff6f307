"""How filters are found: which index is walked, and that pages come in order without a sort."""

import json
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo.mirror import filters, query, schema
from corvo.mirror.filters import Filter
from corvo.mirror.query import Order, PendingDeletions

NEWEST = Order("created_at", True)


@pytest.fixture(scope="module")
def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema.TABLES)
    for text in schema.INDEXES:
        connection.execute(text)
    return connection


def plan(database: sqlite3.Connection, fields: dict[str, Any], **given: Any) -> str:
    """What SQLite does for a page."""
    arguments: dict[str, Any] = {
        "filter": filters.parse(fields),
        "pending_deletion": PendingDeletions(),
        "order": NEWEST,
        "after": None,
        "limit": 51,
        "numbers": None,
        "uncounted_tag": None,
    }
    text, values = query.page(**(arguments | given))
    return " | ".join(row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}", values))


@pytest.mark.parametrize(
    ("fields", "index"),
    [
        ({}, "SCAN j USING COVERING INDEX jobs_created"),
        ({"priority": 1}, "SCAN j USING INDEX jobs_created"),
        ({"queue": "mail.*"}, "SCAN j USING INDEX jobs_created"),
        ({"state": "dead"}, "SEARCH j USING COVERING INDEX jobs_state (state=?)"),
        ({"queue": "q", "state": "dead"}, "jobs_queue (queue=? AND state=?)"),
        ({"state": "dead", "payload_contains": "x"}, "INDEX jobs_state (state=?)"),
        ({"created_after": "2026-01-01T00:00:00Z"}, "jobs_created (created_at>?)"),
    ],
)
def test_an_index_gives_the_order(
    database: sqlite3.Connection, fields: dict[str, Any], index: str
) -> None:
    after = (5, "job_x")
    assert index in plan(database, fields)
    assert "TEMP B-TREE" not in plan(database, fields) + plan(database, fields, after=after)
    assert "SEARCH" in plan(database, fields, after=after)  # pages are as fast deep down
    upwards = plan(database, fields, order=Order("created_at", False), after=after)
    assert "TEMP B-TREE" not in upwards


def test_each_of_many_states_is_walked_in_order(database: sqlite3.Connection) -> None:
    found = plan(database, {"state": ["dead", "held"]}, after=(5, "job_x"))
    assert found.count("SEARCH j USING COVERING INDEX jobs_state (state=?") == 2
    found = plan(database, {"queue": "q"})
    assert found.count("jobs_queue (queue=? AND state=?)") == 8


@pytest.mark.parametrize("name", ["unique_key", "batch_id", "worker_id", "parent_id", "chain_id"])
def test_names_have_an_index(database: sqlite3.Connection, name: str) -> None:
    assert f"INDEX jobs_{name} ({name}=?)" in plan(database, {name: "x", "state": "dead"})


def test_few_candidates_are_read(database: sqlite3.Connection) -> None:
    found = plan(database, {"state": "dead"}, numbers=[1, 2, 3])
    assert "SEARCH j USING INTEGER PRIMARY KEY" in found


def test_a_tag_that_is_not_counted_has_an_index(database: sqlite3.Connection) -> None:
    found = plan(database, {"tags": {"order": "7"}, "state": "dead"}, uncounted_tag="order")
    assert "job_tags USING PRIMARY KEY (key=? AND value=?)" in found
    assert "SEARCH j USING INTEGER PRIMARY KEY" in found


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.text())
)


@given(st.text(max_size=60) | st.lists(VALUES, max_size=5).map(json.dumps), st.booleans())
def test_any_cursor_is_a_place_or_the_start(text: str, descending: bool) -> None:
    facet = query.parse_cursor(Order("attempt", descending), text)
    assert facet is None or (isinstance(facet[0], int) and isinstance(facet[1], str))


@given(st.integers(0, 2**63 - 1), st.text("abc_123", min_size=1))
def test_a_cursor_comes_back_for_its_own_order(value: int, job_id: str) -> None:
    text = query.encode_cursor(NEWEST, value, job_id)
    assert query.parse_cursor(NEWEST, text) == (value, job_id)
    assert query.parse_cursor(Order("attempt", True), text) is None
    assert query.parse_cursor(Order("created_at", False), text) is None


@given(st.dictionaries(st.sampled_from(list(filters.PARSERS)), VALUES))
def test_any_filter_is_parsed_or_refused(
    fields: dict[str, Any],
) -> None:
    try:
        found = filters.parse(fields)
    except filters.ValidationError as error:
        assert error.message
    else:
        assert set(found.values) == {name for name, value in fields.items() if value is not None}


@pytest.mark.parametrize("text", ["%", "_", "\\", "a%b_c\\d", "'"])
def test_patterns_are_literal(database: sqlite3.Connection, text: str) -> None:
    sql = r"SELECT ? LIKE ? ESCAPE '\'"
    assert database.execute(sql, (f"x{text}y", query.like(text))).fetchone() == (1,)
    assert database.execute(sql, ("xzzzy", query.like(text))).fetchone() == (0,)


@pytest.mark.parametrize(
    ("pattern", "name", "answer"),
    [("a*", "abc", 1), ("a*", "ba", 0), ("[a]*", "[a]b", 1), ("[a]*", "ab", 0), ("?*", "ab", 0)],
)
def test_queues_by_pattern(
    database: sqlite3.Connection, pattern: str, name: str, answer: int
) -> None:
    [(text, values)] = query.conditions(Filter({"queue": pattern}), PendingDeletions())
    sql = f"SELECT {text} FROM (SELECT ? AS queue) j"
    assert database.execute(sql, (*values, name)).fetchone() == (answer,)

"""Texts as search sees them: the same whatever escapes the client chose."""

import json
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lib.json_escapes import escape_all

from corvo.mirror import filters, query, texts
from corvo.mirror.query import PendingDeletions

# With half surrogate pairs, NUL, quotes and backslashes.
TEXTS = st.text(
    st.sampled_from('\0\n\t"\\/aAzZéß€😀\ud800\udc00%_') | st.characters(exclude_categories=()),
    max_size=8,
)
VALUES = st.recursive(
    TEXTS | st.integers(-9, 9) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def forms(value: Any) -> list[str]:
    """JSON texts of a value, as clients send it."""
    least = json.dumps(json.loads(json.dumps(value)), ensure_ascii=False)
    least = least.encode("utf-8", "replace").decode()  # an unpaired surrogate must be escaped
    whole = json.dumps(value)
    return [least, whole, whole.replace("/", r"\/"), escape_all(whole)][
        0 if least == json.dumps(value, ensure_ascii=False) else 1 :
    ]


@given(VALUES)
def test_one_value_has_one_text(value: Any) -> None:
    decoded = {texts.decode_escapes(sent) for sent in forms(value)}
    assert len(decoded) == 1
    assert decoded.pop().encode()  # SQLite can store it


@given(TEXTS)
def test_a_text_decodes_to_itself(text: str) -> None:
    for sent in forms(text):
        assert texts.decode_escapes(sent) == f'"{texts.replace_surrogates(text)}"'
        assert texts.decode_text(sent.encode()) == texts.replace_surrogates(text)


@given(VALUES)
def test_plain_json_is_the_same_value(value: Any) -> None:
    wanted = json.loads(json.dumps(value), object_hook=plain_keys)
    for sent in forms(value):
        text = texts.plain_json(sent)
        assert text.encode()
        assert plain_values(json.loads(text)) == plain_values(wanted)


def plain_keys(value: dict[str, Any]) -> dict[str, Any]:
    return {texts.plain_literal(key): item for key, item in value.items()}


def plain_values(value: Any) -> Any:
    if isinstance(value, str):
        return texts.plain_literal(value)
    if isinstance(value, list):
        return [plain_values(item) for item in value]
    if isinstance(value, dict):
        return {key: plain_values(item) for key, item in value.items()}
    return value


@pytest.fixture(scope="module")
def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE jobs (payload TEXT, payload_text TEXT)")
    return connection


@given(TEXTS, st.integers(0, 8), st.integers(1, 8))
def test_each_part_of_a_text_is_found(
    database: sqlite3.Connection, text: str, at: int, size: int
) -> None:
    part = texts.replace_surrogates(text)[at : at + size]
    if not part:
        return
    [(condition, values)] = query.conditions(
        filters.parse({"payload_contains": part}), PendingDeletions()
    )
    for sent in forms([text]):
        database.execute("DELETE FROM jobs")
        decoded = texts.decode_escapes(sent) if "\\" in sent else None
        database.execute("INSERT INTO jobs VALUES (?, ?)", (sent, decoded))
        sql = f"SELECT count(*) FROM jobs j WHERE {condition}"
        assert database.execute(sql, values).fetchone() == (1,)

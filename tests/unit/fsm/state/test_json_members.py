"""Payloads that are put together from texts, against what a JSON parser sees."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo.fsm.state.json_members import build, merge, names

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=8), JSON, max_size=4)


@given(JSON, st.booleans())
def test_names(value: Any, spaced: bool) -> None:
    text = json.dumps(value, indent=1 if spaced else None).encode()
    assert names(text) == (list(value) if isinstance(value, dict) else None)


@given(OBJECTS, JSON, st.booleans())
def test_an_overlay_wins(ours: dict[str, Any], theirs: Any, spaced: bool) -> None:
    text = json.dumps(theirs, indent=1 if spaced else None).encode()
    members = [(name, json.dumps(value).encode()) for name, value in ours.items()]
    expected = ours | (theirs if isinstance(theirs, dict) else {})
    assert json.loads(merge(members, text)) == expected
    assert json.loads(build(members)) == ours


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (b'{ "b": 1e400, "n": 12345678901234567890 }', b'{"a":1,"b": 1e400, "n": 1234567890'),
        (b'{"a":2.50}', b'{"a":2.50}'),
        (b'{"\\u0061":0}', b'{"\\u0061":0}'),
        (b"{}", b'{"a":1}'),
        (b"{ }", b'{"a":1}'),
        (b"[1]", b'{"a":1}'),
        (b"", b'{"a":1}'),
    ],
)
def test_texts_stay_as_they_are(theirs: bytes, expected: bytes) -> None:
    assert merge([("a", b"1")], theirs).startswith(expected)


def test_depth_is_no_matter() -> None:
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b',"b":1}'
    assert names(deep) == ["a", "b"]

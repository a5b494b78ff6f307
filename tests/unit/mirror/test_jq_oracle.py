"""The small part of jq against jq itself: the same payloads, the same expressions.

Ours compares values of one type only, so what jq is asked says so too; what a path does not lead to
is null in both. Numbers stay where a double is exact.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.mirror.test_jq import KEYS, OPS, PATHS, TEXTS, found, text_of

from corvo.mirror import jq
from corvo.mirror.jq import Condition

oracle = pytest.importorskip("jq", reason="the jq package is not installed")

NUMBERS = st.one_of(st.integers(-(2**53), 2**53), st.sampled_from([0, 1, 2, 0.5, -2.5]))
SCALARS = st.one_of(TEXTS, NUMBERS, st.booleans(), st.none())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
PROGRAMS: dict[str, Any] = {}


@st.composite
def questions(draw: st.DrawFn) -> tuple[Condition, Any]:
    """A condition and a payload; more often than not, the path leads to something."""
    payload = draw(VALUES)
    path: list[str | int] = []
    value = payload
    while isinstance(value, dict | list) and value and draw(st.booleans()):
        facet = draw(st.sampled_from([*value] if isinstance(value, dict) else range(len(value))))
        path.append(facet)
        value = value[facet]
    where = tuple(path) if draw(st.booleans()) else draw(PATHS)
    test = draw(st.sampled_from(["", "", "startswith", "contains", "length"]))
    if test == "length":
        return Condition(where, test, draw(OPS), draw(st.integers(0, 4))), payload
    if test:
        return Condition(where, test, "", draw(TEXTS)), payload
    same = isinstance(value, str | int | float) or value is None
    literal = value if same and draw(st.booleans()) else draw(SCALARS)
    op = draw(st.sampled_from(["==", "!="])) if literal is None else draw(OPS)
    return Condition(where, "", op, literal), payload


def program(condition: Condition) -> str:
    """The condition for jq: the value, null where there is none, and the same types."""
    path = "".join(f"[{json.dumps(part)}]" for part in condition.path)
    value = f"(try .{path} catch null)" if path else "."
    literal = json.dumps(condition.literal)
    if condition.test == "startswith":
        return f'{value} | if type == "string" then startswith({literal}) else false end'
    if condition.test == "contains":
        listed = f"any(.[]; . == {literal})"
        rest = f'if type == "string" then contains({literal}) else false end'
        return f'{value} | if type == "array" then {listed} else {rest} end'
    if condition.test == "length":
        rest = f"length {condition.op} {literal}"
        return f'{value} | if type == "number" or type == "boolean" then false else {rest} end'
    if condition.op in ("==", "!="):
        return f"{value} {condition.op} {literal}"
    return f"{value} | (type == ({literal} | type)) and (. {condition.op} {literal})"


def asked(condition: Condition, payload: Any) -> bool:
    """What jq says."""
    text = program(condition)
    compiled = PROGRAMS.get(text)
    if compiled is None:
        compiled = PROGRAMS[text] = oracle.compile(text)
    answer = compiled.input_value(payload).first()
    assert isinstance(answer, bool)
    return answer


@settings(deadline=None, max_examples=500)
@given(questions())
def test_jq_says_the_same(question: tuple[Condition, Any]) -> None:
    condition, payload = question
    assert found(jq.parse(text_of(condition)), payload) is asked(condition, payload)


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        (".a.b == 5", {"a": {"b": 5}}),
        (".a.b == 5", {"a": {"b": 5.0}}),
        (".a == null", {}),
        (".a != 1", {}),
        ('.["key with spaces"][0].x <= 2', {"key with spaces": [{"x": 2}]}),
        (".a | length == 2", {"a": "äö"}),
        ('.a | startswith("w")', {"a": "wxy"}),
        ('.a | contains("x")', {"a": "wxy"}),
    ],
)
def test_the_text_itself_means_the_same_to_jq(text: str, payload: Any) -> None:
    assert found(jq.parse(text), payload) is oracle.compile(text).input_value(payload).first()

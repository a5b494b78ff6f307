"""The small part of jq: what it accepts, and what its SQL finds, against a plain evaluation."""

import json
import sqlite3
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.json_escapes import escape_all

from corvo.errors import ValidationError
from corvo.mirror import jq, texts
from corvo.mirror.filters import Filter
from corvo.mirror.jq import Condition
from corvo.mirror.query import PendingDeletions, conditions

KEYS = st.sampled_from(["a", "b", "c", "key with spaces", "ü", "0", "x.y"])
TEXTS = st.sampled_from(["", "x", "xy", "yx", "%", "_", "' OR 1=1 --", "ü", "5", "true"])
NUMBERS = st.one_of(
    st.integers(-3, 3), st.integers(-(2**70), 2**70), st.sampled_from([0.5, -2.5, 1e300])
)
SCALARS = st.one_of(TEXTS, NUMBERS, st.booleans(), st.none())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
PATHS = st.lists(st.one_of(KEYS, st.integers(0, 2)), max_size=3).map(tuple)
OPS = st.sampled_from(["==", "!=", ">", ">=", "<", "<="])


def text_of(condition: Condition) -> str:
    """The condition as somebody would write it."""
    path = ""
    for part in condition.path:
        word = isinstance(part, str) and part.isidentifier()
        path += f".{part}" if word else f"[{json.dumps(part, ensure_ascii=False)}]"
    path = path if path.startswith(".") else "." + path
    literal = json.dumps(condition.literal, ensure_ascii=False)
    if condition.test == "":
        return f"{path} {condition.op} {literal}"
    if condition.test == "length":
        return f"{path} | length {condition.op} {literal}"
    return f"{path} | {condition.test}({literal})"


@st.composite
def written(draw: st.DrawFn) -> Condition:
    path, test = draw(PATHS), draw(st.sampled_from(["", "", "startswith", "contains", "length"]))
    if test == "length":
        return Condition(path, test, draw(OPS), draw(st.integers(0, 4)))
    if test:
        return Condition(path, test, "", draw(TEXTS))
    literal = draw(SCALARS)
    op = draw(st.sampled_from(["==", "!="])) if literal is None else draw(OPS)
    return Condition(path, test, op, literal)


MISSING = object()


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        if isinstance(part, int):
            inside = isinstance(value, list) and part < len(value)
        else:
            inside = isinstance(value, dict) and part in value
        if not inside:
            return MISSING
        value = value[part]
    return value


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else type(value).__name__


def holds(condition: Condition, payload: Any) -> bool:
    """What the module's docstring says."""
    value, literal = at(payload, condition.path), condition.literal
    missing = value is MISSING or value is None
    if condition.test == "startswith":
        return isinstance(value, str) and value.startswith(str(literal))
    if condition.test == "contains":
        if isinstance(value, list):
            return any(isinstance(item, str) and item == literal for item in value)
        return isinstance(value, str) and str(literal) in value
    if condition.test == "length":
        if not (missing or isinstance(value, str | list | dict)):
            return False
        return compare(0 if missing else len(value), condition.op, literal)
    if literal is None:
        return missing == (condition.op == "==")
    same = kind(value) == kind(literal)
    if condition.op == "!=":
        return not (same and compare(value, "==", literal))
    return same and compare(value, condition.op, literal)


def compare(a: Any, op: str, b: Any) -> bool:
    if isinstance(a, int) and abs(a) >= 2**63:
        a = float(a)  # as SQLite reads it
    if isinstance(b, int) and abs(b) >= 2**63:
        b = float(b)
    if isinstance(a, str):
        a, b = a.encode(), b.encode()
    return bool(
        {"==": a == b, "!=": a != b, ">": a > b, ">=": a >= b, "<": a < b, "<=": a <= b}[op]
    )


CONNECTION = sqlite3.connect(":memory:")
CONNECTION.execute("CREATE TABLE jobs (payload TEXT, payload_text TEXT)")
for name in texts.FUNCTIONS:
    CONNECTION.create_function(name, 1, getattr(texts, name), deterministic=True)


def found(parsed: tuple[Condition, ...], payload: Any) -> bool:
    """The answer, which must be the same however the client escapes the payload."""
    answers = {
        found_as_sent(parsed, sent)
        for sent in (
            json.dumps(payload, ensure_ascii=False),
            json.dumps(payload),
            json.dumps(payload).replace("/", "\\/"),
            escape_all(json.dumps(payload, ensure_ascii=False)),
        )
    }
    assert len(answers) == 1
    return answers.pop()


def found_as_sent(parsed: tuple[Condition, ...], sent: str) -> bool:
    rest = conditions(Filter({"payload_jq": parsed}), PendingDeletions())
    text = " AND ".join(sql for sql, _ in rest)
    values = [value for _, more in rest for value in more]
    CONNECTION.execute("DELETE FROM jobs")
    decoded = texts.decode_escapes(sent) if "\\" in sent else None
    CONNECTION.execute("INSERT INTO jobs VALUES (?, ?)", (sent, decoded))
    return bool(CONNECTION.execute(f"SELECT 1 FROM jobs j WHERE {text}", values).fetchall())


@settings(deadline=None, max_examples=400)
@given(st.lists(written(), min_size=1, max_size=3), VALUES)
def test_sql_finds_what_the_rules_say(parts: list[Condition], payload: Any) -> None:
    parsed = jq.parse(" and ".join(map(text_of, parts)))
    assert parsed == tuple(parts)
    assert found(parsed, payload) == all(holds(part, payload) for part in parts)


@settings(deadline=None)
@given(written(), VALUES)
def test_a_value_that_is_there_is_found(part: Condition, payload: Any) -> None:
    value = at(payload, part.path)
    if isinstance(value, str | int | float) and value is not MISSING:
        assert found((Condition(part.path, "", "==", value),), payload)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parsed = jq.parse(text)
    except ValidationError as error:
        assert "payload_jq" in error.message
    else:
        assert jq.parse(" and ".join(map(text_of, parsed))) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "payload_jq is empty"),
        ("  ", "payload_jq is empty"),
        ("select(.a)", "unsupported payload_jq expression"),
        (".a", "unsupported payload_jq expression"),
        (".a == ", "invalid payload_jq literal"),
        (".a == foo", "invalid payload_jq literal"),
        (".a == NaN", "invalid payload_jq literal"),
        (".a == [1]", "invalid payload_jq literal"),
        (".a > null", "payload_jq null only supports == and !="),
        (".a == 1 or .b == 2", "unsupported payload_jq expression"),
        (".a == 1 and", "unsupported payload_jq expression"),
        (".a | test(1)", "unsupported payload_jq expression"),
        (".a | startswith(1)", "invalid payload_jq literal"),
        (".a | length > true", "invalid payload_jq literal"),
        ('.["a\\"b"] == 1', "payload_jq does not support the key"),
        (".a[-1] == 1", "unsupported payload_jq expression"),
        (". == 1" + " and . == 1" * 20, "more than 16 conditions"),
        ('.a == "' + "x" * 5_000 + '"', "longer than"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("(", r"\(")):
        jq.parse(text)


@pytest.mark.parametrize(
    ("text", "payload", "answer"),
    [  # worked by hand from the manual of jq
        (".a.b == 5", {"a": {"b": 5}}, True),
        (".a.b == 5", {"a": {"b": 5.0}}, True),
        (".a.b == 5", {"a": {"b": "5"}}, False),
        (".a == 1", {"a": True}, False),
        (".a == true", {"a": 1}, False),
        (".a == null", {}, True),
        (".a == null", {"a": None}, True),
        (".a != null", {"a": 0}, True),
        (".a != 1", {}, True),
        (".a > 100", {}, False),
        ('.a > "b"', {"a": "c"}, True),
        ('.["key with spaces"][0].x <= 2', {"key with spaces": [{"x": 2}]}, True),
        ('. | contains("x")', ["x"], True),
        ('.a | contains("x")', {"a": ["xy"]}, False),
        ('.a | contains("x")', {"a": "wxy"}, True),
        ('.a|startswith("w")', {"a": "wxy"}, True),
        ('.a | startswith("")', {}, False),
        (".a | length == 0", {}, True),
        (".a | length == 2", {"a": "äö"}, True),
        (".a | length == 1", {"a": {"b": [1, 2]}}, True),
        (".a | length >= 0", {"a": 3}, False),
        (".a.b == 1", {"a": [1]}, False),
        (".[1] == 2", [1, 2], True),
        (".a>=1 and .a<3", {"a": 2}, True),
    ],
)
def test_examples(text: str, payload: Any, answer: bool) -> None:
    assert found(jq.parse(text), payload) is answer

"""The work of a validation is bounded whatever the schema. Cases that could run without end run in
a process with limits, see lib.schema_work."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lib.schema_work import shaped

from corvo.engine.commands import result_schemas
from corvo.errors import ResultSchemaError, ValidationError

TESTS = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
ROOT = {"$ref": "#"}
TEXT = {"type": "string"}


def run(arguments: list[str], case: Any = None) -> str:
    """The last line of a limited process."""
    process = subprocess.run(
        [sys.executable, "-m", "lib.schema_work", *arguments],
        env={**os.environ, "PYTHONPATH": TESTS},
        input=json.dumps(case),
        capture_output=True,
        text=True,
        check=False,
    )
    last = (process.stdout.splitlines() or [""])[-1]
    assert process.returncode == 0, f"{last[:2_000]}\n{process.stderr[-2_000:]}"
    return last


def outcome(schema: Any, *results: str) -> str:
    """The outcome for the last one of the results."""
    return run(["one"], {"schema": schema, "results": results})


def refusal(schema: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        result_schemas.checked(json.dumps(schema).encode())
    assert refused.value.fields["field"] == "result_schema"
    return refused.value.message


def nested(times: int, name: str, **others: Any) -> dict[str, Any]:
    part: dict[str, Any] = {"properties": {"b": True}, "items": True}
    for _ in range(times):
        inner: Any = [part] if name in ("allOf", "anyOf", "oneOf") else part
        part = {name: inner, **others}
    return part


LONG = json.dumps("".join(random.Random(1).choices("ab", k=1_000_000)))
B = {"properties": {"b": ROOT}, "type": "object"}
LIST = {"items": ROOT, "type": "array"}
TWO_WAYS: list[Any] = [
    *({"properties": {"b": {name: [ROOT, ROOT]}}} for name in ("allOf", "anyOf", "oneOf")),
    *({name: [B, {"properties": {"b": ROOT}}]} for name in ("allOf", "anyOf", "oneOf")),
    {"properties": {"b": {"oneOf": [ROOT, ROOT, {"type": "null"}]}}, "type": "object"},
    {"allOf": [LIST, LIST]},
    {"anyOf": [LIST, {"prefixItems": [ROOT]}]},
    {"oneOf": [{"additionalProperties": ROOT}, {"properties": {"b": ROOT}}]},
    {"not": {"if": B, "not": B}},
    {"not": {"allOf": [B, {"not": B}]}},
    {"properties": {"b": {"not": ROOT, "allOf": [ROOT]}}},
    {"not": {"properties": {"b": {"not": ROOT, "$ref": "#"}}}},
    {"if": B, "then": B},
    {"if": B, "else": B},
    {"if": {"items": ROOT}, "then": LIST},
    {"patternProperties": {"b": ROOT, "^b": ROOT}, "type": "object"},
    {"patternProperties": {"b": ROOT}, "properties": {"b": ROOT}},
    {"patternProperties": {"b": {"anyOf": [ROOT, {"items": ROOT}, {"$ref": "#"}]}}},
    {"allOf": [B], "unevaluatedProperties": False},
    {"anyOf": [{"items": ROOT}], "unevaluatedItems": False},
    {"contains": ROOT, "unevaluatedItems": {"type": "null"}},
    {"dependentSchemas": {"b": B}, "properties": {"b": ROOT}, "type": "object"},
    {"dependentSchemas": {"b": B, "c": B}},
    {"dependencies": {"b": B, "c": {"additionalProperties": ROOT}}},
    {"contains": ROOT, "items": ROOT, "type": "array"},
    {"contains": ROOT, "prefixItems": [ROOT]},
    {"contains": {"anyOf": [ROOT, ROOT]}},
    {
        "properties": {"b": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/c"}]}},
        "$defs": {"a": {"properties": {"b": ROOT}}, "c": {"allOf": [{"$ref": "#/$defs/a"}]}},
    },
    {  # grows by the square of the depth
        "properties": {"b": {"allOf": [ROOT, {"$ref": "#/$defs/a"}]}},
        "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}}},
    },
]


@pytest.mark.parametrize("schema", TWO_WAYS, ids=json.dumps)
def test_recursion_in_two_ways_is_refused(schema: Any) -> None:
    assert "more than one way" in refusal(schema)


@pytest.mark.parametrize(
    "schema",
    [ROOT, {"allOf": [ROOT]}, {"not": {"not": ROOT}}, {"if": {"anyOf": [TEXT, ROOT]}}],
)
def test_recursion_without_a_step_is_refused(schema: Any) -> None:
    assert "without a step" in refusal(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [TEXT, LIST, {"additionalProperties": ROOT, "type": "object"}]},
        {"properties": {"left": ROOT, "right": ROOT}, "additionalProperties": ROOT},
        {"prefixItems": [ROOT, ROOT], "items": ROOT},
        {"properties": {"b": {"anyOf": [ROOT, {"type": "null"}]}, "c": ROOT}},
        {"properties": {"b": ROOT}, "unevaluatedProperties": False, "allOf": [{"required": []}]},
        {"allOf": [{"properties": {"b": {"items": ROOT}}}, {"properties": {"b": {"maxItems": 9}}}]},
        {"if": {"required": ["b"]}, "then": B, "else": LIST},
        {"$ref": "#/$defs/a", "$defs": {"a": LIST, "b": {"anyOf": [LIST, LIST]}}},
        {"properties": {"$id": TEXT, "$schema": TEXT, "oneOf": ROOT, "anyOf": ROOT}},
    ],
    ids=json.dumps,
)
def test_recursion_in_one_way_is_possible(schema: Any) -> None:
    results = [shaped(shape, 100).decode() for shape in ("members", "items", "both")]
    assert outcome(schema, *results) in ("valid", "ResultSchemaError")


@pytest.mark.parametrize(
    ("schema", "result"),
    [
        (TWO_WAYS[2], '{"b":' * 40 + "1" + "}" * 40),
        (TWO_WAYS[6], '{"b":' * 200 + "{}" + "}" * 200),
        (nested(20, "allOf", unevaluatedProperties=False), '{"b":1}'),
        (nested(20, "if", then=True, unevaluatedProperties=False), '{"b":1}'),
        (nested(20, "oneOf", unevaluatedItems=False), "[1]"),
        ({"pattern": "a[ab]{500}[^ab]"}, LONG),
        ({"pattern": "(a[ab]{100}|b[ab]{103}a|c){1,5}[^ab]"}, LONG),
        ({"not": {"anyOf": [{"pattern": f"a[ab]{{500}}[c-z]{n}?"} for n in range(100)]}}, '"ab"'),
        ({"items": {"required": [f"{n}" for n in range(5_000)]}}, str([{}] * 2_000)),
        ({"items": {"allOf": [True] * 10_000}}, str([1] * 60_000)),
        ({"items": {"enum": [f"{n}" for n in range(6_000)]}}, str([1] * 2_500)),
        ({"items": {"const": "x" * 60_000}}, str([1] * 2_500)),
        ({"anyOf": [{"items": {"const": "x" * 60_000}}, TEXT]}, str([1] * 2_500)),
        ({"items": {"not": {"title": "x" * 60_000}}}, str([1] * 2_500)),
        ({"propertyNames": {"anyOf": [{"type": "null"}] * 8}}, shaped("names", 700).decode()),
        ({"anyOf": [{"type": "null"}] * 120}, '"' + "x" * 1_000_000 + '"'),
        ({"oneOf": [{"items": TEXT}] * 10}, str(list(range(150_000)))),
        ({"uniqueItems": True, "items": ROOT}, "[" * 240 + str(list(range(7_000))) + "]" * 240),
        ({"items": {"anyOf": [{"anyOf": [{"anyOf": [LIST | ROOT]}]}]}}, "[" * 900 + "]" * 900),
        ({"items": nested(6, "anyOf") | {"anyOf": [ROOT]}}, "[" * 900 + "1" + "]" * 900),
        ({"type": "array", "items": {"anyOf": [{"oneOf": [ROOT]}]}}, "[" * 900 + "1" + "]" * 900),
        ({"contains": {"anyOf": [TEXT] * 9}}, str(list(range(150_000)))),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_no_case_takes_long(schema: Any, result: str) -> None:
    outcome(schema, result.replace("'", '"'))


def test_a_chain_in_a_recursion_does_not_overflow_the_stack() -> None:
    def looped(length: int) -> dict[str, Any]:
        parts = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}]} for n in range(length)}
        return {
            "items": {"$ref": "#/$defs/a0"},
            "type": "array",
            "$defs": {**parts, f"a{length}": ROOT},
        }

    assert outcome(looped(100), "[" * 250 + "1" + "]" * 250) == "refused"
    assert outcome(looped(12), "[" * 250 + "1" + "]" * 250) == "ResultSchemaError"


@pytest.mark.parametrize("name", ["$id", "$schema"])
def test_parts_of_other_documents_are_refused(name: str) -> None:
    part = {name: "http://json-schema.org/draft-07/schema#"}
    assert result_schemas.checked(json.dumps({"$schema": part[name]}).encode())
    assert name in refusal({"$defs": {"a": part}, "$ref": "#/$defs/a"})


def test_a_refused_pattern_has_its_reason() -> None:
    assert "regex" in refusal({"pattern": "(?=x)y"})
    assert "checks (max 20000)" in refusal({"pattern": "(a|b)*a[ab]{3000}"})


def errors_of(schema: Any, result: Any) -> list[dict[str, Any]]:
    with pytest.raises(ResultSchemaError) as refused:
        result_schemas.check_result(json.dumps(schema).encode(), json.dumps(result).encode())
    found: list[dict[str, Any]] = refused.value.fields["validation_errors"]
    return found


def test_the_first_error_of_a_large_result_has_its_place() -> None:
    for name in ("anyOf", "oneOf"):
        schema = {"items": {"properties": {"a": {name: [TEXT, {"type": "null"}]}}}}
        [error] = errors_of(schema, [{"a": "x"}] * 5_000 + [{"a": 1}])
        assert error == {
            "path": "/5000/a",
            "message": f"the value does not match the '{name}' of its schema",
            "value": 1,
        }
    [error] = errors_of({"propertyNames": {"maxLength": 3}}, {"abcd": "x" * 9_000})
    assert error["path"] == "" and "propertyNames" in error["message"]
    into = {"items": {"anyOf": [TEXT]}, "properties": {"a": {"$ref": "#/items/anyOf/0"}}}
    for schema in (into, {"items": {"anyOf": [TEXT], "unevaluatedItems": False}}):
        [error] = errors_of(schema, list(range(5_000)))
        assert "too large for details" in error["message"]


def test_a_deep_result_has_an_error() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    assert errors_of(LIST, deep)[0]["message"] == '1 is not of type "array"'
    for schema in (TEXT, {"items": {"anyOf": [TEXT]}}, {"anyOf": [TEXT, {"oneOf": [TEXT]}]}):
        assert errors_of(schema, deep)[0]["message"]


@pytest.mark.parametrize("count", [60, pytest.param(4_000, marks=pytest.mark.full)])
@pytest.mark.timeout(3_600)
def test_random_schemas(count: int) -> None:
    counts = json.loads(run(["random", str(count)]))
    assert counts["valid"] and counts["ResultSchemaError"] and counts["refused"]

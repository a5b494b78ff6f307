"""Schemas of results at the door: bounds, references, and what a refusal says."""

import json
from typing import Any

import pytest

from corvo.engine.commands import result_schemas
from corvo.errors import PayloadTooLarge, ResultSchemaError, ValidationError
from corvo.limits import RESULT_SCHEMA_PARTS_MAX


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def usable(schema: Any) -> bool:
    try:
        result_schemas.checked(text(schema))
    except ValidationError as error:
        assert error.message.startswith("result_schema is not usable: ")
        return False
    return True


def abuse_counters(schema: Any, result: Any) -> list[dict[str, Any]]:
    """What is wrong with a result."""
    try:
        result_schemas.check_result(text(schema), b"" if result is None else text(result))
    except ResultSchemaError as error:
        assert error.message.startswith("the result does not meet the result_schema of its job")
        found: list[dict[str, Any]] = error.fields["validation_errors"]
        assert found
        return found
    return []


def test_no_schema() -> None:
    assert result_schemas.checked(b"") == b""


def test_the_text_stays_as_it_is() -> None:
    schema = b'{ "type" :"integer", "type": "number" }'
    assert result_schemas.checked(schema) == schema


def test_paths_are_pointers() -> None:
    schema = {"properties": {"a/b~": {"items": {"type": "string"}}}}
    [error] = abuse_counters(schema, {"a/b~": ["x", 5]})
    assert error["path"] == "/a~1b~0/1" and error["value"] == 5
    assert "string" in error["message"]
    assert abuse_counters(schema, {"a/b~": ["x"]}) == []


def test_no_result_is_null() -> None:
    assert abuse_counters({"type": ["object", "null"]}, None) == []
    assert abuse_counters({"type": "object"}, None)[0]["value"] is None


def test_a_refusal_is_short() -> None:
    schema = {"items": {"type": "string", "maxLength": 1}}
    errors = abuse_counters(schema, [1] * 1_000)
    assert len(errors) == 20
    assert len(abuse_counters(schema, [1] * 100_000)) == 1
    [error] = abuse_counters({"const": 1}, {"long": "x" * 100_000})
    assert "value" not in error and len(error["message"]) < 600


def chain(length: int, times: int) -> dict[str, Any]:
    """Definitions each of which refers to the next one so many times."""
    parts = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * times} for n in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**parts, f"a{length}": {"type": "object"}}}


def test_parts_are_counted_with_what_they_refer_to() -> None:
    assert usable({"allOf": [{}] * (RESULT_SCHEMA_PARTS_MAX - 1)})
    assert not usable({"allOf": [{}] * RESULT_SCHEMA_PARTS_MAX})
    assert usable(chain(7, 2)) and not usable(chain(30, 2))
    assert usable(chain(20, 1)) and not usable(chain(400, 1))


def test_recursion_is_possible_and_cheap() -> None:
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "required": ["left"],
                "properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}},
            }
        },
    }
    assert usable(tree)
    assert abuse_counters(tree, {"left": {"left": 1}}) == []
    assert abuse_counters(tree, {"left": {"right": 1}})[0]["path"] == "/left"
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    assert abuse_counters({"allOf": [{"items": {"$ref": "#"}}, {"type": "array"}]}, deep) == []
    assert not usable({"allOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]})


@pytest.mark.parametrize(
    ("schema", "value", "most"),
    [
        ({"items": {"allOf": [{"minimum": 0}] * 98}}, 1, 20_000),
        ({"items": {"multipleOf": 0.01}}, 1.25, 30_000),
        ({"items": {"enum": [[n] for n in range(800)]}}, [799], 12_000),
        ({"allOf": [{"uniqueItems": True}] * 10}, "x", 6_000),
        ({"items": {"allOf": [{"pattern": "(a|b)*c"}] * 20}}, "a" * 1_000, 700),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, 1, 900_000),
    ],
)
def test_what_takes_too_long_to_check_is_refused(schema: Any, value: Any, most: int) -> None:
    assert usable(schema)
    result_schemas.check_result(text(schema), b"1")
    with pytest.raises(PayloadTooLarge, match="too large for its result_schema") as refused:
        result_schemas.check_result(text(schema), text([value] * most))
    assert refused.value.fields["field"] == "result"


def test_a_long_text_is_no_long_list() -> None:
    schema = {"properties": {f"p{n}": {"type": "string"} for n in range(80)}}
    assert abuse_counters(schema, {"p1": "x" * (1 << 20)}) == []


@pytest.mark.parametrize(
    "reference",
    ["other.json", "http://x.invalid/y", "#name", "#/$defs/b", "#/allOf/7", "#/allOf/x", "#/a%ZZ"],
)
def test_references_lead_into_the_schema_only(reference: str) -> None:
    assert not usable({"$ref": reference, "$defs": {"a": {}}, "allOf": [{}]})


def test_references_that_are_escaped() -> None:
    schema = {"$ref": "#/$defs/a~1b~0%20c", "$defs": {"a/b~ c": {"type": "integer"}}}
    assert usable(schema) and abuse_counters(schema, "x")
    assert usable({"$ref": "#/allOf/0", "allOf": [True]})


def test_what_is_data_is_no_schema() -> None:
    assert usable({"enum": [{"$ref": "x"}], "default": [{"$ref": "x"}]})
    assert usable({"properties": {"$ref": {}, "$dynamicRef": {}}})
    assert not usable({"properties": {"const": {"$ref": "x"}}})


def test_sizes() -> None:
    with pytest.raises(PayloadTooLarge):
        result_schemas.checked(b'"' + b"x" * 70_000 + b'"')


@pytest.mark.parametrize("result", [b"1" * 5_000, b"[" * 5_000 + b"]" * 5_000])
def test_what_cannot_be_read_is_refused(result: bytes) -> None:
    with pytest.raises(ResultSchemaError, match="nested too deeply|too long"):
        result_schemas.check_result(b"true", result)


def test_a_schema_that_cannot_be_read_is_refused() -> None:
    deep = b'{"not":' * 5_000 + b"true" + b"}" * 5_000
    with pytest.raises(ValidationError, match="nested too deeply"):
        result_schemas.checked(deep)
    with pytest.raises(ValidationError, match="not usable"):
        result_schemas.checked(b'{"minimum":' + b"1" * 5_000 + b"}")


def test_half_surrogate_pairs() -> None:
    assert abuse_counters({"pattern": "^a.b$"}, "a\ud800b") == []
    assert abuse_counters({"properties": {"\ud800": {"type": "string"}}}, {"\ud800": 1})

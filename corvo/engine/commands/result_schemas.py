"""Schemas of results: JSON Schema of draft 2020-12, with bounds that keep a schema from being used
to stop the server.

A schema is part of what a job was enqueued with and never changes. Any job that can be acked is
applied, so that a result can be checked before the ack is proposed, and apply knows nothing about
schemas.

A schema may refer to its own parts (`#/$defs/...`) and to nothing else, so nothing is ever loaded.
Its size with all references followed is bounded, because a few definitions that each refer to the
next one twice stand for millions of checks. Patterns are matched in linear time: they have no
look-around and no back references. What is left is that each part may have to be looked at for each
value of a result. So every schema has a *cost*, which is what it takes to check one value, as a
number of simple parts, and results that are too long for the cost of their schema are refused.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs

from corvo import limits
from corvo.engine import validate
from corvo.errors import PayloadTooLarge, ResultSchemaError, ValidationError

_ERRORS_MAX: Final = 20
_TEXT_MAX: Final = 500
# A longer result gets its first error only, because the library collects all of them.
_ALL_ERRORS_SIZE_MAX: Final = 8 * limits.KIB
_VALUE_SIZE_MAX: Final = limits.KIB
_COMPILED_MAX: Final = 128
_PATTERNS: Final = jsonschema_rs.RegexOptions(size_limit=256 * limits.KIB)
# Keywords whose lists are data and no schemas. (An object may as well be a property of that name.)
_DATA: Final = ("const", "default", "enum", "examples")
_ELSEWHERE: Final = ("$dynamicRef", "$recursiveRef")
# The cost of keywords in addition to their part. The time of some depends on the length of a text,
# so that
# each _TEXT_UNIT of a result counts as a value, too.
_COSTS: Final = {
    "pattern": 8,
    "patternProperties": 8,
    "propertyNames": 8,
    "format": 8,
    "uniqueItems": 32,
    "unevaluatedItems": 16,
    "unevaluatedProperties": 16,
}
_FRACTION_COST: Final = 64  # of a multipleOf that is no whole number
_TEXT_UNIT: Final = 64


def checked(text: bytes) -> bytes:
    """The text of a schema that can be used; raises ValidationError."""
    if not text:
        return b""
    validate.json_size(text, "result_schema", limits.RESULT_SCHEMA_SIZE_MAX)
    _validator(text)
    return text


def check_result(schema: bytes, result: bytes) -> None:
    """Raises ResultSchemaError when a result, or the want of one (`null`), does not meet the
    schema, and PayloadTooLarge when it would take too long to find out."""
    validator, cost = _validator(schema)
    values = 1 + len(result) // _TEXT_UNIT + result.count(b",") + result.count(b"[")
    values += result.count(b":")
    if values * cost > limits.RESULT_CHECKS_MAX:
        raise PayloadTooLarge(
            f"result too large for its result_schema: about {values} values by {cost} checks each "
            f"(max {limits.RESULT_CHECKS_MAX} checks)",
            field="result",
            size=len(result),
            limit=limits.RESULT_CHECKS_MAX // cost,
        )
    try:
        value = _loaded(result or b"null")
    except (ValueError, RecursionError) as error:
        raise _not_met([{"path": "", "message": _unreadable(error)}]) from None
    if validator.is_valid(value):
        return
    if len(result) <= _ALL_ERRORS_SIZE_MAX:
        errors = list(islice(validator.iter_errors(value), _ERRORS_MAX))
    else:
        errors = [_first_error(validator, value)]
    raise _not_met([_document(error) for error in errors])


def _not_met(errors: list[dict[str, Any]]) -> ResultSchemaError:
    where = errors[0]["path"]
    return ResultSchemaError(
        "the result does not meet the result_schema of its job: "
        f"{errors[0]['message']}{f' (at {where})' if where else ''}",
        validation_errors=errors,
    )


def _unreadable(error: Exception) -> str:
    """Why a text that is JSON by its grammar cannot be looked at."""
    return "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"


def _first_error(validator: Any, value: Any) -> Any:
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return error
    raise AssertionError("a result is valid that was not")


def _document(error: Any) -> dict[str, Any]:
    path = "".join(f"/{_escaped(str(step))}" for step in error.instance_path)
    message: str = error.message
    if len(message) > _TEXT_MAX:
        message = message[:_TEXT_MAX] + "…"
    document: dict[str, Any] = {"path": path, "message": message}
    with suppress(ValueError):  # an infinity, which JSON texts can hold and cannot show
        if len(json.dumps(error.instance, allow_nan=False)) <= _VALUE_SIZE_MAX:
            document["value"] = error.instance
    return document


@lru_cache(maxsize=_COMPILED_MAX)
def _validator(text: bytes) -> tuple[Any, int]:
    """The compiled schema and its cost."""
    try:
        schema = _loaded(text)
        parts, cost = _measured(schema)
    except (ValueError, RecursionError) as error:
        raise _refused(_unreadable(error)) from None
    if not isinstance(schema, dict | bool):
        raise _refused("it must be an object or a boolean")
    if parts > limits.RESULT_SCHEMA_PARTS_MAX:
        raise _refused(
            f"it has more than {limits.RESULT_SCHEMA_PARTS_MAX} parts, references followed"
        )
    try:
        validator = jsonschema_rs.Draft202012Validator(
            schema, pattern_options=_PATTERNS, offline=True
        )
        return validator, cost
    except (ValueError, jsonschema_rs.ReferencingError) as error:  # its refusals are ValueErrors
        where = "".join(f"/{step}" for step in getattr(error, "instance_path", ()))
        text_of_it = str(getattr(error, "message", error)).partition("\n")[0][:_TEXT_MAX]
        raise _refused(f"{text_of_it}{f' (at {where})' if where else ''}") from None


def _loaded(text: bytes) -> Any:
    """The value of a JSON text. Half a surrogate pair, which JSON allows and UTF-8 does not, counts
    as a question mark."""
    value = text.decode()
    if "\\ud" in value or "\\uD" in value:
        value = json.dumps(json.loads(value), ensure_ascii=False).encode(errors="replace").decode()
    return json.loads(value)


def _measured(schema: Any) -> tuple[int, int]:
    """Objects in a schema, with what they refer to, and its cost; definitions count where they are
    referred to, and a reference that leads back costs nothing more."""
    sizes: dict[str, tuple[int, int]] = {"#": (0, 0)}
    stop = limits.RESULT_SCHEMA_PARTS_MAX + 1

    def count(part: Any) -> tuple[int, int]:
        if isinstance(part, list):
            return added((count(item) for item in part), 0, 0)
        if not isinstance(part, dict):
            return 0, 0
        found = []
        for name, value in part.items():
            if name in _ELSEWHERE and isinstance(value, str):
                raise _refused(f"{name} is not supported, use $ref")
            if name == "$ref" and isinstance(value, str):
                found.append(size_of(value))
            elif part is schema and name == "$defs":
                continue
            elif name not in _DATA or isinstance(value, dict):
                found.append(count(value))
        return added(found, 1, _cost(part))

    def added(found: Iterable[tuple[int, int]], parts: int, cost: int) -> tuple[int, int]:
        for more_parts, more_cost in found:
            parts += more_parts
            cost += more_cost
        return min(stop, parts), min(limits.RESULT_CHECKS_MAX, cost)

    def size_of(reference: str) -> tuple[int, int]:
        if reference not in sizes:
            sizes[reference] = 0, 0
            sizes[reference] = count(_at(schema, reference))
        return sizes[reference]

    parts, cost = count(schema)
    return parts, max(1, cost)


def _cost(part: dict[str, Any]) -> int:
    """The cost of a part without the parts in it."""
    cost = 1
    for name, value in part.items():
        if name in _COSTS:
            cost += _COSTS[name]
        elif name == "multipleOf" and not isinstance(value, int):
            cost += _FRACTION_COST
        elif name == "enum" and isinstance(value, list):
            cost += len(value) // 8
    return cost


def _at(schema: Any, reference: str) -> Any:
    """The part that a reference points to."""
    if not reference.startswith("#/"):
        raise _refused(
            f"$ref {validate.shown(reference)}: it may refer to its own parts only, as #/$defs/name"
        )
    part = schema
    for step in reference[2:].split("/"):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and name in part:
            part = part[name]
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            raise _refused(f"$ref {validate.shown(reference)} points to nothing")
    return part


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _refused(why: str) -> ValidationError:
    return ValidationError(f"result_schema is not usable: {why}", field="result_schema")

"""Schemas of results: JSON Schema of draft 2020-12, with bounds that keep a schema from being used
to stop the server.

A schema is part of a job from its enqueue on and never changes. Any job that can be acked is
applied. So a result is validated before the ack is proposed, and apply knows nothing about schemas.
The rules for schemas can become stricter. A result is accepted unchecked when an earlier version
stored a schema that is refused now: else its job could never complete.

A schema may refer to its own parts (`#/$defs/...`) and to nothing else, so nothing is ever loaded.
Patterns are matched in linear time: they have no look-around and no back references. Every schema
has a cost, see `schema_costs`. Results that are too long for the cost of their schema are refused.

The library only answers valid or not valid within that bound. The errors that it lists can take
memory without bound, because each repeats the value and the keyword, and an error of `anyOf` holds
the errors of all alternatives. All errors are listed only if a bound on their size is small. Else
the first error is found with a copy of the schema whose errors hold no others.
"""

import json
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import jsonschema_rs

from corvo import limits
from corvo.engine import validate
from corvo.engine.commands.schema_costs import (
    TEXT_UNIT,
    Schema,
    hidden_keyword,
    refused,
    without_inner_errors,
)
from corvo.errors import PayloadTooLarge, ResultSchemaError, ValidationError, cut

_ERRORS_MAX: Final = 20
# For longer results only the first error is listed.
_ALL_ERRORS_SIZE_MAX: Final = 8 * limits.KIB
_ERRORS_SIZE_MAX: Final = 16 * limits.MIB  # of the values and keywords that they repeat
_ERROR_SIZE: Final = 128  # of an error itself
_STEP_SIZE: Final = 32  # of a step of its path
_LIBRARY_TOO_DEEP: Final = "Recursion limit reached"
_VALUE_SIZE_MAX: Final = limits.KIB
_COMPILED_MAX: Final = 64
# Memory of the compiled patterns of a schema, and of one.
_PATTERNS_SIZE_MAX: Final = 4 * limits.MIB
_PATTERN_SIZE_MAX: Final = 256 * limits.KIB


def checked(text: bytes) -> bytes:
    """The text of a schema that can be used; raises ValidationError."""
    if not text:
        return b""
    validate.json_size(text, "result_schema", limits.RESULT_SCHEMA_SIZE_MAX)
    _validator(text)
    return text


def check_result(schema: bytes, result: bytes) -> str:
    """Check a result, or the lack of one (`null`), against the schema of its job.

    Raises ResultSchemaError when it does not match, and PayloadTooLarge when its validation would
    take too long. Return the reason why it was not checked: an earlier version stored a schema that
    is refused now. Empty in all other cases.
    """
    stored = _stored(schema)
    if isinstance(stored, str):
        return stored
    validator, measured = stored
    cost = measured.cost
    values = 1 + len(result) // TEXT_UNIT + result.count(b",") + result.count(b"[")
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
        if validator.is_valid(value):
            return ""
    except (ValueError, RecursionError) as error:
        raise _not_met([{"path": "", "message": _unreadable(error)}]) from None
    if len(result) <= _ALL_ERRORS_SIZE_MAX and _errors_are_small(
        measured, value, values * cost, len(result)
    ):
        with suppress(ValueError):  # a value that is nested too deeply to be repeated
            errors = list(islice(validator.iter_errors(value), _ERRORS_MAX))
            raise _not_met([_document(error) for error in errors])
    raise _not_met([_first_error(schema, measured, value)])


def _errors_are_small(measured: Schema, value: Any, checks: int, size: int) -> bool:
    """Whether all errors of a value take little memory. There is one per check at most, and each
    repeats its value, its keyword and its path in the schema."""
    steps = measured.depth * (_depth(value) if measured.recursive else 1)
    return checks * (_ERROR_SIZE + _STEP_SIZE * steps + size + measured.copied) <= _ERRORS_SIZE_MAX


def _depth(value: Any) -> int:
    depth = 0
    level = [value]
    while level:
        depth += 1
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                inner += part.values()
            elif isinstance(part, list):
                inner += part
        level = inner
    return depth


def _not_met(errors: list[dict[str, Any]]) -> ResultSchemaError:
    where = errors[0]["path"]
    return ResultSchemaError(
        "the result does not meet the result_schema of its job: "
        f"{errors[0]['message']}{f' (at {where})' if where else ''}",
        validation_errors=errors,
    )


def _unreadable(error: Exception) -> str:
    """The reason why a valid JSON text cannot be validated."""
    deep = isinstance(error, RecursionError) or str(error) == _LIBRARY_TOO_DEEP
    return "nested too deeply" if deep else "a number is too long"


def _first_error(schema: bytes, measured: Schema, value: Any) -> dict[str, Any]:
    if not measured.unevaluated:
        try:
            _compiled(without_inner_errors(_loaded(schema)), measured).validate(value)
        except jsonschema_rs.ValidationError as error:
            return _document(error)
        except (ValueError, ValidationError):  # nested too deeply, or a $ref into `anyOf`
            pass
    return {"path": "", "message": "the value is not valid, and too large for details"}


def _message(error: Any) -> str:
    keyword = hidden_keyword(getattr(error.kind, "schema", None))
    if keyword:
        return f"the value does not match the '{keyword}' of its schema"
    text: str = error.message
    return text


def _document(error: Any) -> dict[str, Any]:
    path = "".join(f"/{_escaped(str(step))}" for step in error.instance_path)
    document: dict[str, Any] = {"path": path, "message": cut(_message(error))}
    with suppress(ValueError):  # an infinity, which JSON texts can hold and cannot show
        if len(json.dumps(error.instance, allow_nan=False)) <= _VALUE_SIZE_MAX:
            document["value"] = error.instance
    return document


@lru_cache(maxsize=_COMPILED_MAX)
def _stored(text: bytes) -> tuple[Any, Schema] | str:
    """The compiled schema of a job and its measure, or the reason why it is refused now."""
    try:
        return _validator(text)
    except ValidationError as error:
        return error.message


@lru_cache(maxsize=_COMPILED_MAX)
def _validator(text: bytes) -> tuple[Any, Schema]:
    """The compiled schema and its measure."""
    try:
        schema = _loaded(text)
        if not isinstance(schema, dict | bool):
            raise refused("it must be an object or a boolean")
        measured = Schema(schema)
    except (ValueError, RecursionError) as error:
        raise refused(_unreadable(error)) from None
    validator = _compiled(schema, measured)
    if measured.cost > limits.RESULT_SCHEMA_COST_MAX:
        raise refused(
            f"a value can take {measured.cost} checks (max {limits.RESULT_SCHEMA_COST_MAX})"
        )
    return validator, measured


def _compiled(schema: Any, measured: Schema) -> Any:
    size = min(_PATTERN_SIZE_MAX, _PATTERNS_SIZE_MAX // max(1, measured.patterns))
    try:
        return jsonschema_rs.Draft202012Validator(
            schema,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=size, dfa_size_limit=size),
            offline=True,
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:  # its refusals are ValueErrors
        where = "".join(f"/{step}" for step in getattr(error, "instance_path", ()))
        text_of_it = str(getattr(error, "message", error)).partition("\n")[0]
        raise refused(f"{cut(text_of_it)}{f' (at {where})' if where else ''}") from None


def _loaded(text: bytes) -> Any:
    """The value of a JSON text. Half a surrogate pair, which JSON allows and UTF-8 does not, counts
    as a question mark."""
    value = text.decode()
    if "\\ud" in value or "\\uD" in value:
        value = json.dumps(json.loads(value), ensure_ascii=False).encode(errors="replace").decode()
    return json.loads(value)


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")

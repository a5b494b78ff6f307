"""Search filters of jobs, used by search, facets, bulk operations and the command line.

A filter is a JSON object; a job matches if all members match. `parse` validates it and converts the
values: times to unix nanoseconds, names to their stored form.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from corvo import limits
from corvo.errors import ValidationError
from corvo.mirror import jq
from corvo.model import PRIORITY_NAMES, STATES
from corvo.platform.durations import parse_time
from corvo.platform.echoes import hint, named, shown

_NUMBER_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Filter:
    """The given members of a filter, by name; PARSERS defines their types."""

    values: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """The value of a member, or None."""
        return self.values.get(name)


def parse(fields: Mapping[str, Any]) -> Filter:
    """Parse a filter from decoded JSON; null members are ignored."""
    unknown = [name for name in fields if name not in PARSERS]
    if unknown:
        raise _unknown(unknown)
    values = {}
    for name, value in fields.items():
        parser = PARSERS[name]
        if value is not None:
            values[name] = parser(name, value)
    return Filter(values)


def _unknown(names: list[str]) -> ValidationError:
    if len(names) > 1:
        return ValidationError(f"unknown filters {named(names, PARSERS)}", field=names[0])
    [name] = names
    return ValidationError(f"unknown filter {shown(name)}{hint(name, PARSERS)}", field=name)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _refused(name, "a non-empty text", value)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise _refused(name, "a text without unpaired surrogates", value) from None
    if size > limits.SEARCH_TEXT_SIZE_MAX:
        raise ValidationError(
            f"{name} has {size} bytes (limit {limits.SEARCH_TEXT_SIZE_MAX})", field=name
        )
    return value


def _states(name: str, value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not 0 < len(names) <= len(STATES):
        raise _refused(name, f"a state, or a list of up to {len(STATES)}", value)
    for state in names:
        if state not in STATES:
            raise _refused(name, f"one or more of {', '.join(STATES)}", state)
    return tuple(dict.fromkeys(names))


def _priority(name: str, value: Any) -> int:
    if value in PRIORITY_NAMES:
        return PRIORITY_NAMES.index(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(PRIORITY_NAMES):
        return value
    raise _refused(name, f"one of {', '.join(PRIORITY_NAMES)}, or 0-2", value)


def _tags(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not value:
        raise _refused(name, "an object with at least one tag", value)
    if len(value) > limits.TAGS_COUNT_MAX:
        raise ValidationError(f"tags has {len(value)} pairs (limit {limits.TAGS_COUNT_MAX})")
    tags = {}
    for key, item in value.items():
        if isinstance(item, bool | int | float):
            item = json.dumps(item)
        if not isinstance(item, str):
            raise _refused(f"{name}: {shown(key)}", "a string, number or boolean", item)
        tags[_text(name, key)] = item if item == "" else _text(name, item)
    return tags


def _time(name: str, value: Any) -> int:
    if not isinstance(value, str):
        raise _refused(name, "an RFC 3339 time", value)
    return min(parse_time(value, name), limits.DUE_MAX_NS)


def _number(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NUMBER_MAX:
        return value
    raise _refused(name, "a whole number", value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refused(name, "true or false", value)
    return value


def _jq(name: str, value: Any) -> tuple[jq.Condition, ...]:
    if not isinstance(value, str):
        raise _refused(name, "an expression as text", value)
    return jq.parse(value)


def _refused(name: str, wanted: str, value: Any) -> ValidationError:
    return ValidationError(f"{name} must be {wanted}, not {shown(value)}", field=name)


PARSERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "queue": _text,
    "state": _states,
    "priority": _priority,
    "tags": _tags,
    "payload_contains": _text,
    "payload_jq": _jq,
    "created_after": _time,
    "created_before": _time,
    "scheduled_after": _time,
    "scheduled_before": _time,
    "started_after": _time,
    "started_before": _time,
    "completed_after": _time,
    "completed_before": _time,
    "expire_after": _time,
    "expire_before": _time,
    "attempt_min": _number,
    "attempt_max": _number,
    "unique_key": _text,
    "batch_id": _text,
    "worker_id": _text,
    "parent_id": _text,
    "chain_id": _text,
    "has_errors": _flag,
    "error_contains": _text,
    "job_id_prefix": _text,
}

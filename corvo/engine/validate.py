"""Validation of input before an op is proposed: names, sizes and ranges.

Every error names the field, the value and the limit.
"""

from typing import Any

from corvo import limits
from corvo.errors import CorvoError, PayloadTooLarge, ValidationError
from corvo.model import BACKOFFS, HOLD_ACTIONS, PRIORITIES, PRIORITY_NAMES, UNIQUE_UNTIL
from corvo.platform.durations import parse_duration
from corvo.platform.echoes import shown

Duration = str | int | float | None

_NORMAL = PRIORITY_NAMES.index("normal")
_EXPONENTIAL = BACKOFFS.index("exponential")
_FINAL = UNIQUE_UNTIL.index("final")
_UNIQUE_ALIASES = {"completion": "success", "expiry": "period"}


def queue_name(name: str, field: str = "queue") -> str:
    """A valid queue name: 1-128 bytes of UTF-8, no control characters, not `.` or `..`.
    `::` is reserved for a prefix that the server adds."""
    if not name:
        raise ValidationError(f"{field} is required", field=field)
    size = len(name) if name.isascii() else len(name.encode())
    if size > limits.QUEUE_NAME_SIZE_MAX:
        raise ValidationError(
            f"{field} {shown(name)} has {size} bytes (limit {limits.QUEUE_NAME_SIZE_MAX})",
            field=field,
        )
    if name in (".", ".."):
        raise ValidationError(f"{field} {shown(name)} is not allowed", field=field)
    if "::" in name:
        raise ValidationError(f"{field} {shown(name)} contains ::, which is reserved", field=field)
    if not name.isprintable() and any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name):
        raise ValidationError(f"{field} {shown(name)} contains a control character", field=field)
    return name


def text(value: str | None, field: str, size_max: int) -> str:
    """An optional text of bounded size; absent is empty."""
    if not value:
        return ""
    size = len(value) if value.isascii() else len(value.encode())
    if size > size_max:
        raise ValidationError(f"{field} has {size} bytes (limit {size_max})", field=field)
    return value


def key(value: str | None, field: str, size_max: int) -> str:
    """An optional id, token, key or name of bounded size. Absent is empty, so an empty one is
    refused: the client meant a value."""
    if value is None:
        return ""
    if not value:
        raise ValidationError(f"{field} must not be empty", field=field)
    return text(value, field, size_max)


def name(value: str | None, field: str, size_max: int) -> str:
    """An optional name that becomes part of a key: bounded, no control characters."""
    value = key(value, field, size_max)
    if not value.isprintable() and any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
        raise ValidationError(f"{field} {shown(value)} contains a control character", field=field)
    return value


def json_size(value: bytes, field: str, size_max: int, size: int = -1) -> bytes:
    """A JSON value of bounded size; the reply is 413 because the limit is one of bytes. `size` is
    given where it is not that of the JSON."""
    if size < 0:
        size = len(value)
    if size > size_max:
        raise PayloadTooLarge(
            f"{field} too large: {size} bytes (max {size_max})",
            field=field,
            size=size,
            limit=size_max,
        )
    return value


def priority(value: str | int | None) -> int:
    """A priority by name or number."""
    if value is None:
        return _NORMAL
    if isinstance(value, str):
        if value in PRIORITY_NAMES:
            return PRIORITY_NAMES.index(value)
        raise ValidationError(
            f"priority {shown(value)} is unknown (use {', '.join(PRIORITY_NAMES)} or 0-2)",
            field="priority",
        )
    if not 0 <= value < PRIORITIES:
        raise ValidationError(f"priority {shown(value)} is out of range (0-2)", field="priority")
    return value


def max_retries(value: int | None) -> int:
    """Number of attempts allowed; 0 and 1 both mean one."""
    if value is None:
        return limits.RETRIES_DEFAULT
    if not 0 <= value <= limits.RETRIES_MAX:
        raise ValidationError(
            f"max_retries {shown(value)} is out of range (0-{limits.RETRIES_MAX})",
            field="max_retries",
        )
    return value


def backoff(value: str | None) -> int:
    """A backoff strategy by name."""
    if value is None:
        return _EXPONENTIAL
    if value not in BACKOFFS:
        raise ValidationError(
            f"retry_backoff {shown(value)} is unknown (use {', '.join(BACKOFFS)})",
            field="retry_backoff",
        )
    return BACKOFFS.index(value)


def jitter_ppm(value: float | None) -> int:
    """A share of the delay, 0-1, as parts per million."""
    if value is None:
        return limits.RETRY_JITTER_DEFAULT_PPM
    if not 0 <= value <= 1:
        raise ValidationError(
            f"retry_jitter {shown(value)} is out of range (0-1)", field="retry_jitter"
        )
    return round(value * 1_000_000)


def unique_until(value: str | None) -> int:
    """When a unique lock is released."""
    if value is None:
        return _FINAL
    name = _UNIQUE_ALIASES.get(value, value)
    if name not in UNIQUE_UNTIL:
        raise ValidationError(
            f"unique_until {shown(value)} is unknown (use {', '.join(UNIQUE_UNTIL)})",
            field="unique_until",
        )
    return UNIQUE_UNTIL.index(name)


def lease_token(value: str | None) -> str:
    """An optional lease token of bounded size."""
    return key(value, "lease_token", limits.JOB_ID_SIZE_MAX)


def lease_ns(value: Duration) -> int:
    """A lease length."""
    if value is None:
        return limits.LEASE_DEFAULT_S * limits.SECOND_NS
    value_ns = parse_duration(value, "lease_duration")
    low = limits.LEASE_MIN_S * limits.SECOND_NS
    high = limits.LEASE_MAX_S * limits.SECOND_NS
    if not low <= value_ns <= high:
        raise ValidationError(
            f"lease_duration {value_ns / 1e9:g} s is out of range "
            f"({limits.LEASE_MIN_S}-{limits.LEASE_MAX_S} s)",
            field="lease_duration",
        )
    return value_ns


def length_ns(value: Duration, field: str, absent: int = 0) -> int:
    """An optional duration as ops carry it: one of more than 292 years saturates."""
    return absent if value is None else min(parse_duration(value, field), limits.DUE_MAX_NS)


def retention_ns(value: Duration, field: str) -> int:
    """A retention time: a duration, or `forever`."""
    return limits.DUE_MAX_NS if value == "forever" else length_ns(value, field)


def hold_action(value: str | None) -> int:
    """The action on a held job that was not approved in time."""
    if value is None:
        return 0
    if value not in HOLD_ACTIONS:
        raise ValidationError(
            f"timeout_action {shown(value)} is unknown (use {', '.join(HOLD_ACTIONS)})",
            field="timeout_action",
        )
    return HOLD_ACTIONS.index(value)


def length_ms(value: Duration, field: str, absent: int) -> int:
    """An optional duration in milliseconds."""
    if value is None:
        return absent
    return min(parse_duration(value, field) // limits.MS_NS, limits.DELAY_MAX_MS)


def of_part(error: CorvoError, part: str, **place: Any) -> CorvoError:
    """The error of a part of a request, with the name and the place of the part."""
    return type(error)(f"{part} {error.message}", **{**error.fields, **place})


def queue_names(names: list[str], field: str) -> list[str]:
    """Valid queue names; an error has the index of the name."""
    try:
        return [queue_name(name, field) for name in names]
    except ValidationError:
        for index, name in enumerate(names):
            try:
                queue_name(name, f"{field}[{index}]")
            except ValidationError as error:
                error.fields |= {"field": field, "index": index}
                raise
        raise


def count(value: int, field: str, count_max: int) -> int:
    """A number of items, at least one and at most the limit."""
    if value == 0:
        raise ValidationError(f"{field} is required and must not be empty", field=field)
    if value > count_max:
        raise ValidationError(f"{field} has {value} items (limit {count_max})", field=field)
    return value

"""Conversion of times (RFC 3339) and durations (`1h30m`) to integer nanoseconds and back.

A leap second (`:60`) is rejected, because unix time has no number for it. Times before 1970 are
rejected, because 0 means "unset" in every record.
"""

import re
from datetime import UTC, date, datetime
from typing import Final

from corvo import limits
from corvo.errors import ValidationError
from corvo.platform.echoes import shown

_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,32}))?"
    r"(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))",
    re.ASCII,
)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()

DURATION_MAX_NS: Final = limits.DELAY_MAX_MS * limits.MS_NS
_DURATION_RANGE: Final = f"a duration from 0 to {DURATION_MAX_NS // limits.SECOND_NS} seconds"
_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": limits.MS_NS,
    "s": limits.SECOND_NS,
    "m": 60 * limits.SECOND_NS,
    "h": 3_600 * limits.SECOND_NS,
    "d": 86_400 * limits.SECOND_NS,
    "w": 7 * 86_400 * limits.SECOND_NS,
}
_PART: Final = re.compile(r"(\d{1,20})(?:\.(\d{1,20}))?(ns|us|µs|ms|s|m|h|d|w)", re.ASCII)
_SECONDS: Final = re.compile(r"(\d{1,20})(?:\.(\d{1,20}))?", re.ASCII)
_PARTS_MAX: Final = 16


def parse_time(text: str, field: str = "time") -> int:
    """Unix nanoseconds of an RFC 3339 time; digits after the ninth fraction digit are dropped."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise _refused(field, text, "an RFC 3339 time with offset, such as 2026-02-10T12:00:00Z")
    year, month, day, hour, minute, second, fraction, sign, offset_h, offset_m = match.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    except ValueError:
        raise _refused(field, text, "a day of the calendar") from None
    seconds = days * 86_400 + int(hour) * 3_600 + int(minute) * 60 + int(second)
    if sign is not None:
        offset = int(offset_h) * 3_600 + int(offset_m) * 60
        seconds += offset if sign == "-" else -offset
    at_ns = seconds * limits.SECOND_NS + int((fraction or "0")[:9].ljust(9, "0"))
    if not 0 <= at_ns <= limits.TIME_MAX_NS:
        raise _refused(field, text, "a time from 1970 to 9999 in UTC")
    return at_ns


def format_time(at_ns: int) -> str:
    """Format a time as RFC 3339 in UTC, without trailing zeros in the fraction."""
    seconds, fraction = divmod(at_ns, limits.SECOND_NS)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else text + "Z"


def parse_duration(value: str | int | float, field: str = "duration") -> int:
    """Nanoseconds of `1h30m`, `500ms`, `7d`, `1.5s`, or of a number of seconds."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool):
        raise _refused(field, value, "a duration, such as 1h30m, or a number of seconds")
    elif isinstance(value, float):
        # Fixed notation, so that 0.1 is exact in spite of its binary form.
        text = f"{value:.9f}"
    elif 0 <= value <= DURATION_MAX_NS // limits.SECOND_NS:
        return value * limits.SECOND_NS
    elif abs(value) > DURATION_MAX_NS:  # too long to be worth printing
        raise _refused(field, "a larger number", _DURATION_RANGE)
    else:
        text = str(value)
    if text.startswith("-"):
        raise _refused(field, value, _DURATION_RANGE)
    whole = _SECONDS.fullmatch(text)
    if whole is not None:
        length_ns = _scaled(whole[1], whole[2], limits.SECOND_NS)
    else:
        length_ns = _sum_of_parts(text, value, field)
    if length_ns > DURATION_MAX_NS:
        raise _refused(field, value, _DURATION_RANGE)
    return length_ns


def format_duration(length_ns: int) -> str:
    """Format a duration in a form that `parse_duration` converts back to the same value."""
    if length_ns == 0:
        return "0s"
    text = ""
    for unit in ("d", "h", "m", "s", "ms", "us", "ns"):
        count, length_ns = divmod(length_ns, _UNITS[unit])
        if count:
            text += f"{count}{unit}"
    return text


def _sum_of_parts(text: str, value: object, field: str) -> int:
    position = length_ns = 0
    for _ in range(_PARTS_MAX):
        part = _PART.match(text, position)
        if part is None:
            break
        length_ns += _scaled(part[1], part[2], _UNITS[part[3]])
        position = part.end()
    if position == 0 or position != len(text):
        raise _refused(field, value, "a duration, such as 1h30m, or a number of seconds")
    return length_ns


def _scaled(whole: str, fraction: str | None, unit_ns: int) -> int:
    length_ns = int(whole) * unit_ns
    if fraction:
        length_ns += int(fraction) * unit_ns // 10 ** len(fraction)
    return length_ns


def _refused(field: str, value: object, wanted: str) -> ValidationError:
    return ValidationError(f"{field} must be {wanted}, not {shown(value)}", field=field)

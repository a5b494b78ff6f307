"""Words about cron expressions: corrections of explanations, and hints for refused ones."""

import re
from typing import Final

_MONTHS: Final = (
    *("JAN", "FEB", "MAR", "APR", "MAY", "JUN"),
    *("JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
)
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
# Of each field: its smallest and largest value, and the names of its values.
_FIELDS: Final[tuple[tuple[int, int, tuple[str, ...]], ...]] = (
    (0, 59, ()),
    (0, 23, ()),
    (1, 31, ()),
    (1, 12, _MONTHS),
    (0, 6, _WEEKDAYS),
)
_DAY: Final = 2
_MONTH: Final = 3
_WEEKDAY: Final = 4
_ORDINAL: Final = re.compile(r"\b(\d+)th\b")
_RANGE: Final = re.compile(r"([A-Z]+|\d+)-([A-Z]+|\d+)")
_ZONE: Final = re.compile(r"(?:CRON_)?TZ=(\S+)\s")
_SUFFIXES: Final = {1: "st", 2: "nd", 3: "rd"}


def distinct(fields: str) -> str:
    """The five fields of a valid expression with each value listed once."""
    return " ".join(_distinct(part, number) for number, part in enumerate(fields.split()))


def correct(words: str, fields: str) -> str:
    """The explanation that cronsim gives for five fields, in correct English."""
    words = _ORDINAL.sub(_ordinal, words)
    parts = fields.split()
    if not (parts[_DAY].startswith("*") or parts[_WEEKDAY].startswith("*")):
        words = words.replace(" of month and on ", " of month or on ")  # either day matches
    return words


def _ordinal(match: re.Match[str]) -> str:
    number = int(match.group(1))
    suffix = "th" if number % 100 in (11, 12, 13) else _SUFFIXES.get(number % 10, "th")
    return f"{number}{suffix}"


def _distinct(field: str, number: int) -> str:
    """A field in which each value is listed once."""
    parts = field.split(",")
    ranges = [found for part in parts if (found := _RANGE.fullmatch(part.upper()))]
    seen: set[int] = set()
    for low, high in (found.groups() for found in ranges):
        first, last = _value(low, number), _value(high, number)
        if first is not None and last is not None:
            seen.update(range(first, last + 1))
    if number == _WEEKDAY and 7 in seen:
        seen.add(0)
    kept = []
    for part in parts:
        value = _value(part.upper(), number)
        if value is not None:
            value = 0 if (number, value) == (_WEEKDAY, 7) else value
            if value in seen:
                continue
            seen.add(value)
        kept.append(part)
    return ",".join(dict.fromkeys(kept))


def _value(text: str, number: int) -> int | None:
    """The value of a number or name in a field; None for everything else."""
    low, _, names = _FIELDS[number]
    if text.isdigit():
        return int(text)
    return names.index(text) + low if text in names else None


def hint(expression: str) -> str:
    """How to mend a refused expression; empty if that is not known."""
    zone = _ZONE.match(expression)
    if zone is not None:
        return f'set "timezone": "{zone.group(1)}" instead of {zone.group().partition("=")[0]}='
    parts = expression.split()
    if len(parts) in (6, 7):
        plain = " ".join("*" if part == "?" else part for part in parts[1:6])
        seconds = re.fullmatch(r"\*/(\d+)", parts[0])
        if seconds is not None and plain == "* * * * *":
            return f"use @every {seconds.group(1)}s"
        year = " and the year" if len(parts) == 7 else ""
        return f"leave out the seconds{year}: {plain}"
    if "?" in expression:
        return "use * instead of ?"
    if len(parts) != 5:
        return ""
    for number, part in enumerate(parts):
        found = _field_hint(part.upper(), number)
        if found:
            return found
    return ""


def _field_hint(part: str, number: int) -> str:
    low, high, names = _FIELDS[number]
    for found in _RANGE.finditer(part):
        start, end = found.group(1), found.group(2)
        first, last = _value(start, number), _value(end, number)
        if first is not None and last is not None and low <= last < first <= high:
            return f"a range cannot pass the end: use {_rising(start, end, number)}"
    if number in (_MONTH, _WEEKDAY):
        for word in re.findall(r"[A-Z]{4,}", part):
            if word[:3] in names:
                return f"use the short name {word[:3]}"
    if number == _DAY and re.search(r"L-\d|W", part):
        return "of L and W only L alone is supported, the last day of the month"
    return ""


def _rising(first: str, last: str, number: int) -> str:
    """A range that passes the end of its field, as two ranges."""
    low, high, names = _FIELDS[number]
    end, start = (names[-1], names[0]) if names and first.isalpha() else (str(high), str(low))
    return ",".join(a if a == b else f"{a}-{b}" for a, b in ((first, end), (start, last)))

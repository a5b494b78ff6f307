"""The query of a request: names of its route only, each at most once, with clear refusals."""

from typing import Final
from urllib.parse import parse_qsl, urlencode

from corvo import limits
from corvo._fast.http.exchange import Request
from corvo.errors import ValidationError
from corvo.platform.durations import parse_duration
from corvo.platform.echoes import hint, shown

_FIELDS_MAX = 32
_INTEGER_DIGITS_MAX = 18
# Positions in a list: an empty one is the start.
POSITIONS: Final = frozenset(("cursor", "after", "before", "after_seq", "last_event_id"))
_FLAGS: Final = ("false", "true")
# Parameter of each read that any node serves.
CONSISTENT: Final = "consistent"


class Query:
    """The names and values of a query, decoded."""

    def __init__(self, request: Request) -> None:
        """The names are those of the route. Raises ValidationError for a query that is malformed,
        or has a name that is unknown or repeated."""
        known: tuple[str, ...] = request.route.query
        self._values: dict[str, str] = {}
        try:
            pairs = parse_qsl(
                request.query.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=bool(request.query),
                errors="strict",
                max_num_fields=_FIELDS_MAX,
            )
        except ValueError:  # UnicodeDecodeError is one
            raise ValidationError("the query must be name=value&... in UTF-8") from None
        for name, value in pairs:
            if name not in known:
                raise ValidationError(
                    f"unknown query parameter {shown(name)}{hint(name, known)}", field=name
                )
            if not value and name not in POSITIONS:
                raise ValidationError(f"query parameter {name} is empty", field=name)
            if name in self._values:
                raise ValidationError(f"query parameter {name} is repeated", field=name)
            self._values[name] = value

    def text(self, name: str) -> str:
        """A text; absent is empty."""
        return self._values.get(name, "")

    def has(self, name: str) -> bool:
        """Whether it was given."""
        return name in self._values

    def choice(self, name: str, words: tuple[str, ...]) -> str:
        """One of some words; absent is the first."""
        text = self._values.get(name, words[0])
        if text not in words:
            raise ValidationError(
                f"{name} must be one of {', '.join(words)}, not {shown(text)}", field=name
            )
        return text

    def flag(self, name: str) -> bool:
        """`true` or `false`; absent is false."""
        return self.choice(name, _FLAGS) == "true"

    def names(self, name: str) -> list[str]:
        """A list with commas; absent is empty."""
        text = self._values.get(name, "")
        names = text.split(",") if text else []
        if len(names) > limits.STREAM_FILTER_NAMES_MAX:
            raise ValidationError(
                f"{name} has {len(names)} items (limit {limits.STREAM_FILTER_NAMES_MAX})",
                field=name,
            )
        return names

    def integer(self, name: str, absent: int, low: int, high: int) -> int:
        """A whole number of a range."""
        text = self._values.get(name)
        if text is None:
            return absent
        plain = text.isascii() and text.isdigit() and len(text) <= _INTEGER_DIGITS_MAX
        if not plain or not low <= int(text) <= high:
            raise ValidationError(
                f"{name} must be a whole number from {low} to {high}, not {shown(text)}", field=name
            )
        return int(text)

    def seq(self, name: str) -> int:
        """The number of an event, a line or an error record; absent or empty is 0."""
        if not self.text(name):
            return 0
        return self.integer(name, 0, 0, 10**_INTEGER_DIGITS_MAX - 1)

    def limit(self, high: int = limits.PAGE_MAX, absent: int = limits.PAGE_DEFAULT) -> int:
        """How many items a page may have."""
        return self.integer("limit", absent, 1, high)

    def following(self, limit: int, cursor: str) -> str:
        """The query of the page after a position, encoded; other parameters stay."""
        return urlencode(self._values | {"limit": limit, "cursor": cursor})

    def duration_ns(self, name: str, absent_s: int, max_s: int) -> int:
        """A duration, cut to the longest allowed."""
        text = self._values.get(name)
        if text is None:
            return absent_s * limits.SECOND_NS
        return min(parse_duration(text, name), max_s * limits.SECOND_NS)


def check_query(request: Request) -> None:
    """Raise ValidationError unless the query fits the route."""
    Query(request).flag(CONSISTENT)


def is_consistent(request: Request) -> bool:
    """Whether a read waits until this node has applied all acknowledged writes."""
    route = request.route
    return route is not None and CONSISTENT in route.query and Query(request).flag(CONSISTENT)

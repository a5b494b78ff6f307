"""Cron expressions in time zones: validation, and the next occurrence.

An expression has five fields (minute, hour, day of month, month, day of week: names, lists, ranges,
steps, `L` for the last day, `MON#2` for the second Monday), or is an alias such as `@daily`, or is
`@every 5m`, whose occurrences are the multiples of the interval since 1970. Daylight saving time is
handled like Debian's cron does:

- if minute and hour are fixed (`30 2 * * *`), the wall clock counts. A skipped wall time runs once,
  right after the gap; a repeated wall time runs only the first time;
- if minute or hour begins with `*`, the interval counts. Every minute whose wall time matches the
  fields is an occurrence, also in a repeated hour.

cronsim parses the fields and implements the first rule. The second rule is implemented here:
cronsim loses occurrences where the clock is shifted by less than an hour (Lord Howe Island), so it
is used only for spans of time with a constant UTC offset.

The rules of all zones come from the tzdata package and never from the host, so that all nodes
compute the same occurrences.
"""

import copy
import functools
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from importlib import resources
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from corvo.errors import ScheduleError, ValidationError
from corvo.limits import CRON_SIZE_MAX, EVERY_MAX_NS, EVERY_MIN_NS, SECOND_NS
from corvo.platform import cron_words
from corvo.platform.durations import format_duration, parse_duration
from corvo.platform.echoes import shown

ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Maximum meaningful step, by field.
_STEPS: Final = (("minute", 59), ("hour", 23), ("day-of-month", 30), ("month", 11), ("weekday", 6))
_STEP: Final = re.compile(r"/(\d+)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_MINUTE_NS: Final = 60 * SECOND_NS


class Cron:
    """A valid expression in a time zone.

    Times are unix nanoseconds; occurrences are whole seconds."""

    def __init__(self, expression: str, timezone: str) -> None:
        """Callers use `parse`, which caches the result."""
        if len(expression) > CRON_SIZE_MAX:
            raise ScheduleError(f"cron has {len(expression)} characters (limit {CRON_SIZE_MAX})")
        self._every_ns = 0
        self._zone = _zone(timezone)
        text = expression.strip()
        alias, _, rest = text.lower().partition(" ")
        if alias == "@every":
            self._every_ns = _interval_ns(expression, rest.strip())
            self.explanation = f"Every {format_duration(self._every_ns)}"
            return
        fields = ALIASES.get(text.lower(), text)
        self._fields = _simulation(expression, fields)
        minute, hour = fields.split()[:2]
        self._fixed = not minute.startswith("*") and not hour.startswith("*")
        words = CronSim(cron_words.distinct(fields), self._fields.dt).explain()
        self.explanation = cron_words.correct(words, fields)

    def next(self, after_ns: int) -> int:
        """The first occurrence after `after_ns`; 0 if there is none within 50 years."""
        if self._every_ns:
            return (after_ns // self._every_ns + 1) * self._every_ns
        after = datetime.fromtimestamp(after_ns // SECOND_NS, UTC)
        try:
            occurrence = self._next_fixed(after) if self._fixed else self._next_interval(after)
        except StopIteration:
            return 0
        return (occurrence - _EPOCH) // _SECOND * SECOND_NS

    def after(self, after_ns: int) -> Iterator[int]:
        """All occurrences after `after_ns`, in order."""
        while after_ns := self.next(after_ns):
            yield after_ns

    def latest(self, after_ns: int, until_ns: int, count: int) -> list[int]:
        """The last `count` occurrences after `after_ns` and up to `until_ns`, in order.

        The search runs backwards in spans: the first is as long as `count` intervals, and each
        further one is twice as long. So the cost does not depend on the distance of `after_ns`."""
        found: list[int] = []
        first_ns = self.next(after_ns)
        end_ns, length_ns = until_ns, count * max(_MINUTE_NS, self.next(first_ns) - first_ns)
        while end_ns > after_ns and len(found) < count:
            start_ns = max(after_ns, end_ns - length_ns)
            span = []
            for occurrence_ns in self.after(start_ns):
                if occurrence_ns > end_ns:
                    break
                span.append(occurrence_ns)
            found = span + found
            end_ns = start_ns
            length_ns *= 2
        return found[-count:]

    def _next_fixed(self, after: datetime) -> datetime:
        """Apply the rule of cronsim for fixed times.

        In a repeated hour cronsim may return a time of the first pass, so earlier times are
        skipped."""
        simulation = copy.copy(self._fields)
        local = after.astimezone(self._zone)
        simulation.dt = local.replace(tzinfo=None)
        simulation.fixup_tz = self._zone
        while True:
            occurrence = next(simulation).astimezone(UTC)
            if occurrence > after:
                return occurrence

    def _next_interval(self, after: datetime) -> datetime:
        """The next minute whose wall time matches the fields.

        While the UTC offset is constant, wall time advances like UTC. At a change of the offset the
        search continues with the new one. A distant occurrence is approached in one jump: no day
        before it has a matching wall time, otherwise cronsim would have returned that one."""
        simulation = copy.copy(self._fields)
        offset = self._offset(after)
        while True:
            simulation.dt = after.replace(tzinfo=None) + offset
            occurrence = next(simulation).replace(tzinfo=UTC) - offset
            change = self._change(after, offset)
            if change is not None and occurrence >= change:
                after, offset = change - _SECOND, self._offset(change)
            elif change is None and occurrence > after + _DAY:
                after = max(after + _DAY, occurrence - 2 * _DAY)
                offset = self._offset(after)
            else:
                return occurrence

    def _offset(self, at: datetime) -> timedelta:
        offset = at.astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset

    def _change(self, after: datetime, offset: timedelta) -> datetime | None:
        """The first instant within a day after `after` that has another offset; None if none
        has."""
        low, high = after, after + _DAY
        if self._offset(high) == offset:
            return None
        while high - low > _SECOND:
            middle = low + (high - low) // _SECOND // 2 * _SECOND
            if self._offset(middle) == offset:
                low = middle
            else:
                high = middle
        return high


@functools.lru_cache(maxsize=4096)
def parse(expression: str, timezone: str) -> Cron:
    """Parse an expression; a ScheduleError names the wrong field and its value."""
    return Cron(expression, timezone)


def _simulation(expression: str, fields: str) -> CronSim:
    """Parse the fields with cronsim; callers copy the result and set its time."""
    if fields.startswith("@"):
        known = ", ".join([*ALIASES, "@every 5m"])
        raise _refused("cron", expression, f"one of {known}")
    parts = fields.split()
    if not fields.isascii() or len(parts) != 5:
        raise _refused("cron", expression, "five fields: minute hour day-of-month month weekday")
    for part, (name, step_max) in zip(parts, _STEPS, strict=True):
        for step in _STEP.findall(part):
            if int(step) > step_max:
                wanted = f"an expression whose {name} steps are at most {step_max}"
                raise _refused("cron", expression, wanted)
    try:
        simulation = CronSim(fields, datetime(2000, 1, 1))
        next(copy.copy(simulation))
    except CronSimError as error:
        reason = str(error).lower()
        raise _refused("cron", expression, f"a cron expression ({reason})") from None
    except StopIteration:
        raise _refused("cron", expression, "an expression that matches a day") from None
    return simulation


def _interval_ns(expression: str, text: str) -> int:
    low, high = format_duration(EVERY_MIN_NS), format_duration(EVERY_MAX_NS)
    wanted = f"@every with whole seconds from {low} to {high}, such as @every 5m"
    try:
        interval_ns = parse_duration(text)
    except ValidationError:
        raise _refused("cron", expression, wanted) from None
    if not EVERY_MIN_NS <= interval_ns <= EVERY_MAX_NS or interval_ns % SECOND_NS:
        raise _refused("cron", expression, wanted)
    return interval_ns


@functools.cache
def _zones() -> frozenset[str]:
    return frozenset(resources.files("tzdata").joinpath("zones").read_text("utf-8").split())


def _zone(name: str) -> tzinfo:
    if name not in _zones():
        raise _refused("timezone", name, "a zone of the IANA database, such as Europe/Berlin")
    return _read_zone(name)


@functools.cache
def _read_zone(name: str) -> ZoneInfo:
    """Load the zone from the tzdata package; `ZoneInfo(name)` would prefer the host's rules."""
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def _refused(field: str, value: str, wanted: str) -> ScheduleError:
    hint = cron_words.hint(value) if field == "cron" else ""
    message = f"{field} must be {wanted}, not {shown(value)}" + (f"; {hint}" if hint else "")
    return ScheduleError(message, field=field)

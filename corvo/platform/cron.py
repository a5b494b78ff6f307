"""Cron expressions in time zones: what is valid, and when the next slot is.

An expression has five fields (minute, hour, day of month, month, day of week: names, lists,
ranges, steps, `L` for the last day, `MON#2` for the second Monday), or is an alias such as
`@daily`, or `@every 5m`, whose slots are the multiples of the interval since 1970. Daylight
saving is treated as by Debian's cron:

- minute and hour both given (`30 2 * * *`): the wall clock counts. A time that the clock skips
  runs once, right after the gap; one that it shows twice runs the first time only;
- one of them begins with `*`: the interval counts. Every minute that the wall clock shows and the
  fields allow is a slot, also in an hour that is shown twice.

cronsim reads the fields and applies the first rule. The second is applied here: cronsim loses
slots where the clock is shifted by less than an hour (Lord Howe Island), so it only walks over
stretches of time between two changes of the offset.

The rules of all zones come from the tzdata package and never from the host, so that all nodes
compute the same slots.
"""

import copy
import functools
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from importlib import resources
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from corvo.errors import ScheduleError, ValidationError
from corvo.limits import CRON_SIZE_MAX, EVERY_MAX_NS, EVERY_MIN_NS, SECOND_NS
from corvo.platform.durations import format_duration, parse_duration

ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Longest step that makes sense, by field.
_STEPS: Final = (("minute", 59), ("hour", 23), ("day-of-month", 30), ("month", 11), ("weekday", 6))
_STEP: Final = re.compile(r"/(\d+)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_MINUTE_NS: Final = 60 * SECOND_NS
_SHOWN_MAX: Final = 64


class Cron:
    """A valid expression in a zone. Times are unix nanoseconds; slots are whole seconds."""

    def __init__(self, expression: str, timezone: str) -> None:
        """Use `parse`, which keeps what it made."""
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
        self.explanation = self._fields.explain()

    def next(self, after_ns: int) -> int:
        """The first slot that is later than `after_ns`; 0 when none comes within 50 years."""
        if self._every_ns:
            return (after_ns // self._every_ns + 1) * self._every_ns
        after = datetime.fromtimestamp(after_ns // SECOND_NS, UTC)
        try:
            occurrence = self._next_fixed(after) if self._fixed else self._next_interval(after)
        except StopIteration:
            return 0
        return (occurrence - _EPOCH) // _SECOND * SECOND_NS

    def after(self, after_ns: int) -> Iterator[int]:
        """All slots that are later than `after_ns`, in order."""
        while after_ns := self.next(after_ns):
            yield after_ns

    def latest(self, after_ns: int, until_ns: int, count: int) -> list[int]:
        """The last `count` slots behind `after_ns` and not behind `until_ns`, in order.

        They are looked for from the end, in a stretch as long as the first `count` intervals would
        be and then in longer ones, so that the cost does not depend on how long ago `after_ns`
        is."""
        found: list[int] = []
        first_ns = self.next(after_ns)
        end_ns, length_ns = until_ns, count * max(_MINUTE_NS, self.next(first_ns) - first_ns)
        while end_ns > after_ns and len(found) < count:
            start_ns = max(after_ns, end_ns - length_ns)
            stretch = []
            for occurrence_ns in self.after(start_ns):
                if occurrence_ns > end_ns:
                    break
                stretch.append(occurrence_ns)
            found = stretch + found
            end_ns = start_ns
            length_ns *= 2
        return found[-count:]

    def _next_fixed(self, after: datetime) -> datetime:
        """cronsim's own rule; it may name a time of the first pass while the second one runs."""
        simulation = copy.copy(self._fields)
        local = after.astimezone(self._zone)
        simulation.dt = local.replace(tzinfo=None)
        simulation.fixup_tz = self._zone
        while True:
            occurrence = next(simulation).astimezone(UTC)
            if occurrence > after:
                return occurrence

    def _next_interval(self, after: datetime) -> datetime:
        """The next minute whose wall time the fields allow.

        While the offset stays the same, wall time runs like UTC. Where it changes, the search
        goes on with the new one. A slot that is far off is approached in one leap: the days in
        between have no wall time that fits, or it would have been found first."""
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
        """The first instant of the day behind `after` that has another offset than this one."""
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
    """The expression, or a ScheduleError that names field and value."""
    return Cron(expression, timezone)


def _simulation(expression: str, fields: str) -> CronSim:
    """The fields read by cronsim, to be copied and set to a time."""
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
    """The zone from the package; `ZoneInfo(name)` would ask the host first."""
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def _refused(field: str, value: str, wanted: str) -> ScheduleError:
    text = json.dumps(value)
    shown = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
    return ScheduleError(f"{field} must be {wanted}, not {shown}", field=field)

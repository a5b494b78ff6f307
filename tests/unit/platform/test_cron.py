"""Cron expressions: which are valid, and occurrences over clock changes, computed by hand."""

import json
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corvo.errors import ScheduleError
from corvo.limits import CRON_SIZE_MAX, SECOND_NS
from corvo.platform import cron


def ns(text: str) -> int:
    """Unix nanoseconds of `2026-03-29 01:30`, in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS


def utc(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M}"


def occurrences(expression: str, zone: str, after: str, until: str) -> list[str]:
    """Occurrences behind `after` up to `until`."""
    end_ns = ns(until)
    found = takewhile(lambda at: at <= end_ns, cron.parse(expression, zone).after(ns(after)))
    return [utc(at_ns) for at_ns in found]


# Wall times that a change of the clock skips or repeats: three days around it. All times UTC.
FIXED = [
    # Berlin: +1, summer +2. 29 March 01:00 UTC: 02:00 becomes 03:00. 25 October 01:00: back.
    ("Europe/Berlin", "30 2 * * *", ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"]),
    ("Europe/Berlin", "30 2 * * *", ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]),
    # Two times of which one is skipped fall together.
    (
        "Europe/Berlin",
        "0 2,3 29,30 3 *",
        ["2026-03-29 01:00", "2026-03-30 00:00", "2026-03-30 01:00"],
    ),
    ("Europe/Warsaw", "0 2 * * *", ["2026-03-28 01:00", "2026-03-29 01:00", "2026-03-30 00:00"]),
    ("Europe/Warsaw", "59 2 * * *", ["2026-10-24 00:59", "2026-10-25 00:59", "2026-10-26 01:59"]),
    # London: 0, summer +1. 29 March 01:00 UTC: 01:00 becomes 02:00.
    ("Europe/London", "30 1 * * *", ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"]),
    ("Europe/London", "30 1 * * *", ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]),
    # New York: -5, summer -4. 8 March 07:00 UTC, 1 November 06:00.
    (
        "America/New_York",
        "15 2 * * *",
        ["2026-03-07 07:15", "2026-03-08 07:00", "2026-03-09 06:15"],
    ),
    (
        "America/New_York",
        "30 1 * * *",
        ["2026-10-31 05:30", "2026-11-01 05:30", "2026-11-02 06:30"],
    ),
    # St John's: -3:30, summer -2:30. 8 March 05:30 UTC, 1 November 04:30.
    (
        "America/St_Johns",
        "30 2 * * *",
        ["2026-03-07 06:00", "2026-03-08 05:30", "2026-03-09 05:00"],
    ),
    (
        "America/St_Johns",
        "30 1 * * *",
        ["2026-10-31 04:00", "2026-11-01 04:00", "2026-11-02 05:00"],
    ),
    # Lord Howe Island: +10:30, summer +11, so the clock moves by half an hour:
    # 3 October 15:30 UTC: 02:00 becomes 02:30. 4 April 15:00: 02:00 becomes 01:30.
    (
        "Australia/Lord_Howe",
        "15 2 * * *",
        ["2026-10-02 15:45", "2026-10-03 15:30", "2026-10-04 15:15"],
    ),
    (
        "Australia/Lord_Howe",
        "45 1 * * *",
        ["2026-04-03 14:45", "2026-04-04 14:45", "2026-04-05 15:15"],
    ),
    # Adelaide: +9:30, summer +10:30. 3 October 16:30 UTC, 4 April 16:30.
    (
        "Australia/Adelaide",
        "30 2 * * *",
        ["2026-10-02 17:00", "2026-10-03 16:30", "2026-10-04 16:00"],
    ),
    (
        "Australia/Adelaide",
        "30 2 * * *",
        ["2026-04-03 16:00", "2026-04-04 16:00", "2026-04-05 17:00"],
    ),
    # Auckland: +12, summer +13. 26 September 14:00 UTC, 4 April 14:00.
    (
        "Pacific/Auckland",
        "30 2 * * *",
        ["2026-09-25 14:30", "2026-09-26 14:00", "2026-09-27 13:30"],
    ),
    (
        "Pacific/Auckland",
        "30 2 * * *",
        ["2026-04-03 13:30", "2026-04-04 13:30", "2026-04-05 14:30"],
    ),
    # Kathmandu +5:45 and Kolkata +5:30 never change their clocks; nor does Sao Paulo (-3) any more.
    ("Asia/Kathmandu", "0 9 * * *", ["2026-03-28 03:15", "2026-03-29 03:15", "2026-03-30 03:15"]),
    ("Asia/Kolkata", "0 9 * * *", ["2026-10-24 03:30", "2026-10-25 03:30", "2026-10-26 03:30"]),
    (
        "America/Sao_Paulo",
        "30 0 * * *",
        ["2026-11-03 03:30", "2026-11-04 03:30", "2026-11-05 03:30"],
    ),
    # It did in 2018, at midnight: 4 November 03:00 UTC, 00:00 became 01:00.
    (
        "America/Sao_Paulo",
        "30 0 * * *",
        ["2018-11-03 03:30", "2018-11-04 03:00", "2018-11-05 02:30"],
    ),
    # Apia had no 30 December 2011: at 10:00 UTC the 29th (-10) became the 31st (+14).
    ("Pacific/Apia", "0 12 * * *", ["2011-12-29 22:00", "2011-12-30 10:00", "2011-12-30 22:00"]),
]


@pytest.mark.parametrize(("zone", "expression", "expected"), FIXED)
def test_a_wall_time_runs_once_a_day(zone: str, expression: str, expected: list[str]) -> None:
    before = f"{datetime.fromisoformat(expected[0]) - timedelta(hours=2):%Y-%m-%d %H:%M}"
    assert occurrences(expression, zone, before, expected[-1]) == expected


# Expressions with a star keep their interval: occurrences around the change, UTC.
INTERVALS = [
    # No wall clock in Berlin shows 02:xx on 29 March; on 25 October two hours do.
    ("Europe/Berlin", "*/30 2 * * *", "2026-03-28 12:00", "2026-03-29 12:00", []),
    (
        "Europe/Berlin",
        "*/30 2 * * *",
        "2026-10-24 12:00",
        "2026-10-25 12:00",
        ["2026-10-25 00:00", "2026-10-25 00:30", "2026-10-25 01:00", "2026-10-25 01:30"],
    ),
    (
        "Europe/Berlin",
        "0 */2 * * *",
        "2026-10-24 21:00",
        "2026-10-25 03:00",
        ["2026-10-24 22:00", "2026-10-25 00:00", "2026-10-25 01:00", "2026-10-25 03:00"],
    ),
    # Lord Howe Island shows 01:30 to 01:59 twice on 5 April ...
    (
        "Australia/Lord_Howe",
        "*/15 1 * * *",
        "2026-04-04 12:00",
        "2026-04-05 12:00",
        [f"2026-04-04 14:{minute}" for minute in ("00", "15", "30", "45")]
        + ["2026-04-04 15:00", "2026-04-04 15:15"],
    ),
    # ... and all of 02:00 to 02:59 after that; on 4 October the first half of that hour is skipped.
    (
        "Australia/Lord_Howe",
        "*/15 2 * * *",
        "2026-04-04 12:00",
        "2026-04-05 12:00",
        ["2026-04-04 15:30", "2026-04-04 15:45", "2026-04-04 16:00", "2026-04-04 16:15"],
    ),
    (
        "Australia/Lord_Howe",
        "*/15 2 * * *",
        "2026-10-03 12:00",
        "2026-10-04 12:00",
        ["2026-10-03 15:30", "2026-10-03 15:45"],
    ),
    (
        "Australia/Lord_Howe",
        "0 * * * *",
        "2026-10-03 13:00",
        "2026-10-03 17:30",
        ["2026-10-03 13:30", "2026-10-03 14:30", "2026-10-03 16:00", "2026-10-03 17:00"],
    ),
    (
        "Asia/Kathmandu",
        "0 * * * *",
        "2026-10-03 13:00",
        "2026-10-03 15:30",
        ["2026-10-03 13:15", "2026-10-03 14:15", "2026-10-03 15:15"],
    ),
]


@pytest.mark.parametrize(("zone", "expression", "after", "until", "expected"), INTERVALS)
def test_an_interval_keeps_its_length(
    zone: str, expression: str, after: str, until: str, expected: list[str]
) -> None:
    assert occurrences(expression, zone, after, until) == expected


def test_hourly_in_warsaw_over_the_end_of_summer() -> None:
    """Each full hour once, the repeated one too."""
    runs = occurrences("0 * * * *", "Europe/Warsaw", "2026-10-24 21:59", "2026-10-25 22:00")
    start = datetime(2026, 10, 24, 22)
    assert runs == [f"{start + timedelta(hours=n):%Y-%m-%d %H:%M}" for n in range(25)]


def test_half_hours_of_a_day_of_25_hours_in_new_york() -> None:
    runs = occurrences("*/30 * * * *", "America/New_York", "2026-11-01 03:59", "2026-11-02 04:59")
    assert len(runs) == 50
    assert runs == sorted(set(runs))


def test_a_schedule_made_in_the_repeated_hour_never_looks_back() -> None:
    """At 02:10 for the second time, 02:30 of today is over: it ran the first time."""
    after = "2026-10-25 01:10"
    assert occurrences("30 2 * * *", "Europe/Berlin", after, "2026-10-26 12:00") == [
        "2026-10-26 01:30"
    ]


ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Havana",
    "America/Santiago",
    "Antarctica/Troll",
    "Australia/Lord_Howe",
    "Australia/Adelaide",
    "Asia/Kathmandu",
    "Africa/Casablanca",
]
DAYS = 400
YEAR_NS = ns("2026-01-01 00:00")


def local(at_ns: int, zone: str) -> datetime:
    return datetime.fromtimestamp(at_ns // SECOND_NS, cron._zone(zone))


@settings(max_examples=40, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    day=st.integers(0, DAYS),
    step=st.sampled_from([1, 7, 15, 20, 30]),
    hours=st.sampled_from(["*", "*/2", "2", "0,1", "1-3", "23"]),
)
def test_intervals_are_what_the_wall_clock_shows(
    zone: str, day: int, step: int, hours: str
) -> None:
    """Compared with looking at the clock each minute, for two days."""
    first_ns = YEAR_NS + day * 86_400 * SECOND_NS
    last_ns = first_ns + 2 * 86_400 * SECOND_NS
    allowed = {"*": range(24), "*/2": range(0, 24, 2), "2": (2,), "0,1": (0, 1)}
    allowed |= {"1-3": (1, 2, 3), "23": (23,)}
    expected = [
        at_ns
        for at_ns in range(first_ns + 60 * SECOND_NS, last_ns + 1, 60 * SECOND_NS)
        if (wall := local(at_ns, zone)).minute % step == 0 and wall.hour in allowed[hours]
    ]
    expression = cron.parse(f"*/{step} {hours} * * *", zone)
    found = list(takewhile(lambda at: at <= last_ns, expression.after(first_ns)))
    assert found == expected
    assert expression.latest(first_ns, last_ns, 10) == expected[-10:]
    assert expression.latest(first_ns, last_ns, 10_000) == expected


@settings(max_examples=15, deadline=None)
@given(
    zone=st.sampled_from(ZONES), hour=st.integers(0, 23), minute=st.sampled_from([0, 15, 30, 59])
)
def test_wall_times_run_once_on_each_day_of_the_year(zone: str, hour: int, minute: int) -> None:
    """At their first showing, or at the first minute that is shown after them."""
    where = cron._zone(zone)
    expected = []
    for day in range(DAYS):
        wall = datetime(2026, 1, 2) + timedelta(days=day, hours=hour, minutes=minute)
        at = wall.replace(tzinfo=where)
        while at.astimezone(UTC).astimezone(where).replace(tzinfo=None) != wall:
            wall += timedelta(minutes=1)
            at = wall.replace(tzinfo=where)
        expected.append(int(at.timestamp()) * SECOND_NS)
    expression = cron.parse(f"{minute} {hour} * * *", zone)
    assert list(islice(expression.after(expected[0] - SECOND_NS), DAYS)) == expected
    assert expression.latest(0, expected[-1], DAYS) == expected


@given(
    expression=st.sampled_from(["* * * * *", "30 2 * * *", "0 0 29 2 *", "@weekly", "@every 90s"]),
    zone=st.sampled_from(ZONES),
    after_ns=st.integers(0, ns("2200-01-01 00:00")),
)
def test_the_next_occurrence_is_always_later(expression: str, zone: str, after_ns: int) -> None:
    occurrence_ns = cron.parse(expression, zone).next(after_ns)
    assert occurrence_ns > after_ns and occurrence_ns % SECOND_NS == 0


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@Midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * sun"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 jan *"),
        ("@annually", "0 0 1 1 *"),
        ("0 9 * * mon-fri", "0 9 * * 1,2,3,4,5"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("5-59/10 0 1 * *", "5,15,25,35,45,55 0 1 1-12 *"),
        ("  0   0 1  * * ", "0 0 1 * *"),
    ],
)
def test_ways_to_write_the_same(expression: str, same: str) -> None:
    first, second = (cron.parse(text, "Europe/Berlin") for text in (expression, same))
    assert [*islice(first.after(YEAR_NS), 30)] == [*islice(second.after(YEAR_NS), 30)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 L * *", ["2026-01-31 00:00", "2026-02-28 00:00", "2026-03-31 00:00"]),
        ("0 0 * * MON#2", ["2026-01-12 00:00", "2026-02-09 00:00", "2026-03-09 00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"]),
        # A day of the month or a day of the week, when both are given.
        ("0 0 13 * 5", ["2026-01-02 00:00", "2026-01-09 00:00", "2026-01-13 00:00"]),
        ("@every 36h", ["2026-01-02 12:00", "2026-01-04 00:00", "2026-01-05 12:00"]),
        ("@every 1h30m", ["2026-01-01 01:30", "2026-01-01 03:00", "2026-01-01 04:30"]),
    ],
)
def test_days_and_intervals(expression: str, expected: list[str]) -> None:
    found = islice(cron.parse(expression, "UTC").after(YEAR_NS), 3)
    assert [utc(at_ns) for at_ns in found] == expected


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "*",
        "* * * *",
        "0 * * * * *",  # six fields: nobody agrees on what the first one means
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "1,,2 * * * *",
        "*/0 * * * *",
        "*/60 * * * *",
        "0 */24 * * *",
        "a * * * *",
        "* * * foo *",
        "-1 * * * *",
        "1.5 * * * *",
        "١ * * * *",
        "* * * * frı",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "@reboot",
        "@every",
        "@every 0s",
        "@every 500ms",
        "@every 1.5s",
        "@every -5m",
        "@every 5 parsecs",
        "@every 1000d",
        "@everyday",
        "x" * 300,
    ],
)
def test_a_bad_expression_is_refused_by_name(expression: str) -> None:
    with pytest.raises(ScheduleError, match=r"^cron ") as refused:
        cron.parse(expression, "UTC")
    if len(expression) <= CRON_SIZE_MAX:
        assert json.dumps(expression) in refused.value.message


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "europe/berlin", "../etc/passwd", "/UTC"])
def test_a_bad_zone_is_refused_by_name(zone: str) -> None:
    with pytest.raises(ScheduleError, match=r"^timezone must be a zone") as refused:
        cron.parse("* * * * *", zone)
    assert json.dumps(zone) in refused.value.message


def test_rules_come_from_the_package_and_not_from_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnlyFiles:
        """ZoneInfo that cannot look for a zone by its name."""

        from_file = ZoneInfo.from_file

    monkeypatch.setattr(cron, "ZoneInfo", OnlyFiles)
    cron._read_zone.cache_clear()
    assert len(cron._zones()) > 500
    for name in cron._zones():
        assert str(cron._zone(name)) == name


def test_words_for_an_expression() -> None:
    assert cron.parse("30 2 * * 1-5", "UTC").explanation == "At 02:30 on Monday through Friday"
    assert cron.parse("@every 90m", "UTC").explanation == "Every 1h30m"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 0 21 * *", "At 00:00 on the 21st day of every month"),
        (
            "0 0 1,2,22,23,31 * *",
            "At 00:00 on the first, the second, the 22nd, the 23rd, and the 31st day of month",
        ),
        ("0 0 11,12,13 * *", "At 00:00 on the 11th, the 12th, and the 13th day of month"),
        ("0 0 * * SUN,7", "At 00:00 on Sunday"),
        ("0 0 * * 0,7", "At 00:00 on Sunday"),
        ("0 0 * * SAT,SUN,7,6", "At 00:00 on Saturday and Sunday"),
        ("0 0 * * MON-FRI,3", "At 00:00 on Monday through Friday"),
        ("0 0 * * 5-7,SUN", "At 00:00 on Friday through Sunday"),
        ("0 9,9 * JAN,1 *", "At 09:00 every day in January"),
        ("0 0 1,1 * *", "At 00:00 on the first day of every month"),
        ("0 0 21 * SUN", "At 00:00 on the 21st day of month or on Sunday"),
        ("0 0 * * SUN#1,SUN", "At 00:00 on the first Sunday of the month and Sunday"),
    ],
)
def test_a_schedule_in_words(expression: str, words: str) -> None:
    assert cron.parse(expression, "UTC").explanation == words


@given(st.lists(st.integers(1, 31), min_size=1, max_size=5), st.lists(st.integers(0, 7)))
def test_words_name_each_day_once(days: list[int], weekdays: list[int]) -> None:
    fields = f"0 0 {','.join(map(str, days))} * {','.join(map(str, weekdays)) or '*'}"
    text = cron.parse(fields, "UTC").explanation
    for wrong in ("1th", "2th", "3th"):
        assert not any(word.endswith(wrong) and word[-4] != "1" for word in text.split()[1:])
    words = text.replace(",", "").split()
    for name in ("Monday", "Sunday", "21st", "first"):
        assert words.count(name) <= 1


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("CRON_TZ=Europe/Berlin 0 0 * * *", 'set "timezone": "Europe/Berlin"'),
        ("TZ=UTC 0 0 * * *", 'set "timezone": "UTC"'),
        ("CRON_TZ=Nowhere @daily", "timezone"),
        ("0 0 ? * *", "use * instead of ?"),
        ("0 0 * * ?", "use * instead of ?"),
        ("0 0 0 * * *", "leave out the seconds: 0 0 * * *"),
        ("*/10 * * * * *", "@every 10s"),
        ("0 0 12 ? * MON-FRI 2026", "leave out the seconds and the year: 0 12 * * MON-FRI"),
        ("0 0 * * SAT-SUN", "use SAT,SUN"),
        ("0 0 * * FRI-MON", "use FRI-SAT,SUN-MON"),
        ("0 0 * NOV-FEB *", "use NOV-DEC,JAN-FEB"),
        ("0 22-2 * * *", "use 22-23,0-2"),
        ("0 0 L-3 * *", "L"),
        ("0 0 15W * *", "W"),
        ("0 0 * * Sunday", "SUN"),
        ("0 0 * December *", "DEC"),
        ("@reboot", "one of"),
        ("0 0 * *", "five fields"),
    ],
)
def test_a_refused_expression_has_a_hint(expression: str, hint: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        cron.parse(expression, "UTC")
    assert hint in caught.value.message
    assert json.dumps(expression) in caught.value.message

"""Times and durations as text."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo import limits
from corvo.errors import ValidationError
from corvo.platform.durations import (
    DURATION_MAX_NS,
    format_duration,
    format_time,
    parse_duration,
    parse_time,
)


@given(st.integers(0, limits.TIME_MAX_NS))
def test_time_survives_text(at_ns: int) -> None:
    assert parse_time(format_time(at_ns)) == at_ns


@given(
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(9998, 12, 31)),
    st.integers(-1439, 1439),
)
def test_time_agrees_with_datetime(at: datetime, offset_minutes: int) -> None:
    offset = timedelta(minutes=offset_minutes)
    text = (at + offset).isoformat()
    sign = "-" if offset_minutes < 0 else "+"
    hours, minutes = divmod(abs(offset_minutes), 60)
    since_epoch = at.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    expected = (since_epoch // timedelta(microseconds=1)) * 1000
    assert parse_time(f"{text}{sign}{hours:02d}:{minutes:02d}") == expected


@pytest.mark.parametrize(
    ("text", "at_ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-02-10T12:00:00Z", 1_770_724_800 * 10**9),
        ("2026-02-10t12:00:00.5z", 1_770_724_800 * 10**9 + 500_000_000),
        ("2026-02-10T13:00:00.1234567899+01:00", 1_770_724_800 * 10**9 + 123_456_789),
        ("2026-02-10T12:00:00-00:00", 1_770_724_800 * 10**9),
        ("9999-12-31T23:59:59.999999999Z", limits.TIME_MAX_NS),
    ],
)
def test_times(text: str, at_ns: int) -> None:
    assert parse_time(text) == at_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-02-10",
        "2026-02-10T12:00:00",
        "2026-02-10 12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-02-10T24:00:00Z",
        "2026-12-31T23:59:60Z",
        "2026-02-10T12:00:00.Z",
        "2026-02-10T12:00:00+24:00",
        "2026-02-10T12:00:00+0100",
        " 2026-02-10T12:00:00Z",
        "2026-02-10T12:00:00Z\n",
        "٢٠٢٦-02-10T12:00:00Z",
        "0000-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "9999-12-31T23:59:59-00:01",
        "1970-01-01T00:00:00+00:01",
        "12026-02-10T12:00:00Z",
    ],
)
def test_bad_time_names_its_field(text: str) -> None:
    with pytest.raises(ValidationError, match="^scheduled_at must be "):
        parse_time(text, "scheduled_at")


@given(st.integers(0, DURATION_MAX_NS))
def test_duration_survives_text(length_ns: int) -> None:
    assert parse_duration(format_duration(length_ns)) == length_ns


@given(st.integers(0, DURATION_MAX_NS // 10**9))
def test_number_is_seconds(seconds: int) -> None:
    assert parse_duration(seconds) == parse_duration(str(seconds)) == seconds * 10**9


def test_number_too_long_to_print_is_refused() -> None:
    with pytest.raises(ValidationError, match="timeout must be a duration"):
        parse_duration(10**5000, "timeout")


@pytest.mark.parametrize(
    ("value", "length_ns"),
    [
        (0, 0),
        (0.25, 250_000_000),
        (0.1, 100_000_000),
        ("1.5s", 1_500_000_000),
        ("1h30m", 5_400 * 10**9),
        ("500ms", 500_000_000),
        ("7d", 7 * 86_400 * 10**9),
        ("1m0.5s", 60_500_000_000),
        ("10us5ns", 10_005),
        ("10µs", 10_000),
        ("0.25", 250_000_000),
        ("", None),
        ("s", None),
        ("1h30", None),
        ("1 h", None),
        ("-5s", None),
        (-1, None),
        (-0.5, None),
        ("1w", 7 * 86_400 * 10**9),
        ("1h" * 17, None),
        (True, None),
        (float("inf"), None),
        (float("nan"), None),
        (1e300, None),
        ("9" * 21 + "s", None),
        (DURATION_MAX_NS // 10**9 + 1, None),
    ],
)
def test_durations(value: str | int | float, length_ns: int | None) -> None:
    if length_ns is not None:
        assert parse_duration(value) == length_ns
        return
    with pytest.raises(ValidationError, match="^timeout must be a duration"):
        parse_duration(value, "timeout")

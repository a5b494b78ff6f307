"""The table of failpoints, how they are armed, and when they act."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from corvo.errors import ConfigError
from corvo.platform import failpoints

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def outcome(point: str) -> int:
    """The errno that reaching the point gives, or 0."""
    try:
        failpoints.reach(point)
    except OSError as error:
        return error.errno or -1
    return 0


def test_nothing_is_armed_by_itself() -> None:
    assert not failpoints.armed
    assert all(outcome(point) == 0 for point in failpoints.POINTS)


def test_a_point_acts_once_when_it_is_reached_so_often() -> None:
    failpoints.arm("wal.before_sync=error@3,wal.create=full")
    assert failpoints.armed
    assert [outcome("wal.before_sync") for _ in range(4)] == [0, 0, errno.EIO, 0]
    assert [outcome("wal.create") for _ in range(2)] == [errno.ENOSPC, 0]
    assert outcome("wal.after_sync") == 0


def test_a_point_can_act_from_then_on() -> None:
    failpoints.arm("base.before_commit=full@2+")
    assert [outcome("base.before_commit") for _ in range(3)] == [0, errno.ENOSPC, errno.ENOSPC]


def test_a_size_arms_no_point() -> None:
    failpoints.arm("wal.segment_size=65536")
    assert not failpoints.armed
    assert failpoints.size("wal.segment_size", 1) == 65536
    failpoints.arm("")
    assert failpoints.size("wal.segment_size", 1) == 1


@pytest.mark.parametrize(
    "text",
    [
        "wal.before_sinc=kill",
        "wal.before_sync",
        "wal.before_sync=explode",
        "wal.before_sync=kill@",
        "wal.before_sync=kill@0",
        "wal.before_sync=kill@x",
        "wal.segment_size=big",
    ],
)
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="CORVO_FAILPOINTS"):
        failpoints.arm(text)


def test_the_documented_table_is_the_real_one() -> None:
    assert failpoints.table() in (ROOT / "docs" / "testing.md").read_text()

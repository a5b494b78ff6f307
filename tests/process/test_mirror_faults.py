"""The short forms of `make mirror-faults`: the mirror is disturbed, and nothing else notices."""

from pathlib import Path

import pytest
from lib import mirror_faults
from lib.mirror_faults import Fault, Row


def check(row: Row) -> None:
    assert row.times and row.lives and row.jobs
    assert row.errors == 0
    # Nobody waits for the sidecar: far below the 15 s after which a silent one is killed.
    assert row.during_ms[1] < 2_000


@pytest.mark.parametrize(
    ("name", "fault", "amount"),
    [
        ("stalled", mirror_faults.stalled, 3),
        ("killed", mirror_faults.killed, 4),
        ("deleted", mirror_faults.deleted, 3),
    ],
)
def test_a_disturbed_mirror(name: str, fault: Fault, amount: float, data_dir: Path) -> None:
    check(mirror_faults.run(name, fault, amount, data_dir, 0.5))


def test_no_space_on_the_volume_of_the_mirror(data_dir: Path) -> None:
    try:
        with mirror_faults.small_volume(data_dir, 24 << 20):
            check(mirror_faults.run("full", mirror_faults.full, 3, data_dir, 0.5))
    except OSError as error:
        assert "mounting is not allowed" in str(error)

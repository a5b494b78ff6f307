"""Every failpoint kills, stops or fails the stores once, and the next start has everything."""

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.child import run
from crash.engine import IDENTITY, SEGMENT
from crash.images import SCRATCH
from crash.points import FAILPOINTS
from crash.recovery import recovered

from corvo.model import COMPLETED

FIRST = "apply.before=kill@50"  # the end of the life before


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as directory:
        yield Path(directory) / "data"


def check(root: Path, lines: str) -> None:
    """What was acknowledged is there, and the rows agree with each other."""
    words = [line.split() for line in lines.splitlines()]
    deleted = {job_id for verb, job_id in words if verb == "deleted"}
    with recovered(root, IDENTITY, SEGMENT) as state:
        for verb, job_id in words:
            job = state.machine.job(job_id)
            if job_id in deleted:
                continue
            assert job is not None, f"{job_id} is lost"
            assert verb != "acked" or job.state == COMPLETED, f"the ack of {job_id} is undone"
        state.check()


@pytest.mark.parametrize("point", [point for point, _ in FAILPOINTS])
def test_an_error_is_final(root: Path, point: str) -> None:
    _, before = run(root, FIRST, True, seed=1)
    status, after = run(root, point.replace("kill", "error"), True, seed=2)
    assert status > 0, "it went on"
    check(root, before + after)


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "not durable"])
@pytest.mark.parametrize("point", [point for point, _ in FAILPOINTS])
def test_kill(root: Path, point: str, durable: bool) -> None:
    first, before = run(root, FIRST, durable, seed=1)
    second, after = run(root, point, durable, seed=2)
    assert second == -signal.SIGKILL, "the point was not reached"
    assert first == -signal.SIGKILL
    check(root, before + after)

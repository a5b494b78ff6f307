"""One short round of a few faults of real clusters; `make faults` runs them all."""

from pathlib import Path

import pytest
from faults.campaign import Scenario, run
from faults.machines import Unavailable
from faults.scenarios import SCENARIOS

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def one_round(scenario: Scenario) -> None:
    result = run(scenario, 1, 7)
    assert not result.failed, result.failed
    assert not result.broken, result.broken
    assert result.rounds == 1 and result.counts["acknowledged"] > 0


@pytest.mark.parametrize("name", ["A1", "A5"])
def test_the_leader_is_killed_or_hangs(name: str) -> None:
    one_round(BY_NAME[name])


def test_the_leader_is_cut_off() -> None:
    """Where namespaces can be made; else there is nothing to see."""
    try:
        one_round(BY_NAME["A7-alone"])
    except Unavailable as error:
        assert str(error)


def test_what_is_not_possible_here_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="there is no ip"):
        run(BY_NAME["A7-alone"], 1, 7)

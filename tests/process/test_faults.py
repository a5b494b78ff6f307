"""One short round of a few faults of real clusters; `make faults` runs them all."""

from pathlib import Path

import pytest
from faults.campaign import Scenario, run
from faults.machines import Unavailable
from faults.record import Record
from faults.scenarios import SCENARIOS

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def one_round(scenario: Scenario) -> None:
    result = run(scenario, 1, 7)
    assert not result.failed, result.failed
    assert not result.broken, result.broken
    assert result.rounds == 1 and result.counts["acknowledged"] > 0


@pytest.mark.parametrize("name", ["A3", "A5"])
def test_all_are_killed_or_the_leader_hangs(name: str) -> None:
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


def test_a_record_tells_what_cannot_be_explained() -> None:
    record = Record()

    def say(key: str, name: str, arguments: tuple[object, ...], answer: object) -> None:
        record.answer(record.invoke(key, name, *arguments), answer, key)

    for key in ("good", "undone", "twice", "lost"):
        say(key, "enqueue", (), True)
        say(key, "fetch", (), ("t1", 1))
    for key in ("good", "undone"):
        say(key, "ack", ("t1",), True)
    # Two leases that nobody else saw may lie between.
    say("good", "ack", ("t1",), True)
    say("undone", "fetch", (), ("t2", 2))
    say("twice", "fetch", (), ("t2", 2))
    say("twice", "beat", ("t1",), True)
    record.invoke("lost", "ack", "t1")  # no answer: it may count
    final = {"good": ("completed", 1), "twice": ("pending", 2), "lost": ("completed", 2)}
    stories = record.unexplained(final)
    assert [story.split()[-1] for story in (s.split(":")[0] for s in stories)] == [
        "lost",
        "twice",
        "undone",
    ]

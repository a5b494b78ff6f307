"""`corvo server`: how flags reach the settings. What they mean is tested with corvo.config."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from corvo import config


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[config.Config]:
    """The settings of each start; nothing really starts."""
    starts: list[config.Config] = []
    node = SimpleNamespace(run=lambda settings: starts.append(settings) or 0)
    monkeypatch.setitem(sys.modules, "corvo.node.node", node)
    for name in config.NAMES:
        monkeypatch.delenv(config.env_name(name), raising=False)
    return starts


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("", "durable", True),
        ("--durable", "durable", True),
        ("--durable=false", "durable", False),
        ("--durable false --data-dir d", "durable", False),
        ("--no-durable", "durable", False),
        ("--test-clock --data-dir d", "data_dir", "d"),
        ("--test-clock --data-dir d", "test_clock", True),
        ("--max-pending=7", "max_pending", 7),
        ("--raft-max-pending 7", "max_pending", 7),
        ("--log-level debug", "log_level", "debug"),
        ("--raft-store badger", "ignored", ("raft-store (from --raft-store)",)),
    ],
)
def test_flags(
    run: Any, started: list[config.Config], words: str, field: str, value: object
) -> None:
    assert run("server", *words.split()) == (0, "", "")
    assert getattr(started[0], field) == value


def test_log_level_before_the_command(run: Any, started: list[config.Config]) -> None:
    assert run("--log-level", "warn", "server").status == 0
    assert started[0].log_level == "warn"


def test_environment(
    run: Any, started: list[config.Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORVO_DATA_DIR", "e")
    run("server")
    run("server", "--data-dir", "f")
    assert [settings.data_dir for settings in started] == ["e", "f"]


@pytest.mark.parametrize(
    "words",
    [
        "--bind :8080",
        "--durable=maybe",
        "--join host:9400",
        "--max-pending 0",
        "--nope",
        "stray",
        "--config /nowhere.toml",
    ],
)
def test_bad_settings_do_not_start(run: Any, started: list[config.Config], words: str) -> None:
    status, out, err = run("server", *words.split())
    assert (status, out) == (1, "")
    assert err.startswith("Error: ")
    assert started == []


def test_help_shows_what_there_is(run: Any) -> None:
    out = run("server", "--help").out
    for option in config.OPTIONS:
        assert f"--{option.name} " in out
    assert "--no-durable" in out and "CORVO_DATA_DIR" in out
    for name in (*config.ABSENT, *config.IGNORED):
        assert f"--{name} " not in out

"""Log lines, as text and as JSON."""

import json
import logging
from collections.abc import Iterator

import pytest

from corvo.platform import logging_setup


@pytest.fixture(autouse=True)
def same_root() -> Iterator[None]:
    """Puts the handlers of the test run back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(capsys: pytest.CaptureFixture[str], style: str) -> str:
    logging_setup.configure("warn", style)
    logger = logging.getLogger("corvo.test")
    logger.info("not shown")
    fields = {"bind": "127.0.0.1:8080", "text": 'two "words"', "durable": True, "empty": ""}
    logger.warning("slow %s", "disk", extra={"fields": fields})
    return capsys.readouterr().err


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    line = written(capsys, "text")
    assert line.endswith(
        'Z level=warn msg="slow disk" bind=127.0.0.1:8080 text="two \\"words\\"" durable=true'
        ' empty=""\n'
    )


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    line = json.loads(written(capsys, "json"))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warn",
        "logger": "corvo.test",
        "msg": "slow disk",
        "bind": "127.0.0.1:8080",
        "text": 'two "words"',
        "durable": True,
        "empty": "",
    }


def test_the_worst_level_has_a_name_of_the_setting(capsys: pytest.CaptureFixture[str]) -> None:
    logging_setup.configure("error", "text")
    logging.getLogger("corvo.test").critical("fatal")
    assert "level=error" in capsys.readouterr().err

"""Every story still gives its recorded output; `python tools/stories.py` records it again."""

from pathlib import Path

import pytest
from scripts.story import record, stories


@pytest.mark.parametrize("path", stories(), ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    text = path.read_text("utf-8")
    assert record(text) == text


def test_what_was_recorded_is_replaced() -> None:
    told = "Two words.\n\n> cluster A\n\n> elect A\nsomething else\n\nThe end.\n"
    assert record(told) == (
        "Two words.\n\n> cluster A\n\n> elect A\nA leads term 1\nA applies 1:-\n\nThe end.\n"
    )

"""Escaping, JSON text, tables, and the choice of the output form."""

import json
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo.cli import display

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.text())
def test_visible_text_is_one_printable_line(text: str) -> None:
    shown = display.visible(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(mark) < 32 or 127 <= ord(mark) < 160 for mark in shown)


@given(JSON_VALUES)
def test_json_text_keeps_the_value(value: object) -> None:
    shown = display.json_text(json.dumps(value, ensure_ascii=False).encode("utf-8"))
    assert json.loads(shown) == value
    assert not any(mark != "\n" and ord(mark) < 32 for mark in shown)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["queues", "--output", "json"], True),
        (["queues", "--output=json"], True),
        (["--output-json", "queues"], True),
        (["queues", "--output", "plain"], False),
        (["enqueue", "--", "--output", "json"], False),
        (["json", "--output"], False),
        ([], False),
    ],
)
def test_wants_json(words: list[str], wanted: bool) -> None:
    assert display.wants_json(words) is wanted


def test_table_without_rows_and_with_long_cells(capsys: pytest.CaptureFixture[str]) -> None:
    display.table(["A", "B"], [])
    assert capsys.readouterr().out == "A  B\n"
    display.table(["A", "B"], [["x" * 300, "\t"]])
    assert capsys.readouterr().out.splitlines()[1] == "x" * 300 + "  \\t"


def test_table_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    display.table(["QUEUE", "PENDING", "DEAD"], [["q" * 60, "1234567890", "0"], ["[b]", "1", "2"]])
    shown = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    lines = [line.rstrip() for line in shown.splitlines()]
    assert all(len(line) <= 40 for line in lines)
    assert "q…" in lines[1] and "1234567890" in lines[1]
    assert lines[2].startswith("[b]")

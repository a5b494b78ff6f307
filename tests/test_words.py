"""The sources and documents use the terms of the field, not the private words they replaced."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import old_words  # noqa: E402

CLEAN = ["corvo", "sdk", "tests", "tools", "bench", "docs", "README.md"]


@pytest.mark.parametrize("path", CLEAN)
def test_no_old_words(path: str) -> None:
    complaints = list(old_words.complaints([path]))
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize(
    "line",
    [
        "written to the base",
        "the base's rows",
        "def lane_of(job): ...",
        "class Lane:",
        "# the job is doomed",
        "self._errand = None",
        "patience_ms = 3",
        "a flush of the overlay",
        "the job's extras",
        "is built anew",
    ],
)
def test_old_words_are_found(line: str) -> None:
    assert list(old_words.occurrences("corvo/x.py", line))


@pytest.mark.parametrize(
    "line",
    [
        "the base class of all errors",
        "the base delay of a retry",
        "base64 of a plane",
        "an extra byte",
        '"schedule_slot": "2026-01-01T00:00:00Z"',
        "__slots__ = ()",
    ],
)
def test_ordinary_words_are_not(line: str) -> None:
    assert list(old_words.occurrences("corvo/x.py", line)) == []


def test_missing_modules_are_found() -> None:
    assert list(old_words.missing_modules("see `corvo.kv.documents`"))
    assert list(old_words.missing_modules("see `corvo.storage.records.jobs.decode_head`")) == []


@pytest.mark.parametrize("entry", old_words.ALLOWED, ids=lambda entry: entry.text)
def test_allowed_meanings_occur(entry: old_words.Allowed) -> None:
    files = old_words.files(list(old_words.FOLDERS))
    texts = (f.read_text("utf-8") for f in files if str(f.relative_to(ROOT)).startswith(entry.path))
    assert entry.reason and any(re.search(entry.text, text) for text in texts)

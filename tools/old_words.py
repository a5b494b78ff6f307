"""Lists private words that have been replaced by the terms of the field.

    python tools/old_words.py [folder or file ...]

Prints `path:line: word -> term` for every occurrence in the sources, the tests and the documents,
and a count for each top folder. The exit status is 1 if there are any. `tests/test_words.py` keeps
the folders that are clean free of them.

Only words that can be recognized by a pattern are here. A word that also has an ordinary meaning
(task, place, reads, answers) is left to the reviewer.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = ("corvo", "sdk", "docs", "tests", "tools", "bench", "README.md", "Makefile")
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".proto", ".md", ".txt", ""}
# These files name the old words themselves.
EXCLUDED = {"tools/old_words.py", "tests/test_words.py", "tests/lib/plain_english.py"}


class Word(NamedTuple):
    """A private word, as a pattern over one line, and the term that replaces it."""

    term: str
    pattern: re.Pattern[str]


def _part(words: str) -> str:
    """Return a pattern for whole words and for parts of identifiers (`lane`, `lane_of`, `Lane`)."""
    capitals = "|".join(word.capitalize() for word in words.split("|"))
    return rf"(?<![A-Za-z])(?:{words})(?![a-z])|(?<![A-Z])(?:{capitals})(?![a-z])"


_ARTICLE = r"\b(?:the|a|an|its|that|this|another|each|every|one|old|new|own|whole|from|of)"
_NOT_BASE = r"(?![-_\w`]|\s*(?:class|classes|delay|delays|url|image|path|64|backoff|fee)\b)"

WORDS = [
    Word(term, re.compile(pattern))
    for term, pattern in (
        ("state store", rf"{_ARTICLE} base{_NOT_BASE}|\bbase's\b|`base`"),
        ("write buffer", _part("overlay|overlays")),
        ("queue index", _part("lane|lanes")),
        ("pending deletion", _part("doom|dooms|doomed")),
        ("forwarded request", _part("errand|errands")),
        ("node addresses", _part("whereabouts")),
        ("completion effects", _part("aftermath")),
        ("randomized election timeout", _part("patience")),
        ("dependency failed", _part("forsake|forsakes|forsaken")),
        ("pending dependents", _part("unsettle|unsettled")),
        ("run, occurrence", _part("firing|firings")),
        ("occurrence, completion, position", _part("slot|slots")),
        ("event", r"\b[Cc]hange records?\b"),
        ("options", r"(?<![A-Za-z])[Ee]xtras(?![a-z])|EXTRAS"),
        ("fast path", r"\bplain (?:path|way)\b"),
        ("mirror files", _part("keeper|keepers")),
        ("background flush", _part("gentle|gently")),
        ("single-node log", _part("solo")),
        ("again", r"\banew\b"),
        ("gradually", r"\bbit by bit\b"),
        ("a noun", r"\b[Ww]hoever\b"),
    )
]


class Allowed(NamedTuple):
    """An ordinary meaning of a word: where, in which text, and why."""

    path: str
    text: str
    reason: str


ALLOWED = [
    Allowed("", r"schedule_slot|scheduleSlot|SCHEDULE_SLOT", "a field of the API"),
    Allowed("", r"\b_*slots_*\s*=|__slots__|@dataclass\(.*slots=", "slots of a Python class"),
    Allowed(
        "", r"RowOverlay|row_overlay", "the module of changed rows: an overlay in its own right"
    ),
    Allowed("corvo/mirror/", r"\bslot\b", "a column of the mirror, part of its file format"),
    Allowed("corvo/net/api/responses.py", r"last_slot", "a field of the API"),
    Allowed("docs/api.md", r"last_slot|holders` of the slots", "a field; a unit of the limit"),
    Allowed("tests/test_tidy.py", r"anew|bit by bit|Whoever", "samples of the rule `english`"),
    Allowed("tests/test_tidy.py", r"its base", "the class that a class extends"),
    Allowed("", r"corvo_overlay_", "the name of a metric is part of the API"),
    Allowed("corvo/_fast/index/digest_table.py", r"slot", "a cell of a hash table"),
    Allowed("corvo/storage/", r"\bslots?\b", "LMDB's own word for an entry of its reader table"),
    Allowed("", r"concurrency[_ ]slot", "a unit of the concurrency limit"),
    Allowed(
        "", r".*\bfree.*|.*_free.*", "a unit of the concurrency limit: slots are taken and freed"
    ),
    Allowed("tests/", r".*(?:take no|touch_the_|holds_the_|for the )slots?", "the same unit"),
    Allowed("tests/", r"last_slot", "a field of the API"),
    Allowed("tests/", r"firings|_draw_patience|the base never knows", "quoted from corvo"),
    Allowed("tests/unit/_fast/index/test_digest_table.py", r"slots", "cells of a hash table"),
    Allowed("tests/unit/fsm/state/test_json_members.py", r"overlay", "one object over another"),
    Allowed("tests/sim/store.py", r"base", "the entry before the first one of a log"),
]


def files(wanted: list[str]) -> Iterator[Path]:
    """Yield the files under these paths from the root."""
    for name in wanted:
        path = ROOT / name
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in found:
            is_text = file.is_file() and file.suffix in SUFFIXES
            if is_text and "__pycache__" not in file.parts and _name(file) not in EXCLUDED:
                yield file


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def is_allowed(path: str, line: str, match: re.Match[str]) -> Allowed | None:
    """Return the entry of the allow-list that covers the match."""
    for entry in ALLOWED:
        if not path.startswith(entry.path):
            continue
        for ordinary in re.finditer(entry.text, line):
            if ordinary.start() <= match.start() < ordinary.end():
                return entry
            if match.start() <= ordinary.start() < match.end():
                return entry
    return None


def occurrences(path: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, word, term) of a file's text."""
    for number, line in enumerate(text.splitlines(), 1):
        for word in WORDS:
            for match in word.pattern.finditer(line):
                if is_allowed(path, line, match) is None:
                    yield number, match[0], word.term


_MODULE = re.compile(r"\bcorvo(?:\.[a-z_][a-z0-9_]*)+|\bcorvo(?:/[a-z_][a-z0-9_]*)+\.pyx?\b")


# Files next to the package, and names that tests make up.
_NO_MODULES = re.compile(
    r"corvo\.(?:toml|service|test)|.*/(?:x|utils|elsewhere|none)\.pyx?|corvo/x/.*|.*[./][xy]"
    r"|corvo\.none"
)


def missing_modules(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, name, note) of mentioned modules that do not exist."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in _MODULE.finditer(line):
            if not _NO_MODULES.fullmatch(match[0]) and not _exists(match[0]):
                yield number, match[0], "no such module"


def _exists(name: str) -> bool:
    if "/" in name:
        return (ROOT / name).exists()
    path = ROOT
    for part in name.split("."):
        if not (path / part).is_dir():
            module = path / f"{part}.py"
            return module.exists() or (path / f"{part}.pyx").exists() or _defines(path, part)
        path = path / part
    return True


def _defines(package: Path, name: str) -> bool:
    init = package / "__init__.py"
    return init.exists() and re.search(rf"\b{name}\b", init.read_text("utf-8")) is not None


def complaints(wanted: list[str]) -> Iterator[str]:
    """Yield one line for each occurrence under these paths."""
    for file in files(wanted):
        path = _name(file)
        text = file.read_text("utf-8")
        found = [*occurrences(path, text)]
        if not path.startswith("sdk/"):  # where `corvo` is the fixture of the testing kit
            found += missing_modules(text)
        for number, word, term in sorted(found):
            yield f"{path}:{number}: {word} -> {term}"


def main(wanted: list[str]) -> int:
    """Print all occurrences, and their number by folder."""
    counts: Counter[str] = Counter()
    for line in complaints(wanted or list(FOLDERS)):
        print(line)
        counts["/".join(line.split(":")[0].split("/")[:2])] += 1
    for folder, count in counts.most_common():
        print(f"{count:6} {folder}")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

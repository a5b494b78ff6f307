"""Known bugs, put back one at a time: does anything notice?

A mutant is a piece of source text and the wrong text in its place. `install` makes Python load the
package of the file from its sources, interpreted, with that one replacement; production code knows
nothing of it. The old text must occur exactly once, so a mutant cannot outlive a change of the code
unseen. `CORVO_MUTANT` names the mutant that a test run installs before it imports anything of the
package.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CORE = "corvo.consensus.raft"


class Edit(NamedTuple):
    """In this file, the one occurrence of a text becomes another."""

    path: str  # from the root
    old: str
    new: str


class Mutant(NamedTuple):
    """A bug: what it does, and how it is put back."""

    name: str
    bug: str
    edits: tuple[Edit, ...]
    scenario: tuple[str, ...] = ()  # tests that must notice; of the core they are found by name


def mutated(mutant: Mutant) -> dict[str, str]:
    """The changed sources, by path."""
    sources: dict[str, str] = {}
    for edit in mutant.edits:
        text = sources.get(edit.path) or (ROOT / edit.path).read_text("utf-8")
        found = text.count(edit.old)
        if found != 1:
            raise LookupError(f"{mutant.name}: {edit.path} has {found} times {edit.old!r}")
        sources[edit.path] = text.replace(edit.old, edit.new)
    return sources


class _Loader(importlib.abc.InspectLoader):
    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self._source = source

    def get_source(self, fullname: str) -> str:
        return self._source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._source, str(self._path))


class _Finder(importlib.abc.MetaPathFinder):
    """Loads from their sources: the core of Raft, or everything, where compiled modules share C
    types over packages."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources
        packages = {Path(path).parent.as_posix().replace("/", ".") for path in sources}
        self._part = CORE if packages == {CORE} else "corvo"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self._part + "."):
            return None
        file = fullname.replace(".", "/") + ".py"
        if not (ROOT / file).exists():
            return None
        source = self._sources.get(file) or (ROOT / file).read_text("utf-8")
        loader = _Loader(ROOT / file, source)
        return importlib.util.spec_from_file_location(fullname, ROOT / file, loader=loader)


def install(mutant: Mutant) -> None:
    """From now on what the bug is in is loaded with it, interpreted."""
    finder = _Finder(mutated(mutant))
    for path in finder._sources:
        name = path.removesuffix(".py").replace("/", ".")
        assert name not in sys.modules, f"{name} is loaded already"
    sys.meta_path.insert(0, finder)


def wanted() -> str:
    """The mutant that this test run is to install; empty: none."""
    return os.environ.get("CORVO_MUTANT", "")

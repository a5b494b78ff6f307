"""Known bugs, put back one at a time: does anything notice?

A mutant is a piece of source text and the wrong text in its place. `install` makes Python load the
package from its sources, interpreted, with that one replacement; production code knows nothing of
it. The old text must occur exactly once, so a mutant cannot outlive a change of the code unseen.
`CORVO_MUTANT` names the mutant that a test run installs before it imports anything of the package.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Edit(NamedTuple):
    """In this file of the package, the one occurrence of a text becomes another."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A bug: what it does, and how it is put back."""

    name: str
    bug: str
    edits: tuple[Edit, ...]


def mutated(mutant: Mutant, package: str) -> dict[str, str]:
    """The changed sources, by module name."""
    sources: dict[str, str] = {}
    folder = ROOT / package.replace(".", "/")
    for edit in mutant.edits:
        module = f"{package}.{edit.file.removesuffix('.py')}"
        text = sources.get(module) or (folder / edit.file).read_text("utf-8")
        found = text.count(edit.old)
        if found != 1:
            raise LookupError(f"{mutant.name}: {edit.file} has {found} times {edit.old!r}")
        sources[module] = text.replace(edit.old, edit.new)
    return sources


class _Loader(importlib.abc.InspectLoader):
    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._source = source

    def get_source(self, fullname: str) -> str:
        return self._source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._source, self._path)

    def get_filename(self, fullname: str) -> str:
        return self._path


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, package: str, sources: dict[str, str]) -> None:
        self._package = package
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != self._package:
            return None
        file = ROOT / package.replace(".", "/") / f"{name}.py"
        source = self._sources.get(fullname) or file.read_text("utf-8")
        loader = _Loader(str(file), source)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=str(file))


def install(mutant: Mutant, package: str) -> None:
    """From now on every module of the package is loaded with the bug in it."""
    loaded = [name for name in sys.modules if name.startswith(f"{package}.")]
    assert not loaded, f"{loaded} are loaded already"
    sys.meta_path.insert(0, _Finder(package, mutated(mutant, package)))


def wanted() -> str:
    """The mutant that this test run is to install; empty: none."""
    return os.environ.get("CORVO_MUTANT", "")

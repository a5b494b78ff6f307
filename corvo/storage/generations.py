"""The directory of the state store. A snapshot from the leader creates a new generation.

    <data-dir>/state/        the first generation
    <data-dir>/state.<n>/    generation n, which a snapshot put in place of the previous one
    <data-dir>/CURRENT       name of the current generation; `state` if the file is missing

A new `CURRENT` is written to a temporary file, synced and renamed, and the directory is synced. A
crash at any point leaves the name of the old or the new generation, and both are complete.
"""

from pathlib import Path
from typing import Final

from corvo.errors import StorageError

CURRENT: Final = "CURRENT"
FIRST: Final = "state"


def current(data_dir: Path) -> str:
    """Return the name of the current generation."""
    try:
        text = (data_dir / CURRENT).read_bytes().decode("ascii", "replace")
    except FileNotFoundError:
        return FIRST
    name = text.removesuffix("\n")
    if not is_generation(name) or name == text:
        raise StorageError(f"{data_dir / CURRENT}: {text[:40]!r} is not the name of a generation")
    return name


def following(name: str) -> str:
    """Return the name of the next generation."""
    return f"{FIRST}.{int(name.partition('.')[2] or 0) + 1}"


def is_generation(name: str) -> bool:
    """Return whether a directory of this name is a generation of the state store."""
    head, dot, number = name.partition(".")
    return head == FIRST and (not dot or (number.isdigit() and number[0] != "0"))

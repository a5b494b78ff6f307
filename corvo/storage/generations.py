"""Which directory the base is in.

    <data-dir>/state/        the first generation
    <data-dir>/state.<n>/    generation n: a snapshot was put in the place of the one before
    <data-dir>/CURRENT       the name of the one that counts; without the file it is `state`

`CURRENT` is written beside, flushed, renamed, and the directory flushed: whatever happens on the
way, it names either the old generation or the new one, each of which is whole.
"""

from pathlib import Path
from typing import Final

from corvo.errors import StorageError

CURRENT: Final = "CURRENT"
FIRST: Final = "state"


def current(data_dir: Path) -> str:
    """The name of the directory that counts."""
    try:
        text = (data_dir / CURRENT).read_bytes().decode("ascii", "replace")
    except FileNotFoundError:
        return FIRST
    name = text.removesuffix("\n")
    if not is_generation(name) or name == text:
        raise StorageError(f"{data_dir / CURRENT}: {text[:40]!r} names no directory of the base")
    return name


def following(name: str) -> str:
    """The name of the generation after this one."""
    return f"{FIRST}.{int(name.partition('.')[2] or 0) + 1}"


def is_generation(name: str) -> bool:
    """Whether a directory of this name is one of the base."""
    head, dot, number = name.partition(".")
    return head == FIRST and (not dot or (number.isdigit() and number[0] != "0"))

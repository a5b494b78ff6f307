"""A disk that remembers: what was written when, what was flushed when, and so what a power cut at
any moment may leave.

The rules are those that a file system promises and no more. A write that was not flushed may be
there, be missing, or be there in part, sector by sector; writes reach the disk in any order. A
name that was made, changed or removed may be as before until its directory is flushed; changes of
names in one directory happen in order. A sector of 512 bytes is written whole or not at all.
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from corvo.platform.files import SYNC_NONE, Files

SECTOR = 512
PAGE = 4096


class Killed(SystemExit):
    """The process is gone in the middle of something. An event loop lets it through."""


class Write(NamedTuple):
    """Bytes of a file. Without data, a new size, filled with zeros."""

    inode: int
    offset: int
    data: bytes
    size: int = 0
    zeros: bool = False  # of a segment that is used again


class Sync(NamedTuple):
    """Everything written to a file is on disk."""

    inode: int


class Name(NamedTuple):
    """A name in a directory now means this file, or nothing (0)."""

    directory: str
    changes: tuple[tuple[str, int], ...]


class SyncNames(NamedTuple):
    """The names of a directory are on disk."""

    directory: str


class Told(NamedTuple):
    """What the outside may rely on from here on. Indexes of entries, a term."""

    acknowledged: int
    flushed: int
    term: int


Step = Write | Sync | Name | SyncNames | Told
# Which parts of a write that is not flushed are on disk, as pieces.
Keep = Callable[[Write], list[Write]]


class Disk:
    """Names and files below one root, and the steps that led there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.steps: list[Step] = []
        self.told = Told(0, 0, 0)
        self.kill_at = -1  # the length of `steps` at which the process dies,
        self.kill_unnamed = False  # or the first one after it that follows a change of names
        self._names: dict[str, int] = {}  # path from the root -> inode; 1 is a directory
        self._inodes = 1

    def add(self, step: Step) -> None:
        """Record a step; the process may die before it."""
        if 0 <= self.kill_at <= len(self.steps) and (
            not self.kill_unnamed or isinstance(self.steps[-1], Name)
        ):
            self.kill_at = -1
            raise Killed
        self.steps.append(step)

    def tell(self, acknowledged: int = 0, flushed: int = 0, term: int = 0) -> None:
        """Somebody was told that an entry or a term is there to stay."""
        old = self.told
        self.told = Told(
            max(old.acknowledged, acknowledged), max(old.flushed, flushed), max(old.term, term)
        )
        self.steps.append(self.told)

    def relative(self, path: str | Path) -> str:
        """A path as seen from the root; empty for the root itself."""
        text = os.path.relpath(path, self.root)
        return "" if text == "." else text

    def make(self, path: str | Path, directory: bool = False) -> int:
        """A new file, in the place of an old one, or a directory unless it is there."""
        name = self.relative(path)
        if directory and name in self._names:
            return 1
        inode = 1
        if not directory:
            self._inodes += 1
            inode = self._inodes
        self._change(os.path.dirname(name), (os.path.basename(name), inode))
        return inode

    def inode(self, path: str | Path) -> int:
        return self._names[self.relative(path)]

    def knows(self, path: str | Path) -> bool:
        return self.relative(path) in self._names

    def rename(self, old: str | Path, new: str | Path) -> None:
        name, other = self.relative(old), self.relative(new)
        assert os.path.dirname(name) == os.path.dirname(other)
        inode = self._names[name]
        self._change(
            os.path.dirname(name), (os.path.basename(name), 0), (os.path.basename(other), inode)
        )

    def unlink(self, path: str) -> None:
        name = self.relative(path)
        self._change(os.path.dirname(name), (os.path.basename(name), 0))

    def _change(self, directory: str, *changes: tuple[str, int]) -> None:
        self.add(Name(directory, changes))
        for state_store, inode in changes:
            name = os.path.join(directory, state_store)
            if inode:
                self._names[name] = inode
            else:
                del self._names[name]

    def forget_zeros(self) -> None:
        """From the zeros written over segments, tell those that matter: over older records."""
        used: dict[int, bool] = {}
        for at, step in enumerate(self.steps):
            if isinstance(step, Write) and step.data:
                if any(step.data):
                    used[step.inode] = True
                elif used.get(step.inode):
                    self.steps[at] = step._replace(zeros=True)


class RecordingFiles(Files):
    """The log's files on a `Disk`; they are real, too."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._inodes: dict[int, int] = {}  # of open files; 0 stands for a directory
        self._paths: dict[int, str] = {}

    def open(self, path: str, *, create: bool = False) -> int:
        inode = self._disk.make(path) if create else self._disk.inode(path)
        fd = super().open(path, create=create)
        self._inodes[fd] = inode
        return fd

    def close(self, fd: int) -> None:
        self._inodes.pop(fd, None)
        super().close(fd)

    def close_all(self) -> None:
        """What the end of a process does."""
        for fd in list(self._inodes):
            self.close(fd)

    def open_directory(self, path: str) -> int:
        fd = super().open_directory(path)
        self._inodes[fd] = 0
        self._paths[fd] = self._disk.relative(path)
        return fd

    def allocate(self, fd: int, size: int) -> None:
        self._disk.add(Write(self._inodes[fd], 0, b"", size))
        super().allocate(fd, size)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._disk.add(Write(self._inodes[fd], offset, data))
        return super().pwrite(fd, data, offset)

    def sync(self, fd: int, how: int) -> None:
        if how == SYNC_NONE:
            return
        inode = self._inodes[fd]
        self._disk.add(Sync(inode) if inode else SyncNames(self._paths[fd]))

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._disk.unlink(path)
        super().unlink(path)

    def make_directory(self, path: str) -> None:
        self._disk.make(path, directory=True)
        super().make_directory(path)


class Image:
    """What a power cut after some steps leaves, as a choice of what was not flushed."""

    def __init__(self, steps: list[Step]) -> None:
        self.told = Told(0, 0, 0)
        self.pending: list[Write] = []  # may be lost
        self.changes: list[Name] = []  # may be lost, the last ones of each directory first
        self._files: dict[int, bytearray] = {}
        self._names: dict[str, int] = {}
        for step in steps:
            if isinstance(step, Write):
                self.pending.append(step)
            elif isinstance(step, Sync):
                self._settle(lambda write, inode=step.inode: write.inode == inode)
            elif isinstance(step, Name):
                self.changes.append(step)
            elif isinstance(step, SyncNames):
                self._settle_names(step.directory)
            else:
                self.told = step

    def _settle(self, chosen: Callable[[Any], bool]) -> None:
        for write in self.pending:
            if chosen(write):
                self._put(write)
        self.pending = [write for write in self.pending if not chosen(write)]

    def _settle_names(self, directory: str) -> None:
        for change in self.changes:
            if change.directory == directory:
                self._rename(change)
        self.changes = [change for change in self.changes if change.directory != directory]

    def _put(self, write: Write) -> None:
        content = self._files.setdefault(write.inode, bytearray())
        end = write.size or write.offset + len(write.data)
        content.extend(bytes(max(0, end - len(content))))
        content[write.offset : write.offset + len(write.data)] = write.data

    def _rename(self, change: Name) -> None:
        for state_store, inode in change.changes:
            name = os.path.join(change.directory, state_store)
            if inode:
                self._names[name] = inode
            else:
                self._names.pop(name, None)

    def keep(self, keep: Keep, names: int | None = None) -> None:
        """Decide: which parts of the pending writes, and how many of the pending names."""
        for write in self.pending:
            for piece in keep(write):
                self._put(piece)
        for change in self.changes[:names]:
            self._rename(change)

    def build(self, root: Path) -> None:
        """Make the files; those whose name is lost are gone."""
        for name, inode in sorted(self._names.items()):
            path = root / name
            if not path.parent.is_dir():
                continue
            if inode == 1:
                path.mkdir()
            else:
                path.write_bytes(self._files.get(inode, b""))


def whole(write: Write) -> list[Write]:
    """It reached the disk."""
    return [write]


def nothing(_: Write) -> list[Write]:
    """It did not."""
    return []


def pieces(write: Write, size: int) -> Iterator[Write]:
    """The parts of a write that reach a disk each by itself; `size` is a sector or a page."""
    if not write.data:
        yield write
        return
    start = write.offset
    end = start + len(write.data)
    while start < end:
        stop = min(end, start - start % size + size)
        data = write.data[start - write.offset : stop - write.offset]
        yield write._replace(offset=start, data=data)
        start = stop


def some(draw: random.Random, size: int) -> Keep:
    """Any of the pieces of a write."""
    share = draw.choice([0.1, 0.5, 0.9])
    return lambda write: [piece for piece in pieces(write, size) if draw.random() < share]

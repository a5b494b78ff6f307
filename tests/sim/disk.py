"""A disk that keeps its word and no more: what was not synced may be lost, whole or in part.

One directory of files. The process sees what it wrote at once (the page cache); the disk has it for
certain only after a sync. A kill leaves the page cache, a power cut keeps any of the sectors that
were not synced, in any mixture, and of the changes of names some first ones. A sector of 512 bytes
is written whole or not at all.
"""

import random

SECTOR = 512


class DiskError(OSError):
    """The disk failed a sync. What was to be synced is gone, and a second try would not say so."""


class File:
    """A file as the disk has it, and the writes that it does not have for certain."""

    __slots__ = ("cached", "durable", "pending")

    def __init__(self) -> None:
        self.durable = bytearray()
        self.cached = bytearray()
        self.pending: list[tuple[int, bytes]] = []

    def write(self, offset: int, data: bytes) -> None:
        put(self.cached, offset, data)
        self.pending.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.pending:
            put(self.durable, offset, data)
        self.pending.clear()

    def forget(self) -> None:
        """What a failed sync leaves: the dirty pages are dropped."""
        self.pending.clear()
        self.cached = bytearray(self.durable)

    def lose(self, draw: random.Random, share: float) -> None:
        """Keep each sector that was not synced with the probability `share`."""
        for offset, data in self.pending:
            for start, piece in sectors(offset, data):
                if draw.random() < share:
                    put(self.durable, start, piece)
        self.forget()


class Disk:
    """The files of one node. It outlives the processes that use it."""

    def __init__(self) -> None:
        self.fails_next_sync = False
        self.writes = 0
        self.syncs = 0
        self._names: dict[str, File] = {}
        self._durable_names: dict[str, File] = {}
        self._changes: list[dict[str, File | None]] = []  # of names, not synced yet

    def names(self) -> list[str]:
        """Names of the files, sorted."""
        return sorted(self._names)

    def create(self, name: str) -> None:
        """An empty file, in the place of an old one."""
        self._change({name: File()})

    def read(self, name: str) -> bytes:
        """The content as the process sees it."""
        return bytes(self._names[name].cached)

    def durable(self, name: str) -> bytes:
        """The content that a power cut leaves for certain; empty for a name that it may undo."""
        file = self._durable_names.get(name)
        return b"" if file is None else bytes(file.durable)

    def write(self, name: str, offset: int, data: bytes) -> None:
        self.writes += 1
        self._names[name].write(offset, data)

    def sync(self, name: str) -> None:
        """Everything written to the file is on disk. Raises DiskError."""
        self.syncs += 1
        file = self._names[name]
        if self.fails_next_sync:
            self.fails_next_sync = False
            file.forget()
            raise DiskError(f"{name}: the sync failed")
        file.sync()

    def rename(self, old: str, new: str) -> None:
        """The file has another name, in the place of the file that had it."""
        self._change({old: None, new: self._names[old]})

    def unlink(self, name: str) -> None:
        self._change({name: None})

    def sync_names(self) -> None:
        """All names are on disk."""
        self.syncs += 1
        self._changes.clear()
        self._durable_names = dict(self._names)

    def cut_power(self, draw: random.Random) -> None:
        """Lose what was not synced, or not all of it."""
        share = draw.choice((0.0, 0.5, 0.9, 1.0))
        kept = draw.randint(0, len(self._changes))
        names = dict(self._durable_names)
        for change in self._changes[:kept]:
            apply(names, change)
        self._changes.clear()
        for name in sorted(names):
            names[name].lose(draw, share)
        self._names = names
        self._durable_names = dict(names)

    def _change(self, change: dict[str, File | None]) -> None:
        apply(self._names, change)
        self._changes.append(change)


def apply(names: dict[str, File], change: dict[str, File | None]) -> None:
    """One change of names, which happens as a whole."""
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def put(content: bytearray, offset: int, data: bytes) -> None:
    """Overwrite a part; a gap in front of it reads as zeros."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    """The parts of a write that reach the disk each by itself."""
    parts = []
    start, end = offset, offset + len(data)
    while start < end:
        stop = min(end, start - start % SECTOR + SECTOR)
        parts.append((start, data[start - offset : stop - offset]))
        start = stop
    return parts

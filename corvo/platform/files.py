"""The file operations the log is made of, in one object that tests and failpoints can replace.

Everything the log does to a disk goes through `Files`, except the writes and flushes that the
WAL thread does on a file descriptor it is given.
"""

import fcntl
import os
from typing import Final

# How far a write is flushed. DATA: content and size; FULL: everything, needed for directories.
SYNC_NONE: Final = 0
SYNC_DATA: Final = 1
SYNC_FULL: Final = 2


class Files:
    """The operating system's files. Every method raises OSError as the call beneath does."""

    def open(self, path: str, *, create: bool = False) -> int:
        """A descriptor for reading and writing; with `create`, of a new or emptied file."""
        flags = os.O_RDWR | os.O_CLOEXEC
        return os.open(path, flags | os.O_CREAT | os.O_TRUNC if create else flags, 0o640)

    def open_directory(self, path: str) -> int:
        """A descriptor that can be flushed to make names in the directory durable."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def allocate(self, fd: int, size: int) -> None:
        """Reserve the disk space of a whole file, so that writing it cannot run out of space."""
        os.posix_fallocate(fd, 0, size)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Fewer bytes than asked for only at the end of the file."""
        parts = []
        while size:
            part = os.pread(fd, size, offset)
            if not part:
                break
            parts.append(part)
            size -= len(part)
            offset += len(part)
        return b"".join(parts)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        """May write less than asked for."""
        return os.pwrite(fd, data, offset)

    def sync(self, fd: int, how: int) -> None:
        """Flush as `SYNC_DATA` or `SYNC_FULL` says."""
        if how == SYNC_DATA:
            os.fdatasync(fd)
        elif how == SYNC_FULL:
            os.fsync(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def names(self, directory: str) -> list[str]:
        """Names in the directory, sorted."""
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        """With its parents; nothing happens when it exists."""
        os.makedirs(path, mode=0o750, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        """It must be empty."""
        os.rmdir(path)

    def lock(self, path: str) -> int:
        """Take the lock file for this process; BlockingIOError when another holds it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

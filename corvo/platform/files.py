"""File operations of the log, in one object that tests and failpoints can replace.

All disk access of the log goes through `Files`, except writes and flushes of the WAL thread on a
file descriptor that it receives.
"""

import fcntl
import os
from typing import Final

# Flush modes. DATA flushes content and size; FULL flushes everything, as directories need.
SYNC_NONE: Final = 0
SYNC_DATA: Final = 1
SYNC_FULL: Final = 2


class Files:
    """File operations of the operating system; every method raises the OSError of its system
    call."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file for reading and writing; `create` creates or truncates it."""
        flags = os.O_RDWR | os.O_CLOEXEC
        return os.open(path, flags | os.O_CREAT | os.O_TRUNC if create else flags, 0o640)

    def open_directory(self, path: str) -> int:
        """Open a directory, to flush it and so make its names durable."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def allocate(self, fd: int, size: int) -> None:
        """Reserve the disk space of a whole file, so that a later write cannot run out of space."""
        os.posix_fallocate(fd, 0, size)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read `size` bytes at an offset; the result is shorter only at the end of the file."""
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
        """Write at an offset and return the number of bytes, which may be less than requested."""
        return os.pwrite(fd, data, offset)

    def sync(self, fd: int, how: int) -> None:
        """Flush a file with mode `SYNC_NONE`, `SYNC_DATA` or `SYNC_FULL`."""
        if how == SYNC_DATA:
            os.fdatasync(fd)
        elif how == SYNC_FULL:
            os.fsync(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def names(self, directory: str) -> list[str]:
        """The sorted names in a directory."""
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, unless it exists."""
        os.makedirs(path, mode=0o750, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def lock(self, path: str) -> int:
        """Lock a file for this process; raise BlockingIOError if another process holds the lock."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

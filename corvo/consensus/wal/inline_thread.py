"""Replacement of the WAL thread: the same interface, on the event-loop thread.

It is used by the interpreted build, and by tests that inject faults into `Files`. A completion is
delivered in a later event-loop turn, never inside `submit`, so the order of events is the same as
with the thread.
"""

import errno
from asyncio import AbstractEventLoop
from collections.abc import Callable
from time import perf_counter_ns

from corvo.platform.files import SYNC_DATA, SYNC_FULL, Files

_ZERO_SLICE = bytes(1024 * 1024)


class InlineSync:
    """Implementation of `corvo.consensus.wal.wal.Flusher` without a thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._attached = False
        self._undelivered_error = 0

    def attach(
        self,
        loop: AbstractEventLoop,
        flushed: Callable[[int, int], None],
        zeroed: Callable[[int], None],
    ) -> None:
        self._attached = True
        self._loop = loop
        self._flushed = flushed
        self._zeroed = zeroed

    def submit(self, fd: int, offset: int, data: bytes, sync: int) -> None:
        started_ns = perf_counter_ns()
        self._undelivered_error = write_and_sync(self._files, fd, offset, data, sync)
        duration_ns = perf_counter_ns() - started_ns
        self._loop.call_soon(self._deliver, duration_ns)

    def zero(self, fd: int, size: int, directory_fd: int) -> None:
        # The rename must be durable first: if the old name reappeared after a crash, the log would
        # have a segment full of zeros.
        error = write_and_sync(self._files, directory_fd, 0, b"", SYNC_FULL)
        self._loop.call_soon(self._zero_slice, fd, 0, size, error)

    def close(self) -> int:
        self._attached = False
        return self._undelivered_error

    def _deliver(self, duration_ns: int) -> None:
        if self._attached:
            error, self._undelivered_error = self._undelivered_error, 0
            self._flushed(error, duration_ns)

    def _zero_slice(self, fd: int, position: int, size: int, error: int) -> None:
        if not self._attached:
            return
        if error or position == size:
            self._zeroed(error)
            return
        zeros = _ZERO_SLICE[: size - position]
        error = write_and_sync(self._files, fd, position, zeros, SYNC_DATA)
        self._loop.call_soon(self._zero_slice, fd, position + len(zeros), size, error)


def write_and_sync(files: Files, fd: int, offset: int, data: bytes, sync: int) -> int:
    """Write and flush; return 0 or the errno. A short write is an error, too."""
    try:
        if data and files.pwrite(fd, data, offset) != len(data):
            return errno.EIO
        files.sync(fd, sync)
    except OSError as error:
        return error.errno or errno.EIO
    return 0

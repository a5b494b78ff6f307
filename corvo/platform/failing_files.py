"""File operations of the log with a failpoint before and after each.

If a failpoint is armed, the log uses `FailingFiles` instead of `Files`, and writes on the
event-loop thread.
"""

from corvo.platform.failpoints import reach
from corvo.platform.files import SYNC_NONE, Files


class FailingFiles(Files):
    """`Files` with failpoints; `corvo.platform.failpoints.POINTS` describes each point."""

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        if not any(data):
            reach("wal.zero")
            return super().pwrite(fd, data, offset)
        reach("wal.before_write")
        written = super().pwrite(fd, data, offset)
        reach("wal.after_write")
        return written

    def sync(self, fd: int, how: int) -> None:
        if how == SYNC_NONE:
            return
        reach("wal.before_sync")
        super().sync(fd, how)
        reach("wal.after_sync")

    def allocate(self, fd: int, size: int) -> None:
        reach("wal.create")
        super().allocate(fd, size)

    def rename(self, old: str, new: str) -> None:
        step = "name" if new.endswith(".wal") else "recycle"
        reach(f"wal.before_{step}")
        super().rename(old, new)
        reach(f"wal.after_{step}")

    def unlink(self, path: str) -> None:
        reach("wal.before_unlink")
        super().unlink(path)
        reach("wal.after_unlink")

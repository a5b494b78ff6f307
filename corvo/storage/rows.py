"""The contract of a base, as the state machine sees it: one sorted table of rows."""

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from corvo._fast.codec.keys import prefix_end

# Rows that a scan copies at a time: few at first, because many scans want one row only.
SLICE_ROWS_FIRST: Final = 8
SLICE_ROWS_MAX: Final = 512

Row = tuple[bytes, bytes]
# Copies at most `limit` rows with low <= key < stop, from the front, or backwards from the end.
Take = Callable[[bytes, bytes, bool, int], list[Row]]


class Rows(Protocol):
    """`corvo.storage.lmdb.StateStore` on disk, `corvo.storage.memory.MemoryStore` in memory."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a row."""

    def scan(
        self, prefix: bytes, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[Row]:
        """Rows with this prefix in order of key, from `start` on (itself included), or backwards.

        Rows are copied in slices: of what is written while a scan goes on, it sees the part that
        lies behind its current slice.
        """

    def floor(self, prefix: bytes, key: bytes) -> Row | None:
        """The last row with this prefix whose key is not behind `key`."""

    def write(self, puts: list[Row], deletes: list[bytes]) -> None:
        """Delete, then put, as one transaction that is on disk on return.

        DiskFull: nothing was changed, and the same write can be tried again. Any other failure
        is a StorageError, after which the node has to stop.
        """

    def close(self) -> None:
        """Give up all resources; the object cannot be used again."""


def after(key: bytes) -> bytes:
    """The smallest key greater than this one."""
    return key + b"\0"


def scan(take: Take, prefix: bytes, start: bytes | None, reverse: bool) -> Iterator[Row]:
    """`Rows.scan` in terms of `take`."""
    low, stop = prefix, prefix_end(prefix)
    if start is not None and reverse:
        stop = min(stop, after(start))
    elif start is not None:
        low = max(low, start)
    limit = SLICE_ROWS_FIRST
    while True:
        rows = take(low, stop, reverse, limit)
        yield from rows
        if len(rows) < limit:
            return
        if reverse:
            stop = rows[-1][0]
        else:
            low = after(rows[-1][0])
        limit = min(2 * limit, SLICE_ROWS_MAX)


def floor(take: Take, prefix: bytes, key: bytes) -> Row | None:
    """`Rows.floor` in terms of `take`."""
    rows = take(prefix, min(prefix_end(prefix), after(key)), True, 1)
    return rows[0] if rows else None

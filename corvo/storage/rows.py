"""The interface of a state store for the state machine: one sorted table of rows."""

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from corvo._fast.codec.keys import prefix_end

# Rows that a scan copies at a time: few at first, because many scans need only one row.
SLICE_ROWS_FIRST: Final = 8
SLICE_ROWS_MAX: Final = 512

Row = tuple[bytes, bytes]
# Returns at most `limit` rows with low <= key < stop, from the front, or backwards from the end.
Take = Callable[[bytes, bytes, bool, int], list[Row]]


class Rows(Protocol):
    """One sorted table of rows. `corvo.storage.lmdb.StateStore` keeps it on disk,
    `corvo.storage.memory.MemoryStore` in memory."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row, None if the row is missing."""

    def scan(
        self, prefix: bytes, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[Row]:
        """Yield rows with this prefix in order of key, from `start` on (included), or backwards.

        Rows are copied in slices. Of the writes during a scan, it sees those beyond its current
        slice.
        """

    def floor(self, prefix: bytes, key: bytes) -> Row | None:
        """Return the last row with this prefix whose key is at most `key`."""

    def write(self, puts: list[Row], deletes: list[bytes]) -> None:
        """Delete, then put, as one transaction that is on disk on return.

        DiskFull means that nothing has changed and the same write can be tried again. Any other
        failure is a StorageError, after which the node has to stop.
        """

    def close(self) -> None:
        """Release all resources; the object cannot be used again."""


def after(key: bytes) -> bytes:
    """Return the smallest key greater than this one."""
    return key + b"\0"


def scan(take: Take, prefix: bytes, start: bytes | None, reverse: bool) -> Iterator[Row]:
    """Implement `Rows.scan` with `take`."""
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
    """Implement `Rows.floor` with `take`."""
    rows = take(prefix, min(prefix_end(prefix), after(key)), True, 1)
    return rows[0] if rows else None

"""Rate limits: how many jobs a queue may start within any window of time.

The limit is exact: when a job starts, fewer than `rate` others started in the window that ends with
its stamp, both ends included. Jobs that started before the limit was set do not count, and neither
does a job whose delivery never left the server. All starts at one stamp are one row, a grant. Rows
that have left the window are dropped when they outnumber the others, so that the cost does not grow
with the window.
"""

from array import array
from bisect import bisect_left
from typing import final

from corvo._fast.codec import keys
from corvo.fsm.state.row_overlay import RowOverlay
from corvo.model import Queue
from corvo.storage.records import queues as queue_records


@final
class Window:
    """The grants of a queue with a rate limit, in order of time."""

    def __init__(self, queue: Queue, rows: RowOverlay) -> None:
        self._queue = queue
        self._rows = rows
        self._stamps: array[int] = array("Q")
        self._sums: array[int] = array("Q")  # grants up to and including each stamp
        self._dropped: int = 0  # grants before the first stamp
        self.since_ns: int = 0  # while rows are loaded: those before this stamp do not count

    def load(self, stamp_ns: int, count: int) -> None:
        """Load a row; rows are loaded in order of time."""
        self._stamps.append(stamp_ns)
        self._sums.append(self._total() + count)

    def _total(self) -> int:
        return self._sums[-1] if len(self._sums) else self._dropped

    def _before(self, position: int) -> int:
        return self._sums[position - 1] if position else self._dropped

    def used(self, now_ns: int) -> int:
        """Return the number of grants in the window that ends now."""
        first = bisect_left(self._stamps, max(0, now_ns - self._queue.rate_window_ns))
        return self._total() - self._before(first)

    def room(self, now_ns: int) -> int:
        """Return how many jobs may start now."""
        return max(0, self._queue.rate_limit - self.used(now_ns))

    def opens_ns(self, now_ns: int) -> int:
        """Return the first stamp at which one more job may start; 0 if one may start now."""
        if self.room(now_ns):
            return 0
        last = bisect_left(self._sums, self._total() - self._queue.rate_limit + 1)
        return self._stamps[last] + self._queue.rate_window_ns + 1

    def grant(self, stamp_ns: int) -> None:
        """Count a job that starts."""
        if len(self._stamps) and self._stamps[-1] == stamp_ns:
            self._sums[-1] += 1
        else:
            self._drop_old(stamp_ns)
            self._stamps.append(stamp_ns)
            self._sums.append(self._total() + 1)
        self._write(len(self._stamps) - 1)

    def undo_grant(self, stamp_ns: int) -> None:
        """Uncount a job that started at this stamp but whose delivery never left the server."""
        position = bisect_left(self._stamps, stamp_ns)
        if position == len(self._stamps) or self._stamps[position] != stamp_ns:
            return
        for i in range(position, len(self._sums)):
            self._sums[i] -= 1
        self._write(position)
        if self._before(position) == self._sums[position]:
            del self._stamps[position]
            del self._sums[position]

    def forget(self, stamp_ns: int) -> None:
        """Delete all rows, at this stamp; those before it in steps."""
        if len(self._stamps) and self._stamps[-1] == stamp_ns:
            self._rows.put(keys.grant(self._queue.number, self._stamps.pop()), None)
        self._rows.leave_grants(self._queue.number, self._stamps, stamp_ns)

    def _write(self, position: int) -> None:
        count = self._sums[position] - self._before(position)
        row = queue_records.encode_grant(count) if count else None
        self._rows.put(keys.grant(self._queue.number, self._stamps[position]), row)

    def _drop_old(self, now_ns: int) -> None:
        old = bisect_left(self._stamps, max(0, now_ns - self._queue.rate_window_ns))
        if 2 * old <= len(self._stamps):
            return
        since_ns = self._stamps[old] if old < len(self._stamps) else now_ns
        self._rows.leave_grants(self._queue.number, self._stamps[:old], since_ns)
        self._dropped = self._before(old)
        del self._stamps[:old]
        del self._sums[:old]

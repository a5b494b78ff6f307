"""Keeps the base up to date with the overlay, and watches the space on the disk.

A flush happens by size first, then when nothing was applied for a moment, at the latest after a
second. It runs on the loop, in one transaction of bounded size. When one entry after the other
brings very many documents, it waits for some entries more: most jobs have ended by then, and are
written once instead of twice. While entries are small it is *gentle*: small itself, and done while
the next entry is on its way to the disk, so that what waits for that entry does not wait for both
in turn; smaller still while work goes on in the background.

A full disk is not fatal: the overlay stays as it is and readable, new jobs are refused, acks and
deletes go on in memory and in the log, and the flush is tried again each second. The base's
ballast is given up then, so that those can be written. What is short of full is refused earlier,
by the free space, so that the disk rarely gets there.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol

from corvo import limits
from corvo._fast.metrics import TURN_BOUNDS_NS, Histogram, TurnMetrics
from corvo.consensus.log import Log
from corvo.errors import DiskFull, StorageError
from corvo.fsm.state.write_buffer import FlushReport
from corvo.platform import failpoints
from corvo.platform.clock import Clock

logger = logging.getLogger(__name__)

# Once refused for want of space, new jobs are taken again when there is this much more.
_RELIEF = 2 * limits.BALLAST_SIZE


class Disk(Protocol):
    """The space under the base."""

    def disk_free(self) -> int: ...
    def release_ballast(self) -> None: ...
    def restore_ballast(self) -> bool: ...


class Flushable(Protocol):
    """What the flusher needs of `corvo.fsm.machine.Machine`."""

    @property
    def write_buffer_size(self) -> int: ...
    @property
    def write_buffer_records(self) -> int: ...
    def flush(self) -> FlushReport: ...


class StoreFlusher:
    """Decides when the machine's overlay goes to the base."""

    def __init__(
        self,
        loop: Any,
        clock: Clock,
        log: Log,
        machine: Flushable,
        disk: Disk,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._log = log
        self._machine = machine
        self._disk = disk
        self._on_fatal = on_fatal
        self._dirty_since_ns = 0
        self._applied_ns = 0
        self._timer: Any = None
        self._documents = 0  # that were dirty after the last entry
        self._grown = 0  # how many more these were than after the one before
        self._size_max = limits.FLUSH_SIZE
        self._refused = False  # the last flush found no space
        self.throttled = False  # work goes on in the background: flush less still, but more often
        self.wanted = False  # a gentle flush is to be done when the next entry is being written
        self.disk_full = False  # new jobs are to be refused
        self.index = -1  # of the last flush: the base has the log up to there
        self.on_flushed: Callable[[int], None] = _nobody
        self.flushes = 0
        self.flush_ns_last = 0
        self.flush_ns_max = 0
        self.flush_time = Histogram(TURN_BOUNDS_NS)
        self.turns: TurnMetrics | None = None  # of the loop that this runs on

    def after_apply(self, ops: int = 0) -> None:
        """Entries were applied that so many ops of this node were waiting for: flush at once when
        much is dirty, else soon."""
        machine = self._machine
        if self._log.full:
            self._note(True)  # while there is still room for acks
        if not machine.write_buffer_records:
            return
        self._applied_ns = self._clock.monotonic_ns()
        if not self._dirty_since_ns:
            self._dirty_since_ns = self._applied_ns
        if self._refused:
            return
        documents = machine.write_buffer_records
        documents_max = self._bound(documents)
        large = machine.write_buffer_size >= self._size_max
        if large and ops:
            self._arm(0)  # it takes as long as the entry did, so others have their turn first
            return
        if large or documents >= documents_max:
            self.flush()
            return
        few = limits.FLUSH_RECORDS_THROTTLED if self.throttled else limits.FLUSH_DOCUMENTS_LIGHT
        self.wanted = documents >= few and ops <= limits.THROTTLED_OPS_MAX
        if self._timer is None:
            self._arm(limits.FLUSH_IDLE_NS)

    def _bound(self, documents: int) -> int:
        """How many documents are to be flushed together: as many as some entries bring, judged by
        the smaller one of the last two."""
        grown = documents - self._documents
        pace = min(grown, self._grown)
        self._documents = documents
        self._grown = grown
        bound = max(limits.FLUSH_DOCUMENTS, pace * limits.FLUSH_ENTRIES)
        bound = min(bound, limits.FLUSH_DOCUMENTS_MAX)
        self._size_max = limits.FLUSH_SIZE + (bound - limits.FLUSH_DOCUMENTS) * limits.KIB
        return bound

    def _arm(self, delay_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_ns / 1e9, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._machine.write_buffer_records or self._refused:
            return
        now_ns = self._clock.monotonic_ns()
        idle = now_ns - self._applied_ns >= limits.FLUSH_IDLE_NS
        old = now_ns - self._dirty_since_ns >= limits.FLUSH_AGE_NS
        if idle or old or self._machine.write_buffer_size >= self._size_max:
            self.flush()
        else:
            self._arm(limits.FLUSH_IDLE_NS)

    def flush(self) -> None:
        """Write the overlay to the base and let the log go up to there."""
        if self.turns is not None:
            self.turns.begin()
        began_ns = self._clock.monotonic_ns()
        try:
            if failpoints.armed:
                failpoints.reach("flush.begin")
            self._log.sync()  # the base never knows more than the log on disk
            report = self._machine.flush()
            if failpoints.armed:
                failpoints.reach("flush.before_trim")
        except DiskFull:
            if not self._refused:
                self._refused = True
                self._disk.release_ballast()
            self.wanted = False  # it is tried again each second
            self._note(True)
            return
        except Exception as error:
            self._on_fatal(error)
            return
        self._dirty_since_ns = 0
        self._documents = 0
        self.wanted = False
        self.index = report.index
        self._log.trim(report.index)
        took_ns = self._clock.monotonic_ns() - began_ns
        self.flushes += 1
        self.flush_ns_last = took_ns
        self.flush_ns_max = max(self.flush_ns_max, took_ns)
        self.flush_time.observe(took_ns)
        self._refused = False
        self.on_flushed(report.index)

    def snapshot(self) -> int:
        """Write all that is applied to the base, now, and let go what nobody needs of the log; the
        index."""
        before = self.flushes
        self.flush()
        if self._refused:
            raise DiskFull("no disk space to write the state")
        if self.flushes == before:
            raise StorageError("the state cannot be written: the server is stopping")
        self._log.cut()
        return self.index

    def use(self, disk: Disk, index: int) -> None:
        """The base is another one from now on, and has the log up to this index: all that is
        applied."""
        self._disk = disk
        self.index = index
        self._dirty_since_ns = 0
        self.wanted = False
        self._refused = False

    def tick(self) -> None:
        """Once a second: try again what found no space, and see how much there is."""
        if self._log.full:
            self._log.reserve()
        if self._refused:
            self.flush()
        wanted = limits.DISK_FREE_REFUSE + (_RELIEF if self.disk_full else 0)
        short = self._refused or self._log.full or self._disk.disk_free() < wanted
        if not short:
            self._disk.restore_ballast()
        self._note(short)

    def close(self) -> None:
        """Stop the timer and flush what is dirty."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._machine.write_buffer_records:
            self.flush()

    def _note(self, full: bool) -> None:
        if full == self.disk_full:
            return
        self.disk_full = full
        if full:
            logger.error("no disk space: new jobs are refused until there is some")
        else:
            logger.warning("there is disk space again: new jobs are taken")


def _nobody(_index: int) -> None:
    pass

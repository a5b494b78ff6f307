"""Writes dirty state from the write buffer to LMDB, and watches the free disk space.

A flush starts when enough is dirty, when no entry was applied for a moment, and at the latest after
a second. It runs on the loop, in one transaction of bounded size. When entry after entry brings
very many records, it waits for some more entries: most jobs have ended by then, and are written
once instead of twice. While entries are small, flushes are *throttled*: they are small, and done
while the next entry is being written to the log, so that its requests do not wait for both in turn.
They are smaller still while housekeeping runs.

A full disk is not fatal: the write buffer stays unchanged and readable, new jobs are refused, acks
and deletes continue in memory and in the log, and the flush is repeated each second. The ballast
file is deleted then, so that those can still be flushed. New jobs are refused already when free
space falls below a limit, so that the disk is rarely full.
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

# After a refusal for lack of disk space, new jobs are accepted again with this much more free.
_RELIEF = 2 * limits.BALLAST_SIZE


class Disk(Protocol):
    """Free space and ballast of the disk with the state store."""

    def disk_free(self) -> int: ...
    def release_ballast(self) -> None: ...
    def restore_ballast(self) -> bool: ...


class Flushable(Protocol):
    """The write buffer of `corvo.fsm.machine.Machine`."""

    @property
    def write_buffer_size(self) -> int: ...
    @property
    def write_buffer_records(self) -> int: ...
    def flush(self) -> FlushReport: ...


class StoreFlusher:
    """Decides when the write buffer of the machine is flushed to the state store."""

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
        # Monotonic time of the first apply since the last flush; 0 = nothing is dirty. Set by
        # `after_apply`, reset by `flush` and `use`.
        self._dirty_since_ns = 0
        # Monotonic time of the last apply that left dirty records: >= `_dirty_since_ns`.
        self._applied_ns = 0
        self._timer: Any = None  # of the next look at what is dirty; None = not set
        # Records that were dirty after the last apply, and by how many that was more than after
        # the apply before. Changed by `_bound`; `flush` resets the first.
        self._documents = 0
        self._grown = 0
        # Bytes in the write buffer at which a flush starts; >= FLUSH_SIZE. Changed by `_bound`.
        self._size_max = limits.FLUSH_SIZE
        self._refused = False  # the last flush failed for lack of space; implies `disk_full`
        self.throttled = False  # housekeeping runs: flush less, but more often; set by it
        # A throttled flush is due when the next entry is being written. Set by `after_apply`; the
        # pipeline reads it, a flush resets it.
        self.wanted = False
        # New jobs are to be refused: the last flush failed, the log is full, or free space is
        # short. Changed by `_set_disk_full` only.
        self.disk_full = False
        # Log index of the last flush, -1 before `Node` sets it: LMDB has the state up to there.
        # Never above the applied index, never lowered except by `use`.
        self.index = -1
        # Called with `index` after each successful flush, in order; appended to by subscribers.
        self.on_flushed: list[Callable[[int], None]] = []
        self.flushes = 0  # successful ones
        self.flush_ns_last = 0  # duration of the last flush
        self.flush_ns_max = 0  # duration of the longest flush
        self.flush_time = Histogram(TURN_BOUNDS_NS)  # durations in ns
        self.turns: TurnMetrics | None = None  # metrics of the event loop; set by the node

    def after_apply(self, ops: int = 0) -> None:
        """Entries with `ops` ops of this node were applied: flush now if much is dirty, else
        soon."""
        machine = self._machine
        if self._log.full:
            self._set_disk_full(True)  # while there is still space for acks
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
            self._arm(0)  # a flush takes as long as the apply did: let other callbacks run first
            return
        if large or documents >= documents_max:
            self.flush()
            return
        few = limits.FLUSH_RECORDS_THROTTLED if self.throttled else limits.FLUSH_RECORDS_LIGHT
        self.wanted = documents >= few and ops <= limits.THROTTLED_OPS_MAX
        if self._timer is None:
            self._arm(limits.FLUSH_IDLE_NS)

    def _bound(self, documents: int) -> int:
        """Number of dirty records that starts a flush: as many as FLUSH_ENTRIES entries bring,
        estimated by the smaller one of the last two."""
        grown = documents - self._documents
        pace = min(grown, self._grown)
        self._documents = documents
        self._grown = grown
        bound = max(limits.FLUSH_RECORDS, pace * limits.FLUSH_ENTRIES)
        bound = min(bound, limits.FLUSH_RECORDS_MAX)
        self._size_max = limits.FLUSH_SIZE + (bound - limits.FLUSH_RECORDS) * limits.KIB
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
        """Write dirty state to LMDB, then trim the log up to the flushed index."""
        if self.turns is not None:
            self.turns.begin()
        began_ns = self._clock.monotonic_ns()
        try:
            if failpoints.armed:
                failpoints.reach("flush.begin")
            self._log.sync()  # LMDB is never ahead of the log on disk
            report = self._machine.flush()
            if failpoints.armed:
                failpoints.reach("flush.before_trim")
        except DiskFull:
            if not self._refused:
                self._refused = True
                self._disk.release_ballast()
            self.wanted = False  # `tick` repeats the flush
            self._set_disk_full(True)
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
        for callback in self.on_flushed:
            callback(report.index)

    def snapshot(self) -> int:
        """Flush now and cut the log as far as no follower needs it; the flushed index. Raises
        DiskFull or StorageError if the flush fails."""
        before = self.flushes
        self.flush()
        if self._refused:
            raise DiskFull("no disk space to write the state")
        if self.flushes == before:
            raise StorageError("the state cannot be written: the server is stopping")
        self._log.cut()
        return self.index

    def use(self, disk: Disk, index: int) -> None:
        """Continue with another state store, which has all applied state, up to this index."""
        self._disk = disk
        self.index = index
        self._dirty_since_ns = 0
        self.wanted = False
        self._refused = False

    def tick(self) -> None:
        """Once a second: repeat a flush that failed for lack of space, and check free space."""
        if self._log.full:
            self._log.reserve()
        if self._refused:
            self.flush()
        wanted = limits.DISK_FREE_REFUSE + (_RELIEF if self.disk_full else 0)
        short = self._refused or self._log.full or self._disk.disk_free() < wanted
        if not short:
            self._disk.restore_ballast()
        self._set_disk_full(short)

    def close(self) -> None:
        """Stop the timer and flush dirty state."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._machine.write_buffer_records:
            self.flush()

    def _set_disk_full(self, full: bool) -> None:
        if full == self.disk_full:
            return
        self.disk_full = full
        if full:
            logger.error("no disk space: new jobs are refused until there is space again")
        else:
            logger.warning("disk space is available again: new jobs are accepted")

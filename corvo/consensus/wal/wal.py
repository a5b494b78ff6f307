"""The write-ahead log: segments on disk, written by a flush thread.

    <data-dir>/wal/<number>-<first index>.wal   segments; formats: `segment`, `wal_record`
    <data-dir>/wal/spare                        the next segment, being filled with zeros
    <data-dir>/wal/next                         a segment before it gets its name
    <data-dir>/wal/closed                       clean-shutdown marker (`clean_close`)

Invariants:

- A segment gets its name when its head and first records are on disk. Nothing in the segment counts
  before its directory is flushed.
- Disk space is reserved one segment ahead. An append without space is refused before it is written.
- A segment that is not needed any more becomes the spare: it is renamed, the directory is flushed,
  and only then it is filled with zeros. There is no new spare while the previous one still has that
  name in the directory.
- A failed write or flush is final: another flush would report success for pages that the kernel has
  dropped. Only a restart reads the actual content.

Writes are *jobs* in a queue. Jobs with a flush go to the flusher, one at a time. Jobs without a
flush are executed at once, and so are all jobs before `attach` and after the flusher is closed.
Waiting jobs for the same segment share one write and one flush.
"""

import errno
import os
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from corvo._fast.codec.wal_record import (
    BASE,
    CLEAN_CLOSE,
    ENTRY,
    HARD_STATE,
    RECORD_SIZE_MIN,
    SEGMENT_END,
    TRUNCATE,
    Record,
    Writer,
    record_size,
)
from corvo._fast.codec.wal_record import CONFIGURATION as CONFIGURATION_RECORD
from corvo.consensus.log import CONFIGURATION, FRAME, Entry
from corvo.consensus.wal import clean_close
from corvo.consensus.wal.inline_thread import InlineSync, write_and_sync
from corvo.consensus.wal.segment import (
    HEAD_SIZE,
    Head,
    Scan,
    encode_head,
    parse_head,
    parse_segment_name,
    scan,
    segment_name,
)
from corvo.errors import DiskFull, StorageError
from corvo.limits import MIB
from corvo.platform import failpoints
from corvo.platform.files import SYNC_DATA, SYNC_FULL, Files
from corvo.platform.noop import noop
from corvo.storage.data_dir import Identity, sync_directory

try:
    from corvo._fast.wal_thread import WalThread
except ImportError:
    WalThread = None  # type: ignore[assignment, misc]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)  # temporary errors
_NEVER = 1 << 62
# Reserved at the end of each segment: a clean close record and a segment end record.
_END_SIZE = 2 * RECORD_SIZE_MIN
_JOINED_SIZE_MAX = 4 * MIB  # maximum size of a write shared by several jobs


class Flusher(Protocol):
    """Writes and flushes in parallel with the event loop: one submission at a time; zeros when
    idle."""

    def attach(
        self,
        loop: AbstractEventLoop,
        flushed: Callable[[int, int], None],
        zeroed: Callable[[int], None],
    ) -> None:
        """Set the callbacks flushed(errno, duration_ns) and zeroed(errno); errno 0 is success."""

    def submit(self, fd: int, offset: int, data: bytes, sync: int) -> None:
        """Write data at offset and flush; calls `flushed` at the end. One call at a time."""

    def zero(self, fd: int, size: int, directory_fd: int) -> None:
        """Flush the directory, fill the file with zeros, flush it; calls `zeroed` at the end."""

    def close(self) -> int:
        """Wait for the submission, stop the zeroing, and make no more callbacks.

        Returns the errno of a submission whose end is not reported yet, otherwise 0.
        """


def new_flusher(files: Files) -> Flusher:
    """The C thread if it is built, otherwise `InlineSync`."""
    return InlineSync(files) if WalThread is None else WalThread()


class Recovered(NamedTuple):
    """Result of the recovery; `entries` are those after the applied index, or all entries."""

    entries: list[Entry]
    term: int
    clean: bool
    """Whether the last record is a clean close."""
    base_index: int
    base_term: int
    """Index and term of the entry before the first of `entries`."""


class _Segment:
    """A segment that is open for writing."""

    __slots__ = ("durable", "fd", "head", "limit", "path", "writer")

    def __init__(self, path: str, fd: int, head: Head, writer: Writer) -> None:
        self.path = path
        self.fd = fd
        self.head = head
        self.writer = writer
        self.durable = 0  # offset up to which everything is on disk; every record contains it
        self.limit = head.size - _END_SIZE


class _Job:
    """A write, a flush or both, with a callback for its completion."""

    __slots__ = ("data", "done", "offset", "segment", "sync")

    def __init__(
        self,
        segment: _Segment | None,
        offset: int,
        data: bytes,
        sync: int,
        done: Callable[[], None],
    ) -> None:
        self.segment = segment  # None: flush of the directory
        self.offset = offset
        self.data = data
        self.sync = sync
        self.done = done


class Wal:
    """The log of one node, in terms of records and files.

    It does not interpret terms or commit indexes."""

    def __init__(
        self,
        path: str,
        identity: Identity,
        files: Files,
        flusher: Flusher,
        *,
        segment_size: int,
        new_salt: Callable[[], int],
        on_failed: Callable[[Exception], None],
    ) -> None:
        """`new_salt` returns 32 random bits."""
        self.path = path
        self.failed: Exception | None = None
        self.full = False
        self.flushes = 0
        self.on_flushed: Callable[[int], None] = noop
        self.last_index = 0
        self.last_term = 0
        self.term = 0
        self.vote = ""
        self._identity = identity
        self._files = files
        self._flusher = flusher
        self._segment_size = segment_size
        self._new_salt = new_salt
        self._on_failed = on_failed
        self._attached = False
        self._in_flight = False
        self._held = False  # jobs are held back until the whole write is queued
        self._together_size = 0  # bytes of a write that must go into one segment
        self._running = 0  # number of jobs in flight together
        self._jobs: deque[_Job] = deque()
        self._directory_fd = -1
        self._wanted_index = 0  # the recovery collects entries after this index
        self._base_index = 0
        self._base_term = 0
        self._active: _Segment
        self._retiring: _Segment | None = None  # previous segment, while it is being sealed
        self._sealed: list[tuple[str, int]] = []  # path and first index, oldest first
        self._trim_index = 0
        self._spare_fd = -1
        self._spare_ready = False
        self._reserve_at = _NEVER
        self._in_cluster = False  # whether other nodes rely on the log (cluster)

    # Start

    def open(self, applied_index: int, applied_term: int, *, keep_older: bool = False) -> Recovered:
        """Recover the log. If the state store is ahead, the log restarts right after it.

        With `keep_older` (cluster) entries that the state store covers are also returned, because
        followers can need them, and a log that does not end at its clean-shutdown marker is an
        error.
        """
        self._in_cluster = keep_older
        try:
            self._wanted_index = 0 if keep_older else applied_index
            return self._open(applied_index, applied_term, keep_older)
        except OSError as error:
            raise _io_error(self.path, error) from error

    def attach(self, loop: AbstractEventLoop) -> None:
        """Use the flusher, in parallel with this event loop, from now on."""
        self._flusher.attach(loop, self._flushed, self._zeroed)
        self._attached = True

    def _open(self, applied_index: int, applied_term: int, keep_older: bool) -> Recovered:
        files = self._files
        files.make_directory(self.path)
        sync_directory(files, os.path.dirname(self.path) or ".")
        self._directory_fd = files.open_directory(self.path)
        found: list[tuple[int, int]] = []
        for name in files.names(self.path):
            parsed = parse_segment_name(name)
            if parsed is not None:
                found.append(parsed)
            elif name in ("spare", "next"):
                files.unlink(f"{self.path}/{name}")
        found.sort()
        if applied_index and not found:
            raise StorageError(f"{self.path}: there is a state store, but no log", path=self.path)
        self._sealed = [(f"{self.path}/{segment_name(*names)}", names[1]) for names in found]
        # A segment is needed unless the next one starts at or before the first wanted entry.
        first = 0
        while (
            not keep_older and first + 1 < len(found) and found[first + 1][1] <= applied_index + 1
        ):
            first += 1
        entries: list[Entry] = []
        clean = True
        newest: tuple[Head, Scan] | None = None
        for position in range(first, len(found)):
            newest = self._read_segment(position, newest, applied_index, entries)
            clean = bool(newest[1].records) and newest[1].records[-1].kind == CLEAN_CLOSE
        if keep_older and clean_close.NAME in files.names(self.path):
            self._check_closed(newest)
        is_behind = self.last_index < applied_index
        if newest is None or newest[1].sealed or (is_behind and not keep_older):
            number = found[-1][0] + 1 if found else 1
            crc = newest[1].crc if newest is not None and newest[1].sealed else 0
            if is_behind:
                self._set_base(applied_index, applied_term, entries)
            self._begin_segment(number, crc)
        else:
            self._reopen_segment(*newest)
        if keep_older and applied_index and self._term_of(applied_index, entries) != applied_term:
            # A crash came between the installation of a snapshot and its BASE record.
            self._set_base(applied_index, applied_term, entries)
            self.begin_above(applied_index, applied_term, noop)
            self._raise_if_failed()
        return Recovered(entries, self.term, clean, self._base_index, self._base_term)

    def _check_closed(self, newest: tuple[Head, Scan] | None) -> None:
        """Check that the log ends at its clean-shutdown marker, and delete the marker.

        The directory is flushed before anything is appended."""
        mark = clean_close.read_marker(self._files, self.path)
        if mark is not None:
            end = clean_close.End("", 0, 0)
            if newest is not None:
                head, found = newest
                end = clean_close.End(
                    segment_name(head.number, head.first_index), found.end, found.crc
                )
            if end != mark:
                raise StorageError(
                    f"{self.path}: the log is damaged: it was closed at offset {mark.offset} of "
                    f"{mark.segment}, but ends at {end.offset} of {end.segment or 'nothing'}; "
                    "the server does not start, because other nodes rely on the missing entries",
                    path=self.path,
                    offset=end.offset,
                )
        self._files.unlink(f"{self.path}/{clean_close.NAME}")

    def _set_base(self, index: int, term: int, entries: list[Entry]) -> None:
        """Set the entry before the log: the log has no entries up to this one."""
        self.last_index = self._base_index = index
        self.last_term = self._base_term = term
        entries.clear()

    def _term_of(self, index: int, entries: list[Entry]) -> int:
        """The term of an entry, or -1 if the log does not have it."""
        if index == self._base_index:
            return self._base_term
        position = index - self._base_index - 1
        return entries[position].term if 0 <= position < len(entries) else -1

    def _read_segment(
        self,
        position: int,
        before: tuple[Head, Scan] | None,
        applied_index: int,
        entries: list[Entry],
    ) -> tuple[Head, Scan]:
        path = self._sealed[position][0]
        fd = self._files.open(path)
        try:
            data = self._files.pread(fd, self._files.size(fd), 0)
        finally:
            self._files.close(fd)
        head = parse_head(data, path, self._identity)
        if segment_name(head.number, head.first_index) != path.rpartition("/")[2]:
            raise StorageError(f"{path}: the file name does not match its head", path=path)
        if before is None:
            if head.first_index > applied_index + 1:
                raise StorageError(
                    f"{path}: the oldest log segment starts with entry {head.first_index}, "
                    f"entries from {applied_index + 1} on are missing",
                    path=path,
                )
            self._set_base(head.first_index - 1, head.previous_term, entries)
        elif not head.previous_crc and head.first_index <= applied_index + 1:
            # The state store was ahead of the log, and the log restarted after it.
            self._set_base(head.first_index - 1, head.previous_term, entries)
        elif head.number != before[0].number + 1 or head.previous_crc != before[1].crc:
            raise StorageError(
                f"{path}: does not continue segment {before[0].number}; a segment is missing or "
                "belongs to another log",
                path=path,
            )
        found = scan(data, head, path, newest=position == len(self._sealed) - 1)
        for record in found.records:
            self._replay(record, path, entries)
        return head, found

    def _replay(self, record: Record, path: str, entries: list[Entry]) -> None:
        if record.kind in (ENTRY, CONFIGURATION_RECORD):
            if record.index != self.last_index + 1:
                raise StorageError(
                    f"{path}: entry {record.index} follows entry {self.last_index}", path=path
                )
            if record.index > self._wanted_index:
                kind = FRAME if record.kind == ENTRY else CONFIGURATION
                entries.append(Entry(record.index, record.term, record.payload, kind))
        elif record.kind == HARD_STATE:
            self.term = record.term
            self.vote = record.payload.decode()
            return
        elif record.kind == TRUNCATE:
            while entries and entries[-1].index > record.index:
                entries.pop()
            if record.index < self._base_index:
                self._base_index, self._base_term = record.index, record.term
        elif record.kind == BASE:
            self._set_base(record.index, record.term, entries)
        self.last_index = record.index
        self.last_term = record.term

    def _begin_segment(self, number: int, previous_crc: int) -> None:
        """Start a segment without sealing a previous one; blocking."""
        fd, path = self._take_spare()
        self._active, start = self._new_segment(fd, path, number, previous_crc)
        self._enqueue(_Job(self._active, 0, start, SYNC_DATA, self._name_segment))
        self._enqueue(_Job(None, 0, b"", SYNC_FULL, noop))
        self._raise_if_failed()

    def _reopen_segment(self, head: Head, found: Scan) -> None:
        path, _ = self._sealed.pop()
        fd = self._files.open(path)
        self._active = _Segment(path, fd, head, Writer(head.salt, found.crc, found.end))
        if found.torn_end > found.end:
            zeros = bytes(found.torn_end - found.end)
            self._enqueue(_Job(self._active, found.end, zeros, SYNC_DATA, noop))
        # Writes and names of a killed process may still be only in the page cache.
        self._enqueue(_Job(self._active, found.end, b"", SYNC_DATA, noop))
        self._enqueue(_Job(None, 0, b"", SYNC_FULL, noop))
        self._active.durable = found.end
        self._reserve_at = head.size // 2
        self._raise_if_failed()

    # Writing

    def append(
        self, index: int, term: int, data: bytes, sync: int, done: Callable[[], None]
    ) -> None:
        """Write an entry. Raises DiskFull, with nothing written, if there is no space."""
        self._append(ENTRY, index, term, data, sync, done)
        self.last_index = index
        self.last_term = term

    def truncate(self, index: int, term: int, done: Callable[[], None]) -> None:
        """Invalidate the entries after index; `term` is the term of the entry at index."""
        self._append(TRUNCATE, index, term, b"", SYNC_DATA, done)
        self.last_index = index
        self.last_term = term

    def set_hard_state(self, term: int, vote: str, done: Callable[[], None]) -> None:
        """Write term and vote; always flushed."""
        self._append(HARD_STATE, self.last_index, term, vote.encode(), SYNC_DATA, done)
        self.term = term
        self.vote = vote

    def begin_above(self, index: int, term: int, done: Callable[[], None]) -> None:
        """Invalidate all entries; the log continues after this index, the last one of a
        snapshot."""
        self._append(BASE, index, term, b"", SYNC_DATA, done)
        self.last_index = index
        self.last_term = term

    def write(
        self,
        entries: list[Entry],
        previous_term: int,
        hard_state: tuple[int, str] | None,
        sync: int,
        done: Callable[[], None],
    ) -> None:
        """Write entries, then term and vote, with one write into one segment, where they must fit.

        The first entry can overwrite another one; `previous_term` is the term of the entry before
        it. Entries are flushed according to `sync`, term and vote always. Raises DiskFull, with
        nothing written.
        """
        left = len(entries) + (hard_state is not None)
        self._together_size = record_size(0)
        for entry in entries:
            self._together_size += record_size(len(entry.data))
        if hard_state is not None:
            self._together_size += record_size(len(hard_state[1].encode()))
        self._held = True
        try:
            if not left:
                segment = self._active
                self._enqueue(_Job(segment, segment.writer.offset, b"", SYNC_DATA, done))
            if entries and entries[0].index <= self.last_index:
                self.truncate(entries[0].index - 1, previous_term, noop)
            for entry in entries:
                left -= 1
                kind = ENTRY if entry.kind == FRAME else CONFIGURATION_RECORD
                last = noop if left else done
                self._append(kind, entry.index, entry.term, entry.data, sync, last)
                self.last_index = entry.index
                self.last_term = entry.term
            if hard_state is not None:
                self.set_hard_state(*hard_state, done)
        finally:
            self._held = False
            if not self._in_flight:
                self._run()

    @property
    def rolling(self) -> bool:
        """Whether a segment is being sealed; only one can be sealed at a time."""
        return self._retiring is not None

    def sync(self) -> None:
        """Block until all writes without a flush are on disk."""
        segment = self._retiring or self._active
        offset = segment.writer.offset
        self._raise_if_failed()
        error = write_and_sync(self._files, segment.fd, 0, b"", SYNC_DATA)
        if error:
            self._fail(segment.path, error)
            self._raise_if_failed()
        segment.durable = offset

    def close(self) -> None:
        """Finish the writes in flight, write the clean-shutdown records, and close the files."""
        error = self._flusher.close()
        self._attached = False
        try:
            if self.failed is None and self._in_flight:
                self._finish(error)
            if self.failed is None:
                self._append(CLEAN_CLOSE, self.last_index, self.last_term, b"", SYNC_DATA, noop)
            self._raise_if_failed()
            if self._in_cluster:
                writer, name = self._active.writer, os.path.basename(self._active.path)
                mark = clean_close.End(name, writer.offset, writer.previous)
                clean_close.write_marker(self._files, self.path, mark)
        finally:
            for segment in (self._retiring, self._active):
                if segment is not None:
                    self._files.close(segment.fd)
            if self._spare_fd >= 0:
                self._files.close(self._spare_fd)
            self._files.close(self._directory_fd)

    def _append(
        self,
        kind: int,
        index: int,
        term: int,
        data: bytes,
        sync: int,
        done: Callable[[], None],
    ) -> None:
        self._raise_if_failed()
        segment = self._active
        writer = segment.writer
        offset = writer.offset
        size = max(record_size(len(data)), self._together_size)
        self._together_size = 0  # the rest of the write follows the first record
        if kind != CLEAN_CLOSE and offset + size > segment.limit:
            self._roll(kind, index, term, data, done)
            return
        record = writer.add(kind, index, term, data, segment.durable)
        self._enqueue(_Job(segment, offset, record, sync, done))
        if writer.offset > self._reserve_at and self._attached:
            self.reserve()

    def _roll(
        self, kind: int, index: int, term: int, data: bytes, done: Callable[[], None]
    ) -> None:
        """Seal the active segment and start the next one with this record."""
        assert self._retiring is None, "one roll at a time"
        if failpoints.armed:
            failpoints.reach("wal.roll")
        fd, path = self._take_spare()
        old = self._active
        offset = old.writer.offset
        end = old.writer.add(SEGMENT_END, self.last_index, self.last_term, b"", old.durable)
        new, start = self._new_segment(fd, path, old.head.number + 1, old.writer.previous)
        start += new.writer.add(kind, index, term, data, 0)
        assert new.writer.offset <= new.limit, "a record must fit into an empty segment"
        self._retiring, self._active = old, new

        def named() -> None:
            self._files.close(old.fd)
            self._sealed.append((old.path, old.head.first_index))
            self._retiring = None
            done()
            if self._reserve_at == _NEVER:  # a spare was requested in the meantime
                self.reserve()

        self._enqueue(_Job(old, offset, end, SYNC_DATA, noop))
        self._enqueue(_Job(new, 0, start, SYNC_DATA, self._name_segment))
        self._enqueue(_Job(None, 0, b"", SYNC_FULL, named))

    def _new_segment(
        self, fd: int, path: str, number: int, previous_crc: int
    ) -> tuple[_Segment, bytes]:
        """Create a segment and its first bytes: the head and the hard state."""
        head, start = encode_head(
            self._identity,
            size=self._segment_size,
            number=number,
            first_index=self.last_index + 1,
            previous_term=self.last_term,
            previous_crc=previous_crc,
            salt=self._new_salt(),
        )
        segment = _Segment(path, fd, head, Writer(head.salt, head.crc, HEAD_SIZE))
        start += segment.writer.add(HARD_STATE, self.last_index, self.term, self.vote.encode(), 0)
        self._reserve_at = head.size // 2
        return segment, start

    def _name_segment(self) -> None:
        segment = self._active
        path = f"{self.path}/{segment_name(segment.head.number, segment.head.first_index)}"
        try:
            self._files.rename(segment.path, path)
        except OSError as error:
            self._fail(path, error.errno or errno.EIO)
        segment.path = path

    # Jobs

    def _enqueue(self, job: _Job) -> None:
        self._jobs.append(job)
        if not self._in_flight and not self._held:
            self._run()

    def _run(self) -> None:
        jobs = self._jobs
        while jobs and self.failed is None:
            job = jobs[0]
            self._running = 1
            data, sync = job.data, job.sync
            if len(jobs) > 1 and job.segment is not None:
                data, sync = self._join_jobs()
            fd = self._directory_fd if job.segment is None else job.segment.fd
            self._in_flight = True
            if sync and self._attached:
                self._flusher.submit(fd, job.offset, data, sync)
                return
            self._finish(write_and_sync(self._files, fd, job.offset, data, sync))

    def _join_jobs(self) -> tuple[bytes, int]:
        """Join the waiting jobs of one segment into one write; return its bytes and flush mode."""
        first = self._jobs[0]
        parts: list[bytes] = []
        sync = 0
        size = 0
        for job in self._jobs:
            if job.segment is not first.segment or (parts and size > _JOINED_SIZE_MAX):
                break
            parts.append(job.data)
            size += len(job.data)
            sync = max(sync, job.sync)
        self._running = len(parts)
        return b"".join(parts), sync

    def _flushed(self, error: int, duration_ns: int) -> None:
        self.flushes += 1
        self.on_flushed(duration_ns)
        self._finish(error)
        if self._jobs and not self._in_flight:
            self._run()

    def _finish(self, error: int) -> None:
        """Complete the jobs in flight."""
        jobs: list[_Job] = [self._jobs.popleft() for _ in range(self._running)]
        segment = jobs[0].segment
        if error:
            self._fail(self.path if segment is None else segment.path, error)
        if self.failed is not None:
            self._in_flight = False
            return
        for job in jobs:
            if segment is not None and job.sync:
                segment.durable = job.offset + len(job.data)
        try:
            for job in jobs:
                job.done()  # new writes wait until all callbacks have run
        finally:
            self._in_flight = False

    def _fail(self, path: str, error: int) -> None:
        if self.failed is not None:
            return
        self.failed = _io_error(path, OSError(error, os.strerror(error)))
        if self._attached:
            self._on_failed(self.failed)

    def _raise_if_failed(self) -> None:
        if self.failed is not None:
            raise self.failed

    # Space

    def reserve(self) -> bool:
        """Make sure that a spare exists or is being prepared; return False if the disk is full."""
        self._reserve_at = _NEVER
        if self._retiring is not None:
            return not self.full
        if self._spare_fd < 0 and self.failed is None and not self._recycle():
            fd = self._create("spare")
            if fd >= 0:
                self._prepare(fd)
        return not self.full

    def trim(self, index: int) -> None:
        """Trim entries up to index, which are not needed any more.

        One free segment becomes the next spare, and each call deletes at most one more: to return
        64 MiB of pages to the kernel takes 20 ms.
        """
        self._trim_index = max(self._trim_index, index)
        if self.failed is not None:
            return
        if self._spare_fd < 0:
            self._recycle()
        elif self._is_free(1):
            self._unlink(self._sealed.pop(0)[0])

    def _is_free(self, position: int) -> bool:
        """Whether the sealed segment at this position has no needed entries."""
        following = position + 1
        if following < len(self._sealed):
            return self._sealed[following][1] <= self._trim_index + 1
        oldest_open = self._retiring or self._active
        return (
            following == len(self._sealed) and oldest_open.head.first_index <= self._trim_index + 1
        )

    def _recycle(self) -> bool:
        """Turn the oldest segment into the spare, if it is free."""
        if not self._attached or self._retiring is not None or not self._is_free(0):
            return False
        path, _ = self._sealed[0]
        try:
            fd = self._files.open(path)
            self._sealed.pop(0)
            if self._files.size(fd) != self._segment_size:
                self._files.close(fd)
                self._unlink(path)
                return False
            self._files.rename(path, f"{self.path}/spare")
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                self._fail(path, error.errno or errno.EIO)
            return False
        self._prepare(fd)
        return True

    def _prepare(self, fd: int) -> None:
        self.full = False
        self._spare_fd = fd
        self._spare_ready = False
        self._flusher.zero(fd, self._segment_size, self._directory_fd)

    def _zeroed(self, error: int) -> None:
        if error in _NO_ROOM:
            self._drop_spare()
            self.full = True
        elif error:
            self._fail(f"{self.path}/spare", error)
        else:
            self._spare_ready = True

    def _drop_spare(self) -> None:
        self._files.close(self._spare_fd)
        self._spare_fd = -1
        self._unlink(f"{self.path}/spare")

    def _take_spare(self) -> tuple[int, str]:
        """Take a file of zeros for the next segment. Raises DiskFull."""
        if self._spare_ready:
            fd, self._spare_fd, self._spare_ready = self._spare_fd, -1, False
            return fd, f"{self.path}/spare"
        # Allocated space also reads as zeros; writing to it is only slower.
        fd = self._create("next")
        if fd < 0:
            self._raise_if_failed()
            raise DiskFull(f"no disk space or file descriptor for a log segment in {self.path}")
        return fd, f"{self.path}/next"

    def _create(self, name: str) -> int:
        """Create a file with allocated space; return -1 if there is no space or the log failed."""
        path = f"{self.path}/{name}"
        fd = -1
        try:
            fd = self._files.open(path, create=True)
            self._files.allocate(fd, self._segment_size)
        except OSError as error:
            if fd >= 0:
                self._files.close(fd)
                self._unlink(path)
            self.full = error.errno in _NO_ROOM
            if not self.full:
                self._fail(path, error.errno or errno.EIO)
            return -1
        self.full = False
        return fd

    def _unlink(self, path: str) -> None:
        try:
            self._files.unlink(path)
        except OSError as error:
            self._fail(path, error.errno or errno.EIO)


def _io_error(path: str, error: OSError) -> StorageError:
    return StorageError(f"{path}: {error.strerror}", path=path, errno=error.errno)

"""One SQLite file of the mirror, and its synchronization with the state store.

A *step* reads the outbox rows after the watermark, then the current records that these rows name,
and writes them with the new watermark in one transaction. A record can be newer than the outbox row
that names it; the later outbox row then changes nothing. A missing record is deleted from the file.

A new file starts with a *scan*: each step also reads the next rows of the large key families, in
key order; the small families are read at once. Concurrent changes are in the outbox, so scan and
outbox can advance in any proportion, and both continue after a crash.

A commit survives a crash of the process, but a power failure only after a checkpoint. Therefore the
server trims its outbox up to the watermark of the last checkpoint (`durable`), not of the last
commit.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from corvo import limits
from corvo._fast.codec import keys
from corvo.mirror import reports, rows, schema
from corvo.mirror.database import Database, Failure
from corvo.mirror.facets import Facets
from corvo.mirror.query import PendingDeletions
from corvo.mirror.reports import Reports
from corvo.mirror.sync import Changes, ExistingRow, SyncBatch
from corvo.model import Queue
from corvo.storage.reader import Reader, Snapshot
from corvo.storage.records import jobs as job_records
from corvo.storage.records import queues as queue_records
from corvo.storage.records.meta import decode_meta
from corvo.storage.records.outbox import Changed, decode_changed, decode_state
from corvo.storage.rows import after

_READERS: Final = 2
_FULLTEXT_ROWS: Final = 500
_LOAD_ROWS: Final = 20_000
_FIND = (
    "SELECT number, id, queue, state, priority, error_count, IFNULL(started_at, 0) FROM jobs"
    " WHERE id IN (SELECT value FROM json_each(?))"
)


_NO_TAGS: Final[dict[str, str]] = {}
_SCANNED: Final = (keys.JOB, keys.BATCH, keys.UNIQUE)
_INDEXING: Final = b"indexes"  # scan position after all keys: indexes must be created


class Missed(Exception):
    """The outbox no longer has the rows after the watermark: the mirror must be rebuilt."""


class MirrorFile:
    """A SQLite file of the mirror, with one writer and several readers."""

    def __init__(self, path: Path, reader: Reader, writer: Database) -> None:
        self.path = path
        self.facets = Facets()
        self.epoch = b""
        self.watermark = -1
        self.durable = -1
        self.scan: bytes | None = b""
        self.scanned = 0
        self.behind = True
        self.pending_deletion = PendingDeletions()
        self.caught_up = asyncio.Condition()
        self._written = False  # whether there are commits since the last checkpoint
        self._reader = reader
        self._writer = writer
        self._readers: asyncio.Queue[Database] = asyncio.Queue()
        self._opened: list[Database] = []
        self._queues: dict[int, Queue] = {}
        self._reports = Reports()
        self._next_number = 1
        self._fulltext = 0

    @classmethod
    async def open(cls, path: Path, reader: Reader, epoch: bytes, floor: int) -> "MirrorFile":
        """Open or create a file; a new file follows the outbox from its floor."""
        mirror_file = cls(path, reader, await Database.open(path, writes=True))
        try:
            await mirror_file._prepare(epoch, floor)
        except BaseException:
            await mirror_file.close()
            raise
        return mirror_file

    async def _prepare(self, epoch: bytes, floor: int) -> None:
        writer = self._writer
        if not await writer.all("SELECT 1 FROM sqlite_master WHERE name = 'about'"):
            await writer.script("BEGIN;" + schema.TABLES + reports.TABLES + "COMMIT;")
        about = await writer.all("SELECT version, epoch, watermark, scan, fulltext FROM about")
        if not about:
            values = (schema.VERSION, epoch, floor, b"", 0)
            await writer.run("INSERT INTO about VALUES (?, ?, ?, ?, ?)", values)
            about = [values]
        version, self.epoch, self.watermark, self.scan, self._fulltext = about[0]
        if version != schema.VERSION:
            self.epoch = b""  # another schema version: the file is discarded
            return
        await self._load()
        for _ in range(_READERS):
            database = await Database.open(self.path, writes=False)
            self._opened.append(database)
            self._readers.put_nowait(database)
        await self.checkpoint()

    async def _load(self) -> None:
        last = 0
        text = (
            "SELECT number, queue, state, priority, error_count > 0, tags FROM jobs"
            " WHERE number > ? ORDER BY number LIMIT ?"
        )
        while True:
            found = await self._writer.all(text, (last, _LOAD_ROWS))
            self.facets.add(
                [
                    (number, (queue, state, priority, failed), rows.tags_in(tags) if tags else {})
                    for number, queue, state, priority, failed, tags in found
                ]
            )
            if len(found) < _LOAD_ROWS:
                break
            last = found[-1][0]
        numbers = await self._writer.all("SELECT IFNULL(max(number), 0) FROM jobs")
        self._next_number = numbers[0][0] + 1
        with self._reader.snapshot() as snapshot:
            for key, row in snapshot.scan(keys.QUEUE):
                queue = queue_records.decode_queue(keys.parse_queue(key), row)
                self._queues[queue.number] = queue
        self._update_pending_deletions()
        await self._reports.load(self._writer)

    async def close(self) -> None:
        """Wait for running queries, then close all connections."""
        for _ in self._opened:
            await self._readers.get()
        for database in (*self._opened, self._writer):
            await database.close()

    async def adopt(self, old: "MirrorFile") -> None:
        """Copy the reports of the previous file."""
        await reports.adopt(self._writer, str(old.path.absolute()))

    def queue_number(self, name: str) -> int:
        """The number of the queue with this name, or 0."""
        for queue in self._queues.values():
            if queue.name == name and not queue.destroyed:
                return queue.number
        return 0

    async def discard(self) -> None:
        """Close and delete the file."""
        with contextlib.suppress(Failure):
            await self.close()
        delete_file(self.path)

    @contextlib.asynccontextmanager
    async def reader(self) -> AsyncIterator[Database]:
        """Borrow a connection for read queries."""
        database = await self._readers.get()
        try:
            yield database
        finally:
            self._readers.put_nowait(database)

    @property
    def complete(self) -> bool:
        """Whether the scan of the state store is complete."""
        return self.scan is None

    # ---- a step ----

    async def step(self) -> bool:
        """Process new outbox rows, up to a limit; return whether there were changes."""
        if self.scan == _INDEXING:
            await self._make_indexes()
        read = self._read_names()
        self.behind = read.behind
        count = len(read.ids) + read.others.count()
        if not count and read.watermark == self.watermark and self.scan is None:
            return False
        found = await self._find(list(read.ids))
        with self._reader.snapshot() as snapshot:
            read.read_documents(snapshot, found)
            if self.scan is not None and len(read.ids) < limits.MIRROR_DOCUMENTS:
                self._scan(snapshot, read)
            self._queues = read.name_queues(snapshot, self._queues)
            read.find_oldest(snapshot)
        found |= await self._find(read.scanned)
        await self._write(read, found)
        self.watermark = read.watermark
        self.scan = read.scan
        if read.queues:
            self._update_pending_deletions()
        async with self.caught_up:
            self.caught_up.notify_all()
        return bool(count)

    async def _make_indexes(self) -> None:
        for text in schema.INDEXES:
            await self._writer.run(text)
        await self._writer.run("UPDATE about SET scan = NULL")
        self.scan = None

    def _read_names(self) -> SyncBatch:
        read = SyncBatch()
        read.scan = self.scan
        read.watermark = self.watermark
        with self._reader.snapshot() as snapshot:
            self._check_outbox(snapshot)
            if self.scan == b"":
                self._read_small_families(snapshot, read.others)
            stored = snapshot.get(keys.META)
            meta = None if stored is None else decode_meta(stored)
            applied = 0 if meta is None else meta.applied_index
            read.stamp_ns = 0 if meta is None else meta.stamp_ns
            if applied < self.watermark:
                raise Missed(f"the state store is at {applied}, this file is at {self.watermark}")
            start = keys.outbox(self.watermark + 1)
            flushes = snapshot.take(keys.OUTBOX, start, limits.MIRROR_FLUSHES + 1)
            for number, (key, row) in enumerate(flushes):
                if number == limits.MIRROR_FLUSHES or len(read.ids) >= limits.MIRROR_DOCUMENTS:
                    read.behind = True
                    break
                read.watermark = keys.parse_outbox(key)
                changed = decode_changed(read.watermark, row)
                read.ids.update(dict.fromkeys(changed.jobs))
                _merge(read.others, changed)
            if not read.behind:
                read.watermark = max(read.watermark, applied)
        return read

    def _check_outbox(self, snapshot: Snapshot) -> None:
        stored = snapshot.get(keys.OUTBOX_STATE)
        epoch, floor = (b"", 0) if stored is None else decode_state(stored)
        if stored is None or epoch != self.epoch or floor > self.watermark:
            raise Missed(f"the outbox starts at {floor}, this file is at {self.watermark}")

    def _scan(self, snapshot: Snapshot, read: SyncBatch) -> None:
        """Read the next rows of the scan."""
        assert read.scan is not None
        start = read.scan or _SCANNED[0]
        family = next(family for family in _SCANNED if start.startswith(family))
        taken = snapshot.take(family, start, limits.MIRROR_SCAN_ROWS)
        full = len(taken) == limits.MIRROR_SCAN_ROWS
        if family == keys.JOB:
            count = read.read_scanned(snapshot, taken)
            full = full or count < len(taken)
            del taken[count:]
            self.scanned += count
        elif family == keys.BATCH:
            read.others.batches += [keys.parse_batch(key) for key, _ in taken]
        else:
            read.others.locks += [key for key, _ in taken]
        if full:
            read.scan = after(taken[-1][0])
        else:
            following = _SCANNED.index(family) + 1
            read.scan = _SCANNED[following] if following < len(_SCANNED) else _INDEXING

    @staticmethod
    def _read_small_families(snapshot: Snapshot, others: Changed) -> None:
        """Read the small key families whole."""
        others.queues = [keys.parse_queue(key) for key, _ in snapshot.scan(keys.QUEUE)]
        others.workers = [keys.parse_worker(key) for key, _ in snapshot.scan(keys.WORKER)]
        others.schedules = [keys.parse_schedule(key) for key, _ in snapshot.scan(keys.SCHEDULE)]

    async def _find(self, ids: list[str]) -> dict[str, ExistingRow]:
        if not ids:
            return {}
        found = await self._writer.all(_FIND, (rows.json_list(ids),))
        return {
            job_id: ExistingRow(number, queue, state, priority, errors, started_ns)
            for number, job_id, queue, state, priority, errors, started_ns in found
        }

    # ---- writing ----

    async def _write(self, read: SyncBatch, found: dict[str, ExistingRow]) -> None:
        writer = self._writer
        changes = Changes(read, found, self._queues, self._next_number, self._fulltext)
        gone = [found[job_id] for job_id in read.gone if job_id in found]
        await writer.run("BEGIN IMMEDIATE")
        try:
            gone_tags = await self._delete_jobs(gone)
            await self._remove_texts(changes.requeued)
            for shape, new in changes.inserts.items():
                await writer.many(schema.insert_job(shape), new)
            await writer.many(schema.UPDATE_JOB, changes.updates)
            await self._add_texts(changes.requeued)
            await writer.many("INSERT INTO job_tags VALUES (?, ?, ?)", changes.tags)
            await writer.many(
                "INSERT OR REPLACE INTO job_errors VALUES (?, ?, ?, ?, ?, ?, ?, ?)", changes.errors
            )
            await self._write_others(read)
            await self._reports.write(writer, read, changes.report_counters, self._queues)
            await writer.run(
                "UPDATE about SET watermark = ?, scan = ?", (read.watermark, read.scan)
            )
            await writer.run("COMMIT")
        except BaseException:
            with contextlib.suppress(Failure):
                await writer.run("ROLLBACK")
            raise
        self._written = True
        self._next_number = changes.next_number
        self.facets.add(changes.facets)
        for number, before, after_ in changes.moves:
            self.facets.move(number, before, after_)
        for old in gone:
            self.facets.remove(old.number, old.facet, gone_tags.get(old.number, _NO_TAGS))

    async def _delete_jobs(self, gone: list[ExistingRow]) -> dict[int, dict[str, str]]:
        """Delete rows of jobs; return their tags."""
        if not gone:
            return {}
        writer = self._writer
        numbers = [old.number for old in gone]
        listed = (rows.json_list(numbers),)
        within = "number IN (SELECT value FROM json_each(?))"
        await self._remove_texts([number for number in numbers if number <= self._fulltext])
        text = f"SELECT number, tags FROM jobs WHERE tags IS NOT NULL AND {within}"
        tags = {number: rows.tags_in(tags) for number, tags in await writer.all(text, listed)}
        pairs = [(k, v, number) for number, own in tags.items() for k, v in own.items()]
        await writer.many("DELETE FROM job_tags WHERE key = ? AND value = ? AND number = ?", pairs)
        await writer.run(f"DELETE FROM job_errors WHERE {within}", listed)
        await writer.run(f"DELETE FROM jobs WHERE {within}", listed)
        return tags

    async def _write_others(self, read: SyncBatch) -> None:
        writer = self._writer
        await self._write_queues(read.queues)
        others = read.others
        tables: list[tuple[str, str, list[Any], list[Any]]] = []
        with self._reader.snapshot() as snapshot:
            tables.append(_rows_of(others.batches, snapshot, "batches", "id", _batch))
            tables.append(_rows_of(others.workers, snapshot, "workers", "id", _worker))
            tables.append(_rows_of(others.schedules, snapshot, "schedules", "id", _schedule))
            tables.append(_rows_of(others.locks, snapshot, "unique_locks", "key", self._lock))
        for table, key, puts, deletes in tables:
            await writer.many(f"DELETE FROM {table} WHERE {key} = ?", deletes)
            if puts:
                marks = ", ".join("?" * len(puts[0]))
                await writer.many(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", puts)

    async def _write_queues(self, queues: list[tuple[str, Queue | None]]) -> None:
        gone = [(name,) for name, queue in queues if queue is None]
        await self._writer.many("DELETE FROM queues WHERE row_name = ?", gone)
        marks = ", ".join("?" * 10)
        puts = [rows.queue_values(name, queue) for name, queue in queues if queue is not None]
        await self._writer.many(f"INSERT OR REPLACE INTO queues VALUES ({marks})", puts)

    def _lock(self, snapshot: Snapshot, key: bytes) -> rows.Values | None:
        row = snapshot.get(key)
        if row is None:
            return None
        queue = self._queues.get(rows.lock_queue(key))
        return rows.lock_values(
            key, "" if queue is None else queue.name, job_records.decode_lock(row)
        )

    def _update_pending_deletions(self) -> None:
        """Update the set of jobs that are hidden because their queue is being cleared or
        destroyed."""
        queues = self._queues.values()
        self.pending_deletion = PendingDeletions(
            tuple(queue.number for queue in queues if queue.destroyed),
            tuple((q.number, q.cleared_seq) for q in queues if q.cleared_seq),
        )

    # ---- full text and checkpoints ----

    async def index_texts(self) -> bool:
        """Add further jobs to the full-text index; return whether there were any."""
        if self._fulltext >= self._next_number - 1:
            return False
        last = min(self._fulltext + _FULLTEXT_ROWS, self._next_number - 1)
        writer = self._writer
        await writer.run("BEGIN IMMEDIATE")
        try:
            await writer.run(
                "INSERT INTO jobs_fts (rowid, payload, tags, queue) SELECT number, payload, tags,"
                " queue FROM job_texts WHERE number > ? AND number <= ?",
                (self._fulltext, last),
            )
            await writer.run("UPDATE about SET fulltext = ?", (last,))
            await writer.run("COMMIT")
        except BaseException:
            with contextlib.suppress(Failure):
                await writer.run("ROLLBACK")
            raise
        self._written = True
        self._fulltext = last
        return True

    async def _remove_texts(self, numbers: list[int]) -> None:
        """Remove rows from the full-text index before they change; FTS5 needs their old values."""
        if numbers:
            await self._writer.run(
                "INSERT INTO jobs_fts (jobs_fts, rowid, payload, tags, queue) SELECT 'delete',"
                " number, payload, tags, queue FROM job_texts"
                " WHERE number IN (SELECT value FROM json_each(?))",
                (rows.json_list(numbers),),
            )

    async def _add_texts(self, numbers: list[int]) -> None:
        if numbers:
            await self._writer.run(
                "INSERT INTO jobs_fts (rowid, payload, tags, queue) SELECT number, payload, tags,"
                " queue FROM job_texts WHERE number IN (SELECT value FROM json_each(?))",
                (rows.json_list(numbers),),
            )

    async def checkpoint(self) -> None:
        """Run a WAL checkpoint, so that all commits survive a power failure."""
        watermark = self.watermark
        if not self._written and self.durable == watermark:
            return
        busy, logged, written = (await self._writer.all("PRAGMA wal_checkpoint(PASSIVE)"))[0]
        if not busy and logged == written:
            self.durable = watermark
            self._written = False

    def file_sizes(self) -> tuple[int, int]:
        """Sizes in bytes of the file and of its write-ahead log."""
        return _size(self.path), _size(self.path.with_name(self.path.name + "-wal"))


def delete_file(path: Path) -> None:
    """Delete a mirror file and the auxiliary files of SQLite."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _merge(into: Changed, changed: Changed) -> None:
    into.batches += changed.batches
    into.queues += changed.queues
    into.workers += changed.workers
    into.schedules += changed.schedules
    into.locks += changed.locks


def _rows_of(
    names: list[Any], snapshot: Snapshot, table: str, key: str, read: Any
) -> tuple[str, str, list[Any], list[Any]]:
    puts, deletes = [], []
    for name in dict.fromkeys(names):
        values = read(snapshot, name)
        if values is None:
            deletes.append((name,))
        else:
            puts.append(values)
    return table, key, puts, deletes


def _batch(snapshot: Snapshot, batch_id: str) -> rows.Values | None:
    row = snapshot.get(keys.batch(batch_id))
    return None if row is None else rows.batch_values(job_records.decode_batch(batch_id, row))


def _worker(snapshot: Snapshot, worker_id: str) -> rows.Values | None:
    row = snapshot.get(keys.worker(worker_id))
    return None if row is None else rows.worker_values(job_records.decode_worker(worker_id, row))


def _schedule(snapshot: Snapshot, schedule_id: str) -> rows.Values | None:
    row = snapshot.get(keys.schedule(schedule_id))
    if row is None:
        return None
    return rows.schedule_values(job_records.decode_schedule(schedule_id, row))

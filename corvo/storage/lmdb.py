"""The base on disk: one LMDB table in `<data-dir>/state/` (or in a later one, see `generations`).

Opened with the 0.9 engine, whose file format is the one every tool reads, without WRITEMAP (a full
disk would kill the process) and with full sync, so a committed write survives a power cut. The
map is reserved once, large and sparse, because it cannot grow under open transactions.

One thread uses a base. A read transaction is kept open so that a `get` is nothing but a tree
descent; a write ends it first, which lets LMDB reuse the pages that it would have pinned, and
begins the next one, so a read sees every completed write and never a part of one.

A full disk is not fatal: LMDB writes new pages before it points to them, so a failed commit leaves
the old state. To have room for acks and deletes then, a *ballast* file is kept beside the table
that can be given back to the file system.
"""

import errno
import os
import resource
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import lmdb

from corvo import limits
from corvo.errors import CorvoError, DiskFull, StorageError
from corvo.platform import failpoints
from corvo.storage import generations, rows
from corvo.storage.rows import Row

ENGINE: Final = 0  # LMDB 0.9
STATE: Final = generations.FIRST
DATA_FILE: Final = "data.mdb"
NEW_FILE: Final = "new.mdb"
BALLAST_FILE: Final = "ballast"
READERS_MAX: Final = 64
NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
# LMDB reports a write that was cut short by a full disk as an I/O error.
NO_ROOM: Final = limits.MIB


class StateStore:
    """The contract of `Rows` over LMDB."""

    def __init__(self, path: Path, env: lmdb.Environment, ballast_size: int) -> None:
        self._path = path
        self._env = env
        self._ballast_size = ballast_size
        self._reader: lmdb.Transaction[bytes] = env.begin()

    @classmethod
    def open(
        cls,
        data_dir: Path,
        map_size: int = limits.MAP_SIZE,
        ballast_size: int = limits.BALLAST_SIZE,
    ) -> "StateStore":
        """Open the base of a data directory, creating both when they are missing."""
        path = data_dir / generations.current(data_dir)
        fresh = not data_dir.exists()
        try:
            if path.name != generations.FIRST and not (path / DATA_FILE).exists():
                raise StorageError(f"{path / DATA_FILE} is missing")
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (path / DATA_FILE).exists():
                _create(path, map_size)
            env = lmdb.open(
                os.fspath(path),
                map_size=map_size,
                mode=0o700,
                readahead=False,
                max_readers=READERS_MAX,
                max_spare_txns=1,
                lib_version=ENGINE,
            )
            _check_size(path, env)
            state_store = cls(path, env, ballast_size)
            _sync(path)
            _sync(data_dir)
            if fresh:
                _sync(data_dir.parent)
        except (lmdb.Error, OSError) as error:
            raise StorageError(f"cannot open the base in {path}: {error}") from error
        state_store.restore_ballast()
        return state_store

    def get(self, key: bytes) -> bytes | None:
        """The value of a row."""
        try:
            return self._reader.get(key)
        except lmdb.Error as error:
            raise self._fatal("read", error) from error

    def scan(
        self, prefix: bytes, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[Row]:
        """Rows with this prefix, see `Rows.scan`."""
        return rows.scan(self._take, prefix, start, reverse)

    def floor(self, prefix: bytes, key: bytes) -> Row | None:
        """The last row with this prefix whose key is not behind `key`."""
        return rows.floor(self._take, prefix, key)

    def write(self, puts: list[Row], deletes: list[bytes]) -> None:
        """Delete, then put, in one synced transaction; see `Rows.write` for what can go wrong.

        Rows are written in order of key: neighbours share pages.
        """
        try:
            self._reader.abort()
            try:
                with self._env.begin(write=True) as transaction:
                    for key in sorted(deletes):
                        transaction.delete(key)
                    with transaction.cursor() as cursor:
                        cursor.putmulti(sorted(puts))
                    if failpoints.armed:
                        failpoints.reach("base.before_commit")
                if failpoints.armed:
                    failpoints.reach("base.after_commit")
            finally:
                self._reader = self._env.begin()
        except lmdb.Error as error:
            raise self._write_error(error, error.code) from error
        except OSError as error:  # of a failpoint
            raise self._write_error(error, error.errno) from error

    def reader_check(self) -> int:
        """Free the reader slots of dead processes; how many there were."""
        try:
            return self._env.reader_check()
        except lmdb.Error as error:
            raise self._fatal("check readers of", error) from error

    def disk_free(self) -> int:
        """Bytes that the file system of the base still has for us."""
        stat = os.statvfs(self._path)
        return stat.f_bavail * stat.f_frsize

    def release_ballast(self) -> None:
        """Give the ballast back to the file system."""
        (self._path / BALLAST_FILE).unlink(missing_ok=True)

    def restore_ballast(self) -> bool:
        """Have a ballast again, if the disk has room for two; whether there is one now."""
        path = self._path / BALLAST_FILE
        if path.exists():
            return True
        if not self._ballast_size or self.disk_free() < 2 * self._ballast_size:
            return False
        try:
            with path.open("xb") as file:
                os.posix_fallocate(file.fileno(), 0, self._ballast_size)
        except OSError:
            self.release_ballast()
            return False
        return True

    def close(self) -> None:
        """Close the table. Nothing is lost without it."""
        self._reader.abort()
        self._env.close()

    def _take(self, low: bytes, stop: bytes, reverse: bool, limit: int) -> list[Row]:
        try:
            with self._reader.cursor() as cursor:
                if not reverse:
                    found = cursor.set_range(low)
                elif cursor.set_range(stop):
                    found = cursor.prev()
                else:
                    found = cursor.last()
                if not found:
                    return []
                taken = list(islice(cursor.iterprev() if reverse else cursor.iternext(), limit))
        except lmdb.Error as error:
            raise self._fatal("read", error) from error
        # Only the end of a slice can lie outside, and a start reads millions of rows.
        while taken and not low <= taken[-1][0] < stop:
            taken.pop()
        return taken

    def _room(self) -> int:
        """Bytes by which the table can grow: free disk, or less under a file size limit."""
        room = self.disk_free()
        bound, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if bound != resource.RLIM_INFINITY:
            room = min(room, bound - (self._path / DATA_FILE).stat().st_size)
        return room

    def _write_error(self, error: Exception, code: int | None) -> CorvoError:
        cut_short = code == errno.EIO and self._room() < NO_ROOM
        if isinstance(error, lmdb.MapFullError) or code in NO_SPACE or cut_short:
            return DiskFull(f"no space left for the base in {self._path}")
        return self._fatal("write", error)

    def _fatal(self, what: str, error: Exception) -> StorageError:
        return StorageError(f"cannot {what} the base in {self._path}: {error}")


def _create(path: Path, map_size: int) -> None:
    """Make an empty table. It gets its name when it is on disk: LMDB does not flush it before the
    first commit, and opens no half of it."""
    new = path / NEW_FILE
    new.unlink(missing_ok=True)
    lmdb.open(
        os.fspath(new), map_size=map_size, subdir=False, lock=False, mode=0o600, lib_version=ENGINE
    ).close()
    _sync(new)
    new.rename(path / DATA_FILE)


def _check_size(path: Path, env: lmdb.Environment) -> None:
    """Refuse a table whose file was cut short: to read behind its end would kill the process.

    A file may be a little short, because LMDB does not write a page that it has freed again in the
    same transaction. So all of a short one is read, in a process that may be killed.
    """
    pages = env.info()["last_pgno"] + 1
    size = (path / DATA_FILE).stat().st_size
    wanted = pages * env.stat()["psize"]
    if size >= wanted:
        return
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)  # no report of what is meant to happen
        try:
            with env.begin() as transaction, transaction.cursor() as cursor:
                for _ in cursor:
                    pass
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise StorageError(f"{path / DATA_FILE} was cut short: it has {size} bytes of {wanted}")


def _sync(path: Path) -> None:
    """Make a file, or the names in a directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

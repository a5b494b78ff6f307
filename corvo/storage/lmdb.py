"""The state store on disk: one LMDB table in `<data-dir>/state/` (or a later `generations` folder).

LMDB 0.9 is used because every tool reads its file format. WRITEMAP is off, since a full disk would
kill the process. Full sync is on, so a committed write survives a power cut. The map is reserved
once, large and sparse, because it cannot grow under open transactions.

One thread uses a store. A read transaction stays open so that a `get` costs only a tree descent. A
write ends it first, which lets LMDB reuse the pages that it would have pinned, and then begins the
next one. A read therefore sees every completed write and never a part of one.

A full disk is not fatal: LMDB writes new pages before it points to them, so a failed commit leaves
the old state. A *ballast* file in the same directory can be deleted to get space for acks and
deletes.
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
# LMDB reports a write that a full disk cut short as an I/O error; less free space than this means a
# full disk.
NO_ROOM: Final = limits.MIB


class StateStore:
    """`Rows` in an LMDB table."""

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
        """Open the state store of a data directory, creating both when they are missing."""
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
            raise StorageError(f"cannot open the state store in {path}: {error}") from error
        state_store.restore_ballast()
        return state_store

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row, None if the row is missing."""
        try:
            return self._reader.get(key)
        except lmdb.Error as error:
            raise self._fatal("read", error) from error

    def scan(
        self, prefix: bytes, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[Row]:
        """Yield rows with this prefix, see `Rows.scan`."""
        return rows.scan(self._take, prefix, start, reverse)

    def floor(self, prefix: bytes, key: bytes) -> Row | None:
        """Return the last row with this prefix whose key is at most `key`."""
        return rows.floor(self._take, prefix, key)

    def write(self, puts: list[Row], deletes: list[bytes]) -> None:
        """Delete, then put, in one synced transaction; `Rows.write` lists the errors.

        Rows are written in order of key, because neighbors share pages.
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
        except OSError as error:  # from a failpoint
            raise self._write_error(error, error.errno) from error

    def reader_check(self) -> int:
        """Free the reader slots of dead processes. Return how many slots were freed."""
        try:
            return self._env.reader_check()
        except lmdb.Error as error:
            raise self._fatal("check readers of", error) from error

    def disk_free(self) -> int:
        """Return the free bytes of the file system that this process may use."""
        stat = os.statvfs(self._path)
        return stat.f_bavail * stat.f_frsize

    def release_ballast(self) -> None:
        """Delete the ballast file, which frees its disk space."""
        (self._path / BALLAST_FILE).unlink(missing_ok=True)

    def restore_ballast(self) -> bool:
        """Create the ballast file if the disk has room for two. Return whether the file exists
        now."""
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
        """Close the environment. Committed writes are safe without it."""
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
        # Only the last rows of a slice can be outside the range, and a start reads millions of
        # rows.
        while taken and not low <= taken[-1][0] < stop:
            taken.pop()
        return taken

    def _room(self) -> int:
        """Return by how many bytes the table can grow: free disk, or less under a file size
        limit."""
        room = self.disk_free()
        bound, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if bound != resource.RLIM_INFINITY:
            room = min(room, bound - (self._path / DATA_FILE).stat().st_size)
        return room

    def _write_error(self, error: Exception, code: int | None) -> CorvoError:
        cut_short = code == errno.EIO and self._room() < NO_ROOM
        if isinstance(error, lmdb.MapFullError) or code in NO_SPACE or cut_short:
            return DiskFull(f"no space left for the state store in {self._path}")
        return self._fatal("write", error)

    def _fatal(self, what: str, error: Exception) -> StorageError:
        return StorageError(f"cannot {what} the state store in {self._path}: {error}")


def _create(path: Path, map_size: int) -> None:
    """Create an empty table. It is renamed into place after a sync: LMDB does not sync it before
    the first commit and cannot open a partial file."""
    new = path / NEW_FILE
    new.unlink(missing_ok=True)
    lmdb.open(
        os.fspath(new), map_size=map_size, subdir=False, lock=False, mode=0o600, lib_version=ENGINE
    ).close()
    _sync(new)
    new.rename(path / DATA_FILE)


def _check_size(path: Path, env: lmdb.Environment) -> None:
    """Reject a truncated table: a read past the end of its file would kill the process.

    A valid file may be slightly short, because LMDB does not write a page that was freed again in
    the same transaction. So a child process, which may be killed, reads all of a short file.
    """
    pages = env.info()["last_pgno"] + 1
    size = (path / DATA_FILE).stat().st_size
    wanted = pages * env.stat()["psize"]
    if size >= wanted:
        return
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)  # no crash report of an expected signal
        try:
            with env.begin() as transaction, transaction.cursor() as cursor:
                for _ in cursor:
                    pass
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise StorageError(f"{path / DATA_FILE} is truncated: it has {size} of {wanted} bytes")


def _sync(path: Path) -> None:
    """Make a file, or the entries of a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Reads of the state store from another process: short snapshots of the table that the server
writes.

A snapshot pins the pages that it sees, so that the server cannot reuse them. It must therefore end
after milliseconds. If a process dies during a snapshot, `StateStore.reader_check` frees its slot.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import lmdb

from corvo import limits
from corvo._fast.codec.keys import prefix_end
from corvo.errors import StorageError
from corvo.storage import generations
from corvo.storage.lmdb import ENGINE, READERS_MAX
from corvo.storage.rows import Row


class Snapshot:
    """The rows as of one flush."""

    def __init__(self, transaction: "lmdb.Transaction[bytes]") -> None:
        self._transaction = transaction
        # Returns the value of a row, None if the row is missing.
        self.get: Callable[[bytes], bytes | None] = transaction.get

    def take(self, prefix: bytes, start: bytes, limit: int) -> list[Row]:
        """Return the first rows with this prefix whose key is at least `start`."""
        end = prefix_end(prefix)
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(max(prefix, start)):
                return []
            rows = list(islice(cursor.iternext(), limit))
        while rows and rows[-1][0] >= end:
            rows.pop()
        return rows

    def scan(self, prefix: bytes) -> Iterator[Row]:
        """Yield all rows with this prefix, in order of key."""
        end = prefix_end(prefix)
        with self._transaction.cursor() as cursor:
            if cursor.set_range(prefix):
                for key, value in cursor.iternext():
                    if key >= end:
                        return
                    yield key, value


class Reader:
    """The state store of a running server's data directory, in the generation that is current on
    open. A later generation needs a new reader."""

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / generations.current(data_dir)
        try:
            self._env = lmdb.open(
                os.fspath(path),
                map_size=limits.MAP_SIZE,
                readonly=True,
                create=False,
                readahead=False,
                max_readers=READERS_MAX,
                lib_version=ENGINE,
            )
        except lmdb.Error as error:
            raise StorageError(f"cannot read the state store in {path}: {error}") from error

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Give the rows as of now to a `with` block, which must not do anything slow."""
        transaction = self._env.begin()
        try:
            yield Snapshot(transaction)
        finally:
            transaction.abort()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

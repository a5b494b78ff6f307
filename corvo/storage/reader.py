"""Reading the base from another process: short snapshots of the table that the server writes.

A snapshot pins the pages it sees, which the server then cannot use again, so it is kept for
milliseconds. A process that dies with one open leaves its slot to `StateStore.reader_check`.
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
    """The rows as one flush left them."""

    def __init__(self, transaction: "lmdb.Transaction[bytes]") -> None:
        self._transaction = transaction
        # The value of a row; None = there is none.
        self.get: Callable[[bytes], bytes | None] = transaction.get

    def take(self, prefix: bytes, start: bytes, limit: int) -> list[Row]:
        """The first rows with this prefix from the key `start` on."""
        end = prefix_end(prefix)
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(max(prefix, start)):
                return []
            rows = list(islice(cursor.iternext(), limit))
        while rows and rows[-1][0] >= end:
            rows.pop()
        return rows

    def scan(self, prefix: bytes) -> Iterator[Row]:
        """All rows with this prefix, in order of key."""
        end = prefix_end(prefix)
        with self._transaction.cursor() as cursor:
            if cursor.set_range(prefix):
                for key, value in cursor.iternext():
                    if key >= end:
                        return
                    yield key, value


class Reader:
    """The base of a data directory whose server runs: the generation that counts when it is opened.
    A later one takes a new reader."""

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
            raise StorageError(f"cannot read the base in {path}: {error}") from error

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """The rows as they are now, for the length of a block without anything slow in it."""
        transaction = self._env.begin()
        try:
            yield Snapshot(transaction)
        finally:
            transaction.abort()

    def close(self) -> None:
        """Close the table."""
        self._env.close()

"""An async connection to a SQLite file; each call is one round trip to the connection's thread."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import aiosqlite

from corvo.errors import MirrorUnavailable
from corvo.mirror import texts

Failure = sqlite3.Error  # error of the file, the disk or a statement
Damaged = sqlite3.DatabaseError

_WRITER = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA wal_autocheckpoint = 0;
PRAGMA cache_size = -65536;
PRAGMA temp_store = MEMORY;
PRAGMA busy_timeout = 5000;
"""
_READER = """
PRAGMA query_only = ON;
PRAGMA cache_size = -32768;
PRAGMA temp_store = MEMORY;
PRAGMA busy_timeout = 5000;
"""


class Database:
    """An open connection; exactly one connection of a file writes."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, path: Path, *, writes: bool) -> "Database":
        """Open a connection; a writer creates a missing file."""
        mode = "rwc" if writes else "ro"
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        connection = await aiosqlite.connect(uri, uri=True, isolation_level=None)
        try:
            await connection.executescript(_WRITER if writes else _READER)
            if not writes:
                for name in texts.FUNCTIONS:
                    function = getattr(texts, name)
                    await connection.create_function(name, 1, function, deterministic=True)
        except BaseException:
            await connection.close()
            raise
        return cls(connection)

    async def script(self, text: str) -> None:
        """Run statements without parameters."""
        await self._connection.executescript(text)

    async def run(self, text: str, values: Sequence[Any] = ()) -> None:
        """Run one statement."""
        await self._connection.execute_fetchall(text, values)

    async def many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement per row."""
        if rows:
            cursor = await self._connection.executemany(text, rows)
            await cursor.close()

    async def all(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query."""
        rows: Iterable[Any] = await self._connection.execute_fetchall(text, values)
        return list(rows)

    async def within(self, seconds: float, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query; interrupt it and raise if it takes longer than `seconds`."""
        query = asyncio.ensure_future(self.all(text, values))
        try:
            return await asyncio.wait_for(asyncio.shield(query), seconds)
        except (TimeoutError, asyncio.CancelledError) as error:
            await self._connection.interrupt()
            with contextlib.suppress(Failure):
                await query
            if isinstance(error, asyncio.CancelledError):
                raise
            raise MirrorUnavailable(
                f"the search exceeded {seconds:g} s: use a more selective filter"
            ) from None

    async def close(self) -> None:
        """Close the connection and end its thread."""
        await self._connection.close()

"""A base in memory, for tests and the simulator."""

from bisect import bisect_left
from collections.abc import Iterator

from corvo.storage import rows
from corvo.storage.rows import Row


class MemoryStore:
    """The contract of `Rows` over a dict; keys are sorted when a scan asks for them."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] | None = []  # sorted; None = to be sorted again

    def copy(self) -> "MemoryStore":
        """A base of its own with the same rows: what a restart would find."""
        other = MemoryStore()
        other._rows = self._rows.copy()
        other._keys = None
        return other

    def get(self, key: bytes) -> bytes | None:
        """The value of a row."""
        return self._rows.get(key)

    def scan(
        self, prefix: bytes, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[Row]:
        """Rows with this prefix, see `Rows.scan`."""
        return rows.scan(self._take, prefix, start, reverse)

    def floor(self, prefix: bytes, key: bytes) -> Row | None:
        """The last row with this prefix whose key is not behind `key`."""
        return rows.floor(self._take, prefix, key)

    def write(self, puts: list[Row], deletes: list[bytes]) -> None:
        """Delete, then put."""
        for key in deletes:
            self._rows.pop(key, None)
        self._rows.update(puts)
        self._keys = None

    def close(self) -> None:
        """Nothing to give up."""

    def _take(self, low: bytes, stop: bytes, reverse: bool, limit: int) -> list[Row]:
        if self._keys is None:
            self._keys = sorted(self._rows)
        first, end = bisect_left(self._keys, low), bisect_left(self._keys, stop)
        if reverse:
            keys = self._keys[max(first, end - limit) : end][::-1]
        else:
            keys = self._keys[first : min(end, first + limit)]
        return [(key, self._rows[key]) for key in keys]

"""Rows that are not jobs, as they will be after the next flush, over the base."""

from typing import Final, final

from corvo.kv.rows import Row, Rows

ROW_SIZE: Final = 128  # memory of a row beside its value


@final
class RowOverlay:
    """Rows by key; None = deleted."""

    def __init__(self, base: Rows) -> None:
        self._base = base
        self._rows: dict[bytes, bytes | None] = {}
        self.size: int = 0  # memory

    def __len__(self) -> int:
        """How many rows there are to flush."""
        return len(self._rows)

    def get(self, key: bytes) -> bytes | None:
        """The row as it is now."""
        if key in self._rows:
            return self._rows[key]
        return self._base.get(key)

    def put(self, key: bytes, row: bytes | None) -> None:
        """Write the row; None deletes it."""
        self._rows[key] = row
        self.size += ROW_SIZE + (len(row) if row is not None else 0)

    def collect(self, puts: list[Row], deletes: list[bytes]) -> None:
        """Add what there is to flush."""
        for key, row in self._rows.items():
            if row is None:
                deletes.append(key)
            else:
                puts.append((key, row))

    def written(self) -> None:
        """The base has everything."""
        self._rows.clear()
        self.size = 0

"""Rows that are not jobs, as they will be after the next flush, over the base."""

from typing import Final

from corvo._fast.codec import keys
from corvo.storage.rows import Row, Rows

ROW_SIZE: Final = 128  # memory of a row beside its value


class RowOverlay:
    """Rows by key; None = deleted."""

    def __init__(self, state_store: Rows) -> None:
        self._state_store = state_store
        self._rows: dict[bytes, bytes | None] = {}
        self.size: int = 0  # memory

    def __len__(self) -> int:
        """How many rows there are to flush."""
        return len(self._rows)

    def get(self, key: bytes) -> bytes | None:
        """The row as it is now."""
        if key in self._rows:
            return self._rows[key]
        return self._state_store.get(key)

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


class Links:
    """Sets of ids, one for each owner, of any size: one row without value for each member."""

    def __init__(self, state_store: Rows, family: bytes) -> None:
        self._state_store = state_store
        self._family = family
        # By owner and member: True = added, the base lacks the row; False = removed, it has it.
        self._changes: dict[str, dict[str, bool]] = {}
        self._count: int = 0

    def __len__(self) -> int:
        """How many rows there are to flush."""
        return self._count

    def has(self, owner: str, member: str) -> bool:
        """Whether the owner has this member."""
        changes = self._changes.get(owner)
        if changes is not None and member in changes:
            return changes[member]
        return self._state_store.get(keys.link(self._family, owner, member)) is not None

    def add(self, owner: str, member: str) -> None:
        """A member that the owner does not have."""
        self._change(owner, member, True)

    def remove(self, owner: str, member: str) -> None:
        """A member that the owner has goes."""
        self._change(owner, member, False)

    def _change(self, owner: str, member: str, added: bool) -> None:
        changes = self._changes.get(owner)
        if changes is None:
            changes = self._changes[owner] = {}
        if member in changes:  # as it is in the base
            assert changes[member] != added, f"link {owner} {member}"
            del changes[member]
            self._count -= 1
        else:
            changes[member] = added
            self._count += 1

    def members(self, owner: str, limit: int) -> list[str]:
        """The first `limit` members, sorted."""
        changes = self._changes.get(owner)
        found: list[str] = []
        if changes is not None:
            found = [member for member in changes if changes[member]]
        flushed = 0
        for key, _ in self._state_store.scan(keys.links(self._family, owner)):
            member = keys.parse_link(self._family, key)[1]
            if changes is None or member not in changes:
                found.append(member)
                flushed += 1
                if flushed == limit:
                    break
        found.sort()
        return found[:limit]

    def collect(self, puts: list[Row], deletes: list[bytes]) -> None:
        """Add what there is to flush."""
        for owner, changes in self._changes.items():
            for member, added in changes.items():
                key = keys.link(self._family, owner, member)
                if added:
                    puts.append((key, b""))
                else:
                    deletes.append(key)

    def written(self) -> None:
        """The base has everything."""
        self._changes.clear()
        self._count = 0

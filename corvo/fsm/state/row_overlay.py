"""Changed rows that no object represents, above those in the state store."""

from array import array
from typing import Any, Final

from corvo._fast.codec import keys
from corvo.storage.records import queues as queue_records
from corvo.storage.rows import Row, Rows

ROW_SIZE: Final = 128  # memory of a row in addition to its value
DROPPED_MIN: Final = 250  # old rows that an entry deletes


class RowOverlay:
    """Changed rows by key; None = deleted.

    *Old* rows are in the state store but count no more: grants and groups of which very many lost
    their meaning at once. Each entry deletes some of them. No result depends on them.
    """

    def __init__(self, state_store: Rows) -> None:
        self._state_store = state_store
        self._rows: dict[bytes, bytes | None] = {}
        self.size: int = 0  # memory
        # Stamps of old grants by queue number. A grant at stamp 0 has the first stamp that counts.
        self._old_grants: dict[int, array[int]] = {}
        self._old_groups: dict[int, list[int]] = {}  # numbers of old groups by queue number
        self._old_objects: list[dict[str, Any]] = []  # groups to be freed, which takes time too
        self.old: bool = False  # whether there are any

    def __len__(self) -> int:
        """Return how many rows wait for a flush."""
        return len(self._rows)

    def get(self, key: bytes) -> bytes | None:
        """Return the row as it is now."""
        if key in self._rows:
            return self._rows[key]
        return self._state_store.get(key)

    def put(self, key: bytes, row: bytes | None) -> None:
        """Write the row; None deletes it."""
        self._rows[key] = row
        self.size += ROW_SIZE + (len(row) if row is not None else 0)

    # Old rows.

    def leave_grants(self, queue_number: int, stamps: "array[int]", since_ns: int) -> None:
        """Let the grants of a queue at these stamps be old: those before `since_ns`."""
        if len(stamps) <= DROPPED_MIN and queue_number not in self._old_grants:
            for stamp_ns in stamps:
                self.put(keys.grant(queue_number, stamp_ns), None)
            return
        self.load_old_grants(queue_number, stamps)
        self.put(keys.grant(queue_number, 0), queue_records.encode_grant(since_ns))

    def load_old_grants(self, queue_number: int, stamps: "array[int]") -> None:
        """Record old grants whose limit is stored already."""
        self._old_grants.setdefault(queue_number, array("Q")).extend(stamps)
        self.old = True

    def leave_groups(self, queue_number: int, groups: dict[str, Any]) -> None:
        """Let the rows of these groups of a queue be old."""
        if len(groups) <= DROPPED_MIN:
            for group in groups.values():
                self.put(keys.group(queue_number, group.number), None)
            return
        self.load_old_groups(queue_number, [group.number for group in groups.values()])
        self._old_objects.append(groups)

    def load_old_groups(self, queue_number: int, numbers: list[int]) -> None:
        """Record old groups."""
        if numbers:
            self._old_groups.setdefault(queue_number, []).extend(numbers)
            self.old = True

    def drop_old(self) -> None:
        """Delete some old rows."""
        left = DROPPED_MIN
        while left > 0 and self._old_grants:
            queue_number, stamps = next(iter(self._old_grants.items()))
            left += len(stamps) // 4000  # no more than this accumulates
            while left > 0 and len(stamps):
                self.put(keys.grant(queue_number, stamps.pop()), None)
                left -= 1
            if not len(stamps):
                self.put(keys.grant(queue_number, 0), None)
                del self._old_grants[queue_number]
        while left > 0 and self._old_groups:
            queue_number, numbers = next(iter(self._old_groups.items()))
            while left > 0 and numbers:
                self.put(keys.group(queue_number, numbers.pop()), None)
                left -= 1
            if not numbers:
                del self._old_groups[queue_number]
        if self._old_objects:
            groups = self._old_objects[-1]
            for _ in range(min(DROPPED_MIN, len(groups))):
                groups.popitem()
            if not groups:
                self._old_objects.pop()
        self.old = bool(self._old_grants or self._old_groups or self._old_objects)

    def collect(self, puts: list[Row], deletes: list[bytes]) -> None:
        """Add all rows that a flush has to write."""
        for key, row in self._rows.items():
            if row is None:
                deletes.append(key)
            else:
                puts.append((key, row))

    def written(self) -> None:
        """Record that the flush has written everything."""
        self._rows.clear()
        self.size = 0


class Links:
    """Sets of ids, one for each owner, of any size: one row without a value for each member."""

    def __init__(self, state_store: Rows, family: bytes) -> None:
        self._state_store = state_store
        self._family = family
        # By owner and member: True = added, not yet in the state store; False = removed, still in
        # it.
        self._changes: dict[str, dict[str, bool]] = {}
        self._count: int = 0

    def __len__(self) -> int:
        """Return how many rows wait for a flush."""
        return self._count

    def has(self, owner: str, member: str) -> bool:
        """Return whether the owner has this member."""
        changes = self._changes.get(owner)
        if changes is not None and member in changes:
            return changes[member]
        return self._state_store.get(keys.link(self._family, owner, member)) is not None

    def add(self, owner: str, member: str) -> None:
        """Add a member that the owner does not have."""
        self._change(owner, member, True)

    def remove(self, owner: str, member: str) -> None:
        """Remove a member that the owner has."""
        self._change(owner, member, False)

    def _change(self, owner: str, member: str, added: bool) -> None:
        changes = self._changes.get(owner)
        if changes is None:
            changes = self._changes[owner] = {}
        if member in changes:  # back to what the state store has
            assert changes[member] != added, f"link {owner} {member}"
            del changes[member]
            self._count -= 1
        else:
            changes[member] = added
            self._count += 1

    def members(self, owner: str, limit: int) -> list[str]:
        """Return the first `limit` members, sorted."""
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
        """Add all rows that a flush has to write."""
        for owner, changes in self._changes.items():
            for member, added in changes.items():
                key = keys.link(self._family, owner, member)
                if added:
                    puts.append((key, b""))
                else:
                    deletes.append(key)

    def written(self) -> None:
        """Record that the flush has written everything."""
        self._changes.clear()
        self._count = 0

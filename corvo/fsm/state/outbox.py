"""The outbox: one row for each flush that names what it has changed, for the mirror to read.

The mirror says how far it has read, and the rows up to there are deleted by the next flush. When it
does not read, the outbox keeps to a bound: the oldest rows go, a few with each flush, and its floor
rises. A mirror that has not read up to the floor has to be built again from all documents.
"""

from typing import final

from corvo._fast.codec import keys
from corvo.errors import DiskFull
from corvo.limits import OUTBOX_DROPPED_MAX, OUTBOX_SIZE_MAX
from corvo.storage.records.outbox import Changed, decode_state, encode_changed, encode_state
from corvo.storage.rows import Row, Rows


@final
class Outbox:
    """The rows of the outbox, by index and size."""

    def __init__(self, state_store: Rows, epoch: bytes, index: int, anew: bool = False) -> None:
        """Go on with the outbox of the base, or begin one of this epoch: up to `index`, the base
        has to be read as a whole. One that is begun `anew` takes the place of the one there is."""
        self.read: int = 0  # the mirror has everything up to this index, whatever happens to it
        self.size: int = 0
        self._rows: list[tuple[int, int]] = []
        self._added: tuple[int, int] = (0, 0)  # by the flush that is under way
        self._dropped: int = 0  # likewise
        self._foreign: list[bytes] = []  # keys of rows that go when its state is written
        stored = None if anew else state_store.get(keys.OUTBOX_STATE)
        self._new: bool = stored is None  # its state is not written yet
        if stored is None:
            self.epoch: bytes = epoch
            self.floor: int = index
            self._foreign = [key for key, _ in state_store.scan(keys.OUTBOX)]
            self._begin(state_store)
            return
        self.epoch, self.floor = decode_state(stored)
        for key, row in state_store.scan(keys.OUTBOX):
            self._rows.append((keys.parse_outbox(key), len(row)))
            self.size += len(row)

    def _begin(self, state_store: Rows) -> None:
        """Write its state at once, so that the mirror can begin; the next flush does it when there
        is no space now."""
        try:
            state = encode_state(self.epoch, self.floor)
            state_store.write([(keys.OUTBOX_STATE, state)], self._foreign)
            self._foreign = []
            self._new = False
        except DiskFull:
            pass

    def __len__(self) -> int:
        """How many flushes the mirror has not read, or has not said so."""
        return len(self._rows)

    def collect(self, index: int, changed: Changed, deletes: list[bytes]) -> list[Row]:
        """What a flush up to `index` has to write; the keys that it has to delete are appended."""
        puts: list[Row] = []
        self._added = (0, 0)
        if changed.count():
            row = encode_changed(changed)
            puts.append((keys.outbox(index), row))
            self._added = (index, len(row))
        deletes += self._foreign
        self._dropped = 0
        size = self.size + self._added[1]
        for row_index, row_size in self._rows:
            unread = row_index > self.read
            if self._dropped == OUTBOX_DROPPED_MAX or (unread and size <= OUTBOX_SIZE_MAX):
                break
            size -= row_size
            deletes.append(keys.outbox(row_index))
            self._dropped += 1
        if self._dropped or self._new:
            floor = self._rows[self._dropped - 1][0] if self._dropped else self.floor
            puts.append((keys.OUTBOX_STATE, encode_state(self.epoch, floor)))
        return puts

    def written(self) -> None:
        """The flush is done."""
        self._new = False
        self._foreign = []
        if self._dropped:
            self.floor = self._rows[self._dropped - 1][0]
            for _, size in self._rows[: self._dropped]:
                self.size -= size
            del self._rows[: self._dropped]
            self._dropped = 0
        if self._added[0]:
            self._rows.append(self._added)
            self.size += self._added[1]
            self._added = (0, 0)


def outbox_rows(state_store: Rows) -> list[bytes]:
    """The keys of all rows of an outbox. Without a mirror they have to go: when one comes back, it
    has to read everything again."""
    found = [key for key, _ in state_store.scan(keys.OUTBOX)]
    if state_store.get(keys.OUTBOX_STATE) is not None:
        found.append(keys.OUTBOX_STATE)
    return found

"""The event log: the blocks of the last entries, above those of the base.

Each entry that changed anything leaves one block of events with consecutive seqs. The log is cut at
its beginning only, block by block; the meta row says where it begins and how large it is.
"""

from collections.abc import Iterator

from corvo._fast.codec import keys
from corvo.events import Event
from corvo.fsm.state.row_overlay import ROW_SIZE
from corvo.limits import EVENT_TRIM_BLOCKS_MAX
from corvo.storage.records import events as event_records
from corvo.storage.records.meta import Meta
from corvo.storage.rows import Row, Rows


class EventLog:
    """Blocks of events, in order."""

    def __init__(self, state_store: Rows, meta: Meta) -> None:
        self._state_store = state_store
        self._meta = meta
        self._blocks: list[tuple[int, bytes]] = []  # first seq, event block
        self._deletes: list[bytes] = []
        self.size: int = 0  # memory of what has to be flushed

    def documents(self) -> int:
        """How much there is to flush."""
        return len(self._blocks) + len(self._deletes)

    def add(self, first_seq: int, block: bytes) -> None:
        """Append the events of one entry."""
        self._blocks.append((first_seq, block))
        self._meta.event_log_size += len(block)
        self.size += ROW_SIZE + len(block)

    def find(self, seq: int) -> Event | None:
        """One event; None when it was trimmed."""
        if seq < self._meta.event_first_seq:
            return None
        if self._blocks and seq >= self._blocks[0][0]:
            low, high = 0, len(self._blocks)
            while high - low > 1:
                middle = (low + high) >> 1
                if self._blocks[middle][0] <= seq:
                    low = middle
                else:
                    high = middle
            first_seq, block = self._blocks[low]
            return event_records.decode_event(first_seq, block, seq)
        row = self._state_store.floor(keys.EVENTS, keys.events(seq))
        if row is None:
            return None
        return event_records.decode_event(keys.parse_events(row[0]), row[1], seq)

    def blocks_back(self, seq: int) -> Iterator[tuple[int, bytes]]:
        """The blocks of the log that have events up to `seq`, the newest first."""
        for first_seq, block in reversed(self._blocks):
            if first_seq <= seq:
                yield first_seq, block
        first = keys.events(self._meta.event_first_seq)
        for key, block in self._state_store.scan(
            keys.EVENTS, keys.events(max(0, seq)), reverse=True
        ):
            if key < first:
                return
            yield keys.parse_events(key), block

    def blocks_from(self, seq: int) -> Iterator[tuple[int, bytes]]:
        """The blocks of the log from the one with this event on."""
        first = keys.events(max(seq, self._meta.event_first_seq))
        row = self._state_store.floor(keys.EVENTS, first)
        start = first if row is None else row[0]
        oldest = keys.events(self._meta.event_first_seq)
        for key, block in self._state_store.scan(keys.EVENTS, start):
            if key >= oldest:
                yield keys.parse_events(key), block
        for i in range(len(self._blocks)):
            if i + 1 == len(self._blocks) or self._blocks[i + 1][0] > seq:
                yield self._blocks[i]

    def blocks(self) -> list[tuple[int, int]]:
        """(first seq, size) of the oldest blocks of the log, at most as many as a trim may drop
        and one more."""
        found: list[tuple[int, int]] = []
        start = keys.events(self._meta.event_first_seq)
        for key, block in self._state_store.scan(keys.EVENTS, start):
            found.append((keys.parse_events(key), len(block)))
            if len(found) > EVENT_TRIM_BLOCKS_MAX:
                return found
        for first_seq, block in self._blocks:
            found.append((first_seq, len(block)))
            if len(found) > EVENT_TRIM_BLOCKS_MAX:
                break
        return found

    def trim(self, seq: int) -> None:
        """Drop the blocks that end at or below `seq`, as many as one op may drop."""
        blocks = self.blocks()
        flushed = 0
        dropped = 0
        pending_first = self._blocks[0][0] if self._blocks else 0
        for first_seq, size in blocks:
            end = blocks[dropped + 1][0] if dropped + 1 < len(blocks) else self._meta.event_seq + 1
            if end - 1 > seq or dropped == EVENT_TRIM_BLOCKS_MAX:
                break
            if not self._blocks or first_seq < pending_first:
                self._deletes.append(keys.events(first_seq))
                flushed += 1
            else:
                self.size -= ROW_SIZE + size
            self._meta.event_log_size -= size
            self._meta.event_first_seq = end
            dropped += 1
        del self._blocks[: dropped - flushed]

    # Flush.

    def collect(self, puts: list[Row], deletes: list[bytes]) -> None:
        """Everything that a flush has to write."""
        for first_seq, block in self._blocks:
            puts.append((keys.events(first_seq), block))
        deletes += self._deletes

    def written(self) -> None:
        """The base has everything."""
        self._blocks.clear()
        self._deletes.clear()
        self.size = 0

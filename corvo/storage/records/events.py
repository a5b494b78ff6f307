"""Event blocks: the events of one log entry, by columns.

The events of a block share one time (the entry's stamp) and have consecutive seqs, the first of
which is in the key. The fields, by `LAYOUT`: the time; the names of the queues, each once; then the
columns: types, indexes of queue names, job ids (front-coded), distances to the seq of the previous
event of the same job (0 = none), data. A job event takes 8 to 30 bytes and its data.

Apply writes the columns of a block directly. An event becomes an object only when it is read.
"""

from typing import Any, Final

from corvo import records
from corvo._fast.codec.fields import Writer
from corvo._fast.codec.layouts import I64_MAX
from corvo.errors import StorageError
from corvo.events import Event
from corvo.records import layout
from corvo.storage.records.jobs import decode_document

LAYOUT: Final = layout(records.EVENT_BLOCK)


class EventBlock:
    """Encoder of event blocks. One object is reused: `begin`, then `add` for each event, then
    `done`."""

    def __init__(self) -> None:
        self.first_seq: int = 0
        self.count: int = 0
        self._at_ns: int = 0
        self._queues: dict[str, int] = {}  # indexes by name
        self._queue: str = ""  # of the last event
        self._position: int = -1
        self._job_id: str = ""  # of the last event
        self._whole = Writer()
        self._types = Writer()
        self._positions = Writer()
        self._ids = Writer()
        self._distances = Writer()
        self._data = Writer()

    def begin(self, first_seq: int, at_ns: int) -> None:
        """Start the block of an entry with this stamp."""
        self.first_seq = first_seq
        self._at_ns = at_ns
        self.count = 0
        self._position = -1
        self._job_id = ""
        self._queues.clear()
        self._types.begin()
        self._positions.begin()
        self._ids.begin()
        self._distances.begin()
        self._data.begin()

    def add(self, type: int, job_id: str, queue: str, previous: int, data: bytes) -> None:
        """Append an event; `previous` is the seq of the previous event of the same job, 0 =
        none."""
        if self._position < 0 or queue is not self._queue:
            self._queue = queue
            self._position = self._queues.setdefault(queue, len(self._queues))
        self._types.u(type)
        self._positions.u(self._position)
        self._ids.p(job_id, self._job_id)
        self._job_id = job_id
        self._distances.u(self.first_seq + self.count - previous if previous else 0)
        self._data.b(data)
        self.count += 1

    def done(self) -> bytes:
        """Return the encoded block."""
        w = self._whole
        w.begin()
        w.u(self._at_ns)
        w.u(len(self._queues))
        for name in self._queues:
            w.s(name)
        count = self.count
        w.u(count)
        w.fields(self._types)
        w.u(count)
        w.fields(self._positions)
        w.u(count)
        w.fields(self._ids)
        w.u(count)
        w.fields(self._distances)
        w.u(count)
        w.fields(self._data)
        return w.done()


def _event(first_seq: int, columns: tuple[Any, ...], i: int) -> Event:
    at_ns, queues, types, positions, ids, distances, data = columns
    seq = first_seq + i
    distance: int = distances[i]
    return Event(
        seq,
        types[i],
        ids[i],
        queues[positions[i]],
        at_ns,
        data[i],
        seq - distance if distance else 0,
    )


def _columns(first_seq: int, block: bytes) -> tuple[Any, ...]:
    columns = decode_document(LAYOUT, block, "event block", str(first_seq))
    at_ns, queues, types, positions, ids, distances, data = columns
    lengths = [len(column) for column in (types, positions, ids, distances, data)]
    if min(lengths) != max(lengths) or max(positions, default=0) >= len(queues):
        raise StorageError(
            f"damaged event block '{first_seq}' in the state store: columns do not match"
        )
    if max(at_ns, *types, *distances, first_seq + lengths[0]) > I64_MAX:
        raise StorageError(
            f"damaged event block '{first_seq}' in the state store: numbers too large"
        )
    return columns


def decode_events(first_seq: int, block: bytes, after: int = 0, limit: int = 0) -> list[Event]:
    """Return the events of the block whose key has `first_seq`: those with a seq above `after`, and
    no more than `limit` of them (0 = all)."""
    columns = _columns(first_seq, block)
    _, _, types, *_ = columns
    start = max(0, after + 1 - first_seq)
    end = min(len(types), start + limit) if limit else len(types)
    return [_event(first_seq, columns, i) for i in range(start, end)]


def decode_event(first_seq: int, block: bytes, seq: int) -> Event | None:
    """Return the event with this seq, None if it is not in this block."""
    columns = _columns(first_seq, block)
    _, _, types, *_ = columns
    i = seq - first_seq
    return _event(first_seq, columns, i) if 0 <= i < len(types) else None

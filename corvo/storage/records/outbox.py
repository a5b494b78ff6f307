"""Records of the outbox (see `corvo.storage.records.jobs`): names of records for the mirror.

- *Outbox row*: the names of the records that one flush has changed or removed. Ids of jobs and
  batches are front-coded in the order of the changes, in which neighbors are similar. Unique locks
  are named by the key of their row.
- *State of the outbox*: its epoch and its floor. The epoch is random bytes that tell this outbox
  from that of another state store, and from an earlier one of the same store. Rows up to the floor
  are deleted. A mirror with another epoch, or one that has not read up to the floor, has missed
  changes.
"""

from typing import Final, final

from corvo import records
from corvo._fast.codec.layouts import encode_fields
from corvo.records import layout
from corvo.storage.records.jobs import decode_document

OUTBOX_LAYOUT: Final = layout(records.OUTBOX)
STATE_LAYOUT: Final = layout(records.OUTBOX_STATE)


@final
class Changed:
    """Names of changed records, by family. A name may occur twice."""

    def __init__(self) -> None:
        # <generated: init OUTBOX>
        self.jobs: list[str] = []
        self.batches: list[str] = []
        self.queues: list[str] = []  # names in the keys of their rows
        self.workers: list[str] = []
        self.schedules: list[str] = []
        self.locks: list[bytes] = []  # keys of their rows
        # </generated>

    def count(self) -> int:
        """Return the number of names."""
        count = len(self.jobs) + len(self.batches) + len(self.queues)
        return count + len(self.workers) + len(self.schedules) + len(self.locks)


def encode_changed(changed: Changed) -> bytes:
    """Encode an outbox row."""
    return encode_fields(
        OUTBOX_LAYOUT,
        (
            # <generated: pack OUTBOX changed>
            changed.jobs,
            changed.batches,
            changed.queues,
            changed.workers,
            changed.schedules,
            changed.locks,
            # </generated>
        ),
    )


def decode_changed(index: int, data: bytes) -> Changed:
    """Decode the outbox row of a flush."""
    changed = Changed()
    (
        # <generated: unpack OUTBOX changed>
        changed.jobs,
        changed.batches,
        changed.queues,
        changed.workers,
        changed.schedules,
        changed.locks,
        # </generated>
    ) = decode_document(OUTBOX_LAYOUT, data, "outbox row", str(index))
    return changed


def encode_state(epoch: bytes, floor: int) -> bytes:
    """Encode the state of the outbox."""
    return encode_fields(STATE_LAYOUT, (epoch, floor))


def decode_state(data: bytes) -> tuple[bytes, int]:
    """Decode the state of the outbox into (epoch, floor)."""
    epoch, floor = decode_document(STATE_LAYOUT, data, "state of the outbox", "")
    return epoch, floor

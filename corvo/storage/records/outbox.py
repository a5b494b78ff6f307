"""Documents of the outbox (see `corvo.storage.records.jobs`): what the mirror has to read again.

- *Outbox row*: the names of the documents that one flush has changed, removed ones too. Ids of
  jobs and batches are front-coded in the order they were changed, in which neighbours are alike;
  unique locks are named by the key of their row.
- *State of the outbox*: its epoch, random bytes that tell it from the outbox of another base or of
  an earlier time of this one, and its floor: rows up to that index are gone. A mirror of another
  epoch, or one that has not read up to the floor, has missed something.
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
    """Names of documents, by family. One may be named twice."""

    def __init__(self) -> None:
        # <generated: init OUTBOX>
        self.jobs: list[str] = []
        self.batches: list[str] = []
        self.queues: list[str] = []  # names of their rows
        self.workers: list[str] = []
        self.schedules: list[str] = []
        self.locks: list[bytes] = []  # keys of their rows
        # </generated>

    def count(self) -> int:
        """How many names there are."""
        count = len(self.jobs) + len(self.batches) + len(self.queues)
        return count + len(self.workers) + len(self.schedules) + len(self.locks)


def encode_changed(changed: Changed) -> bytes:
    """An outbox row."""
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
    """The outbox row of that index."""
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
    """The state of the outbox."""
    return encode_fields(STATE_LAYOUT, (epoch, floor))


def decode_state(data: bytes) -> tuple[bytes, int]:
    """(epoch, floor)"""
    epoch, floor = decode_document(STATE_LAYOUT, data, "state of the outbox", "")
    return epoch, floor

"""The meta row: the position of the state store in the log, and counters.

The transaction of every flush writes it, so it always agrees with the other rows. The value is the
format number of the state store in 4 bytes (big-endian), which every later version can read, then
the fields of `Meta` in the order of the layout.
"""

from typing import Final

from corvo import records
from corvo._fast.codec.layouts import CodecError, decode_fields, encode_fields
from corvo.errors import StorageError
from corvo.records import layout

FORMAT: Final = 2
LAYOUT: Final = layout(records.META)
HASH_SIZE: Final = 16


class Meta:
    """Position of the state store in the log, and the counters that no other row has."""

    def __init__(self) -> None:
        # <generated: init META>
        self.applied_index: int = 0
        self.applied_term: int = 0
        self.cluster_id: bytes = b""
        self.stamp_ns: int = 0  # the state's clock: no later entry has an earlier stamp
        self.fencing: int = 0  # last number given to a lease
        self.event_seq: int = 0  # last event written
        self.event_first_seq: int = 1  # first event that the log still has
        self.event_log_size: int = 0  # bytes of all event blocks
        self.next_queue_number: int = 1
        self.hash: bytes = bytes(HASH_SIZE)  # rolling hash of all events
        self.first_idempotency: int = 1  # oldest idempotency record kept
        self.next_idempotency: int = 1  # number of the next idempotency record
        self.result_schemas: bool = False  # some job had a result schema: acks check for one
        # members as the log encodes them; empty if no entry has named any
        self.configuration: bytes = b""
        # </generated>


def encode_meta(meta: Meta) -> bytes:
    """Encode the meta row."""
    return FORMAT.to_bytes(4, "big") + encode_fields(
        LAYOUT,
        (
            # <generated: pack META meta>
            meta.applied_index,
            meta.applied_term,
            meta.cluster_id,
            meta.stamp_ns,
            meta.fencing,
            meta.event_seq,
            meta.event_first_seq,
            meta.event_log_size,
            meta.next_queue_number,
            meta.hash,
            meta.first_idempotency,
            meta.next_idempotency,
            meta.result_schemas,
            meta.configuration,
            # </generated>
        ),
    )


def decode_meta(data: bytes) -> Meta:
    """Decode the meta row. Raises StorageError if this version cannot read the state store."""
    if len(data) < 4:
        raise StorageError("damaged meta row in the state store: no format number")
    number = int.from_bytes(data[:4], "big")
    if number != FORMAT:
        raise StorageError(
            f"the state store has format {number}, this version of Corvo reads format {FORMAT}:"
            " start the version that wrote it"
        )
    meta = Meta()
    try:
        (
            # <generated: unpack META meta>
            meta.applied_index,
            meta.applied_term,
            meta.cluster_id,
            meta.stamp_ns,
            meta.fencing,
            meta.event_seq,
            meta.event_first_seq,
            meta.event_log_size,
            meta.next_queue_number,
            meta.hash,
            meta.first_idempotency,
            meta.next_idempotency,
            meta.result_schemas,
            meta.configuration,
            # </generated>
        ) = decode_fields(LAYOUT, data[4:])
    except (CodecError, OverflowError) as error:
        raise StorageError(f"damaged meta row in the state store: {error}") from None
    return meta

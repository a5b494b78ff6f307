"""Records of bulk operations (see `corvo.storage.records.jobs`).

- *Operation*: its fields.
- *Chunk*: job ids, a byte for each with its outcome (none before it is done), and for each what an
  undo of it needs (`corvo.fsm.ops.bulk_undo`; none of operations that cannot be undone).
- *Cuts*: for some queues the seq below which jobs belong to an operation on all jobs.
"""

from typing import Final

from corvo import records
from corvo._fast.codec.layouts import encode_fields
from corvo.model import BulkOperation
from corvo.records import folded, layout
from corvo.storage.records.jobs import decode_document

OPERATION_LAYOUT: Final = layout(records.OPERATION)
CHUNK_LAYOUT: Final = layout(records.CHUNK)
CUTS_LAYOUT: Final = layout(records.CUTS)


def encode_operation(operation: BulkOperation) -> bytes:
    """Encode a bulk operation."""
    return encode_fields(
        OPERATION_LAYOUT,
        (
            # <generated: pack OPERATION operation>
            operation.kind,
            operation.state,
            operation.queue_number,
            operation.queue,
            operation.action,
            operation.arguments,
            operation.total,
            *operation.counts,
            operation.next_chunk,
            operation.chunks,
            operation.cut_numbers,
            operation.cut_seqs,
            operation.family,
            operation.cursor,
            operation.round_changed,
            operation.rounds,
            operation.undoes,
            operation.undone_by,
            operation.created_ns,
            operation.updated_ns,
            operation.finished_ns,
            # </generated>
        ),
    )


def decode_operation(operation_id: str, data: bytes) -> BulkOperation:
    """Decode a bulk operation."""
    values = decode_document(OPERATION_LAYOUT, data, "bulk operation", operation_id)
    operation = BulkOperation(operation_id, 0)
    (
        # <generated: unpack OPERATION operation>
        operation.kind,
        operation.state,
        operation.queue_number,
        operation.queue,
        operation.action,
        operation.arguments,
        operation.total,
        operation.counts,
        operation.next_chunk,
        operation.chunks,
        operation.cut_numbers,
        operation.cut_seqs,
        operation.family,
        operation.cursor,
        operation.round_changed,
        operation.rounds,
        operation.undoes,
        operation.undone_by,
        operation.created_ns,
        operation.updated_ns,
        operation.finished_ns,
        # </generated>
    ) = folded(records.OPERATION, values)
    return operation


def encode_chunk(ids: list[str], outcomes: bytes, befores: list[bytes]) -> bytes:
    """Encode a chunk of the jobs of a bulk operation."""
    return encode_fields(CHUNK_LAYOUT, (ids, outcomes, befores))


def decode_chunk(data: bytes) -> tuple[list[str], bytes, list[bytes]]:
    """Decode a chunk into (job ids, outcomes, data for an undo)."""
    ids, outcomes, befores = decode_document(CHUNK_LAYOUT, data, "chunk of a bulk operation", "")
    return ids, outcomes, befores


def encode_cuts(numbers: list[int], seqs: list[int]) -> bytes:
    """Encode cuts of queues: their numbers and seqs."""
    return encode_fields(CUTS_LAYOUT, (numbers, seqs))


def decode_cuts(data: bytes) -> tuple[list[int], list[int]]:
    """Decode cuts of queues into (numbers, seqs)."""
    numbers, seqs = decode_document(CUTS_LAYOUT, data, "cuts of a bulk operation", "")
    return numbers, seqs

"""Records of queues (see `corvo.storage.records.jobs`).

- *Queue*: configuration, one counter for each state and priority, totals, and options. The key of a
  destroyed queue has another name, and the row has the real one.
- *Group*: group key and last turn.
- *Grant*: number of jobs that started at one stamp.
"""

from typing import Final

from corvo import records
from corvo._fast.codec.layouts import I64_MAX, encode_fields
from corvo.errors import StorageError
from corvo.model import QUEUE_COUNTS, Queue
from corvo.records import folded, layout
from corvo.storage.records.jobs import decode_document

QUEUE_LAYOUT: Final = layout(records.QUEUE)
GROUP_LAYOUT: Final = layout(records.GROUP)
GRANT_LAYOUT: Final = layout(records.GRANT)


def encode_queue(queue: Queue) -> bytes:
    """Encode a queue."""
    assert len(queue.counts) == QUEUE_COUNTS
    destroyed_name = queue.name if queue.destroyed else ""
    return encode_fields(
        QUEUE_LAYOUT,
        (
            # <generated: pack QUEUE queue>
            queue.number,
            queue.paused,
            queue.max_concurrency,
            queue.created_ns,
            queue.next_seq,
            *queue.counts,
            queue.enqueued_total,
            queue.completed_total,
            queue.failed_total,
            queue.dead_total,
            queue.expired_total,
            queue.draining,
            queue.cleared_seq,
            destroyed_name,
            *queue.retention_ns,
            queue.rate_limit,
            queue.rate_window_ns,
            queue.group_concurrency,
            queue.aging_after_ns,
            queue.turn,
            queue.served,
            # </generated>
        ),
    )


def decode_queue(name: str, data: bytes) -> Queue:
    """Decode a queue; `name` is the name in the key of its row."""
    values = decode_document(QUEUE_LAYOUT, data, "queue", name)
    if max(value for value in values if isinstance(value, int)) > I64_MAX:
        raise StorageError(
            f"damaged queue {name!r} in the state store: a number of more than 63 bits"
        )
    queue = Queue(0, name)
    (
        # <generated: unpack QUEUE queue>
        queue.number,
        queue.paused,
        queue.max_concurrency,
        queue.created_ns,
        queue.next_seq,
        queue.counts,
        queue.enqueued_total,
        queue.completed_total,
        queue.failed_total,
        queue.dead_total,
        queue.expired_total,
        queue.draining,
        queue.cleared_seq,
        destroyed_name,
        queue.retention_ns,
        queue.rate_limit,
        queue.rate_window_ns,
        queue.group_concurrency,
        queue.aging_after_ns,
        queue.turn,
        queue.served,
        # </generated>
    ) = folded(records.QUEUE, values)
    if destroyed_name:
        queue.name = destroyed_name
        queue.destroyed = True
    return queue


def encode_group(key: str, served: int) -> bytes:
    """Encode a group of jobs; `served` is its last turn."""
    return encode_fields(GROUP_LAYOUT, (key, served))


def decode_group(data: bytes) -> tuple[str, int]:
    """Decode a group into (key, served)."""
    key, served = decode_document(GROUP_LAYOUT, data, "group", "")
    return key, served


def encode_grant(count: int) -> bytes:
    """Encode the number of jobs that a queue started at one stamp."""
    return encode_fields(GRANT_LAYOUT, (count,))


def decode_grant(data: bytes) -> int:
    """Decode the number of jobs that a queue started at one stamp."""
    count: int
    (count,) = decode_document(GRANT_LAYOUT, data, "grant", "")
    return count

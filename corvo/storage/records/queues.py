"""Documents of queues (see `corvo.storage.records.jobs`).

- *Queue*: configuration, then one counter for each state and priority, then running totals, and
  options. One that is destroyed is called otherwise in the key, and has its name in the row.
- *Group*: its key and last turn.
- *Grant*: how many jobs were handed out at one stamp.
"""

from typing import Final

from corvo._fast.codec.layouts import I64_MAX, encode_fields
from corvo.errors import StorageError
from corvo.model import END_STATES, PRIORITIES, STATES, Queue
from corvo.storage.records.jobs import decode_document

QUEUE_COUNTS: Final = len(STATES) * PRIORITIES
QUEUE_LAYOUT: Final = "ufuuu" + "u" * QUEUE_COUNTS + "uuuuufus" + "i" * len(END_STATES) + "uuuuuu"
GROUP_LAYOUT: Final = "su"
GRANT_LAYOUT: Final = "u"


def encode_queue(queue: Queue) -> bytes:
    """The queue's row."""
    assert len(queue.counts) == QUEUE_COUNTS
    return encode_fields(
        QUEUE_LAYOUT,
        (
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
            queue.name if queue.destroyed else "",
            *queue.retention_ns,
            queue.rate_limit,
            queue.rate_window_ns,
            queue.group_concurrency,
            queue.aging_after_ns,
            queue.turn,
            queue.served,
        ),
    )


def decode_queue(name: str, data: bytes) -> Queue:
    """The queue whose row is called like that."""
    values = decode_document(QUEUE_LAYOUT, data, "queue", name)
    if max(value for value in values if isinstance(value, int)) > I64_MAX:
        raise StorageError(f"damaged queue {name!r} in the base: a number of more than 63 bits")
    queue = Queue(values[0], name)
    queue.paused, queue.max_concurrency, queue.created_ns, queue.next_seq = values[1:5]
    queue.counts = list(values[5 : 5 + QUEUE_COUNTS])
    rest = values[5 + QUEUE_COUNTS :]
    (
        queue.enqueued_total,
        queue.completed_total,
        queue.failed_total,
        queue.dead_total,
        queue.expired_total,
        queue.draining,
        queue.cleared_seq,
        destroyed,
        *queue.retention_ns,
        queue.rate_limit,
        queue.rate_window_ns,
        queue.group_concurrency,
        queue.aging_after_ns,
        queue.turn,
        queue.served,
    ) = rest
    if destroyed:
        queue.name = destroyed
        queue.destroyed = True
    return queue


def encode_group(key: str, served: int) -> bytes:
    """A group of jobs: its key, and the turn at which it was served last."""
    return encode_fields(GROUP_LAYOUT, (key, served))


def decode_group(data: bytes) -> tuple[str, int]:
    """(key, served)"""
    key, served = decode_document(GROUP_LAYOUT, data, "group", "")
    return key, served


def encode_grant(count: int) -> bytes:
    """How many jobs a queue handed out at one stamp."""
    return encode_fields(GRANT_LAYOUT, (count,))


def decode_grant(data: bytes) -> int:
    """How many jobs a queue handed out at one stamp."""
    count: int = decode_document(GRANT_LAYOUT, data, "grant", "")[0]
    return count

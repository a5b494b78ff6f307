"""Progress of bulk operations, streamed to subscribers.

A bulk operation is part of the replicated state, so every node can report it. One timer checks all
watched operations, and each subscriber is sent the changes since its last event.
"""

from typing import Any, Final

import msgspec

from corvo._fast.http.exchange import Request
from corvo.engine.reads import Reads
from corvo.limits import MS_NS, SECOND_NS
from corvo.model import OPERATION_CANCELLED, BulkOperation
from corvo.net.api.responses import operation_document
from corvo.net.http.open_streams import OpenStreams
from corvo.net.streams.job_output import keepalive
from corvo.platform.loop import Loop

_ENCODE: Final = msgspec.json.Encoder().encode
_LOOK_S: Final = 200 * MS_NS / SECOND_NS


class BulkProgressStreams:
    """The subscribers of bulk operations."""

    def __init__(self, loop: Loop, reads: Reads, streams: OpenStreams) -> None:
        self._loop = loop
        self._reads = reads
        self._streams = streams
        self._readers: dict[Request, tuple[str, int]] = {}  # operation id, last count sent
        self._timer: Any = None

    def subscribe(self, request: Request, operation: BulkOperation) -> None:
        """Send the progress of an operation until it is finished."""
        if not self._streams.start(request, self._forget, keepalive):
            return
        if not operation.finished_ns:
            request.send(_event("started", operation))
        self._readers[request] = operation.id, operation.processed()
        self._tell(request)
        if self._readers and self._timer is None:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _forget(self, request: Request) -> None:
        self._readers.pop(request, None)

    def _look(self) -> None:
        self._timer = None
        for request in list(self._readers):
            self._tell(request)
        if self._readers:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _tell(self, request: Request) -> None:
        operation_id, sent = self._readers[request]
        operation = self._reads.operation(operation_id)
        if operation is None or operation.finished_ns:
            self._forget(request)
            if operation is not None:
                ended = "cancelled" if operation.state == OPERATION_CANCELLED else "completed"
                request.send(_event(ended, operation))
            self._streams.end(request)
        elif operation.processed() != sent and request.unsent_size == 0:
            self._readers[request] = operation_id, operation.processed()
            request.send(_event("progress", operation))


def _event(name: str, operation: BulkOperation) -> bytes:
    kind = f"bulk.async.{name}"
    document = {"type": kind, "task_id": operation.id, **operation_document(operation)}
    del document["id"]
    document["percent"] = (
        100 if operation.finished_ns else 100 * operation.processed() // max(1, operation.total)
    )
    document["created_at_ns"] = operation.created_ns
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _ENCODE(document))

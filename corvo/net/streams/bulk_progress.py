"""How far tasks on many jobs are, for those who watch them.

A task belongs to the replicated state, so every node can tell. One timer looks at all tasks that
are watched, and each reader is told what has changed since it was told last.
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
    """Who watches which task."""

    def __init__(self, loop: Loop, reads: Reads, streams: OpenStreams) -> None:
        self._loop = loop
        self._reads = reads
        self._streams = streams
        self._readers: dict[Request, tuple[str, int]] = {}  # task id, processed as told last
        self._timer: Any = None

    def subscribe(self, request: Request, operation: BulkOperation) -> None:
        """Tell how far the task is until it has ended."""
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
        operation_id, told = self._readers[request]
        operation = self._reads.operation(operation_id)
        if operation is None or operation.finished_ns:
            self._forget(request)
            if operation is not None:
                ended = "cancelled" if operation.state == OPERATION_CANCELLED else "completed"
                request.send(_event(ended, operation))
            self._streams.end(request)
        elif operation.processed() != told and request.unsent_size == 0:
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

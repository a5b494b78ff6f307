"""Queues: list, read, pause, drain, limit, clear, delete."""

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, Raw, json

from corvo import ops
from corvo._fast.http.exchange import Request, reply_error
from corvo.engine import validate
from corvo.engine.service import Service
from corvo.errors import CorvoError, ValidationError
from corvo.limits import CONCURRENCY_MAX
from corvo.model import END_STATES, KEEP_DEFAULT, STATES
from corvo.net.api.handlers.jobs import on_done
from corvo.net.api.queue_pages import SORTS, QueuePage
from corvo.net.api.requests import ConcurrencyBody, RetentionBody, decode
from corvo.net.api.responses import queue_document, reply_json
from corvo.net.api.steps import DOCUMENTS_PER_STEP, Steps
from corvo.net.http.query import Query
from corvo.platform.echoes import shown


class Queues:
    """Handlers of /queues."""

    def __init__(self, service: Service, steps: Steps) -> None:
        self._service = service
        self._steps = steps

    def list(self, request: Request) -> None:
        """A page of queues, and the number of jobs by state in all of them."""
        query = Query(request)
        page = QueuePage(
            query.choice("sort", SORTS), query.text("name"), query.limit(), query.text("cursor")
        )
        self._steps.run(request, self._list(request, page))

    def _list(self, request: Request, page: QueuePage) -> Iterator[None]:
        reads = self._service.reads
        yield from page.read(reads)
        now_ns = self._service.clock.stamp()
        documents: list[Raw] = []
        for number, name in enumerate(page.names):
            if number % DOCUMENTS_PER_STEP == DOCUMENTS_PER_STEP - 1:
                yield
            queue = reads.queue(name)
            if queue is not None:
                documents.append(Raw(json.encode(queue_document(reads, queue, now_ns))))
        reply: dict[str, Any] = {"queues": documents, "total": reads.queue_count}
        reply["jobs"] = dict(zip(STATES, reads.totals().jobs, strict=True))
        if page.cursor:
            reply["cursor"] = page.cursor
        reply_json(request, 200, reply)

    def get(self, request: Request) -> None:
        """One queue."""
        queue = self._service.queue(validate.queue_name(request.params[0]))
        reads, now_ns = self._service.reads, self._service.clock.stamp()
        reply_json(request, 200, queue_document(reads, queue, now_ns))

    def pause(self, request: Request) -> None:
        """Hand out no more jobs of this queue."""
        self._pause(request, "paused", drain=False)

    def drain(self, request: Request) -> None:
        """Pause, and report when the last active job is finished."""
        self._pause(request, "draining", drain=True)

    def _pause(self, request: Request, word: str, drain: bool) -> None:
        request.context = word
        values = (validate.queue_name(request.params[0]), drain)
        self._service.submit(request.caller, ops.PAUSE_QUEUE, values, (on_done, request))

    def resume(self, request: Request) -> None:
        """Hand out jobs again."""
        self._propose(request, ops.RESUME_QUEUE, "resumed")

    def clear(self, request: Request) -> None:
        """Delete its pending and scheduled jobs."""
        self._delete_jobs(request, ops.CLEAR_QUEUE, "cleared")

    def delete(self, request: Request) -> None:
        """Delete it with all its jobs and settings."""
        if Query(request).text("confirm") != "true":
            raise ValidationError("confirm=true is required to delete a queue", field="confirm")
        self._delete_jobs(request, ops.DELETE_QUEUE, "deleted")

    def _delete_jobs(self, request: Request, op: ops.Op, word: str) -> None:
        request.context = word
        values = (validate.queue_name(request.params[0]), self._service.new_operation_id())
        self._service.submit(request.caller, op, values, (self._on_pending_deletion, request))

    @staticmethod
    def _on_pending_deletion(request: Request, result: Any) -> None:
        if isinstance(result, CorvoError):
            reply_error(request, result)
            return
        document = {"status": request.context, "deleted": result.total}
        if result.running():  # no longer visible; removed in steps
            document["bulk_operation_id"] = result.id
        reply_json(request, 200, document)

    def retention(self, request: Request) -> None:
        """Set how long finished jobs are kept."""
        body = decode(request.body, RetentionBody)
        name = validate.queue_name(request.params[0])
        queue = self._service.reads.queue(name)
        kept = [KEEP_DEFAULT] * len(END_STATES) if queue is None else queue.retention_ns
        values = []
        for old_ns, field in zip(kept, ("completed", "dead", "cancelled"), strict=True):
            value = getattr(body, field)
            keep_ns = old_ns if value is UNSET else KEEP_DEFAULT
            if value is not UNSET and value is not None:
                keep_ns = validate.retention_ns(value, field)
            values.append(keep_ns + 1)  # 0 in the op is the default of the server
        request.context = "ok"
        self._service.submit(
            request.caller, ops.SET_QUEUE_OPTIONS, (name, values, 0), (on_done, request)
        )

    def concurrency(self, request: Request) -> None:
        """Limit the active jobs over all workers; 0 or less removes the limit."""
        body = decode(request.body, ConcurrencyBody)
        limit = body.max or 0
        if limit > CONCURRENCY_MAX:
            raise ValidationError(
                f"max {shown(limit)} is out of range (limit {CONCURRENCY_MAX})", field="max"
            )
        request.context = "ok"
        values = (validate.queue_name(request.params[0]), max(0, limit))
        self._service.submit(request.caller, ops.SET_CONCURRENCY, values, (on_done, request))

    def _propose(self, request: Request, op: ops.Op, word: str) -> None:
        request.context = word
        name = validate.queue_name(request.params[0])
        self._service.submit(request.caller, op, (name,), (on_done, request))

"""Queues: list, read, pause, resume, limit."""

from corvo import checks, ops
from corvo._fast.replies import Request
from corvo.errors import ValidationError
from corvo.limits import CONCURRENCY_MAX
from corvo.net.bodies import ConcurrencyBody, decode
from corvo.net.documents import queue_document, reply_json
from corvo.net.handlers.jobs import on_done
from corvo.service import Service


class Queues:
    """Handlers of /queues."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def list(self, request: Request) -> None:
        """All queues by name, from counters."""
        machine, now_ns = self._service.machine, self._service.clock.stamp()
        queues = [queue_document(machine, queue, now_ns) for queue in machine.queues()]
        reply_json(request, 200, queues)

    def get(self, request: Request) -> None:
        """One queue."""
        queue = self._service.queue(checks.queue_name(request.params[0]))
        machine, now_ns = self._service.machine, self._service.clock.stamp()
        reply_json(request, 200, queue_document(machine, queue, now_ns))

    def pause(self, request: Request) -> None:
        """Hand out no more jobs of this queue."""
        self._propose(request, ops.PAUSE_QUEUE, "paused")

    def resume(self, request: Request) -> None:
        """Hand out jobs again."""
        self._propose(request, ops.RESUME_QUEUE, "resumed")

    def concurrency(self, request: Request) -> None:
        """Bound the active jobs over all workers; 0 or less removes the bound."""
        body = decode(request.body, ConcurrencyBody)
        if body.max > CONCURRENCY_MAX:
            raise ValidationError(f"max {body.max} is out of range (limit {CONCURRENCY_MAX})")
        request.context = "ok"
        values = (checks.queue_name(request.params[0]), max(0, body.max))
        self._service.submit(ops.SET_CONCURRENCY, values, (on_done, request))

    def _propose(self, request: Request, op: ops.Op, word: str) -> None:
        request.context = word
        name = checks.queue_name(request.params[0])
        self._service.submit(op, (name,), (on_done, request))

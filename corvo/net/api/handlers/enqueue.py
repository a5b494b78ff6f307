"""POST /enqueue and POST /enqueue/batch."""

from typing import Any

from corvo import limits
from corvo._fast.http.exchange import Request, join, reply_error
from corvo.engine import validate
from corvo.engine.commands.enqueue import EnqueueCommands
from corvo.engine.commands.inputs import EnqueueBatchBody, EnqueueBody
from corvo.engine.service import Service
from corvo.errors import CorvoError
from corvo.model import STATES, Enqueued
from corvo.net.api.handlers.wait import wait_for_end
from corvo.net.api.requests import decode
from corvo.net.api.responses import outcome, reply_json

_DUPLICATE = '{"job_id":"%s","status":"duplicate","unique_existing":true,"state":"%s"%s}'
_ENQUEUED_END = [b'","status":"%b","unique_existing":false}' % s.encode() for s in STATES]


class Producer:
    """Handlers of producers."""

    def __init__(self, service: Service, commands: EnqueueCommands) -> None:
        self._service = service
        self._commands = commands
        self._fast = commands.fast

    def enqueue(self, request: Request) -> None:
        """201 with the new job, or 200 with the job that holds its unique key."""
        caller = request.caller
        if caller.idempotency is None and self._fast.scan(request.body):
            self._service.enqueue_fast(caller, self._fast, (on_enqueued, request))
            return
        body = decode(request.body, EnqueueBody)
        queue, values = self._commands.job_values(body)
        completion = (on_enqueued, request)
        if body.wait is not None:
            request.context = validate.length_ns(body.wait, "wait")
            completion = (self._on_enqueued_to_wait, request)
        self._service.enqueue(caller, queue, values, completion)

    def enqueue_batch(self, request: Request) -> None:
        """201 with the ids in input order; all jobs are taken or none."""
        queues, jobs, batch = self._commands.batch_values(decode(request.body, EnqueueBatchBody))
        completion = self._on_batch_enqueued, request
        self._service.enqueue_batch(request.caller, queues, jobs, batch, completion)

    def _on_enqueued_to_wait(self, request: Request, result: Any) -> None:
        if not isinstance(result, Enqueued):
            reply_error(request, result)
            return
        wait_ns = min(request.context, limits.END_WAIT_MAX_S * limits.SECOND_NS)
        request.context = result
        wait_for_end(self._service, request, result.job_id, wait_ns, self._on_waited)

    def _on_waited(self, request: Request) -> None:
        """Answer with the state of the new job, or of the job that holds its key."""
        enqueued: Enqueued = request.context
        job = self._service.reads.job(enqueued.job_id)
        state = "deleted" if job is None else STATES[job.state]
        document: dict[str, Any] = {
            "job_id": enqueued.job_id,
            "status": "duplicate" if enqueued.duplicate else state,
            "unique_existing": enqueued.duplicate,
            "state": state,
        }
        if job is not None:
            document |= outcome(self._service.reads, job)
        reply_json(request, 200 if enqueued.duplicate else 201, document)

    @staticmethod
    def _on_batch_enqueued(request: Request, result: Any) -> None:
        if isinstance(result, CorvoError):
            reply_error(request, result)
            return
        reply: dict[str, Any] = {"job_ids": [item.job_id for item in result.jobs]}
        if result.batch_id:
            reply["batch_id"] = result.batch_id
        duplicates = sum(item.duplicate for item in result.jobs)
        if duplicates:
            reply["duplicates"] = duplicates
        reply_json(request, 201, reply)


def on_enqueued(request: Request, result: Any) -> None:
    """Answer with the new job, or with the job that holds its unique key."""
    if not isinstance(result, Enqueued):
        reply_error(request, result)
        return
    enqueued = result
    if enqueued.duplicate:
        stored = f',"result":{enqueued.result.decode()}' if enqueued.result else ""
        text = _DUPLICATE % (enqueued.job_id, STATES[enqueued.state], stored)
        request.reply(200, text.encode())
    else:
        end = _ENQUEUED_END[enqueued.state]
        body = join(b'{"job_id":"', enqueued.job_id.encode(), end, b"", b"", b"", b"")
        request.reply(201, body)

"""One job: reads and actions."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from corvo import limits, ops
from corvo._fast.http.exchange import Request, reply_error
from corvo.engine import validate
from corvo.engine.commands.action_args import encode_arguments, hold_values
from corvo.engine.commands.inputs import HoldBody, json_value
from corvo.engine.service import Service
from corvo.errors import CorvoError, ValidationError
from corvo.net.api.requests import (
    ApproveBody,
    CancelBody,
    JobIdsBody,
    MoveBody,
    PriorityBody,
    RejectBody,
    decode,
    decode_optional,
)
from corvo.net.api.responses import job_document, reply_json
from corvo.net.api.steps import DOCUMENTS_PER_STEP, Steps
from corvo.platform.ids import check_job_id, check_job_ids


class Jobs:
    """Handlers of /jobs/{id}."""

    def __init__(self, service: Service, steps: Steps) -> None:
        self._service = service
        self._steps = steps

    def get(self, request: Request) -> None:
        """The job document."""
        job = self._service.job(check_job_id(request.params[0]))
        reply_json(request, 200, job_document(self._service.reads, job))

    def get_many(self, request: Request) -> None:
        """The documents of several jobs, in the order of their ids; those that do not exist are
        left out. What does not fit into the response is named in `remaining`."""
        ids = decode_optional(request.body, JobIdsBody).job_ids or []
        if len(ids) > limits.BULK_GET_MAX:
            raise ValidationError(
                f"job_ids: bulk-get is limited to {limits.BULK_GET_MAX} ids, got {len(ids)}",
                field="job_ids",
            )
        self._steps.run(request, self._get_many(request, check_job_ids(ids, "job_ids")))

    def _get_many(self, request: Request, ids: list[str]) -> Iterator[None]:
        reads = self._service.reads
        documents: list[Raw] = []
        size = 0
        reply: dict[str, Any] = {"jobs": documents}
        for number, job_id in enumerate(ids):
            if number % DOCUMENTS_PER_STEP == DOCUMENTS_PER_STEP - 1:
                yield
            job = reads.job(job_id)
            if job is None:
                continue
            document = msgspec.json.encode(job_document(reads, job))
            size += len(document)
            if documents and size > limits.BULK_GET_SIZE_MAX:
                reply["remaining"] = ids[number:]
                break
            documents.append(Raw(document))
        reply_json(request, 200, reply)

    def retry(self, request: Request) -> None:
        """Run it again from attempt 0, at the tail of its priority."""
        self._propose(request, ops.RETRY_JOB, "retried")

    def cancel(self, request: Request) -> None:
        """Cancel it; the worker of an active job gets a request to stop, unless forced."""
        body = decode_optional(request.body, CancelBody)
        values = (check_job_id(request.params[0]), bool(body.force))
        self._service.submit(request.caller, ops.CANCEL_JOB, values, (self._on_cancelled, request))

    def hold(self, request: Request) -> None:
        """Hold the job until it is approved."""
        body = decode_optional(request.body, HoldBody)
        hold = hold_values(body.timeout, body.timeout_action)
        self._act(request, "hold", encode_arguments(reason=body.reason, hold=hold))

    def approve(self, request: Request) -> None:
        """Let a held job run."""
        body = decode_optional(request.body, ApproveBody)
        self._act(request, "approve", encode_arguments(by=body.approved_by, note=body.note))

    def reject(self, request: Request) -> None:
        """A held job dies, or goes back to its worker with feedback."""
        body = decode_optional(request.body, RejectBody)
        arguments = encode_arguments(
            by=body.rejected_by,
            reason=body.reason,
            revise=bool(body.revise),
            feedback=json_value(body.feedback),
        )
        self._act(request, "reject", arguments)

    def move(self, request: Request) -> None:
        """To the tail of another queue."""
        body = decode(request.body, MoveBody)
        values = (
            check_job_id(request.params[0]),
            validate.queue_name(body.queue or ""),
            bool(body.reset_attempts),
            body.keep_priority is not False,
        )
        request.context = "moved"
        self._service.submit(request.caller, ops.MOVE_JOB, values, (on_done, request))

    def priority(self, request: Request) -> None:
        """Another priority for a job that waits."""
        body = decode(request.body, PriorityBody)
        if body.priority is None:
            raise ValidationError("priority is required", field="priority")
        arguments = encode_arguments(priority=validate.priority(body.priority))
        self._act(request, "change_priority", arguments)

    def requeue(self, request: Request) -> None:
        """One more attempt for a dead job."""
        self._act(request, "requeue", encode_arguments())

    def run(self, request: Request) -> None:
        """Do not wait for the time of a scheduled or retrying job."""
        self._act(request, "run", encode_arguments())

    def _act(self, request: Request, action: str, arguments: bytes) -> None:
        job_id = check_job_id(request.params[0])
        self._service.act(request.caller, action, job_id, arguments, (self._on_acted, request))

    @staticmethod
    def _on_acted(request: Request, result: Any) -> None:
        outcome = result[0] if isinstance(result, list) else result
        if isinstance(outcome, CorvoError):
            reply_error(request, outcome)
        else:
            reply_json(request, 200, {"status": outcome})

    def delete(self, request: Request) -> None:
        """Remove it with its errors and locks."""
        self._propose(request, ops.DELETE_JOB, "deleted")

    def _propose(self, request: Request, op: ops.Op, word: str) -> None:
        request.context = word
        job_id = check_job_id(request.params[0])
        self._service.submit(request.caller, op, (job_id,), (on_done, request))

    @staticmethod
    def _on_cancelled(request: Request, result: Any) -> None:
        if isinstance(result, CorvoError):
            reply_error(request, result)
        else:
            reply_json(request, 200, {"status": result})


def on_done(request: Request, result: Any) -> None:
    """Answer an action that succeeded with its word, kept in `request.context`."""
    if isinstance(result, CorvoError):
        reply_error(request, result)
    else:
        reply_json(request, 200, {"status": request.context})

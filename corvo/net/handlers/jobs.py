"""One job: read it, retry it, cancel it, delete it."""

from typing import Any

from corvo import ops
from corvo._fast.replies import Request, reply_error
from corvo.errors import CorvoError
from corvo.ids import check_job_id
from corvo.net.bodies import CancelBody, decode_optional
from corvo.net.documents import job_document, reply_json
from corvo.service import Service


class Jobs:
    """Handlers of /jobs/{id}."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def get(self, request: Request) -> None:
        """The job document."""
        job = self._service.job(check_job_id(request.params[0]))
        reply_json(request, 200, job_document(self._service.machine, job))

    def retry(self, request: Request) -> None:
        """Run it again from attempt 0, at the tail of its priority."""
        self._propose(request, ops.RETRY_JOB, "retried")

    def cancel(self, request: Request) -> None:
        """Cancel it; an active job is asked to stop, unless forced."""
        body = decode_optional(request.body, CancelBody)
        values = (check_job_id(request.params[0]), body.force)
        self._service.submit(ops.CANCEL_JOB, values, (self._on_cancelled, request))

    def delete(self, request: Request) -> None:
        """Remove it with its errors and locks."""
        self._propose(request, ops.DELETE_JOB, "deleted")

    def _propose(self, request: Request, op: ops.Op, word: str) -> None:
        request.context = word
        job_id = check_job_id(request.params[0])
        self._service.submit(op, (job_id,), (on_done, request))

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

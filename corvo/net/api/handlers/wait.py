"""Waiting for the result of a job: shared by GET /jobs/{id}/wait and an enqueue with `wait`."""

from collections.abc import Callable

from corvo._fast.http.exchange import Request
from corvo.engine.results import ResultWait
from corvo.engine.service import Service


def wait_for_end(
    service: Service, request: Request, job_id: str, wait_ns: int, answer: Callable[[Request], None]
) -> None:
    """Have `answer` called when the job is finished or deleted, or at the deadline; at once if it
    need not wait. It is not called when the client is gone."""
    if request.abandoned:
        return
    if wait_ns == 0 or service.draining or not service.may_end(job_id):
        answer(request)
        return
    deadline_ns = service.clock.elapsed_ns() + wait_ns
    wait = ResultWait(job_id, deadline_ns, request, answer)
    request.on_abandoned = lambda _request: service.drop_result_wait(wait)
    service.wait_for_result(wait)

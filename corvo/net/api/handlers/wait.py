"""Waiting for the end of a job: what GET /jobs/{id}/wait and an enqueue with `wait` share."""

from collections.abc import Callable

from corvo._fast.http.exchange import Request
from corvo.engine.fetches import ResultWait
from corvo.engine.service import Service


def wait_for_end(
    service: Service, request: Request, job_id: str, wait_ns: int, answer: Callable[[Request], None]
) -> None:
    """Have `answer` called when the job has ended or is gone, or when the time is over: at once if
    there is nothing to wait for. Nothing happens any more when the client is gone."""
    pipeline = service.pipeline
    if request.abandoned:
        return
    if wait_ns == 0 or pipeline.draining or not service.may_end(job_id):
        answer(request)
        return
    deadline_ns = service.clock.elapsed_ns() + wait_ns
    wait = ResultWait(job_id, deadline_ns, request, answer)
    request.on_abandoned = lambda _request: pipeline.results.drop(wait)
    pipeline.results.park(wait)

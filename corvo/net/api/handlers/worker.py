"""The handlers of workers: fetch, ack, fail, heartbeat, release."""

from typing import Any

from corvo import limits, ops
from corvo._fast.codec.fast_json import fast_ack
from corvo._fast.http.exchange import Request, reply_error
from corvo.engine.commands.inputs import AckBody, FailBody, FetchBody, ReleaseBody
from corvo.engine.commands.work import FetchValues, WorkCommands
from corvo.engine.parked import Wait
from corvo.engine.service import Service
from corvo.errors import CorvoError, ValidationError
from corvo.model import STATES, Acked, Failed, Fetched
from corvo.net.api.requests import AckBatchBody, HeartbeatBody, decode, decode_optional
from corvo.net.api.responses import fetched_document, reply_json
from corvo.net.http.long_poll import began_ns
from corvo.platform.durations import format_time
from corvo.platform.ids import check_job_id

# Bodies of fetches that are cached with their values.
_CACHED_MAX = 1_024
_CACHED_SIZE_MAX = 512
_ACK = ops.ACK


class WorkerVerbs:
    """Handlers of workers."""

    def __init__(self, service: Service, commands: WorkCommands) -> None:
        self._service = service
        self._commands = commands
        self._cached: dict[bytes, FetchValues] = {}

    # ---- fetch ----

    def fetch(self, request: Request) -> None:
        """200 with one job, or 204 when none came in time."""
        # A worker sends the same body each time, so its values are cached.
        values = self._cached.get(request.body)
        if values is None:
            body = decode(request.body, FetchBody)
            if body.count is not None:
                raise ValidationError("count belongs to /fetch/batch")
            values = self._commands.fetch_values(request.peer, body, 0)
            if body.worker_id and len(request.body) <= _CACHED_SIZE_MAX:
                if len(self._cached) == _CACHED_MAX:
                    self._cached.clear()
                self._cached[request.body] = values
        self._wait(request, values, False, on_fetched)

    def fetch_batch(self, request: Request) -> None:
        """200 with the jobs that are ready, or with an empty list when none came in time."""
        body = decode(request.body, FetchBody)
        count = min(max(body.count or 1, 1), limits.FETCH_BATCH_MAX)
        values = self._commands.fetch_values(request.peer, body, count)
        self._wait(request, values, True, self._on_batch_fetched)

    def _wait(self, request: Request, values: FetchValues, batch: bool, answer: Any) -> None:
        queues, worker_id, payload, wait_ns = values
        deadline_ns = began_ns(request) + wait_ns if wait_ns else 0
        wait = self._service.fetch(
            request.caller, queues, worker_id, payload, batch, deadline_ns, request, answer
        )
        request.context = wait
        request.on_abandoned = self._on_abandoned

    def _on_abandoned(self, request: Request) -> None:
        self._service.abandon(request.context)

    @staticmethod
    def _on_batch_fetched(wait: Wait, jobs: list[Fetched] | CorvoError) -> None:
        if isinstance(jobs, CorvoError):
            reply_error(wait.request, jobs)
            return
        documents = b",".join([fetched_document(job) for job in jobs])
        wait.request.reply(200, b'{"jobs":[' + documents + b"]}")

    # ---- ack ----

    def ack(self, request: Request) -> None:
        """200 when the job is completed, also when repeated with the completing token."""
        service, caller = self._service, request.caller
        if caller.idempotency is None:
            payload = fast_ack(request.params[0], request.body)
            # A job with a result schema takes the general path, which explains what is wrong.
            if payload and not service.reads.result_schema(request.params[0], ""):
                service.submit_encoded(caller, _ACK, payload, (on_acked, request))
                return
        body = decode_optional(request.body, AckBody)
        values = self._commands.ack_values(check_job_id(request.params[0]), body)
        service.submit(caller, _ACK, values, (on_acked, request))

    def ack_batch(self, request: Request) -> None:
        """200 with the number of completed jobs and why the others were refused."""
        body = decode(request.body, AckBatchBody)
        acks = body.acks or []
        ids = [ack.job_id for ack in acks]
        payloads, refused = self._commands.ack_payloads(ids, acks.__getitem__)
        request.context = ids, refused
        completion = self._on_batch_acked, request
        self._service.submit(request.caller, ops.ACK_BATCH, (payloads,), completion)

    @staticmethod
    def _on_batch_acked(request: Request, result: Any) -> None:
        if not isinstance(result, Acked):
            reply_error(request, result)
            return
        reply: dict[str, Any] = {"acked": result.count}
        if result.refused:
            ids, refused = request.context
            reply["failed"] = [
                _failed_ack(position, ids[position], refused.get(position), error)
                for position, error in result.refused
            ]
        reply_json(request, 200, reply)

    # ---- fail ----

    def fail(self, request: Request) -> None:
        """200 with the new state of the job: retrying, dead or cancelled."""
        body = decode_optional(request.body, FailBody)
        values = self._commands.fail_values(request.params[0], body)
        self._service.submit(request.caller, ops.FAIL, values, (self._on_failed, request))

    @staticmethod
    def _on_failed(request: Request, result: Any) -> None:
        if not isinstance(result, Failed):
            reply_error(request, result)
            return
        reply: dict[str, Any] = {"status": STATES[result.state]}
        if result.next_attempt_ns:
            reply["next_attempt_at"] = format_time(result.next_attempt_ns)
        reply["attempts_remaining"] = result.attempts_remaining
        reply_json(request, 200, reply)

    # ---- heartbeat and release ----

    def heartbeat(self, request: Request) -> None:
        """200 with `ok`, `cancel` or `lost` per job."""
        body = decode(request.body, HeartbeatBody)
        self._commands.heartbeat(request.caller, body.jobs or {}, self._on_heartbeat, request)

    @staticmethod
    def _on_heartbeat(request: Request, result: Any) -> None:
        if isinstance(result, CorvoError):
            reply_error(request, result)
        else:
            jobs = {job_id: {"status": status} for job_id, status in result.items()}
            reply_json(request, 200, {"jobs": jobs})

    def release(self, request: Request) -> None:
        """200 when the job returns to its queue, and its attempt does not count."""
        body = decode_optional(request.body, ReleaseBody)
        values = self._commands.release_values(request.params[0], body)
        self._service.submit(request.caller, ops.RELEASE, values, (self._on_released, request))

    @staticmethod
    def _on_released(request: Request, result: Any) -> None:
        if isinstance(result, CorvoError):
            reply_error(request, result)
        else:
            reply_json(request, 200, {"status": "released", "state": STATES[result]})


def on_fetched(wait: Wait, jobs: list[Fetched] | CorvoError) -> None:
    """Answer a fetch of one job."""
    request: Request = wait.request
    if not isinstance(jobs, list):
        reply_error(request, jobs)
    elif jobs:
        request.reply(200, fetched_document(jobs[0]))
    else:
        request.reply(204)


def on_acked(request: Request, result: Any) -> None:
    """Answer an ack."""
    if result is None:
        request.reply(200, b'{"status":"ok","state":"completed"}')
    else:
        reply_error(request, result)


def _failed_ack(
    index: int, job_id: str, invalid: CorvoError | None, error: CorvoError
) -> dict[str, Any]:
    """Return the outcome of one refused ack of a batch. `invalid` is the error of an ack that was
    refused before the batch was submitted; it has details."""
    document: dict[str, Any] = {"index": index, "job_id": job_id}
    if invalid is None:
        return document | {"error": error.message, "code": error.code}
    return document | {"error": invalid.message, "code": invalid.code, **invalid.fields}

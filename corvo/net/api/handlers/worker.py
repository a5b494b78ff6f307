"""The worker's verbs: fetch, ack, fail, heartbeat, release."""

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from corvo import limits, ops
from corvo._fast.codec.fast_json import fast_ack
from corvo._fast.codec.layouts import encode_fields
from corvo._fast.http.exchange import Request, reply_error
from corvo.engine import validate
from corvo.engine.fetches import Wait
from corvo.engine.service import Service
from corvo.errors import CorvoError, PayloadTooLarge, ResultSchemaError, ValidationError
from corvo.model import STATES, Acked, Failed, Fetched
from corvo.net.api.requests import (
    AckBatchBody,
    AckBody,
    AckItem,
    Beat,
    FailBody,
    FetchBody,
    HeartbeatBody,
    ReleaseBody,
    decode,
    decode_optional,
    json_string,
    json_value,
)
from corvo.net.api.responses import fetched_document, reply_json
from corvo.net.api.result_schemas import check_result
from corvo.net.streams.job_output import JobOutputStreams
from corvo.platform.durations import format_time, parse_duration
from corvo.platform.ids import check_job_id

# Stands in a batch for an ack that is refused here, so that positions agree: no job has this id.
_REFUSED_ACK = ("-", "", b"", b"", b"")
# Bodies of fetches that are remembered with what they ask for.
_ASKED_MAX = 1_024
_ASKED_SIZE_MAX = 512
_ACK = ops.ACK
_WAITED = b"x-corvo-waited"  # in milliseconds
_WAITED_DIGITS_MAX = 9
Asked = tuple[list[str], str, bytes, int]  # queues, worker, op, how long to wait


class WorkerVerbs:
    """Handlers of workers."""

    def __init__(self, service: Service, texts: JobOutputStreams) -> None:
        self._service = service
        self._asked: dict[bytes, Asked] = {}
        self._job_output = texts

    # ---- fetch ----

    def fetch(self, request: Request) -> None:
        """200 with one job, or 204 when none came in time."""
        # A worker says the same each time, so what it said is kept.
        asked = self._asked.get(request.body)
        if asked is None:
            body = decode(request.body, FetchBody)
            if body.count is not None:
                raise ValidationError("count belongs to /fetch/batch")
            asked = self._read_fetch(request, body, 0)
            if body.worker_id and len(request.body) <= _ASKED_SIZE_MAX:
                if len(self._asked) == _ASKED_MAX:
                    self._asked.clear()
                self._asked[request.body] = asked
        self._wait(request, asked, False, on_fetched)

    def fetch_batch(self, request: Request) -> None:
        """200 with the jobs that are there, empty when none came in time."""
        body = decode(request.body, FetchBody)
        count = min(max(body.count or 1, 1), limits.FETCH_BATCH_MAX)
        self.wait(request, body, count, self._on_batch_fetched)

    def wait(self, request: Request, body: FetchBody, count: int, answer: Any) -> None:
        """Have `answer` called with the jobs that come, or none in time; a client that goes away
        gives them back."""
        self._wait(request, self._read_fetch(request, body, count), count > 0, answer)

    def wait_for(self, caller: Any, body: FetchBody, count: int, answer: Any) -> Wait:
        """The same for a caller that sees to going away itself; it has a `peer`, and is
        `abandoned` at some time."""
        queues, worker_id, payload, wait_ns = self._read_fetch(caller, body, count)
        deadline_ns = self._service.clock.elapsed_ns() + wait_ns if wait_ns else 0
        return self._service.fetch(
            queues, worker_id, payload, count > 0, deadline_ns, caller, answer
        )

    @staticmethod
    def _read_fetch(request: Any, body: FetchBody, count: int) -> Asked:
        """What a fetch asks for; `count` is 0 for one job without a list around it."""
        validate.count(len(body.queues), "queues", limits.FETCH_QUEUES_MAX)
        queues = [validate.queue_name(name, "queues") for name in body.queues]
        wait_ns = limits.FETCH_WAIT_DEFAULT_S * limits.SECOND_NS
        if body.timeout is not None:
            wait_ns = parse_duration(body.timeout, "timeout")
        worker_id = validate.text(body.worker_id, "worker_id", limits.WORKER_ID_SIZE_MAX)
        worker_id = worker_id or f"anonymous-{request.peer}"
        hostname = validate.text(body.hostname, "hostname", limits.HOSTNAME_SIZE_MAX)
        lease_ns = validate.lease_ns(body.lease_duration)
        values = (queues, worker_id, hostname, lease_ns, limits.FETCH_REPLY_SIZE_MAX)
        if count:
            payload = encode_fields(ops.FETCH_BATCH.layout, (*values, count))
        else:
            payload = encode_fields(ops.FETCH.layout, values)
        wait_ns = min(wait_ns, limits.FETCH_WAIT_MAX_S * limits.SECOND_NS)
        return queues, worker_id, payload, wait_ns

    def _wait(self, request: Request, asked: Asked, batch: bool, answer: Any) -> None:
        queues, worker_id, payload, wait_ns = asked
        deadline_ns = _began_ns(request) + wait_ns if wait_ns else 0
        wait = self._service.fetch(queues, worker_id, payload, batch, deadline_ns, request, answer)
        request.context = wait
        request.on_abandoned = self._on_abandoned

    def _on_abandoned(self, request: Request) -> None:
        self._service.pipeline.abandon(request.context)

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
        service = self._service
        if service.guard is None:
            payload = fast_ack(request.params[0], request.body)
            # A job that has a schema gets no result here: the general way says what is wrong.
            if payload and not service.machine.result_schema(request.params[0], ""):
                service.pipeline.submit(_ACK, payload, (on_acked, request))
                return
        body = decode_optional(request.body, AckBody)
        job_id = check_job_id(request.params[0])
        service.submit(_ACK, self.ack_values(job_id, body), (on_acked, request))

    def ack_batch(self, request: Request) -> None:
        """200 with the number of completed jobs and why the others were refused."""
        body = decode(request.body, AckBatchBody)
        payloads, ids, refused = self.ack_payloads(body.acks)
        request.context = ids, refused
        self._service.submit(ops.ACK_BATCH, (payloads,), (self._on_batch_acked, request))

    def ack_payloads(
        self, acks: list[AckItem]
    ) -> tuple[list[bytes], list[str], dict[int, CorvoError]]:
        """The acks of a batch as ops, their jobs, and those that are refused here, by position."""
        validate.count(len(acks), "acks", limits.ACK_BATCH_MAX)
        payloads, ids = [], []
        refused: dict[int, CorvoError] = {}
        for position, item in enumerate(acks):
            if not item.job_id:
                raise ValidationError("job_id is required for each ack")
            job_id = check_job_id(item.job_id)
            try:
                values = self.ack_values(job_id, item)
            except ResultSchemaError as error:
                refused[position] = error
                values = _REFUSED_ACK
            payloads.append(encode_fields(ops.ACK.layout, values))
            ids.append(job_id)
        return payloads, ids, refused

    def ack_values(self, job_id: str, body: AckBody) -> tuple[Any, ...]:
        """The values of the Ack layout."""
        result_size_max = self._service.config.max_result_size
        token = validate.lease_token(body.lease_token)
        result = validate.json_size(json_value(body.result), "result", result_size_max)
        schema = self._service.machine.result_schema(job_id, token)
        if schema:
            check_result(schema, result)
        step = _step(body) if body.step_status or body.exit_reason else b""
        return job_id, token, result, self._checkpoint(body.checkpoint), step

    def _checkpoint(self, raw: Raw) -> bytes:
        size_max = self._service.config.max_checkpoint_size
        return validate.json_size(json_value(raw), "checkpoint", size_max)

    @staticmethod
    def _on_batch_acked(request: Request, result: Any) -> None:
        if not isinstance(result, Acked):
            reply_error(request, result)
            return
        reply: dict[str, Any] = {"acked": result.count}
        if result.refused:
            ids, refused = request.context
            reply["failed"] = [
                _failed_ack(ids[position], refused.get(position, error))
                for position, error in result.refused
            ]
        reply_json(request, 200, reply)

    # ---- fail ----

    def fail(self, request: Request) -> None:
        """200 with what becomes of the job: retrying, dead or cancelled."""
        body = decode_optional(request.body, FailBody)
        values = self.fail_values(request.params[0], body)
        self._service.submit(ops.FAIL, values, (self._on_failed, request))

    @staticmethod
    def fail_values(job_id: str, body: FailBody) -> tuple[Any, ...]:
        """The values of the Fail layout."""
        return (
            check_job_id(job_id),
            validate.lease_token(body.lease_token),
            validate.json_size(json_string(body.error, "error"), "error", limits.ERROR_SIZE_MAX),
            validate.json_size(
                json_string(body.backtrace, "backtrace"), "backtrace", limits.BACKTRACE_SIZE_MAX
            ),
            body.retry is False,
            validate.length_ns(body.retry_after, "retry_after", absent=-1),
            body.provider_error,
        )

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
        self.beat(body.jobs, self._on_beaten, request)

    def beat(
        self, jobs: dict[str, Beat], answer: Callable[[Request, Any], None], request: Request
    ) -> None:
        """Have `answer` called with what became of each job, and pass on the text that came."""
        validate.count(len(jobs), "jobs", limits.HEARTBEAT_JOBS_MAX)
        beats = []
        deltas: dict[str, str] = {}
        for job_id, beat in sorted(jobs.items()):
            progress = json_value(beat.progress)
            if len(progress) > limits.PROGRESS_SIZE_MAX:
                raise PayloadTooLarge(
                    f"progress of {validate.shown(job_id)} too large: {len(progress)} bytes "
                    f"(max {limits.PROGRESS_SIZE_MAX})",
                    field="progress",
                )
            values = (
                check_job_id(job_id),
                validate.lease_token(beat.lease_token),
                progress,
                self._checkpoint(beat.checkpoint),
            )
            beats.append(encode_fields(ops.BEAT_LAYOUT, values))
            if beat.stream_delta:
                deltas[job_id] = _delta(beat.stream_delta)

        def on_beaten(request: Request, result: Any) -> None:
            for job_id, delta in deltas.items():
                if isinstance(result, dict) and result[job_id] == "ok":
                    self._job_output.add(job_id, delta, self._service.clock.elapsed_ns())
            answer(request, result)

        self._service.submit(ops.HEARTBEAT, (beats,), (on_beaten, request))

    @staticmethod
    def _on_beaten(request: Request, result: Any) -> None:
        if isinstance(result, CorvoError):
            reply_error(request, result)
        else:
            jobs = {job_id: {"status": status} for job_id, status in result.items()}
            reply_json(request, 200, {"jobs": jobs})

    def release(self, request: Request) -> None:
        """200 when the job is given back with its attempt."""
        body = decode_optional(request.body, ReleaseBody)
        values = (
            check_job_id(request.params[0]),
            validate.lease_token(body.lease_token),
            validate.length_ns(body.delay, "delay"),
            self._checkpoint(body.checkpoint),
            False,
        )
        self._service.submit(ops.RELEASE, values, (self._on_released, request))

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


def _began_ns(request: Request) -> int:
    """When a fetch began to wait: here, or at a node that has passed it on since."""
    waited = None if request.rare is None else request.rare.get(_WAITED)
    if waited is None or not waited.isdigit() or len(waited) > _WAITED_DIGITS_MAX:
        return request.arrived_ns
    return request.arrived_ns - int(waited) * limits.MS_NS


def _delta(text: str) -> str:
    """Text for those who read along."""
    size = len(text.encode())
    if size > limits.STREAM_DELTA_SIZE_MAX:
        raise PayloadTooLarge(
            f"stream_delta too large: {size} bytes (max {limits.STREAM_DELTA_SIZE_MAX})",
            field="stream_delta",
        )
    return text


def _step(body: AckBody) -> bytes:
    """What an ack says about its chain."""
    status = body.step_status or "continue"
    if status not in ("continue", "exit"):
        raise ValidationError(
            f"step_status {validate.shown(status)} is unknown (use continue, exit)"
        )
    reason = validate.text(body.exit_reason, "exit_reason", limits.EXIT_REASON_SIZE_MAX)
    return encode_fields(ops.STEP_LAYOUT, (status == "exit", reason))


def _failed_ack(job_id: str, error: CorvoError) -> dict[str, Any]:
    """Why one ack of a batch was refused."""
    document: dict[str, Any] = {"job_id": job_id, "error": error.message, "code": error.code}
    if isinstance(error, ResultSchemaError):
        document |= error.fields
    return document

"""The commands of workers: fetch, ack, fail, heartbeat, release."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from msgspec import Raw

from corvo import limits, ops
from corvo._fast.codec.layouts import encode_fields
from corvo.engine import validate
from corvo.engine.caller import Caller
from corvo.engine.commands.inputs import (
    AckBody,
    Beat,
    FailBody,
    FetchBody,
    ReleaseBody,
    bounded_text,
    json_value,
)
from corvo.engine.commands.result_schemas import check_result
from corvo.engine.parked import Wait
from corvo.engine.service import Service
from corvo.errors import CorvoError, PayloadTooLarge, ValidationError
from corvo.platform.durations import parse_duration
from corvo.platform.echoes import shown
from corvo.platform.ids import check_job_id

logger = logging.getLogger(__name__)

_LOG_AGAIN_NS: Final = 60 * limits.SECOND_NS
# Stands in a batch for an ack that was refused before it was submitted, so that positions agree:
# no job has this id.
_REFUSED_ACK = ("-", "", b"", b"", b"")
FetchValues = tuple[list[str], str, bytes, int]  # queues, worker, op, longest wait in ns


class JobOutput(Protocol):
    """Takes the live output of running jobs."""

    def add(self, job_id: str, delta: str, now_ns: int) -> None:
        """Append a piece of output."""


class WorkCommands:
    """Checks what workers send, and submits it."""

    def __init__(self, service: Service, job_output: JobOutput) -> None:
        self._service = service
        self._job_output = job_output
        self._unchecked = 0  # results accepted without a check
        self._log_next_ns = 0  # earliest time of the next log line about them

    # ---- fetch ----

    @staticmethod
    def fetch_values(peer: str, body: FetchBody, count: int) -> FetchValues:
        """The values of a fetch from this address; `count` is 0 for one job outside a list."""
        names = body.queues or []
        validate.count(len(names), "queues", limits.FETCH_QUEUES_MAX)
        queues = validate.queue_names(names, "queues")
        wait_ns = limits.FETCH_WAIT_DEFAULT_S * limits.SECOND_NS
        if body.timeout is not None:
            wait_ns = parse_duration(body.timeout, "timeout")
        worker_id = validate.key(body.worker_id, "worker_id", limits.WORKER_ID_SIZE_MAX)
        worker_id = worker_id or f"anonymous-{peer}"
        hostname = validate.key(body.hostname, "hostname", limits.HOSTNAME_SIZE_MAX)
        lease_ns = validate.lease_ns(body.lease_duration)
        values = (queues, worker_id, hostname, lease_ns, limits.FETCH_REPLY_SIZE_MAX)
        if count:
            payload = encode_fields(ops.FETCH_BATCH.layout, (*values, count))
        else:
            payload = encode_fields(ops.FETCH.layout, values)
        wait_ns = min(wait_ns, limits.FETCH_WAIT_MAX_S * limits.SECOND_NS)
        return queues, worker_id, payload, wait_ns

    def fetch(
        self,
        caller: Caller,
        recipient: Any,
        began_ns: int,
        body: FetchBody,
        count: int,
        answer: Callable[[Wait, Any], None],
    ) -> Wait:
        """Have `answer` called with the jobs that arrive, or with none in time. The recipient has a
        `peer` and becomes `abandoned`; the fetch waits from `began_ns` on."""
        queues, worker_id, payload, wait_ns = self.fetch_values(recipient.peer, body, count)
        deadline_ns = began_ns + wait_ns if wait_ns else 0
        return self._service.fetch(
            caller, queues, worker_id, payload, count > 0, deadline_ns, recipient, answer
        )

    # ---- ack ----

    def ack_payloads(
        self, ids: Sequence[str | None], body_of: Callable[[int], AckBody]
    ) -> tuple[list[bytes], dict[int, CorvoError]]:
        """Encode the acks of a batch, one op for each id; `body_of` returns the body of the ack at
        a position. Also return the refused acks by position. Raises ValidationError when a job id
        is missing or invalid."""
        validate.count(len(ids), "acks", limits.ACK_BATCH_MAX)
        payloads = []
        refused: dict[int, CorvoError] = {}
        for position, job_id in enumerate(ids):
            try:
                if not job_id:
                    raise ValidationError("job_id is required for each ack", field="job_id")
                check_job_id(job_id)
            except ValidationError as error:
                raise validate.of_part(error, f"ack {position}", index=position) from None
            try:
                values = self.ack_values(job_id, body_of(position))
            except CorvoError as error:
                refused[position] = error
                values = _REFUSED_ACK
            payloads.append(encode_fields(ops.ACK.layout, values))
        return payloads, refused

    def ack_values(self, job_id: str, body: AckBody) -> tuple[Any, ...]:
        """The values of the Ack layout."""
        result_size_max = self._service.config.max_result_size
        token = validate.lease_token(body.lease_token)
        result = validate.json_size(json_value(body.result), "result", result_size_max)
        schema = self._service.reads.result_schema(job_id, token)
        if schema:
            why = check_result(schema, result)
            if why:
                self._log_unchecked(job_id, why)
        step = _step(body) if body.step_status is not None or body.exit_reason else b""
        return job_id, token, result, self._checkpoint(body.checkpoint), step

    def _log_unchecked(self, job_id: str, why: str) -> None:
        """Log a result that was accepted without a check, at most once a minute."""
        self._unchecked += 1
        now_ns = self._service.clock.elapsed_ns()
        if now_ns >= self._log_next_ns:
            self._log_next_ns = now_ns + _LOG_AGAIN_NS
            logger.warning(
                'the result of job "%s" was not checked, because its schema is refused now: %s '
                "(unchecked results since the start: %d)",
                job_id,
                why,
                self._unchecked,
            )

    def _checkpoint(self, raw: Raw) -> bytes:
        size_max = self._service.config.max_checkpoint_size
        return validate.json_size(json_value(raw), "checkpoint", size_max)

    # ---- fail, heartbeat, release ----

    @staticmethod
    def fail_values(job_id: str, body: FailBody) -> tuple[Any, ...]:
        """The values of the Fail layout."""
        return (
            check_job_id(job_id),
            validate.lease_token(body.lease_token),
            bounded_text(body.error, "error", limits.ERROR_SIZE_MAX),
            bounded_text(body.backtrace, "backtrace", limits.BACKTRACE_SIZE_MAX),
            body.retry is False,
            validate.length_ns(body.retry_after, "retry_after", absent=-1),
            bool(body.provider_error),
        )

    def heartbeat(
        self,
        caller: Caller,
        jobs: dict[str, Beat],
        answer: Callable[[Any, Any], None],
        argument: Any,
    ) -> None:
        """Have `answer` called with `argument` and the status of each job, and fan out the output
        of those that run."""
        validate.count(len(jobs), "jobs", limits.HEARTBEAT_JOBS_MAX)
        beats = []
        deltas: dict[str, str] = {}
        for job_id, beat in sorted(jobs.items()):
            try:
                beats.append(self._beat(job_id, beat))
                if beat.stream_delta:
                    deltas[job_id] = _delta(beat.stream_delta)
            except CorvoError as error:
                part = f"jobs[{shown(job_id)}]"
                raise validate.of_part(error, part, job_id=job_id) from None

        def on_heartbeat(argument: Any, result: Any) -> None:
            for job_id, delta in deltas.items():
                if isinstance(result, dict) and result[job_id] == "ok":
                    self._job_output.add(job_id, delta, self._service.clock.elapsed_ns())
            answer(argument, result)

        self._service.submit(caller, ops.HEARTBEAT, (beats,), (on_heartbeat, argument))

    def _beat(self, job_id: str, beat: Beat) -> bytes:
        """The heartbeat of one job."""
        values = (
            check_job_id(job_id),
            validate.lease_token(beat.lease_token),
            validate.json_size(json_value(beat.progress), "progress", limits.PROGRESS_SIZE_MAX),
            self._checkpoint(beat.checkpoint),
        )
        return encode_fields(ops.BEAT_LAYOUT, values)

    def release_values(self, job_id: str, body: ReleaseBody) -> tuple[Any, ...]:
        """The values of the Release layout."""
        return (
            check_job_id(job_id),
            validate.lease_token(body.lease_token),
            validate.length_ns(body.delay, "delay"),
            self._checkpoint(body.checkpoint),
            False,
        )


def _delta(text: str) -> str:
    """A piece of live output, of bounded size."""
    size = len(text.encode())
    if size > limits.STREAM_DELTA_SIZE_MAX:
        raise PayloadTooLarge(
            f"stream_delta too large: {size} bytes (max {limits.STREAM_DELTA_SIZE_MAX})",
            field="stream_delta",
        )
    return text


def _step(body: AckBody) -> bytes:
    """The instruction of an ack to its chain."""
    status = "continue" if body.step_status is None else body.step_status
    if status not in ("continue", "exit"):
        raise ValidationError(
            f"step_status {shown(status)} is unknown (use continue, exit)",
            field="step_status",
        )
    reason = validate.text(body.exit_reason, "exit_reason", limits.EXIT_REASON_SIZE_MAX)
    return encode_fields(ops.STEP_LAYOUT, (status == "exit", reason))

"""POST /enqueue and POST /enqueue/batch."""

from typing import Any

from msgspec.structs import astuple

from corvo import limits, ops
from corvo._fast.codec.fast_json import FastEnqueue
from corvo._fast.codec.fast_proto import FastFrames
from corvo._fast.codec.layouts import encode_fields
from corvo._fast.http.exchange import Request, join, reply_error
from corvo.engine import validate
from corvo.engine.service import Service
from corvo.errors import CorvoError, ValidationError
from corvo.model import STATES, Enqueued
from corvo.net.api.enqueue_options import OptionsEncoder
from corvo.net.api.handlers.wait import wait_for_end
from corvo.net.api.requests import (
    EnqueueBatchBody,
    EnqueueBody,
    decode,
    json_value,
    tags_object,
)
from corvo.net.api.responses import outcome, reply_json
from corvo.platform.durations import parse_time
from corvo.platform.ids import check_job_id

_DUPLICATE = '{"job_id":"%s","status":"duplicate","unique_existing":true,"state":"%s"%s}'
_NO_OPTIONS = list(astuple(EnqueueBody()))[17:]
_ENQUEUED_END = [b'","status":"%b","unique_existing":false}' % s.encode() for s in STATES]


class Producer:
    """Handlers of producers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._options = OptionsEncoder(service.config.max_payload_size, service.new_chain_id)
        # What a body that says queue and payload alone leaves to the defaults, as bytes.
        _, values = self.job_values(EnqueueBody(queue="q"))
        layout = ops.ENQUEUE.layout
        front = encode_fields(layout[2], (values[1],))[1:]
        tail = encode_fields(layout[4:], values[3:])[1:]
        self._fast = FastEnqueue(front, tail, service.config.max_payload_size)
        self._results = front, tail

    def fast_frames(self) -> FastFrames:
        """Reads frames of streams whose enqueues are plain."""
        config = self._service.config
        return FastFrames(*self._results, config.max_payload_size, config.max_result_size)

    def enqueue(self, request: Request) -> None:
        """201 with the new job, or 200 with the job that holds its unique key."""
        if self._service.guard is None and self._fast.scan(request.body):
            self._service.enqueue_fast(self._fast, (on_enqueued, request))
            return
        body = decode(request.body, EnqueueBody)
        queue, values = self.job_values(body)
        slot = (on_enqueued, request)
        if body.wait is not None:
            request.context = validate.length_ns(body.wait, "wait")
            slot = (self._on_enqueued_to_wait, request)
        self._service.enqueue(queue, values, slot)

    def fast_op(self, queue: str, payload: str, stamp_ns: int) -> bytes:
        """The op of a new job with a queue and a payload alone; empty = it is not plain."""
        fast = self._fast
        body = f'{{"queue":"{queue}","payload":{payload}}}'.encode()
        # A name with a quote in it would say something else here.
        if not fast.scan(body) or fast.queue != queue:
            return b""
        return fast.encode(self._service.new_job_id(stamp_ns))

    def enqueue_batch(self, request: Request) -> None:
        """201 with the ids in input order; all jobs are taken or none."""
        body = decode(request.body, EnqueueBatchBody)
        validate.count(len(body.jobs), "jobs", limits.ENQUEUE_BATCH_MAX)
        batch_id, batch = self._batch(body)
        queues, jobs = [], []
        for position, item in enumerate(body.jobs):
            try:
                if item.wait is not None:
                    raise ValidationError("wait is for POST /enqueue only", field="wait")
                queue, values = self.job_values(item, batch_id)
            except CorvoError as error:
                raise type(error)(
                    f"job {position} {error.message}", **{**error.fields, "index": position}
                ) from None
            queues.append(queue)
            jobs.append(values)
        self._service.enqueue_batch(queues, jobs, batch, (self._on_batch_enqueued, request))

    def _batch(self, body: EnqueueBatchBody) -> tuple[str, bytes]:
        """The batch that all jobs join, and its definition if it is a new one."""
        if body.batch is None:
            return check_job_id(body.batch_id, "batch_id") if body.batch_id else "", b""
        if body.batch_id:
            raise ValidationError("batch (a new one) and batch_id exclude each other")
        batch_id = self._service.new_batch_id()
        return batch_id, self._options.encode_batch(batch_id, body.batch)

    def job_values(self, body: EnqueueBody, batch_id: str = "") -> tuple[str, tuple[Any, ...]]:
        """The queue, and the values of the Enqueue layout after the id."""
        config = self._service.config
        (
            name,
            payload,
            priority,
            max_retries,
            backoff,
            base_delay,
            max_delay,
            jitter,
            scheduled_at,
            delay,
            tags,
            checkpoint,
            parent_id,
            unique_key,
            unique_until,
            unique_period,
            _,
            *options,
        ) = astuple(body)
        if scheduled_at and delay is not None:
            raise ValidationError("delay and scheduled_at exclude each other", field="delay")
        queue = validate.queue_name(name or "")
        base_default_ms = limits.RETRY_BASE_DELAY_DEFAULT_MS
        max_default_ms = limits.RETRY_MAX_DELAY_DEFAULT_MS
        size_max = config.max_checkpoint_size
        return queue, (
            queue,
            validate.priority(priority),
            validate.json_size(bytes(payload), "payload", config.max_payload_size) or b"{}",
            validate.json_size(tags_object(tags), "tags", limits.TAGS_SIZE_MAX) if tags else b"",
            validate.max_retries(max_retries),
            validate.backoff(backoff),
            validate.length_ms(base_delay, "retry_base_delay", base_default_ms),
            validate.length_ms(max_delay, "retry_max_delay", max_default_ms),
            validate.jitter_ppm(jitter),
            parse_time(scheduled_at, "scheduled_at") if scheduled_at else 0,
            validate.json_size(json_value(checkpoint), "checkpoint", size_max)
            if checkpoint
            else b"",
            validate.text(parent_id, "parent_id", limits.JOB_ID_SIZE_MAX),
            validate.text(unique_key, "unique_key", limits.UNIQUE_KEY_SIZE_MAX).encode(),
            validate.unique_until(unique_until),
            validate.length_ns(unique_period, "unique_period"),
            self._options.encode(body, batch_id) if batch_id or options != _NO_OPTIONS else b"",
            validate.length_ns(delay, "delay"),
        )

    def _on_enqueued_to_wait(self, request: Request, result: Any) -> None:
        if not isinstance(result, Enqueued):
            reply_error(request, result)
            return
        wait_ns = min(request.context, limits.END_WAIT_MAX_S * limits.SECOND_NS)
        request.context = result
        wait_for_end(self._service, request, result.job_id, wait_ns, self._on_waited)

    def _on_waited(self, request: Request) -> None:
        """Answer with what has become of the new job, or of the one that holds its key."""
        enqueued: Enqueued = request.context
        job = self._service.machine.job(enqueued.job_id)
        state = "deleted" if job is None else STATES[job.state]
        document: dict[str, Any] = {
            "job_id": enqueued.job_id,
            "status": "duplicate" if enqueued.duplicate else state,
            "unique_existing": enqueued.duplicate,
            "state": state,
        }
        if job is not None:
            document |= outcome(self._service.machine, job)
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
    """Answer with the new job, or with the one that holds its unique key."""
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

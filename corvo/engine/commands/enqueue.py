"""Enqueues: input documents become the values of Enqueue ops."""

from typing import Any

from msgspec.structs import astuple

from corvo import limits, ops
from corvo._fast.codec.fast_json import FastEnqueue
from corvo._fast.codec.fast_proto import FastFrames
from corvo._fast.codec.layouts import encode_fields
from corvo.engine import validate
from corvo.engine.commands.inputs import (
    EnqueueBatchBody,
    EnqueueBody,
    JobBody,
    json_value,
    tags_object,
)
from corvo.engine.commands.options import OptionsEncoder
from corvo.engine.service import Service
from corvo.errors import CorvoError, ValidationError
from corvo.platform.durations import parse_time
from corvo.platform.ids import check_job_id

_FIRST_OPTION = len(JobBody.__struct_fields__)
_NO_OPTIONS = astuple(EnqueueBody())[_FIRST_OPTION:]


class EnqueueCommands:
    """Checks enqueues and encodes their values.

    `fast` scans JSON bodies with a queue and a payload alone and encodes their ops, without an
    input document.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._options = OptionsEncoder(service.config.max_payload_size, service.new_chain_id)
        # The fields of such an op that the defaults decide, as bytes.
        _, values = self.job_values(EnqueueBody(queue="q"))
        row = ops.ENQUEUE
        front = _encode_part(row.position("queue") + 1, row.position("payload"), values)
        tail = _encode_part(row.position("payload") + 1, len(row.fields), values)
        self.fast = FastEnqueue(front, tail, service.config.max_payload_size)
        self._defaults = front, tail

    def fast_frames(self) -> FastFrames:
        """A reader for frames of streams, which encodes the simple enqueues among them."""
        config = self._service.config
        return FastFrames(*self._defaults, config.max_payload_size, config.max_result_size)

    def fast_op(self, queue: str, payload: str, stamp_ns: int) -> bytes:
        """The op of a new job with a queue and a payload alone; empty if the fast path does not
        take it."""
        fast = self.fast
        body = f'{{"queue":"{queue}","payload":{payload}}}'.encode()
        # A name with a quote in it reads differently here.
        if not fast.scan(body) or fast.queue != queue:
            return b""
        return fast.encode(self._service.new_job_id(stamp_ns))

    def batch_values(
        self, body: EnqueueBatchBody
    ) -> tuple[list[str], list[tuple[Any, ...]], bytes]:
        """The queue and the values of each job of a batch, and the definition of a new batch."""
        items = body.jobs or []
        validate.count(len(items), "jobs", limits.ENQUEUE_BATCH_MAX)
        links = sum(len(item.depends_on) for item in items if item.depends_on)
        if links > limits.BATCH_DEPENDENCIES_MAX:
            raise ValidationError(
                f"depends_on has {links} items in all jobs (limit {limits.BATCH_DEPENDENCIES_MAX})",
                field="depends_on",
            )
        batch_id, batch = self._batch(body)
        queues, jobs = [], []
        for position, item in enumerate(items):
            try:
                if item.wait is not None:
                    raise ValidationError("wait is for POST /enqueue only", field="wait")
                queue, values = self.job_values(item, batch_id)
            except CorvoError as error:
                raise validate.of_part(error, f"job {position}", index=position) from None
            queues.append(queue)
            jobs.append(values)
        return queues, jobs, batch

    def _batch(self, body: EnqueueBatchBody) -> tuple[str, bytes]:
        """The batch that all jobs join, and its definition if it is new."""
        if body.batch is None:
            return _optional_id(body.batch_id, "batch_id"), b""
        if body.batch_id is not None:
            raise ValidationError(
                "batch (a new one) and batch_id exclude each other", field="batch_id"
            )
        batch_id = self._service.new_batch_id()
        return batch_id, self._options.encode_batch(batch_id, body.batch)

    def job_values(self, body: EnqueueBody, batch_id: str = "") -> tuple[str, tuple[Any, ...]]:
        """The queue, and the values of the Enqueue layout after the id."""
        config = self._service.config
        if body.scheduled_at is not None and body.delay is not None:
            raise ValidationError("delay and scheduled_at exclude each other", field="delay")
        queue = validate.queue_name(body.queue or "")
        has_options = batch_id != "" or astuple(body)[_FIRST_OPTION:] != _NO_OPTIONS
        base_default_ms = limits.RETRY_BASE_DELAY_DEFAULT_MS
        max_default_ms = limits.RETRY_MAX_DELAY_DEFAULT_MS
        size_max = config.max_checkpoint_size
        return queue, (
            queue,
            validate.priority(body.priority),
            validate.json_size(bytes(body.payload), "payload", config.max_payload_size) or b"{}",
            tags_object(body.tags),
            validate.max_retries(body.max_retries),
            validate.backoff(body.retry_backoff),
            validate.length_ms(body.retry_base_delay, "retry_base_delay", base_default_ms),
            validate.length_ms(body.retry_max_delay, "retry_max_delay", max_default_ms),
            validate.jitter_ppm(body.retry_jitter),
            self._due_ns(body),
            validate.json_size(json_value(body.checkpoint), "checkpoint", size_max)
            if body.checkpoint
            else b"",
            validate.name(body.parent_id, "parent_id", limits.JOB_ID_SIZE_MAX),
            validate.key(body.unique_key, "unique_key", limits.UNIQUE_KEY_SIZE_MAX).encode(),
            validate.unique_until(body.unique_until),
            validate.length_ns(body.unique_period, "unique_period"),
            self._options.encode(body, batch_id) if has_options else b"",
        )

    def _due_ns(self, body: EnqueueBody) -> int:
        """The time at which a job is due; 0 = now. A delay counts from the stamp of the leader, so
        that the clock of the client does not matter."""
        if body.scheduled_at is not None:
            return parse_time(body.scheduled_at, "scheduled_at")
        delay_ns = validate.length_ns(body.delay, "delay")
        return min(self._service.clock.stamp() + delay_ns, limits.TIME_MAX_NS) if delay_ns else 0


def _optional_id(value: str | None, field: str) -> str:
    """An id, empty if it is absent."""
    return "" if value is None else check_job_id(value, field)


def _encode_part(first: int, end: int, values: tuple[Any, ...]) -> bytes:
    """Some fields of an Enqueue, without the version byte; `values` are those after the id."""
    part = ("", *values)[first:end]
    return encode_fields(ops.ENQUEUE.layout[first:end], part)[1:]

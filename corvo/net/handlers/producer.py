"""POST /enqueue and POST /enqueue/batch."""

from typing import Any

from corvo import checks, limits
from corvo._fast.replies import Request, reply_error
from corvo.errors import CorvoError
from corvo.model import STATES, Enqueued
from corvo.net.bodies import EnqueueBatchBody, EnqueueBody, decode, json_value, tags_object
from corvo.net.documents import reply_json
from corvo.service import Service
from corvo.times import parse_time

_DUPLICATE = '{"job_id":"%s","status":"duplicate","unique_existing":true,"state":"%s"%s}'


class Producer:
    """Handlers of producers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def enqueue(self, request: Request) -> None:
        """201 with the new job, or 200 with the job that holds its unique key."""
        body = decode(request.body, EnqueueBody)
        self._service.enqueue(*self.job_values(body), slot=(on_enqueued, request))

    def enqueue_batch(self, request: Request) -> None:
        """201 with the ids in input order; all jobs are taken or none."""
        body = decode(request.body, EnqueueBatchBody)
        checks.count(len(body.jobs), "jobs", limits.ENQUEUE_BATCH_MAX)
        queues, jobs = [], []
        for position, item in enumerate(body.jobs):
            try:
                queue, values = self.job_values(item)
            except CorvoError as error:
                raise type(error)(
                    f"job {position} {error.message}", **{**error.fields, "index": position}
                ) from None
            queues.append(queue)
            jobs.append(values)
        self._service.enqueue_batch(queues, jobs, slot=(self._on_batch_enqueued, request))

    def job_values(self, body: EnqueueBody) -> tuple[str, tuple[Any, ...]]:
        """The queue, and the values of the Enqueue layout after the id."""
        config = self._service.config
        queue = checks.queue_name(body.queue or "")
        payload = checks.json_size(bytes(body.payload), "payload", config.max_payload_size)
        return queue, (
            queue,
            checks.priority(body.priority),
            payload or b"{}",
            checks.json_size(tags_object(body.tags), "tags", limits.TAGS_SIZE_MAX),
            checks.max_retries(body.max_retries),
            checks.backoff(body.retry_backoff),
            checks.length_ms(
                body.retry_base_delay, "retry_base_delay", limits.RETRY_BASE_DELAY_DEFAULT_MS
            ),
            checks.length_ms(
                body.retry_max_delay, "retry_max_delay", limits.RETRY_MAX_DELAY_DEFAULT_MS
            ),
            checks.jitter_ppm(body.retry_jitter),
            parse_time(body.scheduled_at, "scheduled_at") if body.scheduled_at else 0,
            checks.json_size(json_value(body.checkpoint), "checkpoint", config.max_checkpoint_size),
            checks.text(body.parent_id, "parent_id", limits.JOB_ID_SIZE_MAX),
            checks.text(body.unique_key, "unique_key", limits.UNIQUE_KEY_SIZE_MAX).encode(),
            checks.unique_until(body.unique_until),
            checks.length_ns(body.unique_period, "unique_period"),
        )

    @staticmethod
    def _on_batch_enqueued(request: Request, result: Any) -> None:
        if isinstance(result, CorvoError):
            reply_error(request, result)
            return
        reply: dict[str, Any] = {"job_ids": [item.job_id for item in result]}
        duplicates = sum(item.duplicate for item in result)
        if duplicates:
            reply["duplicates"] = duplicates
        reply_json(request, 201, reply)


def on_enqueued(request: Request, result: Any) -> None:
    """Answer with the new job, or with the one that holds its unique key."""
    if isinstance(result, Enqueued):
        if result.duplicate:
            stored = f',"result":{result.result.decode()}' if result.result else ""
            text = _DUPLICATE % (result.job_id, STATES[result.state], stored)
            request.reply(200, text.encode())
        else:
            request.reply(
                201,
                b'{"job_id":"%b","status":"%b","unique_existing":false}'
                % (result.job_id.encode(), STATES[result.state].encode()),
            )
    else:
        reply_error(request, result)

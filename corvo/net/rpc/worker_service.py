"""The methods of the worker service, on messages as dicts, whatever protocol they came by.

They submit the same commands as the routes of the HTTP API. A method gets a `Call` and answers it,
now or later.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from corvo import __version__, limits, ops
from corvo._fast.codec.fast_proto import FastAcks, FastEnqueues, FastFrames
from corvo._fast.codec.fields import Writer
from corvo._fast.codec.layouts import encode_fields
from corvo._fast.codec.protobuf import varint_size
from corvo._fast.http.exchange import Request
from corvo.engine import validate
from corvo.engine.caller import Caller
from corvo.engine.commands.enqueue import EnqueueCommands
from corvo.engine.commands.inputs import AckItem, Beat, ChainBody, EnqueueBody, FailBody, FetchBody
from corvo.engine.commands.work import WorkCommands
from corvo.engine.parked import Wait
from corvo.engine.service import Service
from corvo.errors import CorvoError, ValidationError, cut
from corvo.limits import SECOND_NS
from corvo.model import STATES, Acked, Enqueued, Failed, Fetched
from corvo.net.api.requests import decode, json_text, tags_of_text, text_json
from corvo.net.http.long_poll import began_ns
from corvo.platform.durations import format_time
from corvo.platform.echoes import shown
from corvo.platform.ids import check_job_id

Values = dict[str, Any]

_QUEUE_AND_PAYLOAD: Final = 2  # members of a plain enqueue
_JOB_AND_TOKEN: Final = 2  # of a plain ack
# Members of an enqueue message with the name and meaning they have in the HTTP API.
_ENQUEUE_SAME: Final = frozenset(EnqueueBody.__struct_fields__) - {"scheduled_at"}
# Members that hold any JSON, by the text field of the message that has it.
_ENQUEUE_JSON: Final = {
    f"{field.name}_json": field.name
    for field in msgspec.structs.fields(EnqueueBody)
    if field.type is Raw
}
_EARLY_NS: Final = SECOND_NS  # an empty fetch answers that long before the deadline of the caller
_REQUEST: Final = "LifecycleStreamRequest"
# Tags of the fields of a delivered job, and of the field of the response that has it.
_JOBS: Final = 0x12
_JOB_ID: Final = 0x0A
_QUEUE: Final = 0x12
_PAYLOAD: Final = 0x1A
_ATTEMPT: Final = 0x20
_MAX_RETRIES: Final = 0x28
_LEASE: Final = 0x30
_CHECKPOINT: Final = 0x3A
_TAGS: Final = 0x42
_TOKEN: Final = 50 << 3 | 2
_FENCING: Final = 51 << 3
_writer = Writer()


class Call:
    """One call, which is answered once."""

    def __init__(self, request: Request, timeout_ns: int) -> None:
        self.request = request
        self.timeout_ns = timeout_ns  # 0 = the caller states no deadline
        self.caller: Caller = request.caller
        self.done = False

    def answer(self, values: Values) -> None:
        """The response message."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """The call did not succeed."""
        raise NotImplementedError

    def settle(self, result: Any, values: Callable[[Any], Values]) -> None:
        """Answer with the result of an op."""
        if isinstance(result, CorvoError):
            self.fail(result)
        else:
            self.answer(values(result))


class WorkerCalls:
    """The unary methods, and the parts of lifecycle streams."""

    def __init__(self, service: Service, enqueues: EnqueueCommands, work: WorkCommands) -> None:
        self._service = service
        self._enqueues = enqueues
        self._work = work
        self._fast = enqueues.fast_frames()
        self.methods: dict[str, Callable[[Values, Call], None]] = {
            "Enqueue": self.enqueue,
            "Fetch": self.fetch,
            "FetchBatch": self.fetch_batch,
            "Ack": self.ack,
            "AckBatch": self.ack_batch,
            "Fail": self.fail,
            "Heartbeat": self.heartbeat,
            "GetServerInfo": self.server_info,
        }

    def enqueue(self, values: Values, call: Call) -> None:
        """One job."""
        queue, job = self._enqueues.job_values(enqueue_body(values))

        def on_enqueued(call: Call, result: Any) -> None:
            call.settle(result, _enqueued_values)

        self._service.enqueue(call.caller, queue, job, (on_enqueued, call))

    def fetch(self, values: Values, call: Call) -> None:
        """One job, if one comes."""

        def answer(jobs: list[Fetched]) -> Values:
            return {"found": True, **job_values(jobs[0])} if jobs else {}

        self._wait(values, call, 0, answer)

    def fetch_batch(self, values: Values, call: Call) -> None:
        """Some jobs, if some come."""
        count = min(max(values.get("count", 1), 1), limits.FETCH_BATCH_MAX)
        self._wait(values, call, count, lambda jobs: {"jobs": [job_values(job) for job in jobs]})

    def _wait(
        self, values: Values, call: Call, count: int, answer: Callable[[Any], Values]
    ) -> None:
        def on_fetched(wait: Wait, result: Any) -> None:
            if call.done:  # the call ended: the jobs return to their queues
                self._service.abandon(wait)
            else:
                call.settle(result, answer)

        request, timeout_ns = call.request, call.timeout_ns
        wait_ns = limits.FETCH_WAIT_DEFAULT_S * SECOND_NS
        if timeout_ns:
            wait_ns = min(wait_ns, max(timeout_ns - _EARLY_NS, timeout_ns // 2))
        body = fetch_body(values, wait_ns / SECOND_NS)
        began = began_ns(request)
        request.context = self._work.fetch(call.caller, request, began, body, count, on_fetched)
        request.on_abandoned = self._on_abandoned

    def _on_abandoned(self, request: Request) -> None:
        self._service.abandon(request.context)

    def ack(self, values: Values, call: Call) -> None:
        """One job is completed."""
        body = ack_item(values)
        job_id = check_job_id(values.get("job_id", ""))
        completion = (lambda call, result: call.settle(result, _nothing)), call
        self._service.submit(call.caller, ops.ACK, self._work.ack_values(job_id, body), completion)

    def ack_batch(self, values: Values, call: Call) -> None:
        """Many jobs are completed; those that are refused are named."""
        items = values.get("items", [])
        if not items:
            raise ValidationError("items is required", field="items")
        payloads, refused = self._ack_payloads(items)

        def answer(result: Acked) -> Values:
            failed = []
            for position, error in result.refused:
                reason = refused.get(position, error)
                job_id = items[position]["job_id"]
                names = {"job_id": job_id, "error": reason.message, "code": reason.code}
                failed.append({"index": position, **names})
            return {"acked": result.count, "failed": failed}

        completion = (lambda call, result: call.settle(result, answer)), call
        self._service.submit(call.caller, ops.ACK_BATCH, (payloads,), completion)

    def _ack_payloads(self, items: list[Values]) -> tuple[list[bytes], dict[int, CorvoError]]:
        """Encode acks, and return the errors of those that are refused by position."""
        ids = [item.get("job_id") for item in items]
        return self._work.ack_payloads(ids, lambda position: ack_item(items[position]))

    def fail(self, values: Values, call: Call) -> None:
        """An attempt failed."""

        def answer(result: Failed) -> Values:
            reply: Values = {
                "status": STATES[result.state],
                "attempts_remaining": result.attempts_remaining,
            }
            if result.next_attempt_ns:
                seconds, nanos = divmod(result.next_attempt_ns, SECOND_NS)
                reply["next_attempt_at"] = {"seconds": seconds, "nanos": nanos}
            return reply

        self.fail_job(call.caller, values, lambda result: call.settle(result, answer))

    # Parts of lifecycle streams: `answer` is called with the result of the op.

    def read_frame(self, codec: Any, data: bytes) -> Values:
        """A frame; acks and enqueues that are all plain are ops already."""
        return read_frame(self._fast, codec, data, self._service.reads.result_schemas)

    def fail_job(self, caller: Caller, values: Values, answer: Callable[[Any], None]) -> None:
        """Propose the end of an attempt."""
        body = FailBody(
            lease_token=values.get("lease_token"),
            error=text_json(values.get("error", "")),
            backtrace=text_json(values.get("backtrace", "")),
            retry=values.get("retry"),
            retry_after=values.get("retry_after"),
            provider_error=values.get("provider_error", False),
        )
        op_values = self._work.fail_values(values.get("job_id", ""), body)
        self._service.submit(caller, ops.FAIL, op_values, (_call, answer))

    def ack_items(
        self,
        caller: Caller,
        items: list[Values] | FastAcks,
        refuse: Callable[[CorvoError, int], None],
        answer: Callable[[Any], None],
    ) -> None:
        """Propose acks; those that are refused do not count. `refuse` is called with the error
        and the position of each ack that is invalid."""
        if isinstance(items, FastAcks):
            self._service.submit_encoded(caller, ops.ACK_BATCH, items.payload, (_call, answer))
            return
        payloads = [self._fast_ack(item) for item in items]
        if not all(payloads):
            payloads, refused = self._ack_payloads(items)
            for position, error in refused.items():
                refuse(error, position)
        self._service.submit(caller, ops.ACK_BATCH, (payloads,), (_call, answer))

    def _fast_ack(self, item: Values) -> bytes:
        """Encoded Ack if the message has only a job id and a valid token, else b""."""
        if len(item) > _JOB_AND_TOKEN or "lease_token" not in item:
            return b""
        job_id = check_job_id(item["job_id"])
        try:
            token = validate.lease_token(item["lease_token"])
        except ValidationError:
            return b""
        if self._service.reads.result_schema(job_id, token):
            return b""
        return encode_fields(ops.ACK.layout, (job_id, token, b"{}", b"", b""))

    def enqueue_all(
        self,
        caller: Caller,
        items: list[Values] | FastEnqueues,
        refuse: Callable[[CorvoError, int], None],
        answer: Callable[[Any], None],
    ) -> bool:
        """Propose those of the jobs that are right, all or none; whether there are any. `refuse`
        is called with the error and the position of each of the others."""
        stamp_ns = self._service.clock.stamp()
        if isinstance(items, FastEnqueues):
            payload = items.encode(self._service.new_job_ids(stamp_ns, items.count))
            self._service.enqueue_encoded(caller, items.queues, payload, (_call, answer))
            return True
        queues: list[str] = []
        payloads: list[bytes] = []
        for position, item in enumerate(items):
            try:
                payload = b""
                if len(item) == _QUEUE_AND_PAYLOAD and "payload_json" in item and "queue" in item:
                    queue = item["queue"]
                    payload = self._enqueues.fast_op(queue, item["payload_json"], stamp_ns)
                if not payload:
                    queue, values = self._enqueues.job_values(enqueue_body(item))
                    job_id = self._service.new_job_id(stamp_ns)
                    payload = encode_fields(ops.ENQUEUE.layout, (job_id, *values))
            except CorvoError as error:
                refuse(error, position)
            else:
                queues.append(queue)
                payloads.append(payload)
        if payloads:
            self._service.enqueue_payloads(caller, queues, payloads, b"", (_call, answer))
        return bool(payloads)

    def fetch_for(
        self,
        caller: Caller,
        recipient: Any,
        body: FetchBody,
        count: int,
        answer: Callable[[Any], None],
    ) -> Wait:
        """Wait for jobs that the recipient gets; see `WorkCommands.fetch`."""

        def on_fetched(_wait: Wait, result: Any) -> None:
            answer(result)

        began = self._service.clock.elapsed_ns()
        return self._work.fetch(caller, recipient, began, body, count, on_fetched)

    def abandon(self, wait: Wait) -> None:
        """The recipient of a fetch is gone."""
        self._service.abandon(wait)

    # ---- others ----

    def heartbeat(self, values: Values, call: Call) -> None:
        """Jobs are still worked on."""

        def on_heartbeat(call: Call, result: Any) -> None:
            call.settle(
                result, lambda jobs: {"jobs": {name: {"status": jobs[name]} for name in jobs}}
            )

        jobs = {job_id: _beat(job_id, item) for job_id, item in values.get("jobs", {}).items()}
        self._work.heartbeat(call.caller, jobs, on_heartbeat, call)

    def server_info(self, _values: Values, call: Call) -> None:
        """The version of the server and of its API."""
        call.answer({"server_version": __version__, "api_version": __version__})


def read_frame(fast: FastFrames, codec: Any, data: bytes, schemas: bool) -> Values:
    """A frame. With `schemas` results have to be looked at, so that no ack is plain."""
    found = None
    if codec.name == "proto":
        found = fast.read(data, limits.ACK_BATCH_MAX, limits.LIFECYCLE_ENQUEUES_MAX)
    if found is None or (schemas and found[0] is not None):
        values: Values = codec.decode(_REQUEST, data)
        return values
    acks, enqueues, rest = found
    items = (acks.count if acks else 0) + (enqueues.count if enqueues else 0)
    values = codec.decode(_REQUEST, rest, limits.RPC_ITEMS_MAX - items)
    if acks:
        values["acks"] = acks
    if enqueues:
        values["enqueues"] = enqueues
    return values


def enqueue_body(values: Values) -> EnqueueBody:
    """An EnqueueRequest, or one enqueue of a lifecycle stream, as a body of the HTTP API."""
    _refuse(values, "agent")
    scheduled_at = values.get("scheduled_at")
    same = {name: values[name] for name in values if name in _ENQUEUE_SAME}
    for name, member in _ENQUEUE_JSON.items():
        if name in values:
            same[member] = json_text(values[name], name)
    body = EnqueueBody(tags=tags_of_text(values.get("tags_json", "")), **same)
    if scheduled_at is not None:
        body.scheduled_at = _time(scheduled_at)
    if values.get("chain_json"):
        body.chain = decode(values["chain_json"].encode(), ChainBody)
    return body


def fetch_body(values: Values, wait_s: float) -> FetchBody:
    """A fetch as a body of the HTTP API."""
    queues = values.get("queues", [])
    if not queues:
        raise ValidationError("at least one queue is required", field="queues")
    lease_duration = values.get("lease_duration", 0)
    return FetchBody(
        queues=queues,
        worker_id=values.get("worker_id"),
        hostname=values.get("hostname"),
        timeout=wait_s,
        lease_duration=lease_duration if lease_duration > 0 else None,
    )


def ack_item(values: Values) -> AckItem:
    """An ack as a body of the HTTP API; no result is an empty one."""
    _refuse(values, "usage", "agent_status", "hold_reason", "trace_json")
    return AckItem(
        job_id=values.get("job_id"),
        lease_token=values.get("lease_token"),
        result=json_text(values.get("result_json", "{}"), "result_json"),
        checkpoint=json_text(values.get("checkpoint_json", ""), "checkpoint_json"),
        step_status=values.get("step_status"),
        exit_reason=values.get("exit_reason"),
    )


def job_values(job: Fetched) -> Values:
    """A delivered job as a message."""
    values: Values = {
        "job_id": job.job_id,
        "queue": job.queue,
        "payload_json": job.payload.decode(),
        "attempt": job.attempt,
        "max_retries": job.max_retries,
        "lease_duration": job.lease_ns // SECOND_NS,
        "lease_token": job.token,
        "fencing": job.fencing,
    }
    if job.checkpoint:
        values["checkpoint_json"] = job.checkpoint.decode()
    if job.tags:
        values["tags_json"] = job.tags.decode()
    return values


def jobs_field(jobs: list[Fetched]) -> bytes:
    """The same of many, as the bytes of the field in the response of a stream: most of what a
    server writes are these. Ids and tokens are ASCII."""
    w = _writer
    w.begin()
    for job in jobs:
        queue = job.queue.encode()
        size = 6 + len(job.job_id) + varint_size(len(job.job_id)) + len(job.token)
        size += varint_size(len(job.token)) + len(queue) + varint_size(len(queue))
        size += len(job.payload) + varint_size(len(job.payload)) + varint_size(job.fencing)
        lease_s = job.lease_ns // SECOND_NS
        size += 3 + varint_size(job.attempt) + varint_size(lease_s)
        size += 1 + varint_size(job.max_retries) if job.max_retries else 0
        for text in (job.checkpoint, job.tags):
            size += 1 + varint_size(len(text)) + len(text) if text else 0
        w.u(_JOBS)
        w.u(size)
        w.u(_JOB_ID)
        w.s(job.job_id)
        w.u(_QUEUE)
        w.b(queue)
        w.u(_PAYLOAD)
        w.b(job.payload)
        w.u(_ATTEMPT)
        w.u(job.attempt)
        if job.max_retries:
            w.u(_MAX_RETRIES)
            w.u(job.max_retries)
        w.u(_LEASE)
        w.u(lease_s)
        if job.checkpoint:
            w.u(_CHECKPOINT)
            w.b(job.checkpoint)
        if job.tags:
            w.u(_TAGS)
            w.b(job.tags)
        w.u(_TOKEN)
        w.s(job.token)
        w.u(_FENCING)
        w.u(job.fencing)
    return w.done()[1:]  # without the version byte of documents


def _beat(job_id: str, values: Values) -> Beat:
    _refuse(values, "usage")
    name = cut(job_id)
    progress = json_text(values.get("progress_json", ""), f"progress_json for {name}")
    if bytes(progress)[:1] not in (b"", b"{"):
        raise ValidationError(f"invalid progress_json for {name}: it is not an object")
    return Beat(
        lease_token=values.get("lease_token"),
        progress=progress,
        checkpoint=json_text(values.get("checkpoint_json", ""), f"checkpoint_json for {name}"),
        stream_delta=values.get("stream_delta"),
    )


def _enqueued_values(result: Enqueued) -> Values:
    status = "duplicate" if result.duplicate else STATES[result.state]
    return {"job_id": result.job_id, "status": status, "unique_existing": result.duplicate}


def _call(answer: Callable[[Any], None], result: Any) -> None:
    answer(result)


def _nothing(_result: Any) -> Values:
    return {}


def _time(values: Values) -> str:
    at_ns = values.get("seconds", 0) * SECOND_NS + values.get("nanos", 0)
    if not 0 <= at_ns <= limits.TIME_MAX_NS:
        raise ValidationError("scheduled_at must be a time from 1970 to 9999", field="scheduled_at")
    return format_time(at_ns)


def _refuse(values: Values, *names: str) -> None:
    """Refuse members that are not supported: the client relies on them."""
    for name in names:
        if name in values:
            raise ValidationError(f"{shown(name)} is not part of this version", field=name)

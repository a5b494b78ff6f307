"""What the edges call: ops into the pipeline, fetches that wait, and reads of the applied state.

HTTP handlers (and later the RPC service) turn their input into the values of an op's layout with
the help of `corvo.engine.validate`; this module stamps ids, submits, and finds things or says what
is missing.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from corvo import ops
from corvo._fast.codec.fast_json import FastEnqueue
from corvo._fast.codec.layouts import encode_fields
from corvo.config import Config
from corvo.engine.fetches import Wait
from corvo.engine.pipeline import Completion, Pipeline
from corvo.engine.validate import shown
from corvo.errors import MirrorUnavailable, NotFound, ValidationError
from corvo.fsm.machine import Machine
from corvo.model import ACTIONS, ENDED, Batch, BulkOperation, Job, Queue, Schedule
from corvo.platform.clock import Clock
from corvo.platform.ids import (
    BATCH_PREFIX,
    BULK_PREFIX,
    CHAIN_PREFIX,
    PREFIX,
    SCHEDULE_PREFIX,
    JobIds,
)

_ENQUEUE = ops.ENQUEUE


class Mirror(Protocol):
    """Who answers questions that the applied state cannot answer by itself."""

    def ask(
        self, method: str, arguments: dict[str, Any], wait_s: float, completion: Completion
    ) -> None:
        """The slot gets the answer or a CorvoError. Raises MirrorUnavailable or Overloaded."""


class NoMirror:
    """A server without a mirror."""

    def ask(
        self, method: str, arguments: dict[str, Any], wait_s: float, completion: Completion
    ) -> None:
        """Nobody answers."""
        raise MirrorUnavailable("this server runs without its mirror (--no-mirror)")


class Service:
    """The verbs of the server, independent of the protocol they arrive by."""

    def __init__(
        self, config: Config, clock: Clock, machine: Machine, pipeline: Pipeline, ids: JobIds
    ) -> None:
        self.config = config
        self.clock = clock
        self.machine = machine
        self.pipeline = pipeline
        self._ids = ids
        self._stamp_ns = 0
        # Idempotency key and fingerprint of the request whose handler is running; the op that it
        # proposes has one effect only.
        self.guard: tuple[bytes, bytes] | None = None
        self._operation_watches: dict[str, list[Completion]] = {}
        self.mirror: Mirror = NoMirror()
        pipeline.on_applied.append(self._check_operations)

    # ---- writes ----

    def enqueue(self, queue: str, values: tuple[Any, ...], completion: Completion) -> None:
        """Propose one job; `values` are those of the Enqueue layout after the id."""
        payload = encode_fields(ops.ENQUEUE.layout, (self._ids.new(self.clock.stamp()), *values))
        self._propose(ops.ENQUEUE, payload, completion)
        self.pipeline.expect(queue, 1)

    def enqueue_fast(self, fast: FastEnqueue, completion: Completion) -> None:
        """Propose the job of the plain enqueue that was just recognised; not under a guard."""
        pipeline = self.pipeline
        if pipeline.begins_entry():  # the ids of one entry can share a time
            self._stamp_ns = self.clock.stamp()
        payload = fast.encode(self._ids.new(self._stamp_ns))
        pipeline.submit(_ENQUEUE, payload, completion)
        pipeline.expect(fast.queue, 1)

    def enqueue_batch(
        self, queues: list[str], jobs: list[tuple[Any, ...]], batch: bytes, completion: Completion
    ) -> None:
        """Propose many jobs in one op, and the batch they make: all are taken or none."""
        stamp_ns = self.clock.stamp()
        payloads = [
            encode_fields(ops.ENQUEUE.layout, (self._ids.new(stamp_ns), *values)) for values in jobs
        ]
        self.enqueue_payloads(queues, payloads, batch, completion)

    def enqueue_payloads(
        self, queues: list[str], payloads: list[bytes], batch: bytes, completion: Completion
    ) -> None:
        """The same with jobs that are Enqueue ops already."""
        payload = encode_fields(ops.ENQUEUE_BATCH.layout, (payloads, batch))
        self.enqueue_encoded(list(Counter(queues).items()), payload, completion)

    def enqueue_encoded(
        self, counts: list[tuple[str, int]], payload: bytes, completion: Completion
    ) -> None:
        """The same with a whole EnqueueBatch op, and how many jobs it has for which queues."""
        self._propose(ops.ENQUEUE_BATCH, payload, completion)
        for queue, count in counts:
            self.pipeline.expect(queue, count)

    def new_job_id(self, stamp_ns: int) -> str:
        """An id for a job that is about to be made, at a time of the clock."""
        return self._ids.new(stamp_ns)

    def new_job_ids(self, stamp_ns: int, count: int) -> list[str]:
        """So many of them."""
        return [self._ids.new(stamp_ns) for _ in range(count)]

    def new_schedule_id(self) -> str:
        """An id for a schedule that is about to be made."""
        return self._new_id(SCHEDULE_PREFIX)

    def new_batch_id(self) -> str:
        """An id for a batch that is about to be made."""
        return self._new_id(BATCH_PREFIX)

    def new_chain_id(self) -> str:
        """An id for a chain that is about to begin."""
        return self._new_id(CHAIN_PREFIX)

    def _new_id(self, prefix: str) -> str:
        return prefix + self._ids.new(self.clock.stamp()).removeprefix(PREFIX)

    def new_operation_id(self) -> str:
        """An id for a task on many jobs."""
        return BULK_PREFIX + self._ids.new(self.clock.stamp()).removeprefix(PREFIX)

    def act(self, action: str, job_id: str, arguments: bytes, completion: Completion) -> None:
        """Propose an action on one job; the result is a list with its word or error."""
        values = ("", [job_id], False, ACTIONS.index(action), arguments, False)
        self.submit(ops.BULK_ACTION, values, completion)

    def watch_operation(self, operation_id: str, completion: Completion) -> None:
        """Call the slot with the task when it is done."""
        self._operation_watches.setdefault(operation_id, []).append(completion)

    def _check_operations(self) -> None:
        for operation_id in list(self._operation_watches):
            operation = self.machine.operation(operation_id)
            if operation is None or operation.finished_ns:
                for callback, argument in self._operation_watches.pop(operation_id):
                    callback(argument, operation)

    def run_schedule(self, schedule_id: str, completion: Completion) -> None:
        """Propose a job of a schedule by hand."""
        self.submit(ops.RUN_SCHEDULE, (schedule_id, self._ids.new(self.clock.stamp())), completion)

    def submit(self, op: ops.Op, values: tuple[Any, ...], completion: Completion | None) -> None:
        """Propose any other op from the values of its layout."""
        self._propose(op, encode_fields(op.layout, values), completion)

    def submit_encoded(self, op: ops.Op, payload: bytes, completion: Completion | None) -> None:
        """The same with an op that is encoded already."""
        self._propose(op, payload, completion)

    def _propose(self, op: ops.Op, payload: bytes, completion: Completion | None) -> None:
        if self.guard is None:
            self.pipeline.submit(op, payload, completion)
            return
        if not op.takes_key:
            raise ValidationError("this request takes no Idempotency-Key")
        key, fingerprint = self.guard
        self.guard = None
        kept_ns = self.config.idempotency_retention_ns
        entries = self.config.idempotency_max_entries
        values = (key, fingerprint, kept_ns, entries, op.number, payload)
        payload = encode_fields(ops.IDEMPOTENT.layout, values)
        self.pipeline.submit(op, payload, completion, ops.IDEMPOTENT.number)

    def fetch(
        self,
        queues: list[str],
        worker_id: str,
        payload: bytes,
        batch: bool,
        deadline_ns: int,
        request: Any,
        answer: Callable[[Wait, Any], None],
    ) -> Wait:
        """Wait for jobs; `payload` is that of the Fetch, or with `batch` the FetchBatch op, and a
        deadline of 0 means not to wait."""
        if self.guard is not None:
            raise ValidationError("a fetch takes no Idempotency-Key: each one gets other jobs")
        wait = Wait(queues, worker_id, payload, batch, deadline_ns, request, answer)
        self.pipeline.fetch(wait)
        return wait

    # ---- reads ----

    def job(self, job_id: str) -> Job:
        """A job of the applied state, or NotFound."""
        job = self.machine.job(job_id)
        if job is None:
            raise NotFound(f"job {shown(job_id)} not found")
        return job

    def may_end(self, job_id: str) -> bool:
        """Whether the job exists and has not ended."""
        job = self.machine.job(job_id)
        return job is not None and not ENDED[job.state]

    def batch(self, batch_id: str) -> Batch:
        """A batch of the applied state, or NotFound."""
        batch = self.machine.batch(batch_id)
        if batch is None:
            raise NotFound(f"batch {shown(batch_id)} not found")
        return batch

    def queue(self, name: str) -> Queue:
        """A queue that exists, or NotFound."""
        queue = self.machine.queue(name)
        if queue is None:
            raise NotFound(f"queue {shown(name)} not found")
        return queue

    def operation(self, operation_id: str) -> BulkOperation:
        """A task on many jobs, or NotFound."""
        operation = self.machine.operation(operation_id)
        if operation is None:
            raise NotFound(f"bulk operation {shown(operation_id)} not found")
        return operation

    def schedule(self, key: str) -> Schedule:
        """A schedule by id or name, or NotFound."""
        schedule = self.machine.schedule(key)
        if schedule is None:
            raise NotFound(f"schedule {shown(key)} not found")
        return schedule

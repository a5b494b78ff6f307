"""The service: the only door through which the protocols reach the pipeline and the state.

A protocol turns its input into the values of an op (`corvo.engine.commands`) and submits them on
behalf of a caller. The service makes ids, wraps the op of a request that must take effect
once, parks fetches and waits for results, and reads the applied state. A completion is a callback
and its argument; it is called with the argument and the result of the op, or a CorvoError.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from corvo import ops
from corvo._fast.codec.fast_json import FastEnqueue
from corvo._fast.codec.layouts import encode_fields
from corvo.config import Config
from corvo.engine.caller import Caller
from corvo.engine.feed import Feed
from corvo.engine.parked import Wait
from corvo.engine.pipeline import Completion, Pipeline
from corvo.engine.reads import Reads
from corvo.engine.results import ResultWait
from corvo.errors import MirrorUnavailable, NotFound, ValidationError
from corvo.fsm.machine import Machine
from corvo.limits import MS_NS
from corvo.model import ACTIONS, ENDED, Batch, BulkOperation, Job, Queue, Schedule
from corvo.platform.clock import Clock
from corvo.platform.echoes import shown
from corvo.platform.ids import (
    BATCH_PREFIX,
    BULK_PREFIX,
    CHAIN_PREFIX,
    PREFIX,
    SCHEDULE_PREFIX,
    JobIds,
)

_ENQUEUE = ops.ENQUEUE
_FLUSH_AGAIN_NS = 20 * MS_NS


class Mirror(Protocol):
    """The search mirror: it answers queries that the applied state has no index for."""

    def ask(
        self, method: str, arguments: dict[str, Any], wait_s: float, completion: Completion
    ) -> None:
        """Send a query; the completion gets the result or a CorvoError. Raises MirrorUnavailable or
        Overloaded."""


class NoMirror:
    """A server without a mirror."""

    def ask(
        self, method: str, arguments: dict[str, Any], wait_s: float, completion: Completion
    ) -> None:
        """Refuse the query."""
        raise MirrorUnavailable("this server runs without its mirror (--no-mirror)")


class Service:
    """The commands and reads of the server, independent of the protocol they arrive by."""

    def __init__(
        self, config: Config, clock: Clock, machine: Machine, pipeline: Pipeline, ids: JobIds
    ) -> None:
        self.config = config
        self.clock = clock
        self.reads: Reads = machine
        self._pipeline = pipeline
        self._ids = ids
        self._stamp_ns = 0  # of the ids of the entry that is being filled
        self._flushed_ns = 0  # last flush for a read of the mirror
        self._operation_watches: dict[str, list[Completion]] = {}
        self.mirror: Mirror = NoMirror()
        pipeline.on_applied.append(self._check_operations)

    # ---- enqueues ----

    def enqueue(
        self, caller: Caller, queue: str, values: tuple[Any, ...], completion: Completion
    ) -> None:
        """Submit one job; `values` are those of the Enqueue layout after the id."""
        payload = encode_fields(ops.ENQUEUE.layout, (self._ids.new(self.clock.stamp()), *values))
        self._submit(caller, ops.ENQUEUE, payload, completion)
        self._pipeline.expect(queue, 1)

    def enqueue_fast(self, _caller: Caller, fast: FastEnqueue, completion: Completion) -> None:
        """Submit the job that the fast path just scanned. The caller has no idempotency key."""
        pipeline = self._pipeline
        if pipeline.begins_entry():  # the ids of one entry can share a time
            self._stamp_ns = self.clock.stamp()
        payload = fast.encode(self._ids.new(self._stamp_ns))
        pipeline.submit(_ENQUEUE, payload, completion)
        pipeline.expect(fast.queue, 1)

    def enqueue_batch(
        self,
        caller: Caller,
        queues: list[str],
        jobs: list[tuple[Any, ...]],
        batch: bytes,
        completion: Completion,
    ) -> None:
        """Submit many jobs in one op, and the batch they make: all are taken or none. `queues`
        names the queue of each job."""
        stamp_ns = self.clock.stamp()
        payloads = [
            encode_fields(ops.ENQUEUE.layout, (self._ids.new(stamp_ns), *values)) for values in jobs
        ]
        self.enqueue_payloads(caller, queues, payloads, batch, completion)

    def enqueue_payloads(
        self,
        caller: Caller,
        queues: list[str],
        payloads: list[bytes],
        batch: bytes,
        completion: Completion,
    ) -> None:
        """Submit many jobs that are encoded Enqueue ops: all are taken or none. `queues` names the
        queue of each job."""
        payload = encode_fields(ops.ENQUEUE_BATCH.layout, (payloads, batch))
        self.enqueue_encoded(caller, list(Counter(queues).items()), payload, completion)

    def enqueue_encoded(
        self, caller: Caller, counts: list[tuple[str, int]], payload: bytes, completion: Completion
    ) -> None:
        """Submit an encoded EnqueueBatch op; `counts` are its jobs by queue."""
        self._submit(caller, ops.ENQUEUE_BATCH, payload, completion)
        for queue, count in counts:
            self._pipeline.expect(queue, count)

    # ---- ids ----

    def new_job_id(self, stamp_ns: int) -> str:
        """An id for a new job, made at this time of the clock."""
        return self._ids.new(stamp_ns)

    def new_job_ids(self, stamp_ns: int, count: int) -> list[str]:
        """Ids for this number of new jobs, made at this time of the clock."""
        return [self._ids.new(stamp_ns) for _ in range(count)]

    def new_schedule_id(self) -> str:
        """An id for a new schedule."""
        return self._new_id(SCHEDULE_PREFIX)

    def new_batch_id(self) -> str:
        """An id for a new batch."""
        return self._new_id(BATCH_PREFIX)

    def new_chain_id(self) -> str:
        """An id for a new chain."""
        return self._new_id(CHAIN_PREFIX)

    def new_operation_id(self) -> str:
        """An id for a new bulk operation."""
        return self._new_id(BULK_PREFIX)

    def _new_id(self, prefix: str) -> str:
        return prefix + self._ids.new(self.clock.stamp()).removeprefix(PREFIX)

    # ---- other ops ----

    def submit(
        self, caller: Caller, op: ops.Op, values: tuple[Any, ...], completion: Completion | None
    ) -> None:
        """Submit an op given the values of its layout."""
        self._submit(caller, op, encode_fields(op.layout, values), completion)

    def submit_encoded(
        self, caller: Caller, op: ops.Op, payload: bytes, completion: Completion | None
    ) -> None:
        """Submit an op that is encoded."""
        self._submit(caller, op, payload, completion)

    def _submit(
        self, caller: Caller, op: ops.Op, payload: bytes, completion: Completion | None
    ) -> None:
        if caller.idempotency is None:
            self._pipeline.submit(op, payload, completion)
            return
        if not op.takes_key:
            raise ValidationError("this request takes no Idempotency-Key")
        key, fingerprint = caller.idempotency
        kept_ns = self.config.idempotency_retention_ns
        entries = self.config.idempotency_max_entries
        values = (key, fingerprint, kept_ns, entries, op.number, payload)
        payload = encode_fields(ops.IDEMPOTENT.layout, values)
        self._pipeline.submit(op, payload, completion, ops.IDEMPOTENT.number)

    def act(
        self, caller: Caller, action: str, job_id: str, arguments: bytes, completion: Completion
    ) -> None:
        """Submit an action on one job; the result is a list with its word or error."""
        values = ("", [job_id], False, ACTIONS.index(action), arguments, False)
        self.submit(caller, ops.BULK_ACTION, values, completion)

    def run_schedule(self, caller: Caller, schedule_id: str, completion: Completion) -> None:
        """Submit a job of a schedule outside its times."""
        values = schedule_id, self._ids.new(self.clock.stamp())
        self.submit(caller, ops.RUN_SCHEDULE, values, completion)

    def snapshot(self) -> int:
        """Write the state of this node to its state store and trim the log; the index of both."""
        return self._pipeline.flusher.snapshot()

    # ---- waiting ----

    def fetch(
        self,
        caller: Caller,
        queues: list[str],
        worker_id: str,
        payload: bytes,
        batch: bool,
        deadline_ns: int,
        request: Any,
        answer: Callable[[Wait, Any], None],
    ) -> Wait:
        """Wait for jobs; `payload` is that of the Fetch op, or with `batch` of the FetchBatch op. A
        deadline of 0 means not to wait."""
        if caller.idempotency is not None:
            raise ValidationError("a fetch takes no Idempotency-Key: each one gets other jobs")
        wait = Wait(queues, worker_id, payload, batch, deadline_ns, request, answer)
        self._pipeline.fetch(wait)
        return wait

    def abandon(self, wait: Wait) -> None:
        """The client of a fetch is gone: jobs that it did not receive return to their queues."""
        self._pipeline.abandon(wait)

    def waiting_fetches(self, queue: str) -> int:
        """Fetches that wait for jobs of a queue."""
        return self._pipeline.fetches.waiting.in_queue(queue)

    def wait_for_result(self, wait: ResultWait) -> None:
        """Call back when the job is finished or deleted, or at the deadline."""
        self._pipeline.results.park(wait)

    def drop_result_wait(self, wait: ResultWait) -> None:
        """The client that waits for a result is gone."""
        self._pipeline.results.drop(wait)

    def watch_operation(self, operation_id: str, completion: Completion) -> None:
        """Call back with the bulk operation when it has finished."""
        self._operation_watches.setdefault(operation_id, []).append(completion)

    def _check_operations(self) -> None:
        for operation_id in list(self._operation_watches):
            operation = self.reads.operation(operation_id)
            if operation is None or operation.finished_ns:
                for callback, argument in self._operation_watches.pop(operation_id):
                    callback(argument, operation)

    @property
    def feed(self) -> Feed:
        """Subscriptions to the events of applied entries."""
        return self._pipeline.feed

    def later(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back after other requests had their turn; for work in several parts."""
        self._pipeline.later(callback, *args)

    @property
    def draining(self) -> bool:
        """Whether the server is stopping."""
        return self._pipeline.draining

    # ---- reads; see also `reads` ----

    def flushed_index(self, index: int) -> int:
        """The index of the flush that the mirror must have read to know the log up to `index`.
        Flushes if there is none yet, but not for every request."""
        flusher = self._pipeline.flusher
        if index <= flusher.index or index > self.reads.applied_index:
            return index
        if self.reads.write_buffer_records:
            now_ns = self.clock.monotonic_ns()
            if now_ns - self._flushed_ns < _FLUSH_AGAIN_NS:
                return index
            self._flushed_ns = now_ns
            flusher.flush()
        # Entries that changed no document are in no flush.
        return index if self.reads.write_buffer_records else flusher.index

    def job(self, job_id: str) -> Job:
        """A job of the applied state, or NotFound."""
        job = self.reads.job(job_id)
        if job is None:
            raise NotFound(f"job {shown(job_id)} not found")
        return job

    def may_end(self, job_id: str) -> bool:
        """Whether the job exists and is not finished."""
        job = self.reads.job(job_id)
        return job is not None and not ENDED[job.state]

    def batch(self, batch_id: str) -> Batch:
        """A batch of the applied state, or NotFound."""
        batch = self.reads.batch(batch_id)
        if batch is None:
            raise NotFound(f"batch {shown(batch_id)} not found")
        return batch

    def queue(self, name: str) -> Queue:
        """A queue that exists, or NotFound."""
        queue = self.reads.queue(name)
        if queue is None:
            raise NotFound(f"queue {shown(name)} not found")
        return queue

    def operation(self, operation_id: str) -> BulkOperation:
        """A bulk operation, or NotFound."""
        operation = self.reads.operation(operation_id)
        if operation is None:
            raise NotFound(f"bulk operation {shown(operation_id)} not found")
        return operation

    def schedule(self, key: str) -> Schedule:
        """A schedule by id or name, or NotFound."""
        schedule = self.reads.schedule(key)
        if schedule is None:
            raise NotFound(f"schedule {shown(key)} not found")
        return schedule

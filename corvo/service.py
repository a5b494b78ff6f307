"""What the edges call: ops into the pipeline, fetches that wait, and reads of the applied state.

HTTP handlers (and later the RPC service) turn their input into the values of an op's layout with
the help of `corvo.checks`; this module stamps ids, submits, and finds things or says what is
missing.
"""

from collections.abc import Callable
from typing import Any

from corvo import ops
from corvo._fast.codec import encode_fields
from corvo._fast.plain import PlainEnqueue
from corvo.checks import shown
from corvo.clock import Clock
from corvo.config import Config
from corvo.errors import NotFound
from corvo.fsm.machine import Machine
from corvo.ids import PREFIX, SCHEDULE_PREFIX, JobIds
from corvo.model import Job, Queue, Schedule
from corvo.pipeline import Pipeline, Slot
from corvo.waiting import Wait

_ENQUEUE = ops.ENQUEUE


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

    # ---- writes ----

    def enqueue(self, queue: str, values: tuple[Any, ...], slot: Slot) -> None:
        """Propose one job; `values` are those of the Enqueue layout after the id."""
        payload = encode_fields(ops.ENQUEUE.layout, (self._ids.new(self.clock.stamp()), *values))
        self.pipeline.submit(ops.ENQUEUE, payload, slot)
        self.pipeline.expect(queue, 1)

    def enqueue_plain(self, plain: PlainEnqueue, slot: Slot) -> None:
        """Propose the job of the plain enqueue that was just recognised."""
        pipeline = self.pipeline
        if pipeline.begins_entry():  # the ids of one entry can share a time
            self._stamp_ns = self.clock.stamp()
        payload = plain.encode(self._ids.new(self._stamp_ns))
        pipeline.submit(_ENQUEUE, payload, slot)
        pipeline.expect(plain.queue, 1)

    def enqueue_batch(self, queues: list[str], jobs: list[tuple[Any, ...]], slot: Slot) -> None:
        """Propose many jobs in one op: all are taken or none."""
        stamp_ns = self.clock.stamp()
        payloads = [
            encode_fields(ops.ENQUEUE.layout, (self._ids.new(stamp_ns), *values)) for values in jobs
        ]
        payload = encode_fields(ops.ENQUEUE_BATCH.layout, (payloads,))
        self.pipeline.submit(ops.ENQUEUE_BATCH, payload, slot)
        for queue in queues:
            self.pipeline.expect(queue, 1)

    def new_schedule_id(self) -> str:
        """An id for a schedule that is about to be made."""
        return SCHEDULE_PREFIX + self._ids.new(self.clock.stamp()).removeprefix(PREFIX)

    def run_schedule(self, schedule: Schedule, slot: Slot) -> None:
        """Propose a job of a schedule by hand."""
        self.submit(ops.RUN_SCHEDULE, (schedule.id, self._ids.new(self.clock.stamp())), slot)

    def submit(self, op: ops.Op, values: tuple[Any, ...], slot: Slot | None) -> None:
        """Propose any other op from the values of its layout."""
        self.pipeline.submit(op, encode_fields(op.layout, values), slot)

    def fetch(
        self,
        queues: list[str],
        worker_id: str,
        payload: bytes,
        batch: bool,
        wait_ns: int,
        request: Any,
        answer: Callable[[Wait, Any], None],
    ) -> Wait:
        """Wait for jobs; `payload` is that of the Fetch, or with `batch` the FetchBatch op."""
        deadline_ns = self.clock.elapsed_ns() + wait_ns if wait_ns else 0
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

    def queue(self, name: str) -> Queue:
        """A queue that exists, or NotFound."""
        queue = self.machine.queue(name)
        if queue is None:
            raise NotFound(f"queue {shown(name)} not found")
        return queue

    def schedule(self, key: str) -> Schedule:
        """A schedule by id or name, or NotFound."""
        schedule = self.machine.schedule(key)
        if schedule is None:
            raise NotFound(f"schedule {shown(key)} not found")
        return schedule

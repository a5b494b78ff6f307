"""Producers and workers on lifecycle streams; each has one stream and one frame in flight.

A frame of a worker acks the jobs of the previous response and fetches more. In combined mode the
frame also enqueues jobs.
"""

import asyncio
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from corvo._fast.codec import protobuf
from corvo.cli.bench.h2_load import Conversation, Values
from corvo.errors import CorvoError
from corvo.net.rpc.status import TYPES

if TYPE_CHECKING:
    from corvo.cli.bench.load import Load

BACKOFF_MAX_MS = 64
_REQUEST = TYPES["LifecycleStreamRequest"]


class RpcRole:
    """A producer, a worker, or both in the same frames."""

    def __init__(
        self, load: "Load", stream: Conversation, number: int, *, produce: bool, work: bool
    ) -> None:
        plan = load.plan
        queue = plan.queues[number % len(plan.queues)]
        self._load = load
        self._stream = stream
        self._produce = produce
        self._work = work
        self._item: Values = {"queue": queue, "payload_json": plan.payload().decode()}
        self._enqueues = self._encode(enqueues=[self._item] * plan.enqueue_batch)
        worker = f"bench-{number % plan.workers}"
        self._fetch = self._encode(
            queues=[queue], worker_id=worker, hostname="bench", fetch_count=plan.fetch_batch
        )
        self._jobs: list[Values] = []  # jobs that the next frame acks
        self._fetched_ns = 0  # when the frame that fetched them was sent
        self._sent_ns = 0
        self._enqueued = 0
        self._delay_ms = 1

    @staticmethod
    def _encode(**values: Any) -> bytes:
        return protobuf.encode(_REQUEST, values)

    def start(self) -> None:
        """Send the next frame, if there is work.

        Encoded parts of a protobuf message can be concatenated."""
        load = self._load
        if load.over:
            return
        frame = b""
        self._enqueued = load.take(load.plan.enqueue_batch) if self._produce else 0
        if self._enqueued == load.plan.enqueue_batch:
            frame = self._enqueues
        elif self._enqueued:
            frame = self._encode(enqueues=[self._item] * self._enqueued)
        if self._work:
            frame += self._fetch
            if self._jobs:
                frame += self._encode(acks=self._jobs)
        if frame:
            self._send(frame)

    def _send(self, frame: bytes) -> None:
        if not self._load.over:
            self._sent_ns = perf_counter_ns()
            self._stream.send(frame, self._answered)

    def _answered(self, answer: Values) -> None:
        load = self._load
        error = answer.get("error", "")
        now_ns = perf_counter_ns()
        if error.startswith("OVERLOADED"):
            self._refused(answer)
            return
        if error:
            load.abort(CorvoError(error))
            return
        self._delay_ms = 1
        if self._enqueued:
            if not self._work:
                load.record(now_ns - self._sent_ns, self._enqueued)
            load.count_enqueued(self._enqueued)
        if self._work:
            acked, jobs = answer.get("acked", 0), answer.get("jobs", [])
            if acked:
                load.record(now_ns - self._fetched_ns, acked)
                load.count_acked(acked)
            self._jobs, self._fetched_ns = jobs, self._sent_ns
            work_s = load.plan.work_s * len(jobs)
            if work_s:
                asyncio.get_running_loop().call_later(work_s, self.start)
                return
        self.start()

    def _refused(self, answer: Values) -> None:
        """Resend the rejected part of a frame after a delay; a frame can be accepted in part."""
        load = self._load
        load.overloaded += 1
        self._jobs = (self._jobs if not answer.get("acked") else []) + answer.get("jobs", [])
        done = len(answer.get("enqueued_job_ids", []))
        load.unsent += self._enqueued - done
        if done:
            load.count_enqueued(done)
        asyncio.get_running_loop().call_later(self._delay_ms / 1000, self.start)
        self._delay_ms = min(self._delay_ms * 2, BACKOFF_MAX_MS)

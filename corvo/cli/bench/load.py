"""The load generator of `corvo bench`: connections, producers and workers.

Every producer and worker owns one connection with one request in flight, and is a state machine
driven by the responses: there is no task, future or queue per request, and constant requests are
encoded once. Therefore the generator costs several times less CPU than the server.

This module uses httptools to parse responses; the only other user, `corvo._fast.http.http1`, parses
requests.
"""

import asyncio
import gc
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from time import perf_counter_ns
from typing import Any, TypeVar, cast

import httptools
import msgspec
import uvloop

from corvo.cli.api import Unreachable, refusal
from corvo.cli.bench.h2_load import Conversation, Exchange, Link
from corvo.cli.bench.rpc_load import RpcRole
from corvo.errors import CorvoError
from corvo.limits import SECOND_NS

BACKOFF_MAX_MS = 64
STALL_NS = 30 * SECOND_NS
FETCH_WAIT_S = 10
TICK_S = 0.001
PROGRESS_S = 0.1
# Roles that share one HTTP/2 connection.
H2_STREAMS = 32
RPC_STREAMS = 200

Answered = Callable[[int, bytes], None]
Made = TypeVar("Made", "Connection", Link)


class Plan(msgspec.Struct, frozen=True):
    """The parameters of a phase: target, number of jobs, concurrency and batch sizes."""

    host: str
    port: int
    prefix: str
    queues: tuple[str, ...]
    jobs: int
    concurrency: int
    workers: int
    enqueue_batch: int
    fetch_batch: int
    ack_batch: int
    work_s: float = 0
    payload_size: int = 2
    rate: float = 0
    protocol: str = "http"

    def post(self, path: str, body: bytes) -> Any:
        """An encoded POST request; for HTTP/2 a tuple of path and body."""
        if self.protocol == "h2":
            return f"{self.prefix}/api/v1/{path}".encode(), body
        return (
            f"POST {self.prefix}/api/v1/{path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def payload(self) -> bytes:
        """The payload of each job."""
        if self.payload_size > 2:
            return b'{"p":"%s"}' % (b"x" * max(self.payload_size - 8, 0))
        return b"{}"

    def enqueue(self, queue: str, count: int) -> Any:
        """A request that enqueues `count` jobs, through /enqueue or /enqueue/batch."""
        job = msgspec.json.encode({"queue": queue, "payload": msgspec.Raw(self.payload())})
        if self.enqueue_batch == 1:
            return self.post("enqueue", job)
        return self.post("enqueue/batch", b'{"jobs":[%s]}' % b",".join([job] * count))

    def enqueue_stamped(self, queue: bytes, stamp_ns: int) -> Any:
        """A request that enqueues one job with its due time in the payload."""
        fill = b"x" * max(self.payload_size - len(b'{"t":,"p":""}') - len(str(stamp_ns)), 0)
        body = b'{"queue":%s,"payload":{"t":%d,"p":"%s"}}' % (queue, stamp_ns, fill)
        return self.post("enqueue", body)

    def fetch(self, worker: int) -> Any:
        """A request that fetches jobs for a worker, from the queue of that worker."""
        body: dict[str, object] = {
            "queues": [self.queues[worker % len(self.queues)]],
            "worker_id": f"bench-{worker}",
            "hostname": "bench",
            "timeout": FETCH_WAIT_S,
        }
        if self.fetch_batch == 1:
            return self.post("fetch", msgspec.json.encode(body))
        return self.post("fetch/batch", msgspec.json.encode({**body, "count": self.fetch_batch}))


class Leased(msgspec.Struct):
    """The fields of a delivered job that an ack needs, under the names of the ack."""

    job_id: str
    lease_token: str


class Stamp(msgspec.Struct):
    """The payload of a job of the latency phase."""

    t: int


class Stamped(Leased):
    """A delivered job of the latency phase."""

    payload: Stamp


class AckedCount(msgspec.Struct):
    """Response to a batch ack."""

    acked: int


class Connection(asyncio.Protocol):
    """A keep-alive connection with at most one request in flight."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._body = b""
        self._answered: Answered | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data

    def send(self, request: bytes, answered: Answered) -> None:
        """Send a request; `answered` gets the status and the body of the response."""
        assert self._transport is not None
        self._answered = answered
        self._transport.write(request)

    def close(self) -> None:
        """Close the connection and drop a pending response."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes of a response."""
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError as e:
            self._load.abort(
                Unreachable(f"the response is not HTTP: {e}", "Is this a Corvo server?")
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: closed; aborts the load if the peer closed it."""
        reason = str(exc) if exc else "closed"
        self._load.abort(
            Unreachable(f"connection lost: {reason}", "See the server's log for the reason.")
        )

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body."""
        self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        """httptools: the response is complete."""
        body, self._body = self._body, b""
        answered, self._answered = self._answered, None
        if answered is None or self._load.over:
            return
        try:
            answered(self._parser.get_status_code(), body)
        except msgspec.DecodeError as e:
            self._load.abort(Unreachable(f"unexpected response: {e}", "Is it an older server?"))


class Load:
    """One measured phase: its counters, its latencies and its end."""

    def __init__(self, plan: Plan, *, produce: bool, work: bool) -> None:
        """`produce` enqueues the jobs of the plan; `work` fetches and acks the same number.

        With both, the latency is that of the work. With a rate in the plan, the producers follow
        the clock instead of the responses, and the latency is the time from due time to delivery.
        """
        self.plan = plan
        self.produce = produce
        self.work = work
        self.unsent = plan.jobs if produce else 0
        self.enqueued = 0
        self.acked = 0
        self.overloaded = 0
        self.latencies_ns = array("q")
        self.begun_ns = 0
        self.ended_ns = 0
        self.over = False
        self.stalled = False
        self._failure: CorvoError | None = None
        self._connections: list[Connection | Link] = []

    @property
    def completed(self) -> int:
        """Number of jobs that completed the phase."""
        return self.acked if self.work else self.enqueued

    @property
    def elapsed_ns(self) -> int:
        """The duration of the phase."""
        return self.ended_ns - self.begun_ns

    def run(self, progress: Callable[[int], None]) -> None:
        """Run the phase; `progress` is called regularly with the number of completed jobs."""
        gc.collect()
        gc.freeze()  # present objects never become garbage: keep full collections short
        uvloop.run(self._run(progress))
        if self._failure is not None:
            raise self._failure

    def take(self, count: int) -> int:
        """Reserve up to `count` of the jobs that are still to be enqueued."""
        taken = min(count, self.unsent)
        self.unsent -= taken
        return taken

    def count_enqueued(self, count: int) -> None:
        """Count enqueued jobs."""
        self.enqueued += count
        self._finish_if_done()

    def count_acked(self, count: int) -> None:
        """Count acked jobs."""
        self.acked += count
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        # A job can be acked before the response to its enqueue arrives.
        jobs = self.plan.jobs
        if (not self.produce or self.enqueued >= jobs) and (not self.work or self.acked >= jobs):
            self._finish()

    def record(self, latency_ns: int, count: int) -> None:
        """Record a latency for `count` jobs."""
        if count == 1:
            self.latencies_ns.append(latency_ns)
        else:
            self.latencies_ns.extend([latency_ns] * count)

    def abort(self, failure: CorvoError) -> None:
        """End the phase with a failure; does nothing if the phase is already over."""
        if not self.over:
            self._failure = failure
            self._finish()

    def _finish(self) -> None:
        if not self.over:
            self.over = True
            self.ended_ns = perf_counter_ns()
            self._done.set()

    async def _run(self, progress: Callable[[int], None]) -> None:
        self._done = asyncio.Event()
        roles = await self._cast()
        self.begun_ns = perf_counter_ns()
        for role in roles:
            if not self.over:
                role.start()
        await self._watch(progress)
        self.over = True
        for connection in self._connections:
            connection.close()

    async def _cast(self) -> "Sequence[Producer | Pacer | Worker | RpcRole]":
        roles: list[Producer | Pacer | Worker] = []
        plan = self.plan
        if plan.protocol == "rpc":
            return await self._cast_streams()
        if self.produce and plan.rate:
            roles.append(Pacer(self, await self._connect(plan.concurrency)))
        elif self.produce:
            connections = await self._connect(plan.concurrency)
            roles += [Producer(self, c, number) for number, c in enumerate(connections)]
        if self.work:
            connections = await self._connect(max(plan.concurrency, plan.workers))
            roles += [Worker(self, c, n % plan.workers) for n, c in enumerate(connections)]
        return roles

    async def _cast_streams(self) -> "Sequence[RpcRole]":
        plan = self.plan
        links = await self._link(plan.concurrency, RPC_STREAMS)
        return [
            RpcRole(
                self,
                Conversation(links[number // RPC_STREAMS]),
                number,
                produce=self.produce,
                work=self.work,
            )
            for number in range(plan.concurrency)
        ]

    async def _connect(self, count: int) -> "Sequence[Connection | Exchange]":
        if self.plan.protocol == "h2":
            links = await self._link(count, H2_STREAMS)
            return [Exchange(links[number // H2_STREAMS]) for number in range(count)]
        return [await self._open(lambda: Connection(self)) for _ in range(count)]

    async def _link(self, count: int, streams: int) -> list[Link]:
        """Open HTTP/2 connections for `count` roles, with `streams` roles per connection."""
        authority = f"{self.plan.host}:{self.plan.port}".encode()
        number = -(-count // streams)
        return [await self._open(lambda: Link(self, authority)) for _ in range(number)]

    async def _open(self, make: Callable[[], Made]) -> Made:
        loop = asyncio.get_running_loop()
        try:
            _, made = await loop.create_connection(make, self.plan.host, self.plan.port)
        except OSError as e:
            open_ones = f"{len(self._connections)} connections were open."
            raise Unreachable(f"cannot connect: {e.strerror or e}", open_ones) from e
        self._connections.append(made)
        return made

    async def _watch(self, progress: Callable[[int], None]) -> None:
        """Wait for the end of the phase; abort it after STALL_NS without progress."""
        seen, seen_ns = 0, perf_counter_ns()
        while not self.over:
            try:
                await asyncio.wait_for(self._done.wait(), PROGRESS_S)
            except TimeoutError:
                moved = self.enqueued + self.acked
                if moved != seen:
                    seen, seen_ns = moved, perf_counter_ns()
                elif perf_counter_ns() - seen_ns > STALL_NS:
                    self.stalled = True
                    self._finish()
            progress(self.completed)


class Backoff:
    """Backoff of a client after a 429 response: 1, 2, 4 ... 64 ms."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._delay_ms = 1

    def reset(self) -> None:
        """Reset the delay after an accepted request."""
        self._delay_ms = 1

    def refused(self, status: int, body: bytes, again: Callable[..., Any], *args: Any) -> None:
        """Call `again` after a delay for a 429; any other error aborts the load."""
        if status != 429:
            self._load.abort(refusal(status, "", body))
            return
        self._load.overloaded += 1
        asyncio.get_running_loop().call_later(self._delay_ms / 1000, again, *args)
        self._delay_ms = min(self._delay_ms * 2, BACKOFF_MAX_MS)


class Producer:
    """Closed-loop producer: enqueues the next batch after the previous response."""

    def __init__(self, load: Load, connection: Any, number: int) -> None:
        self._load = load
        self._connection = connection
        self._backoff = Backoff(load)
        self._batch = load.plan.enqueue_batch
        # Every producer cycles through the queues with another start, so that the load is even.
        whole = [load.plan.enqueue(queue, self._batch) for queue in load.plan.queues]
        self._requests = islice(cycle(whole), number % len(whole), None)
        self._request: Any = None
        self._count = 0
        self._sent_ns = 0

    def start(self) -> None:
        """Enqueue the next batch, if there is one."""
        self._count = self._load.take(self._batch)
        if self._count:
            self._request = next(self._requests)
            if self._count < self._batch:
                self._request = self._load.plan.enqueue(self._load.plan.queues[0], self._count)
            self._send()

    def _send(self) -> None:
        if self._load.over:
            return
        self._sent_ns = perf_counter_ns()
        self._connection.send(self._request, self._answered)

    def _answered(self, status: int, body: bytes) -> None:
        if status >= 300:
            self._backoff.refused(status, body, self._send)
            return
        self._load.record(perf_counter_ns() - self._sent_ns, self._count)
        self._backoff.reset()
        self._load.count_enqueued(self._count)
        self.start()


class Pacer:
    """Open-loop producer: enqueues single jobs at the planned rate, over any free connection.

    A job carries its due time even if it is sent late, so that the latency includes the delay that
    a slow server causes. Event-loop timers have millisecond resolution; at higher rates the
    producer spins instead.
    """

    def __init__(self, load: Load, connections: Sequence[Any]) -> None:
        self._load = load
        self._free = list(connections)
        self._backoffs = {id(c): Backoff(load) for c in connections}
        self._waiting: deque[int] = deque()
        self._queues = cycle([msgspec.json.encode(queue) for queue in load.plan.queues])
        self._sent = 0

    def start(self) -> None:
        """Send the due jobs, then schedule the next call."""
        load = self._load
        if load.over:
            return
        now_ns = perf_counter_ns()
        while load.unsent and self._next_due_ns() <= now_ns:
            self._waiting.append(self._next_due_ns())
            self._sent += load.take(1)
        while self._waiting and self._free:
            self._send(self._free.pop(), self._next_request())
        loop = asyncio.get_running_loop()
        if load.unsent and load.plan.rate * TICK_S >= 1:
            loop.call_soon(self.start)
        elif load.unsent:
            loop.call_later((self._next_due_ns() - now_ns) / SECOND_NS, self.start)

    def _next_due_ns(self) -> int:
        return self._load.begun_ns + int(self._sent * SECOND_NS / self._load.plan.rate)

    def _next_request(self) -> Any:
        return self._load.plan.enqueue_stamped(next(self._queues), self._waiting.popleft())

    def _send(self, connection: Any, request: Any) -> None:
        if self._load.over:
            return

        def answered(status: int, body: bytes) -> None:
            backoff = self._backoffs[id(connection)]
            if status >= 300:
                backoff.refused(status, body, self._send, connection, request)
                return
            backoff.reset()
            self._load.count_enqueued(1)
            if self._waiting:
                self._send(connection, self._next_request())
            else:
                self._free.append(connection)

        connection.send(request, answered)


class Worker:
    """Fetches a batch of jobs, simulates work, acks the jobs in batches, and fetches again."""

    def __init__(self, load: Load, connection: Any, number: int) -> None:
        self._load = load
        self._connection = connection
        self._backoff = Backoff(load)
        self._request = load.plan.fetch(number)
        self._stamped = load.plan.rate > 0
        job: Any = Stamped if self._stamped else Leased
        self._single = load.plan.fetch_batch == 1
        answer = job if self._single else msgspec.defstruct("Jobs", [("jobs", list[job])])
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(answer)
        self._jobs: list[Any] = []
        self._sent_ns = 0

    def start(self) -> None:
        """Send a fetch request."""
        if self._load.over:
            return
        self._sent_ns = perf_counter_ns()
        self._connection.send(self._request, self._fetched)

    def _fetched(self, status: int, body: bytes) -> None:
        if status >= 300:
            self._backoff.refused(status, body, self.start)
            return
        self._backoff.reset()
        jobs = self._decode(body)
        if self._stamped:
            now_ns = perf_counter_ns()
            self._load.latencies_ns.extend([now_ns - job.payload.t for job in jobs])
        self._jobs = jobs
        work_s = self._load.plan.work_s * len(jobs)
        if work_s:
            asyncio.get_running_loop().call_later(work_s, self._ack)
        else:
            self._ack()

    def _decode(self, body: bytes) -> list[Any]:
        if self._single:
            return [self._decoder.decode(body)] if body else []
        jobs: list[Any] = self._decoder.decode(body).jobs
        return jobs

    def _ack(self) -> None:
        if self._load.over:
            return
        if not self._jobs:
            self.start()
            return
        plan = self._load.plan
        batch = self._jobs[: plan.ack_batch]
        if plan.ack_batch == 1:
            token = {"lease_token": batch[0].lease_token}
            request = plan.post(f"ack/{batch[0].job_id}", msgspec.json.encode(token))
        else:
            acks = [{"job_id": job.job_id, "lease_token": job.lease_token} for job in batch]
            request = plan.post("ack/batch", msgspec.json.encode({"acks": acks}))
        self._connection.send(request, self._acked)

    def _acked(self, status: int, body: bytes) -> None:
        # A lost lease does not fail the run: the job is delivered again and counted then.
        if status >= 300 and status != 409:
            self._backoff.refused(status, body, self._ack)
            return
        self._backoff.reset()
        batch = self._jobs[: self._load.plan.ack_batch]
        del self._jobs[: self._load.plan.ack_batch]
        if self._load.plan.ack_batch == 1:
            count = 0 if status == 409 else 1
        else:
            count = msgspec.json.decode(body, type=AckedCount).acked
        assert count <= len(batch)
        if count and not self._stamped:
            self._load.record(perf_counter_ns() - self._sent_ns, count)
        self._load.count_acked(count)
        self._ack()

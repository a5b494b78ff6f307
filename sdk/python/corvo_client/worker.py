"""The worker: fetches jobs, runs their handlers, and reports how they ended.

Everything that concerns the server happens on one thread with an event loop of its own: long polls,
heartbeats, reports. Handlers run elsewhere (`corvo_client.execution`), so that one that blocks
never costs a lease.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

from corvo_client import core
from corvo_client.aio import AsyncClient
from corvo_client.api import Api
from corvo_client.core import ClientOptions
from corvo_client.documents import Delivery
from corvo_client.errors import (
    CorvoError,
    ForbiddenError,
    NotFoundError,
    PayloadTooLargeError,
    UnauthorizedError,
    Unreachable,
    ValidationError,
)
from corvo_client.execution import Executors, run_sync
from corvo_client.health import serve_health
from corvo_client.leases import DrainedLease, Lease
from corvo_client.outcomes import Report, deliver
from corvo_client.tasks import App

_log = logging.getLogger("corvo_client.worker")

_FETCH_MAX = 512
_ACK_MAX = 512
_SEEN_MAX = 10_000
_BEAT_MAX = 500  # jobs of one heartbeat
_BEAT_GAP_S = 0.1  # between heartbeats that carry values
_LOGS_S = 1.0
_PAUSE_MAX_S = 30.0
_DRAIN_LEASE_S = 3600
_LAST_REPORTS_S = 10.0  # for the reports of jobs that were released at the end
# Errors that another attempt does not mend.
_FATAL = (UnauthorizedError, ForbiddenError, NotFoundError, ValidationError)


class Worker:
    """Runs the handlers of an app.

    queues            those of the handlers by default; CORVO_QUEUES with commas between them
    concurrency       jobs at a time (10, or CORVO_CONCURRENCY)
    lease_duration    seconds until the server gives a job to another worker if this one is silent
    poll_timeout      seconds that a fetch waits for a job
    shutdown_timeout  seconds for running jobs after `stop`; what is left is released
    start_timeout     seconds until a server must have answered
    cancel_grace      seconds until a cancelled coroutine or process is stopped
    health            host:port of an HTTP server for GET /healthz
    """

    def __init__(
        self,
        app: App,
        *,
        queues: Iterable[str] | None = None,
        concurrency: int | None = None,
        worker_id: str | None = None,
        hostname: str | None = None,
        lease_duration: float = 60,
        heartbeat_interval: float | None = None,
        poll_timeout: float = 30,
        shutdown_timeout: float = 30,
        start_timeout: float = 30,
        cancel_grace: float = 5,
        health: str | None = None,
        handle_signals: bool = True,
    ) -> None:
        self.app = app
        named = [q for q in os.environ.get("CORVO_QUEUES", "").split(",") if q]
        self.queues = list(queues) if queues is not None else named or list(app.queues())
        if not self.queues:
            raise ValueError("there is no queue: declare a task, or give the worker queues")
        for queue in self.queues:
            if not any(key[0] in (queue, "*") for key in app.handlers):
                raise ValueError(f"no handler is registered for queue {queue!r}")
        self.concurrency = concurrency or int(os.environ.get("CORVO_CONCURRENCY", "10"))
        self.hostname = hostname or socket.gethostname()
        self._own_id = worker_id is None  # no other process has it
        self.worker_id = worker_id or f"{self.hostname}-{os.getpid()}-{secrets.token_hex(4)}"
        self.lease_duration = lease_duration
        self.heartbeat_interval = heartbeat_interval or lease_duration / 3
        self.poll_timeout = poll_timeout
        self.shutdown_timeout = shutdown_timeout
        self.start_timeout = start_timeout
        self.cancel_grace = cancel_grace
        self.handle_signals = handle_signals
        self._health = health
        self._executors = Executors(app.middlewares, app.exc_to_fail)
        self._leases: dict[str, Lease] = {}  # by token
        self._seen: dict[str, None] = {}  # the newest jobs that arrived
        self._stopping = threading.Event()
        self._hurried = False
        self._finished = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self._answered_at = time.monotonic()
        self._answered = False
        self._polling = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._acks: list[tuple[Delivery, Report, asyncio.Future[str]]] = []
        self._acking = False

    # ---- life ----

    def start(self) -> None:
        """Work until `stop` is called or the process gets SIGTERM or SIGINT; return when the
        running jobs have ended or were released. Raises the error of a server that refuses this
        worker, or that is not there."""
        signals: dict[int, Any] = {}
        if self.handle_signals and threading.current_thread() is threading.main_thread():
            for number in (int(signal.SIGTERM), int(signal.SIGINT)):
                signals[number] = signal.signal(number, self._on_signal)
        self._answered_at = time.monotonic()
        thread = threading.Thread(target=self._run, name="corvo-io", daemon=True)
        thread.start()
        try:
            self._finished.wait()
        finally:
            for number, earlier in signals.items():
                signal.signal(number, earlier)
        thread.join()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin to stop, from any thread: no more fetches, and a time for the running jobs."""
        self._stopping.set()
        self._call(self._on_stop)

    def _on_signal(self, *_: object) -> None:
        """Stop; a second signal does not wait for the running jobs."""
        self._hurried = self._stopping.is_set()
        self.stop()

    def health(self) -> dict[str, Any]:
        """Return `status` (ok, starting, deaf, stopping), the running jobs, and how long ago the
        server last answered. A worker is deaf when a poll has had no answer for too long."""
        silent_s = time.monotonic() - self._answered_at
        status = "ok" if self._answered else "starting"
        if self._polling and silent_s > self._deaf_after_s:
            status = "deaf"
        if self._stopping.is_set():
            status = "stopping"
        return {
            "status": status,
            "active": len(self._leases),
            "last_answer_seconds": round(silent_s, 1),
            "worker_id": self.worker_id,
        }

    @property
    def _deaf_after_s(self) -> float:
        return 2 * self.poll_timeout + core.WAIT_MARGIN_S

    def drain(self, *, limit: int | None = None, wait: float = 0.2) -> int:
        """Work in this thread until no job becomes ready within `wait` seconds, or `limit` jobs
        are done; return their number. For tests: there are no heartbeats, and leases are long."""
        client = self.app.client
        done = 0
        while limit is None or done < limit:
            jobs = client.fetch_batch(
                self.queues,
                count=1,
                timeout=wait,
                worker_id=self.worker_id,
                hostname=self.hostname,
                lease_duration=_DRAIN_LEASE_S,
            )
            if not jobs:
                break
            lease = DrainedLease(jobs[0], client)
            handler = self.app.find(lease.job)
            report = _no_handler(lease.job)
            if handler is not None:
                report = run_sync(handler, lease.ctx, self.app.middlewares, self.app.exc_to_fail)
            if lease.dirty:
                lease.send()
            while lines := lease.take_lines():
                client.append_logs(lease.job.job_id, lines, lease_token=lease.job.lease_token)
            client.run(deliver(client, lease.job, report))
            done += 1
        return done

    # ---- the thread of the I/O ----

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self._failure = error
        finally:
            self._executors.close()
            self._finished.set()

    def _call(self, function: Any, *args: Any) -> None:
        """Call a function on the thread of the I/O, if it still runs."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *args)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this on the loop, without waiting for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()  # a slot is free
        self._urgent = asyncio.Event()  # a heartbeat has something to carry
        options = dict(self.app.options)
        quick = {**options, "retry_timeout": 0, "timeout": max(1.0, self.lease_duration / 3)}
        slow = {**options, "retry_timeout": self.lease_duration}
        self._calls = self._client(quick)
        self._reports = self._client(slow)
        server = None
        if self._health is not None:
            server = await serve_health(self._health, self.health)
        beats = asyncio.create_task(self._beat_on())
        logs = asyncio.create_task(self._send_logs_on())
        self._fetching = asyncio.create_task(self._fetch_on())
        if self._stopping.is_set():
            self._on_stop()
        try:
            ended, _ = await asyncio.wait(
                {self._fetching, beats, logs}, return_when=asyncio.FIRST_COMPLETED
            )
            self._fetching.cancel()
            await self._finish_jobs()
            for task in ended:
                if not task.cancelled():
                    task.result()  # raises: none of them ends by itself
            await self._release_strays()
        finally:
            for task in (beats, logs):
                task.cancel()
            await asyncio.gather(beats, logs, return_exceptions=True)
            if server is not None:
                server.close()
            await self._calls.close()
            await self._reports.close()

    def _client(self, options: dict[str, Any]) -> AsyncClient:
        return self.app.new_async_client(**ClientOptions(**options))  # type: ignore[typeddict-item]

    # ---- fetching ----

    async def _fetch_on(self) -> None:
        failures, unsure = 0, False  # unsure whether a lost answer has delivered jobs
        while True:
            while not (free := self.concurrency - len(self._leases)):
                self._changed.clear()
                await self._changed.wait()
            if not self._polling:
                self._answered_at = time.monotonic()
            self._polling = True
            try:
                async with asyncio.timeout(self._start_left()):
                    jobs = await self._calls.fetch_batch(
                        self.queues,
                        count=min(free, _FETCH_MAX),
                        timeout=self.poll_timeout if self._answered else 0,
                        worker_id=self.worker_id,
                        hostname=self.hostname,
                        lease_duration=self.lease_duration,
                    )
            except TimeoutError as error:
                text = f"no server has answered within {self.start_timeout:g} s"
                raise Unreachable(text, code="UNREACHABLE") from error
            except _FATAL:
                raise
            except CorvoError as error:
                failures += 1
                self._check_silence(error)
                await asyncio.sleep(error.retry_after or self._pause(failures))
                unsure = unsure or (isinstance(error, Unreachable) and error.sent)
                continue
            if failures:
                _log.info("the server answers again: %s", self._calls.core.server.url)
            if unsure:
                self._spawn(self._release_strays())
            failures, unsure = 0, False
            self._polling = False
            self._answered = True
            self._answered_at = time.monotonic()
            for job in jobs:
                self._begin(job)

    def _start_left(self) -> float | None:
        """Return how long the first answer may still take, None when it has arrived."""
        silent_s = time.monotonic() - self._answered_at
        return None if self._answered else max(0.1, self.start_timeout - silent_s)

    def _check_silence(self, error: CorvoError) -> None:
        """Log a failed poll, and raise its error if no server has answered since the start."""
        silent_s = time.monotonic() - self._answered_at
        if not self._answered and silent_s > self.start_timeout:
            raise error
        deaf = silent_s > self._deaf_after_s
        _log.log(logging.ERROR if deaf else logging.WARNING, "fetch failed: %s", error)

    def _pause(self, failures: int) -> float:
        """Return how long to wait after failed polls: not at all before the next server is
        tried, then a second, doubling."""
        servers = len(self._calls.core.settings.servers)
        if failures < servers:
            return 0
        pause: float = min(_PAUSE_MAX_S, 2.0 ** min(failures - servers, 5))
        if not self._answered:
            pause = min(pause, 2.0)
        return pause * (0.5 + secrets.randbelow(1000) / 2000)

    def _begin(self, job: Delivery) -> None:
        """Run the handler of a job."""
        now = time.monotonic()
        for earlier in self._leases.values():
            if earlier.job.job_id == job.job_id:
                earlier.lose(now)
        lease = Lease(job, now, lambda: self._call(self._urgent.set))
        self._leases[job.lease_token] = lease
        self._seen[job.job_id] = None
        if len(self._seen) > _SEEN_MAX:
            self._seen.pop(next(iter(self._seen)))
        handler = self.app.find(job)
        if handler is None:
            _log.warning(
                "no handler registered for queue %r: failing job %s", job.queue, job.job_id
            )
            self._end(lease, _no_handler(job))
            return
        if self._stopping.is_set():
            self._end(lease, Report("release"))
            return
        lease.stop = self._executors.start(
            handler, lease.ctx, lambda report: self._call(self._end, lease, report)
        )

    # ---- the end of a job ----

    def _end(self, lease: Lease, report: Report) -> None:
        if lease.job.lease_token in self._leases and not lease.stopped:
            lease.stopped = True
            self._spawn(self._report(lease, report))

    async def _report(self, lease: Lease, report: Report) -> None:
        job = lease.job
        try:
            if not lease.ctx.lost:
                await self._last_values(lease)
                await self._send_logs(lease)
            outcome = "lost"
            if not lease.ctx.lost:
                outcome = await (
                    self._ack(job, report) if report.verb == "ack" else self._deliver(job, report)
                )
            if outcome == "lost":
                lease.lose(time.monotonic())
                _log.warning("job %s: the lease was lost, its outcome is dropped", job.job_id)
        except Exception as error:
            _log.error("job %s: its outcome could not be reported: %s", job.job_id, error)
        finally:
            _, waiters = lease.take_values()
            lease.confirm(waiters, RuntimeError("the job has ended"))
            self._leases.pop(job.lease_token, None)
            self._changed.set()

    async def _deliver(self, job: Delivery, report: Report) -> str:
        return await self._reports.run(deliver(self._reports, job, report))

    async def _ack(self, job: Delivery, report: Report) -> str:
        """Send an ack, together with those that arrive while others are on their way."""
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._acks.append((job, report, outcome))
        if not self._acking:
            self._acking = True
            self._spawn(self._send_acks())
        return await outcome

    async def _send_acks(self) -> None:
        while self._acks:
            batch, self._acks = self._acks[:_ACK_MAX], self._acks[_ACK_MAX:]
            refused = {job.job_id for job, _, _ in batch}
            if len(batch) > 1:
                with suppress(Exception):  # the acks are then sent one by one
                    items: Any = [
                        {"job_id": job.job_id, "lease_token": job.lease_token, **report.members}
                        for job, report, _ in batch
                    ]
                    answer = await self._reports.ack_batch(items)
                    refused = {item["job_id"] for item in answer.failed or ()}
            for job, report, outcome in batch:
                if job.job_id in refused:
                    self._spawn(self._ack_alone(job, report, outcome))
                else:
                    outcome.set_result("completed")
        self._acking = False

    async def _ack_alone(
        self, job: Delivery, report: Report, outcome: "asyncio.Future[str]"
    ) -> None:
        try:
            outcome.set_result(await self._deliver(job, report))
        except Exception as error:
            outcome.set_exception(error)

    async def _last_values(self, lease: Lease) -> None:
        """Send what the handler has reported and no heartbeat has carried yet."""
        with suppress(CorvoError):
            while lease.dirty and not lease.ctx.lost:
                await self._beat([lease])

    async def _finish_jobs(self) -> None:
        """Wait for the running jobs, and release those that do not end in time. They are cancelled
        when most of the time has passed."""
        begun = time.monotonic()
        if not await self._idle_by(begun + 0.8 * self.shutdown_timeout):
            for lease in self._leases.values():
                lease.cancel(time.monotonic())
            await self._idle_by(begun + self.shutdown_timeout)
        for lease in list(self._leases.values()):
            if not lease.stopped:
                _log.warning("job %s has not ended in time: releasing it", lease.job.job_id)
                self._end(lease, Report("release"))
                lease.stop()
        self._hurried = False
        if not await self._idle_by(time.monotonic() + _LAST_REPORTS_S):
            _log.error("%d jobs could not be reported before the end", len(self._leases))

    async def _idle_by(self, deadline: float) -> bool:
        """Wait until no job is left, or until the deadline; return whether none is left."""
        while self._leases and not self._hurried and time.monotonic() < deadline:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
        return not self._leases

    def _on_stop(self) -> None:
        for lease in self._leases.values():
            lease.ctx.shutting_down.set()
        self._fetching.cancel()
        self._changed.set()

    async def _release_strays(self) -> None:
        """Return jobs whose delivery was lost on the way: the server believes that this worker has
        them, but they never arrived. Only with an id that no other process can have."""
        if not self._own_id:
            return
        with suppress(CorvoError):
            await asyncio.sleep(0.3)  # the search index follows the state by a moment
            found = await self._calls.search(worker_id=self.worker_id, state="active")
            for job in found.jobs:
                now = await self._calls.get_job(job.id, consistent=True)
                mine = now.state == "active" and now.worker_id == self.worker_id
                if mine and job.id not in self._seen:
                    _log.warning("job %s was delivered but never arrived: releasing it", job.id)
                    await self._calls.release(job.id)

    # ---- heartbeats ----

    async def _beat_on(self) -> None:
        due = time.monotonic() + self.heartbeat_interval
        failures = 0
        while True:
            wake = due
            if any(lease.cancelled_at is not None for lease in self._leases.values()):
                wake = min(due, time.monotonic() + self.cancel_grace / 5)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wake - time.monotonic())):
                    await self._urgent.wait()
            self._urgent.clear()
            now = time.monotonic()
            self._watch(now)
            targets = [
                lease
                for lease in self._leases.values()
                if not lease.ctx.lost and not lease.stopped and (lease.dirty or now >= due)
            ]
            if now >= due:
                due = now + self.heartbeat_interval
            try:
                for start in range(0, len(targets), _BEAT_MAX):
                    await self._beat(targets[start : start + _BEAT_MAX])
                failures = 0
            except CorvoError as error:
                failures += 1
                _log.warning("heartbeat failed: %s", error)
                due = min(due, time.monotonic() + min(1.0, self.heartbeat_interval))
                await asyncio.sleep(error.retry_after or min(0.2 * failures, 1.0))
            if any(lease.dirty for lease in targets):
                self._urgent.set()
            await asyncio.sleep(_BEAT_GAP_S)

    def _watch(self, now: float) -> None:
        """Lose the leases that have ended unconfirmed, and stop handlers that ignore a cancel."""
        for lease in self._leases.values():
            if not lease.ctx.lost and now - lease.confirmed_at > self.lease_duration:
                _log.warning("job %s: no heartbeat within its lease", lease.job.job_id)
                lease.lose(now)
            cancelled_at = lease.cancelled_at
            if cancelled_at is not None and now - cancelled_at >= self.cancel_grace:
                lease.stop_once()

    async def _beat(self, leases: list[Lease]) -> None:
        """Renew leases, with what their handlers have reported."""
        taken = [(lease, *lease.take_values()) for lease in leases]
        beats: dict[str, Any] = {
            lease.job.job_id: {"lease_token": lease.job.lease_token, **values}
            for lease, values, _ in taken
        }
        sent_at = time.monotonic()
        try:
            reply = await self._calls.heartbeat(beats)
        except (ValidationError, PayloadTooLargeError) as error:
            await self._refused(taken, error)
            return
        except CorvoError:
            for lease, values, waiters in taken:
                lease.put_back(values, waiters)
            raise
        now = time.monotonic()
        for lease, _, waiters in taken:
            status = reply.jobs.get(lease.job.job_id, {}).get("status", "ok")
            if status == "lost":
                lease.confirm(waiters, RuntimeError("the lease is lost"))
                lease.lose(now)
                continue
            lease.confirmed_at = sent_at
            lease.confirm(waiters)
            if status == "cancel":
                lease.cancel(now)

    async def _refused(self, taken: list[Any], error: CorvoError) -> None:
        """Find the job whose values the server refuses, and drop them."""
        if len(taken) > 1:
            for lease, values, waiters in taken:
                lease.put_back(values, waiters)
            for lease, _, _ in taken:
                await self._beat([lease])
            return
        lease, values, waiters = taken[0]
        lease.confirm(waiters, error)
        if values:
            _log.error("job %s: the server refuses what it reported: %s", lease.job.job_id, error)
            await self._beat([lease])

    # ---- logs ----

    async def _send_logs_on(self) -> None:
        while True:
            await asyncio.sleep(_LOGS_S)
            for lease in list(self._leases.values()):
                if not lease.ctx.lost and not lease.stopped:
                    await self._send_logs(lease)

    async def _send_logs(self, lease: Lease) -> None:
        """Send the log lines that wait. Lines that cannot be sent are lost, and counted."""
        while lines := lease.take_lines():
            try:
                await self._calls.run(
                    Api.append_logs.steps(
                        self._calls, lease.job.job_id, lines, lease_token=lease.job.lease_token
                    )
                )
            except CorvoError as error:
                lease.dropped_lines += len(lines)
                _log.warning("job %s: log lines lost: %s", lease.job.job_id, error)
                return


def _no_handler(job: Delivery) -> Report:
    return Report("fail", {"error": f"no handler registered for queue {job.queue}"})

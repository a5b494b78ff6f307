"""The methods of both clients: one for each route of the server, and a few that combine them.

Arguments that are None are not sent. Durations are seconds, a text such as "1h30m", or a timedelta;
times are an RFC 3339 text or a datetime with a zone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack

from corvo_client import documents as d
from corvo_client import json_text
from corvo_client.core import (
    Call,
    ClientOptions,
    Core,
    Emissions,
    Emit,
    Sleep,
    Steps,
    given,
    settings,
)
from corvo_client.endpoints import Routine, endpoint, stream
from corvo_client.options import (
    AckItem,
    AckOptions,
    BatchCallbacks,
    BeatItem,
    BulkOptions,
    Duration,
    EnqueueOptions,
    Filter,
    HoldOptions,
    JobItem,
    LineItem,
    Priority,
    ScheduleChanges,
    ScheduleOptions,
    Time,
)
from corvo_client.sse import SseEvent
from corvo_client.trace import trace_headers

D = TypeVar("D", bound=d.Document)
ENDED = ("completed", "dead", "cancelled")
_WAIT_MAX_S = 60.0
Hook = Callable[[dict[str, Any]], dict[str, Any] | None]


def _as(kind: type[D], noun: str = "") -> Any:
    """Decode into a document. A bare list becomes the member `noun`."""

    def decode(value: Any, text: str) -> Any:
        if noun and isinstance(value, list):
            value, text = {noun: value}, f'{{"{noun}":{text}}}'
        return d.document(kind, {} if value is None else value, text)

    return decode


def _anything(value: Any, text: str) -> Any:
    return value


def _seconds(value: Duration | None) -> float:
    """Return about how long a duration is, for time limits of the client."""
    if value is None:
        return 30.0
    if isinstance(value, int | float):
        return float(value)
    return value.total_seconds() if not isinstance(value, str) else _WAIT_MAX_S


def job_fields(queue: str, payload: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return one job of an enqueue as the server takes it. A handler of a chain that is only a
    name becomes a queue."""
    job = {"queue": queue, "payload": payload, **given(**options)}
    for name in ("chain", "chain_config"):
        if isinstance(chain := job.get(name), Mapping):
            job[name] = {
                key: {"queue": value} if isinstance(value, str) else value
                for key, value in chain.items()
            }
    return job


class Api:
    """The methods. `core` makes the requests; the `hooks` see each job before it is enqueued."""

    def __init__(
        self, base_url: str | Sequence[str] | None, hooks: Sequence[Hook], options: ClientOptions
    ) -> None:
        self.core = Core(settings(base_url, **options))
        self.hooks = list(hooks)

    @property
    def server_duration(self) -> float | None:
        """Seconds that the server took for the last response."""
        return self.core.server_duration

    def _hooked(self, job: dict[str, Any]) -> dict[str, Any]:
        for hook in self.hooks:
            job = hook(job) or job
        return job

    # ---- producers ----

    @endpoint("POST", "/enqueue")
    def enqueue(
        self, queue: str, payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Call[d.Enqueued]:
        """Enqueue a job."""
        job = self._hooked(job_fields(queue, payload, options))
        wait_s = _seconds(options["wait"]) + 30 if options.get("wait") is not None else 0
        return Call(_as(d.Enqueued), body=job, wait_s=wait_s, headers=trace_headers())

    @endpoint("POST", "/enqueue/batch")
    def enqueue_batch(
        self,
        jobs: Iterable[JobItem],
        *,
        batch: BatchCallbacks | None = None,
        batch_id: str | None = None,
    ) -> Call[d.EnqueuedBatch]:
        """Enqueue several jobs, all of them or none. `batch` makes a batch of them."""
        items = []
        for job in jobs:
            options = {k: v for k, v in job.items() if k not in ("queue", "payload")}
            fields = job_fields(job.get("queue", ""), job.get("payload"), options)
            items.append(self._hooked(fields))
        body = {"jobs": items, **given(batch=batch, batch_id=batch_id)}
        return Call(_as(d.EnqueuedBatch), body=body, headers=trace_headers())

    @endpoint("GET", "/batches/{id}")
    def get_batch(self, batch_id: str) -> Call[d.Batch]:
        """Return a batch and its progress."""
        return Call(_as(d.Batch), (batch_id,))

    # ---- workers ----

    @endpoint("POST", "/fetch", once=False)
    def fetch(
        self,
        queues: Iterable[str],
        *,
        worker_id: str | None = None,
        hostname: str | None = None,
        timeout: Duration | None = None,
        lease_duration: Duration | None = None,
    ) -> Call[d.Delivery | None]:
        """Fetch a job, or None if none becomes ready within the timeout (30 seconds)."""
        body = given(worker_id=worker_id, hostname=hostname, timeout=timeout)
        body |= given(queues=list(queues), lease_duration=lease_duration)
        return Call(
            lambda value, text: d.document(d.Delivery, value, text),
            body=body,
            wait_s=max(0.001, _seconds(timeout)),
        )

    @endpoint("POST", "/fetch/batch", once=False)
    def fetch_batch(
        self,
        queues: Iterable[str],
        *,
        count: int = 10,
        worker_id: str | None = None,
        hostname: str | None = None,
        timeout: Duration | None = None,
        lease_duration: Duration | None = None,
    ) -> Call[list[d.Delivery]]:
        """Fetch up to `count` jobs as soon as at least one is ready."""
        body = given(worker_id=worker_id, hostname=hostname, timeout=timeout)
        body |= given(queues=list(queues), count=count, lease_duration=lease_duration)
        return Call(
            lambda value, text: list(d.document(d.Deliveries, value, text).jobs),
            body=body,
            wait_s=max(0.001, _seconds(timeout)),
        )

    @endpoint("POST", "/ack/{job_id}")
    def ack(self, job_id: str, **ack: Unpack[AckOptions]) -> Call[d.Status]:
        """Complete a job."""
        return Call(_as(d.Status), (job_id,), body=given(**ack))

    @endpoint("POST", "/ack/batch")
    def ack_batch(self, acks: Iterable[AckItem]) -> Call[d.AckResult]:
        """Complete several jobs. Refused acks are in `failed` of the answer."""
        return Call(_as(d.AckResult), body={"acks": [given(**ack) for ack in acks]})

    @endpoint("POST", "/fail/{job_id}")
    def fail(
        self,
        job_id: str,
        error: str,
        *,
        lease_token: str | None = None,
        backtrace: str | None = None,
        retry: bool | None = None,
        retry_after: Duration | None = None,
        provider_error: bool | None = None,
    ) -> Call[d.FailResult]:
        """Report a failed attempt. `retry=False` moves the job to dead."""
        body = given(error=error, lease_token=lease_token, backtrace=backtrace, retry=retry)
        body |= given(retry_after=retry_after, provider_error=provider_error)
        return Call(_as(d.FailResult), (job_id,), body=body)

    @endpoint("POST", "/release/{job_id}")
    def release(
        self,
        job_id: str,
        *,
        lease_token: str | None = None,
        delay: Duration | None = None,
        checkpoint: Any = None,
    ) -> Call[d.Status]:
        """Return a job without using up an attempt."""
        body = given(lease_token=lease_token, delay=delay, checkpoint=checkpoint)
        return Call(_as(d.Status), (job_id,), body=body)

    @endpoint("POST", "/heartbeat", once=False, repeats=True)
    def heartbeat(self, jobs: Mapping[str, BeatItem]) -> Call[d.Heartbeat]:
        """Renew leases: the answer has the status ok, cancel or lost for each job."""
        return Call(_as(d.Heartbeat), body={"jobs": {k: given(**v) for k, v in jobs.items()}})

    @endpoint("POST", "/jobs/{id}/logs")
    def append_logs(
        self, job_id: str, lines: Iterable[LineItem], *, lease_token: str | None = None
    ) -> Call[d.Document]:
        """Add log lines to the present attempt of a job."""
        body = {"lines": [given(**line) for line in lines], **given(lease_token=lease_token)}
        return Call(_as(d.Document), (job_id,), body=body)

    # ---- jobs ----

    @endpoint("GET", "/jobs/{id}")
    def get_job(self, job_id: str, *, consistent: bool | None = None) -> Call[d.Job]:
        """Return a job."""
        return Call(_as(d.Job), (job_id,), {"consistent": consistent})

    @endpoint("GET", "/jobs/{id}/wait")
    def wait_once(self, job_id: str, *, timeout: Duration | None = None) -> Call[d.Job]:
        """Return a job when it has ended, or as it is after the timeout (at most a minute)."""
        query = {"timeout": timeout}
        return Call(_as(d.Job), (job_id,), query, wait_s=max(1.0, _seconds(timeout)))

    @Routine
    def wait(self, job_id: str, *, timeout: float | None = None) -> Steps[d.Job]:
        """Wait until a job has ended, and return it. Raises TimeoutError."""
        deadline = None if timeout is None else self.core.now() + timeout
        while True:
            left = _WAIT_MAX_S
            if deadline is not None:
                left = min(left, max(0.0, deadline - self.core.now()))
            job = yield from Api.wait_once.steps(self, job_id, timeout=round(left, 3))
            if job.state in ENDED:
                return job
            if deadline is not None and self.core.now() >= deadline:
                raise TimeoutError(f"job {job_id} is still {job.state}")

    @endpoint("GET", "/jobs/{id}/explain")
    def explain(self, job_id: str) -> Call[d.Explanation]:
        """Return why a job does not run, or what it does."""
        return Call(_as(d.Explanation), (job_id,))

    @endpoint("GET", "/jobs/{id}/events")
    def job_events(
        self, job_id: str, *, limit: int | None = None, before: int | None = None
    ) -> Call[d.Events]:
        """Return the newest events of a job, or those before an event."""
        return Call(_as(d.Events), (job_id,), {"limit": limit, "before": before})

    @endpoint("GET", "/jobs/{id}/errors")
    def job_errors(
        self, job_id: str, *, limit: int | None = None, before: int | None = None
    ) -> Call[d.Errors]:
        """Return the newest failed attempts of a job, or those before one."""
        return Call(_as(d.Errors), (job_id,), {"limit": limit, "before": before})

    @endpoint("GET", "/jobs/{id}/logs")
    def job_logs(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> Call[d.Logs]:
        """Return log lines of a job with a number above `after`."""
        return Call(_as(d.Logs), (job_id,), {"attempt": attempt, "after": after, "limit": limit})

    @endpoint("POST", "/jobs/{id}/retry")
    def retry_job(self, job_id: str) -> Call[d.Status]:
        """Run a job again from its first attempt."""
        return Call(_as(d.Status), (job_id,), body={})

    @endpoint("POST", "/jobs/{id}/requeue")
    def requeue_job(self, job_id: str) -> Call[d.Status]:
        """Give a dead job one more attempt."""
        return Call(_as(d.Status), (job_id,), body={})

    @endpoint("POST", "/jobs/{id}/run")
    def run_job(self, job_id: str) -> Call[d.Status]:
        """End the wait of a scheduled or retrying job."""
        return Call(_as(d.Status), (job_id,), body={})

    @endpoint("POST", "/jobs/{id}/cancel")
    def cancel_job(self, job_id: str, *, force: bool | None = None) -> Call[d.Status]:
        """Cancel a job. An active one is `cancelling` until its worker stops, unless forced."""
        return Call(_as(d.Status), (job_id,), body=given(force=force))

    @endpoint("DELETE", "/jobs/{id}")
    def delete_job(self, job_id: str) -> Call[d.Status]:
        """Delete a job."""
        return Call(_as(d.Status), (job_id,))

    @endpoint("POST", "/jobs/{id}/move")
    def move_job(
        self,
        job_id: str,
        queue: str,
        *,
        reset_attempts: bool | None = None,
        keep_priority: bool | None = None,
    ) -> Call[d.Status]:
        """Move a job to another queue."""
        body = given(queue=queue, reset_attempts=reset_attempts, keep_priority=keep_priority)
        return Call(_as(d.Status), (job_id,), body=body)

    @endpoint("POST", "/jobs/{id}/priority")
    def set_priority(self, job_id: str, priority: Priority) -> Call[d.Status]:
        """Change the priority of a job."""
        return Call(_as(d.Status), (job_id,), body={"priority": priority})

    @endpoint("POST", "/jobs/{id}/hold")
    def hold_job(self, job_id: str, **hold: Unpack[HoldOptions]) -> Call[d.Status]:
        """Hold a job until it is approved."""
        return Call(_as(d.Status), (job_id,), body=given(**hold))

    @endpoint("POST", "/jobs/{id}/approve")
    def approve_job(
        self, job_id: str, *, approved_by: str | None = None, note: str | None = None
    ) -> Call[d.Status]:
        """Approve a held job."""
        return Call(_as(d.Status), (job_id,), body=given(approved_by=approved_by, note=note))

    @endpoint("POST", "/jobs/{id}/reject")
    def reject_job(
        self,
        job_id: str,
        *,
        rejected_by: str | None = None,
        reason: str | None = None,
        revise: bool | None = None,
        feedback: Any = None,
    ) -> Call[d.Status]:
        """Reject a held job: it becomes dead, or runs again with the feedback if `revise`."""
        body = given(rejected_by=rejected_by, reason=reason, revise=revise, feedback=feedback)
        return Call(_as(d.Status), (job_id,), body=body)

    # ---- search and bulk ----

    @endpoint("POST", "/jobs/search", once=False, repeats=True)
    def search(
        self,
        *,
        sort: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **filter: Unpack[Filter],
    ) -> Call[d.Found]:
        """Return a page of the jobs that match; it includes the last write of this client."""
        body = given(sort=sort, order=order, limit=limit, cursor=cursor) | given(**filter)
        return Call(_as(d.Found), body=body, headers=self._fresh())

    @stream()
    def search_all(
        self,
        *,
        sort: str | None = None,
        order: Literal["asc", "desc"] | None = None,
        **filter: Unpack[Filter],
    ) -> Emissions[d.Job]:
        """Give all jobs that match, page by page."""
        cursor: str | None = None
        while True:
            page = yield from Api.search.steps(
                self, sort=sort, order=order, limit=1000, cursor=cursor, **filter
            )
            for job in page.jobs:
                yield Emit(job)
            cursor = page.cursor
            if not page.has_more or cursor is None:
                return

    @endpoint("POST", "/jobs/facets", once=False, repeats=True)
    def facets(self, by: Iterable[str], *, filter: Filter | None = None) -> Call[d.Document]:
        """Count the jobs that match by state, queue, priority or tag:<key>."""
        body = given(by=list(by), filter=filter)
        return Call(_as(d.Document), body=body, headers=self._fresh())

    @endpoint("GET", "/search/fulltext")
    def fulltext(self, text: str, *, limit: int | None = None) -> Call[d.Document]:
        """Search words in payloads, tags and queues."""
        return Call(_as(d.Document), query={"q": text, "limit": limit}, headers=self._fresh())

    @endpoint("GET", "/dead")
    def dead_jobs(
        self, *, queue: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Call[d.Found]:
        """Return a page of the dead jobs."""
        query = {"queue": queue, "limit": limit, "cursor": cursor}
        return Call(_as(d.Found), query=query, headers=self._fresh())

    @endpoint("POST", "/jobs/bulk-get", once=False, repeats=True)
    def bulk_get_jobs(self, job_ids: Iterable[str]) -> Call[list[d.Job]]:
        """Return several jobs; those that do not exist are left out."""
        decode = _as(d.Jobs, "jobs")
        return Call(lambda *reply: decode(*reply).jobs, body={"job_ids": list(job_ids)})

    @endpoint("POST", "/jobs/bulk")
    def bulk(self, action: str, **options: Unpack[BulkOptions]) -> Call[d.Operation]:
        """Do an action to many jobs: those of a list, of a filter, or all."""
        body: dict[str, Any] = {"action": action, **given(**options)}
        if "background" in body:
            body["async"] = body.pop("background")
        return Call(_as(d.Operation), body=body, headers=self._fresh(), wait_s=110)

    @endpoint("GET", "/bulk/{id}")
    def bulk_status(self, operation_id: str) -> Call[d.Operation]:
        """Return a bulk operation and its progress."""
        return Call(_as(d.Operation), (operation_id,))

    @Routine
    def bulk_wait(self, operation_id: str, *, timeout: float = 600) -> Steps[d.Operation]:
        """Wait until a bulk operation has ended, and return it. Raises TimeoutError."""
        deadline = self.core.now() + timeout
        pause = 0.05
        while True:
            operation = yield from Api.bulk_status.steps(self, operation_id)
            if operation.status in ("completed", "cancelled"):
                return operation
            if self.core.now() > deadline:
                raise TimeoutError(f"operation {operation_id} is still {operation.status}")
            yield Sleep(pause)
            pause = min(2.0, pause * 2)

    @endpoint("GET", "/bulk/{id}/results")
    def bulk_results(
        self,
        operation_id: str,
        *,
        kind: Literal["done", "skipped", "conflict"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Call[d.Document]:
        """Return a page of the jobs of a bulk operation, by what became of them."""
        query = {"kind": kind, "limit": limit, "cursor": cursor}
        return Call(_as(d.Document), (operation_id,), query)

    @endpoint("POST", "/bulk/{id}/cancel")
    def bulk_cancel(self, operation_id: str) -> Call[d.Operation]:
        """Stop a bulk operation after its current step."""
        return Call(_as(d.Operation), (operation_id,), body={})

    @endpoint("POST", "/bulk/{id}/undo")
    def bulk_undo(self, operation_id: str, *, background: bool | None = None) -> Call[d.Operation]:
        """Revert a bulk operation."""
        body = {} if background is None else {"async": background}
        return Call(_as(d.Operation), (operation_id,), body=body, wait_s=110)

    @stream("/bulk/{id}/progress")
    def bulk_progress(self, operation_id: str) -> Emissions[d.StreamEvent]:
        """Give the progress of a bulk operation until it ends."""
        call: Call[Any] = Call(_anything, (operation_id,))
        ends = ("bulk.async.completed", "bulk.async.cancelled")
        yield from self._events("/bulk/{id}/progress", call, ends)

    # ---- streams ----

    @stream("/events")
    def subscribe(
        self,
        *,
        queues: Iterable[str] | None = None,
        job_ids: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        last_event_id: int | str | None = None,
        from_start: bool = False,
    ) -> Emissions[d.StreamEvent]:
        """Give events as they happen, without end. A broken stream continues where it was."""
        lists = {"queues": queues, "job_ids": job_ids, "types": types}
        query: dict[str, Any] = {
            name: ",".join(items) for name, items in lists.items() if items is not None
        }
        query["last_event_id"] = last_event_id
        query["from"] = "start" if from_start else None
        yield from self._events("/events", Call(_anything, query=query), ())

    @stream("/jobs/{id}/stream")
    def job_stream(self, job_id: str) -> Emissions[d.StreamEvent]:
        """Give the live output of a job until it ends; the last event has its state."""
        call: Call[Any] = Call(_anything, (job_id,))
        ends = ("job.completed", "job.dead", "job.cancelled", "job.deleted")
        yield from self._events("/jobs/{id}/stream", call, ends)

    def _events(
        self, pattern: str, call: Call[Any], ends: tuple[str, ...]
    ) -> Emissions[d.StreamEvent]:
        """Turn server-sent events into documents, until one of those that end the stream."""
        steps = self.core.listen(pattern, call)
        outcome: Any = None
        failed: BaseException | None = None
        while True:
            try:
                step = steps.throw(failed) if failed is not None else steps.send(outcome)
            except StopIteration:
                return
            outcome = failed = None
            if not isinstance(step, Emit):
                try:
                    outcome = yield step
                except ConnectionError as error:
                    failed = error
                continue
            found: SseEvent = step.value
            data = json_text.decode(found.data.encode())
            members = data if isinstance(data, dict) else {"data": data}
            event = d.document(d.StreamEvent, members, found.data)
            event["name"] = found.name
            if found.id is not None:
                event.setdefault("id", found.id)
            yield Emit(event)
            if found.name in ends:
                return

    # ---- queues ----

    @endpoint("GET", "/queues")
    def list_queues(
        self, *, limit: int | None = None, cursor: str | None = None, name: str | None = None
    ) -> Call[d.Queues]:
        """Return a page of the queues."""
        query = {"limit": limit, "cursor": cursor, "name": name}
        return Call(_as(d.Queues, "queues"), query=query)

    @endpoint("GET", "/queues/{name}")
    def get_queue(self, queue: str) -> Call[d.Queue]:
        """Return a queue with its options and counts."""
        return Call(_as(d.Queue), (queue,))

    @endpoint("POST", "/queues/{name}/pause")
    def pause_queue(self, queue: str) -> Call[d.Status]:
        """Stop the deliveries of a queue."""
        return Call(_as(d.Status), (queue,), body={})

    @endpoint("POST", "/queues/{name}/resume")
    def resume_queue(self, queue: str) -> Call[d.Status]:
        """Continue the deliveries of a queue."""
        return Call(_as(d.Status), (queue,), body={})

    @endpoint("POST", "/queues/{name}/drain")
    def drain_queue(self, queue: str) -> Call[d.Status]:
        """Pause a queue, which shows `draining` until no job of it is active."""
        return Call(_as(d.Status), (queue,), body={})

    @endpoint("POST", "/queues/{name}/clear")
    def clear_queue(self, queue: str) -> Call[d.Status]:
        """Delete the pending and scheduled jobs of a queue."""
        return Call(_as(d.Status), (queue,), body={})

    @endpoint("DELETE", "/queues/{name}")
    def delete_queue(self, queue: str) -> Call[d.Status]:
        """Delete a queue, its options and all its jobs."""
        return Call(_as(d.Status), (queue,), {"confirm": True})

    @endpoint("POST", "/queues/{name}/concurrency")
    def set_concurrency(self, queue: str, maximum: int) -> Call[d.Status]:
        """Bound the active jobs of a queue; 0 removes the bound."""
        return Call(_as(d.Status), (queue,), body={"max": maximum})

    @endpoint("POST", "/queues/{name}/throttle")
    def set_throttle(self, queue: str, rate: int, period: Duration) -> Call[d.Status]:
        """Bound the jobs that a queue delivers within any window of this length."""
        return Call(_as(d.Status), (queue,), body={"rate": rate, "period": period})

    @endpoint("DELETE", "/queues/{name}/throttle")
    def remove_throttle(self, queue: str) -> Call[d.Status]:
        """Remove the bound of `set_throttle`."""
        return Call(_as(d.Status), (queue,))

    @endpoint("GET", "/queues/{name}/groups")
    def list_groups(
        self, queue: str, *, limit: int | None = None, after: str | None = None
    ) -> Call[d.Document]:
        """Return a page of the groups of a queue that have jobs."""
        return Call(_as(d.Document), (queue,), {"limit": limit, "after": after})

    @endpoint("POST", "/queues/{name}/groups")
    def set_group_concurrency(self, queue: str, concurrency: int | None) -> Call[d.Status]:
        """Bound the active jobs of each group of a queue; None removes the bound."""
        return Call(_as(d.Status), (queue,), body={"concurrency": concurrency})

    @endpoint("POST", "/queues/{name}/aging")
    def set_aging(self, queue: str, after: Duration | None) -> Call[d.Status]:
        """Serve a normal job next that has waited longer; None switches this off."""
        return Call(_as(d.Status), (queue,), body={"after": after})

    @endpoint("POST", "/queues/{name}/retention")
    def set_retention(
        self,
        queue: str,
        *,
        completed: Duration | None = None,
        dead: Duration | None = None,
        cancelled: Duration | None = None,
        reset: Iterable[Literal["completed", "dead", "cancelled"]] = (),
    ) -> Call[d.Status]:
        """Set how long finished jobs of a queue are kept; `reset` selects the default again."""
        body = given(completed=completed, dead=dead, cancelled=cancelled)
        return Call(_as(d.Status), (queue,), body=body | dict.fromkeys(reset))

    @endpoint("GET", "/queues/{name}/events")
    def queue_events(
        self, queue: str, *, limit: int | None = None, before: int | None = None
    ) -> Call[d.Events]:
        """Return the newest events of a queue, or those before an event."""
        return Call(_as(d.Events), (queue,), {"limit": limit, "before": before})

    @endpoint("GET", "/locks")
    def list_locks(
        self, *, queue: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Call[d.Locks]:
        """Return a page of the unique keys that are held."""
        return Call(_as(d.Locks), query={"queue": queue, "limit": limit, "cursor": cursor})

    @endpoint("POST", "/locks/release")
    def release_lock(
        self, queue: str, unique_key: str, *, job_id: str | None = None
    ) -> Call[d.Status]:
        """Release a unique key; with `job_id` only if that job holds it."""
        body = given(queue=queue, unique_key=unique_key, job_id=job_id)
        return Call(_as(d.Status), body=body)

    # ---- schedules ----

    @endpoint("GET", "/schedules")
    def list_schedules(self) -> Call[d.Schedules]:
        """Return the schedules."""
        return Call(_as(d.Schedules, "schedules"))

    @endpoint("POST", "/schedules")
    def create_schedule(
        self, name: str, cron: str, queue: str, **options: Unpack[ScheduleOptions]
    ) -> Call[d.Schedule]:
        """Create a schedule."""
        body: dict[str, Any] = {"name": name, "cron": cron, "queue": queue, **given(**options)}
        return Call(_as(d.Schedule), body=body)

    @endpoint("GET", "/schedules/{id}")
    def get_schedule(self, schedule: str) -> Call[d.Schedule]:
        """Return a schedule by its id or name."""
        return Call(_as(d.Schedule), (schedule,))

    @endpoint("PUT", "/schedules/{id}")
    def update_schedule(
        self, schedule: str, **changes: Unpack[ScheduleChanges]
    ) -> Call[d.Schedule]:
        """Change a schedule. None restores the default of an option."""
        return Call(_as(d.Schedule), (schedule,), body=dict(changes))

    @endpoint("DELETE", "/schedules/{id}")
    def delete_schedule(self, schedule: str) -> Call[d.Status]:
        """Delete a schedule; its jobs stay."""
        return Call(_as(d.Status), (schedule,))

    @endpoint("POST", "/schedules/{id}/pause")
    def pause_schedule(self, schedule: str) -> Call[d.Schedule]:
        """Pause a schedule."""
        return Call(_as(d.Schedule), (schedule,), body={})

    @endpoint("POST", "/schedules/{id}/resume")
    def resume_schedule(self, schedule: str) -> Call[d.Schedule]:
        """Continue a schedule with its next run."""
        return Call(_as(d.Schedule), (schedule,), body={})

    @endpoint("POST", "/schedules/{id}/run")
    def run_schedule(self, schedule: str) -> Call[d.Enqueued]:
        """Enqueue a job of a schedule now."""
        return Call(_as(d.Enqueued), (schedule,), body={})

    # ---- the server ----

    @endpoint("GET", "/info")
    def get_server_info(self) -> Call[d.ServerInfo]:
        """Return the versions of the server."""
        return Call(_as(d.ServerInfo))

    @endpoint("GET", "/healthz")
    def health(self) -> Call[d.Document]:
        """Return the health of the server. Raises UnavailableError."""
        return Call(_as(d.Document))

    @endpoint("GET", "/readyz")
    def ready(self) -> Call[d.Document]:
        """Return whether the server takes writes. Raises UnavailableError."""
        return Call(_as(d.Document))

    @endpoint("GET", "/workers")
    def list_workers(self) -> Call[d.Workers]:
        """Return the workers, the most recently seen first."""
        return Call(_as(d.Workers, "workers"))

    @endpoint("GET", "/cluster/status")
    def cluster_status(self) -> Call[d.Document]:
        """Return the state of the node and of its cluster."""
        return Call(_as(d.Document))

    @endpoint("GET", "/cluster/events")
    def cluster_events(
        self, *, after_seq: int | None = None, limit: int | None = None
    ) -> Call[d.Events]:
        """Return all events after a number, in order."""
        return Call(_as(d.Events), query={"after_seq": after_seq, "limit": limit})

    @endpoint("POST", "/cluster/snapshot", once=False, repeats=True)
    def snapshot(self) -> Call[d.Document]:
        """Have the node store its state now and trim its log."""
        return Call(_as(d.Document), body={})

    @endpoint("POST", "/cluster/remove", once=False)
    def remove_node(self, node_id: str) -> Call[d.Document]:
        """Remove a node from the cluster for good."""
        return Call(_as(d.Document), body={"node_id": node_id})

    @endpoint("POST", "/cluster/promote", once=False)
    def promote_node(self, node_id: str) -> Call[d.Document]:
        """Make a learner a voter."""
        return Call(_as(d.Document), body={"node_id": node_id})

    @endpoint("POST", "/cluster/transfer", once=False)
    def transfer_leadership(self, node_id: str | None = None) -> Call[d.Document]:
        """Transfer leadership to a node, or to the most complete one."""
        return Call(_as(d.Document), body=given(node_id=node_id))

    @endpoint("POST", "/admin/rebuild-sqlite", once=False, repeats=True)
    def rebuild_search(self) -> Call[d.Document]:
        """Rebuild the search index of the node."""
        return Call(_as(d.Document), body={}, wait_s=590)

    @endpoint("GET", "/metrics")
    def metrics(self) -> Call[str]:
        """Return the metrics as Prometheus text."""
        return Call(_anything)

    @endpoint("GET", "/metrics/throughput")
    def throughput(self, *, queue: str | None = None) -> Call[Any]:
        """Return the counts of the last sixty minutes."""
        return Call(_anything, query={"queue": queue})

    @endpoint("GET", "/metrics/history")
    def history(
        self, *, queue: str | None = None, period: str | None = None, step: str | None = None
    ) -> Call[d.Document]:
        """Return counts over time."""
        return Call(_as(d.Document), query={"queue": queue, "period": period, "step": step})

    @endpoint("GET", "/metrics/latency")
    def latency(self, *, queue: str | None = None, period: str | None = None) -> Call[d.Document]:
        """Return how long jobs waited and ran."""
        return Call(_as(d.Document), query={"queue": queue, "period": period})

    @endpoint("GET", "/debug/runtime")
    def runtime(self) -> Call[d.Document]:
        """Return the resources of the server process."""
        return Call(_as(d.Document))

    @endpoint("POST", "/test/clock", once=False)
    def test_clock(
        self,
        *,
        advance: Duration | None = None,
        set: Time | None = None,
        freeze: bool | None = None,
    ) -> Call[d.ClockTime]:
        """Move, set, freeze or read the clock of a server with --test-clock."""
        return Call(_as(d.ClockTime), body=given(advance=advance, set=set, freeze=freeze))

    def _fresh(self) -> dict[str, str]:
        """The header that makes a search see the last write of this client."""
        return {"X-Corvo-Min-Index": self.core.index} if self.core.index else {}

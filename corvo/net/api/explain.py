"""Why a job is not running, or what it does instead: a list of findings.

A *finding* states one fact: a `code` for programs, a `message` for people, what to do `next` if
there is something to do, and its facts. Each is found by a function of its own, which gives None
when it does not apply; the table at the end names those of each state, the one that matters most
first. All of them read counters, indexes and a bounded number of jobs.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from corvo import limits
from corvo.engine.reads import CONCURRENCY, GROUP_CONCURRENCY, GROUP_ORDER, RATE
from corvo.engine.service import Service
from corvo.errors import cut
from corvo.model import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    DEAD,
    HELD,
    HOLD_ACTIONS,
    PENDING,
    RETRYING,
    SCHEDULED,
    STATES,
    Job,
)
from corvo.net.api.responses import worker_document
from corvo.platform.durations import format_duration, format_time
from corvo.platform.echoes import shown

Finding = dict[str, Any]


class Scene:
    """One job and what is around it."""

    def __init__(self, service: Service, job: Job) -> None:
        self.job = job
        self.reads = service.reads
        self.queue = self.reads.queue_of(job)
        self.now_ns = service.clock.stamp()
        self.blocked = job.options is not None and job.options.blocked
        obstacles = self.reads.obstacles(job, self.now_ns) if job.state == PENDING else []
        self.obstacles = {obstacle.kind: obstacle for obstacle in obstacles}
        self.waiting_fetches = service.waiting_fetches(self.queue.name)
        self.workers = self.reads.workers_of(self.queue.name)

    def left(self, at_ns: int) -> str:
        """The time left until a moment, in words."""
        left_ns = at_ns - self.now_ns
        seconds = limits.SECOND_NS
        return f"in {format_duration(-(-left_ns // seconds) * seconds)}" if left_ns > 0 else "now"


def explain(service: Service, job: Job) -> dict[str, Any]:
    """The explanation of a job."""
    scene = Scene(service, job)
    findings = [found for look in _LOOKS.get(job.state, ()) if (found := look(scene)) is not None]
    document: dict[str, Any] = {
        "job_id": job.id,
        "queue": scene.queue.name,
        "state": STATES[job.state],
        "attempt": job.attempt,
        "max_retries": job.max_retries,
        "summary": findings[0]["message"] if findings else f"the job is {STATES[job.state]}",
        "reasons": findings,
    }
    if job.state == PENDING and not scene.blocked:
        document["jobs_before"] = scene.reads.jobs_before(job)
    document["workers"] = _workers(scene)
    document["at"] = format_time(scene.now_ns)
    return document


def _workers(scene: Scene) -> dict[str, Any]:
    """The workers that fetch from this queue."""
    seen = scene.workers[: limits.EXPLAINED_JOBS_MAX]
    return {
        "count": len(scene.workers),
        "waiting_fetches": scene.waiting_fetches,
        "newest": [
            {
                name: value
                for name, value in worker_document(worker, scene.now_ns).items()
                if name in ("id", "hostname", "last_heartbeat", "status")
            }
            for worker in seen
        ],
    }


def _finding(code: str, message: str, following: str = "", **facts: Any) -> Finding:
    finding: Finding = {"code": code, "message": message}
    if following:
        finding["next"] = following
    return finding | facts


# Pending.


def _dependency(scene: Scene) -> Finding | None:
    if not scene.blocked:
        return None
    open_ids = scene.reads.open_dependencies(scene.job)
    jobs = "1 job" if len(open_ids) == 1 else f"{len(open_ids)} jobs"
    first = [scene.reads.job(job_id) for job_id in open_ids[: limits.EXPLAINED_JOBS_MAX]]
    return _finding(
        "dependency",
        f"it waits for {jobs}, {open_ids[0]} first",
        "look why that one does not end: GET /jobs/{id}/explain, or corvo explain",
        waits_for=len(open_ids),
        dependencies=[
            {"job_id": job.id, "state": STATES[job.state]} for job in first if job is not None
        ],
    )


def _paused(scene: Scene) -> Finding | None:
    queue = scene.queue
    if not queue.paused:
        return None
    return _finding(
        "paused",
        f"the queue {shown(queue.name)} is {'drained' if queue.draining else 'paused'}",
        f"resume it: POST /queues/{{name}}/resume, or corvo resume {queue.name}",
    )


def _full(scene: Scene) -> Finding | None:
    queue = scene.queue
    full = scene.obstacles.get(CONCURRENCY)
    if full is None:
        return None
    return _finding(
        "concurrency_limit",
        f"{full.count} of at most {full.limit} jobs of the queue {shown(queue.name)} are active",
        "wait for one of them to end, or raise the limit: POST /queues/{name}/concurrency",
        max_concurrency=full.limit,
        active=full.count,
        holders=[
            {
                "job_id": holder.id,
                "worker_id": holder.worker_id,
                "started_at": format_time(holder.started_ns),
                "lease_expires_at": format_time(holder.lease_expires_ns),
            }
            for holder in scene.reads.holders(queue.name, limits.EXPLAINED_JOBS_MAX)
        ],
    )


def _rate(scene: Scene) -> Finding | None:
    queue = scene.queue
    closed = scene.obstacles.get(RATE)
    if closed is None:
        return None
    window_ms = queue.rate_window_ns // limits.MS_NS
    return _finding(
        "rate_limit",
        f"{closed.count} jobs of the queue {shown(queue.name)} were handed out in the last "
        f"{window_ms} ms, of at most {closed.limit}; the next may be {scene.left(closed.opens_ns)}",
        "wait, or raise the limit: POST /queues/{name}/throttle, or corvo throttle",
        rate_limit=closed.limit,
        rate_window_ms=window_ms,
        rate_used=closed.count,
        rate_opens_at=format_time(closed.opens_ns),
    )


def _group_full(scene: Scene) -> Finding | None:
    full = scene.obstacles.get(GROUP_CONCURRENCY)
    if full is None:
        return None
    assert scene.job.options is not None
    group_key = scene.job.options.group_key
    return _finding(
        "group_limit",
        f"{full.count} of at most {full.limit} jobs of its group {shown(group_key)} are active",
        "wait for one of them to end, or raise the limit: POST /queues/{name}/groups",
        group_key=group_key,
        group_concurrency=full.limit,
        active=full.count,
    )


def _group_order(scene: Scene) -> Finding | None:
    order = scene.obstacles.get(GROUP_ORDER)
    if order is None:
        return None
    assert scene.job.options is not None
    group_key = scene.job.options.group_key
    first = scene.reads.job(order.job_id)
    state = "" if first is None else STATES[first.state]
    return _finding(
        "group_order",
        f"job {order.job_id} of its group {shown(group_key)} is in front of it, and {state}",
        "see to that one: its group is a line",
        group_key=group_key,
        in_front={"job_id": order.job_id, "state": state},
    )


def _behind(scene: Scene) -> Finding | None:
    before = 0 if scene.blocked else scene.reads.jobs_before(scene.job)
    if not before:
        return None
    jobs = "1 job is" if before == 1 else f"{before} jobs are"
    return _finding(
        "jobs_before",
        f"{jobs} served before it",
        "add workers, or give it a higher priority",
        jobs_before=before,
    )


def _no_worker(scene: Scene) -> Finding | None:
    if scene.waiting_fetches:
        return None
    newest_ns = scene.workers[0].seen_ns if scene.workers else 0
    if newest_ns and scene.now_ns - newest_ns <= limits.WORKER_STALE_NS:
        return None
    since = f" since {format_time(newest_ns)}" if newest_ns else ""
    return _finding(
        "no_workers",
        f"no worker has fetched from the queue {shown(scene.queue.name)}{since}",
        "start a worker for this queue, or look at its queue names",
    )


def _ready(scene: Scene) -> Finding | None:
    looks = (_dependency, _paused, _behind, _no_worker)
    if scene.obstacles or any(look(scene) is not None for look in looks):
        return None
    return _finding("ready", "nothing is in its way: the next fetch from its queue gets it")


def _last_failure(scene: Scene) -> Finding | None:
    """An additional finding: why the job runs again."""
    records = scene.reads.errors(scene.job.id, 1)
    if not records or not scene.job.attempt:
        return None
    record = records[0]
    text = _decoded(record.error)
    return _finding(
        "failed_before",
        f"attempt {record.attempt} of {max(1, scene.job.max_retries)} failed: {text}",
        attempt=record.attempt,
        last_error=Raw(record.error or b'""'),
        failed_at=format_time(record.at_ns),
    )


def _decoded(text: bytes) -> str:
    """The beginning of an error text."""
    try:
        decoded = str(msgspec.json.decode(text)) if text else ""
    except msgspec.DecodeError:  # half a surrogate pair
        decoded = text.decode()
    return _first_line(decoded)


def _first_line(text: str) -> str:
    return cut(text.strip().partition("\n")[0])


# Waiting for a time.


def _scheduled(scene: Scene) -> Finding | None:
    job = scene.job
    why = "its worker released it" if job.keeps_position else "it is not to start before"
    return _finding(
        "released" if job.keeps_position else "scheduled",
        f"{why} {format_time(job.scheduled_ns)}, {scene.left(job.scheduled_ns)}",
        "run it now: POST /jobs/{id}/retry, or corvo retry",
        scheduled_at=format_time(job.scheduled_ns),
    )


def _retrying(scene: Scene) -> Finding | None:
    job = scene.job
    return _finding(
        "retrying",
        f"it failed and is tried again at {format_time(job.scheduled_ns)}, "
        f"{scene.left(job.scheduled_ns)}; attempt {job.attempt} of {job.max_retries} was the last",
        "run it now: POST /jobs/{id}/retry, or corvo retry",
        scheduled_at=format_time(job.scheduled_ns),
        attempts_remaining=max(0, job.max_retries - job.attempt),
    )


# Held.


def _held(scene: Scene) -> Finding | None:
    options = scene.job.options
    assert options is not None
    why = f": {_first_line(options.hold_reason)}" if options.hold_reason else ""
    facts = {"hold_reason": options.hold_reason}
    ends_ns = options.hold_ends_ns
    if ends_ns:
        action = HOLD_ACTIONS[options.hold_action]
        facts |= {"hold_timeout_at": format_time(ends_ns), "hold_timeout_action": action}
        why += f"; {scene.left(ends_ns)} the action is {action}"
    return _finding(
        "held",
        f"it is held for a person{why}",
        "decide: POST /jobs/{id}/approve or /reject, or corvo approve, corvo reject",
        **facts,
    )


def _expires(scene: Scene) -> Finding | None:
    options = scene.job.options
    if options is None or not options.expires_ns:
        return None
    at = format_time(options.expires_ns)
    return _finding(
        "expires", f"it dies {scene.left(options.expires_ns)} unless it ends before", expire_at=at
    )


# Running.


def _running(scene: Scene) -> Finding | None:
    job = scene.job
    return _finding(
        "active",
        f"it runs: worker {shown(job.worker_id)} has it since {format_time(job.started_ns)}, and "
        f"its lease ends {scene.left(job.lease_expires_ns)}",
        worker_id=job.worker_id,
        hostname=job.hostname,
        started_at=format_time(job.started_ns),
        lease_expires_at=format_time(job.lease_expires_ns),
    )


def _cancelling(scene: Scene) -> Finding | None:
    job = scene.job
    if not job.cancel_requested_ns:
        return None
    return _finding(
        "cancelling",
        f"its worker has to stop since {format_time(job.cancel_requested_ns)}",
        'do not wait for the worker: POST /jobs/{id}/cancel {"force": true}, or corvo cancel '
        "--force",
        cancel_requested_at=format_time(job.cancel_requested_ns),
    )


def _silent(scene: Scene) -> Finding | None:
    job = scene.job
    seen_ns = scene.reads.worker_seen_ns(job.worker_id)
    if seen_ns and scene.now_ns - seen_ns <= limits.WORKER_STALE_NS:
        return None
    since = f" since {format_time(seen_ns)}" if seen_ns else ""
    return _finding(
        "worker_silent",
        f"its worker {shown(job.worker_id)} has not been heard of{since}; when the lease ends the "
        "attempt counts as failed",
    )


# Ended.


def _completed(scene: Scene) -> Finding | None:
    at = format_time(scene.job.completed_ns)
    return _finding("completed", f"it completed at {at}", completed_at=at)


def _dead(scene: Scene) -> Finding | None:
    job = scene.job
    at = format_time(job.failed_ns)
    return _finding(
        "dead",
        f"it died at {at}, after attempt {job.attempt} of {max(1, job.max_retries)}",
        "run it again: POST /jobs/{id}/retry, or corvo retry",
        failed_at=at,
    )


def _cancelled(scene: Scene) -> Finding | None:
    at = format_time(scene.job.failed_ns)
    return _finding(
        "cancelled",
        f"it was cancelled at {at}",
        "run it again: POST /jobs/{id}/retry, or corvo retry",
        cancelled_at=at,
    )


_LOOKS: Final[dict[int, tuple[Callable[[Scene], Finding | None], ...]]] = {
    PENDING: (
        _dependency,
        _paused,
        _full,
        _rate,
        _group_full,
        _group_order,
        _no_worker,
        _behind,
        _ready,
        _expires,
        _last_failure,
    ),
    SCHEDULED: (_scheduled, _paused, _expires, _last_failure),
    RETRYING: (_retrying, _paused, _expires, _last_failure),
    HELD: (_held, _expires, _last_failure),
    ACTIVE: (_cancelling, _silent, _running, _last_failure),
    COMPLETED: (_completed,),
    DEAD: (_dead, _last_failure),
    CANCELLED: (_cancelled,),
}

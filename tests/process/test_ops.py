"""Every op of the table, by curl and by the `corvo` command, on a real server.

REQUESTS has a row for each op that a client requests: the HTTP request, the command, and a check of
the effect, which is the same for both. BY_ITSELF names the ops that the server proposes by itself,
each with a test that observes one. An op that is in neither table fails.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import pytest
from lib.harness import (
    Api,
    ServerProcess,
    advance,
    clean_environment,
    refused,
    running_server,
    until,
)

from corvo import ops
from corvo.limits import OPERATION_IDS_MAX

Names = dict[str, str]


class Row(NamedTuple):
    """`$words` stand for what `ready` has made; `$q` is a queue of the row's own."""

    ready: Callable[[Api, str], Names]
    request: str  # method, path and body
    command: str
    seen: Callable[[Api, Names], bool]
    stdin: str = ""
    header: str = ""


def nothing(_api: Api, _queue: str) -> Names:
    return {}


def pending(api: Api, queue: str) -> Names:
    return {"id": api.enqueue(queue, unique_key="k")}


def two_pending(api: Api, queue: str) -> Names:
    first, second = api.enqueue_many(queue, 2)
    return {"id": first, "id2": second}


def bulk_cancelled(api: Api, queue: str) -> Names:
    body = {"action": "cancel", "job_ids": api.enqueue_many(queue, 2), "async": True}
    task_id = api.ok("POST", "/jobs/bulk", body)["bulk_operation_id"]
    until(lambda: api.ok("GET", f"/bulk/{task_id}")["status"] == "completed", "it does not end")
    return {"id": task_id}


def active(api: Api, queue: str) -> Names:
    api.enqueue(queue, max_retries=3)
    job = api.take(queue)
    return {"id": job["job_id"], "token": job["lease_token"]}


def two_active(api: Api, queue: str) -> Names:
    names = two_pending(api, queue)
    assert len(api.fetch_batch(queue)) == 2
    return names


def dead(api: Api, queue: str) -> Names:
    api.enqueue(queue)
    job = api.take(queue)
    assert api.fail(job, retry=False)[0] == 200
    return {"id": job["job_id"]}


def paused(api: Api, queue: str) -> Names:
    api.ok("POST", f"/queues/{queue}/pause")
    return {}


def throttled(api: Api, queue: str) -> Names:
    api.ok("POST", f"/queues/{queue}/throttle", {"rate": 1, "period": "1h"})
    return {}


def scheduled(api: Api, queue: str) -> Names:
    body = {"name": queue, "queue": queue, "cron": "@yearly"}
    return {"id": api.ok("POST", "/schedules", body)["id"]}


def state(wanted: str, name: str = "id") -> Callable[[Api, Names], bool]:
    return lambda api, names: bool(api.job(names[name])["state"] == wanted)


def of_queue(**fields: Any) -> Callable[[Api, Names], bool]:
    """The queue's document has these values."""

    def seen(api: Api, names: Names) -> bool:
        document = api.queue(names["q"])
        return {name: document.get(name) for name in fields} == fields

    return seen


def schedules_of(api: Api, names: Names) -> list[Any]:
    listed = api.listed("schedules")
    return [row for row in listed if row["name"] == names["q"]]


def gone(path: str) -> Callable[[Api, Names], bool]:
    return lambda api, names: api.get(fill(path, names))[0] == 404


REQUESTS: dict[ops.Op, Row] = {
    ops.ENQUEUE: Row(
        nothing,
        'POST /enqueue {"queue": "$q", "payload": {"n": 1}}',
        "enqueue $q '{\"n\": 1}'",
        lambda api, names: bool(api.take(names["q"])["payload"] == {"n": 1}),
    ),
    ops.ENQUEUE_BATCH: Row(
        nothing,
        'POST /enqueue/batch {"jobs": [{"queue": "$q"}, {"queue": "$q"}],'
        ' "batch": {"on_complete": {"queue": "$q-done"}}}',
        'batches create \'[{"queue": "$q"}, {"queue": "$q"}]\' --on-complete $q-done',
        lambda api, names: (
            [api.ack(job)[0] for job in api.take_many(names["q"], count=2)] == [200, 200]
            and bool(api.take(names["q"] + "-done")["payload"]["batch"]["total"] == 2)
        ),
    ),
    ops.FETCH: Row(
        pending,
        'POST /fetch {"queues": ["$q"], "timeout": 0, "worker_id": "me"}',
        "fetch $q --timeout 0 --worker-id me",
        lambda api, names: bool(api.job(names["id"])["worker_id"] == "me"),
    ),
    ops.FETCH_BATCH: Row(
        two_pending,
        'POST /fetch/batch {"queues": ["$q"], "timeout": 0, "count": 5}',
        "fetch $q --timeout 0 --count 5",
        of_queue(active=2, pending=0),
    ),
    ops.HEARTBEAT: Row(
        active,
        'POST /heartbeat {"jobs": {"$id": {"lease_token": "$token", "progress": {"at": 5}}}}',
        "heartbeat $id --token $token --progress '{\"at\": 5}'",
        lambda api, names: bool(api.job(names["id"])["progress"] == {"at": 5}),
    ),
    ops.ACK: Row(
        active,
        'POST /ack/$id {"lease_token": "$token", "result": [1]}',
        "ack $id --token $token --result '[1]'",
        lambda api, names: bool(api.job(names["id"])["result"] == [1]),
    ),
    ops.ACK_BATCH: Row(
        two_active,
        'POST /ack/batch {"acks": [{"job_id": "$id"}, {"job_id": "$id2"}]}',
        "ack $id $id2",
        of_queue(completed=2, active=0),
    ),
    ops.FAIL: Row(
        active,
        'POST /fail/$id {"lease_token": "$token", "error": "oh"}',
        "fail $id --token $token --error oh",
        lambda api, names: bool(
            state("retrying")(api, names) and api.job(names["id"])["errors"][0]["error"] == "oh"
        ),
    ),
    ops.RELEASE: Row(
        active,
        'POST /release/$id {"lease_token": "$token"}',
        "release $id --token $token",
        lambda api, names: (
            state("pending")(api, names) and bool(api.job(names["id"])["attempt"] == 0)
        ),
    ),
    ops.APPEND_LOGS: Row(
        active,
        'POST /jobs/$id/logs {"lease_token": "$token", "lines": [{"message": "half"}]}',
        "log $id half --lease-token $token",
        lambda api, names: bool(
            api.ok("GET", f"/jobs/{names['id']}/logs")["lines"][0]["message"] == "half"
        ),
    ),
    ops.RETRY_JOB: Row(dead, "POST /jobs/$id/retry", "retry $id", state("pending")),
    ops.CANCEL_JOB: Row(pending, "POST /jobs/$id/cancel", "cancel $id", state("cancelled")),
    ops.MOVE_JOB: Row(
        pending,
        'POST /jobs/$id/move {"queue": "$q-b"}',
        "move $id $q-b",
        lambda api, names: bool(api.job(names["id"])["queue"] == names["q"] + "-b"),
    ),
    ops.DELETE_JOB: Row(pending, "DELETE /jobs/$id", "delete $id", gone("/jobs/$id")),
    ops.BULK_ACTION: Row(
        two_pending,
        'POST /jobs/bulk {"action": "hold", "job_ids": ["$id", "$id2"]}',
        "bulk hold",
        of_queue(held=2),
        stdin="$id\n$id2\n",
    ),
    ops.BULK_UNDO: Row(
        bulk_cancelled,
        "POST /bulk/$id/undo {}",
        "bulk undo $id",
        of_queue(pending=2, cancelled=0),
    ),
    ops.PAUSE_QUEUE: Row(
        pending, "POST /queues/$q/pause", "pause $q", of_queue(paused=True, pending=1)
    ),
    ops.RESUME_QUEUE: Row(paused, "POST /queues/$q/resume", "resume $q", of_queue(paused=False)),
    ops.CLEAR_QUEUE: Row(
        two_pending, "POST /queues/$q/clear", "clear $q --yes", of_queue(pending=0, scheduled=0)
    ),
    ops.DELETE_QUEUE: Row(
        two_pending,
        "DELETE /queues/$q?confirm=true",
        "destroy $q --confirm",
        gone("/queues/$q"),
    ),
    ops.SET_CONCURRENCY: Row(
        nothing,
        'POST /queues/$q/concurrency {"max": 3}',
        "concurrency $q 3 --create",
        of_queue(max_concurrency=3),
    ),
    ops.SET_THROTTLE: Row(
        nothing,
        'POST /queues/$q/throttle {"rate": 5, "period": "2s"}',
        "throttle $q 5 2s --create",
        of_queue(rate_limit=5, rate_window_ms=2_000),
    ),
    ops.REMOVE_THROTTLE: Row(
        throttled,
        "DELETE /queues/$q/throttle",
        "throttle $q --remove",
        of_queue(rate_limit=None),
    ),
    ops.SET_GROUP_LIMIT: Row(
        nothing,
        'POST /queues/$q/groups {"concurrency": 2}',
        "groups $q 2 --create",
        of_queue(group_concurrency=2),
    ),
    ops.SET_QUEUE_OPTIONS: Row(
        nothing,
        'POST /queues/$q/aging {"after": "60s"}',
        "aging $q 60s --create",
        of_queue(aging_after=60),
    ),
    ops.RELEASE_LOCK: Row(
        pending,
        'POST /locks/release {"queue": "$q", "unique_key": "k"}',
        "locks release $q k",
        lambda api, names: api.enqueue(names["q"], unique_key="k") != names["id"],
    ),
    ops.SET_SCHEDULE: Row(
        nothing,
        'POST /schedules {"name": "$q", "queue": "$q", "cron": "@yearly"}',
        "schedules create $q --queue $q --cron @yearly",
        lambda api, names: len(schedules_of(api, names)) == 1,
    ),
    ops.DELETE_SCHEDULE: Row(
        scheduled,
        "DELETE /schedules/$id",
        "schedules delete $id",
        lambda api, names: schedules_of(api, names) == [],
    ),
    ops.RUN_SCHEDULE: Row(
        scheduled, "POST /schedules/$id/run", "schedules run $id", of_queue(pending=1)
    ),
    ops.IDEMPOTENT: Row(
        nothing,
        'POST /enqueue {"queue": "$q"}',
        "enqueue $q {} --idempotency-key $q-key",
        of_queue(pending=1),
        header="Idempotency-Key: $q-key",
    ),
}


def fill(text: str, names: Names) -> str:
    return Template(text).substitute(names)


def curl(server: ServerProcess, request: str, header: str) -> None:
    method, path, *body = request.split(" ", 2)
    command = ["curl", "-sS", "--fail-with-body", "-X", method, f"{server.url}/api/v1{path}"]
    if body:
        command += ["-d", body[0]]
    if header:
        command += ["-H", header]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, (command, run.stdout, run.stderr)


def corvo(server: ServerProcess, words: str, stdin: str) -> None:
    command = [sys.executable, "-m", "corvo", *shlex.split(words), "--server", server.url]
    run = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, env=clean_environment()
    )
    assert run.returncode == 0, (command, run.stdout, run.stderr)


@pytest.mark.parametrize("client", ["curl", "corvo"])
@pytest.mark.parametrize("op", REQUESTS, ids=[op.name for op in REQUESTS])
def test_what_is_asked_for(
    shared_server: ServerProcess, api: Api, queue: str, op: ops.Op, client: str
) -> None:
    row = REQUESTS[op]
    names = {"q": queue, **row.ready(api, queue)}
    for _ in range(2 if op is ops.IDEMPOTENT else 1):
        if client == "curl":
            request, header = (
                Template(text).substitute(names) for text in (row.request, row.header)
            )
            curl(shared_server, request, header)
        else:
            words, stdin = (Template(text).substitute(names) for text in (row.command, row.stdin))
            corvo(shared_server, words, stdin)
    until(lambda: row.seen(api, names), f"{op.name} is not seen")


WITHOUT_KEY = (ops.FETCH, ops.FETCH_BATCH, ops.HEARTBEAT)


@pytest.mark.parametrize("op", REQUESTS, ids=[op.name for op in REQUESTS])
def test_sent_again_with_its_key(api: Api, queue: str, op: ops.Op) -> None:
    """Every write takes an Idempotency-Key, and is then done once and answered alike. Fetch and
    heartbeat take none."""
    row = REQUESTS[op]
    names = {"q": queue, **row.ready(api, queue)}
    method, path, *body = fill(row.request, names).split(" ", 2)
    key = {"Idempotency-Key": f"{queue} {op.name}"}
    replies = [api.call(method, path, body[0].encode() if body else None, key) for _ in range(2)]
    for reply in replies:
        if op in WITHOUT_KEY:
            refused(reply, 400, "VALIDATION_ERROR")
        else:
            assert reply[0] < 300 and reply == replies[0]
    if op not in WITHOUT_KEY:
        until(lambda: row.seen(api, names), f"{op.name} is not seen")


def test_a_task_is_stopped_once(api: Api, queue: str) -> None:
    body = {"action": "cancel", "job_ids": api.enqueue_many(queue, 5_000), "async": True}
    path = f"/bulk/{api.ok('POST', '/jobs/bulk', body)['bulk_operation_id']}/cancel"
    key = {"Idempotency-Key": queue}
    first = api.call("POST", path, None, key)
    assert (first[0], first[1]["status"]) == (200, "cancelled")
    assert api.call("POST", path, None, key) == first


# ---- what the server does by itself ----


def promote_due(api: Api, queue: str) -> None:
    body = {"queue": queue, "scheduled_at": "9999-12-31T23:59:59Z"}
    far = api.ok("POST", "/enqueue", body)["job_id"]
    api.enqueue(queue)
    job = api.take(queue)
    api.fail(job, retry_after="1h")
    advance(api, "1h")
    api.wait_state(job["job_id"], "pending")
    assert api.job(far)["state"] == "scheduled"


def expire_leases(api: Api, queue: str) -> None:
    api.enqueue(queue)
    job = api.take(queue, lease_duration=60)
    advance(api, "2m")
    api.wait_state(job["job_id"], "pending")
    assert api.job(job["job_id"])["errors"][0]["kind"] == "lease_expired"


def expire_jobs(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, expire_after="1h")
    advance(api, "1h")
    api.wait_state(job_id, "dead")


def purge_jobs(api: Api, queue: str) -> None:
    api.ok("POST", f"/queues/{queue}/retention", {"completed": "1m"})
    api.enqueue(queue)
    job = api.take(queue)
    api.ack(job)

    def gone() -> bool:  # what is not in the state store yet waits for the next time
        advance(api, "1h")
        return api.get(f"/jobs/{job['job_id']}")[0] == 404

    until(gone, "it is kept for ever")


def clean_unique(api: Api, queue: str) -> None:
    api.enqueue(queue, unique_key="k", unique_until="period", unique_period=60)
    path = f"/locks?queue={queue}"
    assert len(api.ok("GET", path)["locks"]) == 1
    advance(api, "2m")
    until(lambda: api.ok("GET", path)["locks"] == [], "the lock stays for ever")


def fire_schedule(api: Api, queue: str) -> None:
    api.ok("POST", "/schedules", {"name": queue, "queue": queue, "cron": "@hourly"})
    advance(api, "1h")
    assert api.take(queue)["job_id"]


def bulk_step(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 300)
    task = api.ok("POST", f"/queues/{queue}/clear")["bulk_operation_id"]
    until(lambda: api.ok("GET", f"/bulk/{task}")["status"] == "completed", "it does not end")
    assert api.ok("GET", f"/bulk/{task}")["affected"] == 300


def bulk_add(api: Api, queue: str) -> None:
    """What a filter finds goes into a task in pages."""
    api.enqueue_many(queue, OPERATION_IDS_MAX + 1)
    search = {"queue": queue}
    until(lambda: api.post("/jobs/search", search)[0] == 200, "the mirror never starts")
    body = {"action": "cancel", "filter": {"queue": queue}}
    assert api.ok("POST", "/jobs/bulk", body)["affected"] == OPERATION_IDS_MAX + 1


def remove_stale_workers(api: Api, queue: str) -> None:
    def known() -> bool:
        return any(worker["id"] == queue for worker in api.listed("workers"))

    api.fetch(queue, worker_id=queue)
    until(known, "the worker is not seen")
    advance(api, "25h")
    until(lambda: not known(), "the worker is never forgotten")


def purge_batches(api: Api, queue: str) -> None:
    body = {"jobs": [{"queue": queue}], "batch": {}}
    batch_id = api.ok("POST", "/enqueue/batch", body)["batch_id"]
    api.ack(api.take(queue))
    advance(api, "8d")
    until(lambda: api.get(f"/batches/{batch_id}")[0] == 404, "the batch is kept for ever")


def settle(api: Api, queue: str) -> None:
    first = api.enqueue(queue)
    api.enqueue_many(f"{queue}-x", 2_500, depends_on=[first])
    api.ack(api.take(queue))
    until(lambda: api.queue(f"{queue}-x")["blocked"] == 0, "the dependents are never told")


BY_ITSELF: dict[ops.Op, Callable[[Api, str], None]] = {
    ops.PROMOTE_DUE: promote_due,
    ops.EXPIRE_LEASES: expire_leases,
    ops.EXPIRE_JOBS: expire_jobs,
    ops.PURGE_JOBS: purge_jobs,
    ops.CLEAN_UNIQUE: clean_unique,
    ops.FIRE_SCHEDULE: fire_schedule,
    ops.BULK_STEP: bulk_step,
    ops.BULK_ADD: bulk_add,
    ops.REMOVE_STALE_WORKERS: remove_stale_workers,
    ops.PURGE_BATCHES: purge_batches,
    ops.RESOLVE_DEPENDENTS: settle,
}


@pytest.mark.parametrize("op", BY_ITSELF, ids=[op.name for op in BY_ITSELF])
def test_what_happens_by_itself(tmp_path: Path, op: ops.Op) -> None:
    """On a server of its own, because its clock is set far ahead."""
    with running_server(tmp_path / "data", "--test-clock") as server:
        BY_ITSELF[op](server.api(), "q")


def test_what_is_trimmed(data_dir: Path) -> None:
    """TrimEvents: the log of events keeps its bound of 64 MiB."""
    with running_server(data_dir) as server:
        api = server.api()
        ids = api.enqueue_many("q", 500)
        assert len(api.take_many("q", count=500)) == 500
        beats = {job_id: {"progress": {"text": "x" * 16_000}} for job_id in ids}
        for _ in range(10):
            api.ok("POST", "/heartbeat", {"jobs": beats})
        path = "/cluster/events?limit=1"
        until(lambda: api.ok("GET", path)["events"][0]["seq"] > 1, "the log grows without end")
        assert api.ok("GET", f"/jobs/{ids[0]}/events?limit=1")["events"][0]["type"] == "progress"


# Nobody proposes them: `tests/unit/fsm/test_machine.py` applies them.

READ_ONLY = frozenset((ops.PROMOTE, ops.RECLAIM))

# ---- the table is whole ----

# Features that bring their ops with them.
ELSEWHERE = {
    "agents and their budgets": (26, 27, 28, 29, 30, 51, 52, 53),
    "access, namespaces, audit": (31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 45, *range(54, 59)),
    "webhooks": (42, 43, 44, 60),
    "not needed: windows forget by themselves, an entry holds many ops": (22, 24),
}


def test_the_walk_leaves_no_op_out() -> None:
    walked = [*REQUESTS, *BY_ITSELF, *READ_ONLY, ops.TRIM_EVENTS, ops.STAMP]
    assert len(walked) == len(set(walked))
    assert {op.number for op in walked} == {op.number for op in ops.OPS.values() if op.built}
    elsewhere = [number for numbers in ELSEWHERE.values() for number in numbers]
    assert sorted(elsewhere) == sorted(op.number for op in ops.OPS.values() if not op.built)

"""The HTTP API: what every route answers, and what it refuses."""

import json
import re
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from harness import (
    WAIT_S,
    Api,
    ServerProcess,
    advance,
    clock_ns,
    frozen_clock,
    nanoseconds,
    refused,
    rfc3339,
)
from prometheus_client.parser import text_string_to_metric_families

SECOND_NS = 10**9

# ---- routes ----


ROUTES = [
    ("POST", "/enqueue"),
    ("POST", "/enqueue/batch"),
    ("POST", "/fetch"),
    ("POST", "/fetch/batch"),
    ("POST", "/ack/batch"),
    ("POST", "/ack/x"),
    ("POST", "/fail/x"),
    ("POST", "/heartbeat"),
    ("POST", "/release/x"),
    ("GET, DELETE", "/jobs/x"),
    ("GET", "/jobs/x/events"),
    ("POST", "/jobs/x/retry"),
    ("POST", "/jobs/x/cancel"),
    ("GET", "/queues"),
    ("GET", "/queues/x"),
    ("POST", "/queues/x/pause"),
    ("POST", "/queues/x/resume"),
    ("POST", "/queues/x/concurrency"),
    ("GET", "/workers"),
    ("GET", "/cluster/status"),
    ("GET", "/metrics"),
    ("GET", "/info"),
    ("GET", "/debug/runtime"),
    ("GET", "//healthz"),
    ("GET", "//readyz"),
]


@pytest.mark.parametrize(("methods", "path"), ROUTES)
def test_a_wrong_method_names_the_right_ones(api: Api, methods: str, path: str) -> None:
    allowed = set(methods.split(", "))
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH"} - allowed:
        reply = api.raw(method, path)
        assert reply.status == 405
        assert json.loads(reply.body)["code"] == "METHOD_NOT_ALLOWED"
        assert set((reply.headers["allow"] or "").split(", ")) - {"HEAD", "OPTIONS"} == allowed


UNKNOWN_PATHS = ["/", "/enqueues", "/jobs", "/jobs/x/y", "/queues/x/y", "/ack", "//api/v2/enqueue"]


@pytest.mark.parametrize("path", UNKNOWN_PATHS)
def test_an_unknown_path_is_not_found(api: Api, path: str) -> None:
    refused(api.call("POST", path, {}), 404, "NOT_FOUND")
    refused(api.call("GET", path), 404, "NOT_FOUND")


def test_a_trailing_slash_does_not_matter(api: Api, queue: str) -> None:
    assert api.call("POST", "/enqueue/", {"queue": queue})[0] == 201
    assert api.call("GET", f"/queues/{queue}/")[0] == 200


def test_replies_carry_request_id_and_time(api: Api) -> None:
    reply = api.raw("GET", "/info", None, {"X-Request-Id": "abc-1"})
    assert reply.headers["x-request-id"] == "abc-1"
    assert re.fullmatch(r"proc;dur=\d+\.\d{3}", reply.headers["server-timing"])
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["access-control-allow-origin"] is None
    assert api.raw("GET", "/info").headers["x-request-id"]


def test_small_documents(api: Api) -> None:
    assert api.ok("GET", "//healthz") == {"status": "ok", "raft_state": "leader", "leader": True}
    assert api.ok("GET", "//readyz") == {"status": "ready", "leader_known": True}
    assert {"server_version", "api_version"} <= api.ok("GET", "/info").keys()
    assert {"cpu_user_ns", "cpu_sys_ns", "heap_inuse_bytes"} <= api.ok(
        "GET", "/debug/runtime"
    ).keys()
    status = api.ok("GET", "/cluster/status")
    assert (status["mode"], status["status"], status["durable"]) == ("single", "healthy", True)
    assert status["raft_nosync"] is False
    assert [node["role"] for node in status["nodes"]] == ["leader"]


# ---- bodies ----


BODY_ROUTES = [path for _, path in ROUTES[:9]] + ["/jobs/x/cancel", "/queues/x/concurrency"]


@pytest.mark.parametrize("path", BODY_ROUTES)
@pytest.mark.parametrize("body", [b"{", b"nul", b"{}x", b"{'a':1}", b"{,}", b"\0"])
def test_what_is_not_json_is_a_parse_error(api: Api, path: str, body: bytes) -> None:
    refused(api.post(path, body), 400, "PARSE_ERROR")


@pytest.mark.parametrize("path", BODY_ROUTES)
@pytest.mark.parametrize("body", [[], "x", 1, True])
def test_what_is_no_object_is_refused(api: Api, path: str, body: Any) -> None:
    refused(api.post(path, body), 400, "VALIDATION_ERROR")


UNKNOWN_FIELDS = [
    ("/enqueue", {"queue": "x", "payloads": 1}, "payloads", "payload"),
    ("/enqueue", {"queue": "x", "maxretries": 1}, "maxretries", "max_retries"),
    ("/enqueue", {"queue": "x", "unique_keys": "a"}, "unique_keys", "unique_key"),
    ("/enqueue", {"queue": "x", "schedule_at": "a"}, "schedule_at", "scheduled_at"),
    (
        "/enqueue/batch",
        {"jobs": [{"queue": "x", "retry_backof": "none"}]},
        "retry_backof",
        "retry_backoff",
    ),
    ("/enqueue/batch", {"job": []}, "job", "jobs"),
    ("/fetch", {"queue": ["x"]}, "queue", "queues"),
    ("/fetch/batch", {"queues": ["x"], "counts": 1}, "counts", "count"),
    ("/ack/x", {"results": 1}, "results", "result"),
    ("/ack/x", {"token": "t"}, "token", "lease_token"),
    ("/ack/batch", {"acks": [{"job_id": "x", "lease_tokens": "t"}]}, "lease_tokens", "lease_token"),
    ("/fail/x", {"errors": "e"}, "errors", "error"),
    ("/release/x", {"delays": 1}, "delays", "delay"),
    ("/heartbeat", {"jobs": {"x": {"progres": {}}}}, "progres", "progress"),
    ("/jobs/x/cancel", {"forced": True}, "forced", "force"),
    ("/queues/x/concurrency", {"maxi": 1}, "maxi", "max"),
]


@pytest.mark.parametrize(("path", "body", "field", "nearest"), UNKNOWN_FIELDS)
def test_unknown_fields_are_named_with_the_nearest_known(
    api: Api, path: str, body: Any, field: str, nearest: str
) -> None:
    answer = refused(api.post(path, body), 400, "VALIDATION_ERROR")
    words = re.findall(r"\w+", answer["error"])
    assert field in words and nearest in words, answer


LATER = ["expire_after", "agent", "chain", "depends_on", "group_key", "hold", "routing"]


@pytest.mark.parametrize("field", LATER)
def test_what_this_version_does_not_have_is_refused_by_name(api: Api, field: str) -> None:
    body = {"queue": "x", field: "1"}
    assert field in refused(api.post("/enqueue", body), 400, "VALIDATION_ERROR")["error"]


WRONG_TYPES = [
    ("/enqueue", {"queue": 1}, "queue"),
    ("/enqueue", {"queue": "x", "max_retries": "3"}, "max_retries"),
    ("/enqueue", {"queue": "x", "max_retries": 1.5}, "max_retries"),
    ("/enqueue", {"queue": "x", "tags": []}, "tags"),
    ("/enqueue", {"queue": "x", "tags": {"a": None}}, "tags"),
    ("/enqueue", {"queue": "x", "tags": {"a": {}}}, "tags"),
    ("/enqueue", {"queue": "x", "tags": {"a": []}}, "tags"),
    ("/enqueue", {"queue": "x", "unique_key": 7}, "unique_key"),
    ("/enqueue", {"queue": "x", "scheduled_at": 7}, "scheduled_at"),
    ("/enqueue", {"queue": "x", "retry_jitter": "x"}, "retry_jitter"),
    ("/enqueue", {"queue": "x", "priority": []}, "priority"),
    ("/fetch", {"queues": "x"}, "queues"),
    ("/fetch", {"queues": [1]}, "queues"),
    ("/fetch", {"queues": ["x"], "timeout": []}, "timeout"),
    ("/fetch", {"queues": ["x"], "timeout": True}, "timeout"),
    ("/fetch/batch", {"queues": ["x"], "count": "2"}, "count"),
    ("/ack/x", {"lease_token": 1}, "lease_token"),
    ("/ack/batch", {"acks": {}}, "acks"),
    ("/fail/x", {"error": 1}, "error"),
    ("/fail/x", {"backtrace": ["a"]}, "backtrace"),
    ("/fail/x", {"retry": "no"}, "retry"),
    ("/heartbeat", {"jobs": []}, "jobs"),
    ("/heartbeat", {"jobs": {"x": 1}}, "jobs"),
    ("/jobs/x/cancel", {"force": 1}, "force"),
    ("/queues/x/concurrency", {"max": "1"}, "max"),
]


@pytest.mark.parametrize(("path", "body", "field"), WRONG_TYPES)
def test_wrong_types_name_the_field(api: Api, path: str, body: Any, field: str) -> None:
    assert field in refused(api.post(path, body), 400, "VALIDATION_ERROR")["error"]


MISSING = [
    ("/enqueue", {}, "queue"),
    ("/enqueue", {"queue": ""}, "queue"),
    ("/enqueue/batch", {}, "jobs"),
    ("/enqueue/batch", {"jobs": []}, "jobs"),
    ("/fetch", {}, "queues"),
    ("/fetch", {"queues": []}, "queues"),
    ("/fetch/batch", {"queues": []}, "queues"),
    ("/ack/batch", {}, "acks"),
    ("/ack/batch", {"acks": []}, "acks"),
    ("/ack/batch", {"acks": [{"lease_token": "t"}]}, "job_id"),
    ("/heartbeat", {}, "jobs"),
]


@pytest.mark.parametrize(("path", "body", "field"), MISSING)
def test_what_is_missing_is_named(api: Api, path: str, body: Any, field: str) -> None:
    assert field in refused(api.post(path, body), 400, "VALIDATION_ERROR")["error"]


# ---- enqueue ----


def test_a_job_with_defaults(api: Api, queue: str) -> None:
    with frozen_clock(api) as now_ns:
        status, answer = api.post("/enqueue", {"queue": queue})
    job_id = answer.pop("job_id")
    assert (status, answer) == (201, {"status": "pending", "unique_existing": False})
    assert re.fullmatch(r"job_[0-9A-Z]{26}", job_id)
    job = api.job(job_id)
    assert nanoseconds(job.pop("created_at")) == now_ns
    assert job == {
        "id": job_id,
        "queue": queue,
        "state": "pending",
        "payload": {},
        "priority": 2,
        "priority_name": "normal",
        "attempt": 0,
        "max_retries": 3,
        "retry_backoff": "exponential",
        "retry_base_delay_ms": 5000,
        "retry_max_delay_ms": 600_000,
        "retry_jitter": 0.1,
    }


def test_a_job_with_everything(api: Api, queue: str) -> None:
    due_ns = clock_ns(api) + 3600 * SECOND_NS
    fields = {
        "payload": [1, {"a": None}],
        "priority": "critical",
        "max_retries": 7,
        "retry_backoff": "linear",
        "retry_base_delay": "1m30s",
        "retry_max_delay": 600.5,
        "retry_jitter": 0.25,
        "scheduled_at": rfc3339(due_ns),
        "tags": {"tenant": "a", "n": 1, "big": 12345678901234567890, "f": 1.50, "yes": True},
        "checkpoint": {"page": 1},
        "parent_id": "job_of_before",
        "unique_key": "k",
        "unique_until": "success",
        "unique_period": "1h",
    }
    status, answer = api.post("/enqueue", {"queue": queue, **fields})
    assert (status, answer["status"]) == (201, "scheduled")
    job = api.job(answer["job_id"])
    assert nanoseconds(job["scheduled_at"]) == due_ns
    wanted = {
        "state": "scheduled",
        "payload": [1, {"a": None}],
        "priority": 0,
        "priority_name": "critical",
        "max_retries": 7,
        "retry_backoff": "linear",
        "retry_base_delay_ms": 90_000,
        "retry_max_delay_ms": 600_500,
        "retry_jitter": 0.25,
        "checkpoint": {"page": 1},
        "parent_id": "job_of_before",
        "unique_key": "k",
        "unique_until": "success",
    }
    assert {name: job[name] for name in wanted} == wanted
    assert job["tags"] == {
        "tenant": "a",
        "n": "1",
        "big": "12345678901234567890",
        "f": "1.5",
        "yes": "true",
    }


def test_a_time_in_the_past_means_now(api: Api, queue: str) -> None:
    body = {"queue": queue, "scheduled_at": "2001-01-01T00:00:00Z"}
    assert api.post("/enqueue", body)[1]["status"] == "pending"
    assert "scheduled_at" not in api.job(api.take(queue)["job_id"])


def test_null_is_absent(api: Api, queue: str) -> None:
    names = "payload priority max_retries retry_backoff retry_base_delay retry_max_delay "
    names += "retry_jitter scheduled_at tags checkpoint parent_id unique_key unique_until "
    names += "unique_period"
    body = {"queue": queue, **dict.fromkeys(names.split())}
    job = api.job(api.ok("POST", "/enqueue", body)["job_id"])
    assert (job["max_retries"], job["priority"]) == (3, 2)
    assert not {"tags", "checkpoint", "parent_id", "unique_key"} & job.keys()


def test_a_batch_keeps_the_order_and_knows_duplicates(api: Api, queue: str) -> None:
    held = api.enqueue(queue, unique_key="held")
    jobs = [{"queue": queue, "payload": n} for n in range(3)]
    jobs.insert(1, {"queue": queue, "unique_key": "held"})
    jobs += [{"queue": queue, "unique_key": "new"}, {"queue": queue, "unique_key": "new"}]
    status, answer = api.post("/enqueue/batch", {"jobs": jobs})
    ids = answer["job_ids"]
    assert (status, answer["duplicates"], len(ids)) == (201, 2, 6)
    assert ids[1] == held
    assert ids[4] == ids[5]
    assert [api.job(ids[n])["payload"] for n in (0, 2, 3)] == [0, 1, 2]
    assert api.queue(queue)["enqueued"] == 5


def test_a_batch_is_taken_whole_or_not_at_all(api: Api, queue: str) -> None:
    jobs = [{"queue": queue}, {"queue": queue, "max_retries": -1}, {"queue": queue}]
    answer = refused(api.post("/enqueue/batch", {"jobs": jobs}), 400, "VALIDATION_ERROR")
    assert answer["index"] == 1 and "max_retries" in answer["error"]
    refused(api.call("GET", f"/queues/{queue}"), 404, "NOT_FOUND")


# ---- unknown jobs, wrong states, lost leases ----


ACTIONS = [
    ("POST", "/ack/{}"),
    ("POST", "/fail/{}"),
    ("POST", "/release/{}"),
    ("POST", "/jobs/{}/retry"),
    ("POST", "/jobs/{}/cancel"),
    ("GET", "/jobs/{}"),
    ("GET", "/jobs/{}/events"),
    ("DELETE", "/jobs/{}"),
]


@pytest.mark.parametrize(("method", "path"), ACTIONS)
def test_an_unknown_job_is_not_found(api: Api, queue: str, method: str, path: str) -> None:
    deleted = api.enqueue(queue)
    api.ok("DELETE", f"/jobs/{deleted}")
    for job_id in ("job_01ARZ3NDEKTSV4RRFFQ69G5FAV", deleted, "x"):
        answer = refused(api.call(method, path.format(job_id)), 404, "NOT_FOUND")
        assert job_id in answer["error"]


@pytest.mark.parametrize(("method", "path"), ACTIONS)
@pytest.mark.parametrize("job_id", ["a%00b", "a%20b", "%C3%A9", "%FF", "x" * 129])
def test_what_cannot_be_an_id_is_refused(api: Api, method: str, path: str, job_id: str) -> None:
    status, answer = api.call(method, path.format(job_id))
    assert (status, answer["code"]) in ((400, "VALIDATION_ERROR"), (400, "BAD_REQUEST")), answer


def job_in_state(api: Api, queue: str, state: str) -> str:
    """A new job in a state."""
    delay = {"scheduled_at": "9999-01-01T00:00:00Z"} if state == "scheduled" else {}
    retries = 2 if state == "retrying" else 1
    job_id = api.enqueue(queue, max_retries=retries, **delay)
    if state in ("active", "completed", "retrying", "dead"):
        run = api.take(queue)
        assert run["job_id"] == job_id
        if state == "completed":
            api.ack(run)
        elif state != "active":
            api.fail(run, error="no")
    elif state == "cancelled":
        api.ok("POST", f"/jobs/{job_id}/cancel")
    assert api.job(job_id)["state"] == state
    return job_id


REFUSED_STATES = [
    *[
        (path, state)
        for path in ("/ack/{}", "/fail/{}", "/release/{}")
        for state in ("pending", "scheduled", "retrying", "completed", "dead", "cancelled")
    ],
    ("/jobs/{}/retry", "pending"),
    ("/jobs/{}/retry", "active"),
    ("/jobs/{}/cancel", "completed"),
    ("/jobs/{}/cancel", "dead"),
    ("/jobs/{}/cancel", "cancelled"),
]


@pytest.mark.parametrize(("path", "state"), REFUSED_STATES)
def test_a_wrong_state_is_named(api: Api, queue: str, path: str, state: str) -> None:
    job_id = job_in_state(api, queue, state)
    before = api.job(job_id)
    answer = refused(api.post(path.format(job_id)), 409, "INVALID_STATE")
    assert state in answer["error"] and job_id in answer["error"]
    assert api.job(job_id) == before


@pytest.mark.parametrize(
    "state", ["pending", "active", "scheduled", "retrying", "completed", "dead", "cancelled"]
)
def test_a_token_that_is_not_live_is_lost_in_every_state(api: Api, queue: str, state: str) -> None:
    job_id = job_in_state(api, queue, state)
    before = api.job(job_id)
    bad = {"job_id": job_id, "lease_token": "1notatoken"}
    for verb in (api.ack, api.fail, api.release):
        refused(verb(bad), 409, "LEASE_LOST")
    assert api.beat(bad, progress={}, checkpoint=1) == "lost"
    answer = api.ok("POST", "/ack/batch", {"acks": [bad]})
    assert (answer["acked"], answer["failed"][0]["code"]) == (0, "LEASE_LOST")
    assert api.job(job_id) == before


def test_without_a_token_an_active_job_takes_everything(api: Api, queue: str) -> None:
    """Plain curl."""
    ids = api.enqueue_many(queue, 4)
    api.take_many(queue, count=4)
    beats = {"jobs": {ids[0]: {"progress": {"current": 1}}}}
    assert api.ok("POST", "/heartbeat", beats) == {"jobs": {ids[0]: {"status": "ok"}}}
    assert api.post(f"/ack/{ids[0]}", b"")[0] == 200
    assert api.post(f"/fail/{ids[1]}", {"error": "x"})[0] == 200
    assert api.post(f"/release/{ids[2]}", b"")[0] == 200
    assert api.ok("POST", "/ack/batch", {"acks": [{"job_id": ids[3]}]}) == {"acked": 1}
    assert api.job(ids[0])["progress"] == {"current": 1}


# ---- ack ----


def test_ack_keeps_result_and_checkpoint(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, checkpoint="old")
    run = api.take(queue)
    assert api.ack(run, result={"n": 1}, checkpoint="new") == (
        200,
        {"status": "ok", "state": "completed"},
    )
    job = api.job(job_id)
    assert (job["result"], job["checkpoint"]) == ({"n": 1}, "new")
    assert nanoseconds(job["completed_at"]) >= nanoseconds(job["started_at"])
    assert not {"worker_id", "hostname", "lease_expires_at"} & job.keys()


def test_ack_may_be_repeated_with_its_own_token_only(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    run = api.take(queue)
    assert api.ack(run, result=1)[0] == 200
    completed = api.job(job_id)
    assert api.ack(run, result=2)[0] == 200
    acks = {"acks": [{"job_id": job_id, "lease_token": run["lease_token"], "result": 3}]}
    assert api.ok("POST", "/ack/batch", acks) == {"acked": 1}
    assert api.job(job_id) == completed
    assert api.queue(queue)["completed_total"] == 1
    refused(api.post(f"/ack/{job_id}"), 409, "INVALID_STATE")
    refused(api.fail(run), 409, "LEASE_LOST")
    api.ok("POST", f"/jobs/{job_id}/retry")
    refused(api.ack(run), 409, "LEASE_LOST")
    again = api.take(queue)
    refused(api.ack(run), 409, "LEASE_LOST")
    assert api.ack(again)[0] == 200
    refused(api.ack(run), 409, "LEASE_LOST")


def test_ack_batch_reports_each_refused_item(api: Api, queue: str) -> None:
    pending = api.enqueue(queue, scheduled_at="9999-01-01T00:00:00Z")
    api.enqueue_many(queue, 3)
    runs = api.take_many(queue, count=3)
    acks: list[dict[str, Any]] = [
        {"job_id": run["job_id"], "lease_token": run["lease_token"]} for run in runs
    ]
    acks[1]["lease_token"] = "wrong"
    acks += [{"job_id": pending}, {"job_id": "job_nobody"}, acks[0]]
    answer = api.ok("POST", "/ack/batch", {"acks": acks})
    assert answer["acked"] == 3
    assert [(item["job_id"], item["code"]) for item in answer["failed"]] == [
        (runs[1]["job_id"], "LEASE_LOST"),
        (pending, "INVALID_STATE"),
        ("job_nobody", "NOT_FOUND"),
    ]
    assert all(item["error"] for item in answer["failed"])
    assert api.queue(queue)["completed"] == 2


# ---- fail, retry, backoff ----


def test_fail_answers_what_becomes_of_the_job(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=2, retry_backoff="none")
    status, answer = api.fail(api.take(queue), error="first", backtrace="here")
    assert (status, answer["status"], answer["attempts_remaining"]) == (200, "retrying", 1)
    assert nanoseconds(answer["next_attempt_at"]) <= clock_ns(api)
    assert api.fail(api.take(queue)) == (200, {"status": "dead", "attempts_remaining": 0})
    job = api.job(job_id)
    first, second = job["errors"]
    wanted = {"id": 1, "job_id": job_id, "attempt": 1, "kind": "failed", "error": "first"}
    assert {**wanted, "backtrace": "here", "at": first["at"], "created_at": first["at"]} == first
    assert (second["id"], second["attempt"], second["error"]) == (2, 2, "")
    assert nanoseconds(job["failed_at"]) >= nanoseconds(first["at"])


def test_fail_may_forbid_the_retry(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=9)
    answer = api.fail(api.take(queue), error="hopeless", retry=False)
    assert answer == (200, {"status": "dead", "attempts_remaining": 0})
    assert api.job(job_id)["state"] == "dead"


@pytest.mark.parametrize(
    ("value", "seconds"), [("90s", 90), (90, 90), (1.5, 1.5), ("1.5s", 1.5), ("1m", 60)]
)
def test_retry_after_is_exact(api: Api, queue: str, value: Any, seconds: float) -> None:
    api.enqueue(queue, retry_jitter=1)
    with frozen_clock(api) as now_ns:
        answer = api.fail(api.take(queue), retry_after=value)[1]
    assert nanoseconds(answer["next_attempt_at"]) - now_ns == seconds * SECOND_NS


@pytest.mark.parametrize(
    ("backoff", "seconds"),
    [
        ("none", (0, 0, 0, 0)),
        ("fixed", (10, 10, 10, 10)),
        ("linear", (10, 20, 30, 35)),
        ("exponential", (10, 20, 35, 35)),
    ],
)
def test_backoff_strategies(api: Api, queue: str, backoff: str, seconds: tuple[int, ...]) -> None:
    policy = {"retry_base_delay": "10s", "retry_max_delay": "35s", "retry_jitter": 0}
    api.enqueue(queue, max_retries=9, retry_backoff=backoff, **policy)
    for delay in seconds:
        with frozen_clock(api) as now_ns:
            answer = api.fail(api.take(queue))[1]
            assert nanoseconds(answer["next_attempt_at"]) - now_ns == delay * SECOND_NS
            advance(api, f"{delay}s")


def test_retry_leads_back_from_every_resting_state(api: Api, queue: str) -> None:
    for state in ("completed", "dead", "cancelled", "retrying", "scheduled"):
        job_id = job_in_state(api, queue, state)
        assert api.post(f"/jobs/{job_id}/retry") == (200, {"status": "retried"})
        job = api.job(job_id)
        assert (job["state"], job["attempt"]) == ("pending", 0)
        assert not {"scheduled_at", "completed_at", "failed_at"} & job.keys()
        run = api.take(queue)
        assert (run["job_id"], run["attempt"]) == (job_id, 1)
        assert api.ack(run)[0] == 200


# ---- release ----


def test_release_gives_the_attempt_back(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=1)
    behind = api.enqueue(queue)
    run = api.take(queue)
    assert api.release(run, checkpoint={"page": 3}) == (
        200,
        {"status": "released", "state": "pending"},
    )
    refused(api.release(run), 409, "LEASE_LOST")
    again = api.take(queue)
    assert (again["job_id"], again["attempt"]) == (job_id, 1)
    assert again["checkpoint"] == {"page": 3}
    assert api.take(queue)["job_id"] == behind


def test_release_with_a_delay_keeps_the_place(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    behind = api.enqueue(queue)
    with frozen_clock(api) as now_ns:
        assert api.release(api.take(queue), delay="10s")[1]["state"] == "scheduled"
        assert nanoseconds(api.job(job_id)["scheduled_at"]) == now_ns + 10 * SECOND_NS
    assert api.take(queue)["job_id"] == behind
    last = api.enqueue(queue)
    advance(api, "10s")
    api.wait_state(job_id, "pending")
    assert [api.take(queue)["job_id"] for _ in range(2)] == [job_id, last]


def test_releases_in_a_row_slow_down(api: Api, queue: str) -> None:
    """Three are immediate, the fourth waits 1 s, then the wait doubles up to 60 s; a heartbeat
    with progress or checkpoint, an ack or a fail starts the count anew."""
    job_id = api.enqueue(queue, max_retries=9)
    with frozen_clock(api):
        release_and_wait(api, queue, [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60])
        for beat in ({"progress": {"current": 1}}, {"checkpoint": 1}):
            assert api.beat(api.take(queue)) == "ok"
            advance(api, "60s")
            run = api.take(queue)
            assert api.beat(run, **beat) == "ok"
            assert api.release(run)[1]["state"] == "pending"
            release_and_wait(api, queue, [0, 0, 1])
        assert api.fail(api.take(queue), retry_after=0)[0] == 200
        release_and_wait(api, queue, [0, 0, 0, 1])
    assert api.job(job_id)["state"] == "pending"


def release_and_wait(api: Api, queue: str, seconds: list[int]) -> None:
    """Fetch and release again and again; each release waits as long as it should."""
    for delay in seconds:
        run = api.take(queue)
        state = "scheduled" if delay else "pending"
        assert api.release(run) == (200, {"status": "released", "state": state})
        if delay:
            due_ns = nanoseconds(api.job(run["job_id"])["scheduled_at"])
            assert due_ns - clock_ns(api) == delay * SECOND_NS
            advance(api, f"{delay}s")


# ---- cancel, delete ----


@pytest.mark.parametrize("state", ["pending", "scheduled", "retrying"])
@pytest.mark.parametrize("force", [False, True])
def test_a_resting_job_is_cancelled_at_once(api: Api, queue: str, state: str, force: bool) -> None:
    job_id = job_in_state(api, queue, state)
    assert api.post(f"/jobs/{job_id}/cancel", {"force": force}) == (200, {"status": "cancelled"})
    job = api.job(job_id)
    assert job["state"] == "cancelled"
    assert "failed_at" in job and "scheduled_at" not in job
    assert api.fetch(queue) is None


@pytest.mark.parametrize(
    ("verb", "state"), [(Api.ack, "completed"), (Api.fail, "cancelled"), (Api.release, "cancelled")]
)
def test_an_active_job_is_asked_to_stop(
    api: Api, queue: str, verb: Callable[..., Any], state: str
) -> None:
    job_id = api.enqueue(queue)
    run = api.take(queue)
    for _ in range(2):
        assert api.post(f"/jobs/{job_id}/cancel") == (200, {"status": "cancelling"})
        job = api.job(job_id)
        assert job["state"] == "active" and "cancel_requested_at" in job
        assert api.beat(run) == "cancel"
    assert verb(api, run)[0] == 200
    assert api.job(job_id)["state"] == state
    assert api.queue(queue)["active"] == 0
    assert api.fetch(queue) is None


def test_a_cancelled_job_whose_worker_is_silent_is_not_delivered_again(
    api: Api, queue: str
) -> None:
    job_id = api.enqueue(queue)
    api.take(queue, lease_duration=5)
    api.ok("POST", f"/jobs/{job_id}/cancel")
    advance(api, "5s")
    api.wait_state(job_id, "cancelled")
    assert api.fetch(queue) is None


def test_a_forced_cancel_frees_the_slot_at_once(api: Api, queue: str) -> None:
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 1})
    job_id, waiting = api.enqueue_many(queue, 2)
    run = api.take(queue)
    assert api.fetch(queue) is None
    body = {"force": True}
    assert api.post(f"/jobs/{job_id}/cancel", body) == (200, {"status": "cancelled"})
    assert api.take(queue)["job_id"] == waiting
    assert api.beat(run) == "lost"
    refused(api.ack(run), 409, "LEASE_LOST")
    refused(api.post(f"/jobs/{job_id}/cancel", body), 409, "INVALID_STATE")


@pytest.mark.parametrize(
    "state", ["pending", "active", "scheduled", "retrying", "completed", "dead", "cancelled"]
)
def test_any_job_can_be_deleted(api: Api, queue: str, state: str) -> None:
    job_id = job_in_state(api, queue, state)
    assert api.call("DELETE", f"/jobs/{job_id}") == (200, {"status": "deleted"})
    refused(api.call("GET", f"/jobs/{job_id}"), 404, "NOT_FOUND")
    refused(api.call("DELETE", f"/jobs/{job_id}"), 404, "NOT_FOUND")
    assert api.queue(queue)[state] == 0
    advance(api, "61s")
    assert api.fetch(queue) is None


def test_delete_of_an_active_job_then_ack(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    run = api.take(queue)
    api.ok("DELETE", f"/jobs/{job_id}")
    for verb in (api.ack, api.fail, api.release):
        refused(verb(run), 404, "NOT_FOUND")
    assert api.beat(run) == "lost"


# ---- documents ----


def test_a_delivery_has_all_a_worker_needs(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, payload={"a": 1}, tags={"t": "x"}, checkpoint=5, max_retries=4)
    with frozen_clock(api) as now_ns:
        run = api.take(queue, worker_id="w-1", hostname="h-1", lease_duration=90)
        job = api.job(job_id)
    token, fencing = run.pop("lease_token"), run.pop("fencing")
    assert token and isinstance(token, str) and isinstance(fencing, int)
    assert run == {
        "job_id": job_id,
        "queue": queue,
        "payload": {"a": 1},
        "attempt": 1,
        "max_retries": 4,
        "lease_duration": 90,
        "checkpoint": 5,
        "tags": {"t": "x"},
    }
    assert (job["state"], job["attempt"], job["fencing"]) == ("active", 1, fencing)
    assert (job["worker_id"], job["hostname"]) == ("w-1", "h-1")
    assert nanoseconds(job["started_at"]) == now_ns
    assert nanoseconds(job["lease_expires_at"]) == now_ns + 90 * SECOND_NS
    assert token not in json.dumps(job)


def test_events_tell_the_life_of_a_job(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=2, retry_base_delay="1s", retry_jitter=0)
    run = api.take(queue, worker_id="w")
    api.beat(run, progress={"current": 1})
    api.fail(run, error="no")
    advance(api, "1s")
    api.ack(api.take(queue))
    events = api.ok("GET", f"/jobs/{job_id}/events")["events"]
    assert [event["type"] for event in events] == [
        "enqueued",
        "started",
        "progress",
        "failed",
        "retrying",
        "promoted",
        "started",
        "completed",
    ]
    assert all(event["job_id"] == job_id and event["queue"] == queue for event in events)
    numbers = [event["seq"] for event in events]
    assert numbers == sorted(set(numbers))
    assert [event["at_ns"] for event in events] == sorted(event["at_ns"] for event in events)
    assert events[2]["data"] == {"current": 1}
    assert events[1]["data"]["worker_id"] == "w"
    assert all(nanoseconds(event["created_at"]) == event["at_ns"] for event in events)


def test_workers_are_listed_newest_first(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 2)
    api.take(queue, worker_id=f"{queue}-a", hostname="h")
    advance(api, "10s")
    api.take(queue, f"{queue}-other", worker_id=f"{queue}-b")
    advance(api, "55s")
    mine = [row for row in api.ok("GET", "/workers") if row["id"].startswith(f"{queue}-")]
    assert [row["id"] for row in mine] == [f"{queue}-b", f"{queue}-a"]
    assert [row["status"] for row in mine] == ["healthy", "stale"]
    assert mine[1]["hostname"] == "h"
    assert mine[0]["queues"] == [queue, f"{queue}-other"]


@pytest.mark.parametrize("error", [None, "", "x", "x" * 5000, 'quote " and \u0000'])
def test_events_of_failures_are_valid_whatever_the_error(
    api: Api, queue: str, error: str | None
) -> None:
    job_id = api.enqueue(queue)
    api.fail(api.take(queue), error=error)
    events = api.ok("GET", f"/jobs/{job_id}/events")["events"]
    assert [event["type"] for event in events] == ["enqueued", "started", "failed", "retrying"]
    assert events[2]["data"]["attempt"] == 1
    assert api.job(job_id)["errors"][0]["error"] == (error or "")


def test_a_worker_may_have_any_name(api: Api, queue: str) -> None:
    names = ["a\0b", 'a"b\\c\n', "größe 🦄", "w" * 256]
    api.enqueue_many(queue, len(names))
    for name in names:
        job = api.job(api.take(queue, worker_id=name, hostname=name)["job_id"])
        assert (job["worker_id"], job["hostname"]) == (name, name)
        events = api.ok("GET", f"/jobs/{job['id']}/events")["events"]
        assert events[-1]["data"]["worker_id"] == name
    assert set(names) <= {worker["id"] for worker in api.ok("GET", "/workers")}


def test_half_a_surrogate_pair_is_no_name_or_key(api: Api, queue: str) -> None:
    name = queue.encode()
    for path, body in (
        ("/enqueue", b'{"queue":"%b\\ud800"}' % name),
        ("/enqueue", b'{"queue":"%b","unique_key":"\\udfff"}' % name),
        ("/enqueue", b'{"queue":"%b","tags":{"\\ud800":1}}' % name),
        ("/fetch", b'{"queues":["%b"],"worker_id":"\\ud800"}' % name),
    ):
        refused(api.post(path, body), 400, "PARSE_ERROR")


def test_every_reply_says_its_index(api: Api, queue: str) -> None:
    """So that a reader elsewhere can ask for a state that is not older."""
    seen = []
    for method, path, body in (
        ("POST", "/enqueue", {"queue": queue}),
        ("GET", f"/queues/{queue}", None),
        ("POST", "/fetch", {"queues": [queue]}),
        ("POST", f"/queues/{queue}/pause", {}),
        ("GET", "/queues", None),
    ):
        seen.append(int(api.raw(method, path, body).headers["x-corvo-index"]))
    assert seen[0] <= seen[1] < seen[2] < seen[3] <= seen[4]


def test_metrics_agree_with_the_queues(api: Api, queue: str) -> None:
    """And can be parsed, whatever the queues are called."""
    odd = f'{queue} "quoted" back\\slash 🦄'
    for name in (queue, odd):
        api.enqueue_many(name, 3)
        api.fail(api.take(name), retry=False)
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(api.ok("GET", "/metrics"))
        for sample in family.samples
    }
    for name in (queue, odd):
        document = api.ok("GET", f"/queues/{quote(name)}")
        for state in ("pending", "dead", "active"):
            assert samples["corvo_queue_jobs", *sorted([name, state])] == document[state]
        oldest = "corvo_queue_oldest_ready_seconds"
        assert samples[oldest, *sorted([name, "normal"])] >= 0
    assert samples["corvo_cluster_is_leader",] == 1


@pytest.mark.parametrize(("limit", "timeout"), [(0, 0), (1, WAIT_S)])
def test_one_connection_is_served_in_order(
    shared_server: ServerProcess, api: Api, queue: str, limit: int, timeout: int
) -> None:
    """Sent in one packet: an ack, a new job, and a fetch that gets it, even if the ack has to
    free the only slot first."""
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": limit})
    api.enqueue(queue)
    run = api.take(queue)
    calls = [
        (f"ack/{run['job_id']}", {"lease_token": run["lease_token"]}),
        ("enqueue", {"queue": queue, "payload": "next"}),
        ("fetch", {"queues": [queue], "timeout": timeout}),
    ]
    packet = b""
    for path, body in calls:
        data = json.dumps(body).encode()
        close = "Connection: close\r\n" if path == "fetch" else ""
        head = f"POST /api/v1/{path} HTTP/1.1\r\nHost: t\r\n{close}Content-Length: {len(data)}"
        packet += head.encode() + b"\r\n\r\n" + data
    with socket.create_connection(("127.0.0.1", shared_server.port), WAIT_S) as connection:
        connection.sendall(packet)
        text = connection.makefile("rb").read()
    assert re.findall(rb"HTTP/1.1 (\d+)", text) == [b"200", b"201", b"200"]
    assert b'"payload":"next"' in text

"""The HTTP API: what every route answers, and what it refuses."""

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from lib.harness import (
    WAIT_S,
    Api,
    ServerProcess,
    clock_ns,
    connect,
    frozen_clock,
    nanoseconds,
    post_bytes,
    refused,
    rfc3339,
    until,
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
    ("GET", "/jobs/x/explain"),
    ("GET", "/jobs/x/wait"),
    ("GET", "/jobs/x/events"),
    ("GET", "/jobs/x/errors"),
    ("GET, POST", "/jobs/x/logs"),
    ("POST", "/jobs/x/retry"),
    ("POST", "/jobs/x/cancel"),
    ("GET", "/queues"),
    ("GET, DELETE", "/queues/x"),
    ("POST", "/queues/x/pause"),
    ("POST", "/queues/x/resume"),
    ("POST", "/queues/x/concurrency"),
    ("GET", "/queues/x/events"),
    ("GET", "/locks"),
    ("POST", "/locks/release"),
    ("GET", "/cluster/events"),
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
    assert api.ok("GET", "/healthz") == api.ok("GET", "//healthz")
    until(lambda: api.get("//readyz")[0] == 200, "search never opens")
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


LATER = ["agent", "routing"]


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


# ---- replies ----


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
    assert samples["corvo_loop_turn_seconds_count",] > samples["corvo_raft_entries_total",] > 0
    assert samples["corvo_base_flush_seconds_count",] == samples["corvo_base_flushes_total",]


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
        (f"/ack/{run['job_id']}", {"lease_token": run["lease_token"]}),
        ("/enqueue", {"queue": queue, "payload": "next"}),
        ("/fetch", {"queues": [queue], "timeout": timeout}),
    ]
    packet = b"".join(post_bytes(path, body, path == "/fetch") for path, body in calls)
    with connect(shared_server.port) as connection:
        connection.sendall(packet)
        text = connection.makefile("rb").read()
    assert re.findall(rb"HTTP/1.1 (\d+)", text) == [b"200", b"201", b"200"]
    assert b'"payload":"next"' in text


def test_a_heartbeat_and_an_ack_in_one_packet_both_count(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    job_id = api.enqueue(queue)
    run = api.take(queue)
    token = {"lease_token": run["lease_token"]}
    beat = {"jobs": {job_id: {**token, "checkpoint": "c", "progress": {"at": 9}}}}
    packet = post_bytes("/heartbeat", beat) + post_bytes(f"/ack/{job_id}", token, True)
    with connect(shared_server.port) as connection:
        connection.sendall(packet)
        text = connection.makefile("rb").read()
    assert b'"status":"ok"}}}' in text and text.count(b"HTTP/1.1 200 ") == 2
    job = api.job(job_id)
    assert (job["state"], job["checkpoint"], job["progress"]) == ("completed", "c", {"at": 9})

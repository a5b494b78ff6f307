"""Answers about jobs: explain, wait, events, errors, log lines, unique keys, result schemas."""

import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from lib.harness import (
    WAIT_S,
    Api,
    ServerProcess,
    advance,
    connect,
    frozen_clock,
    nanoseconds,
    refused,
    running_server,
    until,
)

SECOND_NS = 10**9
ODD = 'a/b "é" <script>\\u202e'


class Call:
    """A request on a thread of its own."""

    def __init__(self, server: ServerProcess, method: str, path: str, body: Any = None) -> None:
        self._api = server.api()
        self._call = (method, path, body)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        method, path, body = self._call
        self.reply = self._api.call(method, path, body)

    def answer(self) -> tuple[int, Any]:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "nobody answered"
        return self.reply


def parked(api: Api, count: int) -> None:
    """Until so many requests wait for ends of jobs."""
    until(
        lambda: api.ok("GET", "/cluster/status")["waiting_for_ends"] == count,
        f"never {count} requests wait",
    )


def reasons(api: Api, job_id: str) -> dict[str, Any]:
    """The findings of an explanation, by code."""
    document = api.ok("GET", f"/jobs/{job_id}/explain")
    assert document["job_id"] == job_id
    assert document["summary"] == document["reasons"][0]["message"]
    return {reason["code"]: reason for reason in document["reasons"]}


# ---- explain ----


def test_explain_a_job_that_nobody_asks_for(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    found = reasons(api, job_id)
    assert list(found) == ["no_workers"] and "start a worker" in found["no_workers"]["next"]
    document = api.ok("GET", f"/jobs/{job_id}/explain")
    assert document["workers"] == {"count": 0, "waiting_fetches": 0, "newest": []}
    assert (document["state"], document["jobs_before"]) == ("pending", 0)


def test_explain_what_is_in_the_way(api: Api, queue: str) -> None:
    ids = [api.enqueue(queue) for _ in range(5)]
    first = api.enqueue(queue, priority="critical")
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 1})
    api.ok("POST", f"/queues/{queue}/pause", {})
    assert set(reasons(api, ids[3])) == {"paused", "jobs_before", "no_workers"}
    api.ok("POST", f"/queues/{queue}/resume", {})
    job = api.take(queue, worker_id="w1", hostname="h1")
    assert job["job_id"] == first
    found = reasons(api, ids[3])
    assert list(found) == ["concurrency_limit", "jobs_before"]
    limit = found["concurrency_limit"]
    assert (limit["active"], limit["max_concurrency"]) == (1, 1)
    assert [(h["job_id"], h["worker_id"]) for h in limit["holders"]] == [(first, "w1")]
    assert nanoseconds(limit["holders"][0]["lease_expires_at"])
    assert found["jobs_before"]["jobs_before"] == 3
    api.ack(job)
    assert list(reasons(api, ids[0])) == ["ready"]
    worker = api.ok("GET", f"/jobs/{ids[0]}/explain")["workers"]["newest"][0]
    assert (worker["id"], worker["status"]) == ("w1", "healthy")


def test_explain_what_a_rate_limit_keeps(api: Api, queue: str) -> None:
    ids = api.enqueue_many(queue, 3)
    api.ok("POST", f"/queues/{queue}/throttle", {"rate": 1, "period": "1h"})
    api.take(queue, worker_id=f"worker-of-{queue}")
    found = reasons(api, ids[1])
    assert list(found) == ["rate_limit"]
    limit = found["rate_limit"]
    assert (limit["rate_limit"], limit["rate_used"]) == (1, 1)
    assert limit["rate_window_ms"] == 3_600_000 and " in 1h" in limit["message"]
    assert limit["rate_opens_at"] == api.queue(queue)["rate_opens_at"]
    assert list(reasons(api, ids[2])) == ["rate_limit", "jobs_before"]


def test_explain_what_its_group_keeps(api: Api, queue: str) -> None:
    first, second, third = [api.enqueue(queue, group_key="customer 1") for _ in range(3)]
    other = api.enqueue(queue)
    assert reasons(api, other)["jobs_before"]["jobs_before"] == 3
    api.ok("POST", f"/queues/{queue}/groups", {"concurrency": 1})
    while (job := api.take(queue, worker_id=f"worker-of-{queue}"))["job_id"] != first:
        api.ack(job)
    found = reasons(api, second)
    assert list(found) == ["group_limit"]
    assert (found["group_limit"]["active"], found["group_limit"]["group_concurrency"]) == (1, 1)
    assert found["group_limit"]["group_key"] == "customer 1"
    api.ok("POST", f"/jobs/{first}/hold", {})
    found = reasons(api, third)
    assert list(found) == ["group_order", "jobs_before"]
    assert found["group_order"]["in_front"] == {"job_id": first, "state": "held"}
    assert found["jobs_before"]["jobs_before"] == 1


def test_explain_names_few_of_many_holders(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 40)
    last = api.enqueue(queue)
    api.take_many(queue, count=40)
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 7})
    limit = reasons(api, last)["concurrency_limit"]
    assert limit["active"] == 40 and len(limit["holders"]) == 10


def test_explain_what_waits_for_its_time(api: Api, queue: str) -> None:
    with frozen_clock(api):
        later = api.enqueue(queue, scheduled_at="2999-01-01T00:00:00Z")
        assert reasons(api, later)["scheduled"]["scheduled_at"] == "2999-01-01T00:00:00Z"
        failing = api.enqueue(queue, retry_base_delay="5m", retry_jitter=0)
        api.fail(api.take(queue), error="first line\nsecond")
        found = reasons(api, failing)
        assert list(found) == ["retrying", "failed_before"]
        assert "in 5m" in found["retrying"]["message"]
        assert found["retrying"]["attempts_remaining"] == 2
        assert found["failed_before"]["last_error"] == "first line\nsecond"
        assert "second" not in found["failed_before"]["message"]
        back = api.enqueue(queue)
        api.release(api.take(queue), delay="10m")
        assert "in 10m" in reasons(api, back)["released"]["message"]


def test_explain_what_is_held_and_what_expires(api: Api, queue: str) -> None:
    hold = {"reason": "look at it\nplease", "timeout": "1h", "timeout_action": "approve"}
    with frozen_clock(api):
        job_id = api.enqueue(queue, hold=hold, expire_after="2h")
        found = reasons(api, job_id)
    assert list(found) == ["held", "expires"]
    assert found["held"]["hold_reason"] == hold["reason"]
    assert found["held"]["hold_timeout_action"] == "approve"
    assert "look at it; in 1h the action is approve" in found["held"]["message"]
    assert "in 2h" in found["expires"]["message"]
    api.ok("POST", f"/jobs/{job_id}/approve", {})
    assert list(reasons(api, job_id)) == ["no_workers", "expires"]


def test_explain_what_waits_for_another_job(api: Api, queue: str) -> None:
    first = api.enqueue(queue)
    second = api.enqueue(queue, depends_on=[first])
    found = reasons(api, second)
    assert list(found) == ["dependency", "no_workers"]
    assert found["dependency"]["waits_for"] == 1
    assert found["dependency"]["dependencies"] == [{"job_id": first, "state": "pending"}]
    assert "jobs_before" not in api.ok("GET", f"/jobs/{second}/explain")
    api.ack(api.take(queue, worker_id=f"worker-of-{queue}"))
    assert list(reasons(api, second)) == ["ready"]


def test_an_idempotency_key_covers_logs_and_locks(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, unique_key="k")
    api.take(queue)
    lines, lock = {"lines": [{"message": "m"}]}, {"queue": queue, "unique_key": "k"}
    for path, body in ((f"/jobs/{job_id}/logs", lines), ("/locks/release", lock)):
        headers = {"Idempotency-Key": f"{queue}-{path[-4:]}"}
        replies = [api.raw("POST", path, body, headers) for _ in range(2)]
        assert replies[0].status == 200 and replies[0].body == replies[1].body
    assert len(logs(api, job_id)["lines"]) == 1


@pytest.mark.parametrize("how", ["cancel", "reject", "clear", "expire"])
def test_every_end_is_one(api: Api, shared_server: ServerProcess, queue: str, how: str) -> None:
    fields: dict[str, Any] = {"expire_after": "1h"} if how == "expire" else {}
    job_id = api.enqueue(queue, **fields)
    if how == "reject":
        api.ok("POST", f"/jobs/{job_id}/hold", {})
    wait = Call(shared_server, "GET", f"/jobs/{job_id}/wait?timeout=60")
    parked(api, 1)
    if how == "expire":
        advance(api, "61m")
        status, document = wait.answer()
        assert status in (200, 202)  # the wait is over at the same time
    elif how == "clear":
        api.ok("POST", f"/queues/{queue}/clear", {})
        refused(wait.answer(), 404, "NOT_FOUND")
    else:
        api.ok("POST", f"/jobs/{job_id}/{how}", {})
        status, document = wait.answer()
        assert status == 200 and document["state"] in ("cancelled", "dead")
    parked(api, 0)


def test_explain_a_running_job(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=1)
    job = api.take(queue, worker_id="w9")
    found = reasons(api, job_id)
    assert list(found) == ["active"] and found["active"]["worker_id"] == "w9"
    api.ok("POST", f"/jobs/{job_id}/cancel", {})
    assert list(reasons(api, job_id)) == ["cancelling", "active"]
    with frozen_clock(api):
        advance(api, "50s")
        api.beat(job)
        advance(api, "62s")
        # The lease has another 60 s from the beat on; its end is the server's to see.
    until(lambda: next(iter(reasons(api, job_id))) == "cancelled", "the lease never ended")


@pytest.mark.parametrize("how", ["completed", "dead", "cancelled"])
def test_explain_what_has_ended(api: Api, queue: str, how: str) -> None:
    job_id = api.enqueue(queue, max_retries=1)
    if how == "cancelled":
        api.ok("POST", f"/jobs/{job_id}/cancel", {})
    else:
        job = api.take(queue)
        assert (api.ack(job) if how == "completed" else api.fail(job, error="\ud800"))[0] == 200
    found = reasons(api, job_id)
    assert next(iter(found)) == how
    assert ("next" in found[how]) == (how != "completed")


def test_explain_nothing(api: Api) -> None:
    refused(api.call("GET", "/jobs/nope/explain"), 404, "NOT_FOUND")
    refused(api.call("GET", "/jobs/no%20pe/explain"), 400, "VALIDATION_ERROR")


# ---- wait ----


@pytest.mark.parametrize("how", ["completed", "dead", "cancelled"])
def test_wait_for_an_end(api: Api, shared_server: ServerProcess, queue: str, how: str) -> None:
    job_id = api.enqueue(queue, max_retries=1)
    waits = [Call(shared_server, "GET", f"/jobs/{job_id}/wait?timeout=60") for _ in range(3)]
    parked(api, 3)
    job = api.take(queue)
    if how == "completed":
        api.ack(job, result={"n": 1})
    elif how == "dead":
        api.fail(job, error="boom")
    else:
        api.ok("POST", f"/jobs/{job_id}/cancel", {"force": True})
    for wait in waits:
        status, document = wait.answer()
        assert (status, document["state"]) == (200, how)
        assert document.get("result") == ({"n": 1} if how == "completed" else None)
    parked(api, 0)
    assert api.call("GET", f"/jobs/{job_id}/wait")[0] == 200


def test_wait_ends_with_its_time(api: Api, shared_server: ServerProcess, queue: str) -> None:
    job_id = api.enqueue(queue)
    status, document = api.call("GET", f"/jobs/{job_id}/wait?timeout=0")
    assert (status, document["state"]) == (202, "pending")
    wait = Call(shared_server, "GET", f"/jobs/{job_id}/wait?timeout=1h")
    parked(api, 1)
    advance(api, "61s")
    assert wait.answer()[0] == 202
    parked(api, 0)


def test_wait_for_a_job_that_is_deleted(api: Api, shared_server: ServerProcess, queue: str) -> None:
    job_id = api.enqueue(queue)
    wait = Call(shared_server, "GET", f"/jobs/{job_id}/wait")
    parked(api, 1)
    api.ok("DELETE", f"/jobs/{job_id}")
    refused(wait.answer(), 404, "NOT_FOUND")
    refused(api.call("GET", f"/jobs/{job_id}/wait"), 404, "NOT_FOUND")


def test_a_client_that_is_gone_waits_no_more(
    api: Api, shared_server: ServerProcess, queue: str
) -> None:
    job_id = api.enqueue(queue)
    connection = connect(shared_server.port)
    connection.sendall(
        f"GET /api/v1/jobs/{job_id}/wait HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    )
    parked(api, 1)
    connection.close()
    parked(api, 0)
    api.ack(api.take(queue))


def test_an_enqueue_that_waits(api: Api, shared_server: ServerProcess, queue: str) -> None:
    body = {"queue": queue, "unique_key": "k", "wait": "60s"}
    first = Call(shared_server, "POST", "/enqueue", body)
    parked(api, 1)
    twin = Call(shared_server, "POST", "/enqueue", body)
    parked(api, 2)
    job = api.take(queue)
    api.ack(job, result=[1, 2])
    expected = {"job_id": job["job_id"], "state": "completed", "result": [1, 2]}
    assert first.answer() == (201, {**expected, "status": "completed", "unique_existing": False})
    assert twin.answer() == (200, {**expected, "status": "duplicate", "unique_existing": True})


def test_an_enqueue_that_waits_in_vain_or_for_a_failure(
    api: Api, shared_server: ServerProcess, queue: str
) -> None:
    status, answer = api.post("/enqueue", {"queue": queue, "wait": 0})
    assert (status, answer["status"], answer["state"]) == (201, "pending", "pending")
    api.ack(api.take(queue))
    call = Call(shared_server, "POST", "/enqueue", {"queue": queue, "wait": 9, "max_retries": 1})
    api.fail(api.take(queue), error="boom")
    assert call.answer()[1]["last_error"] == "boom"
    call = Call(shared_server, "POST", "/enqueue", {"queue": queue, "wait": 9})
    parked(api, 1)
    job_id = api.ok("GET", f"/queues/{queue}/events?limit=1")["events"][0]["job_id"]
    api.ok("DELETE", f"/jobs/{job_id}")
    assert call.answer()[1]["status"] == "deleted"


def test_where_wait_is_not_possible(api: Api, queue: str) -> None:
    jobs = [{"queue": queue}, {"queue": queue, "wait": 1}]
    answer = refused(api.post("/enqueue/batch", {"jobs": jobs}), 400, "VALIDATION_ERROR")
    assert answer["field"] == "wait" and answer["index"] == 1
    refused(api.post("/enqueue", {"queue": queue, "wait": -1}), 400, "VALIDATION_ERROR")
    refused(api.call("GET", "/jobs/x/wait?timeout=-1"), 404, "NOT_FOUND")
    job_id = api.enqueue(queue)
    for query in ("timeout=-1", "timeout=x", "timout=1", "timeout=1&timeout=2", "%ff=1", "="):
        refused(api.call("GET", f"/jobs/{job_id}/wait?{query}"), 400, "VALIDATION_ERROR")


def test_a_stop_answers_those_that_wait(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        job_id = api.enqueue("q")
        wait = Call(server, "GET", f"/jobs/{job_id}/wait")
        enqueue = Call(server, "POST", "/enqueue", {"queue": "q", "wait": 60})
        parked(api, 2)
        server.stop()
        assert wait.answer()[0] == 202
        assert enqueue.answer()[1]["status"] == "pending"


# ---- events and errors ----


def test_a_timeline_in_pages(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    job = api.take(queue)
    for n in range(250):
        api.beat(job, progress=n)
    api.ack(job)
    whole: list[Any] = []
    query = "limit=100"
    pages = 0
    while query:
        page = api.ok("GET", f"/jobs/{job_id}/events?{query}")
        whole = page["events"] + whole
        query = f"limit=100&before={page['before']}" if "before" in page else ""
        pages += 1
    assert pages == 3 and len(whole) == 253
    assert [event["type"] for event in whole[:2]] == ["enqueued", "started"]
    assert [event["data"] for event in whole[2:-1]] == list(range(250))
    assert whole[-1]["type"] == "completed"
    assert len(api.ok("GET", f"/jobs/{job_id}/events")["events"]) == 100
    other = api.enqueue(queue)
    seq = api.ok("GET", f"/jobs/{other}/events")["events"][0]["seq"]
    for query in (f"before={seq}", "before=999999999", "before=x", "limit=0", "limit=201"):
        refused(api.call("GET", f"/jobs/{job_id}/events?{query}"), 400, "VALIDATION_ERROR")


def test_many_large_errors_fit_a_page(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=200, retry_backoff="none")
    for n in range(120):
        text = "x" * 60_000 if n >= 100 else str(n)
        assert api.fail(api.take(queue), error=text, backtrace="y" * len(text))[0] == 200
    document = api.job(job_id)
    assert document["error_count"] == 120
    assert [error["id"] for error in document["errors"]] == list(range(113, 121))
    assert len(json.dumps(document)) < 1_100_000
    found: list[Any] = []
    query = ""
    while True:
        page = api.ok("GET", f"/jobs/{job_id}/errors{query}")
        assert page["error_count"] == 120
        found = page["errors"] + found
        if "before" not in page:
            break
        query = f"?before={page['before']}"
    assert [error["attempt"] for error in found] == list(range(1, 121))
    assert [error["error"] for error in found[:100]] == [str(n) for n in range(100)]
    few = api.ok("GET", f"/jobs/{job_id}/errors?limit=2&before=51")["errors"]
    assert [error["id"] for error in few] == [49, 50]


def test_events_of_a_queue_and_of_all(api: Api, queue: str) -> None:
    api.ok("POST", f"/queues/{queue}/pause", {})
    ids = [api.enqueue(queue) for _ in range(5)]
    events = api.ok("GET", f"/queues/{queue}/events")["events"]
    assert [event["type"] for event in events] == ["queue.paused", *["enqueued"] * 5]
    page = api.ok("GET", f"/queues/{queue}/events?limit=2")
    assert [event["job_id"] for event in page["events"]] == ids[3:]
    page = api.ok("GET", f"/queues/{queue}/events?limit=2&before={page['before']}")
    assert [event["job_id"] for event in page["events"]] == ids[1:3]
    after = events[1]["seq"]
    found = api.ok("GET", f"/cluster/events?after_seq={after}&limit=3")["events"]
    assert [event["seq"] for event in found] == [after + 1, after + 2, after + 3]
    refused(api.call("GET", "/queues/none-such/events"), 404, "NOT_FOUND")
    refused(api.call("GET", "/cluster/events?after_seq=-1"), 400, "VALIDATION_ERROR")


# ---- log lines ----


def logs(api: Api, job_id: str, query: str = "") -> Any:
    return api.ok("GET", f"/jobs/{job_id}/logs{query}")


def test_log_lines(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, retry_backoff="none")
    job = api.take(queue)
    lines: list[Any] = [
        {"message": "plain"},
        {"message": ODD + "\0\x1b[31m\ud800", "level": "warning"},
    ]
    lines[1]["at"] = "2026-01-02T03:04:05+01:00"
    body = {"lease_token": job["lease_token"], "lines": lines}
    assert api.post(f"/jobs/{job_id}/logs", body) == (
        200,
        {"status": "ok", "seq": 2, "dropped": 0},
    )
    api.fail(job)
    refused(api.post(f"/jobs/{job_id}/logs", body), 409, "LEASE_LOST")
    refused(api.post(f"/jobs/{job_id}/logs", {"lines": lines}), 409, "INVALID_STATE")
    api.take(queue)
    api.ok("POST", f"/jobs/{job_id}/logs", {"lines": [{"message": "again", "level": "error"}]})
    answer = logs(api, job_id)
    assert (answer["dropped"], answer["has_more"]) == (0, False)
    shown = [(row["seq"], row["attempt"], row["level"], row["message"]) for row in answer["lines"]]
    assert shown == [
        (1, 1, "info", "plain"),
        (2, 1, "warn", lines[1]["message"]),
        (3, 2, "error", "again"),
    ]
    assert answer["lines"][1]["at"] == "2026-01-02T02:04:05Z"
    assert [row["seq"] for row in logs(api, job_id, "?attempt=1")["lines"]] == [1, 2]
    assert [row["seq"] for row in logs(api, job_id, "?after=1&limit=1")["lines"]] == [2]
    assert logs(api, job_id, "?after=1&limit=1")["has_more"]


def test_bounds_of_log_lines(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    api.take(queue)
    path = f"/jobs/{job_id}/logs"
    line = {"message": "x" * 1_000}
    api.ok("POST", path, {"lines": [{"message": "m"}] * 1_000})
    for body in (
        {},
        {"lines": []},
        {"lines": [{"message": "m"}] * 1_001},
        {"lines": [{}]},
        {"lines": [{"message": 5}]},
        {"lines": [{"message": "m", "level": "loud"}]},
        {"lines": [{"message": "m", "at": "yesterday"}]},
        {"lines": [{"message": "m", "time": 1}]},
    ):
        refused(api.post(path, body), 400, "VALIDATION_ERROR")
    refused(api.post(path, {"lines": [line] * 300}), 413, "PAYLOAD_TOO_LARGE")
    for _ in range(10):
        last = api.ok("POST", path, {"lines": [line] * 250})
    assert last["seq"] == 3_500 and last["dropped"] > 2_000
    seqs: list[int] = []
    after = 0
    while True:
        page = logs(api, job_id, f"?after={after}")
        seqs += [row["seq"] for row in page["lines"]]
        assert page["dropped"] == last["dropped"]
        if not page["has_more"]:
            break
        after = seqs[-1]
    assert seqs == list(range(last["dropped"] + 1, 3_501))
    for query in ("?after=-1", "?limit=0", "?limit=1001", "?attempt=0", "?level=x"):
        refused(api.call("GET", path + query), 400, "VALIDATION_ERROR")
    refused(api.post("/jobs/nope/logs", {"lines": [line]}), 404, "NOT_FOUND")
    refused(api.call("GET", "/jobs/nope/logs"), 404, "NOT_FOUND")


def test_log_lines_survive_a_kill_and_go_with_their_job(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        job_id = api.enqueue("q")
        job = api.take("q")
        body = {"lease_token": job["lease_token"], "lines": [{"message": "m"}] * 100}
        api.ok("POST", f"/jobs/{job_id}/logs", body)
        server.kill()
        server.start()
        api = server.api()
        api.ok("POST", f"/jobs/{job_id}/logs", body)
        assert [row["seq"] for row in logs(api, job_id)["lines"]] == list(range(1, 201))
        api.ok("DELETE", f"/jobs/{job_id}")
        refused(api.call("GET", f"/jobs/{job_id}/logs"), 404, "NOT_FOUND")


# ---- unique keys ----


def test_the_holder_of_each_key_is_listed(api: Api, queue: str) -> None:
    keys = [f"k{n}" for n in range(5)] + [ODD]
    ids = {key: api.enqueue(queue, unique_key=key) for key in keys}
    period = {"unique_period": "1h", "unique_until": "period"}
    other = api.enqueue(queue + "-other", unique_key="k0", **period)
    page = api.ok("GET", f"/locks?queue={queue}")
    assert {row["unique_key"]: row["job_id"] for row in page["locks"]} == ids
    assert {row["queue"] for row in page["locks"]} == {queue} and "cursor" not in page
    assert page["locks"][0]["state"] == "pending" and page["locks"][0]["unique_until"] == "final"
    found: list[Any] = []
    query = f"?queue={queue}&limit=4"
    while query:
        page = api.ok("GET", f"/locks{query}")
        found += page["locks"]
        query = f"?queue={queue}&limit=4&cursor={page['cursor']}" if "cursor" in page else ""
    assert {row["unique_key"]: row["job_id"] for row in found} == ids and len(found) == 6
    row = api.ok("GET", f"/locks?queue={quote(queue + '-other')}")["locks"][0]
    assert row["job_id"] == other and nanoseconds(row["expires_at"])
    assert any(row["job_id"] == other for row in api.ok("GET", "/locks?limit=1000")["locks"])
    refused(api.call("GET", "/locks?queue=none-such"), 404, "NOT_FOUND")
    for query in ("cursor=xyz", "limit=1001", "key=k"):
        refused(api.call("GET", f"/locks?{query}"), 400, "VALIDATION_ERROR")


def test_a_key_is_released_by_hand(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, unique_key=ODD)
    body = {"queue": queue, "unique_key": ODD}
    refused(api.post("/locks/release", {**body, "job_id": "other"}), 404, "NOT_FOUND")
    assert api.ok("POST", "/locks/release", body) == {"status": "released", "job_id": job_id}
    refused(api.post("/locks/release", body), 404, "NOT_FOUND")
    assert api.enqueue(queue, unique_key=ODD) != job_id
    assert api.ok("GET", f"/jobs/{job_id}/events")["events"][-1]["type"] == "unlocked"
    for bad in ({}, {"queue": queue}, {"unique_key": "k"}, {**body, "unique_key": "k" * 1_025}):
        refused(api.post("/locks/release", bad), 400, "VALIDATION_ERROR")


# ---- schemas of results ----

PERSON = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
    "$defs": {"age": {"type": "integer", "minimum": 0}},
}


def test_a_result_has_to_meet_its_schema(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, result_schema=PERSON)
    job = api.take(queue)
    assert job["result_schema"] == PERSON == api.job(job_id)["result_schema"]
    answer = refused(
        api.ack(job, result={"age": -1, "name": 5}), 422, "RESULT_SCHEMA_VALIDATION_ERROR"
    )
    found = {error["path"]: error for error in answer["validation_errors"]}
    assert found.keys() == {"/age", "/name"}
    assert found["/age"]["value"] == -1 and "minimum" in found["/age"]["message"]
    refused(api.ack(job), 422, "RESULT_SCHEMA_VALIDATION_ERROR")
    assert api.job(job_id)["state"] == "active" and api.beat(job) == "ok"
    assert api.ack(job, result={"name": "n"})[0] == 200
    assert api.ack(job)[0] == 200, "the token that completed it may say so again"
    stale = {**job, "lease_token": "x"}
    refused(api.ack(stale, result=1), 409, "LEASE_LOST")


def test_a_schema_counts_item_by_item_in_a_batch(api: Api, queue: str) -> None:
    ids = [api.enqueue(queue, result_schema={"type": "integer"}) for _ in range(3)]
    jobs = {job["job_id"]: job for job in api.take_many(queue, count=3)}
    acks = [
        {"job_id": job_id, "lease_token": jobs[job_id]["lease_token"], "result": result}
        for job_id, result in zip(ids, (1, "x", 2), strict=True)
    ]
    answer = api.ok("POST", "/ack/batch", {"acks": acks})
    assert answer["acked"] == 2
    [failed] = answer["failed"]
    assert (failed["job_id"], failed["code"]) == (ids[1], "RESULT_SCHEMA_VALIDATION_ERROR")
    assert failed["validation_errors"][0]["value"] == "x"
    assert [api.job(job_id)["state"] for job_id in ids] == ["completed", "active", "completed"]


def test_a_schema_survives_a_restart(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        api.enqueue("q", result_schema={"type": "integer"})
        server.stop()
        server.start()
        api = server.api()
        job = api.take("q")
        refused(api.ack(job, result="x"), 422, "RESULT_SCHEMA_VALIDATION_ERROR")
        assert api.ack(job, result=10**30)[0] == 200


def doubled(depth: int) -> dict[str, Any]:
    """A schema of a few parts that stands for 2**depth of them."""
    parts: dict[str, Any] = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(depth)
    }
    return {"$ref": "#/$defs/a0", "$defs": parts | {f"a{depth}": {"type": "object"}}}


BAD_SCHEMAS = [
    5,
    "text",
    {"type": "objekt"},
    {"minimum": "3"},
    {"pattern": "("},
    {"pattern": "(?=a)b"},
    {"$ref": "http://example.com/schema.json"},
    {"$ref": "file:///etc/passwd"},
    {"$ref": "#/$defs/none"},
    {"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}},
    {"$dynamicRef": "#node"},
    {"allOf": [{"type": "object"}] * 1_001},
    doubled(40),
]


@pytest.mark.parametrize("schema", BAD_SCHEMAS, ids=lambda schema: str(schema)[:40])
def test_a_schema_that_is_not_usable(api: Api, queue: str, schema: Any) -> None:
    body = {"queue": queue, "result_schema": schema}
    answer = refused(api.post("/enqueue", body), 400, "VALIDATION_ERROR")
    assert answer["field"] == "result_schema" and "result_schema" in answer["error"]
    answer = refused(api.post("/enqueue/batch", {"jobs": [body]}), 400, "VALIDATION_ERROR")
    assert answer["index"] == 0


def test_a_schema_that_is_too_long(api: Api, queue: str) -> None:
    body = {"queue": queue, "result_schema": {"description": "x" * 65_536}}
    refused(api.post("/enqueue", body), 413, "PAYLOAD_TOO_LARGE")


def test_odd_schemas_and_results(api: Api, queue: str) -> None:
    for schema, good, bad in (
        (True, 1, None),
        ({"items": {"$ref": "#"}, "type": "array"}, [[[]]], [[[1]]]),
        ({"const": "\ud800"}, "\ud800", "y"),
        ({"enum": [{"$ref": "nowhere"}, 1]}, 1, 2),
        ({"properties": {"$ref": {"type": "string"}}}, {"$ref": "x"}, {"$ref": 1}),
        ({"maxLength": 3}, "abc", "x" * 900_000),
        ({"items": {"type": "string"}}, ["a"], [1] * 300_000),
    ):
        api.enqueue(queue, result_schema=schema)
        job = api.take(queue)
        if bad is not None:
            answer = refused(api.ack(job, result=bad), 422, "RESULT_SCHEMA_VALIDATION_ERROR")
            assert len(json.dumps(answer)) < 10_000
        assert api.ack(job, result=good)[0] == 200
    endless = api.post("/enqueue", {"queue": queue, "result_schema": {"$ref": "#"}})
    assert refused(endless, 400, "VALIDATION_ERROR")["field"] == "result_schema"


def test_what_no_library_can_read_is_no_valid_result(
    api: Api, shared_server: ServerProcess, queue: str
) -> None:
    job_id = api.enqueue(queue, result_schema={"type": "array"})
    job = api.take(queue)
    for text in (b"1" * 5_000, b"[" * 900 + b"1e999" + b"]" * 900, b"1e999"):
        body = b'{"lease_token":"%b","result":%b}' % (job["lease_token"].encode(), text)
        reply = api.raw("POST", f"/ack/{job_id}", body)
        assert reply.status in (200, 422)
        json.loads(reply.body)
        if reply.status == 200:
            break

"""Names and values that the specification of the HTTP API gives, beyond those of other tests."""

import json
from pathlib import Path
from typing import Any

import pytest
from lib.harness import (
    Api,
    ServerProcess,
    advance,
    connect,
    raw_fetch,
    refused,
    running_server,
    until,
)
from prometheus_client.parser import text_string_to_metric_families


def metrics(api: Api) -> dict[str, float]:
    """Samples without labels."""
    text = api.raw("GET", "/metrics").body.decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


def expire(api: Api, queue: str, **fields: Any) -> str:
    """A job whose first lease expires."""
    job_id = api.enqueue(queue, **fields)
    api.take(queue)
    advance(api, "61s")
    until(lambda: api.job(job_id)["state"] != "active", "the lease does not expire")
    return job_id


# ---- attempts that failed ----


def test_an_expired_lease_is_a_failed_attempt_of_the_queue(api: Api, queue: str) -> None:
    before = metrics(api)["corvo_throughput_failed_total"]
    expire(api, queue, max_retries=1)
    expire(api, queue, max_retries=2)
    api.fail(api.take(queue))
    assert api.queue(queue)["failed"] == 3
    assert api.queue(queue)["lease_expired_total"] == 2
    assert metrics(api)["corvo_throughput_failed_total"] == before + 3


@pytest.mark.parametrize("given", [True, False, None])
def test_the_kind_of_a_failure(api: Api, queue: str, given: bool | None) -> None:
    api.enqueue(queue, max_retries=2)
    api.fail(api.take(queue), **({} if given is None else {"provider_error": given}))
    job_id = api.ok("GET", f"/queues/{queue}/events")["events"][0]["job_id"]
    [record] = api.ok("GET", f"/jobs/{job_id}/errors")["errors"]
    assert record["kind"] == ("provider" if given else "failed")
    assert api.queue(queue)["failed"] == 1


# ---- events ----


def test_a_retry_event_has_the_time_of_the_next_attempt(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=3)
    _, answer = api.fail(api.take(queue), retry_after="90s")
    for path in (f"/jobs/{job_id}/events", f"/queues/{queue}/events"):
        [event] = [e for e in api.ok("GET", path)["events"] if e["type"] == "retrying"]
        assert event["data"] == {
            "attempts_remaining": 2,
            "next_attempt_at": answer["next_attempt_at"],
        }


@pytest.mark.parametrize("name", ["completed", "job.completed", "job.dead", "queue.paused"])
def test_a_filter_of_events_takes_both_names(
    shared_server: ServerProcess, queue: str, name: str
) -> None:
    api = shared_server.api()
    job_id = api.enqueue(queue)
    api.ok("POST", f"/ack/{api.take(queue)['job_id']}", {})
    other = api.enqueue(queue, max_retries=1)
    api.fail(api.take(queue))
    api.ok("POST", f"/queues/{queue}/pause")
    query = f"types={name}&queues={queue}&from=start"
    with connect(shared_server.port) as connection:
        connection.sendall(
            f"GET /api/v1/events?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        text = b""
        while not text.partition(b"data: ")[2].rstrip().endswith(b"}"):
            text += connection.recv(65_536)
    assert b" 200 " in text.partition(b"\r\n")[0]
    wanted = {"completed": job_id, "job.completed": job_id, "job.dead": other}.get(name, queue)
    assert wanted.encode() in text


@pytest.mark.parametrize("name", ["job.", "job.job.completed", "job.queue.paused", "job.typo"])
def test_other_names_of_events_are_refused(api: Api, name: str) -> None:
    refused(api.get(f"/events?types={name}"), 400, "VALIDATION_ERROR")


# ---- unknown fields ----


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/enqueue", {"queue": "q", "payloat": 1, "tag": {}, "x": 2}, ["payloat", "tag", "x"]),
        ("/enqueue/batch", {"jobs": [{"queue": "q"}, {"queue": "q", "a": 1, "b": 2}]}, ["a", "b"]),
        ("/enqueue", {"queue": "q", "hold": {"reasons": "", "timeouts": "1s"}}, None),
        ("/ack/batch", {"acks": [{"job_id": "job_a", "a": 1, "b": 2}]}, ["a", "b"]),
        ("/heartbeat", {"jobs": {"job_a": {}, "job_b": {"a": 1, "b": 2}}}, ["a", "b"]),
        ("/fail/job_a", {"error": "e", "backtraces": "", "agent": 1}, ["backtraces", "agent"]),
        ("/enqueue", {"queue": "q", "agent": {}, "routin": 1}, ["agent", "routin"]),
        ("/enqueue", {"queue": "q", "one": 1}, ["one"]),
    ],
)
def test_all_unknown_fields_are_named(
    api: Api, path: str, body: Any, names: list[str] | None
) -> None:
    answer = refused(api.post(path, body), 400, "VALIDATION_ERROR")
    names = names or ["reasons", "timeouts"]
    assert answer["field"] == names[0]
    assert all(name in answer["error"] for name in names)
    assert answer.get("fields", [answer["field"]]) == names


def test_unknown_fields_without_end_are_cut(api: Api) -> None:
    body = {f"unknown{n}": n for n in range(20_000)} | {"queue": "q"}
    answer = refused(api.post("/enqueue", body), 400, "VALIDATION_ERROR")
    assert len(json.dumps(answer)) < 4_096
    assert "more" in answer["error"]


def test_unknown_filters_are_named_together(api: Api) -> None:
    for path, body in (
        ("/jobs/search", {"stat": "dead", "queues": "q"}),
        ("/jobs/bulk", {"action": "cancel", "filter": {"stat": "dead", "queues": "q"}}),
    ):
        answer = refused(api.post(path, body), 400, "VALIDATION_ERROR")
        assert answer["field"] == "stat"
        assert "stat" in answer["error"] and "queues" in answer["error"]


# ---- documents ----


def test_a_worker_has_the_number_of_its_active_jobs(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 4)
    for worker, count in (("busy", 3), ("idle", 1)):
        body = {"queues": [queue], "worker_id": f"{queue}-{worker}", "timeout": 0, "count": count}
        jobs = api.ok("POST", "/fetch/batch", body)["jobs"]
    api.ok("POST", f"/ack/{jobs[0]['job_id']}", {"lease_token": jobs[0]["lease_token"]})
    active = {worker["id"]: worker["active_jobs"] for worker in api.ok("GET", "/workers")}
    assert active[f"{queue}-busy"] == 3 and active[f"{queue}-idle"] == 0


def test_the_status_names_the_store_of_the_log(api: Api) -> None:
    assert api.ok("GET", "/cluster/status")["raft_store"] == "segments"


# ---- metrics ----


def test_metrics_of_requests_and_timers(data_dir: Path) -> None:
    with running_server(data_dir, "--test-clock", "--no-mirror") as server:
        api = server.api()
        assert metrics(api)["corvo_http_requests_in_flight"] == 1  # this one
        later = raw_fetch(server.port, "empty")
        in_flight = "corvo_http_requests_in_flight"
        until(lambda: metrics(api)[in_flight] == 2, "the fetch is not counted")
        later.close()
        until(lambda: metrics(api)[in_flight] == 1, "the fetch is still counted")
        expire(api, "q", max_retries=1)
        job_id = api.enqueue("q", delay="5s")
        advance(api, "6s")
        until(lambda: api.job(job_id)["state"] == "pending", "the job is not promoted")
        api.enqueue("q", expire_after="5s")
        advance(api, "6s")
        until(lambda: api.queue("q")["dead"] == 2, "the job does not expire")
        found = metrics(api)
        for name in ("promote", "reclaim", "expire"):
            assert found[f"corvo_scheduler_{name}_total"] == 1
            assert found[f"corvo_scheduler_{name}_errors_total"] == 0
            assert found[f"corvo_scheduler_last_{name}_seconds"] > 0
        assert found["corvo_scheduler_purge_total"] == 0


# ---- POST /jobs/bulk-get ----


def test_many_jobs_are_read_at_once(api: Api, queue: str) -> None:
    ids = api.enqueue_many(queue, 3)
    wanted = [ids[2], "job_missing", ids[0], ids[2]]
    jobs = api.ok("POST", "/jobs/bulk-get", {"job_ids": wanted})["jobs"]
    assert [job["id"] for job in jobs] == [ids[2], ids[0]]
    assert jobs[0] == api.job(ids[2])
    assert api.ok("POST", "/jobs/bulk-get", {"job_ids": []}) == {"jobs": []}
    assert api.ok("POST", "/jobs/bulk-get", {}) == {"jobs": []}
    assert api.ok("POST", "/jobs/bulk-get?consistent=true", {"job_ids": ids[:1]}) == {
        "jobs": [api.job(ids[0])]
    }


def test_more_jobs_than_one_turn_reads(api: Api, queue: str) -> None:
    ids = api.enqueue_many(queue, 120)
    jobs = api.ok("POST", "/jobs/bulk-get", {"job_ids": ids})["jobs"]
    assert [job["id"] for job in jobs] == ids
    answer = refused(
        api.post("/jobs/bulk-get", {"job_ids": [*ids, "a b"]}), 400, "VALIDATION_ERROR"
    )
    assert (answer["field"], answer["index"]) == ("job_ids", 120)


@pytest.mark.parametrize("ids", [["job_x"] * 1_001, ["job x"], [""], [5], "job_x", {"a": 1}])
def test_wrong_lists_of_jobs_are_refused(api: Api, ids: Any) -> None:
    answer = refused(api.post("/jobs/bulk-get", {"job_ids": ids}), 400, "VALIDATION_ERROR")
    assert "job_ids" in answer["error"] or answer["field"] == "job_ids"


def test_a_list_of_large_jobs_is_cut_by_bytes(api: Api, queue: str) -> None:
    ids = [api.enqueue(queue, payload="x" * 250_000) for _ in range(40)]
    answer = api.ok("POST", "/jobs/bulk-get", {"job_ids": ids})
    assert 0 < len(answer["jobs"]) < 40
    found = [job["id"] for job in answer["jobs"]]
    rest = ids[len(found) :]
    assert answer["remaining"] == rest

"""The life of a job as the API shows it: what each call does in each state, and what it answers."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from lib.harness import (
    Api,
    advance,
    clock_ns,
    frozen_clock,
    nanoseconds,
    refused,
)

SECOND_NS = 10**9

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


def test_ack_batch_completes_the_other_jobs_when_one_ack_is_invalid(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 4)
    runs = api.take_many(queue, count=4)
    acks: list[dict[str, Any]] = [
        {"job_id": run["job_id"], "lease_token": run["lease_token"]} for run in runs
    ]
    acks[0]["result"] = "x" * 1_048_576
    acks[1]["step_status"] = "stop"
    acks[3]["lease_token"] = "t" * 1_000
    answer = api.ok("POST", "/ack/batch", {"acks": acks})
    assert answer["acked"] == 1
    assert [(item["index"], item["job_id"], item["code"]) for item in answer["failed"]] == [
        (0, runs[0]["job_id"], "PAYLOAD_TOO_LARGE"),
        (1, runs[1]["job_id"], "VALIDATION_ERROR"),
        (3, runs[3]["job_id"], "VALIDATION_ERROR"),
    ]
    assert [api.job(run["job_id"])["state"] for run in runs] == [
        "active",
        "active",
        "completed",
        "active",
    ]


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
    with progress or checkpoint, an ack or a fail restarts the count."""
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
        assert api.take(queue)["job_id"] == job_id


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
    mine = [row for row in api.listed("workers") if row["id"].startswith(f"{queue}-")]
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


def test_a_worker_without_a_name_goes_by_its_address(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    body = {"queues": [queue], "worker_id": ""}  # meant as a name
    assert refused(api.post("/fetch", body), 400, "VALIDATION_ERROR")["field"] == "worker_id"
    api.take(queue, worker_id=None)
    assert api.job(job_id)["worker_id"] == "anonymous-127.0.0.1"


def test_a_worker_may_have_any_name(api: Api, queue: str) -> None:
    names = ["a\0b", 'a"b\\c\n', "größe 🦄", "w" * 256]
    api.enqueue_many(queue, len(names))
    for name in names:
        job = api.job(api.take(queue, worker_id=name, hostname=name)["job_id"])
        assert (job["worker_id"], job["hostname"]) == (name, name)
        events = api.ok("GET", f"/jobs/{job['id']}/events")["events"]
        assert events[-1]["data"]["worker_id"] == name
    assert set(names) <= {worker["id"] for worker in api.listed("workers")}

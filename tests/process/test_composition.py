"""Batches, chains, dependencies and idempotency keys through real servers."""

import json
import threading
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from lib.harness import (
    Api,
    Poll,
    ServerProcess,
    advance,
    clock_ns,
    refused,
    rfc3339,
    running_server,
    until,
)


def batch(api: Api, queue: str, count: int, **callbacks: Any) -> tuple[str, list[str]]:
    """A new batch: its id and those of its jobs."""
    jobs = [{"queue": queue, "payload": number} for number in range(count)]
    answer = api.ok("POST", "/enqueue/batch", {"jobs": jobs, "batch": callbacks})
    return answer["batch_id"], answer["job_ids"]


def counts(api: Api, batch_id: str) -> tuple[int, int, int, int]:
    document = api.ok("GET", f"/batches/{batch_id}")
    return tuple(document[name] for name in ("total", "pending", "succeeded", "failed"))


def write(api: Api, key: str, path: str, body: Any, method: str = "POST") -> tuple[int, Any]:
    return api.call(method, path, body, {"Idempotency-Key": key})


def test_a_batch_with_all_its_callbacks(api: Api, queue: str) -> None:
    callbacks = {
        "on_success": {"queue": f"{queue}-success"},
        "on_complete": {"queue": f"{queue}-complete", "payload": {"a": 1}},
        "on_death": {"queue": f"{queue}-death", "payload": [1]},
    }
    batch_id, ids = batch(api, queue, 3, **callbacks)
    assert batch_id.startswith("batch_") and counts(api, batch_id) == (3, 3, 0, 0)
    late = api.enqueue(queue, batch_id=batch_id)
    assert api.job(late)["batch_id"] == batch_id
    more = api.ok("POST", "/enqueue/batch", {"jobs": [{"queue": queue}], "batch_id": batch_id})
    assert "batch_id" not in more
    document = api.ok("GET", f"/batches/{batch_id}")
    assert document["pending_jobs"] == sorted([*ids, late, *more["job_ids"]])
    assert document["on_complete"] == callbacks["on_complete"]
    assert document["callback_queue"] == f"{queue}-complete"
    assert document["callback_payload"] == {"a": 1} and "finished_at" not in document
    jobs = api.take_many(queue, count=5)
    assert api.fail(jobs[0], retry=False)[0] == 200
    death = api.take(f"{queue}-death")
    report = {"id": batch_id, "total": 5, "succeeded": 0, "failed": 1}
    assert death["payload"] == {"payload": [1], "batch": report}
    for job in jobs[1:]:
        assert api.ack(job)[0] == 200
    done = api.take(f"{queue}-complete")
    assert done["payload"] == {"a": 1, "batch": report | {"succeeded": 4}}
    assert done["max_retries"] == 3
    assert api.fetch(f"{queue}-success") is None
    assert counts(api, batch_id) == (5, 0, 4, 1)
    assert "finished_at" in api.ok("GET", f"/batches/{batch_id}")
    refused(api.post("/enqueue", {"queue": queue, "batch_id": batch_id}), 409, "CONFLICT")
    refused(api.get("/batches/nope"), 404, "NOT_FOUND")


def test_a_callback_wakes_a_waiting_worker(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    batch(api, queue, 1, callback_queue=f"{queue}-done", callback_payload={"x": 1.50})
    poll = Poll(api, shared_server, f"{queue}-done")
    api.ack(api.take(queue))
    assert poll.job()["payload"]["batch"]["succeeded"] == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"jobs": [], "batch": {}}, "jobs is required"),
        ({"jobs": [{"queue": "q"}], "batch": {}, "batch_id": "b"}, "exclude each other"),
        ({"jobs": [{"queue": "q"}], "batch": {"callback_payload": 1}}, "callback_queue"),
        ({"jobs": [{"queue": "q"}], "batch": {"on_death": {}}}, "on_death needs a queue"),
        ({"jobs": [{"queue": "q"}], "batch": {"on_end": {}}}, '"on_end"'),
        ({"jobs": [{"queue": "q", "batch_id": "b"}], "batch": {}}, "the request names a batch"),
        (
            {
                "jobs": [{"queue": "q"}],
                "batch": {"callback_queue": "q", "on_complete": {"queue": "q"}},
            },
            "the same thing",
        ),
    ],
)
def test_a_wrong_batch_is_refused(api: Api, body: Any, words: str) -> None:
    answer = refused(api.post("/enqueue/batch", body), 400, "VALIDATION_ERROR")
    assert words in answer["error"]


def test_a_chain_to_its_end(api: Api, queue: str) -> None:
    chain = {
        "steps": [{"queue": queue}, {"queue": f"{queue}-2", "payload": {"a": 1}}],
        "on_failure": {"queue": f"{queue}-failed"},
        "on_exit": {"queue": f"{queue}-exit"},
    }
    first = api.enqueue(queue, chain=chain, payload={"n": 1}, tags={"t": "x"}, priority="high")
    document = api.job(first)
    assert document["chain_id"].startswith("chn_") and document["chain_step"] == 0
    assert document["chain_config"] == chain
    assert api.ack(api.take(queue), result={"r": 1})[0] == 200
    second = api.take(f"{queue}-2")
    assert second["payload"] == {"previous_job_id": first, "previous_result": {"r": 1}, "a": 1}
    assert second["tags"] == {"t": "x"}
    document = api.job(second["job_id"])
    assert (document["chain_step"], document["priority_name"]) == (1, "high")
    assert api.ack(second, exit_reason="fine")[0] == 200
    assert api.take(f"{queue}-exit")["payload"] == {
        "previous_job_id": second["job_id"],
        "exit_reason": "fine",
    }
    api.enqueue(queue, chain=chain)
    answer = api.ok(
        "POST",
        "/ack/batch",
        {"acks": [{"job_id": api.take(queue)["job_id"], "step_status": "exit"}]},
    )
    assert answer == {"acked": 1} and api.take(f"{queue}-exit")
    dead = api.enqueue(queue, chain=chain)
    api.fail(api.take(queue), error="boom", retry=False)
    assert api.take(f"{queue}-failed")["payload"] == {
        "failed_job_id": dead,
        "failed_step": 0,
        "error": "boom",
    }


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"chain": {}}, "0 steps"),
        ({"chain": {"steps": [{"queue": "a"}]}}, "1 steps"),
        ({"chain": {"steps": [{"queue": "b"}, {"queue": "a"}]}}, '"b"'),
        ({"chain": {"steps": [{"queue": "a"}, {}]}}, "step 1 needs a queue"),
        ({"chain": {"steps": [{"queue": "a"}, {"queue": "b"}], "on_exit": {}}}, "on_exit"),
        ({"chain": {"steps": [{"queue": "a"}, {"queue": "b", "pay": 1}]}}, '"pay"'),
        ({"chain_step": 1}, "chain_id"),
        ({"chain_id": "c", "chain_step": -3}, "-3"),
        ({"depends_on": ["a b"]}, "depends_on"),
        ({"depends_on": ["nope"]}, '"nope" not found'),
        ({"on_dependency_failure": "wait"}, "fail, cancel, run"),
    ],
)
def test_wrong_ties_are_refused(api: Api, queue: str, fields: Any, words: str) -> None:
    answer = refused(
        api.post("/enqueue", {"queue": "a", "unique_key": queue, **fields}), 400, "VALIDATION_ERROR"
    )
    assert words in answer["error"]


def test_a_wrong_step_status_is_refused(api: Api, queue: str) -> None:
    api.enqueue(queue)
    job = api.take(queue)
    answer = refused(api.ack(job, step_status="done"), 400, "VALIDATION_ERROR")
    assert '"done"' in answer["error"]
    assert api.ack(job)[0] == 200


def test_a_chain_that_is_taken_up_in_the_middle(api: Api, queue: str) -> None:
    steps = [{"queue": queue}, {"queue": f"{queue}-2"}, {"queue": f"{queue}-3"}]
    fields = {"chain_config": {"steps": steps}, "chain_step": 1, "chain_id": "chn_mine"}
    job_id = api.enqueue(f"{queue}-2", **fields)
    assert api.job(job_id)["chain_id"] == "chn_mine"
    api.ack(api.take(f"{queue}-2"))
    assert api.job(api.take(f"{queue}-3")["job_id"])["chain_step"] == 2


def test_dependencies(shared_server: ServerProcess, api: Api, queue: str) -> None:
    ids = api.enqueue_many(queue, 2)
    last = api.enqueue(f"{queue}-last", depends_on=[*ids, " ", ids[0]])
    document = api.job(last)
    assert (document["state"], document["depends_on"]) == ("pending", ids)
    assert (document["on_dependency_failure"], document["blocked_by"]) == ("fail", ids)
    assert api.queue(f"{queue}-last")["blocked"] == 1
    poll = Poll(api, shared_server, f"{queue}-last")
    for job in api.take_many(queue, count=2):
        api.ack(job)
    assert poll.job()["job_id"] == last
    assert "blocked_by" not in api.job(last)
    types = [event["type"] for event in api.ok("GET", f"/jobs/{last}/events")["events"]]
    assert types == ["enqueued", "unblocked", "started"]


def test_a_failed_dependency(api: Api, queue: str) -> None:
    first = api.enqueue(queue)
    ids = {
        policy: api.enqueue(f"{queue}-x", depends_on=[first], on_dependency_failure=policy)
        for policy in ("fail", "cancel", "run")
    }
    api.ok("POST", f"/jobs/{first}/cancel")
    assert [api.job(job_id)["state"] for job_id in ids.values()] == ["dead", "cancelled", "pending"]
    (error,) = api.job(ids["fail"])["errors"]
    assert error["kind"] == "dependency"
    assert error["error"] == f'dependency "{first}" cancelled'
    assert api.take(f"{queue}-x")["job_id"] == ids["run"]
    late = api.ok("POST", "/enqueue", {"queue": queue, "depends_on": [first]})
    assert late["status"] == "dead" and api.job(late["job_id"])["state"] == "dead"
    assert api.ok("POST", f"/jobs/{late['job_id']}/retry") == {"status": "retried"}
    assert api.take(queue)["job_id"] == late["job_id"]


def test_thousands_of_dependents_hear_of_it_without_further_requests(api: Api, queue: str) -> None:
    first = api.enqueue(queue)
    api.enqueue_many(f"{queue}-x", 2_500, depends_on=[first])
    assert api.fetch(f"{queue}-x") is None
    api.ack(api.take(queue))
    until(lambda: api.queue(f"{queue}-x")["blocked"] == 0, "the dependents are never told")
    assert len(api.fetch_batch(f"{queue}-x")) == 512


def test_children(api: Api, queue: str) -> None:
    parent = api.enqueue(queue)
    assert "children" not in api.job(parent)
    children = [api.enqueue(queue, parent_id=parent) for _ in range(2)]
    assert api.job(parent)["children"] == children
    assert api.job(children[0])["parent_id"] == parent


def test_every_way_to_finish_leaves_the_batch_once(api: Api, queue: str) -> None:
    """Completed twice, dead, cancelled, deleted twice, lost: five ends, one callback."""
    batch_id, ids = batch(api, queue, 5, callback_queue=f"{queue}-done")
    completed, dead, lost = api.take_many(queue, count=3, lease_duration=1)
    for _ in range(2):
        assert api.ack(completed)[0] == 200
    api.fail(dead, retry=False)
    refused(api.fail(dead), 409, "LEASE_LOST")
    api.ok("POST", f"/jobs/{ids[3]}/cancel")
    api.ok("DELETE", f"/jobs/{ids[4]}")
    refused(api.call("DELETE", f"/jobs/{ids[4]}"), 404, "NOT_FOUND")
    api.ok("POST", f"/jobs/{lost['job_id']}/cancel")
    assert counts(api, batch_id) == (5, 1, 1, 3)
    assert api.fetch(f"{queue}-done") is None
    advance(api, "70s")
    api.wait_state(lost["job_id"], "cancelled")
    assert counts(api, batch_id) == (5, 0, 1, 4)
    assert len(api.fetch_batch(f"{queue}-done")) == 1


def test_a_repeated_write_has_one_effect(api: Api, queue: str) -> None:
    body = {"queue": queue, "payload": {"n": 1}}
    first = write(api, f"{queue}-1", "/enqueue", body)
    assert first[0] == 201 and write(api, f"{queue}-1", "/enqueue", body) == first
    other = {**body, "payload": {"n": 2}}
    refused(write(api, f"{queue}-1", "/enqueue", other), 422, "IDEMPOTENCY_MISMATCH")
    refused(write(api, f"{queue}-1", "/fail/x", {}), 422, "IDEMPOTENCY_MISMATCH")
    jobs = {"jobs": [body, body], "batch": {"callback_queue": f"{queue}-done"}}
    many = write(api, f"{queue}-2", "/enqueue/batch", jobs)
    assert many[0] == 201 and write(api, f"{queue}-2", "/enqueue/batch", jobs) == many
    assert api.queue(queue)["pending"] == 3
    job = api.take(queue)
    ack = {"lease_token": job["lease_token"]}
    paths = {
        "ack": (f"/ack/{job['job_id']}", ack),
        "again": (f"/jobs/{job['job_id']}/retry", {}),
        "cancel": (f"/jobs/{job['job_id']}/cancel", {}),
        "twice": (f"/jobs/{job['job_id']}/cancel", {}),
        "pause": (f"/queues/{queue}/pause", {}),
        "acks": ("/ack/batch", {"acks": [{"job_id": job["job_id"]}]}),
    }
    answers = {name: write(api, queue + name, *call) for name, call in paths.items()}
    assert [status for status, _ in answers.values()] == [200, 200, 200, 409, 200, 200]
    assert {name: write(api, queue + name, *call) for name, call in paths.items()} == answers


def test_a_repeated_schedule_is_created_once(api: Api, queue: str) -> None:
    body = {"name": queue, "queue": queue, "cron": "@daily"}
    first = write(api, queue, "/schedules", body)
    assert first[0] == 201 and write(api, queue, "/schedules", body) == first
    path = f"/schedules/{queue}"
    run = write(api, queue + "run", f"{path}/run", {})
    assert run[0] == 201 and write(api, queue + "run", f"{path}/run", {}) == run
    gone = write(api, queue + "gone", f"/schedules/{first[1]['id']}", None, "DELETE")
    assert gone == (200, {"status": "deleted"})


def test_two_concurrent_writes_with_one_key_have_one_effect(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    answers: list[Any] = []
    start = threading.Barrier(8)

    def send() -> None:
        client = shared_server.api()
        start.wait()
        answers.append(write(client, queue, "/enqueue", {"queue": queue}))
        client.close()

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [answers[0]] * 8 and answers[0][0] == 201
    assert api.queue(queue)["pending"] == 1


def test_what_takes_no_key(api: Api, queue: str) -> None:
    fetch = {"queues": [queue], "timeout": 0}
    refused(write(api, queue, "/fetch", fetch), 400, "VALIDATION_ERROR")
    refused(write(api, queue, "/fetch/batch", fetch), 400, "VALIDATION_ERROR")
    refused(write(api, queue, "/heartbeat", {"jobs": {"x": {}}}), 400, "VALIDATION_ERROR")
    refused(write(api, "", "/enqueue", {"queue": queue}), 400, "VALIDATION_ERROR")
    refused(write(api, "k" * 1_025, "/enqueue", {"queue": queue}), 400, "VALIDATION_ERROR")
    # What was not taken has no outcome: the same key may be sent with a better body.
    refused(write(api, "k" * 1_024, "/enqueue", {"queue": ""}), 400, "VALIDATION_ERROR")
    assert write(api, "k" * 1_024, "/enqueue", {"queue": queue})[0] == 201
    assert write(api, queue, "/queues", None, "GET")[0] == 200
    assert api.enqueue(queue)  # the next request is free of the last one's key


def test_outcomes_survive_a_kill_and_expire(data_dir: Path) -> None:
    flags = ("--test-clock", "--idempotency-retention", "1h", "--idempotency-max-entries", "3")
    with running_server(data_dir, *flags) as server:
        api = server.api()
        body = {"queue": "q"}
        first = [write(api, f"k{n}", "/enqueue", body) for n in range(4)]
        server.kill()
        api = server.start().api()
        assert [write(api, f"k{n}", "/enqueue", body) for n in range(1, 4)] == first[1:]
        assert write(api, "k0", "/enqueue", body) != first[0], "only three are kept"
        page = api.raw("GET", "/metrics").body
        assert b"corvo_idempotency_entries 3.0" in page
        advance(api, "1h")
        assert write(api, "k3", "/enqueue", body) != first[3]


def test_a_kill_during_the_last_acks_gives_one_callback(
    data_dir: Path,
) -> None:
    """Workers ack again what they do not know the fate of."""
    with running_server(data_dir) as server:
        for run in range(20):
            server.environment = {}
            api = server.api()
            queue, done = f"work-{run}", f"done-{run}"
            batch_id, _ = batch(api, queue, 100, callback_queue=done)
            jobs = api.take_many(queue, count=100)
            for job in jobs[:60]:
                assert api.ack(job)[0] == 200
            killer = threading.Timer(run * 0.001, server.kill)
            killer.start()
            unknown = [job for job in jobs[60:] if not acked(api, job)]
            killer.join()
            api.close()
            api = server.start().api()
            for job in [*unknown, *jobs[95:]]:
                assert api.ack(job)[0] == 200
            (callback,) = api.fetch_batch(done)
            assert callback["payload"]["batch"]["succeeded"] == 100
            assert counts(api, batch_id) == (100, 0, 100, 0)
            assert api.queue(done)["enqueued"] == 1
            api.close()


def acked(api: Api, job: dict[str, Any]) -> bool:
    """Whether the ack was answered."""
    try:
        return api.ack(job)[0] == 200
    except (OSError, HTTPException, json.JSONDecodeError):
        return False


def test_a_scheduled_job_holds_its_unique_key(api: Api, queue: str) -> None:
    again = {"queue": queue, "unique_key": "K"}
    at = rfc3339(clock_ns(api) + 2 * 10**9)
    first = api.ok("POST", "/enqueue", {**again, "scheduled_at": at})
    duplicate = {"job_id": first["job_id"], "status": "duplicate", "unique_existing": True}
    assert api.post("/enqueue", again) == (200, {**duplicate, "state": "scheduled"})
    advance(api, "2s")
    api.wait_state(first["job_id"], "pending")
    assert api.post("/enqueue", again) == (200, {**duplicate, "state": "pending"})
    job = api.take(queue)
    assert job["job_id"] == first["job_id"]
    assert api.post("/enqueue", again) == (200, {**duplicate, "state": "active"})
    api.ack(job)
    assert api.enqueue(**again) != first["job_id"]


def test_a_retry_does_not_take_the_key_of_another_job(api: Api, queue: str) -> None:
    first = api.enqueue(queue, unique_key="K")
    api.fail(api.take(queue), retry=False)
    second = api.enqueue(queue, unique_key="K")
    answer = refused(api.post(f"/jobs/{first}/retry"), 409, "UNIQUE_CONFLICT")
    assert (answer["holder_id"], answer["holder_state"]) == (second, "pending")
    assert api.job(first)["state"] == "dead"
    api.ack(api.take(queue))
    assert api.ok("POST", f"/jobs/{first}/retry") == {"status": "retried"}
    assert api.take(queue)["job_id"] == first

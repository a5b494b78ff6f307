"""What people do to jobs and queues, over HTTP: holds, moves, bulk, clear, destroy, retention."""

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
from lib.harness import (
    Api,
    Poll,
    ServerProcess,
    advance,
    refused,
    running_server,
    until,
)

# ---- holds ----


def held(api: Api, queue: str, **hold: Any) -> str:
    return api.enqueue(queue, hold=hold)


def test_a_held_job_and_its_document(api: Api, queue: str) -> None:
    hold = {"reason": "check", "timeout": "1h", "timeout_action": "approve"}
    status, answer = api.post("/enqueue", {"queue": queue, "hold": hold})
    assert (status, answer["status"]) == (201, "held")
    job = api.job(answer["job_id"])
    assert (job["state"], job["hold_reason"]) == ("held", "check")
    assert job["hold_timeout_action"] == "approve" and job["hold_timeout_at"]
    assert api.fetch(queue) is None and api.queue(queue)["held"] == 1


def test_approval_wakes_a_waiting_fetch(shared_server: ServerProcess, api: Api, queue: str) -> None:
    job_id = held(api, queue)
    poll = Poll(api, shared_server, queue)
    assert api.ok("POST", f"/jobs/{job_id}/approve", {"note": "ok"}) == {"status": "pending"}
    assert poll.job()["job_id"] == job_id


def test_approve_and_reject_at_once(shared_server: ServerProcess, api: Api, queue: str) -> None:
    """Exactly one wins, the other is told; never two copies."""
    for _ in range(10):
        job_id = held(api, queue)
        replies: dict[str, Any] = {}
        barrier = threading.Barrier(2)

        def decide(verb: str, job_id: str, replies: Any, barrier: Any) -> None:
            client = shared_server.api()
            barrier.wait()
            replies[verb] = client.post(f"/jobs/{job_id}/{verb}", {})
            client.close()

        threads = [
            threading.Thread(target=decide, args=(verb, job_id, replies, barrier))
            for verb in ("approve", "reject")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = {verb: status for verb, (status, _) in replies.items()}
        assert sorted(statuses.values()) == [200, 409]
        loser = next(verb for verb, status in statuses.items() if status == 409)
        refused(replies[loser], 409, "INVALID_STATE")
        won = api.job(job_id)["state"]
        assert won == ("dead" if loser == "approve" else "pending")
        assert len(api.fetch_batch(queue)) == (won == "pending")


def test_two_rejections_with_cancel_and_feedback(api: Api, queue: str) -> None:
    job_id = held(api, queue)
    assert api.post(f"/jobs/{job_id}/approve")[0] == 200
    refused(api.post(f"/jobs/{job_id}/approve"), 409, "INVALID_STATE")
    refused(api.post(f"/jobs/{job_id}/reject"), 409, "INVALID_STATE")
    api.ok("POST", f"/jobs/{job_id}/hold", {"reason": "look"})
    body = {"revise": True, "feedback": {"say": "bigger"}, "rejected_by": "ann"}
    assert api.ok("POST", f"/jobs/{job_id}/reject", body) == {"status": "pending"}
    run = api.take(queue)
    assert run["feedback"] == {"say": "bigger"}
    assert run["checkpoint"] == {"rejection_feedback": {"say": "bigger"}}
    assert api.fetch(queue) is None, "no second copy"
    second = held(api, queue)
    assert api.ok("POST", f"/jobs/{second}/cancel") == {"status": "cancelled"}
    refused(api.post(f"/jobs/{second}/approve"), 409, "INVALID_STATE")


def test_reject_is_a_death_with_a_reason(api: Api, queue: str) -> None:
    job_id = held(api, queue)
    answer = api.ok("POST", f"/jobs/{job_id}/reject", {"reason": "no", "rejected_by": "ann"})
    assert answer == {"status": "dead"}
    (error,) = api.job(job_id)["errors"]
    assert (error["kind"], error["error"]) == ("rejected", "rejected: no")
    types = [e["type"] for e in api.ok("GET", f"/jobs/{job_id}/events")["events"]]
    assert types == ["enqueued", "held", "rejected", "dead"]


def test_nobody_decides_in_time(api: Api, queue: str) -> None:
    cancelled, approved = held(api, queue, timeout=60), held(api, queue)
    api.ok("POST", f"/jobs/{approved}/approve")
    hold = {"timeout": 60, "timeout_action": "approve"}
    api.ok("POST", f"/jobs/{approved}/hold", hold)
    advance(api, "61s")
    api.wait_state(cancelled, "cancelled")
    api.wait_state(approved, "pending")


@pytest.mark.parametrize(
    "hold",
    [
        {"timeout": -1},
        {"timeout": 0},
        {"timeout_action": "approve"},
        {"timeout": 1, "timeout_action": "explode"},
        {"resaon": "x"},
        {"reason": "x" * 5_000},
    ],
)
def test_a_hold_that_makes_no_sense(api: Api, queue: str, hold: Any) -> None:
    refused(api.post("/enqueue", {"queue": queue, "hold": hold}), 400, "VALIDATION_ERROR")
    job_id = api.enqueue(queue)
    refused(api.post(f"/jobs/{job_id}/hold", hold), 400, "VALIDATION_ERROR")
    assert api.job(job_id)["state"] == "pending"


def test_hold_and_schedule_exclude_each_other(api: Api, queue: str) -> None:
    body = {"queue": queue, "hold": {}, "scheduled_at": "9999-01-01T00:00:00Z"}
    refused(api.post("/enqueue", body), 400, "VALIDATION_ERROR")


# ---- expiry ----


def test_a_job_expires(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, expire_after="60s", priority="critical")
    late = api.enqueue(queue)
    assert api.job(job_id)["expire_at"]
    advance(api, "61s")
    api.wait_state(job_id, "dead")
    assert [e["kind"] for e in api.job(job_id)["errors"]] == ["expired"]
    assert api.take(queue)["job_id"] == late
    refused(api.post("/enqueue", {"queue": queue, "expire_after": 0}), 400, "VALIDATION_ERROR")


# ---- one job ----


def test_move_priority_requeue_run(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=1)
    assert api.ok("POST", f"/jobs/{job_id}/move", {"queue": f"{queue}-b"}) == {"status": "moved"}
    assert api.job(job_id)["queue"] == f"{queue}-b"
    first = api.enqueue(f"{queue}-b", priority="high")
    api.ok("POST", f"/jobs/{job_id}/priority", {"priority": "critical"})
    run = api.take(f"{queue}-b")
    assert run["job_id"] == job_id
    api.fail(run)
    api.wait_state(job_id, "dead")
    assert api.ok("POST", f"/jobs/{job_id}/requeue") == {"status": "requeued"}
    api.ok("POST", f"/jobs/{first}/cancel")
    assert api.take(f"{queue}-b")["attempt"] == 2
    later = api.enqueue(queue, scheduled_at="9999-01-01T00:00:00Z")
    assert api.ok("POST", f"/jobs/{later}/run") == {"status": "pending"}
    assert api.take(queue)["job_id"] == later
    refused(api.post(f"/jobs/{later}/run"), 409, "INVALID_STATE")
    refused(api.post(f"/jobs/{later}/move", {}), 400, "VALIDATION_ERROR")
    refused(api.post(f"/jobs/{later}/priority", {}), 400, "VALIDATION_ERROR")
    refused(api.post("/jobs/nope/run"), 404, "NOT_FOUND")


def test_a_move_frees_a_slot_and_keeps_the_lease(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 1})
    ids = api.enqueue_many(queue, 2)
    run = api.take(queue)
    poll = Poll(api, shared_server, queue)
    api.ok("POST", f"/jobs/{run['job_id']}/move", {"queue": f"{queue}-b"})
    assert poll.job()["job_id"] == ids[1]
    assert api.queue(f"{queue}-b")["active"] == 1
    assert api.ack(run)[0] == 200


# ---- queues ----


def test_drain(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 2)
    run = api.take(queue)
    assert api.ok("POST", f"/queues/{queue}/drain") == {"status": "draining"}
    document = api.queue(queue)
    assert document["paused"] and document["draining"]
    assert api.fetch(queue) is None
    api.ack(run)
    assert "draining" not in api.queue(queue) and api.queue(queue)["paused"]
    api.ok("POST", f"/queues/{queue}/resume")
    assert api.fetch(queue)


def test_clear_while_a_fetch_waits(shared_server: ServerProcess, api: Api, queue: str) -> None:
    ids = api.enqueue_many(queue, 3)
    api.ok("POST", f"/queues/{queue}/pause")
    poll = Poll(api, shared_server, queue)
    assert api.ok("POST", f"/queues/{queue}/clear") == {"status": "cleared", "deleted": 3}
    refused(api.get(f"/jobs/{ids[0]}"), 404, "NOT_FOUND")
    new = api.enqueue(queue)
    api.ok("POST", f"/queues/{queue}/resume")
    assert poll.job()["job_id"] == new
    refused(api.post("/queues/nope/clear"), 404, "NOT_FOUND")


def test_destroy_needs_a_word_and_takes_all(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 3)
    run = api.take(queue)
    other = api.enqueue(f"{queue}:b")
    refused(api.call("DELETE", f"/queues/{queue}"), 400, "VALIDATION_ERROR")
    refused(api.call("DELETE", f"/queues/{queue}?confirm=yes"), 400, "VALIDATION_ERROR")
    answer = api.ok("DELETE", f"/queues/{queue}?confirm=true")
    assert (answer["status"], answer["deleted"]) == ("deleted", 3)
    refused(api.get(f"/queues/{queue}"), 404, "NOT_FOUND")
    assert api.beat(run) == "lost"
    refused(api.ack(run), 404, "NOT_FOUND")
    assert api.job(other)["state"] == "pending"
    refused(api.call("DELETE", f"/queues/{queue}?confirm=true"), 404, "NOT_FOUND")


def wait_flushed(api: Api) -> None:
    """Until what happened before this is in the state store."""

    def flushes() -> int:
        count: int = api.ok("GET", "/cluster/status")["base_flushes_total"]
        return count

    before = flushes()
    api.enqueue("flushed")
    until(lambda: flushes() > before, "nothing is flushed")


def test_retention(tmp_path: Path) -> None:
    flags = ("--test-clock", "--retention", "2h", "--retention-dead", "forever")
    with running_server(tmp_path / "data", *flags, "--retention-interval", "1m") as server:
        api = server.api()
        ids = {}
        for queue, verb in itertools.product(("plain", "short"), ("ack", "fail")):
            ids[queue, verb] = api.enqueue(queue)
            run = api.take(queue)
            reply = api.ack(run) if verb == "ack" else api.fail(run, retry=False)
            assert reply[0] == 200
        api.ok("POST", "/queues/short/retention", {"completed": "10m", "dead": 600})
        assert api.queue("short")["retention"] == {"completed": "10m", "dead": "10m"}
        api.ok("POST", "/queues/short/retention", {"dead": None})
        assert api.queue("short")["retention"] == {"completed": "10m"}
        wait_flushed(api)
        advance(api, "12m")
        until(lambda: api.get(f"/jobs/{ids['short', 'ack']}")[0] == 404, "it stays")
        assert api.get(f"/jobs/{ids['plain', 'ack']}")[0] == 200
        advance(api, "2h")
        until(lambda: api.get(f"/jobs/{ids['plain', 'ack']}")[0] == 404, "it stays")
        for queue in ("plain", "short"):
            assert api.job(ids[queue, "fail"])["state"] == "dead"
            assert api.queue(queue)["completed"] == 0
        reply = api.post("/queues/short/retention", {"dead": "soon"})
        refused(reply, 400, "VALIDATION_ERROR")


# ---- bulk ----


def results(api: Api, task_id: str, kind: str) -> list[Any]:
    items: list[Any] = []
    cursor = ""
    while True:
        path = f"/bulk/{task_id}/results?kind={kind}&limit=300&cursor={cursor}"
        page = api.ok("GET", path)
        items += page["items"]
        cursor = page.get("cursor", "")
        if not cursor:
            return items


@pytest.mark.parametrize(
    "target",
    [
        {"filter": {}},
        {"filter": {"stat": ["dead"]}},
        {"ids": []},
        {"job_ids": []},
        {"job_ids": ["x"], "filter": {"state": ["dead"]}},
        {"job_ids": ["x"], "all": True},
        {"filter": {"state": ["dead"]}, "all": True},
        {"all": False},
        {},
        {"job_ids": ["x", ""]},
        {"job_ids": "x"},
    ],
)
def test_an_incomplete_request_changes_nothing(api: Api, queue: str, target: Any) -> None:
    job_id = api.enqueue(queue)
    refused(api.post("/jobs/bulk", {"action": "cancel", **target}), 400, "VALIDATION_ERROR")
    assert api.job(job_id)["state"] == "pending"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"action": "explode"},
        {"action": "move"},
        {"action": "change_priority"},
        {"action": "change_priority", "priority": "low"},
        {"action": "move", "move_to_queue": ".."},
    ],
)
def test_an_incomplete_action_is_rejected(api: Api, body: Any) -> None:
    refused(api.post("/jobs/bulk", {"job_ids": ["x"], **body}), 400, "VALIDATION_ERROR")


def test_the_result_lists_done_skipped_and_conflict(api: Api, queue: str) -> None:
    dead = api.enqueue(queue, unique_key="k")
    api.fail(api.take(queue), retry=False)
    holder = api.enqueue(queue, unique_key="k")
    cancelled = api.enqueue(queue)
    api.ok("POST", f"/jobs/{cancelled}/cancel")
    ids = [dead, holder, cancelled, "nope", dead]
    answer = api.ok("POST", "/jobs/bulk", {"action": "retry", "job_ids": ids})
    task_id = answer.pop("bulk_operation_id")
    assert answer.pop("duration_ms") >= 0
    assert answer == {"affected": 1, "skipped": 2, "conflicts": 1, "errors": 0}
    assert results(api, task_id, "done") == [{"job_id": cancelled}]
    assert results(api, task_id, "conflict") == [{"job_id": dead, "reason": "conflict"}]
    skipped = [{"job_id": holder, "reason": "state is pending"}]
    skipped.append({"job_id": "nope", "reason": "not_found"})
    assert results(api, task_id, "skipped") == skipped
    document = api.ok("GET", f"/bulk/{task_id}")
    assert (document["status"], document["action"], document["total"]) == ("completed", "retry", 4)
    refused(api.get("/bulk/nope"), 404, "NOT_FOUND")
    refused(api.get(f"/bulk/{task_id}/results?kind=x"), 400, "VALIDATION_ERROR")


def test_a_dry_run_changes_nothing(api: Api, queue: str) -> None:
    ids = api.enqueue_many(queue, 15)
    body = {"action": "cancel", "dry_run": True}
    answer = api.ok("POST", "/jobs/bulk", {**body, "job_ids": [*ids, "nope"]})
    assert answer == {"dry_run": True, "matched": 15, "sample": ids[:10]}
    more = api.enqueue_many(queue, 1_200)
    answer = api.ok("POST", "/jobs/bulk", {**body, "job_ids": [*more, *ids]})
    assert answer == {"dry_run": True, "matched": 1_215, "sample": more[:10]}
    assert not api.post("/jobs/bulk", {**body, "job_ids": ["nope"]})[1]["matched"]
    answer = api.ok("POST", "/jobs/bulk", {**body, "all": True})
    assert answer["matched"] >= 15 and len(answer["sample"]) == 10
    assert api.queue(queue)["pending"] == 1_215


def test_bulk_of_more_than_one_step_answers_when_it_is_done(api: Api, queue: str) -> None:
    ids = api.enqueue_many(queue, 450)
    body = {"action": "move", "job_ids": ids, "move_to_queue": f"{queue}-b"}
    answer = api.ok("POST", "/jobs/bulk", body)
    assert answer["affected"] == 450 and api.queue(f"{queue}-b")["pending"] == 450
    done = results(api, answer["bulk_operation_id"], "done")
    assert [item["job_id"] for item in done] == ids
    taken = api.take_many(f"{queue}-b", count=450)
    assert [run["job_id"] for run in taken] == ids


def test_bulk_on_very_many_ids(api: Api, queue: str) -> None:
    """They are read, checked and proposed in turns; all that holds for few holds for them."""
    ids = api.enqueue_many(queue, 6_000) + api.enqueue_many(queue, 6_000)
    body = {"action": "cancel", "job_ids": [*ids, *ids[:9]], "async": True}
    bad = {**body, "job_ids": [*ids, "a b"]}
    refused(api.post("/jobs/bulk", bad), 400, "VALIDATION_ERROR")
    refused(api.post("/jobs/bulk", {**body, "all": True}), 400, "VALIDATION_ERROR")
    refused(api.post("/jobs/bulk", {**body, "job_ids": ["x"] * 100_001}), 400, "VALIDATION_ERROR")
    key = {"Idempotency-Key": queue}
    first = api.call("POST", "/jobs/bulk", body, key)
    assert first[0] == 202 and first[1]["estimated_total"] == 12_000
    again = api.call("POST", "/jobs/bulk", body, key)[1]
    assert again["bulk_operation_id"] == first[1]["bulk_operation_id"]
    path = f"/bulk/{first[1]['bulk_operation_id']}"
    for count in (3_000, 6_000, 9_000, 12_000):
        until(lambda count=count: api.ok("GET", path)["processed"] >= count, "it stands still")
    until(lambda: api.ok("GET", path)["status"] == "completed", "it goes on for ever")
    assert api.queue(queue)["cancelled"] == 12_000


def test_bulk_in_the_background(api: Api, queue: str) -> None:
    ids = api.enqueue_many(queue, 450)
    body = {"action": "cancel", "job_ids": ids, "async": True}
    status, answer = api.post("/jobs/bulk", body)
    assert (status, answer["status"], answer["estimated_total"]) == (202, "processing", 450)
    path = f"/bulk/{answer['bulk_operation_id']}"
    assert answer["progress_url"] == f"/api/v1{path}/progress"
    until(lambda: api.ok("GET", path)["status"] == "completed", "it goes on for ever")
    assert api.ok("GET", path)["affected"] == 450 and api.queue(queue)["cancelled"] == 450
    assert api.ok("POST", f"{path}/cancel")["status"] == "completed"


def test_bulk_cancel_of_active_jobs(api: Api, queue: str) -> None:
    ids = api.enqueue_many(queue, 2)
    runs = api.take_many(queue, count=2)
    answer = api.ok("POST", "/jobs/bulk", {"action": "cancel", "job_ids": ids})
    assert answer["affected"] == 2 and api.beat(runs[0]) == "cancel"
    body = {"action": "cancel", "job_ids": ids, "force": True}
    assert api.ok("POST", "/jobs/bulk", body)["affected"] == 2
    assert api.beat(runs[0]) == "lost" and api.queue(queue)["cancelled"] == 2


def test_bulk_on_all(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        api = server.api()
        api.enqueue_many("a", 150)
        api.enqueue_many("b", 150)
        answer = api.ok("POST", "/jobs/bulk", {"action": "hold", "all": True, "reason": "stop"})
        assert answer["affected"] == 300
        answer = api.ok("POST", "/jobs/bulk", {"action": "approve", "all": True, "by": "ann"})
        assert answer["affected"] == 300 and api.queue("b")["pending"] == 150
        answer = api.ok("POST", "/jobs/bulk", {"action": "delete", "all": True})
        assert answer["affected"] == 300 and api.queue("a")["pending"] == 0


@pytest.mark.parametrize("action", ["clear", "destroy", "bulk", "all"])
def test_an_unfinished_bulk_operation_continues_after_a_kill(tmp_path: Path, action: str) -> None:
    """kill -9 half-way; others are served before, meanwhile and after."""
    count = 2_000
    with running_server(tmp_path / "data") as server:
        api = server.api()
        ids = api.enqueue_many("q", count)
        if action == "clear":
            answer = api.ok("POST", "/queues/q/clear")
            assert answer["deleted"] == count
        elif action == "destroy":
            answer = api.ok("DELETE", "/queues/q?confirm=true")
        elif action == "bulk":
            body = {"action": "cancel", "job_ids": ids, "async": True}
            answer = api.ok("POST", "/jobs/bulk", body)
        else:
            answer = api.ok("POST", "/jobs/bulk", {"action": "cancel", "all": True, "async": True})
        new = api.enqueue("q", payload="new")
        path = f"/bulk/{answer['bulk_operation_id']}"
        until(lambda: api.ok("GET", path)["processed"] >= 500, "it does not begin")
        server.kill()
        server.start()
        before = api.ok("GET", path)
        assert before["processed"] >= 500
        if action in ("clear", "destroy"):
            assert api.get(f"/jobs/{ids[-1]}")[0] == 404
            run = api.take("q")
            assert run["job_id"] == new
            assert api.ack(run)[0] == 200
        until(lambda: api.ok("GET", path)["status"] == "completed", "it does not end")
        assert api.ok("GET", path)["affected"] == count
        queue = api.queue("q")
        if action in ("clear", "destroy"):
            assert (queue["pending"], queue["completed"]) == (0, 1)
            assert "clearing" not in queue
        else:
            assert (queue["pending"], queue["cancelled"]) == (1, count)
            assert api.take("q")["job_id"] == new


# ---- shutdown, odd texts ----


def test_ten_deploys_kill_no_job(api: Api, queue: str) -> None:
    """Workers that stop give their jobs back: no attempt is used up, the checkpoint stays."""
    ids = api.enqueue_many(queue, 5, max_retries=3)
    for deploy in range(10):
        runs = api.take_many(queue, count=5)
        assert [run["attempt"] for run in runs if run["job_id"] in ids[:2]] == [1, 1]
        for run in runs:
            if run["job_id"] in ids[:2]:
                assert run.get("checkpoint") == ({"at": deploy - 1} if deploy else None)
                # Progress, so that the release is not taken for one that goes in circles.
                assert api.beat(run, progress={"at": deploy}) == "ok"
                status, answer = api.release(run, checkpoint={"at": deploy})
                assert (status, answer["state"]) == (200, "pending")
            else:
                assert api.ack(run)[0] == 200
        api.enqueue_many(queue, 3)
    assert [api.job(job_id)["state"] for job_id in ids[:2]] == ["pending", "pending"]
    assert api.queue(queue)["dead"] == 0


ODD = [
    "<script>alert(1)</script>",
    "\u202eright to left\u202c",
    "\x1b[31mred\x1b[0m",
    "x" * 60_000,
    "a\u0000b",
]


@pytest.mark.parametrize("odd", ODD, ids=["script", "rtl", "ansi", "long", "nul"])
def test_odd_texts_are_returned_unchanged(api: Api, queue: str, odd: str) -> None:
    """In payload, error, tag, checkpoint and reasons; other jobs stay readable beside them."""
    tag = odd[:1_000]
    reason = odd[:4_000]
    job_id = api.enqueue(queue, payload={"odd": odd}, tags={"t": tag}, checkpoint=odd)
    plain = api.enqueue(queue)
    run = api.take(queue)
    assert (run["payload"], run["tags"], run["checkpoint"]) == ({"odd": odd}, {"t": tag}, odd)
    assert api.fail(run, error=odd, backtrace=odd, retry=False)[0] == 200
    (error,) = api.job(job_id)["errors"]
    assert (error["error"], error["backtrace"]) == (odd, odd)
    api.ok("POST", f"/jobs/{plain}/hold", {"reason": reason})
    assert api.job(plain)["hold_reason"] == reason
    api.ok("POST", f"/jobs/{plain}/reject", {"reason": reason, "rejected_by": reason})
    assert api.job(plain)["errors"][0]["error"] == f"rejected: {reason}"
    events = api.ok("GET", f"/jobs/{plain}/events")["events"]
    assert events[2]["data"] == {"reason": reason, "by": reason}
    assert api.job(job_id)["state"] == "dead"


@pytest.mark.parametrize("odd", ODD[:2], ids=["script", "rtl"])
def test_odd_names_of_queues_and_workers(api: Api, queue: str, odd: str) -> None:
    """They come back as they are, in lists that show the others, too."""
    name = f"{queue}{odd}"
    job_id, plain = api.enqueue(name), api.enqueue(queue)
    assert api.take(name, worker_id=name, hostname=odd)["job_id"] == job_id
    assert api.take(queue)["job_id"] == plain
    job = api.job(job_id)
    assert (job["queue"], job["worker_id"], job["hostname"]) == (name, name, odd)
    assert {name, queue} <= {document["name"] for document in api.listed("queues")}
    (worker,) = (row for row in api.listed("workers") if row["id"] == name)
    assert (worker["hostname"], worker["queues"]) == (odd, [name])


def test_an_error_of_200_kb_in_one_line(api: Api, queue: str) -> None:
    """It is refused by name, and the job stays with its worker."""
    job_id = api.enqueue(queue)
    run = api.take(queue)
    answer = refused(api.fail(run, error="x" * 200_000), 413, "PAYLOAD_TOO_LARGE")
    assert "error" in answer["error"] and api.job(job_id)["state"] == "active"
    assert api.fail(run, error="x" * 60_000, backtrace="x" * 200_000)[0] == 200


def test_control_characters_are_rejected_in_names(api: Api) -> None:
    for name in ("\x1b[31m", "a\u0000b"):
        refused(api.post("/enqueue", {"queue": name}), 400, "VALIDATION_ERROR")
        body = {"action": "move", "job_ids": ["x"], "move_to_queue": name}
        refused(api.post("/jobs/bulk", body), 400, "VALIDATION_ERROR")


def test_a_clear_counts_in_the_batch_and_a_move_does_not(api: Api, queue: str) -> None:
    """What hangs on the end of a job: here the unique key."""
    job_id = api.enqueue(queue, unique_key="k")
    api.ok("POST", f"/jobs/{job_id}/move", {"queue": f"{queue}-b"})
    status, answer = api.post("/enqueue", {"queue": f"{queue}-b", "unique_key": "k"})
    assert (status, answer["job_id"]) == (200, job_id)
    api.ok("POST", f"/queues/{queue}-b/clear")
    assert api.enqueue(f"{queue}-b", unique_key="k") != job_id

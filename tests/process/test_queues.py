"""Queues: order, limits, pause, unique keys, and counters that always agree with the jobs."""

from typing import Any

import pytest
from lib.harness import Api, advance, frozen_clock, refused, rfc3339
from lib.traffic import STATES, Shuffle

SECOND_NS = 10**9

# ---- order ----


def test_priority_first_then_first_come(api: Api, queue: str) -> None:
    order = ["normal", "critical", "high", "normal", "critical", "high"]
    ids = {n: api.enqueue(queue, priority=name) for n, name in enumerate(order)}
    delivered = [api.take(queue)["job_id"] for _ in order]
    assert delivered == [ids[n] for n in (1, 4, 2, 5, 0, 3)]


def test_a_fetch_tries_its_queues_in_the_given_order(api: Api, queue: str) -> None:
    names = [f"{queue}-{letter}" for letter in "ab"]
    ids = {name: api.enqueue_many(name, 2) for name in names}
    assert api.take(names[1], names[0])["job_id"] == ids[names[1]][0]
    assert api.take(names[0], names[1])["job_id"] == ids[names[0]][0]
    assert api.take(f"{queue}-none", names[1])["job_id"] == ids[names[1]][1]


def test_a_batch_fetch_goes_round_its_queues(api: Api, queue: str) -> None:
    names = [f"{queue}-{letter}" for letter in "abc"]
    for name, count in zip(names, (4, 1, 2), strict=True):
        api.enqueue_many(name, count)
    jobs = api.fetch_batch(*names, count=6)
    assert [job["queue"][-1] for job in jobs] == list("abcaca")
    assert [job["payload"] for job in jobs] == [0, 0, 0, 1, 1, 2]


def test_who_goes_to_the_tail_and_who_keeps_the_place(api: Api, queue: str) -> None:
    """Failure, end of lease and release keep it; promotion and manual retry go to the tail."""
    names = ["failed", "expired", "released", "delayed release", "retried"]
    with frozen_clock(api) as now_ns:
        later = rfc3339(now_ns + 3 * SECOND_NS)
        ids = {"scheduled": api.enqueue(queue, payload="scheduled", scheduled_at=later)}
        for name in [*names, "behind"]:
            ids[name] = api.enqueue(queue, payload=name, retry_base_delay="2s", retry_jitter=0)
        runs = {name: api.take(queue, lease_duration=5) for name in names}
        api.fail(runs["failed"], retry_after=0)
        api.release(runs["released"])
        api.release(runs["delayed release"], delay="2s")
        api.fail(runs["retried"], retry=False)
        api.ok("POST", f"/jobs/{ids['retried']}/retry")
        advance(api, "5s")
        for job_id in ids.values():
            api.wait_state(job_id, "pending")
        order = [api.take(queue)["payload"] for _ in ids]
    assert order == [*names[:4], "behind", "retried", "scheduled"]


@pytest.mark.parametrize("priority", ["critical", "high", "normal"])
def test_a_retry_after_a_delay_keeps_the_place(api: Api, queue: str, priority: str) -> None:
    failed = api.enqueue(queue, priority=priority, retry_base_delay="5s", retry_jitter=0)
    api.fail(api.take(queue))
    behind = api.enqueue(queue, priority=priority)
    advance(api, "5s")
    api.wait_state(failed, "pending")
    assert [api.take(queue)["job_id"] for _ in range(2)] == [failed, behind]


# ---- concurrency, pause ----


def test_every_transition_keeps_the_priority(api: Api, queue: str) -> None:
    """Each way back to the queue leads to the same priority, in front of the normal jobs."""
    api.enqueue_many(queue, 3)
    job_id = api.enqueue(queue, priority="critical", max_retries=2)

    def back(how: str) -> dict[str, Any]:
        api.wait_state(job_id, "pending")
        run = api.take(queue, lease_duration=30)
        assert (run["job_id"], api.job(job_id)["priority"]) == (job_id, 0), how
        return run

    assert api.fail(back("enqueue"), retry_after="1h")[0] == 200
    advance(api, "1h")
    assert api.release(back("retry of itself"))[0] == 200
    assert api.release(back("release"), delay="1h")[0] == 200
    advance(api, "1h")
    assert api.fail(back("release for later"), retry=False)[0] == 200
    api.ok("POST", f"/jobs/{job_id}/requeue")
    back("requeue")
    advance(api, "1m")
    api.wait_state(job_id, "dead")
    api.ok("POST", f"/jobs/{job_id}/retry")
    back("manual retry")
    advance(api, "1m")
    back("end of the lease")
    api.ok("POST", f"/jobs/{job_id}/hold")
    api.ok("POST", f"/jobs/{job_id}/approve")
    assert api.fail(back("approval"), retry=False)[0] == 200


def test_concurrency_bounds_all_workers_together(api: Api, queue: str) -> None:
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 3})
    api.enqueue_many(queue, 10)
    runs = [api.take(queue, worker_id="a"), *api.fetch_batch(queue, worker_id="b")]
    assert len(runs) == 3
    assert api.fetch(queue) is None and api.fetch_batch(queue) == []
    api.ack(runs[0])
    assert len(api.fetch_batch(queue)) == 1
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 1})
    document = api.queue(queue)
    assert (document["max_concurrency"], document["active"]) == (1, 3)
    for run in runs[1:]:
        api.ack(run)
        assert api.fetch(queue) is None
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 0})
    assert len(api.fetch_batch(queue)) == 6


def test_a_limit_can_be_set_before_the_first_job(api: Api, queue: str) -> None:
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 1})
    api.ok("POST", f"/queues/{queue}/pause")
    document = api.queue(queue)
    assert (document["paused"], document["max_concurrency"]) == (True, 1)
    api.enqueue_many(queue, 2)
    api.ok("POST", f"/queues/{queue}/resume")
    assert len(api.fetch_batch(queue)) == 1


def test_a_paused_queue_takes_everything_but_fetches(api: Api, queue: str) -> None:
    first, second = api.enqueue_many(queue, 2)
    run = api.take(queue)
    for _ in range(2):
        assert api.post(f"/queues/{queue}/pause") == (200, {"status": "paused"})
    assert api.queue(queue)["paused"] is True
    third = api.enqueue(queue)
    assert api.fetch(queue) is None
    assert api.beat(run) == "ok"
    assert api.ack(run)[0] == 200
    assert api.post(f"/jobs/{second}/cancel")[0] == 200
    for _ in range(2):
        assert api.post(f"/queues/{queue}/resume") == (200, {"status": "resumed"})
    assert api.take(queue)["job_id"] == third
    assert api.job(first)["state"] == "completed"


def test_an_unknown_queue_is_empty_for_fetches_and_unknown_for_reads(api: Api, queue: str) -> None:
    assert api.fetch(queue) is None
    refused(api.call("GET", f"/queues/{queue}"), 404, "NOT_FOUND")
    assert queue not in [document["name"] for document in api.listed("queues")]


def test_a_queue_document(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 2)
    run = api.take(queue)
    api.fail(run, retry=False)
    document = api.queue(queue)
    times = {name: document.pop(name) for name in ("created_at", "oldest_pending_at")}
    assert times["created_at"] <= times["oldest_pending_at"]
    assert document == {
        "name": queue,
        "paused": False,
        **dict.fromkeys(STATES, 0),
        "pending": 1,
        "dead": 1,
        "enqueued": 2,
        "blocked": 0,
        "failed": 1,
        "completed_total": 0,
        "dead_total": 1,
        "lease_expired_total": 0,
    }
    names = [document["name"] for document in api.listed("queues")]
    assert names == sorted(names) and queue in names


# ---- unique keys ----


def test_a_duplicate_names_its_holder(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, unique_key="k", unique_until="period", payload=1)
    body = {"queue": queue, "unique_key": "k", "payload": 2}
    duplicate = {"job_id": job_id, "status": "duplicate", "unique_existing": True}
    assert api.post("/enqueue", body) == (200, {**duplicate, "state": "pending"})
    run = api.take(queue)
    assert api.post("/enqueue", body) == (200, {**duplicate, "state": "active"})
    api.ack(run, result={"n": [1]})
    completed = {**duplicate, "state": "completed", "result": {"n": [1]}}
    assert api.post("/enqueue", body) == (200, completed)
    assert api.queue(queue)["enqueued"] == 1
    assert api.job(job_id)["payload"] == 1


def test_the_same_key_in_another_queue_is_another_key(api: Api, queue: str) -> None:
    ids = {api.enqueue(f"{queue}-{letter}", unique_key="k") for letter in "ab"}
    assert len(ids) == 2


FREED_BY = {
    "start": {"started", "completed", "dead", "cancelled", "deleted"},
    "success": {"completed", "cancelled", "deleted"},
    "completion": {"completed", "cancelled", "deleted"},
    "final": {"completed", "dead", "cancelled", "deleted"},
    None: {"completed", "dead", "cancelled", "deleted"},
    "period": {"deleted"},
    "expiry": {"deleted"},
}


@pytest.mark.parametrize("mode", FREED_BY)
@pytest.mark.parametrize("end", ["started", "completed", "dead", "cancelled", "deleted"])
def test_when_a_lock_ends(api: Api, queue: str, mode: str | None, end: str) -> None:
    """In the same step as its reason, so that the very next enqueue is free."""
    body = {"queue": queue, "unique_key": "k", "unique_until": mode}
    job_id = api.ok("POST", "/enqueue", body)["job_id"]
    if end == "cancelled":
        api.ok("POST", f"/jobs/{job_id}/cancel")
    elif end == "deleted":
        api.ok("DELETE", f"/jobs/{job_id}")
    else:
        run = api.take(queue)
        if end == "completed":
            api.ack(run)
        elif end == "dead":
            api.fail(run, retry=False)
    status, answer = api.post("/enqueue", body)
    assert status == (201 if end in FREED_BY[mode] else 200), answer


OTHER_ENDS = ["expired", "lease", "rejected", "timed out", "bulk", "cleared", "destroyed"]


@pytest.mark.parametrize("end", OTHER_ENDS)
def test_every_way_to_finish_releases_the_unique_key(api: Api, queue: str, end: str) -> None:
    """Also those that nobody asks for by name; nothing waits for the sweep of old locks."""
    body = {"queue": queue, "unique_key": "k", "max_retries": 1}
    extra = {"expired": {"expire_after": "1h"}, "timed out": {"hold": {"timeout": "1h"}}}
    extra["rejected"] = {"hold": {}}
    job_id = api.ok("POST", "/enqueue", {**body, **extra.get(end, {})})["job_id"]
    if end == "lease":
        api.take(queue)
        advance(api, "1h")
        api.wait_state(job_id, "dead")
    elif end in ("expired", "timed out"):
        advance(api, "1h")
        api.wait_state(job_id, "dead" if end == "expired" else "cancelled")
    elif end == "rejected":
        api.ok("POST", f"/jobs/{job_id}/reject")
    elif end == "bulk":
        api.ok("POST", "/jobs/bulk", {"action": "delete", "job_ids": [job_id]})
    elif end == "cleared":
        api.ok("POST", f"/queues/{queue}/clear")
    else:
        api.ok("DELETE", f"/queues/{queue}?confirm=true")
    status, answer = api.post("/enqueue", body)
    assert status == 201 and answer["job_id"] != job_id


def test_a_move_takes_the_unique_key_to_the_new_queue(api: Api, queue: str) -> None:
    """In one step: free where it was, held where it is, and no move onto a key that is held."""
    first = api.enqueue(queue, unique_key="k")
    target = f"{queue}-b"
    assert api.ok("POST", f"/jobs/{first}/move", {"queue": target}) == {"status": "moved"}
    answer = api.post("/enqueue", {"queue": target, "unique_key": "k"})[1]
    assert (answer["job_id"], answer["state"]) == (first, "pending")
    second = api.enqueue(queue, unique_key="k")
    answer = refused(api.post(f"/jobs/{second}/move", {"queue": target}), 409, "UNIQUE_CONFLICT")
    assert answer["holder_id"] == first
    assert api.job(second)["queue"] == queue


@pytest.mark.parametrize("mode", ["success", "final", "period"])
def test_a_lock_outlives_failures_and_lost_leases(api: Api, queue: str, mode: str) -> None:
    body = {"queue": queue, "unique_key": "k", "unique_until": mode}
    job_id = api.ok("POST", "/enqueue", {**body, "retry_backoff": "none"})["job_id"]
    api.fail(api.take(queue))
    assert api.post("/enqueue", body)[1]["job_id"] == job_id
    api.take(queue, lease_duration=1)
    advance(api, "1s")
    api.wait_state(job_id, "pending")
    assert api.post("/enqueue", body)[1]["job_id"] == job_id
    api.release(api.take(queue))
    assert api.post("/enqueue", body)[1]["job_id"] == job_id


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"unique_until": "period"}, 3600),
        ({"unique_until": "period", "unique_period": 0}, 3600),
        ({"unique_until": "period", "unique_period": "90s"}, 90),
        ({"unique_until": "final", "unique_period": 90}, 90),
        ({"unique_until": "success", "unique_period": 90}, 90),
        ({"unique_period": 90}, 90),
    ],
)
def test_a_period_bounds_the_lock(
    api: Api, queue: str, fields: dict[str, Any], seconds: int
) -> None:
    body = {"queue": queue, "unique_key": "k", **fields}
    with frozen_clock(api):
        first = api.ok("POST", "/enqueue", body)["job_id"]
        advance(api, f"{seconds * 1000 - 1}ms")
        assert api.post("/enqueue", body)[1]["job_id"] == first
        advance(api, "1ms")
        assert api.post("/enqueue", body)[0] == 201


def test_without_a_period_a_lock_lives_with_its_job(api: Api, queue: str) -> None:
    body = {"queue": queue, "unique_key": "k"}
    job_id = api.ok("POST", "/enqueue", body)["job_id"]
    advance(api, "30d")
    assert api.post("/enqueue", body)[1]["job_id"] == job_id


def test_a_retry_does_not_take_a_key_from_another(api: Api, queue: str) -> None:
    first = api.enqueue(queue, unique_key="k", max_retries=1)
    api.fail(api.take(queue))
    second = api.enqueue(queue, unique_key="k")
    answer = refused(api.post(f"/jobs/{first}/retry"), 409, "UNIQUE_CONFLICT")
    assert (answer["holder_id"], answer["holder_state"]) == (second, "pending")
    assert api.job(first)["state"] == "dead"
    api.ack(api.take(queue))
    assert api.post(f"/jobs/{first}/retry")[0] == 200
    assert api.post("/enqueue", {"queue": queue, "unique_key": "k"})[1]["job_id"] == first


def test_an_old_holder_takes_no_lock_from_the_new_one(api: Api, queue: str) -> None:
    """The first job's time with the key is over; whatever it does then, the second has it."""
    body = {"queue": queue, "unique_key": "k", "unique_period": 60}
    with frozen_clock(api):
        first = api.ok("POST", "/enqueue", body)["job_id"]
        run = api.take(queue, lease_duration=3600)
        advance(api, "60s")
        second = api.ok("POST", "/enqueue", {**body, "unique_period": 3600})["job_id"]
        assert second != first
        assert api.ack(run)[0] == 200
        assert api.post("/enqueue", body)[1]["job_id"] == second
        answer = refused(api.post(f"/jobs/{first}/retry"), 409, "UNIQUE_CONFLICT")
        assert answer["holder_id"] == second
        api.ok("DELETE", f"/jobs/{first}")
        assert api.post("/enqueue", body)[1]["job_id"] == second
        api.ok("DELETE", f"/jobs/{second}")
        assert api.post("/enqueue", body)[0] == 201


def test_a_unique_scheduled_job_survives_its_own_promotion(api: Api, queue: str) -> None:
    body = {"queue": queue, "unique_key": "k"}
    with frozen_clock(api) as now_ns:
        job_id = api.enqueue(queue, unique_key="k", scheduled_at=rfc3339(now_ns + 2 * SECOND_NS))
        assert api.post("/enqueue", body)[1]["job_id"] == job_id
        advance(api, "2s")
        run = api.take(queue)
        assert run["job_id"] == job_id
        assert api.post("/enqueue", body)[1]["job_id"] == job_id
        api.ack(run)
        assert api.post("/enqueue", body)[0] == 201


# ---- counters ----


@pytest.mark.parametrize("seed", range(3))
def test_counters_equal_a_recount(api: Api, queue: str, seed: int) -> None:
    """After every hundred random calls."""
    shuffle = Shuffle(api, queue, seed)
    for _ in range(4):
        for _ in range(100):
            shuffle.step()
        shuffle.check_counters()

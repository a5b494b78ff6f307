"""Failures of other job servers that their users have reported: none of them happens here."""

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from lib.harness import (
    WAIT_S,
    Api,
    ServerProcess,
    advance,
    clock_ns,
    frozen_clock,
    nanoseconds,
    raw_fetch,
    refused,
    rfc3339,
    running_server,
    set_clock,
)

HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS
MS_NS = 10**6


def error_list(job: dict[str, Any]) -> list[tuple[int, str]]:
    """Attempt and kind of each error record."""
    return [(record["attempt"], record["kind"]) for record in job.get("errors", [])]


def test_acks_race_with_lease_expiry(shared_server: ServerProcess, api: Api, queue: str) -> None:
    """Jobs are acked within 5 ms of the end of their lease, while the server takes them back. An
    ack that was answered with 200 is for good; any other is refused, and the job comes again."""
    count = 400
    api.enqueue_many(queue, count)
    with frozen_clock(api):
        jobs = api.take_many(queue, count=count, lease_duration=1)
        replies = ack_across(shared_server, api, jobs, clock_ns(api) + 10**9)
        advance(api, "1s")
        for job_id, reply in replies.items():
            assert reply[0] == 200 or refused(reply, 409, "LEASE_LOST"), job_id
        lost = {job_id for job_id, (status, _) in replies.items() if status != 200}
        again = api.take_many(queue, count=len(lost), lease_duration=60) if lost else []
    assert {job["job_id"] for job in again} == lost
    assert all(job["attempt"] == 2 for job in again)
    for job in again:
        assert api.ack(job)[0] == 200
    assert api.fetch(queue) is None
    document = api.queue(queue)
    assert (document["completed"], document["completed_total"]) == (count, count)
    assert document["pending"] == document["active"] == document["dead"] == 0
    assert all(api.job(job["job_id"])["state"] == "completed" for job in jobs)


def ack_across(
    server: ServerProcess, api: Api, jobs: list[dict[str, Any]], due_ns: int
) -> dict[str, tuple[int, Any]]:
    """Ack from four threads, while the clock goes from 5 ms before to 5 ms after a time."""
    replies: dict[str, tuple[int, Any]] = {}
    progress = threading.Condition()

    def work(part: list[dict[str, Any]]) -> None:
        own = server.api()
        for job in part:
            reply = own.ack(job)
            with progress:
                replies[job["job_id"]] = reply
                progress.notify()

    threads = [threading.Thread(target=work, args=(jobs[n::4],)) for n in range(4)]
    set_clock(api, due_ns - 5 * MS_NS)
    for thread in threads:
        thread.start()
    for wanted in range(len(jobs) // 12, len(jobs), len(jobs) // 12):
        with progress:
            assert progress.wait_for(lambda: len(replies) >= wanted, WAIT_S)  # noqa: B023
        advance(api, "1ms")
    for thread in threads:
        thread.join(WAIT_S)
    assert len(replies) == len(jobs)
    return replies


def test_a_late_result_does_not_overwrite_a_newer_one(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=2)
    first = api.take(queue, lease_duration=1, worker_id="a")
    advance(api, "2s")
    second = api.take(queue, worker_id="b")
    assert second["attempt"] == 2
    assert api.fail(second, error="from b") == (200, {"status": "dead", "attempts_remaining": 0})
    refused(api.fail(first, error="late"), 409, "LEASE_LOST")
    refused(api.ack(first), 409, "LEASE_LOST")
    job = api.job(job_id)
    assert job["state"] == "dead"
    assert error_list(job) == [(1, "lease_expired"), (2, "failed")]
    assert job["errors"][1]["error"] == "from b"


def test_a_poison_job_does_not_block_others(api: Api, queue: str) -> None:
    """A job at its last attempt, a cancelled one and four others lose their leases at the same
    moment; ten jobs wait behind them."""
    poison = api.enqueue(queue, max_retries=2, retry_backoff="none")
    assert api.fail(api.take(queue), error="first")[1]["attempts_remaining"] == 1
    with frozen_clock(api):
        assert api.take(queue, lease_duration=1)["job_id"] == poison
        others = api.enqueue_many(queue, 5)
        assert len(api.take_many(queue, count=5, lease_duration=1)) == 5
        assert api.ok("POST", f"/jobs/{others[2]}/cancel", {}) == {"status": "cancelling"}
        waiting = api.enqueue_many(queue, 10)
        advance(api, "1s")
        api.wait_state(poison, "dead")
        delivered = [job["job_id"] for job in api.take_many(queue, count=14)]
        assert delivered == [*others[:2], *others[3:], *waiting]
    assert api.fetch(queue) is None
    assert error_list(api.job(poison)) == [(1, "failed"), (2, "lease_expired")]
    assert api.job(others[2])["state"] == "cancelled"
    document = api.queue(queue)
    assert (document["dead"], document["dead_total"], document["cancelled"]) == (1, 1, 1)
    assert f'corvo_queue_jobs{{queue="{queue}",state="dead"}} 1' in metrics(api)


def metrics(api: Api) -> str:
    text: str = api.ok("GET", "/metrics")
    return text


@pytest.mark.parametrize("committed", [False, True])
def test_a_kill_between_fetch_and_reply(data_dir: Path, committed: bool) -> None:
    """The server is killed while it answers a fetch, or when it has just done so; the worker never
    sees the job. Another worker gets it once the grace is over, the attempt is not used up, and
    the queue's only slot is free again."""
    with running_server(data_dir, "--test-clock") as server:
        api = server.api()
        api.ok("POST", "/queues/q/concurrency", {"max": 1})
        for _ in range(3):
            job_id = api.enqueue("q", max_retries=1)
            swallowed = raw_fetch(server.port, "q")
            if committed:
                api.wait_state(job_id, "active")
            server.kill()
            swallowed.close()
            server.start()
            leased = api.job(job_id)["state"] == "active"
            assert leased or not committed
            if leased:
                assert api.fetch("q") is None
            advance(api, "76s")
            job = api.take("q", worker_id="b")
            assert (job["job_id"], job["attempt"]) == (job_id, 1)
            assert error_list(api.job(job_id)) == [(1, "delivery_unknown")] * leased
            assert api.ack(job)[0] == 200
            api.enqueue("q")
            assert api.ack(api.take("q"))[0] == 200
            assert api.queue("q")["active"] == 0


def test_far_delays_do_not_overflow(api: Api, queue: str) -> None:
    """Delays beyond 2^31 ms and beyond a year fire when they are due, not at once."""
    policy = {"retry_base_delay": "1000h", "retry_max_delay": "2000h", "retry_jitter": 0}
    with frozen_clock(api) as start_ns:
        delayed = [start_ns + days * DAY_NS for days in (30, 60, 400)]
        plan = [(at_ns, api.enqueue(queue, scheduled_at=rfc3339(at_ns))) for at_ns in delayed]
        retried = api.enqueue(queue, max_retries=4, **policy)
        retries = [start_ns + hours * HOUR_NS for hours in (1000, 3000, 5000)]
        plan += [(at_ns, retried) for at_ns in retries]
        answer = api.fail(api.take(queue))[1]
        for at_ns, job_id in sorted(plan):
            if job_id == retried:
                assert nanoseconds(answer["next_attempt_at"]) == at_ns
            set_clock(api, at_ns - MS_NS)
            assert api.fetch(queue) is None
            set_clock(api, at_ns)
            run = api.take(queue)
            assert run["job_id"] == job_id
            if job_id == retried and run["attempt"] < 4:
                answer = api.fail(run)[1]
            else:
                assert api.ack(run)[0] == 200
    # Not "completed": what completed a year ago may have been purged.
    assert api.queue(queue)["completed_total"] == 4


def test_three_hundred_failures_stay_at_the_cap(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=1000, retry_base_delay="5s", retry_max_delay="10m")
    with frozen_clock(api) as now_ns:
        for attempt in range(1, 301):
            run = api.take(queue)
            assert run["attempt"] == attempt
            answer = api.fail(run, error="no")[1]
            assert answer["status"] == "retrying"
            assert answer["attempts_remaining"] == 1000 - attempt
            due_ns = nanoseconds(answer["next_attempt_at"])
            wanted_ns = min(5 * 2 ** min(attempt - 1, 20), 600) * 10**9
            assert 0.9 * wanted_ns <= due_ns - now_ns <= 1.1 * wanted_ns, attempt
            now_ns = due_ns
            set_clock(api, now_ns)
    assert api.job(job_id)["attempt"] == 300


def test_odd_characters_break_nothing(api: Api, queue: str) -> None:
    """NUL and half a surrogate pair, as escapes, are texts like any other."""
    body = b'{"queue":"%b","retry_backoff":"none","tags":{"t":"x\\u0000y"}}' % queue.encode()
    job_id = api.ok("POST", "/enqueue", body)["job_id"]
    run = api.take(queue)
    assert run["tags"] == {"t": "x\0y"}
    assert api.beat(run, checkpoint={"at": "c\0d"}) == "ok"
    body = b'{"lease_token":"%b","error":"a\\u0000b","backtrace":"line \\ud800 end"}'
    status, answer = api.post(f"/fail/{job_id}", body % run["lease_token"].encode())
    assert (status, answer["attempts_remaining"]) == (200, 2)
    record = api.job(job_id)["errors"][0]
    assert (record["error"], record["backtrace"]) == ("a\0b", "line \ud800 end")
    assert b"line \\ud800 end" in api.raw("GET", f"/jobs/{job_id}").body
    again = api.take(queue)
    assert again["checkpoint"] == {"at": "c\0d"}
    assert again["tags"] == {"t": "x\0y"}


@pytest.mark.parametrize("raw", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80"])
def test_invalid_utf8_changes_nothing(api: Api, queue: str, raw: bytes) -> None:
    job_id = api.enqueue(queue)
    run = api.take(queue)
    before = api.job(job_id)
    token = b'"lease_token":"%b"' % run["lease_token"].encode()
    for path, body in (
        ("/enqueue", b'{"queue":"%b","payload":"%b"}' % (queue.encode(), raw)),
        ("/enqueue", b'{"queue":"%b"}' % raw),
        (f"/fail/{job_id}", b'{%b,"error":"%b"}' % (token, raw)),
        (f"/ack/{job_id}", b'{%b,"result":"%b"}' % (token, raw)),
        (f"/release/{job_id}", b'{%b,"checkpoint":"%b"}' % (token, raw)),
        ("/heartbeat", b'{"jobs":{"%b":{%b,"progress":"%b"}}}' % (job_id.encode(), token, raw)),
    ):
        refused(api.post(path, body), 400, "PARSE_ERROR")
    assert api.job(job_id) == before
    assert api.queue(queue)["enqueued"] == 1


NAMES = ("a", "a:b", "a|b", "a/b", "größe 🦄", "...", "%2F", "a b?c#d&e=f", "ä" * 64, "x" * 128)
BAD_NAMES = ("", ".", "..", "a\0b", "a\nb", "\x7f", "a\x85b", "x" * 129, "ä" * 65)


@pytest.mark.parametrize("name", NAMES)
def test_odd_queue_names_work_everywhere(api: Api, name: str) -> None:
    path = f"/queues/{quote(name, safe='')}"
    job_id = api.enqueue(name)
    assert api.job(job_id)["queue"] == name
    assert api.ok("GET", path)["name"] == name
    assert name in [document["name"] for document in api.listed("queues")]
    assert api.ok("POST", path + "/pause") == {"status": "paused"}
    assert api.fetch(name) is None
    assert api.ok("POST", path + "/resume") == {"status": "resumed"}
    assert api.ok("POST", path + "/concurrency", {"max": 7}) == {"status": "ok"}
    assert api.ok("GET", path)["max_concurrency"] == 7
    run = api.take(name)
    assert (run["job_id"], run["queue"]) == (job_id, name)
    assert api.ack(run)[0] == 200
    assert api.ok("GET", path)["completed"] == 1
    assert api.ok("GET", f"/jobs/{job_id}/events")["events"][0]["queue"] == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_queue_names_are_refused_everywhere(api: Api, name: str) -> None:
    known = [document["name"] for document in api.listed("queues")]
    calls: list[tuple[str, str, Any]] = [
        ("POST", "/enqueue", {"queue": name}),
        ("POST", "/enqueue/batch", {"jobs": [{"queue": name}]}),
        ("POST", "/fetch", {"queues": [name], "timeout": 0}),
        ("POST", "/fetch/batch", {"queues": [name], "timeout": 0}),
    ]
    if name:
        path = f"/queues/{quote(name, safe='').replace('.', '%2E')}"
        calls += [("GET", path, None), ("POST", path + "/pause", {})]
        calls += [("POST", path + "/resume", {}), ("POST", path + "/concurrency", {"max": 1})]
    for method, path, body in calls:
        refused(api.call(method, path, body), 400, "VALIDATION_ERROR")
    assert [document["name"] for document in api.listed("queues")] == known


def test_unique_keys_never_collide(api: Api) -> None:
    """Neither with each other nor over the border between queue and key."""
    keys = ("k", "k|1", "k:1", "k\0", "\0", "k/1", " k", "ü", "x" * 1023, "x" * 1024)
    queues = ("u", "u:k", "u|k", "u/k")
    pairs = [(name, key) for name in queues for key in keys]
    pairs += [("u", "k:c"), ("u:k", "c"), ("u", "k|c"), ("u|k", "c"), ("u", "k/c"), ("u/k", "c")]
    ids = {pair: api.enqueue(pair[0], unique_key=pair[1]) for pair in pairs}
    assert len(set(ids.values())) == len(pairs)
    for (name, key), job_id in ids.items():
        status, answer = api.post("/enqueue", {"queue": name, "unique_key": key})
        assert (status, answer["job_id"], answer["status"]) == (200, job_id, "duplicate")
        assert api.job(job_id)["unique_key"] == key


def test_one_concurrency_slot_runs_one_job(api: Api, queue: str) -> None:
    """With a limit of one, late answers of a worker that lost its lease free nothing."""
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 1})
    for _ in range(50):
        api.enqueue_many(queue, 2)
        first = api.take(queue, lease_duration=1)
        assert api.fetch(queue) is None
        advance(api, "1s")
        second = api.take(queue)
        assert second["job_id"] == first["job_id"]
        late = random.sample([api.ack, api.fail, api.release], 3)
        for verb in late:
            refused(verb(first), 409, "LEASE_LOST")
            assert api.queue(queue)["active"] == 1
        assert api.fetch(queue) is None
        assert api.ack(second)[0] == 200
        assert api.ack(api.take(queue))[0] == 200
        assert api.queue(queue)["active"] == 0


def test_retry_and_expiry_keep_priority_and_position(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 1000)
    failed = api.enqueue(queue, priority="critical", retry_backoff="none")
    expired = api.enqueue(queue, priority="critical")
    first, second = api.take(queue), api.take(queue, lease_duration=1)
    assert [first["job_id"], second["job_id"]] == [failed, expired]
    assert api.fail(first)[0] == 200
    advance(api, "1s")
    for job_id in (failed, expired):
        api.wait_state(job_id, "pending")
    assert [job["job_id"] for job in api.take_many(queue, count=2)] == [failed, expired]
    assert api.take(queue)["payload"] == 0


def test_a_delayed_job_is_delivered_once_and_never_early(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    """Pollers ask all the time while three hours pass, many times the length of a lease."""
    deliveries: list[dict[str, Any]] = []
    stop = threading.Event()

    def poll() -> None:
        own = shared_server.api()
        while not stop.is_set():
            job = own.fetch(queue, timeout=0.2, lease_duration=60)
            if job is not None:
                deliveries.append({**job, "at_ns": clock_ns(own)})
                assert own.ack(job)[0] == 200

    threads = [threading.Thread(target=poll) for _ in range(4)]
    due_ns = clock_ns(api) + 3 * HOUR_NS
    job_id = api.enqueue(queue, scheduled_at=rfc3339(due_ns))
    for thread in threads:
        thread.start()
    try:
        for _ in range(17):
            advance(api, "10m")
            assert api.job(job_id)["state"] == "scheduled"
        set_clock(api, due_ns)
        api.wait_state(job_id, "completed")
        for _ in range(5):
            advance(api, "10m")
        assert api.fetch(queue) is None
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert [job["job_id"] for job in deliveries] == [job_id]
    assert deliveries[0]["attempt"] == 1
    assert deliveries[0]["at_ns"] >= due_ns
    events = Counter(e["type"] for e in api.ok("GET", f"/jobs/{job_id}/events")["events"])
    assert events == Counter(["enqueued", "promoted", "started", "completed"])
    assert json.dumps(api.job(job_id)).count("lease_expired") == 0

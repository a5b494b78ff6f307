"""Requirements of a job server on values: arithmetic of retries, large values, texts, clocks."""

import json
from pathlib import Path

import pytest
from lib.harness import (
    Api,
    advance,
    clock_ns,
    frozen_clock,
    nanoseconds,
    refused,
    rfc3339,
    running_server,
    set_clock,
)

SECOND_NS = 10**9
YEAR_9999_NS = 253_402_300_799 * SECOND_NS

# ---- g11: arithmetic of retries ----


HUGE = "100000000d"  # almost 2^53 ms


@pytest.mark.parametrize("backoff", ["fixed", "linear", "exponential"])
def test_delays_saturate(api: Api, queue: str, backoff: str) -> None:
    """Whatever base, cap and attempt say, the next run has a time that can be written down."""
    job_id = api.enqueue(
        queue,
        retry_backoff=backoff,
        retry_base_delay=HUGE,
        retry_max_delay=HUGE,
        retry_jitter=1,
        max_retries=9,
    )
    for _ in range(3):
        answer = api.fail(api.take(queue))
        assert answer[0] == 200, answer
        due_ns = nanoseconds(answer[1]["next_attempt_at"])
        assert clock_ns(api) < due_ns + SECOND_NS and due_ns < YEAR_9999_NS + SECOND_NS
        assert api.job(job_id)["state"] in ("retrying", "pending")
        api.post(f"/jobs/{job_id}/retry")
    refused(api.post(f"/ack/{job_id}"), 409, "INVALID_STATE")


def test_the_default_cap_of_delays_is_thirty_days(api: Api, queue: str) -> None:
    policy = {"retry_base_delay": "1d", "retry_max_delay": 0, "retry_jitter": 0}
    job_id = api.enqueue(queue, max_retries=100, **policy)
    with frozen_clock(api) as now_ns:
        for days in (1, 2, 4, 8, 16, 30, 30):
            due_ns = nanoseconds(api.fail(api.take(queue))[1]["next_attempt_at"])
            assert due_ns - now_ns == days * 86_400 * SECOND_NS
            now_ns = due_ns
            set_clock(api, now_ns)
    assert api.job(job_id)["attempt"] == 7


@pytest.mark.parametrize("verb", ["fail", "release"])
def test_delays_of_workers_saturate(api: Api, queue: str, verb: str) -> None:
    job_id = api.enqueue(queue)
    run = api.take(queue)
    if verb == "fail":
        assert api.fail(run, retry_after=HUGE)[0] == 200
    else:
        assert api.release(run, delay=HUGE)[0] == 200
    job = api.job(job_id)
    assert job["state"] == ("retrying" if verb == "fail" else "scheduled")
    assert clock_ns(api) < nanoseconds(job["scheduled_at"]) < YEAR_9999_NS + SECOND_NS
    assert api.fetch(queue) is None


def test_the_year_9999_is_valid_and_10000_is_not(api: Api, queue: str) -> None:
    last = "9999-12-31T23:59:59Z"
    assert api.job(api.enqueue(queue, scheduled_at=last))["scheduled_at"] == last
    for text in ("10000-01-01T00:00:00Z", "9999-12-31T23:59:59-00:01", "+10000-01-01T00:00:00Z"):
        body = {"queue": queue, "scheduled_at": text}
        refused(api.post("/enqueue", body), 400, "VALIDATION_ERROR")
    assert api.fetch(queue) is None


def test_a_delay_counts_from_the_stamp(api: Api, queue: str) -> None:
    with frozen_clock(api) as now_ns:
        body = {"jobs": [{"queue": queue, "delay": 90}, {"queue": queue, "delay": "1h30m"}]}
        ids = [api.enqueue(queue, delay="5m"), *api.ok("POST", "/enqueue/batch", body)["job_ids"]]
        jobs = [api.job(job_id) for job_id in ids]
    assert [job["state"] for job in jobs] == ["scheduled"] * 3
    delays = [nanoseconds(job["scheduled_at"]) - now_ns for job in jobs]
    assert delays == [300 * SECOND_NS, 90 * SECOND_NS, 5400 * SECOND_NS]
    assert api.job(api.enqueue(queue, delay=0))["state"] == "pending"
    last = api.job(api.enqueue(queue, delay=HUGE))
    assert clock_ns(api) < nanoseconds(last["scheduled_at"]) < YEAR_9999_NS + SECOND_NS
    for more in ({"scheduled_at": "2999-01-01T00:00:00Z"}, {"hold": {}}):
        answer = api.post("/enqueue", {"queue": queue, "delay": "5m", **more})
        assert "exclude each other" in refused(answer, 400, "VALIDATION_ERROR")["error"]


def test_jitter_is_on_by_default(api: Api, queue: str) -> None:
    """Jobs that fail together do not come back together; without jitter they do."""
    policy = {"retry_backoff": "fixed", "retry_base_delay": "100s"}
    with frozen_clock(api) as now_ns:
        api.enqueue_many(queue, 30, **policy)
        api.enqueue_many(queue, 5, retry_jitter=0, **policy)
        answers = [api.fail(run)[1] for run in api.take_many(queue, count=35)]
    delays = [nanoseconds(answer["next_attempt_at"]) - now_ns for answer in answers]
    assert all(90 * SECOND_NS <= delay <= 110 * SECOND_NS for delay in delays)
    assert len(set(delays[:30])) > 20
    assert max(delays[:30]) - min(delays[:30]) > 5 * SECOND_NS
    assert set(delays[30:]) == {100 * SECOND_NS}


def test_what_a_manual_retry_resets(api: Api, queue: str) -> None:
    """Attempts start at 0; errors and checkpoint stay; the job goes to the tail."""
    job_id = api.enqueue(queue, max_retries=1)
    run = api.take(queue)
    assert api.beat(run, checkpoint={"page": 7}) == "ok"
    assert api.fail(run, error="no")[1]["status"] == "dead"
    behind = api.enqueue(queue)
    assert api.ok("POST", f"/jobs/{job_id}/retry", {}) == {"status": "retried"}
    job = api.job(job_id)
    assert (job["state"], job["attempt"]) == ("pending", 0)
    assert [record["error"] for record in job["errors"]] == ["no"]
    assert "failed_at" not in job
    assert api.take(queue)["job_id"] == behind
    run = api.take(queue)
    assert (run["job_id"], run["attempt"], run["checkpoint"]) == (job_id, 1, {"page": 7})


def test_a_release_uses_up_no_attempt(api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=2)
    for _ in range(3):
        run = api.take(queue)
        assert run["attempt"] == 1
        assert api.release(run)[0] == 200
    assert api.job(job_id)["attempt"] == 0
    assert "errors" not in api.job(job_id)


# ---- g12: large values ----


def test_a_batch_reply_is_limited_by_bytes(api: Api, queue: str) -> None:
    """Forty jobs of 250 KiB do not fit into one reply of 8 MiB; the rest comes with the next."""
    payload = "x" * 250 * 1024
    jobs = [{"queue": queue, "payload": payload}] * 20
    ids = api.ok("POST", "/enqueue/batch", {"jobs": jobs})["job_ids"]
    ids += api.ok("POST", "/enqueue/batch", {"jobs": jobs})["job_ids"]
    reply = api.raw("POST", "/fetch/batch", {"queues": [queue], "count": 40})
    first = json.loads(reply.body)["jobs"]
    assert len(reply.body) <= 8 * 1024 * 1024 + 64 * 1024
    assert 30 <= len(first) < 40
    rest = api.fetch_batch(queue)
    assert [job["job_id"] for job in first + rest] == ids
    assert api.queue(queue)["pending"] == 0


def test_a_reply_holds_one_job_however_large(data_dir: Path) -> None:
    size = 9 * 1024 * 1024
    flags = ("--max-payload-size", str(size + 2))
    with running_server(data_dir, *flags) as server:
        api = server.api()
        for letter in "ab":
            api.enqueue("q", payload=letter * size)
        for letter in "ab":
            jobs = api.fetch_batch("q")
            assert [job["payload"][0] for job in jobs] == [letter]


def test_an_over_limit_result_leaves_the_lease(api: Api, queue: str) -> None:
    """The worker can still say that it failed."""
    job_id = api.enqueue(queue)
    run = api.take(queue)
    before = api.job(job_id)
    big = "x" * 1024 * 1024
    for verb, field in ((api.ack, "result"), (api.ack, "checkpoint"), (api.release, "checkpoint")):
        answer = refused(verb(run, **{field: big}), 413, "PAYLOAD_TOO_LARGE")
        assert field in answer["error"] and str(1024 * 1024) in answer["error"]
    assert api.job(job_id) == before
    assert api.fail(run, error="the result is too large")[1]["status"] == "retrying"


# ---- g13: texts ----


TEXTS = [
    b'{ "b" : 12345678901234567890123 ,\t"a":1.50e+03,"b":[ ],"\\u00e9":"\\/","c":-0.0}',
    b"12345678901234567890123456789",
    b'"\\ud83e\\udd84 \xf0\x9f\xa6\x84 \\u0000"',
    b'"\\ud800 \\ue000 \\\\ud800 \\udc00\\ud800 \xee\x80\x80"',
    b"[1,\n 2 , 3]",
    b"false",
    b'""',
]


@pytest.mark.parametrize("text", TEXTS)
def test_values_are_returned_byte_for_byte(api: Api, queue: str, text: bytes) -> None:
    name = queue.encode()
    body = b'{"queue":"%b","payload": %b ,"checkpoint":\n%b}' % (name, text, text)
    job_id = api.ok("POST", "/enqueue", body)["job_id"]
    raw = api.raw("POST", "/fetch", {"queues": [queue], "timeout": 0})
    run = json.loads(raw.body)
    assert b'"payload":' + text + b"," in raw.body
    assert b'"checkpoint":' + text in raw.body
    token = run["lease_token"].encode()
    beat = b'{"jobs":{"%b":{"lease_token":"%b","progress":%b}}}'
    api.ok("POST", "/heartbeat", beat % (job_id.encode(), token, text))
    api.ok("POST", f"/ack/{job_id}", b'{"lease_token":"%b","result":  %b}' % (token, text))
    document = api.raw("GET", f"/jobs/{job_id}").body
    for field in (b"payload", b"checkpoint", b"progress", b"result"):
        assert b'"%b":%b' % (field, text) in document


def test_errors_are_kept_byte_for_byte(api: Api, queue: str) -> None:
    """Escapes for terminals, markup, marks of direction: cleaning is for those who display."""
    text = '\x1b[31m<script>alert(1)</script>\u202e\r\n\t\\ " \u0000 é 🦄'
    job_id = api.enqueue(queue)
    assert api.fail(api.take(queue), error=text, backtrace=text)[0] == 200
    record = api.job(job_id)["errors"][0]
    assert (record["error"], record["backtrace"]) == (text, text)


# ---- g14: clocks ----


def test_stamps_never_decrease_over_a_restart(data_dir: Path) -> None:
    """The clock was a day ahead; after a restart it goes on from what was stored, whatever the
    clock of the machine says."""
    with running_server(data_dir, "--test-clock") as server:
        api = server.api()
        advance(api, "1d")
        times = [stamps(api) for _ in range(3)]
        server.kill()
        server.start()
        times += [stamps(api) for _ in range(3)]
        assert server.stop() == 0
        server.start()
        times += [stamps(api) for _ in range(3)]
    flat = [at for row in times for at in row]
    assert flat == sorted(flat)


def stamps(api: Api) -> list[int]:
    """The times of one job's life, as the server gave them."""
    job_id = api.enqueue("q")
    assert api.ack(api.take("q"))[0] == 200
    job = api.job(job_id)
    return [nanoseconds(job[name]) for name in ("created_at", "started_at", "completed_at")]


def test_the_stored_time_decides_not_the_age_of_the_process(data_dir: Path) -> None:
    """A job due in an hour is not early after a restart that forgets the test clock, and comes
    when it is due."""
    with running_server(data_dir, "--test-clock") as server:
        api = server.api()
        due_ns = clock_ns(api) + 3600 * SECOND_NS
        api.enqueue("q", scheduled_at=rfc3339(due_ns))
        server.kill()
        server.start()
        with frozen_clock(api):
            assert api.fetch("q") is None
            set_clock(api, due_ns - 1)
            assert api.fetch("q") is None
            set_clock(api, due_ns)
            assert api.take("q")["attempt"] == 1


def test_a_clock_change_is_not_taken_for_a_pause(api: Api, queue: str) -> None:
    """A jump by hand ends leases at once: no grace."""
    api.enqueue(queue)
    api.take(queue, lease_duration=60)
    advance(api, "60s")
    assert api.take(queue)["attempt"] == 2

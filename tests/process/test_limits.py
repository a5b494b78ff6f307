"""Every bound of the API: what is just inside is taken, what is just outside is refused by name."""

import json
import os
import re
import resource
from pathlib import Path
from typing import Any

import pytest
from lib.harness import (
    WAIT_S,
    Api,
    ServerProcess,
    clock_ns,
    connect,
    nanoseconds,
    post_bytes,
    refused,
    rfc3339,
    running_server,
    until,
)

KIB = 1024
MIB = 1024 * KIB
YEAR_NS = 366 * 86_400 * 10**9

# ---- bytes: 413 ----


TEXTS = ("error", "backtrace")
SIZES = [
    ("payload", 256 * KIB, "/enqueue", b'{"queue":"QUEUE","payload":VALUE}'),
    ("payload", 256 * KIB, "/enqueue/batch", b'{"jobs":[{"queue":"QUEUE","payload":VALUE}]}'),
    ("checkpoint", MIB, "/enqueue", b'{"queue":"QUEUE","checkpoint":VALUE}'),
    ("result", MIB, "/ack/ID", b'{"lease_token":"TOKEN","result":VALUE}'),
    ("checkpoint", MIB, "/ack/ID", b'{"lease_token":"TOKEN","checkpoint":VALUE}'),
    ("result", MIB, "/ack/batch", b'{"acks":[{"job_id":"ID","result":VALUE}]}'),
    ("checkpoint", MIB, "/ack/batch", b'{"acks":[{"job_id":"ID","checkpoint":VALUE}]}'),
    ("error", 64 * KIB, "/fail/ID", b'{"lease_token":"TOKEN","error":VALUE}'),
    ("backtrace", 256 * KIB, "/fail/ID", b'{"lease_token":"TOKEN","backtrace":VALUE}'),
    ("checkpoint", MIB, "/release/ID", b'{"lease_token":"TOKEN","checkpoint":VALUE}'),
    ("progress", 16 * KIB, "/heartbeat", b'{"jobs":{"ID":{"progress":VALUE}}}'),
    ("checkpoint", MIB, "/heartbeat", b'{"jobs":{"ID":{"checkpoint":VALUE}}}'),
]


@pytest.mark.parametrize(("field", "limit", "path", "body"), SIZES)
def test_sizes_of_values(
    api: Api, queue: str, field: str, limit: int, path: str, body: bytes
) -> None:
    job_id = api.enqueue(queue)
    run = api.take(queue)

    def send(size: int) -> tuple[int, Any]:
        text = body.replace(b"QUEUE", queue.encode()).replace(b"ID", job_id.encode())
        text = text.replace(b"TOKEN", run["lease_token"].encode())
        quotes = 0 if field in TEXTS else 2  # they are no part of a text
        value = b'"' + b"x" * (size - quotes) + b'"'
        return api.post(path.replace("ID", job_id), text.replace(b"VALUE", value))

    before = api.job(job_id)
    if path == "/ack/batch":
        status, reply = send(limit + 1)
        assert (status, reply["acked"]) == (200, 0)
        [answer] = reply["failed"]
        assert (answer["index"], answer["code"]) == (0, "PAYLOAD_TOO_LARGE")
        assert (answer["job_id"], answer["field"]) == (job_id, field)
    else:
        answer = refused(send(limit + 1), 413, "PAYLOAD_TOO_LARGE")
    assert field in answer["error"] and str(limit) in answer["error"]
    assert api.job(job_id) == before
    assert api.queue(queue)["enqueued"] == 1
    status, answer = send(limit)
    assert status in (200, 201) and not answer.get("failed")


def test_size_of_tags(api: Api, queue: str) -> None:
    room = 4 * KIB - len("k")
    refusal = api.post("/enqueue", {"queue": queue, "tags": {"k": "x" * (room + 1)}})
    assert "tags" in refused(refusal, 413, "PAYLOAD_TOO_LARGE")["error"]
    assert str(4 * KIB) in refusal[1]["error"]
    run_tags = {"k": "x" * room}
    api.enqueue(queue, tags=run_tags)
    assert api.take(queue)["tags"] == run_tags


def test_a_batch_names_the_job_that_is_too_large(api: Api, queue: str) -> None:
    jobs: list[Any] = [{"queue": queue}] * 7
    jobs[5] = {"queue": queue, "payload": "x" * 256 * KIB}
    answer = refused(api.post("/enqueue/batch", {"jobs": jobs}), 413, "PAYLOAD_TOO_LARGE")
    assert answer["index"] == 5 and "job 5 payload" in answer["error"]
    refused(api.call("GET", f"/queues/{queue}"), 404, "NOT_FOUND")


def test_size_of_the_body(shared_server: ServerProcess, api: Api, queue: str) -> None:
    """Exactly 16 MiB are read; one byte more is refused from the head alone."""
    body = json.dumps({"queue": queue}).encode().ljust(16 * MIB)
    assert api.post("/enqueue", body)[0] == 201
    with connect(shared_server.port) as connection:
        head = "POST /api/v1/enqueue HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(f"{head}Content-Length: {16 * MIB + 1}\r\n\r\n".encode())
        reply = connection.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b'"PAYLOAD_TOO_LARGE"' in reply and str(16 * MIB).encode() in reply
    assert api.queue(queue)["enqueued"] == 1


def test_a_batch_as_large_as_a_body_can_be(data_dir: Path) -> None:
    """Sixty of the largest payloads in one request, over a kill."""
    payload = "x" * (256 * KIB - 2)
    with running_server(data_dir) as server:
        jobs = [{"queue": "q", "payload": payload}] * 60
        ids = server.api().ok("POST", "/enqueue/batch", {"jobs": jobs})["job_ids"]
        server.kill()
        server.start()
        api = server.api()
        runs = api.take_many("q", count=60)
        assert [run["job_id"] for run in runs] == ids
        assert all(run["payload"] == payload for run in runs)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000])
def test_depth_of_values(api: Api, queue: str, text: bytes) -> None:
    closing = text[:1].translate(bytes.maketrans(b"[{", b"]}"))
    value = text + (b"1" if b":" in text else b"") + closing * 100_000
    body = b'{"queue":"%b","payload":%b}' % (queue.encode(), value)
    assert api.post("/enqueue", body)[0] in (400, 413)
    refused(api.call("GET", f"/queues/{queue}"), 404, "NOT_FOUND")


# ---- numbers of things, names and keys: 400 ----


def jobs_body(queue: str, count: int) -> Any:
    return {"jobs": [{"queue": queue}] * count}


COUNTS = [
    ("tags", 32, "/enqueue", lambda q, n: {"queue": q, "tags": {str(i): "" for i in range(n)}}),
    ("jobs", 10_000, "/enqueue/batch", jobs_body),
    ("unique_key", 1024, "/enqueue", lambda q, n: {"queue": q, "unique_key": "k" * n}),
    ("unique_key", 512, "/enqueue", lambda q, n: {"queue": q, "unique_key": "ä" * n}),
    ("parent_id", 128, "/enqueue", lambda q, n: {"queue": q, "parent_id": "p" * n}),
    ("queue", 128, "/enqueue", lambda q, n: {"queue": q.ljust(n, "x")}),
    ("queues", 256, "/fetch", lambda q, n: {"queues": [f"{q}-{i}" for i in range(n)]}),
    ("worker_id", 256, "/fetch", lambda q, n: {"queues": [q], "worker_id": "w" * n}),
    ("hostname", 256, "/fetch", lambda q, n: {"queues": [q], "hostname": "h" * n}),
    ("acks", 512, "/ack/batch", lambda q, n: {"acks": [{"job_id": "x"}] * n}),
    ("jobs", 10_000, "/heartbeat", lambda q, n: {"jobs": {f"job_{i}": {} for i in range(n)}}),
]


@pytest.mark.parametrize(("field", "limit", "path", "build"), COUNTS)
def test_counts_and_lengths(
    api: Api, queue: str, field: str, limit: int, path: str, build: Any
) -> None:
    wait = {"timeout": 0} if path == "/fetch" else {}
    answer = refused(api.post(path, build(queue, limit + 1) | wait), 400, "VALIDATION_ERROR")
    assert field in answer["error"]
    limit_shown = 1024 if limit == 512 and field == "unique_key" else limit
    assert str(limit_shown) in answer["error"]
    assert api.post(path, build(queue, limit) | wait)[0] in (200, 201, 204)


def test_count_of_a_batch_fetch_is_clamped(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 600)
    for count in (0, -5, 1):
        assert len(api.fetch_batch(queue, count=count)) == 1
    assert len(api.fetch_batch(queue, count=100_000)) == 512
    assert len(api.fetch_batch(queue, count=100_000)) == 85
    assert api.fetch_batch(queue) == []


# ---- numbers and choices ----


CHOICES: list[tuple[str, list[Any], list[Any]]] = [
    ("max_retries", [0, 1, 1_000_000], [-1, 1_000_001, 2**63, 10**30]),
    (
        "priority",
        ["critical", "high", "normal", 0, 1, 2],
        ["low", "", "Normal", "1", -1, 3, 10**30],
    ),
    ("retry_backoff", ["none", "fixed", "linear", "exponential"], ["", "expo", "None"]),
    ("retry_jitter", [0, 0.0001, 1, 1.0], [-0.1, 1.01, 10**30]),
    (
        "unique_until",
        ["start", "success", "completion", "final", "period", "expiry"],
        ["", "never", "Final"],
    ),
]


@pytest.mark.parametrize(("field", "good", "bad"), CHOICES)
def test_numbers_and_choices(
    api: Api, queue: str, field: str, good: list[Any], bad: list[Any]
) -> None:
    for value in bad:
        body = {"queue": queue, field: value}
        assert field in refused(api.post("/enqueue", body), 400, "VALIDATION_ERROR")["error"]
    for value in good:
        assert api.post("/enqueue", {"queue": queue, field: value})[0] == 201


GOOD_DURATIONS: list[tuple[Any, int]] = [
    (0, 0),
    ("0", 0),
    ("0s", 0),
    (90, 90_000),
    ("90", 90_000),
    (1.5, 1_500),
    (0.25, 250),
    ("1.5s", 1_500),
    ("500ms", 500),
    ("1h30m", 5_400_000),
    ("1h30m15s500ms", 5_415_500),
    ("7d", 7 * 86_400_000),
    ("2w", 14 * 86_400_000),
    ("0.5h", 1_800_000),
    ("1d12h", 36 * 3_600_000),
]
BAD_DURATIONS: list[Any] = [
    -1,
    -0.5,
    "-1",
    "-1s",
    "",
    " ",
    "1x",
    "h",
    "1h-30m",
    "1 h",
    " 1s",
    "1s ",
    "1e3",
    "1,5s",
    "٣s",
    "1" * 30,
    True,
    [],
    {},
    "P1D",
    "inf",
    "1:30",
]


@pytest.mark.parametrize(("value", "milliseconds"), GOOD_DURATIONS)
def test_durations(api: Api, queue: str, value: Any, milliseconds: int) -> None:
    fields = ("retry_base_delay", "retry_max_delay")
    job_id = api.enqueue(queue, unique_period=value, **dict.fromkeys(fields, value))
    job = api.job(job_id)
    assert [job[f"{field}_ms"] for field in fields] == [milliseconds] * 2
    assert api.release(api.take(queue), delay=value)[0] == 200


@pytest.mark.parametrize("value", BAD_DURATIONS)
def test_what_is_no_duration(api: Api, queue: str, value: Any) -> None:
    for field in ("retry_base_delay", "retry_max_delay", "unique_period"):
        body = {"queue": queue, field: value}
        assert field in refused(api.post("/enqueue", body), 400, "VALIDATION_ERROR")["error"]
    for path, body in (
        ("/release/x", {"delay": value}),
        ("/fail/x", {"retry_after": value}),
        ("/fetch", {"queues": [queue], "timeout": value}),
        ("/fetch", {"queues": [queue], "timeout": 0, "lease_duration": value}),
    ):
        field = list(body)[-1]
        assert field in refused(api.post(path, body), 400, "VALIDATION_ERROR")["error"]


GOOD_TIMES = [
    ("2040-02-29T12:00:00Z", "2040-02-29T12:00:00Z"),
    ("2040-02-29t12:00:00z", "2040-02-29T12:00:00Z"),
    ("2040-02-29T12:00:00.5Z", "2040-02-29T12:00:00.5Z"),
    ("2040-02-29T12:00:00.123456789Z", "2040-02-29T12:00:00.123456789Z"),
    ("2040-02-29T12:00:00+02:00", "2040-02-29T10:00:00Z"),
    ("2040-02-29T12:00:00-05:30", "2040-02-29T17:30:00Z"),
    ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
]
BAD_TIMES = [
    "",
    "tomorrow",
    "2040-02-30T12:00:00Z",
    "2041-02-29T12:00:00Z",
    "2040-02-29",
    "2040-02-29T12:00:00",
    "2040-02-29 12:00:00Z",
    "2040-02-29T24:00:00Z",
    "2040-02-29T12:60:00Z",
    "2040-02-29T12:00Z",
    "2040-13-01T00:00:00Z",
    "20400229T120000Z",
    "2040-02-29T12:00:00.Z",
    "2040-02-29T12:00:00+25:00",
    "1700000000",
    "10000-01-01T00:00:00Z",
    "-001-01-01T00:00:00Z",
    "9999-12-31T23:59:59-01:00",
    "٢040-02-29T12:00:00Z",
]


@pytest.mark.parametrize(("given", "shown"), GOOD_TIMES)
def test_times(api: Api, queue: str, given: str, shown: str) -> None:
    assert api.job(api.enqueue(queue, scheduled_at=given))["scheduled_at"] == shown


@pytest.mark.parametrize("value", [value for value in BAD_TIMES if value])
def test_what_is_no_time(api: Api, queue: str, value: str) -> None:
    answer = refused(
        api.post("/enqueue", {"queue": queue, "scheduled_at": value}), 400, "VALIDATION_ERROR"
    )
    assert "scheduled_at" in answer["error"]


@pytest.mark.parametrize("value", [0, 0.999, 86_400.5, 86_401, "25h", "0s"])
def test_leases_out_of_range(api: Api, queue: str, value: Any) -> None:
    body = {"queues": [queue], "timeout": 0, "lease_duration": value}
    for path in ("/fetch", "/fetch/batch"):
        answer = refused(api.post(path, body), 400, "VALIDATION_ERROR")
        assert "lease_duration" in answer["error"] and "86400" in answer["error"]


@pytest.mark.parametrize(
    ("value", "seconds"), [(1, 1), (86_400, 86_400), ("24h", 86_400), ("1m", 60), (None, 60)]
)
def test_leases_in_range(api: Api, queue: str, value: Any, seconds: int) -> None:
    job_id = api.enqueue(queue)
    run = api.take(queue, lease_duration=value)
    job = api.job(job_id)
    assert run["lease_duration"] == seconds
    granted_ns = nanoseconds(job["lease_expires_at"]) - nanoseconds(job["started_at"])
    assert granted_ns == seconds * 10**9


def test_a_timeout_above_the_cap_is_clamped_not_refused(api: Api, queue: str) -> None:
    api.enqueue_many(queue, 2)
    assert api.take(queue, timeout=3600)["payload"] == 0
    assert api.ok("POST", "/fetch/batch", {"queues": [queue], "timeout": "1h"})["jobs"]


def test_concurrency_bounds(api: Api, queue: str) -> None:
    path = f"/queues/{queue}/concurrency"
    for value in (1, 1_000_000_000):
        assert api.post(path, {"max": value}) == (200, {"status": "ok"})
        assert api.queue(queue)["max_concurrency"] == value
    for value in (0, -1):
        api.ok("POST", path, {"max": 5})
        assert api.post(path, {"max": value}) == (200, {"status": "ok"})
        assert "max_concurrency" not in api.queue(queue)
    refused(api.post(path, {"max": 10**30}), 400, "VALIDATION_ERROR")


def test_the_clock_takes_only_one_order_and_never_goes_back(api: Api) -> None:
    now_ns = clock_ns(api)
    bad: list[Any] = [{"advance": -1}, {"advance": "x"}, {"set": rfc3339(now_ns - YEAR_NS)}]
    bad += [{"advance": 1, "freeze": True}, {"jump": 1}, {"set": "9999-12-31T23:59:59Z"}]
    for body in bad:
        refused(api.post("/test/clock", body), 400, "VALIDATION_ERROR")
    assert now_ns <= clock_ns(api) < now_ns + WAIT_S * 10**9


def test_the_end_of_the_test_clock(data_dir: Path) -> None:
    """The last time that it can be set to leaves room for everything that comes after."""
    with running_server(data_dir, "--test-clock") as server:
        api = server.api()
        answer = refused(api.post("/test/clock", {"advance": "200000d"}), 400, "VALIDATION_ERROR")
        last = re.search(r"exceed (\S+),", answer["error"])
        assert last is not None
        api.ok("POST", "/test/clock", {"set": last.group(1)})
        job_id = api.enqueue("q", retry_base_delay="100000d", retry_max_delay="100000d")
        run = api.take("q", lease_duration=86_400)
        assert api.beat(run) == "ok"
        assert api.fail(run)[0] == 200
        api.enqueue("q")
        api.take("q", lease_duration=86_400)
        server.kill()
        server.start()
        assert server.api().job(job_id)["state"] == "retrying"


def test_a_refusal_for_overload_has_a_retry_delay(data_dir: Path) -> None:
    """New work is refused with 429; what ends work is not."""
    with running_server(data_dir, "--max-pending", "1") as server:
        api = server.api()
        api.enqueue("q")
        run = api.take("q")
        packet = post_bytes("/enqueue", {"queue": "q"}) * 30
        packet += post_bytes(f"/ack/{run['job_id']}", {"lease_token": run["lease_token"]}, True)
        with connect(server.port) as connection:
            connection.sendall(packet)
            text = connection.makefile("rb").read()
        taken, refusals = text.count(b"HTTP/1.1 201 "), text.count(b"HTTP/1.1 429 ")
        assert taken >= 1 and refusals >= 1 and taken + refusals == 30
        assert text.count(b"Retry-After: 1\r\n") == text.count(b'"OVERLOADED"') == refusals
        assert text.count(b'"retry_after_ms":') == refusals
        assert text.endswith(b'{"status":"ok","state":"completed"}')
        assert api.queue("q")["enqueued"] == taken + 1
        assert api.ok("GET", "/cluster/status")["overload_total"] == refusals


def test_clients_cannot_use_up_the_files_of_the_log(data_dir: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1024), hard))
    with running_server(data_dir) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert server.process is not None
        pid = server.process.pid
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] >= min(hard, 10_000)
        api = server.api()
        api.enqueue("q")
        open_files = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_files + 8, open_files + 8))
        clients = [connect(server.port) for _ in range(20)]
        until(lambda: len(os.listdir(f"/proc/{pid}/fd")) >= open_files + 8, "there are files left")
        big = {"queue": "q", "payload": "x" * 250_000}
        codes = {api.post("/enqueue/batch", {"jobs": [big] * 40})[0] for _ in range(16)}
        assert codes <= {201, 507}, codes
        for client in clients:
            client.close()
        until(lambda: api.post("/enqueue", big)[0] == 201, "no jobs are taken any more")
        server.log[:] = [line for line in server.log if "no disk space" not in line]

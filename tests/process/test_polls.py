"""Fetches that wait: what wakes them, in which order, and what happens to those who go away.

That a fetch waits is read from the server; that it was woken shows in its answer coming long
before its timeout of a minute.
"""

import json
import random
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from lib.harness import (
    WAIT_S,
    Api,
    Poll,
    ServerProcess,
    advance,
    connect,
    frozen_clock,
    nanoseconds,
    post_bytes,
    raw_fetch,
)


@pytest.fixture(autouse=True)
def _nobody_waits(api: Api) -> Iterator[None]:
    """Each test starts and ends without waiting fetches."""
    api.wait_parked(0)
    yield
    api.wait_parked(0)


# ---- how long ----


@pytest.mark.parametrize("timeout", [0, "0s", "0ms"])
def test_zero_does_not_wait(api: Api, queue: str, timeout: Any) -> None:
    began = time.monotonic()
    assert api.post("/fetch", {"queues": [queue], "timeout": timeout}) == (204, None)
    body = {"queues": [queue], "timeout": timeout, "count": 5}
    assert api.post("/fetch/batch", body) == (200, {"jobs": []})
    assert time.monotonic() - began < WAIT_S


@pytest.mark.parametrize("timeout", [0.3, "300ms"])
def test_a_fetch_waits_as_long_as_it_says(api: Api, queue: str, timeout: Any) -> None:
    for path, empty in (("/fetch", (204, None)), ("/fetch/batch", (200, {"jobs": []}))):
        began = time.monotonic()
        assert api.post(path, {"queues": [queue], "timeout": timeout}) == empty
        assert 0.3 <= time.monotonic() - began < WAIT_S


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 30), (45, 45), (60, 60), ("1h", 60)])
def test_default_and_cap_of_the_wait(
    shared_server: ServerProcess, api: Api, queue: str, timeout: Any, seconds: int
) -> None:
    """Waits follow the test clock, so that nobody has to sit them out."""
    with frozen_clock(api):
        poll = Poll(api, shared_server, queue, timeout=timeout)
        advance(api, f"{seconds - 1}s")
        api.wait_parked(1)
        advance(api, "1100ms")
        assert poll.answer() == (204, None)


# ---- what wakes ----


def test_enqueue_wakes(shared_server: ServerProcess, api: Api, queue: str) -> None:
    poll = Poll(api, shared_server, queue)
    job_id = api.enqueue(queue)
    assert poll.job()["job_id"] == job_id


def test_a_batch_wakes_as_many_as_it_has_jobs(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    polls = [Poll(api, shared_server, queue) for _ in range(4)]
    ids = api.enqueue_many(queue, 3)
    api.wait_parked(1)
    ids.append(api.enqueue(queue))
    assert sorted(poll.job()["job_id"] for poll in polls) == sorted(ids)


def test_a_job_due_wakes(shared_server: ServerProcess, api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, scheduled_at="2400-01-01T00:00:00Z")
    retried = api.enqueue(queue, retry_base_delay="30s", retry_jitter=0)
    api.fail(api.take(queue))
    poll = Poll(api, shared_server, queue)
    advance(api, "30s")
    assert poll.job()["job_id"] == retried
    assert api.job(job_id)["state"] == "scheduled"


def test_jobs_due_in_real_time_wake(shared_server: ServerProcess, api: Api, queue: str) -> None:
    """Each when it is due: never early, and soon."""
    due = {api.enqueue(queue): 0 for _ in range(10)}
    for number, run in enumerate(api.take_many(queue, count=10)):
        answer = api.fail(run, retry_after=f"{100 + 20 * number}ms")[1]
        due[run["job_id"]] = nanoseconds(answer["next_attempt_at"])
    assert [run["job_id"] for run in api.take_many(queue, count=10)] == list(due)
    for job_id, due_ns in due.items():
        events = api.ok("GET", f"/jobs/{job_id}/events")["events"]
        late_ns = next(e["at_ns"] for e in events if e["type"] == "promoted") - due_ns
        assert 0 <= late_ns < 10**9


def test_a_manual_retry_wakes(shared_server: ServerProcess, api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, max_retries=1)
    api.fail(api.take(queue))
    poll = Poll(api, shared_server, queue)
    api.ok("POST", f"/jobs/{job_id}/retry")
    assert poll.job()["job_id"] == job_id


def test_a_release_wakes(shared_server: ServerProcess, api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    run = api.take(queue)
    poll = Poll(api, shared_server, queue)
    assert api.release(run)[0] == 200
    assert poll.job()["job_id"] == job_id


def test_a_failure_without_delay_wakes(shared_server: ServerProcess, api: Api, queue: str) -> None:
    job_id = api.enqueue(queue, retry_backoff="none")
    run = api.take(queue)
    poll = Poll(api, shared_server, queue)
    assert api.fail(run)[0] == 200
    assert poll.job()["job_id"] == job_id


def test_the_end_of_a_lease_wakes(shared_server: ServerProcess, api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    api.take(queue, lease_duration=30)
    poll = Poll(api, shared_server, queue)
    advance(api, "30s")
    assert poll.job()["job_id"] == job_id


def test_resume_wakes(shared_server: ServerProcess, api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    api.ok("POST", f"/queues/{queue}/pause")
    poll = Poll(api, shared_server, queue)
    api.ok("POST", f"/queues/{queue}/resume")
    assert poll.job()["job_id"] == job_id


FREERS = ["ack", "ack batch", "fail", "dead", "release", "cancel", "force", "delete", "expiry"]


@pytest.mark.parametrize("freer", FREERS)
def test_a_freed_slot_wakes(shared_server: ServerProcess, api: Api, queue: str, freer: str) -> None:
    """However the job that had it ended or went back."""
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 1})
    first = api.enqueue(queue, priority="high")
    waiting = api.enqueue(queue, priority="critical" if freer == "release" else "high")
    run = api.take(queue, lease_duration=30)
    if freer == "release":
        first, waiting = waiting, first
    assert run["job_id"] == first
    poll = Poll(api, shared_server, queue)
    if freer == "ack":
        api.ack(run)
    elif freer == "ack batch":
        api.ok("POST", "/ack/batch", {"acks": [{"job_id": first}]})
    elif freer == "fail":
        api.fail(run)
    elif freer == "dead":
        api.fail(run, retry=False)
    elif freer == "release":
        api.release(run, delay="1h")
    elif freer == "cancel":
        api.ok("POST", f"/jobs/{first}/cancel")
        api.fail(run)
    elif freer == "force":
        api.ok("POST", f"/jobs/{first}/cancel", {"force": True})
    elif freer == "delete":
        api.ok("DELETE", f"/jobs/{first}")
    else:
        api.ok("POST", f"/jobs/{first}/cancel")
        advance(api, "30s")
    assert poll.job()["job_id"] == waiting
    assert api.queue(queue)["active"] == 1


def test_a_raised_limit_wakes(shared_server: ServerProcess, api: Api, queue: str) -> None:
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 1})
    ids = api.enqueue_many(queue, 4)
    api.take(queue)
    first, second = Poll(api, shared_server, queue), Poll(api, shared_server, queue)
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 2})
    api.wait_parked(1)
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 0})
    assert {first.job()["job_id"], second.job()["job_id"]} == set(ids[1:3])
    assert api.take(queue)["job_id"] == ids[3]


def test_a_wait_on_many_queues_takes_one_job(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    names = [f"{queue}-{n}" for n in range(5)]
    poll = Poll(api, shared_server, *names)
    job_id = api.enqueue(names[3])
    assert poll.job()["job_id"] == job_id
    api.wait_parked(0)
    other = api.enqueue(names[1])
    assert api.take(*names)["job_id"] == other


def test_a_batch_fetch_returns_with_the_first_job(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    with connect(shared_server.port) as waiting:
        waiting.sendall(post_bytes("/fetch/batch", {"queues": [queue], "count": 9, "timeout": 60}))
        api.wait_parked(1)
        job_id = api.enqueue(queue)
        assert [job["job_id"] for job in json.loads(read_reply(waiting))["jobs"]] == [job_id]


def read_reply(connection: socket.socket) -> bytes:
    """The body of the reply that comes on a connection."""
    file = connection.makefile("rb")
    length = 0
    while (line := file.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return file.read(length)


# ---- what does not wake, and fairness ----


def test_pause_holds_back_waiting_fetches(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    """Nothing is delivered after the reply to the pause."""
    poll = Poll(api, shared_server, queue)
    api.ok("POST", f"/queues/{queue}/pause")
    ids = api.enqueue_many(queue, 2)
    assert api.fetch(queue) is None
    assert poll.reply is None
    assert [api.job(job_id)["state"] for job_id in ids] == ["pending"] * 2
    api.ok("POST", f"/queues/{queue}/resume")
    assert poll.job()["job_id"] == ids[0]


def test_the_first_to_wait_is_the_first_served(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    polls = [Poll(api, shared_server, queue) for _ in range(3)]
    for poll in polls:
        job_id = api.enqueue(queue)
        assert poll.job()["job_id"] == job_id


def test_a_thousand_waiting_fetches_and_one_job(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    """One delivery and no herd: the others still wait. Then each gets the job that is its own."""
    count = 1000
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for number in range(count):
            source = f"127.0.0.{2 + number % 2}"
            poll = stack.enter_context(raw_fetch(shared_server.port, queue, source))
            selector.register(poll, selectors.EVENT_READ)
        api.wait_parked(count)
        entries = api.ok("GET", "/cluster/status")["entries_total"]
        job_id = api.enqueue(queue)
        ready = selector.select(WAIT_S)
        assert len(ready) == 1
        winner = ready[0][0].fileobj
        assert isinstance(winner, socket.socket)
        assert json.loads(read_reply(winner))["job_id"] == job_id
        assert api.ok("GET", "/cluster/status")["entries_total"] - entries <= 2
        assert selector.select(0) == []
        assert api.queue(queue)["active"] == 1
        api.wait_parked(count - 1)
        api.enqueue_many(queue, count - 1)
        api.wait_parked(0)
        selector.unregister(winner)
        seen = set()
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            seen.add(json.loads(read_reply(key.fileobj))["payload"])
        assert seen == set(range(count - 1))
    assert api.queue(queue)["active"] == count


def test_a_client_that_left_gets_no_job(shared_server: ServerProcess, api: Api, queue: str) -> None:
    """Once the server knows, nothing is leased for it."""
    gone = raw_fetch(shared_server.port, queue)
    api.wait_parked(1)
    gone.close()
    api.wait_parked(0)
    job_id = api.enqueue(queue)
    assert api.job(job_id)["state"] == "pending"
    assert "started_at" not in api.job(job_id)
    run = api.take(queue)
    assert (run["job_id"], run["attempt"]) == (job_id, 1)


def test_a_client_that_left_does_not_hold_up_the_next(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    gone = raw_fetch(shared_server.port, queue)
    api.wait_parked(1)
    poll = Poll(api, shared_server, queue)
    gone.close()
    job_id = api.enqueue(queue)
    run = poll.job()
    assert (run["job_id"], run["attempt"]) == (job_id, 1)


def test_a_client_that_leaves_with_its_job_keeps_it(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    """curl closes its connection as soon as it has the reply."""
    job_id = api.enqueue(queue)
    for path, close in (("/fetch", True), ("/fetch/batch", False)):
        with connect(shared_server.port) as curl:
            curl.sendall(post_bytes(path, {"queues": [queue], "timeout": 60}, close))
            assert job_id.encode() in read_reply(curl)
        job_id, before = api.enqueue(queue), job_id
        assert api.job(before)["state"] == "active"
    assert api.queue(queue)["active"] == 2


def test_a_storm_of_clients_that_leave(shared_server: ServerProcess, api: Api, queue: str) -> None:
    """They hang up at every moment of a fetch: before it is read, while it is on its way, when it
    is answered. Each job comes again, at once or when the lease nobody knows of is over."""
    ids = api.enqueue_many(queue, 100, max_retries=100)
    chance = random.Random(1)
    for _ in range(300):
        gone = raw_fetch(shared_server.port, queue)
        if chance.random() < 0.5:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if chance.random() < 0.3:
            api.ok("GET", "/info")
        gone.close()
    done: set[str] = set()
    while len(done) < len(ids):
        advance(api, "61s")
        for run in api.fetch_batch(queue):
            assert api.ack(run)[0] == 200
            done.add(run["job_id"])
    assert done == set(ids)
    document = api.queue(queue)
    assert (document["completed"], document["active"], document["pending"]) == (100, 0, 0)


def test_pipelined_fetches_are_answered_in_order(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    """Two fetches and a read on one connection: the read waits for its turn."""
    with raw_fetch(shared_server.port, queue) as connection:
        connection.sendall(post_bytes("/fetch", {"queues": [f"{queue}-b"], "timeout": 60}))
        connection.sendall(
            b"GET /api/v1/info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        api.wait_parked(2)
        later = api.enqueue(f"{queue}-b")
        api.wait_parked(1)
        sooner = api.enqueue(queue)
        text = connection.makefile("rb").read()
    assert 0 < text.index(sooner.encode()) < text.index(later.encode()) < text.index(b"api_version")

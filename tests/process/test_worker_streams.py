"""Lifecycle streams by Connect and gRPC: frames, limits, ends, and jobs that are not delivered."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from lib.clusters import running_cluster
from lib.harness import Api, ServerProcess, frozen_clock, running_server, set_clock, until
from lib.stream_peer import (
    PATH,
    ConnectStream,
    Ended,
    Stream,
    decode,
    encode,
    open_stream,
)

KINDS = ["grpc", "proto", "json"]
Open = Callable[..., Stream]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(shared_server: ServerProcess, kind: str) -> Iterator[Open]:
    """Opens streams to the module's server."""
    with contextlib.ExitStack() as stack:

        def do(**headers: str) -> Stream:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            stream = open_stream(shared_server.port, kind, names)
            stack.callback(stream.close)
            return stream

        yield do


def jobs_of(response: dict[str, Any]) -> list[str]:
    return [job["job_id"] for job in response.get("jobs", [])]


def acks_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"job_id": job["job_id"], "lease_token": job["lease_token"]} for job in response["jobs"]
    ]


def test_the_life_of_jobs(opened: Open, api: Api, queue: str) -> None:
    stream = opened()
    fetch = {"queues": [queue], "worker_id": "w", "fetch_count": 2}
    items = [{"queue": queue, "payload_json": json.dumps(n)} for n in range(3)]
    first = stream.exchange(request_id=7, enqueues=items, **fetch)
    ids = first["enqueued_job_ids"]
    assert first["request_id"] == 7 and jobs_of(first) == ids[:2], "new jobs can be fetched"
    assert [job["payload_json"] for job in first["jobs"]] == ["0", "1"]
    second = stream.exchange(request_id=8, acks=acks_of(first), **fetch)
    assert (second["request_id"], second["acked"], jobs_of(second)) == (8, 2, ids[2:])
    fails = [{**acks_of(second)[0], "error": "no", "retry": False}]
    assert stream.exchange(request_id=9, fails=fails) == {"request_id": 9}
    assert [api.job(job_id)["state"] for job_id in ids] == ["completed", "completed", "dead"]
    assert stream.exchange() == {}, "a frame without anything is answered, too"
    stream.end()
    with pytest.raises(Ended) as ended:
        stream.receive()
    assert ended.value.code == "ok"


def test_a_slot_that_an_ack_frees_is_there_for_the_fetch(
    opened: Open, api: Api, queue: str
) -> None:
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 1})
    ids = api.enqueue_many(queue, 2)
    stream = opened()
    fetch = {"queues": [queue], "worker_id": "w", "fetch_count": 5}
    first = stream.exchange(**fetch)
    assert jobs_of(first) == ids[:1]
    second = stream.exchange(acks=acks_of(first), **fetch)
    assert (second["acked"], jobs_of(second)) == (1, ids[1:])


def test_frames_sent_ahead_are_answered_in_order(opened: Open, queue: str) -> None:
    stream = opened()
    for number in range(1, 101):
        stream.send(request_id=number, enqueues=[{"queue": queue}] if number % 3 == 0 else [])
    assert [stream.receive()["request_id"] for _ in range(100)] == list(range(1, 101))


def test_a_fetch_waits_for_work(opened: Open, api: Api, queue: str) -> None:
    stream = opened()
    with frozen_clock(api):  # else the wait is over soon
        stream.send(queues=[queue], worker_id="w", fetch_count=1)
        api.wait_parked(1)
        job_id = api.enqueue(queue)
        assert jobs_of(stream.receive()) == [job_id]


def test_a_fetch_that_finds_nothing_is_answered_after_a_tenth_of_a_second(
    opened: Open, api: Api, queue: str
) -> None:
    stream = opened()
    with frozen_clock(api) as now_ns:
        stream.send(request_id=1, queues=[queue], worker_id="w", fetch_count=1)
        api.wait_parked(1)
        set_clock(api, now_ns + 99 * 10**6)
        assert api.ok("GET", "/cluster/status")["waiting_fetches"] == 1
        set_clock(api, now_ns + 120 * 10**6)
        assert stream.receive() == {"request_id": 1}


def test_errors_are_in_band_and_too_many_end_the_stream(opened: Open, queue: str) -> None:
    stream = opened()
    response = stream.exchange(acks=[{}], enqueues=[{"queue": queue}])
    assert response["error"] == "ack: job_id is required" and response["enqueued_job_ids"]
    with pytest.raises(Ended) as ended:
        for _ in range(11):
            assert stream.exchange(enqueues=[{}])["error"] == "enqueue: queue is required"
    assert ended.value.code == "resource_exhausted"
    assert "too many consecutive errors" in ended.value.message


def test_an_invalid_ack_leaves_the_other_acks_of_a_frame(
    opened: Open, api: Api, queue: str
) -> None:
    ids = api.enqueue_many(queue, 4)
    stream = opened()
    acks = acks_of(stream.exchange(queues=[queue], worker_id="w", fetch_count=4))
    acks[1]["result_json"] = json.dumps("x" * 1_048_576)
    acks[2]["lease_token"] = "t" * 1_000
    answer = stream.exchange(acks=acks)
    assert answer["acked"] == 2
    assert answer["error"].startswith("ack: item 1: result too large")
    states = [api.job(job_id)["state"] for job_id in ids]
    assert states == ["completed", "active", "active", "completed"]
    acks[2] = {**acks[2], "step_status": "stop"}
    assert "lease_token" in stream.exchange(acks=acks[2:])["error"]


def test_a_worker_that_leaves_takes_no_jobs(opened: Open, api: Api, queue: str) -> None:
    stream = opened()
    with frozen_clock(api):
        stream.send(queues=[queue], worker_id="w", fetch_count=5)
        api.wait_parked(1)
        stream.close()
        until(
            lambda: b"corvo_fetches_waiting 0" in api.raw("GET", "/metrics").body, "not forgotten"
        )
    ids = api.enqueue_many(queue, 3)
    assert [job["job_id"] for job in api.take_many(queue, count=3)] == ids


def test_unread_jobs_come_back(opened: Open, api: Api, queue: str, kind: str) -> None:
    """Far more than the windows and sockets hold."""
    if kind == "grpc":
        pytest.skip("its client reads by itself")
    payload = "x" * 200_000
    for _ in range(3):
        api.enqueue_many(queue, 30, payload=payload)
    stream = opened()
    for number in range(3):
        stream.send(request_id=number, queues=[queue], worker_id="w", fetch_count=30)
    until(lambda: api.queue(queue)["active"] >= 30, "fetched")
    stream.close()
    until(lambda: api.queue(queue)["active"] == 0, "given back")
    assert len(api.take_many(queue, count=90)) == 90


def test_large_messages(opened: Open, queue: str, kind: str) -> None:
    """Larger than the window of a stream; and one that is too large."""
    stream = opened()
    items = [{"queue": queue, "payload_json": json.dumps("x" * 200_000)}] * 19
    assert len(stream.exchange(enqueues=items)["enqueued_job_ids"]) == 19
    with pytest.raises(Ended) as ended:
        stream.exchange(enqueues=items * 2)
    assert ended.value.code in ("resource_exhausted", "StreamReset"), ended.value


@pytest.mark.parametrize("form", ["proto", "json"])
def test_what_is_no_frame(shared_server: ServerProcess, form: str) -> None:
    for message, flags, code in (
        (b"\xff\xff\xff", 0, "invalid_argument"),
        (b"", 4, "invalid_argument"),
        (b"x", 1, "internal"),
    ):
        stream = ConnectStream(shared_server.port, form)
        stream.send_bytes(message, flags)
        with pytest.raises(Ended) as ended:
            stream.receive()
        assert ended.value.code == code and stream.status == "200"
        stream.close()


def test_the_time_of_a_call(opened: Open, kind: str, queue: str) -> None:
    names = {"grpc_timeout": "200m"} if kind == "grpc" else {"connect_timeout_ms": "200"}
    if kind == "grpc":
        pytest.skip("its client keeps the time itself")
    stream = opened(**names)
    stream.send(queues=[queue], worker_id="w", fetch_count=1)
    with pytest.raises(Ended) as ended:
        for _ in range(9):
            stream.receive()
            stream.send(queues=[queue], worker_id="w", fetch_count=1)
    assert ended.value.code == "deadline_exceeded"


def test_by_credit(opened: Open, api: Api, queue: str) -> None:
    stream = opened(x_corvo_credit="1")
    ask = {"queues": [queue], "worker_id": "w"}
    assert stream.exchange(request_id=1, fetch_count=3, **ask) == {"request_id": 1}
    ids = [api.enqueue(queue), *api.enqueue_many(queue, 3)]
    pushed = []
    while len(pushed) < 3:
        response = stream.receive()
        assert "request_id" not in response
        pushed += response["jobs"]
    assert [job["job_id"] for job in pushed] == ids[:3], "no more than was asked for"
    acks = acks_of({"jobs": pushed})
    assert stream.exchange(request_id=2, acks=acks) == {"request_id": 2, "acked": 3}
    assert stream.exchange(request_id=3, fetch_count=1, **ask) == {"request_id": 3}
    assert jobs_of(stream.receive()) == ids[3:]
    stream.send(request_id=4, fetch_count=1)
    assert stream.receive()["error"] == "fetch: at least one queue is required"


def test_limits_of_streams(data_dir: Path) -> None:
    flags = ("--stream-max-open", "2", "--stream-max-fps", "20")
    with running_server(data_dir, *flags) as server, contextlib.ExitStack() as stack:
        first, second = (open_stream(server.port, kind) for kind in KINDS[:2])
        assert first.exchange(request_id=1) == second.exchange(request_id=1) == {"request_id": 1}
        third = open_stream(server.port, KINDS[2])
        for stream in (first, second, third):
            stack.callback(stream.close)
        with pytest.raises(Ended) as ended:
            third.exchange(request_id=1)
        assert ended.value.code == "resource_exhausted"
        assert "too many open lifecycle streams" in ended.value.message
        began_s = time.monotonic()
        for number in range(12):
            second.send(request_id=number)
        for _ in range(12):
            second.receive()
        assert time.monotonic() - began_s > 0.5, "20 frames a second"
        first.close()
        api = server.api()
        until(lambda: b"corvo_lifecycle_streams_open 1" in api.raw("GET", "/metrics").body, "gone")
        api.close()


def test_a_stop_ends_streams(data_dir: Path) -> None:
    with running_server(data_dir, "--test-clock", "--stream-max-fps", "0") as server:
        stream = open_stream(server.port, "grpc")  # h2 takes the first GOAWAY for the end
        assert stream.exchange(request_id=1) == {"request_id": 1}
        api = server.api()
        api.ok("POST", "/test/clock", {"freeze": True})
        stream.send(request_id=2, queues=["q"], worker_id="w", fetch_count=1)
        api.wait_parked(1)
        api.close()
        assert server.stop() == 0
        assert stream.receive() == {"request_id": 2}
        with pytest.raises(Ended) as ended:
            stream.receive()
        assert (ended.value.code, ended.value.message) == ("unavailable", "the server is stopping")
        stream.close()


def test_a_follower_says_where_to_go(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        leader = cluster.wait_leader()
        cluster.wait_voters(3)
        follower = cluster.followers()[0]
        for kind in KINDS:
            stream = open_stream(follower.port, kind)
            response = stream.receive()
            assert response == {"error": "NOT_LEADER", "leader_addr": leader.url}
            with pytest.raises(Ended) as ended:
                stream.receive()
            assert ended.value.code == "ok"
            stream.close()
            stream = open_stream(leader.port, kind)
            assert stream.exchange(enqueues=[{"queue": "q"}])["enqueued_job_ids"]
            stream.close()
        stream = open_stream(leader.port, "proto")
        stream.exchange(request_id=1)
        stream.send(request_id=2, queues=["none"], worker_id="w", fetch_count=1)
        leader.kill()
        with pytest.raises((Ended, AssertionError, OSError)):
            stream.receive()
        stream.close()


def test_events_by_grpc(shared_server: ServerProcess, api: Api, queue: str) -> None:
    ids = api.enqueue_many(queue, 300)
    with grpc.insecure_channel(f"127.0.0.1:{shared_server.port}") as channel:
        subscribe = channel.unary_stream(
            f"{PATH}Subscribe",
            lambda values: encode(values, "SubscribeRequest"),
            lambda data: decode(data, "SubscribeEvent"),
        )
        events: Any = subscribe({"queues": [queue]}, metadata=[("x-corvo-from", "start")])
        found = []
        for event in events:
            if event.get("type") == "enqueued":
                found.append(event["job_id"])
            if len(found) == 300:
                api.enqueue(queue)
            elif len(found) == 301:
                break
        assert found[:300] == ids
        events.cancel()
        refused: Any = subscribe({"types": ["nothing"]})
        with pytest.raises(grpc.RpcError):
            next(refused)
        assert refused.code() == grpc.StatusCode.INVALID_ARGUMENT

"""Lifecycle streams that a follower passes on to the leader, because their client asks for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import ClusterProcess, running_cluster
from harness import until
from stream_peer import Ended, Stream, open_stream

RELAY = {"x-corvo-proxy-stream": "1"}
KINDS = ["grpc", "proto", "json"]
FETCH: dict[str, Any] = {"worker_id": "w", "fetch_count": 10}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with running_cluster(tmp_path_factory.mktemp("relay")) as found:
        found.wait_leader()
        found.wait_voters(3)
        yield found


def acks_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"job_id": job["job_id"], "lease_token": job["lease_token"]} for job in response["jobs"]
    ]


def metric(port_of: Any, name: str) -> int:
    api = port_of.api()
    lines = api.raw("GET", "/metrics").body.decode().splitlines()
    api.close()
    return next(int(float(line.split()[1])) for line in lines if line.startswith(name + " "))


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_life_by_way_of_a_follower(cluster: ClusterProcess, kind: str) -> None:
    follower = cluster.followers()[0]
    queue = f"life-{kind}"
    stream = open_stream(follower.port, kind, RELAY)
    ids = stream.exchange(request_id=1, enqueues=[{"queue": queue}] * 3)["enqueued_job_ids"]
    found = stream.exchange(request_id=2, queues=[queue], **FETCH)
    assert [job["job_id"] for job in found["jobs"]] == ids
    assert metric(follower, "corvo_lifecycle_relays_open") == 1
    assert stream.exchange(request_id=3, acks=acks_of(found)) == {"request_id": 3, "acked": 3}
    bad = stream.exchange(request_id=4, enqueues=[{"payload_json": "{}"}])
    assert bad == {"request_id": 4, "error": "enqueue: queue is required"}
    stream.end()
    with pytest.raises(Ended) as ended:
        stream.receive()
    assert ended.value.code == "ok"
    stream.close()
    until(lambda: metric(follower, "corvo_lifecycle_relays_open") == 0, "the stream is over")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_ends_it_as_the_leader_says(cluster: ClusterProcess, kind: str) -> None:
    stream = open_stream(cluster.followers()[0].port, kind, RELAY)
    for number in range(10):
        stream.exchange(request_id=number, enqueues=[{"payload_json": "{}"}])
    with pytest.raises(Ended) as ended:
        stream.receive()
    assert ended.value.code == "resource_exhausted"
    stream.close()


def test_without_asking_or_from_another_node_it_is_not_passed_on(cluster: ClusterProcess) -> None:
    follower, leader = cluster.followers()[0], cluster.wait_leader()
    for headers in ({}, {"x-corvo-proxy-stream": "0"}, {**RELAY, "x-corvo-forwarded": "1"}):
        stream = open_stream(follower.port, "proto", headers)
        assert stream.receive() == {"error": "NOT_LEADER", "leader_addr": leader.url}
        stream.close()


def test_jobs_of_a_client_that_went_away_go_back(cluster: ClusterProcess) -> None:
    follower, leader = cluster.followers()[0], cluster.wait_leader()
    stream = open_stream(follower.port, "proto", RELAY)
    stream.send(request_id=1, queues=["gone"], **FETCH)
    api = leader.api()
    api.wait_parked(1)
    stream.close()
    until(lambda: metric(leader, "corvo_lifecycle_streams_open") == 0, "the leader has heard of it")
    api.enqueue("gone")
    assert api.take("gone")["attempt"] == 1
    api.close()


def test_a_client_that_does_not_read_holds_up_itself(cluster: ClusterProcess) -> None:
    """What the leader hands out waits there, and not in the follower."""
    follower, leader = cluster.followers()[0], cluster.wait_leader()
    payload = '"' + "x" * 200_000 + '"'
    maker = open_stream(follower.port, "proto", RELAY)
    count = 200
    for _ in range(count // 10):
        jobs = [{"queue": "large", "payload_json": payload}] * 10
        assert len(maker.exchange(enqueues=jobs)["enqueued_job_ids"]) == 10
    reader = open_stream(follower.port, "proto", RELAY)
    for number in range(count // 10):
        reader.send(request_id=number + 1, queues=["large"], **FETCH)
    api = leader.api()

    def waiting() -> int:
        pending: int = api.ok("GET", "/queues/large")["pending"]
        return pending

    until(lambda: waiting() < count, "the first jobs are on their way")
    for number in range(100):  # time for all of them, were they taken
        assert maker.exchange(request_id=number + 1) == {"request_id": number + 1}
    assert waiting() > 0
    assert metric(leader, "corvo_lifecycle_streams_open") == 2
    found: list[Any] = []
    for number in range(count // 10):
        answer = reader.receive()
        assert answer["request_id"] == number + 1
        found += answer.get("jobs", [])
    assert len({job["job_id"] for job in found}) == count
    for stream in (maker, reader):
        stream.close()
    api.close()


def test_a_request_that_the_leader_does_not_take_waits_with_the_client(
    cluster: ClusterProcess,
) -> None:
    """Frames sent ahead, more than the leader reads at once, all arrive in order."""
    stream = open_stream(cluster.followers()[0].port, "proto", RELAY)
    payload = '"' + "y" * 50_000 + '"'
    for number in range(40):
        stream.send(request_id=number + 1, enqueues=[{"queue": "y", "payload_json": payload}] * 4)
    for number in range(40):
        answer = stream.receive()
        assert answer["request_id"] == number + 1 and len(answer["enqueued_job_ids"]) == 4
    stream.close()


def test_when_the_leader_is_lost_the_stream_ends_and_the_next_one_works(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        leader = cluster.wait_leader()
        cluster.wait_voters(3)
        follower = cluster.followers()[0]
        streams: list[Stream] = [open_stream(follower.port, kind, RELAY) for kind in KINDS]
        for stream in streams:
            assert stream.exchange(request_id=1) == {"request_id": 1}
        leader.kill()
        for stream in streams:
            with pytest.raises((Ended, AssertionError)):
                stream.receive()
            stream.close()
        cluster.wait_leader()

        def works() -> bool:
            stream = open_stream(follower.port, "proto", RELAY)
            try:
                return "enqueued_job_ids" in stream.exchange(enqueues=[{"queue": "q"}])
            except (Ended, AssertionError):
                return False
            finally:
                stream.close()

        until(works, "the new leader takes jobs")

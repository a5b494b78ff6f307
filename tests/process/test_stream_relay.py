"""Lifecycle streams that a follower passes on to the leader, because their client asks for it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lib.clusters import ClusterProcess, running_cluster
from lib.harness import WAIT_S, until
from lib.stream_peer import Ended, Stream, open_stream

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


class Worker:
    """A client on a thread of its own, with a stream by way of a follower: enqueues a job, fetches
    it and acknowledges it, again and again, until the stream ends."""

    def __init__(self, port: int, kind: str) -> None:
        self.enqueued: list[str] = []
        self.fetched: dict[str, str] = {}  # lease token by job id
        self.acknowledged: list[str] = []
        self.ended: Ended | None = None
        self._queue = f"worker-{kind}"
        self._stream = open_stream(port, kind, RELAY)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> Ended:
        """How its stream ended."""
        self._thread.join(WAIT_S)
        self._stream.close()
        assert self.ended is not None, "the client waits for ever"
        return self.ended

    def _run(self) -> None:
        try:
            while True:
                # Of three jobs one stays in the queue, and one with the worker.
                made = self._stream.exchange(enqueues=[{"queue": self._queue}] * 3)
                self.enqueued += made["enqueued_job_ids"]
                found = self._stream.exchange(queues=[self._queue], worker_id="w", fetch_count=2)
                self.fetched |= {job["job_id"]: job["lease_token"] for job in found["jobs"]}
                acks = acks_of(found)[:1]
                assert self._stream.exchange(acks=acks)["acked"] == 1
                self.acknowledged += [ack["job_id"] for ack in acks]
        except Ended as ended:
            self.ended = ended


def test_when_the_leader_is_killed_streams_end_and_nothing_that_was_answered_is_lost(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path) as cluster:
        leader = cluster.wait_leader()
        follower = cluster.followers()[0]
        workers = [Worker(follower.port, kind) for kind in KINDS]
        until(lambda: all(len(worker.acknowledged) > 10 for worker in workers), "all are at work")
        leader.kill()
        for worker in workers:
            ended = worker.join()
            assert ended.code == "unavailable" and "the leader was lost" in ended.message

        streams: list[Stream] = []

        def works() -> bool:
            stream = open_stream(follower.port, "proto", RELAY)
            try:
                answer = stream.exchange(request_id=1)
            except Ended as ended:
                assert ended.code == "unavailable"
                answer = {}
            if answer == {"request_id": 1}:
                streams.append(stream)
                return True
            assert answer.get("error", "NOT_LEADER") == "NOT_LEADER"
            stream.close()
            return False

        until(works, "another stream works")
        stream = streams[0]
        api = cluster.wait_leader().api()
        for worker in workers:
            states = {job_id: api.job(job_id)["state"] for job_id in worker.enqueued}
            assert all(states[job_id] == "completed" for job_id in worker.acknowledged)
            held = [job_id for job_id in worker.fetched if states[job_id] == "active"]
            assert len(held) >= len(worker.acknowledged)
            acks = [{"job_id": job_id, "lease_token": worker.fetched[job_id]} for job_id in held]
            assert stream.exchange(request_id=2, acks=acks) == {"request_id": 2, "acked": len(acks)}
        stream.close()
        api.close()

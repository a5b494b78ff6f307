"""A server that is stopped for a while: leases that end meanwhile, and heartbeats that wait."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lib.harness import Api, ServerProcess, connect, post_bytes, running_server, until
from lib.stream_peer import open_stream

LEASE_S = 1.0  # the shortest


@pytest.fixture
def server(data_dir: Path) -> Iterator[ServerProcess]:
    with running_server(data_dir) as server:
        yield server


def stop(server: ServerProcess) -> None:
    """Stop the process, and wait until it has stopped."""
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, server.process.pid, os.WSTOPPED | os.WNOWAIT)


def go_on(server: ServerProcess) -> None:
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGCONT)


def beat(job: dict[str, Any]) -> bytes:
    jobs = {job["job_id"]: {"lease_token": job["lease_token"]}}
    return post_bytes("/heartbeat", {"jobs": jobs}, close=True)


def answer(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65_536):
        data += piece
    connection.close()
    return data


def check_kept(api: Api, job: dict[str, Any]) -> None:
    """The lease is still that of this worker."""
    found = api.job(job["job_id"])
    assert (found["state"], found["attempt"], found.get("errors", [])) == ("active", 1, []), found
    assert api.beat(job) == "ok"


@pytest.mark.parametrize("pause_s", [0.6, 1.5, 3.0, 4.5])
def test_heartbeats_that_wait_are_read_first(server: ServerProcess, pause_s: float) -> None:
    """On a connection that was there, on one that waits to be accepted, and on very many."""
    api = server.api()
    api.enqueue_many("q", 120)
    there = [connect(server.port) for _ in range(60)]
    before_s = time.monotonic()
    jobs = api.take_many("q", count=120, lease_duration=LEASE_S)
    # The leases end in the pause, however short it is.
    time.sleep(max(0.0, before_s + LEASE_S - 0.3 - time.monotonic()))
    stop(server)
    new = [connect(server.port) for _ in range(60)]
    for connection, job in zip(there + new, jobs, strict=True):
        connection.sendall(beat(job))
    time.sleep(pause_s)
    go_on(server)
    for connection, job in zip(there + new, jobs, strict=True):
        assert b'{"status":"ok"}' in answer(connection), job["job_id"]
    for job in jobs[::20]:
        check_kept(api, job)
    api.close()


@pytest.mark.parametrize("pause_s", [1.5, 4.5])
def test_a_worker_that_is_late_after_a_pause(server: ServerProcess, pause_s: float) -> None:
    """Its heartbeat could not be sent in the pause; there is a grace period."""
    api = server.api()
    api.enqueue("q")
    job = api.take("q", lease_duration=LEASE_S)
    stop(server)
    time.sleep(pause_s)
    go_on(server)
    pauses = b"corvo_clock_pauses_total 1"
    until(lambda: pauses in api.raw("GET", "/metrics").body, "the pause is not noticed")
    assert api.fetch("q", timeout=1) is None, "the job was given to another worker"
    check_kept(api, job)
    api.close()


@pytest.mark.parametrize("kind", ["grpc", "proto"])
def test_acks_of_a_stream_that_wait(server: ServerProcess, kind: str) -> None:
    api = server.api()
    api.enqueue("q")
    stream = open_stream(server.port, kind)
    fetch: dict[str, Any] = {"queues": ["q"], "worker_id": "w", "lease_duration": 1}
    [job] = stream.exchange(fetch_count=1, **fetch)["jobs"]
    stop(server)
    sender = threading.Thread(
        target=stream.send,
        kwargs={"acks": [{"job_id": job["job_id"], "lease_token": job["lease_token"]}]},
    )
    sender.start()
    sender.join()
    time.sleep(1.5)
    go_on(server)
    assert stream.receive()["acked"] == 1
    assert api.job(job["job_id"])["state"] == "completed"
    stream.close()
    api.close()


def test_a_lease_that_nobody_renews_still_expires(server: ServerProcess) -> None:
    api = server.api()
    api.enqueue("q")
    job = api.take("q", lease_duration=LEASE_S)
    again = api.take("q", timeout=10)
    assert again["job_id"] == job["job_id"] and again["attempt"] == 2
    assert again["fencing"] > job["fencing"]
    api.close()

"""Streams over real sockets: events and texts, with curl, bare sockets and the command."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.harness import (
    WAIT_S,
    Api,
    Lines,
    ServerProcess,
    clean_environment,
    running_server,
)


def gauge(api: Api, name: str) -> float:
    page = api.raw("GET", "/metrics").body.decode()
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    assert found is not None
    return float(found.group(1))


def wait_gauge(api: Api, name: str, value: float) -> None:
    """Asks until the server shows the value; each question is a turn of its loop."""
    for _ in range(10_000):
        if gauge(api, name) == value:
            return
    raise AssertionError(f"{name} stays {gauge(api, name)}")


def test_events_of_a_queue(shared_server: ServerProcess, api: Api, queue: str) -> None:
    stream = Lines(shared_server, f"/events?queues={queue}")
    assert stream.status == 200 and b"Content-Type: text/event-stream\r\n" in stream.headers
    wait_gauge(api, "corvo_event_subscribers", 1)
    api.enqueue(f"{queue}-other")
    job_id = api.enqueue(queue)
    job = api.take(queue)
    api.ok("POST", f"/ack/{job_id}", {"lease_token": job["lease_token"]})
    frames = stream.frames(3)
    assert [frame["event"] for frame in frames] == ["enqueued", "started", "completed"]
    assert all(json.loads(frame["data"])["job_id"] == job_id for frame in frames)
    stream.close()
    wait_gauge(api, "corvo_streams_open", 0)


def test_resume(shared_server: ServerProcess, api: Api, queue: str) -> None:
    ids = api.enqueue_many(queue, 700)
    events = api.get(f"/queues/{queue}/events?limit=1000")[1]["events"]
    after = events[9]["seq"]
    stream = Lines(shared_server, f"/events?queues={queue}", f"Last-Event-ID: {after}")
    more = api.enqueue_many(queue, 5)
    frames = stream.frames(695)
    assert [json.loads(frame["data"])["job_id"] for frame in frames] == ids[10:] + more
    stream.close()


def test_refusals(api: Api) -> None:
    for query in ("types=strange", "last_event_id=x", "queue=a", "from=then", "format=xml"):
        status, answer = api.get(f"/events?{query}")
        assert (status, answer["code"]) == (400, "VALIDATION_ERROR"), query
    reply = api.raw("GET", "/events", headers={"Last-Event-ID": "x"})
    assert reply.status == 400
    assert api.get("/jobs/job_none/stream")[0] == 404
    assert api.raw("HEAD", "/events").status == 200


def test_requests_behind_a_stream_wait_for_its_end(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    job_id = api.enqueue(queue)
    job = api.take(queue)
    stream = Lines(shared_server, f"/jobs/{job_id}/stream")
    stream.socket.sendall(b"GET /api/v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n")
    beat = {"lease_token": job["lease_token"], "stream_delta": "text"}
    api.ok("POST", "/heartbeat", {"jobs": {job_id: beat}})
    (frame,) = stream.frames(1)
    assert json.loads(frame["data"]) == {"job_id": job_id, "delta": "text", "offset": 0}
    api.ok("POST", f"/ack/{job_id}", {"lease_token": job["lease_token"]})
    (end,) = stream.frames(1)
    assert end["event"] == "job.completed"
    assert stream.chunk() == b""
    assert stream.file.readline() == b"HTTP/1.1 200 OK\r\n"
    stream.close()


def test_text_of_a_job(shared_server: ServerProcess, api: Api, queue: str) -> None:
    job_id = api.enqueue(queue)
    job = api.take(queue)
    token = job["lease_token"]

    def beat(delta: str, token: str) -> Any:
        beat = {"lease_token": token, "stream_delta": delta}
        return api.post("/heartbeat", {"jobs": {job_id: beat}})

    assert beat("no", token + "x")[1]["jobs"][job_id]["status"] == "lost"
    assert beat("hello ", token)[1]["jobs"][job_id]["status"] == "ok"
    assert beat("x" * 65_537, token)[0] == 413
    stream = Lines(shared_server, f"/jobs/{job_id}/stream")
    assert json.loads(stream.frames(1)[0]["data"])["delta"] == "hello "
    beat("world", token)
    assert json.loads(stream.frames(1)[0]["data"]) == {
        "job_id": job_id,
        "delta": "world",
        "offset": 6,
    }
    api.ok("POST", f"/jobs/{job_id}/cancel", {"force": True})
    assert stream.frames(1)[0]["event"] == "job.cancelled" and stream.chunk() == b""
    stream.close()
    late = Lines(shared_server, f"/jobs/{job_id}/stream", "Last-Event-ID: 6", version="1.0")
    text = late.file.read().decode()
    assert '"delta":"world"' in text and "hello" not in text and "event: job.cancelled" in text
    late.close()


def test_a_reader_that_stops_reading_gets_everything_later(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    stream = Lines(shared_server, f"/events?queues={queue}")
    wait_gauge(api, "corvo_event_subscribers", 1)
    ids: list[str] = []
    while not gauge(api, "corvo_event_subscribers_behind"):
        ids += api.enqueue_many(queue, 2_000)
    ids += api.enqueue_many(queue, 2_000)
    frames = stream.frames(len(ids))
    assert [json.loads(frame["data"])["job_id"] for frame in frames] == ids
    wait_gauge(api, "corvo_event_subscribers_behind", 0)
    ids = [api.enqueue(queue)]
    assert json.loads(stream.frames(1)[0]["data"])["job_id"] == ids[0]
    stream.close()


def test_hundreds_of_subscribers(shared_server: ServerProcess, api: Api, queue: str) -> None:
    streams = [Lines(shared_server, f"/events?queues={queue}") for _ in range(300)]
    wait_gauge(api, "corvo_event_subscribers", 300)
    job_id = api.enqueue(queue)
    for stream in streams:
        assert json.loads(stream.frames(1)[0]["data"])["job_id"] == job_id
        stream.close()
    wait_gauge(api, "corvo_streams_open", 0)


def test_half_a_connection(shared_server: ServerProcess, api: Api) -> None:
    """Who says that it sends no more is told the end of the stream."""
    stream = Lines(shared_server, "/events")
    wait_gauge(api, "corvo_streams_open", 1)
    stream.socket.shutdown(socket.SHUT_WR)
    while stream.chunk():
        pass
    assert stream.file.read() == b""
    stream.close()
    wait_gauge(api, "corvo_streams_open", 0)


@contextmanager
def curl(server: ServerProcess, path: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    command = ["curl", "-sN", "--max-time", str(WAIT_S), *flags, f"{server.url}/api/v1{path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_curl(shared_server: ServerProcess, api: Api, queue: str) -> None:
    with curl(shared_server, f"/events?queues={queue}&format=message") as process:
        wait_gauge(api, "corvo_event_subscribers", 1)
        api.enqueue(queue)
        assert process.stdout is not None
        assert process.stdout.readline() == ":keepalive\n"
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[0].startswith("id: ") and lines[1] == "\n"
        assert lines[2].startswith("id: ") and lines[3].startswith('data: {"seq":')
    wait_gauge(api, "corvo_streams_open", 0)


def test_stopping_the_server_ends_streams(data_dir: Path) -> None:
    with running_server(data_dir, "--shutdown-timeout", "20s") as server:
        stream = Lines(server, "/events?from=start")
        wait_gauge(server.api(), "corvo_streams_open", 1)
        assert server.stop() == 0
        assert "did not finish" not in "".join(server.log)
        assert stream.file.read().endswith(b"0\r\n\r\n")
        stream.close()


def test_watch_goes_on_over_a_restart(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        command = [sys.executable, "-m", "corvo", "watch", "--output", "json", "--after", "0"]
        command += ["--type", "enqueued", "--count", "3", "--server", server.url]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=clean_environment()
        ) as process:
            assert process.stdout is not None
            ids = [server.api().enqueue("a"), server.api().enqueue("a")]
            seen = [json.loads(process.stdout.readline())["job_id"] for _ in ids]
            server.stop()
            server.start()
            ids.append(server.api().enqueue("a"))
            seen.append(json.loads(process.stdout.readline())["job_id"])
            assert seen == ids and process.wait(WAIT_S) == 0

"""Throughput, points of charts and latencies, over restarts, kills and rebuilds."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lib.harness import (
    Api,
    ServerProcess,
    advance,
    mirror_status,
    mirrored_server,
    refused,
    running_server,
    until,
    wait_mirror,
)

from corvo.platform.durations import parse_time


class Reports:
    """Reports that know everything written before."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def ask(self, path: str) -> Any:
        index = self.api.raw("GET", "/info").headers["X-Corvo-Index"]
        reply = self.api.raw("GET", f"/metrics/{path}", None, {"X-Corvo-Min-Index": index})
        assert reply.status == 200, reply
        assert reply.headers["X-Corvo-Stale"] is None
        return json.loads(reply.body)

    def flow(self, queue: str) -> list[tuple[int, int, int]]:
        """(enqueued, completed, failed) of the minutes in which something happened."""
        minutes = self.ask(f"throughput?queue={queue}")
        assert len(minutes) == 60
        times = [parse_time(minute["minute"], "minute") for minute in minutes]
        assert times == list(range(times[0], times[0] + 60 * 60_000_000_000, 60_000_000_000))
        found = [(m["enqueued"], m["completed"], m["failed"]) for m in minutes]
        return [counts for counts in found if any(counts)]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with mirrored_server(tmp_path_factory.mktemp("corvo") / "data") as server:
        yield server


def work(api: Api, queue: str) -> None:
    """Three minutes: six jobs come; three are completed; one fails twice, and is dead."""
    for _ in range(4):
        api.enqueue(queue, max_retries=2, retry_backoff="none")
    Reports(api).ask("throughput")  # the mirror sees the end of the minute
    advance(api, "1m")
    api.enqueue_many(queue, 2)
    for job in api.take_many(queue, count=3):
        api.ack(job)
    Reports(api).ask("throughput")
    advance(api, "1m")
    for _ in range(2):
        assert api.fail(api.take(queue))[0] == 200


def test_throughput(api: Api, queue: str) -> None:
    work(api, queue)
    reports = Reports(api)
    assert reports.flow(queue) == [(4, 0, 0), (2, 3, 0), (0, 0, 2)]
    everywhere = reports.ask("throughput")
    assert sum(minute["enqueued"] for minute in everywhere) >= 6
    refused(api.get("/metrics/throughput?queue=none"), 404, "NOT_FOUND")
    refused(api.get("/metrics/throughput?queues=q"), 400, "VALIDATION_ERROR")


def test_history(api: Api, queue: str) -> None:
    work(api, queue)
    advance(api, "3m")
    answer = Reports(api).ask(f"history?queue={queue}&period=8m&step=1m")
    assert answer["step_seconds"] == 60
    points = answer["points"]
    assert len(points) == 8
    known = [point for point in points if "jobs" in point]
    states = [(p["jobs"]["pending"], p["jobs"]["completed"], p["jobs"]["dead"]) for p in known]
    assert states == [(4, 0, 0), (3, 3, 0), (2, 3, 1), (2, 3, 1), (2, 3, 1), (2, 3, 1)]
    waits = [point["oldest_ready_seconds"] for point in known]
    assert waits[2:] == sorted(waits[2:]) and 110 <= waits[-1] - waits[2] <= 190
    assert [p["enqueued"] for p in known] == [4, 2, 0, 0, 0, 0]
    coarse = Reports(api).ask(f"history?queue={queue}&period=8m&step=8m")["points"]
    assert len(coarse) == 1 and coarse[0]["enqueued"] == 6 and coarse[0]["failed"] == 2
    day = Reports(api).ask("history")
    assert (day["step_seconds"], len(day["points"])) == (300, 288)
    for query in ("period=25h", "period=90s", "step=0", "step=1h&period=30m", "period=x"):
        refused(api.get(f"/metrics/history?{query}"), 400, "VALIDATION_ERROR")


def test_latencies(api: Api, queue: str) -> None:
    api.enqueue(queue)
    advance(api, "4s")
    job = api.take(queue)
    advance(api, "40s")
    api.ack(job)
    api.enqueue(queue, max_retries=3, retry_backoff="none")
    api.fail(api.take(queue))
    Reports(api).ask("throughput")
    api.ack(api.take(queue))
    answer = Reports(api).ask(f"latency?queue={queue}")
    assert answer["delivery"]["count"] == answer["run"]["count"] == 2
    assert answer["delivery"]["p99"] == 5 and answer["run"]["p99"] == 60
    buckets = {bucket["le"]: bucket["count"] for bucket in answer["run"]["buckets"]}
    assert buckets[30] == 1 and buckets[60] == 2 and buckets["+Inf"] == 2
    advance(api, "3h")
    assert Reports(api).ask(f"latency?queue={queue}")["run"]["count"] == 0
    assert Reports(api).ask(f"latency?queue={queue}&period=24h")["run"]["count"] == 2
    advance(api, "24h")
    assert Reports(api).ask(f"latency?queue={queue}&period=24h")["run"]["count"] == 0


def test_they_survive_kills_restarts_and_rebuilds(data_dir: Path) -> None:
    with running_server(data_dir, "--test-clock") as server:
        api = server.api()
        wait_mirror(api)
        for _ in range(4):
            api.enqueue("q", max_retries=1)
        job = api.take("q")
        api.ack(job)
        api.fail(api.take("q"))

        def story() -> Any:
            flow = [sum(column) for column in zip(*Reports(api).flow("q"), strict=True)]
            latency = Reports(api).ask("latency?queue=q")
            points = Reports(api).ask("history?queue=q&period=1h&step=1h")["points"]
            return flow, latency["run"]["count"], latency["delivery"]["count"], points[0]["jobs"]

        before = story()
        assert before[:3] == ([4, 1, 1], 1, 2)
        pid = int(mirror_status(api)["pid"])
        os.kill(pid, signal.SIGKILL)
        until(lambda: mirror_status(api)["pid"] not in (0, pid), "it is not started again")
        wait_mirror(api)
        assert story() == before
        server.kill()
        server.start()
        api = server.api()
        wait_mirror(api)
        assert story() == before
        deleted = api.enqueue("q")
        api.ok("DELETE", f"/jobs/{deleted}")
        api.enqueue("q")
        Reports(api).flow("q")
        api.ok("POST", "/admin/rebuild-sqlite", {})
        after = story()
        assert after[0][0] >= before[0][0] + 1  # what the file before knew is not lost
        assert after[1:3] == before[1:3]
        for path in (data_dir / "mirror").glob("*.sqlite*"):
            path.unlink()
        pid = int(mirror_status(api)["pid"])

        def built() -> bool:
            status = api.ok("GET", "/cluster/status")
            return bool(status["sqlite_rebuild"]["ran"] and status["sqlite_mirror"]["available"])

        until(lambda: not mirror_status(api)["available"] or built(), "it is not noticed")
        until(lambda: mirror_status(api)["available"], "it is not built again")
        assert story()[:2] == ([5, 1, 1], 1)  # from the jobs that there are

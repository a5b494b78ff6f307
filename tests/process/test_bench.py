"""`corvo bench` on a real server, by each of its protocols."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lib.harness import Api, ServerProcess

JOBS = 700


def bench(server: ServerProcess, directory: Path, *flags: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "corvo", "bench", "--server", server.url]
    command += ["--jobs", str(JOBS), "--concurrency", "3", "--output", "json"]
    command += ["--save", str(directory / "saved.json"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("protocol", ["http", "h2", "rpc"])
@pytest.mark.parametrize("batch", ["1", "64"])
def test_phases(
    shared_server: ServerProcess, api: Api, tmp_path: Path, protocol: str, batch: str
) -> None:
    queue = f"phases-{protocol}-{batch}"
    sizes = [f"--{name}-batch-size={batch}" for name in ("enqueue", "fetch", "ack")]
    flags = ["--protocol", protocol, "--queue", queue, *sizes]
    results = bench(shared_server, tmp_path, *flags)
    assert results["config"]["protocol"] == protocol
    assert results["enqueue"]["completed"] == results["lifecycle"]["completed"] == JOBS
    check_queues(api, queue)


@pytest.mark.parametrize("protocol", ["h2", "rpc"])
def test_combined(shared_server: ServerProcess, api: Api, tmp_path: Path, protocol: str) -> None:
    queue = f"combined-{protocol}"
    flags = ["--worker-queues", "--workers", "3", "--work-duration", "1ms", "--payload-size", "99"]
    results = bench(
        shared_server, tmp_path, "--combined", "--protocol", protocol, "--queue", queue, *flags
    )
    assert results["combined"]["completed"] == JOBS
    check_queues(api, queue)


def test_overload(shared_server: ServerProcess, tmp_path: Path) -> None:
    """More than the server takes at once is sent again."""
    flags = ["--concurrency", "40", "--enqueue-batch-size", "500", "--jobs", "20000"]
    results = bench(shared_server, tmp_path, "--protocol", "rpc", "--queue", "over", *flags)
    assert results["enqueue"]["completed"] == results["lifecycle"]["completed"] == 20_000


def check_queues(api: Api, queue: str) -> None:
    """All jobs are completed, none twice."""
    found = [q for q in api.listed("queues") if q["name"].startswith(f"{queue}.")]
    assert sum(q["completed"] for q in found) == JOBS
    assert sum(q["pending"] + q["active"] for q in found) == 0

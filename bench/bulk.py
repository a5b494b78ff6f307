"""What other requests feel of a clear or a bulk action on very many jobs.

    python bench/bulk.py --jobs 1000000 --action clear
    python bench/bulk.py --jobs 1000000 --action cancel --kill

A base is filled with waiting jobs, a server is started on it, and one connection enqueues, fetches
and acks in another queue: for a while with nothing else going on, then while the action runs. With
`--kill` the server is killed half-way and started again, and the action must still end.
Run it with the server alone on a processor; the percentiles are of single requests.
"""

import argparse
import itertools
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from scale import Server, fill, progress

IDLE_S = 5.0
FOREGROUND = "foreground"


class Life:
    """One job after the other: enqueue, fetch, ack; keeps the time of each request."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.times: dict[str, list[float]] = {"enqueue": [], "fetch": [], "ack": []}

    def turn(self) -> None:
        """One job's life."""
        self._timed("enqueue", "/enqueue", {"queue": FOREGROUND})
        job = self._timed("fetch", "/fetch", {"queues": [FOREGROUND], "timeout": 5})
        self._timed("ack", f"/ack/{job['job_id']}", {"lease_token": job["lease_token"]})

    def _timed(self, name: str, path: str, body: Any) -> Any:
        began = time.perf_counter()
        answer = self.server.post(path, body)
        self.times[name].append(time.perf_counter() - began)
        return answer


def percentile(times: list[float], share: float) -> float:
    """In milliseconds."""
    ordered = sorted(times)
    return ordered[int(share * (len(ordered) - 1))] * 1e3


def get(server: Server, path: str) -> Any:
    """The answer to a GET."""
    server.connection.request("GET", "/api/v1" + path)
    return json.loads(server.connection.getresponse().read())


def begin(server: Server, action: str) -> str:
    """Start the action; the id of what goes on in the background."""
    if action == "clear":
        answer = server.post("/queues/scale-1/clear", {})
    else:
        answer = server.post("/jobs/bulk", {"action": action, "all": True, "async": True})
    return str(answer["bulk_operation_id"])


def run(jobs: int, action: str, kill: bool, folder: Path) -> None:
    """Fill, measure, print."""
    data_dir = folder / "data"
    fill(data_dir, jobs, 1)
    server = Server(data_dir)
    life = Life(server)
    for _ in range(200):
        life.turn()
    idle = Life(server)
    deadline = time.perf_counter() + IDLE_S
    while time.perf_counter() < deadline:
        idle.turn()
    operation_id = begin(server, action)
    began = time.perf_counter()
    busy = Life(server)
    killed = not kill
    for number in itertools.count():
        busy.turn()
        if number % 50:
            continue
        operation = get(server, f"/bulk/{operation_id}")
        progress(f"{action}: {operation['processed']:,} of {operation['total']:,}")
        if not killed and operation["processed"] > jobs // 2:
            server.process.kill()
            server.process.wait()
            server = busy.server = Server(data_dir)
            killed = True
        elif operation["status"] != "running":
            break
    took_s = time.perf_counter() - began
    progress("")
    queue = get(server, "/queues/scale-1")
    server.stop()
    shutil.rmtree(data_dir)
    print(
        f"{action} of {operation['affected']:,} jobs in {took_s:.1f} s; "
        f"left pending: {queue['pending']}"
    )
    print("| request | idle p50 ms | idle p99 ms | busy p50 ms | busy p99 ms | p99 ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, times in idle.times.items():
        cells = [percentile(times, 0.5), percentile(times, 0.99)]
        cells += [percentile(busy.times[name], 0.5), percentile(busy.times[name], 0.99)]
        numbers = " | ".join(f"{cell:.2f}" for cell in cells)
        print(f"| {name} | {numbers} | {cells[3] / cells[1]:.2f} |")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--action", default="clear", choices=["clear", "cancel", "delete", "hold"])
    parser.add_argument("--kill", action="store_true", help="kill the server half-way")
    parser.add_argument("--folder", help="where the data goes (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        run(arguments.jobs, arguments.action, arguments.kill, Path(folder))


if __name__ == "__main__":
    main()

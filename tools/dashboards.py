"""A dashboard on millions of finished jobs: how long each of its questions takes.

    python tools/dashboards.py --completed 2000000 --dead 100000 --pending 10000

A base is filled, a server builds the mirror of it, and each request is sent a hundred times over
one connection.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.mirror import Client, fill
from corvo.model import COMPLETED, DEAD, PENDING, STATES

PORT = 18_098
TIMES = 100
REQUESTS = (
    ("GET", "/queues", None),
    ("POST", "/jobs/search", {"state": ["completed"]}),
    ("POST", "/jobs/search", {"state": ["dead"]}),
    ("POST", "/jobs/search", {"state": ["pending"]}),
    ("GET", "/dead", None),
    ("POST", "/jobs/facets", {"by": ["state", "queue"]}),
    ("GET", "/metrics/throughput", None),
    ("GET", "/metrics/history", None),
    ("GET", "/cluster/status", None),
)


def main() -> None:
    """Fill, start, ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--completed", type=int, default=2_000_000)
    parser.add_argument("--dead", type=int, default=100_000)
    parser.add_argument("--pending", type=int, default=10_000)
    parser.add_argument("--data-dir", type=Path, help="fill it once, and keep it")
    options = parser.parse_args()
    wanted = {COMPLETED: options.completed, DEAD: options.dead, PENDING: options.pending}
    directory = Path(tempfile.mkdtemp())
    data_dir = options.data_dir or directory / "data"
    if not data_dir.exists():
        states = [state for state, count in wanted.items() for _ in range(count)]
        fill(data_dir, len(states), states)
    command = [sys.executable, "-m", "corvo", "server", "--data-dir", str(data_dir)]
    server = subprocess.Popen([*command, "--bind", f"127.0.0.1:{PORT}"])
    try:
        look(Client(PORT), {STATES[state]: count for state, count in wanted.items()})
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(directory)


def look(client: Client, wanted: dict[str, int]) -> None:
    """Ask everything, and compare the counts with the truth."""
    while True:
        try:
            if client.mirror().get("available"):
                break
        except OSError:
            pass
        time.sleep(0.1)
    print("| request | p50 ms | p99 ms |\n| --- | ---: | ---: |")
    for method, path, body in REQUESTS:
        took = []
        for _ in range(TIMES):
            began = time.perf_counter()
            client.ask(method, path, body)
            took.append((time.perf_counter() - began) * 1000)
        took.sort()
        what = f"{method} {path}" + (f" {body}" if body else "")
        print(f"| {what} | {took[TIMES // 2]:.1f} | {took[TIMES * 99 // 100]:.1f} |", flush=True)
    for state, count in wanted.items():
        queues = sum(queue[state] for queue in client.ask("GET", "/queues"))
        page = client.ask("POST", "/jobs/search", {"state": [state]})
        assert queues == count, (state, queues, count)
        assert (page["total"], page["total_is_exact"]) == (count, True)
    print("all counts are exact")


if __name__ == "__main__":
    main()

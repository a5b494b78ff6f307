"""What the mirror costs the way of a write: the same load with and without it, in turns.

    python bench/beside.py --rounds 3 --seconds 5

The server has one processor for itself. The sidecar is moved to the other one, which it shares with
the load. So there are two kinds of load. One offers as much as it can: its wall figures are worse
than with a third processor, and the CPU time of the server for each request is what says what the
mirror costs it. The other offers a steady rate that leaves most of its processor to the sidecar:
single enqueues by h2load, lives in batches of 50 by this process; there, how long a request takes
says what the mirror costs.
"""

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.compare import ENQUEUED, LIVES, LOAD, LOAD_CORE, SERVER_CORE, Line, corvo
from bench.mirror import Client, cpu_s

PORT = 18_099
STEADY_CONNECTIONS = 16
BATCH = 50


@contextlib.contextmanager
def serving(line: Line, mirror: bool) -> Iterator[tuple[int, int]]:
    """A server on its processor, with or without a sidecar on the other one; the pids."""
    with tempfile.TemporaryDirectory() as path:
        command = line.server(PORT, path)
        if mirror:
            command.remove("--no-mirror")
        command = ["taskset", "-c", SERVER_CORE, *command]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            sidecar = _wait(mirror)
            if mirror:
                move = ["taskset", "-a", "-c", "-p", LOAD_CORE, str(sidecar)]
                subprocess.run(move, check=True, stdout=subprocess.DEVNULL)
            yield server.pid, sidecar
        finally:
            server.terminate()
            server.wait()


def measure(script: str, pattern: str, mirror: bool, options: argparse.Namespace) -> list[float]:
    """Requests (or lives) a second, and for each CPU second of the server."""
    line = corvo("", script, pattern)
    with serving(line, mirror) as (pid, _):
        load = ["taskset", "-c", LOAD_CORE, *line.load(PORT, options.connections, 0)]
        _run([word.replace("-d0s", "-d1s") for word in load])
        load = [word.replace("-d0s", f"-d{options.seconds}s") for word in load]
        began, used = time.monotonic(), cpu_s(pid)
        count = line.count(_run(load), options.seconds)
        took, cpu = time.monotonic() - began, cpu_s(pid) - used
    return [count / took, count / cpu]


def steady(kind: str, mirror: bool, options: argparse.Namespace) -> list[float]:
    """Jobs a second; p50 and p99 of a request in ms; CPU of server, sidecar and load, in percent of
    a processor."""
    with serving(corvo("", "enqueue.lua", ENQUEUED), mirror) as (server, sidecar):
        pids = [server, sidecar] if mirror else [server]
        began, used = time.monotonic(), [cpu_s(pid) for pid in pids]
        own = os.times()
        count, took_ms = (_enqueues if kind == "enqueue" else _lives)(options)
        took = time.monotonic() - began
        cpu = [(cpu_s(pid) - before) / took for pid, before in zip(pids, used, strict=True)]
        now = os.times()
        load = sum(now[:4]) - sum(own[:4])
    took_ms.sort()
    quantiles = [took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 99 // 100]]
    shares = [cpu[0], cpu[1] if mirror else 0.0, load / took]
    return [count / took, *quantiles, *(100 * share for share in shares)]


def _enqueues(options: argparse.Namespace) -> tuple[int, list[float]]:
    with tempfile.NamedTemporaryFile() as log:
        rate = options.rate // STEADY_CONNECTIONS
        how = ["-t1", f"-c{STEADY_CONNECTIONS}", f"--rps={rate}", f"-D{options.seconds}"]
        body = ["-d", str(LOAD / "enqueue.json"), "-H", "content-type: application/json"]
        url = f"http://127.0.0.1:{PORT}/api/v1/enqueue"
        command = ["taskset", "-c", LOAD_CORE, "h2load", "--h1", f"--log-file={log.name}"]
        _run([*command, *how, *body, url])
        took = [line.split("\t") for line in Path(log.name).read_text().splitlines()]
    assert all(status == "201" for _, status, _ in took)
    return len(took), [int(took_us) / 1000 for _, _, took_us in took]


def _lives(options: argparse.Namespace) -> tuple[int, list[float]]:
    """Each batch of lives is three requests."""
    os.sched_setaffinity(0, {int(LOAD_CORE)})
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    took_ms: list[float] = []

    def post(path: str, body: Any) -> Any:
        data = json.dumps(body)
        began = time.perf_counter()
        connection.request("POST", "/api/v1" + path, data)
        answer = connection.getresponse().read()
        took_ms.append((time.perf_counter() - began) * 1000)
        return json.loads(answer)

    jobs = [{"queue": "bench", "payload": {"data": "x" * 136}}] * BATCH
    batches = options.seconds * options.rate // BATCH
    began = time.monotonic()
    for number in range(batches):
        time.sleep(max(0, began + number * BATCH / options.rate - time.monotonic()))
        post("/enqueue/batch", {"jobs": jobs})
        taken = post("/fetch/batch", {"queues": ["bench"], "count": BATCH})["jobs"]
        acks = [{"job_id": job["job_id"], "lease_token": job["lease_token"]} for job in taken]
        assert len(acks) == BATCH
        post("/ack/batch", {"acks": acks})
    return batches * BATCH, took_ms


def _run(command: list[str]) -> str:
    root = Path(__file__).parent.parent
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    return done.stdout


def _wait(mirror: bool) -> int:
    """The pid of the sidecar, once all is there."""
    while True:
        try:
            state = Client(PORT).ask("GET", "/cluster/status")["sqlite_mirror"]
        except OSError:
            time.sleep(0.05)
            continue
        if not mirror or state.get("available"):
            return int(state.get("pid", 0))
        time.sleep(0.05)


def in_turns(rounds: int, run: Any) -> tuple[list[float], list[float]]:
    """The medians without and with the mirror."""
    found: dict[bool, list[list[float]]] = {False: [], True: []}
    for _ in range(rounds):
        for mirror in (False, True):
            found[mirror].append(run(mirror))
    off, on = (
        [statistics.median(column) for column in zip(*found[mirror], strict=True)]
        for mirror in (False, True)
    )
    return off, on


def main() -> None:
    """All loads, with and without, in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rate", type=int, default=8_000, help="of the steady loads")
    options = parser.parse_args()
    heads = f"{'off/s':>10}{'on/s':>10}{'ratio':>8}{'off/cpu-s':>12}{'on/cpu-s':>12}{'ratio':>8}"
    print(f"{'':20}{heads}")
    for name, script, pattern in (
        ("enqueue", "enqueue.lua", ENQUEUED),
        ("life", "life.lua", LIVES),
    ):
        off, on = in_turns(
            options.rounds, lambda mirror, s=script, p=pattern: measure(s, p, mirror, options)
        )
        cells = f"{off[0]:10.0f}{on[0]:10.0f}{on[0] / off[0]:8.2f}"
        cells += f"{off[1]:12.0f}{on[1]:12.0f}{on[1] / off[1]:8.2f}"
        print(f"{name:20}{cells}", flush=True)
    print(f"{'':20}" + "".join(f"{head:>10}" for head in STEADY_HEADS))
    for kind in ("enqueue", "life"):
        both = in_turns(options.rounds, lambda mirror, k=kind: steady(k, mirror, options))
        for mirror, row in zip(("off", "on"), both, strict=True):
            cells = f"{row[0]:10.0f}" + "".join(f"{cell:10.2f}" for cell in row[1:3])
            cells += "".join(f"{cell:10.0f}" for cell in row[3:])
            print(f"{'steady ' + kind + ', ' + mirror:20}{cells}", flush=True)


STEADY_HEADS = ("jobs/s", "p50 ms", "p99 ms", "server %", "sidecar %", "load %")


if __name__ == "__main__":
    main()

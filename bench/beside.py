"""What the mirror costs the way of a write: the same load with and without it, in turns.

    python bench/beside.py --rounds 3 --seconds 5

The server has one processor for itself. The sidecar is moved to the other one, which it shares with
the load: so wall figures are worse than with a third processor, and the CPU time of the server for
each request is what says what the mirror costs it.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bench.compare import ENQUEUED, LIVES, LOAD_CORE, SERVER_CORE, corvo
from bench.mirror import Client, cpu_s

PORT = 18_099


def measure(script: str, pattern: str, mirror: bool, options: argparse.Namespace) -> list[float]:
    """Requests (or lives) a second, and for each CPU second of the server."""
    line = corvo("", script, pattern)
    with tempfile.TemporaryDirectory() as path:
        command = line.server(PORT, path)
        if mirror:
            command.remove("--no-mirror")
        server = subprocess.Popen(["taskset", "-c", SERVER_CORE, *command])
        try:
            pid = _wait(mirror)
            if mirror:
                move = ["taskset", "-a", "-c", "-p", LOAD_CORE, str(pid)]
                subprocess.run(move, check=True, stdout=subprocess.DEVNULL)
            load = ["taskset", "-c", LOAD_CORE, *line.load(PORT, options.connections, 0)]
            _run([word.replace("-d0s", "-d1s") for word in load])
            load = [word.replace("-d0s", f"-d{options.seconds}s") for word in load]
            began, used = time.monotonic(), cpu_s(server.pid)
            count = line.count(_run(load), options.seconds)
            took, cpu = time.monotonic() - began, cpu_s(server.pid) - used
        finally:
            server.terminate()
            server.wait()
    return [count / took, count / cpu]


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


def main() -> None:
    """Both loads, with and without, in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=64)
    options = parser.parse_args()
    heads = f"{'off/s':>10}{'on/s':>10}{'ratio':>8}{'off/cpu-s':>12}{'on/cpu-s':>12}{'ratio':>8}"
    print(f"{'':10}{heads}")
    for name, script, pattern in (
        ("enqueue", "enqueue.lua", ENQUEUED),
        ("life", "life.lua", LIVES),
    ):
        found: dict[bool, list[list[float]]] = {False: [], True: []}
        for _ in range(options.rounds):
            for mirror in (False, True):
                found[mirror].append(measure(script, pattern, mirror, options))
        off, on = (
            [statistics.median(column) for column in zip(*found[mirror], strict=True)]
            for mirror in (False, True)
        )
        cells = f"{off[0]:10.0f}{on[0]:10.0f}{on[0] / off[0]:8.2f}"
        cells += f"{off[1]:12.0f}{on[1]:12.0f}{on[1] / off[1]:8.2f}"
        print(f"{name:10}{cells}", flush=True)


if __name__ == "__main__":
    main()

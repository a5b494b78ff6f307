"""Corvo beside Redis and beanstalkd on the same machine, clients and payload: `make compare`.

Each line is one server process pinned to the first processor and one load process pinned to the
second one. The rounds of all lines are interleaved, each round starts from an empty directory, and
the medians are printed:

    wall    requests (or lives) a second
    cpu     thousands of them in a second of CPU time of the server, all its threads; what is
            left of a noisy machine
    loop    the same for Corvo's event loop alone, without the thread that writes the log
    ratio   of ours to the line above, by wall and by cpu

Opponents: `redis-benchmark` LPUSH with an append-only file, flushed by each event loop (`always`)
or never (`no`), one request at a time on a connection; beanstalkd with its log off, or flushed for
each write; nghttpd, which does no work for a request: it reads the same POST to its end, forgets
the body and answers as many bytes as we do, from a file. (It could also send the body back, but
writes it to a temporary file first, which measures the file.) What is not installed is left out and
named.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import create_connection, socket

ROOT = Path(__file__).parent.parent
LOAD = ROOT / "bench" / "load"
SERVER_CORE, LOAD_CORE = "0", "1"
PAYLOAD_SIZE = 147
FEW = 64  # connections, for more than one kind of load
_REPLY_SIZE = 82  # of an enqueue
WARM_UP_S = 1


@dataclass
class Sample:
    """One round of one line."""

    wall: float
    cpu: float
    loop: float


@dataclass
class Line:
    """A server under a load. `load(port, connections, seconds)` gives a command, `count` reads
    the number of requests from its output."""

    name: str
    needs: tuple[str, ...]
    server: Callable[[int, str], list[str]]
    load: Callable[[int, int, int], list[str]]
    count: Callable[[str, int], float]
    samples: list[Sample] = field(default_factory=list)

    def missing(self) -> list[str]:
        """Programs that are not installed."""
        return [program for program in self.needs if shutil.which(program) is None]


def corvo(name: str, script: str, pattern: str, *options: str) -> Line:
    """Our server under wrk."""

    def load(port: int, connections: int, seconds: int) -> list[str]:
        url = f"http://127.0.0.1:{port}/"
        wrk = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s"]
        return [*wrk, "-s", str(LOAD / script), url]

    def count(output: str, seconds: int) -> float:
        assert "Non-2xx" not in output, output
        return float(_search(pattern, output))

    return Line(name, ("wrk",), _our_server(*options), load, count)


def corvo_streams(name: str, *options: str) -> Line:
    """Our server under h2load, with 32 streams a connection."""
    return Line(name, ("h2load",), _our_server(*options), _h2load, _count_h2load)


def nghttpd(name: str) -> Line:
    """A server of HTTP/2 in C++ under the same load: each POST with its body is read to its end,
    and answered from a file of the size of our answer."""

    def server(port: int, path: str) -> list[str]:
        reply = Path(path) / "api" / "v1" / "enqueue"
        reply.parent.mkdir(parents=True)
        reply.write_bytes(b"x" * _REPLY_SIZE)
        return ["nghttpd", "--no-tls", "-a", "127.0.0.1", "-d", path, str(port)]

    return Line(name, ("nghttpd", "h2load"), server, _h2load, _count_h2load)


def _our_server(*options: str) -> Callable[[int, str], list[str]]:
    def server(port: int, path: str) -> list[str]:
        bind = ["--bind", f"127.0.0.1:{port}", "--data-dir", path, "--log-level", "error"]
        return [sys.executable, "-m", "corvo", "server", "--no-mirror", *bind, *options]

    return server


def _h2load(port: int, connections: int, seconds: int) -> list[str]:
    url = f"http://127.0.0.1:{port}/api/v1/enqueue"
    how = ["-t1", f"-c{connections}", "-m32", f"-D{seconds}", "-d", str(LOAD / "enqueue.json")]
    return ["h2load", *how, "-H", "content-type: application/json", url]


def _count_h2load(output: str, seconds: int) -> float:
    assert " 0 4xx, 0 5xx" in output, output
    return float(_search(r"(\d+) succeeded", output))


def redis(name: str, fsync: str) -> Line:
    """LPUSH as redis-benchmark does it, in batches of requests until the time is over."""

    def server(port: int, path: str) -> list[str]:
        options = ["--port", str(port), "--dir", path, "--save", "", "--appendonly", "yes"]
        return ["redis-server", *options, "--appendfsync", fsync]

    def load(port: int, connections: int, seconds: int) -> list[str]:
        # -n is a number, not a time: about as many as fit.
        number = 60_000 * seconds
        options = ["-p", str(port), "-c", str(connections), "-n", str(number), "-q"]
        return ["redis-benchmark", *options, "-d", str(PAYLOAD_SIZE), "-t", "lpush"]

    def count(output: str, seconds: int) -> float:
        return float(60_000 * seconds)

    return Line(name, ("redis-server", "redis-benchmark"), server, load, count)


def beanstalkd(name: str, *options: str) -> Line:
    """Lives under our driver."""

    def server(port: int, path: str) -> list[str]:
        more = ["-b", path, *options] if options else []
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), *more]

    def load(port: int, connections: int, seconds: int) -> list[str]:
        arguments = [str(port), str(connections), str(seconds)]
        return [sys.executable, "-m", "bench.load.beanstalk", *arguments]

    def count(output: str, seconds: int) -> float:
        return float(_search(r"(\d+) lives", output))

    return Line(name, ("beanstalkd",), server, load, count)


ENQUEUED = r"(\d+) requests in"
LIVES = r"(\d+) lives"


def comparisons(connections: int) -> list[tuple[str, Line, Line]]:
    """What is set beside what."""
    enqueue, life, pipelined = "enqueue.lua", "life.lua", "pipelined.lua"
    pairs = [
        (
            f"enqueue, durable, {connections} connections",
            redis("redis LPUSH, always", "always"),
            corvo("corvo enqueue", enqueue, ENQUEUED),
        ),
        (
            f"enqueue, not durable, {connections} connections",
            redis("redis LPUSH, no", "no"),
            corvo("corvo enqueue", enqueue, ENQUEUED, "--no-durable"),
        ),
    ]
    if connections <= FEW:
        pairs += [
            (
                f"life by three requests, durable, {connections} connections",
                beanstalkd("beanstalkd, fsync each", "-f0"),
                corvo("corvo lives", life, LIVES),
            ),
            (
                f"life by three requests, not durable, {connections} connections",
                beanstalkd("beanstalkd in memory"),
                corvo("corvo lives", life, LIVES, "--no-durable"),
            ),
            (
                f"enqueue, durable, {connections} connections, 16 requests at once on each",
                redis("redis LPUSH, always, one", "always"),
                corvo("corvo enqueue", pipelined, ENQUEUED),
            ),
            (
                f"enqueue, not durable, {connections} connections, 16 requests at once on each",
                redis("redis LPUSH, no, one", "no"),
                corvo("corvo enqueue", pipelined, ENQUEUED, "--no-durable"),
            ),
            (
                f"enqueue, durable, {connections} connections with 32 streams of HTTP/2",
                redis("redis LPUSH, always, one", "always"),
                corvo_streams("corvo enqueue"),
            ),
            (
                f"enqueue, not durable, {connections} connections with 32 streams of HTTP/2",
                redis("redis LPUSH, no, one", "no"),
                corvo_streams("corvo enqueue", "--no-durable"),
            ),
            (
                f"the same POST, {connections} connections with 32 streams of HTTP/2",
                nghttpd("nghttpd, the same POST"),
                corvo_streams("corvo enqueue", "--no-durable"),
            ),
        ]
    return pairs


def run(line: Line, connections: int, seconds: int) -> Sample:
    """Start the server on an empty directory, warm up, measure, stop."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(dir=os.environ.get("CORVO_BENCH_DIR")) as path:
        server = subprocess.Popen(
            ["taskset", "-c", SERVER_CORE, *line.server(port, path)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(port)
            _load(line, port, connections, WARM_UP_S)
            before, began = _cpu(server.pid), time.monotonic()
            output = _load(line, port, connections, seconds)
            took, after = time.monotonic() - began, _cpu(server.pid)
        finally:
            server.terminate()
            server.wait()
    count = line.count(output, seconds)
    used = {thread: ns - before.get(thread, 0) for thread, ns in after.items()}
    return Sample(
        count / took, count / sum(used.values()) * 1e6, count / used[str(server.pid)] * 1e6
    )


def _load(line: Line, port: int, connections: int, seconds: int) -> str:
    return subprocess.run(
        ["taskset", "-c", LOAD_CORE, *line.load(port, connections, seconds)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def _wait_for(port: int) -> None:
    for _ in range(200):
        with suppress(OSError), create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")


def _cpu(pid: int) -> dict[str, int]:
    """CPU time of each thread in nanoseconds."""
    operations = Path(f"/proc/{pid}/task").iterdir()
    return {
        operation.name: int((operation / "schedstat").read_text().split()[0])
        for operation in operations
    }


def _search(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, text
    return found[1]


def _median(line: Line, name: str) -> float:
    values: list[float] = [getattr(sample, name) for sample in line.samples]
    return statistics.median(values)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5, help="of each round")
    parser.add_argument("--connections", type=int, nargs="*", default=[64, 512])
    parser.add_argument("--only", default="", help="measure what has this in its title")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} processors, load {load:.1f} before the start", end="")
    print(" (busy: wall figures mean little)" if load > 0.5 else "")
    for connections in options.connections:
        pairs = [pair for pair in comparisons(connections) if options.only in pair[0]]
        for _ in range(options.rounds):
            for _, theirs, ours in pairs:
                for line in (theirs, ours):
                    if not line.missing():
                        line.samples.append(run(line, connections, options.seconds))
        for title, theirs, ours in pairs:
            _print(title, theirs, ours)


def _print(title: str, theirs: Line, ours: Line) -> None:
    print(f"\n{title}\n{'':26}{'wall/s':>10}{'k/cpu-s':>10}{'k/loop-s':>10}")
    for line in (theirs, ours):
        if not line.samples:
            print(f"  {line.name}: left out, {', '.join(line.missing())} not installed")
            continue
        figures = f"{_median(line, 'wall'):>10,.0f}{_median(line, 'cpu'):>10.1f}"
        if line is ours:
            figures += f"{_median(line, 'loop'):>10.1f}"
        print(f"  {line.name:<24}{figures}")
    if theirs.samples and ours.samples:
        wall = _median(ours, "wall") / _median(theirs, "wall")
        cpu = _median(ours, "cpu") / _median(theirs, "cpu")
        print(f"  {'ratio':<24}{wall:>9.2f}x{cpu:>9.2f}x", flush=True)


if __name__ == "__main__":
    main()

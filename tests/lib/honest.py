"""A well-behaved client in a process of its own: it enqueues, one request after another. For each
line of input it prints how much CPU time the server used during each of its next requests, for it
and for the requests served before it.

This is the cost of an attack for other clients. Unlike elapsed time it does not depend on the load
of the machine.
"""

import http.client
import json
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

REQUESTS = 250
PATIENCE_S = 60
_BODY = b'{"queue":"honest"}'


class Honest:
    """The test's side of that process."""

    def __init__(self, port: int, pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(port), str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self) -> None:
        """Start a measurement."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def has_answered(self, wait_s: float) -> bool:
        """Return whether the measurement is finished."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
            return bool(selector.select(wait_s))

    def p99_s(self) -> float:
        """Return the 99th percentile of the measurement, in seconds of CPU time."""
        assert self._process.stdout is not None
        assert self.has_answered(PATIENCE_S), "an honest client is not served"
        took = sorted(json.loads(self._process.stdout.readline()))
        return float(took[len(took) * 99 // 100])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def honest_client(port: int, pid: int) -> Iterator[Honest]:
    """Run a client for a `with` block, on the server with this process id."""
    client = Honest(port, pid)
    try:
        yield client
    finally:
        client.close()


def main(port: int, pid: int) -> None:
    cpu_clock = (~pid << 3) | 2  # CPUCLOCK_SCHED of another process: see clock_getcpuclockid(3)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    for _ in sys.stdin:
        took = []
        while len(took) < REQUESTS:
            began = time.clock_gettime(cpu_clock)
            try:
                connection.request("POST", "/api/v1/enqueue", _BODY)
                response = connection.getresponse()
                response.read()
            except (http.client.RemoteDisconnected, ConnectionError):
                connection.close()  # the clock was moved, so the connection was idle for too long
                continue
            assert response.status == 201, response.status
            took.append(time.clock_gettime(cpu_clock) - began)
        sys.stdout.write(json.dumps(took) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

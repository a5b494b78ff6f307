"""A client that does nothing wrong, in a process of its own: it enqueues, one request after the
other. For each line of input it prints how much CPU time the server used while each of its next
requests was under way, for it and for whoever was served first.

That is what an attack costs others, and unlike the time that passes it is the same on a machine
that is busy with other things.
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
    """The other end of that process."""

    def __init__(self, port: int, pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(port), str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self) -> None:
        """Begin to measure."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def has_answered(self, wait_s: float) -> bool:
        """Whether there is a measurement."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
            return bool(selector.select(wait_s))

    def p99_s(self) -> float:
        """Of the measurement that was asked for, in seconds of CPU time."""
        assert self._process.stdout is not None
        assert self.has_answered(PATIENCE_S), "an honest client is not served"
        took = sorted(json.loads(self._process.stdout.readline()))
        return float(took[len(took) * 99 // 100])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def honest_client(port: int, pid: int) -> Iterator[Honest]:
    """One that is at work for the length of a block, on the server with this process id."""
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
                connection.close()  # the clock was set: it was idle for too long
                continue
            assert response.status == 201, response.status
            took.append(time.clock_gettime(cpu_clock) - began)
        sys.stdout.write(json.dumps(took) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

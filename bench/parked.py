"""What many parked fetches cost: memory, an idle second, and a job that one of them gets.

    python bench/parked.py --fetches 1000,100000

The fetches wait on streams of HTTP/2, a thousand on a connection, ten fetches to a queue. Then one
connection enqueues jobs one after the other, in the queues in turn, and each goes to a fetch that
waits. CPU is that of the server process; compare rows of one run with each other.
"""

import argparse
import json
import selectors
import tempfile
import time
from pathlib import Path
from socket import create_connection, socket

from bench.scale import Server

STREAMS = 900  # of a connection; the server allows a thousand
QUEUE_FETCHES = 10
OPERATIONS = 5_000
IDLE_S = 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
WINDOW = (1 << 30).to_bytes(4)  # for all answers
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """A frame (RFC 9113, 4.1)."""
    return len(body).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + body


def literal(name_index: int, value: bytes) -> bytes:
    """A field that is not indexed (RFC 7541, 6.2.2); its name is in the static table."""
    prefix = bytes((name_index,)) if name_index < 15 else bytes((15, name_index - 15))
    return prefix + bytes((len(value),)) + value


POST = b"\x83\x86" + literal(4, b"/api/v1/fetch") + literal(1, b"bench")
POST += literal(31, b"application/json")


class Fetches:
    """Parked fetches on one connection. Those that got a job are not asked again."""

    def __init__(self, port: int, count: int, first: int, queues: int) -> None:
        self.socket: socket = create_connection(("127.0.0.1", port))
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        self.socket.sendall(frame(WINDOW_UPDATE, 0, 0, WINDOW))
        requests = []
        for number in range(count):
            body = {
                "queues": [f"parked-{(first + number) % queues}"],
                "worker_id": "w",
                "timeout": 60,
            }
            stream = 2 * number + 1
            requests.append(frame(HEADERS, END_HEADERS, stream, POST))
            requests.append(frame(DATA, END_STREAM, stream, json.dumps(body).encode()))
        self.socket.sendall(b"".join(requests))
        self.socket.sendall(frame(SETTINGS, ACK, 0, b""))
        self.socket.setblocking(False)
        self._left = b""
        self.answered = 0

    def read(self) -> None:
        """Count the answers that have arrived."""
        data = self._left + self.socket.recv(1 << 20)
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3]):
            size = int.from_bytes(data[:3])
            kind, flags, body = data[3], data[4], data[9 : 9 + size]
            assert kind in (DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE), (kind, body)
            if kind == PING:
                self.socket.sendall(frame(PING, ACK, 0, body))
            elif kind == DATA and flags & END_STREAM:
                assert b"lease_token" in body, body
                self.answered += 1
            data = data[9 + size :]
        self._left = data


def measure(count: int, folder: Path) -> list[str]:
    """One row of the table."""
    server = Server(folder / f"data-{count}")
    port = server.connection.port
    assert port
    before_mb, before_s = server.anonymous_mb(), server.cpu_s()
    queues = count // QUEUE_FETCHES
    connections = [
        Fetches(port, min(STREAMS, count - first), first, queues)
        for first in range(0, count, STREAMS)
    ]
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    while waiting(server) < count:
        time.sleep(0.05)
    park_us = (server.cpu_s() - before_s) / count * 1e6
    parked_kb = (server.anonymous_mb() - before_mb) * 1024 / count
    before_s, until_s = server.cpu_s(), time.monotonic() + IDLE_S
    while (left_s := until_s - time.monotonic()) > 0:
        for key, _ in selector.select(left_s):
            key.data.read()
    idle = (server.cpu_s() - before_s) / IDLE_S
    jobs = min(OPERATIONS, count)
    before_s = server.cpu_s()
    for number in range(jobs):
        server.post("/enqueue", {"queue": f"parked-{number % queues}", "payload": number})
    while sum(connection.answered for connection in connections) < jobs:
        for key, _ in selector.select():
            key.data.read()
    job_us = (server.cpu_s() - before_s) / jobs * 1e6
    server.stop()
    return [f"{count:,}", f"{park_us:.0f}", f"{parked_kb:.2f}", f"{idle:.1%}", f"{job_us:.0f}"]


def waiting(server: Server) -> int:
    """How many fetches the server says are parked."""
    server.connection.request("GET", "/api/v1/metrics")
    text = server.connection.getresponse().read().decode()
    line = next(line for line in text.splitlines() if line.startswith("corvo_fetches_waiting "))
    return int(float(line.split()[1]))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--fetches", default="1000,100000", help="numbers of parked fetches")
    arguments = parser.parse_args()
    heads = ["fetches", "park us", "KB each", "idle CPU", "job us"]
    print("| " + " | ".join(heads) + " |")
    print("| " + " | ".join("---:" for _ in heads) + " |")
    with tempfile.TemporaryDirectory() as folder:
        for count in arguments.fetches.split(","):
            print("| " + " | ".join(measure(int(count), Path(folder))) + " |", flush=True)


if __name__ == "__main__":
    main()

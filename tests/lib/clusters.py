"""Real clusters for the process tests: three `corvo server` on ports of their own.

`Writer` is a producer that never gives up: it sends each job with an idempotency key to one node
after the other until somebody acknowledges it, so that every number must be there exactly once.
"""

import contextlib
import http.client
import itertools
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.harness import Api, ServerProcess, until

SECRET = "a secret for tests only"


def free_port() -> int:
    """A port that nobody listens on now, and that no connection gets for its own end: it stays free
    while its server is down."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class ClusterProcess:
    """Nodes n1 .. n<count>; the first begins the cluster, the others join it."""

    def __init__(
        self,
        directory: Path,
        count: int,
        *flags: str,
        environment: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls = tls
        self.directory = directory
        self.environment = {"CORVO_CLUSTER_SECRET": SECRET, **(environment or {})}
        self.flags = flags
        self.nodes: list[ServerProcess] = []
        self.added = 0  # nodes that there ever were
        for _ in range(count):
            self.add()

    def add(self) -> ServerProcess:
        """One more node, that was not started yet."""
        self.added += 1
        number = self.added
        flags = ["--node-id", f"n{number}", "--raft-bind", f"127.0.0.1:{free_port()}"]
        node = ServerProcess(self.directory / f"n{number}", *flags, *self.flags)
        node.port = free_port()
        node.environment = self.environment
        node.tls = self.tls
        if self.nodes:
            node.flags = (*node.flags, "--join", f"127.0.0.1:{self.nodes[0].port}")
        self.nodes.append(node)
        return node

    def start(self) -> "ClusterProcess":
        """Until all are voters."""
        for node in self.nodes:
            node.start()
            self.wait_leader()
        self.wait_voters(len(self.nodes))
        return self

    def up(self) -> list[ServerProcess]:
        """Nodes whose process runs."""
        return [n for n in self.nodes if n.process is not None and n.process.poll() is None]

    def status(self, node: ServerProcess) -> dict[str, Any]:
        """What a node says of the cluster; empty if it does not answer."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            api = node.api(5)
            try:
                return dict(api.ok("GET", "/cluster/status"))
            finally:
                api.close()
        return {}

    def leader(self) -> ServerProcess | None:
        """The node that leads and serves, if there is one now."""
        for node in self.up():
            if self.status(node).get("serving"):
                return node
        return None

    def wait_leader(self) -> ServerProcess:
        """The node that leads, as soon as one does."""
        found: list[ServerProcess] = []

        def led() -> bool:
            leader = self.leader()
            found.extend([] if leader is None else [leader])
            return bool(found)

        until(led, "nobody leads")
        return found[0]

    def wait_voters(self, count: int) -> None:
        """Until every node that is up knows of so many voters."""

        def known() -> bool:
            for node in self.up():
                rows = self.status(node).get("nodes", [])
                if sum(row["voter"] for row in rows) != count:
                    return False
            return True

        until(known, f"there are never {count} voters")

    def wait_equal(self) -> int:
        """Until all that are up have applied the same; the index."""
        index = 0

        def equal() -> bool:
            nonlocal index
            indexes = {self.status(node).get("applied_index") for node in self.up()}
            index = next(iter(indexes)) or 0
            return len(indexes) == 1 and index > 0

        until(equal, "the nodes do not come to the same state")
        return index

    def wait_caught_up(self, node: ServerProcess) -> None:
        """Until a node follows, and has what was committed when it was asked for."""
        committed = self.status(self.wait_leader())["commit_index"]

        def there() -> bool:
            status = self.status(node)
            return bool(status.get("leader_id")) and status["applied_index"] >= committed

        until(there, "a node does not catch up")

    def followers(self) -> list[ServerProcess]:
        """All that are up but the leader."""
        leader = self.wait_leader()
        return [node for node in self.up() if node is not leader]

    def stop(self) -> None:
        """kill -9 for all."""
        for node in self.up():
            node.kill()


@contextlib.contextmanager
def running_cluster(
    directory: Path,
    count: int = 3,
    *flags: str,
    environment: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[ClusterProcess]:
    """A cluster for the length of a block. Whatever was done to it, nobody may have logged an
    error."""
    cluster = ClusterProcess(directory, count, *flags, environment=environment, tls=tls)
    try:
        yield cluster.start()
    finally:
        cluster.stop()
    for node in cluster.nodes:
        for line in node.log:
            assert "level=critical" not in line and "Traceback" not in line, "".join(node.log)


class Writer:
    """A producer on a thread of its own: numbers from `first` on, each until it is acknowledged."""

    def __init__(self, cluster: ClusterProcess, queue: str, first: int) -> None:
        self.acknowledged: dict[int, str] = {}  # job id by number
        self.gap_s = 0.0  # longest time between two acknowledgements
        self._cluster = cluster
        self._queue = queue
        self._numbers = itertools.count(first)
        self._apis = [node.api(15) for node in cluster.nodes]
        self._turn = first
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Acknowledge the last one and end."""
        self._done.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a write was never acknowledged"

    def _run(self) -> None:
        last = time.monotonic()
        while not self._done.is_set():
            number = next(self._numbers)
            self.acknowledged[number] = self._write(number)
            now = time.monotonic()
            self.gap_s = max(self.gap_s, now - last)
            last = now

    def _write(self, number: int) -> str:
        body = {"queue": self._queue, "payload": number}
        headers = {"Idempotency-Key": f"{self._queue}-{number}"}
        while True:
            api = self._apis[self._turn % len(self._apis)]
            try:
                status, answer = api.call("POST", "/enqueue", body, headers)
            except (OSError, http.client.HTTPException):
                self._turn += 1
                continue
            if status in (200, 201):
                return str(answer["job_id"])
            assert status in (429, 503, 504), (status, answer)
            self._turn += 1


def take_all(api: Api, queue: str, count: int) -> list[int]:
    """Fetch and ack this many jobs; their payloads."""
    payloads: list[int] = []
    while len(payloads) < count:
        jobs = api.fetch_batch(queue, timeout=5)
        assert jobs, f"only {len(payloads)} of {count} jobs are there"
        acks = [{"job_id": job["job_id"], "lease_token": job["lease_token"]} for job in jobs]
        answer = api.ok("POST", "/ack/batch", {"acks": acks})
        assert answer["acked"] == len(jobs), answer
        payloads += [job["payload"] for job in jobs]
    assert not api.fetch_batch(queue), "more jobs than were acknowledged"
    return payloads

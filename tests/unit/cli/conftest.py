"""A small server that answers as the HTTP API does, and a way to run commands against it."""

import itertools
import json
import logging
import threading
import urllib.parse
from collections.abc import Iterator
from copy import copy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from corvo.cli import main


class Outcome(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


class Handler(BaseHTTPRequestHandler):
    """One connection. The server object holds the state."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "FakeServer"

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, raw))
        self.server.keys.append(self.headers.get("Idempotency-Key"))
        canned = self.server.canned.get((self.command, self.path))
        if canned:
            status, body, headers = canned.pop(0)
        else:
            status, body = self.server.act(self.command, self.path, raw)
            headers = {}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class FakeServer(ThreadingHTTPServer):
    """Queues of jobs in memory, with the answers of the API. `canned` answers go out first."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[tuple[str, str, bytes]] = []
        self.keys: list[str | None] = []
        self.canned: dict[tuple[str, str], list[tuple[int, bytes, dict[str, str]]]] = {}
        self.changed = threading.Condition()
        self.numbers = itertools.count()
        self.pending: dict[str, list[dict[str, Any]]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.queues = {"q": {"name": "q"}, "a/b": {"name": "a/b"}, "mail": {"name": "mail"}}

    def can(self, method: str, path: str, body: object, status: int = 200, **headers: str) -> None:
        """Answer the next such request with this."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.canned.setdefault((method, path), []).append((status, raw, headers))

    @property
    def bodies(self) -> list[Any]:
        """The JSON bodies received."""
        return [json.loads(raw) for _, _, raw in self.requests if raw]

    def act(self, method: str, path: str, raw: bytes) -> tuple[int, bytes]:
        """Status and body of an answer."""
        body = json.loads(raw) if raw else {}
        verb, *rest = urllib.parse.unquote(path).removeprefix("/api/v1/").split("/", 1)
        with self.changed:
            match verb, *rest:
                case ["enqueue", *_]:
                    ids = [self.put(job) for job in body.get("jobs", [body])]
                    if rest:
                        return self.json(201, {"job_ids": ids})
                    new = {"job_id": ids[0], "status": "pending", "unique_existing": False}
                    return self.json(201, new)
                case ["fetch", *_]:
                    jobs = self.take(body)
                    if rest:
                        return self.json(200, {"jobs": jobs})
                    return self.json(200, jobs[0]) if jobs else (204, b"")
                case ["ack", "batch"]:
                    done = [ack for ack in body["acks"] if self.end(ack["job_id"], ack)]
                    return self.json(200, {"acked": len(done)})
                case ["ack", job_id]:
                    if self.end(job_id, body):
                        return self.json(200, {"status": "ok", "state": "completed"})
                    return self.json(409, {"error": "the lease is lost", "code": "LEASE_LOST"})
                case ["queues?limit=1000"]:
                    return self.json(200, {"queues": list(self.queues.values())})
                case ["queues", name] if method == "GET" and name in self.queues:
                    return self.json(200, self.queues[name])
                case ["/healthz"] | ["", "healthz"]:
                    return self.json(200, {"status": "ok"})
                case ["cluster", "status"]:
                    return self.json(
                        200,
                        {
                            "mode": "single",
                            "status": "healthy",
                            "durable": True,
                            "nodes": [{"role": "leader"}],
                        },
                    )
        return self.json(404, {"error": f'no route "{path}"', "code": "NOT_FOUND"})

    def put(self, job: dict[str, Any]) -> str:
        """Add a pending job."""
        with self.changed:
            job_id = f"job-{next(self.numbers)}"
            self.jobs[job_id] = {
                "job_id": job_id,
                "queue": job["queue"],
                "payload": job.get("payload", {}),
                "attempt": 1,
                "max_retries": 3,
                "lease_duration": 60,
                "lease_token": f"tok en-{job_id}",
                "fencing": 7,
            }
            self.pending.setdefault(job["queue"], []).append(self.jobs[job_id])
            self.changed.notify_all()
        return job_id

    def take(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Hand out pending jobs, waiting for one as the request allows."""
        queues = body["queues"]
        self.changed.wait_for(lambda: any(map(self.pending.get, queues)), body.get("timeout", 30))
        taken: list[dict[str, Any]] = []
        for queue in queues:
            ready = self.pending.get(queue, [])
            count = body.get("count", 1) - len(taken)
            taken += ready[:count]
            del ready[:count]
        return taken

    def end(self, job_id: str, body: dict[str, Any]) -> bool:
        """Complete a job if the token is that of its lease."""
        live = self.jobs.get(job_id, {}).get("lease_token")
        return live is not None and body.get("lease_token") == live and bool(self.jobs.pop(job_id))

    def json(self, status: int, value: object) -> tuple[int, bytes]:
        """An answer with a JSON body."""
        return status, json.dumps(value).encode()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A running server."""
    fake = FakeServer()
    thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    fake.shutdown()
    thread.join()
    fake.server_close()


@pytest.fixture
def run(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Run a command line against the server."""
    monkeypatch.setenv("CORVO_URL", server.url)
    root = logging.getLogger()
    for name in ("handlers", "level"):  # what a command does to them is undone
        monkeypatch.setattr(root, name, copy(getattr(root, name)))

    def command(*words: str) -> Outcome:
        status = main(words)
        out, err = capsys.readouterr()
        return Outcome(status, out, err)

    return command

"""Real servers and small clients for the process tests.

A server is started as users start it (`corvo server`), on a port of its own, and is ready when it
reports so. `Api` is a plain keep-alive HTTP client that returns (status, JSON), with the verbs of
producers and workers on top. `Poll` is a long poll on a thread; the server holds it once the
constructor returns.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

READY_WAIT_S = 60
_TROUBLE = re.compile("level=(error|critical)|Traceback")
WAIT_S = 20  # for work that the server does when it is due


LOCAL = "127.0.0.1"


def server_command(data_dir: Path, port: int, *flags: str, host: str = LOCAL) -> list[str]:
    """Return the command `corvo server` as users type it."""
    command = [sys.executable, "-m", "corvo", "server", "--data-dir", str(data_dir)]
    return [*command, "--bind", f"{host}:{port}", *flags]


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of Corvo."""
    return {key: value for key, value in os.environ.items() if not key.startswith("CORVO_")}


def failed_start(data_dir: Path, *flags: str, port: int = 0) -> str:
    """Return the output of a server that must fail to start."""
    run = subprocess.run(
        server_command(data_dir, port, *flags),
        capture_output=True,
        text=True,
        env=clean_environment(),
        cwd=data_dir.parent,
        timeout=READY_WAIT_S,
    )
    assert run.returncode not in (0, -9), run.stderr
    assert "Traceback" not in run.stderr, run.stderr
    return run.stderr


def make_certificate(directory: Path, name: str) -> None:
    """Write a self-signed certificate for this machine, and its key."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext"]
    command += ["subjectAltName=IP:127.0.0.1", "-out", "cert.pem", "-keyout", "key.pem"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


class ServerProcess:
    """One `corvo server`. It keeps its port over restarts, so that clients find it again."""

    def __init__(self, data_dir: Path, *flags: str) -> None:
        self.data_dir = data_dir
        self.flags = flags
        self.environment: dict[str, str] = {}
        self.host = LOCAL
        self.port = 0
        self.tls: ssl.SSLContext | None = None  # how clients connect to its API
        self.prefix: list[str] = []  # a command that runs the server
        self.process: subprocess.Popen[str] | None = None
        self.log: list[str] = []

    def start(self) -> "ServerProcess":
        """Start the server and wait until it reports that it is ready."""
        self.process = subprocess.Popen(
            [
                *self.prefix,
                *server_command(self.data_dir, self.port, *self.flags, host=self.host),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment() | self.environment,
            cwd=self.data_dir.parent,
        )
        ready = threading.Event()
        started = len(self.log)
        reader = threading.Thread(target=self._read_log, args=(self.process, ready), daemon=True)
        reader.start()
        if not ready.wait(READY_WAIT_S) or "corvo server ready" not in "".join(self.log[started:]):
            self.kill()
            raise AssertionError("the server did not start:\n" + "".join(self.log[-40:]))
        return self

    def _read_log(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line)
            if "corvo server ready" in line:
                match = re.search(r'bind="?[\d.]+:(\d+)', line)
                assert match, line
                self.port = int(match.group(1))
                ready.set()
        ready.set()

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stop the server with SIGTERM and return its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def api(self, timeout_s: float = 70) -> "Api":
        """Return a new client of this server."""
        return Api(self.port, timeout_s, self.tls, self.host)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


class Reply(NamedTuple):
    """A response as received."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class Api:
    """A keep-alive client. A call that finds the connection closed is sent once more. A second
    failure is raised (OSError or http.client.HTTPException)."""

    def __init__(
        self,
        port: int,
        timeout_s: float = 70,
        tls: ssl.SSLContext | None = None,
        host: str = LOCAL,
    ) -> None:
        self._connection = (
            http.client.HTTPConnection(host, port, timeout=timeout_s)
            if tls is None
            else http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
        )

    def raw(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """Send a request under /api/v1 (or from the root if the path starts with `//`)."""
        target = path[1:] if path.startswith("//") else "/api/v1" + path
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            return self._send(method, target, data, headers or {})
        except (http.client.RemoteDisconnected, BrokenPipeError):
            self._connection.close()
            return self._send(method, target, data, headers or {})

    def _send(self, method: str, target: str, data: bytes | None, headers: dict[str, str]) -> Reply:
        try:
            self._connection.request(method, target, data, headers)
            response = self._connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        except BaseException:
            self._connection.close()
            raise

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Do the same as `raw`, with the body decoded."""
        reply = self.raw(method, path, body, headers)
        if not reply.body:
            return reply.status, None
        is_json = "json" in (reply.headers.get("content-type") or "")
        return reply.status, json.loads(reply.body) if is_json else reply.body.decode()

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        return self.call("POST", path, {} if body is None else body)

    def get(self, path: str) -> tuple[int, Any]:
        return self.call("GET", path)

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        """Return the response of a call that must succeed."""
        status, answer = self.call(method, path, body)
        assert status < 300, (method, path, status, answer)
        return answer

    def close(self) -> None:
        self._connection.close()

    def listed(self, noun: str) -> list[dict[str, Any]]:
        """Return all items of a list that has pages: queues, workers or schedules."""
        items: list[dict[str, Any]] = []
        following = f"/{noun}?limit=1000"
        while following:
            reply = self.raw("GET", following)
            assert reply.status == 200, (following, reply)
            page = json.loads(reply.body)
            if isinstance(page, dict):  # queues: the position is part of the document
                items += page[noun]
                cursor = page.get("cursor")
                following = cursor and f"/{noun}?limit=1000&cursor={cursor}"
            else:
                items += page
                link = reply.headers["link"] or ""
                following = link.removeprefix("</api/v1").partition(">")[0]
        return items

    # ---- producers, workers, and what tests look at ----

    def enqueue(self, queue: str, **fields: Any) -> str:
        """Enqueue a job and return its id."""
        answer = self.ok("POST", "/enqueue", {"queue": queue, **fields})
        assert not answer["unique_existing"], answer
        return str(answer["job_id"])

    def enqueue_many(self, queue: str, count: int, **fields: Any) -> list[str]:
        """Enqueue jobs with payloads 0, 1, 2, ... and return their ids."""
        jobs = [{"queue": queue, "payload": number, **fields} for number in range(count)]
        ids: list[str] = self.ok("POST", "/enqueue/batch", {"jobs": jobs})["job_ids"]
        return ids

    def fetch(self, *queues: str, timeout: float = 0, **fields: Any) -> Any:
        """Return a job, or None if there is none within the timeout."""
        return self.ok("POST", "/fetch", {"queues": queues, "timeout": timeout, **fields})

    def take(self, *queues: str, timeout: float = WAIT_S, **fields: Any) -> dict[str, Any]:
        """Return a job; one must arrive."""
        job: dict[str, Any] | None = self.fetch(*queues, timeout=timeout, **fields)
        assert job is not None, f"no job came from {queues}"
        return job

    def fetch_batch(self, *queues: str, count: int = 512, **fields: Any) -> list[dict[str, Any]]:
        """Return the jobs of one reply, without waiting."""
        body = {"queues": queues, "count": count, "timeout": 0, **fields}
        jobs: list[dict[str, Any]] = self.ok("POST", "/fetch/batch", body)["jobs"]
        return jobs

    def take_many(self, *queues: str, count: int, **fields: Any) -> list[dict[str, Any]]:
        """Return `count` jobs, in the order of delivery."""
        jobs: list[dict[str, Any]] = []
        while len(jobs) < count:
            body = {"queues": queues, "timeout": WAIT_S, "count": count - len(jobs), **fields}
            more = self.ok("POST", "/fetch/batch", body)["jobs"]
            assert more, f"only {len(jobs)} of {count} jobs came from {queues}"
            jobs += more
        return jobs

    def ack(self, job: dict[str, Any], **fields: Any) -> tuple[int, Any]:
        """Ack with the token of this delivery, as the next three methods do."""
        return self._with_token("ack", job, fields)

    def fail(self, job: dict[str, Any], **fields: Any) -> tuple[int, Any]:
        return self._with_token("fail", job, fields)

    def release(self, job: dict[str, Any], **fields: Any) -> tuple[int, Any]:
        return self._with_token("release", job, fields)

    def _with_token(self, verb: str, job: dict[str, Any], fields: Any) -> tuple[int, Any]:
        body = {"lease_token": job["lease_token"], **fields}
        return self.post(f"/{verb}/{job['job_id']}", body)

    def beat(self, job: dict[str, Any], **fields: Any) -> str:
        """Return the reply to a heartbeat for this delivery."""
        beat = {"lease_token": job["lease_token"], **fields}
        answer = self.ok("POST", "/heartbeat", {"jobs": {job["job_id"]: beat}})
        return str(answer["jobs"][job["job_id"]]["status"])

    def job(self, job_id: str) -> dict[str, Any]:
        document: dict[str, Any] = self.ok("GET", f"/jobs/{job_id}")
        return document

    def queue(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = self.ok("GET", f"/queues/{name}")
        return document

    def wait_state(self, job_id: str, state: str) -> None:
        """Wait until the job is in this state."""
        until(lambda: self.job(job_id)["state"] == state, f"{job_id} is never {state}")

    def wait_parked(self, count: int) -> None:
        """Wait until exactly `count` fetches wait in the server."""

        def parked() -> bool:
            return bool(self.ok("GET", "/cluster/status")["waiting_fetches"] == count)

        until(parked, f"never {count} waiting fetches")


class Poll:
    """A long poll for one job on a thread of its own. The server holds it once the constructor
    returns."""

    def __init__(self, api: Api, server: "ServerProcess", *queues: str, **fields: Any) -> None:
        waiting = api.ok("GET", "/cluster/status")["waiting_fetches"]
        self._api = server.api()
        self._fields = {"queues": queues, "timeout": 60, **fields}
        self.reply: tuple[int, Any] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        api.wait_parked(waiting + 1)

    def _run(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.reply = self._api.post("/fetch", self._fields)

    def job(self) -> dict[str, Any]:
        """Return the job that it gets, long before its timeout."""
        status, job = self.answer()
        assert status == 200, (status, job)
        return dict(job)

    def answer(self) -> tuple[int, Any]:
        self._thread.join(WAIT_S)
        assert self.reply is not None, "the long poll was not woken"
        return self.reply


class Lines:
    """A stream that is read line by line from a socket."""

    def __init__(self, server: ServerProcess, path: str, *headers: str, version: str = "1.1"):
        self.socket = connect(server.port)
        self.socket.settimeout(WAIT_S)
        lines = [f"GET /api/v1{path} HTTP/{version}", "Host: localhost", *headers, "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = list(iter(self.file.readline, b"\r\n"))
        self._rest = b""

    def chunk(self) -> bytes:
        """Return the next chunk, empty for the last one."""
        size = int(self.file.readline(), 16)
        data = self.file.read(size)
        assert self.file.readline() == b"\r\n"
        return data

    def frames(self, count: int) -> list[dict[str, str]]:
        """Return the next events."""
        found: list[dict[str, str]] = []
        while len(found) < count:
            self._rest += self.chunk()
            *blocks, self._rest = self._rest.split(b"\n\n")
            for block in blocks:
                pairs = [line.split(": ", 1) for line in block.decode().split("\n")]
                fields = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
                if "data" in fields:
                    found.append(fields)
        return found

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def post_bytes(path: str, body: Any, close: bool = False) -> bytes:
    """Return the bytes of a POST under /api/v1; `close` makes it the last request of the
    connection."""
    data = json.dumps(body).encode()
    head = f"POST /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    return head.encode() + (b"Connection: close\r\n\r\n" if close else b"\r\n") + data


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    """Return a connection without a client."""
    return socket.create_connection(("127.0.0.1", port), WAIT_S, (source, 0))


def raw_fetch(port: int, queue: str, source: str = "127.0.0.1") -> socket.socket:
    """Return a connection on which a long poll was sent and nothing was read."""
    connection = connect(port, source)
    connection.sendall(post_bytes("/fetch", {"queues": [queue], "timeout": 60}))
    return connection


def until(check: Callable[[], Any], what: str) -> None:
    """Wait until `check` is true; fail with `what` after a time."""
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, what


def refused(reply: tuple[int, Any], status: int, code: str) -> dict[str, Any]:
    """Return the body of an error, which must have this status and code, and a text."""
    assert reply[0] == status, reply
    assert reply[1]["code"] == code, reply
    assert reply[1]["error"], reply
    answer: dict[str, Any] = reply[1]
    return answer


def nanoseconds(text: str) -> int:
    """Return the unix nanoseconds of an RFC 3339 time in UTC."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * 10**9 + int(fraction.ljust(9, "0"))


def rfc3339(at_ns: int) -> str:
    """Return the RFC 3339 text of unix nanoseconds."""
    seconds, fraction = divmod(at_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


@contextlib.contextmanager
def running_server(data_dir: Path, *flags: str) -> Iterator[ServerProcess]:
    """Run a server for a `with` block, and check that it has not logged an error. It is killed at
    the end if it still runs."""
    server = ServerProcess(data_dir, *flags).start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()
    troubles = [n for n, line in enumerate(server.log) if _TROUBLE.search(line)]
    assert not troubles, "".join(server.log[troubles[0] : troubles[0] + 30])


def advance(api: Api, duration: str) -> None:
    """Move the test clock."""
    api.ok("POST", "/test/clock", {"advance": duration})


def clock_ns(api: Api) -> int:
    """Return the time of the test clock."""
    return nanoseconds(api.ok("POST", "/test/clock", {})["now"])


def set_clock(api: Api, at_ns: int) -> None:
    """Set the test clock to a later time."""
    api.ok("POST", "/test/clock", {"set": rfc3339(at_ns)})


@contextlib.contextmanager
def frozen_clock(api: Api) -> Iterator[int]:
    """Stop the test clock for a `with` block, and give its time; it then moves only by hand."""
    api.ok("POST", "/test/clock", {"freeze": True})
    try:
        yield clock_ns(api)
    finally:
        api.ok("POST", "/test/clock", {"freeze": False})


def wait_mirrored(api: Api, count: int) -> None:
    """Wait until search on this node finds `count` jobs of the queue and its result is not
    stale."""

    def found() -> bool:
        reply = api.raw("POST", "/jobs/search", {"queue": "q", "limit": 1})
        if reply.status != 200 or reply.headers["X-Corvo-Stale"]:
            return False
        return bool(json.loads(reply.body)["total"] == count)

    until(found, f"the mirror never has {count} jobs")


def mirror_status(api: Api) -> dict[str, Any]:
    """Return the mirror's part of the server status."""
    status: dict[str, Any] = api.ok("GET", "/cluster/status")["sqlite_mirror"]
    return status


def wait_mirror(api: Api) -> None:
    """Wait until the mirror serves queries."""
    until(lambda: mirror_status(api)["available"], "the mirror never answers")


@contextlib.contextmanager
def mirrored_server(data_dir: Path) -> Iterator[ServerProcess]:
    """Run a server with a test clock, whose mirror serves queries."""
    with running_server(data_dir, "--test-clock") as server:
        client = server.api()
        wait_mirror(client)
        client.close()
        yield server

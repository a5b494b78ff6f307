"""Clients that others have written, against a running server. What is not installed here is named
by the test that is left out."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from lib.harness import WAIT_S, Api, ServerProcess

from corvo._fast.codec import protobuf
from corvo.net.rpc.proto_file import load

CLIENTS = Path(__file__).parent.parent / "clients"
TYPES = load("worker.proto")


def run(program: str, *arguments: str) -> str:
    """What the program prints."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    command = [program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=6 * WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def enqueue(shared_server: ServerProcess) -> str:
    return f"{shared_server.url}/api/v1/enqueue"


@pytest.mark.parametrize(
    ("flag", "version"),
    [("--http1.1", "1.1"), ("--http2", "1.1"), ("--http2-prior-knowledge", "2")],
)
def test_curl(enqueue: str, api: Api, queue: str, tmp_path: Path, flag: str, version: str) -> None:
    """Small and large bodies; those so large that curl asks first whether they are wanted."""
    for number, payload in enumerate(("x", "y" * 250_000)):
        body = tmp_path / "body"
        body.write_text(json.dumps({"queue": queue, "payload": payload}))
        shown = ["-w", " %{http_code} %{http_version}", "--data-binary", f"@{body}"]
        assert run("curl", "-sS", flag, *shown, enqueue).endswith(f" 201 {version}")
        assert api.queue(queue)["pending"] == number + 1


@pytest.mark.parametrize("how", [[], ["-u"]])
def test_nghttp(shared_server: ServerProcess, how: list[str]) -> None:
    """With prior knowledge and by an upgrade; several streams on a connection."""
    url = f"{shared_server.url}/api/v1/info"
    out = run("nghttp", "-v", *how, url, *[f"{url}?{n}" for n in range(20)])
    assert out.count(":status: 200") == 21 and "error_code=NO_ERROR" in out


@pytest.mark.parametrize("how", [["-m", "32"], ["--h1", "-m", "1"], ["--h1", "-m", "16"]])
def test_h2load(enqueue: str, api: Api, queue: str, tmp_path: Path, how: list[str]) -> None:
    """Thousands of requests, multiplexed and pipelined: all of them are answered."""
    body = tmp_path / "body"
    body.write_text(json.dumps({"queue": queue, "payload": {"n": 1}}))
    out = run("h2load", "-n", "4000", "-c", "8", *how, "-d", str(body), enqueue)
    assert "status codes: 4000 2xx, 0 3xx, 0 4xx, 0 5xx" in out
    assert re.search(r"requests: 4000 total, .* 4000 succeeded, 0 failed, 0 errored", out)
    assert api.queue(queue)["pending"] == 4000


def test_java(shared_server: ServerProcess, api: Api, queue: str) -> None:
    """The client of the JDK offers to switch to HTTP/2 with each request, those with a body too,
    until it is let."""
    source = str(CLIENTS / "Enqueue.java")
    lines = run("java", source, f"{shared_server.url}/api/v1", queue).splitlines()
    assert [line.split()[0] for line in lines] == ["201", "200"] * 20
    assert lines[0].endswith("HTTP_1_1") and lines[-1].endswith("HTTP_2")
    assert api.queue(queue)["pending"] == 20


def test_node(shared_server: ServerProcess, queue: str) -> None:
    """Calls by Connect on a session of HTTP/2."""
    out = json.loads(run("node", str(CLIENTS / "connect.mjs"), shared_server.url, queue))
    expected = {"made": 200, "acked": 200, "refusal": [400, "invalid_argument"], "late": True}
    assert out == expected


class Codec:
    """Our messages, as a codec of that library."""

    def __init__(self, method: str) -> None:
        self._method = method

    def name(self) -> str:
        return "proto"

    def encode(self, message: Any) -> bytes:
        return protobuf.encode(TYPES[f"{self._method}Request"], message)

    def decode(self, data: bytes, _kind: type) -> Any:
        return protobuf.decode(TYPES[f"{self._method}Response"], bytes(data), 10_000)


@pytest.mark.parametrize(("protocol", "http"), [("CONNECT", "1"), ("CONNECT", "2"), ("GRPC", "2")])
def test_connect_python(
    shared_server: ServerProcess, api: Api, queue: str, protocol: str, http: str
) -> None:
    """Compresses what it sends unless it is told otherwise."""
    client = pytest.importorskip("connectrpc.client", reason="connectrpc is not installed")
    methods = pytest.importorskip("connectrpc.method")
    kinds = pytest.importorskip("connectrpc.protocol")
    errors = pytest.importorskip("connectrpc.errors")
    qwest = pytest.importorskip("pyqwest")
    version = qwest.HTTPVersion.HTTP1 if http == "1" else qwest.HTTPVersion.HTTP2

    def call(name: str, **values: Any) -> Any:
        method = methods.MethodInfo(
            name=name,
            service_name="corvo.v1.WorkerService",
            input=dict,
            output=dict,
            idempotency_level=methods.IdempotencyLevel.UNKNOWN,
            stream_type=methods.StreamType.UNARY,
        )
        with qwest.SyncHTTPTransport(http_version=version) as transport:
            connection = client.ConnectClientSync(
                shared_server.url,
                codec=Codec(name),
                protocol=kinds.ProtocolType[protocol],
                timeout_ms=20_000,
                http_client=qwest.SyncClient(transport),
            )
            return connection.execute_unary(request=values, method=method)

    made = call("Enqueue", queue=queue, payload_json=json.dumps("x" * 100_000))
    job = call("Fetch", queues=[queue], worker_id="w")
    assert job["job_id"] == made["job_id"] and len(job["payload_json"]) == 100_002
    call("Ack", job_id=job["job_id"], lease_token=job["lease_token"])
    assert api.job(job["job_id"])["state"] == "completed"
    with pytest.raises(errors.ConnectError, match="queue is required"):
        call("Enqueue")

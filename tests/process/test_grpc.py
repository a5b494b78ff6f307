"""The worker service over HTTP/2: calls by gRPC with its own client, streams with curl."""

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from lib.harness import WAIT_S, Api, ServerProcess

from corvo._fast.codec import protobuf
from corvo.net.rpc.proto_file import load

TYPES = load("worker.proto")
Call = Callable[..., Any]


@pytest.fixture
def call(shared_server: ServerProcess) -> Iterator[Call]:
    """Calls a method with the values of its request."""
    with grpc.insecure_channel(f"127.0.0.1:{shared_server.port}") as channel:

        def do(method: str, _timeout_s: float = WAIT_S, **values: Any) -> Any:
            stub = channel.unary_unary(
                f"/corvo.v1.WorkerService/{method}",
                lambda values: protobuf.encode(TYPES[f"{method}Request"], values),
                lambda data: protobuf.decode(TYPES[f"{method}Response"], data, 10_000),
            )
            return stub(values, timeout=_timeout_s)

        yield do


def test_the_life_of_a_job(call: Call, api: Api, queue: str) -> None:
    made = call("Enqueue", queue=queue, payload_json='{"a": 1}')
    job = call("Fetch", queues=[queue], worker_id="w")
    assert job["found"] and job["job_id"] == made["job_id"] and job["payload_json"] == '{"a": 1}'
    jobs = {job["job_id"]: {"lease_token": job["lease_token"]}}
    assert call("Heartbeat", jobs=jobs)["jobs"][job["job_id"]] == {"status": "ok"}
    assert call("Ack", job_id=job["job_id"], lease_token=job["lease_token"]) == {}
    assert api.ok("GET", f"/jobs/{job['job_id']}")["state"] == "completed"
    assert call("FetchBatch", 1, queues=[queue], worker_id="w") == {}


@pytest.mark.parametrize(
    ("method", "values", "code", "text"),
    [
        ("Enqueue", {}, grpc.StatusCode.INVALID_ARGUMENT, "queue is required"),
        ("Ack", {"job_id": "job_none"}, grpc.StatusCode.NOT_FOUND, "not found"),
        ("Nothing", {}, grpc.StatusCode.UNIMPLEMENTED, "no such method"),
    ],
)
def test_errors(call: Call, method: str, values: Any, code: Any, text: str) -> None:
    if method == "Nothing":
        TYPES["NothingRequest"] = TYPES["GetServerInfoRequest"]
    with pytest.raises(grpc.RpcError) as caught:
        call(method, **values)
    error: Any = caught.value
    assert error.code() == code and text in error.details()


def test_events_by_curl(shared_server: ServerProcess, api: Api, queue: str) -> None:
    url = f"{shared_server.url}/api/v1/events?queues={queue}&from=start"
    command = ["curl", "-sN", "--http2-prior-knowledge", "--max-time", str(WAIT_S), url]
    ids = api.enqueue_many(queue, 600)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ids += api.enqueue_many(queue, 5)
        found: list[str] = []
        for line in process.stdout:
            if line.startswith("data: "):
                found.append(json.loads(line[6:])["job_id"])
                if len(found) == len(ids):
                    break
        assert found == ids
        process.kill()

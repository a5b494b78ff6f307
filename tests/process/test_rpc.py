"""The worker service over HTTP/1.1: Connect calls in both forms, errors, times and streams."""

import gzip
import json
import re
import socket
import struct
import time
from typing import Any

import pytest
from lib.harness import WAIT_S, Api, ServerProcess, advance, connect, frozen_clock

from corvo._fast.codec import protobuf
from corvo.net.rpc.proto_file import load

TYPES = load("worker.proto")
PATH = "//corvo.v1.WorkerService/"


class Caller:
    """Calls in one of the two forms of messages."""

    def __init__(self, api: Api, form: str) -> None:
        self.api = api
        self.form = form

    def call(self, method: str, values: dict[str, Any], **headers: str) -> tuple[int, Any]:
        """Status, and the answer as a message with the names of the file; an error as it is."""
        form = self.form
        if form == "proto":
            body = protobuf.encode(TYPES[f"{method}Request"], values)
        else:
            body = json.dumps(values).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if names.get("Content-Encoding") == "gzip":
            body = gzip.compress(body)
        names["Content-Type"] = f"application/{form}"
        reply = self.api.raw("POST", f"{PATH}{method}", body, names)
        if reply.status != 200:
            assert reply.headers["Content-Type"] == "application/json"
            return reply.status, json.loads(reply.body)
        assert reply.headers["Content-Type"] == f"application/{form}"
        if form == "proto":
            return 200, protobuf.decode(TYPES[f"{method}Response"], reply.body, 10_000)
        return 200, _snake(json.loads(reply.body))

    def ok(self, method: str, values: dict[str, Any], **headers: str) -> Any:
        status, answer = self.call(method, values, **headers)
        assert status == 200, answer
        return answer


def _snake(value: Any) -> Any:
    """The names of the file in place of those of JSON; ids of jobs stay as they are."""
    if isinstance(value, dict):
        return {
            key if "_" in key else re.sub("[A-Z]", lambda c: f"_{c[0].lower()}", key): _snake(item)
            for key, item in value.items()
        }
    return [_snake(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(params=["proto", "json"])
def caller(api: Api, request: pytest.FixtureRequest) -> Caller:
    return Caller(api, request.param)


def test_the_life_of_a_job(caller: Caller, queue: str) -> None:
    new = {"queue": queue, "payload_json": '{"big": 12345678901234567890, "t": "\\ud800"}'}
    new["tags_json"] = '{"tenant": "a", "n": 1}'
    made = caller.ok("Enqueue", new, Connect_Protocol_Version="1")
    assert made["status"] == "pending" and "unique_existing" not in made
    job = caller.ok("Fetch", {"queues": [queue], "worker_id": "w"})
    assert job["found"] and job["job_id"] == made["job_id"] and job["queue"] == queue
    assert job["payload_json"] == new["payload_json"]
    assert json.loads(job["tags_json"]) == {"tenant": "a", "n": "1"}
    assert (job["attempt"], job["max_retries"], job["lease_duration"]) == (1, 3, 60)
    assert int(job["fencing"]) > 0
    token = job["lease_token"]
    update = {"lease_token": token, "progress_json": '{"done": 1}', "checkpoint_json": "[1]"}
    beats = caller.ok("Heartbeat", {"jobs": {job["job_id"]: update, "job_none": {}}})
    assert beats["jobs"] == {job["job_id"]: {"status": "ok"}, "job_none": {"status": "lost"}}
    failure = {"job_id": job["job_id"], "error": "é\n", "lease_token": token, "retry": True}
    failed = caller.ok("Fail", failure)
    assert failed["status"] == "retrying" and failed["attempts_remaining"] == 2
    assert failed["next_attempt_at"]
    caller.api.ok("POST", f"/jobs/{job['job_id']}/run")
    job = caller.ok("Fetch", {"queues": [queue], "worker_id": "w"})
    assert (job["attempt"], job["checkpoint_json"]) == (2, "[1]")
    ack = {"job_id": job["job_id"], "lease_token": job["lease_token"], "result_json": "[2]"}
    assert caller.ok("Ack", ack) == {} == caller.ok("Ack", ack)
    shown = caller.api.ok("GET", f"/jobs/{job['job_id']}")
    assert (shown["state"], shown["result"]) == ("completed", [2])
    assert shown["errors"][0]["error"] == "é\n"


def test_options_of_an_enqueue(caller: Caller, queue: str) -> None:
    at: Any = {"seconds": 4_000_000_000, "nanos": 500_000_000}
    if caller.form == "json":
        at = "2096-10-02T07:06:40.5Z"
    values = {
        "queue": queue,
        "priority": "high",
        "unique_key": "k",
        "unique_period": 60,
        "max_retries": 0,
        "retry_backoff": "linear",
        "retry_base_delay": "2s",
        "retry_jitter": 0.0,
        "scheduled_at": at,
        "expire_after": "9999h",
        "group_key": "g",
        "chain_json": json.dumps({"steps": [{"queue": queue}, {"queue": f"{queue}-2"}]}),
    }
    made = caller.ok("Enqueue", values)
    again = caller.ok("Enqueue", values)
    assert again == {"job_id": made["job_id"], "status": "duplicate", "unique_existing": True}
    job = caller.api.ok("GET", f"/jobs/{made['job_id']}")
    assert job["state"] == "scheduled" and job["scheduled_at"] == "2096-10-02T07:06:40.5Z"
    assert (job["priority_name"], job["max_retries"], job["retry_backoff"]) == ("high", 0, "linear")
    assert (job["retry_base_delay_ms"], job["retry_jitter"], job["group_key"]) == (2000, 0, "g")
    assert len(job["chain_config"]["steps"]) == 2


def test_batches(caller: Caller, queue: str) -> None:
    ids = caller.api.enqueue_many(queue, 5)
    jobs = caller.ok("FetchBatch", {"queues": [queue], "worker_id": "w", "count": 4})["jobs"]
    assert [job["job_id"] for job in jobs] == ids[:4]
    items = [{"job_id": job["job_id"], "lease_token": job["lease_token"]} for job in jobs]
    items[3]["lease_token"] = "0"
    answer = caller.ok("AckBatch", {"items": items})
    assert answer["acked"] == 3
    assert [(f["job_id"], f["code"]) for f in answer["failed"]] == [(ids[3], "LEASE_LOST")]


def test_a_batch_completes_the_other_jobs_when_one_ack_is_invalid(
    caller: Caller, queue: str
) -> None:
    ids = caller.api.enqueue_many(queue, 4)
    jobs = caller.ok("FetchBatch", {"queues": [queue], "worker_id": "w", "count": 4})["jobs"]
    items = [{"job_id": job["job_id"], "lease_token": job["lease_token"]} for job in jobs]
    items[1]["result_json"] = "{"
    items[2]["result_json"] = json.dumps("x" * 1_048_576)
    answer = caller.ok("AckBatch", {"items": items})
    assert answer["acked"] == 2
    assert [(f["index"], f["job_id"], f["code"]) for f in answer["failed"]] == [
        (1, ids[1], "VALIDATION_ERROR"),
        (2, ids[2], "PAYLOAD_TOO_LARGE"),
    ]


def test_compressed(caller: Caller, queue: str) -> None:
    values = {"queue": queue, "payload_json": json.dumps("x" * 10_000)}
    assert caller.ok("Enqueue", values, Content_Encoding="gzip")["job_id"]
    assert caller.ok("Enqueue", values, Content_Encoding="identity")["job_id"]
    status, error = caller.call("Enqueue", values, Content_Encoding="br")
    assert (status, error["code"]) == (501, "unimplemented")
    reply = caller.api.raw(
        "POST",
        f"{PATH}Enqueue",
        b"junk",
        {"Content-Type": "application/proto", "Content-Encoding": "gzip"},
    )
    assert (reply.status, json.loads(reply.body)["code"]) == (400, "invalid_argument")


@pytest.mark.parametrize(
    ("method", "values", "status", "code", "message"),
    [
        ("Enqueue", {}, 400, "invalid_argument", "queue is required"),
        ("Enqueue", {"queue": "q", "payload_json": "{"}, 400, "invalid_argument", "not JSON"),
        ("Enqueue", {"queue": "q", "payload_json": '1,"value":2'}, 400, "invalid_argument", ""),
        ("Enqueue", {"queue": "q", "tags_json": "[]"}, 400, "invalid_argument", ""),
        ("Enqueue", {"queue": "q", "chain_json": "{"}, 400, "invalid_argument", ""),
        ("Enqueue", {"queue": "q", "agent": {}}, 400, "invalid_argument", "not part"),
        (
            "Enqueue",
            {"queue": "q", "payload_json": f'"{"x" * 300_000}"'},
            400,
            "invalid_argument",
            "payload too large",
        ),
        ("Fetch", {}, 400, "invalid_argument", "at least one queue is required"),
        ("Ack", {"job_id": "job_none"}, 404, "not_found", "not found"),
        ("Ack", {"job_id": "job_none", "usage": {}}, 400, "invalid_argument", "not part"),
        ("AckBatch", {}, 400, "invalid_argument", "items is required"),
        ("AckBatch", {"items": [{}]}, 400, "invalid_argument", "job_id is required"),
        ("Fail", {"job_id": "job_none"}, 404, "not_found", "not found"),
        (
            "Heartbeat",
            {"jobs": {"a": {"progress_json": "[]"}}},
            400,
            "invalid_argument",
            "invalid progress_json for a",
        ),
    ],
)
def test_errors(
    caller: Caller, method: str, values: dict[str, Any], status: int, code: str, message: str
) -> None:
    found, error = caller.call(method, values)
    assert (found, error["code"]) == (status, code) and message in error["message"]


def test_lease_lost(caller: Caller, queue: str) -> None:
    job_id = caller.api.enqueue(queue)
    caller.api.take(queue)
    status, error = caller.call("Ack", {"job_id": job_id, "lease_token": "0"})
    assert (status, error["code"]) == (400, "failed_precondition")


def test_malformed_requests(api: Api, caller: Caller) -> None:
    post = {"Content-Type": f"application/{caller.form}"}
    for body in (b"\x0f", b"\x12\x05abc") if caller.form == "proto" else (b"{", b"[]", b"\xff"):
        reply = api.raw("POST", f"{PATH}Enqueue", body, post)
        assert (reply.status, json.loads(reply.body)["code"]) == (400, "invalid_argument")
    for name, value in (("Connect-Protocol-Version", "2"), ("Connect-Timeout-Ms", "soon")):
        reply = api.raw("POST", f"{PATH}GetServerInfo", b"", post | {name: value})
        assert (reply.status, json.loads(reply.body)["code"]) == (400, "invalid_argument")
    large = api.raw("POST", f"{PATH}Enqueue", bytes(5_000_000), post)
    assert (large.status, json.loads(large.body)["code"]) == (429, "resource_exhausted")


def test_dispatch(api: Api) -> None:
    reply = api.raw("POST", f"{PATH}Fetch", b"", {"Content-Type": "text/plain"})
    assert reply.status == 415 and reply.headers["Accept-Post"].startswith("application/proto")
    assert api.raw("GET", f"{PATH}Fetch").status == 405
    unknown = api.raw("POST", f"{PATH}Sing", b"", {"Content-Type": "application/json"})
    assert (unknown.status, json.loads(unknown.body)["code"]) == (404, "unimplemented")
    info = api.raw(
        "POST", f"{PATH}GetServerInfo", b"{}", {"Content-Type": "Application/JSON; charset=utf-8"}
    )
    assert json.loads(info.body)["serverVersion"] == json.loads(info.body)["apiVersion"]
    stream = {"Content-Type": "application/connect+proto"}
    assert api.raw("POST", f"{PATH}StreamLifecycle", b"", stream).status == 505


def test_a_fetch_waits_and_is_woken(shared_server: ServerProcess, api: Api, queue: str) -> None:
    head = f"POST {PATH[1:]}Fetch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = json.dumps({"queues": [queue], "workerId": "w"})
    waiting = connect(shared_server.port)
    waiting.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    api.wait_parked(1)
    job_id = api.enqueue(queue)
    assert job_id.encode() in waiting.recv(65536)
    waiting.close()
    gone = connect(shared_server.port)
    gone.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    api.wait_parked(1)
    gone.close()
    api.wait_parked(0)


def test_an_empty_fetch_answers_before_the_caller_gives_up(caller: Caller, queue: str) -> None:
    for timeout_ms, least_s in (("400", 0.2), ("1500", 0.5)):
        began = time.monotonic()
        assert not caller.ok(
            "Fetch", {"queues": [queue], "worker_id": "w"}, Connect_Timeout_Ms=timeout_ms
        )
        assert least_s <= time.monotonic() - began < int(timeout_ms) / 1000


def test_deadline(caller: Caller, queue: str) -> None:
    """The waits of a server follow its clock, the times of calls do not: with a clock that stands
    still only the latter end. No job is lost by that."""
    with frozen_clock(caller.api):
        status, error = caller.call(
            "Fetch", {"queues": [queue], "worker_id": "w"}, Connect_Timeout_Ms="100"
        )
        assert (status, error["code"]) == (504, "deadline_exceeded")
        caller.api.wait_parked(0)
        job_id = caller.api.enqueue(queue)
        assert caller.api.take(queue)["job_id"] == job_id
        advance(caller.api, "1s")


def test_one_lifecycle_frame(api: Api, queue: str) -> None:
    def exchange(**values: Any) -> Any:
        return Caller(api, "json").api.raw(
            "POST",
            f"{PATH}StreamLifecycle",
            json.dumps(values).encode(),
            {"Content-Type": "application/json"},
        )

    first = exchange(
        requestId=7, queues=[queue], workerId="w", fetchCount=2, enqueues=[{"queue": queue}] * 3
    )
    answer = json.loads(first.body)
    assert first.status == 200 and answer["requestId"] == "7"
    assert len(answer["enqueuedJobIds"]) == 3
    assert [job["jobId"] for job in answer["jobs"]] == answer["enqueuedJobIds"][:2]
    acks = [{"jobId": job["jobId"], "leaseToken": job["leaseToken"]} for job in answer["jobs"]]
    fails = [{"jobId": answer["enqueuedJobIds"][2]}]
    second = json.loads(exchange(requestId="8", acks=acks, fails=fails).body)
    assert second["acked"] == 2 and second["error"].startswith("fail: ")


def envelope(data: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BI", flags, len(data)) + data


@pytest.mark.parametrize("form", ["proto", "json"])
def test_subscribe(shared_server: ServerProcess, api: Api, queue: str, form: str) -> None:
    def read(count: int) -> list[Any]:
        nonlocal rest
        found: list[Any] = []
        while len(found) < count:
            size = int(file.readline(), 16)
            rest += file.read(size)
            file.readline()
            while len(rest) >= 5 and len(rest) >= 5 + int.from_bytes(rest[1:5], "big"):
                end = 5 + int.from_bytes(rest[1:5], "big")
                message, rest = rest[5:end], rest[end:]
                if form == "proto":
                    values = protobuf.decode(TYPES["SubscribeEvent"], message, 10)
                else:
                    values = _snake(json.loads(message))
                if "type" in values:
                    found.append(values)
        return found

    wanted = {"queues": [queue], "types": ["enqueued"]}
    encoded = (
        protobuf.encode(TYPES["SubscribeRequest"], wanted)
        if form == "proto"
        else json.dumps(wanted).encode()
    )
    body = envelope(encoded)
    rest = b""
    head = f"POST {PATH[1:]}Subscribe HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/connect+{form}\r\nX-Corvo-From: start\r\n"
    with connect(shared_server.port) as stream:
        stream.settimeout(WAIT_S)
        ids = [api.enqueue(queue)]
        stream.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        file = stream.makefile("rb")
        assert b"200" in file.readline()
        while file.readline() != b"\r\n":
            pass
        found = read(1)
        ids.append(api.enqueue(queue))
        found += read(1)
        assert [event["job_id"] for event in found] == ids
        assert json.loads(found[0]["data_json"])["state"] == "pending"
        assert int(found[0]["seq"]) < int(found[1]["seq"]) and found[0]["queue"] == queue


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "unimplemented"),
        (envelope(b"{}") * 2, "unimplemented"),
        (envelope(b"{}")[:-1], "invalid_argument"),
        (envelope(b"{}", 1), "internal"),
        (envelope(b'{"types": ["strange"]}'), "invalid_argument"),
    ],
)
def test_subscribe_refused(api: Api, body: bytes, code: str) -> None:
    headers = {"Content-Type": "application/connect+json"}
    reply = api.raw("POST", f"{PATH}Subscribe", body, headers)
    assert (reply.status, reply.body[0]) == (200, 2)
    assert json.loads(reply.body[5:])["error"]["code"] == code


def test_subscribe_ends_in_time(api: Api) -> None:
    headers = {"Content-Type": "application/connect+json", "Connect-Timeout-Ms": "50"}
    reply = api.raw("POST", f"{PATH}Subscribe", envelope(b"{}"), headers)
    *_, last = reply.body.split(b"\x02")
    assert json.loads(last[4:])["error"]["code"] == "deadline_exceeded"


def test_a_client_that_ends_its_half_before_its_time_is_over(
    shared_server: ServerProcess, caller: Caller, queue: str
) -> None:
    """The call is let go; when its time is over there is nobody to be told."""
    body = json.dumps({"queues": [queue]}).encode()
    head = f"POST {PATH[1:]}Fetch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Connect-Timeout-Ms: 200\r\nContent-Length: {len(body)}\r\n\r\n"
    with connect(shared_server.port) as client:
        client.sendall(head.encode() + body)
        client.shutdown(socket.SHUT_WR)
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 204 ")
    status, _ = caller.call("Fetch", {"queues": [queue]}, Connect_Timeout_Ms="800")
    assert status == 200
    assert not any("answered once" in line for line in shared_server.log)

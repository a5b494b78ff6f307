"""Limits of texts count the text that is meant, however its JSON is escaped."""

import json
from typing import Any

import pytest
from lib.harness import Api, refused

KIB = 1024
LIMITS = {"error": 64 * KIB, "backtrace": 256 * KIB, "message": 256 * KIB, "tags": 4 * KIB}
# How a JSON string writes a character, and its size in UTF-8.
CHARACTERS = {
    "plain": (b"x", 1),
    "escaped letter": (b"\\u0078", 1),
    "accent": ("é".encode(), 2),
    "escaped accent": (b"\\u00e9", 2),
    "in upper case": (b"\\u00E9", 2),
    "newline": (b"\\n", 1),
    "slash": (b"\\/", 1),
    "quote": (b'\\"', 1),
    "backslash": (b"\\\\", 1),
    "control": (b"\\u001b", 1),
    "escaped euro": (b"\\u20ac", 3),
    "escaped pair": (b"\\ud83d\\ude00", 4),
    "half of a pair": (b"\\ud800", 3),
}


def send(api: Api, field: str, queue: str, text: bytes) -> tuple[int, Any]:
    if field == "tags":
        return api.post("/enqueue", b'{"queue":"%b","tags":{"k":"%b"}}' % (queue.encode(), text))
    api.enqueue(queue)
    job = api.take(queue)
    if field == "message":
        body = b'{"lines":[{"message":"%b"}]}' % text
        return api.post(f"/jobs/{job['job_id']}/logs", body)
    return api.post(f"/fail/{job['job_id']}", b'{"%b":"%b"}' % (field.encode(), text))


@pytest.mark.parametrize("character", CHARACTERS)
@pytest.mark.parametrize("field", LIMITS)
def test_a_text_at_its_limit(api: Api, queue: str, field: str, character: str) -> None:
    written, size = CHARACTERS[character]
    room = LIMITS[field] - (1 if field == "tags" else 0)  # the key
    count, rest = divmod(room, size)
    largest = written * count + b"x" * rest
    status, answer = send(api, field, queue, largest)
    assert status in (200, 201), answer
    answer = refused(send(api, field, queue, largest + b"x"), 413, "PAYLOAD_TOO_LARGE")
    assert (answer["limit"], answer["size"]) == (LIMITS[field], LIMITS[field] + 1)
    assert answer["field"] == ("lines" if field == "message" else field)


@pytest.mark.parametrize("field", ["error", "backtrace"])
def test_the_text_is_kept(api: Api, queue: str, field: str) -> None:
    text = 'é€\U0001f600\x1b\n"\\/' * 4_000
    job_id = api.enqueue(queue)
    api.take(queue)
    assert api.post(f"/fail/{job_id}", json.dumps({field: text}).encode())[0] == 200
    assert api.job(job_id)["errors"][0][field] == text


def test_tags_and_lines_are_kept(api: Api, queue: str) -> None:
    text = "é" * 2_000
    body = {"queue": queue, "tags": {"k": text}}
    job_id = api.ok("POST", "/enqueue", json.dumps(body).encode())["job_id"]
    assert api.take(queue)["tags"] == {"k": text}
    lines = {"lines": [{"message": text * 30}, {"message": text}]}
    assert api.post(f"/jobs/{job_id}/logs", json.dumps(lines).encode())[0] == 200
    found = api.ok("GET", f"/jobs/{job_id}/logs")["lines"]
    assert [line["message"] for line in found] == [text * 30, text]


@pytest.mark.parametrize("field", ["error", "backtrace"])
def test_a_text_of_a_call(api: Api, queue: str, field: str) -> None:
    """The worker service takes the text itself."""
    headers = {"Content-Type": "application/json"}
    path = "//corvo.v1.WorkerService/Fail"
    for count, status in ((LIMITS[field] // 2, 200), (LIMITS[field] // 2 + 1, 400)):
        job_id = api.enqueue(queue)
        api.take(queue)
        for text in ("é" * count, '"\n' * count):
            if text[0] == '"' and status == 200:
                continue  # the job has failed already
            body = json.dumps({"jobId": job_id, field: text}).encode()
            answer = api.call("POST", path, body, headers)
            assert answer[0] == status, answer


def test_limits_of_json_count_it_as_received(api: Api, queue: str) -> None:
    """Payloads, results, checkpoints and progress are bytes."""
    text = b'"' + b"\\u00e9" * 60_000 + b'"'
    body = b'{"queue":"%b","payload":%b}' % (queue.encode(), text)
    refused(api.post("/enqueue", body), 413, "PAYLOAD_TOO_LARGE")
    job_id = api.enqueue(queue)
    progress = b'{"jobs":{"%b":{"progress":"%b"}}}' % (job_id.encode(), b"\\u00e9" * 3_000)
    refused(api.post("/heartbeat", progress), 413, "PAYLOAD_TOO_LARGE")

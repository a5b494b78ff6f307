"""The command watch."""

import json
from typing import Any

import pytest

from corvo.cli import watch

STREAM = "/api/v1/events"


def event(seq: int, **fields: Any) -> bytes:
    document = {"seq": seq, "type": "enqueued", "created_at": "2026-01-01T00:00:00Z", **fields}
    return f"id: {seq}\nevent: enqueued\ndata: {json.dumps(document)}\n\n".encode()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_PAUSE_S", 0)


def test_plain(server: Any, run: Any) -> None:
    gap = b'id: 8\nevent: gap\ndata: {"type": "gap", "after": 3, "resumed_after": 8}\n\n'
    data = {"reason": "a\x1bb"}
    body = b":keepalive\nid: 3\n\n" + event(4, job_id="j1", queue="mail", data=data) + gap
    server.can("GET", STREAM, body + event(9))
    assert run("watch", "--count", "3").out.splitlines() == [
        '2026-01-01T00:00:00Z  enqueued  mail  j1  {"reason": "a\\u001bb"}',
        "-- no events of 4 to 8 --",
        "2026-01-01T00:00:00Z  enqueued",
    ]


def test_it_goes_on_behind_the_last_event(server: Any, run: Any) -> None:
    server.can("GET", f"{STREAM}?last_event_id=3", event(4) + b":keepalive\nid: 7\n\n")
    server.can("GET", f"{STREAM}?last_event_id=7", event(8))
    outcome = run("watch", "--after", "3", "--count", "2", "--output", "json")
    assert [json.loads(line)["seq"] for line in outcome.out.splitlines()] == [4, 8]


def test_filters(server: Any, run: Any) -> None:
    path = f"{STREAM}?job_ids=j1%2Cj2&queues=a&types=dead%2Ccompleted"
    server.can("GET", path, event(1))
    words = ("--queue", "a", "--type", "dead", "--type", "completed", "--count", "1")
    assert run("watch", "j1", "j2", *words).status == 0


def test_refused(server: Any, run: Any) -> None:
    server.can("GET", f"{STREAM}?types=x", {"error": "unknown", "code": "VALIDATION_ERROR"}, 400)
    outcome = run("watch", "--type", "x")
    assert (outcome.status, outcome.err) == (1, "Error: unknown\n")


def test_no_server(run: Any) -> None:
    outcome = run("watch", "--server", "http://127.0.0.1:1")
    assert outcome.status == 1 and "request failed" in outcome.err


def test_a_server_that_does_not_come_back(server: Any, run: Any) -> None:
    server.can("GET", STREAM, event(1))
    outcome = run("watch", "--timeout", "0")
    assert outcome.status == 1 and outcome.out.count("enqueued") == 1

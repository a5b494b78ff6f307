"""The commands explain, wait, events, logs, log and locks."""

import io
import json
import sys
from typing import Any

import pytest

JOB = "/api/v1/jobs/j1"
EXPLANATION = {
    "job_id": "j1",
    "queue": "mail",
    "state": "pending",
    "reasons": [
        {
            "code": "concurrency_limit",
            "message": "2 of at most 2 jobs are active",
            "next": "raise the limit",
            "holders": [
                {
                    "job_id": "j7",
                    "worker_id": "w\x1b1",
                    "started_at": "2026-01-01T00:00:00Z",
                    "lease_expires_at": "2026-01-01T00:01:00Z",
                }
            ],
        },
        {"code": "jobs_before", "message": "3 jobs are served before it"},
    ],
}


def test_explain(server: Any, run: Any) -> None:
    server.can("GET", f"{JOB}/explain", EXPLANATION)
    server.can("GET", f"{JOB}/explain", EXPLANATION)
    assert run("explain", "j1").out.splitlines() == [
        "Job j1 is pending in queue mail.",
        "- 2 of at most 2 jobs are active",
        "  -> raise the limit",
        "JOB  WORKER  STARTED               LEASE ENDS",
        "j7   w\\x1b1  2026-01-01T00:00:00Z  2026-01-01T00:01:00Z",
        "- 3 jobs are served before it",
    ]
    assert json.loads(run("explain", "j1", "--output", "json").out) == EXPLANATION


def job(state: str, **fields: Any) -> dict[str, Any]:
    return {"id": "j1", "state": state, **fields}


def test_wait_asks_again_until_the_job_has_ended(server: Any, run: Any) -> None:
    path = f"{JOB}/wait?timeout=60.000"
    server.can("GET", path, job("active"), 202)
    server.can("GET", path, job("completed", result={"n": 1}))
    outcome = run("wait", "j1")
    assert (outcome.status, outcome.out) == (0, '{\n  "n": 1\n}\n')
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (job("dead", errors=[{"error": "boom"}]), "Error: job j1 is dead: boom\n"),
        (job("cancelled"), "Error: job j1 is cancelled\n"),
        (job("active"), "Error: job j1 has not ended yet (state: active)\n"),
    ],
)
def test_wait_for_what_does_not_complete(server: Any, run: Any, answer: Any, error: str) -> None:
    for words in ([], ["--output", "json"]):
        server.can("GET", f"{JOB}/wait?timeout=0.000", answer)
        outcome = run("wait", "j1", "--for", "0", *words)
        assert outcome.status == 1
        if words:
            assert json.loads(outcome.out) == answer
        else:
            assert (outcome.out, outcome.err) == ("", error)


def event(number: int, type: str, **fields: Any) -> dict[str, Any]:
    return {"seq": number, "type": type, "created_at": f"t{number}", **fields}


def test_events_of_all_pages(server: Any, run: Any) -> None:
    older = {"events": [event(1, "enqueued", data={"a": "\x1b"})], "trimmed": True}
    for _ in range(2):
        server.can("GET", f"{JOB}/events?limit=200", {"events": [event(5, "dead")], "before": 5})
        server.can("GET", f"{JOB}/events?limit=200&before=5", older)
    assert run("events", "j1").out.splitlines() == [
        "TIME  EVENT     DATA",
        't1    enqueued  {"a": "\\u001b"}',
        "t5    dead",
        "Older events were trimmed; the events that the job record implies are shown.",
    ]
    shown = json.loads(run("events", "j1", "--output", "json").out)
    assert [row["seq"] for row in shown["events"]] == [1, 5]


def test_events_of_a_table_that_is_limited(server: Any, run: Any) -> None:
    server.can("GET", f"{JOB}/events?limit=1", {"events": [event(5, "dead")], "before": 5})
    assert run("events", "j1", "--limit", "1").out.splitlines() == [
        "TIME  EVENT  DATA",
        "t5    dead",
    ]


def line(seq: int, message: str) -> dict[str, Any]:
    return {"seq": seq, "attempt": 1, "at": f"t{seq}", "level": "warn", "message": message}


def test_logs_of_all_pages(server: Any, run: Any) -> None:
    for _ in range(2):
        first = {"lines": [line(3, "a"), line(4, "b\x1b[31m\nc")], "dropped": 2, "has_more": True}
        server.can("GET", f"{JOB}/logs?attempt=1&after=2", first)
        server.can("GET", f"{JOB}/logs?attempt=1&after=4", {"lines": [line(5, "d")], "dropped": 2})
    words = ("logs", "j1", "--attempt", "1", "--after", "2")
    assert run(*words).out.splitlines() == [
        "t3  1  warn   a",
        "t4  1  warn   b\\x1b[31m\\nc",
        "t5  1  warn   d",
        "2 older lines were dropped.",
    ]
    shown = json.loads(run(*words, "--output", "json").out)
    assert [row["seq"] for row in shown["lines"]] == [3, 4, 5] and shown["dropped"] == 2


def test_logs_follow_until_the_job_has_ended(
    server: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corvo.cli.logs._FOLLOW_S", 0)
    for state, lines, after in (("active", [line(1, "a")], 0), ("dead", [line(2, "b")], 1)):
        server.can("GET", JOB, job(state))
        server.can("GET", f"{JOB}/logs?after={after}", {"lines": lines})
    assert run("logs", "j1", "--follow").out == "t1  1  warn   a\nt2  1  warn   b\n"


def test_log(server: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server.can("POST", f"{JOB}/logs", {"status": "ok", "seq": 2, "dropped": 0})
    words = ("log", "j1", "one", "two", "--level", "warn", "--lease-token", "t")
    assert run(*words).out == "Logged 2 lines\n"
    assert server.bodies[-1] == {
        "lines": [{"message": "one", "level": "warn"}, {"message": "two", "level": "warn"}],
        "lease_token": "t",
    }
    monkeypatch.setattr(sys, "stdin", io.StringIO("a b\n"))
    server.can("POST", f"{JOB}/logs", {"status": "ok", "seq": 3, "dropped": 0})
    assert run("log", "j1", "-").out == "Logged 1 line\n"
    assert server.bodies[-1] == {"lines": [{"message": "a b"}]}


LOCK = {"queue": "q", "unique_key": "k\u202e", "job_id": "j1", "state": "active"}


def test_locks_of_all_pages(server: Any, run: Any) -> None:
    for _ in range(2):
        second = {"locks": [{**LOCK, "job_id": "j2", "expires_at": "t"}]}
        server.can("GET", "/api/v1/locks?limit=1000&queue=a%2Fb", {"locks": [LOCK], "cursor": "00"})
        server.can("GET", "/api/v1/locks?limit=1000&queue=a%2Fb&cursor=00", second)
    assert run("locks", "--queue", "a/b").out.splitlines() == [
        "KEY      QUEUE  JOB  STATE   EXPIRES",
        "k\\u202e  q      j1   active",
        "k\\u202e  q      j2   active  t",
    ]
    assert len(json.loads(run("locks", "--queue", "a/b", "--output", "json").out)["locks"]) == 2
    server.can("GET", "/api/v1/locks?limit=1000", {"locks": []})
    assert run("locks").out == "No unique keys are held\n"


def test_release_of_a_lock(server: Any, run: Any) -> None:
    server.can("POST", "/api/v1/locks/release", {"status": "released", "job_id": "j1"})
    assert run("locks", "release", "q", "k", "--job-id", "j1").out == "Key released by job j1\n"
    assert server.bodies == [{"queue": "q", "unique_key": "k", "job_id": "j1"}]


def test_enqueue_that_waits(server: Any, run: Any) -> None:
    answer = {"job_id": "j1", "status": "completed", "unique_existing": False, "result": [1]}
    server.can("POST", "/api/v1/enqueue", answer, 201)
    words = ("enqueue", "q", "{}", "--wait", "5s", "--result-schema", '{"type": "array"}')
    assert run(*words).out == "Job enqueued: j1 (status: completed)\nResult: [1]\n"
    assert server.bodies[-1]["wait"] == 5
    assert server.bodies[-1]["result_schema"] == {"type": "array"}
    dead = {"job_id": "j1", "status": "dead", "unique_existing": False, "last_error": "boom\x1b"}
    server.can("POST", "/api/v1/enqueue", dead, 201)
    assert run("enqueue", "q", "{}", "--wait", "5s").out.endswith("Last error: boom\\x1b\n")

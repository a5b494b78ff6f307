"""Every client command against a server that answers as the API does: plain, JSON, and refused."""

import io
import json
import logging
import re
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from corvo.cli import COMMANDS, main

JOBS = "/api/v1/jobs/j1"
SCHEDULES = "/api/v1/schedules"
QUEUE = {"name": "mail", "paused": True, "pending": 12, "active": 1, "completed": 5, "future": {}}
QUEUE |= {"scheduled": 2, "retrying": 4}
STATUS = {"mode": "single", "status": "healthy", "nodes": []}

# words, request, its body, answer, plain output
SIMPLE: list[tuple[str, str, str, Any, Any, str]] = [
    ("retry j1", "POST", f"{JOBS}/retry", {}, {"status": "retried"}, "Job retried\n"),
    ("cancel j1", "POST", f"{JOBS}/cancel", {}, {"status": "cancelling"}, "Job j1: cancelling\n"),
    (
        "cancel j1 --force",
        "POST",
        f"{JOBS}/cancel",
        {"force": True},
        {"status": "cancelled"},
        "Job j1: cancelled\n",
    ),
    ("delete j1", "DELETE", JOBS, None, {"status": "deleted"}, "Job deleted\n"),
    (
        "pause a/b",
        "POST",
        "/api/v1/queues/a%2Fb/pause",
        {},
        {"status": "paused"},
        "Queue a/b paused\n",
    ),
    (
        "hold j1 --reason look --hold-timeout 1h --timeout-action approve",
        "POST",
        f"{JOBS}/hold",
        {"reason": "look", "timeout": 3600, "timeout_action": "approve"},
        {"status": "held"},
        "Job j1 held\n",
    ),
    (
        "approve j1 --by ann --note ok",
        "POST",
        f"{JOBS}/approve",
        {"approved_by": "ann", "note": "ok"},
        {"status": "pending"},
        "Job j1 approved\n",
    ),
    (
        "reject j1 --reason no --by ann",
        "POST",
        f"{JOBS}/reject",
        {"reason": "no", "rejected_by": "ann"},
        {"status": "dead"},
        "Job j1 rejected\n",
    ),
    (
        "reject j1 --revise bigger",
        "POST",
        f"{JOBS}/reject",
        {"revise": True, "feedback": "bigger"},
        {"status": "pending"},
        "Job j1 rejected\n",
    ),
    (
        "move j1 other --reset-attempts",
        "POST",
        f"{JOBS}/move",
        {"queue": "other", "reset_attempts": True},
        {"status": "moved"},
        "Job moved to other\n",
    ),
    ("requeue j1", "POST", f"{JOBS}/requeue", {}, {"status": "requeued"}, "Job requeued\n"),
    ("run j1", "POST", f"{JOBS}/run", {}, {"status": "pending"}, "Job j1: pending\n"),
    (
        "priority j1 high",
        "POST",
        f"{JOBS}/priority",
        {"priority": "high"},
        {"status": "ok"},
        "Job j1 has priority high\n",
    ),
    (
        "clear q",
        "POST",
        "/api/v1/queues/q/clear",
        {},
        {"status": "cleared", "deleted": 7},
        "Queue q cleared\n",
    ),
    (
        "destroy a/b --confirm",
        "DELETE",
        "/api/v1/queues/a%2Fb?confirm=true",
        None,
        {"status": "deleted", "deleted": 7},
        "Queue a/b destroyed\n",
    ),
    (
        "drain q --no-wait",
        "POST",
        "/api/v1/queues/q/drain",
        {},
        {"status": "draining"},
        "Queue q draining\n",
    ),
    (
        "retention q --completed 1h --dead forever --cancelled default",
        "POST",
        "/api/v1/queues/q/retention",
        {"completed": "1h", "dead": "forever", "cancelled": None},
        {"status": "ok"},
        "Queue q retention set\n",
    ),
    (
        "enqueue q '{}' --expire-after 1h --hold-reason look --hold-timeout 5",
        "POST",
        "/api/v1/enqueue",
        {
            "queue": "q",
            "payload": {},
            "expire_after": 3600,
            "hold": {"reason": "look", "timeout": 5},
        },
        {"job_id": "j9", "status": "held", "unique_existing": False},
        "Job enqueued: j9 (status: held)\n",
    ),
    ("resume q", "POST", "/api/v1/queues/q/resume", {}, {"status": "resumed"}, "Queue q resumed\n"),
    (
        "concurrency q 5",
        "POST",
        "/api/v1/queues/q/concurrency",
        {"max": 5},
        {"status": "ok"},
        "Queue q concurrency set to 5\n",
    ),
    (
        "throttle q 100 1m",
        "POST",
        "/api/v1/queues/q/throttle",
        {"rate": 100, "period": 60},
        {"status": "ok"},
        "Queue q throttled to 100 per 1m\n",
    ),
    (
        "throttle q --remove",
        "DELETE",
        "/api/v1/queues/q/throttle",
        None,
        {"status": "ok"},
        "Queue q throttle removed\n",
    ),
    (
        "groups q 2",
        "POST",
        "/api/v1/queues/q/groups",
        {"concurrency": 2},
        {"status": "ok"},
        "Queue q group concurrency set to 2\n",
    ),
    (
        "groups q --remove",
        "POST",
        "/api/v1/queues/q/groups",
        {"concurrency": None},
        {"status": "ok"},
        "Queue q group concurrency limit removed\n",
    ),
    (
        "aging q 90s",
        "POST",
        "/api/v1/queues/q/aging",
        {"after": 90},
        {"status": "ok"},
        "Queue q aging after 1m30s\n",
    ),
    (
        "aging q --off",
        "POST",
        "/api/v1/queues/q/aging",
        {"after": None},
        {"status": "ok"},
        "Queue q aging off\n",
    ),
    (
        "concurrency q 0",
        "POST",
        "/api/v1/queues/q/concurrency",
        {"max": 0},
        {"status": "ok"},
        "Queue q concurrency limit removed\n",
    ),
    (
        """schedules create nightly --queue q --cron '0 2 * * *' --timezone Europe/Berlin
        --payload '{"n": 1}' --overlap skip --catch-up all --catch-up-limit 5""",
        "POST",
        SCHEDULES,
        {
            "name": "nightly",
            "queue": "q",
            "cron": "0 2 * * *",
            "timezone": "Europe/Berlin",
            "payload": {"n": 1},
            "overlap": "skip",
            "catch_up": "all",
            "catch_up_limit": 5,
        },
        {"name": "nightly", "next_run": "2026-01-02T01:00:00Z"},
        "Schedule nightly created, next run 2026-01-02T01:00:00Z\n",
    ),
    (
        "schedules update a/b --cron @daily --name c",
        "PUT",
        f"{SCHEDULES}/a%2Fb",
        {"cron": "@daily", "name": "c"},
        {"name": "c"},
        "Schedule c updated, next run never\n",
    ),
    (
        "schedules pause a",
        "POST",
        f"{SCHEDULES}/a/pause",
        {},
        {"name": "a", "enabled": False},
        "Schedule a paused\n",
    ),
    (
        "schedules resume a",
        "POST",
        f"{SCHEDULES}/a/resume",
        {},
        {"name": "a", "next_run": "2026-01-02T01:00:00Z"},
        "Schedule a resumed, next run 2026-01-02T01:00:00Z\n",
    ),
    (
        "schedules run a",
        "POST",
        f"{SCHEDULES}/a/run",
        {},
        {"job_id": "j9", "status": "pending", "unique_existing": False},
        "Job enqueued: j9 (status: pending)\n",
    ),
    (
        "schedules delete a",
        "DELETE",
        f"{SCHEDULES}/a",
        None,
        {"status": "deleted"},
        "Schedule a deleted\n",
    ),
    (
        """enqueue q '{"n": 1}' --priority high --max-retries 5 --tags '{"a": "b"}'
        --retry-base-delay 1m30s --retry-jitter 0.5 --unique-key k --unique-period 2h""",
        "POST",
        "/api/v1/enqueue",
        {
            "queue": "q",
            "payload": {"n": 1},
            "priority": "high",
            "max_retries": 5,
            "tags": {"a": "b"},
            "retry_base_delay": 90,
            "retry_jitter": 0.5,
            "unique_key": "k",
            "unique_period": 7200,
        },
        {"job_id": "j9", "status": "pending", "unique_existing": False},
        "Job enqueued: j9 (status: pending)\n",
    ),
    (
        """enqueue q 1 --depends-on j1 --depends-on j2 --on-dependency-failure run
        --batch-id batch_1 --chain '{"steps": []}' --idempotency-key k""",
        "POST",
        "/api/v1/enqueue",
        {
            "queue": "q",
            "payload": 1,
            "depends_on": ["j1", "j2"],
            "on_dependency_failure": "run",
            "batch_id": "batch_1",
            "chain": {"steps": []},
        },
        {"job_id": "j9", "status": "pending", "unique_existing": False},
        "Job enqueued: j9 (status: pending)\n",
    ),
    (
        """batches create '[{"queue": "q"}, {"queue": "r"}]' --on-success s --on-death d""",
        "POST",
        "/api/v1/enqueue/batch",
        {
            "jobs": [{"queue": "q"}, {"queue": "r"}],
            "batch": {"on_success": {"queue": "s"}, "on_death": {"queue": "d"}},
        },
        {"job_ids": ["j1", "j2"], "batch_id": "batch_1"},
        "Batch batch_1: 2 jobs enqueued\n",
    ),
    (
        "ack j1 --step-status exit --exit-reason enough",
        "POST",
        "/api/v1/ack/j1",
        {"step_status": "exit", "exit_reason": "enough"},
        {"status": "ok", "state": "completed"},
        "Job j1: completed\n",
    ),
    (
        "ack j1 --token t --result '[1]' --checkpoint null",
        "POST",
        "/api/v1/ack/j1",
        {"lease_token": "t", "result": [1], "checkpoint": None},
        {"status": "ok", "state": "completed"},
        "Job j1: completed\n",
    ),
    (
        "fail j1 --error boom --backtrace here --retry-after 500ms",
        "POST",
        "/api/v1/fail/j1",
        {"error": "boom", "backtrace": "here", "retry_after": 0.5},
        {
            "status": "retrying",
            "next_attempt_at": "2026-01-02T03:04:05Z",
            "attempts_remaining": 2,
        },
        "Job j1: retrying, next attempt at 2026-01-02T03:04:05Z (2 left)\n",
    ),
    (
        "fail j1 --token t --error boom --no-retry",
        "POST",
        "/api/v1/fail/j1",
        {"lease_token": "t", "error": "boom", "retry": False},
        {"status": "dead", "attempts_remaining": 0},
        "Job j1: dead\n",
    ),
    (
        "cluster remove n2",
        "POST",
        "/api/v1/cluster/remove",
        {"node_id": "n2"},
        {"status": "ok"},
        "Node n2 removed\n",
    ),
    (
        "cluster promote n2",
        "POST",
        "/api/v1/cluster/promote",
        {"node_id": "n2"},
        {"status": "ok"},
        "Node n2 is a voter\n",
    ),
    (
        "cluster transfer",
        "POST",
        "/api/v1/cluster/transfer",
        {},
        {"status": "ok", "node_id": "n3"},
        "Node n3 takes over the leadership\n",
    ),
    (
        "cluster transfer n2",
        "POST",
        "/api/v1/cluster/transfer",
        {"node_id": "n2"},
        {"status": "ok", "node_id": "n2"},
        "Node n2 takes over the leadership\n",
    ),
    (
        "cluster snapshot",
        "POST",
        "/api/v1/cluster/snapshot",
        {},
        {"status": "ok", "index": 7},
        "The state is written up to log entry 7\n",
    ),
    (
        "release j1 --token t --delay 10 --checkpoint '{}'",
        "POST",
        "/api/v1/release/j1",
        {"lease_token": "t", "delay": 10, "checkpoint": {}},
        {"status": "pending"},
        "Job j1 released\n",
    ),
]


@pytest.mark.parametrize(("words", "method", "path", "body", "answer", "plain"), SIMPLE)
def test_one_request_one_answer(
    server: Any, run: Any, words: str, method: str, path: str, body: Any, answer: Any, plain: str
) -> None:
    server.can(method, path, answer)
    assert run(*shlex.split(words)) == (0, plain, "")
    changes = [request[:2] for request in server.requests if request[0] != "GET"]
    assert changes == [(method, path)]
    assert server.bodies == ([] if body is None else [body])

    server.can(method, path, answer)
    status, out, err = run(*shlex.split(words), "--output", "json")
    assert (status, out, err) == (0, json.dumps(answer, indent=2) + "\n", "")

    refusal = {"error": "not now", "code": "INVALID_STATE", "state": "dead"}
    server.can(method, path, refusal, 409)
    assert run(*shlex.split(words)) == (1, "", "Error: not now\n")
    server.can(method, path, refusal, 409)
    status, out, err = run(*shlex.split(words), "--output-json")
    assert (status, out, json.loads(err)) == (1, "", refusal)


def test_an_idempotency_key_is_a_header(server: Any, run: Any) -> None:
    assert run("enqueue", "q", "1", "--idempotency-key", "k 1").status == 0
    assert run("enqueue", "q", "1").status == 0
    assert server.keys == ["k 1", None]


def test_inspect_prints_json_whatever_the_form(server: Any, run: Any) -> None:
    raw = b'{"id":"j1","payload":{"big":12345678901234567890123,"x":1.10,"x":2}}'
    server.can("GET", JOBS, raw)
    plain = run("inspect", "j1").out
    assert plain.splitlines()[3:6] == [
        '    "big": 12345678901234567890123,',
        '    "x": 1.10,',
        '    "x": 2',
    ]
    server.can("GET", JOBS, raw)
    assert run("inspect", "j1", "--output=json").out == plain


def test_cluster_status(server: Any, run: Any) -> None:
    row = {"id": "a", "address": "h:9000", "http_addr": "h:8080", "role": "leader", "voter": True}
    other = {"id": "b", "address": "i:9000", "http_addr": "i:8080", "role": "learner"}
    status = {"node_id": "a", "state": "Leader", "leader_id": "a", "applied_index": 7}
    row |= {"lag": 0, "status": "healthy", "last_contact_ms": 0}
    other |= {"lag": 9, "status": "unreachable", "last_contact_ms": 12_500}
    wrong = {"id": "c", "status": "healthy", "state_differs": True}
    # A follower knows only its connections to the others.
    seen = {"id": "d", "connected": True, "last_contact_ms": 180}
    gone = {"id": "e", "connected": False}
    status |= {"commit_index": 8, "nodes": [row, other, wrong, seen, gone, {"id": "f"}]}
    server.can("GET", "/api/v1/cluster/status", status)
    assert run("cluster", "status").out.splitlines() == [
        "Node: a  State: Leader  Leader: a  Applied: 7  Committed: 8",
        "",
        "NODE  ADDRESS  HTTP    ROLE     VOTER  STATUS       LAG  CONTACT",
        "a     h:9000   h:8080  leader   yes    healthy      0    0.0s ago",
        "b     i:9000   i:8080  learner         unreachable  9    12.5s ago",
        "c                                      diverged",
        "d                                      connected         0.2s ago",
        "e                                      unreachable",
        "f                                      unknown",
    ]
    server.can("GET", "/api/v1/cluster/status", status)
    assert json.loads(run("cluster", "status", "--output=json").out) == status


def test_groups(server: Any, run: Any) -> None:
    path = "/api/v1/queues/q/groups?limit=1000"
    line = {"group_key": "acme", "ready": 3, "active": 1, "waiting": 2, "blocked": True}
    page = {"groups": [line, {"group_key": "b", "ready": 1}], "total": 7, "cursor": "b"}
    server.can("GET", path, page)
    assert run("groups", "q").out.splitlines() == [
        "GROUP  READY  ACTIVE  WAITING  BLOCKED",
        "acme   3      1       2        yes",
        "b      1      0       0",
        "2 of 7 groups",
    ]
    server.can("GET", path, page)
    assert json.loads(run("groups", "q", "--output=json").out) == page
    server.can("GET", path, {"groups": [], "total": 0})
    assert run("groups", "q").out == "No groups\n"


@pytest.mark.parametrize(
    "words",
    [
        "throttle q",
        "throttle q 5",
        "throttle q 5 1s --remove",
        "throttle q 0 1s",
        "groups q 1 --remove",
        "groups q 0",
        "aging q",
        "aging q 5s --off",
    ],
)
def test_limits_that_are_not_sent(run: Any, words: str) -> None:
    status, out, err = run(*words.split())
    assert (status, out) == (1, "") and "--help" in err


def test_queues(server: Any, run: Any) -> None:
    server.can(
        "GET",
        "/api/v1/queues?limit=1000",
        {"queues": [QUEUE, {"name": "a-much-longer-name", "pending": 3}]},
    )
    assert run("queues").out.splitlines() == [
        "QUEUE               PENDING  ACTIVE  HELD  SCHEDULED  RETRYING  COMPLETED  DEAD  PAUSED"
        "  LIMITS",
        "mail                12       1       0     2          4         5          0     yes",
        "a-much-longer-name  3        0       0     0          0         0          0",
    ]
    limits: dict[str, Any] = {"max_concurrency": 5, "rate_limit": 10, "rate_window_ms": 60_000}
    limits |= {"group_concurrency": 1, "aging_after": 90.5}
    server.can("GET", "/api/v1/queues?limit=1000", {"queues": [QUEUE | limits]})
    row = run("queues").out.splitlines()[1]
    assert row.endswith("  5 active, 10/1m, 1 per group, aging 1m30s500ms")
    server.can("GET", "/api/v1/queues?limit=1000", {"queues": [QUEUE]})
    assert json.loads(run("queues", "--output-json").out) == {"queues": [QUEUE]}
    server.can("GET", "/api/v1/queues?limit=1000", {"queues": []})
    assert run("queues").out == "No queues\n"


def test_schedules(server: Any, run: Any) -> None:
    daily = {"name": "daily", "queue": "q", "cron": "@daily", "timezone": "UTC", "enabled": True}
    daily |= {"next_run": "2026-01-02T00:00:00Z", "last_run": "2026-01-01T00:00:00.003Z"}
    hourly = {"name": "h", "queue": "q", "cron": "@hourly", "timezone": "UTC", "enabled": False}
    for words in ("schedules", "schedules list"):
        server.can("GET", f"{SCHEDULES}?limit=1000", [daily, hourly])
        assert run(*words.split()).out.splitlines() == [
            "NAME   QUEUE  CRON     TIMEZONE  NEXT RUN              LAST RUN",
            "daily  q      @daily   UTC       2026-01-02T00:00:00Z  2026-01-01T00:00:00.003Z",
            "h      q      @hourly  UTC       paused",
        ]
    server.can("GET", f"{SCHEDULES}?limit=1000", [daily])
    assert json.loads(run("schedules", "--output", "json").out) == [daily]
    server.can("GET", f"{SCHEDULES}?limit=1000", [])
    assert run("schedules").out == "No schedules\n"
    shown = {**daily, "id": "sched_1", "overlap": "allow", "catch_up": "last"}
    shown |= {"description": "At 00:00 every day", "next_runs": ["2026-01-02T00:00:00Z"]}
    server.can("GET", f"{SCHEDULES}/daily", shown)
    assert run("schedules", "show", "daily").out.splitlines() == [
        "daily (sched_1) -> q",
        "  @daily in UTC: At 00:00 every day",
        "  overlap allow, catch-up last",
        "  last run 2026-01-01T00:00:00.003Z",
        "  next runs:",
        "    2026-01-02T00:00:00Z",
    ]
    assert "schedules [OPTIONS] COMMAND" in run("schedules", "--help").out


def test_a_batch(server: Any, run: Any) -> None:
    batch = {"id": "batch_1", "total": 9, "pending": 3, "succeeded": 5, "failed": 1}
    batch |= {"created_at": "2026-01-02T00:00:00Z", "pending_jobs": ["j1", "j2"]}
    server.can("GET", "/api/v1/batches/batch_1", batch)
    assert run("batches", "show", "batch_1").out.splitlines() == [
        "BATCH    TOTAL  PENDING  SUCCEEDED  FAILED  CREATED               FINISHED",
        "batch_1  9      3        5          1       2026-01-02T00:00:00Z",
        "",
        "Pending jobs:",
        "  j1",
        "  j2",
        "  and 1 more",
    ]
    server.can("GET", "/api/v1/batches/batch_1", batch)
    assert json.loads(run("batches", "show", "batch_1", "--output", "json").out) == batch


def test_status(server: Any, run: Any) -> None:
    server.can("GET", "/api/v1/cluster/status", STATUS)
    server.can("GET", "/api/v1/queues?limit=1000", {"queues": [QUEUE]})
    assert run("status").out.splitlines() == [
        "Mode: single  Status: healthy",
        "",
        "QUEUE  PENDING  ACTIVE  HELD  SCHEDULED  RETRYING  COMPLETED  DEAD",
        "mail   12       1       0     2          4         5          0",
    ]
    server.can("GET", "/api/v1/cluster/status", STATUS)
    server.can("GET", "/api/v1/queues?limit=1000", {"queues": []})
    assert run("status").out.endswith("\n\nNo queues\n")
    server.can("GET", "/api/v1/cluster/status", STATUS)
    server.can("GET", "/api/v1/queues?limit=1000", {"queues": [QUEUE]})
    assert json.loads(run("status", "--output", "json").out) == {
        "cluster": STATUS,
        "queues": [QUEUE],
    }


def test_workers(server: Any, run: Any) -> None:
    worker = {
        "id": "w1",
        "hostname": "h",
        "queues": ["q"],
        "last_heartbeat": "2026-01-01T00:00:00Z",
        "started_at": "2025-12-31T00:00:00Z",
        "status": "offline",
    }
    server.can("GET", "/api/v1/workers?limit=1000", [worker])
    assert run("workers").out.splitlines() == [
        "ID  HOSTNAME  LAST HEARTBEAT        STATUS",
        "w1  h         2026-01-01T00:00:00Z  offline",
    ]
    server.can("GET", "/api/v1/workers?limit=1000", [worker])
    shown = run("workers", "w1").out
    assert shown.endswith("offline\n\nQueues: q\nStarted: 2025-12-31T00:00:00Z\n")
    server.can("GET", "/api/v1/workers?limit=1000", [worker])
    assert json.loads(run("workers", "w1", "--output", "json").out) == worker
    server.can("GET", "/api/v1/workers?limit=1000", [worker])
    assert run("workers", "w2").err == "Error: worker w2 does not exist\n"
    server.can("GET", "/api/v1/workers?limit=1000", [])
    assert run("workers").out == "No workers connected\n"
    server.can("GET", "/api/v1/workers?limit=1000", [worker])
    assert json.loads(run("workers", "--output", "json").out) == [worker]


def test_lists_follow_the_links_of_pages(server: Any, run: Any) -> None:
    def three_pages(path: str, *rows: dict[str, Any]) -> None:
        links = [f'<{path}?limit=1000&cursor={n}>; rel="next"' for n in ("5a", "5b")]
        queries = ["limit=1000", "limit=1000&cursor=5a", "limit=1000&cursor=5b"]
        for query, row, link in zip(queries[:2], rows[:2], links, strict=True):
            server.can("GET", f"{path}?{query}", [row], Link=link)
        # A link of another relation is not a further page.
        other = f'<{path}?limit=1000>; rel="first"'
        server.can("GET", f"{path}?{queries[2]}", list(rows[2:]), Link=other)

    workers = [{"id": f"w{n}", "hostname": "h", "odd": 1.50} for n in range(4)]
    three_pages("/api/v1/workers", *workers)
    assert json.loads(run("workers", "--output", "json").out) == workers
    three_pages("/api/v1/workers", *workers)
    rows = run("workers").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["w0", "w1", "w2", "w3"]
    three_pages("/api/v1/workers", *workers)
    assert run("workers", "w3").out.splitlines()[1].startswith("w3")
    schedules = [{"name": f"s{n}", "queue": "q", "cron": "@daily"} for n in range(3)]
    three_pages(SCHEDULES, *schedules)
    assert json.loads(run("schedules", "--output", "json").out) == schedules
    three_pages(SCHEDULES, *schedules)
    rows = run("schedules").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["s0", "s1", "s2"]


def test_fetch_prints_the_commands_that_end_the_job(server: Any, run: Any) -> None:
    server.put({"queue": "b", "payload": {"to": "x"}})
    status, out, _ = run("fetch", "a", "b", "--worker-id", "me", "--lease-duration", "2m")
    assert status == 0
    assert out.startswith("Job:         job-0\nQueue:       b\nAttempt:     1 of 3\n")
    assert 'Payload:\n  {\n    "to": "x"\n  }\n' in out
    body = server.bodies[0]
    assert (body["queues"], body["worker_id"]) == (["a", "b"], "me")
    assert (body["timeout"], body["lease_duration"]) == (30, 120)
    (command,) = re.findall(r"Done\? +corvo (.*)", out)
    assert run(*shlex.split(command)) == (0, "Job job-0: completed\n", "")
    (command,) = re.findall(r"Failed\? +corvo (.*)", out)
    assert shlex.split(command)[:4] == ["fail", "job-0", "--token", "tok en-job-0"]


def test_fetch_several(server: Any, run: Any) -> None:
    for number in range(3):
        server.put({"queue": "q", "payload": number})
    out = run("fetch", "q", "--count", "2").out
    assert [line for line in out.splitlines() if line.startswith("Job:")] == [
        "Job:         job-0",
        "Job:         job-1",
    ]
    jobs = json.loads(run("fetch", "q", "--count", "2", "--output", "json").out)["jobs"]
    assert [job["job_id"] for job in jobs] == ["job-2"]


def test_ack_of_several(server: Any, run: Any) -> None:
    refused = {"job_id": "job-1", "error": "the lease is lost", "code": "LEASE_LOST"}
    server.can("POST", "/api/v1/ack/batch", {"acked": 1, "failed": [refused]})
    answer = run("ack", "job-0", "job-1", "--result", "[1]")
    assert answer == (0, "Acked: 1 jobs\nJob job-1: the lease is lost\n", "")
    assert server.bodies == [{"acks": [{"job_id": f"job-{n}", "result": [1]} for n in range(2)]}]
    answer = run("ack", "job-0", "job-1", "--token", "t")
    assert answer.status == 1 and "--token works with a single job" in answer.err
    assert len(server.bodies) == 1


def test_heartbeat(server: Any, run: Any) -> None:
    server.can("POST", "/api/v1/heartbeat", {"jobs": {"job-0": {"status": "cancel"}}})
    words = ("heartbeat", "job-0", "--token", "t", "--progress", '{"at": 1}')
    assert run(*words) == (0, "Job job-0: cancel\n", "")
    assert server.bodies == [{"jobs": {"job-0": {"lease_token": "t", "progress": {"at": 1}}}}]


def test_fetch_of_nothing(run: Any) -> None:
    assert run("fetch", "q", "--timeout", "0") == (0, "No job\n", "")
    assert run("fetch", "q", "--timeout", "0", "--count", "5") == (0, "No job\n", "")
    assert run("fetch", "q", "--timeout", "0", "--output", "json") == (0, "null\n", "")


def test_payload_is_sent_byte_for_byte(
    server: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '{"b": 1.0,  "a": 123456789012345678901234567890, "é": "\\u00e9"}'
    file = tmp_path / "payload.json"
    file.write_text(text + "\n")
    stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    for word in (text, f"@{file}", "-"):
        assert run("enqueue", "q", word).status == 0
    sent = [raw for _, _, raw in server.requests]
    assert len(sent) == 3
    assert all(b'"payload":' + text.encode() + b"}" in raw for raw in sent)


@pytest.mark.parametrize("text", ["{", "", "nope", "NaN", '{"a": 1} x', "@/nowhere/at/all"])
def test_bad_payload_is_never_sent(server: Any, run: Any, text: str) -> None:
    status, out, err = run("enqueue", "q", text)
    assert (status, out) == (1, "")
    assert err.startswith("Error: Invalid value for 'PAYLOAD': ")
    assert server.requests == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "quees",
            "No such command 'quees'. (Did you mean one of: 'enqueue', 'queues', 'requeue'?)",
        ),
        ("enqueue q", "Missing argument 'PAYLOAD'."),
        ("enqueue q {} more", "Got unexpected extra argument (more)"),
        ("queues --sever x", "No such option '--sever'. Did you mean '--server'?"),
        ("queues --output xml", "'xml' is not one of 'plain', 'json'"),
        ("queues --timeout -1s", "--timeout"),
        ("concurrency q -- -1", "-1 is not in the range"),
        ("fail j1", "Missing option '--error'"),
        ("fail j1 --error e --backtrace @/nowhere", "No such file"),
        ("fetch", "Missing argument 'QUEUE...'"),
        ("schedules craete x", "No such command 'craete'"),
        ("fetch q --count 513", "513 is not in the range"),
        ("bench --protocol tcp", 'invalid --protocol "tcp" (expected http, h2, rpc)'),
        ("bench --jobs 0", "0 is not in the range"),
        ("completion tcsh", "'tcsh' is not one of"),
        ("--nope", "No such option '--nope'"),
    ],
)
def test_usage_errors_exit_with_1(server: Any, run: Any, words: str, says: str) -> None:
    status, out, err = run(*words.split())
    assert (status, out) == (1, "")
    assert err.startswith("Error: ") and says in err
    first, *rest = words.split()
    status, out, err = run(first, "--output=json", *rest)
    assert (status, out) == (1, "")
    assert set(json.loads(err)) >= {"error", "code"}
    assert server.requests == []


def test_empty_name_is_refused(server: Any, run: Any) -> None:
    assert run("pause", "").err == "Error: a job id or queue name must not be empty\n"
    assert server.requests == []


def test_argument_that_is_not_utf8(run: Any) -> None:
    assert run("pause", "\udcff").err == "Error: an argument is not valid UTF-8\n"


def test_no_server(run: Any) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        status, out, err = run("queues", "--server", url)
        assert (status, out) == (1, "")
        assert err.splitlines()[0] == "Error: request failed: Connection refused"
        assert url in err and "`corvo server`" in err
        err = run("queues", "--server", url, "--output", "json").err
    assert json.loads(err) == {
        "error": "request failed: Connection refused",
        "code": "REQUEST_FAILED",
    }


def test_server_that_never_answers(run: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        err = run("queues", "--server", url, "--timeout", "20ms").err
    assert err.startswith("Error: request failed: no response within 0.02 s\n")


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://x:port", "http://[::1", "http://x:99999"]
)
def test_bad_server_url(run: Any, url: str) -> None:
    status, out, err = run("queues", "--server", url)
    assert (status, out) == (1, "")
    assert f'--server "{url}"' in err


def test_server_without_scheme(server: Any, run: Any) -> None:
    server.can("GET", "/api/v1/queues?limit=1000", {"queues": []})
    assert run("queues", "--server", server.url.removeprefix("http://")).status == 0


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"<html>Bad gateway</html>", 502, "Error: <html>Bad gateway</html>"),
        (b"", 503, "Error: 503 Service Unavailable"),
        (b"[]", 500, "Error: []"),
        (b'{"error": ""}', 500, "Error: 500 Internal Server Error"),
        (b'{"error":"x","self":1,"message":2}', 400, "Error: x"),
        (b"", 302, "Error: 302 Found"),
        (b"<html>", 200, "Error: request failed: unexpected response"),
        (b'{"job_id": 5}', 200, "Error: request failed: unexpected response"),
    ],
)
def test_strange_answers(server: Any, run: Any, body: bytes, status: int, says: str) -> None:
    server.can("POST", "/api/v1/enqueue", body, status)
    outcome = run("enqueue", "q", "{}")
    assert outcome.status == 1
    assert outcome.err.startswith(says)
    server.can("POST", "/api/v1/enqueue", body, status)
    assert "error" in json.loads(run("enqueue", "q", "{}", "--output", "json").err)


def test_server_data_never_reaches_the_terminal_raw(server: Any, run: Any) -> None:
    evil = "\x1b[2J\x9b31m\r\n\x07\u202eexe\x7f"
    shown = "\\x1b[2J\\x9b31m\\r\\n\\x07\\u202eexe\\x7f"
    server.can("GET", "/api/v1/queues?limit=1000", {"queues": [{"name": evil}]})
    assert shown in run("queues").out
    server.can("GET", "/api/v1/queues?limit=1000", {"error": evil, "code": evil}, 400)
    assert run("queues").err == f"Error: {shown}\n"
    for words in (("inspect", "j1"), ("inspect", "j1", "--output", "json")):
        server.can("GET", JOBS, json.dumps({"id": evil}, ensure_ascii=False).encode())
        out = run(*words).out
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out)
        assert json.loads(out) == {"id": evil}
    server.put({"queue": evil, "payload": evil})
    out = run("fetch", evil).out
    assert shown in out and "\x1b" not in out
    server.can("POST", "/api/v1/enqueue", {"job_id": evil, "status": evil})
    assert "\x1b" not in run("enqueue", "q", "{}").out


def test_debug_log_shows_the_request(server: Any, run: Any) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        assert (
            "GET /api/v1/queues?limit=1000 status=200" in run("--log-level", "debug", "queues").err
        )
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_help_lists_what_there_is(run: Any) -> None:
    status, out, _ = run("--help")
    assert status == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", out, re.MULTILINE)
        assert run(name, "--help").out.startswith(f"Usage: corvo {name} ")
    assert run().out == out


def test_version(run: Any) -> None:
    assert re.fullmatch(r"corvo [\d.]+ \(API v1, Python [\d.]+\)\n", run("version").out)
    facts = json.loads(run("version", "--output", "json").out)
    assert set(facts) == {"version", "api_version", "python"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Any, shell: str) -> None:
    assert "_CORVO_COMPLETE" in run("completion", shell).out


def test_completion_knows_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_CORVO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "corvo re")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == [
        "plain,retry",
        "plain,reject",
        "plain,requeue",
        "plain,release",
        "plain,resume",
        "plain,retention",
    ]

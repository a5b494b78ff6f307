"""Typos and questions: a queue that does not exist is refused, and deletions are confirmed."""

import io
import json
import sys
from typing import Any

import pytest

BULK = "/api/v1/jobs/bulk"
MISSING = {"error": 'queue "emial" not found', "code": "NOT_FOUND"}

# What a command with a queue sends.
SETTINGS = [
    ("pause emial", "POST", "pause"),
    ("resume emial", "POST", "resume"),
    ("drain emial --no-wait", "POST", "drain"),
    ("concurrency emial 5", "POST", "concurrency"),
    ("throttle emial 5 1s", "POST", "throttle"),
    ("throttle emial --remove", "DELETE", "throttle"),
    ("groups emial 2", "POST", "groups"),
    ("aging emial 5s", "POST", "aging"),
    ("retention emial --dead 1h", "POST", "retention"),
]


class Stdin(io.TextIOWrapper):
    """Standard input with this text, of a terminal or not."""

    def __init__(self, text: str, terminal: bool) -> None:
        super().__init__(io.BytesIO(text.encode()))
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(("words", "method", "verb"), SETTINGS)
def test_a_setting_of_a_queue_that_does_not_exist(
    server: Any, run: Any, words: str, method: str, verb: str
) -> None:
    server.queues["email"] = {"name": "email"}
    server.can("GET", "/api/v1/queues/emial", MISSING, 404)
    status, out, err = run(*words.split())
    assert (status, out) == (1, "")
    text = "queue emial does not exist (did you mean email?); --create creates it"
    assert err == f"Error: {text}\n"
    server.can("GET", "/api/v1/queues/emial", MISSING, 404)
    err = run(*words.split(), "--output", "json").err
    assert json.loads(err) == {"error": text, "code": "NOT_FOUND"}
    assert {method for method, _, _ in server.requests} == {"GET"}

    server.can(method, f"/api/v1/queues/emial/{verb}", {})
    assert run(*words.split(), "--create").status == 0
    assert server.requests[-1][:2] == (method, f"/api/v1/queues/emial/{verb}")


@pytest.mark.parametrize("words", ["clear emial", "destroy emial --yes", "queues emial"])
def test_what_needs_an_existing_queue(server: Any, run: Any, words: str) -> None:
    server.queues = {}
    server.can("GET", "/api/v1/queues/emial", MISSING, 404)
    assert run(*words.split()).err == "Error: queue emial does not exist\n"


def test_another_refusal_is_shown_as_it_is(server: Any, run: Any) -> None:
    server.can("GET", "/api/v1/queues/x", {"error": "no leader", "code": "NO_LEADER"}, 503)
    assert run("pause", "x").err == "Error: no leader\n"


@pytest.mark.parametrize("command", ["clear", "destroy"])
def test_a_deletion_asks(
    server: Any, run: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    server.queues["q"] = {"name": "q", "pending": 5, "scheduled": 2}
    monkeypatch.setattr(sys, "stdin", Stdin("", terminal=False))
    refused = run(command, "q")
    assert refused.status == 1 and refused.err.startswith("Error: use --")
    monkeypatch.setattr(sys, "stdin", Stdin("n\n", terminal=True))
    refused = run(command, "q")
    assert refused.status == 1 and "Error: not confirmed; nothing was changed\n" in refused.err
    assert {method for method, _, _ in server.requests} == {"GET"}
    server.can("POST", "/api/v1/queues/q/clear", {})
    server.can("DELETE", "/api/v1/queues/q?confirm=true", {})
    monkeypatch.setattr(sys, "stdin", Stdin("y\n", terminal=True))
    assert run(command, "q").status == 0
    server.can("POST", "/api/v1/queues/q/clear", {})
    server.can("DELETE", "/api/v1/queues/q?confirm=true", {})
    assert run(command, "q", "--yes").status == 0


def test_clear_names_the_number_of_jobs(
    server: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin("", terminal=False))
    server.queues["q"] = {"name": "q", "pending": 5, "scheduled": 2}
    text = "use --yes to delete 7 pending and scheduled jobs of queue q"
    assert run("clear", "q").err == f"Error: {text}\n"
    server.queues["q"] = {"name": "q", "active": 5}
    server.can("POST", "/api/v1/queues/q/clear", {})
    assert run("clear", "q").status == 0  # nothing is lost, so there is no question


@pytest.mark.parametrize(("count", "asks"), [(1000, False), (1001, True)])
def test_bulk_asks_above_a_thousand_jobs(
    server: Any, run: Any, monkeypatch: pytest.MonkeyPatch, count: int, asks: bool
) -> None:
    text = f"Error: use --yes to delete {count} jobs\n"
    ids = "\n".join(f"j{number}" for number in range(count))
    for given in ([], ["--yes"]):
        monkeypatch.setattr(sys, "stdin", Stdin(ids, terminal=False))
        server.can("POST", BULK, {"affected": count})
        assert run("bulk", "delete", *given).err == (text if asks and not given else "")
        server.canned.clear()
    words = ("bulk", "delete", "--filter", "{}")
    server.can("POST", BULK, {"matched": count})
    server.can("POST", BULK, {"affected": count})
    assert run(*words).err == (text if asks else "")
    server.canned.clear()
    server.can("POST", BULK, {"affected": count})
    assert run(*words, "--yes").status == 0
    assert server.bodies[-1] == {"action": "delete", "filter": {}}


def test_status_gives_the_reasons(server: Any, run: Any) -> None:
    nodes = [{"id": "b", "status": "unreachable"}, {"id": "c", "state_differs": True}]
    mirror = {"enabled": True, "available": False, "error": "no such table"}
    status = {"mode": "cluster", "status": "degraded", "disk_full": True, "nodes": nodes}
    server.can("GET", "/api/v1/cluster/status", status | {"sqlite_mirror": mirror})
    assert run("status").out.splitlines()[:7] == [
        "Mode: cluster  Status: degraded",
        "- the disk is full: no new jobs are accepted",
        "- no leader is known: no writes are possible",
        "- node b is unreachable",
        "- node c is diverged",
        "- search is not available: no such table",
        "",
    ]


def test_one_queue(server: Any, run: Any) -> None:
    queue = {"name": "q", "pending": 3, "max_concurrency": 5, "retention": {"dead": "1h"}}
    queue |= {"created_at": "2026-01-01T00:00:00Z", "enqueued": 9, "failed": 2, "dead_total": 1}
    queue |= {"completed_total": 5, "oldest_pending_at": "2026-01-02T00:00:00Z"}
    server.queues["q"] = queue
    assert run("queues", "q").out.splitlines() == [
        "QUEUE  PENDING  ACTIVE  HELD  SCHEDULED  RETRYING  COMPLETED  DEAD  PAUSED  LIMITS",
        "q      3        0       0     0          0         0          0             5 active",
        "",
        "Created: 2026-01-01T00:00:00Z",
        "Oldest pending job: 2026-01-02T00:00:00Z",
        "Retention: dead 1h",
        "In total: 9 enqueued, 5 completed, 2 failed attempts, 1 dead",
    ]
    assert json.loads(run("queues", "q", "--output", "json").out) == queue

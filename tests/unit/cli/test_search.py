"""search and dead: what they ask, follow and print."""

import json
from typing import Any

import pytest

from corvo.cli import search as search_module

SEARCH = "/api/v1/jobs/search"


def job(number: int) -> dict[str, Any]:
    created = "2026-11-28T10:00:00Z"
    rest = {"state": "dead", "queue": "mail", "attempt": 3, "created_at": created, "payload": {}}
    return {"id": f"job_{number}", **rest}


def page(*numbers: int, **more: Any) -> dict[str, Any]:
    found = [job(number) for number in numbers]
    return {"jobs": found, "total": len(found), "total_is_exact": True, "has_more": False, **more}


def test_flags_become_a_filter_and_a_pipe_gets_ids(server: Any, run: Any) -> None:
    server.can("POST", SEARCH, page(1, 2))
    words = ["--queue", "mail*", "--state", "dead,retrying", "--priority", "high"]
    words += ["--tag", "tenant=a=b", "--tag", "x=", "--payload-jq", ".amount > 100"]
    words += ["--payload-contains", "100%", "--error-contains", "SMTP", "--sort", "attempt"]
    words += ["--created-after", "2026-02-10", "--created-before", "2026-03-01T00:00:00+01:00"]
    assert run("search", *words) == (0, "job_1\njob_2\n", "")
    [body] = server.bodies
    assert body == {
        "queue": "mail*",
        "state": ["dead", "retrying"],
        "priority": "high",
        "tags": {"tenant": "a=b", "x": ""},
        "payload_jq": ".amount > 100",
        "payload_contains": "100%",
        "error_contains": "SMTP",
        "sort": "attempt",
        "created_after": "2026-02-10T00:00:00Z",
        "created_before": "2026-03-01T00:00:00+01:00",
        "limit": 50,
    }


def test_how_long_ago(server: Any, run: Any) -> None:
    server.can("POST", SEARCH, page())
    assert run("search", "--created-after", "7d").status == 0
    assert server.bodies[0]["created_after"].endswith("Z")


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "7x", "+-3d", "1767225600"])
def test_what_is_no_time(server: Any, run: Any, text: str) -> None:
    outcome = run("search", f"--created-after={text}")
    assert outcome.status == 1 and text in outcome.err and not server.requests


def test_a_tag_needs_a_value(server: Any, run: Any) -> None:
    assert "tag must be key=value" in run("search", "--tag", "tenant").err


def test_all_follows_the_cursors(server: Any, run: Any) -> None:
    server.can("POST", SEARCH, page(1, 2, has_more=True, cursor="next"))
    server.can("POST", SEARCH, page(3))
    assert run("search", "--all", "--ids").out == "job_1\njob_2\njob_3\n"
    assert [body.get("cursor") for body in server.bodies] == [None, "next"]


def test_a_limit_beyond_a_page(server: Any, run: Any) -> None:
    server.can("POST", SEARCH, page(*range(1000), has_more=True, cursor="next"))
    server.can("POST", SEARCH, page(*range(200), has_more=True, cursor="more"))
    assert len(run("search", "--limit", "1200").out.splitlines()) == 1200
    assert [body["limit"] for body in server.bodies] == [1000, 200]


def test_json_is_one_array_of_jobs(server: Any, run: Any) -> None:
    server.can("POST", SEARCH, page(1))
    assert json.loads(run("dead", "mail", "--output", "json").out) == [job(1)]
    assert server.bodies == [{"state": ["dead"], "queue": "mail", "limit": 50}]


def test_a_terminal_gets_a_table(server: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(search_module.display, "table", lambda *rows: shown.append(rows[0]))
    server.can("POST", SEARCH, page(1, total=10_000, total_is_exact=False))
    monkeypatch.setattr(search_module.sys, "stdout", _Terminal())
    run("dead")
    assert shown == [search_module._HEADS]


class _Terminal:
    def isatty(self) -> bool:
        return True

    def write(self, _text: str) -> int:
        return 0

    def flush(self) -> None:
        pass

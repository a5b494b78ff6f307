"""Times, delays and tags as people write them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

NEW = ("POST", "/api/v1/enqueue", {"job_id": "j9", "status": "scheduled"})
SEARCH = "/api/v1/jobs/search"


def sent(server: Any, run: Any, *words: str) -> Any:
    server.can(*NEW)
    assert run("enqueue", "q", "1", *words).err == ""
    return server.bodies[-1]


@pytest.mark.parametrize(
    ("words", "delay"),
    [
        ("--delay 5m", 300),
        ("--delay +5m", 300),
        ("--delay 90", 90),
        ("--delay 1.5s", 1.5),
        ("--scheduled-at 90m", 5400),
        ("--scheduled-at +1h30m", 5400),
        ("--scheduled-at=-2h", 0),
        ("--scheduled-at -2h", 0),
    ],
)
def test_a_relative_start_is_a_delay(server: Any, run: Any, words: str, delay: float) -> None:
    assert sent(server, run, *words.split()) == {"queue": "q", "payload": 1, "delay": delay}


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-02-10T12:00:00+01:00", "2026-02-10T12:00:00+01:00"),
        ("2026-02-10", "2026-02-10T00:00:00Z"),
    ],
)
def test_an_absolute_start(server: Any, run: Any, text: str, at: str) -> None:
    assert sent(server, run, "--scheduled-at", text)["scheduled_at"] == at


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--scheduled-at tomorrow", "tomorrow is not a time"),
        ("--scheduled-at 1767225600", "1767225600 is not a time"),
        ("--delay 5m --scheduled-at 5m", "give --delay or --scheduled-at, not both"),
        ("--delay -2h", "--delay"),
    ],
)
def test_a_start_that_is_refused(server: Any, run: Any, words: str, says: str) -> None:
    outcome = run("enqueue", "q", "1", *words.split())
    assert outcome.status == 1 and says in outcome.err and not server.requests


@pytest.mark.parametrize(
    ("text", "hours"), [("2h", -2), ("-2h", -2), ("+90m", 1.5), ("1d", -24), ("1h30m", -1.5)]
)
def test_a_search_takes_the_same_times(server: Any, run: Any, text: str, hours: float) -> None:
    server.can("POST", SEARCH, {"jobs": []})
    assert run("search", "--created-after", text).status == 0
    at = datetime.fromisoformat(server.bodies[0]["created_after"])
    assert abs(at - datetime.now(UTC) - timedelta(hours=hours)) < timedelta(minutes=5)


@pytest.mark.parametrize(
    ("words", "tags"),
    [
        (["--tags", "a=b"], {"a": "b"}),
        (["--tags", "a=b,c=d=e,f="], {"a": "b", "c": "d=e", "f": ""}),
        (["--tag", "a=b", "--tag", "c=d"], {"a": "b", "c": "d"}),
        (["--tags", '{"a": 1}', "--tag", "c=d"], {"a": 1, "c": "d"}),
        (["--tags", '{"a": "b"}'], {"a": "b"}),
    ],
)
def test_tags(server: Any, run: Any, words: list[str], tags: Any) -> None:
    assert sent(server, run, *words)["tags"] == tags


def test_tags_of_other_commands(server: Any, run: Any) -> None:
    schedule = {"name": "s", "next_run": ""}
    server.can("POST", "/api/v1/schedules", schedule)
    words = ("schedules", "create", "s", "--queue", "q", "--cron", "@daily")
    assert run(*words, "--tags", "a=b").status == 0
    assert server.bodies[-1]["tags"] == {"a": "b"}
    server.can("POST", SEARCH, {"jobs": []})
    assert run("search", "--tags", "a=b", "--tag", "c=d").status == 0
    assert server.bodies[-1]["tags"] == {"a": "b", "c": "d"}


@pytest.mark.parametrize("text", ["a", "=b", "a=b,c", "["])
def test_tags_that_are_refused(server: Any, run: Any, text: str) -> None:
    outcome = run("enqueue", "q", "1", "--tags", text)
    assert outcome.status == 1 and "KEY=VALUE or a JSON object" in outcome.err
    assert not server.requests


def test_a_word_as_a_payload(run: Any) -> None:
    assert "a text needs its own quotes" in run("enqueue", "q", "hello").err

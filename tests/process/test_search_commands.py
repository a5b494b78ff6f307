"""The pipes of the design document, typed as they stand there."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lib.harness import Api, ServerProcess, clean_environment, running_server, until


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("corvo") / "data") as server:
        api = server.api()

        def available() -> bool:
            return bool(api.ok("GET", "/cluster/status")["sqlite_mirror"]["available"])

        until(available, "the mirror never answers")
        yield server


class Shell:
    """A shell in which `corvo` is the command of this tree and knows where the server is."""

    def __init__(self, server: ServerProcess, directory: Path) -> None:
        self.api = server.api()
        command = directory / "corvo"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m corvo "$@"\n')
        command.chmod(0o755)
        path = f"{directory}:{os.environ['PATH']}"
        root = str(Path(__file__).parents[2])
        own = {"CORVO_URL": server.url, "PATH": path, "PYTHONPATH": root}
        self.environment = clean_environment() | own

    def run(self, text: str) -> str:
        """What a line of a shell prints, when the mirror knows everything written before."""
        index = self.api.raw("GET", "/info").headers["X-Corvo-Index"]
        reply = self.api.raw("POST", "/jobs/search", {}, {"X-Corvo-Min-Index": index})
        assert reply.headers["X-Corvo-Stale"] is None
        done = subprocess.run(
            ["sh", "-c", text], capture_output=True, text=True, env=self.environment
        )
        assert done.returncode == 0, (text, done.stderr)
        return done.stdout

    def states(self, queue: str) -> list[str]:
        found = json.loads(self.run(f"corvo search --queue {queue} --all --output json"))
        return sorted(job["state"] for job in found)


@pytest.fixture
def shell(shared_server: ServerProcess, tmp_path: Path) -> Shell:
    return Shell(shared_server, tmp_path)


def dead(api: Api, queue: str, count: int, error: str, **fields: object) -> list[str]:
    ids = api.enqueue_many(queue, count, max_retries=1, **fields)
    for job in api.take_many(queue, count=count):
        assert api.fail(job, error=error)[0] == 200
    return ids


def test_searches(shell: Shell) -> None:
    api = shell.api
    ids = dead(api, "emails.send", 3, "SMTP: timeout", payload={"to": "user@example.com"})
    api.enqueue("emails.send", payload={"amount": 500})
    tagged = api.enqueue("other", tags={"tenant": "acme-corp"})
    lines = shell.run("corvo search --queue emails.send --state dead").split()
    assert sorted(lines) == sorted(ids)
    assert (
        len(
            shell.run(
                'corvo search --queue emails.send --payload-contains "user@example.com"'
            ).split()
        )
        == 3
    )
    assert (
        len(shell.run("corvo search --queue emails.send --payload-jq '.amount > 100'").split()) == 1
    )
    assert shell.run("corvo search --tag tenant=acme-corp --state pending").split() == [tagged]
    found = shell.run('corvo search --error-contains "SMTP" --created-after 2026-02-10').split()
    assert sorted(found) == sorted(ids)
    assert sorted(shell.run("corvo dead emails.send").split()) == sorted(ids)


def test_pipes_into_bulk(shell: Shell) -> None:
    api = shell.api
    dead(api, "emails.pipe", 4, "SMTP: timeout")
    text = "corvo search --queue emails.pipe --state dead | corvo bulk retry"
    assert shell.run(text).startswith("Affected: 4 jobs (")
    for job in api.take_many("emails.pipe", count=4):
        api.fail(job, error="SMTP: no route")
    text = 'corvo search --queue emails.pipe --state dead --error-contains "SMTP" --output json'
    assert shell.run(f"{text} | corvo bulk retry").startswith("Affected: 4 jobs (")
    api.enqueue_many("old.queue", 5)
    text = "corvo search --queue old.queue --state pending | corvo bulk move new.queue"
    assert shell.run(text).startswith("Affected: 5 jobs (")
    assert api.queue("new.queue")["pending"] == 5
    text = (
        "corvo search --queue new.queue --state pending --output json | corvo bulk move emails.v2"
    )
    assert shell.run(text).startswith("Affected: 5 jobs (")
    assert api.queue("emails.v2")["pending"] == 5
    api.enqueue_many("legacy", 2, payload={"legacy": True})
    text = "corvo search --payload-jq '.legacy == true' | corvo bulk delete"
    assert shell.run(text).startswith("Affected: 2 jobs (")
    dead(api, "emails.inline", 2, "boom")
    text = """corvo bulk retry --filter '{"queue":"emails.inline","state":["dead"]}'"""
    assert shell.run(text).startswith("Affected: 2 jobs (")
    assert shell.states("emails.inline") == ["pending", "pending"]


def test_json_for_others(shell: Shell) -> None:
    api = shell.api
    api.enqueue_many("reports", 2, payload={"customer_id": "cust_42"})
    text = """corvo search --queue reports --payload-jq '.customer_id == "cust_42"' --output json"""
    found = json.loads(shell.run(text))
    assert isinstance(found, list) and [job["queue"] for job in found] == ["reports"] * 2
    job = api.take("reports")
    api.ack(job)
    before = "$(date -d '1 minute' -Iseconds)"
    text = f'corvo search --state completed --created-before "{before}" --output json'
    assert shell.run(f"{text} | corvo bulk delete").startswith("Affected: 1 jobs (")
    count = f"{sys.executable} -c 'import json, sys; print(len(json.load(sys.stdin)))'"
    assert shell.run(f"corvo search --queue reports --output json | {count}") == "1\n"


def test_a_reader_that_stops_early(shell: Shell) -> None:
    shell.api.enqueue_many("long", 1500)
    text = "corvo search --queue long --all | head -1"
    assert shell.run(f"bash -o pipefail -c '{text}'").startswith("job_")


def test_many_jobs_need_a_confirmation(shell: Shell) -> None:
    shell.api.enqueue_many("crowd", 1001)
    find = "corvo search --queue crowd --all"
    text = f"{find} | corvo bulk cancel 2>&1; echo $?"
    assert shell.run(text) == "Error: use --yes to cancel 1001 jobs\n1\n"
    text = """corvo bulk cancel --filter '{"queue":"crowd"}' </dev/null 2>&1; echo $?"""
    assert shell.run(text) == "Error: use --yes to cancel 1001 jobs\n1\n"
    assert shell.run(f"{find} | corvo bulk cancel --yes").startswith("Affected: 1001 jobs (")


def test_times_and_tags_as_people_write_them(shell: Shell) -> None:
    job_id = json.loads(
        shell.run("corvo enqueue times '{}' --scheduled-at 90m --tags team=a,x=1 --output json")
    )["job_id"]
    job = shell.api.job(job_id)
    assert (job["state"], job["tags"]) == ("scheduled", {"team": "a", "x": "1"})
    text = "corvo search --queue times --tags team=a"
    assert shell.run(f"{text} --created-after -1h --created-before +1h") == f"{job_id}\n"
    assert shell.run(f"{text} --created-before 1h") == ""


def test_a_typo_makes_no_queue(shell: Shell) -> None:
    shell.api.enqueue("emails.typo")
    for words in ("pause email.typo", "throttle email.typo 5 1s", "clear email.typo"):
        message = shell.run(f"corvo {words} 2>&1 || true")
        assert "queue email.typo does not exist (did you mean emails.typo?)" in message
    assert "email.typo" not in [queue["name"] for queue in shell.api.listed("queues")]


def test_undo_of_what_a_pipe_did(shell: Shell) -> None:
    api = shell.api
    dead(api, "undo", 3, "boom")
    text = "corvo search --queue undo --state dead | corvo bulk retry --output json"
    task_id = json.loads(shell.run(text))["bulk_operation_id"]
    assert shell.states("undo") == ["pending"] * 3
    assert shell.run(f"corvo bulk undo {task_id}").startswith("Affected: 3 jobs (")
    assert shell.states("undo") == ["dead"] * 3

"""bulk, drain and destroy: what they ask, wait for and refuse."""

import io
import json
import sys
from typing import Any

import pytest

from corvo.cli import actions, bulk, queues
from corvo.errors import ValidationError

BULK = "/api/v1/jobs/bulk"
DONE = {"affected": 2, "skipped": 1, "conflicts": 0, "errors": 0, "bulk_operation_id": "bulk_1"}


class Stdin(io.TextIOWrapper):
    """Standard input with this text."""

    def __init__(self, text: str) -> None:
        super().__init__(io.BytesIO(text.encode()))


@pytest.mark.parametrize(
    "text",
    [
        "j1\nj2\n",
        "  j1  \r\n\r\nj2",
        '["j1", "j2"]',
        '[{"id": "j1", "state": "dead"}, {"job_id": "j2"}]',
        '{"id": "j1"}\n{"id": "j2"}\n',
    ],
)
def test_ids_come_in_any_form(text: str) -> None:
    assert bulk.read_ids(text.encode()) == ["j1", "j2"]


@pytest.mark.parametrize("text", ["", " \n", "[]"])
def test_no_ids(text: str) -> None:
    with pytest.raises(ValidationError, match="no job IDs provided"):
        bulk.read_ids(text.encode())


@pytest.mark.parametrize("text", [b"[1]", b'{"id": 1}', b"[", b"\xff"])
def test_what_is_no_id(text: bytes) -> None:
    with pytest.raises(ValidationError, match="cannot parse the job ids"):
        bulk.read_ids(text)


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["cancel", "--force"], {"force": True}),
        (["move", "other"], {"move_to_queue": "other"}),
        (["move", "--to", "other"], {"move_to_queue": "other"}),
        (["change_priority", "high"], {"priority": "high"}),
        (["hold", "--reason", "look", "--hold-timeout", "5"], {"reason": "look", "timeout": 5}),
    ],
)
def test_by_ids(
    server: Any, run: Any, monkeypatch: pytest.MonkeyPatch, words: list[str], more: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin("j1\nj2\n"))
    server.can("POST", BULK, DONE)
    status, out, err = run("bulk", *words)
    assert (status, err) == (0, "")
    assert out.startswith("Affected: 2 jobs (") and out.endswith("Skipped: 1, conflicts: 0\n")
    assert server.bodies == [{"action": words[0], "job_ids": ["j1", "j2"], **more}]


def test_all_asks_first(server: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin("n\n"))
    assert run("bulk", "delete", "--all").status == 1
    assert server.requests == []
    server.can("POST", BULK, DONE)
    assert run("bulk", "delete", "--all", "--yes").status == 0
    assert server.bodies == [{"action": "delete", "all": True}]


def test_a_filter_is_sent_as_it_is(server: Any, run: Any) -> None:
    server.can("POST", BULK, {"error": "no search", "code": "MIRROR_UNAVAILABLE"}, 503)
    words = ("bulk", "retry", "--filter", '{"state": "dead"}', "--yes")
    assert run(*words).err == "Error: no search\n"
    assert server.bodies == [{"action": "retry", "filter": {"state": "dead"}}]


def test_a_dry_run(server: Any, run: Any) -> None:
    server.can("POST", BULK, {"dry_run": True, "matched": 3, "sample": ["j1", "j2"]})
    assert run("bulk", "retry", "--all", "--dry-run").out == "Would affect: 3 jobs\nj1\nj2\n"
    assert server.bodies == [{"action": "retry", "all": True, "dry_run": True}]


def test_progress_until_it_is_done(server: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_POLL_S", 0)
    accepted = {"bulk_operation_id": "bulk_1", "status": "processing", "estimated_total": 4}
    server.can("POST", BULK, accepted, 202)
    for processed, state in ((2, "running"), (4, "completed")):
        document = {**DONE, "status": state, "total": 4, "processed": processed}
        server.can("GET", "/api/v1/bulk/bulk_1", document)
    status, out, err = run("bulk", "retry", "--all", "--yes", "--async")
    assert status == 0 and out.startswith("Affected: 2 jobs")
    assert err == "\rProgress: 2/4 (50%)\rProgress: 4/4 (100%)\n"
    server.can("POST", BULK, accepted, 202)
    server.can("GET", "/api/v1/bulk/bulk_1", {**DONE, "status": "completed"})
    status, out, err = run("bulk", "retry", "--all", "--yes", "--async", "--output", "json")
    assert json.loads(out)["status"] == "completed" and err == ""


def test_an_interrupt_leaves_it_going(
    server: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bulk.time, "sleep", interrupt)
    server.can("POST", BULK, {"bulk_operation_id": "bulk_1", "status": "processing"}, 202)
    server.can("GET", "/api/v1/bulk/bulk_1", {**DONE, "status": "running"})
    status, _, err = run("bulk", "retry", "--all", "--yes", "--async", "--output-json")
    assert status == 1 and "the server continues operation bulk_1" in err


def test_undo(server: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_POLL_S", 0)
    server.can("POST", "/api/v1/bulk/bulk_1/undo", DONE)
    status, out, err = run("bulk", "undo", "bulk_1")
    assert (status, err) == (0, "") and out.startswith("Affected: 2 jobs (")
    accepted = {"bulk_operation_id": "bulk_2", "status": "processing"}
    server.can("POST", "/api/v1/bulk/bulk_1/undo", accepted, 202)
    server.can("GET", "/api/v1/bulk/bulk_2", {**DONE, "status": "completed"})
    assert run("bulk", "undo", "bulk_1", "--async").status == 0
    assert server.bodies == [{}, {"async": True}]
    for words in ((), ("bulk_1", "--all"), ("bulk_1", "--reason", "x")):
        assert run("bulk", "undo", *words).err.startswith("Error: undo takes the id")


def test_the_command_shows_how_to_undo(
    server: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_interactive", lambda: True)
    for action, shown in (("retry", True), ("delete", False)):
        server.can("POST", BULK, DONE)
        err = run("bulk", action, "--all", "--yes").err
        assert (err == "To undo: corvo bulk undo bulk_1\n") is shown


def test_a_target_where_there_is_none(run: Any) -> None:
    assert run("bulk", "retry", "other", "--all", "--yes").err.startswith("Error: retry takes no")


def test_drain_waits(server: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "_POLL_S", 0)
    path = "/api/v1/queues/q"
    for words in (("drain", "q"), ("drain", "q", "--output", "json")):
        server.can("POST", f"{path}/drain", {"status": "draining"})
        for active in (0, 1, 0):
            server.can("GET", path, {"name": "q", "active": active, "paused": True})
        status, out, _ = run(*words)
        assert status == 0
        if len(words) == 2:
            assert out == "Queue q draining\nQueue q drained\n"
        else:
            assert json.loads(out)["active"] == 0


def test_drain_gives_up(server: Any, run: Any) -> None:
    server.can("POST", "/api/v1/queues/q/drain", {"status": "draining"})
    server.queues["q"] |= {"active": 3}
    status, _, err = run("drain", "q", "--timeout", "0")
    assert (status, err) == (1, "Error: queue q still has active jobs after 0 s\n")


def test_destroy_needs_a_word(server: Any, run: Any) -> None:
    outcome = run("destroy", "q")
    assert outcome.err == "Error: use --confirm to delete queue q and all its jobs\n"
    assert [method for method, _, _ in server.requests] == ["GET"]


def test_retention_needs_something(run: Any) -> None:
    assert run("retention", "q").status == 1


def test_a_draining_queue_in_the_table(server: Any, run: Any) -> None:
    server.can(
        "GET",
        "/api/v1/queues?limit=1000",
        {"queues": [{"name": "q", "paused": True, "draining": True}]},
    )
    assert run("queues").out.splitlines()[1].endswith("draining")


def test_every_action_of_one_job_has_a_command() -> None:
    names = {"hold", "approve", "reject", "move", "requeue", "run", "priority"}
    assert names <= set(vars(actions))

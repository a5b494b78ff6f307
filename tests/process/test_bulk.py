"""Actions on many jobs on real servers: sets of any size, progress as it happens, undo."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lib.harness import (
    Api,
    ServerProcess,
    advance,
    mirrored_server,
    refused,
    running_server,
    until,
    wait_mirror,
)
from process.test_streams import Lines

from corvo.limits import OPERATION_IDS_MAX


def filled(api: Api, queue: str, count: int) -> list[str]:
    ids: list[str] = []
    for at in range(0, count, 4_000):
        ids += api.enqueue_many(queue, min(4_000, count - at))
    return ids


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with mirrored_server(tmp_path_factory.mktemp("corvo") / "data") as server:
        yield server


def test_a_filter_finds_more_than_fit_one_entry(api: Api, queue: str) -> None:
    count = 2 * OPERATION_IDS_MAX + 500
    ids = filled(api, queue, count)
    body = {"action": "change_priority", "priority": "high", "filter": {"queue": queue}}
    dry = api.ok("POST", "/jobs/bulk", {**body, "dry_run": True})
    assert (dry["matched"], len(dry["sample"])) == (count, 10)
    status, accepted = api.post("/jobs/bulk", body)
    assert (status, accepted["estimated_total"]) == (202, count)
    api.enqueue(queue)  # comes too late
    path = f"/bulk/{accepted['bulk_operation_id']}"
    until(lambda: api.ok("GET", path)["status"] == "completed", "the bulk never ends")
    assert api.ok("GET", path)["affected"] == count
    found: list[str] = []
    cursor = ""
    while True:
        page = api.ok("GET", f"{path}/results?cursor={cursor}" if cursor else f"{path}/results")
        found += [item["job_id"] for item in page["items"]]
        if "cursor" not in page:
            break
        cursor = page["cursor"]
    assert sorted(found) == sorted(ids)


@pytest.mark.parametrize("by", ["filter", "job_ids"])
def test_a_repeated_bulk_of_a_large_set_is_done_once(api: Api, queue: str, by: str) -> None:
    ids = filled(api, queue, OPERATION_IDS_MAX + 10)
    body = {"action": "hold", by: ids if by == "job_ids" else {"queue": queue}, "async": True}
    key = {"Idempotency-Key": f"bulk-{queue}"}
    first = api.call("POST", "/jobs/bulk", body, key)
    again = api.call("POST", "/jobs/bulk", body, key)
    assert first[0] == 202
    assert first[1]["bulk_operation_id"] == again[1]["bulk_operation_id"]
    path = f"/bulk/{first[1]['bulk_operation_id']}"
    until(lambda: api.ok("GET", path)["status"] == "completed", "the bulk never ends")
    assert api.ok("GET", path)["affected"] == OPERATION_IDS_MAX + 10


def test_progress_as_it_happens(shared_server: ServerProcess, api: Api, queue: str) -> None:
    count = 3_000
    filled(api, queue, count)
    body = {"action": "cancel", "filter": {"queue": queue}, "async": True}
    status, accepted = api.post("/jobs/bulk", body)
    task_id = accepted["bulk_operation_id"]
    assert (status, accepted["progress_url"]) == (202, f"/api/v1/bulk/{task_id}/progress")
    readers = [Lines(shared_server, f"/bulk/{task_id}/progress") for _ in range(2)]
    for reader in readers:
        assert any(b"text/event-stream" in header for header in reader.headers)
        told = [reader.frames(1)[0]]
        while told[-1]["event"] != "bulk.async.completed":
            told += reader.frames(1)
        events = [json.loads(frame["data"]) for frame in told]
        assert [frame["event"] for frame in told] == [event["type"] for event in events]
        assert told[0]["event"] in ("bulk.async.started", "bulk.async.completed")
        processed = [event["processed"] for event in events]
        assert processed == sorted(processed) and processed[-1] == count
        last = events[-1]
        assert (last["task_id"], last["status"], last["percent"]) == (task_id, "completed", 100)
        assert (last["affected"], last["total"]) == (count, count)
        assert last["created_at_ns"] > 0
        assert reader.chunk() == b""  # and it ends
        reader.close()
    late = Lines(shared_server, f"/bulk/{task_id}/progress")
    assert late.frames(1)[0]["event"] == "bulk.async.completed"
    assert late.chunk() == b""
    late.close()
    refused(api.get("/bulk/bulk_none/progress"), 404, "NOT_FOUND")


def test_progress_of_one_that_is_stopped(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    filled(api, queue, 4_000)
    body = {"action": "delete", "filter": {"queue": queue}, "async": True}
    task_id = api.post("/jobs/bulk", body)[1]["bulk_operation_id"]
    reader = Lines(shared_server, f"/bulk/{task_id}/progress")
    api.ok("POST", f"/bulk/{task_id}/cancel")
    last = reader.frames(1)[0]
    while last["event"] in ("bulk.async.started", "bulk.async.progress"):
        last = reader.frames(1)[0]
    assert last["event"] == "bulk.async.cancelled"
    reader.close()


def test_undo(api: Api, queue: str) -> None:
    ids = [api.enqueue(queue, priority=n % 3) for n in range(30)]
    bulk = {"action": "move", "move_to_queue": f"{queue}-there", "filter": {"queue": queue}}
    bulk["keep_priority"] = False
    done = api.ok("POST", "/jobs/bulk", bulk)
    assert done["affected"] == 30
    api.ok("DELETE", f"/jobs/{ids[0]}")
    assert api.take(f"{queue}-there")["job_id"] == ids[1]
    path = f"/bulk/{done['bulk_operation_id']}"
    assert "undo_until" in api.ok("GET", path)
    undone = api.ok("POST", f"{path}/undo")
    assert (undone["affected"], undone["skipped"], undone["conflicts"]) == (28, 2, 0)
    jobs = [api.job(job_id) for job_id in ids[2:]]
    assert [job["queue"] for job in jobs] == [queue] * 28
    assert [job["priority"] for job in jobs] == [n % 3 for n in range(2, 30)]
    task = api.ok("GET", path)
    assert task["undone_by"] == undone["bulk_operation_id"] and "undo_until" not in task
    assert api.ok("GET", f"/bulk/{task['undone_by']}")["undoes"] == task["id"]
    refused(api.post(f"{path}/undo"), 409, "CONFLICT")
    events = api.ok("GET", f"/jobs/{ids[2]}/events")["events"]
    assert events[-1]["type"] == "undone" and events[-1]["data"] == {"action": "move"}


def test_undo_in_the_background_and_its_window(api: Api, queue: str) -> None:
    filled(api, queue, 500)
    done = api.ok("POST", "/jobs/bulk", {"action": "cancel", "filter": {"queue": queue}})
    status, accepted = api.post(f"/bulk/{done['bulk_operation_id']}/undo", {"async": True})
    assert status == 202
    path = f"/bulk/{accepted['bulk_operation_id']}"
    until(lambda: api.ok("GET", path)["status"] == "completed", "the undo never ends")
    assert api.queue(queue)["pending"] == 500
    again = api.ok("POST", "/jobs/bulk", {"action": "cancel", "filter": {"queue": queue}})
    advance(api, "1h")
    refused(api.post(f"/bulk/{again['bulk_operation_id']}/undo"), 409, "CONFLICT")
    hold = api.ok("POST", "/jobs/bulk", {"action": "delete", "filter": {"queue": queue}})
    refused(api.post(f"/bulk/{hold['bulk_operation_id']}/undo"), 409, "CONFLICT")
    refused(api.post("/bulk/bulk_none/undo"), 404, "NOT_FOUND")


def test_a_set_survives_a_kill(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        wait_mirror(api)
        filled(api, "q", OPERATION_IDS_MAX + 1_000)
        bulk: dict[str, Any] = {"action": "cancel", "filter": {"queue": "q"}, "async": True}
        status, accepted = api.post("/jobs/bulk", bulk)
        assert status == 202
        server.kill()
        server.start()
        api = server.api()
        path = f"/bulk/{accepted['bulk_operation_id']}"
        until(lambda: api.ok("GET", path)["status"] == "completed", "the bulk never ends")
        assert api.queue("q")["cancelled"] == OPERATION_IDS_MAX + 1_000

"""Requests with many parts: the refusal of one part names it, at every stage of a check."""

import json
from typing import Any

import pytest
from lib.harness import Api

PLACE = 2  # of the part that is wrong, after two that are right
LONG = "x" * 300
# A list with its path, the name of its parts in a message, and what makes a whole request of it.
LISTS: dict[str, tuple[str, str, Any]] = {
    "enqueue/batch": ("/enqueue/batch", "jobs", lambda parts: {"jobs": parts}),
    "ack/batch": ("/ack/batch", "acks", lambda parts: {"acks": parts}),
    "logs": ("/jobs/job_x/logs", "lines", lambda parts: {"lines": parts}),
    "fetch": ("/fetch", "queues", lambda parts: {"queues": parts, "timeout": 0}),
    "fetch/batch": ("/fetch/batch", "queues", lambda parts: {"queues": parts, "timeout": 0}),
    "bulk": ("/jobs/bulk", "job_ids", lambda parts: {"action": "hold", "job_ids": parts}),
    "depends_on": ("/enqueue", "depends_on", lambda parts: {"queue": "q", "depends_on": parts}),
    "chain": ("/enqueue", "steps", lambda parts: {"queue": "q", "chain": {"steps": parts}}),
    "chain_config": (
        "/enqueue",
        "steps",
        lambda parts: {"queue": "q", "chain_step": 0, "chain_config": {"steps": parts}},
    ),
}
GOOD: dict[str, Any] = {
    "enqueue/batch": {"queue": "q"},
    "ack/batch": {"job_id": "job_x"},
    "logs": {"message": "m"},
    "chain": {"queue": "q"},
    "chain_config": {"queue": "q"},
}
OBJECTS = [5, None, [], "x", {"no_such": 1}]
BAD: dict[str, list[Any]] = {
    "enqueue/batch": [
        *OBJECTS,
        {"queue": 1},
        {"queue": ""},
        {"queue": "q", "max_retries": -1},
        {"queue": "q", "tags": {"a": []}},
        {"queue": "q", "depends_on": ["a", 1]},
        {"queue": "q", "depends_on": ["a", "b c"]},
        {"queue": "q", "depends_on": ["job_not_there"]},
        {"queue": "q", "chain": {"steps": [{"queue": "q"}, {"queue": 1}]}},
        {"queue": "q", "chain": {"steps": [{"queue": "q"}, {"queue": "."}]}},
        {"queue": "q", "hold": {"reason": 1}},
        {"queue": "q", "agent": {}},
        {"queue": "q", "wait": 1},
        {"queue": "q", "batch_id": "batch_none"},
        {"queue": "q", "payload": "x" * 300_000},
    ],
    "ack/batch": [*OBJECTS, {"job_id": 1}, {"job_id": "a b"}, {"job_id": ""}, {}, {"usage": {}}],
    "logs": [
        *OBJECTS,
        {"message": 1},
        {},
        {"message": "m", "level": "x"},
        {"message": "m", "at": "x"},
    ],
    "fetch": [5, None, {}, ".", "", "a\u0001", LONG],
    "fetch/batch": [5, None, {}, ".", "", "a\u0001", LONG],
    "bulk": [5, None, {}, "a b", "", LONG],
    "depends_on": [5, None, {}, "a b", LONG],
    "chain": [*OBJECTS, {"queue": 1}, {"queue": "."}, {}, {"queue": LONG}],
    "chain_config": [*OBJECTS, {"queue": 1}, {"queue": "."}, {}, {"queue": LONG}],
}
CASES = [(name, bad) for name, parts in BAD.items() for bad in parts]


@pytest.mark.parametrize(("name", "bad"), CASES, ids=lambda value: str(value)[:40])
def test_a_part_of_a_list(api: Api, name: str, bad: Any) -> None:
    path, member, whole = LISTS[name]
    good = GOOD.get(name, "job_x" if name in ("bulk", "depends_on") else "q")
    status, answer = api.post(path, whole([good] * PLACE + [bad]))
    if "failed" in answer:  # the other acks take effect
        assert [item.get("index") for item in answer["failed"]][-1] == PLACE, answer
        return
    assert status in (400, 404, 413), answer
    assert answer["index"] == PLACE, answer
    named = (f"{member}[{PLACE}]", f"{member.rstrip('s')} {PLACE} ", f"step {PLACE}")
    applied = status == 404 or "job_id" in answer  # refused by the log entry, which has the index
    assert any(text in answer["error"] for text in named) or applied, answer


def test_ids_after_the_first_ten_thousand(api: Api) -> None:
    ids = [f"job_{number}" for number in range(12_000)] + ["a b"]
    status, answer = api.post("/jobs/bulk", {"action": "hold", "job_ids": ids})
    assert (status, answer["index"], answer["field"]) == (400, 12_000, "job_ids")


@pytest.mark.parametrize(
    "beat",
    [
        5,
        None,
        [],
        {"no_such": 1},
        {"lease_token": 1},
        {"lease_token": LONG},
        {"progress": "x" * 20_000},
        {"usage": {}},
        {"stream_delta": "x" * 70_000},
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_job_of_a_heartbeat(api: Api, beat: Any) -> None:
    status, answer = api.post("/heartbeat", {"jobs": {"job_a": {}, "job_b": beat, "job_c": {}}})
    assert status in (400, 413)
    assert answer["job_id"] == "job_b" and "job_b" in answer["error"], answer


def test_the_id_of_a_heartbeat(api: Api) -> None:
    status, answer = api.post("/heartbeat", {"jobs": {"job_a": {}, "b c": {}}})
    assert (status, answer["job_id"]) == (400, "b c")


def test_a_tag_names_its_key(api: Api) -> None:
    for bad in ([], {}, None):
        status, answer = api.post("/enqueue", {"queue": "q", "tags": {"a": 1, "bad-key": bad}})
        assert status == 400 and "bad-key" in answer["error"], answer
        schedule = {"name": "s", "cron": "@daily", "queue": "q", "tags": {"bad-key": bad}}
        status, answer = api.post("/schedules", schedule)
        assert status == 400 and "bad-key" in answer["error"], answer


# ---- the worker service ----


def call(api: Api, method: str, message: Any) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    path = f"//corvo.v1.WorkerService/{method}"
    return api.call("POST", path, json.dumps(message).encode(), headers)


RPC_LISTS = {
    "Fetch": ("queues", "q", [5, {}, ".", LONG]),
    "FetchBatch": ("queues", "q", [5, {}, ".", LONG]),
    "AckBatch": (
        "items",
        {"jobId": "job_x"},
        [5, [], {"jobId": 1}, {"jobId": "a b"}, {}, {"leaseToken": 1}],
    ),
    "Enqueue": ("dependsOn", "job_x", [5, {}, "a b"]),
}


@pytest.mark.parametrize("method", RPC_LISTS)
def test_a_part_of_a_call(api: Api, method: str) -> None:
    member, good, parts = RPC_LISTS[method]
    for bad in parts:
        status, answer = call(api, method, {"queue": "q", member: [good] * PLACE + [bad]})
        assert status == 400, answer
        snake = member.replace("dependsOn", "depends_on")
        named = (f"{snake}[{PLACE}]", f"ack {PLACE} ")
        assert any(text in answer["message"] for text in named), answer


def test_a_job_of_a_heartbeat_call(api: Api) -> None:
    for bad in (5, [], {"leaseToken": 1}, {"progressJson": "5"}, {"leaseToken": LONG}):
        status, answer = call(api, "Heartbeat", {"jobs": {"job_a": {}, "job_b": bad}})
        assert status == 400 and "job_b" in answer["message"], answer


@pytest.mark.parametrize(
    ("member", "good", "bad"),
    [
        ("acks", {"jobId": "job_x"}, {}),
        ("fails", {"jobId": "job_x", "leaseToken": "t"}, {"jobId": "a b"}),
        ("enqueues", {"queue": "q"}, {}),
        ("enqueues", {"queue": "q"}, {"queue": "q", "priority": "x"}),
        ("enqueues", {"queue": "q"}, {"queue": "q", "dependsOn": ["job_not_there"]}),
        ("enqueues", {"queue": "q"}, {"queue": "q", "chainJson": '{"steps":[{}]}'}),
    ],
)
def test_a_part_of_a_frame(api: Api, member: str, good: Any, bad: Any) -> None:
    parts = [bad, bad] if member == "fails" else [good] * PLACE + [bad]
    status, answer = call(api, "StreamLifecycle", {"requestId": "1", member: parts})
    assert status == 200
    place = 0 if member == "fails" else PLACE  # the first refusal is reported
    assert f": item {place}: " in answer["error"], answer


@pytest.mark.parametrize("member", ["acks", "fails", "enqueues", "queues"])
def test_a_part_of_a_frame_of_another_type(api: Api, member: str) -> None:
    good: Any = "q" if member == "queues" else {}
    status, answer = call(api, "StreamLifecycle", {"requestId": "1", member: [good] * 2 + [5]})
    assert status == 400 and f"{member}[2]" in answer["message"], answer

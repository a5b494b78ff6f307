"""Every field of every body, with null and with an empty text: null is absent, and an empty text
is refused where a value is meant. The fields are read from the tables of bodies and messages."""

import inspect
import json
from typing import Any

import msgspec
import pytest
from lib.harness import Api, ServerProcess

from corvo._fast.codec import protobuf
from corvo.engine.commands import inputs
from corvo.mirror.filters import PARSERS
from corvo.net.api import requests
from corvo.net.rpc.status import TYPES

JOB = {"queue": "empty-values"}
STEPS = {"steps": [JOB, JOB]}
HELD = {"hold": {"timeout": "1h", "timeout_action": "reject"}}
LOCK = {"queue": "empty-values", "unique_key": "k"}
SCHEDULE = {"name": "empty-values", "cron": "@daily", "queue": "empty-values"}
SELECTED = {"action": "hold", "job_ids": ["job_x"]}
# The bodies of all routes: a path, a body, and where in it the struct is.
BODIES: dict[type[msgspec.Struct], list[tuple[str, str, Any, tuple[str | int, ...]]]] = {
    inputs.EnqueueBody: [
        ("POST", "/enqueue", JOB, ()),
        ("POST", "/enqueue/batch", {"jobs": [JOB]}, ("jobs", 0)),
    ],
    inputs.EnqueueBatchBody: [("POST", "/enqueue/batch", {"jobs": [JOB]}, ())],
    inputs.BatchBody: [
        (
            "POST",
            "/enqueue/batch",
            {"jobs": [JOB], "batch": {"callback_queue": "q"}},
            ("batch",),
        )
    ],
    inputs.ChainBody: [
        ("POST", "/enqueue", JOB | {"chain": STEPS}, ("chain",)),
        ("POST", "/enqueue", JOB | {"chain_step": 0, "chain_config": STEPS}, ("chain_config",)),
    ],
    inputs.FollowerBody: [
        ("POST", "/enqueue", JOB | {"chain": STEPS}, ("chain", "steps", 1)),
        (
            "POST",
            "/enqueue/batch",
            {"jobs": [JOB], "batch": {"on_death": JOB}},
            ("batch", "on_death"),
        ),
    ],
    inputs.HoldBody: [
        ("POST", "/jobs/job_x/hold", HELD["hold"], ()),
        ("POST", "/enqueue", JOB | HELD, ("hold",)),
    ],
    inputs.FetchBody: [
        ("POST", "/fetch", {"queues": ["none"], "timeout": 0}, ()),
        ("POST", "/fetch/batch", {"queues": ["none"], "timeout": 0, "count": 2}, ()),
    ],
    inputs.AckBody: [("POST", "/ack/job_x", {}, ())],
    inputs.AckItem: [("POST", "/ack/batch", {"acks": [{"job_id": "job_x"}]}, ("acks", 0))],
    inputs.FailBody: [("POST", "/fail/job_x", {}, ())],
    inputs.Beat: [("POST", "/heartbeat", {"jobs": {"job_x": {}}}, ("jobs", "job_x"))],
    inputs.ReleaseBody: [("POST", "/release/job_x", {}, ())],
    requests.AckBatchBody: [("POST", "/ack/batch", {"acks": [{"job_id": "job_x"}]}, ())],
    requests.HeartbeatBody: [("POST", "/heartbeat", {"jobs": {"job_x": {}}}, ())],
    requests.ScheduleBody: [
        ("POST", "/schedules", SCHEDULE, ()),
        ("PUT", "/schedules/kept", {}, ()),
    ],
    requests.JobIdsBody: [("POST", "/jobs/bulk-get", {"job_ids": ["job_x"]}, ())],
    requests.CancelBody: [("POST", "/jobs/job_x/cancel", {}, ())],
    requests.ApproveBody: [("POST", "/jobs/job_x/approve", {}, ())],
    requests.RejectBody: [("POST", "/jobs/job_x/reject", {}, ())],
    requests.MoveBody: [("POST", "/jobs/job_x/move", {"queue": "other"}, ())],
    requests.PriorityBody: [("POST", "/jobs/job_x/priority", {"priority": "high"}, ())],
    requests.UndoBody: [("POST", "/bulk/bulk_x/undo", {}, ())],
    requests.BulkBody: [
        ("POST", "/jobs/bulk", SELECTED, ()),
        ("POST", "/jobs/bulk", {"action": "move", "job_ids": ["j"], "move_to_queue": "o"}, ()),
        ("POST", "/jobs/bulk", SELECTED | {"timeout": "1h", "timeout_action": "reject"}, ()),
    ],
    requests.FacetsBody: [("POST", "/jobs/facets", {}, ())],
    requests.RetentionBody: [("POST", "/queues/empty-values/retention", {}, ())],
    requests.LineBody: [("POST", "/jobs/job_x/logs", {"lines": [{"message": "m"}]}, ("lines", 0))],
    requests.LogsBody: [("POST", "/jobs/job_x/logs", {"lines": [{"message": "m"}]}, ())],
    requests.ReleaseLockBody: [("POST", "/locks/release", LOCK, ())],
    requests.ConcurrencyBody: [("POST", "/queues/empty-values/concurrency", {"max": 5}, ())],
    requests.ThrottleBody: [
        ("POST", "/queues/empty-values/throttle", {"rate": 5, "period": "1s"}, ()),
        ("POST", "/queues/empty-values/throttle", {"rate": 5, "window_ms": 9}, ()),
    ],
    requests.GroupsBody: [("POST", "/queues/empty-values/groups", {"concurrency": 2}, ())],
    requests.AgingBody: [("POST", "/queues/empty-values/aging", {"after": "1m"}, ())],
    requests.MemberBody: [
        ("POST", "/cluster/transfer", {}, ()),
        ("POST", "/cluster/remove", {"node_id": "n"}, ()),
        ("POST", "/cluster/promote", {"node_id": "n"}, ()),
    ],
    requests.ClockBody: [("POST", "/test/clock", {}, ())],
}
# Not bodies that clients write: a node that joins, and parts of the decoder.
OTHERS = {"JoinBody", "JobBody"}
# Texts: an empty one is a text.
TEXTS = {"reason", "note", "by", "approved_by", "rejected_by", "exit_reason", "stream_delta"}
TEXTS |= {"error", "backtrace", "message"}
# Any JSON: an empty text is a value.
JSON = {"payload", "result", "checkpoint", "progress", "feedback", "callback_payload"}
# Null is a value of these: it removes a limit.
REMOVES = {("GroupsBody", "concurrency"), ("AgingBody", "after")}
CASES = [
    (kind, field, *place)
    for kind, places in BODIES.items()
    for place in places
    for field in kind.__struct_encode_fields__
]


@pytest.fixture(scope="module", autouse=True)
def schedule(shared_server: ServerProcess) -> None:
    """A schedule that the tests change."""
    api = shared_server.api()
    api.ok("POST", "/schedules", SCHEDULE | {"name": "kept"})
    api.close()


def changed(body: Any, at: tuple[str | int, ...], field: str, *value: Any) -> Any:
    """A body without a field of the part at some place, or with a value in it."""
    body = json.loads(json.dumps(body))
    part = body
    for key in at:
        part = part[key]
    part.pop(field, None)
    if value:
        part[field] = value[0]
    return body


def outcome(reply: tuple[int, Any]) -> tuple[int, Any]:
    """Return the status and the main fields of a reply, without ids and times."""
    status, answer = reply
    keys = ("code", "field", "acked", "error") if isinstance(answer, dict) else ()
    return status, {key: answer[key] for key in keys if key in answer}


def named(case: Any) -> str:
    return str(getattr(case, "__name__", getattr(case, "name", case)))[:50]


def test_the_tables_are_complete() -> None:
    found = {
        kind.__name__
        for module in (inputs, requests)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, msgspec.Struct) and not kind.__name__.startswith("_")
    }
    assert found - {kind.__name__ for kind in BODIES} == OTHERS


@pytest.mark.parametrize(("kind", "field", "method", "path", "body", "at"), CASES, ids=named)
def test_null_is_absent(
    api: Api, kind: Any, field: str, method: str, path: str, body: Any, at: Any
) -> None:
    if (kind.__name__, field) in REMOVES:
        return
    absent = outcome(api.call(method, path, changed(body, at, field)))
    null = outcome(api.call(method, path, changed(body, at, field, None)))
    if (kind, method) == (requests.ScheduleBody, "POST"):
        api.call("DELETE", "/schedules/empty-values")
        null = outcome(api.call(method, path, changed(body, at, field, None)))
        api.call("DELETE", "/schedules/empty-values")
    required = kind is requests.ScheduleBody and field in ("name", "cron", "queue")
    if required and method == "PUT":  # absent leaves it as it is, null is the default
        assert null[0] == 400 and null[1]["field"] == field
    else:
        assert null == absent


@pytest.mark.parametrize(("kind", "field", "method", "path", "body", "at"), CASES, ids=named)
def test_an_empty_text(
    api: Api, kind: Any, field: str, method: str, path: str, body: Any, at: Any
) -> None:
    status, answer = api.call(method, path, changed(body, at, field, ""))
    if field in TEXTS | JSON and (kind, field) != (requests.FacetsBody, "by"):
        assert status in (200, 201, 404), answer
        return
    if "failed" in answer:  # the other acks take effect
        [answer] = answer["failed"]
        assert answer["code"] == "VALIDATION_ERROR" and field in answer["error"], answer
        return
    assert status == 400, (status, answer)
    assert answer["code"] in ("VALIDATION_ERROR", "SCHEDULE_ERROR"), answer
    assert field in answer["error"], answer


@pytest.mark.parametrize("field", PARSERS)
def test_a_filter(api: Api, field: str) -> None:
    for path, body in (
        ("/jobs/search", {field: ""}),
        ("/jobs/facets", {"filter": {field: ""}}),
        ("/jobs/bulk", {"action": "hold", "filter": {field: ""}}),
    ):
        status, answer = api.post(path, body)
        assert status == 400 and field in answer["error"], (path, answer)
    assert api.post("/jobs/search", {field: None})[0] == 200


@pytest.mark.parametrize("field", ["sort", "order", "limit"])
def test_the_page_of_a_search(api: Api, field: str) -> None:
    status, answer = api.post("/jobs/search", {field: ""})
    assert (status, answer["field"]) == (400, field)
    assert api.post("/jobs/search", {field: None})[0] == 200


@pytest.mark.parametrize("field", ["filter", "by"])
def test_facets(api: Api, field: str) -> None:
    assert api.post("/jobs/facets", {field: ""})[0] == 400
    assert api.post("/jobs/facets", {field: None})[0] == 200


def test_the_header_of_a_key(api: Api) -> None:
    status, answer = api.call("POST", "/enqueue", JOB, {"Idempotency-Key": ""})
    assert status == 400 and "Idempotency-Key" in answer["error"]


def test_an_empty_time_runs_nothing(api: Api, queue: str) -> None:
    for field in ("scheduled_at", "delay"):
        status, answer = api.post("/enqueue", {"queue": queue, field: ""})
        assert (status, answer["field"]) == (400, field)
    assert api.fetch(queue) is None


# ---- the worker service ----

# A call of each method, and where in it each message is.
CALLS: dict[str, list[tuple[str, Any, tuple[str | int, ...]]]] = {
    "EnqueueRequest": [("Enqueue", JOB, ())],
    "FetchRequest": [("Fetch", {"queues": ["none"], "leaseDuration": 5}, ())],
    "FetchBatchRequest": [("FetchBatch", {"queues": ["none"], "leaseDuration": 5}, ())],
    "AckRequest": [("Ack", {"jobId": "job_x"}, ())],
    "AckBatchRequest": [("AckBatch", {"items": [{"jobId": "job_x"}]}, ())],
    "AckBatchItem": [
        ("AckBatch", {"items": [{"jobId": "job_x"}]}, ("items", 0)),
        ("StreamLifecycle", {"acks": [{"jobId": "job_x"}]}, ("acks", 0)),
    ],
    "FailRequest": [
        ("Fail", {"jobId": "job_x"}, ()),
        ("StreamLifecycle", {"fails": [{"jobId": "job_x"}]}, ("fails", 0)),
    ],
    "HeartbeatRequest": [("Heartbeat", {"jobs": {"job_x": {}}}, ())],
    "HeartbeatJobUpdate": [("Heartbeat", {"jobs": {"job_x": {}}}, ("jobs", "job_x"))],
    "LifecycleStreamRequest": [("StreamLifecycle", {"requestId": "1"}, ())],
    "LifecycleEnqueueItem": [("StreamLifecycle", {"enqueues": [JOB]}, ("enqueues", 0))],
}
MEMBERS = [
    (message, field, *place)
    for message, places in CALLS.items()
    for place in places
    for field in TYPES[message].fields
]


def call(api: Api, method: str, message: Any) -> tuple[int, Any]:
    # Without a deadline a fetch would wait for half a minute.
    headers = {"Content-Type": "application/json", "Connect-Timeout-Ms": "300"}
    path = f"//corvo.v1.WorkerService/{method}"
    return api.call("POST", path, json.dumps(message).encode(), headers)


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


@pytest.mark.parametrize(("message", "field", "method", "body", "at"), MEMBERS, ids=named)
def test_a_field_of_a_message(
    api: Api, message: str, field: Any, method: str, body: Any, at: Any
) -> None:
    """Null is absent; an empty text is the default of a text, and no number, flag, list or time."""
    name = camel(field.name)

    def ask(*value: Any) -> tuple[int, Any]:
        status, answer = call(api, method, changed(body, at, name, *value))
        return status, (answer.get("error", ""), answer.get("message", ""), answer.get("acked"))

    absent = ask()
    assert ask(None) == absent
    text = field.kind == protobuf.STRING and not field.repeated and field.message is None
    status, answer = ask("")
    if text:
        assert (status, answer) == absent
    else:
        assert status == 400 and field.name in answer[1], answer


@pytest.mark.parametrize("field", ["queue"])
def test_a_chain_in_a_message(api: Api, field: str) -> None:
    message = JOB | {"chainJson": json.dumps({"steps": [JOB, {field: ""}]})}
    status, answer = call(api, "Enqueue", message)
    assert status == 400 and field in answer["message"]


def test_an_item_of_a_list_in_a_message(api: Api) -> None:
    for method in ("Fetch", "FetchBatch"):
        status, answer = call(api, method, {"queues": ["q", ""]})
        assert status == 400 and "queues[1]" in answer["message"], answer

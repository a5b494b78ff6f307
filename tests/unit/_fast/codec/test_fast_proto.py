"""A frame that is recognised as plain means the same to the general way, op for op."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lib.proposing import CLOCK, CONFIG, ENQUEUES, SERVICE, WORK, WORLD

from corvo import limits, ops
from corvo._fast.codec import protobuf
from corvo._fast.codec.fast_proto import ID_SIZE, FastAcks, FastEnqueues
from corvo._fast.codec.layouts import decode_fields
from corvo.engine.caller import ANONYMOUS
from corvo.errors import CorvoError
from corvo.net.rpc.codecs import CODECS
from corvo.net.rpc.status import TYPES
from corvo.net.rpc.worker_service import Values, WorkerCalls

CALLS = WorkerCalls(SERVICE, ENQUEUES, WORK)
PROTO = CODECS["proto"]
MESSAGE = TYPES["LifecycleStreamRequest"]
ACK = {"job_id": "job_01HZX8WQ0000000000000000AA", "lease_token": "4k3"}
ENQUEUE = {"queue": "q", "payload_json": '{"a": [1, "\\n"]}'}

TEXT = st.sampled_from(
    [
        *("{}", "null", "", " 1", "1e5", '"ü"', '{"a":1}', "[1,2", "{}x", '"\\u0041"', "\x7f"),
        *("job_1", "..", ".", "q", 'q"', "ö", "a b", "x" * 127, "x" * 128, "x" * 200, "a/b", "\n"),
    ]
)
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "job_id": TEXT,
        "lease_token": TEXT,
        "result_json": TEXT,
        "checkpoint_json": TEXT,
        "step_status": st.just("exit"),
    },
)
JOB = st.fixed_dictionaries(
    {}, optional={"queue": TEXT, "payload_json": TEXT, "priority": st.just("high")}
)


def plain(values: Values) -> bool:
    frame = CALLS.read_frame(PROTO, protobuf.encode(MESSAGE, values))
    return isinstance(frame.get("acks"), FastAcks) or isinstance(
        frame.get("enqueues"), FastEnqueues
    )


def proposed(values: Values) -> list[Any]:
    """What a frame leads to: the ops, ids of new jobs left out, and what is refused."""
    WORLD.ops = []
    refused: list[str] = []

    def note(error: CorvoError) -> None:
        refused.append(str(error))

    for part, propose in (
        (
            "acks",
            lambda items: CALLS.ack_items(
                ANONYMOUS, items, lambda _, error: note(error), lambda _: None
            ),
        ),
        (
            "enqueues",
            lambda items: CALLS.enqueue_all(
                ANONYMOUS, items, lambda _, error: note(error), lambda _: None
            ),
        ),
    ):
        items = values.get(part)
        if not items:
            continue
        if part == "acks" and isinstance(items, list):  # as a session does
            items = [item for item in items if item.get("job_id")]
        try:
            propose(items)
        except CorvoError as error:
            refused.append(str(error))
    found: list[Any] = [refused]
    for number, payload in WORLD.ops:
        if number == ops.ENQUEUE_BATCH.number:
            jobs, batch = decode_fields(ops.ENQUEUE_BATCH.layout, payload)
            fields = [decode_fields(ops.ENQUEUE.layout, job) for job in jobs]
            assert len({job[0] for job in fields}) == len(jobs)
            assert all(len(job[0]) == ID_SIZE for job in fields)
            found.append(([job[1:] for job in fields], batch))
        else:
            found.append((number, payload))
    return found


@given(st.lists(ITEM, max_size=3), st.lists(JOB, max_size=3), st.booleans())
@example([ACK], [ENQUEUE], True)
@example([ACK, ACK | {"result_json": "[1]"}], [ENQUEUE] * 3 + [{"queue": "r", **ENQUEUE}], False)
def test_a_plain_frame_means_the_same_as_by_the_general_way(
    acks: list[Values], enqueues: list[Values], fetches: bool
) -> None:
    values: Values = {"request_id": 1 << 60, "acks": acks, "enqueues": enqueues}
    if fetches:
        values |= {"queues": ["q"], "worker_id": "w", "fetch_count": 3}
    data = protobuf.encode(MESSAGE, values)
    general = PROTO.decode("LifecycleStreamRequest", data)
    frame = CALLS.read_frame(PROTO, data)
    for part in ("acks", "enqueues"):
        assert len(frame.get(part, [])) == len(general.get(part, []))
    assert {k: v for k, v in frame.items() if k not in ("acks", "enqueues")} == {
        k: v for k, v in general.items() if k not in ("acks", "enqueues")
    }
    assert proposed(frame) == proposed(general)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_bytes_that_are_no_frame_are_refused_as_by_the_general_way(junk: bytes, at: int) -> None:
    data = protobuf.encode(MESSAGE, {"acks": [ACK], "enqueues": [ENQUEUE], "request_id": 3})
    data = data[:at] + junk + data[at:]
    try:
        general = PROTO.decode("LifecycleStreamRequest", data)
    except protobuf.ProtobufError as error:
        with pytest.raises(protobuf.ProtobufError, match="^" + re.escape(str(error))):
            CALLS.read_frame(PROTO, data)
        return
    frame = CALLS.read_frame(PROTO, data)
    assert proposed(frame) == proposed(general)


def test_which_frames_are_plain() -> None:
    assert plain({"acks": [ACK]}) and plain({"enqueues": [ENQUEUE] * 3})
    assert plain({"acks": [ACK | {"result_json": '{"é": 1}'}]})
    assert not plain({"acks": [ACK, {"job_id": "a"}]}), "without a token"
    assert not plain({"acks": [ACK | {"result_json": "null"}]})
    assert not plain({"enqueues": [ENQUEUE, ENQUEUE | {"priority": "high"}]})
    assert not plain({"enqueues": [{"queue": "q"}]}) and not plain({"request_id": 1})
    assert not plain({"acks": [ACK] * (limits.ACK_BATCH_MAX + 1)})
    assert not plain({"enqueues": [ENQUEUE] * (limits.LIFECYCLE_ENQUEUES_MAX + 1)})
    large = '"' + "x" * CONFIG.max_payload_size + '"'
    assert not plain({"enqueues": [{"queue": "q", "payload_json": large}]})


def test_ids_of_new_jobs_are_named_in_order_by_the_response() -> None:
    data = protobuf.encode(MESSAGE, {"enqueues": [ENQUEUE | {"queue": q} for q in "aabc"]})
    frame = CALLS.read_frame(PROTO, data)
    jobs = frame["enqueues"]
    assert jobs.queues == [("a", 2), ("b", 1), ("c", 1)]
    ids = SERVICE.new_job_ids(CLOCK.stamp(), 4)
    items, _ = decode_fields(ops.ENQUEUE_BATCH.layout, jobs.encode(ids))
    assert [decode_fields(ops.ENQUEUE.layout, item)[:2] for item in items] == [
        (job_id, queue) for job_id, queue in zip(ids, "aabc", strict=True)
    ]
    response = PROTO.encode("LifecycleStreamResponse", {"enqueued_job_ids": jobs.ids})
    assert PROTO.decode("LifecycleStreamResponse", response) == {"enqueued_job_ids": ids}


def test_acks_are_looked_at_one_by_one_once_a_result_has_a_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = protobuf.encode(MESSAGE, {"acks": [ACK]})
    machine = SimpleNamespace(result_schemas=True)
    monkeypatch.setattr(SERVICE, "reads", machine)
    assert CALLS.read_frame(PROTO, data) == {"acks": [ACK]}

"""Documents and the meta row: round trips, damage, and the bytes themselves."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo import records
from corvo._fast.codec.layouts import CodecError, decode_fields, encode_fields
from corvo.errors import StorageError
from corvo.events import COMPLETED, ENQUEUED, EVENT_TYPES, STARTED, Event
from corvo.limits import TIME_MAX_NS
from corvo.model import (
    ACTIONS,
    BACKOFFS,
    CATCH_UPS,
    ERROR_KINDS,
    HOLD_ACTIONS,
    ON_DEPENDENCY_FAILURE,
    OPERATION_KINDS,
    OPERATION_STATES,
    OVERLAPS,
    STATES,
    UNIQUE_UNTIL,
    Batch,
    BulkOperation,
    ErrorRecord,
    Job,
    JobOptions,
    Log,
    LogBlock,
    Queue,
    Schedule,
    Worker,
)
from corvo.storage.records import bulk as bulk_records
from corvo.storage.records import (
    events as event_records,
)
from corvo.storage.records import (
    jobs as job_records,
)
from corvo.storage.records import (
    logs as log_records,
)
from corvo.storage.records import (
    meta,
)
from corvo.storage.records import (
    outbox as outbox_records,
)
from corvo.storage.records import (
    queues as queue_records,
)

GOLDEN = Path(__file__).parents[1] / "golden"
STAMP = 1_764_280_000_000_000_000
U63 = st.integers(0, 2**63 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TIME = st.integers(0, TIME_MAX_NS)
BYTES = st.binary(max_size=40)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def below(names: tuple[str, ...]) -> st.SearchStrategy[int]:
    return st.integers(0, len(names) - 1)


HEAD = {
    "queue_number": U63,
    "seq": U63,
    "priority": st.integers(0, 2),
    "state": below(STATES),
    "attempt": U63,
    "scheduled_ns": TIME,
    "started_ns": U63,
    "completed_ns": U63,
    "failed_ns": U63,
    "cancel_requested_ns": U63,
    "lease_ns": U63,
    "lease_expires_ns": U63,
    "fencing": U63,
    "lease_seed": I64,
    "lease_term": U63,
    "lease_touched": st.booleans(),
    "releases": U63,
    "worker_id": TEXT,
    "hostname": TEXT,
    "error_count": U63,
    "event_seq": U63,
    "provider_error": st.booleans(),
    "keeps_position": st.booleans(),
    "ready_ns": U63,
    "has_options": st.booleans(),
    "returned_ns": U63,
}
BODY = {
    "payload": BYTES,
    "tags": BYTES,
    "max_retries": U63,
    "backoff": below(BACKOFFS),
    "base_delay_ms": U63,
    "max_delay_ms": U63,
    "jitter_ppm": U63,
    "created_ns": U63,
    "parent_id": TEXT,
    "unique_key": BYTES,
    "unique_until": below(UNIQUE_UNTIL),
    "unique_period_ns": U63,
    "schedule_id": TEXT,
    "schedule_occurrence_ns": U63,
}
DATA = {"checkpoint": BYTES, "progress": BYTES, "result": BYTES}
OPTIONS = {
    "group_key": TEXT,
    "batch_id": TEXT,
    "chain_id": TEXT,
    "chain_step": I64,
    "chain": BYTES,
    "depends_on": st.lists(TEXT, max_size=4),
    "on_dependency_failure": below(ON_DEPENDENCY_FAILURE),
    "result_schema": BYTES,
    "expires_ns": TIME,
    "hold_reason": TEXT,
    "hold_ends_ns": TIME,
    "hold_action": below(HOLD_ACTIONS),
    "feedback": BYTES,
    "open_dependencies": st.lists(TEXT, max_size=4),
    "has_dependents": st.booleans(),
    "has_logs": st.booleans(),
}
NOT_STORED = {
    "body_apart",
    "data_apart",
    "options",
    "id",
    "size",
    "token",
    "dirty",
    "resident",
    "deleted",
    "stored_row",
    "stored_expiry",
}
BATCH = {
    "on_success": BYTES,
    "on_complete": BYTES,
    "on_death": BYTES,
    "created_ns": U63,
    "finished_ns": U63,
    "total": U63,
    "pending": U63,
    "succeeded": U63,
    "failed": U63,
}
QUEUE = {
    "paused": st.booleans(),
    "max_concurrency": U63,
    "created_ns": U63,
    "next_seq": U63,
    "counts": st.lists(U63, min_size=24, max_size=24),
    "enqueued_total": U63,
    "completed_total": U63,
    "failed_total": U63,
    "dead_total": U63,
    "expired_total": U63,
    "draining": st.booleans(),
    "cleared_seq": U63,
    "destroyed": st.booleans(),
    "retention_ns": st.lists(I64, min_size=3, max_size=3),
    "rate_limit": U63,
    "rate_window_ns": U63,
    "group_concurrency": U63,
    "aging_after_ns": U63,
    "turn": U63,
    "served": U63,
}
OPERATION = {
    "kind": below(OPERATION_KINDS),
    "state": below(OPERATION_STATES),
    "queue_number": U63,
    "queue": TEXT,
    "action": below(ACTIONS),
    "arguments": BYTES,
    "total": U63,
    "counts": st.lists(U63, min_size=3, max_size=3),
    "next_chunk": U63,
    "chunks": U63,
    "cut_numbers": st.lists(U63, max_size=4),
    "cut_seqs": st.lists(U63, max_size=4),
    "family": U63,
    "cursor": BYTES,
    "round_changed": st.booleans(),
    "rounds": U63,
    "undoes": TEXT,
    "undone_by": TEXT,
    "created_ns": U63,
    "updated_ns": U63,
    "finished_ns": U63,
}
WORKER = {
    "hostname": TEXT,
    "queues": st.lists(TEXT, max_size=4),
    "started_ns": U63,
    "seen_ns": U63,
}
SCHEDULE = {
    "revision": U63,
    "name": TEXT,
    "cron": TEXT,
    "timezone": TEXT,
    "job": BYTES,
    "enabled": st.booleans(),
    "overlap": below(OVERLAPS),
    "catch_up": below(CATCH_UPS),
    "catch_up_limit": U63,
    "created_ns": U63,
    "next_ns": U63,
    "last_occurrence_ns": U63,
    "last_run_ns": U63,
    "last_job_id": TEXT,
}
META = {
    "applied_index": U63,
    "applied_term": U63,
    "cluster_id": BYTES,
    "stamp_ns": U63,
    "fencing": U63,
    "event_seq": U63,
    "event_first_seq": U63,
    "event_log_size": U63,
    "next_queue_number": U63,
    "hash": st.binary(min_size=16, max_size=16),
    "first_idempotency": U63,
    "next_idempotency": U63,
    "result_schemas": st.booleans(),
    "configuration": BYTES,
}


def attributes(thing: Any) -> set[str]:
    """Names of the fields of a native class, compiled or not."""
    names = vars(thing) if hasattr(thing, "__dict__") else dir(thing)
    return {n for n in names if not n.startswith("_") and not callable(getattr(thing, n))}


def filled(thing: Any, values: dict[str, Any]) -> Any:
    for name, value in values.items():
        setattr(thing, name, value)
    return thing


def read(thing: Any, fields: Any) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in fields}


def test_every_field_of_the_model_is_stored() -> None:
    assert attributes(Job("j")) == {*HEAD, *BODY, *DATA, *NOT_STORED}
    assert attributes(JobOptions()) == {*OPTIONS, "blocked"}
    assert attributes(Batch("b")) == {*BATCH, "id"}
    assert attributes(Queue(1, "q")) == {*QUEUE, "number", "name", "dirty"}
    assert attributes(Worker("w")) == {*WORKER, "id", "dirty"}
    assert attributes(Schedule("s")) == {*SCHEDULE, "id"}
    assert attributes(BulkOperation("t", 0)) == {*OPERATION, "id", "cuts"}
    assert attributes(meta.Meta()) == set(META)


@given(
    st.fixed_dictionaries(HEAD),
    st.fixed_dictionaries(BODY),
    st.fixed_dictionaries(DATA),
    st.booleans(),
    st.booleans(),
)
def test_jobs(
    head: dict[str, Any],
    body: dict[str, Any],
    data: dict[str, Any],
    body_apart: bool,
    data_apart: bool,
) -> None:
    parts = {"body_apart": body_apart, "data_apart": data_apart}
    job = filled(Job("job_1"), head | body | data | parts)
    again = job_records.decode_head("job_1", job_records.encode_head(job))
    assert again.id == "job_1" and read(again, HEAD) == head
    assert read(again, parts) == parts
    if body_apart:
        job_records.decode_body(again, job_records.encode_body(job))
    assert read(again, BODY) == body
    if data_apart:
        job_records.decode_data(again, job_records.encode_data(job))
    assert read(again, DATA) == data


@given(st.fixed_dictionaries(HEAD), st.fixed_dictionaries(BODY), st.binary(max_size=40), st.data())
def test_head_and_body_are_fields_of_their_layouts(
    head: dict[str, Any], body: dict[str, Any], noise: bytes, data: st.DataObject
) -> None:
    """Written and read field by field, the bytes are those of the layout."""
    job = filled(Job("job_1"), head | body)
    encoded = job_records.encode_body(job)
    values = decode_fields(job_records.BODY_LAYOUT, encoded)
    assert sorted(map(str, values)) == sorted(map(str, body.values()))
    assert encode_fields(job_records.BODY_LAYOUT, values) == encoded
    whole = job_records.encode_head(job)
    later = [head.pop("returned_ns")]
    newest, first = records.formats(records.JOB_HEAD)
    own_layout = records.layout(newest if later[0] else first)
    values = decode_fields(own_layout, whole)
    assert encode_fields(own_layout, values) == whole
    if later[0]:
        values, last = values[:-1], values[-1]
        assert last == later[0]
    assert values[-1] == encoded
    assert values[-3:-1] == (False, b""), "no data"
    assert sorted(map(str, values[:-3])) == sorted(map(str, head.values()))
    at = data.draw(st.integers(0, len(encoded)))
    damaged = encoded[:at] + noise + encoded[at + data.draw(st.integers(0, 4)) :]
    try:
        values = decode_fields(job_records.BODY_LAYOUT, damaged)
    except CodecError:
        values = None
    if values is None or any(type(value) is int and value >= 2**63 for value in values):
        with pytest.raises(StorageError):
            job_records.decode_body(job, damaged)
    else:
        job_records.decode_body(job, damaged)
        assert job_records.encode_body(job) == damaged


def test_a_head_without_the_field_of_a_later_format_is_read() -> None:
    before = job_records.encode_head(_golden_job())  # its bytes are golden
    job = job_records.decode_head("job_A1", before)
    assert job.returned_ns == 0
    job.returned_ns = STAMP
    assert job_records.encode_head(job)[: len(before)] == before
    assert job_records.decode_head("job_A1", job_records.encode_head(job)).returned_ns == STAMP


@given(st.fixed_dictionaries(OPTIONS))
def test_options(values: dict[str, Any]) -> None:
    options = filled(JobOptions(), values)
    again = job_records.decode_options("job_1", job_records.encode_options(options))
    assert read(again, OPTIONS) == values


def test_the_head_of_a_waiting_job_is_small() -> None:
    job = filled(Job("job_1"), {"queue_number": 7, "seq": 1_000_000, "event_seq": 5_000_000})
    assert len(job_records.encode_head(job)) <= 34 + 1 + len(job_records.encode_body(job))


@given(U63, st.fixed_dictionaries(QUEUE))
def test_queues(number: int, values: dict[str, Any]) -> None:
    queue = filled(Queue(number, "q"), values)
    again = queue_records.decode_queue("q", queue_records.encode_queue(queue))
    assert (again.number, again.name, read(again, QUEUE)) == (number, "q", values)


@given(TEXT, U63)
def test_groups_and_grants(key: str, number: int) -> None:
    assert queue_records.decode_group(queue_records.encode_group(key, number)) == (key, number)
    assert queue_records.decode_grant(queue_records.encode_grant(number)) == number


@given(st.fixed_dictionaries(WORKER))
def test_workers(values: dict[str, Any]) -> None:
    worker = filled(Worker("w"), values)
    again = job_records.decode_worker("w", job_records.encode_worker(worker))
    assert again.id == "w" and read(again, WORKER) == values


@given(st.fixed_dictionaries(SCHEDULE))
def test_schedules(values: dict[str, Any]) -> None:
    schedule = filled(Schedule("sched_1"), values)
    again = job_records.decode_schedule("sched_1", job_records.encode_schedule(schedule))
    assert again.id == "sched_1" and read(again, SCHEDULE) == values


@given(st.fixed_dictionaries(OPERATION))
def test_tasks(values: dict[str, Any]) -> None:
    operation = filled(BulkOperation("bulk_1", 0), values)
    again = bulk_records.decode_operation("bulk_1", bulk_records.encode_operation(operation))
    assert again.id == "bulk_1" and read(again, OPERATION) == values


@given(st.lists(TEXT, max_size=4), BYTES, st.lists(BYTES, max_size=4))
def test_task_chunks(ids: list[str], outcomes: bytes, befores: list[bytes]) -> None:
    row = bulk_records.encode_chunk(ids, outcomes, befores)
    assert bulk_records.decode_chunk(row) == (ids, outcomes, befores)


@given(st.fixed_dictionaries(BATCH))
def test_batches(values: dict[str, Any]) -> None:
    batch = filled(Batch("batch_1"), values)
    again = job_records.decode_batch("batch_1", job_records.encode_batch(batch))
    assert again.id == "batch_1" and read(again, BATCH) == values


@given(st.integers(0, 2**64 - 1), U63, BYTES, BYTES, BYTES)
def test_replays(digest: int, stamp_ns: int, key: bytes, print_: bytes, outcome: bytes) -> None:
    encoded = job_records.encode_idempotency(digest, stamp_ns, key, print_, outcome)
    assert job_records.idempotency_digest(encoded) == digest
    assert job_records.decode_idempotency(encoded) == (stamp_ns, key, print_, outcome)


@given(U63, below(ERROR_KINDS), BYTES, BYTES, U63)
def test_error_records(attempt: int, kind: int, error: bytes, backtrace: bytes, at: int) -> None:
    encoded = job_records.encode_error(ErrorRecord(attempt, kind, error, backtrace, at))
    again = job_records.decode_error("job_1", encoded)
    fields = (again.attempt, again.kind, again.error, again.backtrace, again.at_ns)
    assert fields == (attempt, kind, error, backtrace, at)


@given(TEXT, TIME, BYTES)
def test_unique_locks(job_id: str, expires_ns: int, key: bytes) -> None:
    encoded = job_records.encode_lock(job_id, expires_ns, key)
    assert job_records.decode_lock(encoded) == (job_id, expires_ns, key)


def fields_of(change: Event) -> tuple[Any, ...]:
    return (
        change.seq,
        change.type,
        change.job_id,
        change.queue,
        change.at_ns,
        change.data,
        change.previous,
    )


@st.composite
def blocks(draw: st.DrawFn) -> list[Event]:
    first = draw(st.integers(1, 2**62))
    queues = st.sampled_from(["default", "q/é", ""])
    ids = st.sampled_from(["job_01KB5H4S00", "job_01KB5H4S01", "job_01KB5H9", ""]) | TEXT
    return [
        Event(
            seq,
            draw(below(EVENT_TYPES)),
            draw(ids),
            draw(queues),
            STAMP,
            draw(BYTES),
            draw(st.just(0) | st.integers(1, seq - 1)) if seq > 1 else 0,
        )
        for seq in range(first, first + draw(st.integers(1, 12)))
    ]


_block = event_records.EventBlock()


def encode_events(changes: list[Event]) -> bytes:
    _block.begin(changes[0].seq, changes[0].at_ns)
    for change in changes:
        _block.add(change.type, change.job_id, change.queue, change.previous, change.data)
    return _block.done()


@given(blocks())
def test_event_blocks(changes: list[Event]) -> None:
    first = changes[0].seq
    block = encode_events(changes)
    assert [*map(fields_of, event_records.decode_events(first, block))] == [
        *map(fields_of, changes)
    ]
    for change in changes:
        found = event_records.decode_event(first, block, change.seq)
        assert found is not None and fields_of(found) == fields_of(change)
    assert event_records.decode_event(first, block, first - 1) is None
    assert event_records.decode_event(first, block, first + len(changes)) is None


def test_an_event_takes_few_bytes() -> None:
    changes = [
        Event(1000 + i, STARTED, f"job_01KB5H4S0{i * 7919:017}", "default", STAMP, b"", 900 + i)
        for i in range(64)
    ]
    assert len(encode_events(changes)) <= 20 * len(changes)


@pytest.mark.parametrize(
    "columns",
    [
        (STAMP, ["q"], [1, 1], [0], ["a"], [0], [b""]),
        (STAMP, ["q"], [1], [1], ["a"], [0], [b""]),
        (STAMP, [], [1], [0], ["a"], [0], [b""]),
    ],
)
def test_columns_of_a_block_must_match(columns: tuple[Any, ...]) -> None:
    block = job_records.encode_fields(event_records.LAYOUT, columns)
    with pytest.raises(StorageError, match=r"event block '7'.*columns do not match"):
        event_records.decode_events(7, block)


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (lambda data: job_records.decode_head("x", data), "job head 'x'"),
        (lambda data: job_records.decode_body(Job("x"), data), "job body 'x'"),
        (lambda data: job_records.decode_data(Job("x"), data), "job data 'x'"),
        (lambda data: queue_records.decode_queue("x", data), "queue 'x'"),
        (lambda data: queue_records.decode_group(data), "group"),
        (lambda data: queue_records.decode_grant(data), "grant"),
        (lambda data: job_records.decode_worker("x", data), "worker 'x'"),
        (lambda data: job_records.decode_schedule("x", data), "schedule 'x'"),
        (lambda data: job_records.decode_error("x", data), "error of job 'x'"),
        (lambda data: job_records.decode_lock(data), "unique lock"),
        (lambda data: event_records.decode_events(1, data), "event block '1'"),
        (lambda data: meta.decode_meta(bytes((0, 0, 0, 2)) + data), "meta row"),
    ],
)
def test_damage_is_a_storage_error_that_names_the_document(read: Any, what: str) -> None:
    with pytest.raises(StorageError, match=f"damaged {what}.* in the state store: "):
        read(b"\x01\xff")


def test_a_worker_seen_after_the_end_of_time_is_damage() -> None:
    row = encode_fields(job_records.WORKER_LAYOUT, ("host", ["q"], 1 << 63, 0))
    with pytest.raises(StorageError, match="damaged worker 'w' in the state store: field 2: "):
        job_records.decode_worker("w", row)


@given(st.fixed_dictionaries(META))
def test_meta(values: dict[str, Any]) -> None:
    encoded = meta.encode_meta(filled(meta.Meta(), values))
    assert read(meta.decode_meta(encoded), META) == values


def test_a_newer_format_is_refused_whatever_follows() -> None:
    with pytest.raises(StorageError, match="format 3, this version of Corvo reads format 2"):
        meta.decode_meta(bytes((0, 0, 0, 3)) + b"anything")
    with pytest.raises(StorageError, match="no format number"):
        meta.decode_meta(b"")


def test_a_log_round_trips_and_its_columns_agree() -> None:
    row = log_records.encode_log(_golden_log())
    assert log_records.encode_log(log_records.decode_log("j", row)) == row
    uneven = encode_fields(log_records.LOG_LAYOUT, (1, 0, [1], [1], [1], [], [0]))
    with pytest.raises(StorageError, match="columns do not match"):
        log_records.decode_log("j", uneven)
    assert log_records.decode_log_block("j", log_records.encode_log_block([b"a"])) == [b"a"]


GOLDEN_CHANGES = [
    Event(41, ENQUEUED, "job_A1", "q", STAMP, b"", 0),
    Event(42, STARTED, "job_A2", "q", STAMP, b"{}", 12),
    Event(43, COMPLETED, "job_A2", "r", STAMP, b"", 42),
]


def _golden_job() -> Job:
    job = Job("job_A1")
    filled(job, {"queue_number": 3, "seq": 300, "state": 2, "attempt": 1, "started_ns": STAMP})
    filled(job, {"lease_ns": 60 * 10**9, "lease_expires_ns": STAMP + 60 * 10**9, "fencing": 9})
    filled(job, {"lease_seed": -2, "lease_term": 4, "worker_id": "w1", "hostname": "h"})
    filled(job, {"event_seq": 42, "payload": b'{"a":1}', "created_ns": STAMP, "unique_key": b"k"})
    return filled(job, {"priority": 2, "max_retries": 3, "backoff": 3, "result": b"7"})


def _golden_queue() -> Queue:
    queue = Queue(3, "q")
    queue.counts[5] = 1
    return filled(queue, {"paused": True, "max_concurrency": 8, "next_seq": 301})


def _golden_worker() -> Worker:
    return filled(Worker("w1"), {"hostname": "h", "queues": ["q", "r"], "seen_ns": 5})


def _golden_schedule() -> Schedule:
    values = {"revision": 2, "name": "n", "cron": "0 2 * * *", "timezone": "UTC", "job": b"j"}
    values |= {"overlap": 1, "catch_up": 2, "catch_up_limit": 9, "created_ns": 5}
    values |= {"next_ns": 300, "last_occurrence_ns": 7, "last_run_ns": 8, "last_job_id": "job_A1"}
    return filled(Schedule("sched_1"), values)


def _golden_meta() -> meta.Meta:
    values = {"applied_index": 300, "applied_term": 4, "cluster_id": b"c", "stamp_ns": STAMP}
    values |= {"fencing": 9, "event_seq": 43, "hash": b"h" * 16, "configuration": b"cfg"}
    return filled(meta.Meta(), values)


def _golden_log() -> Log:
    log = Log()
    for first_seq, attempt in ((5, 1), (300, 2)):
        block = filled(LogBlock(first_seq, attempt), {"count": 4, "size": 200, "dropped": 4})
        log.blocks.append(block)
    return filled(log, {"next_seq": 304, "dropped": 1})


def _golden_options() -> JobOptions:
    values = {"group_key": "g", "batch_id": "batch_1", "chain_id": "chn_1", "chain_step": -1}
    values |= {"chain": b"{}", "depends_on": ["job_1", "job_2"], "on_dependency_failure": 2}
    values |= {"result_schema": b"true", "expires_ns": 300, "hold_reason": "why"}
    values |= {"open_dependencies": ["job_2"], "has_dependents": True, "has_logs": True}
    options: JobOptions = filled(JobOptions(), values | {"hold_ends_ns": 128, "hold_action": 1})
    return options


def _golden_task() -> BulkOperation:
    values = {"action": 3, "arguments": b"a", "total": 300, "counts": [1, 2, 3], "chunks": 3}
    values |= {
        "next_chunk": 1,
        "cut_numbers": [3],
        "cut_seqs": [301],
        "cursor": b"k",
        "undone_by": "bulk_2",
    }
    return filled(
        BulkOperation("bulk_1", 2), values | {"rounds": 1, "created_ns": 5, "round_changed": True}
    )


def _golden_batch() -> Batch:
    values = {"on_complete": b"f", "created_ns": 300, "total": 3, "pending": 1, "failed": 2}
    return filled(Batch("batch_1"), values)


def changed() -> outbox_records.Changed:
    names = outbox_records.Changed()
    names.jobs, names.batches = ["job_01", "job_02"], ["batch_1"]
    names.queues, names.workers, names.schedules = ["mail"], ["w"], ["sched_1"]
    names.locks = [b"u|\0\0\0\1"]
    return names


def test_names_of_changed_documents_come_back() -> None:
    back = outbox_records.decode_changed(7, outbox_records.encode_changed(changed()))
    assert vars_of(back) == vars_of(changed()) and back.count() == 7
    assert outbox_records.decode_state(outbox_records.encode_state(b"epoch", 5)) == (b"epoch", 5)
    with pytest.raises(StorageError, match="outbox row '7'"):
        outbox_records.decode_changed(7, b"\x01")


def vars_of(names: outbox_records.Changed) -> list[Any]:
    return [
        names.jobs,
        names.batches,
        names.queues,
        names.workers,
        names.schedules,
        names.locks,
    ]


DOCUMENTS = {
    "job head": lambda: job_records.encode_head(
        filled(_golden_job(), {"body_apart": True, "data_apart": True})
    ),
    "job head with data and body": lambda: job_records.encode_head(_golden_job()),
    "outbox": lambda: outbox_records.encode_changed(changed()),
    "outbox_state": lambda: outbox_records.encode_state(b"epoch", 300),
    "job head that returned": lambda: job_records.encode_head(
        filled(_golden_job(), {"returned_ns": STAMP})
    ),
    "job body": lambda: job_records.encode_body(_golden_job()),
    "job data": lambda: job_records.encode_data(_golden_job()),
    "job options": lambda: job_records.encode_options(_golden_options()),
    "log": lambda: log_records.encode_log(_golden_log()),
    "log block": lambda: log_records.encode_log_block([b"line", b""]),
    "queue": lambda: queue_records.encode_queue(_golden_queue()),
    "group": lambda: queue_records.encode_group("g1", 7),
    "grant": lambda: queue_records.encode_grant(3),
    "worker": lambda: job_records.encode_worker(_golden_worker()),
    "schedule": lambda: job_records.encode_schedule(_golden_schedule()),
    "operation": lambda: bulk_records.encode_operation(_golden_task()),
    "operation chunk": lambda: bulk_records.encode_chunk(
        ["job_A1", "job_A2"], b"\0\x11", [b"b", b""]
    ),
    "error record": lambda: job_records.encode_error(ErrorRecord(1, 1, b'"e"', b"", 5)),
    "unique lock": lambda: job_records.encode_lock("job_A1", 3_000_000_007, b"k"),
    "batch": lambda: job_records.encode_batch(_golden_batch()),
    "idempotency": lambda: job_records.encode_idempotency(258, STAMP, b"k", b"f", b"o"),
    "event block": lambda: encode_events(GOLDEN_CHANGES),
    "meta": lambda: meta.encode_meta(_golden_meta()),
}


def test_golden_documents() -> None:
    golden = json.loads((GOLDEN / "records.json").read_text())
    assert {name: encode().hex(" ") for name, encode in DOCUMENTS.items()} == golden

"""Any text in any field of an op: apply, flush, reload and mirror survive it."""

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.fsm_driver import (
    Driver,
    chain,
    encode_arguments,
    encode_options,
    encode_step,
    enqueue_step,
    follower,
)
from lib.mirror_check import MemoryReader, catch_up, check_view
from lib.odd_ops import BUILT, NESTED, NOT_NAMES, UNCHECKED, apply_odd_ops, entry

from corvo import events, limits, ops
from corvo._fast.codec import keys
from corvo._fast.codec.layouts import decode_fields, encode_fields, encode_frame
from corvo.errors import EntryFailed, InvalidName, StorageError, UnknownOp, ValidationError
from corvo.fsm.machine import Machine
from corvo.mirror.file import MirrorFile
from corvo.model import ACTIONS
from corvo.records import Record
from corvo.storage.memory import MemoryStore
from corvo.storage.reader import Reader
from corvo.storage.records.outbox import decode_state

# Texts that are no names, because they never become part of a key. Each is only compared, looked
# up in memory, or stored in a value. The door bounds their sizes.
TEXTS = {
    "token": "compared",
    "worker_id": "the end of a key: it may have any character, and apply bounds its size",
    "hostname": "stored",
    "queues": "looked up in memory, and stored",
    "name": "stored, as an index in memory",
    "cron": "stored",
    "timezone": "stored",
    "schedule_id": "looked up in memory by ops other than SetSchedule",
    "queue": "looked up in memory by ReleaseLock",
    "job_id": "compared by ReleaseLock",
    "undone_id": "looked up in memory",
    "group_key": "stored after the last part of a value",
    "chain_id": "stored",
    "hold_reason": "stored",
    "reason": "stored",
    "by": "stored",
    "note": "stored",
}
TABLES: dict[str, Record] = {op.name: op.fields for op in BUILT}
TABLES |= {meaning: record for meaning, record in NESTED.items() if meaning.startswith("record ")}
NAMES = [
    (table, position)
    for table, record in TABLES.items()
    for position, field in enumerate(record)
    if field.kind in "noN"
]


def names(table: str) -> str:
    """The names of the fields of a table that are names."""
    return " ".join(field.name for field in TABLES[table] if field.kind in "noN")


def test_each_text_is_a_name_or_known() -> None:
    for record in TABLES.values():
        for field in record:
            if field.kind in "sS":
                assert field.name in TEXTS, f"is {field.name} ever part of a key? See `names`."
    assert names("Enqueue") == "job_id queue parent_id"
    assert names("SetSchedule") == "schedule_id"
    assert names("ReleaseLock") == ""


@pytest.mark.parametrize("raw", NOT_NAMES)
@pytest.mark.parametrize(("table", "position"), NAMES)
def test_a_field_for_a_name_takes_nothing_else(table: str, position: int, raw: str) -> None:
    field = TABLES[table][position]
    if field.kind == "o" and not raw:
        return
    value = [raw] if field.kind == "N" else raw
    with pytest.raises(InvalidName, match="field 0"):
        encode_fields(field.kind, (value,))
    with pytest.raises(InvalidName, match="field 0"):
        decode_fields(field.kind, encode_fields(field.kind.translate(UNCHECKED), (value,)))


@pytest.mark.parametrize("size", [limits.JOB_ID_SIZE_MAX, limits.QUEUE_NAME_SIZE_MAX])
def test_the_longest_name_is_that_of_a_job_or_queue(size: int) -> None:
    assert decode_fields("n", encode_fields("n", ("x" * size,))) == ("x" * size,)
    with pytest.raises(InvalidName, match="129 bytes"):
        encode_fields("n", ("x" * (size + 1),))


def refused(driver: Driver, number: int, payload: bytes) -> None:
    """Check that the op changes nothing, also as the inner op of an idempotency key."""
    before = driver.machine.hash, driver.machine.event_seq, driver.machine.refused_ops
    if ops.OPS[number].takes_key:
        values = (b"k", b"f", 10**12, 10, number, payload)
        wrapped = (ops.IDEMPOTENT.number, encode_fields(ops.IDEMPOTENT.layout, values))
    else:
        wrapped = (number, payload)
    index = driver.machine.applied_index
    results = driver.machine.apply(index + 1, 1, entry(driver.now_ns, 1, [(number, payload)]))
    results += driver.machine.apply(index + 2, 1, entry(driver.now_ns, 1, [wrapped]))
    assert [type(result) for result in results] == [InvalidName, InvalidName]
    hash_now, seq, count = driver.machine.hash, driver.machine.event_seq, before[2] + 2
    assert (hash_now, seq, driver.machine.refused_ops) == (*before[:2], count)
    driver.restart()


def changed(op: ops.Op, values: tuple[Any, ...], **fields: Any) -> tuple[int, bytes]:
    """The op with other values of some fields, unchecked."""
    named = dict(zip(op.names, values, strict=True)) | fields
    return op.number, encode_fields(op.layout.translate(UNCHECKED), tuple(named.values()))


@pytest.mark.parametrize("raw", NOT_NAMES)
@pytest.mark.parametrize("field", ["job_id", "queue", "parent_id"])
def test_enqueue(field: str, raw: str) -> None:
    driver = Driver()
    driver.enqueue("j")
    if field == "parent_id" and not raw:
        return
    bad = changed(*enqueue_step("new"), **{field: raw})
    refused(driver, *bad)
    good = encode_step(enqueue_step("first"))
    batch = (ops.ENQUEUE_BATCH.number, encode_fields("Bb", ([good, bad[1]], b"")))
    refused(driver, *batch)
    assert driver.machine.job("first") is None


def unchecked(layout: str, *values: Any) -> bytes:
    return encode_fields(layout.translate(UNCHECKED), values)


BAD_FOLLOWER = unchecked(ops.FOLLOWER_LAYOUT, "a\0b", b"")
BAD_CHAIN = chain(follower("q"), BAD_FOLLOWER)


def test_records_inside_an_op_are_checked_when_it_is_applied() -> None:
    driver = Driver()
    refused(driver, *changed(*enqueue_step("new", chain=BAD_CHAIN)))
    batch = encode_fields(ops.BATCH_LAYOUT, ("b", b"", b"", BAD_FOLLOWER))
    job = encode_step(enqueue_step("new", batch_id="b"))
    refused(driver, ops.ENQUEUE_BATCH.number, encode_fields("Bb", ([job], batch)))
    for template in (
        changed(*enqueue_step(""), parent_id="\0")[1],
        encode_step(enqueue_step("", options=encode_options(chain=BAD_CHAIN))),
    ):
        values = ("sched_1", 0, "n", "* * * * *", "UTC", template, True, 0, 0, 1, 1)
        refused(driver, ops.SET_SCHEDULE.number, encode_fields(ops.SET_SCHEDULE.layout, values))


def test_an_action_is_checked_before_its_first_job() -> None:
    driver = Driver()
    driver.enqueue("j")
    move = ACTIONS.index("move")
    arguments = encode_arguments()
    for operation_id, ids in (("", ["j"]), ("bulk_1", ["j"]), ("a\0b", ["j"]), ("", ["j", "\0"])):
        values = (operation_id, ids, False, move, arguments, False)
        refused(driver, ops.BULK_ACTION.number, unchecked(ops.BULK_ACTION.layout, *values))
    assert driver.machine.operation("bulk_1") is None


def test_a_heartbeat_is_checked_before_its_first_job() -> None:
    driver = Driver()
    driver.enqueue("j")
    token = driver.take().token
    beats = [
        unchecked(ops.BEAT_LAYOUT, "j", token, b"{}", b"1"),
        unchecked(ops.BEAT_LAYOUT, "a\0b", "", b"", b""),
    ]
    refused(driver, ops.HEARTBEAT.number, encode_fields("B", (beats,)))
    assert not driver.job("j").checkpoint


def test_the_other_acks_of_a_batch_are_applied() -> None:
    driver = Driver()
    driver.enqueue("j")
    driver.take()
    acks = [unchecked(ops.ACK.layout, job_id, "", b"", b"", b"") for job_id in ("a\0b", "", "j")]
    acked = driver.do(ops.ACK_BATCH, acks)
    assert acked.count == 1
    assert [(at, type(error)) for at, error in acked.refused] == [
        (0, InvalidName),
        (1, InvalidName),
    ]


@pytest.mark.parametrize("worker", ["\0", "a\0b", "w" * limits.WORKER_ID_SIZE_MAX])
def test_a_worker_has_any_id_that_fits(worker: str) -> None:
    driver = Driver()
    driver.enqueue("j")
    assert driver.take(worker=worker).job_id == "j"
    driver.restart()
    assert driver.machine.worker_seen_ns(worker) == driver.now_ns
    values = (["q"], "w" * (limits.WORKER_ID_SIZE_MAX + 1), "h", 10**9, 100)
    refused(driver, ops.FETCH.number, encode_fields(ops.FETCH.layout, values))


# An entry that cannot be applied.


# A payload that no version of the op has.
BROKEN = (ops.RETRY_JOB.number, b"\2")


def with_broken_entry() -> tuple[Driver, bytes]:
    """A state machine with a job, and an entry whose second op raises."""
    driver = Driver()
    driver.enqueue("j")
    job = encode_step(enqueue_step("new"))
    return driver, entry(driver.now_ns + 5, 1, [(ops.ENQUEUE.number, job), BROKEN])


def test_an_entry_that_raises_is_named_with_its_op() -> None:
    driver, data = with_broken_entry()
    with pytest.raises(EntryFailed, match=r"entry 2 .* op 2 \(RetryJob\): CodecError") as raised:
        driver.machine.apply(2, 1, data)
    assert raised.value.fields == {"index": 2} and isinstance(raised.value, StorageError)
    assert driver.machine.applied_index == 1


def test_a_skipped_entry_leaves_one_event() -> None:
    machines = []
    for _ in range(3):
        driver, data = with_broken_entry()
        driver.machine.skipped_index = 2
        results = driver.machine.apply(2, 1, data)
        assert [type(result) for result in results] == [ValidationError, ValidationError]
        (event,) = driver.machine.take_events()
        assert (event.type, event.queue, event.job_id) == (events.ENTRY_SKIPPED, "", "")
        assert event.data == b'{"index": 2, "ops": ["Enqueue", "RetryJob"]}'
        assert driver.machine.job("new") is None and driver.machine.stamp_ns == driver.now_ns + 5
        driver.enqueue("later")
        driver.restart()
        machines.append(driver.machine)
    assert len({machine.hash for machine in machines}) == 1
    other = Driver()
    other.enqueue("j")
    other.entry(enqueue_step("new"))
    other.enqueue("later")
    assert other.machine.hash != machines[0].hash, "a node that did not skip it differs"


@pytest.mark.parametrize("data", [b"x", encode_frame([]), encode_frame([(99, b"")])])
def test_an_entry_without_a_frame_can_be_skipped(data: bytes) -> None:
    machine = Machine(MemoryStore())
    with pytest.raises((StorageError, UnknownOp), match="entry 1 "):
        machine.apply(1, 1, data)
    machine.skipped_index = 1
    assert machine.apply(1, 1, data) == []
    assert machine.applied_index == machine.event_seq == 1


def test_no_other_entry_is_skipped() -> None:
    driver, data = with_broken_entry()
    for index in (1, 3):
        driver.machine.skipped_index = index
        with pytest.raises(EntryFailed):
            driver.machine.apply(2, 1, data)


# Any op with any text.


def check(data: bytes) -> None:
    """Apply the ops that the bytes choose, and build a mirror of the state."""
    driver, _ = apply_odd_ops(data)
    driver.machine.keep_outbox(b"epoch")
    driver.machine.flush()
    stored = driver.state_store.get(keys.OUTBOX_STATE)
    assert stored is not None
    reader = cast(Reader, MemoryReader(driver.state_store))

    async def mirrored(directory: str) -> None:
        path = Path(directory) / "mirror.sqlite"
        mirror_file = await MirrorFile.open(path, reader, *decode_state(stored))
        try:
            await catch_up(mirror_file)
            await check_view(mirror_file, driver.state_store)
        finally:
            await mirror_file.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(mirrored(directory))


@settings(max_examples=25)
@given(st.binary(max_size=1_500))
def test_odd_ops(data: bytes) -> None:
    check(data)


@pytest.mark.full
@settings(max_examples=2_000)
@given(st.binary(max_size=4_000))
def test_odd_ops_at_length(data: bytes) -> None:
    check(data)


def test_odd_ops_meet_refusals_of_every_kind() -> None:
    """The property is not empty: many ops are refused for a name, and many are applied."""
    total = applied = 0
    for seed in range(12):
        driver, count = apply_odd_ops(random.Random(seed).randbytes(1_200))
        total += count
        applied += driver.machine.event_seq
    assert total > 50 and applied > 200

"""Entries, events, the hash, the overlay and its flush."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from lib.consistency import check_machine, memory
from lib.fsm_driver import START_NS, Driver, encode_entry, enqueue_step

from corvo import events, ops
from corvo._fast.codec import keys
from corvo._fast.codec.layouts import encode_fields, encode_frame
from corvo.errors import DiskFull, StorageError, UnknownOp
from corvo.fsm.machine import Machine
from corvo.fsm.state import state, write_buffer
from corvo.limits import HEAD_INSIDE_SIZE_MAX, PART_INSIDE_SIZE_MAX, SECOND_NS
from corvo.model import ACTIVE, COMPLETED, PENDING, STATES, Job
from corvo.storage.memory import MemoryStore
from corvo.storage.rows import Row


class FullBase(MemoryStore):
    """A base on a disk that is full while `full` is set."""

    full = False

    def write(self, puts: list[Row], deletes: list[bytes]) -> None:
        if self.full:
            raise DiskFull("no space left")
        super().write(puts, deletes)


def test_empty_entry_only_advances() -> None:
    driver = Driver()
    driver.enqueue("j")
    before = driver.machine.hash
    assert driver.machine.apply(2, 5, b"") == []
    machine = driver.machine
    assert (machine.applied_index, machine.applied_term, machine.hash) == (2, 5, before)


@pytest.mark.parametrize(("index", "term"), [(1, 1), (3, 1), (2, 0)])
def test_entries_come_in_order(index: int, term: int) -> None:
    driver = Driver()
    driver.enqueue("j")
    with pytest.raises(StorageError, match="cannot follow entry 1 of term 1"):
        driver.machine.apply(index, term, b"")


STAMP = (0, encode_fields("qq", (START_NS, 1)))


@pytest.mark.parametrize("number", [22, 24, 99, 500])
def test_unknown_op_stops_the_node_before_anything_is_applied(number: int) -> None:
    driver = Driver()
    steps = [STAMP, (1, encode_fields(ops.ENQUEUE.layout, enqueue_step("j")[1])), (number, b"\1")]
    with pytest.raises(UnknownOp, match=f"entry 1 has op {number}"):
        driver.machine.apply(1, 1, encode_frame(steps))
    assert driver.machine.job("j") is None and driver.machine.applied_index == 0


@pytest.mark.parametrize(
    "data",
    [
        b"CB2\0",
        encode_frame([]),
        encode_frame([(1, b"\1")]),
        encode_frame([STAMP, (1, b"\1\2\3")]),
        encode_frame([STAMP, (8, b"\2\1j\0")]),
        encode_frame([STAMP, (23, encode_fields("B", ([b"\1\1"],)))]),
        encode_frame([STAMP])[:-1],
    ],
)
def test_what_cannot_be_decoded_stops_the_node(data: bytes) -> None:
    with pytest.raises(StorageError, match="entry 1 "):
        Machine(MemoryStore()).apply(1, 1, data)


def test_every_op_that_is_built_has_an_apply() -> None:
    driver = Driver()
    for op in ops.OPS.values():
        if op is not ops.STAMP:
            with pytest.raises(StorageError if op.built else UnknownOp):
                driver.machine.apply(1, 1, encode_frame([STAMP, (op.number, b"\1\xff")]))


def test_promote_and_reclaim_see_to_all_that_is_due_by_a_time() -> None:
    driver = Driver()
    for name, due_s in (("late", 9), ("soon", 1), ("next", 2)):
        driver.enqueue(name, scheduled_ns=driver.now_ns + due_s * SECOND_NS)
    for name, lease_s in (("long", 60), ("short", 2)):
        driver.enqueue(name)
        assert driver.take(lease_s=lease_s).job_id == name
    assert driver.do(ops.PROMOTE, driver.now_ns + 60 * SECOND_NS) == 0, "the stamp is the bound"
    assert driver.do(ops.RECLAIM, driver.now_ns + 60 * SECOND_NS) == 0
    driver.advance(3)
    assert driver.do(ops.PROMOTE, driver.now_ns - SECOND_NS - 1) == 1
    driver.restart()
    assert driver.do(ops.PROMOTE, driver.now_ns) == 1
    assert driver.do(ops.RECLAIM, driver.now_ns - SECOND_NS - 1) == 0
    assert driver.do(ops.RECLAIM, driver.now_ns) == 1
    names = ("late", "soon", "next", "long", "short")
    assert [STATES[driver.state(name)] for name in names] == [
        "scheduled",
        "pending",
        "pending",
        "active",
        "pending",
    ]
    assert [job.job_id for job in driver.fetch_batch()] == ["short", "soon", "next"]


def test_the_table_has_all_numbers() -> None:
    assert sorted(ops.OPS) == list(range(len(ops.OPS)))


def test_stamps_never_go_back() -> None:
    driver = Driver()
    driver.enqueue("a")
    driver.now_ns -= 10
    driver.enqueue("b")
    assert driver.machine.stamp_ns == START_NS == driver.job("b").created_ns
    driver.restart()
    assert driver.machine.stamp_ns == START_NS


def test_result_per_op_in_order() -> None:
    driver = Driver()
    results = driver.entry(
        enqueue_step("a"),
        (ops.PAUSE_QUEUE, ("q", False)),
        (ops.ACK, ("nope", "", b"", b"", b"")),
        enqueue_step("b"),
    )
    assert [type(result).__name__ for result in results] == [
        "Enqueued",
        "NoneType",
        "NotFound",
        "Enqueued",
    ]


@pytest.mark.parametrize("flushed", [False, True])
def test_events_of_a_job_are_a_chain(flushed: bool) -> None:
    driver = Driver()
    driver.entry(enqueue_step("other"), enqueue_step("j", priority=0))
    token = driver.take(worker='w"1').token
    if flushed:
        driver.restart()
    driver.beat("j", token, progress=b'{"p":1}')
    driver.entry(
        (ops.FAIL, ("j", token, b'"no"', b"", False, 0, False)), (ops.CANCEL_JOB, ("other", False))
    )
    if flushed:
        driver.machine.flush()
    chain = driver.machine.events("j")
    assert [(change.type, change.data) for change in chain] == [
        (events.ENQUEUED, b'{"state":"pending","priority":0}'),
        (events.STARTED, b'{"attempt":1,"worker_id":"w\\"1"}'),
        (events.PROGRESS, b'{"p":1}'),
        (events.FAILED, b'{"attempt":1,"error":"no"}'),
        (events.RETRYING, b'{"attempts_remaining":2,"next_attempt_ns":%d}' % driver.now_ns),
    ]
    assert [change.previous for change in chain] == [0, *(change.seq for change in chain[:-1])]
    assert all(change.job_id == "j" and change.queue == "q" for change in chain)
    newest = [change.type for change in driver.machine.events("j", 2)]
    assert newest == [events.FAILED, events.RETRYING]
    assert driver.machine.events("nope") == []


@pytest.mark.parametrize("error", [b"", b'"' + b"e" * 2_000 + b'"'])
def test_event_of_a_failure_without_text_or_with_too_much(error: bytes) -> None:
    driver = Driver()
    driver.enqueue("j")
    driver.fail("j", driver.take().token, error=error)
    failed = next(change for change in driver.machine.events("j") if change.type == events.FAILED)
    assert failed.data == b'{"attempt":1}'
    assert driver.machine.errors("j")[0].error == error


def test_changes_are_handed_out_once() -> None:
    driver = Driver()
    driver.entry(enqueue_step("a"), enqueue_step("b"))
    seqs = [change.seq for change in driver.machine.take_events()]
    assert seqs == [1, 2] and driver.machine.take_events() == []
    driver.enqueue("c")
    driver.enqueue("d")
    assert [change.job_id for change in driver.machine.take_events()] == ["d"], "of the last entry"


def test_hash_depends_on_everything_that_changed() -> None:
    def digest(*ids: str) -> bytes:
        driver = Driver()
        for job_id in ids:
            driver.enqueue(job_id)
        return driver.machine.hash

    assert digest("a", "b") == digest("a", "b")
    assert len({digest(), digest("a"), digest("b"), digest("a", "b"), digest("b", "a")}) == 5


@pytest.mark.parametrize("flushed", ["never", "always", "half"])
def test_trimmed_events_are_gone(flushed: str) -> None:
    driver = Driver()
    for n in range(6):
        driver.entry(enqueue_step(f"a{n}"), enqueue_step(f"b{n}"))
        if flushed == "always" or (flushed == "half" and n == 2):
            driver.machine.flush()
    driver.do(ops.TRIM_EVENTS, 5)
    if flushed == "half":
        driver.do(ops.TRIM_EVENTS, 9)
        driver.do(ops.TRIM_EVENTS, 9)
    gone = 4 if flushed == "half" else 2
    for n in range(6):
        assert len(driver.machine.events(f"a{n}")) == len(driver.machine.events(f"b{n}"))
        assert bool(driver.machine.events(f"a{n}")) == (n >= gone)
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    driver.do(ops.TRIM_EVENTS, 1_000)
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    assert driver.machine.events("a5") == []


def test_trim_point_brings_the_log_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    assert driver.machine.trim_point() == 0
    driver.machine._meta.event_log_size += 64 * 2**20
    driver.entry(enqueue_step("a"), enqueue_step("b"))
    driver.machine.flush()
    driver.enqueue("c")
    driver.machine._meta.event_log_size -= 10
    assert driver.machine.trim_point() == 2


# Overlay and flush.


def test_what_lived_and_died_leaves_no_index_rows() -> None:
    driver = Driver()
    driver.enqueue("done")
    driver.ack("done", driver.take().token)
    driver.enqueue("deleted", unique_key=b"K")
    driver.do(ops.DELETE_JOB, "deleted")
    driver.machine.flush()
    families = sorted(key.partition(b"|")[0] for key in driver.state_store._rows)
    assert families == [b"ev"] * 5 + [b"j", b"m", b"qc", b"t", b"w"]
    check_machine(driver.machine, driver.state_store)


def test_flush_lets_go_of_everything_but_active_jobs() -> None:
    driver = Driver()
    for n in range(3):
        driver.enqueue(f"j{n}")
    driver.ack("j0", driver.take().token)
    driver.take()
    report = driver.machine.flush()
    assert report.index == driver.machine.applied_index and report.documents > 6
    assert driver.machine.write_buffer_records == driver.machine.write_buffer_size == 0
    assert list(driver.machine._buffer.jobs) == ["j1"]
    assert [driver.state(f"j{n}") for n in range(3)] == [COMPLETED, ACTIVE, PENDING]
    assert driver.machine.flush().documents == 1


def test_active_jobs_are_kept_within_a_bound() -> None:
    driver = Driver()
    count = write_buffer.KEPT_SIZE_MAX // 200_000
    for n in range(2 * count):
        driver.enqueue(f"j{n}", payload=b"x" * 199_000)
        driver.take()
        driver.machine.flush()
    kept = list(driver.machine._buffer.jobs)
    assert len(kept) <= count and kept[-1] == f"j{2 * count - 1}"
    assert driver.machine.write_buffer_size == 0
    assert driver.ack("j0") is None and len(driver.job("j0").payload) == 199_000
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def test_full_disk_loses_nothing_and_stays_readable() -> None:
    state_store = FullBase()
    driver = Driver(state_store)
    driver.enqueue("a")
    driver.machine.flush()
    state_store.full = True
    driver.enqueue("b")
    token = driver.take().token
    before = (dict(state_store._rows), memory(driver.machine), driver.machine.write_buffer_records)
    for _ in range(2):
        with pytest.raises(DiskFull):
            driver.machine.flush()
    assert (
        dict(state_store._rows),
        memory(driver.machine),
        driver.machine.write_buffer_records,
    ) == before
    assert driver.state("a") == ACTIVE and driver.state("b") == PENDING
    assert driver.ack("a", token) is None
    driver.do(ops.DELETE_JOB, "b")
    state_store.full = False
    driver.machine.flush()
    assert driver.state("a") == COMPLETED and driver.machine.job("b") is None
    check_machine(driver.machine, state_store)


def test_overlay_size_follows_what_it_holds() -> None:
    driver = Driver()
    driver.enqueue("j", payload=b"x" * 10_000)
    token = driver.take().token
    small = driver.machine.write_buffer_size
    driver.beat("j", token, checkpoint=b"y" * 50_000)
    assert driver.machine.write_buffer_size >= small + 50_000
    driver.beat("j", token, checkpoint=b"y")
    driver.ack("j", token, result=b"z" * 1_000)
    assert small + 1_000 <= driver.machine.write_buffer_size <= small + 3_000
    driver.machine.flush()
    assert driver.machine._buffer.jobs_size == 0


def data_of(job: Job) -> tuple[bytes, bytes, bytes]:
    return job.checkpoint, job.progress, job.result


def apart(driver: Driver, job_id: str) -> bool:
    """Whether the data of a job has a row of its own, once everything is written."""
    driver.restart()
    check_machine(driver.machine, driver.state_store)
    return driver.state_store.get(keys.data(job_id)) is not None


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("more", [0, 1])
def test_data_stays_with_the_head_up_to_a_bound(more: int, kept: bool) -> None:
    """All that the worker sent counts together, wherever it was before."""
    driver = Driver()
    driver.enqueue("j", checkpoint=b"c" * 400)
    token = driver.take().token
    if not kept:
        driver.restart()
    driver.beat("j", token, progress=b"p" * 300)
    driver.machine.flush()
    rest = PART_INSIDE_SIZE_MAX - 400 - 300 + more
    assert driver.ack("j", token, result=b"r" * rest) is None
    assert apart(driver, "j") == (more > 0)
    assert data_of(driver.job("j")) == (b"c" * 400, b"p" * 300, b"r" * rest)
    driver.do(ops.DELETE_JOB, "j")
    assert not apart(driver, "j")


@pytest.mark.parametrize("more", [0, 1])
def test_a_job_may_bring_a_large_checkpoint(more: int) -> None:
    driver = Driver()
    driver.enqueue("j", checkpoint=b"c" * (PART_INSIDE_SIZE_MAX + more))
    assert apart(driver, "j") == (more > 0)
    assert len(driver.take().checkpoint) == PART_INSIDE_SIZE_MAX + more
    driver.do(ops.DELETE_JOB, "j")
    assert not apart(driver, "j")


@pytest.mark.parametrize("more", [0, 1])
def test_a_head_and_its_parts_share_a_page_with_another(more: int) -> None:
    """LMDB gives a row of more than half a page pages of its own."""
    driver = Driver()
    size = HEAD_INSIDE_SIZE_MAX - PART_INSIDE_SIZE_MAX
    payload = b"p" * (PART_INSIDE_SIZE_MAX - 10)
    driver.enqueue("a", payload=payload, tags=b"t" * 10, checkpoint=b"c" * (size + more))
    assert apart(driver, "a") == (more > 0)
    driver.enqueue("b", payload=payload, tags=b"t" * 10)
    for job_id in "ab":
        fetched = driver.take(worker="w" * 100)
        assert driver.ack(job_id, fetched.token, result=b"r" * (size + more)) is None
    assert apart(driver, "a") and apart(driver, "b") == (more > 0)
    assert max(len(row) for _, row in driver.state_store.scan(keys.JOB)) < 4_096 // 2 - 100
    driver.enqueue("large", payload=b"p" * 5_000, checkpoint=b"c" * PART_INSIDE_SIZE_MAX)
    assert not apart(driver, "large")


@pytest.mark.parametrize("written", [True, False])
def test_data_that_was_large_stays_apart(written: bool) -> None:
    state_store = FullBase()
    driver = Driver(state_store)
    driver.enqueue("j")
    token = driver.take().token
    driver.beat("j", token, checkpoint=b"c" * 5_000)
    if written:
        assert apart(driver, "j")
    driver.beat("j", token, checkpoint=b"d", progress=b"1")
    state_store.full = True
    with pytest.raises(DiskFull):
        driver.machine.flush()
    state_store.full = False
    assert apart(driver, "j") and data_of(driver.job("j")) == (b"d", b"1", b"")
    driver.ack("j", token, result=b"2")
    driver.do(ops.RETRY_JOB, "j")
    driver.do(ops.MOVE_JOB, "j", "other", False, True)
    assert apart(driver, "j") and data_of(driver.job("j")) == (b"d", b"1", b"2")
    driver.do(ops.CLEAR_QUEUE, "other", "task")
    driver.step()
    assert not apart(driver, "j")


def test_a_state_belongs_to_one_cluster() -> None:
    driver = Driver()
    driver.machine.adopt(b"\1" * 16)
    driver.enqueue("j")
    driver.restart()
    driver.machine.adopt(b"\1" * 16)
    with pytest.raises(StorageError, match="belongs to cluster 0101.*but this node to cluster 02"):
        driver.machine.adopt(b"\2" * 16)


def test_same_entry_again_gives_the_same_bytes() -> None:
    """Two machines, one of which flushes after each entry."""
    data = [
        encode_entry(START_NS + n, n * 77, [enqueue_step(f"j{n}"), (ops.FETCH, FETCH_VALUES)])
        for n in range(20)
    ]
    machines: list[tuple[Machine, Any]] = []
    for flushing in (False, True):
        state_store = MemoryStore()
        machine = Machine(state_store)
        for index, entry in enumerate(data, 1):
            machine.apply(index, 1, entry)
            if flushing:
                machine.flush()
        machine.flush()
        machines.append((machine, state_store._rows))
    assert machines[0][1] == machines[1][1]
    assert machines[0][0].hash == machines[1][0].hash


def story() -> tuple[str, str]:
    """What is left of jobs that were enqueued, fetched, failed, moved and cleared: the hash of the
    state, and the digest of all rows."""
    driver = Driver()
    for n in range(40):
        driver.enqueue(f"j{n}", queue=f"q{n % 3}", tags=b'{"a":"b"}', jitter_ppm=100_000)
    for n in range(20):
        fetched = driver.take(f"q{n % 3}")
        if n % 2:
            driver.fail(fetched.job_id, fetched.token)
    driver.machine.flush()
    digest = sha256(repr(sorted(driver.state_store._rows.items())).encode()).hexdigest()
    return driver.machine.hash.hex(), digest


def test_the_same_bytes_whatever_the_surroundings() -> None:
    """In processes with other seeds of the hash, time zones and locales."""
    folders = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
    script = (
        f"import sys; sys.path[:0] = {folders!r}; from lib import known_mutants;"
        f"known_mutants.install_wanted();from {Path(__file__).stem} import story; print(*story())"
    )
    surroundings = (
        {"PYTHONHASHSEED": "1", "TZ": "Asia/Kolkata", "LC_ALL": "C"},
        {"PYTHONHASHSEED": "2", "TZ": "America/St_Johns", "LC_ALL": "C.UTF-8"},
    )
    for surrounding in surroundings:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])} | surrounding,
            capture_output=True,
            check=True,
            text=True,
        )
        assert tuple(done.stdout.split()) == story()


FETCH_VALUES = (["q"], "w", "h", 60_000_000_000, 1 << 20)


def test_a_base_is_read_in_slices() -> None:
    """Until the last one the machine is what it was."""
    old, new = Driver(), Driver()
    old.enqueue("old")
    for n in range(3 * state.LOADED_ROWS):
        new.entry(enqueue_step(f"j{n}", scheduled_ns=START_NS * 2 if n % 2 else 0))
    new.machine.flush()
    slices = 0
    for _ in old.machine.load(new.state_store):
        slices += 1
        assert old.machine.job("old") is not None and old.machine.job("j0") is None
    assert slices == 3
    assert old.machine.job("old") is None and old.machine.job("j0") is not None
    assert memory(old.machine) == memory(new.machine)

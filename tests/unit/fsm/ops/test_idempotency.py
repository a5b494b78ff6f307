"""Idempotency keys: one effect, one outcome, and how long it is remembered."""

from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import (
    Driver,
    Step,
    batch_step,
    enqueue_step,
    idempotent_step,
    schedule_step,
)

from corvo import ops
from corvo._fast.codec.layouts import encode_fields
from corvo.errors import CorvoError, IdempotencyMismatch, NotFound, UniqueConflict
from corvo.fsm.machine import _APPLY
from corvo.fsm.ops.idempotency import decode_outcome, encode_outcome
from corvo.limits import SECOND_NS
from corvo.model import Acked, Enqueued, EnqueuedBatch, Failed

DAY_S = 86_400


def once(driver: Driver, key: str, step: Step, **options: Any) -> Any:
    return driver.entry(idempotent_step(key.encode(), step, **options))[0]


def jobs_in(driver: Driver, queue: str = "q") -> int:
    found = driver.machine.queue(queue)
    return 0 if found is None else found.enqueued_total


def checked(driver: Driver) -> None:
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


@pytest.mark.parametrize("restart", [False, True])
def test_a_request_that_comes_again_has_one_effect(restart: bool) -> None:
    driver = Driver()
    first = once(driver, "k", enqueue_step("a"))
    if restart:
        driver.restart()
    again = once(driver, "k", enqueue_step("b"))
    assert (first.job_id, again.job_id) == ("a", "a") and not again.duplicate
    assert jobs_in(driver) == 1 and driver.machine.idempotency_records == 1
    assert once(driver, "other", enqueue_step("c")).job_id == "c"
    checked(driver)


def test_two_in_one_entry() -> None:
    driver = Driver()
    steps = [idempotent_step(b"k", enqueue_step(job_id)) for job_id in ("a", "b")]
    results = driver.entry(*steps)
    assert [result.job_id for result in results] == ["a", "a"]


def test_another_request_with_the_same_key() -> None:
    driver = Driver()
    once(driver, "k", enqueue_step("a"))
    refusal = once(driver, "k", enqueue_step("b"), fingerprint=b"g")
    assert isinstance(refusal, IdempotencyMismatch) and refusal.status == 422
    assert jobs_in(driver) == 1
    assert once(driver, "k", enqueue_step("c")).job_id == "a"


def test_a_refusal_is_an_outcome_too() -> None:
    driver = Driver()
    driver.enqueue("a")
    driver.take()
    first = once(driver, "k", (ops.RETRY_JOB, ("a",)))
    driver.fail("a", no_retry=True)
    again = once(driver, "k", (ops.RETRY_JOB, ("a",)))
    assert first.code == again.code == "INVALID_STATE"
    assert (first.message, first.fields) == (again.message, again.fields)
    assert once(driver, "k2", (ops.RETRY_JOB, ("a",))) is None


def test_an_outcome_is_kept_for_its_time() -> None:
    driver = Driver()
    once(driver, "k", enqueue_step("a"))
    driver.advance(DAY_S - 1)
    assert once(driver, "k", enqueue_step("b")).job_id == "a"
    driver.advance(1)
    assert once(driver, "k", enqueue_step("c")).job_id == "c"
    assert driver.machine.idempotency_records == 1, "the old one is dropped"
    driver.restart()
    assert once(driver, "k", enqueue_step("d")).job_id == "c"
    checked(driver)


def test_as_many_are_kept_as_may_be() -> None:
    driver = Driver()
    for n in range(10):
        once(driver, f"k{n}", enqueue_step(f"a{n}"), count=3)
        assert driver.machine.idempotency_records == min(n + 1, 3)
    driver.restart()
    assert once(driver, "k7", enqueue_step("b7"), count=3).job_id == "a7"
    assert once(driver, "k6", enqueue_step("b6"), count=3).job_id == "b6"
    checked(driver)


def test_a_lower_bound_is_reached_bit_by_bit() -> None:
    driver = Driver()
    for n in range(10):
        once(driver, f"k{n}", enqueue_step(f"a{n}"))
    for n in range(10):
        once(driver, f"l{n}", enqueue_step(f"b{n}"), count=4)
        assert driver.machine.idempotency_records == max(4, 9 - n)
    checked(driver)


def test_a_key_that_is_used_again_keeps_its_newer_outcome() -> None:
    """The older one is dropped after the newer one was made."""
    driver = Driver()
    for n in range(4):
        once(driver, f"k{n}", enqueue_step(f"a{n}"))
    driver.advance(DAY_S)
    once(driver, "k3", enqueue_step("b"))
    once(driver, "x", enqueue_step("c"))
    assert driver.machine.idempotency_records == 2
    assert once(driver, "k3", enqueue_step("d")).job_id == "b"
    checked(driver)


def test_an_end_inside_brings_about_the_same() -> None:
    driver = Driver()
    driver.entry(batch_step("B", enqueue_step("a", batch_id="B")))
    token = driver.take().token
    step = (ops.ACK, ("a", token, b"", b"", b""))
    assert once(driver, "k", step) is None and once(driver, "k", step) is None
    batch = driver.machine.batch("B")
    assert batch is not None and (batch.succeeded, batch.pending) == (1, 0)


def fields_of(thing: Any) -> Any:
    if isinstance(thing, CorvoError):
        return type(thing), thing.message, thing.fields
    if isinstance(thing, list | tuple):
        return [fields_of(item) for item in thing]
    names = vars(thing) if hasattr(thing, "__dict__") else dir(thing)
    names = [n for n in names if not n.startswith("_")]
    if isinstance(thing, int | str | bytes | None):
        return thing
    return {name: fields_of(getattr(thing, name)) for name in names}


def acked() -> Acked:
    result = Acked()
    result.count = 2
    result.refused = [(1, UniqueConflict("no", holder_id="j", n=1)), (3, CorvoError("why"))]
    return result


OUTCOMES: list[Any] = [
    None,
    0,
    -5,
    "cancelling",
    Enqueued("job_1", 3, True, b"[1.50]"),
    EnqueuedBatch([Enqueued("job_1", 1, False, b""), Enqueued("job_0", 4, True, b"1")], "batch_1"),
    EnqueuedBatch([], ""),
    acked(),
    Failed(5, 10**18, 3),
    IdempotencyMismatch("text", field="a"),
    ["held", NotFound("text")],
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_an_outcome_comes_back_as_it_was(outcome: Any) -> None:
    again = decode_outcome(encode_outcome(outcome))
    assert type(again) is type(outcome) and fields_of(again) == fields_of(outcome)


def test_a_schedule_is_an_outcome() -> None:
    driver = Driver()
    step = schedule_step("sched_1", driver.now_ns + SECOND_NS)
    first, again = once(driver, "k", step), once(driver, "k", step)
    assert fields_of(first) == fields_of(again) and len(driver.machine.schedules()) == 1


def test_every_op_is_replayable_or_has_a_reason_not_to_be() -> None:
    own_answer = {ops.FETCH, ops.FETCH_BATCH, ops.HEARTBEAT}
    by_the_leader = {ops.PROMOTE_DUE, ops.EXPIRE_LEASES, ops.FIRE_SCHEDULE, ops.RESOLVE_DEPENDENTS}
    by_the_leader |= {ops.EXPIRE_JOBS, ops.PURGE_JOBS, ops.CLEAN_UNIQUE, ops.PURGE_BATCHES}
    by_the_leader |= {ops.REMOVE_STALE_WORKERS, ops.TRIM_EVENTS, ops.PROMOTE, ops.RECLAIM}
    others = {op.number for op in own_answer | by_the_leader | {ops.IDEMPOTENT}}
    takes_key = {op.number for op in ops.OPS.values() if op.takes_key}
    assert takes_key.isdisjoint(others)
    assert takes_key | others == set(_APPLY)


def test_the_replayed_ack_of_a_batch() -> None:
    driver = Driver()
    driver.enqueue("a")
    driver.take()
    item = encode_fields(ops.ACK.layout, ("a", "", b"", b"", b""))
    first = once(driver, "k", (ops.ACK_BATCH, ([item, item],)))
    again = once(driver, "k", (ops.ACK_BATCH, ([item, item],)))
    assert first.count == 1 and len(first.refused) == 1
    assert fields_of(first) == fields_of(again)

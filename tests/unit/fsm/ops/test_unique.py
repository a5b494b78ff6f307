"""Unique keys: the holder of each, and until when."""

from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver, encode_step, enqueue_step

from corvo import ops
from corvo.errors import UniqueConflict
from corvo.limits import SECOND_NS
from corvo.model import ACTIVE, COMPLETED, DEAD, PENDING, SCHEDULED

FINAL, START, SUCCESS, PERIOD = range(4)


def enqueue(driver: Driver, job_id: str, mode: int = FINAL, **fields: Any) -> Any:
    return driver.enqueue(job_id, unique_key=b"K", unique_until=mode, **fields)


def free(driver: Driver) -> bool:
    """Whether the key is free; nothing is left of the attempt."""
    duplicate: bool = enqueue(driver, "probe").duplicate
    if not duplicate:
        driver.do(ops.DELETE_JOB, "probe")
    return not duplicate


def end(driver: Driver, how: str) -> None:
    if how == "cancelled":
        driver.cancel("j")
    elif how == "deleted":
        driver.do(ops.DELETE_JOB, "j")
    elif how in ("started", "completed", "dead"):
        token = driver.take().token
        if how == "completed":
            driver.ack("j", token)
        elif how == "dead":
            driver.fail("j", token, no_retry=True)


ENDS = ("started", "completed", "dead", "cancelled", "deleted")
FREED = {
    FINAL: {"completed", "dead", "cancelled", "deleted"},
    START: set(ENDS),
    SUCCESS: {"completed", "cancelled", "deleted"},
    PERIOD: {"deleted"},
}


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("mode", FREED)
@pytest.mark.parametrize("how", ENDS)
def test_lock_dies_with_its_reason(mode: int, how: str, flushed: bool) -> None:
    driver = Driver()
    enqueue(driver, "j", mode)
    assert not free(driver)
    if flushed:
        driver.restart()
    end(driver, how)
    assert free(driver) == (how in FREED[mode])
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def test_duplicate_names_the_holder() -> None:
    driver = Driver()
    enqueue(driver, "j", PERIOD)
    duplicate = enqueue(driver, "k")
    assert (duplicate.job_id, duplicate.state, duplicate.duplicate) == ("j", PENDING, True)
    token = driver.take().token
    assert enqueue(driver, "k").state == ACTIVE
    driver.ack("j", token, result=b"[1, 2]")
    duplicate = enqueue(driver, "k")
    assert (duplicate.state, duplicate.result) == (COMPLETED, b"[1, 2]")
    assert driver.machine.job("k") is None


def test_keys_are_per_queue() -> None:
    driver = Driver()
    assert not enqueue(driver, "j").duplicate
    assert not enqueue(driver, "k", queue="other").duplicate


def test_period_bounds_every_mode() -> None:
    driver = Driver()
    enqueue(driver, "j", FINAL, unique_period_ns=10 * SECOND_NS)
    driver.advance(9.999)
    assert not free(driver)
    driver.advance(0.001)
    assert not enqueue(driver, "k").duplicate
    driver.cancel("j")
    assert not free(driver), "the lock is not that of the older job any more"


def test_mode_period_lasts_an_hour_by_default() -> None:
    driver = Driver()
    enqueue(driver, "j", PERIOD)
    driver.ack("j", driver.take().token)
    driver.advance(3_599)
    assert not free(driver)
    driver.advance(1)
    assert free(driver)


def test_scheduled_job_is_promoted_though_its_key_is_held() -> None:
    """The job meets its own lock and is delivered all the same."""
    driver = Driver()
    enqueue(driver, "j", scheduled_ns=driver.now_ns + 2 * SECOND_NS)
    assert enqueue(driver, "k").state == SCHEDULED
    driver.advance(2)
    driver.tick()
    assert enqueue(driver, "k").job_id == "j"
    driver.ack("j", driver.take().token)
    assert not enqueue(driver, "k").duplicate


@pytest.mark.parametrize("flushed", [False, True])
def test_retry_meets_the_key_of_another_job(flushed: bool) -> None:
    """The holder is named, nothing changes, and later the retry works."""
    driver = Driver()
    enqueue(driver, "j1")
    driver.fail("j1", driver.take().token, no_retry=True)
    enqueue(driver, "j2")
    if flushed:
        driver.restart()
    conflict = driver.do(ops.RETRY_JOB, "j1")
    assert isinstance(conflict, UniqueConflict)
    assert conflict.fields == {"holder_id": "j2", "holder_state": "pending"}
    assert driver.state("j1") == DEAD
    driver.ack("j2", driver.take().token)
    assert driver.do(ops.RETRY_JOB, "j1") is None
    assert enqueue(driver, "k").job_id == "j1"


def test_retry_keeps_a_lock_it_still_has() -> None:
    driver = Driver()
    enqueue(driver, "j", SUCCESS, unique_period_ns=100 * SECOND_NS)
    driver.fail("j", driver.take().token, no_retry=True)
    driver.advance(50)
    assert driver.do(ops.RETRY_JOB, "j") is None
    driver.advance(50)
    assert free(driver), "the period still counts from the enqueue"


def test_two_enqueues_of_one_batch() -> None:
    driver = Driver()
    items = [encode_step(enqueue_step(job_id, unique_key=b"K")) for job_id in ("a", "b")]
    results = driver.do(ops.ENQUEUE_BATCH, items, b"").jobs
    assert [(result.job_id, result.duplicate) for result in results] == [("a", False), ("a", True)]

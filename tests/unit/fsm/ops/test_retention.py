"""How long jobs that have ended are kept, and what becomes of locks whose time is over."""

from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver

from corvo import ops
from corvo._fast.codec import keys
from corvo.limits import DUE_MAX_NS, SECOND_NS
from corvo.model import CANCELLED, COMPLETED, DEAD, PENDING

DAY_NS = 86_400 * SECOND_NS
DEFAULT = [7 * DAY_NS, 7 * DAY_NS, 7 * DAY_NS]


@pytest.fixture
def driver() -> Driver:
    return Driver()


def end(driver: Driver, job_id: str, state: int, queue: str = "q", **fields: Any) -> None:
    driver.enqueue(job_id, queue=queue, **fields)
    if state == CANCELLED:
        driver.cancel(job_id)
        return
    driver.take(queue)
    if state == COMPLETED:
        driver.ack(job_id)
    else:
        driver.fail(job_id, no_retry=True)


def purge(driver: Driver, limit: int = 100) -> list[str]:
    """All that the leader finds and apply then removes."""
    purged: list[str] = []
    number = 0
    driver.machine.flush()
    while True:
        ids, number = driver.machine.due_purges(driver.now_ns, DEFAULT, number, 2, limit)
        if ids:
            assert driver.do(ops.PURGE_JOBS, ids, DEFAULT) == len(ids)
            driver.machine.flush()
        purged += ids
        if not ids and not number:
            check_machine(driver.machine, driver.state_store)
            return purged


def test_jobs_go_when_they_are_old_enough(driver: Driver) -> None:
    for n, state in enumerate((COMPLETED, DEAD, CANCELLED)):
        end(driver, f"j{n}", state)
        driver.advance(3_600)
    driver.enqueue("pending")
    driver.now_ns = driver.job("j1").failed_ns + 7 * DAY_NS - 1
    assert purge(driver) == ["j0"]
    driver.now_ns += 1
    assert purge(driver) == ["j1"]
    driver.now_ns += DAY_NS
    assert purge(driver) == ["j2"]
    assert driver.state("pending") == PENDING


def test_a_queue_says_otherwise(driver: Driver) -> None:
    for queue in ("short", "never", "plain"):
        for state in (COMPLETED, DEAD):
            end(driver, f"{queue}{state}", state, queue)
    assert driver.do(ops.SET_QUEUE_OPTIONS, "short", [60 * SECOND_NS + 1, 0, 0], 0) is None
    driver.do(ops.SET_QUEUE_OPTIONS, "never", [DUE_MAX_NS + 1] * 3, 0)
    driver.restart()
    driver.advance(60)
    assert purge(driver) == [f"short{COMPLETED}"]
    driver.now_ns += 8 * DAY_NS
    assert sorted(purge(driver)) == sorted([f"plain{COMPLETED}", f"plain{DEAD}", f"short{DEAD}"])
    driver.do(ops.SET_QUEUE_OPTIONS, "never", [0, 0, 0], 0)
    assert sorted(purge(driver)) == [f"never{COMPLETED}", f"never{DEAD}"]


def test_in_bits_over_many_queues(driver: Driver) -> None:
    ids = []
    for n in range(30):
        ids.append(f"j{n:02}")
        end(driver, ids[-1], COMPLETED, f"q{n % 7}")
    driver.now_ns += 8 * DAY_NS
    assert sorted(purge(driver, limit=3)) == ids


def test_apply_looks_again(driver: Driver) -> None:
    end(driver, "retried", COMPLETED)
    end(driver, "young", COMPLETED)
    driver.do(ops.RETRY_JOB, "retried")
    assert driver.do(ops.PURGE_JOBS, ["retried", "young", "nope"], DEFAULT) == 0
    assert driver.state("young") == COMPLETED


def test_the_lock_goes_with_the_job(driver: Driver) -> None:
    end(driver, "j", COMPLETED, unique_key=b"k", unique_until=3, unique_period_ns=DUE_MAX_NS // 2)
    assert driver.enqueue("twin", unique_key=b"k").duplicate
    driver.now_ns += 8 * DAY_NS
    assert purge(driver) == ["j"]
    assert not driver.enqueue("twin", unique_key=b"k").duplicate


def test_locks_whose_time_is_over_are_swept(driver: Driver) -> None:
    for n in range(10):
        period_ns = (n + 1) * SECOND_NS
        driver.enqueue(f"j{n}", unique_key=b"%d" % n, unique_until=3, unique_period_ns=period_ns)
    driver.machine.flush()
    driver.advance(5)
    stale: list[bytes] = []
    start = b""
    while True:
        found, start = driver.machine.stale_locks(driver.now_ns, start, 3)
        stale += found
        if not start:
            break
    assert len(stale) == 5
    driver.enqueue("again", unique_key=b"0", unique_until=3)
    assert driver.do(ops.CLEAN_UNIQUE, [*stale, keys.unique(1, bytes(16))]) == 4
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    assert driver.enqueue("twin", unique_key=b"0").duplicate
    assert len(list(driver.state_store.scan(keys.UNIQUE))) == 6

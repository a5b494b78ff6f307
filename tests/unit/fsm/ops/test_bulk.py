"""Clear, destroy and bulk actions: what is fixed when they are accepted, and their steps."""

from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver, encode_options

from corvo import ops
from corvo.errors import InvalidState, NotFound
from corvo.fsm.ops.bulk import STATE_BASE
from corvo.limits import BULK_KEPT_NS, BULK_OPERATIONS_MAX, SECOND_NS, STEP_JOBS
from corvo.model import (
    ACTIVE,
    CANCELLED,
    CONFLICT,
    DEAD,
    DONE,
    HELD,
    OPERATION_CANCELLED,
    OPERATION_COMPLETED,
    PENDING,
    PRIORITY_NAMES,
    RETRYING,
    SCHEDULED,
    SKIPPED,
    BulkOperation,
)

MANY = 3 * STEP_JOBS + STEP_JOBS // 2


@pytest.fixture
def driver() -> Driver:
    return Driver()


def fill(driver: Driver, count: int, prefix: str = "j", **fields: Any) -> list[str]:
    ids = [f"{prefix}{n:04}" for n in range(count)]
    for job_id in ids:
        driver.enqueue(job_id, **fields)
    return ids


def clear(driver: Driver, queue: str = "q", operation_id: str = "bulk_c") -> BulkOperation:
    operation: BulkOperation = driver.do(ops.CLEAR_QUEUE, queue, operation_id)
    return operation


def destroy(driver: Driver, queue: str = "q", operation_id: str = "bulk_d") -> BulkOperation:
    operation: BulkOperation = driver.do(ops.DELETE_QUEUE, queue, operation_id)
    return operation


def check(driver: Driver) -> None:
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def outcomes(
    driver: Driver, operation: BulkOperation, kind: int, limit: int = 1_000
) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    start = 0
    while True:
        more, start = driver.machine.operation_results(operation, start, kind, limit)
        found += more
        if not start:
            return found


# Clear.


def test_a_clear_takes_what_is_pending_and_scheduled(driver: Driver) -> None:
    fill(driver, 5, priority=1)
    fill(driver, 5, "s", scheduled_ns=driver.now_ns + 9 * SECOND_NS)
    driver.enqueue("retrying", priority=0, base_delay_ms=5_000)
    driver.enqueue("active", priority=0)
    driver.take()
    driver.fail("retrying")
    driver.take()
    driver.enqueue("held", options=encode_options(hold=True))
    driver.enqueue("elsewhere", queue="other")
    operation = clear(driver)
    assert (operation.total, operation.state, operation.counts[DONE]) == (
        10,
        OPERATION_COMPLETED,
        10,
    )
    states = {"retrying": RETRYING, "active": ACTIVE, "held": HELD, "elsewhere": PENDING}
    assert {job_id: driver.state(job_id) for job_id in states} == states
    queue = driver.machine.queue("q")
    assert queue is not None and queue.jobs(PENDING) == queue.jobs(SCHEDULED) == 0
    check(driver)
    driver.advance(10)
    driver.tick()
    assert driver.take().job_id == "retrying"


@pytest.mark.parametrize("restart", [False, True])
def test_a_big_clear_counts_from_the_first_moment(driver: Driver, restart: bool) -> None:
    driver.enqueue("active", priority=0)
    token = driver.take().token
    ids = fill(driver, MANY, unique_key=b"")
    driver.enqueue("locked", unique_key=b"k")
    driver.enqueue("later", scheduled_ns=driver.now_ns + 5 * SECOND_NS)
    driver.machine.flush()
    operation = clear(driver)
    assert operation.running() and operation.counts[DONE] == STEP_JOBS
    if restart:
        driver.restart()
        check_machine(driver.machine, driver.state_store)
    queue = driver.machine.queue("q")
    assert queue is not None and queue.jobs(PENDING) == queue.jobs(SCHEDULED) == 0
    assert driver.machine.fetchable("q") == 0 and driver.fetch() is None
    for job_id in (ids[-1], "locked", "later"):
        assert driver.machine.job(job_id) is None
        assert isinstance(driver.cancel(job_id), NotFound)
        assert isinstance(driver.do(ops.RETRY_JOB, job_id), NotFound)
    assert driver.enqueue("new", unique_key=b"k").duplicate is False
    driver.release("active", token)
    assert [driver.take().job_id, driver.take().job_id] == ["active", "new"]
    driver.advance(6)
    driver.tick()
    assert driver.machine.job("later") is None
    if restart:
        driver.restart()
    assert driver.step() >= 2
    assert driver.fetch() is None
    driver.advance(61)
    driver.tick()
    assert {driver.take().job_id, driver.take().job_id} == {"active", "new"}
    check(driver)
    assert driver.machine.operation("bulk_c") is not None


def test_a_second_clear_while_the_first_goes_on(driver: Driver) -> None:
    fill(driver, MANY)
    first = clear(driver, operation_id="bulk_1")
    between = fill(driver, 2, "between")
    second = clear(driver, operation_id="bulk_2")
    assert second.total == 2
    driver.enqueue("after")
    driver.restart()
    for _ in range(40):
        for operation_id in ("bulk_1", "bulk_2"):
            driver.do(ops.BULK_STEP, operation_id, 20, False)
    assert driver.machine.running_operations() == []
    assert [driver.machine.job(job_id) for job_id in between] == [None, None]
    assert driver.take().job_id == "after"
    assert first.id != second.id
    check(driver)


def test_unknown_queue(driver: Driver) -> None:
    assert isinstance(clear(driver), NotFound)
    assert isinstance(destroy(driver), NotFound)
    assert isinstance(driver.do(ops.BULK_STEP, "nope", 1, False), NotFound)


def test_a_clear_cannot_be_stopped(driver: Driver) -> None:
    fill(driver, MANY)
    clear(driver)
    assert isinstance(driver.do(ops.BULK_STEP, "bulk_c", 1, True), InvalidState)
    driver.step()
    assert driver.do(ops.BULK_STEP, "bulk_c", 1, True).state == OPERATION_COMPLETED
    check(driver)


# Destroy.


def test_a_queue_goes_with_everything(driver: Driver) -> None:
    driver.do(ops.SET_CONCURRENCY, "q", 3)
    driver.enqueue("done", unique_key=b"k", unique_until=3)
    driver.take()
    driver.ack("done")
    driver.enqueue("failed")
    driver.take()
    driver.fail("failed")
    driver.enqueue("active")
    token = driver.take().token
    driver.enqueue("held", options=encode_options(hold=True, hold_timeout_ns=9 * SECOND_NS))
    driver.enqueue("expiring", options=encode_options(expire_after_ns=9 * SECOND_NS))
    driver.enqueue("elsewhere", queue="q2")
    operation = destroy(driver)
    assert operation.state == OPERATION_COMPLETED and operation.total == 5
    assert driver.beat("active", token) == "lost"
    assert driver.machine.queue("q") is None
    check(driver)
    assert driver.machine.next_due() == 0
    assert not driver.enqueue("new", unique_key=b"k").duplicate
    queue = driver.machine.queue("q")
    assert queue is not None and queue.max_concurrency == 0 and queue.number == 3
    check(driver)


@pytest.mark.parametrize("restart", [False, True])
def test_the_name_is_free_at_once(driver: Driver, restart: bool) -> None:
    fill(driver, MANY)
    driver.enqueue("last")
    token = driver.take().token
    assert destroy(driver).running()
    if restart:
        driver.restart()
        check_machine(driver.machine, driver.state_store)
    assert isinstance(driver.ack("j0000", token), NotFound)
    driver.enqueue("new")
    assert driver.take().job_id == "new"
    driver.advance(3_600)
    driver.tick()
    if restart:
        driver.restart()
    driver.step(limit=60)
    assert [queue.name for queue in driver.machine.queues()] == ["q"]
    assert driver.machine.job("last") is None
    check(driver)
    assert driver.machine._state.numbered.keys() == {2}


def test_destroy_while_a_clear_goes_on(driver: Driver) -> None:
    fill(driver, MANY)
    clear(driver)
    destroy(driver)
    driver.restart()
    driver.step()
    check(driver)
    assert driver.machine.queues() == []


# Bulk by ids.


def test_bulk_says_what_came_of_each(driver: Driver) -> None:
    driver.enqueue("dead", unique_key=b"k")
    driver.take()
    driver.fail("dead", no_retry=True)
    driver.enqueue("holder", unique_key=b"k")
    driver.enqueue("cancelled")
    driver.cancel("cancelled")
    operation = driver.bulk("retry", "dead", "holder", "cancelled", "nope")
    assert operation.counts == [1, 2, 1] and operation.state == OPERATION_COMPLETED
    assert outcomes(driver, operation, DONE) == [("cancelled", DONE)]
    assert outcomes(driver, operation, SKIPPED) == [
        ("holder", STATE_BASE + PENDING),
        ("nope", SKIPPED),
    ]
    assert outcomes(driver, operation, CONFLICT) == [("dead", CONFLICT)]
    driver.restart()
    again = driver.machine.operation("bulk_1")
    assert again is not None and outcomes(driver, again, DONE) == [("cancelled", DONE)]
    check(driver)


@pytest.mark.parametrize("restart", [False, True])
def test_a_big_bulk_goes_on_in_steps(driver: Driver, restart: bool) -> None:
    ids = fill(driver, MANY)
    operation = driver.bulk("cancel", *ids)
    assert (operation.total, operation.processed(), operation.running()) == (MANY, STEP_JOBS, True)
    assert driver.state(ids[STEP_JOBS - 1]) == CANCELLED
    first = driver.take()
    assert first.job_id == ids[STEP_JOBS], "others are served in between"
    driver.ack(first.job_id)
    if restart:
        driver.restart()
    assert driver.step() == 3
    finished = driver.machine.operation("bulk_1")
    assert finished is not None and finished.counts == [MANY - 1, 1, 0]
    done = outcomes(driver, finished, DONE, limit=70)
    assert [job_id for job_id, _ in done] == [job_id for job_id in ids if job_id != first.job_id]
    assert driver.do(ops.BULK_STEP, "bulk_1", 100, False).counts == [MANY - 1, 1, 0]
    check(driver)


def test_a_bulk_can_be_stopped(driver: Driver) -> None:
    ids = fill(driver, MANY)
    driver.bulk("cancel", *ids)
    operation = driver.do(ops.BULK_STEP, "bulk_1", 0, True)
    assert (operation.state, operation.processed()) == (OPERATION_CANCELLED, STEP_JOBS)
    assert driver.machine.running_operations() == []
    assert driver.state(ids[-1]) == PENDING
    check(driver)


# Bulk on all.


def test_all_is_fixed_when_it_is_accepted(driver: Driver) -> None:
    fill(driver, MANY)
    fill(driver, 10, "other", queue="b")
    operation = driver.bulk("cancel", force=True)
    fill(driver, 5, "late")
    fill(driver, 5, "later", queue="c")
    driver.restart()
    driver.step()
    finished = driver.machine.operation(operation.id)
    assert finished is not None and finished.counts == [MANY + 10, 0, 0]
    assert finished.total == MANY + 10
    assert len(outcomes(driver, finished, DONE, 64)) == MANY + 10
    assert [driver.state(f"{name}000{n}") for name in ("late", "later") for n in range(5)] == [
        PENDING
    ] * 10
    check(driver)


def test_all_finds_what_changes_its_state_behind_it(driver: Driver) -> None:
    """A job that is active when the walk passes the pending ones, and then fails."""
    fill(driver, MANY, scheduled_ns=driver.now_ns + 9 * SECOND_NS)
    driver.enqueue("first", backoff=0)
    assert driver.take().job_id == "first"
    operation = driver.bulk("delete")
    assert operation.family == 2, "it is past the pending ones"
    driver.fail("first")
    assert driver.state("first") == PENDING
    driver.step()
    assert driver.machine.job("first") is None
    check(driver)


def test_all_touches_each_once(driver: Driver) -> None:
    fill(driver, MANY, priority=0)
    operation = driver.bulk("change_priority", priority=PRIORITY_NAMES.index("high"))
    driver.step()
    finished = driver.machine.operation(operation.id)
    assert finished is not None and finished.counts == [MANY, 0, 0]
    check(driver)


def test_all_moves_each_once(driver: Driver) -> None:
    fill(driver, MANY)
    driver.enqueue("there", queue="other")
    operation = driver.bulk("move", target="other")
    driver.step()
    finished = driver.machine.operation(operation.id)
    assert finished is not None and finished.counts[DONE] == MANY + 1
    assert len(driver.fetch_batch("other", count=500)) == MANY + 1
    check(driver)


def test_all_of_some_ended_jobs(driver: Driver) -> None:
    ids = fill(driver, 8)
    for n, job_id in enumerate(ids):
        driver.take()
        if n % 2:
            driver.ack(job_id)
        else:
            driver.fail(job_id, no_retry=True)
    driver.restart()
    operation = driver.bulk("requeue")
    assert (operation.total, operation.counts) == (4, [4, 0, 0])
    assert [driver.state(job_id) for job_id in ids[::2]] == [PENDING] * 4
    assert driver.machine.matching(0, 3) == (4, ids[1:7:2])


def test_conflicts_are_counted_once(driver: Driver) -> None:
    driver.enqueue("dead", unique_key=b"k")
    driver.take()
    driver.fail("dead", no_retry=True)
    driver.enqueue("holder", queue="other", unique_key=b"k")
    driver.enqueue("second", unique_key=b"k")
    operation = driver.bulk("move", target="other")
    driver.step()
    assert operation.counts[CONFLICT] == 1
    assert driver.state("dead") == DEAD
    check(driver)


def test_nothing_to_do(driver: Driver) -> None:
    operation = driver.bulk("cancel")
    assert (operation.state, operation.counts) == (OPERATION_COMPLETED, [0, 0, 0])
    check(driver)


@pytest.mark.parametrize("op", [ops.CLEAR_QUEUE, ops.DELETE_QUEUE])
def test_what_is_gone_is_told_nothing(driver: Driver, op: ops.Op) -> None:
    """Not even when the jobs that it waits for are deleted step by step."""
    for n in range(2 * STEP_JOBS):
        driver.enqueue(f"j{n:03}")
    driver.enqueue("waits", depends_on=["j001", f"j{STEP_JOBS + 5:03}"])
    driver.do(op, "q", "bulk_1")
    check(driver)
    driver.step()
    check(driver)
    assert driver.machine.job("waits") is None and not driver.machine.pending_dependents


# Records of tasks.


def test_old_tasks_are_forgotten(driver: Driver) -> None:
    driver.enqueue("j")
    driver.bulk("hold", "j", operation_id="bulk_a")
    driver.machine.flush()
    driver.now_ns += BULK_KEPT_NS
    driver.bulk("approve", "j", operation_id="bulk_b")
    assert driver.machine.operation("bulk_a") is None
    check(driver)


def test_so_many_tasks_are_known(driver: Driver) -> None:
    for n in range(BULK_OPERATIONS_MAX + 5):
        driver.bulk("retry", "nope", operation_id=f"bulk_{n:05}")
    assert driver.machine.operation("bulk_00004") is None
    assert driver.machine.operation("bulk_00006") is not None
    check(driver)

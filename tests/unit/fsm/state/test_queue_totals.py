"""Totals over all queues: exact numbers of jobs, and counters that never decrease."""

from lib.fsm_driver import Driver

from corvo import ops
from corvo.fsm.state.queue_totals import QueueTotals
from corvo.model import COMPLETED, PENDING


def work(driver: Driver, queue: str) -> None:
    """Enqueue three jobs of a queue; one completes, one fails, the lease of one expires."""
    for number in range(3):
        driver.enqueue(f"{queue}{number}", queue=queue, max_retries=1)
    driver.ack(driver.take(queue).job_id)
    driver.fail(driver.take(queue).job_id)
    driver.take(queue, lease_s=1)
    driver.advance(2)
    driver.tick()


def counters(totals: QueueTotals) -> tuple[int, ...]:
    return totals.enqueued, totals.completed, totals.failed, totals.expired


def delete(driver: Driver, queue: str) -> None:
    driver.do(ops.DELETE_QUEUE, queue, f"bulk_{queue}")
    driver.step()


def test_counters_of_a_deleted_queue_stay() -> None:
    driver = Driver()
    work(driver, "a")
    work(driver, "b")
    delete(driver, "a")
    totals = driver.machine.totals()
    assert counters(totals) == (6, 2, 4, 2)
    assert (totals.jobs[COMPLETED], totals.jobs[PENDING]) == (1, 0)
    driver.restart()
    assert counters(driver.machine.totals()) == (3, 1, 2, 1), "a new process counts what exists"


def test_counters_rise_over_a_snapshot() -> None:
    """A node that installs a snapshot has another state, in which deleted queues are missing."""
    driver, leader = Driver(), Driver()
    work(driver, "a")
    delete(driver, "a")
    driver.enqueue("job", queue="b")
    for number in range(5):
        leader.enqueue(f"job{number}", queue="c")
    leader.machine.flush()
    driver.machine.restore(leader.state_store)
    totals = driver.machine.totals()
    assert counters(totals) == (5, 1, 2, 1)
    assert totals.jobs[PENDING] == 5
    driver.enqueue("next", queue="c")
    assert driver.machine.totals().enqueued == 6

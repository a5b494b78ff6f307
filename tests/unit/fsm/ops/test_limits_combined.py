"""Groups and rate limits beside holds, dependencies, moves, clears and the end of a queue."""

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver

from corvo import ops
from corvo.errors import NotFound
from corvo.limits import SECOND_NS
from corvo.model import ACTIVE, DEAD, HELD, PENDING, SCHEDULED


def lines(*names: str) -> Driver:
    """Jobs whose groups, named by their first letter, are lines."""
    driver = Driver()
    driver.do(ops.SET_GROUP_LIMIT, "q", 1)
    for name in names:
        driver.enqueue(name, group_key=name[0])
    return driver


def check(driver: Driver) -> None:
    """The rows agree with each other, also for who starts from them."""
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    driver.restart()


def woken(driver: Driver) -> list[str]:
    return sorted(driver.machine.take_woken())


def in_front(driver: Driver, job_id: str) -> list[str]:
    found = driver.machine.obstacles(driver.job(job_id), driver.now_ns)
    return [obstacle.job_id for obstacle in found]


def test_a_held_job_keeps_its_place_in_the_line() -> None:
    driver = lines("a1", "a2")
    assert driver.act("hold", "a1") == "held"
    check(driver)
    assert driver.fetch() is None and in_front(driver, "a2") == ["a1"]
    woken(driver)
    driver.act("approve", "a1")
    assert woken(driver) == ["q"]
    check(driver)
    assert driver.take().job_id == "a1"
    driver.act("hold", "a1")
    woken(driver)
    driver.act("reject", "a1")
    assert woken(driver) == ["q"] and driver.state("a1") == DEAD
    assert driver.take().job_id == "a2"
    check(driver)


def test_a_job_that_is_held_from_the_start_keeps_its_line_waiting() -> None:
    driver = lines()
    driver.enqueue("a1", group_key="a", hold=True, hold_timeout_ns=SECOND_NS)
    driver.enqueue("a2", group_key="a")
    check(driver)
    assert driver.state("a1") == HELD and driver.fetch() is None
    driver.advance(1)
    driver.tick()
    assert driver.take().job_id == "a2"


def test_a_job_that_waits_for_others_lets_its_group_pass() -> None:
    driver = lines("d1")
    driver.enqueue("a1", group_key="a", depends_on=["d1"])
    driver.enqueue("a2", group_key="a")
    check(driver)
    assert in_front(driver, "a1") == in_front(driver, "a2") == []
    assert driver.machine.fetchable("q") == 2 and driver.machine.jobs_before(driver.job("a2")) == 1
    first, second = driver.take(), driver.take()
    assert {first.job_id, second.job_id} == {"d1", "a2"} and driver.fetch() is None
    driver.ack("d1")
    assert driver.state("a1") == PENDING and driver.fetch() is None
    check(driver)
    woken(driver)
    driver.ack("a2")
    assert woken(driver) == ["q"] and driver.take().job_id == "a1"


def test_the_only_job_of_a_group_may_wait_for_another_one() -> None:
    driver = Driver()
    driver.enqueue("d1")
    driver.enqueue("a1", group_key="a", depends_on=["d1"])
    assert driver.machine.group_keys("q") == []
    check(driver)
    driver.act("change_priority", "a1", priority=0)
    driver.act("move", "a1", target="r")
    assert driver.machine.fetchable("r") == 0
    check(driver)
    driver.ack("d1", driver.take().token)
    assert driver.take("r").job_id == "a1"
    check(driver)


@pytest.mark.parametrize("state", ["ready", "retrying", "held", "postponed", "active"])
def test_a_move_frees_the_line_it_leaves(state: str) -> None:
    driver = lines("a1", "a2")
    driver.do(ops.SET_GROUP_LIMIT, "r", 1)
    if state == "held":
        driver.act("hold", "a1")
    elif state != "ready":
        token = driver.take().token
        if state == "retrying":
            driver.fail("a1", token, retry_after_ns=60 * SECOND_NS)
        if state == "postponed":
            driver.release("a1", token, delay_s=60)
    check(driver)
    woken(driver)
    driver.act("move", "a1", target="r")
    assert "q" in woken(driver) or state == "ready"
    driver.enqueue("a3", queue="r", group_key="a")
    check(driver)
    assert driver.take().job_id == "a2"
    ready = driver.fetch("r")
    assert (ready.job_id if ready else None) == ("a1" if state == "ready" else None)
    check(driver)
    driver.act("delete", "a1")
    assert driver.take("r").job_id == "a3"


def test_a_move_of_an_active_job_takes_no_turn_and_no_grant() -> None:
    driver = Driver()
    driver.do(ops.SET_THROTTLE, "r", 1, 60_000)
    driver.enqueue("a1", group_key="a")
    driver.enqueue("b1", queue="r", group_key="b")
    driver.enqueue("a2", queue="r", group_key="a")
    driver.take()
    driver.act("move", "a1", target="r")
    assert driver.machine.rate_used("r", driver.now_ns) == 0
    check(driver)
    assert driver.take("r").job_id == "b1"


def test_a_job_with_another_priority_stands_elsewhere_in_its_line() -> None:
    driver = lines("a1", "a2", "a3")
    driver.fail("a1", driver.take().token, retry_after_ns=60 * SECOND_NS)
    driver.act("hold", "a2")
    driver.act("change_priority", "a3", priority=0)
    check(driver)
    token = driver.take().token
    driver.act("change_priority", "a2", priority=0)
    driver.release("a3", token)
    check(driver)
    assert driver.fetch() is None and in_front(driver, "a3") == ["a2"]
    driver.act("cancel", "a2")
    assert driver.take().job_id == "a3"


def test_an_expired_job_leaves_its_line() -> None:
    driver = lines()
    driver.enqueue("a1", group_key="a", expire_after_ns=SECOND_NS)
    driver.enqueue("a2", group_key="a")
    driver.act("hold", "a1")
    driver.advance(1)
    woken(driver)
    driver.tick()
    assert woken(driver) == ["q"] and driver.state("a1") == DEAD
    assert driver.take().job_id == "a2"
    check(driver)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_clear_takes_what_is_ready_or_postponed_out_of_the_groups(flushed: bool) -> None:
    driver = lines("a1", "b1", "c1", *(f"d{n}" for n in range(150)))
    taken = {job.job_id: job.token for job in (driver.take(), driver.take(), driver.take())}
    driver.release("a1", taken["a1"], delay_s=60)
    driver.act("hold", "b1")
    driver.enqueue("e1", group_key="e", depends_on=["c1"])
    if flushed:
        driver.machine.flush()
    driver.do(ops.CLEAR_QUEUE, "q", "bulk_1")
    assert driver.machine.running_operations() and driver.machine.blocked_count("q") == 0
    check(driver)
    assert sorted(driver.machine.group_keys("q")) == ["b", "c"]
    for name in ("a2", "b2", "c2", "d2x"):
        driver.enqueue(name, group_key=name[0])
    check(driver)
    assert {driver.take().job_id, driver.take().job_id} == {"a2", "d2x"}
    assert driver.fetch() is None
    driver.step()
    check(driver)
    driver.act("approve", "b1")
    driver.ack("c1", taken["c1"])
    assert {driver.take().job_id, driver.take().job_id} == {"b1", "c2"}
    check(driver)


def test_the_end_of_a_queue_is_the_end_of_its_groups_and_limits() -> None:
    driver = lines("a1", "a2", "b1", *(f"d{n}" for n in range(150)))
    driver.do(ops.SET_THROTTLE, "q", 2, 60_000)
    driver.do(ops.SET_QUEUE_OPTIONS, "q", [], SECOND_NS + 1)
    driver.take()
    driver.act("hold", "b1")
    driver.machine.flush()
    driver.do(ops.DELETE_QUEUE, "q", "bulk_1")
    assert driver.machine.running_operations()
    check(driver)
    assert isinstance(driver.do(ops.REMOVE_THROTTLE, "q"), NotFound)
    for name in ("a1x", "a2x", "b1x"):
        driver.enqueue(name, group_key=name[0])
    check(driver)
    assert [driver.take().job_id for _ in range(3)] == ["a1x", "b1x", "a2x"]
    driver.step()
    check(driver)
    queue = driver.machine.queue("q")
    assert queue is not None and queue.jobs(ACTIVE) == 3
    assert (queue.rate_limit, queue.group_concurrency, queue.aging_after_ns) == (0, 0, 0)


def test_a_bulk_action_goes_through_the_groups() -> None:
    driver = lines("a1", "a2", "b1", "-1")
    driver.enqueue("c1", group_key="c", depends_on=["-1"])
    driver.enqueue("s1", group_key="a", scheduled_ns=driver.now_ns + SECOND_NS)
    check(driver)
    operation = driver.bulk("hold")
    driver.step()
    assert operation.counts[0] == 6 and driver.machine.fetchable("q") == 0
    check(driver)
    driver.bulk("move", operation_id="bulk_2", target="r")
    driver.step()
    check(driver)
    assert driver.machine.group_keys("q") == []
    driver.bulk("approve", operation_id="bulk_3")
    driver.step()
    check(driver)
    assert driver.machine.fetchable("r") == 5 and driver.state("s1") not in (SCHEDULED, HELD)


def test_a_retry_of_a_grouped_job_waits_for_its_dependencies_again() -> None:
    driver = lines("d1")
    driver.enqueue("a1", group_key="a", depends_on=["d1"])
    driver.cancel("a1")
    driver.act("retry", "a1")
    check(driver)
    driver.take()
    assert driver.fetch() is None
    driver.ack("d1")
    assert driver.take().job_id == "a1"

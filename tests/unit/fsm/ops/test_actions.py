"""Move, change priority, requeue, run now."""

import json

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver

from corvo import ops
from corvo.errors import InvalidState, NotFound, UniqueConflict
from corvo.limits import SECOND_NS
from corvo.model import (
    ACTIONS,
    COMPLETED,
    DEAD,
    PENDING,
    RETRYING,
    SCHEDULED,
    Enqueued,
)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def check(driver: Driver) -> None:
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def move(driver: Driver, job_id: str, queue: str, reset: bool = False, keep: bool = True) -> object:
    return driver.do(ops.MOVE_JOB, job_id, queue, reset, keep)


def test_move_goes_to_the_tail_of_the_other_queue(driver: Driver) -> None:
    driver.enqueue("mine")
    driver.enqueue("theirs", queue="other")
    driver.restart()
    assert move(driver, "mine", "other") is None
    change = driver.machine.events("mine")[-1]
    assert json.loads(change.data) == {"from": "q", "to": "other"} and change.queue == "other"
    assert driver.fetch() is None
    assert [driver.take("other").job_id, driver.take("other").job_id] == ["theirs", "mine"]
    check(driver)


def test_an_active_job_keeps_its_lease_and_counts_there(driver: Driver) -> None:
    driver.do(ops.SET_CONCURRENCY, "q", 1)
    driver.do(ops.SET_CONCURRENCY, "other", 1)
    driver.enqueue("j")
    driver.enqueue("next")
    driver.enqueue("theirs", queue="other")
    token = driver.take().token
    driver.machine.take_woken()
    move(driver, "j", "other")
    assert "q" in driver.machine.take_woken(), "its slot is free"
    assert driver.take().job_id == "next"
    assert driver.fetch("other") is None
    assert driver.beat("j", token) == "ok"
    driver.restart()
    driver.ack("j", token)
    assert driver.take("other").job_id == "theirs"
    assert driver.state("j") == COMPLETED
    check(driver)


def test_times_and_attempts_move_too(driver: Driver) -> None:
    later = driver.now_ns + 50 * SECOND_NS
    driver.enqueue("scheduled", scheduled_ns=later)
    driver.enqueue("retrying", base_delay_ms=50_000)
    driver.take()
    driver.fail("retrying")
    for job_id, state in (("scheduled", SCHEDULED), ("retrying", RETRYING)):
        move(driver, job_id, "other", keep=False)
        job = driver.job(job_id)
        assert (job.state, job.scheduled_ns, job.priority) == (state, later, 2)
    assert driver.job("retrying").attempt == 1
    move(driver, "retrying", "third", reset=True)
    assert driver.job("retrying").attempt == 0
    check(driver)
    driver.advance(50)
    driver.tick()
    assert {driver.take("other").job_id, driver.take("third").job_id} == {"scheduled", "retrying"}


def test_priority_is_kept_or_not(driver: Driver) -> None:
    for job_id, keep, priority in (("kept", True, 0), ("normal", False, 2)):
        driver.enqueue(job_id, priority=0)
        move(driver, job_id, "other", keep=keep)
        assert driver.job(job_id).priority == priority
    check(driver)


def test_the_unique_key_moves_too(driver: Driver) -> None:
    driver.enqueue("j", unique_key=b"k")
    move(driver, "j", "other")
    assert not driver.enqueue("new", unique_key=b"k").duplicate
    assert driver.enqueue("twin", queue="other", unique_key=b"k").job_id == "j"
    refused = move(driver, "new", "other")
    assert isinstance(refused, UniqueConflict) and refused.fields["holder_id"] == "j"
    assert driver.job("new").queue_number == 1
    check(driver)


def test_a_finished_job_moves_without_a_lock(driver: Driver) -> None:
    driver.enqueue("j", unique_key=b"k")
    driver.take()
    driver.ack("j")
    driver.enqueue("live", queue="other", unique_key=b"k")
    assert move(driver, "j", "other") is None
    check(driver)


def test_to_the_queue_it_is_in(driver: Driver) -> None:
    driver.enqueue("a", unique_key=b"k")
    driver.enqueue("b")
    move(driver, "a", "q")
    assert [driver.take().job_id, driver.take().job_id] == ["b", "a"]
    assert driver.enqueue("c", unique_key=b"k").duplicate
    check(driver)


def test_another_priority_keeps_the_age(driver: Driver) -> None:
    driver.enqueue("old", priority=2)
    driver.advance(5)
    driver.enqueue("high", priority=1)
    driver.restart()
    ready_ns = driver.job("old").ready_ns
    assert driver.act("change_priority", "old", priority=1) == "ok"
    assert driver.job("old").ready_ns == ready_ns
    assert json.loads(driver.machine.events("old")[-1].data) == {"from": 2, "to": 1}
    assert [driver.take().job_id, driver.take().job_id] == ["old", "high"]
    check(driver)


def test_the_same_priority_is_no_event(driver: Driver) -> None:
    driver.enqueue("j")
    before = driver.machine.event_seq
    assert driver.act("change_priority", "j", priority=2) == "ok"
    assert driver.machine.event_seq == before


def test_requeue_gives_exactly_one_more_run(driver: Driver) -> None:
    driver.enqueue("j", max_retries=2, backoff=0)
    for _ in range(2):
        driver.take()
        driver.fail("j")
    assert driver.state("j") == DEAD
    assert driver.act("requeue", "j") == "requeued"
    assert driver.take().attempt == 3
    driver.fail("j")
    assert driver.state("j") == DEAD
    check(driver)


def test_requeue_takes_the_unique_key_again(driver: Driver) -> None:
    driver.enqueue("dead", unique_key=b"k")
    driver.take()
    driver.fail("dead", no_retry=True)
    holder = driver.enqueue("holder", unique_key=b"k")
    assert isinstance(holder, Enqueued) and not holder.duplicate
    assert isinstance(driver.act("requeue", "dead"), UniqueConflict)
    driver.cancel("holder")
    assert driver.act("requeue", "dead") == "requeued"
    check(driver)


def test_run_now(driver: Driver) -> None:
    driver.enqueue("retrying", base_delay_ms=50_000)
    driver.take()
    driver.fail("retrying")
    driver.enqueue("scheduled", scheduled_ns=driver.now_ns + 50 * SECOND_NS)
    driver.enqueue("pending")
    for job_id in ("scheduled", "retrying"):
        assert driver.act("run", job_id) == "pending"
    assert driver.machine.next_due() == 0
    taken = [driver.take() for _ in range(3)]
    order = [job.job_id for job in taken]
    assert order == ["retrying", "pending", "scheduled"], "as if their time had come"
    assert taken[0].attempt == 2
    assert isinstance(driver.act("run", "pending"), InvalidState)
    check(driver)


def test_run_again_and_again(driver: Driver) -> None:
    """The same place waits anew each time."""
    driver.enqueue("j", max_retries=9, base_delay_ms=50_000)
    for _ in range(4):
        driver.take()
        driver.fail("j")
        driver.act("run", "j")
    driver.take()
    driver.fail("j")
    assert driver.machine.next_due() == driver.job("j").scheduled_ns
    driver.advance(50)
    driver.tick()
    assert driver.state("j") == PENDING


@pytest.mark.parametrize("action", ACTIONS)
def test_unknown_job(driver: Driver, action: str) -> None:
    assert isinstance(driver.act(action, "nope", target="q"), NotFound)


def test_many_at_once(driver: Driver) -> None:
    driver.enqueue("a")
    driver.enqueue("b")
    answers = driver.act("hold", "a", "nope", "b")
    assert answers[0] == answers[2] == "held" and isinstance(answers[1], NotFound)

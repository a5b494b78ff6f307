"""Held jobs: hold, approve, reject, revise, and holds without a decision."""

from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver, encode_arguments, encode_options

from corvo import events, ops
from corvo.errors import Conflict, InvalidState, LeaseLost
from corvo.limits import SECOND_NS
from corvo.model import (
    ACTIONS,
    CANCELLED,
    DEAD,
    ERROR_KINDS,
    HELD,
    HOLD_ACTIONS,
    PENDING,
    RETRYING,
    SCHEDULED,
)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def event(driver: Driver, job_id: str = "j") -> tuple[str, bytes]:
    change = driver.machine.events(job_id)[-1]
    return events.EVENT_TYPES[change.type], change.data


def test_held_from_the_start(driver: Driver) -> None:
    result = driver.enqueue("j", options=encode_options(hold=True, hold_reason='a "b"'))
    assert result.state == HELD and driver.fetch() is None
    assert event(driver) == ("held", b'{"reason":"a \\"b\\""}')
    driver.restart()
    assert driver.act("approve", "j", by="ann", note="fine") == "pending"
    assert event(driver) == ("approved", b'{"by":"ann","note":"fine"}')
    options = driver.job("j").options
    assert options is not None and not options.hold_reason
    assert driver.take().job_id == "j"


def test_a_hold_keeps_the_place(driver: Driver) -> None:
    driver.enqueue("a")
    driver.enqueue("b")
    assert driver.act("hold", "a", reason="wait") == "held"
    driver.restart()
    driver.act("approve", "a")
    assert [driver.take().job_id, driver.take().job_id] == ["a", "b"]


def test_a_hold_takes_the_job_from_its_worker(driver: Driver) -> None:
    driver.do(ops.SET_CONCURRENCY, "q", 1)
    driver.enqueue("j")
    driver.enqueue("next")
    token = driver.take().token
    driver.act("hold", "j")
    assert driver.beat("j", token) == "lost"
    assert isinstance(driver.ack("j", token), LeaseLost)
    assert driver.take().job_id == "next", "its slot is free"
    driver.ack("next")
    driver.act("approve", "j")
    assert driver.take().attempt == 2


@pytest.mark.parametrize("state", [SCHEDULED, RETRYING])
def test_a_job_that_waited_for_its_time_does_not_after_a_hold(driver: Driver, state: int) -> None:
    later = driver.now_ns + 5 * SECOND_NS if state == SCHEDULED else 0
    driver.enqueue("j", scheduled_ns=later)
    if state == RETRYING:
        driver.take()
        driver.fail("j")
    assert driver.state("j") == state
    driver.act("hold", "j")
    driver.advance(10)
    driver.tick()
    assert driver.state("j") == HELD
    driver.act("approve", "j")
    driver.take()
    driver.fail("j")
    assert driver.state("j") == RETRYING
    assert driver.machine.next_due() == driver.job("j").scheduled_ns
    driver.advance(5)
    driver.tick()
    assert driver.state("j") == PENDING, "its old entry does not stand for the new one"


def test_reject(driver: Driver) -> None:
    driver.enqueue("j", unique_key=b"k", options=encode_options(hold=True))
    assert driver.act("reject", "j", reason="no", by="ann", feedback=b'"bad"') == "dead"
    (record,) = driver.machine.errors("j")
    assert (ERROR_KINDS[record.kind], record.error) == ("rejected", b'"rejected: no"')
    rejected = driver.machine.events("j")[-2]
    assert rejected.data == b'{"reason":"no","by":"ann","feedback":"bad"}'
    assert event(driver) == ("dead", b'{"reason":"rejected"}')
    assert not driver.enqueue("again", unique_key=b"k").duplicate


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b'{"rejection_feedback":"f"}'),
        (b"{ }", b'{ "rejection_feedback":"f"}'),
        (b'{"n": 1e400}', b'{"n": 1e400,"rejection_feedback":"f"}'),
    ],
)
def test_revise_gives_the_worker_the_feedback(driver: Driver, before: bytes, after: bytes) -> None:
    driver.enqueue("j", checkpoint=before)
    for _ in range(2):
        driver.act("hold", "j")
        assert driver.act("reject", "j", revise=True, feedback=b'"f"') == "pending"
    driver.restart()
    job = driver.take()
    assert (job.checkpoint, job.feedback) == (after, b'"f"')


def test_feedback_needs_an_object(driver: Driver) -> None:
    driver.enqueue("j", checkpoint=b"[1]", options=encode_options(hold=True))
    assert isinstance(driver.act("reject", "j", revise=True, feedback=b'"f"'), Conflict)
    assert driver.state("j") == HELD


@pytest.mark.parametrize("first", ["approve", "reject"])
@pytest.mark.parametrize("second", ["approve", "reject"])
def test_of_two_decisions_in_one_entry_the_first_counts(
    driver: Driver, first: str, second: str
) -> None:
    driver.enqueue("j", options=encode_options(hold=True))
    steps: list[Any] = [
        (ops.BULK_ACTION, ("", ["j"], False, ACTIONS.index(name), encode_arguments(), False))
        for name in (first, second)
    ]
    (won,), (lost,) = driver.entry(*steps)
    assert won == ("pending" if first == "approve" else "dead")
    assert isinstance(lost, InvalidState)
    assert driver.state("j") == (PENDING if first == "approve" else DEAD)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("action", HOLD_ACTIONS[:3])
@pytest.mark.parametrize("at_enqueue", [False, True])
def test_nobody_decides(driver: Driver, restart: bool, action: str, at_enqueue: bool) -> None:
    number = HOLD_ACTIONS.index(action)
    fields = {"hold_timeout_ns": 60 * SECOND_NS, "hold_action": number}
    if at_enqueue:
        driver.enqueue("j", options=encode_options(hold=True, **fields))
    else:
        driver.enqueue("j")
        driver.act("hold", "j", **fields)
    if restart:
        driver.restart()
    assert driver.machine.next_due() == driver.now_ns + 60 * SECOND_NS
    driver.advance(60)
    driver.tick()
    ends = {"cancel": CANCELLED, "approve": PENDING, "reject": DEAD}
    assert driver.state("j") == ends[action]
    assert any(change.data == b'{"reason":"hold timeout"}' for change in driver.machine.events("j"))
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    assert driver.machine.next_due() == 0


def test_a_decision_ends_the_timeout(driver: Driver) -> None:
    driver.enqueue("j")
    driver.act("hold", "j", hold_timeout_ns=60 * SECOND_NS)
    driver.act("approve", "j")
    assert driver.machine.next_due() == 0
    driver.act("hold", "j", hold_timeout_ns=90 * SECOND_NS)
    assert driver.machine.next_due() == driver.now_ns + 90 * SECOND_NS
    driver.advance(60)
    driver.tick()
    assert driver.state("j") == HELD
    driver.advance(30)
    driver.tick()
    assert driver.state("j") == CANCELLED


def test_cancel_and_delete_of_a_held_job(driver: Driver) -> None:
    for job_id in ("a", "b"):
        driver.enqueue(job_id, options=encode_options(hold=True, hold_reason="why"))
    assert driver.cancel("a") == "cancelled"
    assert driver.do(ops.DELETE_JOB, "b") is None
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    assert driver.machine.job("b") is None


def test_a_hold_moves_with_its_job(driver: Driver) -> None:
    driver.enqueue("j")
    driver.act("hold", "j", reason="why", hold_timeout_ns=60 * SECOND_NS)
    driver.act("move", "j", target="other")
    driver.restart()
    options = driver.job("j").options
    assert options is not None and options.hold_reason == "why"
    driver.advance(60)
    driver.tick()
    assert driver.state("j") == CANCELLED

"""expire_after: a job that has not ended in time is dead, wherever it stands."""

from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver, encode_options

from corvo import ops
from corvo.fsm.ops.jobs import EXPIRED_AT_FETCH_MAX
from corvo.limits import SECOND_NS
from corvo.model import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    DEAD,
    ERROR_KINDS,
    HELD,
    HOLD_ACTIONS,
    PENDING,
    RETRYING,
    SCHEDULED,
    Failed,
)

MINUTE = encode_options(expire_after_ns=60 * SECOND_NS)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def kinds(driver: Driver, job_id: str = "j") -> list[str]:
    return [ERROR_KINDS[record.kind] for record in driver.machine.errors(job_id)]


def expired(driver: Driver, job_id: str = "j") -> bool:
    """Whether the job is dead because of its time, and its rows say so."""
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    return driver.state(job_id) == DEAD and kinds(driver, job_id)[-1] == "expired"


@pytest.mark.parametrize("state", [PENDING, SCHEDULED, RETRYING, HELD])
@pytest.mark.parametrize("restart", [False, True])
def test_a_job_that_waits_expires_when_its_time_comes(
    driver: Driver, state: int, restart: bool
) -> None:
    fields: dict[str, Any] = {"options": MINUTE}
    if state == SCHEDULED:
        fields["scheduled_ns"] = driver.now_ns + 100 * SECOND_NS
    driver.enqueue("j", base_delay_ms=100_000, **fields)
    if state == RETRYING:
        driver.take()
        driver.fail("j")
    if state == HELD:
        driver.act("hold", "j")
    assert driver.state("j") == state
    if restart:
        driver.restart()
    assert driver.machine.next_due() == driver.job("j").created_ns + 60 * SECOND_NS
    driver.advance(59.9)
    driver.tick()
    assert driver.state("j") == state
    driver.advance(0.1)
    driver.tick()
    assert expired(driver)
    assert driver.machine.next_due() == 0
    types = [change.type for change in driver.machine.events("j")]
    assert types[-2:] == [20, 7]


@pytest.mark.parametrize(
    ("hold_s", "action", "state", "kind"),
    [
        (30, "cancel", CANCELLED, []),
        (30, "reject", DEAD, ["rejected"]),
        (60, "reject", DEAD, ["rejected"]),
        (30, "approve", DEAD, ["expired"]),
        (61, "cancel", DEAD, ["expired"]),
    ],
)
def test_the_earlier_of_hold_and_expiry_counts(
    driver: Driver, hold_s: int, action: str, state: int, kind: list[str]
) -> None:
    """Both are due when the leader looks, for example after a restart."""
    driver.enqueue("j", options=MINUTE)
    number = HOLD_ACTIONS.index(action)
    driver.act("hold", "j", hold_timeout_ns=hold_s * SECOND_NS, hold_action=number)
    driver.advance(300)
    driver.tick()
    assert driver.state("j") == state and kinds(driver) == kind
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    assert driver.machine.next_due() == 0


def test_an_active_job_is_left_to_its_worker(driver: Driver) -> None:
    driver.enqueue("j", options=MINUTE)
    token = driver.take(lease_s=600).token
    driver.advance(61)
    assert driver.machine.due_expiries(driver.now_ns, 10) == []
    driver.do(ops.EXPIRE_JOBS, ["j"])
    assert driver.state("j") == ACTIVE
    assert driver.beat("j", token) == "ok"
    driver.ack("j", token)
    assert driver.state("j") == COMPLETED


def test_a_late_failure_is_the_last_one(driver: Driver) -> None:
    driver.enqueue("j", options=MINUTE)
    driver.take(lease_s=600)
    driver.advance(61)
    failed = driver.fail("j")
    assert isinstance(failed, Failed) and failed.state == DEAD
    assert kinds(driver) == ["failed", "expired"] and expired(driver)


def test_a_lease_that_ends_late_is_the_last_one(driver: Driver) -> None:
    driver.enqueue("j", options=MINUTE)
    driver.take(lease_s=70)
    driver.advance(71)
    driver.tick()
    assert kinds(driver) == ["lease_expired", "expired"] and expired(driver)


@pytest.mark.parametrize(
    ("lease_s", "attempts", "kind"),
    [
        (30, 1, ["lease_expired"]),
        (60, 1, ["lease_expired"]),
        (30, 2, ["lease_expired", "expired"]),
        (61, 1, ["lease_expired", "expired"]),
    ],
)
def test_the_earlier_of_lease_and_expiry_counts(
    driver: Driver, lease_s: int, attempts: int, kind: list[str]
) -> None:
    """Both are due when the leader looks, for example after a pause."""
    driver.enqueue("j", options=MINUTE, max_retries=attempts)
    driver.take(lease_s=lease_s)
    driver.advance(300)
    driver.tick()
    assert driver.state("j") == DEAD and kinds(driver) == kind


def test_a_late_release_is_the_last_one(driver: Driver) -> None:
    driver.enqueue("j", options=MINUTE)
    driver.take(lease_s=600)
    driver.advance(61)
    assert driver.release("j") == DEAD
    assert expired(driver)


@pytest.mark.parametrize("number", [ops.ACK.number, ops.DELETE_JOB.number])
def test_a_job_that_ends_while_it_runs_leaves_no_time_behind(driver: Driver, number: int) -> None:
    driver.enqueue("j", options=MINUTE)
    driver.take(lease_s=600)
    driver.advance(1)
    if number == ops.ACK.number:
        driver.ack("j")
    else:
        driver.do(ops.DELETE_JOB, "j")
    assert driver.machine.next_due() == 0


def test_a_job_that_came_back_in_time_still_expires(driver: Driver) -> None:
    """The leader looked at its expiry while the job was active."""
    driver.enqueue("j", options=MINUTE)
    driver.take(lease_s=600)
    driver.advance(60)
    assert driver.machine.due_expiries(driver.now_ns, 10) == []
    driver.advance(-1)  # an entry that was sealed before
    driver.release("j")
    driver.advance(2)
    driver.tick()
    assert expired(driver)


def test_fetch_passes_over_what_has_expired(driver: Driver) -> None:
    driver.enqueue("j", options=MINUTE)
    driver.enqueue("next")
    driver.advance(61)
    assert driver.take().job_id == "next"
    assert expired(driver)


def test_one_fetch_lets_so_many_expire_at_most(driver: Driver) -> None:
    count = EXPIRED_AT_FETCH_MAX + 5
    for n in range(count):
        driver.enqueue(f"j{n:03}", options=MINUTE)
    driver.enqueue("next")
    driver.advance(61)
    driver.machine.take_woken()
    assert driver.fetch() is None
    assert driver.machine.take_woken() == ["q"], "another fetch is tried at once"
    assert driver.take().job_id == "next"
    assert expired(driver, f"j{count - 1:03}")


def test_promotion_and_approval_and_run_do_not_bring_it_back(driver: Driver) -> None:
    scheduled_ns = driver.now_ns + 61 * SECOND_NS
    for job_id in ("promoted", "run"):
        driver.enqueue(job_id, scheduled_ns=scheduled_ns, options=MINUTE)
    driver.enqueue("approved", options=MINUTE)
    driver.act("hold", "approved")
    driver.advance(61)
    assert driver.act("approve", "approved") == "dead"
    assert driver.act("run", "run") == "dead"
    driver.do(ops.PROMOTE_DUE, ["promoted"])
    for job_id in ("promoted", "run", "approved"):
        assert expired(driver, job_id)


def test_a_retry_and_a_requeue_by_hand_have_all_the_time(driver: Driver) -> None:
    for job_id, action in (("a", "retry"), ("b", "requeue")):
        driver.enqueue(job_id, options=MINUTE)
        driver.advance(61)
        driver.tick()
        assert driver.state(job_id) == DEAD
        driver.act(action, job_id)
        driver.advance(1_000)
        driver.tick()
        assert driver.state(job_id) == PENDING
    driver.restart()
    check_machine(driver.machine, driver.state_store)


def test_a_retry_of_a_job_that_waits_ends_its_expiry(driver: Driver) -> None:
    scheduled_ns = driver.now_ns + 100 * SECOND_NS
    driver.enqueue("j", scheduled_ns=scheduled_ns, options=MINUTE)
    driver.machine.flush()
    driver.act("retry", "j")
    assert driver.machine.next_due() == 0
    driver.restart()
    assert driver.machine.next_due() == 0
    check_machine(driver.machine, driver.state_store)


def test_a_retry_after_a_failed_attempt_ends_its_expiry(driver: Driver) -> None:
    """The end of an attempt adds the entry of the expiry again, because the leader may have
    dropped it."""
    driver.enqueue("j", options=encode_options(expire_after_ns=SECOND_NS))
    driver.take()
    driver.fail("j", retry_after_ns=SECOND_NS // 2)
    driver.act("retry", "j")
    assert driver.machine.next_due() == 0


def test_the_expiry_goes_with_a_job_to_another_place(driver: Driver) -> None:
    driver.enqueue("j", options=MINUTE)
    driver.machine.flush()
    driver.act("move", "j", target="other")
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    driver.advance(61)
    driver.tick()
    assert expired(driver)
    assert driver.job("j").queue_number == 2


def test_shorter_than_the_delay(driver: Driver) -> None:
    """It is dead before it was ever ready."""
    driver.enqueue("j", scheduled_ns=driver.now_ns + 3_600 * SECOND_NS, options=MINUTE)
    driver.advance(61)
    driver.tick()
    assert expired(driver) and driver.fetch() is None


def test_entries_of_what_ended_do_not_pile_up(driver: Driver) -> None:
    for n in range(3_000):
        driver.enqueue(f"j{n}", options=MINUTE)
        driver.do(ops.DELETE_JOB, f"j{n}")
    driver.machine.flush()
    assert len(driver.machine._state.expiring) == 0

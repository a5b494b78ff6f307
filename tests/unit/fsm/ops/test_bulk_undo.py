"""Taking bulk actions back: what a job was like, who stands in the way, and for how long."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.consistency import check_machine
from lib.fsm_driver import Driver, encode_arguments, encode_options

from corvo import events, ops
from corvo.errors import Conflict, InvalidState, NotFound
from corvo.fsm.ops.bulk import STATE_BASE
from corvo.limits import BULK_UNDO_NS, SECOND_NS, STEP_JOBS
from corvo.model import (
    ACTIONS,
    ACTIVE,
    CANCELLED,
    COMPLETED,
    CONFLICT,
    DEAD,
    DONE,
    HELD,
    OPERATION_CANCELLED,
    OPERATION_COMPLETED,
    OPERATION_QUEUED,
    PENDING,
    RETRYING,
    SCHEDULED,
    SKIPPED,
    BulkOperation,
)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def undo(driver: Driver, operation_id: str = "bulk_1", undo_id: str = "bulk_u") -> Any:
    result = driver.do(ops.BULK_UNDO, undo_id, operation_id)
    driver.step()
    return driver.machine.operation(undo_id) if isinstance(result, BulkOperation) else result


def check(driver: Driver) -> None:
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def bulk(driver: Driver, action: str, *ids: str, **arguments: Any) -> BulkOperation:
    operation = driver.bulk(action, *ids, **arguments)
    driver.step()
    check(driver)
    return operation


def dead(driver: Driver, job_id: str, **fields: Any) -> None:
    driver.enqueue(job_id, max_retries=1, **fields)
    job = driver.take()
    driver.fail(job.job_id, job.token)
    assert driver.state(job_id) == DEAD


def test_a_retry_is_taken_back(driver: Driver) -> None:
    dead(driver, "d", unique_key=b"k")
    driver.enqueue("c")
    job = driver.take()
    driver.ack(job.job_id, job.token)
    driver.enqueue("s", scheduled_ns=driver.now_ns + 60 * SECOND_NS)
    before = [vars_of(driver, job_id) for job_id in "dcs"]
    operation = bulk(driver, "retry", "d", "c", "s")
    assert operation.counts[DONE] == 3
    assert [driver.state(job_id) for job_id in "dcs"] == [PENDING] * 3
    undone = undo(driver)
    check(driver)
    assert (undone.state, undone.counts[DONE]) == (OPERATION_COMPLETED, 3)
    assert [driver.state(job_id) for job_id in "dcs"] == [DEAD, COMPLETED, SCHEDULED]
    assert [vars_of(driver, job_id) for job_id in "dcs"] == before
    assert driver.fetch() is None
    assert driver.enqueue("other", unique_key=b"k").duplicate is False
    last = driver.machine.events("d")[-1]
    assert (last.type, last.data) == (events.UNDONE, b'{"action":"retry"}')


def vars_of(driver: Driver, job_id: str) -> tuple[Any, ...]:
    job = driver.job(job_id)
    times = job.scheduled_ns, job.completed_ns, job.failed_ns
    return job.state, job.attempt, job.priority, job.queue_number, job.keeps_position, times


@pytest.mark.parametrize("state", [PENDING, SCHEDULED, RETRYING, HELD])
def test_a_cancel_is_taken_back(driver: Driver, state: int) -> None:
    fields: dict[str, Any] = {"unique_key": b"k"}
    if state == SCHEDULED:
        fields["scheduled_ns"] = driver.now_ns + 60 * SECOND_NS
    driver.enqueue("j", **fields)
    if state == RETRYING:
        job = driver.take()
        driver.fail(job.job_id, job.token)
    if state == HELD:
        driver.act("hold", "j", reason="look", hold_timeout_ns=90 * SECOND_NS)
    assert driver.state("j") == state
    before = vars_of(driver, "j")
    bulk(driver, "cancel", "j")
    assert driver.state("j") == CANCELLED
    assert undo(driver).counts[DONE] == 1
    check(driver)
    assert vars_of(driver, "j") == before
    assert driver.enqueue("other", unique_key=b"k").job_id == "j"
    if state == HELD:
        options = driver.job("j").options
        assert options is not None and options.hold_reason == "look"
    driver.advance(100)
    driver.tick()
    check(driver)
    assert driver.state("j") == (CANCELLED if state == HELD else PENDING)


def test_a_cancelled_job_gets_its_place_back(driver: Driver) -> None:
    for job_id in "abc":
        driver.enqueue(job_id)
    bulk(driver, "cancel", "a", "b")
    undo(driver)
    assert [driver.take().job_id for _ in range(3)] == ["a", "b", "c"]


def test_the_wish_to_cancel_an_active_job_is_taken_back(driver: Driver) -> None:
    driver.enqueue("j")
    job = driver.take()
    bulk(driver, "cancel", "j")
    assert driver.job("j").cancel_requested_ns
    assert undo(driver).counts[DONE] == 1
    assert not driver.job("j").cancel_requested_ns
    driver.fail(job.job_id, job.token)
    assert driver.state("j") == RETRYING


def test_a_forced_cancel_is_final(driver: Driver) -> None:
    driver.enqueue("j")
    driver.fetch()
    bulk(driver, "cancel", "j", force=True)
    assert undo(driver).counts[CONFLICT] == 1
    assert driver.state("j") == CANCELLED


def test_a_move_is_taken_back(driver: Driver) -> None:
    driver.enqueue("j", priority=0, unique_key=b"k")
    job = driver.take()
    driver.fail(job.job_id, job.token)
    before = vars_of(driver, "j")
    bulk(driver, "move", "j", target="there", reset_attempts=True, keep_priority=False)
    assert vars_of(driver, "j") != before
    assert undo(driver).counts[DONE] == 1
    check(driver)
    assert vars_of(driver, "j") == before
    assert driver.enqueue("other", unique_key=b"k").job_id == "j"


def test_a_priority_is_taken_back(driver: Driver) -> None:
    driver.enqueue("a", priority=2)
    driver.enqueue("b", priority=1)
    bulk(driver, "change_priority", "a", "b", priority=0)
    assert undo(driver).counts[DONE] == 2
    check(driver)
    assert [driver.job(job_id).priority for job_id in "ab"] == [2, 1]
    assert driver.take().job_id == "b"


def test_what_has_changed_since_stays(driver: Driver) -> None:
    for job_id in "abc":
        dead(driver, job_id)
    bulk(driver, "retry", "a", "b", "c")
    assert driver.take().job_id == "a"
    driver.act("delete", "b")
    operation = undo(driver)
    check(driver)
    assert operation.counts == [1, 2, 0]
    assert [driver.state(job_id) for job_id in "ac"] == [ACTIVE, DEAD]
    rows = driver.machine.operation_results(operation, 0, SKIPPED, 10)[0]
    assert rows == [("a", STATE_BASE + ACTIVE), ("b", SKIPPED)]


def test_a_key_that_is_taken_is_a_conflict(driver: Driver) -> None:
    driver.enqueue("a", unique_key=b"k")
    bulk(driver, "cancel", "a")
    driver.enqueue("b", unique_key=b"k")
    assert undo(driver).counts[CONFLICT] == 1
    assert driver.state("a") == CANCELLED


def test_what_others_were_told_is_final(driver: Driver) -> None:
    driver.enqueue("first")
    driver.enqueue("then", options=encode_options(depends_on=["first"]))
    bulk(driver, "cancel", "first")
    assert driver.state("then") == DEAD
    assert undo(driver).counts[CONFLICT] == 1
    check(driver)


def test_a_job_that_another_waits_for_goes_on(driver: Driver) -> None:
    dead(driver, "first")
    bulk(driver, "retry", "first")
    driver.enqueue("then", options=encode_options(depends_on=["first"]))
    assert undo(driver).counts[CONFLICT] == 1
    assert driver.state("first") == PENDING
    check(driver)


def test_a_cancelled_job_waits_for_what_it_waited_for(driver: Driver) -> None:
    driver.enqueue("first")
    driver.enqueue("then", options=encode_options(depends_on=["first"]))
    bulk(driver, "cancel", "then")
    assert undo(driver).counts[DONE] == 1
    check(driver)
    assert driver.take().job_id == "first"
    assert driver.fetch() is None
    driver.bulk("cancel", "then", operation_id="bulk_2")
    driver.do(ops.CANCEL_JOB, "first", True)
    assert undo(driver, "bulk_2", "bulk_v").counts[DONE] == 1
    check(driver)
    assert driver.take().job_id == "then"


def test_a_job_expires_also_when_it_is_back(driver: Driver) -> None:
    driver.enqueue("j", options=encode_options(expire_after_ns=60 * SECOND_NS))
    bulk(driver, "cancel", "j")
    undo(driver)
    check(driver)
    driver.advance(61)
    driver.tick()
    assert driver.state("j") == DEAD


def test_a_job_whose_time_is_over_does_not_come_back(driver: Driver) -> None:
    driver.enqueue("j", options=encode_options(expire_after_ns=60 * SECOND_NS))
    bulk(driver, "cancel", "j")
    driver.advance(61)
    assert undo(driver).counts[CONFLICT] == 1


def test_only_some_actions_within_a_window_and_once(driver: Driver) -> None:
    driver.enqueue("j")
    assert isinstance(driver.do(ops.BULK_UNDO, "bulk_u", "bulk_x"), NotFound)
    bulk(driver, "hold", "j")
    assert isinstance(undo(driver), Conflict)
    driver.bulk("cancel", "j", operation_id="bulk_2")
    undo(driver, "bulk_2", "bulk_u")
    assert isinstance(undo(driver, "bulk_2", "bulk_v"), Conflict)
    assert isinstance(undo(driver, "bulk_u", "bulk_v"), Conflict)
    driver.bulk("cancel", "j", operation_id="bulk_3")
    driver.advance(BULK_UNDO_NS // SECOND_NS)
    assert isinstance(undo(driver, "bulk_3", "bulk_v"), Conflict)


def test_an_undo_goes_on_in_steps_over_restarts(driver: Driver) -> None:
    ids = [f"j{n:03}" for n in range(3 * STEP_JOBS)]
    for job_id in ids:
        driver.enqueue(job_id)
    bulk(driver, "cancel", *ids)
    driver.do(ops.BULK_UNDO, "bulk_u", "bulk_1")
    driver.restart()
    driver.step()
    check(driver)
    assert all(driver.state(job_id) == PENDING for job_id in ids)
    operation = driver.machine.operation("bulk_u")
    assert operation is not None and (operation.undoes, operation.counts) == (
        "bulk_1",
        [3 * STEP_JOBS, 0, 0],
    )


def test_undo_of_a_walk_over_all_jobs(driver: Driver) -> None:
    for n in range(2 * STEP_JOBS):
        driver.enqueue(f"j{n:03}", priority=n % 3)
    bulk(driver, "cancel")
    assert undo(driver).counts[DONE] == 2 * STEP_JOBS
    check(driver)


KINDS = st.sampled_from(["pending", "scheduled", "retrying", "dead", "completed", "held"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(KINDS, st.integers(0, 2), st.booleans()), min_size=1, max_size=8),
    st.sampled_from(["retry", "cancel", "move", "change_priority"]),
    st.booleans(),
)
def test_a_bulk_and_its_undo_change_nothing(
    jobs: list[tuple[str, int, bool]], action: str, restarted: bool
) -> None:
    driver = Driver()
    for n, (kind, priority, keyed) in enumerate(jobs):
        make(driver, f"j{n}", kind, priority=priority, unique_key=b"k%d" % n if keyed else b"")
    ids = [f"j{n}" for n in range(len(jobs))]
    before = [vars_of(driver, job_id) for job_id in ids]
    operation = bulk(driver, action, *ids, target="there", priority=1)
    if restarted:
        driver.restart()
    undone = undo(driver)
    check(driver)
    assert undone.counts == [operation.counts[DONE], 0, 0]
    assert [vars_of(driver, job_id) for job_id in ids] == before


def make(driver: Driver, job_id: str, kind: str, **fields: Any) -> None:
    """A job in that state; the queue has no other ready job meanwhile."""
    queue = f"of-{job_id}"
    fields |= {"queue": queue, "max_retries": 1 if kind == "dead" else 3}
    if kind == "scheduled":
        fields["scheduled_ns"] = driver.now_ns + 3_600 * SECOND_NS
    driver.enqueue(job_id, **fields)
    if kind == "held":
        driver.act("hold", job_id)
    elif kind in ("retrying", "dead", "completed"):
        job = driver.take(queue)
        if kind == "completed":
            driver.ack(job.job_id, job.token)
        else:
            driver.fail(job.job_id, job.token)


# ---- sets that come in several entries ----


def encoded(driver: Driver, *ids: str) -> BulkOperation:
    values = [*ids], False, ACTIONS.index("cancel"), encode_arguments(), True
    operation: BulkOperation = driver.do(ops.BULK_ACTION, "bulk_1", *values)
    return operation


def test_a_set_that_comes_in_parts(driver: Driver) -> None:
    for job_id in "abcd":
        driver.enqueue(job_id)
    operation = encoded(driver, "a")
    assert operation.state == OPERATION_QUEUED and not driver.machine.running_operations()
    driver.do(ops.BULK_ADD, "bulk_1", ["b"], True)
    driver.do(ops.BULK_STEP, "bulk_1", 25, False)  # not yet
    driver.restart()
    driver.do(ops.BULK_ADD, "bulk_1", ["c"], False)
    assert isinstance(driver.do(ops.BULK_ADD, "bulk_1", ["d"], False), InvalidState)
    assert isinstance(driver.do(ops.BULK_ADD, "bulk_2", ["d"], False), NotFound)
    driver.step()
    check(driver)
    states = [driver.state(job_id) for job_id in "abcd"]
    assert states == [CANCELLED, CANCELLED, CANCELLED, PENDING]


def test_a_set_that_nobody_sends_the_rest_of(driver: Driver) -> None:
    driver.enqueue("a")
    encoded(driver, "a")
    assert driver.machine.abandoned_operations(driver.now_ns) == []
    driver.advance(60)
    [operation] = driver.machine.abandoned_operations(driver.now_ns)
    driver.do(ops.BULK_STEP, operation.id, 0, True)
    assert operation.state == OPERATION_CANCELLED and driver.state("a") == PENDING
    assert driver.machine.abandoned_operations(driver.now_ns) == []


def test_what_the_action_has_not_changed_is_not_taken_back(driver: Driver) -> None:
    """Somebody had cancelled the active job before: that stays."""
    driver.enqueue("j")
    driver.take()
    assert driver.do(ops.CANCEL_JOB, "j", False) == "cancelling"
    assert bulk(driver, "cancel", "j").counts[DONE] == 1
    assert undo(driver).counts[DONE] == 1
    assert driver.job("j").cancel_requested_ns


def test_a_task_that_is_undone_does_not_make_room_for_its_undo(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corvo.fsm.ops.bulk.BULK_OPERATIONS_MAX", 1)
    driver.enqueue("j")
    assert bulk(driver, "cancel", "j").counts[DONE] == 1
    assert undo(driver).state == OPERATION_COMPLETED
    assert driver.state("j") == PENDING and driver.machine.operation("bulk_1") is not None
    check(driver)

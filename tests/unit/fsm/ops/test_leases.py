"""Leases: tokens, expiry, phantom leases, cancel of active jobs, release."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lib.consistency import check_machine
from lib.fsm_driver import Driver

from corvo import ops
from corvo._fast.codec.layouts import encode_fields
from corvo._fast.codec.lease_token import build_token
from corvo.errors import InvalidState, LeaseLost
from corvo.limits import SECOND_NS
from corvo.model import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    DEAD,
    DELIVERY_UNKNOWN,
    FAILED,
    LEASE_EXPIRED,
    PENDING,
    RETRYING,
    SCHEDULED,
    Failed,
)


def kinds(driver: Driver, job_id: str = "j") -> list[tuple[int, int]]:
    return [(record.kind, record.attempt) for record in driver.machine.errors(job_id)]


@given(
    st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 2**32 - 1)),
    st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 2**32 - 1)),
)
def test_tokens_differ_when_leases_do(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (build_token(*one) == build_token(*other)) == (one == other)
    assert 8 <= len(build_token(*one)) <= 20


def test_each_lease_has_a_new_token_and_a_higher_fencing_number() -> None:
    driver = Driver()
    driver.enqueue("j")
    first = driver.take()
    driver.release("j", first.token)
    second = driver.take()
    assert second.fencing == first.fencing + 1 and second.token != first.token
    assert driver.machine.lease_token(driver.job("j")) == second.token
    driver.ack("j", second.token)
    assert driver.machine.lease_token(driver.job("j")) == ""


@pytest.mark.parametrize("flushed", [False, True])
def test_only_the_live_token_is_accepted(flushed: bool) -> None:
    """A late worker cannot touch what somebody else runs, or has ended."""
    driver = Driver()
    driver.enqueue("j", max_retries=2)
    late = driver.take(worker="A", lease_s=1).token
    driver.advance(2)
    driver.tick()
    live = driver.take(worker="B").token
    if flushed:
        driver.restart()
    for refused in (
        driver.ack("j", late),
        driver.fail("j", late),
        driver.release("j", late),
        driver.ack("j", live.upper()),
        driver.ack("j", live + "0"),
    ):
        assert isinstance(refused, LeaseLost)
    assert driver.beat("j", late, progress=b"1") == "lost"
    assert driver.job("j").progress == b""
    failed = driver.fail("j", live)
    assert isinstance(failed, Failed) and failed.state == DEAD
    assert isinstance(driver.fail("j", late), LeaseLost)
    assert driver.state("j") == DEAD
    assert kinds(driver) == [(LEASE_EXPIRED, 1), (FAILED, 2)]


def test_token_that_is_not_live_is_lost_in_every_state() -> None:
    driver = Driver()
    driver.enqueue("j")
    token = driver.take().token
    driver.fail("j", token)
    assert driver.state("j") == RETRYING
    assert isinstance(driver.ack("j", token), LeaseLost)
    driver.do(ops.RETRY_JOB, "j")
    assert isinstance(driver.ack("j", token), LeaseLost)
    driver.cancel("j")
    assert isinstance(driver.release("j", token), LeaseLost)


def test_without_token_only_while_active() -> None:
    driver = Driver()
    driver.enqueue("j")
    assert isinstance(driver.ack("j"), InvalidState)
    driver.take()
    assert driver.beat("j") == "ok"
    assert driver.ack("j") is None
    assert isinstance(driver.ack("j"), InvalidState)


@pytest.mark.parametrize("flushed", [False, True])
def test_completing_token_may_ack_again(flushed: bool) -> None:
    driver = Driver()
    driver.enqueue("j")
    token = driver.take().token
    assert driver.ack("j", token, result=b'"first"') is None
    if flushed:
        driver.restart()
    events = driver.machine.event_seq
    assert driver.ack("j", token, result=b'"second"') is None
    assert driver.job("j").result == b'"first"' and driver.machine.event_seq == events
    driver.do(ops.RETRY_JOB, "j")
    driver.take()
    assert isinstance(driver.ack("j", token), LeaseLost)


def test_ack_batch_applies_the_rules_of_one_ack_to_each() -> None:
    driver = Driver()
    for job_id in ("a", "b", "c"):
        driver.enqueue(job_id)
    tokens = {job.job_id: job.token for job in driver.fetch_batch()}
    items = [
        encode_fields(ops.ACK.layout, item)
        for item in (
            ("a", tokens["a"], b"1", b"", b""),
            ("nope", "", b"", b"", b""),
            ("a", tokens["a"], b"2", b"", b""),
            ("b", tokens["c"], b"", b"", b""),
            ("b", "", b"", b"", b""),
            ("b", "", b"", b"", b""),
        )
    ]
    acked = driver.do(ops.ACK_BATCH, items)
    assert acked.count == 3
    codes = [(position, error.code) for position, error in acked.refused]
    assert codes == [(1, "NOT_FOUND"), (3, "LEASE_LOST"), (5, "INVALID_STATE")]
    assert driver.job("a").result == b"1"
    assert [driver.state(job_id) for job_id in "abc"] == [COMPLETED, COMPLETED, ACTIVE]
    assert driver.machine.active_count("q") == 1


def test_heartbeat_extends_by_the_lease_but_at_least_a_minute() -> None:
    driver = Driver()
    for job_id, lease_s in (("short", 5), ("long", 300)):
        driver.enqueue(job_id)
        driver.take(lease_s=lease_s)
    driver.advance(2)
    assert driver.beat("short") == driver.beat("long") == "ok"
    assert driver.job("short").lease_expires_ns == driver.now_ns + 60 * SECOND_NS
    assert driver.job("long").lease_expires_ns == driver.now_ns + 300 * SECOND_NS
    driver.advance(59)
    driver.tick()
    assert driver.state("short") == ACTIVE
    driver.advance(1)
    driver.tick()
    assert driver.state("short") == PENDING and driver.state("long") == ACTIVE


def test_heartbeat_of_many_jobs_answers_for_each() -> None:
    driver = Driver()
    driver.enqueue("a")
    token = driver.take().token
    beats = [("a", token, b"", b""), ("b", "", b"", b""), ("a", "x", b"", b"")]
    items = [encode_fields(ops.BEAT_LAYOUT, beat) for beat in beats]
    assert driver.do(ops.HEARTBEAT, items[:2]) == {"a": "ok", "b": "lost"}
    assert driver.do(ops.HEARTBEAT, items[2:]) == {"a": "lost"}


def test_state_decides_and_not_the_clock() -> None:
    """Until ExpireLeases is applied the lease is live, and afterwards it is not."""
    driver = Driver()
    total, answered, lost = 1_000, 0, 0
    for n in range(total):
        driver.enqueue(f"j{n}")
    tokens = {job.job_id: job.token for job in driver.fetch_batch(count=total, lease_s=1)}
    driver.advance(0.995)
    for n in range(total):
        if n % 100 == 50:
            driver.advance(0.001)
        if n % 7 == 3:
            stale = driver.machine.due_leases(driver.now_ns, 20)
            refused = driver.ack(f"j{n}", tokens[f"j{n}"])
            answered += refused is None
            lost += refused is not None
            driver.do(ops.EXPIRE_LEASES, stale)
            continue
        refused = driver.ack(f"j{n}", tokens[f"j{n}"])
        assert refused is None or isinstance(refused, LeaseLost)
        answered += refused is None
        lost += refused is not None
    assert answered and lost
    queue = driver.machine.queue("q")
    assert queue is not None
    driver.advance(1)
    driver.tick()
    assert queue.completed_total == answered and answered + queue.jobs(PENDING) == total
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def test_expiry_checks_state_and_time_again() -> None:
    driver = Driver()
    driver.enqueue("j")
    driver.take(lease_s=1)
    assert driver.do(ops.EXPIRE_LEASES, ["j", "nope"]) == 0
    driver.advance(2)
    driver.beat("j")
    assert driver.do(ops.EXPIRE_LEASES, ["j"]) == 0
    driver.advance(60)
    assert driver.do(ops.EXPIRE_LEASES, ["j", "j"]) == 1
    assert driver.do(ops.EXPIRE_LEASES, ["j"]) == 0


def test_silent_job_dies_and_blocks_nobody() -> None:
    """A job that kills its worker at its last attempt goes dead beside healthy ones."""
    driver = Driver()
    driver.enqueue("poison", max_retries=1, priority=0)
    for n in range(5):
        driver.enqueue(f"e{n}", priority=1)
    for n in range(10):
        driver.enqueue(f"n{n}")
    driver.fetch_batch(count=6, lease_s=1)
    driver.advance(1)
    driver.tick()
    assert driver.state("poison") == DEAD and kinds(driver, "poison") == [(LEASE_EXPIRED, 1)]
    got = [job.job_id for job in driver.fetch_batch(count=20)]
    assert got == [f"e{n}" for n in range(5)] + [f"n{n}" for n in range(10)]
    queue = driver.machine.queue("q")
    assert queue is not None and queue.dead_total == 1 and queue.expired_total == 6


def test_phantom_lease_gives_the_attempt_back_once_per_term() -> None:
    driver = Driver()
    driver.enqueue("j", max_retries=1)
    driver.take(lease_s=1)
    driver.restart()
    driver.term += 1
    driver.advance(1)
    driver.tick()
    assert driver.state("j") == PENDING and driver.job("j").attempt == 0
    assert kinds(driver) == [(DELIVERY_UNKNOWN, 1)]
    driver.take(lease_s=1)
    driver.advance(1)
    driver.tick()
    assert driver.state("j") == DEAD
    assert kinds(driver) == [(DELIVERY_UNKNOWN, 1), (LEASE_EXPIRED, 1)]


def test_a_lease_that_its_worker_touched_is_no_phantom() -> None:
    driver = Driver()
    driver.enqueue("j", max_retries=1)
    driver.take(lease_s=1)
    driver.beat("j")
    driver.restart()
    driver.term += 1
    driver.advance(60)
    driver.tick()
    assert driver.state("j") == DEAD and kinds(driver) == [(LEASE_EXPIRED, 1)]


def test_grace_passes_over_older_leases() -> None:
    driver = Driver()
    driver.enqueue("old")
    driver.enqueue("new")
    driver.take(lease_s=1)
    grace = driver.machine.fencing
    driver.take(lease_s=2)
    driver.advance(5)
    assert driver.machine.due_leases(driver.now_ns, 10, grace) == ["new"]
    driver.do(ops.EXPIRE_LEASES, ["new"])
    assert driver.machine.next_due() == 0, "what is in its grace does not wake the leader"
    assert driver.machine.due_leases(driver.now_ns, 10, grace) == []
    assert driver.machine.due_leases(driver.now_ns, 10) == ["old"]


def test_cancel_of_an_active_job_is_a_request() -> None:
    driver = Driver()
    driver.enqueue("j")
    token = driver.take().token
    assert driver.cancel("j") == "cancelling"
    events = driver.machine.event_seq
    assert driver.cancel("j") == "cancelling" and driver.machine.event_seq == events
    assert driver.state("j") == ACTIVE and driver.job("j").cancel_requested_ns == driver.now_ns
    assert driver.beat("j", token) == "cancel"
    assert driver.ack("j", token) is None
    assert driver.state("j") == COMPLETED


@pytest.mark.parametrize("how", ["fail", "release", "silence"])
def test_cancel_is_done_when_the_worker_lets_go(how: str) -> None:
    driver = Driver()
    driver.enqueue("j")
    token = driver.take(lease_s=1).token
    driver.cancel("j")
    if how == "fail":
        failed = driver.fail("j", token)
        assert isinstance(failed, Failed) and failed.state == CANCELLED
    elif how == "release":
        assert driver.release("j", token) == CANCELLED
    else:
        driver.advance(1)
        driver.tick()
    assert driver.state("j") == CANCELLED
    assert driver.fetch() is None
    assert isinstance(driver.ack("j", token), LeaseLost)


def test_forced_cancel_takes_the_lease_away() -> None:
    driver = Driver()
    driver.do(ops.SET_CONCURRENCY, "q", 1)
    driver.enqueue("j")
    driver.enqueue("k")
    token = driver.take().token
    assert driver.fetch() is None
    assert driver.cancel("j", force=True) == "cancelled"
    assert driver.beat("j", token) == "lost"
    assert driver.take().job_id == "k"


def test_release_gives_the_attempt_back_and_keeps_the_place() -> None:
    driver = Driver()
    for job_id in ("a", "b"):
        driver.enqueue(job_id)
    token = driver.take().token
    assert driver.release("a", token, checkpoint=b'{"at":3}') == PENDING
    fetched = driver.take()
    assert (fetched.job_id, fetched.attempt, fetched.checkpoint) == ("a", 1, b'{"at":3}')


def test_release_with_delay_is_scheduled_and_comes_back_to_its_place() -> None:
    driver = Driver()
    for job_id in ("a", "b"):
        driver.enqueue(job_id)
    assert driver.release("a", driver.take().token, delay_s=5) == SCHEDULED
    driver.restart()
    driver.advance(4)
    driver.tick()
    assert driver.state("a") == SCHEDULED
    driver.advance(1)
    driver.tick()
    assert driver.take().job_id == "a"


def test_postponed_job_that_is_cancelled_forgets_its_place() -> None:
    driver = Driver()
    for job_id in ("a", "b"):
        driver.enqueue(job_id)
    driver.release("a", driver.take().token, delay_s=5)
    driver.cancel("a")
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    driver.do(ops.RETRY_JOB, "a")
    assert [job.job_id for job in driver.fetch_batch()] == ["b", "a"]


def test_the_fourth_release_in_a_row_has_to_wait() -> None:
    driver = Driver()
    driver.enqueue("j")
    waits = []
    for _ in range(12):
        driver.release("j", driver.take().token)
        job = driver.job("j")
        waits.append((job.scheduled_ns - driver.now_ns) // SECOND_NS if job.scheduled_ns else 0)
        driver.advance(waits[-1])
        driver.tick()
    assert waits == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert driver.job("j").attempt == 0


@pytest.mark.parametrize("progress", ["heartbeat", "fail", "ack", "none"])
def test_progress_resets_the_count_of_releases(progress: str) -> None:
    driver = Driver()
    driver.enqueue("j")
    for _ in range(3):
        driver.release("j", driver.take().token)
    token = driver.take().token
    if progress == "heartbeat":
        driver.beat("j", token, progress=b'{"current":1}')
    elif progress == "fail":
        driver.fail("j", token, retry_after_ns=0)
        token = driver.take().token
    elif progress == "ack":
        driver.ack("j", token)
        driver.do(ops.RETRY_JOB, "j")
        token = driver.take().token
    else:
        driver.beat("j", token)
    expected = SCHEDULED if progress == "none" else PENDING
    assert driver.release("j", token) == expected


def test_deleted_active_job_is_lost_to_its_worker() -> None:
    driver = Driver()
    driver.enqueue("j")
    token = driver.take().token
    driver.do(ops.DELETE_JOB, "j")
    assert driver.beat("j", token) == "lost"
    refused: Any = driver.ack("j", token)
    assert refused.code == "NOT_FOUND"
    assert driver.machine.active_count("q") == 0

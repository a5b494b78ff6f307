"""Failures: backoff arithmetic, attempts, timers, manual retry."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lib.fsm_driver import START_NS, Driver

from corvo import ops
from corvo.fsm.ops.backoff import delay_ms, draw, jittered_ns
from corvo.limits import DUE_MAX_NS, SECOND_NS, TIME_MAX_NS
from corvo.model import (
    BACKOFFS,
    COMPLETED,
    DEAD,
    PENDING,
    RETRYING,
    SCHEDULED,
    UNIQUE_UNTIL,
    Failed,
)

NONE, FIXED, LINEAR, EXPONENTIAL = range(4)
DAY_NS = 86_400 * SECOND_NS


def test_positions_of_the_names() -> None:
    assert BACKOFFS == ("none", "fixed", "linear", "exponential")
    assert UNIQUE_UNTIL == ("final", "start", "success", "period")


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (NONE, [0, 0, 0, 0]),
        (FIXED, [5_000, 5_000, 5_000, 5_000]),
        (LINEAR, [5_000, 10_000, 15_000, 20_000]),
        (EXPONENTIAL, [5_000, 10_000, 20_000, 40_000]),
    ],
)
def test_backoff(backoff: int, delays: list[int]) -> None:
    assert [delay_ms(backoff, attempt, 5_000, 600_000) for attempt in (1, 2, 3, 4)] == delays


@given(
    st.integers(0, 3),
    st.integers(1, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 1_000_000),
    st.integers(0, 2**64 - 1),
)
def test_delays_saturate(
    backoff: int, attempt: int, state_store: int, cap: int, jitter_ppm: int, random: int
) -> None:
    delay = delay_ms(backoff, attempt, state_store, cap)
    assert 0 <= delay <= min(2**53, cap or 30 * 86_400_000)
    reach = delay * jitter_ppm
    assert abs(jittered_ns(delay, jitter_ppm, random) - delay * 1_000_000) <= reach


def test_draw_is_splitmix64() -> None:
    """First numbers of the published generator for seed 1234567."""
    assert [draw(1_234_567, n) for n in range(3)] == [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
    ]


def test_300_failures_grow_to_the_cap_and_stay_there() -> None:
    """Exponential backoff never overflows, goes negative or leaves its share of jitter."""
    driver = Driver()
    driver.enqueue("j", backoff=EXPONENTIAL, max_retries=1_000, jitter_ppm=100_000)
    delays = []
    for attempt in range(1, 301):
        failed = driver.fail("j", driver.take().token)
        assert isinstance(failed, Failed) and failed.state == RETRYING
        assert failed.attempts_remaining == 1_000 - attempt
        delays.append(failed.next_attempt_ns - driver.now_ns)
        nominal = min(5 * 2 ** (attempt - 1), 600) * SECOND_NS
        assert 0.9 * nominal <= delays[-1] <= 1.1 * nominal
        driver.now_ns = failed.next_attempt_ns
        driver.tick()
    assert len(set(delays[8:])) > 200, "each failure has a jitter of its own"


def test_long_delays_are_kept() -> None:
    """Far beyond 31 bits of milliseconds, and beyond what 8 bytes of nanoseconds hold."""
    driver = Driver()
    days = {"a": 30, "b": 60, "c": 400}
    for job_id, count in days.items():
        driver.enqueue(job_id, scheduled_ns=START_NS + count * DAY_NS)
    driver.enqueue("never", scheduled_ns=TIME_MAX_NS)
    driver.restart()
    for job_id, count in days.items():
        driver.now_ns = START_NS + count * DAY_NS - 1
        driver.tick()
        assert driver.fetch() is None
        driver.now_ns += 1
        driver.tick()
        assert driver.take().job_id == job_id
        driver.ack(job_id)
    assert driver.state("never") == SCHEDULED and driver.job("never").scheduled_ns == TIME_MAX_NS
    assert driver.machine.next_due() == DUE_MAX_NS
    hours = 3_600_000
    driver.enqueue("slow", base_delay_ms=1_000 * hours, max_delay_ms=2_000 * hours)
    failed = driver.fail("slow", driver.take().token)
    assert failed.next_attempt_ns == driver.now_ns + 1_000 * hours * 1_000_000


def test_scheduled_job_is_never_early_and_comes_once() -> None:
    """A delay much longer than the lease."""
    driver = Driver()
    driver.enqueue("j", scheduled_ns=driver.now_ns + 3 * 3_600 * SECOND_NS)
    deliveries = 0
    for _ in range(3 * 60 + 5):
        driver.tick()
        fetched = driver.fetch()
        if fetched is not None:
            deliveries += 1
            assert driver.now_ns >= START_NS + 3 * 3_600 * SECOND_NS
            driver.ack("j", fetched.token)
        driver.advance(60)
    assert deliveries == 1 and driver.state("j") == COMPLETED


def test_schedule_in_the_past_is_ready_at_once() -> None:
    driver = Driver()
    assert driver.enqueue("j", scheduled_ns=driver.now_ns).state == PENDING
    assert driver.job("j").scheduled_ns == 0


@pytest.mark.parametrize(("max_retries", "runs"), [(0, 1), (1, 1), (3, 3)])
def test_max_retries_is_the_number_of_runs(max_retries: int, runs: int) -> None:
    driver = Driver()
    driver.enqueue("j", max_retries=max_retries, backoff=NONE)
    for run in range(1, runs + 1):
        failed = driver.fail("j", driver.take().token)
        assert failed.state == (DEAD if run == runs else RETRYING)
    assert driver.fetch() is None


def test_fail_may_ask_for_no_retry_or_for_a_time() -> None:
    driver = Driver()
    driver.enqueue("j", jitter_ppm=1_000_000)
    failed = driver.fail("j", driver.take().token, retry_after_ns=7 * SECOND_NS)
    assert failed.next_attempt_ns == driver.now_ns + 7 * SECOND_NS, "exact, without jitter"
    driver.advance(7)
    driver.tick()
    failed = driver.fail("j", driver.take().token, no_retry=True)
    assert (failed.state, failed.attempts_remaining) == (DEAD, 0)


def test_retry_without_delay_is_pending_and_says_retrying() -> None:
    driver = Driver()
    driver.enqueue("j", backoff=NONE)
    failed = driver.fail("j", driver.take().token)
    assert (failed.state, failed.next_attempt_ns) == (RETRYING, driver.now_ns)
    assert driver.state("j") == PENDING


def test_manual_retry_starts_over_and_keeps_what_was_learned() -> None:
    driver = Driver()
    driver.enqueue("j", max_retries=1)
    token = driver.take().token
    driver.beat("j", token, progress=b'{"p":1}', checkpoint=b"7")
    driver.do(ops.FAIL, "j", token, b'"e"', b'"trace"', False, -1, True)
    job = driver.job("j")
    assert job.state == DEAD and job.provider_error and job.failed_ns == driver.now_ns
    driver.do(ops.RETRY_JOB, "j")
    job = driver.job("j")
    assert (job.attempt, job.failed_ns, job.provider_error) == (0, 0, False)
    fetched = driver.take()
    assert (fetched.attempt, fetched.checkpoint) == (1, b"7")
    driver.fail("j", fetched.token)
    records = driver.machine.errors("j")
    assert [(record.attempt, record.error) for record in records] == [(1, b'"e"'), (1, b'"boom"')]
    assert records[0].backtrace == b'"trace"'
    assert driver.machine.errors("j", 1)[0].error == b'"boom"'


def test_errors_survive_flush_and_go_with_the_job() -> None:
    driver = Driver()
    driver.enqueue("j", backoff=NONE, max_retries=5)
    driver.fail("j", driver.take().token, error=b'"1"')
    driver.restart()
    driver.fail("j", driver.take().token, error=b'"2"')
    assert [record.error for record in driver.machine.errors("j")] == [b'"1"', b'"2"']
    driver.do(ops.DELETE_JOB, "j")
    assert driver.machine.errors("j") == []
    driver.restart()
    assert not any(key.startswith((b"j|", b"jb|", b"je|")) for key in driver.state_store._rows)


def promote(driver: Driver, *ids: str) -> Any:
    return driver.do(ops.PROMOTE_DUE, list(ids))


def test_promotion_checks_state_and_time_again() -> None:
    driver = Driver()
    driver.enqueue("j", scheduled_ns=driver.now_ns + SECOND_NS)
    assert promote(driver, "j", "nope") == 0
    driver.advance(1)
    assert promote(driver, "j", "j") == 1


def test_timers_forget_what_no_longer_waits() -> None:
    driver = Driver()
    for n in range(3):
        driver.enqueue(f"j{n}", scheduled_ns=driver.now_ns + (n + 1) * SECOND_NS)
    assert driver.machine.next_due() == driver.now_ns + SECOND_NS
    driver.cancel("j0")
    driver.do(ops.DELETE_JOB, "j1")
    assert driver.machine.next_due() == driver.now_ns + 3 * SECOND_NS
    driver.restart()
    assert driver.machine.next_due() == driver.now_ns + 3 * SECOND_NS
    driver.do(ops.RETRY_JOB, "j2")
    assert driver.machine.next_due() == 0
    driver.advance(5)
    assert driver.machine.due_promotions(driver.now_ns, 10) == []


def test_timers_ask_the_overlay_before_the_base() -> None:
    """A flushed scheduled job that was cancelled since must not be proposed."""
    driver = Driver()
    for job_id in ("a", "b", "c"):
        driver.enqueue(job_id, scheduled_ns=driver.now_ns + SECOND_NS)
    driver.restart()
    driver.advance(1)
    driver.cancel("a")
    driver.do(ops.DELETE_JOB, "b")
    assert driver.machine.due_promotions(driver.now_ns, 10) == ["c"]
    assert driver.machine.due_promotions(driver.now_ns, 10) == ["c"], "a read changes nothing"


def test_due_jobs_come_in_order_and_slices() -> None:
    driver = Driver()
    for n in (3, 1, 2):
        driver.enqueue(f"j{n}", scheduled_ns=driver.now_ns + n * SECOND_NS)
    driver.advance(3)
    assert driver.machine.due_promotions(driver.now_ns, 2) == ["j1", "j2"]
    promote(driver, "j1", "j2")
    assert driver.machine.due_promotions(driver.now_ns, 2) == ["j3"]


def test_void_entries_are_compacted() -> None:
    driver = Driver()
    count = 3_000
    for n in range(count):
        driver.enqueue(f"j{n}", scheduled_ns=driver.now_ns + DAY_NS)
    driver.enqueue("stays", scheduled_ns=driver.now_ns + 2 * DAY_NS)
    for n in range(count):
        driver.cancel(f"j{n}")
    driver.enqueue("run")
    token = driver.take().token
    for _ in range(count):
        driver.advance(0.001)
        driver.beat("run", token)
    driver.machine.flush()
    state = driver.machine._state
    assert len(state.waiting) == 1 and len(state.leases) == 1 and not state.waiting._left
    assert driver.machine.next_due() == driver.job("run").lease_expires_ns

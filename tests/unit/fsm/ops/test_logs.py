"""Log lines of jobs: numbers, attempts, bounds, and what becomes of them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.consistency import check_machine
from lib.fsm_driver import Driver

from corvo import ops
from corvo._fast.codec import keys
from corvo._fast.codec.layouts import encode_fields
from corvo.errors import InvalidState, LeaseLost, NotFound
from corvo.limits import LOG_ATTEMPT_SIZE_MAX, LOG_BLOCK_SIZE, LOG_BLOCKS_MAX, LOG_SIZE_MAX
from corvo.model import LogLine

HUGE = 1 << 40


def line(message: bytes = b'"m"', level: int = 1, at_ns: int = 7) -> bytes:
    return encode_fields(ops.LINE_LAYOUT, (level, at_ns, message))


def append(driver: Driver, job_id: str, *lines: bytes, token: str = "") -> Any:
    return driver.do(ops.APPEND_LOGS, job_id, token, list(lines))


def read(driver: Driver, job_id: str, attempt: int = 0, after: int = 0) -> list[LogLine]:
    lines, _ = driver.machine.log_lines(driver.job(job_id), attempt, after, HUGE, HUGE)
    return lines


def running(job_id: str = "j", **fields: Any) -> Driver:
    driver = Driver()
    driver.enqueue(job_id, base_delay_ms=0, **fields)
    driver.take()
    return driver


def test_lines_are_numbered_and_know_their_attempt() -> None:
    driver = running()
    first = append(driver, "j", line(b'"a"'), line(b'"b"', level=3))
    assert (first.seq, first.dropped) == (2, 0)
    driver.fail("j")
    driver.take()
    assert append(driver, "j", line(b'"c"')).seq == 3
    lines = read(driver, "j")
    assert [(row.seq, row.attempt, row.level, row.message) for row in lines] == [
        (1, 1, 1, b'"a"'),
        (2, 1, 3, b'"b"'),
        (3, 2, 1, b'"c"'),
    ]
    assert [row.seq for row in read(driver, "j", attempt=1)] == [1, 2]
    assert [row.seq for row in read(driver, "j", after=1)] == [2, 3]
    assert read(driver, "j", attempt=3) == [] and read(driver, "j", after=3) == []


def test_pages_are_cut_by_count_and_bytes_but_not_to_nothing() -> None:
    driver = running()
    append(driver, "j", *[line(b'"%d"' % n) for n in range(10)])
    machine, job = driver.machine, driver.job("j")
    lines, more = machine.log_lines(job, 0, 0, 4, HUGE)
    assert ([row.seq for row in lines], more) == ([1, 2, 3, 4], True)
    lines, more = machine.log_lines(job, 0, 4, 6, HUGE)
    assert (len(lines), more) == (6, False)
    lines, more = machine.log_lines(job, 0, 0, 10, 1)
    assert (len(lines), more) == (1, True)


@pytest.mark.parametrize("flush", [False, True])
def test_an_attempt_drops_its_oldest_lines(flush: bool) -> None:
    driver = running()
    message = b'"' + b"x" * 1_000 + b'"'
    size = len(line(message))
    total = 3 * LOG_ATTEMPT_SIZE_MAX // size
    for _ in range(total // 30):
        logged = append(driver, "j", *[line(message)] * 30)
        if flush:
            driver.machine.flush()
    lines = read(driver, "j")
    assert logged.dropped == total // 30 * 30 - len(lines) > 0
    assert lines[-1].seq == logged.seq and lines[0].seq == logged.dropped + 1
    kept = len(lines) * size
    assert LOG_ATTEMPT_SIZE_MAX - LOG_BLOCK_SIZE - size < kept <= LOG_ATTEMPT_SIZE_MAX
    assert driver.machine.log(driver.job("j")).dropped_of(1) == logged.dropped
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def test_many_attempts_are_bounded_too() -> None:
    driver = running(max_retries=1_000_000)
    message = line(b'"' + b"x" * (LOG_ATTEMPT_SIZE_MAX // 5) + b'"')
    for _ in range(25):
        for _ in range(4):
            append(driver, "j", message)
        driver.fail("j", retry_after_ns=0)
        driver.take()
    log = driver.machine.log(driver.job("j"))
    assert sum(block.size for block in log.blocks) <= LOG_SIZE_MAX
    assert log.dropped_of(0) + len(read(driver, "j")) == 100
    assert log.dropped > 0 and read(driver, "j", attempt=1) == []
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def test_the_number_of_blocks_is_bounded() -> None:
    driver = running(max_retries=1_000_000)
    for _ in range(LOG_BLOCKS_MAX + 10):
        append(driver, "j", line())
        driver.fail("j", retry_after_ns=0)
        driver.take()
    log = driver.machine.log(driver.job("j"))
    assert (len(log.blocks), log.dropped) == (LOG_BLOCKS_MAX, 10)


def test_the_worker_of_the_lease_may_log() -> None:
    driver = Driver()
    assert isinstance(append(driver, "nope", line()), NotFound)
    driver.enqueue("j", base_delay_ms=0)
    refusal = append(driver, "j", line())
    assert isinstance(refusal, InvalidState) and refusal.fields == {"state": "pending"}
    old = driver.take().token
    driver.fail("j")
    live = driver.take().token
    assert isinstance(append(driver, "j", line(), token=old), LeaseLost)
    assert append(driver, "j", line(), token=live).seq == 1
    driver.ack("j", live)
    assert isinstance(append(driver, "j", line(), token=live), LeaseLost)
    assert isinstance(append(driver, "j", line()), InvalidState)
    assert len(read(driver, "j")) == 1


def test_a_worker_that_logs_has_got_its_job() -> None:
    driver = running(max_retries=3)
    append(driver, "j", line())
    driver.term += 1
    driver.advance(61)
    driver.tick()
    assert driver.job("j").attempt == 1


@pytest.mark.parametrize("flush", [False, True])
def test_lines_go_with_their_job(flush: bool) -> None:
    driver = running()
    append(driver, "j", *[line(b'"' + b"x" * 9_000 + b'"')] * 5)
    if flush:
        driver.machine.flush()
        append(driver, "j", line())
    driver.do(ops.DELETE_JOB, "j")
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)
    assert not list(driver.state_store.scan(keys.LOG)) and not list(
        driver.state_store.scan(keys.LOG_BLOCK)
    )


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["log", "log", "log", "retry", "flush", "restart"]),
            st.integers(0, 2 * LOG_BLOCK_SIZE),
            st.integers(1, 40),
        ),
        max_size=30,
    )
)
def test_a_restart_anywhere_changes_nothing(program: list[tuple[str, int, int]]) -> None:
    lived, reborn = running(max_retries=99), running(max_retries=99)
    for what, size, count in program:
        if what in ("flush", "restart"):
            reborn.machine.flush()
            if what == "restart":
                reborn.restart()
            continue
        for driver in (lived, reborn):
            if what == "log":
                append(driver, "j", *[line(b'"' + b"x" * size + b'"')] * count)
            else:
                driver.fail("j", retry_after_ns=0)
                driver.take()
    for driver in (lived, reborn):
        driver.machine.flush()
        check_machine(driver.machine, driver.state_store)
    assert lived.state_store._rows == reborn.state_store._rows

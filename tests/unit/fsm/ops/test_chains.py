"""Chains: what follows what, with which payload, and what the next job inherits."""

import json
from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver, chain, follower

from corvo import ops
from corvo._fast.codec.layouts import encode_fields
from corvo.model import DEAD, Fetched

STEPS = (follower("one", b'{"ignored":1}'), follower("two", b'{"k":2}'), follower("three"))
ENDS = {"on_failure": follower("failed", b'{"f":1}'), "on_exit": follower("exit", b"[7]")}


def start(driver: Driver, **fields: Any) -> None:
    options = {"chain_id": "chn_1", "chain": chain(*STEPS, **ENDS), **fields}
    driver.enqueue("a", queue="one", payload=b'{"own":1}', **options)


def step(leaves: bool, reason: str = "") -> bytes:
    return encode_fields(ops.STEP_LAYOUT, (leaves, reason))


def payload(job: Fetched) -> Any:
    return json.loads(job.payload)


def place_of(driver: Driver, job: Fetched) -> tuple[str, int]:
    options = driver.job(job.job_id).options
    assert options is not None
    return options.chain_id, options.chain_step


@pytest.mark.parametrize("restart", [False, True])
def test_step_by_step_to_the_exit(restart: bool) -> None:
    driver = Driver()
    start(driver)
    one = driver.take("one")
    assert payload(one) == {"own": 1}
    driver.ack("a", one.token, b"1.50")
    if restart:
        driver.restart()
    two = driver.take("two")
    assert payload(two) == {"previous_job_id": "a", "previous_result": 1.5, "k": 2}
    assert b'"previous_result":1.50' in two.payload
    assert place_of(driver, two) == ("chn_1", 1)
    driver.ack(two.job_id, two.token, step=step(False))
    three = driver.take("three")
    assert payload(three) == {"previous_job_id": two.job_id}
    driver.ack(three.job_id, three.token, b"null")
    end = driver.take("exit")
    assert payload(end) == {"previous_job_id": three.job_id, "previous_result": None}
    assert place_of(driver, end) == ("chn_1", -1)
    driver.ack(end.job_id, end.token)
    assert driver.fetch("one", "two", "three", "exit", "failed") is None
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def test_an_exit_before_the_end() -> None:
    driver = Driver()
    start(driver)
    driver.ack("a", driver.take("one").token, step=step(True, 'no "more"'))
    assert payload(driver.take("exit")) == {"previous_job_id": "a", "exit_reason": 'no "more"'}
    assert driver.fetch("two", "three", "failed") is None


@pytest.mark.parametrize("death", ["no attempts", "lease", "dependency"])
def test_a_death_is_followed_by_the_failure_handler(death: str) -> None:
    driver = Driver()
    fields: dict[str, Any] = {"max_retries": 1}
    if death == "dependency":
        driver.enqueue("first")
        start(driver, depends_on=["first"], **fields)
        driver.cancel("first")
    else:
        start(driver, **fields)
        driver.take("one")
        if death == "lease":
            driver.advance(61)
            driver.tick()
        else:
            driver.fail("a", error=b'"b\\u0000m"')
    assert driver.state("a") == DEAD
    error = {
        "lease": "lease expired",
        "no attempts": "b\0m",
        "dependency": 'dependency "first" cancelled',
    }[death]
    job = driver.take("failed")
    assert payload(job) == {"failed_job_id": "a", "failed_step": 0, "error": error, "f": 1}
    assert place_of(driver, job) == ("chn_1", -2)
    driver.fail(job.job_id, no_retry=True)
    assert driver.fetch("one", "two", "three", "exit", "failed") is None


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_person_ends_a_chain(end: str) -> None:
    driver = Driver()
    start(driver)
    if end == "cancel":
        driver.cancel("a")
    else:
        driver.do(ops.DELETE_JOB, "a")
    assert driver.fetch("one", "two", "three", "exit", "failed") is None


def test_without_handlers_it_just_ends() -> None:
    driver = Driver()
    start(driver, chain=chain(*STEPS))
    driver.ack("a", driver.take("one").token, step=step(True))
    assert driver.fetch("one", "two", "three") is None


def test_the_next_job_is_like_the_first() -> None:
    driver = Driver()
    options = {"priority": 0, "tags": b'{"t":"1"}', "max_retries": 7, "backoff": 2}
    delays = {"base_delay_ms": 1, "max_delay_ms": 2, "jitter_ppm": 3}
    start(driver, unique_key=b"K", checkpoint=b"1", **options, **delays)
    driver.ack("a", driver.take("one").token)
    job = driver.job(driver.take("two").job_id)
    assert {name: getattr(job, name) for name in options | delays} == options | delays
    assert (job.unique_key, job.checkpoint, job.parent_id) == (b"", b"", "")


def test_a_step_that_is_run_again_goes_on_again() -> None:
    driver = Driver()
    start(driver)
    driver.take("one")
    driver.fail("a", no_retry=True)
    first = driver.take("failed")
    driver.do(ops.RETRY_JOB, "a")
    driver.take("one")
    driver.fail("a", no_retry=True)  # at the same moment
    assert driver.take("failed").job_id != first.job_id
    driver.do(ops.RETRY_JOB, "a")
    driver.ack("a", driver.take("one").token)
    assert driver.take("two")


def test_a_job_in_the_middle_and_a_mere_link() -> None:
    driver = Driver()
    start(driver, chain_step=1)
    driver.ack("a", driver.take("one").token)
    assert driver.take("three")
    driver.enqueue("link", chain_id="chn_2", chain_step=4)
    driver.ack("link", driver.take().token)
    assert driver.fetch() is None

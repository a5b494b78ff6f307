"""Who is next: priorities, places, fetches over several queues, limits of a reply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lib.fsm_driver import Driver, enqueue_step

from corvo import ops
from corvo.limits import SECOND_NS
from corvo.model import PENDING


def take_all(driver: Driver, *queues: str) -> list[str]:
    return [job.job_id for job in driver.fetch_batch(*queues, count=1_000)]


@pytest.mark.parametrize("flushed", [False, True])
def test_priority_then_place(flushed: bool) -> None:
    driver = Driver()
    for n, priority in enumerate((2, 1, 0, 2, 1, 0)):
        driver.enqueue(f"j{n}", priority=priority)
    if flushed:
        driver.restart()
    assert take_all(driver) == ["j2", "j5", "j1", "j4", "j0", "j3"]


def test_retry_and_reclaim_keep_priority_and_place() -> None:
    """A critical job comes back before a thousand normal ones."""
    driver = Driver()
    driver.entry(*(enqueue_step(f"n{n}") for n in range(1_000)))
    driver.enqueue("c1", priority=0, backoff=0)
    driver.enqueue("c2", priority=0)
    token = driver.take().token
    driver.take(lease_s=1)
    driver.restart()
    driver.fail("c1", token)
    driver.advance(1)
    driver.tick()
    assert [driver.take().job_id, driver.take().job_id] == ["c1", "c2"]
    assert driver.take().job_id == "n0"


def test_what_keeps_its_place_and_what_goes_to_the_tail() -> None:
    driver = Driver()
    soon = driver.now_ns + SECOND_NS
    driver.enqueue("scheduled", scheduled_ns=soon)
    for job_id in ("retrying", "released", "postponed", "retried", "fresh"):
        driver.enqueue(job_id)
    for _ in range(3):
        fetched = driver.take()
        if fetched.job_id == "retrying":
            driver.fail("retrying", fetched.token, retry_after_ns=SECOND_NS)
        elif fetched.job_id == "released":
            driver.release("released", fetched.token, delay_s=0.5)
        else:
            driver.release("postponed", fetched.token, delay_s=1)
    driver.cancel("retried")
    driver.do(ops.RETRY_JOB, "retried")
    driver.advance(1)
    driver.tick()
    order = ["retrying", "released", "postponed", "fresh", "retried", "scheduled"]
    assert take_all(driver) == order


def test_fetch_takes_the_queues_in_the_order_given() -> None:
    driver = Driver()
    for n in range(2):
        driver.enqueue(f"a{n}", queue="a")
        driver.enqueue(f"b{n}", queue="b")
    got = [driver.take("unknown", "b", "a").job_id for _ in range(4)]
    assert got == ["b0", "b1", "a0", "a1"]
    assert driver.fetch("b", "a") is None


def test_fetch_batch_takes_one_of_each_queue_in_turn() -> None:
    driver = Driver()
    for n in range(3):
        driver.enqueue(f"a{n}", queue="a")
    for n in range(2):
        driver.enqueue(f"b{n}", queue="b")
    assert [job.job_id for job in driver.fetch_batch("b", "none", "a", count=4)] == [
        "b0",
        "a0",
        "b1",
        "a1",
    ]
    assert take_all(driver, "b", "a") == ["a2"]


def test_batch_is_cut_by_bytes_but_never_to_nothing() -> None:
    driver = Driver()
    for n in range(4):
        driver.enqueue(f"j{n}", payload=b"x" * 1_000)
    assert [job.job_id for job in driver.fetch_batch(size=10)] == ["j0"]
    assert [job.job_id for job in driver.fetch_batch(size=3_200)] == ["j1", "j2"]
    assert driver.state("j3") == PENDING


def test_lease_ops_and_enqueues_of_an_entry_are_seen_by_its_fetches() -> None:
    driver = Driver()
    driver.do(ops.SET_CONCURRENCY, "q", 1)
    driver.enqueue("a")
    token = driver.take().token
    results = driver.entry(
        (ops.ACK, ("a", token, b"", b"", b"")),
        enqueue_step("b"),
        (ops.FETCH, (["q"], "w", "h", SECOND_NS, 1 << 20)),
    )
    assert results[0] is None and results[2].job_id == "b"


def test_fetched_job_is_complete_and_fixed() -> None:
    driver = Driver()
    driver.enqueue("j", payload=b'{"n": 1}', tags=b'{"t":"v"}', checkpoint=b"5", max_retries=9)
    fetched = driver.take(lease_s=30)
    driver.beat("j", fetched.token, checkpoint=b"6")
    assert (fetched.payload, fetched.tags, fetched.checkpoint) == (b'{"n": 1}', b'{"t":"v"}', b"5")
    assert (fetched.queue, fetched.attempt, fetched.max_retries) == ("q", 1, 9)
    assert fetched.lease_ns == 30 * SECOND_NS and fetched.fencing == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=150), st.booleans())
def test_a_backlog_is_served_in_order_whatever_was_flushed(
    jobs: list[tuple[int, bool]], restart: bool
) -> None:
    driver = Driver()
    for n, (priority, flush) in enumerate(jobs):
        driver.enqueue(f"j{n:03}", priority=priority)
        if flush:
            driver.machine.flush()
    if restart:
        driver.restart()
    expected = sorted((priority, n) for n, (priority, _) in enumerate(jobs))
    assert take_all(driver) == [f"j{n:03}" for _, n in expected]

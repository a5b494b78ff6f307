"""Pages of events, errors and locks, and what explains a job."""

from typing import Any

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import START_NS, Driver

from corvo import events, ops
from corvo._fast.index.ready import WINDOW
from corvo.errors import NotFound
from corvo.limits import SECOND_NS
from corvo.model import ACTIVE, COMPLETED

HUGE = 1 << 40
BEATS = 30


def beaten() -> Driver:
    """A job with an enqueued, a started and some progress events, between those of others."""
    driver = Driver()
    driver.enqueue("j")
    driver.take()
    for n in range(BEATS):
        driver.beat("j", progress=b"%d" % n)
        driver.enqueue(f"other{n}", queue="other")
        if n == BEATS // 2:
            driver.machine.flush()
    return driver


def test_events_of_a_job_in_pages() -> None:
    machine = beaten().machine
    whole = machine.events("j")
    assert [change.type for change in whole[:3]] == [
        events.ENQUEUED,
        events.STARTED,
        events.PROGRESS,
    ]
    pages: list[Any] = []
    before = 0
    while page := machine.events("j", 7, HUGE, before):
        assert len(page) <= 7
        pages = page + pages
        before = page[0].seq
    assert [change.seq for change in pages] == [change.seq for change in whole]
    assert len(machine.events("j", 7, 1)) == 1
    assert machine.events("j", 7, HUGE, whole[0].seq) == []
    of_another = machine.events("other0")[0].seq
    assert machine.events("j", 7, HUGE, of_another) == []
    assert machine.events("j", 7, HUGE, 1 << 50) == []


def test_events_of_a_queue_in_pages() -> None:
    driver = beaten()
    driver.do(ops.PAUSE_QUEUE, "other", False)
    machine = driver.machine
    found: list[Any] = []
    before = 0
    while True:
        page, before = machine.queue_events("other", before, 4, HUGE)
        found = page + found
        if not before:
            break
    assert [change.job_id for change in found] == [*(f"other{n}" for n in range(BEATS)), ""]
    page, before = machine.queue_events("other", 0, 4, 1)
    assert len(page) == 1 and before == page[0].seq
    assert machine.queue_events("nope", 0, 4, HUGE) == ([], 0)


def test_all_events_from_anywhere() -> None:
    driver = beaten()
    machine = driver.machine
    whole = machine.events_after(0, 10_000, HUGE)
    assert [change.seq for change in whole] == list(range(1, machine.event_seq + 1))
    assert [change.seq for change in machine.events_after(5, 3, HUGE)] == [6, 7, 8]
    assert len(machine.events_after(5, 3, 1)) == 1
    assert machine.events_after(machine.event_seq, 3, HUGE) == []
    driver.do(ops.TRIM_EVENTS, 20)
    first = machine.event_first_seq
    assert first > 10
    assert machine.events_after(0, 10_000, HUGE)[0].seq == first
    page, before = machine.queue_events("q", 0, 10_000, HUGE)
    assert page[0].seq >= first and before == 0


@pytest.mark.parametrize("flush", [False, True])
def test_errors_in_pages(flush: bool) -> None:
    driver = Driver()
    driver.enqueue("j", max_retries=100, base_delay_ms=0)
    for n in range(10):
        driver.take()
        driver.fail("j", error=b'"%d"' % n)
        if flush and n == 4:
            driver.machine.flush()
    machine = driver.machine
    assert [record.error for record in machine.errors("j", 3)] == [b'"7"', b'"8"', b'"9"']
    assert [record.error for record in machine.errors("j", 3, HUGE, 4)] == [b'"0"', b'"1"', b'"2"']
    assert machine.errors("j", 3, HUGE, 1) == []
    assert len(machine.errors("j", 3, HUGE, 99)) == 3
    assert len(machine.errors("j", 3, 1)) == 1


def lock_ids(driver: Driver, queue: str, limit: int) -> list[str]:
    """Holders of all locks, page by page."""
    found: list[str] = []
    behind = b""
    while True:
        page, behind = driver.machine.locks(queue, behind, limit)
        found += [lock.holder.id for lock in page]
        if not behind:
            return found


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_locks_in_pages(limit: int) -> None:
    driver = Driver()
    for n in range(12):
        queue = "ab"[n % 2]
        driver.enqueue(f"j{n:02}", queue=queue, unique_key=b"k%d" % n)
        if n == 7:
            driver.machine.flush()
    driver.enqueue("soon", queue="a", unique_key=b"k", unique_period_ns=SECOND_NS)
    driver.cancel("j00")
    driver.cancel("j10")
    driver.advance(2)
    driver.enqueue("tick", queue="c")
    assert sorted(lock_ids(driver, "", limit)) == [f"j{n:02}" for n in range(1, 12) if n != 10]
    assert sorted(lock_ids(driver, "a", limit)) == ["j02", "j04", "j06", "j08"]
    assert lock_ids(driver, "c", limit) == lock_ids(driver, "nope", limit) == []
    in_memory = lock_ids(driver, "", limit)
    driver.machine.flush()
    assert lock_ids(driver, "", limit) == in_memory
    lock = driver.machine.locks("b", b"", 100)[0][0]
    assert (lock.queue, lock.expires_ns) == ("b", 0) and lock.key == lock.holder.unique_key


def test_a_lock_is_released_by_hand() -> None:
    driver = Driver()
    driver.enqueue("j", unique_key=b"k")
    release = ops.RELEASE_LOCK
    for queue, key, job_id in (("q", b"x", ""), ("nope", b"k", ""), ("q", b"k", "other")):
        refusal = driver.do(release, queue, key, job_id)
        assert isinstance(refusal, NotFound) and f'"{queue}"' in refusal.message
    assert driver.enqueue("twin", unique_key=b"k").duplicate
    assert driver.do(release, "q", b"k", "j") == "j"
    assert isinstance(driver.do(release, "q", b"k", ""), NotFound)
    assert driver.machine.events("j")[-1].type == events.UNLOCKED
    assert not driver.enqueue("twin", unique_key=b"k").duplicate
    driver.take()
    driver.ack("j")
    assert driver.state("j") == COMPLETED
    assert [lock.holder.id for lock in driver.machine.locks("q", b"", 9)[0]] == ["twin"]
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def test_the_place_in_the_queue() -> None:
    driver = Driver()
    for n in range(3 * WINDOW):
        driver.enqueue(f"j{n:03}", priority=2 if n % 2 else 1)
    before = [driver.machine.jobs_before(driver.job(f"j{n:03}")) for n in range(3 * WINDOW)]
    assert before[0::2] == list(range(3 * WINDOW // 2))
    assert before[1::2] == list(range(3 * WINDOW // 2, 3 * WINDOW))
    driver.take()
    driver.cancel("j003")
    assert driver.machine.jobs_before(driver.job("j002")) == 0
    assert driver.machine.jobs_before(driver.job("j005")) == 3 * WINDOW // 2 - 1 + 1


@pytest.mark.parametrize("flush", [False, True])
def test_the_page_lists_the_active_jobs(flush: bool) -> None:
    driver = Driver()
    for n in range(5):
        driver.enqueue(f"j{n}")
        driver.take(worker=f"w{n}")
    if flush:
        driver.restart()
    holders = driver.machine.holders("q", 3)
    assert [(job.id, job.worker_id, job.state) for job in holders] == [
        (f"j{n}", f"w{n}", ACTIVE) for n in range(3)
    ]
    assert driver.machine.holders("nope", 3) == []


def test_the_workers_of_a_queue() -> None:
    driver = Driver()
    driver.fetch("q", "r", worker="old")
    driver.advance(10)
    driver.fetch("q", worker="new")
    driver.fetch("r", worker="other")
    assert [worker.id for worker in driver.machine.workers_of("q")] == ["new", "old"]
    assert driver.machine.workers_of("q")[1].seen_ns == START_NS

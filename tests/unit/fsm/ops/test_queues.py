"""Queues: pause, concurrency, counters, waking; workers."""

from collections.abc import Callable

import pytest
from lib.consistency import check_machine
from lib.fsm_driver import Driver, encode_step, enqueue_step

from corvo import events, ops
from corvo.errors import Conflict, NotFound
from corvo.fsm.state import state as state_module
from corvo.limits import QUEUES_MAX, SECOND_NS, WORKERS_MAX
from corvo.model import ACTIVE, COMPLETED, DEAD, PENDING, RETRYING, SCHEDULED, STATES, Queue

WAYS = ("retry", "release", "delayed release", "lease", "approve", "due")
compiled = not state_module.__file__.endswith(".py")


def check(driver: Driver) -> None:
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


def queue(driver: Driver, name: str = "q") -> Queue:
    found = driver.machine.queue(name)
    assert found is not None
    return found


def counts(driver: Driver) -> dict[str, int]:
    """Jobs by state, where there are any."""
    sums = {state: queue(driver).jobs(n) for n, state in enumerate(STATES)}
    return {state: number for state, number in sums.items() if number}


def test_pause_stops_fetches_only() -> None:
    driver = Driver()
    driver.enqueue("a")
    token = driver.take().token
    driver.do(ops.PAUSE_QUEUE, "q", False)
    driver.enqueue("b")
    driver.restart()
    assert driver.fetch() is None and driver.machine.fetchable("q") == 0
    assert driver.ack("a", token) is None
    driver.do(ops.RESUME_QUEUE, "q")
    assert driver.take().job_id == "b"


def test_pause_twice_is_one_event_and_resume_of_nothing_is_refused() -> None:
    driver = Driver()
    pause, resume = (ops.PAUSE_QUEUE, ("new", False)), (ops.RESUME_QUEUE, ("new",))
    driver.entry(pause, pause, resume, resume)
    types = [change.type for change in driver.machine.take_events()]
    assert types == [events.QUEUE_PAUSED, events.QUEUE_RESUMED]
    assert isinstance(driver.do(ops.RESUME_QUEUE, "nope"), NotFound)
    assert [q.name for q in driver.machine.queues()] == ["new"]


def test_concurrency_counts_live_leases() -> None:
    driver = Driver()
    driver.do(ops.SET_CONCURRENCY, "q", 2)
    for n in range(5):
        driver.enqueue(f"j{n}")
    tokens = [job.token for job in driver.fetch_batch()]
    assert len(tokens) == 2 and driver.machine.fetchable("q") == 0
    driver.restart()
    assert driver.machine.active_count("q") == 2 and driver.fetch() is None
    driver.do(ops.SET_CONCURRENCY, "q", 1)
    driver.ack("j0", tokens[0])
    assert driver.fetch() is None, "a lower limit only stops new fetches"
    driver.ack("j1", tokens[1])
    assert len(driver.fetch_batch()) == 1
    driver.do(ops.SET_CONCURRENCY, "q", 0)
    assert len(driver.fetch_batch()) == 2


def test_slots_are_freed_in_every_way_a_lease_can_end() -> None:
    driver = Driver()
    driver.do(ops.SET_CONCURRENCY, "q", 1)
    for n in range(7):
        driver.enqueue(f"j{n}")
    ways: tuple[Callable[[str], object], ...] = (
        lambda job_id: driver.ack(job_id),
        lambda job_id: driver.fail(job_id, no_retry=True),
        lambda job_id: driver.fail(job_id),
        lambda job_id: driver.release(job_id, delay_s=100),
        lambda job_id: driver.cancel(job_id, force=True),
        lambda job_id: driver.do(ops.DELETE_JOB, job_id),
    )
    for n, way in enumerate(ways):
        assert driver.take().job_id == f"j{n}"
        assert driver.fetch() is None and driver.machine.active_count("q") == 1
        way(f"j{n}")
        assert driver.machine.active_count("q") == 0 and driver.machine.fetchable("q") == 1


def test_late_calls_never_touch_the_slots() -> None:
    """Whatever a worker says whose lease has ended, there is one active job at most."""
    driver = Driver()
    driver.do(ops.SET_CONCURRENCY, "q", 1)
    driver.enqueue("j", max_retries=100)
    for _ in range(20):
        late = driver.take(lease_s=1).token
        driver.advance(1)
        driver.tick()
        live = driver.take().token
        driver.ack("j", late)
        driver.fail("j", late)
        assert driver.machine.active_count("q") == 1 and driver.fetch() is None
        driver.fail("j", live, retry_after_ns=0)
        assert driver.machine.active_count("q") == 0


def test_counters() -> None:
    driver = Driver()
    driver.enqueue("s", scheduled_ns=driver.now_ns + 100 * SECOND_NS)
    for n in range(5):
        driver.enqueue(f"j{n}", priority=n % 3)
    assert counts(driver) == {"scheduled": 1, "pending": 5}
    driver.ack("j0", driver.take().token)
    driver.fail("j3", driver.take().token)
    driver.fail("j1", driver.take().token, no_retry=True)
    driver.take(lease_s=1)
    driver.restart()
    assert counts(driver) == {
        "scheduled": 1,
        "pending": 1,
        "active": 1,
        "completed": 1,
        "retrying": 1,
        "dead": 1,
    }
    driver.advance(1)
    driver.tick()
    q = queue(driver)
    assert [q.counts[state * 3 + 2] for state in (SCHEDULED, PENDING, ACTIVE)] == [1, 1, 0]
    assert [q.counts[state * 3] for state in (COMPLETED, RETRYING)] == [1, 1]
    assert q.counts[DEAD * 3 + 1] == 1 and q.counts[PENDING * 3 + 1] == 1
    totals = (q.enqueued_total, q.completed_total, q.failed_total, q.dead_total, q.expired_total)
    assert totals == (6, 1, 3, 1, 1)  # an expired lease is a failed attempt


def test_oldest_ready() -> None:
    driver = Driver()
    start = driver.now_ns
    assert driver.machine.oldest_ready_ns("q", 2) == 0
    driver.enqueue("a")
    driver.advance(5)
    driver.enqueue("b")
    driver.restart()
    assert driver.machine.oldest_ready_ns("q", 2) == start
    assert driver.machine.oldest_ready_ns("q", 0) == 0
    driver.take()
    assert driver.machine.oldest_ready_ns("q", 2) == start + 5 * SECOND_NS


def test_queues_wake_when_they_may_have_something() -> None:
    driver = Driver()
    driver.enqueue("a", queue="y")
    driver.enqueue("b", queue="x")
    driver.enqueue("c", queue="y")
    assert driver.machine.take_woken() == ["y", "x"]
    assert driver.machine.take_woken() == []
    token = driver.take("x").token
    driver.ack("b", token)
    assert driver.machine.take_woken() == [], "no limit, nobody waited for the slot"
    driver.do(ops.SET_CONCURRENCY, "y", 1)
    token = driver.take("y").token
    driver.machine.take_woken()
    driver.ack("a", token)
    assert driver.machine.take_woken() == ["y"]
    driver.do(ops.PAUSE_QUEUE, "y", False)
    assert driver.machine.take_woken() == []
    driver.do(ops.RESUME_QUEUE, "y")
    assert driver.machine.take_woken() == ["y"]


def test_workers_are_seen_every_few_seconds() -> None:
    driver = Driver()
    start = driver.now_ns
    driver.fetch("a", "b", worker="w2")
    driver.fetch("a", worker="w1")
    driver.advance(4)
    driver.fetch("a", "b", worker="w2")
    workers = driver.machine.workers()
    assert [(worker.id, worker.seen_ns) for worker in workers] == [("w1", start), ("w2", start)]
    assert workers[1].queues == ["a", "b"] and workers[1].hostname == "host"
    driver.advance(1)
    driver.fetch("a", "b", worker="w2")
    worker = driver.machine.workers()[0]
    assert (worker.seen_ns, worker.started_ns) == (driver.now_ns, start)
    driver.fetch("c", worker="w2")
    assert driver.machine.workers()[0].queues == ["c"], "at once: explain counts on it"


def test_heartbeat_shows_the_worker_and_silent_ones_are_removed() -> None:
    driver = Driver()
    driver.enqueue("j", queue="q")
    driver.take(worker="busy")
    driver.fetch(worker="gone")
    driver.restart()
    driver.advance(30)
    driver.beat("j")
    assert driver.do(ops.REMOVE_STALE_WORKERS, driver.now_ns) == 1
    assert [worker.id for worker in driver.machine.workers()] == ["busy"]
    driver.restart()
    assert [worker.id for worker in driver.machine.workers()] == ["busy"]
    assert driver.machine.workers()[0].seen_ns == driver.now_ns
    assert driver.machine.workers()[0].queues == ["q"]


def test_there_is_a_limit_to_queues() -> None:
    driver = Driver()
    for first in range(0, QUEUES_MAX, 10_000):
        numbers = range(first, first + 10_000)
        jobs = [encode_step(enqueue_step(f"j{n}", queue=f"q{n}")) for n in numbers]
        assert len(driver.do(ops.ENQUEUE_BATCH, jobs, b"").jobs) == 10_000
    one_more = enqueue_step("more", queue="more")
    refusals = [
        driver.entry(one_more)[0],
        driver.do(ops.ENQUEUE_BATCH, [encode_step(one_more)], b""),
        driver.act("move", "j0", target="more"),
        driver.do(ops.PAUSE_QUEUE, "more", False),
        driver.do(ops.SET_CONCURRENCY, "more", 1),
        driver.do(ops.SET_THROTTLE, "more", 1, 1),
        driver.do(ops.SET_GROUP_LIMIT, "more", 1),
        driver.do(ops.SET_QUEUE_OPTIONS, "more", [], 1),
    ]
    for refusal in refusals:
        assert isinstance(refusal, Conflict)
        assert refusal.message.startswith(f"there are {QUEUES_MAX} queues, which is the limit")
    assert refusals[1].fields == {"index": 0}
    assert driver.machine.queue("more") is None and driver.machine.job("more") is None
    driver.enqueue("known", queue="q7")
    driver.do(ops.DELETE_QUEUE, "q8", "bulk_1")
    driver.enqueue("more", queue="more")


def names(driver: Driver) -> list[str]:
    """The ids of the listed workers."""
    return sorted(worker.id for worker in driver.machine.workers())


@pytest.fixture
def room_for_three(monkeypatch: pytest.MonkeyPatch) -> None:
    if compiled:
        pytest.skip("the limit is a constant in compiled code")
    monkeypatch.setattr("corvo.fsm.state.state.WORKERS_MAX", 3)


@pytest.mark.usefixtures("room_for_three")
def test_a_full_list_of_workers_drops_the_one_silent_longest() -> None:
    driver = Driver()
    for worker in ("c", "a", "b"):
        driver.fetch(worker=worker)
        driver.advance(6)
    driver.fetch(worker="c")
    driver.enqueue("j")
    driver.enqueue("k")
    assert driver.take(worker="d").job_id == "j" and names(driver) == ["b", "c", "d"]
    driver.restart()
    [taken] = driver.do(ops.FETCH_BATCH, ["q"], "e", "host", SECOND_NS, 1 << 20, 5)
    assert taken.job_id == "k" and names(driver) == ["c", "d", "e"]
    driver.restart()
    assert names(driver) == ["c", "d", "e"], "rows are gone, too"
    driver.enqueue("l")
    assert driver.take(worker="").job_id == "l", "a worker without a name is not listed"
    assert names(driver) == ["c", "d", "e"]


@pytest.mark.usefixtures("room_for_three")
def test_of_workers_silent_equally_long_the_first_by_id_is_dropped() -> None:
    """Also after a restart, which changes the order in which they became known."""
    drivers = Driver(), Driver()
    for driver in drivers:
        for worker in ("c", "a", "b"):
            driver.fetch(worker=worker)
    drivers[1].restart()
    for driver in drivers:
        driver.fetch(worker="d")
        assert names(driver) == ["b", "c", "d"]


@pytest.mark.usefixtures("room_for_three")
def test_a_dropped_worker_is_listed_again_with_its_next_request() -> None:
    driver = Driver()
    driver.enqueue("j")
    driver.take(worker="a", lease_s=600)
    for worker in ("b", "c", "d"):
        driver.advance(1)
        driver.fetch(worker=worker)
    assert names(driver) == ["b", "c", "d"]
    driver.advance(6)
    driver.beat("j")
    assert names(driver) == ["a", "c", "d"]
    driver.fetch(worker="b")
    driver.restart()
    assert names(driver) == ["a", "b", "d"]
    driver.advance(60)
    driver.fetch(worker="b")
    assert driver.do(ops.REMOVE_STALE_WORKERS, driver.now_ns) == 2 and names(driver) == ["b"]
    for worker in ("x", "y", "z"):
        driver.advance(1)
        driver.fetch(worker=worker)
    assert names(driver) == ["x", "y", "z"]


def test_a_full_list_of_workers_costs_no_fetch() -> None:
    driver = Driver()
    values = (SECOND_NS, 1 << 20)
    for first in range(0, WORKERS_MAX, 10_000):
        numbers = range(first, first + 10_000)
        driver.entry(*((ops.FETCH, (["q"], f"w{n}", "h", *values)) for n in numbers))
        driver.advance(1)
    for number in range(10):
        driver.enqueue(f"j{number}")
        assert driver.take(worker=f"more{number}").job_id == f"j{number}"
    assert len(driver.machine.workers()) == WORKERS_MAX


@pytest.mark.parametrize("way", WAYS)
def test_the_age_of_a_job_begins_when_it_becomes_ready(way: str) -> None:
    """Not when it was enqueued, nor when it was ready for the first time."""
    driver = Driver()
    if way == "due":
        driver.enqueue("a", scheduled_ns=driver.now_ns + 100 * SECOND_NS)
    else:
        driver.enqueue("a", max_retries=9)
    driver.advance(50)
    if way in ("retry", "release", "delayed release", "lease"):
        token = driver.take(lease_s=100).token
    if way == "retry":
        driver.fail("a", token, retry_after_ns=100 * SECOND_NS)
    elif way == "release":
        driver.advance(100)
        driver.release("a", token)
    elif way == "delayed release":
        driver.release("a", token, delay_s=100)
    elif way == "approve":
        driver.act("hold", "a")
        driver.advance(100)
        driver.act("approve", "a")
    if driver.job("a").state != PENDING:
        assert driver.machine.oldest_ready_ns("q", 2) == 0
        driver.advance(50 if way == "due" else 100)
        driver.tick()
    assert driver.job("a").state == PENDING
    ready_ns = driver.now_ns
    driver.advance(7)
    driver.restart()
    assert driver.machine.oldest_ready_ns("q", 2) == ready_ns == driver.job("a").ready_since()
    check(driver)


def test_a_returned_job_does_not_hide_one_that_waits_longer() -> None:
    driver = Driver()
    for name in ("a", "b", "c"):
        driver.enqueue(name)
    tokens = {job.job_id: job.token for job in driver.fetch_batch("q", count=2)}
    driver.advance(5)
    driver.enqueue("d")
    driver.advance(5)
    c_ready_ns = driver.job("c").ready_ns
    driver.release("b", tokens["b"])
    driver.advance(5)
    driver.release("a", tokens["a"])
    for _ in range(2):
        assert driver.machine.oldest_ready_ns("q", 2) == c_ready_ns
        driver.restart()
    assert [driver.take().job_id for _ in range(3)] == ["a", "b", "c"]
    assert driver.machine.oldest_ready_ns("q", 2) == driver.job("d").ready_ns
    check(driver)


def test_a_returned_job_does_not_stop_the_aging_of_others() -> None:
    driver = Driver()
    driver.do(ops.SET_QUEUE_OPTIONS, "q", [0, 0, 0], 60 * SECOND_NS + 1)
    driver.enqueue("a")
    driver.enqueue("b")
    for n in range(4):
        driver.enqueue(f"critical-{n}", priority=0)
    driver.advance(61)
    job = driver.take()
    assert job.job_id == "a", "it has waited a minute"
    driver.release("a", job.token)
    driver.restart()
    assert driver.take().job_id == "a", "b has waited a minute, and a is in front of it"
    assert [driver.take().job_id for _ in range(2)] == ["b", "critical-0"]
    check(driver)

"""Rate limits, groups, aging: what a queue lets pass, and why it does not."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.consistency import check_machine
from lib.fsm_driver import Driver, encode_step, enqueue_step

from corvo import events, ops
from corvo.errors import NotFound
from corvo.fsm.state.queue_index import CONCURRENCY, GROUP_CONCURRENCY, GROUP_ORDER, PAUSED, RATE
from corvo.limits import DUE_MAX_NS, SECOND_NS
from corvo.model import PENDING, RETRYING, SCHEDULED, Fetched
from corvo.storage.memory import MemoryStore


def throttle(driver: Driver, rate: int, window_s: int, queue: str = "q") -> None:
    driver.do(ops.SET_THROTTLE, queue, rate, window_s * 1000)


def age(driver: Driver, after_s: int) -> None:
    driver.do(ops.SET_QUEUE_OPTIONS, "q", [], after_s * SECOND_NS + 1)


def put(driver: Driver, *names: str, **fields: Any) -> None:
    """Jobs named `group` and a number; those whose group is `-` have none."""
    for name in names:
        group = name[0]
        named = {} if group == "-" else {"group_key": group}
        driver.enqueue(name, **named, **fields)


def order(driver: Driver, count: int) -> str:
    return " ".join(driver.take().job_id for _ in range(count))


def taken(driver: Driver, count: int = 100) -> list[str]:
    return [job.job_id for job in driver.fetch_batch(count=count)]


def fetchable(driver: Driver) -> int:
    return driver.machine.fetchable("q", now_ns=driver.now_ns)


def kinds(driver: Driver, job_id: str) -> list[str]:
    found = driver.machine.obstacles(driver.job(job_id), driver.now_ns)
    return [obstacle.kind for obstacle in found]


def check(driver: Driver) -> None:
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


# ---- rate limits ----


def test_a_rate_limit_holds_over_a_restart_and_opens_to_the_nanosecond() -> None:
    driver = Driver()
    throttle(driver, 3, 10)
    put(driver, *(f"-{n}" for n in range(9)))
    assert taken(driver) == ["-0", "-1", "-2"]
    driver.advance(4)
    assert driver.fetch() is None and fetchable(driver) == 0
    opens_ns = driver.machine.opens_ns("q", driver.now_ns)
    assert opens_ns == driver.now_ns + 6 * SECOND_NS + 1
    driver.restart()
    assert driver.machine.opens_ns("q", driver.now_ns) == opens_ns
    driver.now_ns = opens_ns - 1
    assert driver.fetch() is None and fetchable(driver) == 0
    driver.now_ns = opens_ns
    assert driver.machine.opens_ns("q", driver.now_ns) == 0 and fetchable(driver) == 3
    assert len(taken(driver, 2)) == 2
    driver.advance(9)
    assert len(taken(driver)) == 1
    driver.advance(1)
    assert len(taken(driver)) == 0
    driver.now_ns += 1
    assert len(taken(driver)) == 2, "two of three have left the window"
    check(driver)


def test_a_window_slides_and_does_not_jump() -> None:
    driver = Driver()
    throttle(driver, 2, 10)
    put(driver, *(f"-{n}" for n in range(9)))
    driver.take()
    driver.advance(9)
    driver.take()
    driver.advance(2)  # the first one has left, the second has not
    assert len(taken(driver)) == 1
    assert driver.machine.opens_ns("q", driver.now_ns) == driver.now_ns + 8 * SECOND_NS + 1


def test_what_is_counted() -> None:
    """Jobs handed out since there is a limit, whatever became of them, unless they never left."""
    driver = Driver()
    put(driver, *(f"-{n}" for n in range(9)))
    driver.take()
    throttle(driver, 2, 10)
    first, second = driver.take(), driver.take()
    driver.ack(first.job_id, first.token)
    assert driver.fetch() is None
    driver.release(second.job_id, second.token, undelivered=True)
    assert "q" in driver.machine.take_woken() and fetchable(driver) == 1
    driver.restart()
    again = driver.take()
    assert again.job_id == second.job_id and driver.fetch() is None
    driver.release(again.job_id, again.token)
    assert driver.fetch() is None, "its worker had it"
    check(driver)


def test_changes_of_a_rate_limit() -> None:
    driver = Driver()
    throttle(driver, 2, 10)
    throttle(driver, 2, 10)
    put(driver, *(f"-{n}" for n in range(9)))
    driver.machine.take_events()
    assert len(taken(driver)) == 2
    driver.machine.take_woken()
    throttle(driver, 5, 10)
    assert [change.type for change in driver.machine.take_events()] == [events.QUEUE_CONFIGURED]
    assert driver.machine.take_woken() == ["q"]
    assert len(taken(driver)) == 3
    throttle(driver, 1, 10)
    driver.advance(10.001)
    assert fetchable(driver) == 1
    assert len(taken(driver)) == 1 and fetchable(driver) == 0
    driver.do(ops.REMOVE_THROTTLE, "q")
    assert fetchable(driver) == 3 and driver.machine.opens_ns("q", driver.now_ns) == 0
    driver.do(ops.REMOVE_THROTTLE, "q")
    assert isinstance(driver.do(ops.REMOVE_THROTTLE, "nope"), NotFound)
    throttle(driver, 1, 10)
    assert fetchable(driver) == 1, "what was handed out before does not count"
    check(driver)


@settings(deadline=None, max_examples=60)
@given(
    rate=st.integers(1, 5),
    window_s=st.integers(1, 10),
    steps=st.lists(st.tuples(st.integers(0, 4_000), st.integers(1, 6)), max_size=40),
)
def test_no_window_holds_more_and_none_could_hold_one_more(
    rate: int, window_s: int, steps: list[tuple[int, int]]
) -> None:
    """Against a list of stamps: exactly as many jobs come as fit, with restarts in between."""
    driver, stamps = Driver(), list[int]()
    throttle(driver, rate, window_s)
    ids = [f"-{n:03}" for n in range(240)]
    driver.do(ops.ENQUEUE_BATCH, [encode_step(enqueue_step(job_id)) for job_id in ids], b"")
    for wait_ms, count in steps:
        driver.advance(wait_ms / 1000)
        if wait_ms % 3 == 0:
            driver.restart()
        start_ns = driver.now_ns - window_s * SECOND_NS
        room = rate - sum(at_ns >= start_ns for at_ns in stamps)
        assert fetchable(driver) == room
        got = len(taken(driver, count))
        assert got == min(room, count)
        stamps += [driver.now_ns] * got
    check(driver)
    rows = [key for key in driver.state_store._rows if key.startswith(b"l|")]
    assert len(rows) <= 2 * rate + 1, "what has left the window is dropped"


def test_a_short_and_a_long_queue_are_as_fast_to_open() -> None:
    """bull#2068: the limit works on after its first windows, for as long as there are jobs."""
    driver = Driver()
    throttle(driver, 4, 1)
    ids = [f"-{n:03}" for n in range(100)]
    driver.do(ops.ENQUEUE_BATCH, [encode_step(enqueue_step(job_id)) for job_id in ids], b"")
    began_ns, done = driver.now_ns, 0
    while done < 100:
        done += len(taken(driver))
        driver.now_ns = driver.machine.opens_ns("q", driver.now_ns) or driver.now_ns
    assert driver.now_ns - began_ns == 24 * (SECOND_NS + 1)


# ---- groups ----


def test_groups_take_turns_and_keep_their_order() -> None:
    driver = Driver()
    put(driver, "a1", "a2", "a3", "b1", "b2", "-1", "-2", "c1")
    driver.restart()
    assert order(driver, 8) == "-1 a1 b1 c1 -2 a2 b2 a3"


def test_a_new_group_waits_one_round_and_no_more() -> None:
    driver = Driver()
    put(driver, "a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4")
    assert order(driver, 3) == "a1 b1 a2"
    put(driver, "c1", "c2")
    assert order(driver, 6) == "b2 a3 c1 b3 a4 c2"


def test_a_stream_of_new_groups_cannot_starve_an_old_one() -> None:
    driver = Driver()
    put(driver, *(f"a{n}" for n in range(10)))
    last = 0
    for n in range(100):
        driver.enqueue(f"x{2 * n}", group_key=f"new {2 * n}")
        driver.enqueue(f"x{2 * n + 1}", group_key=f"new {2 * n + 1}")
        job = driver.take()
        driver.ack(job.job_id, job.token)
        if job.job_id[0] == "a":
            last = 2 * n + 1
        else:
            assert int(job.job_id[1:]) <= last, "made after the last turn of the old group"
        if n % 7 == 0:
            driver.restart()
    assert last > 50


def test_the_turn_outlives_a_restart_and_an_idle_while() -> None:
    driver = Driver()
    put(driver, "a1", "a2", "a3", "b1", "b2", "b3")
    jobs = [driver.take() for _ in range(3)]
    assert [job.job_id for job in jobs] == ["a1", "b1", "a2"]
    driver.restart()
    for job in jobs:
        driver.fail(job.job_id, job.token, retry_after_ns=SECOND_NS)
    driver.restart()
    assert driver.take().job_id == "b2"
    driver.advance(1)
    driver.tick()
    assert order(driver, 5) == "a1 b1 a2 b3 a3"
    check(driver)


def test_priorities_come_before_turns() -> None:
    driver = Driver()
    put(driver, "a1", "b1", "-1")
    put(driver, "a2", "c2", priority=0)
    put(driver, "b3", "-3", priority=1)
    assert order(driver, 7) == "a2 c2 -3 b3 a1 -1 b1"


def test_a_line_waits_for_its_head() -> None:
    """With one active job at a time, a head that is retrying, postponed or active blocks."""
    driver = Driver()
    driver.do(ops.SET_GROUP_LIMIT, "q", 1)
    put(driver, "a1", "a2", "b1", "b2")
    one, two = driver.take(), driver.take()
    assert (one.job_id, two.job_id) == ("a1", "b1")
    assert driver.fetch() is None and fetchable(driver) == 0
    driver.fail("a1", one.token, retry_after_ns=9 * SECOND_NS)
    driver.release("b1", two.token, delay_s=5)
    assert driver.state("a1") == RETRYING and driver.state("b1") == SCHEDULED
    driver.restart()
    assert driver.fetch() is None
    assert kinds(driver, "a2") == [GROUP_ORDER] and kinds(driver, "b2") == [GROUP_ORDER]
    driver.do(ops.CANCEL_JOB, "b1", False)
    assert driver.machine.take_woken() == ["q"]
    assert driver.take().job_id == "b2"
    driver.advance(9)
    driver.tick()
    assert driver.take().job_id == "a1" and driver.fetch() is None
    driver.restart()
    driver.do(ops.DELETE_JOB, "a1")
    assert driver.take().job_id == "a2"
    check(driver)


def test_with_more_room_or_none_a_retry_blocks_nobody() -> None:
    for limit in (0, 2):
        driver = Driver()
        driver.do(ops.SET_GROUP_LIMIT, "q", limit)
        put(driver, "a1", "a2", "a3", "a4")
        job = driver.take()
        driver.fail("a1", job.token, retry_after_ns=9 * SECOND_NS)
        assert taken(driver) == (["a2", "a3"] if limit else ["a2", "a3", "a4"])


def test_a_freed_slot_of_a_group_wakes_and_another_groups_does_not_count() -> None:
    driver = Driver()
    driver.do(ops.SET_GROUP_LIMIT, "q", 2)
    put(driver, *(f"a{n}" for n in range(6)), "b0")
    jobs = driver.fetch_batch()
    assert [job.job_id for job in jobs] == ["a0", "b0", "a1"]
    driver.machine.take_woken()
    assert driver.machine.fetchable("q", leaving=2) == 2
    driver.ack("b0", jobs[1].token)
    assert driver.machine.take_woken() == []
    for n, way in enumerate(("ack", "fail", "cancel", "delete")):
        live = [
            job_id for job_id in ("a0", "a1", "a2", "a3", "a4") if driver_active(driver, job_id)
        ]
        if way == "ack":
            driver.ack(live[0])
        elif way == "fail":
            driver.fail(live[0], no_retry=True)
        elif way == "cancel":
            driver.cancel(live[0], force=True)
        else:
            driver.do(ops.DELETE_JOB, live[0])
        assert driver.machine.take_woken() == ["q"], way
        assert taken(driver) == [f"a{n + 2}"]
        driver.machine.take_woken()
    check(driver)


def driver_active(driver: Driver, job_id: str) -> bool:
    job = driver.machine.job(job_id)
    return job is not None and job.lease_expires_ns > 0


def test_a_lease_that_ends_frees_the_slot_of_its_group() -> None:
    driver = Driver()
    driver.do(ops.SET_GROUP_LIMIT, "q", 1)
    put(driver, "a1", "a2", max_retries=1)
    driver.take(lease_s=1)
    driver.restart()
    driver.advance(1)
    driver.tick()
    assert driver.take().job_id == "a2"


def test_a_new_limit_counts_at_once() -> None:
    driver = Driver()
    put(driver, *(f"a{n}" for n in range(6)))
    assert len(taken(driver, 3)) == 3
    driver.do(ops.SET_GROUP_LIMIT, "q", 2)
    assert fetchable(driver) == 0 and driver.fetch() is None
    driver.machine.take_woken()
    driver.do(ops.SET_GROUP_LIMIT, "q", 5)
    assert driver.machine.take_woken() == ["q"] and fetchable(driver) == 2
    driver.do(ops.SET_GROUP_LIMIT, "q", 0)
    assert fetchable(driver) == 3
    check(driver)


def test_scheduled_jobs_stand_in_no_group_before_their_time() -> None:
    driver = Driver()
    driver.do(ops.SET_GROUP_LIMIT, "q", 1)
    put(driver, "a1", scheduled_ns=driver.now_ns + 5 * SECOND_NS)
    assert driver.machine.group_counts("q") == (0, 0)
    put(driver, "a2", "a3")
    driver.ack("a2", driver.take().token)
    driver.advance(5)
    driver.tick()
    driver.restart()
    driver.ack("a3", driver.take().token)
    assert driver.take().job_id == "a1"


def test_a_group_is_forgotten_with_its_last_job() -> None:
    driver = Driver()
    put(driver, "a1", "a2", "b1")
    driver.machine.flush()
    for _ in range(3):
        job = driver.take()
        driver.ack(job.job_id, job.token)
    check(driver)
    assert not [key for key in driver.state_store._rows if key.startswith(b"g|")]
    driver.do(ops.RETRY_JOB, "a1")
    driver.restart()
    assert driver.machine.group_counts("q") == (1, 0) and driver.take().job_id == "a1"


def test_one_tenant_cannot_starve_another() -> None:
    """20,000 jobs of X, then 10 of Y, two of each at a time, eight workers."""
    driver = Driver()
    driver.do(ops.SET_GROUP_LIMIT, "q", 2)
    for start in range(0, 20_000, 10_000):
        steps = [enqueue_step(f"x{n}", group_key="X") for n in range(start, start + 10_000)]
        driver.do(ops.ENQUEUE_BATCH, [encode_step(step) for step in steps], b"")
        driver.machine.flush()
    running: list[Fetched] = []

    def work(count: int) -> list[str]:
        done: list[str] = []
        while len(done) < count:
            while len(running) < 8 and (job := driver.fetch()) is not None:
                running.append(job)
                done.append(job.job_id)
            assert sum(job.job_id[0] == "x" for job in running) <= 2
            job = running.pop(0)
            driver.ack(job.job_id, job.token)
        return done

    work(50)
    for n in range(10):
        driver.enqueue(f"y{n}", group_key="Y")
    assert sum(job_id[0] == "y" for job_id in work(60)) == 10
    driver.restart()
    assert work(10) == sorted(work_ids(driver, running))


def work_ids(driver: Driver, running: list[Fetched]) -> list[str]:
    """Nothing is lost by the restart: ten more of X in their order."""
    last = max(int(job.job_id[1:]) for job in running)
    assert driver.machine.group_counts("q")[0] == 1
    return [f"x{n}" for n in range(last - 9, last + 1)]


# ---- aging ----


def test_a_normal_job_that_waited_too_long_is_next() -> None:
    driver = Driver()
    age(driver, 60)
    put(driver, "-1", "-2")
    driver.advance(30)
    put(driver, "-3")
    put(driver, *(f"-c{n}" for n in range(9)), priority=0)
    assert order(driver, 1) == "-c0"
    driver.advance(30)
    driver.restart()
    assert order(driver, 3) == "-1 -2 -c1"
    driver.advance(30)
    assert order(driver, 2) == "-3 -c2"
    age(driver, 0)
    driver.advance(1_000)
    put(driver, "-4")
    driver.advance(1_000)
    assert order(driver, 1) == "-c3"


def test_the_longest_age_is_never_reached() -> None:
    driver = Driver()
    driver.do(ops.SET_QUEUE_OPTIONS, "q", [], DUE_MAX_NS + 1)
    put(driver, "-1")
    put(driver, "-c1", priority=0)
    driver.advance(1_000)
    driver.restart()
    assert order(driver, 2) == "-c1 -1"


def test_aging_among_groups() -> None:
    driver = Driver()
    age(driver, 60)
    driver.do(ops.SET_GROUP_LIMIT, "q", 1)
    put(driver, "a1", "a2", "b1", "-1")
    put(driver, "a3", "c1", "c2", priority=0)
    driver.advance(60)
    driver.restart()
    one = driver.take()
    assert one.job_id == "a1", "the oldest"
    assert order(driver, 2) == "b1 -1", "a is full"
    assert order(driver, 1) == "c1"
    driver.ack("a1", one.token)
    assert order(driver, 1) == "a2", "before the critical one of its group"
    check(driver)


def test_a_job_that_keeps_its_place_keeps_its_age() -> None:
    driver = Driver()
    age(driver, 60)
    put(driver, "-1")
    driver.advance(50)
    job = driver.take(lease_s=5)
    driver.fail("-1", job.token, retry_after_ns=0)
    driver.take(lease_s=5)
    driver.advance(5)
    driver.tick()
    driver.restart()
    assert driver.state("-1") == PENDING
    put(driver, "-c", priority=0)
    driver.advance(5)
    assert driver.take().job_id == "-1"
    driver.fail("-1", no_retry=True)
    driver.do(ops.RETRY_JOB, "-1")
    put(driver, "-d", priority=0)
    assert order(driver, 3) == "-c -d -1", "by hand it starts again"


def test_oldest_ready_sees_groups() -> None:
    driver = Driver()
    start_ns = driver.now_ns
    driver.do(ops.SET_GROUP_LIMIT, "q", 1)
    put(driver, "a1", "a2")
    driver.advance(5)
    put(driver, "-1")
    driver.restart()
    assert driver.machine.oldest_ready_ns("q", 2) == start_ns
    assert driver.take().job_id == "-1"
    assert driver.take().job_id == "a1"
    assert driver.machine.oldest_ready_ns("q", 2) == start_ns, "blocked, and still waiting"


# ---- obstacles ----


def test_every_reason_is_named() -> None:
    driver = Driver()
    put(driver, "a1", "a2", "a3", "-1")
    assert kinds(driver, "-1") == kinds(driver, "a1") == []
    driver.do(ops.SET_GROUP_LIMIT, "q", 1)
    driver.do(ops.SET_CONCURRENCY, "q", 1)
    throttle(driver, 1, 10)
    driver.do(ops.PAUSE_QUEUE, "q", False)
    assert kinds(driver, "a1") == [PAUSED]
    driver.do(ops.RESUME_QUEUE, "q")
    driver.ack("-1", driver.take().token)
    driver.now_ns += 10 * SECOND_NS + 1
    token = driver.take().token
    driver.do(ops.PAUSE_QUEUE, "q", False)
    found = driver.machine.obstacles(driver.job("a2"), driver.now_ns)
    assert [obstacle.kind for obstacle in found] == [PAUSED, CONCURRENCY, RATE, GROUP_CONCURRENCY]
    assert [(o.limit, o.count) for o in found[1:]] == [(1, 1)] * 3
    assert found[2].opens_ns == driver.now_ns + 10 * SECOND_NS + 1
    driver.do(ops.RESUME_QUEUE, "q")
    driver.do(ops.REMOVE_THROTTLE, "q")
    driver.fail("a1", token, retry_after_ns=SECOND_NS)
    for _ in range(2):
        found = driver.machine.obstacles(driver.job("a3"), driver.now_ns)
        assert [(o.kind, o.job_id) for o in found] == [(GROUP_ORDER, "a1")]
        driver.restart()


def test_options_make_the_queue_and_say_so() -> None:
    driver = Driver(MemoryStore())
    throttle(driver, 5, 60, "t")
    driver.do(ops.SET_GROUP_LIMIT, "g", 2)
    driver.do(ops.SET_QUEUE_OPTIONS, "o", [], 0)
    driver.restart()
    queues = {queue.name: queue for queue in driver.machine.queues()}
    assert (queues["t"].rate_limit, queues["t"].rate_window_ns) == (5, 60 * SECOND_NS)
    assert queues["g"].group_concurrency == 2 and queues["o"].aging_after_ns == 0
    driver.entry(
        (ops.SET_GROUP_LIMIT, ("g", 2)),
        (ops.SET_GROUP_LIMIT, ("g", 0)),
        (ops.SET_QUEUE_OPTIONS, ("o", [], 5)),
        (ops.REMOVE_THROTTLE, ("t",)),
    )
    data = [change.data for change in driver.machine.take_events()]
    assert data == [
        b'{"group_concurrency":0}',
        b'{"aging_after_ns":4}',
        b'{"rate_limit":0,"rate_window_ms":0}',
    ]


def test_groups_by_key() -> None:
    driver = Driver()
    put(driver, "b1", "a1", "a2", "d1", "c1")
    driver.take()
    assert sorted(driver.machine.group_keys("q")) == ["a", "b", "c", "d"]
    group = driver.machine.group("q", "b")
    assert group is not None and group.key == "b"
    assert driver.machine.group("q", "z") is None and driver.machine.group("none", "b") is None
    assert driver.machine.group_keys("none") == []


@pytest.mark.parametrize("key", ["\0", "a\0b", "é" * 500])
def test_any_text_is_a_group_key(key: str) -> None:
    driver = Driver()
    driver.do(ops.SET_GROUP_LIMIT, "q", 1)
    driver.enqueue("j1", group_key=key)
    driver.enqueue("j2", group_key=key)
    driver.restart()
    token = driver.take().token
    driver.restart()
    assert driver.fetch() is None
    driver.ack("j1", token)
    assert driver.take().job_id == "j2"

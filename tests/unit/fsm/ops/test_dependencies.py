"""Jobs that wait for jobs: when each is released or ends, and that waiting costs nothing."""

from typing import Any

import pytest
from lib.consistency import check_machine, check_rows
from lib.fsm_driver import Driver, chain, enqueue_step, follower

from corvo import ops
from corvo.errors import CorvoError
from corvo.limits import RESOLVED_DEPENDENTS_MAX
from corvo.model import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    DEAD,
    DEPENDENCY,
    ON_DEPENDENCY_FAILURE,
    PENDING,
    SCHEDULED,
)


def enqueue(driver: Driver, job_id: str, *names: str, policy: str = "fail", **fields: Any) -> Any:
    number = ON_DEPENDENCY_FAILURE.index(policy)
    values = {"depends_on": list(names), "on_dependency_failure": number, **fields}
    return driver.entry(enqueue_step(job_id, **values))[0]


def complete(driver: Driver, job_id: str) -> None:
    fetched = driver.take()
    assert fetched.job_id == job_id
    assert driver.ack(job_id, fetched.token) is None


def waits_for(driver: Driver, job_id: str) -> list[str]:
    return driver.machine.open_dependencies(driver.job(job_id))


def checked(driver: Driver) -> None:
    driver.machine.flush()
    check_machine(driver.machine, driver.state_store)


@pytest.mark.parametrize("restart", [False, True])
def test_a_job_waits_for_the_last_of_them(restart: bool) -> None:
    driver = Driver()
    for job_id in ("a", "b"):
        driver.enqueue(job_id)
    assert enqueue(driver, "c", "a", "b").state == PENDING
    driver.enqueue("d")
    assert driver.machine.fetchable("q") == 3 and driver.machine.blocked_count("q") == 1
    if restart:
        driver.restart()
    complete(driver, "a")
    assert waits_for(driver, "c") == ["b"]
    complete(driver, "b")
    assert driver.machine.take_woken() == ["q"]
    complete(driver, "d")  # was ready before
    complete(driver, "c")
    assert driver.fetch() is None
    checked(driver)


def test_the_last_ack_and_the_fetch_are_in_one_entry() -> None:
    driver = Driver()
    driver.enqueue("a")
    enqueue(driver, "b", "a")
    token = driver.take().token
    fetch = (ops.FETCH, (["q"], "w", "h", 10**9, 1 << 20))
    results = driver.entry((ops.ACK, ("a", token, b"", b"", b"")), fetch)
    assert results[1].job_id == "b"


def test_blocked_jobs_cost_a_fetch_nothing() -> None:
    driver = Driver()
    driver.enqueue("a", queue="other")
    driver.entry(*(enqueue_step(f"b{n:04}", depends_on=["a"]) for n in range(2_000)))
    assert driver.machine.fetchable("q") == 0
    assert driver.fetch() is None
    driver.machine.flush()
    assert not [key for key, _ in driver.state_store.scan(b"p|")][1:]
    driver.enqueue("c")
    assert driver.take().job_id == "c"


def test_what_has_completed_is_not_waited_for() -> None:
    driver = Driver()
    driver.enqueue("a")
    complete(driver, "a")
    enqueue(driver, "b", "a")
    driver.do(ops.DELETE_JOB, "a")
    complete(driver, "b")


FAILURES = {
    "dead": lambda driver: (driver.take(), driver.fail("a", no_retry=True)),
    "cancelled": lambda driver: driver.cancel("a"),
    "deleted": lambda driver: driver.do(ops.DELETE_JOB, "a"),
}


@pytest.mark.parametrize("wait_s", [0, 60])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_dependency(failure: str, late: bool, wait_s: int) -> None:
    """By policy, also of a job that waits for its time; and of one that comes too late."""
    driver = Driver()
    driver.enqueue("a")
    if late and failure != "deleted":
        FAILURES[failure](driver)
    scheduled_ns = driver.now_ns + wait_s * 10**9 if wait_s else 0
    states = {}
    for policy in ON_DEPENDENCY_FAILURE:
        result = enqueue(driver, policy, "a", policy=policy, scheduled_ns=scheduled_ns)
        states[policy] = result.state
    live = SCHEDULED if wait_s else PENDING
    if not late or failure == "deleted":
        assert set(states.values()) == {live}
        FAILURES[failure](driver)
        states = {policy: driver.state(policy) for policy in states}
    assert states == {"fail": DEAD, "cancel": CANCELLED, "run": live}
    errors = driver.machine.errors("fail")
    assert [(error.kind, error.error) for error in errors] == [
        (DEPENDENCY, f'"dependency \\"a\\" {failure}"'.encode())
    ]
    driver.advance(wait_s)
    driver.tick()
    complete(driver, "run")
    assert driver.fetch() is None
    checked(driver)


def test_unknown_ids_are_refused() -> None:
    driver = Driver()
    driver.enqueue("a")
    refusal = enqueue(driver, "b", "a", "nope", queue="new")
    assert isinstance(refusal, CorvoError) and refusal.code == "VALIDATION_ERROR"
    assert '"nope"' in refusal.message and refusal.fields["job_id"] == "nope"
    assert driver.machine.job("b") is None and driver.machine.queue("new") is None
    assert driver.job("a").options is None


def test_failures_cascade() -> None:
    driver = Driver()
    driver.enqueue("a")
    enqueue(driver, "b", "a")
    enqueue(driver, "c", "b", policy="cancel")
    enqueue(driver, "d", "c", policy="run")
    enqueue(driver, "e", "b", "a")
    driver.cancel("a")
    states = {job_id: driver.state(job_id) for job_id in "bcde"}
    assert states == {"b": DEAD, "c": CANCELLED, "d": PENDING, "e": DEAD}
    assert driver.take().job_id == "d"
    checked(driver)


def test_a_long_line_falls_in_steps() -> None:
    """Each job waits for the one before it: a cascade is as deep as it is long."""
    driver = Driver()
    driver.enqueue("j0000")
    count = 2 * RESOLVED_DEPENDENTS_MAX + 10
    for n in range(1, count + 1):
        enqueue(driver, f"j{n:04}", f"j{n - 1:04}")
    driver.cancel("j0000")
    queue = driver.machine.queue("q")
    assert queue is not None and queue.jobs(DEAD) == RESOLVED_DEPENDENTS_MAX
    assert driver.machine.pending_dependents
    check_flushed(driver)
    assert (
        driver.do(ops.RESOLVE_DEPENDENTS, driver.machine.pending_dependents)
        == RESOLVED_DEPENDENTS_MAX
    )
    assert driver.do(ops.RESOLVE_DEPENDENTS, driver.machine.pending_dependents) == 10
    queue = driver.machine.queue("q")
    assert queue is not None and queue.jobs(DEAD) == count
    assert not driver.machine.pending_dependents
    checked(driver)


def check_flushed(driver: Driver) -> None:
    """In the middle of things, over a restart."""
    driver.machine.flush()
    check_rows(driver.state_store)
    driver.restart()


@pytest.mark.parametrize("restart", [False, True])
def test_many_dependents_are_told_in_steps(restart: bool) -> None:
    driver = Driver()
    driver.enqueue("a", queue="other")
    count = 2 * RESOLVED_DEPENDENTS_MAX + 500
    driver.entry(*(enqueue_step(f"b{n:04}", depends_on=["a"]) for n in range(count)))
    driver.take("other")
    driver.ack("a")
    assert driver.machine.fetchable("q") == RESOLVED_DEPENDENTS_MAX
    for told in (2 * RESOLVED_DEPENDENTS_MAX, count):
        if restart:
            check_flushed(driver)
        driver.enqueue(f"x{told}", queue="third")  # whatever comes next goes on with it
        assert driver.machine.fetchable("q") == told
    assert not driver.machine.pending_dependents
    assert driver.fetch_batch(count=3)[2].job_id == "b0002"
    checked(driver)


def test_a_job_cannot_come_back_while_its_end_makes_its_rounds() -> None:
    driver = Driver()
    driver.enqueue("a", queue="other")
    driver.entry(
        *(enqueue_step(f"b{n:04}", depends_on=["a"]) for n in range(RESOLVED_DEPENDENTS_MAX + 1))
    )
    driver.cancel("a")
    driver.machine.flush()
    refusals = driver.entry((ops.RETRY_JOB, ("a",)))
    assert isinstance(refusals[0], CorvoError) and refusals[0].code == "CONFLICT"
    assert driver.do(ops.RETRY_JOB, "a") is None
    assert driver.state(f"b{RESOLVED_DEPENDENTS_MAX:04}") == DEAD
    checked(driver)


def test_a_retry_forgets_what_failed_and_waits_for_the_rest() -> None:
    driver = Driver()
    for job_id in ("a", "b", "c"):
        driver.enqueue(job_id, queue=job_id)
    enqueue(driver, "d", "a", "b", "c")
    driver.cancel("a")
    assert driver.state("d") == DEAD
    driver.take("c")
    driver.ack("c")
    assert driver.do(ops.RETRY_JOB, "d") is None
    assert driver.state("d") == PENDING and waits_for(driver, "d") == ["b"]
    assert driver.fetch() is None
    driver.do(ops.RETRY_JOB, "a")  # runs again, but nobody waits for it any more
    checked(driver)
    driver.take("b")
    driver.ack("b")
    complete(driver, "d")
    checked(driver)


def test_a_dependency_that_is_run_again_while_its_dependent_is_dead() -> None:
    driver = Driver()
    for job_id in ("a", "b"):
        driver.enqueue(job_id, queue=job_id)
    enqueue(driver, "c", "a", "b")
    driver.cancel("a")
    driver.cancel("b")
    driver.do(ops.RETRY_JOB, "b")
    driver.do(ops.RETRY_JOB, "c")
    assert waits_for(driver, "c") == ["b"]
    checked(driver)
    driver.take("b")
    driver.ack("b")
    complete(driver, "c")


def test_a_job_whose_time_has_not_come() -> None:
    driver = Driver()
    driver.enqueue("a")
    enqueue(driver, "b", "a", scheduled_ns=driver.now_ns + 10**9)
    enqueue(driver, "c", "a", scheduled_ns=driver.now_ns + 10**9)
    driver.advance(1)
    driver.tick()
    assert driver.state("b") == PENDING and driver.machine.blocked_count("q") == 2
    driver.do(ops.DELETE_JOB, "c")
    assert driver.machine.blocked_count("q") == 1
    complete(driver, "a")
    complete(driver, "b")
    checked(driver)


def test_run_now_does_not_pass_dependencies_by() -> None:
    driver = Driver()
    driver.enqueue("a", queue="other")
    enqueue(driver, "b", "a", scheduled_ns=driver.now_ns + 10**9)
    assert driver.do(ops.RETRY_JOB, "b") is None
    assert driver.state("b") == PENDING and driver.fetch() is None
    driver.take("other")
    driver.ack("a")
    complete(driver, "b")
    checked(driver)


def test_a_blocked_job_can_be_cancelled() -> None:
    driver = Driver()
    driver.enqueue("a")
    enqueue(driver, "b", "a")
    assert driver.cancel("b") == "cancelled"
    complete(driver, "a")
    assert driver.state("b") == CANCELLED and driver.fetch() is None
    checked(driver)


def test_an_unsuccessful_attempt_is_no_end() -> None:
    driver = Driver()
    driver.enqueue("a")
    enqueue(driver, "b", "a")
    driver.take()
    driver.fail("a")
    driver.advance(5)
    driver.tick()
    assert driver.take().job_id == "a" and driver.state("b") == PENDING
    driver.advance(61)
    driver.tick()  # the lease ends, an attempt is left
    assert driver.state("a") == PENDING and waits_for(driver, "b") == ["a"]


def test_a_dependent_begins_a_chain() -> None:
    driver = Driver()
    driver.enqueue("a")
    enqueue(driver, "b", "a", chain=chain(follower("q"), follower("next")), chain_id="c")
    complete(driver, "a")
    complete(driver, "b")
    assert driver.take("next")


def test_the_priority_of_a_released_job_counts() -> None:
    driver = Driver()
    driver.enqueue("a")
    enqueue(driver, "b", "a", priority=0)
    driver.enqueue("c")
    complete(driver, "a")
    complete(driver, "b")
    assert driver.take().job_id == "c" and driver.state("a") == COMPLETED
    assert driver.state("c") == ACTIVE


def test_children_are_listed() -> None:
    driver = Driver()
    driver.enqueue("p")
    for job_id in ("c2", "c1", "c3"):
        driver.enqueue(job_id, parent_id="p")
    assert driver.machine.children("p", 9) == ["c1", "c2", "c3"]
    driver.restart()
    driver.enqueue("c0", parent_id="p")
    driver.do(ops.DELETE_JOB, "c2")
    assert driver.machine.children("p", 9) == ["c0", "c1", "c3"]
    assert driver.machine.children("p", 2) == ["c0", "c1"]
    checked(driver)


def bytes_written(dependencies: int, dependents: int, policy: str, restart: bool) -> int:
    """Bytes that are written while all dependencies finish, with a flush after each."""
    driver = Driver()
    names = [f"a{n:04}" for n in range(dependencies)]
    for name in names:
        driver.enqueue(name, queue="first")
    for n in range(dependents):
        enqueue(driver, f"b{n}", *names, policy=policy)
    driver.machine.flush()
    if restart:
        driver.restart()
    store: Any = driver.state_store
    written = 0

    def write(puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        nonlocal written
        written += sum(len(key) + len(row) for key, row in puts) + sum(map(len, deletes))
        type(store).write(store, puts, deletes)

    store.write = write
    for name in names:
        driver.cancel(name) if policy == "run" else driver.ack(driver.take("first").job_id)
        driver.machine.flush()
    del store.write
    assert driver.machine.blocked_count("q") == 0
    assert driver.machine.fetchable("q") == dependents
    checked(driver)
    return written


@pytest.mark.parametrize("policy", ["fail", "run"])
@pytest.mark.parametrize("restart", [False, True])
def test_what_is_written_grows_with_the_number_of_links(policy: str, restart: bool) -> None:
    """Not with its square: a waiting job is not written again for each job that it waits for."""
    sizes = [bytes_written(count, 10, policy, restart) for count in (40, 160)]
    assert sizes[1] < 6 * sizes[0]
    assert sizes[1] < 160 * 10 * 200


def test_open_dependencies_are_those_that_have_not_finished() -> None:
    """Also after a restart, and when the job finishes for another reason and is run again."""
    driver = Driver()
    for job_id in ("a", "b", "c"):
        driver.enqueue(job_id, queue=job_id)
    enqueue(driver, "d", "a", "b", "c")
    driver.take("a")
    driver.ack("a")
    assert waits_for(driver, "d") == ["b", "c"]
    driver.machine.flush()
    driver.restart()
    assert waits_for(driver, "d") == ["b", "c"]
    driver.cancel("d")
    checked(driver)
    driver.do(ops.RETRY_JOB, "a")  # no longer waited for
    driver.take("b")
    driver.ack("b")
    assert driver.do(ops.RETRY_JOB, "d") is None
    assert waits_for(driver, "d") == ["c"]
    checked(driver)
    driver.take("c")
    driver.ack("c")
    complete(driver, "d")
    checked(driver)

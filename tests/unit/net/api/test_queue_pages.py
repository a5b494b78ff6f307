"""Pages of queues, and reads that take several turns of the loop."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lib.fsm_driver import Driver, enqueue_step

from corvo.errors import ValidationError
from corvo.net.api.queue_pages import _READ_PER_STEP, SORTS, QueuePage, matches
from corvo.net.api.steps import Steps


def listed(driver: Driver, sort: str = "name", name: str = "", limit: int = 3) -> list[str]:
    """Follow the pages; no step reads more queues than it may."""
    reads = CountedReads(driver.machine)
    names: list[str] = []
    cursor = ""
    while True:
        page = QueuePage(sort, name, limit, cursor)
        reads.count = 0
        for _ in page.read(reads):  # type: ignore[arg-type]
            reads.count = 0
        assert len(page.names) <= limit
        names += page.names
        cursor = page.cursor
        if not cursor:
            return names


class CountedReads:
    """Counts the queues that are read in a step."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self.count = 0

    def queues(self, after: str, limit: int) -> Any:
        found = self._machine.queues(after, limit)
        self.count += len(found)
        assert self.count <= max(_READ_PER_STEP.values())
        return found

    def oldest_ready_ns(self, queue: str, priority: int) -> Any:
        return self._machine.oldest_ready_ns(queue, priority)


@pytest.fixture
def driver() -> Driver:
    """Queues with one to five ready jobs; the last ones became ready first."""
    driver = Driver()
    for number in reversed(range(5)):
        for job in range(number + 1):
            driver.enqueue(f"j{number}.{job}", queue=f"q{number}", max_retries=9)
        driver.advance(1)
    driver.enqueue("empty", queue="a/empty")
    driver.cancel("empty")
    driver.fail(driver.take("q1").job_id)
    return driver


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_in_every_order(driver: Driver, limit: int) -> None:
    names = ["a/empty", "q0", "q1", "q2", "q3", "q4"]
    assert listed(driver, limit=limit) == names
    assert listed(driver, "pending", limit=limit) == ["q4", "q3", "q2", "q0", "q1", "a/empty"]
    assert listed(driver, "oldest_ready", limit=limit) == ["q4", "q3", "q2", "q1", "q0", "a/empty"]
    assert listed(driver, "failed", limit=limit) == ["q1", "a/empty", "q0", "q2", "q3", "q4"]
    for sort in SORTS:
        assert sorted(listed(driver, sort, "q*", limit)) == names[1:]
        assert listed(driver, sort, "empt", limit) == ["a/empty"]
        assert listed(driver, sort, "*y*y", limit) == []


def test_very_many_queues_are_read_in_steps() -> None:
    driver = Driver()
    count = 2 * _READ_PER_STEP["pending"] + 7
    for first in range(0, count, 500):
        numbers = range(first, min(first + 500, count))
        driver.entry(*(enqueue_step(f"j{n}", queue=f"q{n:05}") for n in numbers))
    for sort in ("name", "pending"):
        assert listed(driver, sort, limit=1_000) == [f"q{n:05}" for n in range(count)]
    assert listed(driver, "pending", "7") == [f"q{n:05}" for n in range(count) if "7" in str(n)]
    assert listed(driver, "name", "*2006") == ["q02006"]


@pytest.mark.parametrize("cursor", ["x", "zz", "6e", b"pending:1:q".hex(), b"name:x:q".hex()])
def test_a_cursor_of_another_list(cursor: str) -> None:
    with pytest.raises(ValidationError):
        QueuePage("name", "", 1, cursor)


@given(st.text("ab", max_size=6), st.lists(st.text("ab", max_size=2), min_size=2, max_size=4))
def test_patterns(name: str, parts: list[str]) -> None:
    def found(text: str, rest: list[str]) -> bool:
        if len(rest) == 1:
            return text.endswith(rest[0])
        places = (at for at in range(len(text) + 1) if text.startswith(rest[0], at))
        return any(found(text[at + len(rest[0]) :], rest[1:]) for at in places)

    first = name.startswith(parts[0]) and found(name[len(parts[0]) :], parts[1:])
    assert matches(name, "*".join(parts)) == first


class Service:
    """Keeps what is to run in the next turn."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def later(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)


class Request:
    path = b"/queues"
    abandoned = False


def test_reads_take_turns_and_end_with_their_client() -> None:
    service, done = Service(), []

    def read(name: str, count: int) -> Iterator[None]:
        for step in range(count):
            done.append(f"{name}{step}")
            yield
        done.append(name)

    steps = Steps(service)  # type: ignore[arg-type]
    steps.run(Request(), read("short", 0))  # type: ignore[arg-type]
    assert done == ["short"] and not service.waiting
    gone = Request()
    for request, name in ((Request(), "a"), (gone, "b"), (Request(), "c")):
        steps.run(request, read(name, 3))  # type: ignore[arg-type]
    gone.abandoned = True
    turns = 0
    while service.waiting:
        (step,) = service.waiting
        service.waiting.clear()
        before = len(done)
        step()
        assert len(done) <= before + 1, "one step in a turn"
        turns += 1
    assert done[1:] == ["a0", "b0", "c0", "a1", "c1", "a2", "c2", "a", "c"]
    assert turns == 7

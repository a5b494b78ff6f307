"""Waiter lists and deadlines."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from corvo import events
from corvo.engine.fetches import (
    DONE,
    IN_FLIGHT,
    PARKED,
    ResultWait,
    Wait,
    WaitingFetches,
    WaitingForResults,
)
from corvo.events import Event

SECOND = 1_000_000_000


def a_wait(*queues: str, deadline_ns: int = SECOND) -> Wait:
    return Wait(
        list(queues), "w", b"", False, deadline_ns, SimpleNamespace(), lambda wait, jobs: None
    )


def test_first_come_first_served() -> None:
    waiting = WaitingFetches()
    first, second = a_wait("q"), a_wait("q")
    waiting.park(first)
    waiting.park(second)
    assert waiting.take("q") is first
    assert first.state == IN_FLIGHT
    waiting.park(first, front=True)
    assert waiting.take("q") is first
    assert waiting.take("q") is second
    assert waiting.take("q") is None
    assert waiting.count == 0


def test_a_fetch_of_two_queues_leaves_both_lists() -> None:
    waiting = WaitingFetches()
    both, other = a_wait("a", "b"), a_wait("b")
    waiting.park(both)
    waiting.park(other)
    assert waiting.waiting("a") == 1 and waiting.waiting("b") == 2
    assert waiting.take("a") is both
    assert waiting.waiting("a") == 0
    assert waiting.take("b") is other


def test_deadlines_are_kept_to_a_tenth_of_a_second() -> None:
    waiting = WaitingFetches()
    early, late = a_wait("q", deadline_ns=SECOND), a_wait("q", deadline_ns=2 * SECOND)
    for wait in (late, early):
        waiting.park(wait)
        waiting.list_deadline(wait)
    due_ns = waiting.next_deadline_ns()
    assert SECOND <= due_ns <= SECOND + SECOND // 10
    assert waiting.expired(SECOND - 1) == []
    assert waiting.expired(due_ns) == [early]
    assert waiting.expired(3 * SECOND) == [late]
    assert waiting.next_deadline_ns() == 0


def test_what_is_taken_has_no_deadline_any_more() -> None:
    waiting = WaitingFetches()
    wait = a_wait("q")
    waiting.park(wait)
    waiting.list_deadline(wait)
    assert waiting.take("q") is wait
    assert waiting.expired(9 * SECOND) == []
    assert waiting.next_deadline_ns() == 0


@settings(deadline=None)
@given(st.data())
def test_against_a_plain_list(data: st.DataObject) -> None:
    waiting = WaitingFetches()
    model: list[Wait] = []
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(("park", "front", "take", "remove", "expire")))
        if action in ("park", "front"):
            queues = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3))
            wait = a_wait(*queues, deadline_ns=data.draw(st.integers(1, 20)) * SECOND // 4)
            waiting.park(wait, front=action == "front")
            waiting.list_deadline(wait)
            model.insert(0, wait) if action == "front" else model.append(wait)
        elif action == "take":
            queue = data.draw(st.sampled_from("abc"))
            expected = next((w for w in model if queue in w.queues), None)
            assert waiting.take(queue) is expected
            if expected is not None:
                model.remove(expected)
        elif action == "remove" and model:
            wait = data.draw(st.sampled_from(model))
            waiting.remove(wait)
            wait.state = DONE
            model.remove(wait)
        elif action == "expire":
            now_ns = data.draw(st.integers(0, 24)) * SECOND // 4
            gone = waiting.expired(now_ns)
            assert all(w.deadline_ns <= now_ns for w in gone)
            model = [w for w in model if w not in gone]
            assert all(w.deadline_ns > now_ns - SECOND // 5 for w in model)
    assert waiting.count == len(model)
    assert all(w.state == PARKED for w in model)
    assert sorted(map(id, waiting.all())) == sorted(map(id, model))
    assert waiting.next_deadline_ns() == 0


class Timers:
    """The event loop's part: timers that fire by hand."""

    def __init__(self) -> None:
        self.armed: list[tuple[float, Any]] = []
        self.now_ns = SECOND

    def call_later(self, delay: float, callback: Any) -> Any:
        timer = (delay, callback)
        self.armed.append(timer)
        return SimpleNamespace(cancel=lambda: timer in self.armed and self.armed.remove(timer))


def ends() -> tuple[Timers, WaitingForResults]:
    timers = Timers()
    return timers, WaitingForResults(timers, lambda: timers.now_ns)


def an_end_wait(
    ends: WaitingForResults, job_id: str, answered: list[Any], wait_s: int = 9
) -> ResultWait:
    request = SimpleNamespace(name=f"{job_id}-{ends.count}")
    wait = ResultWait(job_id, SECOND + wait_s * SECOND, request, lambda r: answered.append(r.name))
    ends.park(wait)
    return wait


def change(job_id: str, type: int) -> Event:
    return Event(1, type, job_id, "q", 0, b"", 0)


def test_ends_answer_those_that_wait_for_them() -> None:
    timers, waiting = ends()
    answered: list[Any] = []
    for job_id in ("a", "b", "a", "c", "d"):
        an_end_wait(waiting, job_id, answered)
    waiting.take([change("a", events.STARTED), change("x", events.COMPLETED)])
    assert answered == []
    waiting.take([change(j, t) for j, t in (("a", events.COMPLETED), ("b", events.DELETED))])
    waiting.take(
        [change("c", events.CANCELLED), change("d", events.DEAD), change("a", events.DEAD)]
    )
    assert answered == ["a-0", "a-2", "b-1", "c-3", "d-4"] and waiting.count == 0
    assert len(timers.armed) == 1, "one timer for all of them"
    timers.armed.pop()[1]()
    assert timers.armed == []


def test_those_that_waited_long_enough_are_answered() -> None:
    timers, waiting = ends()
    answered: list[Any] = []
    an_end_wait(waiting, "late", answered, wait_s=20)
    an_end_wait(waiting, "early", answered, wait_s=5)
    [(delay, fire)] = timers.armed
    assert 5 <= delay <= 5.1
    timers.now_ns += 6 * SECOND
    fire()
    assert answered == ["early-1"] and waiting.count == 1
    [(delay, _)] = timers.armed
    assert 14 <= delay <= 14.1
    waiting.answer_all()
    assert answered == ["early-1", "late-0"]
    waiting.close()
    assert timers.armed == []


def test_who_is_gone_is_not_answered() -> None:
    _, waiting = ends()
    answered: list[Any] = []
    wait = an_end_wait(waiting, "a", answered)
    other = an_end_wait(waiting, "a", answered)
    waiting.drop(wait)
    waiting.drop(wait)
    waiting.take([change("a", events.COMPLETED)])
    waiting.drop(other)
    assert answered == ["a-1"] and waiting.count == 0


def test_an_answer_that_fails_harms_no_other(caplog: Any) -> None:
    _, waiting = ends()
    answered: list[Any] = []
    waiting.park(ResultWait("a", SECOND, SimpleNamespace(), lambda request: 1 // 0))
    an_end_wait(waiting, "a", answered)
    waiting.take([change("a", events.COMPLETED)])
    assert answered == ["a-1"] and "answering a request failed" in caplog.text

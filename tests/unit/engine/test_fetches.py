"""Waiter lists of fetches, and their deadlines."""

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from corvo.engine.fetches import WaitingFetches
from corvo.engine.parked import DONE, IN_FLIGHT, PARKED, Wait

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
    assert waiting.in_queue("a") == 1 and waiting.in_queue("b") == 2
    assert waiting.take("a") is both
    assert waiting.in_queue("a") == 0
    assert waiting.take("b") is other


def test_deadlines_are_kept_to_a_hundredth_of_a_second() -> None:
    waiting = WaitingFetches()
    early, late = a_wait("q", deadline_ns=SECOND), a_wait("q", deadline_ns=2 * SECOND)
    for wait in (late, early):
        waiting.park(wait)
        waiting.list_deadline(wait)
    due_ns = waiting.next_deadline_ns()
    assert SECOND <= due_ns <= SECOND + SECOND // 100
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
    assert sorted(map(id, waiting.take_all())) == sorted(map(id, model))
    assert waiting.next_deadline_ns() == 0

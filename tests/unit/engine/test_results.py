"""Requests that wait for the end of a job, over the feed of events."""

from types import SimpleNamespace
from typing import Any

from corvo import events
from corvo.engine.feed import Feed
from corvo.engine.results import ResultWait, WaitingForResults
from corvo.events import Event

SECOND = 1_000_000_000


class Timers:
    """The event loop's part: timers that fire by hand."""

    def __init__(self) -> None:
        self.armed: list[tuple[float, Any]] = []
        self.now_ns = SECOND

    def call_later(self, delay: float, callback: Any) -> Any:
        timer = (delay, callback)
        self.armed.append(timer)
        return SimpleNamespace(cancel=lambda: timer in self.armed and self.armed.remove(timer))


def ends() -> tuple[Timers, Feed, WaitingForResults]:
    timers, feed = Timers(), Feed()
    return timers, feed, WaitingForResults(timers, lambda: timers.now_ns, feed)


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
    timers, feed, waiting = ends()
    answered: list[Any] = []
    for job_id in ("a", "b", "a", "c", "d"):
        an_end_wait(waiting, job_id, answered)
    feed.publish([change("a", events.STARTED), change("x", events.COMPLETED)])
    assert answered == []
    feed.publish([change(j, t) for j, t in (("a", events.COMPLETED), ("b", events.DELETED))])
    feed.publish(
        [change("c", events.CANCELLED), change("d", events.DEAD), change("a", events.DEAD)]
    )
    assert answered == ["a-0", "a-2", "b-1", "c-3", "d-4"] and waiting.count == 0
    assert len(timers.armed) == 1, "one timer for all of them"
    timers.armed.pop()[1]()
    assert timers.armed == []


def test_those_that_waited_long_enough_are_answered() -> None:
    timers, _, waiting = ends()
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


def test_a_request_that_is_gone_gets_no_answer() -> None:
    _, feed, waiting = ends()
    answered: list[Any] = []
    wait = an_end_wait(waiting, "a", answered)
    other = an_end_wait(waiting, "a", answered)
    waiting.drop(wait)
    waiting.drop(wait)
    feed.publish([change("a", events.COMPLETED)])
    waiting.drop(other)
    assert answered == ["a-1"] and waiting.count == 0


def test_an_answer_that_fails_harms_no_other(caplog: Any) -> None:
    _, feed, waiting = ends()
    answered: list[Any] = []
    waiting.park(ResultWait("a", SECOND, SimpleNamespace(), lambda request: 1 // 0))
    an_end_wait(waiting, "a", answered)
    feed.publish([change("a", events.COMPLETED)])
    assert answered == ["a-1"] and "answering a request failed" in caplog.text


def test_the_feed_is_read_only_while_a_request_waits() -> None:
    _, feed, waiting = ends()
    answered: list[Any] = []
    assert feed.readers == ()
    first = an_end_wait(waiting, "a", answered)
    an_end_wait(waiting, "b", answered)
    assert len(feed.readers) == 1
    waiting.drop(first)
    feed.publish([change("b", events.COMPLETED)])
    assert answered == ["b-1"] and feed.readers == ()
    an_end_wait(waiting, "c", answered)
    assert len(feed.readers) == 1

"""The feed of events and its subscribers."""

from typing import Any

from corvo.engine.feed import Feed
from corvo.events import COMPLETED, Event


def an_event(seq: int) -> Event:
    return Event(seq, COMPLETED, "job", "q", 0, b"", 0)


def test_every_reader_gets_every_entry_in_order_of_subscription() -> None:
    feed = Feed()
    calls: list[tuple[str, list[Event]]] = []
    feed.subscribe(lambda events: calls.append(("first", events)))
    feed.subscribe(lambda events: calls.append(("second", events)))
    one, two = [an_event(1), an_event(2)], [an_event(3)]
    feed.publish(one)
    feed.publish(two)
    assert calls == [("first", one), ("second", one), ("first", two), ("second", two)]


def test_a_bound_method_can_be_unsubscribed() -> None:
    class Subscriber:
        def __init__(self) -> None:
            self.count = 0

        def read(self, events: list[Event]) -> None:
            self.count += len(events)

    feed, first, second = Feed(), Subscriber(), Subscriber()
    feed.subscribe(first.read)
    feed.subscribe(second.read)
    feed.unsubscribe(first.read)
    feed.publish([an_event(1)])
    assert (first.count, second.count) == (0, 1)
    feed.unsubscribe(second.read)
    assert feed.readers == ()


def test_subscriptions_made_during_a_call_begin_with_the_next_entry() -> None:
    feed = Feed()
    calls: list[str] = []

    def late(_events: list[Event]) -> None:
        calls.append("late")

    def once(_events: list[Event]) -> None:
        calls.append("once")
        feed.unsubscribe(once)
        feed.subscribe(late)

    feed.subscribe(once)
    feed.publish([])
    assert calls == ["once"]
    feed.publish([])
    assert calls == ["once", "late"]


def test_a_reader_that_fails_does_not_affect_the_others(caplog: Any) -> None:
    feed = Feed()
    seqs: list[int] = []
    feed.subscribe(lambda events: [][0])
    feed.subscribe(lambda events: seqs.extend(event.seq for event in events))
    feed.publish([an_event(1)])
    assert seqs == [1] and "a subscriber of the feed failed" in caplog.text

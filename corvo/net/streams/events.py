"""Live events, fanned out to subscribers.

Subscribers with the same filter share a *topic*. A change record is looked up by its job and queue
among the topics, and encoded once, when the first of them wants it.

A subscriber is live or lagging. A live one is sent the events of an entry as soon as its requests
are answered. One with more than STREAM_UNSENT_SIZE_MAX unread bytes becomes lagging, as does one
that begins in the past. A lagging one reads the stored event log, page by page at its own pace,
until it has caught up. Events that were trimmed from the log are reported as a gap. So no event is
lost silently, and a slow subscriber costs the server little memory.

Pages are read one at a time, with a pause as long as each took: with any number of lagging
subscribers at least half of the loop is left to other work. Without subscribers there is no cost.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from corvo import limits
from corvo._fast.http.exchange import Request
from corvo.engine.service import Service
from corvo.events import EVENT_TYPES, Event
from corvo.net.api.responses import event_document
from corvo.platform.loop import Loop

_ENCODE: Final = msgspec.json.Encoder().encode
_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")

TRIMMED: Final = "trimmed"  # the events were removed from the log
UNKNOWN: Final = "unknown"  # the log has no such event yet: another log, or a node that lags


class Filter(NamedTuple):
    """Which events a subscriber gets; an empty set means all."""

    queues: frozenset[str] = frozenset()
    job_ids: frozenset[str] = frozenset()
    types: frozenset[int] = frozenset()

    def wants(self, event: Event) -> bool:
        """Whether the event is one of those."""
        return (
            (not self.job_ids or event.job_id in self.job_ids)
            and (not self.queues or event.queue in self.queues)
            and (not self.types or event.type in self.types)
        )


class Form:
    """How events look on the wire."""

    def event(self, event: Event) -> bytes:
        """One event."""
        raise NotImplementedError

    def gap(self, after: int, resumed_after: int, reason: str) -> bytes:
        """Missing events: those after `after`, up to and with `resumed_after`."""
        raise NotImplementedError

    def keepalive(self, seq: int) -> bytes:
        """No event; the reader has got everything up to this one, of what it wants."""
        raise NotImplementedError


class SseForm(Form):
    """Server-sent events, whose names are the types of the events unless all are messages."""

    def __init__(self, named: bool) -> None:
        self._named = named

    def event(self, event: Event) -> bytes:
        """See `Form`."""
        # A line break in JSON is white space, as inside strings there is none.
        document = _ENCODE(event_document(event)).translate(_TO_SPACES)
        return self._frame(event.seq, EVENT_TYPES[event.type], document)

    def gap(self, after: int, resumed_after: int, reason: str) -> bytes:
        """See `Form`."""
        document = {"type": "gap", "after": after, "resumed_after": resumed_after, "reason": reason}
        return self._frame(resumed_after, "gap", _ENCODE(document))

    def keepalive(self, seq: int) -> bytes:
        """See `Form`. An id without data is remembered by readers, and they see no event."""
        return b":keepalive\nid: %d\n\n" % seq

    def _frame(self, seq: int, name: str, document: bytes) -> bytes:
        if self._named:
            return b"id: %d\nevent: %b\ndata: %b\n\n" % (seq, name.encode(), document)
        return b"id: %d\ndata: %b\n\n" % (seq, document)


NAMED: Final = SseForm(named=True)
MESSAGES: Final = SseForm(named=False)


class Topic:
    """The subscribers with the same filter and form."""

    __slots__ = ("filter", "form", "live", "new", "subscribers")

    def __init__(self, filter: Filter, form: Form) -> None:
        self.filter = filter
        self.form = form
        self.live: dict[Subscriber, None] = {}
        self.subscribers = 0
        self.new: list[bytes] = []  # events of this turn


class Subscriber:
    """One reader of a topic."""

    __slots__ = ("after", "queued", "request", "topic")

    def __init__(self, request: Request, topic: Topic, after: int) -> None:
        self.request = request
        self.topic = topic
        self.after = after  # seq of the last event that it was sent, while it lags
        self.queued = False  # for its next page


class EventStreams:
    """All subscribers to events of this server."""

    def __init__(self, loop: Loop, service: Service) -> None:
        self._loop = loop
        self._service = service
        self._clock = service.clock
        self._reads = service.reads
        self._subscribers: dict[Request, Subscriber] = {}
        self._topics: dict[tuple[Filter, Form], Topic] = {}
        self._by_job: dict[str, list[Topic]] = {}
        self._by_queue: dict[str, list[Topic]] = {}
        self._by_neither: list[Topic] = []
        self._changes: list[Event] = []
        self._seq = 0  # of the last event that live subscribers were given
        self._queue: deque[Subscriber] = deque()
        self._reading = False
        self.gaps = 0

    def __len__(self) -> int:
        return len(self._subscribers)

    @property
    def behind(self) -> int:
        """How many subscribers lag."""
        return len(self._subscribers) - sum(len(topic.live) for topic in self._topics.values())

    def subscribe(self, request: Request, filter: Filter, form: Form, after: int | None) -> None:
        """Make a started reply a subscriber to the events after one (None = the newest)."""
        if not self._subscribers:
            self._seq = self._reads.event_seq
            self._changes = []
            self._service.feed.subscribe(self._take)
        topic = self._topics.get((filter, form))
        if topic is None:
            topic = self._topics[filter, form] = Topic(filter, form)
            for topics in self._places(filter):
                topics.append(topic)
        topic.subscribers += 1
        subscriber = self._subscribers[request] = Subscriber(request, topic, 0)
        request.on_writable = self._on_writable
        if after is None:
            topic.live[subscriber] = None
            request.send(form.keepalive(self._seq))
        else:
            subscriber.after = after
            self._enqueue(subscriber)

    def forget(self, request: Request) -> None:
        """A subscriber is gone."""
        subscriber = self._subscribers.pop(request)
        topic = subscriber.topic
        topic.live.pop(subscriber, None)
        topic.subscribers -= 1
        if not topic.subscribers:
            del self._topics[topic.filter, topic.form]
            for topics in self._places(topic.filter):
                topics.remove(topic)
            for index, names in (
                (self._by_job, topic.filter.job_ids),
                (self._by_queue, topic.filter.queues),
            ):
                for name in names:
                    if name in index and not index[name]:
                        del index[name]
        if not self._subscribers:
            self._service.feed.unsubscribe(self._take)

    def keepalive(self, request: Request) -> bytes:
        """The keepalive of a subscriber that has read everything: it names its position, so that
        the subscriber can resume there."""
        subscriber = self._subscribers[request]
        live = subscriber in subscriber.topic.live
        return subscriber.topic.form.keepalive(self._seq if live else subscriber.after)

    def _places(self, filter: Filter) -> Iterable[list[Topic]]:
        """The lists that a topic stands in."""
        if filter.job_ids:
            return [self._by_job.setdefault(job_id, []) for job_id in filter.job_ids]
        if filter.queues:
            return [self._by_queue.setdefault(queue, []) for queue in filter.queues]
        return [self._by_neither]

    # ---- live ----

    def _take(self, changes: list[Event]) -> None:
        self._changes += changes

    def dispatch(self) -> None:
        """Send live subscribers the applied events; called when the requests are answered. After
        the state was replaced by a snapshot they read the missing events from its log."""
        changes = self._changes
        if not changes:
            if self._subscribers and self._reads.event_seq > self._seq:
                self._fall_behind(list(self._subscribers.values()))
                self._seq = self._reads.event_seq
            return
        self._changes = []
        if changes[0].seq != self._seq + 1:
            self._fall_behind(list(self._subscribers.values()))
        touched: dict[Topic, None] = {}
        for event in changes:
            encoded: dict[Form, bytes] = {}
            for topics in (
                self._by_neither,
                self._by_queue.get(event.queue, ()),
                self._by_job.get(event.job_id, ()),
            ):
                for topic in topics:
                    if topic.live and topic.filter.wants(event):
                        message = encoded.get(topic.form)
                        if message is None:
                            message = encoded[topic.form] = topic.form.event(event)
                        topic.new.append(message)
                        touched[topic] = None
        for topic in touched:
            self._send(topic)
        self._seq = changes[-1].seq

    def _send(self, topic: Topic) -> None:
        data = b"".join(topic.new)
        topic.new = []
        slow: list[Subscriber] = []
        for subscriber in topic.live:
            if subscriber.request.unsent_size > limits.STREAM_UNSENT_SIZE_MAX:
                slow.append(subscriber)
            else:
                subscriber.request.send(data)
        self._fall_behind(slow)

    # ---- lagging ----

    def _fall_behind(self, subscribers: Iterable[Subscriber]) -> None:
        """Have subscribers read the log once they have taken what they were sent."""
        for subscriber in subscribers:
            if subscriber in subscriber.topic.live:
                del subscriber.topic.live[subscriber]
                subscriber.after = self._seq
                if subscriber.request.unsent_size == 0:
                    self._enqueue(subscriber)

    def _on_writable(self, request: Request) -> None:
        subscriber = self._subscribers.get(request)
        if subscriber is not None and subscriber not in subscriber.topic.live:
            self._enqueue(subscriber)

    def _enqueue(self, subscriber: Subscriber) -> None:
        if not subscriber.queued:
            subscriber.queued = True
            self._queue.append(subscriber)
            if not self._reading:
                self._reading = True
                self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Send the next page to the subscriber that has waited longest."""
        began_ns = self._clock.monotonic_ns()
        subscriber = self._queue.popleft()
        subscriber.queued = False
        if subscriber.request in self._subscribers:
            self._read_page(subscriber)
        self._reading = bool(self._queue)
        if self._reading:
            took_ns = self._clock.monotonic_ns() - began_ns
            self._loop.call_later(took_ns / limits.SECOND_NS, self._read)

    def _read_page(self, subscriber: Subscriber) -> None:
        machine = self._reads
        topic = subscriber.topic
        found = self._gap(subscriber)
        changes = machine.events_after(
            subscriber.after, limits.STREAM_PAGE_EVENTS, limits.STREAM_PAGE_SIZE
        )
        found += [topic.form.event(event) for event in changes if topic.filter.wants(event)]
        subscriber.after = changes[-1].seq if changes else machine.event_seq
        if subscriber.after == machine.event_seq:
            topic.live[subscriber] = None
        elif not found:
            self._enqueue(subscriber)
        subscriber.request.send(b"".join(found))

    def _gap(self, subscriber: Subscriber) -> list[bytes]:
        """The gap in front of the next event that there is, if there is one."""
        machine = self._reads
        after = subscriber.after
        if after > machine.event_seq:
            resumed_after, reason = machine.event_seq, UNKNOWN
        elif after + 1 < machine.event_first_seq:
            resumed_after, reason = machine.event_first_seq - 1, TRIMMED
        else:
            return []
        self.gaps += 1
        subscriber.after = resumed_after
        return [subscriber.topic.form.gap(after, resumed_after, reason)]

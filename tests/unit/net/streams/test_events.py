"""Streams of events: who is sent what, what happens to those who do not read, and what is read
again from the log."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corvo import events
from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http.http1 import H1Conn
from corvo.engine.feed import Feed
from corvo.events import EVENT_TYPES, Event
from corvo.limits import SECOND_NS, STREAM_PAGE_EVENTS, STREAM_UNSENT_SIZE_MAX
from corvo.net.http.server import HttpLimits
from corvo.net.streams.events import MESSAGES, NAMED, EventStreams, Filter, Form

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
ALL = Filter()


class Reader:
    """One client, and what it has read."""

    def __init__(self) -> None:
        context = H1Context(HttpLimits(), lambda: SECOND_NS, lambda: b"now", b"t-")
        self.conn = H1Conn(context)
        (self.request,) = self.conn.feed(GET)
        self.request.start(200)
        self.reads = True
        self.data = b""
        self.conn.data_to_send()

    def read(self) -> None:
        """Take what is there, over and over, as it leads to more."""
        while chunk := self.conn.data_to_send():
            self.data += chunk.split(b"\r\n", 1)[1].removesuffix(b"\r\n")

    def frames(self) -> list[dict[str, str]]:
        """All that came, as fields; without comments."""
        self.read()
        blocks = self.data.decode().split("\n\n")[:-1]
        pairs = [[line.split(": ", 1) for line in block.split("\n")] for block in blocks]
        return [{p[0]: p[1] for p in lines if len(p) == 2} for lines in pairs]

    def seqs(self) -> list[int]:
        """The events that came; gaps by their ends, negative."""
        found = [json.loads(frame["data"]) for frame in self.frames() if "data" in frame]
        return [-e["resumed_after"] if e["type"] == "gap" else e["seq"] for e in found]


class Server:
    """The log, the loop and the clock of a server."""

    def __init__(self) -> None:
        self.log: list[Event] = []
        self.event_first_seq = 1
        self.feed = Feed()
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.pages = 0
        parts: Any = self
        self.clock = self.reads = parts
        self.events = EventStreams(parts, parts)

    # What the streams use of loop, clock, service and reads.

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self.soon.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> None:
        self.call_soon(callback, *args)

    def monotonic_ns(self) -> int:
        return 0

    @property
    def event_seq(self) -> int:
        return self.log[-1].seq if self.log else self.event_first_seq - 1

    def events_after(self, seq: int, limit: int, size_max: int) -> list[Event]:
        self.pages += 1
        return [c for c in self.log if c.seq > max(seq, self.event_first_seq - 1)][:limit]

    # What happens.

    def entry(self, *jobs: tuple[str, str] | str, type: int = events.ENQUEUED) -> None:
        """One entry with an event for each job."""
        changes = []
        for job in jobs:
            job_id, queue = job if isinstance(job, tuple) else (job, "q")
            changes.append(Event(self.event_seq + 1, type, job_id, queue, 0, b'{"a":\n1}', 0))
            self.log.append(changes[-1])
        self.feed.publish(changes)
        self.events.dispatch()

    def trim(self, first: int) -> None:
        self.event_first_seq = first

    def reader(self, filter: Filter = ALL, form: Form = NAMED, after: int | None = None) -> Reader:
        reader = Reader()
        self.events.subscribe(reader.request, filter, form, after)
        return reader

    def run(self, *readers: Reader) -> None:
        """Until nothing is left to do; the readers read."""
        while True:
            for reader in readers:
                reader.read()
            if not self.soon:
                return
            callback, args = self.soon.pop(0)
            callback(*args)


def test_live() -> None:
    server = Server()
    server.entry("old")
    reader = server.reader()
    server.entry("a", "b")
    server.entry(("", "q"), type=events.QUEUE_PAUSED)
    first, *sent = reader.frames()
    assert first == {"id": "1"}
    assert [event["id"] for event in sent] == ["2", "3", "4"]
    assert [event["event"] for event in sent] == ["enqueued", "enqueued", "queue.paused"]
    assert json.loads(sent[0]["data"]) == {
        "seq": 2,
        "id": 2,
        "type": "enqueued",
        "job_id": "a",
        "queue": "q",
        "at_ns": 0,
        "created_at": "1970-01-01T00:00:00Z",
        "data": {"a": 1},
    }


def test_messages_have_no_names() -> None:
    server = Server()
    reader = server.reader(form=MESSAGES)
    server.entry("a")
    _, event = reader.frames()
    assert set(event) == {"id", "data"}


def test_nothing_is_done_without_subscribers() -> None:
    server = Server()
    reader = server.reader()
    server.events.forget(reader.request)
    assert server.feed.readers == () and len(server.events) == 0
    server.entry("a")
    assert not server.soon
    assert server.events._topics == server.events._by_job == server.events._by_queue == {}


def test_an_event_is_encoded_once() -> None:
    class Counting(type(NAMED)):  # type: ignore[misc]
        encoded = 0

        def event(self, event: Event) -> bytes:
            self.encoded += 1
            return bytes(super().event(event))

    server, form = Server(), Counting(named=True)
    readers = [server.reader(form=form) for _ in range(50)]
    readers += [server.reader(Filter(queues=frozenset({"q"})), form) for _ in range(50)]
    server.entry("a", "b", "c")
    assert form.encoded == 3
    assert all(reader.seqs() == [1, 2, 3] for reader in readers)


@pytest.mark.parametrize(
    ("filter", "seqs"),
    [
        (ALL, [1, 2, 3, 4]),
        (Filter(queues=frozenset({"q"})), [1, 3]),
        (Filter(queues=frozenset({"q", "r"})), [1, 2, 3, 4]),
        (Filter(job_ids=frozenset({"a"})), [1, 4]),
        (Filter(job_ids=frozenset({"a", "b"})), [1, 2, 4]),
        (Filter(job_ids=frozenset({"a", "b"}), queues=frozenset({"r"})), [2, 4]),
        (Filter(types=frozenset({events.ENQUEUED})), [1, 2, 3, 4]),
        (Filter(types=frozenset({events.DEAD})), []),
        (Filter(queues=frozenset({"s"})), []),
    ],
)
@pytest.mark.parametrize("after", [None, 0])
def test_filters(filter: Filter, seqs: list[int], after: int | None) -> None:
    server = Server()
    jobs = [("a", "q"), ("b", "r"), ("c", "q"), ("a", "r")]
    if after is not None:
        server.entry(*jobs)
    reader = server.reader(filter, after=after)
    if after is None:
        server.entry(*jobs)
    server.run(reader)
    assert reader.seqs() == seqs


def test_resume_reads_the_log_and_then_goes_on_live() -> None:
    server = Server()
    for number in range(3 * STREAM_PAGE_EVENTS):
        server.entry(f"job{number}")
    reader = server.reader(after=5)
    assert server.events.behind == 1
    server.entry("meanwhile")
    server.run(reader)
    assert server.events.behind == 0
    server.entry("live")
    assert reader.seqs() == list(range(6, server.event_seq + 1))
    assert server.pages == 3


def test_a_gap_is_named() -> None:
    server = Server()
    server.entry(*"abcdefgh")
    server.trim(6)
    reader = server.reader(after=2)
    server.run(reader)
    (gap, *_) = reader.frames()
    assert gap["event"] == "gap" and gap["id"] == "5"
    document = {"type": "gap", "after": 2, "resumed_after": 5, "reason": "trimmed"}
    assert json.loads(gap["data"]) == document
    assert reader.seqs() == [-5, 6, 7, 8] and server.events.gaps == 1


def test_who_left_at_the_beginning_of_the_log_has_missed_nothing() -> None:
    server = Server()
    server.entry(*"abcdefgh")
    server.trim(6)
    reader = server.reader(after=5)
    server.run(reader)
    assert reader.seqs() == [6, 7, 8]


def test_an_id_of_another_log() -> None:
    server = Server()
    server.entry("a")
    reader = server.reader(after=9)
    server.run(reader)
    server.entry("b")
    gap, event = reader.frames()
    assert json.loads(gap["data"])["reason"] == "unknown" and event["id"] == "2"


def test_who_does_not_read_is_not_sent_more_and_loses_nothing() -> None:
    server = Server()
    slow, quick = server.reader(), server.reader()
    entries = 0
    while slow.request.unsent_size <= STREAM_UNSENT_SIZE_MAX:
        server.entry(*["job"] * 100)
        quick.read()
        entries += 1
    unsent = slow.request.unsent_size
    for _ in range(20):
        server.entry(*["job"] * 100)
        quick.read()
    assert slow.request.unsent_size == unsent and server.events.behind == 1
    assert not server.soon, "the log is not read for who does not read"
    server.run(slow, quick)
    assert server.events.behind == 0
    server.entry("last")
    assert slow.seqs() == quick.seqs() == list(range(1, (entries + 20) * 100 + 2))


def test_what_was_trimmed_while_somebody_did_not_read_is_a_gap() -> None:
    server = Server()
    slow = server.reader()
    while not server.events.behind:
        server.entry(*["job"] * 100)
    seen = server.event_seq - 100
    server.entry(*["job"] * 100)
    server.trim(server.event_seq - 9)
    server.run(slow)
    seqs = slow.seqs()
    assert seqs[:seen] == list(range(1, seen + 1))
    assert seqs[seen:] == [
        -(server.event_seq - 10),
        *range(server.event_seq - 9, server.event_seq + 1),
    ]


def test_one_that_leaves_while_it_is_behind() -> None:
    server = Server()
    server.entry("a")
    reader = server.reader(after=0)
    server.events.forget(reader.request)
    server.run()
    assert server.pages == 0 and not server.soon


def test_pages_without_anything_wanted_are_skipped() -> None:
    server = Server()
    server.entry(*["job"] * (4 * STREAM_PAGE_EVENTS), "wanted")
    reader = server.reader(Filter(job_ids=frozenset({"wanted"})), after=0)
    server.run(reader)
    assert reader.seqs() == [4 * STREAM_PAGE_EVENTS + 1] and server.pages == 5


def test_a_state_that_was_replaced() -> None:
    server = Server()
    reader = server.reader()
    server.entry("a")
    reader.read()
    server.log = [Event(seq, events.ENQUEUED, "x", "q", 0, b"", 0) for seq in range(1, 8)]
    server.trim(4)
    server.entry("b")
    server.run(reader)
    assert reader.seqs() == [1, -3, 4, 5, 6, 7, 8]


def test_a_state_that_was_replaced_while_nothing_happens() -> None:
    server = Server()
    reader = server.reader()
    server.entry("a")
    server.log += [Event(seq, events.ENQUEUED, "x", "q", 0, b"", 0) for seq in range(2, 5)]
    server.events.dispatch()
    server.run(reader)
    assert reader.seqs() == [1, 2, 3, 4] and server.events.behind == 0
    server.entry("b")
    server.run(reader)
    assert reader.seqs() == [1, 2, 3, 4, 5]


def test_keepalive_says_where_the_reader_is() -> None:
    server = Server()
    reader = server.reader(Filter(job_ids=frozenset({"x"})))
    server.entry("a", "b")
    assert server.events.keepalive(reader.request) == b":keepalive\nid: 2\n\n"


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_everybody_gets_everything_once_or_is_told(data: st.DataObject) -> None:
    server = Server()
    readers: list[tuple[Reader, Filter, int]] = []
    names = st.sampled_from(("a", "b", "c"))
    filters = st.builds(
        Filter,
        st.frozensets(names, max_size=2),
        st.frozensets(names, max_size=2),
        st.frozensets(st.integers(0, 1), max_size=1),
    )
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(("entry", "entry", "subscribe", "read", "trim", "turn")))
        if action == "entry":
            jobs = data.draw(st.lists(st.tuples(names, names), min_size=1, max_size=5))
            server.entry(*jobs, type=data.draw(st.integers(0, 1)))
        elif action == "subscribe":
            filter = data.draw(filters)
            after = data.draw(st.none() | st.integers(0, server.event_seq))
            begin = server.event_seq if after is None else after
            readers.append((server.reader(filter, after=after), filter, begin))
        elif action == "read" and readers:
            data.draw(st.sampled_from(readers))[0].read()
        elif action == "trim" and server.log:
            server.trim(data.draw(st.integers(server.event_first_seq, server.event_seq + 1)))
        elif action == "turn" and server.soon:
            callback, args = server.soon.pop(0)
            callback(*args)
    server.run(*(reader for reader, _, _ in readers))
    for reader, filter, begin in readers:
        at = begin
        for seq in reader.seqs():
            if seq < 0:
                assert at < -seq < server.event_first_seq
                at = -seq
                continue
            assert seq > at
            missed = [c for c in server.log if at < c.seq < seq and filter.wants(c)]
            assert not missed and filter.wants(server.log[seq - 1])
            at = seq
        assert not [c for c in server.log if c.seq > at and filter.wants(c)]
        server.events.forget(reader.request)
    assert server.feed.readers == () and server.events.behind == 0


def test_all_types_have_names() -> None:
    assert len(set(EVENT_TYPES)) == len(EVENT_TYPES) and "gap" not in EVENT_TYPES
    assert isinstance(Reader().request, Request)

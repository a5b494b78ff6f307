"""Text that workers stream: pieces, late readers, bounds."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from corvo import limits
from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http.http1 import H1Conn
from corvo.limits import SECOND_NS
from corvo.model import ACTIVE, COMPLETED
from corvo.net.http.open_streams import OpenStreams
from corvo.net.http.server import HttpLimits
from corvo.net.streams.job_output import JobOutputStreams, end_event, keepalive

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Bench:
    """Texts of jobs whose states the test decides."""

    def __init__(self) -> None:
        self.states = {"a": ACTIVE, "b": ACTIVE}
        machine: Any = self
        loop: Any = SimpleNamespace(call_later=lambda delay, callback: None)
        self.streams = OpenStreams(loop)
        self.texts = JobOutputStreams(machine, self.streams)
        self.conns: dict[Request, H1Conn] = {}

    def job(self, job_id: str) -> Any:
        state = self.states.get(job_id)
        return None if state is None else SimpleNamespace(state=state)

    def reader(self, job_id: str, after: int = 0) -> Request:
        conn = H1Conn(H1Context(HttpLimits(), lambda: SECOND_NS, lambda: b"now", b"t-"))
        (request,) = conn.feed(GET)
        assert self.streams.start(request, self.texts.forget, keepalive)
        conn.data_to_send()
        self.conns[request] = conn
        self.texts.subscribe(request, job_id, after, 0)
        return request

    def read(self, request: Request) -> list[tuple[int, str, int]]:
        """Offset, delta and id of what has come."""
        data = self.conns[request].data_to_send().decode()
        found = []
        for line in data.splitlines():
            if line.startswith("id: "):
                end = int(line[4:])
            elif line.startswith("data: "):
                document = json.loads(line[6:])
                found.append((document["offset"], document["delta"], end))
        return found

    def add(self, job_id: str, delta: str, at_s: int = 0) -> None:
        self.texts.add(job_id, delta, at_s * SECOND_NS)


def test_readers_get_pieces_as_they_come() -> None:
    bench = Bench()
    first, other = bench.reader("a"), bench.reader("b")
    bench.add("a", "hé")
    bench.add("a", "llo\n")
    assert bench.read(first) == [(0, "hé", 3), (3, "llo\n", 7)] and bench.read(other) == []


def test_who_comes_late_or_again() -> None:
    bench = Bench()
    for delta in ("one", "two", "three"):
        bench.add("a", delta)
    assert bench.read(bench.reader("a")) == [(0, "onetwothree", 11)]
    assert bench.read(bench.reader("a", after=3)) == [(3, "twothree", 11)]
    assert bench.read(bench.reader("a", after=11)) == []
    assert bench.read(bench.reader("a", after=99)) == [(0, "onetwothree", 11)]


def test_the_oldest_text_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_TEXT_SIZE_MAX", 10_000)
    bench = Bench()
    for number in range(100):
        bench.add("a", chr(65 + number % 26) * 1000)
    ((offset, delta, end),) = bench.read(bench.reader("a"))
    assert offset == end - len(delta) and end == 100_000 and 7_000 <= len(delta) <= 10_000


def test_texts_of_ended_jobs_are_kept_for_a_while() -> None:
    bench = Bench()
    bench.add("a", "x")
    bench.add("b", "y")
    bench.states["a"] = COMPLETED
    kept_s = limits.STREAM_TEXT_KEPT_NS // SECOND_NS
    bench.add("b", "y", kept_s)
    assert bench.read(bench.reader("a")) == [(0, "x", 1)]
    bench.texts.forget(next(iter(bench.conns)))
    bench.add("b", "y", kept_s + 1)
    assert bench.read(bench.reader("a")) == []
    assert bench.read(bench.reader("b")) == [(0, "yyy", 3)]


def test_texts_of_jobs_that_go_on_are_kept() -> None:
    bench = Bench()
    bench.add("a", "x")
    for at_s in range(1000, 9000, 1000):
        bench.add("b", "y", at_s)
    assert bench.read(bench.reader("a")) == [(0, "x", 1)]


def test_all_texts_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_TEXTS_SIZE_MAX", 50_000)
    bench = Bench()
    reader = bench.reader("job0")
    for number in range(200):
        bench.add(f"job{number}", "x" * 1000)
    assert bench.texts._size <= 50_000 and len(bench.texts._job_output) < 60
    bench.read(reader)
    bench.add("job0", "more")
    assert bench.read(reader) == [(1000, "more", 1004)]


def test_a_reader_that_does_not_keep_up_is_cut_off() -> None:
    bench = Bench()
    slow, quick = bench.reader("a"), bench.reader("a")
    while slow.streaming:
        bench.add("a", "x" * 50_000)
        bench.read(quick)
    assert slow.unsent_size <= limits.STREAM_UNSENT_SIZE_MAX + 51_000 and quick.streaming
    assert len(bench.streams) == 1


def test_nothing_is_left_behind() -> None:
    bench = Bench()
    reader = bench.reader("a")
    bench.texts.forget(reader)
    bench.texts.forget(reader)
    assert bench.texts._job_output == {}


def test_the_end() -> None:
    bench = Bench()
    machine: Any = bench
    assert end_event(machine, "a") == b""
    bench.states["a"] = COMPLETED
    expected = b'event: job.completed\ndata: {"job_id":"a","state":"completed"}\n\n'
    assert end_event(machine, "a") == expected
    assert end_event(machine, "gone").startswith(b"event: job.deleted\n")

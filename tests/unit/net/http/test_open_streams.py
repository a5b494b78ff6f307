"""Open streams: their bound, what keeps them alive, and how they all end."""

from collections.abc import Callable
from typing import Any

import pytest

from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http.http1 import H1Conn
from corvo.errors import NotReady, Overloaded
from corvo.limits import SECOND_NS
from corvo.net.http.open_streams import OpenStreams
from corvo.net.http.server import HttpLimits

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Timer:
    """A loop with one timer."""

    def __init__(self) -> None:
        self.callback: Callable[[], None] | None = None
        self.cancelled = False

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "Timer":
        assert delay_s == 15 and self.callback is None
        self.callback = callback
        return self

    def cancel(self) -> None:
        self.cancelled = True

    def ring(self) -> None:
        callback, self.callback = self.callback, None
        assert callback is not None
        callback()


def a_request(method: bytes = b"GET") -> tuple[H1Conn, Request]:
    conn = H1Conn(H1Context(HttpLimits(), lambda: SECOND_NS, lambda: b"now", b"t-"))
    (request,) = conn.feed(GET.replace(b"GET", method))
    return conn, request


def alive(_request: Request) -> bytes:
    return b":\n\n"


def a_bench(streams_max: int = 10) -> tuple[Timer, OpenStreams, list[Request]]:
    timer: Any = Timer()
    return timer, OpenStreams(timer, streams_max), []


def test_keepalive_goes_to_those_who_have_got_everything() -> None:
    timer, streams, gone = a_bench()
    (quiet, first), (busy, second) = a_request(), a_request()
    for request in (first, second):
        assert streams.start(request, gone.append, alive)
    quiet.data_to_send()
    busy.data_to_send()
    second.send(b"unread")
    timer.ring()
    assert quiet.data_to_send() == b"3\r\n:\n\n\r\n" and busy.data_to_send() == b"6\r\nunread\r\n"
    streams.end(first)
    streams.end(second)
    streams.end(second)
    assert quiet.data_to_send() == b"0\r\n\r\n" and len(streams) == 0 and gone == []
    timer.ring()
    assert timer.callback is None, "without streams there is no timer"


def test_a_stream_that_ends_is_forgotten() -> None:
    _, streams, gone = a_bench()
    conn, request = a_request()
    streams.start(request, gone.append, alive)
    conn.closed()
    assert gone == [request] and len(streams) == 0


def test_nobody_to_read() -> None:
    timer, streams, gone = a_bench()
    _, head = a_request(b"HEAD")
    conn, left = a_request()
    conn.closed()
    for request in (head, left):
        assert not streams.start(request, gone.append, alive)
    assert len(streams) == 0 and gone == [] and timer.callback is None


def test_there_are_only_so_many() -> None:
    _, streams, gone = a_bench(1)
    streams.start(a_request()[1], gone.append, alive)
    _, request = a_request()
    with pytest.raises(Overloaded, match="too many open streams"):
        streams.start(request, gone.append, alive)
    assert not request.replied


def test_the_end_of_all() -> None:
    timer, streams, gone = a_bench()
    conn, request = a_request()
    streams.start(request, gone.append, alive)
    conn.data_to_send()
    streams.end_all()
    assert gone == [request] and conn.data_to_send() == b"0\r\n\r\n" and timer.cancelled
    with pytest.raises(NotReady):
        streams.start(a_request()[1], gone.append, alive)

"""A head that is known says what it said when it was read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http.http1 import H1Conn
from corvo.limits import SECOND_NS
from corvo.net.http.server import HttpLimits

FIELDS = [
    *("method", "path", "query", "host", "content_type", "content_length", "authorization"),
    *("api_key", "cookie", "request_id", "idempotency_key", "namespace", "min_index"),
    *("client_name", "client_version", "forwarded", "expect", "rare", "body", "keep_alive"),
    *("head_only", "params"),
]
LINES = (
    b"Content-Type: application/json",
    b"X-Corvo-Namespace: n",
    b"X-Corvo-Min-Index: 7",
    b"X-Corvo-Client-Name: sdk",
    b"X-Corvo-Client-Version: 1",
    b"Authorization: Bearer t",
    b"X-API-Key: k",
    b"Cookie: a=b",
    b"Idempotency-Key: i",
    b"X-Request-Id: mine",
    b"X-Corvo-Forwarded: f",
    b"Last-Event-Id: 4",
    b"Connection: keep-alive",
    b"Accept: */*",
)


class Front:
    """Connections that share what is known."""

    def __init__(self, **limits: int) -> None:
        self.context = H1Context(HttpLimits(**limits), lambda: SECOND_NS, lambda: b"now", b"t-")
        self.peers = [H1Conn(self.context) for _ in range(2)]

    def say(self, data: bytes) -> list[Request]:
        """The same on both connections."""
        return [request for peer in self.peers for request in peer.feed(data)]

    def cached(self, data: bytes) -> bool:
        cached: Any = self.context
        return cached.cached.find(data, 0) is not None


def message(lines: list[bytes], body: bytes = b"{}", line: bytes = b"POST /a?b HTTP/1.1") -> bytes:
    head = [line, b"Host: a", *lines, b"Content-Length: %d" % len(body), b"", body]
    return b"\r\n".join(head)


def what(request: Request) -> list[object]:
    values = {name: getattr(request, name) for name in FIELDS}
    if request.request_id != b"mine":
        values["request_id"] = b"ours"
    return list(values.values())


@given(st.lists(st.sampled_from(LINES), unique=True), st.binary(max_size=4))
def test_what_is_known_means_the_same(lines: list[bytes], body: bytes) -> None:
    data = message(lines, body)
    first = Front().say(data)[0]
    front = Front()
    for _ in range(3):
        for request in front.say(data):
            assert what(request) == what(first)
    assert all(peer.idle is False and not peer.want_close for peer in front.peers)


def test_what_comes_twice_is_known() -> None:
    front = Front()
    data = message([LINES[0]])
    front.peers[0].feed(data)
    assert not front.cached(data)
    front.peers[1].feed(data)
    assert front.cached(data)
    assert not front.cached(data[:-4]) and not front.cached(data.replace(b"/a", b"/b"))


@pytest.mark.parametrize("line", LINES[5:13])
def test_what_is_special_is_not_kept(line: bytes) -> None:
    front = Front()
    for _ in range(3):
        front.say(message([line]))
    assert not front.cached(message([line]))


def test_known_heads_are_few_and_short() -> None:
    front = Front()
    heads = [message([], line=b"POST /%d HTTP/1.1" % n) for n in range(9)]
    for data in heads:
        front.say(data)
    assert [front.cached(data) for data in heads] == [False] + [True] * 8
    long = message([b"Accept: " + b"x" * 512])
    front.say(long)
    assert not front.cached(long)


def test_a_known_head_in_pieces_and_in_a_pipeline() -> None:
    front = Front()
    data = message([])
    front.say(data)
    peer = H1Conn(front.context)
    for cut in range(1, len(data)):
        requests = peer.feed(data[:cut]) + peer.feed(data[cut:] + data)
        assert [request.body for request in requests] == [b"{}", b"{}"]
        for request in requests:
            request.reply(200)
        peer.data_to_send()


def test_limits_hold_for_known_heads() -> None:
    front = Front(bodies_in_flight_size_max=5)
    front.say(message([]))
    assert front.cached(message([]))
    peer = H1Conn(front.context)
    assert peer.feed(message([])) == []
    assert b" 429 " in peer.data_to_send() and peer.want_close

"""Replies: their bytes, their order, and what they may not hold."""

import json

import pytest

from corvo._fast.http1 import H1Conn
from corvo._fast.replies import H1Context, Request, header_line, reply_error
from corvo.errors import MethodNotAllowed, Overloaded
from corvo.limits import SECOND_NS
from corvo.net.server import HttpLimits

GET = b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n"


class Peer:
    """A connection with a clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns = SECOND_NS
        context = H1Context(HttpLimits(), lambda: self.now_ns, lambda: b"now", b"t-")
        self.outputs = 0
        self.context = context
        self.conn = H1Conn(context, "10.0.0.1", self._on_output)

    def _on_output(self) -> None:
        self.outputs += 1

    def one(self, data: bytes) -> Request:
        (request,) = self.conn.feed(data)
        return request

    def sent(self) -> str:
        return self.conn.data_to_send().decode()


def parse_reply(text: str) -> tuple[int, dict[str, str], str]:
    head, _, body = text.partition("\r\n\r\n")
    lines = head.split("\r\n")
    pairs = [line.split(": ", 1) for line in lines[1:]]
    return int(lines[0].split(" ")[1]), {name.lower(): value for name, value in pairs}, body


def test_reply_head() -> None:
    peer = Peer()
    request = peer.one(GET)
    peer.now_ns += 1_234_567
    request.reply(201, b"{}", header_line("X-Extra", "9"))
    status, fields, body = parse_reply(peer.sent())
    assert (status, body) == (201, "{}")
    assert fields == {
        "date": "now",
        "x-request-id": "t-0001",
        "server-timing": "proc;dur=1.234",
        "x-extra": "9",
        "content-type": "application/json",
        "content-length": "2",
    }
    assert request.delivered and not peer.conn.want_close


def test_reply_names_the_applied_index() -> None:
    peer = Peer()
    peer.one(GET).reply(200)
    assert "x-corvo-index" not in parse_reply(peer.sent())[1]
    for index in (7, 7, 8):
        peer.context.index = index
        peer.one(GET).reply(200)
        assert parse_reply(peer.sent())[1]["x-corvo-index"] == str(index)


def test_reply_of_another_type() -> None:
    peer = Peer()
    peer.one(GET).reply(200, b"x 1", content_type=b"text/plain")
    assert parse_reply(peer.sent())[1]["content-type"] == "text/plain"


def test_no_content_has_no_length() -> None:
    peer = Peer()
    peer.one(GET).reply(204)
    _, fields, body = parse_reply(peer.sent())
    assert body == "" and "content-length" not in fields and "content-type" not in fields


def test_head_gets_the_head_only() -> None:
    peer = Peer()
    peer.one(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").reply(200, b"{}")
    _, fields, body = parse_reply(peer.sent())
    assert body == "" and fields["content-length"] == "2"


def test_old_client_keeps_alive_only_when_it_asks() -> None:
    peer = Peer()
    peer.one(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").reply(200)
    assert parse_reply(peer.sent())[1]["connection"] == "keep-alive"
    peer.one(b"GET / HTTP/1.0\r\n\r\n").reply(200)
    assert parse_reply(peer.sent())[1]["connection"] == "close"
    assert peer.conn.want_close


def test_second_reply_is_a_bug() -> None:
    request = Peer().one(GET)
    request.reply(200)
    with pytest.raises(AssertionError):
        request.reply(200)


def test_date_is_made_once_a_second() -> None:
    times = [0]
    made = []

    def date() -> bytes:
        made.append(times[-1])
        return b"d"

    conn = H1Conn(H1Context(HttpLimits(), lambda: times[-1], date, b"t-"))
    for now_ns in (0, 1, SECOND_NS - 1, SECOND_NS, SECOND_NS + 1):
        times.append(now_ns)
        conn.feed(GET)[0].reply(200)
    assert made == [0, SECOND_NS]


def test_reply_error_fields_and_headers() -> None:
    peer = Peer()
    reply_error(peer.one(GET), Overloaded("busy", retry_after_ms=1001))
    status, fields, body = parse_reply(peer.sent())
    assert (status, fields["retry-after"]) == (429, "2")
    assert json.loads(body) == {"error": "busy", "code": "OVERLOADED", "retry_after_ms": 1001}
    reply_error(peer.one(GET), MethodNotAllowed("no", allow="GET, HEAD"))
    assert parse_reply(peer.sent())[1]["allow"] == "GET, HEAD"


@pytest.mark.parametrize("value", ["a\r\nX: 1", "a\n", "a\r", "a\0", "ä", "\x7f"])
def test_header_line_refuses_what_splits_responses(value: str) -> None:
    with pytest.raises(ValueError, match="no header may"):
        header_line("X-Job", value)
    with pytest.raises(ValueError, match="header name"):
        header_line(value, "1")


# Order.


def test_replies_leave_in_the_order_of_the_requests() -> None:
    peer = Peer()
    requests = peer.conn.feed(GET * 64)
    assert len(requests) == 64
    for at in [*range(1, 64, 2), *range(62, -1, -2)]:
        requests[at].reply(200, b"%d" % at)
    bodies = [part.rpartition("\r\n\r\n")[2] for part in peer.sent().split("HTTP/1.1 200 OK")[1:]]
    assert bodies == [str(at) for at in range(64)]
    assert peer.outputs == 1


def test_output_is_announced_when_it_appears() -> None:
    peer = Peer()
    first, second = peer.conn.feed(GET * 2)
    second.reply(200)
    assert peer.outputs == 0 and peer.sent() == "" and not second.delivered
    first.reply(200)
    assert peer.outputs == 1 and peer.sent().count("200 OK") == 2 and second.delivered


def test_refusal_waits_for_the_replies_before_it() -> None:
    peer = Peer()
    (request,) = peer.conn.feed(GET + b"NONSENSE\r\n\r\n")
    assert peer.sent() == "" and not peer.conn.want_close
    request.reply(200)
    text = peer.sent()
    assert text.index("200 OK") < text.index("400 Bad Request")
    assert peer.conn.want_close

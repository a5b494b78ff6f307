"""Replies: their bytes, their order, and what they may not hold."""

import json

import pytest

from corvo._fast.http.exchange import H1Context, Request, header_line, reply_error
from corvo._fast.http.http1 import H1Conn
from corvo.errors import MethodNotAllowed, Overloaded
from corvo.limits import SECOND_NS
from corvo.net.http.server import HttpLimits

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
        "x-content-type-options": "nosniff",
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


def test_what_may_be_done_is_not_said_to_be_undone() -> None:
    for error, status in ((Overloaded("busy"), 504), (MethodNotAllowed("no"), 405)):
        peer = Peer()
        request = peer.one(GET)
        request.unsure = True
        reply_error(request, error)
        assert parse_reply(peer.sent())[0] == status


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


# Replies in several pieces.

TYPE = b"text/event-stream"


def started(peer: Peer, data: bytes = GET) -> Request:
    request = peer.one(data)
    request.start(200, content_type=TYPE)
    return request


def begun(peer: Peer, data: bytes = GET) -> Request:
    """A reply whose head is sent."""
    request = started(peer, data)
    peer.sent()
    return request


def test_head_pieces_and_end() -> None:
    peer = Peer()
    request = peer.one(GET)
    request.start(200, header_line("X-Extra", "9"), TYPE)
    status, fields, body = parse_reply(peer.sent())
    assert (status, body, fields["transfer-encoding"]) == (200, "", "chunked")
    assert fields["content-type"] == TYPE.decode() and fields["x-extra"] == "9"
    assert "content-length" not in fields and request.replied and request.streaming
    request.send(b"a" * 9)
    request.send(b"b" * 9)
    assert request.unsent_size == 18
    assert peer.sent() == "12\r\n" + "a" * 9 + "b" * 9 + "\r\n"
    assert request.unsent_size == 0 and not request.delivered and not peer.conn.idle
    request.send(b"c")
    request.end()
    assert peer.sent() == "1\r\nc\r\n0\r\n\r\n"
    assert request.delivered and peer.conn.idle and not peer.conn.want_close
    peer.one(GET).reply(200)
    assert parse_reply(peer.sent())[0] == 200


def test_trailers() -> None:
    peer = Peer()
    begun(peer).end(header_line("grpc-status", "0"))
    assert peer.sent() == "0\r\ngrpc-status: 0\r\n\r\n"


def test_pieces_announce_output() -> None:
    peer = Peer()
    request = begun(peer)
    outputs = peer.outputs
    request.send(b"a")
    assert peer.outputs == outputs + 1
    request.send(b"")
    assert peer.sent() == "1\r\na\r\n" and peer.sent() == ""


def test_who_waits_for_its_turn_keeps_the_order() -> None:
    peer = Peer()
    first, second, third = peer.conn.feed(GET * 3)
    third.reply(200, b"3")
    second.start(200)
    second.send(b"2")
    assert peer.sent() == "" and second.unsent_size == 1
    first.reply(200, b"1")
    text = peer.sent()
    assert text.count("HTTP/1.1 200") == 2 and text.endswith("\r\n\r\n1\r\n2\r\n")
    assert peer.sent() == ""
    second.end()
    assert parse_reply(peer.sent().removeprefix("0\r\n\r\n"))[2] == "3"
    assert peer.conn.idle


def test_all_at_once_before_its_turn() -> None:
    peer = Peer()
    first, second = peer.conn.feed(GET * 2)
    second.start(200)
    second.send(b"2")
    second.end()
    first.reply(200, b"1")
    assert peer.sent().endswith("\r\n\r\n1\r\n2\r\n0\r\n\r\n")
    assert peer.conn.idle and first.delivered and second.delivered


def test_on_writable_comes_when_the_pieces_have_left() -> None:
    peer = Peer()
    request = begun(peer)
    told: list[int] = []

    def on_writable(request: Request) -> None:
        told.append(request.unsent_size)
        if len(told) < 3:
            request.send(b"%d" % len(told))

    request.on_writable = on_writable
    request.send(b"0")
    assert told == []
    assert [peer.sent() for _ in range(4)] == ["1\r\n0\r\n", "1\r\n1\r\n", "1\r\n2\r\n", ""]
    assert told == [0, 0, 0]


def test_a_peer_that_does_not_read_leaves_the_pieces_where_they_are() -> None:
    peer = Peer()
    request = begun(peer)
    peer.conn.blocked = True
    outputs = peer.outputs
    request.send(b"a")
    assert peer.outputs == outputs and request.unsent_size == 1
    peer.conn.blocked = False
    assert peer.sent() == "1\r\na\r\n"


def test_head_only() -> None:
    peer = Peer()
    request = started(peer, GET.replace(b"GET", b"HEAD"))
    request.send(b"nobody")
    request.end()
    status, fields, body = parse_reply(peer.sent())
    assert (status, body, fields["transfer-encoding"]) == (200, "", "chunked")
    assert not request.streaming and peer.conn.idle and not peer.conn.want_close


def test_a_client_of_http_1_0_reads_to_the_end_of_the_connection() -> None:
    peer = Peer()
    old = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    request, behind = peer.conn.feed(old * 2)
    gone: list[Request] = []
    behind.on_abandoned = gone.append
    request.start(200, content_type=TYPE)
    _, fields, _ = parse_reply(peer.sent())
    assert fields["connection"] == "close" and "transfer-encoding" not in fields
    request.send(b"a")
    request.send(b"b")
    assert peer.sent() == "ab"
    assert peer.conn.feed(old) == []
    request.end()
    assert peer.sent() == "" and peer.conn.want_close
    behind.reply(200)
    assert peer.sent() == ""
    peer.conn.closed()


def test_connection_close() -> None:
    peer = Peer()
    request = started(peer, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert parse_reply(peer.sent())[1]["connection"] == "close" and not peer.conn.want_close
    request.end()
    assert peer.sent() == "0\r\n\r\n" and peer.conn.want_close


def test_a_client_that_goes_away() -> None:
    peer = Peer()
    request = begun(peer)
    gone: list[Request] = []
    request.on_abandoned = gone.append
    peer.conn.closed()
    assert gone == [request] and request.abandoned and not request.streaming
    request.send(b"a")
    request.end()
    assert request.unsent_size == 0 and peer.sent() == ""


def test_a_client_that_goes_away_before_the_start() -> None:
    peer = Peer()
    request = peer.one(GET)
    peer.conn.closed()
    request.start(200)
    request.send(b"a")
    request.end()
    assert request.replied and not request.streaming and peer.sent() == ""


def test_the_end_of_input_ends_what_somebody_waits_for() -> None:
    peer = Peer()
    request, behind = peer.conn.feed(GET * 2)
    request.start(200)
    gone: list[Request] = []
    request.on_abandoned = gone.append
    behind.reply(200, b"x")
    peer.sent()
    peer.conn.eof()
    assert gone == [request]
    text = peer.sent()
    assert text.startswith("0\r\n\r\nHTTP/1.1 200") and text.endswith("x")
    assert peer.conn.want_close


def test_draining_closes_behind_it() -> None:
    peer = Peer()
    early = begun(peer)
    peer.context.draining = True
    peer.conn.drain()
    assert not peer.conn.want_close
    early.end()
    assert peer.sent() == "0\r\n\r\n" and peer.conn.want_close


def test_started_while_draining() -> None:
    peer = Peer()
    request = peer.one(GET)
    peer.context.draining = True
    request.start(200)
    assert parse_reply(peer.sent())[1]["connection"] == "close"
    assert peer.conn.feed(GET) == []
    request.end()
    assert peer.sent() == "0\r\n\r\n" and peer.conn.want_close


def test_never_idle_while_it_lasts() -> None:
    peer = Peer()
    request = begun(peer)
    peer.now_ns += 10 * peer.context.keep_alive_idle_ns
    peer.conn.check_time(peer.now_ns)
    assert not peer.conn.want_close
    request.end()
    peer.sent()
    peer.conn.check_time(peer.now_ns)
    assert not peer.conn.want_close

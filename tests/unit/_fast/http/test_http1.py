"""The sans-io HTTP/1.1 connection: requests out of bytes, replies in order, every limit."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http.http1 import H1Conn
from corvo.limits import SECOND_NS
from corvo.net.http.server import HttpLimits

HEAD = b"POST /a HTTP/1.1\r\nHost: a\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n"


class Peer:
    """A connection with a clock that the test moves."""

    def __init__(self, **limits: int) -> None:
        self.now_ns = SECOND_NS
        self.context = H1Context(HttpLimits(**limits), lambda: self.now_ns, lambda: b"now", b"t-")
        self.outputs = 0
        self.conn = H1Conn(self.context, "10.0.0.1", self._on_output)

    def _on_output(self) -> None:
        self.outputs += 1

    def one(self, data: bytes) -> Request:
        requests = self.conn.feed(data)
        assert len(requests) == 1
        return requests[0]

    def drip(self, data: bytes) -> list[Request]:
        requests = []
        for at in range(len(data)):
            requests += self.conn.feed(data[at : at + 1])
        return requests

    def sent(self) -> str:
        return self.conn.data_to_send().decode()

    def refusal(self) -> tuple[int, str]:
        """Status and code of the only reply, after which the connection must close."""
        status, head, body = parse_reply(self.sent())
        assert head["connection"] == "close"
        assert self.conn.want_close
        return status, json.loads(body)["code"]

    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)
        self.conn.check_time(self.now_ns)


def parse_reply(text: str) -> tuple[int, dict[str, str], str]:
    head, _, body = text.partition("\r\n\r\n")
    lines = head.split("\r\n")
    pairs = [line.split(": ", 1) for line in lines[1:]]
    return int(lines[0].split(" ")[1]), {name.lower(): value for name, value in pairs}, body


def with_body(body: bytes, extra: bytes = b"") -> bytes:
    return HEAD + b"Content-Length: %d\r\n%b\r\n%b" % (len(body), extra, body)


# Requests.


def test_request_fields() -> None:
    request = Peer().one(
        b"PUT /a%2Fb/c?x=1&y HTTP/1.1\r\nHost: h:1\r\nContent-Type: text/x\r\n"
        b"authorization: B t\r\nX-API-Key: k\r\nCookie: c=d\r\nX-Request-Id: r-1\r\n"
        b"Idempotency-Key: i\r\nX-Corvo-Namespace: n\r\nX-Corvo-Min-Index: 7\r\n"
        b"X-Corvo-Client-Name: sdk\r\nX-Corvo-Client-Version: 1\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert (request.method, request.path, request.query) == ("PUT", b"/a%2Fb/c", b"x=1&y")
    assert (request.host, request.content_type, request.authorization) == (
        b"h:1",
        b"text/x",
        b"B t",
    )
    assert (request.api_key, request.cookie, request.request_id) == (b"k", b"c=d", b"r-1")
    assert (request.idempotency_key, request.namespace, request.min_index) == (b"i", b"n", b"7")
    assert (request.client_name, request.client_version) == (b"sdk", b"1")
    assert (request.body, request.peer, request.params) == (b"{}", "10.0.0.1", ())
    assert request.keep_alive and not request.head_only and request.arrived_ns == SECOND_NS


def test_absent_fields_are_none() -> None:
    request = Peer().one(GET)
    assert request.authorization is None and request.namespace is None
    assert request.body == b"" and request.query == b""


def test_authority_of_an_absolute_target_wins() -> None:
    request = Peer().one(b"GET http://real:1?q HTTP/1.1\r\nHost: other\r\n\r\n")
    assert (request.host, request.path, request.query) == (b"real:1", b"/", b"q")


@pytest.mark.parametrize("given_id", [b"", b"a b", b"a\xc3\xa4", b'"', b"x" * 129])
def test_unusable_request_id_is_replaced(given_id: bytes) -> None:
    peer = Peer()
    request = peer.one(b"GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: %b\r\n\r\n" % given_id)
    assert request.request_id == b"t-0001"


# Any chunking of a stream.


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_chunking_of_the_stream_does_not_matter(data: st.DataObject) -> None:
    bodies = data.draw(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
    stream = b""
    for number, body in enumerate(bodies):
        match data.draw(st.sampled_from(["length", "chunked", "upgrade"])):
            case "length":
                stream += with_body(body, b"X-Request-Id: %d\r\n" % number)
            case "chunked":
                stream += HEAD + b"X-Request-Id: %d\r\n" % number
                stream += b"Transfer-Encoding: chunked\r\n\r\n"
                for piece in (body[:7], body[7:]):
                    stream += b"%x;e\r\n%b\r\n" % (len(piece), piece) if piece else b""
                stream += b"0\r\nX-Trailer: 1\r\n\r\n"
            case _:
                stream += with_body(
                    body, b"X-Request-Id: %d\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n" % number
                )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    conn = Peer().conn
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += [(request.request_id, request.body) for request in conn.feed(stream[start:end])]
    assert got == [(b"%d" % number, body) for number, body in enumerate(bodies)]


# Expect: 100-continue.

EXPECT = HEAD + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"


def test_continue_is_sent_when_the_body_is_awaited() -> None:
    peer = Peer()
    assert peer.conn.feed(EXPECT) == []
    assert peer.sent() == "HTTP/1.1 100 Continue\r\n\r\n"
    assert peer.one(b"body").body == b"body"


def test_continue_is_not_sent_when_the_body_is_there() -> None:
    peer = Peer()
    peer.one(EXPECT + b"body")
    assert peer.sent() == ""


def test_continue_is_not_sent_to_old_clients() -> None:
    peer = Peer()
    peer.conn.feed(EXPECT.replace(b"1.1", b"1.0"))
    assert peer.sent() == ""


def test_continue_waits_for_the_replies_before_it() -> None:
    peer = Peer()
    request = peer.one(GET + EXPECT)
    assert peer.sent() == ""
    request.reply(200)
    text = peer.sent()
    assert text.index("200 OK") < text.index("100 Continue")


def test_final_status_instead_of_continue() -> None:
    peer = Peer(body_size_max=3)
    peer.conn.feed(EXPECT)
    assert peer.refusal() == (413, "PAYLOAD_TOO_LARGE")


# Abuse class 1: heads.


def test_head_size() -> None:
    def head(size: int) -> bytes:
        start = b"GET / HTTP/1.1\r\nHost: a\r\nX: "
        return start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"

    peer = Peer(head_size_max=500)
    assert len(peer.drip(head(500))) == 1
    for data in (head(501), head(501) * 3):
        peer = Peer(head_size_max=500)
        assert peer.conn.feed(data) == []
        assert peer.refusal() == (431, "HEADERS_TOO_LARGE")


def test_head_fields() -> None:
    def head(fields: int) -> bytes:
        return b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * (fields - 1) + b"\r\n"

    assert len(Peer().drip(head(100))) == 1
    peer = Peer()
    assert peer.drip(head(101)) == []
    assert peer.refusal() == (431, "HEADERS_TOO_LARGE")


def test_target_size() -> None:
    def line(size: int) -> bytes:
        return b"GET /" + b"x" * (size - 1) + b" HTTP/1.1\r\nHost: a\r\n\r\n"

    assert len(Peer().drip(line(8 * 1024))) == 1
    for feed in (Peer.drip, lambda peer, data: peer.conn.feed(data)):
        peer = Peer()
        assert feed(peer, line(8 * 1024 + 1)) == []
        assert peer.refusal() == (414, "URI_TOO_LONG")


def test_request_line_without_an_end() -> None:
    peer = Peer()
    for _ in range(9):
        peer.conn.feed(b"G" * 1024)
    assert peer.refusal() == (414, "URI_TOO_LONG")


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"\x16\x03\x01 /x\r\n", b"400"),
        (b"\xbd / HTTP\r\n", b"400"),
        (b"get / HTTP/1.1\r\n", b"400"),
        (b"FOO /x\r\n", b"400"),
        (b"GET /x\r\n", b"505"),
        (b"GET / HTTP/2.0\r\n", b"505"),
        (b"FOO / BAR\r\n", b""),
        (b"GET /" + b"x" * 8300 + b" BAR\r\n", b"414"),
    ],
)
def test_what_is_no_request_gets_the_same_answer_in_any_pieces(line: bytes, answer: bytes) -> None:
    for size in (1, 7, len(line)):
        peer = Peer()
        for at in range(0, len(line), size):
            peer.conn.feed(line[at : at + size])
        assert peer.conn.data_to_send()[9:12] == answer and peer.conn.want_close


def test_blank_lines_without_an_end() -> None:
    peer = Peer()
    peer.conn.feed(b"\r\n" * (8 * 1024))
    assert peer.sent() == ""
    peer.conn.feed(b"\r\n")
    assert peer.refusal() == (431, "HEADERS_TOO_LARGE")


# Classes 2 and 3: slowness.


def test_slow_head() -> None:
    peer = Peer()
    peer.conn.feed(b"GET / HT")
    for _ in range(5):
        peer.pass_time(2)
        peer.conn.feed(b"T")
    assert peer.sent() == ""
    peer.pass_time(0.1)
    assert peer.refusal() == (408, "REQUEST_TIMEOUT")


def test_silence_after_accept_is_closed_silently() -> None:
    peer = Peer()
    peer.pass_time(10)
    assert not peer.conn.want_close
    peer.pass_time(0.1)
    assert peer.conn.want_close and peer.sent() == ""


def test_blank_lines_do_not_keep_a_connection() -> None:
    peer = Peer()
    for _ in range(6):
        peer.conn.feed(b"\r\n")
        peer.pass_time(2)
    assert peer.conn.want_close


def test_keep_alive_idle() -> None:
    peer = Peer()
    request = peer.one(GET)
    peer.pass_time(100)
    assert not peer.conn.want_close  # a parked request may take its time
    request.reply(200)
    peer.conn.data_to_send()
    peer.pass_time(75)
    assert not peer.conn.want_close
    peer.pass_time(0.1)
    assert peer.conn.want_close and peer.sent() == ""


def test_body_idle() -> None:
    peer = Peer()
    peer.conn.feed(HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 50_000)
    peer.pass_time(30)
    assert not peer.conn.want_close
    peer.pass_time(0.1)
    assert peer.refusal() == (408, "REQUEST_TIMEOUT")
    assert peer.context.bodies_size == 0


@pytest.mark.parametrize(("rate", "survives"), [(240, True), (239, False)])
def test_body_rate(rate: int, survives: bool) -> None:
    peer = Peer()
    peer.conn.feed(HEAD + b"Content-Length: 1000000\r\n\r\n")
    for _ in range(40):
        peer.conn.feed(b"x" * rate)
        peer.pass_time(1)
    assert peer.conn.want_close is not survives


def test_time_stands_still_while_we_do_not_read() -> None:
    peer = Peer()
    peer.conn.feed(HEAD + b"Content-Length: 1000\r\n\r\nx")
    peer.conn.blocked = True
    peer.pass_time(100)
    peer.conn.blocked = False
    peer.pass_time(29)
    assert not peer.conn.want_close


# Class 5: bodies.


def test_length_over_the_limit_is_refused_before_the_body() -> None:
    peer = Peer(body_size_max=1000)
    peer.one(with_body(b"x" * 1000))
    peer = Peer(body_size_max=1000)
    peer.conn.feed(HEAD + b"Content-Length: 1001\r\n\r\n")
    assert peer.refusal() == (413, "PAYLOAD_TOO_LARGE")


def test_chunks_over_the_limit() -> None:
    def chunks(size: int) -> bytes:
        return CHUNKED + b"64\r\n" + b"x" * 100 + b"\r\n%x\r\n" % (size - 100) + b"y" * (size - 100)

    assert len(Peer(body_size_max=1000).drip(chunks(1000) + b"\r\n0\r\n\r\n")) == 1
    peer = Peer(body_size_max=1000)
    assert peer.drip(chunks(1001)) == []
    assert peer.refusal() == (413, "PAYLOAD_TOO_LARGE")
    assert peer.context.bodies_size == 0


def test_budget_of_bodies_in_flight() -> None:
    peer = Peer(bodies_in_flight_size_max=100)
    first = peer.one(with_body(b"x" * 60))
    other = H1Conn(peer.context)
    other.feed(HEAD + b"Content-Length: 40\r\n\r\n" + b"y" * 39)
    assert peer.context.bodies_size == 99
    third = H1Conn(peer.context)
    third.feed(with_body(b"zz"))
    status, fields, body = parse_reply(third.data_to_send().decode())
    assert (status, json.loads(body)["code"]) == (429, "OVERLOADED")
    assert fields["retry-after"] == "1" and third.want_close
    first.reply(200)
    assert peer.context.bodies_size == 39
    other.closed()
    assert peer.context.bodies_size == 0


# Class 6: crumbs.


def test_number_of_chunks() -> None:
    body = CHUNKED + b"2\r\nab\r\n" * 20
    limits: dict[str, Any] = {"chunks_max": 20, "chunk_mean_min": 1}
    assert Peer(**limits).one(body + b"0\r\n\r\n").body == b"ab" * 20
    peer = Peer(**limits)
    peer.conn.feed(body + b"1\r\na\r\n")
    assert peer.refusal() == (400, "BAD_REQUEST")


def test_mean_size_of_chunks() -> None:
    few = CHUNKED + b"1\r\nx\r\n" * 1000
    assert len(Peer().one(few + b"0\r\n\r\n").body) == 1000
    assert Peer().conn.feed(few + b"3e80\r\n") == []
    peer = Peer()
    peer.conn.feed(few + b"1\r\nx\r\n" + b"1\r\n")
    assert peer.refusal() == (400, "BAD_REQUEST")


def test_chunk_extension_without_an_end() -> None:
    peer = Peer()
    peer.conn.feed(CHUNKED + b"1;")
    for _ in range(20):
        peer.conn.feed(b"x" * 1024)
    assert peer.refusal() == (400, "BAD_REQUEST")


# Class 8: trailers.


def test_trailers_have_no_effect() -> None:
    trailers = b"Authorization: x\r\nX-API-Key: y\r\nHost: z\r\nX-Corvo-Namespace: n\r\n"
    request = Peer().one(CHUNKED + b"1\r\na\r\n0\r\n" + trailers + b"\r\n")
    assert request.authorization is None and request.api_key is None
    assert request.host == b"a" and request.namespace is None and request.body == b"a"


def test_trailer_fields() -> None:
    def body(fields: int) -> bytes:
        return CHUNKED + b"0\r\n" + b"X: y\r\n" * fields + b"\r\n"

    assert len(Peer().drip(body(32))) == 1
    peer = Peer()
    assert peer.drip(body(33)) == []
    assert peer.refusal() == (400, "BAD_REQUEST")


def test_trailer_size() -> None:
    def body(size: int) -> bytes:
        return CHUNKED + b"0\r\nX: " + b"y" * (size - 5) + b"\r\n\r\n"

    assert len(Peer().drip(body(4096))) == 1
    peer = Peer()
    assert peer.drip(body(4097)) == []
    assert peer.refusal() == (400, "BAD_REQUEST")


def test_trailer_line_without_an_end() -> None:
    peer = Peer()
    peer.conn.feed(CHUNKED + b"0\r\nX: ")
    for _ in range(20):
        peer.conn.feed(b"y" * 1024)
    assert peer.refusal() == (400, "BAD_REQUEST")


# Class 9: floods.


def test_a_full_pipeline_stops_the_parser() -> None:
    peer = Peer()
    requests = peer.conn.feed(GET * 1000)
    assert len(requests) == 64 and peer.conn.paused and peer.conn.has_input
    assert peer.conn.feed(GET) == []
    for request in requests[:47]:
        request.reply(200)
    assert peer.conn.paused and peer.conn.pending == 17
    requests[47].reply(200)
    assert not peer.conn.paused
    assert len(peer.conn.feed(b"")) == 48


def test_everything_in_a_flood_is_answered() -> None:
    peer = Peer()
    requests = peer.conn.feed(GET * 1000)
    answered = 0
    while requests:
        for request in requests:
            request.reply(200)
        answered += len(requests)
        peer.conn.data_to_send()
        requests = peer.conn.feed(b"")
    assert answered == 1000 and peer.conn.idle


def test_unsent_replies_stop_the_parser() -> None:
    peer = Peer(unsent_size_max=1000)
    first, second = peer.conn.feed(GET * 2)
    first.reply(200, b"x" * 1000)
    assert peer.conn.paused
    second.reply(200)
    assert peer.conn.feed(GET) == [] and peer.conn.has_input
    peer.conn.data_to_send()
    assert len(peer.conn.feed(b"")) == 1


# Class 10: upgrades are never taken up.


@pytest.mark.parametrize(
    "message",
    [
        HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
        b"Content-Length: 5\r\n\r\nhello",
        CHUNKED[:-2]
        + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n5\r\nhello\r\n0\r\nX: 1\r\n\r\n",
    ],
)
def test_body_of_an_offered_upgrade_is_not_lost(message: bytes) -> None:
    for at in range(1, len(message)):
        conn = Peer().conn
        first, second = conn.feed(message[:at]) + conn.feed(message[at:] + GET)
        assert (first.method, first.body) == ("POST", b"hello")
        assert (second.method, second.path, second.body) == ("GET", b"/b", b"")
        assert first.keep_alive


def test_upgraded_bodies_count_against_the_limits() -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    peer = Peer(body_size_max=10)
    peer.conn.feed(CHUNKED[:-2] + upgrade + b"b\r\nhello world\r\n0\r\n\r\n")
    assert peer.refusal() == (413, "PAYLOAD_TOO_LARGE")


# The end of the stream, and of the connection.


def test_end_of_the_stream_lets_work_finish() -> None:
    peer = Peer()
    first, second = peer.conn.feed(GET * 2)
    peer.conn.eof()
    assert not first.abandoned and not peer.conn.want_close
    second.reply(200)
    first.reply(200)
    assert peer.sent().count("Connection: close") == 1
    assert peer.conn.want_close and second.delivered


def test_end_of_the_stream_cancels_parked_requests() -> None:
    peer = Peer()
    parked, write = peer.conn.feed(GET * 2)
    cancelled: list[Request] = []
    parked.on_abandoned = cancelled.append
    peer.conn.eof()
    assert cancelled == [parked] and parked.abandoned and not write.abandoned
    write.reply(201)
    text = peer.sent()
    assert text.index("204 No Content") < text.index("201 Created")
    assert peer.conn.want_close


def test_end_of_the_stream_inside_a_request() -> None:
    peer = Peer()
    peer.conn.feed(HEAD + b"Content-Length: 10\r\n\r\nhalf")
    peer.conn.eof()
    assert peer.conn.want_close and peer.sent() == "" and peer.context.bodies_size == 0


def test_end_of_the_stream_behind_a_full_pipeline() -> None:
    peer = Peer()
    requests = peer.conn.feed(GET * 100)
    peer.conn.eof()
    for request in requests:
        request.reply(200)
    rest = peer.conn.feed(b"")
    assert len(rest) == 36
    for request in rest:
        request.reply(200)
    assert peer.conn.want_close


def test_a_lost_connection_abandons_what_was_not_sent() -> None:
    peer = Peer()
    told: list[Request] = []
    sent, first, parked, done = peer.conn.feed(GET * 4)
    for request in (sent, first, parked, done):
        request.on_abandoned = told.append
    sent.reply(200)
    peer.conn.data_to_send()
    first.reply(200)
    done.reply(200)
    peer.conn.closed()
    assert told == [first, parked, done]
    assert not first.delivered and parked.abandoned and done.abandoned and not sent.abandoned
    parked.reply(200)
    assert peer.sent() == ""


def test_bytes_behind_the_last_request_are_ignored() -> None:
    peer = Peer()
    request = peer.one(GET[:-2] + b"Connection: close\r\n\r\n" + GET)
    assert peer.conn.feed(GET) == []
    request.reply(200)
    assert peer.conn.want_close and peer.sent().count("HTTP/1.1") == 1


# Draining.


def test_drain_closes_idle_connections() -> None:
    peer = Peer()
    peer.context.draining = True
    peer.conn.drain()
    assert peer.conn.want_close


def test_drain_says_close_with_the_last_reply() -> None:
    peer = Peer()
    first, second = peer.conn.feed(GET * 2)
    peer.context.draining = True
    peer.conn.drain()
    second.reply(200)
    first.reply(200)
    assert peer.sent().count("Connection: close") == 1 and peer.conn.want_close


def test_drain_lets_a_request_that_arrives_finish() -> None:
    peer = Peer()
    peer.conn.feed(HEAD + b"Content-Length: 4\r\n\r\nha")
    peer.context.draining = True
    peer.conn.drain()
    assert not peer.conn.want_close
    peer.one(b"lf").reply(200)
    assert peer.conn.want_close

"""The sans-io HTTP/2 connection, spoken to by frames and header blocks of other libraries."""

import json
from typing import Any

import pytest
from hyperframe import frame as frames
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.h2_peer import (
    CANCEL,
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    FLOODS,
    FLOW_CONTROL_ERROR,
    GET,
    POST,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    SETTINGS_TIMEOUT,
    STREAM_CLOSED,
    Pairs,
    Peer,
    data,
    flood,
    many,
)

from corvo._fast.http.exchange import Request

# Requests and replies.


def test_request_fields() -> None:
    peer = Peer()
    extra = [("x-api-key", "k"), ("content-type", "t"), ("cookie", "a=b"), ("cookie", "c=d")]
    extra += [("x-corvo-forwarded", "1"), ("x-corvo-proxy-stream", "1")]
    request = peer.ask(1, [*GET, *extra, ("x-request-id", "mine"), ("te", "trailers")])
    assert request.forwarded == b"1" and request.rare == {b"x-corvo-proxy-stream": b"1"}
    assert (request.method, request.path, request.query) == ("GET", b"/b", b"c")
    assert (request.host, request.api_key, request.cookie) == (b"localhost", b"k", b"a=b; c=d")
    assert (request.request_id, request.content_type, request.peer) == (b"mine", b"t", "10.0.0.1")


def test_reply() -> None:
    peer = Peer()
    request = peer.ask(1)
    peer.now_ns += 1_234_567
    peer.context.index = 7
    request.reply(201, b"{}", b"Allow: GET\r\nRetry-After: 1\r\n")
    fields, body = peer.reply()
    assert body == b"{}" and request.delivered and peer.conn.idle
    assert fields == {
        ":status": "201",
        "date": "now",
        "x-content-type-options": "nosniff",
        "x-request-id": "t-0001",
        "server-timing": "proc;dur=1.234",
        "x-corvo-index": "7",
        "content-type": "application/json",
        "content-length": "2",
        "allow": "GET",
        "retry-after": "1",
    }


def test_replies_without_a_body() -> None:
    peer = Peer()
    peer.ask(1).reply(204)
    [only] = peer.sent()
    assert "END_STREAM" in only.flags
    peer.ask(3, [(":method", "HEAD"), *GET[1:]]).reply(200, b"abc")
    fields, body = peer.reply()
    assert fields["content-length"] == "3" and body == b"" and peer.conn.unsent_size == 0


def test_replies_leave_in_the_order_they_are_made() -> None:
    peer = Peer()
    first, second = peer.ask(1), peer.ask(3)
    second.reply(200, b"2")
    first.reply(200, b"1")
    assert [(f.stream_id, f.type) for f in peer.sent()] == [(3, 1), (3, 0), (1, 1), (1, 0)]


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), max_size=6))
def test_any_split_of_the_bytes_gives_the_same(cuts: list[int]) -> None:
    def converse(sizes: list[int]) -> tuple[list[tuple[str, bytes]], bytes]:
        peer = Peer(hello=False)
        wire = PREFACE + b"".join(
            [
                frame.serialize()
                for frame in (
                    frames.SettingsFrame(0, {4: 10}),
                    peer.headers(1, [*POST, ("content-length", "5")]),
                    frames.PingFrame(0, b"12345678"),
                    frames.DataFrame(1, b"ab", pad_length=3, flags=["PADDED"]),
                    data(1, b"cde", "END_STREAM"),
                    peer.headers(3, GET, "END_STREAM"),
                    frames.WindowUpdateFrame(0, 5),
                    frames.PriorityFrame(9, 0, 1),
                )
            ]
        )
        seen = []
        at = 0
        for size in [*sizes, len(wire)]:
            for request in peer.conn.feed(wire[at : at + size]):
                seen.append((request.method, request.body))
                request.reply(200, b"x" * 30)
            at += size
        return seen, peer.conn.data_to_send()

    seen, sent = converse(cuts)
    assert seen == [("POST", b"abcde"), ("GET", b"")]
    assert sent == converse([])[1] == converse([1] * 300)[1]


def test_bodies() -> None:
    peer = Peer()
    assert peer.feed(peer.headers(1, POST), data(1, b"a" * 9000), data(1, b"b" * 9000)) == []
    assert peer.context.bodies_size == 18_000
    [request] = peer.feed(data(1, b"", "END_STREAM"))
    assert request.body == b"a" * 9000 + b"b" * 9000
    request.reply(200)
    assert peer.context.bodies_size == 0
    peer.feed(peer.headers(3, POST), data(3, b"abc"))
    trailers: Pairs = [("x-sum", "1"), ("authorization", "no")]
    [request] = peer.feed(peer.headers(3, trailers, "END_STREAM"))
    assert request.body == b"abc" and request.authorization is None


def test_continue() -> None:
    peer = Peer()
    peer.feed(peer.headers(1, [*POST, ("expect", "100-continue")]))
    [frame] = peer.sent()
    assert peer.decoder.decode(frame.data) == [(":status", "100")]
    peer.feed(peer.headers(3, [*POST, ("expect", "100-continue")]), data(3, b"x"))
    assert peer.sent() == []


# Refusals.


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (GET[:2] + GET[3:], 400),
        ([*GET[:2], (":authority", "a b"), GET[3]], 400),
        ([*GET, ("authorization", "a"), ("authorization", "b")], 400),
        ([*GET[:3], (":path", "/" + "x" * 9000)], 414),
        ([*GET, ("x", "y" * 15_000), ("z", "y" * 2000)], 431),
        ([*GET, *[("x", "y")] * 100], 431),
        ([(":method", "CONNECT"), (":authority", "a")], 501),
    ],
)
def test_refused_requests_are_answered(fields: Pairs, status: int) -> None:
    peer = Peer()
    assert peer.feed(peer.headers(1, fields, "END_STREAM")) == []
    reply, body = peer.reply()
    assert reply[":status"] == str(status) and json.loads(body)["code"]
    assert peer.ask(3).path == b"/b"


@pytest.mark.parametrize(
    "fields",
    [
        GET[1:],
        GET[:1] + GET[2:],
        GET[:3],
        [*GET, (":path", "/")],
        [*GET, (":status", "200")],
        [*GET[:3], ("x", "y"), GET[3]],
        [*GET[:3], (":path", "")],
        [*GET[:3], (":path", "b")],
        [*GET[:3], (":path", "/a b")],
        [*GET[:3], (":path", "/a#b")],
        [*GET[:3], (":path", "*")],
        [*GET, ("Upper", "x")],
        [*GET, ("", "x")],
        [*GET, ("a b", "x")],
        [*GET, ("x", "a\r\nb: c")],
        [*GET, ("x", "a\0")],
        [*GET, ("x", " a")],
        [*GET, ("connection", "close")],
        [*GET, ("transfer-encoding", "chunked")],
        [*GET, ("te", "gzip")],
        [*GET, ("host", "other")],
        [*GET, ("host", "a"), ("host", "a")],
        [*GET, ("content-length", "1")],
        [*GET, ("content-length", "-0")],
        [("x", "y"), *GET],
        [(":method", "G ET"), *GET[1:]],
    ],
)
def test_malformed_requests_are_reset(fields: Pairs) -> None:
    peer = Peer()
    assert peer.feed(peer.headers(1, fields, "END_STREAM")) == []
    assert peer.resets() == [(1, PROTOCOL_ERROR)] and peer.conn.idle
    assert peer.ask(3).path == b"/b"


def test_content_length_counts() -> None:
    for body in (b"ab", b"abcd"):
        peer = Peer()
        fields = [*POST, ("content-length", "3")]
        assert peer.feed(peer.headers(1, fields), data(1, body, "END_STREAM")) == []
        assert peer.resets() == [(1, PROTOCOL_ERROR)] and peer.context.bodies_size == 0


def test_a_body_too_large_is_answered_early() -> None:
    for fields in (POST, [*POST, ("content-length", "200")]):
        peer = Peer(http1={"body_size_max": 100})
        assert peer.feed(peer.headers(1, fields), data(1, b"x" * 60), data(1, b"x" * 60)) == []
        sent = peer.sent()
        assert [f.type for f in sent] == [1, 0, 3] and sent[2].error_code == 0
        assert peer.feed(data(1, b"x" * 60, "END_STREAM")) == [] and not peer.conn.want_close
        assert peer.context.bodies_size == 0


@pytest.mark.parametrize("limit", ["body_size_max", "bodies_in_flight_size_max"])
def test_a_complete_request_that_is_refused_gets_no_reset(limit: str) -> None:
    peer = Peer(http1={limit: 100})
    peer.feed(peer.headers(1, POST), data(1, b"x" * 60), data(1, b"x" * 60, "END_STREAM"))
    assert [f.type for f in peer.sent()] == [1, 0]
    assert peer.context.bodies_size == 0 and peer.conn.idle
    assert peer.ask(3).path == b"/b"


def test_budget_of_all_bodies() -> None:
    peer = Peer(http1={"bodies_in_flight_size_max": 100})
    peer.feed(peer.headers(1, POST), data(1, b"x" * 60), peer.headers(3, POST), data(3, b"x" * 60))
    assert peer.reply()[0][":status"] == "429" and peer.context.bodies_size == 60


# Flow control.


def test_windows_of_the_server_are_filled_up() -> None:
    peer = Peer()
    peer.feed(peer.headers(1, POST))
    credit = {0: 0, 1: 0}
    for _ in range(600):
        peer.feed(data(1, b"x" * 16_000))
        for frame in peer.sent():
            assert isinstance(frame, frames.WindowUpdateFrame)
            credit[frame.stream_id] += frame.window_increment
    assert min(credit.values()) > 600 * 16_000 - 4_194_304


def test_padding_and_late_data_count_for_the_connection() -> None:
    peer = Peer(window_size=100_000, http1={"body_size_max": 10})
    peer.feed(peer.headers(1, POST), data(1, b"x" * 11))
    peer.sent()
    credit = 0
    for _ in range(100):
        peer.feed(frames.DataFrame(1, b"x", pad_length=255, flags=["PADDED"]))
        credit += sum(f.window_increment for f in peer.sent() if f.type == 8)
    assert credit >= 100 * 257 - 50_000 and not peer.conn.want_close


def test_more_than_a_window() -> None:
    peer = Peer(stream_window_size=20_000)
    peer.feed(peer.headers(1, POST), data(1, b"x" * 9000), data(1, b"x" * 16_000))
    assert peer.fault() == FLOW_CONTROL_ERROR
    peer = Peer(window_size=70_000, stream_window_size=70_000)
    peer.feed(*[f for n in (1, 3) for f in (peer.headers(n, POST), data(n, b"x" * 16_000))])
    assert not peer.conn.want_close


def test_a_reply_waits_for_the_windows_of_the_peer() -> None:
    peer = Peer()
    peer.feed(frames.SettingsFrame(0, {4: 2000}))
    request = peer.ask(1)
    request.reply(200, b"x" * 5000)
    assert len(peer.reply()[1]) == 2000 and not request.delivered
    peer.feed(frames.WindowUpdateFrame(1, 10))
    assert peer.reply()[1] == b""
    peer.pass_time(1.25)
    assert len(peer.reply()[1]) == 10
    peer.feed(frames.SettingsFrame(0, {4: 1000}))
    peer.feed(frames.WindowUpdateFrame(1, 3990))
    assert len(peer.reply()[1]) == 2990 and request.delivered and peer.conn.unsent_size == 0


def test_a_stalled_reply_is_given_up() -> None:
    peer = Peer()
    peer.feed(frames.SettingsFrame(0, {4: 0}))
    request = peer.ask(1)
    told: list[Request] = []
    request.on_abandoned = told.append
    request.reply(200, b"x" * 5000)
    peer.sent()
    peer.pass_time(61)
    assert (1, CANCEL) in peer.resets() and told == [request] and peer.conn.unsent_size == 0


def test_large_replies_take_turns() -> None:
    peer = Peer()
    peer.feed(frames.WindowUpdateFrame(0, 1 << 20), frames.SettingsFrame(0, {4: 1 << 20}))
    for stream in (1, 3):
        peer.ask(stream).reply(200, b"x" * 40_000)
    order = [f.stream_id for f in peer.sent() if isinstance(f, frames.DataFrame)]
    assert order == [1, 3, 1, 3, 1, 3]


# Cancelling and closing.


def test_reset_cancels_a_waiting_request() -> None:
    peer = Peer()
    request = peer.ask(1)
    told: list[Request] = []
    request.on_abandoned = told.append
    peer.feed(frames.RstStreamFrame(1, CANCEL))
    assert told == [request] and request.abandoned and peer.conn.idle
    request.reply(200, b"late")
    assert peer.sent() == []


def test_a_request_reset_in_the_same_read_is_abandoned() -> None:
    peer = Peer()
    [request] = peer.feed(peer.headers(1, GET, "END_STREAM"), frames.RstStreamFrame(1, CANCEL))
    assert request.abandoned


def test_drain() -> None:
    peer = Peer()
    request = peer.ask(1)
    peer.conn.drain()
    goaway, ping = peer.sent()
    assert goaway.last_stream_id == 0x7FFF_FFFF
    under_way = peer.ask(3)
    peer.feed(frames.PingFrame(0, ping.opaque_data, flags=["ACK"]))
    assert [f.last_stream_id for f in peer.sent()] == [3]
    assert peer.feed(peer.headers(5, GET, "END_STREAM")) == []
    request.reply(200)
    under_way.reply(200)
    assert len(peer.sent()) == 2 and peer.conn.want_close


def test_drain_of_a_peer_that_does_not_answer() -> None:
    peer = Peer()
    peer.conn.drain()
    peer.pass_time(1.25)
    assert [f.type for f in peer.sent()] == [7, 6, 7] and peer.conn.want_close


def test_end_of_the_stream() -> None:
    peer = Peer()
    parked, working = peer.ask(1), peer.ask(3)
    told: list[Request] = []
    parked.on_abandoned = told.append
    peer.conn.eof()
    assert told == [parked] and not peer.conn.want_close
    working.reply(200)
    assert len(peer.sent()) == 1 and peer.conn.want_close


def test_time() -> None:
    peer = Peer(hello=False)
    peer.pass_time(11)
    assert peer.conn.want_close
    peer = Peer(hello=False)
    peer.conn.feed(PREFACE + frames.SettingsFrame(0).serialize())
    peer.pass_time(11)
    assert peer.fault() == SETTINGS_TIMEOUT
    peer = Peer()
    peer.pass_time(76)
    assert peer.fault() == 0
    peer = Peer()
    peer.feed(frames.HeadersFrame(1, b"\x82"))
    peer.pass_time(11)
    assert peer.fault() == ENHANCE_YOUR_CALM
    peer = Peer()
    peer.feed(peer.headers(1, POST), data(1, b"x" * 100))
    peer.pass_time(31)
    assert peer.reply()[0][":status"] == "408"


def test_a_peer_with_waiting_requests_is_asked_whether_it_is_there() -> None:
    peer = Peer()
    peer.ask(1)
    peer.pass_time(31)
    [ping] = peer.sent()
    peer.feed(frames.PingFrame(0, ping.opaque_data, flags=["ACK"]))
    peer.pass_time(31)
    assert len(peer.sent()) == 1
    peer.pass_time(11)
    assert peer.fault() == 0


# Abuse: what ends the connection.


@pytest.mark.parametrize("name", FLOODS)
def test_floods_are_calmed_down(name: str) -> None:
    peer = Peer()
    sent = flood(name, peer)
    peer.feed(*sent[:-1])
    while peer.sent():
        pass
    if name not in ("rapid reset", "malformed requests", "continuations"):
        assert not peer.conn.want_close
        peer.feed(sent[-1])
        assert peer.fault() == ENHANCE_YOUR_CALM
    else:
        peer = Peer()
        peer.feed(*flood(name, peer))
        assert peer.fault() == ENHANCE_YOUR_CALM


def test_what_is_asked_for_and_not_read() -> None:
    peer = Peer(pings_burst=5000, control_queue_max=1000)
    peer.ask(1)
    peer.feed(*many(1001, frames.PingFrame(0, b"12345678")))
    assert peer.conn.want_close


def test_tiny_data_of_whole_requests_is_fine() -> None:
    peer = Peer()
    for stream in range(1, 41, 2):
        [request] = peer.feed(
            peer.headers(stream, POST),
            *many(1000, data(stream, b"x")),
            data(stream, b"", "END_STREAM"),
        )
        request.reply(204)
        peer.sent()
    assert not peer.conn.want_close


def test_more_streams_than_may_be() -> None:
    peer = Peer(streams_max=2)
    assert len(peer.feed(*[peer.headers(n, GET, "END_STREAM") for n in (1, 3, 5)])) == 2
    assert peer.resets() == [(5, REFUSED_STREAM)]


def test_a_window_too_wide_ends_its_stream() -> None:
    peer = Peer()
    request = peer.ask(1)
    peer.feed(frames.WindowUpdateFrame(1, 0x7FFF_FFFF))
    assert peer.resets() == [(1, FLOW_CONTROL_ERROR)] and request.abandoned


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ([frames.WindowUpdateFrame(0, 0x7FFF_FFFF)], FLOW_CONTROL_ERROR),
        ([frames.SettingsFrame(0, {4: 1 << 31})], FLOW_CONTROL_ERROR),
        ([frames.SettingsFrame(0, {2: 2})], PROTOCOL_ERROR),
        ([frames.SettingsFrame(0, {5: 16_383})], PROTOCOL_ERROR),
        ([frames.WindowUpdateFrame(5, 1)], PROTOCOL_ERROR),
        ([frames.RstStreamFrame(5, 0)], PROTOCOL_ERROR),
        ([frames.PriorityFrame(5, 5, 1)], PROTOCOL_ERROR),
        ([data(5, b"x")], PROTOCOL_ERROR),
        ([data(1, b"x")], STREAM_CLOSED),
        ([frames.HeadersFrame(1, b"\x82", flags=["END_HEADERS", "END_STREAM"])], STREAM_CLOSED),
        ([frames.HeadersFrame(2, b"\x82", flags=["END_HEADERS"])], PROTOCOL_ERROR),
        ([frames.HeadersFrame(3, b"\x82"), data(1, b"")], PROTOCOL_ERROR),
        ([frames.HeadersFrame(3, b"\x82"), frames.PingFrame(0, b"1" * 8)], PROTOCOL_ERROR),
        ([frames.ContinuationFrame(1, b"")], PROTOCOL_ERROR),
        ([frames.PushPromiseFrame(1, 2, b"\x82", flags=["END_HEADERS"])], PROTOCOL_ERROR),
        ([frames.HeadersFrame(3, b"\xfe", flags=["END_HEADERS"])], COMPRESSION_ERROR),
    ],
)
def test_faults_end_the_connection(sent: list[frames.Frame], code: int) -> None:
    peer = Peer()
    request = peer.ask(1)
    peer.feed(*sent)
    assert peer.fault() == code and request.abandoned


def test_what_is_no_http2() -> None:
    for wire, code in ((b"GET / HTTP/1.1\r\n\r\n", 1), (PREFACE + bytes(9), 1)):
        peer = Peer(hello=False)
        peer.conn.feed(wire)
        assert peer.fault() == code


def test_late_frames_of_streams_that_the_server_ended() -> None:
    peer = Peer()
    peer.feed(peer.headers(1, GET[1:]))
    assert peer.resets() == [(1, PROTOCOL_ERROR)]
    late: list[Any] = [data(1, b"x", "END_STREAM"), frames.WindowUpdateFrame(1, 5)]
    assert peer.feed(*late) == [] and not peer.conn.want_close


# Replies in several pieces.


def test_pieces() -> None:
    peer = Peer()
    request = peer.ask(1)
    request.start(200, b"X-Extra: 9\r\n", b"text/event-stream")
    fields, body = peer.reply()
    assert fields["content-type"] == "text/event-stream" and fields["x-extra"] == "9"
    assert "content-length" not in fields and body == b""
    assert peer.sent() == [] and peer.conn.unsent_size == 0 and not peer.conn.idle
    request.send(b"ab")
    request.send(b"cd")
    assert request.unsent_size == peer.conn.unsent_size == 4
    [frame] = peer.sent()
    assert (frame.data, "END_STREAM" in frame.flags) == (b"abcd", False)
    assert request.unsent_size == peer.conn.unsent_size == 0 and not request.delivered
    request.send(b"ef")
    request.end()
    [frame] = peer.sent()
    assert (frame.data, "END_STREAM" in frame.flags) == (b"ef", True)
    assert request.delivered and peer.conn.idle


def test_the_end_of_pieces_may_come_later_and_have_trailers() -> None:
    peer = Peer()
    first, second = peer.ask(1), peer.ask(3)
    for request in (first, second):
        request.start(200)
        request.send(b"x")
    peer.sent()
    first.end()
    second.end(b"grpc-status: 0\r\n")
    last, trailers = peer.sent()
    assert (last.stream_id, last.data, "END_STREAM" in last.flags) == (1, b"", True)
    assert trailers.stream_id == 3 and "END_STREAM" in trailers.flags
    assert peer.conn.idle


def test_pieces_and_other_replies_share_the_connection() -> None:
    peer = Peer()
    stream, other = peer.ask(1), peer.ask(3)
    stream.start(200)
    stream.send(b"x" * 40_000)
    other.reply(200, b"{}")
    order = [frame.stream_id for frame in peer.sent() if isinstance(frame, frames.DataFrame)]
    assert order == [1, 3, 1, 1]


def test_pieces_wait_for_the_window() -> None:
    peer = Peer(small_data=0)
    settings = frames.SettingsFrame(0, settings={frames.SettingsFrame.INITIAL_WINDOW_SIZE: 10})
    peer.feed(settings)
    peer.sent()
    request = peer.ask(1)
    told: list[int] = []
    request.on_writable = lambda request: told.append(request.unsent_size)
    request.start(200)
    peer.sent()
    told.clear()
    body = b""
    for piece in (b"01234", b"56789abc", b"defgh"):
        request.send(piece)
        body += peer.reply()[1]
    assert body == b"0123456789" and request.unsent_size == 8 and told == [0]
    peer.feed(frames.WindowUpdateFrame(1, 5))
    body += peer.reply()[1]
    assert body == b"0123456789abcde" and told == [0]
    peer.feed(frames.WindowUpdateFrame(1, 100))
    body += peer.reply()[1]
    assert body == b"0123456789abcdefgh" and told == [0, 0]
    assert peer.conn.unsent_size == 0


def test_on_writable_may_send_more() -> None:
    peer = Peer()
    request = peer.ask(1)
    sizes = [3, 2, 1]

    def more(request: Request) -> None:
        if sizes:
            request.send(b"x" * sizes.pop())

    request.on_writable = more
    request.start(200)
    bodies = [peer.reply()[1] for _ in range(5)]
    assert bodies == [b"", b"x", b"xx", b"xxx", b""]


def test_head_only_pieces() -> None:
    peer = Peer()
    request = peer.ask(1, [(":method", "HEAD"), *GET[1:]])
    request.start(200, b"", b"text/event-stream")
    request.send(b"nobody")
    request.end()
    [head] = peer.sent()
    assert "END_STREAM" in head.flags and peer.conn.idle and peer.conn.unsent_size == 0


@pytest.mark.parametrize("how", ["reset", "closed", "eof"])
def test_a_reader_of_pieces_that_goes_away(how: str) -> None:
    peer = Peer()
    request = peer.ask(1)
    gone: list[Request] = []
    request.on_abandoned = gone.append
    request.start(200)
    peer.sent()
    request.send(b"x" * 100_000)
    peer.sent()
    if how == "reset":
        peer.feed(frames.RstStreamFrame(1, CANCEL))
    elif how == "closed":
        peer.conn.closed()
    else:
        peer.conn.eof()
    assert gone == [request] and not request.streaming
    request.send(b"more")
    request.end()
    assert peer.conn.idle
    if how == "reset":
        assert peer.conn.unsent_size == 0 and peer.sent() == []


def test_rare_fields() -> None:
    peer = Peer()
    request = peer.ask(1, [*GET, ("last-event-id", "5"), ("connect-timeout-ms", "7")])
    assert request.rare == {b"last-event-id": b"5", b"connect-timeout-ms": b"7"}

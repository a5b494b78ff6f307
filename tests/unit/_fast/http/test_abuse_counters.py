"""What is refused, by kind of attack: the answer, and how it is counted.

The clock belongs to the test. Floods of HTTP/2 are in `h2_peer`; what they do to others is in
`tests/process/test_abuse.py`.
"""

import pytest
from hyperframe import frame as frames
from lib.h2_peer import CANCEL, FLOODS, GET, POST, Pairs, Peer, data, flood, many

from corvo._fast.http.abuse_counters import REASONS
from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http.http1 import H1Conn
from corvo.limits import SECOND_NS
from corvo.net.http.browser_guard import BrowserGuard
from corvo.net.http.server import HttpLimits

HEAD = b"POST /a HTTP/1.1\r\nHost: a\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TINY_CHUNKS = CHUNKED + b"1\r\nx\r\n" * 1_002
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n"


class Plain:
    """A connection of HTTP/1.1, and a clock that the test moves."""

    def __init__(self, sent: bytes, **limits: int) -> None:
        self.now_ns = SECOND_NS
        context = H1Context(HttpLimits(**limits), lambda: self.now_ns, lambda: b"now", b"t-")
        context.browser_guard = BrowserGuard(["a"])
        self.conn = H1Conn(context)
        self.requests: list[Request] = self.conn.feed(sent) if sent else []

    def counted(self) -> dict[str, int]:
        return counted(self.conn.context)

    def answer(self) -> str:
        """Status of the only reply."""
        return self.conn.data_to_send().partition(b" ")[2][:3].decode()

    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)
        self.conn.check_time(self.now_ns)


def counted(context: H1Context) -> dict[str, int]:
    return {reason: count for reason, count in context.abuse_counters.counts.items() if count}


REFUSED = [
    ("head", HEAD + b"X: " + b"y" * 17_000, "431", "head_size"),
    ("fields", HEAD + b"X: y\r\n" * 101 + b"\r\n", "431", "head_size"),
    ("target", b"GET /" + b"y" * 8_192 + b" HTTP/1.1\r\nHost: a\r\n\r\n", "414", "head_size"),
    ("length", HEAD + b"Content-Length: 99999999\r\n\r\n", "413", "body_size"),
    ("huge length", HEAD + b"Content-Length: " + b"9" * 18 + b"\r\n\r\n", "413", "body_size"),
    ("chunked", CHUNKED + b"fff\r\n" + b"x" * 4_095, "413", "body_size"),
    ("all bodies", HEAD + b"Content-Length: 600\r\n\r\n" + b"x" * 600, "429", "bodies_in_flight"),
    ("tiny chunks", TINY_CHUNKS, "400", "chunks"),
    ("extensions", CHUNKED + b"1;" + b"x" * 9_000, "400", "chunks"),
    ("both lengths", HEAD + b"Content-Length: 1\r\n" + CHUNKED[len(HEAD) :], "400", "malformed"),
    ("coding", HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "501", "malformed"),
    ("two hosts", HEAD + b"Host: b\r\n\r\n", "400", "malformed"),
    ("page", HEAD + b"Origin: http://b\r\n\r\n", "403", "cross_site"),
    ("host", HEAD.replace(b"Host: a", b"Host: b") + b"\r\n", "421", "host"),
    ("version", b"GET / HTTP/2.0\r\n", "505", "malformed"),
    ("trailers", CHUNKED + b"0\r\n" + b"a: b\r\n" * 33 + b"\r\n", "400", "trailers"),
]


@pytest.mark.parametrize(("name", "sent", "status", "reason"), REFUSED, ids=[r[0] for r in REFUSED])
def test_refused_requests(name: str, sent: bytes, status: str, reason: str) -> None:
    limits = {"all bodies": {"bodies_in_flight_size_max": 500}, "chunked": {"body_size_max": 4_000}}
    peer = Plain(sent, **limits.get(name, {}))
    assert peer.requests == [] and peer.answer() == status and peer.conn.want_close
    assert peer.counted() == {reason: 1} and peer.conn.context.bodies_size == 0


LATE = [
    ("nothing", b"", 10.1, "", "head_time"),
    ("head", HEAD, 10.1, "408", "head_time"),
    ("body", HEAD + b"Content-Length: 9\r\n\r\nx", 30.1, "408", "body_time"),
]


@pytest.mark.parametrize(("name", "sent", "after", "status", "reason"), LATE)
def test_what_comes_late(name: str, sent: bytes, after: float, status: str, reason: str) -> None:
    peer = Plain(sent)
    peer.pass_time(after)
    assert peer.answer() == status and peer.conn.want_close and peer.counted() == {reason: 1}


def test_a_body_in_drops() -> None:
    peer = Plain(HEAD + b"Content-Length: 9999\r\n\r\n")
    while not peer.conn.want_close:
        assert peer.now_ns < 40 * SECOND_NS
        peer.conn.feed(b"x" * 100)
        peer.pass_time(1)
    assert peer.answer() == "408" and peer.counted() == {"body_time": 1}


def test_a_pipeline_waits() -> None:
    """Nobody is refused, but what came is not looked at before there is room for it."""
    peer = Plain(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n" * 200)
    assert len(peer.requests) == 64 and peer.conn.is_holding()
    assert peer.counted() == {"pipeline": 1, "turns": 1}


@pytest.mark.parametrize("switches", [True, False])
def test_offers_that_are_not_taken_up(switches: bool) -> None:
    offered = b"Content-Length: 1\r\n" if switches else b""
    context = H1Context(HttpLimits(), lambda: SECOND_NS, lambda: b"now", b"t-")
    conn = H1Conn(context, switches=switches)
    [request] = conn.feed(HEAD + OFFER + offered + b"\r\n" + (b"x" if switches else b""))
    assert request.conn is conn and conn.successor is None
    assert counted(context) == {"upgrade": 1}


def test_no_http2_behind_tls_unless_agreed_on() -> None:
    context = H1Context(HttpLimits(), lambda: SECOND_NS, lambda: b"now", b"t-")
    conn = H1Conn(context, switches=False)
    assert conn.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == [] and conn.successor is None
    assert conn.data_to_send().startswith(b"HTTP/1.1 505 ") and conn.want_close


def test_a_first_line_of_something_else_is_not_answered() -> None:
    peer = Plain(b"INVALID CONNECTION PREFACE\r\n\r\n")
    assert peer.conn.want_close and not peer.conn.data_to_send()
    assert peer.counted() == {"malformed": 1}


# HTTP/2.


@pytest.mark.parametrize(("name", "reason"), FLOODS.items())
def test_floods_are_counted(name: str, reason: str) -> None:
    peer = Peer()
    sent = flood(name, peer)
    for frame in sent:  # their own reads: so many that turns play no part
        peer.feed(frame)
        peer.conn.data_to_send()
    assert peer.conn.want_close and peer.conn.feed(b"x" * 1_000) == []
    assert counted(peer.context).pop(reason) == 1


MALFORMED: list[Pairs] = [
    [*GET, ("", "x")],
    [*GET, ("x", "a\nb")],
    [*GET[:3], (":path", "/a b")],
    [*GET, ("host", "b")],
    [*GET, ("transfer-encoding", "chunked")],
]


@pytest.mark.parametrize("fields", MALFORMED)
def test_malformed_fields_are_counted(fields: Pairs) -> None:
    peer = Peer()
    assert peer.feed(peer.headers(1, fields, "END_STREAM")) == []
    assert counted(peer.context) == {"malformed": 1}


def test_faults_of_the_connection_are_counted() -> None:
    for sent, reason in (
        (frames.HeadersFrame(1, b"\xfe", flags=["END_HEADERS"]), "compression"),
        (
            frames.HeadersFrame(1, b"\x3f\xff\xff\xff\xff\xff\x0f", flags=["END_HEADERS"]),
            "compression",
        ),
        (frames.HeadersFrame(1, b"\x20\x20\x20", flags=["END_HEADERS"]), "compression"),
        (frames.WindowUpdateFrame(0, 0x7FFF_FFFF), "windows"),
        (data(5, b"x"), "protocol"),
    ):
        peer = Peer()
        peer.feed(sent)
        assert peer.conn.want_close and counted(peer.context) == {reason: 1}


def test_bodies_of_streams_are_counted() -> None:
    peer = Peer(http1={"body_size_max": 10, "bodies_in_flight_size_max": 8})
    peer.feed(peer.headers(1, [*POST, ("content-length", "11")]))
    peer.feed(peer.headers(3, POST), data(3, b"x" * 9))
    peer.feed(peer.headers(5, [*GET, ("x", "y" * 17_000)], "END_STREAM"))
    assert counted(peer.context) == {"body_size": 1, "bodies_in_flight": 1, "head_size": 1}


def test_time_of_streams_is_counted() -> None:
    peer = Peer()
    peer.feed(peer.headers(1, POST))
    peer.pass_time(30.1)
    assert counted(peer.context) == {"body_time": 1}
    peer = Peer(hello=False)
    peer.pass_time(10.1)
    assert counted(peer.context) == {"head_time": 1}
    peer = Peer()
    peer.ask(1)
    peer.pass_time(31)
    peer.pass_time(11)
    assert peer.conn.want_close and counted(peer.context) == {"silence": 1}


def test_replies_that_are_not_read_are_counted() -> None:
    peer = Peer()
    peer.feed(frames.SettingsFrame(0, {4: 1}))
    peer.ask(1).reply(200, b"x" * 100)
    peer.sent()
    resets: list[tuple[int, int]] = []
    for _ in range(8):  # it is alive, it only does not read
        peer.pass_time(10.1)
        peer.feed(frames.PingFrame(0, b"corvo-up", flags=["ACK"]))
        resets += peer.resets()
    assert resets == [(1, CANCEL)] and counted(peer.context) == {"unread_replies": 1}


def test_answers_that_are_not_read_are_counted() -> None:
    peer = Peer(pings_burst=5_000)
    peer.ask(1)
    for _ in range(5):
        peer.feed(*many(250, frames.PingFrame(0, b"12345678")))
    assert counted(peer.context) == {"control_frames": 1}


def test_streams_and_turns_are_counted() -> None:
    peer = Peer(streams_max=2, frames_per_turn=2)
    assert len(peer.feed(*[peer.headers(n, GET, "END_STREAM") for n in (1, 3, 5)])) == 2
    assert counted(peer.context) == {"streams": 1, "turns": 1}


def test_every_reason_has_a_test() -> None:
    shell = {"connections", "tls_handshake", "reply_headers", "forwarded"}  # of what is around
    here = {reason for *_, reason in REFUSED} | {reason for *_, reason in LATE}
    here |= {"pipeline", "turns", "upgrade", "compression", "windows", "protocol", "silence"}
    here |= {"unread_replies", "control_frames", "streams", *FLOODS.values()}
    assert here | shell == set(REASONS)

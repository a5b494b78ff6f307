"""Bodies of HTTP/2 requests that are handed over in pieces."""

from hyperframe import frame as frames
from lib.h2_peer import FLOW_CONTROL_ERROR, POST, PROTOCOL_ERROR, Peer, data

from corvo._fast.http.exchange import Request

LENGTH = [*POST, ("content-length", "6")]


def peer_of_pieces(**h2: int) -> Peer:
    peer = Peer(**h2)
    peer.context.takes_pieces = lambda request: request.path == b"/b"
    return peer


def opened(peer: Peer, fields: list[tuple[str, str]] = POST) -> Request:
    [request] = peer.feed(peer.headers(1, fields))
    return request


def updates(peer: Peer) -> list[tuple[int, int]]:
    found = [frame for frame in peer.sent() if isinstance(frame, frames.WindowUpdateFrame)]
    return [(frame.stream_id, frame.window_increment) for frame in found]


def test_a_request_is_there_with_its_head_and_again_with_more() -> None:
    peer = peer_of_pieces()
    request = opened(peer, LENGTH)
    assert request.receiving and request.take_body() == b""
    assert peer.feed(data(1, b"ab"), data(1, b"cd")) == [request], "once for all that has come"
    assert peer.feed(data(1, b"e")) == [], "nobody has taken it yet"
    assert request.take_body() == b"abcde" and request.take_body() == b""
    assert peer.feed(data(1, b"f", "END_STREAM")) == [request]
    assert not request.receiving and request.take_body() == b"f"
    request.reply(200, b"{}")
    assert peer.reply()[1] == b"{}" and peer.conn.idle


def test_others_come_whole() -> None:
    peer = peer_of_pieces()
    other = [*POST[:3], (":path", "/c")]
    assert peer.feed(peer.headers(1, other), data(1, b"ab")) == []
    [request] = peer.feed(data(1, b"c", "END_STREAM"))
    assert not request.receiving and request.take_body() == b"abc" and request.body == b""


def test_without_a_body() -> None:
    peer = peer_of_pieces()
    request = peer.ask(1, POST)
    assert not request.receiving and request.take_body() == b""


def test_room_comes_back_when_the_body_is_taken() -> None:
    peer = peer_of_pieces(stream_window_size=1_000, window_size=70_000)
    request = opened(peer)
    peer.feed(data(1, b"x" * 400))
    assert request.take_body() and updates(peer) == [], "not worth a frame"
    peer.feed(data(1, b"y" * 400), frames.DataFrame(1, b"z" * 99, pad_length=50, flags=["PADDED"]))
    assert updates(peer) == []
    assert len(request.take_body()) == 499
    assert updates(peer) == [(1, 950)], "padding counts"
    peer.feed(data(1, b"x" * 1_000))
    peer.feed(data(1, b"x"))
    assert peer.fault() == FLOW_CONTROL_ERROR


def test_what_is_kept_counts_among_the_bodies_in_flight() -> None:
    peer = Peer(http1={"bodies_in_flight_size_max": 100})
    peer.context.takes_pieces = lambda request: True
    request = opened(peer)
    peer.feed(data(1, b"x" * 60))
    assert peer.context.bodies_size == 60
    request.take_body()
    assert peer.context.bodies_size == 60, "who has taken it still has it"
    request.keep_body(20)
    assert peer.context.bodies_size == 20
    peer.feed(data(1, b"x" * 80))
    request.take_body()
    request.keep_body(100)
    assert peer.context.bodies_size == 100
    peer.feed(data(1, b"x"))
    assert request.abandoned and peer.resets() == [(1, 11)] and peer.context.bodies_size == 0
    assert peer.context.abuse_counters.counts["bodies_in_flight"] == 1
    assert request.take_body() == b""
    request.keep_body(50)
    assert peer.context.bodies_size == 0


def test_a_long_body_of_small_frames() -> None:
    peer = peer_of_pieces()
    request = opened(peer)
    request.take_body()
    for _ in range(10_000):
        assert peer.feed(data(1, b"x" * 20)) == [request]
        assert len(request.take_body()) == 20
        request.keep_body(0)
    assert peer.context.bodies_size == 0 and not peer.conn.want_close


def test_a_body_may_take_long() -> None:
    peer = peer_of_pieces()
    request = opened(peer)
    for _ in range(100):
        peer.pass_time(29)
        peer.feed(data(1, b"x"))
    assert not request.abandoned and request.take_body() == b"x" * 100


def test_who_answers_early_hears_no_more() -> None:
    peer = peer_of_pieces()
    request = opened(peer)
    request.reply(200, b"{}")
    assert peer.resets() == [(1, 0)] and not request.receiving
    assert peer.feed(data(1, b"late")) == []


def test_a_reset_abandons_the_request() -> None:
    peer = peer_of_pieces()
    request = opened(peer)
    request.take_body()
    gone: list[Request] = []
    request.on_abandoned = gone.append
    request.on_body = gone.append
    assert peer.feed(data(1, b"x"), frames.RstStreamFrame(1, 8)) == [request]
    assert gone == [request] and request.abandoned and request.on_body is None
    assert request.take_body() == b"" and peer.context.bodies_size == 0


def test_the_length_has_to_agree() -> None:
    for body, flags in ((b"1234567", []), (b"12345", ["END_STREAM"])):
        peer = peer_of_pieces()
        request = opened(peer, LENGTH)
        peer.feed(data(1, body, *flags))
        assert request.abandoned and peer.resets() == [(1, PROTOCOL_ERROR)]


def test_trailers_end_it() -> None:
    peer = peer_of_pieces()
    request = opened(peer)
    peer.feed(data(1, b"a"))
    request.take_body()
    assert peer.feed(peer.headers(1, [("x", "y")], "END_STREAM")) == [request]
    assert not request.receiving and request.take_body() == b""


def test_the_end_of_the_connection() -> None:
    peer = peer_of_pieces()
    request = opened(peer)
    peer.feed(data(1, b"a"))
    peer.conn.eof()
    assert request.abandoned and not request.receiving and peer.context.bodies_size == 0

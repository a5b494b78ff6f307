"""The client's half of HTTP/2, against our own server's half and the frames of another library."""

import hpack
import pytest
from hyperframe import frame as frames
from hypothesis import given, settings
from hypothesis import strategies as st

from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http2.client import Event, H2Client
from corvo._fast.http2.connection import H2Conn
from corvo._fast.http2.frames import ConnectionFault
from corvo.net.http.server import HttpLimits

FIELDS = [(b"content-type", b"t"), (b"x-corvo-credit", b"1")]


class Pair:
    """A client and a server that hear each other."""

    def __init__(self, pieces: bool = False) -> None:
        self.context = H1Context(HttpLimits(), lambda: 0, lambda: b"now", b"t-")
        if pieces:
            self.context.takes_pieces = lambda request: True
        self.server = H2Conn(self.context)
        self.client = H2Client(b"a")

    def talk(self) -> tuple[list[Request], list[Event]]:
        """Until nobody has anything to say."""
        requests: list[Request] = []
        events: list[Event] = []
        while True:
            sent = self.client.data_to_send()
            requests += self.server.feed(sent)
            while self.server.has_input:
                requests += self.server.feed(b"")
            answered = self.server.data_to_send()
            events += self.client.feed(answered)
            if not sent and not answered:
                return requests, events


def test_requests_and_answers() -> None:
    pair = Pair()
    assert [pair.client.post(b"/a", FIELDS, body) for body in (b"", b"x")] == [1, 3]
    first, second = pair.talk()[0]
    assert (first.method, first.path, first.host, first.body) == ("POST", b"/a", b"a", b"")
    assert second.content_type == b"t" and second.body == b"x"
    second.reply(201, b"{}", b"X-Y: z\r\n")
    first.reply(204)
    head, data, only = pair.talk()[1]
    assert head.fields is not None and only.fields is not None
    assert dict(head.fields)[b":status"] == b"201" and dict(head.fields)[b"x-y"] == b"z"
    assert (head.stream_id, head.ended) == (3, False)
    assert (data.data, data.ended, only.ended, only.stream_id) == (b"{}", True, True, 1)
    assert pair.client.streams == 0 and pair.client.streams_max == 1_000


def test_a_conversation() -> None:
    pair = Pair(pieces=True)
    stream = pair.client.post(b"/a", [], ends=False)
    [request] = pair.talk()[0]
    request.start(200, b"", b"t")
    heard = []
    for number in range(5):
        pair.client.send(stream, b"%d" % number)
        assert pair.talk()[0] == ([request] if number else [])
        heard.append(request.take_body())
        request.send(heard[-1] * 2)
        events = pair.talk()[1]
        assert events[-1].data == b"%d%d" % (number, number)
    pair.client.send(stream, b"", ends=True)
    pair.talk()
    assert not request.receiving
    request.end(b"grpc-status: 0\r\n")
    last = pair.talk()[1][-1]
    assert last.ended and last.fields == [(b"grpc-status", b"0")]
    pair.client.send(stream, b"late")
    assert pair.talk() == ([], [])


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=4), st.integers(0, 5_000_000))
@settings(max_examples=20, deadline=None)
def test_windows_both_ways(sizes: list[int], answer: int) -> None:
    pair = Pair()
    for size in sizes:
        pair.client.post(b"/a", [], b"x" * size)
    requests = pair.talk()[0]
    assert sorted(len(request.body) for request in requests) == sorted(sizes)
    for request in requests:
        request.reply(200, b"y" * answer)
    events = pair.talk()[1]
    assert sum(len(event.data) for event in events) == answer * len(sizes)
    assert pair.client.streams == 0


def test_resets_and_good_byes() -> None:
    pair = Pair()
    given_up, refused = pair.client.post(b"/a", [], b"x"), pair.client.post(b"/b", [], b"x")
    first, second = pair.talk()[0]
    pair.client.reset(given_up, 8)
    pair.talk()
    assert first.abandoned and not second.abandoned
    pair.server.drain()
    events = pair.talk()[1]
    assert pair.client.leaving and [event.leaving for event in events] == [True, True]
    assert [event.stream_id for event in events] == [2**31 - 1, refused]
    second.reply(200)
    assert pair.talk()[1][-1].ended and pair.server.want_close
    client = H2Client(b"a")
    client.post(b"/", [], b"x")
    [event] = client.feed(frames.RstStreamFrame(1, 7).serialize())
    assert (event.stream_id, event.code, event.ended) == (1, 7, True) and client.streams == 0


def test_what_other_libraries_write() -> None:
    client = H2Client(b"a")
    client.post(b"/", [])
    client.data_to_send()
    block = hpack.Encoder().encode([(":status", "200"), ("a", "b")])
    data = b"".join(
        frame.serialize()
        for frame in (
            frames.SettingsFrame(0, {4: 100, 3: 7}),
            frames.PingFrame(0, b"12345678"),
            frames.HeadersFrame(1, block[:1]),
            frames.ContinuationFrame(1, block[1:], flags=["END_HEADERS"]),
            frames.DataFrame(1, b"x", pad_length=3, flags=["PADDED"]),
            frames.DataFrame(9, b"of nothing"),
            frames.ExtensionFrame(99, 0),
            frames.DataFrame(1, b"", flags=["END_STREAM"]),
        )
    )
    events = [event for byte in data for event in client.feed(bytes((byte,)))]
    assert [(event.fields, event.data, event.ended) for event in events] == [
        ([(b":status", b"200"), (b"a", b"b")], b"", False),
        (None, b"x", False),
        (None, b"", True),
    ]
    assert client.streams_max == 7
    answers = client.data_to_send()
    assert frames.PingFrame(0, b"12345678", flags=["ACK"]).serialize() in answers


def test_a_server_that_breaks_the_rules() -> None:
    for faulty in (
        frames.HeadersFrame(1, b"").serialize() + frames.PingFrame(0, b"12345678").serialize(),
        frames.WindowUpdateFrame(0, 2**31 - 1).serialize(),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ):
        with pytest.raises(ConnectionFault):
            H2Client(b"a").feed(faulty)

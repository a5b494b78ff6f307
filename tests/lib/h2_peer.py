"""An HTTP/2 client made of other libraries, for tests of the connection without a socket."""

import hpack
from hyperframe import frame as frames

from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http2.connection import H2Conn
from corvo.limits import SECOND_NS, Http2Limits
from corvo.net.http.server import HttpLimits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED = 1, 3, 4, 5
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 6, 7, 8, 9, 11

Pairs = list[tuple[str, str]]
GET: Pairs = [
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "localhost"),
    (":path", "/b?c"),
]
POST: Pairs = [(":method", "POST"), *GET[1:]]


class Peer:
    """An HTTP/2 client made of other libraries, and a clock that the test sets."""

    def __init__(self, hello: bool = True, http1: dict[str, int] | None = None, **h2: int) -> None:
        self.now_ns = SECOND_NS
        limits = HttpLimits(**(http1 or {}), http2=Http2Limits(**h2))
        self.context = H1Context(limits, lambda: self.now_ns, lambda: b"now", b"t-")
        self.conn = H2Conn(self.context, "10.0.0.1")
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        if hello:
            self.conn.feed(PREFACE + frames.SettingsFrame(0).serialize())
            self.sent()
            self.feed(frames.SettingsFrame(0, flags=["ACK"]))

    def feed(self, *sent: frames.Frame) -> list[Request]:
        """Feed frames to the connection in one read; return the requests."""
        requests = self.conn.feed(b"".join([frame.serialize() for frame in sent]))
        while self.conn.has_input:
            requests += self.conn.feed(b"")
        return requests

    def headers(self, stream: int, fields: Pairs, *flags: str) -> frames.Frame:
        names = ["END_HEADERS", *flags]
        return frames.HeadersFrame(stream, self.encoder.encode(fields), flags=names)

    def ask(self, stream: int, fields: Pairs = GET) -> Request:
        [request] = self.feed(self.headers(stream, fields, "END_STREAM"))
        return request

    def sent(self) -> list[frames.Frame]:
        """Return the frames that the server has sent."""
        data = memoryview(self.conn.data_to_send())
        found = []
        while data:
            frame, size = frames.Frame.parse_frame_header(data[:9])
            frame.parse_body(data[9 : 9 + size])
            found.append(frame)
            data = data[9 + size :]
        return found

    def reply(self) -> tuple[dict[str, str], bytes]:
        """Return header fields and body of the only stream that sends."""
        fields: dict[str, str] = {}
        body = b""
        for frame in self.sent():
            if isinstance(frame, frames.HeadersFrame):
                fields |= {str(k): str(v) for k, v in self.decoder.decode(frame.data)}
            elif isinstance(frame, frames.DataFrame):
                body += frame.data
        return fields, body

    def resets(self) -> list[tuple[int, int]]:
        return [(f.stream_id, f.error_code) for f in self.sent() if f.type == 3]

    def fault(self) -> int:
        """Return the code of the GOAWAY that ends the connection."""
        [goaway] = [frame for frame in self.sent() if isinstance(frame, frames.GoAwayFrame)]
        assert self.conn.want_close and self.conn.idle and not self.conn.unsent_size
        assert self.context.bodies_size == 0 and self.conn.feed(b"x" * 100) == []
        return int(goaway.error_code)

    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)
        self.conn.check_time(self.now_ns)


def data(stream: int, body: bytes, *flags: str) -> frames.Frame:
    return frames.DataFrame(stream, body, flags=flags)


def many(count: int, frame: frames.Frame) -> list[frames.Frame]:
    return [frame] * count


def flood(name: str, peer: Peer) -> list[frames.Frame]:
    """Return more frames of one kind than any client needs."""
    if name == "rapid reset":
        streams = range(1, 2400, 2)
        return [
            frame
            for n in streams
            for frame in (peer.headers(n, GET, "END_STREAM"), frames.RstStreamFrame(n, CANCEL))
        ]
    if name == "malformed requests":
        return [peer.headers(n, GET[1:], "END_STREAM") for n in range(1, 300, 2)]
    if name == "continuations":
        first = frames.HeadersFrame(1, b"\x82")
        return [first, *many(9, frames.ContinuationFrame(1, b"\x82"))]
    if name == "large block":
        first = frames.HeadersFrame(1, b"\x82" * 16_000)
        return [first, *many(2, frames.ContinuationFrame(1, b"\x82" * 16_000))]
    if name == "empty continuations":
        return [frames.HeadersFrame(1, b"\x82"), *many(2, frames.ContinuationFrame(1, b""))]
    if name == "header bomb":
        large = peer.headers(1, [*GET, ("x", "y" * 3900)], "END_STREAM")
        return [large, frames.HeadersFrame(3, b"\xbe" * 4000, flags=["END_HEADERS"])]
    opened = peer.headers(1, POST)
    return {
        "settings": many(100, frames.SettingsFrame(0)),
        "settings in one frame": [frames.SettingsFrame(0, dict.fromkeys(range(99, 165), 0))],
        "pings": [opened, *many(101, frames.PingFrame(0, b"12345678"))],
        "pings without work": many(5, frames.PingFrame(0, b"12345678")),
        "priorities": many(101, frames.PriorityFrame(1, 0, 1)),
        "window updates": many(1001, frames.WindowUpdateFrame(0, 1)),
        "empty data": [opened, *many(101, data(1, b""))],
        "tiny data": [opened, *many(6426, data(1, b"x"))],
        "unknown frames": many(10_001, frames.ExtensionFrame(77, 0)),
    }[name]


# What each of them counts as.
FLOODS = {
    "rapid reset": "resets",
    "malformed requests": "faulty_requests",
    "continuations": "header_block",
    "large block": "header_block",
    "empty continuations": "header_block",
    "header bomb": "header_block",
    "settings": "settings",
    "settings in one frame": "settings",
    "pings": "pings",
    "pings without work": "pings",
    "priorities": "priorities",
    "window updates": "window_updates",
    "empty data": "empty_frames",
    "tiny data": "tiny_frames",
    "unknown frames": "slips",
}

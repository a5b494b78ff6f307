"""A worker stream on one HTTP/2 connection, as bytes: little work for the client, so that a
measurement is one of the server."""

import re
from struct import pack

from bench.micro.rig import PAYLOAD, Rig
from corvo._fast.http2.connection import H2Conn

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE = 0, 1, 4, 8
_END_HEADERS = 4
_WINDOW = 2**31 - 1
_FIELDS = {
    b":method": b"POST",
    b":scheme": b"http",
    b":authority": b"127.0.0.1",
    b":path": b"/corvo.v1.WorkerService/StreamLifecycle",
    b"content-type": b"application/connect+proto",
    b"connect-protocol-version": b"1",
}
# The fields of a job in a response that its ack repeats, with the same tags.
_JOB_ID = re.compile(rb"\x0a\x1ejob_[0-9A-Z]{26}")
_TOKEN = re.compile(rb"\x92\x03[\x01-\x7f][0-9A-Za-z]+")


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return pack(">IBI", len(payload) << 8 | kind, flags, stream_id) + payload


def _text(data: bytes) -> bytes:
    """A length of one byte, and as many bytes."""
    assert len(data) < 0x80
    return bytes((len(data),)) + data


def _field(tag: int, data: bytes) -> bytes:
    """A field of a protobuf message."""
    size = len(data)
    assert size < 0x4000
    length = bytes((size,)) if size < 0x80 else bytes((size & 0x7F | 0x80, size >> 7))
    return bytes((tag,)) + length + data


class WorkerStream:
    """A stream whose frames enqueue jobs, fetch as many, and ack those of the last response."""

    def __init__(self, rig: Rig, batch: int) -> None:
        self._rig = rig
        self._batch = batch
        self._connection = H2Conn(rig.server.context, "::1")
        job = _field(0x0A, b"bench") + _field(0x12, PAYLOAD)
        fetch = _field(0x12, b"bench") + _field(0x1A, b"w1") + bytes((0x30, batch))
        self._work = _field(0x42, job) * batch + fetch
        self._acks = b""
        head = b"".join(b"\0" + _text(name) + _text(value) for name, value in _FIELDS.items())
        self._feed(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, pack(">HI", 4, _WINDOW))
            + _frame(_WINDOW_UPDATE, 0, 0, pack(">I", _WINDOW - 65_535))
            + _frame(_HEADERS, _END_HEADERS, 1, head)
        )

    def exchange(self) -> None:
        """Send one frame, and check its response."""
        message = self._acks + self._work
        data = pack(">BI", 0, len(message)) + message
        pieces = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
        reply = self._feed(b"".join(_frame(_DATA, 0, 1, piece) for piece in pieces))
        ids, tokens = _JOB_ID.findall(reply), _TOKEN.findall(reply)
        assert len(ids) == len(tokens) == self._batch, reply
        self._acks = b"".join(
            [_field(0x3A, job_id + token) for job_id, token in zip(ids, tokens, strict=True)]
        )

    def _feed(self, data: bytes) -> bytes:
        requests = self._connection.feed(data)
        while self._connection.has_input:
            requests += self._connection.feed(b"")
        self._rig.server.serve(requests)
        self._rig.loop.run()
        return self._connection.data_to_send()

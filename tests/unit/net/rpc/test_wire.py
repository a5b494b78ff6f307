"""One call on the wire, in each protocol: what the head says, and how answers are written."""

import base64
import gzip
import json

import pytest
from hyperframe import frame as frames
from lib.h2_peer import POST, Pairs, Peer, data

from corvo._fast.codec import protobuf
from corvo._fast.http.exchange import Request
from corvo.errors import LeaseLost
from corvo.limits import MS_NS, SECOND_NS
from corvo.net.rpc.envelopes import COMPRESSED, envelope
from corvo.net.rpc.status import TYPES, RpcError, rpc_error
from corvo.net.rpc.wire import STREAMING, UNARY, Wire, find_wire

DETAIL = (("a.B", b"\x01\x02"),)
ERROR = RpcError("not_found", "50% é", DETAIL)
TRAILERS = [("x-a", "1"), ("x-a", "2")]


def call(peer: Peer, content_type: str, body: bytes = b"", *fields: tuple[str, str]) -> Request:
    head: Pairs = [*POST, ("content-type", content_type), *fields]
    [request] = peer.feed(peer.headers(1, head), data(1, body, "END_STREAM"))
    return request


def wire_of(peer: Peer, content_type: str, body: bytes = b"", *fields: tuple[str, str]) -> Wire:
    known = STREAMING if "connect+" in content_type else UNARY
    wire = find_wire(call(peer, content_type, body, *fields), known, size_max=100)
    assert wire is not None
    wire.read_head()
    return wire


def all_fields(peer: Peer) -> tuple[list[list[tuple[str, str]]], bytes]:
    """The fields of each header block, and the body."""
    blocks, body = [], b""
    for frame in peer.sent():
        if isinstance(frame, frames.HeadersFrame):
            blocks.append([(str(k), str(v)) for k, v in peer.decoder.decode(frame.data)])
        elif isinstance(frame, frames.DataFrame):
            body += frame.data
    return blocks, body


def test_connect_unary() -> None:
    peer = Peer()
    wire = wire_of(peer, "application/proto; charset=x", b"abc", ("connect-timeout-ms", "250"))
    assert (wire.form, wire.timeout_ns, wire.message()) == ("proto", 250 * MS_NS, b"abc")
    assert wire.message() == b"abc" and wire.request.body == b"abc", "it may be asked for again"
    wire.start(b"X-H: h\r\n")
    wire.send(b"answer")
    wire.end(None, TRAILERS)
    [fields], body = all_fields(peer)
    assert body == b"answer" and (":status", "200") in fields and ("x-h", "h") in fields
    assert [value for name, value in fields if name == "trailer-x-a"] == ["1", "2"]
    assert ("content-type", "application/proto") in fields


def test_an_empty_message_has_a_type() -> None:
    peer = Peer()
    wire = wire_of(peer, "application/json")
    wire.send(b"")
    wire.end()
    [fields], body = all_fields(peer)
    assert body == b"" and ("content-type", "application/json") in fields


def test_connect_unary_error() -> None:
    peer = Peer()
    wire_of(peer, "application/proto").end(ERROR, TRAILERS)
    [fields], body = all_fields(peer)
    assert (":status", "404") in fields and ("content-type", "application/json") in fields
    assert json.loads(body) == {
        "code": "not_found",
        "message": "50% é",
        "details": [{"type": "a.B", "value": "AQI"}],
    }


def test_connect_stream() -> None:
    for started in (True, False):
        peer = Peer()
        body = envelope(gzip.compress(b"abc"), COMPRESSED)
        coding = ("connect-content-encoding", "gzip")
        wire = wire_of(peer, "application/connect+json", body, coding)
        assert wire.message() == b"abc"
        if started:
            wire.start()
            wire.send(b"one")
        wire.end(ERROR, TRAILERS)
        [fields], sent = all_fields(peer)
        assert (":status", "200") in fields
        assert ("content-type", "application/connect+json") in fields
        if started:
            assert sent[:8] == envelope(b"one")
            sent = sent[8:]
        assert sent[0] == 2
        last = json.loads(sent[5:])
        assert last["error"]["code"] == "not_found" and last["metadata"] == {"x-a": ["1", "2"]}


def test_grpc() -> None:
    peer = Peer()
    wire = wire_of(peer, "application/grpc", envelope(b"abc"), ("grpc-timeout", "3S"))
    assert (wire.message(), wire.timeout_ns) == (b"abc", 3 * SECOND_NS)
    wire.send(b"one")
    wire.end(None, TRAILERS)
    (head, trailers), body = all_fields(peer)
    assert ("content-type", "application/grpc") in head and body == envelope(b"one")
    assert trailers == [("grpc-status", "0"), *TRAILERS]


def test_grpc_error_is_trailers_only() -> None:
    peer = Peer()
    wire_of(peer, "application/grpc+json").end(ERROR)
    [fields], body = all_fields(peer)
    found = dict(fields)
    assert body == b"" and found["content-type"] == "application/grpc+json"
    assert (found["grpc-status"], found["grpc-message"]) == ("5", "50%25 %C3%A9")
    status = base64.b64decode(found["grpc-status-details-bin"] + "==")
    detail = b"\n\x17type.googleapis.com/a.B\x12\x02\x01\x02"
    assert status == b"\x08\x05\x12\x0650% \xc3\xa9\x1a" + bytes((len(detail),)) + detail


def test_our_errors_come_with_their_code() -> None:
    error = rpc_error(LeaseLost("gone", state="active"))
    assert error.code == "failed_precondition"
    [(name, detail)] = error.details
    values = protobuf.decode(TYPES["ErrorInfo"], detail, 9)
    assert name == "corvo.v1.ErrorInfo"
    assert values == {"code": "LEASE_LOST", "fields_json": '{"state":"active"}'}


@pytest.mark.parametrize(
    ("content_type", "name", "value", "code"),
    [
        ("application/proto", "content-encoding", "br", "unimplemented"),
        ("application/connect+proto", "connect-content-encoding", "br", "unimplemented"),
        ("application/grpc", "grpc-encoding", "br", "unimplemented"),
        ("application/proto", "connect-protocol-version", "2", "invalid_argument"),
        ("application/proto", "connect-timeout-ms", "12345678901", "invalid_argument"),
        ("application/proto", "connect-timeout-ms", "1s", "invalid_argument"),
        ("application/grpc", "grpc-timeout", "1", "invalid_argument"),
        ("application/grpc", "grpc-timeout", "123456789S", "invalid_argument"),
    ],
)
def test_what_no_head_may_say(content_type: str, name: str, value: str, code: str) -> None:
    with pytest.raises(RpcError) as caught:
        wire_of(Peer(), content_type, b"", (name, value))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/proto", b"x" * 101, "resource_exhausted"),
        ("application/grpc", envelope(b"x" * 101), "resource_exhausted"),
        ("application/grpc", b"", "unimplemented"),
        ("application/grpc", envelope(b"a") * 2, "unimplemented"),
        ("application/grpc", envelope(b"a") + b"\0", "invalid_argument"),
        ("application/grpc", envelope(b"a") + b"\1\0\0\0\0", "internal"),
        ("application/connect+proto", envelope(b"a", 2), "invalid_argument"),
    ],
)
def test_what_is_no_message(content_type: str, body: bytes, code: str) -> None:
    with pytest.raises(RpcError) as caught:
        wire_of(Peer(), content_type, body).message()
    assert caught.value.code == code


def test_the_error_of_an_unknown_type_names_the_known_ones() -> None:
    peer = Peer()
    assert find_wire(call(peer, "text/plain"), UNARY) is None
    fields, _ = peer.reply()
    assert fields[":status"] == "415" and "application/grpc+json" in fields["accept-post"]

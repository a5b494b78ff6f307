"""Messages in a stream of bytes: any pieces, bounds, compression; and how calls end."""

import gzip
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corvo._fast.codec.protobuf import ProtobufError
from corvo.errors import LeaseLost, NotFound, Overloaded, UniqueConflict, ValidationError
from corvo.net.rpc.envelopes import (
    COMPRESSED,
    END_STREAM,
    Boundaries,
    Envelopes,
    envelope,
    gunzip,
)
from corvo.net.rpc.status import (
    GRPC_NUMBERS,
    HTTP_STATUS,
    RpcError,
    connect_end,
    connect_error,
    grpc_trailers,
    rpc_error,
)

SIZE_MAX = 1_000


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=SIZE_MAX), st.booleans()), max_size=5), st.data())
def test_any_pieces(messages: list[tuple[bytes, bool]], data: st.DataObject) -> None:
    stream = b"".join(
        envelope(gzip.compress(m, mtime=0), COMPRESSED) if packed and m else envelope(m)
        for m, packed in messages
    )
    envelopes = Envelopes(2 * SIZE_MAX, gzip=True)
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += envelopes.feed(stream[:size])
        stream = stream[size:]
    while envelopes.more:
        found += envelopes.feed(b"")
    envelopes.finish()
    assert found == [message for message, _ in messages]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=5), st.data())
def test_boundaries(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(envelope, messages))
    ends = {0, *itertools.accumulate(len(envelope(message)) for message in messages)}
    boundaries = Boundaries()
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        boundaries.feed(stream[at : at + size])
        at += size
        assert boundaries.inside == (at not in ends)


@pytest.mark.parametrize("size", [1, SIZE_MAX])
def test_one_compressed_message_is_returned_at_a_time(size: int) -> None:
    packed = envelope(gzip.compress(bytes(size), mtime=0), COMPRESSED)
    envelopes = Envelopes(SIZE_MAX, gzip=True)
    found = [envelopes.feed(3 * packed)]
    while envelopes.more:
        found.append(envelopes.feed(b""))
    envelopes.finish()
    assert found == [[bytes(size)]] * 3


def test_a_compressed_message_is_kept_as_it_came_while_another_is_in_front() -> None:
    packed = envelope(gzip.compress(bytes(SIZE_MAX), mtime=0), COMPRESSED)
    envelopes = Envelopes(SIZE_MAX, gzip=True)
    assert envelopes.feed(envelope(b"a") + packed) == [b"a"]
    assert envelopes.more and envelopes.size == len(packed)
    assert envelopes.feed(b"") == [bytes(SIZE_MAX)] and not envelopes.more


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (envelope(b"", END_STREAM), "invalid_argument"),
        (envelope(b"x", 0x80), "invalid_argument"),
        (envelope(b"x", COMPRESSED), "internal"),
        (b"\x00\xff\xff\xff\xff", "resource_exhausted"),
        (b"\x00\x00\x00\x03\xe9", "resource_exhausted"),
    ],
)
def test_refused_by_the_head_alone(data: bytes, code: str) -> None:
    with pytest.raises(RpcError) as caught:
        Envelopes(SIZE_MAX, gzip=False).feed(data)
    assert caught.value.code == code


def test_cut_off() -> None:
    envelopes = Envelopes(SIZE_MAX, gzip=False)
    assert envelopes.feed(envelope(b"abc")[:-1]) == []
    with pytest.raises(RpcError, match="ends inside"):
        envelopes.finish()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"no gzip", "invalid_argument"),
        (gzip.compress(b"abc", mtime=0)[:-1], "invalid_argument"),
        (gzip.compress(b"abc", mtime=0) + b"x", "invalid_argument"),
        (gzip.compress(b"a", mtime=0) * 2, "invalid_argument"),
        (gzip.compress(bytes(10_000_000), mtime=0), "resource_exhausted"),
        (gzip.compress(bytes(SIZE_MAX + 1), mtime=0), "resource_exhausted"),
    ],
)
def test_gunzip(data: bytes, code: str) -> None:
    assert gunzip(gzip.compress(bytes(SIZE_MAX), mtime=0), SIZE_MAX) == bytes(SIZE_MAX)
    with pytest.raises(RpcError) as caught:
        gunzip(data, SIZE_MAX)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValidationError("bad"), "invalid_argument", "bad"),
        (NotFound("job x not found"), "not_found", "job x not found"),
        (LeaseLost("lost"), "failed_precondition", "lost"),
        (UniqueConflict("held"), "already_exists", "held"),
        (
            Overloaded("busy", retry_after_ms=7),
            "resource_exhausted",
            "busy (retry_after_ms=7)",
        ),
        (ProtobufError("cut"), "invalid_argument", "cut"),
        (RpcError("aborted", "x"), "aborted", "x"),
        (KeyError("secret"), "internal", "internal error"),
    ],
)
def test_errors(error: Exception, code: str, message: str) -> None:
    found = rpc_error(error)
    assert (found.code, found.message) == (code, message)


def test_forms_of_the_end() -> None:
    error = RpcError("not_found", 'no "é" 100%\n')
    assert json.loads(connect_error(error)) == {"code": "not_found", "message": error.message}
    assert connect_end(None) == b"{}"
    assert json.loads(connect_end(error))["error"]["code"] == "not_found"
    assert grpc_trailers(None) == b"grpc-status: 0\r\n"
    expected = b'grpc-status: 5\r\ngrpc-message: no "%C3%A9" 100%25%0A\r\n'
    assert grpc_trailers(error) == expected
    assert len(GRPC_NUMBERS) == 16 == GRPC_NUMBERS["unauthenticated"]
    assert HTTP_STATUS["unauthenticated"] == 401

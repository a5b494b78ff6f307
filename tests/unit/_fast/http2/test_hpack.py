"""HPACK against the vectors of other encoders, against another library, and at its limits."""

import json
import random
import time
from pathlib import Path
from typing import Any

import hpack as oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo._fast.http2.frames import ConnectionFault
from corvo._fast.http2.hpack import Decoder, Encoder, encode_number, encode_text
from corvo._fast.http2.huffman import huffman_decode, huffman_encode, huffman_size

VECTORS = Path(__file__).parents[5] / "shared" / "vectors" / "hpack"
STORIES = sorted(VECTORS.glob("*/story_*.json"))
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11

Pairs = list[tuple[bytes, bytes]]


def decoder() -> Decoder:
    return Decoder(1 << 20, 1 << 20)


def pairs(decoder: Decoder, block: bytes) -> Pairs:
    fields = decoder.decode(block)
    assert fields is not None
    return [(field.name, field.value) for field in fields]


def headers(case: dict[str, Any]) -> Pairs:
    return [(k.encode(), v.encode()) for pair in case["headers"] for k, v in pair.items()]


def fault(block: bytes, decoder: Decoder | None = None) -> int:
    with pytest.raises(ConnectionFault) as raised:
        (decoder or Decoder(16_384, 65_536)).decode(block)
    return raised.value.code


def test_stories() -> None:
    for story in STORIES:
        cases = json.loads(story.read_text())["cases"]
        ours, encoder = decoder(), Encoder()
        for case in cases:
            wire = case.get("wire")
            block = (
                bytes.fromhex(wire)
                if wire
                else encoder.start_block() + encoder.encode(headers(case))
            )
            assert pairs(ours, block) == headers(case), (story, case["seqno"])


TEXT = st.binary(max_size=60) | st.text("abcdefgh/-0123", max_size=60).map(str.encode)


@given(TEXT)
def test_huffman_round_trip(text: bytes) -> None:
    packed = huffman_encode(text)
    assert len(packed) == huffman_size(text)
    assert huffman_decode(b"?" + packed + b"?", 1, 1 + len(packed)) == text
    assert encode_text(text) in (
        encode_number(len(packed), 0x7F, 0x80) + packed,
        encode_number(len(text), 0x7F, 0) + text,
    )


NAMES = st.sampled_from([b":path", b"content-type", b"x-a", b"authorization", b"cookie", b"x-b"])


@given(st.lists(st.tuples(st.lists(st.tuples(NAMES, TEXT), max_size=8), st.integers(0, 9000))))
def test_blocks_round_trip_both_ways(blocks: list[tuple[Pairs, int]]) -> None:
    encoder, ours, theirs = Encoder(), decoder(), oracle.Decoder()
    theirs.max_header_list_size = 1 << 20
    their_encoder, back = oracle.Encoder(), decoder()
    for fields, size in blocks:
        encoder.set_size(size)
        theirs.max_allowed_table_size = 4096
        block = encoder.start_block() + encoder.encode(fields)
        assert pairs(ours, block) == fields
        assert theirs.decode(block, raw=True) == fields
        assert ours.table.size == encoder.table.size <= min(size, 4096)
        their_encoder.header_table_size = min(size, 4096)
        assert pairs(back, their_encoder.encode(fields)) == fields


@given(st.binary(max_size=80))
def test_any_bytes_are_fields_or_a_fault(block: bytes) -> None:
    try:
        fields = decoder().decode(block)
    except ConnectionFault as error:
        assert error.code == COMPRESSION_ERROR and error.reason
        return
    assert fields is not None


def test_secrets_are_never_remembered() -> None:
    encoder = Encoder()
    fields = [(b"authorization", b"Bearer x"), (b"cookie", b"a=b"), (b"x-api-key", b"k")]
    block = encoder.encode(fields)
    assert encoder.table.size == 0 and encoder.encode(fields) == block
    assert block[0] & 0xF0 == 0x10 and pairs(decoder(), block) == fields


def test_a_table_that_shrinks_and_grows_again_says_both() -> None:
    encoder, ours = Encoder(), decoder()
    assert pairs(ours, encoder.encode([(b"x-a", b"1")])) == [(b"x-a", b"1")]
    encoder.set_size(0)
    encoder.set_size(100_000)
    start = encoder.start_block()
    assert start == b"\x20\x3f\xe1\x1f" and encoder.start_block() == b""
    ours.decode(start)
    assert ours.table.size == 0 and ours.table.size_max == 4096


# Abuse.


def test_the_same_block_means_another_thing_when_the_table_has_changed() -> None:
    reader = decoder()
    add = b"\x40\x01%b\x01%b"
    reader.decode(add % (b"a", b"1"))
    for _ in range(3):
        assert pairs(reader, b"\xbe") == [(b"a", b"1")]
    reader.decode(add % (b"b", b"2"))
    for _ in range(3):
        assert pairs(reader, b"\xbe") == [(b"b", b"2")]
    for _ in range(2):  # it adds what it says each time
        assert pairs(reader, b"\xbe" + add % (b"c", b"3")) != pairs(reader, b"\xbe")
    assert pairs(reader, b"\xbe\xbf\xc0\xc1") == [(b"c", b"3")] * 2 + [(b"b", b"2"), (b"a", b"1")]
    reader.decode(b"\x20")
    assert fault(b"\xbe", reader) == COMPRESSION_ERROR


def test_sizes_of_the_table() -> None:
    grow = encode_number(4096, 0x1F, 0x20)
    decoder().decode(grow + b"\x20")
    assert fault(encode_number(4097, 0x1F, 0x20)) == COMPRESSION_ERROR
    assert fault(b"\x20" * 3) == COMPRESSION_ERROR
    assert fault(b"\x82" + grow) == COMPRESSION_ERROR


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # number 0
        b"\xbe",  # one more than there are
        b"\x40\x01",  # a name without its text
        b"\x40\x01a\x05b",
        b"\x7f\xff\xff\xff\xff\xff\x01",
        b"\xff\xff\xff\xff\xff\xff\xff",
        b"\x7f",
        b"\x40\x81\xff\x00",  # Huffman: padding of a whole byte
        b"\x40\x82\xff\xff\x00",
        b"\x40\x81\x18\x00",  # padding with zeros
        b"\x40\x84\xff\xff\xff\xff\x00",  # the end of the string
    ],
)
def test_what_is_no_block(block: bytes) -> None:
    assert fault(block) == COMPRESSION_ERROR


def test_a_list_too_large_is_not_kept_and_one_far_too_large_is_a_fault() -> None:
    remember = b"\x40\x01a" + encode_number(4000, 0x7F, 0) + b"v" * 4000
    ours = Decoder(16_384, 65_536)
    assert ours.decode(remember + b"\xbe" * 3) is not None
    assert ours.decode(b"\xbe" * 5) is None
    assert ours.decode(b"\xbe") is not None
    assert fault(b"\xbe" * 4000, ours) == ENHANCE_YOUR_CALM


def test_time_is_linear_in_the_input() -> None:
    draw = random.Random(1)
    packed = huffman_encode(bytes(draw.randrange(256) for _ in range(4000)))

    def took(times: int) -> float:
        data = packed * times
        began = time.process_time()
        huffman_decode(data, 0, len(data))
        return time.process_time() - began

    took(1)
    assert took(40) < 40 * 8 * max(took(5) / 5, 1e-6)

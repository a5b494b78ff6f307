"""Fields and frames: round trips, strictness, and the bytes themselves."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corvo._fast.codec.layouts import (
    CodecError,
    decode_fields,
    decode_frame,
    encode_fields,
    encode_frame,
)
from corvo.limits import TIME_MAX_NS

GOLDEN = Path(__file__).parents[2] / "golden"
U64 = 2**64 - 1
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
UNSIGNED = st.integers(0, U64) | st.integers(0, 300)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "s": TEXT,
    "b": st.binary(max_size=200),
    "u": UNSIGNED,
    "i": st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300),
    "q": st.integers(-(2**63), 2**63 - 1),
    "t": st.integers(0, TIME_MAX_NS) | st.integers(0, 2**65),
    "f": st.booleans(),
    "S": st.lists(TEXT, max_size=5),
    "B": st.lists(st.binary(max_size=40), max_size=5),
    "U": st.lists(UNSIGNED, max_size=5),
    "P": st.lists(st.text("abé", max_size=6) | TEXT, max_size=8),
}
LAYOUTS = st.text("".join(VALUES), max_size=8)
OPS = st.lists(st.tuples(UNSIGNED, st.binary(max_size=40)), max_size=8)


@st.composite
def fields(draw: st.DrawFn) -> tuple[str, tuple[Any, ...]]:
    layout = draw(LAYOUTS)
    return layout, tuple(draw(VALUES[letter]) for letter in layout)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The data with a few bytes changed, added or lost."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(out)))
        end = min(len(out), at + draw(st.integers(0, 2)))
        out[at:end] = draw(st.binary(max_size=3) | st.sampled_from([b"\xff" * 9, b"\x80\x00"]))
    return bytes(out)


def decodes_only_canonical(layout: str, data: bytes) -> None:
    """Either refused, or the one encoding of what it decodes to. (Front coding has several.)"""
    try:
        values = decode_fields(layout, data)
    except CodecError:
        return
    again = encode_fields(layout, values)
    assert again == data or "P" in layout
    assert decode_fields(layout, again) == values


@given(fields())
@example(("u" * 3, (0, 127, 128)))
@example(("t", (TIME_MAX_NS,)))
@example(("P", (["x" * 400, "x" * 400],)))
def test_fields_round_trip(case: tuple[str, tuple[Any, ...]]) -> None:
    layout, values = case
    decoded = decode_fields(layout, encode_fields(layout, values))
    assert decoded == values
    assert [type(value) for value in decoded] == [type(value) for value in values]


@given(LAYOUTS, st.binary(max_size=60).map(lambda data: b"\x01" + data))
def test_random_bytes_never_crash_the_field_decoder(layout: str, data: bytes) -> None:
    decodes_only_canonical(layout, data)


@given(fields(), st.data())
def test_damaged_fields_never_crash_the_decoder(
    case: tuple[str, tuple[Any, ...]], data: st.DataObject
) -> None:
    layout, values = case
    decodes_only_canonical(layout, data.draw(damaged(encode_fields(layout, values))))


@given(OPS)
def test_frame_round_trip(ops: list[tuple[int, bytes]]) -> None:
    assert decode_frame(encode_frame(ops)) == ops


@given(OPS, st.data())
def test_damaged_frames_never_crash_the_decoder(
    ops: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    raw = data.draw(damaged(encode_frame(ops)) | st.binary(max_size=30).map(b"CB1".__add__))
    try:
        decoded = decode_frame(raw)
    except CodecError:
        return
    assert encode_frame(decoded) == raw


@pytest.mark.parametrize(
    ("layout", "data", "error"),
    [
        ("u", "", "empty"),
        ("u", "02 00", "version 2, but only 1 is known here"),
        ("su", "01 0161", "field 1: truncated varint"),
        ("u", "01 ff", "field 0: truncated varint"),
        ("u", "01 8000", "field 0: padded varint"),
        ("u", "01 ffffffffffffffffff02", "field 0: varint of more than 64 bits"),
        ("u", "01 ffffffffffffffffffff01", "field 0: varint of more than 64 bits"),
        ("u", "01 05 00", "1 bytes left over after the last field"),
        ("ub", "01 00 02 61", "field 1: length 2 beyond the end"),
        ("b", "01 ffffffffffffffffff01", "field 0: length 18446744073709551615 beyond the end"),
        ("s", "01 01 ff", "field 0: invalid UTF-8"),
        ("s", "01 03 eda080", "field 0: invalid UTF-8"),
        ("s", "01 02 c080", "field 0: invalid UTF-8"),
        ("f", "01 02", "field 0: flag is neither 0 nor 1"),
        ("f", "01", "field 0: truncated"),
        ("q", "01 00000000000000", "field 0: truncated"),
        ("t", "01 00 80 94 eb dc 03", "field 0: more nanoseconds than a second has"),
        ("t", "01 80 83 d1 ff af 07 00", "field 0: time after the year 9999"),
        ("S", "01 03 00 00", "field 0: length 3 beyond the end"),
        ("P", "01 01 01 00", "field 0: shares more than the text before it has"),
        ("P", "01 01 00 01 c3", "field 0: invalid UTF-8"),
    ],
)
def test_what_is_wrong_with_fields_is_said(layout: str, data: str, error: str) -> None:
    with pytest.raises(CodecError, match=error):
        decode_fields(layout, bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("", "not a CB1 frame"),
        ("434232 00", "not a CB1 frame"),
        ("434231", "op count 0: truncated varint"),
        ("434231 02 0000", "op count 0: length 2 beyond the end"),
        ("434231 02 0000 05 01", "op 1: length 1 beyond the end"),
        ("434231 01 8000 00", "op 0: padded varint"),
        ("434231 01 0000 00", "1 bytes left over after the last op"),
    ],
)
def test_what_is_wrong_with_a_frame_is_said(data: str, error: str) -> None:
    with pytest.raises(CodecError, match=error):
        decode_frame(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("letter", "value", "error"),
    [
        ("u", -1, "-1 is out of range"),
        ("u", 2**64, "is out of range"),
        ("u", True, "integer expected, not bool"),
        ("u", 1.0, "integer expected, not float"),
        ("i", 2**63, "is out of range"),
        ("q", -(2**63) - 1, "is out of range"),
        ("t", -1, "-1 is out of range"),
        ("t", TIME_MAX_NS + 1, "is out of range"),
        ("f", 1, "flag expected, not int"),
        ("s", b"", "text expected, not bytes"),
        ("s", "\ud800", "lone surrogates"),
        ("S", ["\udfff"], "lone surrogates"),
        ("P", ["\udfff"], "lone surrogates"),
        ("P", [b""], "text expected, not bytes"),
        ("b", "", "bytes expected, not str"),
        ("b", None, "bytes expected, not NoneType"),
        ("B", (b"",), "list expected, not tuple"),
        ("U", [-1], "is out of range"),
    ],
)
def test_values_without_an_encoding_are_refused(letter: str, value: Any, error: str) -> None:
    with pytest.raises(CodecError, match=rf"^field 1 \({letter}\): .*{error}"):
        encode_fields("u" + letter, (0, value))


def test_ops_without_an_encoding_are_refused() -> None:
    with pytest.raises(CodecError, match="op 1: number -1 is out of range"):
        encode_frame([(0, b""), (-1, b"")])
    with pytest.raises(CodecError, match="op 0: (bytes expected, not|Expected bytes, got) str"):
        encode_frame([(0, "")])  # type: ignore[list-item]


@pytest.mark.parametrize("letter", "sbSBUP")
@pytest.mark.parametrize("size", [2**20, 2**40, 2**63 - 1, 2**63, U64])
def test_a_length_alone_allocates_nothing(letter: str, size: int) -> None:
    data = encode_fields("u", (size,)) + bytes(100)
    tracemalloc.start()
    try:
        with pytest.raises(CodecError, match="beyond the end"):
            decode_fields(letter, data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def _value(letter: str, value: Any) -> Any:
    if letter == "b":
        return bytes.fromhex(value)
    return [bytes.fromhex(item) for item in value] if letter == "B" else value


@pytest.mark.parametrize("case", json.loads((GOLDEN / "fields.json").read_text()), ids=str)
def test_golden_fields(case: dict[str, Any]) -> None:
    values = tuple(map(_value, case["layout"], case["values"]))
    assert encode_fields(case["layout"], values).hex(" ") == case["hex"]
    assert decode_fields(case["layout"], bytes.fromhex(case["hex"])) == values


@pytest.mark.parametrize("case", json.loads((GOLDEN / "frames.json").read_text()), ids=str)
def test_golden_frames(case: dict[str, Any]) -> None:
    ops = [(number, bytes.fromhex(payload)) for number, payload in case["ops"]]
    assert encode_frame(ops).hex(" ") == case["hex"]
    assert decode_frame(bytes.fromhex(case["hex"])) == ops


@settings(max_examples=20)
@given(st.integers(0, 2**16))
def test_texts_of_any_length(size: int) -> None:
    values = ("é" * size, b"x" * size)
    assert decode_fields("sb", encode_fields("sb", values)) == values

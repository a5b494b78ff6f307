"""Frames against the vectors of another project, and against another library."""

import json
from pathlib import Path

import pytest
from hyperframe import frame as oracle

from corvo._fast.http2.frames import (
    ConnectionFault,
    FrameReader,
    frame,
    goaway_frame,
    settings_frame,
    u32_frame,
)

VECTORS = Path(__file__).parents[5] / "shared" / "vectors" / "http2-frames"
FRAME_SIZE_ERROR = 6


def test_vectors() -> None:
    for path in sorted(VECTORS.glob("*/*.json")):
        case = json.loads(path.read_text())
        wire = bytes.fromhex(case["wire"])
        reader = FrameReader()
        if case["error"]:
            with pytest.raises(ConnectionFault) as raised:
                reader.read(wire, 0)
            assert raised.value.code in case["error"], path
            continue
        whole = case["frame"]
        parts = whole["frame_payload"]
        assert reader.read(b"?" + wire, 1) and reader.following == 1 + len(wire), path
        assert (reader.type, reader.flags) == (whole["type"], whole["flags"]), path
        assert (reader.stream_id, reader.size) == (whole["stream_identifier"], whole["length"])
        payload = wire[reader.start - 1 : reader.end - 1].decode("latin-1")
        for key in ("data", "header_block_fragment"):
            assert parts.get(key, payload) == payload, path
        for key in ("window_size_increment", "promised_stream_id", "last_stream_id"):
            assert parts.get(key, reader.value) == reader.value, path


def test_what_is_written_is_read_by_others() -> None:
    made = [
        (settings_frame([(4, 70_000), (1, 0)]), oracle.SettingsFrame(0, {4: 70_000, 1: 0})),
        (u32_frame(8, 3, 0x7FFF_FFFF), oracle.WindowUpdateFrame(3, 0x7FFF_FFFF)),
        (u32_frame(3, 5, 8), oracle.RstStreamFrame(5, 8)),
        (goaway_frame(7, 1, "why"), oracle.GoAwayFrame(0, 7, 1, b"why")),
        (frame(6, 1, 0, b"12345678"), oracle.PingFrame(0, b"12345678", flags=["ACK"])),
        (frame(0, 1, 0x7FFF_FFFF, b"x" * 9000), None),
    ]
    for ours, theirs in made:
        if theirs is not None:
            assert ours == theirs.serialize()
        reader = FrameReader()
        assert reader.read(ours, 0) and reader.following == len(ours)
        assert not any(FrameReader().read(ours[:size], 0) for size in range(len(ours)))


def test_a_frame_too_large_is_refused_by_its_head() -> None:
    with pytest.raises(ConnectionFault) as raised:
        FrameReader().read(b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", 0)
    assert raised.value.code == FRAME_SIZE_ERROR

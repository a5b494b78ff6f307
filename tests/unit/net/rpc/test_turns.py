"""Compressed messages: a call or stream decompresses in a turn of the loop of its own."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from lib.loop_costs import CostRig, _Transport, request

from corvo.net.rpc import envelopes, wire

_PATH = b"/corvo.v1.WorkerService/"
_LINES = b"Content-Type: application/json\r\nContent-Encoding: gzip\r\n"


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the messages that are decompressed."""
    count = [0]
    gunzip = envelopes.gunzip

    def counted(data: bytes, size_max: int) -> bytes:
        count[0] += 1
        return gunzip(data, size_max)

    monkeypatch.setattr(wire, "gunzip", counted)
    monkeypatch.setattr(envelopes, "gunzip", counted)
    return count


def _call(method: bytes, **values: Any) -> bytes:
    body = gzip.compress(json.dumps({**values, "x": "a" * 100_000}).encode())
    return request(b"POST", _PATH + method, body, _LINES)


def test_one_compressed_call_in_each_turn(tmp_path: Path, turns: list[int]) -> None:
    rig = CostRig(tmp_path)
    transport: Any = _Transport()
    connection: Any = rig.server.protocol()
    connection.connection_made(transport)
    for call in (
        _call(b"Enqueue", queue="q"),
        _call(b"StreamLifecycle", enqueues=[{"queue": "q"}]),
        _call(b"GetServerInfo"),
        _call(b"Enqueue", queue=""),
    ):
        connection.data_received(call)
    assert turns == [0], "nothing is decompressed in the turn that reads"
    most = 0
    while rig.loop.soon:
        before = turns[0]
        for _ in range(len(rig.loop.soon)):
            callback, args = rig.loop.soon.popleft()
            callback(*args)
        most = max(most, turns[0] - before)
    assert (turns[0], most) == (4, 1)
    heads = re.findall(rb"HTTP/1.1 (\d+)", b"".join(transport.written))
    assert [int(status) for status in heads] == [200, 200, 200, 400]
    connection.connection_lost(None)

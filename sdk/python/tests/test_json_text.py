"""JSON byte for byte, in both directions."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest
from corvo_client import RawJson
from corvo_client.documents import Deliveries, Job, document
from corvo_client.json_text import decode, encode, raw_member

DIGITS = '{"a":1.10000000000000000000000001,"b":1e400, "b": -0.0,"c":12345678901234567890123}'


def test_raw_json_is_sent_as_it_is() -> None:
    body = {"queue": "q", "payload": RawJson(DIGITS), "more": [RawJson("1.0"), "x"]}
    assert encode(body) == f'{{"queue":"q","payload":{DIGITS},"more":[1.0,"x"]}}'.encode()
    with pytest.raises(ValueError, match="Expecting"):
        RawJson("{")


def test_members_are_found_as_they_were_sent() -> None:
    text = f' {{ "x": [ 1, {{"payload" : {DIGITS} }} ] , "y":2 }} '
    assert raw_member(text, "x", 1, "payload") == DIGITS
    assert raw_member(text, "x", 1, "payload", "b") == "-0.0"
    assert raw_member(text, "y") == "2"
    assert raw_member(text, "z") is raw_member(text, "x", 5) is raw_member(text, "y", "a") is None
    assert raw_member(text) == text.strip()


def test_documents_know_their_text() -> None:
    source = f'{{"jobs":[{{"payload":1}},{{"payload":{DIGITS}}}]}}'
    jobs = document(Deliveries, decode(source.encode()), source).jobs
    assert jobs[1].text("payload") == DIGITS and jobs[1].payload["c"] == 12345678901234567890123
    assert jobs[1].text("tags") is None and jobs[1].tags is None


def test_unknown_members_are_kept_and_misspelled_ones_are_errors() -> None:
    job = Job({"id": "j", "state": "a-new-state", "new": 1})
    assert (job.state, job["new"], job.result) == ("a-new-state", 1, None)
    assert job.new == 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no member 'stat'"):
        job.stat  # type: ignore[attr-defined]  # noqa: B018


def test_plain_values() -> None:
    @dataclass
    class Point:
        x: int
        at: datetime

    class Color(Enum):
        RED = "red"

    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert encode(Point(1, moment)) == b'{"x":1,"at":"2026-01-02T00:00:00+00:00"}'
    assert encode([timedelta(minutes=1), Color.RED, Decimal("1.10")]) == b'[60.0,"red","1.10"]'
    assert encode(UUID(int=1)) == b'"00000000-0000-0000-0000-000000000001"'
    assert encode("ü\ud800") == b'"\xc3\xbc\\ud800"'
    for value in (math.nan, object(), datetime(2026, 1, 2)):
        with pytest.raises((TypeError, ValueError)):
            encode(value)

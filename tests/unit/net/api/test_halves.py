r"""Single surrogates in JSON bodies: they come back as they were, in linear time."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.request_shapes import halves

from corvo.engine.commands.inputs import EnqueueBatchBody, EnqueueBody, FailBody
from corvo.errors import ParseError
from corvo.limits import KIB
from corvo.net.api.halves import find_halves
from corvo.net.api.requests import LogsBody, decode

PIECES = (
    *(rb"\ud800", rb"\uDBFF", rb"\uDc00", rb"\udfff", rb"\uD83d\ude00", rb"\\ud800", rb"\\"),
    *(rb"\ue800", rb"\uE8fF", rb"\uf801", rb"\u0800", rb"\u0041", b"ud800", b"x", rb"\n"),
    *("\ue800".encode(), "\uf8ff".encode(), "€".encode(), "😀".encode()),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map(lambda parts: b'"%b"' % b"".join(parts))


@settings(deadline=None, max_examples=500)
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_bodies_are_what_they_were(texts: list[bytes]) -> None:
    """Parts of a body are the same before and after, as bytes and as texts."""
    body = b"[" + b",".join(texts) + b"]"
    found = find_halves(body)
    meant = json.loads(body)
    if found is None:
        assert not any(re.search("[\ud800-\udfff]", text) for text in meant)
        return
    assert len(found.body) == len(body) and found.restore(found.body) == body
    for text, before in zip(json.loads(found.body), meant, strict=True):
        text.encode()
        if re.search("[\ud800-\udfff]", before):
            with pytest.raises(ParseError, match="half of a surrogate pair"):
                found.restore_text(text)
        else:
            assert found.restore_text(text) == before
    for text in texts:
        at = body.index(text)
        assert found.restore(found.body[at : at + len(text)]) == text


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_kept_values_are_what_they_were(one: bytes, other: bytes) -> None:
    body = decode(b'{"error":%b,"backtrace":%b,"lease_token":"t"}' % (one, other), FailBody)
    assert (bytes(body.error), bytes(body.backtrace)) == (one, other)


@pytest.mark.parametrize("kind", ["batch", "logs", "tags"])
def test_values_deep_in_a_body(kind: str) -> None:
    text = rb'"\udfff \ue800 \\ud800 \uD800"'
    value: Any
    if kind == "batch":
        value = decode(b'{"jobs":[{"queue":"q"},{"payload":%b}]}' % text, EnqueueBatchBody)
        assert value.jobs[0].queue == "q"
        value = value.jobs[1].payload
    elif kind == "logs":
        value = decode(b'{"lines":[{"message":%b,"level":"info"}]}' % text, LogsBody)
        assert value.lines[0].level == "info"
        value = value.lines[0].message
    else:
        value = decode(b'{"queue":"q","tags":{"a":%b}}' % text, EnqueueBody).tags
        value = value["a"]
    assert bytes(value) == text


@pytest.mark.parametrize(
    "body",
    [
        rb'{"queue":"\ud800"}',
        rb'{"tags":{"\udc00":1}}',
        rb'{"depends_on":["a","\uDC00"],"payload":"\ud800"}',
        rb'{"payload":"\ud800","hold":{"reason":"\udfff"}}',
    ],
)
def test_names_and_keys_hold_none(body: bytes) -> None:
    with pytest.raises(ParseError, match="half of a surrogate pair"):
        decode(body, EnqueueBody)


def test_a_body_with_characters_of_all_kinds() -> None:
    """No digit is free to stand for a half."""
    others = b"".join(rb"\u%x8%02x" % (digit, digit) for digit in range(16) if digit != 13)
    assert find_halves(b'"' + others + b'"') is None  # there are no surrogates
    with pytest.raises(ParseError, match="characters of all kinds"):
        decode(b'{"error":"' + others + rb'\ud800"}', FailBody)
    two = re.sub(rb"\\u[e9]\w+", b"", others)
    text = b'"' + two + rb'\ud800\uD800"'
    assert bytes(decode(b'{"error":%b}' % text, FailBody).error) == text


def test_many_forms_of_halves() -> None:
    text = b'"' + halves(200 * KIB) + b'"'
    assert bytes(decode(b'{"error":%b}' % text, FailBody).error) == text

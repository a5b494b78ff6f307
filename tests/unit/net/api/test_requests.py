"""The JSON edge: strict bodies, original bytes, clear refusals."""

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corvo.engine.commands.inputs import (
    AckBody,
    EnqueueBatchBody,
    EnqueueBody,
    FailBody,
    json_string,
    json_value,
    tags_object,
)
from corvo.errors import CorvoError, ParseError, ValidationError
from corvo.net.api.requests import (
    AckBatchBody,
    HeartbeatBody,
    decode,
    decode_object,
    decode_optional,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1,  "a": 2}',
        "123456789012345678901234567890",
        "1.50",
        '"\\u00e9 \\ud83d\\ude00"',
        "null",
        "[ ]",
    ],
)
def test_a_payload_keeps_its_bytes(text: str) -> None:
    body = decode(f'{{"queue": "q", "payload":  {text}  }}'.encode(), EnqueueBody)
    assert bytes(body.payload) == text.encode()


@settings(deadline=None)
@given(JSON, st.booleans())
def test_any_json_is_a_payload(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return
    body = decode(b'{"queue": "q", "payload": ' + encoded + b"}", EnqueueBody)
    assert bytes(body.payload) == encoded


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b'{"queue":"q","payloads":1}', EnqueueBody, ('"payloads"', "did you mean payload?")),
        (b'{"queue":"q","agent":{}}', EnqueueBody, ("agent is not part of this version",)),
        (b'{"chain":{"steps":[{"queu":1}]}}', EnqueueBody, ("did you mean queue?",)),
        (b'{"batch":{"on_sucess":{}}}', EnqueueBatchBody, ("did you mean on_success?",)),
        (b'{"batch":{"on_death":{"pay":1}}}', EnqueueBatchBody, ("did you mean payload?",)),
        (b'{"chain_config":{"step":[]}}', EnqueueBody, ("did you mean steps?",)),
        (b'{"jobs":[{"queue":"q"},{"prioriti":1}]}', EnqueueBatchBody, ("jobs[1]", "priority?")),
        (b'{"jobs":[{"queue":1}]}', EnqueueBatchBody, ("jobs[0].queue", "Expected str")),
        (b'{"jobs":{"x":{"progres":1}}}', HeartbeatBody, ('"progres"', "progress?")),
        (b'{"acks":[{"usage":1}]}', AckBatchBody, ("usage is not part of this version",)),
        (b'{"max_retries":"3"}', EnqueueBody, ("max_retries", "Expected int")),
        (b'{"max_retries":true}', EnqueueBody, ("max_retries", "Expected int")),
        (b"[]", EnqueueBody, ("Expected object",)),
        (b'{"queue":"\\ud800"}', EnqueueBody, ("half of a surrogate",)),
    ],
)
def test_what_is_wrong_is_named(body: bytes, kind: type, words: tuple[str, ...]) -> None:
    with pytest.raises((ValidationError, ParseError)) as refused:
        decode(body, kind)
    for word in words:
        assert word in refused.value.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"queue": "q"} x',
        b'{"queue": "\xff"}',
        b'{"payload": 01}',
        b'{"payload": "\x01"}',
        b'{"payload": NaN}',
        b'{"payload": ' + b"[" * 100_000 + b"}",
    ],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(ParseError):
        decode(body, EnqueueBody)


def test_an_empty_body_may_be_left_out() -> None:
    assert decode_optional(b"", FailBody).retry is None


def test_lone_surrogates_survive_in_kept_values() -> None:
    text = rb'"x\ud800y \ue000 \\ud800 \ud83d\ude00 \uDFFF"'
    body = decode(b'{"error": "a\\u0000b", "backtrace": ' + text + b"}", FailBody)
    assert bytes(body.backtrace) == text
    assert bytes(body.error) == rb'"a\u0000b"'


def test_names_beside_a_lone_surrogate_are_what_they_were() -> None:
    body = decode(rb'{"error":"\ud800","lease_token":"\ud83d\ude00\\ud800 \\\\"}', FailBody)
    assert body.lease_token == "\U0001f600\\ud800 \\\\"


@settings(deadline=None)
@given(st.text(alphabet=st.characters(), max_size=20).map(json.dumps), st.binary(max_size=3))
def test_decoding_never_fails_in_another_way(text: str, junk: bytes) -> None:
    for body in (f'{{"error": {text}, "backtrace": "\\ud800"}}'.encode(), text.encode() + junk):
        try:
            decode(body, FailBody)
        except CorvoError as error:
            assert error.status == 400


def test_values_and_strings() -> None:
    body = decode(b'{"lease_token":"t","result":null,"checkpoint":{"a":1}}', AckBody)
    assert json_value(body.result) == b""
    assert json_value(body.checkpoint) == b'{"a":1}'
    with pytest.raises(ValidationError, match="error must be a string"):
        json_string(decode(b'{"error": 1}', FailBody).error, "error")


def test_tags_become_texts_as_written() -> None:
    body = decode(b'{"tags": {"a": 1.50, "b": true, "c": "x\\u0000"}}', EnqueueBody)
    assert tags_object(body.tags) == b'{"a":"1.50","b":"true","c":"x\\u0000"}'
    for bad in (b"[1]", b"{}", b"null"):
        with pytest.raises(ValidationError, match='tags: "k"'):
            tags_object(decode(b'{"tags": {"k": ' + bad + b"}}", EnqueueBody).tags)
    many = {f"t{n}": "x" for n in range(33)}
    with pytest.raises(ValidationError, match="33 pairs"):
        tags_object(decode(json.dumps({"tags": many}).encode(), EnqueueBody).tags)


@pytest.mark.parametrize("half", ["", r',"batch_id":"\ud800"'])
def test_a_batch_that_is_far_too_long_is_refused_unbuilt(half: str) -> None:
    body = '{"jobs":[' + ",".join(["{}"] * 200_000) + f"]{half}}}"
    tracemalloc.start()
    try:
        with pytest.raises(ValidationError, match="jobs has 200000 items"):
            decode(body.encode(), EnqueueBatchBody)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(body)
    finally:
        tracemalloc.stop()


def test_a_batch_of_jobs_with_many_objects() -> None:
    payload = json.dumps([{}] * 50)
    job = f'{{"payload":{payload}}}'
    body = f'{{"jobs":[{",".join([job] * 1_000)}]}}'
    assert len(decode(body.encode(), EnqueueBatchBody).jobs) == 1_000
    with pytest.raises(ValidationError, match="did you mean queue"):
        decode(body[:-2].encode() + b',{"queu":1}]}', EnqueueBatchBody)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("[[1]]", "list or object inside another one"),
        ('{"a":{}}', "list or object inside another one"),
        ("1e999", "number that is out of range"),
        ("[1,-1e999]", "number that is out of range"),
    ],
)
def test_a_value_that_no_filter_can_have(value: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=f'"f" holds a {reason}') as caught:
        decode_object(f'{{"f":{value}}}'.encode())
    assert caught.value.fields == {"field": "f"}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"jobs":{"a":null}', HeartbeatBody),
        (b'{"jobs":{"a":null},"jobs":5}', HeartbeatBody),
        (b'{"jobs":{"a":null},"jobs":{}}', HeartbeatBody),
        (b'{"acks":[{"job_id":"x","zz":1}],"acks":[]}', AckBatchBody),
        (b'{"acks":[{"job_id":"x","zz":1}]', AckBatchBody),
    ],
)
def test_the_place_of_an_error_is_no_longer_in_the_body(body: bytes, kind: type) -> None:
    with pytest.raises(ValidationError):
        decode(body, kind)

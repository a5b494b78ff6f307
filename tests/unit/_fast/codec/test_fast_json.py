"""What is recognised as a plain request means the same to the general way, byte for byte."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lib.fsm_driver import Driver
from lib.proposing import (
    CLOCK,
    CONFIG,
    ENQUEUES,
    NO_OUTPUT,
    PIPELINE,
    PRODUCER,
    SERVICE,
    WORK,
    WORLD,
)

from corvo import limits, ops
from corvo._fast.codec.fast_json import FastEnqueue, fast_ack
from corvo._fast.codec.layouts import decode_fields, encode_fields
from corvo._fast.http.exchange import Request
from corvo._fast.http.http1 import H1Conn
from corvo.engine.caller import ANONYMOUS
from corvo.engine.commands.inputs import AckBody, EnqueueBody
from corvo.engine.commands.work import WorkCommands
from corvo.engine.service import Service
from corvo.errors import CorvoError, ResultSchemaError
from corvo.net.api.handlers.worker import WorkerVerbs
from corvo.net.api.requests import decode, decode_optional
from corvo.net.http.server import Server
from corvo.platform.ids import JobIds, check_job_id

JOB_ID = "job_01HZX8WQ0000000000000000AA"


CONTEXT = Server(PRODUCER.enqueue, CLOCK, None, WORLD).context


def a_request(body: bytes) -> Request:
    """A request whose client is gone already, as far as answers go."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    connection = H1Conn(CONTEXT)
    (request,) = connection.feed(head + body)
    connection.closed()
    request.params = (JOB_ID,)
    request.caller = ANONYMOUS
    return request


def enqueue(body: bytes) -> bytes | None:
    """What the handler proposes; None if it refuses."""
    WORLD.ops.clear()
    try:
        PRODUCER.enqueue(a_request(body))
    except CorvoError:
        assert not WORLD.ops
        return None
    ((number, op),) = WORLD.ops
    assert number == ops.ENQUEUE.number and op[1] == len(JOB_ID)
    return op[:2] + JOB_ID.encode() + op[2 + len(JOB_ID) :]


def enqueue_generally(body: bytes) -> bytes | None:
    """What the general way proposes."""
    try:
        _, values = ENQUEUES.job_values(decode(body, EnqueueBody))
    except CorvoError:
        return None
    return encode_fields(ops.ENQUEUE.layout, (JOB_ID, *values))


BLANKS = st.text(" \t\n\r", max_size=2)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.sampled_from(
    ["q", "a.b", ".", "..", "a/b", '"', "\\", "\x7f", "é", "x" * 127, "x" * 128, "x" * 129, ""]
)
NUMBERS = st.sampled_from(
    ["0", "-0", "1", "01", "-", "1.", ".5", "1.5", "1e5", "1E+5", "-1.25", "1" * 19, "1.1.1", "+1"]
)
SCALARS = NUMBERS | st.sampled_from(["true", "false", "null", "tru", "nullx", '"', "NaN"])
STRINGS = TEXTS.map(json.dumps) | TEXTS.map(lambda text: json.dumps(text, ensure_ascii=False))
ODD_STRINGS = st.sampled_from(
    [r'"\u0041"', r'"\ud800"', r'"\/"', r'"\b\f\n\r\t"', r'"\x"', '"\t"', '"\x00"', '"\\', '"']
)


def containers(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Lists and objects as text, with blanks and now and then a comma too many."""
    ends = st.sampled_from(["", "", "", ",", "]"])
    lists = st.tuples(BLANKS, st.lists(values, max_size=3), ends).map(
        lambda t: "[" + t[0] + (t[0] + "," + t[0]).join(t[1]) + t[2] + t[0] + "]"
    )
    members = st.tuples(STRINGS | ODD_STRINGS, BLANKS, values).map(
        lambda t: t[0] + t[1] + ":" + t[2]
    )
    objects = st.tuples(BLANKS, st.lists(members, max_size=3), ends).map(
        lambda t: "{" + t[0] + (t[0] + "," + t[0]).join(t[1]) + t[2] + t[0] + "}"
    )
    return lists | objects


VALUES = st.recursive(SCALARS | STRINGS | ODD_STRINGS, containers, max_leaves=6)
NAMES = st.sampled_from(['"queue"', '"payload"', '"payload"', '"priority"', '"queu"', '"\\u0071"'])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bodies that are plain enqueues, or nearly."""
    blank = draw(BLANKS)
    members = [('"queue"', draw(STRINGS)), ('"payload"', draw(VALUES))]
    members += draw(st.lists(st.tuples(NAMES, VALUES | STRINGS), max_size=1))
    members = draw(st.permutations(members))
    inside = ("," + blank).join(name + blank + ":" + blank + value for name, value in members)
    body = (blank + "{" + blank + inside + blank + "}" + blank).encode()
    if draw(st.booleans()):
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.binary(max_size=2)) + body[at + draw(st.integers(0, 2)) :]
    return body


@given(bodies() | st.binary(max_size=40))
@example(b'{"queue":"q","payload":' + b"[" * 70 + b"]" * 70 + b"}")
@example(b'{"queue":"q","payload":' + b'{"a":[' * 30 + b"]}" * 30 + b"}")
@example(b'{"queue":"q","payload":"' + b"x" * (limits.PAYLOAD_SIZE_MAX - 2) + b'"}')
@example(b'{"queue":"q","payload":"' + b"x" * (limits.PAYLOAD_SIZE_MAX - 1) + b'"}')
@example(b'{"queue":"q","payload":"\xc3\xa9"}')
@example(b'{"queue":"q","payload":"\xc3"}')
@example(b'{"queue":"q"}')
@example(b'{"payload":1}')
@example(b"{}")
@example(b"")
def test_enqueue_is_the_same_by_either_way(body: bytes) -> None:
    assert enqueue(body) == enqueue_generally(body)


def test_common_enqueues_are_plain() -> None:
    plain = [
        b'{"queue":"bench","payload":{"data":"xxx","n":[1,-2.5,true,null,{}],"e":[]}}',
        b' {\n "payload" : "a\\"b" ,\r\n\t"queue" : "emails" } \n',
        '{"queue":"q","payload":{"name":"Zoë"}}'.encode(),
    ]
    for body in plain:
        assert FastEnqueue(b"", b"", 1_000).scan(body)


def ack_generally(job_id: str, body: bytes) -> bytes | None:
    try:
        values = WORK.ack_values(check_job_id(job_id), decode_optional(body, AckBody))
    except CorvoError:
        return None
    return encode_fields(ops.ACK.layout, values)


JOB_IDS = st.sampled_from(
    [JOB_ID, "a", "A-_9", "", "a b", "é", "a/b", "x" * 127, "x" * 128, "x" * 129, "___"]
)
TOKENS = st.sampled_from(["1h9qp3w0", "", "x" * 127, "x" * 128, "x" * 129, 'a"b', "é", "a b"])


@given(
    JOB_IDS, TOKENS, st.sampled_from(["{", '{"result":1,', " {"]), st.sampled_from(["}", "} ", ""])
)
def test_ack_is_the_same_by_either_way(job_id: str, token: str, start: str, end: str) -> None:
    body = (start + '"lease_token":' + json.dumps(token, ensure_ascii=False) + end).encode()
    plain = fast_ack(job_id, body)
    assert not plain or plain == ack_generally(job_id, body)


def test_common_acks_are_plain() -> None:
    assert fast_ack(JOB_ID, b'{"lease_token":"1h9qp3w0"}')


ENQUEUE = b'{"queue":"q","payload":{"a":1}}'


def test_an_enqueue_that_says_more_is_not_plain() -> None:
    plain = FastEnqueue(b"", b"", 1_000)
    for more in (b'"wait":"1s"', b'"unique_key":"k"', b'"hold":{}', b'"unknown":1'):
        assert not plain.scan(ENQUEUE[:-1] + b"," + more + b"}")


def test_with_a_key_nothing_takes_the_fast_path() -> None:
    """Each proposes an op that takes effect once."""
    worker = WorkerVerbs(SERVICE, WORK)
    for handler, body, number in (
        (PRODUCER.enqueue, ENQUEUE, ops.ENQUEUE.number),
        (worker.ack, b'{"lease_token":"1h9qp3w0"}', ops.ACK.number),
    ):
        request = a_request(body)
        request.caller = ANONYMOUS.once(b"key", b"fingerprint")
        WORLD.ops.clear()
        handler(request)
        ((outer, op),) = WORLD.ops
        assert outer == ops.IDEMPOTENT.number
        assert decode_fields(ops.IDEMPOTENT.layout, op)[4] == number


def test_a_plain_ack_leaves_out_the_result_that_a_schema_wants() -> None:
    driver = Driver()
    driver.enqueue("job_1", result_schema=b'{"type":"integer"}')
    driver.enqueue("job_2")
    service = Service(CONFIG, CLOCK, driver.machine, PIPELINE, JobIds(CLOCK.random_bytes))
    worker = WorkerVerbs(service, WorkCommands(service, NO_OUTPUT))
    for fetched in (driver.take(), driver.take()):
        WORLD.ops.clear()
        request = a_request(b'{"lease_token":"%s"}' % fetched.token.encode())
        request.params = (fetched.job_id,)
        if fetched.job_id == "job_1":
            with pytest.raises(ResultSchemaError):
                worker.ack(request)
            assert not WORLD.ops
        else:
            worker.ack(request)
            ((number, op),) = WORLD.ops
            values = (fetched.job_id, fetched.token, b"", b"", b"")
            assert (number, op) == (ops.ACK.number, encode_fields(ops.ACK.layout, values))

"""What is fuzzed: functions that get bytes from outside, or from a disk after a crash.

A target may refuse its input with the error it documents. Any other exception, and any broken
promise about what it accepted, is a finding.
"""

import gzip
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.conversations import converse
from lib.odd_ops import apply_odd_ops

from corvo import config, ops
from corvo._fast.codec import keys, protobuf
from corvo._fast.codec.layouts import (
    CodecError,
    decode_fields,
    decode_frame,
    encode_fields,
    encode_frame,
)
from corvo._fast.codec.wal_record import (
    CLEAN_CLOSE,
    ENTRY,
    HARD_STATE,
    Writer,
    find_written_after,
    parse,
)
from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http.http1 import H1Conn
from corvo._fast.http2.connection import PREFACE, H2Conn
from corvo._fast.http2.frames import ConnectionFault, FrameReader
from corvo._fast.http2.frames import frame as http2_frame
from corvo._fast.http2.hpack import Decoder, Encoder
from corvo.consensus.log import CONFIGURATION, Entry
from corvo.consensus.raft.messages import (
    APPEND,
    SNAPSHOT,
    ConfState,
    Message,
    SnapshotMeta,
    decode_message,
    encode_conf_state,
    encode_message,
)
from corvo.consensus.wal.segment import HEAD_SIZE, encode_head, parse_head, scan
from corvo.engine.commands import inputs
from corvo.errors import CorvoError, InvalidName, StorageError
from corvo.model import ErrorRecord, Job, Queue, Worker
from corvo.net.api import requests
from corvo.net.http.server import HttpLimits
from corvo.net.rpc import proto_json
from corvo.net.rpc.envelopes import COMPRESSED, Envelopes, envelope
from corvo.net.rpc.proto_file import load
from corvo.net.rpc.status import RpcError
from corvo.net.rpc.wire import STREAMING
from corvo.storage.data_dir import Identity
from corvo.storage.records import (
    events as event_records,
)
from corvo.storage.records import (
    jobs as job_records,
)
from corvo.storage.records import (
    queues as queue_records,
)

IDENTITY = Identity("0123456789abcdef" * 2, "node-1", "fedcba9876543210")
SEGMENT = 2048
SALT = 7
LAYOUTS = sorted({op.layout for op in vars(ops).values() if isinstance(op, ops.Op)})
TYPES = load("worker.proto")
RPC_TYPES = sorted(TYPES)
STREAMS = sorted(STREAMING)
BODIES = (
    inputs.EnqueueBody,
    inputs.EnqueueBatchBody,
    inputs.FetchBody,
    inputs.AckBody,
    requests.AckBatchBody,
    inputs.FailBody,
    requests.HeartbeatBody,
    inputs.ReleaseBody,
)


class Target(NamedTuple):
    """`run` takes any bytes; `seeds` are inputs that are worth changing."""

    run: Callable[[bytes], None]
    seeds: list[bytes]


# Entries and their ops.


def frame(data: bytes) -> None:
    """A log entry: what is accepted survives another round."""
    try:
        found = decode_frame(data)
    except CodecError:
        return
    assert decode_frame(encode_frame(found)) == found


def fields(data: bytes) -> None:
    """The payload of an op; the first byte chooses which."""
    layout = LAYOUTS[data[0] % len(LAYOUTS)] if data else LAYOUTS[0]
    try:
        values = decode_fields(layout, data[1:])
    except (CodecError, InvalidName):
        return
    assert decode_fields(layout, encode_fields(layout, values)) == values


def op_fields(data: bytes) -> None:
    """Ops with any texts in their fields, applied, flushed and loaded again."""
    apply_odd_ops(data)


def message(data: bytes) -> None:
    """What another node says: it is read in one way only."""
    try:
        found = decode_message(data)
    except CodecError:
        return
    assert encode_message(found) == data


def _messages() -> list[bytes]:
    conf = ConfState(["a", "b"], ["c"], {"c": b"10.0.0.3:7000"})
    entries = [Entry(8, 2, b"x" * 20), Entry(9, 3, encode_conf_state(conf), CONFIGURATION)]
    append = Message(APPEND, "b", from_id="a", term=3, index=7, log_term=2, entries=entries)
    snapshot = Message(SNAPSHOT, "c", from_id="a", term=3, snapshot=SnapshotMeta(5, 2, conf))
    return [encode_message(append), encode_message(snapshot)]


def document(data: bytes) -> None:
    """Rows of the state store; the first byte chooses the family."""
    row = data[1:]
    decoders: list[Callable[[], object]] = [
        lambda: job_records.decode_head("j", row),
        lambda: job_records.decode_body(Job("j"), row),
        lambda: job_records.decode_data(Job("j"), row),
        lambda: queue_records.decode_queue("q", row),
        lambda: job_records.decode_worker("w", row),
        lambda: job_records.decode_error("j", row),
        lambda: job_records.decode_lock(row),
        lambda: event_records.decode_events(1, row),
    ]
    try:
        decoders[data[0] % len(decoders) if data else 0]()
    except (CodecError, StorageError):
        return


def key(data: bytes) -> None:
    """Keys are read back as they were built, and sort as their parts do."""
    size = len(data) // 2
    one, other = (_numbers(half) for half in (data[:size], data[size:]))
    for build, parse_key in (
        (lambda n: keys.pending(n[0], n[1], n[2]), keys.parse_pending),
        (lambda n: keys.finished(n[0], n[1], n[2], n[3]), keys.parse_finished),
    ):
        built = [build(numbers) for numbers in (one, other)]
        parts = [parse_key(made) for made in built]
        assert (built[0] < built[1]) == (parts[0] < parts[1])
        assert (built[0] == built[1]) == (parts[0] == parts[1])
    assert keys.parse_placed(keys.placed(keys.ACTIVE, one[0], one[2])) == (one[0], one[2])
    assert keys.parse_events(keys.events(one[3])) == one[3]
    name = data.decode("utf-8", "replace").replace("\0", "")
    if name:
        assert keys.parse_job(keys.job(name)) == name
        assert keys.parse_queue(keys.queue(name)) == name
        assert keys.parse_error(keys.error(name, one[0])) == (name, one[0])
        assert keys.parse_due(keys.due(one[2], one[3], name)) == (one[2], one[3], name)


def _numbers(data: bytes) -> tuple[int, int, int, int]:
    padded = data[:21].ljust(21, b"\0")
    cuts = (padded[:4], padded[4:5], padded[5:13], padded[13:21])
    number, priority, seq, other = (int.from_bytes(cut, "big") for cut in cuts)
    return number, priority, seq, other


# The log on disk.


def record(data: bytes) -> None:
    """One record anywhere in a buffer: what is accepted is what a writer would write."""
    for offset in range(0, min(len(data), 128), 8):
        found = parse(data, offset, SALT)
        if found is None:
            continue
        writer = Writer(SALT, found.previous, offset)
        again = writer.add(found.kind, found.index, found.term, found.payload, found.durable)
        assert again == data[offset : offset + found.size]
    at = find_written_after(data, 0, len(data), SALT)
    assert at == -1 or parse(data, at, SALT) is not None


def segment(data: bytes) -> None:
    """A whole segment with bytes changed: its records are the first of those that were written,
    or it is refused. Three bytes of input are a place and what is added to the byte there."""
    changed = bytearray(_SEGMENT)
    for at in range(0, len(data) - 2, 3):
        place = int.from_bytes(data[at : at + 2], "big") % len(changed)
        changed[place] = (changed[place] + data[at + 2]) & 0xFF
    for newest in (True, False):
        try:
            head = parse_head(bytes(changed), "s", IDENTITY)
            found = scan(bytes(changed), head, "s", newest=newest)
        except StorageError:
            continue
        assert [r.crc for r in found.records] == _CRCS[: len(found.records)]
        assert HEAD_SIZE <= found.end <= found.torn_end <= len(changed)


def _whole_segment() -> tuple[bytes, list[int]]:
    head, data = encode_head(
        IDENTITY,
        size=SEGMENT,
        number=1,
        first_index=1,
        previous_term=0,
        previous_crc=0,
        salt=SALT,
    )
    writer = Writer(SALT, head.crc, HEAD_SIZE)
    crcs: list[int] = []
    durable = 0
    data += writer.add(HARD_STATE, 0, 1, b"node-1", durable)
    crcs.append(writer.previous)
    for index in range(1, 9):
        durable = writer.offset if index % 3 == 0 else durable
        data += writer.add(ENTRY, index, 1, bytes([index]) * (17 * index), durable)
        crcs.append(writer.previous)
    data += writer.add(CLEAN_CLOSE, 8, 1, b"", writer.offset)
    return data.ljust(SEGMENT, b"\0"), [*crcs, writer.previous]


_SEGMENT, _CRCS = _whole_segment()


# The edge.


def http(data: bytes) -> None:
    """A connection says the same however its bytes are cut, and never breaks."""
    draw = random.Random(len(data))
    cuts = sorted(draw.randrange(len(data) + 1) for _ in range(3))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    whole = _converse([data])
    assert _converse(pieces) == whole
    if len(data) < 400:
        assert _converse([data[i : i + 1] for i in range(len(data))]) == whole


def _converse(pieces: list[bytes]) -> tuple[list[str], list[tuple[str, bytes, bytes]], bool]:
    """What is answered to requests that are all served: served or refused (why may depend on how
    much of a bad line was there to look at), the requests, and whether it was the end."""
    conn = H1Conn(H1Context(HttpLimits(), lambda: 0, lambda: b"now", b"t-"))
    answers: list[str] = []
    requests: list[tuple[str, bytes, bytes]] = []
    for piece in pieces:
        for request in conn.feed(piece):
            requests.append((request.method, request.path, bytes(request.body)))
            request.reply(200)
        assert not conn.has_input
        found = re.findall(r"HTTP/1.1 ([2-5])\d\d ", conn.data_to_send().decode("latin-1"))
        answers += ["served" if digit == "2" else "refused" for digit in found]
    closing = conn.want_close
    conn.eof()
    conn.closed()
    return answers, requests, closing


def http2(data: bytes) -> None:
    """As above, behind the preface; whatever comes, nothing is left when the connection is gone."""
    draw = random.Random(len(data))
    cuts = sorted(draw.randrange(len(data) + 1) for _ in range(3))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert _multiplex(pieces) == _multiplex([data])


def _multiplex(pieces: list[bytes]) -> tuple[list[tuple[str, bytes, bytes]], bool, dict[str, int]]:
    """The requests that were taken, whether it was the end, and why."""
    context = H1Context(HttpLimits(), lambda: 0, lambda: b"now", b"t-")
    conn = H2Conn(context)
    taken: list[Request] = []
    for piece in [PREFACE, *pieces]:
        taken += conn.feed(piece)
        while conn.has_input:
            taken += conn.feed(b"")
    requests = [(request.method, request.path, bytes(request.body)) for request in taken]
    for request in taken:
        if not request.abandoned:
            request.reply(200, b"{}")
    size = len(conn.data_to_send())
    while not conn.want_close and size:
        size = len(conn.data_to_send())
    closing = conn.want_close
    conn.eof()
    conn.closed()
    assert conn.idle and context.bodies_size == 0
    return requests, closing, {k: v for k, v in context.abuse_counters.counts.items() if v}


def frames(data: bytes) -> None:
    """Frames one after the other: each is inside the bytes, and leads on."""
    reader = FrameReader()
    at = 0
    try:
        while reader.read(data, at):
            assert at + 9 <= reader.start <= reader.end <= reader.following <= len(data)
            at = reader.following
    except ConnectionFault:
        pass


def hpack(data: bytes) -> None:
    """Header blocks; the first byte says where the second one begins. What is understood survives
    being written and read by our own two halves."""
    decoder = Decoder(16_384, 65_536)
    cut = 1 + data[0] if data else 0
    for block in (data[1:cut], data[cut:]):
        try:
            found = decoder.decode(block)
        except ConnectionFault:
            return
        assert decoder.table.size <= decoder.table.size_max <= 4096
        pairs = [(field.name, field.value) for field in found or ()]
        encoder = Encoder()
        again = Decoder(65_536, 1 << 20).decode(encoder.start_block() + encoder.encode(pairs))
        assert [(field.name, field.value) for field in again or ()] == pairs


_ASK = b"\x82\x86\x84\x41\x01a"  # GET http://a/
_SEND = b"\x83\x86\x84\x41\x01a"
_HTTP2 = [
    http2_frame(4, 0, 0, b"\0\4\0\0\0\x10"),
    http2_frame(4, 1, 0, b""),
    http2_frame(1, 5, 1, _ASK),
    http2_frame(1, 4, 3, _SEND) + http2_frame(0, 8, 3, b"\2abcd\0\0") + http2_frame(0, 1, 3, b"x"),
    http2_frame(1, 0, 5, _SEND[:3]) + http2_frame(9, 4, 5, _SEND[3:]) + http2_frame(1, 5, 5, b""),
    http2_frame(6, 0, 0, b"12345678") + http2_frame(8, 0, 0, b"\0\0\1\0"),
    http2_frame(3, 0, 3, b"\0\0\0\x08") + http2_frame(2, 0, 1, b"\0\0\0\3\7"),
    http2_frame(7, 0, 0, bytes(8)) + http2_frame(77, 255, 9, b"?"),
]


def body(data: bytes) -> None:
    """The JSON of a request; the first byte chooses the kind. Values keep their bytes."""
    kind = BODIES[data[0] % len(BODIES)] if data else BODIES[0]
    try:
        found = requests.decode(data[1:], kind)
    except CorvoError as error:
        assert error.status == 400 and error.message
        return
    if isinstance(found, inputs.EnqueueBody) and found.payload is not None:
        assert bytes(found.payload) in data


def rpc_message(data: bytes) -> None:
    """A message of the worker service; the first byte chooses type and form. What is accepted
    survives another round in both forms."""
    name = RPC_TYPES[data[0] % len(RPC_TYPES)] if data else RPC_TYPES[0]
    message = TYPES[name]
    read = proto_json.decode if data and data[0] & 0x80 else protobuf.decode
    try:
        values = read(message, data[1:], 1_000)
    except protobuf.ProtobufError as error:
        assert str(error)
        return
    again = protobuf.decode(message, protobuf.encode(message, values), 1_000)
    assert repr(again) == repr(protobuf.decode(message, protobuf.encode(message, again), 1_000))
    # Not each time has a text, and JSON has one NaN where the wire has many.
    if not any(mark in repr(values) for mark in ("seconds", "nanos", ": nan")):
        text = proto_json.encode(message, values)
        assert protobuf.encode(message, proto_json.decode(message, text, 1_000)) == (
            protobuf.encode(message, again)
        )


def enveloped(data: bytes) -> None:
    """A stream of envelopes means the same however its bytes are cut."""
    draw = random.Random(len(data))
    cuts = sorted(draw.randrange(len(data) + 1) for _ in range(3))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert _unwrap([data]) == _unwrap(pieces) == _unwrap([bytes((byte,)) for byte in data])


def _unwrap(pieces: list[bytes]) -> tuple[list[bytes], str]:
    envelopes = Envelopes(1_000, gzip=True)
    found: list[bytes] = []
    try:
        for piece in pieces:
            found += envelopes.feed(piece)
            while envelopes.more:
                found += envelopes.feed(b"")
            assert max(map(len, found), default=0) <= 1_000
        envelopes.finish()
    except RpcError as error:
        return [], error.code
    return found, ""


def lifecycle(data: bytes) -> None:
    """The body of a lifecycle stream; the first byte chooses protocol and form, and whether the
    stream ends. The answers are the same however it is cut."""
    kind = STREAMS[data[0] % len(STREAMS)] if data else STREAMS[0]
    ends = not data or data[0] < 128
    body = data[1:]
    draw = random.Random(len(data))
    cuts = sorted(draw.randrange(len(body) + 1) for _ in range(3))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert converse(kind, [body], ends) == converse(kind, pieces, ends)


def settings(data: bytes) -> None:
    """A configuration file, and the environment beside it."""
    with tempfile.NamedTemporaryFile(suffix=".toml", dir=_SCRATCH) as file:
        Path(file.name).write_bytes(data)
        lines = data.decode("utf-8", "replace").splitlines()
        environ = dict(line.partition("=")[::2] for line in lines)
        environ = {f"CORVO_{name.upper()}": value for name, value in environ.items()}
        environ.pop("CORVO_CONFIG", None)
        for flags in ({"config": file.name}, {}):
            try:
                found = config.load(flags, environ)
            except CorvoError as error:
                assert error.message
                continue
            assert found.bind.loopback or found.insecure


_SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None


SAMPLES = {"s": "text", "b": b"bytes", "u": 300, "i": -1, "q": 7, "t": 1 << 60, "f": True}
SAMPLES |= {"S": ["a", "b"], "B": [b"x", b""], "U": [1, 300], "P": ["ab", "ac"]}
SAMPLES |= {"n": "name", "o": "", "N": ["a", "b"]}


def _samples() -> list[bytes]:
    """One payload of each layout."""
    return [encode_fields(layout, tuple(map(SAMPLES.get, layout))) for layout in LAYOUTS]


def _documents() -> list[bytes]:
    job = Job("j")
    block = event_records.EventBlock()
    block.begin(1, 1)
    for previous in (0, 1):
        block.add(0, "j", "q", previous, b"{}")
    rows = [
        job_records.encode_head(job),
        job_records.encode_body(job),
        job_records.encode_data(job),
        queue_records.encode_queue(Queue(1, "q")),
        job_records.encode_worker(Worker("w")),
        job_records.encode_error(ErrorRecord(1, 0, b"e", b"", 1)),
        job_records.encode_lock("j", 1, b"k"),
        block.done(),
    ]
    return [bytes([number]) + row for number, row in enumerate(rows)]


def _records() -> list[bytes]:
    writer = Writer(SALT, 1, 0)
    return [writer.add(ENTRY, 1, 1, b"x" * 20, 0) + writer.add(CLEAN_CLOSE, 1, 1, b"", 64)]


_POST = b"POST /api/v1/enqueue HTTP/1.1\r\nHost: a\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"


def _rpc_messages() -> list[bytes]:
    item = {"job_id": "j", "lease_token": "t", "usage": {"cost_usd": 0.5, "input_tokens": -1}}
    frame = {"request_id": 5, "queues": ["q"], "fetch_count": 64, "acks": [item, item]}
    beats = {"jobs": {"j": {"progress_json": "{}"}, "k": {}}}
    return [
        bytes((RPC_TYPES.index(name),)) + protobuf.encode(TYPES[name], values)
        for name, values in (("LifecycleStreamRequest", frame), ("HeartbeatRequest", beats))
    ]


def _streams() -> list[bytes]:
    """Bodies of lifecycle streams."""
    item = {"job_id": "j", "lease_token": "t"}
    frames: list[dict[str, Any]] = [
        {"request_id": 1},
        {"request_id": 2, "acks": [item, {}], "fails": [item]},
        {"request_id": 3, "enqueues": [{"queue": "q", "payload_json": "{}"}, {"agent": {}}]},
        {"request_id": 4, "queues": ["q"], "worker_id": "w", "fetch_count": 9},
    ]
    message = TYPES["LifecycleStreamRequest"]
    found = []
    for number, name in enumerate(STREAMS):
        encode = proto_json.encode if name.endswith(b"json") else protobuf.encode
        for chosen in (number, number + 129 - 129 % len(STREAMS)):
            body = b"".join(envelope(encode(message, values)) for values in frames)
            found.append(bytes((chosen,)) + body + envelope(encode(message, {"acks": [{}]})) * 11)
    return found


def _as_json(name: str) -> int:
    """The first byte for a type in JSON."""
    return next(byte for byte in range(128, 256) if RPC_TYPES[byte % len(RPC_TYPES)] == name)


TARGETS: dict[str, Target] = {
    "frame": Target(frame, [encode_frame([(0, b"stamp"), (1, b"x" * 200)]), encode_frame([])]),
    "fields": Target(fields, [bytes([number]) + row for number, row in enumerate(_samples())]),
    "op_fields": Target(op_fields, [random.Random(n).randbytes(90) for n in range(8)]),
    "message": Target(message, _messages()),
    "document": Target(document, _documents()),
    "key": Target(key, [bytes(42), b"\xff" * 42, "äöü".encode() * 5]),
    "record": Target(record, _records()),
    "segment": Target(segment, [b"", b"\0\1\1", b"\1\0\x80\3\0\2"]),
    "http": Target(
        http,
        [
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2,
            _POST + b"Content-Length: 3\r\nConnection: close\r\n\r\nabc",
            _POST + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\na",
            _CHUNKED,
            b"GET http://a:80/%41?b HTTP/1.0\r\nConnection: keep-alive, upgrade\r\n\r\n",
            b"\xbd\xda / HTTP\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"FOO / BAR\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ],
    ),
    "http2": Target(http2, [b"".join(_HTTP2), b"".join(_HTTP2[:3]), b"".join(_HTTP2[::-1])]),
    "frames": Target(frames, _HTTP2),
    "hpack": Target(
        hpack,
        [
            b"\5" + _ASK + b"\x40\x01a\x01b\xbe\xbe",
            b"\3\x20\x3f\xe1\x1f\x82\x10\x03abc\x00\x04\x82\x1c\x64\xbf",
            b"\0\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
        ],
    ),
    "body": Target(
        body,
        [
            b'\0{"queue": "q", "payload": {"a": [1.5e3, "\\ud83d\\ude00"]}, "priority": "high"}',
            b'\1{"jobs": [{"queue": "q", "tags": {"a": 1}, "scheduled_at": "1h"}]}',
            b'\2{"queues": ["q"], "timeout": 0.25, "lease_duration": "1m30s"}',
            b'\6{"jobs": {"j": {"lease_token": "t", "progress": {"current": 1}}}}',
            b'\5{"error": "\\ud800", "retry": false, "retry_after": 5}',
        ],
    ),
    "rpc_message": Target(
        rpc_message,
        [
            *_rpc_messages(),
            bytes((_as_json("EnqueueRequest"),)) + b'{"queue": "q", "maxRetries": "5"}',
            bytes((_as_json("AckBatchRequest"),)) + b'{"items": [{"usage": {"costUsd": 1e3}}]}',
        ],
    ),
    "enveloped": Target(
        enveloped,
        [
            envelope(b"abc") + envelope(b"") + envelope(b"x" * 300),
            envelope(gzip.compress(b"abc" * 100, mtime=0), COMPRESSED) + envelope(b"{}", 2),
        ],
    ),
    "lifecycle": Target(lifecycle, _streams()),
    "settings": Target(
        settings,
        [
            b'bind = "127.0.0.1:80"\ndurable = false\nmax-body-size = 1048576\n',
            b'shutdown-timeout = "1h30m"\nlog-level = "warn"\nnode-id = "n"\n',
            b"bind=[::1]:9\nmax_pending=5\njoin=\n",
        ],
    ),
}

"""The codec of messages against the official one: bytes both ways, JSON both ways, and damage."""

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from corvo._fast.codec import protobuf
from corvo._fast.codec.protobuf import Field, Message, ProtobufError
from corvo.net.rpc import proto_file, proto_json

NET = Path(__file__).parents[4] / "corvo/net/rpc"
ITEMS_MAX = 1_000
TYPES = proto_file.load("worker.proto")
OWN = sorted(name for name in TYPES if name != proto_file.TIMESTAMP)


def _official(folder: Path) -> dict[str, Any]:
    """Message classes as the official compiler and runtime make them."""
    from grpc_tools import protoc

    found = Path(protoc.__file__).parent / "_proto"
    out = folder / "worker.binpb"
    words = ["protoc", f"-I{NET}", f"-I{found}", f"--descriptor_set_out={out}", "--include_imports"]
    assert protoc.main([*words, "worker.proto"]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    names = [f"corvo.v1.{name}" for name in OWN]
    classes = message_factory.GetMessageClassesForFiles([f.name for f in files.file], pool)
    return {name.removeprefix("corvo.v1."): classes[name] for name in names}


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _official(tmp_path_factory.mktemp("proto"))


# ---- the file ----

KINDS = {
    FieldDescriptor.TYPE_STRING: protobuf.STRING,
    FieldDescriptor.TYPE_INT32: protobuf.INT32,
    FieldDescriptor.TYPE_INT64: protobuf.INT64,
    FieldDescriptor.TYPE_UINT64: protobuf.UINT64,
    FieldDescriptor.TYPE_BOOL: protobuf.BOOL,
    FieldDescriptor.TYPE_DOUBLE: protobuf.DOUBLE,
    FieldDescriptor.TYPE_MESSAGE: protobuf.MESSAGE,
}


@pytest.mark.parametrize("name", OWN)
def test_the_file_is_read_as_the_official_compiler_reads_it(
    official: dict[str, Any], name: str
) -> None:
    theirs = [
        (
            f.number,
            f.name,
            KINDS[f.type],
            f.is_repeated,
            f.has_presence and f.type != FieldDescriptor.TYPE_MESSAGE,
        )
        for f in official[name].DESCRIPTOR.fields
    ]
    ours = [(f.number, f.name, f.kind, f.repeated, f.optional) for f in TYPES[name].fields]
    assert ours == sorted(theirs)
    for field in TYPES[name].fields:
        their = official[name].DESCRIPTOR.fields_by_name[field.name]
        if field.is_map:
            assert field.message is not None
            assert their.message_type.GetOptions().map_entry
            value = field.message.fields[1].message
            assert value is not None
            assert value.name == their.message_type.fields_by_name["value"].message_type.name
        elif field.message is not None:
            assert field.message.name.rpartition(".")[2] == their.message_type.name


@pytest.mark.parametrize(
    "statement", ["bytes a = 1;", "repeated int32 a = 1;", "map<int32, A> a = 1;", "a = 1;"]
)
def test_what_the_reader_of_files_does_not_know(statement: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        proto_file.parse(f"message A {{ {statement} }}")


# ---- values ----

TEXTS = st.text(max_size=8)
SCALARS = {
    protobuf.STRING: TEXTS,
    protobuf.INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    protobuf.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    protobuf.UINT64: st.integers(0, (1 << 64) - 1),
    protobuf.BOOL: st.booleans(),
    protobuf.DOUBLE: st.floats(),
}
STAMPS = st.fixed_dictionaries(
    {}, optional={"seconds": st.integers(1, 253_402_300_799), "nanos": st.integers(1, 999_999_999)}
)


def _is_default(value: Any) -> bool:
    return not value and not (isinstance(value, float) and math.copysign(1, value) < 0)


def of_field(field: Field) -> st.SearchStrategy[Any]:
    if field.is_map:
        assert field.message is not None
        return st.dictionaries(TEXTS, of_field(field.message.fields[1]), min_size=1, max_size=3)
    one = SCALARS[field.kind] if field.message is None else of_message(field.message)
    if field.repeated:
        return st.lists(one, min_size=1, max_size=3)
    if field.optional or field.message is not None:
        return one
    return one.filter(lambda value: not _is_default(value))


def of_message(message: Message) -> st.SearchStrategy[dict[str, Any]]:
    if message.name == proto_file.TIMESTAMP:
        return STAMPS
    fields = {field.name: of_field(field) for field in message.fields}
    return st.fixed_dictionaries({}, optional=fields)


def fill(theirs: Any, message: Message, values: dict[str, Any]) -> Any:
    """The same message for the official runtime."""
    theirs.SetInParent()
    for field in message.fields:
        if field.name not in values:
            continue
        value = values[field.name]
        if field.is_map:
            assert field.message is not None and field.message.fields[1].message is not None
            for key, item in value.items():
                fill(getattr(theirs, field.name)[key], field.message.fields[1].message, item)
        elif field.message is not None and field.repeated:
            for item in value:
                fill(getattr(theirs, field.name).add(), field.message, item)
        elif field.message is not None:
            fill(getattr(theirs, field.name), field.message, value)
        elif field.repeated:
            getattr(theirs, field.name).extend(value)
        else:
            setattr(theirs, field.name, value)
    return theirs


def read(theirs: Any, message: Message) -> dict[str, Any]:
    """A message of the official runtime as a dict."""
    values: dict[str, Any] = {}
    for field in message.fields:
        value = getattr(theirs, field.name)
        if field.is_map:
            assert field.message is not None and field.message.fields[1].message is not None
            of = field.message.fields[1].message
            values[field.name] = {key: read(item, of) for key, item in value.items()}
        elif field.message is not None and field.repeated:
            values[field.name] = [read(item, field.message) for item in value]
        elif field.message is not None:
            if theirs.HasField(field.name):
                values[field.name] = read(value, field.message)
            continue
        elif field.repeated:
            values[field.name] = list(value)
        elif field.optional:
            if theirs.HasField(field.name):
                values[field.name] = value
            continue
        else:
            values[field.name] = value
        if _is_default(values[field.name]):
            del values[field.name]
    return values


MESSAGES = st.sampled_from(OWN).flatmap(
    lambda name: st.tuples(st.just(name), of_message(TYPES[name]))
)
# The official runtime drops an entry of a map that holds an unknown field, others do not; and in
# types without fields it takes field 0.
COMPARED = MESSAGES.filter(
    lambda case: bool(TYPES[case[0]].fields) and not any(f.is_map for f in TYPES[case[0]].fields)
)


def same(first: Any, second: Any) -> bool:
    """Equality where NaN is NaN, and zero has a sign."""
    return repr(first) == repr(second) or _sorted(first) == _sorted(second)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((key, _sorted(item)) for key, item in value.items())
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return repr(value)


@settings(deadline=None, max_examples=150)
@given(MESSAGES)
def test_bytes_both_ways(official: dict[str, Any], case: tuple[str, dict[str, Any]]) -> None:
    name, values = case
    message = TYPES[name]
    theirs = fill(official[name](), message, values)
    data = protobuf.encode(message, values)
    assert same(read(official[name].FromString(data), message), values)
    assert same(protobuf.decode(message, theirs.SerializeToString(), ITEMS_MAX), values)
    assert same(protobuf.decode(message, data, ITEMS_MAX), values)
    if not any(field.is_map for field in message.fields):
        assert data == theirs.SerializeToString(deterministic=True)


@settings(deadline=None, max_examples=150)
@given(MESSAGES, st.booleans())
def test_json_both_ways(
    official: dict[str, Any], case: tuple[str, dict[str, Any]], keep_names: bool
) -> None:
    name, values = case
    message = TYPES[name]
    theirs = fill(official[name](), message, values)
    text = json_format.MessageToJson(theirs, preserving_proto_field_name=keep_names)
    assert same(proto_json.decode(message, text.encode(), ITEMS_MAX), values)
    data = proto_json.encode(message, values)
    assert same(read(json_format.Parse(data, official[name]()), message), values)
    ours = json.loads(data)
    assert same(ours, json_format.MessageToDict(theirs))


def damaged(draw: st.DrawFn, name: str, values: dict[str, Any]) -> bytes:
    """Bytes of a message with some of it changed, cut, repeated, or of another type."""
    data = bytearray(protobuf.encode(TYPES[name], values))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        action = draw(st.sampled_from(("set", "cut", "insert", "append", "other")))
        if action == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif action == "cut":
            del data[at:]
        elif action == "insert":
            data[at:at] = draw(st.binary(max_size=12))
        elif action == "append":
            data += protobuf.encode(TYPES[name], draw(of_message(TYPES[name])))
        else:
            other = draw(st.sampled_from(OWN))
            data += protobuf.encode(TYPES[other], draw(of_message(TYPES[other])))
    return bytes(data)


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_damage_means_the_same_to_both(official: dict[str, Any], data: st.DataObject) -> None:
    name, values = data.draw(COMPARED)
    wire = data.draw(st.composite(damaged)(name, values))
    try:
        theirs = read(official[name].FromString(wire), TYPES[name])
    except DecodeError:
        with pytest.raises(ProtobufError):
            protobuf.decode(TYPES[name], wire, ITEMS_MAX)
        return
    assert same(protobuf.decode(TYPES[name], wire, ITEMS_MAX), theirs)


@pytest.mark.parametrize(
    "wire",
    [
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2**64 - 1
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",  # one bit more
        b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",  # eleven bytes
        b"\x08\x81\x80\x80\x80\x00",  # longer than needed
        b"\x88\x80\x80\x80\x00\x01",  # so is the tag
        b"\x00\x01",  # field 0
        b"\x0b\x10\x01\x0c",  # a group in place of a number
        b"\x93\x01\x9b\x01\x9c\x01\x94\x01",  # groups in groups
        b"\x93\x01\x9b\x01\x94\x01\x9c\x01",  # crossed
        b"\x93\x01",  # without end
        b"\x0c",  # an end without beginning
        b"\x0e\x01",  # wire type 6
        b"\x0f\x01",
        b"\x0d\x01\x02\x03\x04",  # four bytes for a number
        b"\x0d\x01\x02\x03",
        b"\x12\x05abc",  # cut off
        b"\x22\x02\xc3\x28",  # not UTF-8
        b"\x22\x03\xed\xa0\x80",  # half of a surrogate pair
        b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x18\x00",  # -1, then the default
    ],
)
def test_odd_bytes_mean_the_same_to_both(official: dict[str, Any], wire: bytes) -> None:
    name = "LifecycleStreamResponse"
    try:
        theirs = read(official[name].FromString(wire), TYPES[name])
    except DecodeError:
        with pytest.raises(ProtobufError):
            protobuf.decode(TYPES[name], wire, ITEMS_MAX)
        return
    assert same(protobuf.decode(TYPES[name], wire, ITEMS_MAX), theirs)


def test_entries_of_maps() -> None:
    message = TYPES["HeartbeatResponse"]
    for wire, jobs in (
        (b"\x0a\x00", {"": {}}),
        (b"\x0a\x03\x0a\x01a", {"a": {}}),
        (b"\x0a\x02\x1a\x00", {"": {}}),  # an unknown field inside
        (b"\x0a\x08\x12\x03\x0a\x01x\x0a\x01a", {"a": {"status": "x"}}),  # the value first
        (b"\x0a\x03\x0a\x01a\x0a\x05\x0a\x01a\x12\x00", {"a": {}}),
    ):
        assert protobuf.decode(message, wire, ITEMS_MAX) == {"jobs": jobs}


def test_elements_are_bounded() -> None:
    message = TYPES["LifecycleStreamRequest"]
    for wire in (b"\x12\x00", b"\x3a\x00"):
        assert protobuf.decode(message, wire * 10, 10)
        with pytest.raises(ProtobufError, match="more than 10 elements"):
            protobuf.decode(message, wire * 11, 10)
    for text in (b'{"queues":["","",""]}', b'{"acks":[{},{},{}]}'):
        assert proto_json.decode(message, text, 3)
        with pytest.raises(ProtobufError, match="more than 2 elements"):
            proto_json.decode(message, text, 2)
    with pytest.raises(ProtobufError, match="more than 1 elements"):
        proto_json.decode(TYPES["HeartbeatRequest"], b'{"jobs":{"a":{},"b":{}}}', 1)


def test_depth_is_bounded() -> None:
    message = TYPES["AckRequest"]
    for wire in (b"\x93\x01" * 1_000_000, b"\x93\x01" * 150 + b"\x94\x01" * 150):
        with pytest.raises(ProtobufError, match="nested too deeply"):
            protobuf.decode(message, wire, ITEMS_MAX)
    with pytest.raises(ProtobufError, match="nested too deeply"):
        proto_json.decode(message, b'{"x":' + b"[" * 1_000_000, ITEMS_MAX)


JSON_CASES = [
    ("LifecycleStreamRequest", text)
    for text in (
        '{"requestId": "18446744073709551615"}',
        '{"requestId": 18446744073709551616}',
        '{"requestId": -1}',
        '{"requestId": 1.0}',
        '{"requestId": 1.5}',
        '{"requestId": "1e3"}',
        '{"requestId": "x"}',
        '{"requestId": true}',
        '{"request_id": "7"}',
        '{"requestId": null, "queues": null, "acks": null}',
        '{"queues": ["a", null]}',
        '{"queues": "a"}',
        '{"queues": [1]}',
        '{"unknown": {"deep": [1]}, "fetchCount": -3}',
        '{"fetchCount": 2147483648}',
        '{"acks": [{"jobId": "a", "usage": {"costUsd": "NaN", "inputTokens": "-5"}}]}',
        '{"acks": [{"usage": {"costUsd": "1.5"}}, {"usage": {"costUsd": 1e400}}]}',
        '{"acks": [{"usage": {"costUsd": -0.0}}]}',
        '{"acks": {}}',
        "null",
        "",
        "{",
    )
] + [
    ("EnqueueRequest", '{"maxRetries": 0}'),
    ("EnqueueRequest", '{"maxRetries": null}'),
    ("EnqueueRequest", '{"scheduledAt": "2026-01-02T03:04:05.678Z"}'),
    ("EnqueueRequest", '{"scheduledAt": "1970-01-01T00:00:00Z"}'),
    ("EnqueueRequest", '{"scheduledAt": "yesterday"}'),
    ("EnqueueRequest", '{"scheduledAt": 5}'),
    ("FailRequest", '{"retry": false, "providerError": false}'),
    ("FailRequest", '{"providerError": "true"}'),
    ("FailRequest", '{"providerError": 1}'),
    ("HeartbeatRequest", '{"jobs": {"a": {}, "b": {"progressJson": "{}"}}}'),
    ("HeartbeatRequest", '{"jobs": {"a": null}}'),
    ("HeartbeatRequest", '{"jobs": []}'),
]


@pytest.mark.parametrize(("name", "text"), JSON_CASES)
def test_odd_json_means_the_same_to_both(official: dict[str, Any], name: str, text: str) -> None:
    try:
        parsed = json_format.Parse(text, official[name](), ignore_unknown_fields=True)
    except json_format.ParseError:
        with pytest.raises(ProtobufError):
            proto_json.decode(TYPES[name], text.encode(), ITEMS_MAX)
        return
    assert same(proto_json.decode(TYPES[name], text.encode(), ITEMS_MAX), read(parsed, TYPES[name]))


@pytest.mark.parametrize("text", ['{"requestId": 1, "request_id": 2}', "[]"])
def test_json_that_only_we_refuse(text: str) -> None:
    with pytest.raises(ProtobufError):
        proto_json.decode(TYPES["LifecycleStreamRequest"], text.encode(), ITEMS_MAX)


def test_the_official_runtime_is_for_tests_only() -> None:
    importlib.import_module("corvo.net.rpc.proto_json")
    assert "google" not in {name.partition(".")[0] for name in vars(proto_json)}
    assert sys.modules["google.protobuf"] is not None


@pytest.mark.parametrize(
    "field", [b"\x78\x00", b"\x10\x00", b"\x7b\x7c"], ids=["unknown", "repeated", "group"]
)
def test_fields_are_bounded(field: bytes) -> None:
    """A field of two bytes takes as much time as a long one."""
    assert protobuf.decode(TYPES["FailRequest"], field * 80, 10) == {}
    with pytest.raises(ProtobufError, match="more than 160 fields"):
        protobuf.decode(TYPES["FailRequest"], field * 161, 10)


def test_fields_in_a_group_are_bounded() -> None:
    with pytest.raises(ProtobufError, match="more than 160 fields"):
        protobuf.decode(TYPES["FailRequest"], b"\x7b" + b"\x78\x00" * 160 + b"\x7c", 10)

"""Messages as bytes: what comes back is what was sent, and nonsense is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo._fast.codec.layouts import CodecError, encode_fields
from corvo.consensus.log import CONFIGURATION, FRAME, Entry
from corvo.consensus.raft.messages import (
    APPEND,
    APPEND_REPLY,
    READ_INDEX_REPLY,
    SNAPSHOT,
    VOTE,
    ConfState,
    Message,
    SnapshotMeta,
    decode_conf_state,
    decode_message,
    decode_snapshot,
    encode_conf_state,
    encode_message,
    encode_snapshot,
)

numbers = st.integers(0, (1 << 64) - 1)
indexes = st.integers(0, 1 << 62)
ids = st.text(min_size=1, max_size=12)


@st.composite
def conf_states(draw: st.DrawFn) -> ConfState:
    members = draw(st.lists(ids, unique=True, max_size=7))
    split = draw(st.integers(0, len(members)))
    contexts = {name: draw(st.binary(max_size=10)) for name in members}
    return ConfState(members[:split], members[split:], contexts)


@st.composite
def entries(draw: st.DrawFn, index: int) -> list[Entry]:
    found: list[Entry] = []
    for i in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from([FRAME, CONFIGURATION]))
        data = draw(st.binary(max_size=30))
        if kind == CONFIGURATION:
            data = encode_conf_state(draw(conf_states()))
        found.append(Entry(index + 1 + i, draw(numbers), data, kind))
    return found


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.integers(1, READ_INDEX_REPLY))
    index = draw(indexes)
    snapshot = None
    if kind == SNAPSHOT:
        conf = draw(conf_states())
        snapshot = SnapshotMeta(draw(st.integers(1, 1 << 62)), draw(numbers), conf)
    return Message(
        kind,
        draw(ids),
        from_id=draw(ids),
        term=draw(numbers),
        index=index,
        log_term=draw(numbers),
        commit=draw(numbers),
        entries=draw(entries(index)) if kind == APPEND else [],
        reject=draw(st.booleans()),
        reject_hint=draw(numbers),
        session=draw(numbers),
        round=draw(numbers),
        force=draw(st.booleans()),
        context=draw(st.binary(max_size=20)),
        snapshot=snapshot,
    )


PLAIN = (
    "type to_id from_id term index log_term commit reject reject_hint session round force context"
)


def values(message: Message) -> list[object]:
    found: list[object] = [getattr(message, name) for name in PLAIN.split()]
    found += [(e.index, e.term, e.kind, e.data) for e in message.entries]
    snapshot = message.snapshot
    if snapshot is not None:
        found += [snapshot.index, snapshot.term, encode_conf_state(snapshot.conf)]
    return found


@given(messages())
def test_messages_come_back(message: Message) -> None:
    data = encode_message(message)
    again = decode_message(data)
    assert values(again) == values(message)
    assert encode_message(again) == data
    assert repr(again) == repr(message)


@given(messages(), st.integers(0, 400), st.integers(0, 255))
def test_damaged_messages_are_refused_or_read(message: Message, at: int, byte: int) -> None:
    data = bytearray(encode_message(message))
    data[at % len(data)] = byte
    try:
        again = decode_message(bytes(data))
    except CodecError:
        return
    assert encode_message(again) == bytes(data)


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_read(data: bytes) -> None:
    try:
        message = decode_message(data)
    except CodecError:
        return
    assert encode_message(message) == data


@given(conf_states())
def test_configurations_come_back(conf: ConfState) -> None:
    again = decode_conf_state(encode_conf_state(conf))
    assert (again.voters, again.learners) == (conf.voters, conf.learners)
    assert again.contexts == conf.contexts


def raw(kind: int = APPEND, **changes: object) -> bytes:
    """A message with any values in its fields."""
    fields: dict[str, object] = {
        "type": kind,
        "from_id": "A",
        "to_id": "B",
        "term": 1,
        "index": 1,
        "log_term": 1,
        "commit": 0,
        "terms": [],
        "kinds": [],
        "data": [],
        "reject": False,
        "reject_hint": 0,
        "session": 0,
        "round": 0,
        "force": False,
        "context": b"",
        "snapshot": b"",
    }
    assert changes.keys() <= fields.keys()
    return encode_fields("ussuuuuUUBfuuufbb", tuple((fields | changes).values()))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (raw(0), "unknown message type 0"),
        (raw(11), "unknown message type 11"),
        (raw(terms=[1]), "have different lengths"),
        (raw(terms=[1], kinds=[0]), "have different lengths"),
        (raw(terms=[1], kinds=[2], data=[b""]), "unknown kind 2"),
        (raw(terms=[1], kinds=[1], data=[b"\x01"]), "field"),
        (raw(APPEND_REPLY, terms=[1], kinds=[0], data=[b""]), "only an append has entries"),
        (raw(SNAPSHOT), "exactly a snapshot message"),
        (raw(VOTE, snapshot=b"x"), "exactly a snapshot message"),
        (raw() + b"\0", "bytes"),
        (raw()[:-1], "field"),
    ],
)
def test_nonsense_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        decode_message(data)


@pytest.mark.parametrize(
    ("voters", "learners", "contexts"),
    [
        (["B", "A"], [], [b"", b""]),
        (["A"], ["C", "B"], [b"", b"", b""]),
        (["A"], ["A"], [b"", b""]),
        (["A", "A"], [], [b"", b""]),
        (["A"], [], []),
        (["A"], [], [b"", b""]),
    ],
)
def test_odd_configurations_are_refused(
    voters: list[str], learners: list[str], contexts: list[bytes]
) -> None:
    with pytest.raises(CodecError):
        decode_conf_state(encode_fields("SSB", (voters, learners, contexts)))


def test_a_snapshot_of_nothing_is_refused() -> None:
    data = encode_snapshot(SnapshotMeta(0, 0, ConfState([])))
    with pytest.raises(CodecError, match="an index above 0"):
        decode_snapshot(data)

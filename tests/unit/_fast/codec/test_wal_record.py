"""The record codec: what is written is read back, and nothing else is taken for a record."""

from hypothesis import given, settings
from hypothesis import strategies as st

from corvo._fast.codec.wal_record import (
    ENTRY,
    HARD_STATE,
    RECORD_SIZE_MIN,
    SEGMENT_END,
    Writer,
    crc32c,
    find_written_after,
    parse,
    record_size,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
PAYLOADS = st.binary(max_size=100)
no_deadline = settings(deadline=None, max_examples=60)


def test_golden_bytes() -> None:
    writer = Writer(0x01020304, 0xAABBCCDD, 80)
    data = writer.add(ENTRY, 7, 3, b"payload", 40)
    assert data.hex() == (
        "07000000"
        "01"
        "00"
        "0000"
        "0700000000000000"
        "0300000000000000"
        "28000000"
        "ddccbbaa"
        "7061796c6f6164"
        "0000000000"
        "3c980cfc"
    )
    assert writer.offset == 80 + len(data)


def test_crc32c_is_castagnoli() -> None:
    assert crc32c(0, b"123456789") == 0xE3069283


@given(
    salt=U32,
    previous=U32,
    index=U64,
    term=U64,
    durable=U32,
    payload=PAYLOADS,
    kind=st.integers(ENTRY, SEGMENT_END + 1),
)
@no_deadline
def test_round_trip(
    salt: int, previous: int, index: int, term: int, durable: int, payload: bytes, kind: int
) -> None:
    writer = Writer(salt, previous, 0)
    data = writer.add(kind, index, term, payload, durable)
    record = parse(data, 0, salt)
    assert record is not None
    assert (record.kind, record.index, record.term) == (kind, index, term)
    assert (record.durable, record.previous, record.payload) == (durable, previous, payload)
    assert record.crc == writer.previous
    assert record.size == len(data) == record_size(len(payload)) == writer.offset
    assert len(data) % 8 == 0


@given(payload=PAYLOADS, data=st.data())
@no_deadline
def test_a_flipped_byte_is_noticed(payload: bytes, data: st.DataObject) -> None:
    record = bytearray(Writer(1, 2, 0).add(ENTRY, 3, 4, payload, 0))
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] ^= data.draw(st.integers(1, 255))
    assert parse(bytes(record), 0, 1) is None


@given(payload=PAYLOADS)
@no_deadline
def test_a_prefix_is_no_record(payload: bytes) -> None:
    record = Writer(1, 2, 0).add(ENTRY, 3, 4, payload, 0)
    for size in range(len(record)):
        assert parse(record[:size], 0, 1) is None
        in_zeros = record[:size] + bytes(len(record) - size + 16)
        assert in_zeros.startswith(record) or parse(in_zeros, 0, 1) is None


@given(data=st.binary(max_size=200), offset=st.integers(-8, 220), salt=U32)
@no_deadline
def test_garbage_never_raises(data: bytes, offset: int, salt: int) -> None:
    parse(data, offset, salt)
    find_written_after(data, 0, len(data), salt)


def test_zeros_and_another_salt_are_no_record() -> None:
    assert parse(bytes(1000), 0, 0) is None
    record = Writer(1, 2, 0).add(ENTRY, 3, 4, b"data", 0)
    assert parse(record, 0, 2) is None


def test_a_giant_length_is_no_record() -> None:
    record = bytearray(Writer(1, 2, 0).add(ENTRY, 3, 4, b"data", 0))
    record[0:4] = b"\xff\xff\xff\xff"
    assert parse(bytes(record), 0, 1) is None


def test_only_a_later_write_proves_that_an_offset_was_on_disk() -> None:
    writer = Writer(9, 0, 0)
    first = writer.add(HARD_STATE, 0, 1, b"n", 0)
    same_write = writer.add(ENTRY, 1, 1, b"a", 0)
    later_write = writer.add(ENTRY, 2, 1, b"b", len(first) + len(same_write))
    damaged = bytes(len(first))
    together = damaged + same_write
    assert find_written_after(together, 0, len(together), 9) == -1
    separate = damaged + same_write + later_write
    assert find_written_after(separate, 0, len(separate), 9) == len(together)
    assert find_written_after(separate, 0, len(separate), 8) == -1


def test_record_size() -> None:
    assert record_size(0) == RECORD_SIZE_MIN
    assert [record_size(n) for n in (4, 5, 12, 13)] == [40, 48, 48, 56]

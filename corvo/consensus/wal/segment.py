"""Format of a log segment: its head, and which records are valid after a crash.

A segment is a file of fixed size, filled with zeros before its first use. Its name is
`<number>-<first index>.wal` in decimal. Numbers increase by one; the first index can decrease after
a truncation that reached into an older segment. The fields of the head are little-endian:

    offset  size  field
    0       8     "CORVOWAL"
    8       4     format       1
    12      4     size         size of the file
    16      16    cluster id
    32      8     incarnation  incarnation of the node
    40      8     number
    48      8     first index  index of the first entry written to this segment
    56      8     previous term   term of the entry before it
    64      4     previous CRC    CRC of the last record of the previous segment; 0 in the first
    68      4     salt         random, new for each use of the file
    72      4     zero
    76      4     CRC32C of the head up to here

Records (`corvo._fast.codec.wal_record`) start at offset 80. The first is the hard state, so that
the deletion of old segments does not delete term and vote. A segment with a successor ends with a
segment end record, and the head of the successor repeats the CRC of that record.

Bytes after the last valid record are a torn write, and are cut off, only in the newest segment, and
only if no later record shows that this offset was on disk before it was written. Everything else is
damage: cutting there would lose acknowledged entries, so the server does not start.
"""

import re
import struct
from typing import NamedTuple

from corvo._fast.codec.wal_record import SEGMENT_END, Record, crc32c, find_written_after, parse
from corvo.errors import StorageError
from corvo.storage.data_dir import Identity

HEAD_SIZE = 80
FORMAT = 1
_MAGIC = b"CORVOWAL"
_HEAD = struct.Struct("<8sII16s8sQQQIII")
_NAME = re.compile(r"(\d{8,})-(\d{20})\.wal")


class Head(NamedTuple):
    """The fields of the head of a segment, and its CRC, which the first record continues."""

    size: int
    number: int
    first_index: int
    previous_term: int
    previous_crc: int
    salt: int
    crc: int


class Scan(NamedTuple):
    """The valid records of a segment, and their end."""

    records: list[Record]
    end: int
    torn_end: int
    """End of a torn write after `end`; equal to `end` if there is none."""
    crc: int
    """CRC of the last record, or of the head if there is no record."""
    sealed: bool


def segment_name(number: int, first_index: int) -> str:
    """The file name of a segment; names sort by number."""
    return f"{number:08}-{first_index:020}.wal"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Parse a file name into number and first index; None if it is not a segment."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def encode_head(
    identity: Identity,
    *,
    size: int,
    number: int,
    first_index: int,
    previous_term: int,
    previous_crc: int,
    salt: int,
) -> tuple[Head, bytes]:
    """Create the head of a new segment, as a value and as bytes."""
    data = _HEAD.pack(
        _MAGIC,
        FORMAT,
        size,
        bytes.fromhex(identity.cluster_id),
        bytes.fromhex(identity.incarnation),
        number,
        first_index,
        previous_term,
        previous_crc,
        salt,
        0,
    )
    crc = crc32c(0, data)
    head = Head(size, number, first_index, previous_term, previous_crc, salt, crc)
    return head, data + crc.to_bytes(4, "little")


def parse_head(data: bytes, path: str, identity: Identity) -> Head:
    """Parse a head.

    Raises StorageError if it is damaged, or belongs to another format, cluster or node."""
    if len(data) < HEAD_SIZE or not data.startswith(_MAGIC):
        raise _damage(path, 0, "this is not a log segment")
    (_, version, size, cluster, incarnation, number, first, term, previous_crc, salt, _) = (
        _HEAD.unpack_from(data)
    )
    if version != FORMAT:
        raise StorageError(
            f"{path}: log format {version}; this version of the server supports format {FORMAT}",
            path=path,
        )
    crc = crc32c(0, data[: _HEAD.size])
    if data[_HEAD.size : HEAD_SIZE] != crc.to_bytes(4, "little"):
        raise _damage(path, 0, "the CRC of the head does not match")
    if cluster.hex() != identity.cluster_id or incarnation.hex() != identity.incarnation:
        raise StorageError(
            f"{path}: the segment belongs to cluster {cluster.hex()}, incarnation "
            f"{incarnation.hex()}, but this is cluster {identity.cluster_id}, incarnation "
            f"{identity.incarnation}",
            path=path,
        )
    return Head(size, number, first, term, previous_crc, salt, crc)


def scan(data: bytes, head: Head, path: str, *, newest: bool) -> Scan:
    """Parse a whole segment. Raises StorageError for damage, as the module docstring defines it."""
    if len(data) != head.size:
        raise _damage(path, len(data), f"the file should have {head.size} bytes")
    records: list[Record] = []
    offset, crc = HEAD_SIZE, head.crc
    while True:
        record = parse(data, offset, head.salt)
        if record is None or record.previous != crc:
            break
        records.append(record)
        offset += record.size
        crc = record.crc
        if record.kind == SEGMENT_END:
            return Scan(records, offset, offset, crc, sealed=True)
    if not newest:
        raise _damage(path, offset, "no valid record here, but newer segments exist")
    rest_size = len(data) - offset
    if data[offset:] == bytes(rest_size):
        return Scan(records, offset, offset, crc, sealed=False)
    torn_end = len(data.rstrip(b"\0"))
    later = find_written_after(data, offset, len(data), head.salt)
    if later >= 0:
        raise _damage(
            path, offset, f"no valid record here, but the record at {later} was written later"
        )
    return Scan(records, offset, torn_end, crc, sealed=False)


def _damage(path: str, offset: int, reason: str) -> StorageError:
    return StorageError(
        f"{path}: the log is damaged at offset {offset}: {reason}; the server does not start, "
        "because acknowledged jobs could be lost",
        path=path,
        offset=offset,
    )

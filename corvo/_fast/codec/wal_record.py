"""Records of the write-ahead log: the smallest unit that survives a crash whole or not at all.

A record is, in little-endian order:

    offset  size  field
    0       4     length     bytes of payload
    4       1     kind       one of the constants below; 0 never occurs
    5       1     flags      must be 0
    6       2     zero       must be 0
    8       8     index      log index, meaning by kind
    16      8     term       term of the writer
    24      4     durable    offset in this segment below which everything was on disk when
                             this record was handed to the disk
    28      4     previous   CRC of the record before, or of the segment header for the first one
    32      n     payload
            0-7   zeros      so that the next record starts at a multiple of 8
            4     crc        CRC32C of header and payload, seeded with the salt of the segment

The salt makes records of an earlier life of a recycled file invalid; `previous` makes a record
valid only after the one that preceded it when it was written, so that remains of a truncation or
a torn write never join the log again. Space filled with zeros parses as nothing, because kind is 0.
"""

import struct

import cython
from google_crc32c import extend as _extend

ENTRY = 1  # index and term of the entry; the payload is its data
HARD_STATE = 2  # term, and as payload the id of the node voted for; index is the last index
TRUNCATE = 3  # entries above index are void
SEGMENT_END = 4  # nothing follows in this segment; index is the last index
CLEAN_CLOSE = 5  # the server stopped in good order; index is the last index
CONFIGURATION = 6  # an entry that names the members of the cluster; the payload is its data
BASE = 7  # earlier entries are void: the log continues after (index, term) of a snapshot
_KIND_MAX = cython.declare(cython.uint, BASE)

HEADER_SIZE = 32
CRC_SIZE = 4
RECORD_SIZE_MIN = 40
_OVERHEAD = cython.declare(cython.Py_ssize_t, HEADER_SIZE + CRC_SIZE)

_HEADER = struct.Struct("<IBBHQQII")
_pack = _HEADER.pack
_unpack_from = _HEADER.unpack_from
_ZEROS = [bytes(count) for count in range(8)]


def crc32c(seed: int, data: bytes) -> int:
    """CRC32C of data, continued from seed."""
    return _extend(seed, data)


@cython.ccall
@cython.exceptval(check=False)
def record_size(length: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Bytes that a record with a payload of this length takes."""
    return (_OVERHEAD + length + 7) & ~7


@cython.final
@cython.cclass
class Writer:
    """Encodes the records of one segment in order; knows where the next one goes."""

    offset = cython.declare(cython.ulonglong, visibility="readonly")
    previous = cython.declare(cython.uint, visibility="readonly")
    salt = cython.declare(cython.uint, visibility="readonly")

    def __init__(self, salt: int, previous: int, offset: int) -> None:
        self.salt = salt
        self.previous = previous
        self.offset = offset

    def add(self, kind: int, index: int, term: int, payload: bytes, durable: int) -> bytes:
        """The next record; the caller writes it at the `offset` seen before the call."""
        length: cython.Py_ssize_t = len(payload)
        size: cython.Py_ssize_t = record_size(length)
        header: bytes = _pack(length, kind, 0, 0, index, term, durable, self.previous)
        crc = _extend(self.salt, header)
        if length:
            crc = _extend(crc, payload)
        self.previous = crc
        self.offset += size
        padding: bytes = _ZEROS[size - _OVERHEAD - length]
        return b"".join((header, payload, padding, crc.to_bytes(4, "little")))


@cython.final
@cython.cclass
class Record:
    """One valid record as read back."""

    kind = cython.declare(cython.uint, visibility="readonly")
    index = cython.declare(cython.ulonglong, visibility="readonly")
    term = cython.declare(cython.ulonglong, visibility="readonly")
    durable = cython.declare(cython.uint, visibility="readonly")
    previous = cython.declare(cython.uint, visibility="readonly")
    crc = cython.declare(cython.uint, visibility="readonly")
    size = cython.declare(cython.Py_ssize_t, visibility="readonly")
    payload = cython.declare(bytes, visibility="readonly")

    def __init__(
        self,
        kind: int,
        index: int,
        term: int,
        durable: int,
        previous: int,
        crc: int,
        size: int,
        payload: bytes,
    ) -> None:
        self.kind = kind
        self.index = index
        self.term = term
        self.durable = durable
        self.previous = previous
        self.crc = crc
        self.size = size
        self.payload = payload


def parse(buffer: bytes, offset: cython.Py_ssize_t, salt: cython.uint) -> Record | None:
    """The record at offset, or None when there is no whole and undamaged one.

    Says nothing about the place of the record in the log: the caller compares `previous`.
    """
    room: cython.Py_ssize_t = len(buffer) - offset
    if offset < 0 or room < RECORD_SIZE_MIN:
        return None
    length, kind, flags, zero, index, term, durable, previous = _unpack_from(buffer, offset)
    if kind == 0 or kind > _KIND_MAX or flags or zero or length > room - _OVERHEAD:
        return None
    size: cython.Py_ssize_t = record_size(length)
    if size > room:
        return None
    end: cython.Py_ssize_t = offset + HEADER_SIZE + length
    payload: bytes = buffer[offset + HEADER_SIZE : end]
    crc = _extend(_extend(salt, buffer[offset : offset + HEADER_SIZE]), payload)
    tail: bytes = buffer[end : offset + size]
    if tail != _ZEROS[size - _OVERHEAD - length] + crc.to_bytes(4, "little"):
        return None
    return Record(kind, index, term, durable, previous, crc, size, payload)


def find_written_after(
    buffer: bytes, offset: cython.Py_ssize_t, end: cython.Py_ssize_t, salt: cython.uint
) -> cython.Py_ssize_t:
    """Where in [offset, end) a valid record stands that proves offset to have been on disk.

    -1 when there is none. Records of the same write as a damaged one prove nothing: a disk may
    keep any part of a write that was not flushed.
    """
    at: cython.Py_ssize_t = offset + 8
    kind: cython.uint
    while at + RECORD_SIZE_MIN <= end:
        kind = buffer[at + 4]
        if 0 < kind <= _KIND_MAX and buffer[at + 5] == 0:
            record = parse(buffer, at, salt)
            if record is not None:
                if record.durable > offset:
                    return at
                at += record.size
                continue
        at += 8
    return -1

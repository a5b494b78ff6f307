"""Plain frames of lifecycle streams, from the bytes of their message to the bytes of their ops.

Nearly every ack of a stream says a job, a token and perhaps a result, nearly every enqueue a queue
and a payload, and nothing else. A frame that has no other acks and enqueues is read here in one
pass, without a dict and a text for each of them: its acks become the AckBatch op, its enqueues the
EnqueueBatch op, and what else it says is left for the general way. As in
`corvo._fast.codec.fast_json`, the reading is stricter than the general one, which alone decides
what is an error; what is accepted here must mean the same there, and be written the same.

An EnqueueBatch is made before its jobs have ids, with holes for them: each is of the same length,
behind the version byte and the length of the id in its op.
"""

from typing import Any

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
    from cython.cimports.libc.string import memcpy

from corvo._fast.codec.fast_json import is_job_id, is_value
from corvo._fast.codec.fields import Writer

ID_SIZE = 30
_ID_SIZE = ID_SIZE
_VERSION = 1
_NAME_SIZE_MAX = 127  # one byte of length
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_TEXT_1, _TEXT_2, _ACKS, _ENQUEUES, _TOKEN = 10, 18, 58, 66, 402  # tags of fields
_IDS_TAG = 42  # of the response
_SPACE, _DELETE = 32, 127
_NULL = b"null"
_EMPTY = b"{}"


class FastAcks:
    """The acks of a frame, as the payload of an AckBatch op."""

    def __init__(self, payload: bytes, count: int) -> None:
        self.payload = payload
        self.count = count

    def __len__(self) -> int:
        return self.count


class FastEnqueues:
    """The enqueues of a frame, as the payload of an EnqueueBatch op that lacks the ids of its jobs.
    `queues` has the names of their queues, each with a number of jobs."""

    def __init__(self, items: bytes, count: int, queues: list[tuple[str, int]]) -> None:
        self._items = items
        self.count = count
        self.queues = queues
        self.ids = b""  # once it has them: the field of the response that names the new jobs

    def __len__(self) -> int:
        return self.count

    def encode(self, ids: list[str]) -> bytes:
        """The payload, with these ids for its jobs."""
        count: cython.Py_ssize_t = self.count
        assert len(ids) == count
        ops: Writer = Writer()
        ops.begin()
        ops.u(count)
        at: cython.Py_ssize_t = ops._at
        ops.raw(self._items)
        ops._byte(0)  # the definition of a batch: there is none
        reply = bytearray((2 + _ID_SIZE) * count)
        to: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        shift: cython.int
        p: cython.p_uchar = ops._p
        q: cython.p_uchar = reply
        for text in ids:
            size = shift = 0
            while p[at] >= 0x80:
                size |= cython.cast(cython.Py_ssize_t, p[at] & 0x7F) << shift
                shift += 7
                at += 1
            size |= cython.cast(cython.Py_ssize_t, p[at]) << shift
            q[to] = _IDS_TAG
            q[to + 1] = _ID_SIZE
            if cython.compiled:
                id_size: cython.Py_ssize_t = 0
                raw: cython.p_const_char = PyUnicode_AsUTF8AndSize(text, cython.address(id_size))
                assert id_size == _ID_SIZE
                memcpy(p + at + 3, raw, _ID_SIZE)
                memcpy(q + to + 2, raw, _ID_SIZE)
            else:
                assert len(text) == _ID_SIZE
                p[at + 3 : at + 3 + _ID_SIZE] = q[to + 2 : to + 2 + _ID_SIZE] = text.encode()
            at += 1 + size
            to += 2 + _ID_SIZE
        self.ids = bytes(reply)
        return ops.done()


class FastFrames:
    """Reads frames. `front`, `tail` and the limit of a payload: see `plain.FastEnqueue`."""

    def __init__(
        self, front: bytes, tail: bytes, payload_size_max: int, result_size_max: int
    ) -> None:
        self._front = front
        self._tail = tail
        self._payload_size_max = payload_size_max
        self._result_size_max = result_size_max
        self._p = self._data = b""
        self._at = 0
        self._acks = Writer()
        self._enqueues = Writer()
        self._name = b""  # of the queue that was seen last
        self._names: list[Any] = []
        self._counts: list[Any] = []

    def read(
        self, data: bytes, acks_max: cython.Py_ssize_t, enqueues_max: cython.Py_ssize_t
    ) -> tuple[FastAcks | None, FastEnqueues | None, bytes] | None:
        """(acks, enqueues, the message without them); None when it is not plain, or has more of
        them than that, or none."""
        self._data = data
        if cython.compiled:
            self._p = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(data))
        else:
            self._p = data
        self._at = 0
        self._acks.begin()
        self._enqueues.begin()
        self._name = b""
        self._names = []
        self._counts = []
        acks: cython.Py_ssize_t = 0
        enqueues: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = len(data)
        kept: cython.Py_ssize_t = 0  # where the part begins that has other fields
        rest = []
        while self._at < end:
            start: cython.Py_ssize_t = self._at
            tag: cython.longlong = self._varint(end)
            if tag in (_ACKS, _ENQUEUES):
                if kept < start:
                    rest.append(data[kept:start])
                size: cython.longlong = self._varint(end)
                if not 0 < size <= end - self._at:
                    return None
                if tag == _ACKS:
                    acks += 1
                    if acks > acks_max or not self._read_ack(self._at + size):
                        return None
                else:
                    enqueues += 1
                    if enqueues > enqueues_max or not self._read_enqueue(self._at + size):
                        return None
                kept = self._at
            elif not self._skip(tag, end):
                return None
        if not acks and not enqueues:
            return None
        if kept < end:
            rest.append(data[kept:])
        acked = FastAcks(_listed(self._acks, acks), acks) if acks else None
        enqueued = None
        if enqueues:
            queues = list(zip(self._names, self._counts, strict=True))
            enqueued = FastEnqueues(self._enqueues.done()[1:], enqueues, queues)
        return acked, enqueued, b"".join(rest)

    def _varint(self, end: cython.Py_ssize_t) -> cython.longlong:
        """The number here; -1 = it is cut off, or larger than any size and tag."""
        value: cython.longlong = 0
        shift: cython.int = 0
        while self._at < end and shift < 35:
            byte: cython.longlong = self._p[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        return -1

    def _skip(self, tag: cython.longlong, end: cython.Py_ssize_t) -> cython.bint:
        """Go behind another field; whether that is possible."""
        wire: cython.int = tag & 7
        size: cython.longlong
        if tag < 8:
            return False
        if wire == _VARINT:
            while self._at < end and self._p[self._at] >= 0x80:
                self._at += 1
            self._at += 1
        elif wire == _SIZED:
            size = self._varint(end)
            if size < 0:
                return False
            self._at += size
        elif wire in (_FIXED64, _FIXED32):
            self._at += 8 if wire == _FIXED64 else 4
        else:
            return False
        return self._at <= end

    def _text(self, end: cython.Py_ssize_t) -> cython.longlong:
        """The size of the text here, which is where we are then; -1 = there is none."""
        size: cython.longlong = self._varint(end)
        return size if size <= end - self._at else -1

    def _read_ack(self, end: cython.Py_ssize_t) -> cython.bint:
        """Whether the ack up to `end` is plain; if so it is taken."""
        p: cython.p_const_uchar = self._p
        job: cython.Py_ssize_t = -1
        token: cython.Py_ssize_t = -1
        result: cython.Py_ssize_t = -1
        job_size: cython.Py_ssize_t = 0
        token_size: cython.Py_ssize_t = 0
        result_size: cython.Py_ssize_t = 0
        i: cython.Py_ssize_t
        while self._at < end:
            tag: cython.longlong = self._varint(end)
            if tag == _TEXT_1 and job < 0:
                job_size = self._text(end)
                job = self._at
                if job_size > _NAME_SIZE_MAX or not is_job_id(self._data, job, job + job_size):
                    return False
                self._at += job_size
            elif tag == _TOKEN and token < 0:
                token_size = self._text(end)
                token = self._at
                if not 0 < token_size <= _NAME_SIZE_MAX:
                    return False
                for i in range(token, token + token_size):
                    if not 32 < p[i] < 127:
                        return False
                self._at += token_size
            elif tag == _TEXT_2 and result < 0:
                result_size = self._text(end)
                result = self._at
                if not self._is_json(result, result_size, self._result_size_max):
                    return False
                self._at += result_size
            else:
                return False
        if job < 0 or token < 0:
            return False
        text: bytes = _EMPTY if result < 0 else self._data[result : result + result_size]
        if text == _NULL:
            return False
        size: cython.Py_ssize_t = len(text)
        w: Writer = self._acks
        w.u(5 + job_size + token_size + _varint_size(size) + size)
        w._byte(_VERSION)
        self._copy(w, job, job_size)
        self._copy(w, token, token_size)
        w.b(text)
        w._byte(0)  # no checkpoint
        w._byte(0)  # nothing about a chain
        return True

    def _is_json(
        self, start: cython.Py_ssize_t, size: cython.Py_ssize_t, size_max: cython.Py_ssize_t
    ) -> cython.bint:
        """Whether a text is one JSON value that our strict reading takes."""
        if size > size_max or not is_value(self._data, start, start + size):
            return False
        bits: cython.uchar = 0
        i: cython.Py_ssize_t
        for i in range(start, start + size):
            bits |= self._p[i]
        if bits < 0x80:
            return True
        try:
            self._data[start : start + size].decode()
        except UnicodeDecodeError:
            return False
        return True

    def _read_enqueue(self, end: cython.Py_ssize_t) -> cython.bint:
        """Whether the enqueue up to `end` is plain; if so it is taken."""
        queue: cython.Py_ssize_t = -1
        payload: cython.Py_ssize_t = -1
        queue_size: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t = 0
        while self._at < end:
            tag: cython.longlong = self._varint(end)
            if tag == _TEXT_1 and queue < 0:
                queue_size = self._text(end)
                queue = self._at
                if not 0 < queue_size <= _NAME_SIZE_MAX:
                    return False
                self._at += queue_size
            elif tag == _TEXT_2 and payload < 0:
                size = self._text(end)
                payload = self._at
                if not self._is_json(payload, size, self._payload_size_max):
                    return False
                self._at += size
            else:
                return False
        if queue < 0 or payload < 0 or not self._take_queue(queue, queue_size):
            return False
        w: Writer = self._enqueues
        more: cython.Py_ssize_t = len(self._front) + len(self._tail)
        w.u(3 + _ID_SIZE + queue_size + _varint_size(size) + size + more)
        w._byte(_VERSION)
        w._byte(_ID_SIZE)
        w.hole(_ID_SIZE)
        self._copy(w, queue, queue_size)
        w.raw(self._front)
        self._copy(w, payload, size)
        w.raw(self._tail)
        return True

    def _take_queue(self, start: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.bint:
        """Whether a name of a queue is plain; if so, one job more is for it."""
        p: cython.p_const_uchar = self._p
        name: bytes = self._data[start : start + size]
        i: cython.Py_ssize_t
        if name == self._name:
            self._counts[len(self._counts) - 1] += 1
            return True
        for i in range(start, start + size):
            if not _SPACE <= p[i] < _DELETE:
                return False
        if name == b"." or name == b"..":
            return False
        self._name = name
        self._names.append(name.decode("ascii"))
        self._counts.append(1)
        return True

    def _copy(self, w: Writer, start: cython.Py_ssize_t, size: cython.Py_ssize_t) -> None:
        """A part of the message, and its size in front."""
        if cython.compiled:
            w._put(cython.cast(cython.p_const_char, self._p) + start, size)
        else:
            w.b(self._data[start : start + size])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint_size(value: cython.Py_ssize_t) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


@cython.cfunc
def _listed(items: Writer, count: cython.Py_ssize_t) -> bytes:
    """A document of one field, a list of byte strings that were written already."""
    w: Writer = Writer()
    w.begin()
    w.u(count)
    w.raw(items.done()[1:])
    return w.done()

"""Plain requests, from the bytes of their body to the bytes of their op in one pass.

Nearly every enqueue says a queue and a payload, nearly every ack a lease token, and nothing else.
Such bodies are recognised here, without a struct and a tuple between. The reading is stricter than
JSON: whatever is unusual (another member, an escaped name, an escape by number, an exponent, deep
nesting, anything that is wrong) is left to the general way, which alone decides what is an error
and how it is called. So what is accepted here must mean the same there, and be written the same; a
test compares the two.
"""

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
    from cython.cimports.libc.string import memcmp, memcpy

_VERSION = 1
_DEPTH_MAX = 60
_NAME_SIZE_MAX = 127  # one byte of length
_TAB, _LF, _CR, _SPACE, _QUOTE, _COMMA, _MINUS, _DOT = 9, 10, 13, 32, 34, 44, 45, 46
_ZERO, _NINE, _COLON, _LIST, _BACKSLASH, _LIST_END = 48, 57, 58, 91, 92, 93
_OBJECT, _OBJECT_END, _DELETE = 123, 125, 127
# Eight bytes each, for looking at eight at once.
_ONES, _HIGH_BITS = 0x0101010101010101, 0x8080808080808080
_SPACES, _QUOTES, _BACKSLASHES = _SPACE * _ONES, _QUOTE * _ONES, _BACKSLASH * _ONES


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _skip_blanks(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    while at < end and (p[at] == _SPACE or p[at] == _LF or p[at] == _CR or p[at] == _TAB):
        at += 1
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _skip_string(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position behind a string whose first character is at `at`; -1 = leave it to others."""
    c: cython.uchar
    if cython.compiled:
        # Eight at once, as long as none of them is a quote, a backslash or a control character.
        w: cython.ulonglong = 0
        while at + 8 <= end:
            memcpy(cython.address(w), p + at, 8)
            quotes: cython.ulonglong = w ^ _QUOTES
            slashes: cython.ulonglong = w ^ _BACKSLASHES
            controls: cython.ulonglong = (w - _SPACES) & ~w
            found: cython.ulonglong = ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes)
            if (controls | found) & _HIGH_BITS:
                break
            at += 8
    while at < end:
        c = p[at]
        at += 1
        if c == 34:  # the closing quote
            return at
        if c == 92:  # a backslash
            if at == end or p[at] not in b'"\\/bfnrt':
                return -1
            at += 1
        elif c < 32:
            return -1
    return -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _skip_digits(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position behind one or more digits; -1 = there are none."""
    start: cython.Py_ssize_t = at
    while at < end and _ZERO <= p[at] <= _NINE:
        at += 1
    return at if at > start else -1


@cython.cfunc
@cython.exceptval(check=False)
def _skip_number(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position behind a number without exponent; -1 = leave it to others."""
    if p[at] == _MINUS:
        at += 1
    start: cython.Py_ssize_t = at
    at = _skip_digits(p, at, end)
    if at < 0 or (p[start] == _ZERO and at > start + 1) or at - start > 18:
        return -1
    if at < end and p[at] == _DOT:
        at = _skip_digits(p, at + 1, end)
        if at < 0 or at - start > 18:
            return -1
    if at < end and (p[at] | 32) == 101:
        return -1
    return at


@cython.cfunc
@cython.exceptval(check=False)
def _skip_word(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position behind true, false or null; -1 = it is none."""
    if _is(p, at, end, b"true", 4) or _is(p, at, end, b"null", 4):
        return at + 4
    return at + 5 if _is(p, at, end, b"false", 5) else -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    text: cython.p_const_char,
    size: cython.Py_ssize_t,
) -> cython.bint:
    if cython.compiled:
        return end - at >= size and memcmp(p + at, text, size) == 0
    else:
        return p[at : min(at + size, end)] == text


@cython.cfunc
@cython.exceptval(check=False)
def _skip_value(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position behind any value that begins at `at`; -1 = leave it to others.

    `objects` has a bit for each level that is open: 1 = an object, 0 = a list.
    """
    depth: cython.int = 0
    objects: cython.ulonglong = 0
    c: cython.uchar
    while at < end:
        c = p[at]
        if c in b"{[":
            if depth == _DEPTH_MAX:
                return -1
            depth += 1
            objects = (objects << 1) | (1 if c == _OBJECT else 0)
            at = _skip_blanks(p, at + 1, end)
            if at < end and p[at] != (_OBJECT_END if c == _OBJECT else _LIST_END):
                if c == _OBJECT:
                    at = _skip_name(p, at, end)
                    if at < 0:
                        return -1
                continue
        else:
            if c == _QUOTE:
                at = _skip_string(p, at + 1, end)
            elif c == _MINUS or _ZERO <= c <= _NINE:
                at = _skip_number(p, at, end)
            else:
                at = _skip_word(p, at, end)
            if at < 0:
                return -1
        # Behind a value, or in front of the end of an empty object or list.
        while True:
            if depth == 0:
                return at
            at = _skip_blanks(p, at, end)
            if at == end:
                return -1
            c = p[at]
            at += 1
            if c == _COMMA:
                at = _skip_blanks(p, at, end)
                if objects & 1:
                    at = _skip_name(p, at, end)
                    if at < 0:
                        return -1
                break
            if c != (_OBJECT_END if objects & 1 else _LIST_END):
                return -1
            depth -= 1
            objects >>= 1
    return -1


def is_value(data: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Whether a part of the data is one JSON value, to our strict reading; never if it is empty."""
    p: cython.p_const_uchar = data
    return start < end and _skip_value(p, start, end) == end


def is_job_id(data: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Whether a part of the data is a job id."""
    p: cython.p_const_uchar = data
    i: cython.Py_ssize_t
    for i in range(start, end):
        if not _is_id_letter(p[i]):
            return False
    return start < end


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _skip_name(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The beginning of the value behind a member's name; -1 = leave it to others."""
    if at >= end or p[at] != _QUOTE:
        return -1
    at = _skip_string(p, at + 1, end)
    if at < 0:
        return -1
    at = _skip_blanks(p, at, end)
    if at >= end or p[at] != _COLON:
        return -1
    return _skip_blanks(p, at + 1, end)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _skip_simple(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position of the quote behind printable ASCII without escapes; -1 = there is more."""
    while at < end and p[at] != _QUOTE:
        if p[at] < _SPACE or p[at] >= _DELETE or p[at] == _BACKSLASH:
            return -1
        at += 1
    return at if at < end else -1


@cython.cfunc
@cython.exceptval(check=False)
def _has_high(p: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.bint:
    """Whether there is more than ASCII."""
    bits: cython.uchar = 0
    i: cython.Py_ssize_t
    for i in range(size):
        bits |= p[i]
    return bits >= 0x80


class FastEnqueue:
    """Enqueues that say a queue and a payload. `tail` is what the op has behind the payload when
    nothing else is said, `front` what it has between queue and payload."""

    def __init__(self, front: bytes, tail: bytes, payload_size_max: int) -> None:
        self.queue = ""
        self._front = front
        self._tail = tail
        self._payload_size_max = payload_size_max
        self._body = self._name = b""
        self._start = self._end = 0

    def scan(self, body: bytes) -> cython.bint:
        """Whether this is a plain enqueue; `queue` then has the name, and `encode` may follow."""
        p: cython.p_const_uchar = body
        end: cython.Py_ssize_t = len(body)
        at: cython.Py_ssize_t = _skip_blanks(p, 0, end)
        name: cython.Py_ssize_t = -1
        name_end: cython.Py_ssize_t = -1
        self._start = -1
        if at >= end or p[at] != _OBJECT:
            return False
        at += 1
        while True:
            at = _skip_blanks(p, at, end)
            if name < 0 and _is(p, at, end, b'"queue"', 7):
                at = _skip_name(p, at, end)
                if at < 0 or at >= end or p[at] != _QUOTE:
                    return False
                name = at + 1
                name_end = _skip_simple(p, name, end)
                at = name_end + 1
                if name_end < 0:
                    return False
            elif self._start < 0 and _is(p, at, end, b'"payload"', 9):
                self._start = _skip_name(p, at, end)
                if self._start < 0 or self._start >= end:
                    return False
                at = self._end = _skip_value(p, self._start, end)
                if at < 0:
                    return False
            else:
                return False
            at = _skip_blanks(p, at, end)
            if at < end and p[at] == _COMMA:
                at += 1
            elif at < end and p[at] == _OBJECT_END:
                break
            else:
                return False
        size: cython.Py_ssize_t = name_end - name
        return (
            _skip_blanks(p, at + 1, end) == end
            and name > 0
            and 0 < size <= _NAME_SIZE_MAX
            and not (p[name] == _DOT and (size == 1 or (size == 2 and p[name + 1] == _DOT)))
            and self._start > 0
            and self._end - self._start <= self._payload_size_max
            and self._keep(body, name, name_end)
        )

    def _keep(self, body: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Keep what was found, if the body is UTF-8. Most enqueues are for the queue of the one
        before."""
        if _has_high(body, len(body)):
            try:
                body.decode()
            except UnicodeDecodeError:
                return False
        self._body = body
        size: cython.Py_ssize_t = end - start
        if size != len(self._name) or not _is(body, start, len(body), self._name, size):
            self._name = body[start:end]
            self.queue = self._name.decode("ascii")
        return True

    def encode(self, job_id: str) -> bytes:
        """The op with this id for the job."""
        if cython.compiled:
            id_size: cython.Py_ssize_t = 0
            name_size: cython.Py_ssize_t = 0
            job: cython.p_const_char = PyUnicode_AsUTF8AndSize(job_id, cython.address(id_size))
            name: cython.p_const_char = PyUnicode_AsUTF8AndSize(
                self.queue, cython.address(name_size)
            )
            assert id_size <= _NAME_SIZE_MAX
            payload_size: cython.Py_ssize_t = self._end - self._start
            front_size: cython.Py_ssize_t = len(self._front)
            tail_size: cython.Py_ssize_t = len(self._tail)
            size: cython.Py_ssize_t = 3 + id_size + name_size + front_size
            rest: cython.Py_ssize_t = payload_size
            size += 1 + payload_size + tail_size
            while rest >= 0x80:
                rest >>= 7
                size += 1
            op: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
            p = cython.cast(cython.p_uchar, PyBytes_AS_STRING(op))
            p[0] = _VERSION
            p[1] = id_size
            memcpy(p + 2, job, id_size)
            p += 2 + id_size
            p[0] = name_size
            memcpy(p + 1, name, name_size)
            p += 1 + name_size
            memcpy(p, PyBytes_AS_STRING(self._front), front_size)
            p += front_size
            rest = payload_size
            while rest >= 0x80:
                p[0] = (rest & 0x7F) | 0x80
                p += 1
                rest >>= 7
            p[0] = rest
            memcpy(p + 1, PyBytes_AS_STRING(self._body) + self._start, payload_size)
            memcpy(p + 1 + payload_size, PyBytes_AS_STRING(self._tail), tail_size)
            return op
        else:
            payload = self._body[self._start : self._end]
            length = bytearray()
            rest = len(payload)
            while rest >= 0x80:
                length.append((rest & 0x7F) | 0x80)
                rest >>= 7
            length.append(rest)
            head = bytes((_VERSION, len(job_id))) + job_id.encode()
            head += bytes((len(self.queue),)) + self.queue.encode()
            return head + self._front + length + payload + self._tail


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_id_letter(c: cython.uchar) -> cython.bint:
    return _ZERO <= c <= _NINE or 97 <= (c | 32) <= 122 or c in b"_-"


def fast_ack(job_id: str, body: bytes) -> bytes:
    """The Ack op for a job and a body that says a lease token alone; empty = it is not plain."""
    p: cython.p_const_uchar = body
    end: cython.Py_ssize_t = len(body)
    at: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    raw: bytes = job_id.encode("utf-8")
    r: cython.p_const_uchar = raw
    id_size: cython.Py_ssize_t = len(raw)
    if not 0 < id_size <= _NAME_SIZE_MAX:
        return b""
    for i in range(id_size):
        if not _is_id_letter(r[i]):
            return b""
    if end < 18 or not _is(p, 0, end, b'{"lease_token":"', 16):
        return b""
    at = _skip_simple(p, 16, end)
    if at < 0 or at + 2 != end or p[at + 1] != _OBJECT_END or not 16 < at <= 16 + _NAME_SIZE_MAX:
        return b""
    token_size: cython.Py_ssize_t = at - 16
    if cython.compiled:
        op: bytes = PyBytes_FromStringAndSize(cython.NULL, 6 + id_size + token_size)
        out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(op))
        out[0] = _VERSION
        out[1] = id_size
        memcpy(out + 2, r, id_size)
        out += 2 + id_size
        out[0] = token_size
        memcpy(out + 1, p + 16, token_size)
        out += 1 + token_size
        out[0] = out[1] = out[2] = 0
        return op
    else:
        head = bytes((_VERSION, id_size)) + raw
        return head + bytes((token_size,)) + body[16:at] + b"\0\0\0"

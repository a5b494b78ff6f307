"""Finding things in the bytes of a request: ends of lines, the header fields that we keep.

llhttp has found the head well formed before; a callback for each field would cost more than all
the rest of reading a request.
"""

from __future__ import annotations

import re
from typing import Any, Final

import cython

if cython.compiled:
    from cython.cimports.libc.string import memchr

from corvo._fast.http.exchange import Request
from corvo.errors import BadRequest, HeadersTooLarge

_TAB, _LF, _CR, _SPACE, _COLON, _DELETE = 9, 10, 13, 32, 58, 127
_LENGTH_DIGITS_MAX = 16
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~"
_TARGET = bytes(1 if byte in _LETTERS + b" /?=&:@,;()" else 0 for byte in range(256))
_TOKEN = bytes(1 if byte in _LETTERS else 0 for byte in range(256))  # may be in a field's name

HOST: Final = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+(?::[0-9]{0,5})?"
)
REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")

# Fields that few requests have, by their lower-case names; none is shorter than that.
RARE: Final = frozenset(
    (
        b"last-event-id",
        b"content-encoding",
        b"connect-protocol-version",
        b"connect-timeout-ms",
        b"connect-content-encoding",
        b"grpc-timeout",
        b"grpc-encoding",
        b"x-corvo-credit",
        b"x-corvo-from",
        b"x-corvo-proxy-stream",
        b"x-corvo-waited",
    )
)
_RARE_SIZE_MIN = 12


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, name: bytes, size: cython.Py_ssize_t
) -> cython.bint:
    """Whether a field name of this size, whose characters are valid, reads like the lower-case
    `name`. Bit 0x20 makes letters small; digits and the hyphen have it already."""
    i: cython.Py_ssize_t = 0
    expected: cython.p_const_uchar = name
    while i < size and (p[at + i] | 0x20) == expected[i]:
        i += 1
    return i == size


def find_byte(data: bytes, byte: cython.int, start: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where the byte is at or behind `start`, which must not be behind the end; -1 = nowhere."""
    if cython.compiled:
        p: cython.p_const_uchar = data
        found = cython.cast(
            cython.p_const_uchar,
            memchr(p + start, byte, cython.cast(cython.size_t, len(data) - start)),
        )
        return -1 if found is cython.NULL else found - p
    else:
        return data.find(byte, start)


def find_head_end(data: bytes, start: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position behind the next blank line that begins at or behind `start`; -1 = there is
    none."""
    at: cython.Py_ssize_t = find_byte(data, _CR, start)
    end: cython.Py_ssize_t = len(data) - 3
    p: cython.p_const_uchar = data
    while 0 <= at < end:
        if p[at + 1] == _LF and p[at + 2] == _CR and p[at + 3] == _LF:
            return at + 4
        at = find_byte(data, _CR, at + 1)
    return -1


def is_cacheable_head(head: bytes) -> cython.bint:
    """Whether this is a whole head that needs no parser: a request line, known to be one, without
    unusual characters, then lines of a token, a colon and printable ASCII, none of which says
    anything about framing or the connection but Content-Length.

    A head that is not plain may be right as well; llhttp then says so.
    """
    p: cython.p_const_uchar = head
    token: cython.p_const_uchar = _TOKEN
    target: cython.p_const_uchar = _TARGET
    size: cython.Py_ssize_t = len(head)
    at: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t
    limit: cython.Py_ssize_t
    if size < 4 or p[size - 3] != _LF:
        return False
    while target[p[at]]:
        at += 1
    if p[at] != _CR or p[at + 1] != _LF:
        return False
    at += 2
    while at < size - 2:
        start = at
        while token[p[at]]:
            at += 1
        if p[at] != _COLON or at == start or not _is_harmless(p, start, at - start):
            return False
        if at - start == 14 and _is(p, start, b"content-length", 14):
            limit = at + _LENGTH_DIGITS_MAX
        else:
            limit = size
        at += 1
        while (p[at] >= _SPACE and p[at] < _DELETE) or p[at] == _TAB:
            at += 1
        if p[at] != _CR or p[at + 1] != _LF or at > limit:
            return False
        at += 2
    return at == size - 2 and p[at] == _CR and p[at + 1] == _LF


def _is_harmless(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.bint:
    """Whether a field of this name says nothing that a plain head may not say."""
    if size == 6:
        return not _is(p, at, b"expect", size)
    if size == 7:
        return not _is(p, at, b"upgrade", size) and not _is(p, at, b"trailer", size)
    if size == 10:
        return not _is(p, at, b"connection", size)
    return not (size == 16 and _is(p, at, b"proxy-connection", size)) and not (
        size == 17 and _is(p, at, b"transfer-encoding", size)
    )


# Each field that is kept may occur once only: a second Authorization, say, would leave it to chance
# which one counts.
def _once(before: bytes | None, value: bytes, name: str) -> bytes:
    if before is not None:
        raise BadRequest(f"header {name} is given twice")
    return value


def read_fields(request: Request, head: bytes, fields_max: cython.Py_ssize_t) -> None:
    """Go through the lines of a head that llhttp has found well formed: a request line, then
    `name: value` with optional blanks around the value, each ending in CR LF."""
    p: cython.p_const_uchar = head
    end: cython.Py_ssize_t = len(head) - 2
    at: cython.Py_ssize_t = 0
    colon: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    while at < end and p[at] != _LF:
        at += 1
    at += 1
    while at < end:
        colon = at
        while colon < end and p[colon] != _COLON:
            colon += 1
        start = colon + 1
        stop = start
        while stop < end and p[stop] != _CR:
            stop += 1
        following: cython.Py_ssize_t = stop + 2
        while start < stop and (p[start] == _SPACE or p[start] == _TAB):
            start += 1
        while start < stop and (p[stop - 1] == _SPACE or p[stop - 1] == _TAB):
            stop -= 1
        _take_field(request, p, at, colon - at, p[start:stop])
        count += 1
        at = following
    if request.conn.context.keeps_fields:
        request.fields = _all_fields(head)
    if count > fields_max:
        raise HeadersTooLarge(f"the request has more than {fields_max} header fields")


def _all_fields(head: bytes) -> list[tuple[bytes, bytes]]:
    """Name and value of each line after the first."""
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:] if line]
    return [(name.lower(), value.strip(b" \t")) for name, _, value in lines]


def _take_field(request: Any, p: Any, at: Any, size: Any, value: Any) -> None:
    """Keep the value of a field if it is one of those that mean something here."""
    if size == 4 and _is(p, at, b"host", size):
        request.host = _once(request.host, value, "host")
    elif size == 6 and _is(p, at, b"cookie", size):
        request.cookie = _once(request.cookie, value, "cookie")
    elif size == 6 and _is(p, at, b"expect", size):
        request.expect = _once(request.expect, value, "expect")
    elif size == 6 and _is(p, at, b"origin", size):
        request.origin = _once(request.origin, value, "origin")
    elif size == 7 and _is(p, at, b"upgrade", size):
        request._upgrade_offered = True
    elif size == 9 and _is(p, at, b"x-api-key", size):
        request.api_key = _once(request.api_key, value, "x-api-key")
    elif size == 12 and _is(p, at, b"content-type", size):
        request.content_type = _once(request.content_type, value, "content-type")
    elif size == 12 and _is(p, at, b"x-request-id", size):
        request.request_id = _once(request.request_id, value, "x-request-id")
    elif size == 13 and _is(p, at, b"authorization", size):
        request.authorization = _once(request.authorization, value, "authorization")
    elif size == 14 and _is(p, at, b"content-length", size):
        request.content_length = _once(request.content_length, value, "content-length")
    elif size == 14 and _is(p, at, b"sec-fetch-site", size):
        request.fetch_site = _once(request.fetch_site, value, "sec-fetch-site")
    elif size == 15 and _is(p, at, b"idempotency-key", size):
        request.idempotency_key = _once(request.idempotency_key, value, "idempotency-key")
    elif size == 17 and _is(p, at, b"transfer-encoding", size):
        request._codings = value if request._codings is None else request._codings + b"," + value
    elif size == 17 and _is(p, at, b"x-corvo-namespace", size):
        request.namespace = _once(request.namespace, value, "x-corvo-namespace")
    elif size == 17 and _is(p, at, b"x-corvo-min-index", size):
        request.min_index = _once(request.min_index, value, "x-corvo-min-index")
    elif size == 17 and _is(p, at, b"x-corvo-forwarded", size):
        request.forwarded = _once(request.forwarded, value, "x-corvo-forwarded")
    elif size == 19 and _is(p, at, b"x-corvo-client-name", size):
        request.client_name = _once(request.client_name, value, "x-corvo-client-name")
    elif size == 22 and _is(p, at, b"x-corvo-client-version", size):
        request.client_version = _once(request.client_version, value, "x-corvo-client-version")
    elif size >= _RARE_SIZE_MIN:
        take_rare(request, p[at : at + size], value)


def take_rare(request: Request, name: bytes, value: bytes) -> None:
    """Keep the value of a field if it is one of those that few requests have."""
    name = name.lower()
    if name not in RARE:
        return
    if request.rare is None:
        request.rare = {}
    elif name in request.rare:
        raise BadRequest(f"header {name.decode()} is given twice")
    request.rare[name] = value

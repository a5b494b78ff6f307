"""Rules for HTTP/1.1 requests (RFC 9112) that llhttp does not check.

The request line, Host, and how the body is framed: wherever the parser is lenient, two servers in a
row could read one message as different ones.
"""

import re
from base64 import urlsafe_b64decode
from typing import Any, Final

import cython

from corvo._fast.http.exchange import Request
from corvo._fast.http.head import HOST, find_byte
from corvo.errors import BadRequest, NotImplementedHere, UriTooLong, VersionNotSupported

_SPACE, _HASH, _SLASH, _QUESTION = 32, 35, 47, 63

CHUNKED: Final = -1
_CHUNKED = CHUNKED
# Value of a length with too many digits: more than any limit.
_BEYOND = (1 << 63) - 1

_METHODS: Final = {
    m.encode(): m for m in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
}
_VERSION: Final = re.compile(rb"HTTP/[0-9](?:\.[0-9])?\r\n")
_BASE64URL: Final = re.compile(rb"(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2,3})?")
_ABSOLUTE: Final = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://([^/?]*)(.*)")


def take_line(request: Request, line: bytes, target_size_max: cython.Py_ssize_t) -> bytes | None:
    """Take the request line with its end; returns the authority that its target names, if any."""
    p: cython.p_const_uchar = line
    size: cython.Py_ssize_t = len(line)
    first: cython.Py_ssize_t = find_byte(line, _SPACE, 0)
    second: cython.Py_ssize_t = -1 if first < 0 else find_byte(line, _SPACE, first + 1)
    method: bytes = p[:first] if first >= 0 else line
    request.method = _METHODS.get(method) or method.decode("latin-1")
    request.head_only = request.method == "HEAD"
    if first >= 0 and second < 0 and p[first + 1] == _SLASH and method in _METHODS:
        raise VersionNotSupported("HTTP/0.9 is not spoken here, only 1.0 and 1.1")
    if second < 0 or find_byte(line, _SPACE, second + 1) >= 0:
        raise BadRequest("the request line is not: method, space, target, space, version")
    target: bytes = p[first + 1 : second]
    if not line.endswith(b" HTTP/1.1\r\n"):
        version: bytes = p[second + 1 : size]
        if version == b"HTTP/1.0\r\n":
            request._old_client = True
        elif _VERSION.fullmatch(version):
            raise VersionNotSupported("only HTTP/1.0 and HTTP/1.1 are spoken here")
        else:
            raise BadRequest("the request line does not end in an HTTP version")
    if len(target) > target_size_max:
        raise target_too_long(target_size_max)
    authority: bytes | None = None
    if not target.startswith(b"/"):
        authority, target = _split_target(request, target)
    if find_byte(target, _HASH, 0) >= 0:
        raise BadRequest("the request target holds a fragment")
    question: cython.Py_ssize_t = find_byte(target, _QUESTION, 0)
    if question < 0:
        request.path = target
    else:
        request.path = target[:question]
        request.query = target[question + 1 :]
    return authority


def is_foreign(line: bytes) -> cython.bint:
    """Whether a first line looks like HTTP of an unsupported version, for example a broken preface
    of HTTP/2: its sender could not read a reply of HTTP/1.1."""
    words = line.split(b" ")
    return len(words) == 3 and words[0] not in _METHODS and not words[2].startswith(b"HTTP/")


def _split_target(request: Request, target: bytes) -> tuple[Any, ...]:
    """Authority and rest of the forms other than a path: absolute, and `*`."""
    if request.method == "CONNECT":
        raise NotImplementedHere("CONNECT: Corvo is no proxy")
    if target == b"*" and request.method == "OPTIONS":
        return None, target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None or not HOST.fullmatch(absolute.group(1)):
        raise BadRequest("the request target is neither a path nor an http URL")
    rest = absolute.group(2)
    return absolute.group(1), rest if rest.startswith(b"/") else b"/" + rest


def target_too_long(size_max: cython.Py_ssize_t) -> UriTooLong:
    """The error of a request target that is longer than this."""
    return UriTooLong(f"the request target is over {size_max} bytes")


def check_host(request: Request, authority: bytes | None) -> None:
    """Check that the request is for this host and no page of another site made it. An authority in
    the target wins over Host."""
    context = request.conn.context
    host = request.host
    if host is None or authority is not None or host != context._valid_host:
        _check_new_host(request, authority)
    if request.origin is not None or request.fetch_site is not None:
        context._check_origin(request)


def _check_new_host(request: Request, authority: bytes | None) -> None:
    """Check a host that is not the one of the request before."""
    host = request.host
    if host is None:
        if not request._old_client:
            raise BadRequest("header Host is missing")
    elif not HOST.fullmatch(host):
        raise BadRequest("header Host is not a host name with an optional port")
    if authority is not None:
        request.host = authority
    if request.host is not None:
        request.conn.context._take_host(request)


def read_framing(request: Request) -> cython.longlong:
    """How many bytes of body follow, 0 = none; or CHUNKED."""
    length = request.content_length
    if request._codings is not None:
        if request._old_client:
            raise BadRequest("HTTP/1.0 has no Transfer-Encoding")
        if length is not None:
            raise BadRequest("both Content-Length and Transfer-Encoding")
        codings = request._codings.lower().split(b",")
        for coding in codings:
            if coding.strip(b" \t") != b"chunked":
                raise NotImplementedHere("the only transfer coding known here is chunked")
        if len(codings) > 1:
            raise BadRequest("Transfer-Encoding chunked is given twice")
        return _CHUNKED
    if length is None:
        return 0
    digits: cython.p_const_uchar = length
    count: cython.Py_ssize_t = len(length)
    size: cython.longlong = 0
    i: cython.Py_ssize_t
    for i in range(count):
        if not 48 <= digits[i] <= 57:
            raise BadRequest("Content-Length is not a number")
        if i < 18:
            size = 10 * size + digits[i] - 48
    if count == 0:
        raise BadRequest("Content-Length is not a number")
    return size if count <= 18 else _BEYOND


def parse_upgrade_offer(head: bytes) -> bytes | None:
    """The settings of a request that offers an upgrade to HTTP/2; None = no valid offer.

    A proxy that does not know the upgrade would drop the header Connection and all that it names,
    so both must be there (RFC 7540, 3.2).
    """
    fields = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    found = [(name.lower(), value.strip(b" \t")) for name, _, value in fields]
    settings = [value for name, value in found if name == b"http2-settings"]
    upgrades, connections = (
        {
            token.strip(b" \t").lower()
            for name, value in found
            if name == wanted
            for token in value.split(b",")
        }
        for wanted in (b"upgrade", b"connection")
    )
    if b"h2c" not in upgrades or not connections >= {b"upgrade", b"http2-settings"}:
        return None
    if len(settings) != 1 or not _BASE64URL.fullmatch(settings[0]):
        return None
    payload = urlsafe_b64decode(settings[0] + b"=" * (-len(settings[0]) % 4))
    return payload if len(payload) % 6 == 0 else None

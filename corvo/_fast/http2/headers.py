"""Header fields of HTTP/2: the rules of RFC 9113 (8.2 and 8.3) for a field and for a request.

A field is checked once, when HPACK decodes it; a field in a table of the decoder is not checked
again. A request that breaks the rules is malformed, and its stream is reset: it may be an attempt
at request smuggling.
"""

import re
from typing import Final

import cython

from corvo._fast.http.exchange import Request
from corvo._fast.http.head import HOST, RARE, REQUEST_ID, find_byte, take_rare
from corvo.errors import BadRequest, HeadersTooLarge, NotImplementedHere, UriTooLong

_FIELD_OVERHEAD: Final = 32  # counted for a field in addition to its bytes, RFC 7541 4.1
_HASH, _SLASH, _QUESTION = 35, 47, 63

# Kinds of fields. Those up to _ONCE_MAX occur once at most.
_OTHER, _METHOD, _SCHEME, _AUTHORITY, _PATH = 0, 1, 2, 3, 4
_PSEUDO_MAX = 4
_HOST_FIELD, _EXPECT, _API_KEY, _CONTENT_TYPE, _REQUEST_ID, _AUTHORIZATION = 5, 6, 7, 8, 9, 10
_CONTENT_LENGTH, _IDEMPOTENCY_KEY, _NAMESPACE, _MIN_INDEX = 11, 12, 13, 14
_CLIENT_NAME, _CLIENT_VERSION, _FORWARDED, _ORIGIN, _FETCH_SITE = 15, 16, 17, 18, 19
_ONCE_MAX = 19
_COOKIE, _RARE = 20, 21

_KINDS: Final = {
    b":method": _METHOD,
    b":scheme": _SCHEME,
    b":authority": _AUTHORITY,
    b":path": _PATH,
    b"host": _HOST_FIELD,
    b"expect": _EXPECT,
    b"x-api-key": _API_KEY,
    b"content-type": _CONTENT_TYPE,
    b"x-request-id": _REQUEST_ID,
    b"authorization": _AUTHORIZATION,
    b"content-length": _CONTENT_LENGTH,
    b"idempotency-key": _IDEMPOTENCY_KEY,
    b"x-corvo-namespace": _NAMESPACE,
    b"x-corvo-min-index": _MIN_INDEX,
    b"x-corvo-client-name": _CLIENT_NAME,
    b"x-corvo-client-version": _CLIENT_VERSION,
    b"x-corvo-forwarded": _FORWARDED,
    b"origin": _ORIGIN,
    b"sec-fetch-site": _FETCH_SITE,
    b"cookie": _COOKIE,
    **dict.fromkeys(RARE, _RARE),
}
# They describe a connection of HTTP/1.1, and would say something to one behind us.
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_METHODS: Final = {
    m.encode(): m for m in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
}
_TOKEN: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NAME: Final = re.compile(rb":?[a-z0-9!#$%&'*+.^_`|~-]+")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")


class Field:
    """One header field. `fault` says what is wrong with it, None = nothing."""

    def __init__(self, name: bytes, value: bytes) -> None:
        self.name = name
        self.value = value
        self.size = len(name) + len(value) + _FIELD_OVERHEAD
        kind = _KINDS.get(name)
        self.fault: str | None = None
        self.kind = _OTHER
        if kind is not None:
            self.kind = kind
            if kind == _METHOD and value not in _METHODS and not _TOKEN.fullmatch(value):
                self.fault = "a method that is no token"
        else:
            self.fault = _judge_name(name, value)
        if self.fault is None and not _is_value(value):
            self.fault = "a field value with characters that none may have"


def _judge_name(name: bytes, value: bytes) -> str | None:
    """Fault of a field that has no meaning here, None = it is valid."""
    if not _NAME.fullmatch(name):
        return "a field name with characters that none may have"
    if name.startswith(b":"):
        return "an unknown pseudo-header field"
    if name in _OF_CONNECTIONS:
        return "a field that describes a connection of HTTP/1.1"
    if name == b"te" and value != b"trailers":
        return "a field te that is not: trailers"
    return None


def _is_value(value: bytes) -> cython.bint:
    """Whether there is no NUL, CR or LF in it, and no white space around it."""
    p: cython.p_const_uchar = value
    size: cython.Py_ssize_t = len(value)
    at: cython.Py_ssize_t = 0
    while at < size and p[at] != 0 and p[at] != 10 and p[at] != 13:
        at += 1
    if at < size:
        return False
    return size == 0 or (p[0] != 32 and p[0] != 9 and p[size - 1] != 32 and p[size - 1] != 9)


def check_trailers(fields: list[Field]) -> str | None:
    """Fault of a trailer section, None = it is valid; its values are ignored."""
    field: Field
    for field in fields:
        if field.fault is not None:
            return field.fault
        if 0 < field.kind <= _PSEUDO_MAX:
            return "a pseudo-header field in a trailer section"
    return None


def read_head(request: Request, fields: list[Field] | None) -> str | None:
    """Fill the request from its fields and check the limits of heads.

    Returns why the request is malformed, None = it is not. `fields` is None if they are too large
    to be kept. A request that is well formed but refused raises the error of its reply.
    """
    context = request.conn.context
    if fields is None:
        request.request_id = context._new_request_id()
        raise HeadersTooLarge(f"the header fields are over {context.head_size_max} bytes")
    malformed = None
    try:
        malformed = read_fields(request, fields)
    finally:
        given = request.request_id
        if given is None or not REQUEST_ID.fullmatch(given):
            request.request_id = context._new_request_id()
    if malformed is not None:
        return malformed
    if len(fields) > context.head_fields_max:
        raise HeadersTooLarge(f"more than {context.head_fields_max} header fields")
    if len(request.path) + len(request.query) > context.target_size_max:
        raise UriTooLong(f"the request target is over {context.target_size_max} bytes")
    host = request.host
    if host is None:
        raise BadRequest("header Host is missing")
    if host != context._valid_host:
        if not HOST.fullmatch(host):
            raise BadRequest("header Host is not a host name with an optional port")
        context._take_host(request)
    if request.origin is not None or request.fetch_site is not None:
        context._check_origin(request)
    return None


def read_fields(request: Request, fields: list[Field]) -> str | None:
    """Fill the request from its fields; returns what makes it malformed, None = nothing.

    A request that is well formed and refused all the same raises the error to answer with.
    """
    found: cython.uint = 0
    regular: cython.bint = False
    refusal: BadRequest | None = None
    scheme: bytes = b""
    host = None
    field: Field
    for field in fields:
        if field.fault is not None:
            return field.fault
        kind: cython.int = field.kind
        if kind == _OTHER:
            regular = True
            continue
        if kind <= _PSEUDO_MAX and regular:
            return "a pseudo-header field behind a regular one"
        if kind > _PSEUDO_MAX:
            regular = True
        if kind <= _ONCE_MAX:
            if found >> kind & 1:
                if kind <= _HOST_FIELD:
                    return f"two fields {field.name.decode()}"
                refusal = BadRequest(f"header {field.name.decode()} is given twice")
            found |= cython.cast(cython.uint, 1) << kind
        if kind == _SCHEME:
            scheme = field.value
        elif kind == _HOST_FIELD:
            host = field.value
        elif kind == _RARE:
            take_rare(request, field.name, field.value)
        else:
            _take_field(request, kind, field.value)
    if request.conn.context.keeps_fields:
        request.fields = [(field.name, field.value) for field in fields]
    malformed = _check_target(request, found, scheme, host)
    if malformed is None and refusal is not None:
        raise refusal
    return malformed


def _take_field(request: Request, kind: cython.int, value: bytes) -> None:
    if kind == _PATH:
        request.path = value
    elif kind == _METHOD:
        request.method = _METHODS.get(value) or value.decode("latin-1")
        request.head_only = request.method == "HEAD"
    elif kind == _AUTHORITY:
        request.host = value
    elif kind == _CONTENT_TYPE:
        request.content_type = value
    elif kind == _CONTENT_LENGTH:
        request.content_length = value
    elif kind == _AUTHORIZATION:
        request.authorization = value
    elif kind == _REQUEST_ID:
        request.request_id = value
    elif kind == _API_KEY:
        request.api_key = value
    elif kind == _IDEMPOTENCY_KEY:
        request.idempotency_key = value
    elif kind == _NAMESPACE:
        request.namespace = value
    elif kind == _MIN_INDEX:
        request.min_index = value
    elif kind == _CLIENT_NAME:
        request.client_name = value
    elif kind == _CLIENT_VERSION:
        request.client_version = value
    elif kind == _FORWARDED:
        request.forwarded = value
    elif kind == _EXPECT:
        request.expect = value
    elif kind == _ORIGIN:
        request.origin = value
    elif kind == _FETCH_SITE:
        request.fetch_site = value
    elif kind == _COOKIE:
        # Clients may cut a cookie in pieces to compress it better (8.2.3).
        request.cookie = value if request.cookie is None else request.cookie + b"; " + value


def _check_target(
    request: Request, found: cython.uint, scheme: bytes, host: bytes | None
) -> str | None:
    """The pseudo-header fields of a request as a whole."""
    if not found >> _METHOD & 1:
        return "no field :method"
    if host is not None:
        if request.host is not None and request.host != host:
            return "the fields :authority and host differ"
        request.host = host
    if request.method == "CONNECT":
        raise NotImplementedHere("CONNECT: Corvo is no proxy")
    if not scheme:
        return "no field :scheme"
    target: bytes = request.path
    if not found >> _PATH & 1 or not _TARGET.fullmatch(target):
        return "no valid field :path"
    if target[0] != _SLASH and (target != b"*" or request.method != "OPTIONS"):
        return "a field :path that is no path"
    if find_byte(target, _HASH, 0) >= 0:
        return "a field :path with a fragment"
    question: cython.Py_ssize_t = find_byte(target, _QUESTION, 0)
    if question >= 0:
        request.path = target[:question]
        request.query = target[question + 1 :]
    return None

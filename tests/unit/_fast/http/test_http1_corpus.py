"""What becomes of raw requests, legal and hostile: a table of bytes and verdicts.

A verdict names the status of each reply in order; `close` at the end says that the connection is
not used again. Every row runs whole and one byte at a time, and must end the same.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo._fast.http.exchange import H1Context
from corvo._fast.http.http1 import H1Conn
from corvo.net.http.server import HttpLimits

H = b"Host: a\r\n"
GET = b"GET / HTTP/1.1\r\n" + H
POST = b"POST / HTTP/1.1\r\n" + H
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
NEXT = GET + b"\r\n"

CORPUS: list[tuple[str, bytes, str]] = [
    # Legal ones.
    ("get", GET + b"\r\n", "200"),
    ("two", NEXT + NEXT, "200 200"),
    ("blank-lines-before", b"\r\n\r\n" + NEXT, "200"),
    ("blank-line-between", NEXT + b"\r\n" + NEXT, "200 200"),
    ("header-case", b"GET / HTTP/1.1\r\nhOsT: a\r\n\r\n", "200"),
    ("no-space-after-colon", b"GET / HTTP/1.1\r\nHost:a\r\n\r\n", "200"),
    ("empty-value", GET + b"X-Empty:\r\n\r\n", "200"),
    ("high-bytes-in-value", GET + b"X-Name: \xc3\xa4\r\n\r\n", "200"),
    ("http-1.0", b"GET / HTTP/1.0\r\n\r\n", "200 close"),
    ("http-1.0-keep-alive", b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "200"),
    ("close", GET + b"Connection: close\r\n\r\n", "200 close"),
    ("close-in-list", GET + b"Connection: x, Close\r\n\r\n", "200 close"),
    ("bytes-after-close", GET + b"Connection: close\r\n\r\n" + NEXT, "200 close"),
    ("length", POST + b"Content-Length: 3\r\n\r\nabc" + NEXT, "200 200"),
    ("length-zero", POST + b"Content-Length: 0\r\n\r\n" + NEXT, "200 200"),
    ("length-leading-zeros", POST + b"Content-Length: 0003\r\n\r\nabc" + NEXT, "200 200"),
    ("post-without-length", POST + b"\r\n" + NEXT, "200 200"),
    ("get-with-body", GET + b"Content-Length: 3\r\n\r\nabc" + NEXT, "200 200"),
    ("chunked", CHUNKED + b"\r\n3\r\nabc\r\n0\r\n\r\n" + NEXT, "200 200"),
    ("chunked-case", POST + b"Transfer-Encoding: Chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", "200"),
    ("chunked-empty", CHUNKED + b"\r\n0\r\n\r\n" + NEXT, "200 200"),
    ("chunk-extension", CHUNKED + b'\r\n3;x=y;z="q"\r\nabc\r\n0\r\n\r\n' + NEXT, "200 200"),
    ("chunk-leading-zeros", CHUNKED + b"\r\n003\r\nabc\r\n000\r\n\r\n" + NEXT, "200 200"),
    (
        "chunk-holds-blank-lines",
        CHUNKED + b"\r\n8\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n" + NEXT,
        "200 200",
    ),
    (
        "chunk-holds-a-request",
        CHUNKED + b"\r\n1b\r\n" + NEXT[:27] + b"\r\n0\r\n\r\n" + NEXT,
        "200 200",
    ),
    ("trailer", CHUNKED + b"\r\n0\r\nX-Sum: 1\r\n\r\n" + NEXT, "200 200"),
    ("absolute", b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "200"),
    ("absolute-without-path", b"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", "200"),
    ("star", b"OPTIONS * HTTP/1.1\r\n" + H + b"\r\n", "200"),
    ("host-port", b"GET / HTTP/1.1\r\nHost: a.example:8080\r\n\r\n", "200"),
    ("host-ipv6", b"GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", "200"),
    (
        "upgrade-without-body",
        GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + NEXT,
        "200 200",
    ),
    (
        "upgrade-with-length",
        POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc" + NEXT,
        "200 200",
    ),
    (
        "upgrade-with-chunks",
        CHUNKED + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + NEXT,
        "200 200",
    ),
    # Request lines.
    ("http-0.9", b"GET /\r\n", "505 close"),
    ("http-1.2", b"GET / HTTP/1.2\r\n" + H + b"\r\n", "505 close"),
    ("http-2.0", b"GET / HTTP/2.0\r\n" + H + b"\r\n", "505 close"),
    ("http-2-preface-late", b"\r\nPRI * HTTP/2.0 \r\n\r\nSM\r\n\r\n", "400 close"),
    ("version-case", b"GET / http/1.1\r\n" + H + b"\r\n", "400 close"),
    ("rtsp", b"GET / RTSP/1.0\r\n" + H + b"\r\n", "400 close"),
    ("version-digits", b"GET / HTTP/1.10\r\n" + H + b"\r\n", "400 close"),
    ("two-spaces", b"GET  / HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("space-at-end", b"GET / HTTP/1.1 \r\n" + H + b"\r\n", "400 close"),
    ("tab", b"GET\t/ HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("space-in-target", b"GET /a b HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("leading-space", b" GET / HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("bare-lf-line", b"GET / HTTP/1.1\n" + H + b"\r\n", "400 close"),
    ("bare-lf-before", b"\n" + NEXT, "400 close"),
    ("method-unknown", b"FROB / HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("method-case", b"get / HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("tls-hello", b"\x16\x03\x01\x02\x00\x01", "400 close"),
    ("high-byte-in-target", b"GET /\xc3\xa4 HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("nul-in-target", b"GET /\x00 HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("fragment", b"GET /#a HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("target-relative", b"GET a HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("target-ftp", b"GET ftp://a/ HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("target-userinfo", b"GET http://u@a/ HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("star-get", b"GET * HTTP/1.1\r\n" + H + b"\r\n", "400 close"),
    ("connect", b"CONNECT a:80 HTTP/1.1\r\n" + H + b"\r\n", "501 close"),
    # Hosts.
    ("host-missing", b"GET / HTTP/1.1\r\n\r\n", "400 close"),
    ("host-twice", GET + H + b"\r\n", "400 close"),
    ("host-twice-on-1.0", b"GET / HTTP/1.0\r\n" + H + H + b"\r\n", "400 close"),
    ("host-empty", b"GET / HTTP/1.1\r\nHost:\r\n\r\n", "400 close"),
    ("host-space", b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400 close"),
    ("host-path", b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400 close"),
    ("host-userinfo", b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", "400 close"),
    ("host-list", b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "400 close"),
    ("host-missing-absolute", b"GET http://a/ HTTP/1.1\r\n\r\n", "400 close"),
    # Fields.
    ("space-before-colon", GET + b"X : 1\r\n\r\n", "400 close"),
    ("no-colon", GET + b"X\r\n\r\n", "400 close"),
    ("empty-name", GET + b": 1\r\n\r\n", "400 close"),
    ("folded", GET + b"X: 1\r\n 2\r\n\r\n", "400 close"),
    ("folded-first", b"GET / HTTP/1.1\r\n " + H + b"\r\n", "400 close"),
    ("bare-lf-field", GET + b"X: 1\nY: 2\r\n\r\n", "400 close"),
    ("bare-cr-field", GET + b"X: 1\rY: 2\r\n\r\n", "400 close"),
    ("nul-in-value", GET + b"X: 1\x002\r\n\r\n", "400 close"),
    ("control-in-value", GET + b"X: 1\x012\r\n\r\n", "400 close"),
    ("space-in-name", GET + b"X Y: 1\r\n\r\n", "400 close"),
    ("authorization-twice", GET + b"Authorization: a\r\nAuthorization: b\r\n\r\n", "400 close"),
    ("api-key-twice", GET + b"X-API-Key: a\r\nx-api-key: a\r\n\r\n", "400 close"),
    # Framing: whoever disagrees about the length reads the rest as another request.
    ("length-and-chunked", CHUNKED + b"Content-Length: 3\r\n\r\n0\r\n\r\n" + NEXT, "400 close"),
    (
        "chunked-and-length",
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
        "400 close",
    ),
    ("length-twice", POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "400 close"),
    (
        "length-twice-differs",
        POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "400 close",
    ),
    ("length-list", POST + b"Content-Length: 3, 3\r\n\r\nabc", "400 close"),
    ("length-plus", POST + b"Content-Length: +3\r\n\r\nabc", "400 close"),
    ("length-minus", POST + b"Content-Length: -3\r\n\r\nabc", "400 close"),
    ("length-hex", POST + b"Content-Length: 0x3\r\n\r\nabc", "400 close"),
    ("length-empty", POST + b"Content-Length:\r\n\r\nabc", "400 close"),
    ("length-overflow", POST + b"Content-Length: 18446744073709551619\r\n\r\nabc", "400 close"),
    ("length-huge", POST + b"Content-Length: 9999999999999999\r\n\r\nabc", "413 close"),
    ("length-space", POST + b"Content-Length: 3 3\r\n\r\nabc", "400 close"),
    ("length-underscore", POST + b"Content_Length: 3\r\n\r\n" + NEXT, "200 200"),
    ("chunked-twice", CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400 close"),
    (
        "chunked-chunked",
        POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "400 close",
    ),
    ("gzip-chunked", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501 close"),
    ("gzip-only", POST + b"Transfer-Encoding: gzip\r\n\r\n", "501 close"),
    ("identity", POST + b"Transfer-Encoding: identity\r\n\r\n", "501 close"),
    ("chunked-not-last", POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n", "400 close"),
    ("coding-disguised", POST + b"Transfer-Encoding: xchunked\r\n\r\n", "501 close"),
    ("coding-vt", POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n", "400 close"),
    ("coding-parameter", POST + b"Transfer-Encoding: chunked;q=1\r\n\r\n", "501 close"),
    ("coding-empty", POST + b"Transfer-Encoding:\r\n\r\n" + NEXT, "400 close"),
    (
        "chunked-on-1.0",
        b"POST / HTTP/1.0\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "400 close",
    ),
    ("chunk-size-space", CHUNKED + b"\r\n3 \r\nabc\r\n0\r\n\r\n", "400 close"),
    ("chunk-size-sign", CHUNKED + b"\r\n+3\r\nabc\r\n0\r\n\r\n", "400 close"),
    ("chunk-size-0x", CHUNKED + b"\r\n0x3\r\nabc\r\n0\r\n\r\n", "400 close"),
    ("chunk-size-empty", CHUNKED + b"\r\n\r\nabc\r\n0\r\n\r\n", "400 close"),
    ("chunk-size-overflow", CHUNKED + b"\r\n10000000000000003\r\nabc\r\n0\r\n\r\n", "400 close"),
    ("chunk-size-lf", CHUNKED + b"\r\n3\nabc\r\n0\r\n\r\n", "400 close"),
    ("chunk-extension-lf", CHUNKED + b"\r\n3;x\nabc\r\n0\r\n\r\n", "400 close"),
    ("chunk-extension-nul", CHUNKED + b"\r\n3;\x00\r\nabc\r\n0\r\n\r\n", "400 close"),
    ("chunk-data-long", CHUNKED + b"\r\n3\r\nabcd\r\n0\r\n\r\n", "400 close"),
    ("chunk-data-lf", CHUNKED + b"\r\n3\r\nabc\n0\r\n\r\n", "400 close"),
    ("trailer-length", CHUNKED + b"\r\n0\r\nContent-Length: 3\r\n\r\n" + NEXT, "400 close"),
    ("trailer-folded", CHUNKED + b"\r\n0\r\nX: 1\r\n 2\r\n\r\n", "400 close"),
    (
        "upgrade-with-both",
        CHUNKED + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\n",
        "400 close",
    ),
    (
        "upgrade-bad-chunk",
        CHUNKED + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        "400 close",
    ),
]


def converse(pieces: list[bytes]) -> str:
    """The verdict on a stream: all requests are answered with 200 as they come."""
    context = H1Context(HttpLimits(), lambda: 0, lambda: b"now", b"t-")
    conn = H1Conn(context)
    statuses = []
    for piece in pieces:
        for request in conn.feed(piece):
            request.reply(200)
        assert not conn.has_input
        statuses += re.findall(r"HTTP/1.1 (\d{3}) ", conn.data_to_send().decode())
    return " ".join([*statuses, "close"] if conn.want_close else statuses)


@pytest.mark.parametrize(("raw", "verdict"), [pytest.param(r, v, id=n) for n, r, v in CORPUS])
def test_verdict(raw: bytes, verdict: str) -> None:
    assert converse([raw]) == verdict
    assert converse([raw[i : i + 1] for i in range(len(raw))]) == verdict


@pytest.mark.parametrize(("raw", "verdict"), [pytest.param(r, v, id=n) for n, r, v in CORPUS])
def test_verdict_split_in_two(raw: bytes, verdict: str) -> None:
    for at in range(1, len(raw)):
        assert converse([raw[:at], raw[at:]]) == verdict, at


FIELDS = st.sampled_from(
    [
        b"Host: a",
        b"host:a:80 ",
        b"Content-Length: 3",
        b"Content-Length:3",
        b"Content-Length: 03",
        b"Content-Length: +3",
        b"Content-Length:",
        b"Accept: */*",
        b"X-Request-Id: r-1",
        b"X-Odd:\t a b\t",
        b"X-High: \xc3\xa9",
        b"X-Control: \x01",
        b"X-Delete: \x7f",
        b"X-Nul: \0",
        b"X-Return: a\rb",
        b"Space : a",
        b": nothing",
        b"nothing",
        b"",
        b" folded",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Transfer-Encoding: chunked",
        b"Expect: 100-continue",
        b"Upgrade: h2c",
        b"(bad): a",
        b"!#$%&'*+-.^_`|~: a",
    ]
)
LINES = st.sampled_from(
    [
        b"POST / HTTP/1.1",
        b"GET /a/b?c=d&e=%20 HTTP/1.1",
        b"DELETE /a/~b.c-d HTTP/1.1",
        b'PUT /"<>\\^`{|} HTTP/1.1',
        b"POST /\xc3\xa9 HTTP/1.1",
        b"POST /\x7f HTTP/1.1",
        b"POST /\t HTTP/1.1",
        b"BREW / HTTP/1.1",
        b"HEAD / HTTP/1.1",
        b"GET / HTTP/1.0",
        b"GET http://a/ HTTP/1.1",
    ]
)


@given(LINES, st.lists(FIELDS, max_size=4), st.binary(max_size=1), st.integers(0, 80))
def test_a_plain_head_is_read_as_llhttp_reads_it(
    line: bytes, fields: list[bytes], noise: bytes, at: int
) -> None:
    """A head whose last two bytes come later always goes through llhttp."""
    head = b"\r\n".join([line, b"Host: a", *fields]) + b"\r\n"
    head = head[:at] + noise + head[at:]
    assert seen([head + b"\r\nabc"]) == seen([head, b"\r\nabc"])


def seen(pieces: list[bytes]) -> list[object]:
    """What the handler sees of the first request, and how it is answered."""
    conn = H1Conn(H1Context(HttpLimits(), lambda: 0, lambda: b"now", b"t-"))
    found: list[object] = []
    for piece in pieces:
        for request in conn.feed(piece)[:1]:
            found += [request.method, request.path, request.query, request.host, request.body]
            found += [request.request_id, request.content_length, request.keep_alive]
            request.reply(200)
    text = conn.data_to_send().decode()
    return [*found, re.findall(r"HTTP/1.1 (\d{3}) ", text), re.findall(r'"code":"(\w+)"', text)]

"""Which hosts and origins are this server, and what pages of other sites get."""

import pytest
from lib.h2_peer import Pairs, Peer

from corvo import config
from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http.http1 import H1Conn
from corvo.limits import SECOND_NS
from corvo.net.http.browser_guard import BrowserGuard, host_names
from corvo.net.http.server import HttpLimits
from corvo.net.routes import PROBES

GUARD = BrowserGuard(["Jobs.lan", "corvo", ""], ["https://app.example.com"], PROBES)
APP = b"Origin: https://app.example.com\r\n"


def connection() -> H1Conn:
    context = H1Context(HttpLimits(), lambda: SECOND_NS, lambda: b"now", b"t-")
    context.browser_guard = GUARD
    return H1Conn(context)


def get(host: bytes, more: bytes = b"", target: bytes = b"/a") -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (target, host, more)


def status(sent: bytes) -> int:
    """Status of the reply; a request that passes is answered with 200."""
    conn = connection()
    for request in conn.feed(sent):
        request.reply(200)
    reply = conn.data_to_send()
    assert b"X-Content-Type-Options: nosniff\r\n" in reply
    return int(reply[9:12])


OWN = [b"127.0.0.1", b"10.1.2.3:8080", b"[::1]:8080", b"[fe80::1]", b"localhost", b"LOCALHOST:1"]
OWN += [b"jobs.lan", b"JOBS.lan.:8080", b"corvo"]
FOREIGN = [b"evil.example", b"a", b"jobs.lan.evil.example", b"localhost.evil.example:8080"]
FOREIGN += [b"127.0.0.1.evil.example", b"1", b"jobs.lan.lan"]


@pytest.mark.parametrize("host", OWN)
def test_names_of_this_server(host: bytes) -> None:
    assert status(get(host)) == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_names_of_other_hosts(host: bytes) -> None:
    assert status(get(host)) == 421
    assert status(get(b"localhost", target=b"http://%b/a" % host)) == 421
    assert status(b"GET http://%b/a HTTP/1.0\r\n\r\n" % host) == 421
    assert status(get(host, target=b"http://localhost/a")) == 200, "the target wins over Host"


def test_a_client_of_http_1_0_needs_no_host() -> None:
    assert status(b"GET /a HTTP/1.0\r\n\r\n") == 200
    assert status(b"GET /a HTTP/1.0\r\nOrigin: http://a\r\n\r\n") == 403


@pytest.mark.parametrize("probe", [b"/healthz", b"/readyz", b"/readyz?x=y"])
def test_probes_pass_with_any_host_and_teach_none(probe: bytes) -> None:
    conn = connection()
    for _ in range(3):  # also from the cache of heads
        [request] = conn.feed(get(b"check.example", target=probe))
        request.reply(200)
    assert conn.feed(get(b"check.example")) == [] and conn.want_close
    assert status(get(b"check.example", b"Origin: http://evil.example\r\n", probe)) == 403


@pytest.mark.parametrize("switching", [b"evil.example", b"other.example"])
def test_each_new_host_is_checked(switching: bytes) -> None:
    conn = connection()
    for _ in range(3):
        assert len(conn.feed(get(b"localhost") + get(b"corvo"))) == 2
    assert conn.feed(get(switching)) == []


SAME = [
    (b"localhost:8080", b"Origin: http://localhost:8080\r\nSec-Fetch-Site: same-origin\r\n"),
    (b"localhost:8080", b"origin: HTTP://LOCALHOST:8080\r\n"),
    (b"corvo", b"Origin: http://corvo\r\n"),
    (b"corvo", b"Origin: https://corvo\r\n"),
    (b"corvo:443", b"Origin: https://corvo\r\n"),
    (b"[::1]:8080", b"Origin: http://[::1]:8080\r\n"),
    (b"corvo", b"Sec-Fetch-Site: none\r\n"),
    (b"corvo", b"Sec-Fetch-Site: same-origin\r\n"),
    (b"corvo", APP),
    (b"corvo", APP + b"Sec-Fetch-Site: cross-site\r\n"),
]
OTHER = [
    (b"localhost:8080", b"Origin: http://localhost:3000\r\n"),
    (b"localhost:8080", b"Origin: http://localhost\r\n"),
    (b"corvo", b"Origin: http://evil.example\r\n"),
    (b"corvo", b"Origin: http://jobs.lan.evil.example\r\n"),
    (b"corvo", b"Origin: http://evil.example@corvo\r\n"),
    (b"corvo", b"Origin: file://\r\n"),
    (b"corvo", b"Origin: null\r\n"),
    (b"corvo", b"Origin: \r\n"),
    (b"corvo", b"Origin: \xff\r\n"),
    (b"corvo", b"Origin: http://app.example.com\r\n"),
    (b"corvo", b"Sec-Fetch-Site: cross-site\r\n"),
    (b"corvo", b"Sec-Fetch-Site: same-site\r\n"),
    (b"corvo", b"Origin: http://corvo\r\nSec-Fetch-Site: cross-site\r\n"),
]


@pytest.mark.parametrize(("host", "fields"), SAME)
def test_pages_of_this_host_and_of_allowed_origins(host: bytes, fields: bytes) -> None:
    assert status(get(host, fields)) == 200


@pytest.mark.parametrize(("host", "fields"), OTHER)
def test_pages_of_other_sites(host: bytes, fields: bytes) -> None:
    assert status(get(host, fields)) == 403
    assert status(get(host, fields, b"/healthz")) == 403


def test_a_known_head_does_not_let_an_origin_pass() -> None:
    """Heads are cached when they come twice."""
    conn = connection()
    for _ in range(3):
        assert len(conn.feed(get(b"corvo"))) == 1
    assert conn.feed(get(b"corvo", b"Origin: http://evil.example\r\n")) == []
    conn = connection()
    for _ in range(4):
        [request] = conn.feed(get(b"corvo", APP))
        request.reply(200)
        assert b"Access-Control-Allow-Origin: https://app" in conn.data_to_send()


def test_a_refused_body_is_not_read() -> None:
    conn = connection()
    head = b"POST /a HTTP/1.1\r\nHost: corvo\r\nOrigin: null\r\nContent-Length: 9\r\n\r\n"
    assert conn.feed(head) == [] and conn.want_close
    assert conn.data_to_send().startswith(b"HTTP/1.1 403 Forbidden\r\n")


def test_twice_the_same_field() -> None:
    assert status(get(b"corvo", b"Origin: http://corvo\r\nOrigin: http://evil.example\r\n")) == 400
    assert status(get(b"corvo", b"Sec-Fetch-Site: none\r\n" * 2)) == 400


def test_replies_to_an_allowed_origin() -> None:
    conn = connection()
    [request] = conn.feed(get(b"corvo", APP))
    request.reply(404, b"{}", b"Allow: GET\r\n")
    reply = conn.data_to_send()
    assert b"\r\nAllow: GET\r\nAccess-Control-Allow-Origin: https://app.example.com\r\n" in reply
    assert b"\r\nVary: Origin\r\n" in reply and b"Allow-Methods" not in reply
    [request] = conn.feed(get(b"corvo"))
    request.reply(200)
    assert b"Access-Control" not in conn.data_to_send()
    preflight = b"OPTIONS /a HTTP/1.1\r\nHost: corvo\r\n" + APP
    [request] = conn.feed(preflight + b"Access-Control-Request-Method: POST\r\n\r\n")
    request.reply(204)
    reply = conn.data_to_send()
    assert b"\r\nAccess-Control-Allow-Methods: DELETE, GET, HEAD, PATCH, POST, PUT\r\n" in reply
    assert b"\r\nAccess-Control-Allow-Headers: *, Authorization\r\n" in reply
    [request] = conn.feed(get(b"corvo", APP))
    request.start(200)
    assert b"Access-Control-Allow-Origin: https://app" in conn.data_to_send()


HEAD: Pairs = [(":method", "GET"), (":scheme", "http"), (":path", "/a")]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([(":authority", "corvo")], 200),
        ([(":authority", "10.0.0.1:80"), ("sec-fetch-site", "none")], 200),
        ([(":authority", "corvo"), ("origin", "http://corvo")], 200),
        ([("host", "evil.example")], 421),
        ([(":authority", "evil.example")], 421),
        ([(":authority", "corvo"), ("origin", "http://evil.example")], 403),
        ([(":authority", "corvo"), ("sec-fetch-site", "same-site")], 403),
        ([(":authority", "corvo"), ("origin", "null"), ("origin", "http://corvo")], 400),
    ],
)
def test_http2(fields: Pairs, expected: int) -> None:
    peer = Peer()
    peer.context.browser_guard = GUARD
    requests: list[Request] = peer.feed(peer.headers(1, HEAD + fields, "END_STREAM"))
    assert len(requests) == (expected == 200)
    for request in requests:
        request.reply(200)
    answer, _ = peer.reply()
    assert answer[":status"] == str(expected)
    assert answer["x-content-type-options"] == "nosniff" and not peer.conn.want_close


def test_names_in_the_settings() -> None:
    given = {"allowed-hosts": "corvo, jobs.lan", "http-advertise": "n1.lan:8080", "insecure": "1"}
    given |= {"bind": "corvo-0:80", "discover": "dns:all.lan", "cluster-secret": "x" * 16}
    names = host_names(config.load(given, {}))
    assert {"corvo", "jobs.lan", "n1.lan", "corvo-0", "all.lan"} <= set(names)

"""The route table: what is found, decoded, and refused."""

import pytest

from corvo._fast.http.exchange import H1Context, Request
from corvo._fast.http.http1 import H1Conn
from corvo.errors import MethodNotAllowed, NotFound, ValidationError
from corvo.net.http.router import ANY_NODE, PUBLIC, Route, Router
from corvo.net.http.server import HttpLimits

CALLS: list[tuple[str, tuple[str, ...]]] = []


def route(method: str, pattern: str) -> Route:
    name = f"{method} {pattern}"

    def handler(request: Request) -> None:
        CALLS.append((name, request.params))

    return Route(method, pattern, handler, name, at=ANY_NODE, needs=PUBLIC)


ROUTER = Router(
    [
        route("GET", "/"),
        route("POST", "/api/v1/enqueue"),
        route("GET", "/api/v1/jobs/{id}"),
        route("DELETE", "/api/v1/jobs/{id}"),
        route("POST", "/api/v1/jobs/search"),
        route("GET", "/api/v1/jobs/{id}/events"),
        route("POST", "/api/v1/queues/{name}/groups/{group}"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "name", "params"),
    [
        ("GET", b"/", "GET /", ()),
        ("POST", b"/api/v1/enqueue", "POST /api/v1/enqueue", ()),
        ("POST", b"/api/v1/enqueue/", "POST /api/v1/enqueue", ()),
        ("POST", b"/api/v1/%65nqueue", "POST /api/v1/enqueue", ()),
        ("GET", b"/api/v1/jobs/j1", "GET /api/v1/jobs/{id}", ("j1",)),
        ("HEAD", b"/api/v1/jobs/j1", "GET /api/v1/jobs/{id}", ("j1",)),
        ("DELETE", b"/api/v1/jobs/j1/", "DELETE /api/v1/jobs/{id}", ("j1",)),
        ("POST", b"/api/v1/jobs/search", "POST /api/v1/jobs/search", ()),
        ("GET", b"/api/v1/jobs/a%2Fb/events", "GET /api/v1/jobs/{id}/events", ("a/b",)),
        (
            "POST",
            b"/api/v1/queues/%C3%A4+%20/groups/%25",
            "POST /api/v1/queues/{name}/groups/{group}",
            ("ä+ ", "%"),
        ),
    ],
)
def test_match(method: str, path: bytes, name: str, params: tuple[str, ...]) -> None:
    found, decoded = ROUTER.match(method, path)
    assert (found.name, decoded) == (name, params)


@pytest.mark.parametrize(
    "path",
    [
        b"/nothing",
        b"/api/v1",
        b"/api/v1/jobs",
        b"/api/v1/jobs/",
        b"/api/v1/jobs//events",
        b"//api/v1/enqueue",
        b"/api/v1/enqueue//",
        b"/api/v1/enqueue/x",
    ],
)
def test_not_found(path: bytes) -> None:
    with pytest.raises(NotFound):
        ROUTER.match("GET", path)


@pytest.mark.parametrize("segment", [b"%", b"%4", b"%zz", b"%ff", b"%c3", b"a%C0%80"])
def test_broken_escapes(segment: bytes) -> None:
    with pytest.raises(ValidationError):
        ROUTER.match("GET", b"/api/v1/jobs/" + segment)


def test_method_not_allowed_names_those_that_are() -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        ROUTER.match("PUT", b"/api/v1/jobs/j1")
    assert caught.value.fields["allow"] == "DELETE, GET, HEAD, OPTIONS"
    with pytest.raises(MethodNotAllowed):
        ROUTER.match("GET", b"/api/v1/jobs/search")


def test_the_same_route_twice_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Router([route("GET", "/a/{x}"), route("GET", "/a/{y}")])


def make_request(line: bytes) -> tuple[H1Conn, Request]:
    conn = H1Conn(H1Context(HttpLimits(), lambda: 0, lambda: b"now", b"t-"))
    return conn, conn.feed(line + b" HTTP/1.1\r\nHost: a\r\n\r\n")[0]


def test_handle_sets_params_and_calls() -> None:
    CALLS.clear()
    _, request = make_request(b"GET /api/v1/jobs/a%20b")
    ROUTER.handle(request)
    assert CALLS == [("GET /api/v1/jobs/{id}", ("a b",))]


@pytest.mark.parametrize("query", [b"x=1", b"x", b"x=%zz", b"&", b"limit=1"])
def test_a_query_that_the_row_does_not_name(query: bytes) -> None:
    CALLS.clear()
    _, request = make_request(b"GET /api/v1/jobs/a?" + query)
    with pytest.raises(ValidationError):
        ROUTER.handle(request)
    assert CALLS == []


@pytest.mark.parametrize(
    ("target", "allow"),
    [
        (b"/api/v1/enqueue", b"Allow: OPTIONS, POST\r\n"),
        (b"/api/v1/jobs/x", b"Allow: DELETE, GET, HEAD, OPTIONS\r\n"),
        (b"*", b"Allow: DELETE, GET, HEAD, OPTIONS, POST\r\n"),
    ],
)
def test_options(target: bytes, allow: bytes) -> None:
    conn, request = make_request(b"OPTIONS " + target)
    ROUTER.handle(request)
    sent = conn.data_to_send()
    assert sent.startswith(b"HTTP/1.1 204 ") and allow in sent
    assert b"Access-Control" not in sent

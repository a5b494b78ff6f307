"""The route table: method and path to handler.

A path without parameters is found by one dict lookup of its raw bytes; one whose only parameter is
the last segment by a second lookup of the bytes before it; the others by walking a tree of
segments. Segments are split before they are percent-decoded, so that `%2F` can be part of a queue
name. A literal segment wins over a parameter.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from corvo import limits
from corvo._fast.http.exchange import Request, header_line
from corvo._fast.metrics import RouteMetrics
from corvo.engine.caller import ANONYMOUS
from corvo.errors import CorvoError, MethodNotAllowed, NotFound, ValidationError, cut
from corvo.net.http.query import check_query

# Bounds of the duration of requests: 1 ms to 10 s.
HTTP_BOUNDS_NS: Final = tuple(
    ms * limits.MS_NS for ms in (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
)
_SLASH: Final = ord("/")
_PERCENT: Final = ord("%")  # bytes are searched for a number ten times faster than for bytes
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


# Where a request is served.
LEADER: Final = "leader"  # by the leader; a follower forwards it
ANY_NODE: Final = "any node"  # where it arrives, from the state that this node has applied
THIS_NODE: Final = "this node"  # where it arrives, because it concerns that node alone
PLACES: Final = (LEADER, ANY_NODE, THIS_NODE)

# In place of a permission: served without credentials.
PUBLIC: Final = "public"

Handler = Callable[[Request], None]


class Route:
    """One row of the table: an endpoint and all facts about it that other modules need.

    `{name}` in the pattern stands for one segment, decoded.
    """

    def __init__(
        self,
        method: str,
        pattern: str,
        handler: Handler,
        name: str,
        *,
        at: str,
        needs: str,
        namespaced: bool = True,
        takes_key: bool = False,
        waits: bool = False,
        stream: bool = False,
        names_leader: bool = False,
        returned_by: str = "",
        query: tuple[str, ...] = (),
        nothing: tuple[int, bytes] | None = None,
        route_metrics: RouteMetrics | None = None,
    ) -> None:
        """Facts of the row.

        at            where it is served: LEADER, ANY_NODE or THIS_NODE
        needs         the name of its permission, or PUBLIC; this version does not check it
        namespaced    it reads or changes the data of one namespace
        takes_key     an Idempotency-Key makes it take effect at most once
        waits         a long poll: the response may take a minute
        stream        the response stays open
        names_leader  a stream of messages opens on any node, which names the leader in it
        returned_by   the response hands out jobs; the pattern of the route that gives one back
        query         names of the parameters that it takes in the query
        nothing       status and body of a long poll that ends without a result
        """
        self.method = method
        self.pattern = pattern
        self.handler = handler
        self.name = name
        self.at = at
        self.needs = needs
        self.namespaced = namespaced
        self.takes_key = takes_key
        self.waits = waits
        self.stream = stream
        self.names_leader = names_leader
        self.returned_by = returned_by
        self.query = query
        self.nothing = nothing
        self.route_metrics = route_metrics or RouteMetrics(HTTP_BOUNDS_NS)


WithKey = Callable[[Request, Route], None]


class _Node:
    """A position in the tree of segments, and the routes that end here, by method."""

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, Route] = {}


class Router:
    """Finds the handler of a request and calls it. HEAD is served by GET, OPTIONS by the router. A
    request with an Idempotency-Key goes to `with_key`, which calls the handler."""

    def __init__(self, routes: Iterable[Route], with_key: WithKey | None = None) -> None:
        self.routes = tuple(routes)
        self._with_key = with_key or _refuse_key
        self._root = _Node()
        self._literal: dict[bytes, _Node] = {}
        self._leading: dict[bytes, _Node] = {}  # by the path in front of the only parameter
        for route in self.routes:
            self._add(route)

    def handle(self, request: Request) -> None:
        """Set params, route and caller of the request and call its handler. Raises NotFound or
        MethodNotAllowed."""
        if request.method == "OPTIONS":
            request.reply(204, b"", header_line("Allow", self._allow(request.path)))
            return
        route = request.route
        if route is None:
            route, request.params = self.match(request.method, request.path)
            request.route = route
        request.caller = ANONYMOUS
        request.route_metrics = route.route_metrics
        if request.query:
            check_query(request)
        if request.idempotency_key is None and request.namespace is None:
            route.handler(request)
        else:
            self._handle_headers(request, route)

    def _handle_headers(self, request: Request, route: Route) -> None:
        """Call the handler of a request with a namespace or an idempotency key."""
        if request.namespace not in (None, b"", b"default"):
            raise ValidationError("the header X-Corvo-Namespace is not part of this version")
        if request.idempotency_key is None:
            route.handler(request)
        else:
            self._with_key(request, route)

    def find(self, request: Request) -> Route | None:
        """The route of a request, which it keeps, or None if there is none."""
        route: Route | None = request.route
        if route is None:
            try:
                route, request.params = self.match(request.method, request.path)
            except CorvoError:
                return None
            request.route = route
        return route

    def match(self, method: str, path: bytes) -> tuple[Route, tuple[str, ...]]:
        """The route of a method and raw path, and its decoded parameters."""
        params: tuple[str, ...] = ()
        node = self._literal.get(path)
        if node is None:
            raw = path  # in C a pointer, of which slices are cheap
            size = len(path)
            cut = size
            while cut and raw[cut - 1] != _SLASH:
                cut -= 1
            node = self._leading.get(raw[:cut])
            if node is None or cut == size or _PERCENT in path:
                node, params = self._walk(path)
            else:
                params = (_decode(raw[cut:size]),)
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            allow = _allowed(node.routes)
            raise MethodNotAllowed(f"{method} is not allowed here, use {allow}", allow=allow)
        return route, params

    def _add(self, route: Route) -> None:
        node = self._root
        for raw in _segments(route.pattern.encode()):
            segment = raw.decode()
            if segment.startswith("{"):
                if node.parameter is None:
                    node.parameter = _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(segment, _Node())
        assert route.method not in node.routes, f"{route.method} {route.pattern} is there twice"
        node.routes[route.method] = route
        if "{" not in route.pattern:
            self._literal[route.pattern.encode()] = node
        elif route.pattern.index("{") == route.pattern.rindex("/") + 1:
            self._leading[route.pattern[: route.pattern.index("{")].encode()] = node

    def _walk(self, path: bytes) -> tuple[_Node, tuple[str, ...]]:
        node = self._root
        params = []
        for segment in _segments(path):
            text = _decode(segment)
            following = node.literals.get(text)
            if following is None:
                following = node.parameter
                if following is None or not text:
                    raise _not_found(path)
                params.append(text)
            node = following
        if not node.routes:
            raise _not_found(path)
        return node, tuple(params)

    def _allow(self, path: bytes) -> str:
        if path == b"*":
            return _allowed({route.method: route for route in self.routes})
        node = self._literal.get(path) or self._walk(path)[0]
        return _allowed(node.routes)


def _refuse_key(_request: Request, _route: Route) -> None:
    """Reject the header: a client that sends it relies on it when it retries."""
    raise ValidationError("Idempotency-Key is not supported by this endpoint")


def _segments(path: bytes) -> list[bytes]:
    """The segments after the leading slash; one trailing slash does not count."""
    return path.removesuffix(b"/")[1:].split(b"/")


def _decode(segment: bytes) -> str:
    if _PERCENT not in segment and segment.isascii():
        return segment.decode("ascii")
    if _BROKEN_ESCAPE.search(segment):
        raise ValidationError("the path contains a % without two hexadecimal digits after it")
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise ValidationError("the path is not UTF-8 after its % escapes are decoded") from None


def _not_found(path: bytes) -> NotFound:
    return NotFound(f"no endpoint at {cut(path.decode('ascii', 'replace'))}")


def _allowed(routes: dict[str, Route]) -> str:
    methods = set(routes) | {"OPTIONS"}
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))

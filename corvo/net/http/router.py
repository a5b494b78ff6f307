"""The route table: method and path to handler.

Paths without parameters are found by one dict lookup of the raw bytes, those whose only parameter
is the last segment by a second one of what is before it; the others by walking a tree of segments.
Segments are split before they are percent-decoded, so that `%2F` can be part of a queue name. A
literal segment wins over a parameter.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from corvo import limits
from corvo._fast.http.exchange import Request, header_line
from corvo._fast.metrics import RouteMetrics
from corvo.errors import MethodNotAllowed, NotFound, ValidationError

# Bounds of the duration of requests: 1 ms to 10 s.
HTTP_BOUNDS_NS: Final = tuple(
    ms * limits.MS_NS for ms in (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
)
_SLASH: Final = ord("/")
_PERCENT: Final = ord("%")  # bytes are searched for a number ten times faster than for bytes
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


Handler = Callable[[Request], None]
WithKey = Callable[[Request, Handler], None]


class Route:
    """One row of the table. `{name}` in the pattern stands for one segment, decoded."""

    def __init__(self, method: str, pattern: str, handler: Handler, name: str) -> None:
        self.method = method
        self.pattern = pattern
        self.handler = handler
        self.name = name
        self.route_metrics = RouteMetrics(HTTP_BOUNDS_NS)


class _Node:
    """What can follow the segments so far, and the routes that end here, by method."""

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, Route] = {}


class Router:
    """Finds the handler of a request and calls it. HEAD is served by GET, OPTIONS by us. A request
    with an Idempotency-Key goes to `with_key`, which calls the handler."""

    def __init__(self, routes: Iterable[Route], with_key: WithKey | None = None) -> None:
        self.routes = tuple(routes)
        self._with_key = with_key or _refuse_key
        self._root = _Node()
        self._literal: dict[bytes, _Node] = {}
        self._leading: dict[bytes, _Node] = {}  # by the path in front of the only parameter
        for route in self.routes:
            self._add(route)

    def handle(self, request: Request) -> None:
        """Set `request.params` and call the handler; NotFound or MethodNotAllowed if none."""
        if request.method == "OPTIONS":
            request.reply(204, b"", header_line("Allow", self._allow(request.path)))
            return
        route, request.params = self.match(request.method, request.path)
        request.route_metrics = route.route_metrics
        if request.idempotency_key is None and request.namespace is None:
            route.handler(request)
        else:
            self._handle_headers(request, route)

    def _handle_headers(self, request: Request, route: Route) -> None:
        """Call the handler of a request whose headers say how."""
        if request.namespace not in (None, b"", b"default"):
            raise ValidationError("the header X-Corvo-Namespace is not part of this version")
        if request.idempotency_key is None:
            route.handler(request)
        else:
            self._with_key(request, route.handler)

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
            raise MethodNotAllowed(f"{method} is not possible here, only {allow}", allow=allow)
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
        assert route.method not in node.routes, f"{route.method} {route.pattern} is given twice"
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


def _refuse_key(_request: Request, _handler: Handler) -> None:
    """Who sends an Idempotency-Key will send the request again: it is not dropped in silence."""
    raise ValidationError("the header Idempotency-Key means nothing here")


def _segments(path: bytes) -> list[bytes]:
    """The segments behind the leading slash; one trailing slash does not count."""
    return path.removesuffix(b"/")[1:].split(b"/")


def _decode(segment: bytes) -> str:
    if _PERCENT not in segment and segment.isascii():
        return segment.decode("ascii")
    if _BROKEN_ESCAPE.search(segment):
        raise ValidationError("the path holds a % that two hexadecimal digits do not follow")
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise ValidationError("the path is not UTF-8 when its % escapes are decoded") from None


def _not_found(path: bytes) -> NotFound:
    return NotFound(f"nothing is at {path.decode('ascii', 'replace')}")


def _allowed(routes: dict[str, Route]) -> str:
    methods = set(routes) | {"OPTIONS"}
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))

"""The route table: (method, path) -> handler."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from corvo._fast.http1 import Request


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table. `{name}` in the pattern stands for one decoded path segment."""

    method: str
    pattern: str
    handler: Callable[[Request], None]
    name: str


class Router:
    """Finds the handler of a request and calls it."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)

    def handle(self, request: Request) -> None:
        """Set `request.params` and call the handler; NotFound or MethodNotAllowed if none."""
        raise NotImplementedError

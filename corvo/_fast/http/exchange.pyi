from collections.abc import Callable
from typing import Any

from corvo._fast.http.abuse_counters import AbuseCounters
from corvo._fast.http.monotonic import MonotonicClock
from corvo._fast.metrics import RouteMetrics
from corvo.errors import CorvoError

def join(a: bytes, b: bytes, c: bytes, d: bytes, e: bytes, f: bytes, g: bytes) -> bytes:
    """Seven pieces in a row."""

class H1Context:
    """What all connections of one server share: limits, clock, body budget, request ids."""

    body_size_max: int
    bodies_size: int
    abuse_counters: AbuseCounters
    draining: bool
    keeps_fields: bool
    takes_pieces: Callable[[Request], bool] | None
    index: int  # applied index that replies name as X-Corvo-Index; -1 = none yet
    def __init__(
        self,
        limits: Any,  # the bounds, named as in `corvo.net.http.server.HttpLimits`
        monotonic: MonotonicClock | Callable[[], int],
        date: Callable[[], bytes],
        request_id_prefix: bytes,
    ) -> None: ...
    def monotonic(self) -> int: ...

class Request:
    """One complete request, and the slot in which its reply will go out."""

    method: str
    path: bytes
    query: bytes
    host: bytes | None
    content_type: bytes | None
    authorization: bytes | None
    api_key: bytes | None
    cookie: bytes | None
    request_id: bytes
    idempotency_key: bytes | None
    namespace: bytes | None
    min_index: bytes | None
    client_name: bytes | None
    client_version: bytes | None
    forwarded: bytes | None
    content_length: bytes | None
    expect: bytes | None
    rare: dict[bytes, bytes] | None
    fields: list[tuple[bytes, bytes]] | None
    body: bytes
    keep_alive: bool
    head_only: bool
    conn: HttpConn
    peer: str
    params: tuple[str, ...]
    arrived_ns: int
    abandoned: bool
    delivered: bool
    replied: bool
    streaming: bool
    receiving: bool
    unsent_size: int
    on_abandoned: Callable[[Request], None] | None
    on_writable: Callable[[Request], None] | None
    on_body: Callable[[Request], None] | None
    context: Any  # the handler's own, until it answers
    unsure: bool  # it may have been done already, by another node
    route_metrics: RouteMetrics | None
    route: Any  # the row of the route table (corvo.net.http.router.Route), once it is looked up
    caller: Any  # on whose behalf it acts (corvo.engine.caller.Caller), once its route is known
    def reply(
        self,
        status: int,
        body: bytes = b"",
        headers: bytes = b"",
        content_type: bytes = b"application/json",
    ) -> None:
        """Complete the slot, exactly once; replies leave in the order of the requests."""
    def start(
        self, status: int, headers: bytes = b"", content_type: bytes = b"application/json"
    ) -> None:
        """Begin a reply whose body comes in pieces."""
    def send(self, data: bytes) -> None:
        """Add to the body of a reply that was started; dropped when nobody reads it any more."""
    def end(self, trailers: bytes = b"") -> None:
        """End a reply that was started; `trailers` are lines made by `header_line`."""
    def take_body(self) -> bytes:
        """What has come of the body and was not taken yet; the peer may then send as much again."""
    def keep_body(self, size: int) -> None:
        """Say how much of what was taken is still kept: it counts among the bodies in flight."""

class HttpConn:
    """What the shell and the requests see of a connection, whichever protocol it speaks."""

    context: H1Context
    peer: str
    want_close: bool
    blocked: bool
    unsent_size: int
    on_output: Callable[[], None] | None
    def __init__(
        self, context: H1Context, peer: str = "", on_output: Callable[[], None] | None = None
    ) -> None: ...
    def feed(self, data: bytes) -> list[Request]: ...
    def data_to_send(self) -> bytes: ...
    def is_holding(self) -> bool: ...

class ReplyQueue(HttpConn):
    """The answering half of a connection of HTTP/1.1; a subclass reads."""

    pending: int
    @property
    def paused(self) -> bool: ...
    def data_to_send(self) -> bytes: ...

class UnsafeHeader(ValueError):
    """A header line that could split the response."""

def header_line(name: str, value: str) -> bytes:
    """One response header line; UnsafeHeader if the value could split the response."""

def reply_error(request: Request, error: CorvoError) -> None:
    """Answer with the error as JSON: text, code and its extra fields."""

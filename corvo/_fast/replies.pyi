from collections.abc import Callable
from typing import Any

from corvo._fast.meters import RouteMeter
from corvo.errors import CorvoError

class H1Context:
    """What all connections of one server share: limits, clock, body budget, request ids."""

    body_size_max: int
    bodies_size: int
    draining: bool
    index: int  # applied index that replies name as X-Corvo-Index; -1 = none yet
    monotonic: Callable[[], int]
    def __init__(
        self,
        limits: Any,  # the bounds, named as in `corvo.net.server.HttpLimits`
        monotonic: Callable[[], int],
        date: Callable[[], bytes],
        request_id_prefix: bytes,
    ) -> None: ...

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
    body: bytes
    keep_alive: bool
    head_only: bool
    conn: ReplyQueue
    peer: str
    params: tuple[str, ...]
    arrived_ns: int
    abandoned: bool
    delivered: bool
    replied: bool
    on_abandoned: Callable[[Request], None] | None
    context: Any  # the handler's own, until it answers
    meter: RouteMeter | None
    def reply(
        self,
        status: int,
        body: bytes = b"",
        headers: bytes = b"",
        content_type: bytes = b"application/json",
    ) -> None:
        """Complete the slot, exactly once; replies leave in the order of the requests."""

class ReplyQueue:
    """The answering half of a connection; a subclass reads."""

    context: H1Context
    peer: str
    want_close: bool
    blocked: bool
    unsent_size: int
    pending: int
    on_output: Callable[[], None] | None
    def __init__(
        self, context: H1Context, peer: str = "", on_output: Callable[[], None] | None = None
    ) -> None: ...
    @property
    def paused(self) -> bool: ...
    def data_to_send(self) -> bytes: ...

def header_line(name: str, value: str) -> bytes:
    """One response header line; ValueError if the value could split the response."""

def reply_error(request: Request, error: CorvoError) -> None:
    """Answer with the error as JSON: text, code and its extra fields."""

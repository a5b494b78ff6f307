"""Requests as data, and the decision to repeat them: no I/O.

A request is a generator of steps: it yields a step, is sent the outcome, and returns the result.
`Client` carries steps out with blocking sockets, `AsyncClient` with asyncio. A failed connection is
thrown into the generator as `Unreachable`. So both clients share everything but the sockets.
"""

import os
import random
import re
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode, urlsplit

from corvo_client import json_text
from corvo_client.errors import CorvoError, OutcomeUnknownError, Unreachable, refusal
from corvo_client.sse import SseEvent, SseParser

VERSION: Final = "0.1.0"
T = TypeVar("T")
E = TypeVar("E")

_API = "/api/v1"
_REPEATED = (429, 503, 504)  # statuses after which the same request may succeed
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 5.0
WAIT_MARGIN_S = 10.0  # for a response after an intended wait
_STREAM_SILENCE_S = 40.0  # the server sends a comment every 15 seconds
_BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Server(NamedTuple):
    """The address of a server."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


@dataclass(frozen=True)
class Request:
    """Send this, and read the whole response within the timeout. The outcome is a Reply."""

    server: Server
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes | None
    timeout_s: float
    waits: bool = False  # the server may wait by intention before it answers


@dataclass(frozen=True)
class Reply:
    """A response. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Sleep:
    """Wait. There is no outcome."""

    seconds: float


@dataclass(frozen=True)
class Open:
    """Send a request, and leave the body of a 200 response to be read. The outcome is the reply,
    and an object that stands for the stream, or None."""

    request: Request


@dataclass(frozen=True)
class Read:
    """The outcome is the next part of a stream, empty at its end."""

    stream: Any
    timeout_s: float


@dataclass(frozen=True)
class Close:
    """Close a stream. There is no outcome."""

    stream: Any


@dataclass(frozen=True)
class Emit(Generic[E]):
    """Give this value to the caller of an iterator."""

    value: E


Step = Request | Sleep | Open | Read | Close
Steps = Generator[Step, Any, T]
Emissions = Generator[Step | Emit[E], Any, None]


def segment(value: str) -> str:
    """Return an id or a name as one segment of a path."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"an id or a name must be a text that is not empty, not {value!r}")
    return quote(value, safe="", errors="surrogateescape")


def ulid() -> str:
    """Return a new ULID: such keys sort by time, which the server stores best."""
    number = int(time.time() * 1000) << 80 | secrets.randbits(80)
    return "".join(_BASE32[number >> shift & 31] for shift in range(125, -1, -5))


def given(**members: Any) -> dict[str, Any]:
    """Return the members that are not None: None means absent everywhere."""
    return {name: value for name, value in members.items() if value is not None}


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request as data. The route is that of its endpoint; `path` fills its placeholders."""

    decode: Callable[[Any, str], T]  # takes the decoded response, and its text
    path: Sequence[str] = ()
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    wait_s: float = 0  # how long the server may wait by intention
    headers: Mapping[str, str] = field(default_factory=dict)


class ClientOptions(TypedDict, total=False):
    """Options of a client, with their defaults in `Settings`."""

    timeout: float
    retry_timeout: float
    idempotency: bool
    api_key: str | None
    api_key_header: str
    bearer_token: str | None
    token_provider: Callable[[], str] | None
    namespace: str | None
    headers: Mapping[str, str]
    ca_file: str | None


@dataclass
class Settings:
    """How a client reaches its servers.

    timeout         seconds for a response, in addition to an intended wait
    retry_timeout   how long a request is repeated
    idempotency     send an Idempotency-Key with each write, so that it can be repeated
    token_provider  returns a bearer token before each request
    ca_file         certificates that verify the servers, instead of those of the system
    """

    servers: list[Server]
    timeout: float = 60
    retry_timeout: float = 30
    idempotency: bool = True
    api_key: str | None = None
    api_key_header: str = "X-API-Key"
    bearer_token: str | None = None
    token_provider: Callable[[], str] | None = None
    namespace: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: str | None = None
    client_name: str = "corvo-python"


def settings(
    base_url: str | Sequence[str] | None = None, **options: Unpack[ClientOptions]
) -> Settings:
    """Return the settings of a client. What is not given comes from CORVO_URL (with commas between
    several servers), CORVO_API_KEY and CORVO_NAMESPACE."""
    urls = base_url or os.environ.get("CORVO_URL") or "http://localhost:8080"
    if isinstance(urls, str):
        urls = [url for url in urls.split(",") if url.strip()]
    found = Settings([server(url) for url in urls], **options)
    if found.api_key is None:
        found.api_key = os.environ.get("CORVO_API_KEY")
    if found.namespace is None:
        found.namespace = os.environ.get("CORVO_NAMESPACE")
    return found


def server(url: str) -> Server:
    """Return the server of a URL. A bare `host:port` means http; a path from /api/v1 on is
    dropped."""
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} must look like http://host:port")
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{url!r} must be only scheme, host, port and path")
    prefix = re.split(f"{_API}(?:/|$)", parts.path, maxsplit=1)[0].rstrip("/")
    return Server(parts.scheme, parts.hostname, port, prefix)


class Core:
    """The state that the requests of a client share: which server is in use, and its answers."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.now = clock
        self.server_duration: float | None = None  # seconds in the server, of the last response
        self.index = ""  # X-Corvo-Index of the last write
        self._current = 0

    @property
    def server(self) -> Server:
        """The server that the next request goes to."""
        return self.settings.servers[self._current]

    def leave(self, failed: Server) -> None:
        """Use the next server from now on, unless another request has left this one already."""
        if failed == self.server:
            self._current = (self._current + 1) % len(self.settings.servers)

    def perform(
        self,
        method: str,
        pattern: str,
        call: Call[T],
        once: bool,
        repeats: bool,
        retry_timeout: float | None = None,
    ) -> Steps[T]:
        """Send a call until it has an outcome. `once` requests an idempotency key, `repeats` states
        that the request may be sent again in any case."""
        body = None if call.body is None else json_text.encode(call.body)
        headers = dict(call.headers)
        if once and self.settings.idempotency:
            headers["Idempotency-Key"] = ulid()
            repeats = True
        if retry_timeout is None:
            retry_timeout = self.settings.retry_timeout
        deadline = self.now() + retry_timeout
        failures = 0
        while True:
            request = self.request(method, pattern, call, body, headers)
            failure: CorvoError
            try:
                reply = yield request
            except Unreachable as error:
                failure = error
                again = repeats or not error.sent
            else:
                found = self.take(request, reply)
                if found is None:
                    return self.result(call, reply)
                failure = found
                again = failure.status in _REPEATED
                if isinstance(failure, OutcomeUnknownError):
                    again = repeats
            if isinstance(failure, Unreachable) or failure.status == 503:
                self.leave(request.server)
            if not again:
                raise failure
            pause = self.pause(failures, failure)
            if self.now() + pause > deadline:
                raise failure
            yield Sleep(pause)
            failures += 1

    def request(
        self,
        method: str,
        pattern: str,
        call: Call[Any],
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> Request:
        """Return the request of a call to the present server."""
        server = self.server
        path = pattern
        for value in call.path:
            path = re.sub(r"\{\w+\}", segment(value).replace("\\", r"\\"), path, count=1)
        root = "" if path in ("/healthz", "/readyz") else _API
        target = server.prefix + root + path
        if query := {name: value for name, value in call.query.items() if value is not None}:
            target += "?" + urlencode({name: _query_text(value) for name, value in query.items()})
        timeout = self.settings.timeout
        if call.wait_s:
            timeout = call.wait_s + WAIT_MARGIN_S
        all_headers = self._headers(headers, body)
        return Request(server, method, target, all_headers, body, timeout, call.wait_s > 0)

    def _headers(self, headers: Mapping[str, str], body: bytes | None) -> list[tuple[str, str]]:
        config = self.settings
        all_headers = {
            "Accept": "application/json",
            "X-Corvo-Client-Name": config.client_name,
            "X-Corvo-Client-Version": VERSION,
        }
        if body is not None:
            all_headers["Content-Type"] = "application/json"
        if config.api_key:
            all_headers[config.api_key_header] = config.api_key
        token = config.token_provider() if config.token_provider else config.bearer_token
        if token:
            all_headers["Authorization"] = f"Bearer {token}"
        if config.namespace:
            all_headers["X-Corvo-Namespace"] = config.namespace
        return list((all_headers | dict(config.headers) | dict(headers)).items())

    def take(self, request: Request, reply: Reply) -> CorvoError | None:
        """Note the facts of a reply, and return its error if it is one."""
        if duration := re.search(r"dur=([\d.]+)", reply.headers.get("server-timing", "")):
            self.server_duration = float(duration[1]) / 1000
        if request.method != "GET" and (index := reply.headers.get("x-corvo-index")):
            self.index = index
        if 200 <= reply.status < 300:
            return None
        try:
            body = json_text.decode(reply.body)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            start = reply.body[:200].decode("utf-8", "replace").strip()
            body = {"error": f"HTTP {reply.status} from {request.server.url}: {start}"}
        retry_after: float | None = None
        if isinstance(milliseconds := body.get("retry_after_ms"), int | float):
            retry_after = milliseconds / 1000
        elif (text := reply.headers.get("retry-after", "")).isdigit():
            retry_after = float(text)
        return refusal(reply.status, f"HTTP {reply.status}", body, retry_after)

    def result(self, call: Call[T], reply: Reply) -> T:
        """Return the result of a successful reply."""
        if not reply.body:
            return call.decode(None, "")
        if "json" not in reply.headers.get("content-type", ""):
            text = reply.body.decode("utf-8", "replace")
            return call.decode(text, text)
        try:
            return call.decode(json_text.decode(reply.body), reply.body.decode())
        except (ValueError, RecursionError) as error:
            failure = Unreachable(f"the response of {self.server.url} is not JSON: {error}")
            failure.sent = True
            raise failure from error

    def pause(self, failures: int, failure: CorvoError) -> float:
        """Return how long to wait before the next attempt. The first change to another server is
        immediate."""
        if failure.retry_after is not None:
            return failure.retry_after
        if isinstance(failure, Unreachable) and failures < len(self.settings.servers) - 1:
            return 0
        doubled: float = min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2 ** min(failures, 10))
        return doubled * random.uniform(0.5, 1)

    def listen(self, pattern: str, call: Call[Any], resume: bool = True) -> Emissions[SseEvent]:
        """Give the events of a stream to the caller. With `resume` a stream that breaks is opened
        again after the last event; else it ends."""
        last_id: str | None = None
        failures = 0
        while True:
            headers = dict(call.headers) | {"Accept": "text/event-stream"}
            if last_id is not None:
                headers["Last-Event-ID"] = last_id
            request = self.request("GET", pattern, call, None, headers)
            failure: CorvoError | None = None
            stream = None
            try:
                reply, stream = yield Open(request)
                failure = self.take(request, reply)
                if failure is not None and failure.status not in _REPEATED:
                    raise failure
                parser = SseParser()
                while stream is not None:
                    data = yield Read(stream, _STREAM_SILENCE_S)
                    if not data:
                        break
                    for event in parser.feed(data):
                        last_id = event.id or last_id
                        failures = 0
                        if event.data:
                            yield Emit(event)
            except Unreachable as error:
                failure = error
                self.leave(request.server)
            if stream is not None:
                yield Close(stream)
            if not resume:
                if failure is not None:
                    raise failure
                return
            pause = min(30.0, 1.0 * 2 ** min(failures, 5)) * random.uniform(0.5, 1)
            yield Sleep(failure.retry_after or pause if failure else pause)
            failures += 1


def _query_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if hasattr(value, "total_seconds"):
        return f"{value.total_seconds()}s"
    return str(value)

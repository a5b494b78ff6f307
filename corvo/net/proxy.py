"""Passes requests on to the leader, on connections that are kept: what a follower does with writes.

A request goes out with what the front end has kept of it (method, target, the fields that mean
something, body), the id it has here, and `X-Corvo-Forwarded: 1`; who gets it with that header does
not pass it on again. The answer comes back with status, fields and body; `X-Corvo-Index` is the
leader's, so that a client can wait for it anywhere.

One request at a time is on a connection. Fetches may wait for a minute there, so they get no more
than their share of the connections. What finds none waits in line for a moment; too long a line is
429. When the client of a fetch goes away its connection to the leader is cut, which is how the
leader learns that nobody waits any more. Jobs that came for a client that has gone are given back.

What becomes of a request when its connection breaks:

- It was never sent (no connection could be made), or the leader says NO_LEADER: nothing was done.
  It goes to `on_unsent`, to be asked for again, for as long as somebody may wait for a leader.
- It was sent and is a fetch, or carries an Idempotency-Key: the same, but if nobody is found who
  does it, nobody knows whether it was done. A job that was handed out into the broken connection
  comes back when its lease ends, without having used up an attempt.
- Anything else that was sent: 504 OUTCOME_UNKNOWN.

A node that is stopped or cut off breaks no connection. When another one leads, what is safe to be
asked again is taken from the connections to the old one.

There is no task or timer per request; tasks make connections.
"""

import asyncio
import json
import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import quote

from corvo import limits
from corvo._fast.replies import Request, reply_error
from corvo.errors import CorvoError, NoLeader, OutcomeUnknown, Overloaded
from corvo.limits import SECOND_NS

logger = logging.getLogger(__name__)

FORWARDED: Final = b"X-Corvo-Forwarded: 1\r\n"
_FETCH: Final = b"/api/v1/fetch"
_RELEASE: Final = "/api/v1/release/"
_TICK_S: Final = 0.25
_JSON: Final = b"application/json"
# Fields of an answer that the front end writes itself.
_OWN: Final = frozenset(
    (
        b"connection",
        b"content-length",
        b"content-type",
        b"date",
        b"keep-alive",
        b"server-timing",
        b"x-corvo-forwarded",
        b"x-corvo-index",
        b"x-request-id",
    )
)
_NOT_DONE: Final = b'"code":"NO_LEADER"'


class Errand:
    """A request on its way to the leader. `request` is None when nobody waits for the answer."""

    __slots__ = ("data", "is_fetch", "request", "since_ns", "until_ns")

    def __init__(self, request: Request | None, data: bytes, now_ns: int) -> None:
        self.request = request
        self.data = data
        self.is_fetch = request is not None and request.path.startswith(_FETCH)
        self.since_ns = now_ns  # it came, or it was sent
        self.until_ns = 0  # then it is too late to ask anew

    @property
    def repeatable(self) -> bool:
        """Whether it may be asked twice."""
        request = self.request
        return self.is_fetch or (request is not None and request.idempotency_key is not None)

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return self.request is None or not (self.request.abandoned or self.request.replied)


class Answer:
    """What the leader said."""

    __slots__ = ("body", "content_type", "headers", "index", "last", "length", "status")

    def __init__(self, head: bytes) -> None:
        """Raises ValueError when this is not the head of an answer of ours."""
        lines = head.split(b"\r\n")
        if not lines[0].startswith(b"HTTP/1.1 "):
            raise ValueError("not HTTP/1.1")
        self.status = int(lines[0][9:12])
        self.content_type = _JSON
        self.index = -1
        self.length = 0
        self.last = False  # on its connection
        self.headers = FORWARDED
        self.body = b""
        for line in lines[1:]:
            name, _, value = line.partition(b": ")
            name = name.lower()
            if name == b"content-length":
                self.length = int(value)
            elif name == b"content-type":
                self.content_type = value
            elif name == b"x-corvo-index":
                self.index = int(value)
            elif name == b"connection":
                self.last = value == b"close"
            elif name == b"transfer-encoding":
                raise ValueError("an answer in pieces")
            elif name not in _OWN:
                self.headers += line + b"\r\n"


class Upstream(asyncio.Protocol):
    """A connection to the leader, with at most one request on it."""

    def __init__(self, proxy: "Proxy", address: str) -> None:
        self.address = address
        self.errand: Errand | None = None
        self.idle_ns = 0
        self._proxy = proxy
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._pieces: list[bytes] = []  # of a body that comes in several
        self._missing = 0
        self._answer: Answer | None = None

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready for a request."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Collect an answer."""
        answer = self._answer
        if answer is None:
            if self._buffer:
                data = self._buffer + data
            end = data.find(b"\r\n\r\n")
            if end < 0 and len(data) <= limits.HEAD_SIZE_MAX:
                self._buffer = data
                return
            try:
                answer = self._answer = Answer(data[:end])
            except ValueError as error:
                self._give_up(str(error))
                return
            data = data[end + 4 :]
            self._buffer = b""
            self._missing = answer.length
        self._missing -= len(data)
        if self._missing > 0:
            self._pieces.append(data)
            return
        if self._missing < 0 or self.errand is None:
            self._give_up("more than was asked for")
            return
        if self._pieces:
            data = b"".join([*self._pieces, data])
            self._pieces = []
        answer.body = data
        self._answer = None
        errand, self.errand = self.errand, None
        if answer.last:
            self.close()
        self._proxy.answered(self, errand, answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone, whoever closed it."""
        self._transport = None
        errand, self.errand = self.errand, None
        self._proxy.lost(self, errand)

    # Called by the proxy.

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, errand: Errand, now_ns: int) -> None:
        """Send a request; its answer, or the end of the connection, will come."""
        assert self.errand is None and self._transport is not None
        self.errand = errand
        errand.since_ns = now_ns
        self._transport.write(errand.data)
        errand.data = b""  # the request has all that is needed to ask again

    def close(self) -> None:
        """Close, now that nothing is awaited."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self, reason: str) -> None:
        logger.warning("the answer of %s cannot be read: %s", self.address, reason)
        self.abort()


class Proxy:
    """Passes requests on to whoever leads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        elapsed_ns: Callable[[], int],
        on_unsent: Callable[[Request, int], None] | None = None,
        connections_max: int = limits.PROXY_CONNECTIONS_MAX,
        line_max: int = limits.PROXY_LINE_MAX,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`on_unsent` takes requests of which nothing was done, and until when somebody may be
        found who does it; without it they are answered with NO_LEADER. `tls` is for leaders whose
        address says that they speak it."""
        self.passed_on = 0
        self.asked_again = 0
        self.unknown = 0  # answered with OUTCOME_UNKNOWN
        self.refused = 0  # too many
        self._loop = loop
        self._elapsed_ns = elapsed_ns
        self._on_unsent = on_unsent or refuse
        self._connections_max = connections_max
        self._fetches_max = connections_max - connections_max // 4
        self._line_max = line_max
        self._tls = tls
        self._address = ""
        self._idle: list[Upstream] = []  # the last one used is the next
        self._busy: dict[Upstream, None] = {}
        self._connecting = 0
        self._fetches = 0  # on connections or in line for one
        self._line: deque[Errand] = deque()
        self._fetch_line: deque[Errand] = deque()  # fetches beyond their share
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # ---- what the gate calls ----

    def forward(self, request: Request, address: str, until_ns: int = 0) -> None:
        """Pass a request on to the leader at this address (host:port, behind https:// if it speaks
        TLS); it will be answered.

        `until_ns` is what `on_unsent` said when it was passed on before.
        """
        self.turn_to(address)
        now_ns = self._elapsed_ns()
        errand = Errand(request, _encode(request, address), now_ns)
        errand.until_ns = until_ns or now_ns + limits.LEADER_WAIT_NS
        self.passed_on += 1
        if errand.is_fetch:
            request.on_abandoned = self._on_abandoned
        self._start(errand)

    @property
    def connections(self) -> int:
        """Open connections to the leader."""
        return len(self._idle) + len(self._busy)

    @property
    def in_line(self) -> int:
        """Requests that wait for a connection."""
        return len(self._line) + len(self._fetch_line)

    def drain(self) -> None:
        """The server stops: fetches are answered with what there is, nothing. The rest goes on."""
        waiting = [upstream.errand for upstream in self._busy if upstream.errand is not None]
        for errand in [*waiting, *self._line, *self._fetch_line]:
            request = errand.request
            if errand.is_fetch and errand.wanted and request is not None:
                self._on_abandoned(request)  # which takes it from the leader
                request.on_abandoned = None
                if request.path.endswith(b"/batch"):
                    request.reply(200, b'{"jobs":[]}')
                else:
                    request.reply(204)

    async def close(self) -> None:
        """Close all connections. Requests that are on them have no answer."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for upstream in [*self._idle, *self._busy]:
            upstream.abort()

    # ---- lines ----

    def _start(self, errand: Errand) -> None:
        """Send it, or let it wait in line for a connection."""
        if self._timer is None:
            self._timer = self._loop.call_later(_TICK_S, self._tick)
        line = self._line
        if errand.is_fetch:
            if self._fetches >= self._fetches_max:
                line = self._fetch_line
            else:
                self._fetches += 1
        elif self._idle and not line:
            self._send(self._idle.pop(), errand)
            return
        if len(line) >= self._line_max:
            if line is self._line:
                self._end(errand)
            self._too_many(errand)
            return
        line.append(errand)
        if line is not self._line:
            return
        if self._idle:
            self._free(self._idle.pop())
        else:
            self._connect_more()

    def _end(self, errand: Errand) -> None:
        """It is neither on a connection nor in line for one any more."""
        if not errand.is_fetch:
            return
        self._fetches -= 1
        while self._fetch_line and self._fetches < self._fetches_max:
            following = self._fetch_line.popleft()
            if following.wanted:
                self._start(following)

    def _next(self) -> Errand | None:
        while self._line:
            errand = self._line.popleft()
            if errand.wanted:
                return errand
            self._end(errand)
        return None

    # ---- connections ----

    def turn_to(self, address: str) -> None:
        """The node at this address leads, or this one (empty). What may be asked again is better
        off there; what else is at the old leader will be answered, one way or the other."""
        if address == self._address:
            return
        self._address = address
        idle, self._idle = self._idle, []
        for upstream in idle:
            upstream.close()
        for upstream in list(self._busy):
            if upstream.errand is not None and upstream.errand.repeatable:
                upstream.abort()

    def _connect_more(self) -> None:
        count = self.connections + self._connecting
        if self._connecting < len(self._line) and count < self._connections_max:
            self._connecting += 1
            task = self._loop.create_task(self._connect(self._address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, address: str) -> None:
        scheme, _, place = address.rpartition("//")
        host, _, port = place.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        tls = self._tls if scheme else None
        upstream = Upstream(self, address)
        error: Exception | None = None
        try:
            async with asyncio.timeout(limits.PROXY_CONNECT_NS / SECOND_NS):
                await self._loop.create_connection(
                    lambda: upstream,
                    host,
                    int(port),
                    ssl=tls,
                    server_hostname=host if tls is not None else None,
                )
        except (OSError, ValueError) as failure:
            error = failure
        finally:
            self._connecting -= 1
        if error is None or address != self._address:
            self._free(upstream)
            return
        logger.info("cannot connect to the leader at %s: %s", address, error)
        line, self._line = self._line, deque()
        for errand in line:
            self._end(errand)
            self._not_done(errand)

    def _free(self, upstream: Upstream) -> None:
        """A connection has nothing to do: take the next in line."""
        if upstream.address != self._address or not upstream.open:
            upstream.close()
            self._connect_more()
            return
        errand = self._next()
        if errand is None:
            upstream.idle_ns = self._elapsed_ns()
            self._idle.append(upstream)
        else:
            self._send(upstream, errand)

    def _send(self, upstream: Upstream, errand: Errand) -> None:
        self._busy[upstream] = None
        upstream.send(errand, self._elapsed_ns())

    # ---- what connections call ----

    def answered(self, upstream: Upstream, errand: Errand, answer: Answer) -> None:
        """The answer to a request is complete."""
        del self._busy[upstream]
        self._end(errand)
        if answer.status == 503 and _NOT_DONE in answer.body:
            self._not_done(errand)
        else:
            self._reply(errand, answer)
        self._free(upstream)

    def lost(self, upstream: Upstream, errand: Errand | None) -> None:
        """A connection has ended, with or without a request on it."""
        self._busy.pop(upstream, None)
        if upstream in self._idle:
            self._idle.remove(upstream)
        if self._closed:
            return
        if errand is not None:
            self._end(errand)
            request = errand.request
            if errand.is_fetch:
                errand.until_ns = self._elapsed_ns() + limits.LEADER_WAIT_NS
                self._not_done(errand)
            elif errand.repeatable:
                if request is not None:
                    request.unsure = True
                self._not_done(errand)
            elif errand.wanted:
                self.unknown += 1
                self._fail(errand, OutcomeUnknown("the leader was lost; it may have been done"))
        self._connect_more()

    def _reply(self, errand: Errand, answer: Answer) -> None:
        request = errand.request
        if request is None:
            return
        if errand.is_fetch:
            if request.abandoned:
                self._give_back(request, answer.body)
                return
            request.on_abandoned = lambda gone: self._give_back(gone, answer.body)
        context = request.conn.context
        own_index = context.index
        context.index = answer.index  # the reply names the index at which it was made
        try:
            if not request.replied:
                request.reply(answer.status, answer.body, answer.headers, answer.content_type)
        finally:
            context.index = own_index

    # ---- what goes wrong ----

    def _not_done(self, errand: Errand) -> None:
        """Nothing has happened: ask again, unless that has gone on for too long."""
        request = errand.request
        if request is None or not errand.wanted:
            return
        now_ns = self._elapsed_ns()
        request.on_abandoned = None
        if now_ns >= errand.until_ns:
            refuse(request)
            return
        self.asked_again += 1
        if errand.is_fetch:
            request.body = _shorten_wait(request.body, now_ns - errand.since_ns)
        self._on_unsent(request, errand.until_ns)

    def _too_many(self, errand: Errand) -> None:
        self.refused += 1
        error = Overloaded(
            "too many requests wait for the leader", retry_after_ms=limits.RETRY_AFTER_MAX_MS
        )
        self._fail(errand, error)

    def _fail(self, errand: Errand, error: CorvoError) -> None:
        request = errand.request
        if request is not None and errand.wanted:
            request.on_abandoned = None
            reply_error(request, error)

    def _on_abandoned(self, request: Request) -> None:
        """The client of a fetch is gone. In line it is skipped when its turn comes."""
        for upstream in self._busy:
            if upstream.errand is not None and upstream.errand.request is request:
                upstream.abort()
                return

    def _give_back(self, request: Request, body: bytes) -> None:
        """Jobs came for a client that has gone."""
        for job in _parse_jobs(body):
            target = (_RELEASE + quote(job["job_id"], safe="")).encode()
            token = json.dumps({"lease_token": job["lease_token"]}).encode()
            data = _encode_for(request, self._address, target, token)
            self._start(Errand(None, data, self._elapsed_ns()))

    # ---- time ----

    def _tick(self) -> None:
        """End what takes too long, and connections that nobody needs."""
        now_ns = self._elapsed_ns()
        for upstream in list(self._busy):
            errand = upstream.errand
            if errand is not None:
                wait_ns = limits.PROXY_FETCH_NS if errand.is_fetch else limits.PROXY_ANSWER_NS
                if now_ns - errand.since_ns > wait_ns:
                    upstream.abort()
        for line in (self._line, self._fetch_line):
            while line and now_ns - line[0].since_ns > limits.PROXY_LINE_NS:
                errand = line.popleft()
                if line is self._line:
                    self._end(errand)
                if errand.wanted:
                    self._too_many(errand)
        while self._idle and now_ns - self._idle[0].idle_ns > limits.PROXY_IDLE_NS:
            self._idle.pop(0).close()
        self._timer = None
        if self.connections or self.in_line or self._connecting:
            self._timer = self._loop.call_later(_TICK_S, self._tick)


def _encode(request: Request, address: str) -> bytes:
    """The request as it goes to the leader."""
    target = request.path + b"?" + request.query if request.query else request.path
    return _encode_for(request, address, target, request.body)


def _encode_for(request: Request, address: str, target: bytes, body: bytes) -> bytes:
    """Another request, in the name of who sent this one."""
    parts = [
        request.method.encode(),
        b" ",
        target,
        b" HTTP/1.1\r\nHost: ",
        address.rpartition("//")[2].encode(),
        b"\r\n",
        FORWARDED,
    ]
    for name, value in (
        (b"Content-Type: ", request.content_type),
        (b"Authorization: ", request.authorization),
        (b"X-API-Key: ", request.api_key),
        (b"Cookie: ", request.cookie),
        (b"X-Request-Id: ", request.request_id),
        (b"Idempotency-Key: ", request.idempotency_key),
        (b"X-Corvo-Namespace: ", request.namespace),
        (b"X-Corvo-Client-Name: ", request.client_name),
        (b"X-Corvo-Client-Version: ", request.client_version),
        (b"X-Forwarded-For: ", request.peer.encode()),
    ):
        if value:
            parts += (name, value, b"\r\n")
    parts += (b"Content-Length: %d\r\n\r\n" % len(body), body)
    return b"".join(parts)


def _shorten_wait(body: bytes, passed_ns: int) -> bytes:
    """The body of a fetch that has waited before: it waits for the rest of its time only."""
    try:
        fields = json.loads(body)
    except ValueError:
        return body
    if not isinstance(fields, dict):
        return body
    wait = fields.get("timeout", limits.FETCH_WAIT_DEFAULT_S)
    if isinstance(wait, bool) or not isinstance(wait, int | float):
        return body
    fields["timeout"] = max(0, min(wait, limits.FETCH_WAIT_MAX_S) - passed_ns / SECOND_NS)
    return json.dumps(fields).encode()


def _parse_jobs(body: bytes) -> list[dict[str, Any]]:
    """The jobs in the answer to a fetch."""
    found = json.loads(body) if body else None
    jobs = found.get("jobs", [found]) if isinstance(found, dict) else []
    return [job for job in jobs if "job_id" in job and "lease_token" in job]


def refuse(request: Request, _until_ns: int = 0) -> None:
    """Nobody was found in time who leads."""
    error: CorvoError = NoLeader(
        "nobody leads the cluster now; nothing was done",
        retry_after_ms=limits.RETRY_AFTER_MAX_MS,
    )
    if request.unsure:
        error = OutcomeUnknown("the leader was lost, and nobody leads now; it may have been done")
    reply_error(request, error)

"""Forwards requests to the leader over persistent connections.

A forwarded request keeps its method, target, relevant header fields, body and id, and gets
`X-Corvo-Forwarded: 1`: a node that receives this header does not forward it again. The response
returns with status, fields and body; its `X-Corvo-Index` is that of the leader, so that a client
can wait for it at any node.

A connection carries one request at a time. A fetch may hold one for a minute, and a stream for as
long as its client reads, so both are limited to a share of the connections. A request without a
free connection waits in line; when the line is too long it gets 429. When the client of a fetch or
a stream disconnects, its connection to the leader is cut, which tells the leader to stop. Jobs that
arrive for a client that is gone are released.

The fate of a request when its connection breaks:

- It was never sent (no connection could be made), or the leader answered NO_LEADER: nothing was
  done. It goes to `on_unsent` and is retried until its deadline.
- It was sent and is a fetch, a read, or carries an Idempotency-Key: the same; if no retry succeeds,
  the outcome of a request with a key is unknown. A job handed out into the broken connection
  returns when its lease expires, and the attempt does not count. A repeated fetch states how long
  it has waited.
- A part of its response went to the client: the response ends there.
- Any other request that was sent: 504 OUTCOME_UNKNOWN.

A node that is stopped or cut off breaks no connection. When another node leads, requests that can
be repeated are taken from the connections to the old leader; the old leader has a second to answer
the rest.

There is no task or timer per request; tasks make connections.
"""

import asyncio
import json
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

from corvo import limits
from corvo._fast.http.exchange import Request, reply_error
from corvo.errors import (
    NOTHING_DONE,
    CorvoError,
    NoLeader,
    OutcomeUnknown,
    Overloaded,
    maybe_done,
)
from corvo.limits import MS_NS
from corvo.net.forward.upstream import FORWARDED, Answer, ForwardedRequest, Upstream, connect

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.25
_NOT_DONE: Final = b'"code":"NO_LEADER"'


class Proxy:
    """Forwards requests to the current leader."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        elapsed_ns: Callable[[], int],
        on_unsent: Callable[[Request, int], None] | None = None,
        connections_max: int = limits.PROXY_CONNECTIONS_MAX,
        line_max: int = limits.PROXY_LINE_MAX,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`on_unsent` takes requests that were not done, with the deadline for a retry; without it
        they are answered with NO_LEADER. `tls` is for leaders with an https:// address."""
        self.passed_on = 0
        self.asked_again = 0
        self.unknown = 0  # answered with OUTCOME_UNKNOWN
        self.refused = 0  # too many
        self._loop = loop
        self._elapsed_ns = elapsed_ns
        self._on_unsent = on_unsent or refuse
        self._connections_max = connections_max
        self._lasting_max = connections_max - connections_max // 4
        self._line_max = line_max
        self._tls = tls
        self._address = ""
        self._turned_ns = 0  # to this address
        self._idle: list[Upstream] = []  # the last one used is the next
        self._busy: dict[Upstream, None] = {}
        self._connecting = 0
        self._lasting = 0  # fetches and streams on connections or in line for one
        self._line: deque[ForwardedRequest] = deque()
        self._lasting_line: deque[ForwardedRequest] = deque()  # those beyond their share
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # ---- what the gate calls ----

    def forward(self, request: Request, address: str, until_ns: int = 0) -> None:
        """Forward a request to the leader at this address: host:port, with https:// in front if it
        uses TLS. The request will be answered.

        `until_ns` is the deadline that `on_unsent` was given, if it was forwarded before.
        """
        self.turn_to(address)
        now_ns = self._elapsed_ns()
        forwarded = ForwardedRequest(request, _encode(request, address, now_ns), now_ns)
        forwarded.until_ns = until_ns or now_ns + limits.LEADER_WAIT_NS
        self.passed_on += 1
        if forwarded.lasts:
            request.on_abandoned = self._on_abandoned
        self._start(forwarded)

    @property
    def connections(self) -> int:
        """Open connections to the leader."""
        return len(self._idle) + len(self._busy)

    @property
    def in_line(self) -> int:
        """Requests that wait for a connection."""
        return len(self._line) + len(self._lasting_line)

    def turn_to(self, address: str) -> None:
        """The node at this address leads, or this node (empty). Repeatable requests move there and
        streams end; the old leader answers the others soon, or their outcome is unknown."""
        if address == self._address:
            return
        self._address = address
        self._turned_ns = self._elapsed_ns()
        idle, self._idle = self._idle, []
        for upstream in idle:
            upstream.close()
        for upstream in list(self._busy):
            if upstream.forwarded is not None and upstream.forwarded.repeatable:
                upstream.abort()

    def drain(self) -> None:
        """The server stops: answer fetches with no job and end streams. Other requests go on."""
        waiting = [upstream.forwarded for upstream in self._busy if upstream.forwarded is not None]
        for forwarded in [*waiting, *self._line, *self._lasting_line]:
            request = forwarded.request
            if not forwarded.lasts or request is None or request.abandoned:
                continue
            if forwarded.started:
                self._on_abandoned(request)
            elif forwarded.wanted:
                self._on_abandoned(request)  # which takes it from the leader
                request.on_abandoned = None
                _answer_empty(request)

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

    def _start(self, forwarded: ForwardedRequest) -> None:
        """Send a request, or queue it for a connection."""
        if self._timer is None:
            self._timer = self._loop.call_later(_TICK_S, self._tick)
        line = self._line
        if forwarded.lasts:
            if self._lasting >= self._lasting_max:
                line = self._lasting_line
            else:
                self._lasting += 1
        elif self._idle and not line:
            self._send(self._idle.pop(), forwarded)
            return
        if len(line) >= self._line_max:
            if line is self._line:
                self._end(forwarded)
            self._too_many(forwarded)
            return
        line.append(forwarded)
        if line is not self._line:
            return
        if self._idle:
            self._free(self._idle.pop())
        else:
            self._connect_more()

    def _end(self, forwarded: ForwardedRequest) -> None:
        """A request left its connection or the line."""
        if not forwarded.lasts:
            return
        self._lasting -= 1
        while self._lasting_line and self._lasting < self._lasting_max:
            following = self._lasting_line.popleft()
            if following.wanted:
                self._start(following)

    def _next(self) -> ForwardedRequest | None:
        while self._line:
            forwarded = self._line.popleft()
            if forwarded.wanted:
                return forwarded
            self._end(forwarded)
        return None

    # ---- connections ----

    def _connect_more(self) -> None:
        count = self.connections + self._connecting
        if self._connecting < len(self._line) and count < self._connections_max:
            self._connecting += 1
            task = self._loop.create_task(self._connect(self._address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, address: str) -> None:
        upstream = Upstream(self, address, self._elapsed_ns)
        error: Exception | None = None
        try:
            await connect(self._loop, address, upstream, self._tls)
        except (OSError, ValueError) as failure:
            error = failure
        finally:
            self._connecting -= 1
        if error is None or address != self._address:
            self._free(upstream)
            return
        logger.info("cannot connect to the leader at %s: %s", address, error)
        line, self._line = self._line, deque()
        for forwarded in line:
            self._end(forwarded)
            self._not_done(forwarded)

    def _free(self, upstream: Upstream) -> None:
        """Give an idle connection the next request in line."""
        if upstream.address != self._address or not upstream.open:
            upstream.close()
            self._connect_more()
            return
        forwarded = self._next()
        if forwarded is None:
            upstream.idle_ns = self._elapsed_ns()
            self._idle.append(upstream)
        else:
            self._send(upstream, forwarded)

    def _send(self, upstream: Upstream, forwarded: ForwardedRequest) -> None:
        self._busy[upstream] = None
        upstream.send(forwarded, self._elapsed_ns())

    # ---- what connections call ----

    def answered(self, upstream: Upstream, forwarded: ForwardedRequest, answer: Answer) -> None:
        """The answer to a request is complete."""
        del self._busy[upstream]
        self._end(forwarded)
        if answer.status == 503 and _NOT_DONE in answer.body:
            self._not_done(forwarded)
        else:
            self._reply(forwarded, answer)
        self._free(upstream)

    def began(self, forwarded: ForwardedRequest, answer: Answer) -> bool:
        """The head of a chunked response arrived; False if no client waits for it."""
        request = forwarded.request
        if request is None or not forwarded.wanted:
            return False
        with self._index_of(request, answer):
            request.start(answer.status, answer.headers, answer.content_type)
        return True

    def ended(self, upstream: Upstream, forwarded: ForwardedRequest, trailers: bytes) -> None:
        """The answer that began is complete."""
        del self._busy[upstream]
        self._end(forwarded)
        request = forwarded.request
        assert request is not None
        request.on_abandoned = request.on_writable = None
        request.end(trailers)
        self._free(upstream)

    def lost(self, upstream: Upstream, forwarded: ForwardedRequest | None) -> None:
        """A connection has ended, with or without a request on it."""
        self._busy.pop(upstream, None)
        if upstream in self._idle:
            self._idle.remove(upstream)
        if self._closed:
            return
        if forwarded is not None:
            self._end(forwarded)
            request = forwarded.request
            if forwarded.started and request is not None:
                request.on_abandoned = request.on_writable = None
                request.end()
            elif forwarded.lasts:
                forwarded.until_ns = self._elapsed_ns() + limits.LEADER_WAIT_NS
                self._not_done(forwarded)
            elif forwarded.repeatable:
                if request is not None:
                    request.unsure = True
                self._not_done(forwarded)
            elif forwarded.wanted:
                self.unknown += 1
                error = OutcomeUnknown("the leader was lost; the request may have taken effect")
                self._fail(forwarded, error)
        self._connect_more()

    def _reply(self, forwarded: ForwardedRequest, answer: Answer) -> None:
        request = forwarded.request
        if request is None:
            return
        pattern = forwarded.returned_by
        if pattern:
            if request.abandoned:
                self._give_back(request, pattern, answer.body)
                return
            request.on_abandoned = lambda gone: self._give_back(gone, pattern, answer.body)
        if request.unsure and answer.status in NOTHING_DONE:
            self._fail(forwarded, maybe_done())
        elif not request.replied:
            with self._index_of(request, answer):
                request.reply(answer.status, answer.body, answer.headers, answer.content_type)

    @staticmethod
    @contextmanager
    def _index_of(request: Request, answer: Answer) -> Iterator[None]:
        """Make the reply name the index of the leader."""
        context = request.conn.context
        own_index = context.index
        context.index = answer.index
        try:
            yield
        finally:
            context.index = own_index

    # ---- what goes wrong ----

    def _not_done(self, forwarded: ForwardedRequest) -> None:
        """Retry a request that was not done, until its deadline."""
        request = forwarded.request
        if request is None or not forwarded.wanted:
            return
        now_ns = self._elapsed_ns()
        request.on_abandoned = None
        if now_ns >= forwarded.until_ns:
            refuse(request)
            return
        self.asked_again += 1
        self._on_unsent(request, forwarded.until_ns)

    def _too_many(self, forwarded: ForwardedRequest) -> None:
        self.refused += 1
        error = Overloaded(
            "too many requests are waiting for the leader", retry_after_ms=limits.RETRY_AFTER_MAX_MS
        )
        self._fail(forwarded, error)

    def _fail(self, forwarded: ForwardedRequest, error: CorvoError) -> None:
        request = forwarded.request
        if request is not None and forwarded.wanted:
            request.on_abandoned = None
            reply_error(request, error)

    def _on_abandoned(self, request: Request) -> None:
        """The client of a fetch or a stream is gone. A queued request is skipped in its turn."""
        for upstream in self._busy:
            if upstream.forwarded is not None and upstream.forwarded.request is request:
                upstream.abort()
                return

    def _give_back(self, request: Request, pattern: str, body: bytes) -> None:
        """Return jobs that arrived for a client that is gone, by the route of this pattern."""
        for job in _parse_jobs(body):
            target = pattern.replace("{job_id}", quote(job["job_id"], safe="")).encode()
            token = json.dumps({"lease_token": job["lease_token"]}).encode()
            data = _encode_for(request, self._address, target, token)
            self._start(ForwardedRequest(None, data, self._elapsed_ns()))

    # ---- time ----

    def _tick(self) -> None:
        """Abort what takes too long, and close connections that are idle for too long."""
        now_ns = self._elapsed_ns()
        for upstream in list(self._busy):
            forwarded = upstream.forwarded
            if forwarded is not None and not upstream.paused:
                wait_ns = limits.PROXY_FETCH_NS if forwarded.lasts else limits.PROXY_ANSWER_NS
                until_ns = forwarded.since_ns + wait_ns
                if upstream.address != self._address:
                    until_ns = min(until_ns, self._turned_ns + limits.PROXY_OLD_LEADER_NS)
                if now_ns > until_ns:
                    upstream.abort()
        for line in (self._line, self._lasting_line):
            while line and now_ns - line[0].since_ns > limits.PROXY_LINE_NS:
                forwarded = line.popleft()
                if line is self._line:
                    self._end(forwarded)
                if forwarded.wanted:
                    self._too_many(forwarded)
        while self._idle and now_ns - self._idle[0].idle_ns > limits.PROXY_IDLE_NS:
            self._idle.pop(0).close()
        self._timer = None
        if self.connections or self.in_line or self._connecting:
            self._timer = self._loop.call_later(_TICK_S, self._tick)


def _encode(request: Request, address: str, now_ns: int) -> bytes:
    """The request as it is sent to the leader."""
    target = request.path + b"?" + request.query if request.query else request.path
    waited = b"X-Corvo-Waited: %d\r\n" % ((now_ns - request.arrived_ns) // MS_NS)
    rare = b"".join(name + b": " + value + b"\r\n" for name, value in _rare_fields(request))
    return _encode_for(request, address, target, request.body, waited + rare)


def passed_on(request: Request) -> list[tuple[bytes, bytes]]:
    """The header fields of a request as it is sent to the leader."""
    name, _, value = FORWARDED.rstrip().partition(b": ")
    return [(name, value), *_fields(request), *_rare_fields(request)]


def _fields(request: Request) -> list[tuple[bytes, bytes]]:
    """Fields that many requests have."""
    fields = (
        (b"Content-Type", request.content_type),
        (b"Authorization", request.authorization),
        (b"X-API-Key", request.api_key),
        (b"Cookie", request.cookie),
        (b"X-Request-Id", request.request_id),
        (b"Idempotency-Key", request.idempotency_key),
        (b"X-Corvo-Namespace", request.namespace),
        (b"X-Corvo-Client-Name", request.client_name),
        (b"X-Corvo-Client-Version", request.client_version),
        (b"X-Forwarded-For", request.peer.encode()),
    )
    return [(name, value) for name, value in fields if value]


def _rare_fields(request: Request) -> list[tuple[bytes, bytes]]:
    """Header fields that most requests lack, without X-Corvo-Waited, which is recomputed."""
    return [field for field in (request.rare or {}).items() if field[0] != b"x-corvo-waited"]


def _encode_for(
    request: Request, address: str, target: bytes, body: bytes, more: bytes = b""
) -> bytes:
    """A request to the leader with the credentials of this one."""
    parts = [
        request.method.encode(),
        b" ",
        target,
        b" HTTP/1.1\r\nHost: ",
        address.rpartition("//")[2].encode(),
        b"\r\n",
        FORWARDED,
        more,
    ]
    for name, value in _fields(request):
        parts += (name, b": ", value, b"\r\n")
    parts += (b"Content-Length: %d\r\n\r\n" % len(body), body)
    return b"".join(parts)


def _answer_empty(request: Request) -> None:
    """Answer a long poll or a stream without a result."""
    nothing = request.route.nothing
    if nothing is None:
        refuse(request)
    else:
        request.reply(*nothing)


def _parse_jobs(body: bytes) -> list[dict[str, Any]]:
    """The jobs in the JSON response to a fetch. In other forms they return when their leases
    expire."""
    try:
        found = json.loads(body) if body else None
    except ValueError:
        return []
    jobs = found.get("jobs", [found]) if isinstance(found, dict) else []
    return [job for job in jobs if "job_id" in job and "lease_token" in job]


def refuse(request: Request, _until_ns: int = 0) -> None:
    """Answer with NO_LEADER: none was found in time."""
    error = NoLeader(
        "the cluster has no leader now; nothing was done",
        retry_after_ms=limits.RETRY_AFTER_MAX_MS,
    )
    reply_error(request, error)

"""The gate of a node in a cluster: decides where each request is served.

The row of its route names the place. Reads are served where they arrive, from the state that this
node has applied (`X-Corvo-Index` gives its index); with `?consistent=true` a read first waits until
this node has applied all writes acknowledged before it. Everything else goes to the leader: it is
served here when this node leads, and forwarded otherwise. So is live job output, which is not
replicated.

While there is no leader, or the leader is silent, requests are held for longer than an election
takes. Also held are requests whose op was lost with a leadership, which are retried as if they had
just arrived, and reads that were not confirmed. A request held past its deadline gets NO_LEADER: it
was never proposed; or OUTCOME_UNKNOWN, if its leader was lost with it. The deadline counts from the
loss of the leader: a node that is cut off soon answers at once, and its clients turn to another.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from corvo import limits
from corvo._fast.http.exchange import Request, reply_error
from corvo.engine.leadership import LeaderLog, Leadership
from corvo.engine.parked import Wait
from corvo.errors import CorvoError, NotReady
from corvo.net.forward.proxy import refuse
from corvo.net.http.query import is_consistent
from corvo.net.http.router import LEADER, Route
from corvo.net.rpc.wire import STREAMING, media_type

# Forwards a request to an address; it may be retried until the given time.
Forward = Callable[[Request, str, int], None]

_TICK_S: Final = 0.1


def _is_local(request: Request, route: Route | None) -> bool:
    """Whether the node where the request arrives serves it. Without a route only a read is: a node
    of another version may know the route."""
    if request.method in ("HEAD", "OPTIONS"):
        return True
    if route is None:
        return request.method == "GET"
    return route.at != LEADER or (route.names_leader and media_type(request) in STREAMING)


class Gate:
    """Serves, forwards or holds each request, ahead of the router."""

    def __init__(
        self,
        handle: Callable[[Request], None],
        find: Callable[[Request], Route | None],
        log: LeaderLog,
        leadership: Leadership,
        leader_address: Callable[[], str],
        forward: Forward,
        loop: Any,
        elapsed_ns: Callable[[], int],
        flush: Callable[[], None],
    ) -> None:
        self._handle = handle
        self._find = find
        self._log = log
        self._leadership = leadership
        self._leader_address = leader_address
        self._forward = forward
        self._loop = loop
        self._elapsed_ns = elapsed_ns
        self._flush = flush
        self._held: deque[tuple[int, Request]] = deque()  # until when
        self._timer: Any = None
        self._retry_due = False
        self._reads: dict[Request, int] = {}  # consistent ones, and their deadlines
        self._leaderless_ns = (
            0  # when the last leader was lost; 0: there is one, or there never was
        )
        leadership.on_change += [self._look, self._retry_soon]

    @property
    def held(self) -> int:
        """Number of requests that wait for a leader."""
        return len(self._held)

    def handle(self, request: Request) -> None:
        """Serve, forward, or hold."""
        if not self._log.started:
            reply_error(request, NotReady("the server is starting"))
        elif self._is_local(request):
            if request.query and is_consistent(request):
                self._read(request, self._until_ns())
            else:
                self._handle(request)
        elif self._leadership.serving:
            self._handle(request)
        elif request.forwarded is not None:
            request.conn.context.abuse_counters.count("forwarded")
            self._refuse(request)  # the node that forwarded it retries
        else:
            self._pass_on(request, self._until_ns())

    def _is_local(self, request: Request) -> bool:
        return _is_local(request, self._find(request))

    def again(self, completion: tuple[Callable[[Any, Any], None], Any]) -> bool:
        """Take back a request whose op was not done; False if the completion is not of a
        request."""
        argument = completion[1]
        request = argument.request if isinstance(argument, Wait) else argument
        if not isinstance(request, Request):
            return False
        if request.abandoned or request.replied:
            return True
        request.context = None
        request.on_abandoned = None
        if request.forwarded is not None:
            self._refuse(request)
        else:
            self._hold(request, self._until_ns())
            if not self._leadership.serving:  # else it is being handed over
                self._retry_soon()
        return True

    def returned(self, request: Request, until_ns: int) -> None:
        """Take back a request that was forwarded and not done."""
        request.on_abandoned = None
        self._hold(request, until_ns)

    def close(self) -> None:
        """Answer all held requests with NO_LEADER."""
        while self._held:
            self._refuse(self._held.popleft()[1])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flush()

    def _look(self) -> None:
        if self._reads:
            self._log.fail_reads()  # the node that got them may be unable to reply
        if self._leadership.serving or self._log.leader_id:
            self._leaderless_ns = 0
        elif not self._leaderless_ns:
            self._leaderless_ns = self._elapsed_ns()

    def _until_ns(self) -> int:
        """The deadline of a request that needs a leader."""
        since_ns = 0 if self._log.leader_id else self._leaderless_ns
        return (since_ns or self._elapsed_ns()) + limits.LEADER_WAIT_NS

    def _pass_on(self, request: Request, until_ns: int) -> None:
        address = self._leader_address()
        if address and self._log.hears_leader:
            self._forward(request, address, until_ns)
        else:
            self._hold(request, until_ns)

    def _hold(self, request: Request, until_ns: int) -> None:
        self._held.append((until_ns, request))
        self._arm()

    def _arm(self) -> None:
        if self._timer is None and (self._held or self._reads):
            self._timer = self._loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ns = self._elapsed_ns()
        if self._reads and min(self._reads.values()) <= now_ns:
            self._log.fail_reads()
        self._retry(now_ns)
        self._arm()

    def _retry_soon(self) -> None:
        if self._held and not self._retry_due:
            self._retry_due = True
            self._loop.call_soon(self._retry_now)

    def _retry_now(self) -> None:
        self._retry_due = False
        self._retry(self._elapsed_ns())

    def _retry(self, now_ns: int) -> None:
        held, self._held = self._held, deque()
        for until_ns, request in held:
            if request.abandoned:
                continue
            local = self._is_local(request)  # a read to be confirmed
            if self._leadership.serving and not local:
                self._serve(request)
            elif until_ns <= now_ns:
                self._refuse(request)
            elif local:
                self._read(request, until_ns)
            else:
                self._pass_on(request, until_ns)
        if held:
            self._flush()

    def _serve(self, request: Request) -> None:
        try:
            self._handle(request)
        except CorvoError as error:
            reply_error(request, error)

    def _refuse(self, request: Request) -> None:
        if not request.abandoned and not request.replied:
            refuse(request)

    # Consistent reads.

    def _read(self, request: Request, until_ns: int) -> None:
        self._reads[request] = until_ns
        self._arm()
        self._log.read(lambda ok: self._on_confirmed(request, ok))

    def _on_confirmed(self, request: Request, ok: bool) -> None:
        until_ns = self._reads.pop(request)
        if request.abandoned:
            return
        if not ok and self._elapsed_ns() < until_ns:
            self._hold(request, until_ns)
            return
        if ok:
            self._serve(request)
        else:
            self._refuse(request)
        self._flush()

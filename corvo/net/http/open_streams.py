"""Streaming replies: counted, kept alive, ended when the server stops.

One timer serves all of them, and only while there are any.
"""

from collections.abc import Callable
from typing import Any, Final

from corvo import limits
from corvo._fast.http.exchange import Request, header_line
from corvo.errors import NotReady, Overloaded
from corvo.platform.loop import Loop

SSE: Final = b"text/event-stream"
SSE_HEADERS: Final = header_line("Cache-Control", "no-cache") + header_line(
    "X-Accel-Buffering", "no"
)

_FULL_RETRY_MS: Final = 5_000


class OpenStreams:
    """The open streams of this node, of any kind."""

    def __init__(self, loop: Loop, streams_max: int = limits.OPEN_STREAMS_MAX) -> None:
        self._loop = loop
        self._streams_max = streams_max
        self._open: dict[Request, tuple[Callable[[Request], None], Callable[[Request], bytes]]]
        self._open = {}
        self._timer: Any = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def start(
        self,
        request: Request,
        on_gone: Callable[[Request], None],
        keepalive: Callable[[Request], bytes],
        headers: bytes = SSE_HEADERS,
        content_type: bytes = SSE,
    ) -> bool:
        """Answer with a stream; False if the peer is gone. `on_gone` is called when the peer
        disconnects or the server stops, and not after `end`. `keepalive` makes the bytes that are
        sent at intervals to a peer that has read everything."""
        if self._closed:
            raise NotReady("the server is stopping")
        if len(self._open) >= self._streams_max:
            raise Overloaded(
                f"too many open streams (limit {self._streams_max})", retry_after_ms=_FULL_RETRY_MS
            )
        request.start(200, headers, content_type)
        if not request.streaming:
            return False
        self._open[request] = on_gone, keepalive
        request.on_abandoned = self._on_abandoned
        if self._timer is None:
            self._arm()
        return True

    def end(self, request: Request) -> None:
        """End a stream."""
        if self._open.pop(request, None) is not None:
            request.on_abandoned = None
            request.end()

    def cut(self, request: Request) -> None:
        """End a stream whose owner has yet to learn about it."""
        self._on_abandoned(request)
        request.end()

    def end_all(self) -> None:
        """The server stops."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for request in list(self._open):
            self.cut(request)

    def _on_abandoned(self, request: Request) -> None:
        found = self._open.pop(request, None)
        if found is not None:
            found[0](request)

    def _arm(self) -> None:
        self._timer = self._loop.call_later(
            limits.STREAM_KEEPALIVE_NS / limits.SECOND_NS, self._keep_alive
        )

    def _keep_alive(self) -> None:
        """Send a keepalive to peers that have read everything: proxies close silent connections."""
        self._timer = None
        for request, (_, keepalive) in self._open.items():
            if request.unsent_size == 0:
                request.send(keepalive(request))
        if self._open:
            self._arm()

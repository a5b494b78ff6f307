"""HTTP/2 connections of the load generator, shared by many roles.

An `Exchange` replaces an HTTP/1.1 connection: it sends one request at a time, each on its own
stream. A `Conversation` is one lifecycle stream. All frames of one event-loop turn are sent in one
write.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from corvo._fast.codec import protobuf
from corvo._fast.http2.client import Event, H2Client
from corvo._fast.http2.frames import ConnectionFault
from corvo.cli.api import Unreachable
from corvo.errors import CorvoError
from corvo.limits import RPC_ITEMS_MAX, RPC_MESSAGE_SIZE_MAX
from corvo.net.rpc.envelopes import END_STREAM, Envelopes, envelope
from corvo.net.rpc.proto_file import parse
from corvo.net.rpc.status import RpcError

# The fields of lifecycle stream messages that the load generator reads.
ANSWER: Final = parse("""
message Job { string job_id = 1; string lease_token = 50; }
message Answer { repeated Job jobs = 2; int32 acked = 3; string error = 4;
  repeated string enqueued_job_ids = 5; }
""")["Answer"]

_PATH: Final = b"/corvo.v1.WorkerService/StreamLifecycle"
_JSON: Final = [(b"content-type", b"application/json")]
_FRAMES: Final = [(b"content-type", b"application/connect+proto")]
_CANCEL: Final = 8

Values = dict[str, Any]
Answered = Callable[[int, bytes], None]


class Owner(Protocol):
    """The load that is aborted when a connection breaks."""

    over: bool

    def abort(self, failure: CorvoError) -> None: ...


class Link(asyncio.Protocol):
    """An HTTP/2 connection and the roles that wait for its streams."""

    def __init__(self, owner: Owner, authority: bytes) -> None:
        self.owner = owner
        self.client = H2Client(authority)
        self.waiting: dict[int, Exchange | Conversation] = {}
        self._transport: asyncio.Transport | None = None
        self._reading = False
        self._flush_due = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """asyncio: frames."""
        self._reading = True
        try:
            for event in self.client.feed(data):
                self._take(event)
        except (ConnectionFault, RpcError) as e:
            self._fail(f"cannot parse the response: {e}")
        self._reading = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: closed; aborts the load if the peer closed it."""
        self._fail(f"connection lost: {exc or 'closed'}")

    def close(self) -> None:
        """Close the connection and drop pending responses."""
        if self._transport is not None:
            self._transport.abort()

    def flush(self) -> None:
        """Send the written frames at the end of this event-loop turn, in one write."""
        if not self._reading and not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        data = self.client.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def _take(self, event: Event) -> None:
        if event.leaving:
            self._fail("the server is stopping")
            return
        role = self.waiting.get(event.stream_id)
        if role is None or self.owner.over:
            return
        if event.ended:
            del self.waiting[event.stream_id]
        if event.code > 0:
            self._fail(f"a stream was reset with code {event.code}")
        else:
            role.take(event)

    def _fail(self, reason: str) -> None:
        self.owner.abort(Unreachable(reason, "See the server's log for the reason."))


class Exchange:
    """Sends one request at a time, like an HTTP/1.1 connection."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._answered: Answered | None = None
        self._status = 0
        self._body = b""

    def send(self, request: tuple[bytes, bytes], answered: Answered) -> None:
        """Send a POST with path and body; `answered` gets the status and body of the response."""
        self._answered = answered
        stream_id = self._link.client.post(request[0], _JSON, request[1])
        self._link.waiting[stream_id] = self
        self._link.flush()

    def take(self, event: Event) -> None:
        """Handle a part of the response."""
        if event.fields is not None:
            self._status = int(dict(event.fields)[b":status"])
        elif self._body or not event.ended:
            self._body += event.data
        else:
            self._body = event.data
        if event.ended:
            body, self._body = self._body, b""
            assert self._answered is not None
            self._answered(self._status, body)


class Conversation:
    """A lifecycle stream with one frame in flight."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._answered: Callable[[Values], None] | None = None
        self._envelopes = Envelopes(2 * RPC_MESSAGE_SIZE_MAX, gzip=False)
        self._stream_id = link.client.post(_PATH, _FRAMES, ends=False)
        link.waiting[self._stream_id] = self
        link.flush()

    def send(self, frame: bytes, answered: Callable[[Values], None]) -> None:
        """Send a frame; `answered` gets the response."""
        self._answered = answered
        self._link.client.send(self._stream_id, envelope(frame))
        self._link.flush()

    def take(self, event: Event) -> None:
        """Handle a part of the response."""
        if event.fields is not None:
            status = dict(event.fields)[b":status"]
            if status != b"200":
                raise RpcError("unknown", f"status {status.decode()}")
            return
        if event.data[:1] == bytes((END_STREAM,)) or event.ended:
            raise RpcError("unknown", f"the stream has ended: {event.data[5:].decode()}")
        for message in self._envelopes.feed(event.data):
            answered = self._answered
            assert answered is not None
            answered(protobuf.decode(ANSWER, message, RPC_ITEMS_MAX))

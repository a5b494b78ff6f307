"""One call as its protocol writes it: Connect with one message each way, Connect streams, gRPC.

A `Wire` is between the request of the front end and the handler of the call. It frames and
compresses messages, computes the deadline of the caller, and starts, continues and ends a reply,
with or without an error. It does not depend on the form and the meaning of messages.

The methods that answer come in this order: `start` at most once, `send` for each message, `end`.
"""

from collections.abc import Iterable
from typing import Final

from corvo import limits
from corvo._fast.http.exchange import ReplyQueue, Request, header_line
from corvo.errors import VersionNotSupported
from corvo.limits import MS_NS, SECOND_NS
from corvo.net.rpc.envelopes import END_STREAM, Envelopes, envelope, gunzip, too_large
from corvo.net.rpc.status import (
    HTTP_STATUS,
    RpcError,
    connect_end,
    connect_error,
    grpc_trailers,
)

Metadata = Iterable[tuple[str, str]]

_GRPC_UNITS_NS: Final = {
    b"H": 3600 * SECOND_NS,
    b"M": 60 * SECOND_NS,
    b"S": SECOND_NS,
    b"m": MS_NS,
    b"u": 1_000,
    b"n": 1,
}
_GRPC_TIMEOUT_SIZE_MAX: Final = 9
_PLAIN: Final = (None, b"", b"identity")  # codings of messages that are not compressed


class Wire:
    """One call."""

    encoding_header: bytes

    def __init__(
        self, request: Request, form: str, size_max: int = limits.RPC_MESSAGE_SIZE_MAX
    ) -> None:
        self.request = request
        self.form = form  # of the messages: proto or json
        self.size_max = size_max
        self.gzip = False
        self.timeout_ns = 0  # how long the caller waits, 0 = as long as it takes
        self._started = False

    def read_head(self) -> None:
        """Find out what the fields of the request say; RpcError when it makes no sense."""
        self.gzip = _gzip(self.request, self.encoding_header)
        self.timeout_ns = self._read_timeout()

    def is_compressed(self) -> bool:
        """Whether messages of the request may be compressed, before `read_head`."""
        return header(self.request, self.encoding_header) not in _PLAIN

    def envelopes(self) -> Envelopes:
        """Takes the messages of the request out of its body, as it comes."""
        return Envelopes(self.size_max, self.gzip)

    def message(self) -> bytes:
        """The one message of a request that is whole. The body stays: the request may have to be
        passed on yet."""
        envelopes = self.envelopes()
        messages = envelopes.feed(self.request.body)
        if not envelopes.more:
            envelopes.finish()
        if len(messages) != 1 or envelopes.more:
            count = "several" if messages else "no"
            raise RpcError("unimplemented", f"{count} messages, exactly one is allowed")
        return messages[0]

    def start(self, headers: bytes = b"") -> None:
        """Begin to answer."""
        self._started = True
        self.request.start(200, headers, self.content_type())

    def send(self, message: bytes) -> None:
        """Answer with a message."""
        if not self._started:
            self.start()
        self.request.send(envelope(message))

    def end(
        self, error: RpcError | None = None, trailers: Metadata = (), headers: bytes = b""
    ) -> None:
        """The end of the answer. `headers` are for one that has not begun yet."""
        raise NotImplementedError

    def content_type(self) -> bytes:
        """The media type of the answer: that of the request."""
        return media_type(self.request)

    def _read_timeout(self) -> int:
        text = header(self.request, b"connect-timeout-ms")
        if text is None:
            return 0
        if not text.isdigit() or len(text) > limits.RPC_TIMEOUT_DIGITS_MAX:
            raise RpcError(
                "invalid_argument", "Connect-Timeout-Ms must be a number of at most ten digits"
            )
        return max(1, int(text) * MS_NS)


class ConnectUnary(Wire):
    """By the Connect protocol, one message each way: status and body say it all."""

    encoding_header = b"content-encoding"

    def __init__(
        self, request: Request, form: str, size_max: int = limits.RPC_MESSAGE_SIZE_MAX
    ) -> None:
        super().__init__(request, form, size_max)
        self._message = b""
        self._headers = b""

    def read_head(self) -> None:
        """See `Wire`."""
        _check_version(self.request)
        super().read_head()

    def message(self) -> bytes:
        """The body."""
        body, size_max = self.request.body, self.size_max
        if len(body) > size_max:
            raise too_large(len(body), size_max)
        return gunzip(body, size_max) if self.gzip and body else body

    def start(self, headers: bytes = b"") -> None:
        """The fields of the answer, which leaves with its end."""
        self._headers = headers

    def send(self, message: bytes) -> None:
        """The message of the answer."""
        self._message = message

    def end(
        self, error: RpcError | None = None, trailers: Metadata = (), headers: bytes = b""
    ) -> None:
        """See `Wire`."""
        lines = [self._headers, headers, *(header_line(f"Trailer-{k}", v) for k, v in trailers)]
        if error is not None:
            self.request.reply(HTTP_STATUS[error.code], connect_error(error), b"".join(lines))
            return
        media = self.content_type()
        if not self._message:
            # An empty reply has no type by itself, but an empty message has one.
            lines.append(header_line("Content-Type", media.decode()))
        self.request.reply(200, self._message, b"".join(lines), media)


class ConnectStream(Wire):
    """By the Connect protocol, with more messages than one: the last envelope has the status."""

    encoding_header = b"connect-content-encoding"

    def read_head(self) -> None:
        """See `Wire`."""
        _check_version(self.request)
        super().read_head()

    def end(
        self, error: RpcError | None = None, trailers: Metadata = (), headers: bytes = b""
    ) -> None:
        """See `Wire`."""
        if not self.request.replied:
            self.start(headers)
        self.request.send(envelope(connect_end(error, trailers), END_STREAM))
        self.request.end()


class Grpc(Wire):
    """By gRPC: trailers say how it went; an answer without messages is nothing but trailers."""

    encoding_header = b"grpc-encoding"

    def end(
        self, error: RpcError | None = None, trailers: Metadata = (), headers: bytes = b""
    ) -> None:
        """See `Wire`."""
        lines = grpc_trailers(error) + b"".join(header_line(k, v) for k, v in trailers)
        if self.request.replied:
            self.request.end(lines)
        elif error is None:
            self.start(headers)
            self.request.end(lines)
        else:
            media = header_line("Content-Type", self.content_type().decode())
            self.request.reply(200, b"", headers + media + lines)

    def _read_timeout(self) -> int:
        text = header(self.request, b"grpc-timeout")
        if text is None:
            return 0
        unit_ns = _GRPC_UNITS_NS.get(text[-1:])
        wrong = not text[:-1].isdigit() or len(text) > _GRPC_TIMEOUT_SIZE_MAX
        if unit_ns is None or wrong:
            raise RpcError(
                "invalid_argument", "grpc-timeout must be at most eight digits and a unit"
            )
        return max(1, int(text[:-1]) * unit_ns)


_GRPC: Final = {
    b"application/grpc": (Grpc, "proto"),
    b"application/grpc+proto": (Grpc, "proto"),
    b"application/grpc+json": (Grpc, "json"),
}
# Forms of a request, by its media type: for calls of one message each way, and for
# those with more of them.
UNARY: Final[dict[bytes, tuple[type[Wire], str]]] = {
    b"application/proto": (ConnectUnary, "proto"),
    b"application/json": (ConnectUnary, "json"),
    **_GRPC,
}
STREAMING: Final[dict[bytes, tuple[type[Wire], str]]] = {
    b"application/connect+proto": (ConnectStream, "proto"),
    b"application/connect+json": (ConnectStream, "json"),
    **_GRPC,
}


def media_type(request: Request) -> bytes:
    """The content type of a request without its parameters."""
    content_type = request.content_type
    if content_type is None:
        return b""
    return content_type.partition(b";")[0].strip().lower()


def find_wire(
    request: Request,
    known: dict[bytes, tuple[type[Wire], str]],
    size_max: int = limits.RPC_MESSAGE_SIZE_MAX,
) -> Wire | None:
    """The wire of a request; one with a media type that is not known is refused."""
    found = known.get(media_type(request))
    if found is None:
        names = ", ".join(name.decode() for name in known)
        request.reply(415, b"", header_line("Accept-Post", names))
        return None
    kind, form = found
    if kind is Grpc and isinstance(request.conn, ReplyQueue) and request.forwarded is None:
        raise VersionNotSupported("gRPC needs HTTP/2")
    return kind(request, form, size_max)


def header(request: Request, name: bytes) -> bytes | None:
    """A header field that few requests have."""
    return None if request.rare is None else request.rare.get(name)


def _gzip(request: Request, name: bytes) -> bool:
    """Whether the caller has compressed what it sent, as far as we can tell."""
    coding = header(request, name)
    if coding in _PLAIN:
        return False
    if coding != b"gzip":
        raise RpcError("unimplemented", "gzip is the only supported compression")
    return True


def _check_version(request: Request) -> None:
    if header(request, b"connect-protocol-version") not in (None, b"1"):
        raise RpcError("invalid_argument", "1 is the only supported Connect-Protocol-Version")

"""HTTP/1.1 of one connection as bytes in and out, for both clients; sockets are elsewhere."""

import ssl

import h11

from corvo_client.core import Reply, Request, Server
from corvo_client.errors import Unreachable

READ_SIZE = 65536
_HEAD_SIZE_MAX = 65536


class Wire:
    """The state of a connection: a request is written, a response is read, then the next."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_SIZE_MAX)
        self._head: tuple[int, dict[str, str]] | None = None
        self._body: list[bytes] = []

    def start(self, request: Request) -> bytes:
        """Return the bytes of a request."""
        headers = [("Host", host_header(request.server)), *request.headers]
        if request.body is not None or request.method != "GET":
            headers.append(("Content-Length", str(len(request.body or b""))))
        self._head, self._body = None, []
        data = self._http.send(
            h11.Request(
                method=request.method,
                target=request.target,
                headers=[(name.encode(), value.encode()) for name, value in headers],
            )
        )
        parts = [data or b""]
        if request.body:
            parts.append(self._http.send(h11.Data(data=request.body)) or b"")
        parts.append(self._http.send(h11.EndOfMessage()) or b"")
        return b"".join(parts)

    def feed(self, data: bytes) -> Reply | None:
        """Take received bytes, empty at the end of the connection. Return the response when it
        is complete."""
        if not data and self._head is None:
            raise EOFError("the server closed the connection")
        self._http.receive_data(data)
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                return None
            if isinstance(event, h11.Response):
                headers = {n.decode(): v.decode("latin-1") for n, v in event.headers}
                self._head = event.status_code, headers
            elif isinstance(event, h11.Data):
                self._body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return self._reply()
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise h11.RemoteProtocolError("the server closed the connection")

    def feed_stream(self, data: bytes | None) -> tuple[Reply | None, bytes, bool]:
        """Take received bytes of a response that is read in parts. Return its head when it is
        new, the part of the body that has arrived, and whether it is complete."""
        if data is not None:
            self._http.receive_data(data)
        fresh = None
        parts: list[bytes] = []
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                headers = {n.decode(): v.decode("latin-1") for n, v in event.headers}
                fresh = Reply(event.status_code, headers, b"")
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif event is h11.NEED_DATA:
                return fresh, b"".join(parts), False
            elif not isinstance(event, h11.InformationalResponse):
                return fresh, b"".join(parts), True

    @property
    def reusable(self) -> bool:
        """Whether another request can follow."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return self._http.our_state is h11.IDLE and self._http.their_state is h11.IDLE

    def _reply(self) -> Reply:
        assert self._head is not None
        status, headers = self._head
        return Reply(status, headers, b"".join(self._body))


def host_header(server: Server) -> str:
    """Return the Host header of a server."""
    default = 443 if server.scheme == "https" else 80
    host = f"[{server.host}]" if ":" in server.host else server.host
    return host if server.port == default else f"{host}:{server.port}"


def tls_context(server: Server, ca_file: str | None) -> ssl.SSLContext | None:
    """Return how to encrypt connections to a server, None for plain HTTP."""
    return ssl.create_default_context(cafile=ca_file) if server.scheme == "https" else None


def unreachable(server: Server, error: BaseException, sent: bool, waited_s: float) -> Unreachable:
    """Return the error of a failed connection, with the reason in words."""
    if isinstance(error, TimeoutError) and not isinstance(error, ssl.SSLError):
        reason = f"no response within {waited_s:g} s"
    elif isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is not trusted: {error.verify_message}"
    elif isinstance(error, h11.RemoteProtocolError):
        reason = f"the connection broke: {error}"
    elif isinstance(error, ConnectionRefusedError):
        reason = "connection refused"
    else:
        reason = str(getattr(error, "strerror", None) or error or type(error).__name__)
    failure = Unreachable(f"{server.url}: {reason}", code="UNREACHABLE")
    failure.sent = sent
    failure.__cause__ = error
    return failure


FAILURES: tuple[type[BaseException], ...] = (OSError, h11.ProtocolError, EOFError)

"""TLS in front of the connections: a certificate, and whoever has yet to shake hands.

A connection is counted when it is accepted, before its handshake, so that unfinished ones are
bounded too. Which protocol it will speak is agreed on in the handshake (ALPN).
"""

import asyncio
import ssl
from typing import Final

from corvo.errors import ConfigError
from corvo.net.server import Connection, Server

_PROTOCOLS: Final = ("h2", "http/1.1")
# What RFC 9113 (9.2.2) leaves of TLS 1.2; TLS 1.3 has nothing else.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


class Certificate:
    """A certificate with its key, in files that may be replaced while the server runs."""

    def __init__(self, cert_file: str, key_file: str) -> None:
        self._files = cert_file, key_file
        self.context = self._read()

    def reload(self) -> None:
        """Read the files again, for the connections to come; ConfigError, and all stays as it is,
        if they are not right."""
        self.context = self._read()

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_ciphers(_CIPHERS)
        context.set_alpn_protocols(_PROTOCOLS)
        cert_file, key_file = self._files
        try:
            context.load_cert_chain(cert_file, key_file, _no_password)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"cannot use {cert_file} with {key_file}: {reason}") from None
        return context


def _no_password() -> str:
    raise ValueError("the key needs a password, and nobody is there to type it")


class Handshakes:
    """Accepts connections of a server by TLS, and hands them over when they may begin."""

    def __init__(self, server: Server, certificate: Certificate) -> None:
        self.server = server
        self.certificate = certificate
        self.running: set[asyncio.Task[None]] = set()

    def protocol(self) -> "Handshake":
        """For a connection that has just been accepted."""
        return Handshake(self)

    def close(self) -> None:
        """Give up those that have not finished."""
        for task in list(self.running):
            task.cancel()


class Handshake(asyncio.Protocol):
    """One connection, from being accepted to the end of its handshake."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes
        self._early = b""  # what was read behind the handshake, in the same turn
        self._ended = False
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many connections."""
        assert isinstance(transport, asyncio.Transport)
        server = self._handshakes.server
        address = server.admit(transport)
        if address is None:
            return
        transport.pause_reading()
        running = self._handshakes.running
        task = server.loop.create_task(self._run(transport, address))
        running.add(task)
        task.add_done_callback(running.discard)

    def data_received(self, data: bytes) -> None:
        """Keep it for the connection."""
        self._early += data

    def eof_received(self) -> bool:
        """Keep this, too."""
        self._ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """There is nobody to hand over."""
        self._lost = True

    async def _run(self, transport: asyncio.Transport, address: str) -> None:
        server = self._handshakes.server
        secure = None
        try:
            secure = await server.loop.start_tls(
                transport,
                self,
                self._handshakes.certificate.context,
                server_side=True,
                ssl_handshake_timeout=server.limits.handshake_wait_s,
            )
        except OSError:  # what was said is not TLS, or not a version of it that is spoken here
            server.context.refusals.count("tls_handshake")
        finally:
            if secure is None or self._lost:
                server.release(address)
        if secure is not None and not self._lost:
            self._hand_over(secure, address)

    def _hand_over(self, transport: asyncio.Transport, address: str) -> None:
        connection = Connection(self._handshakes.server)
        transport.set_protocol(connection)  # type: ignore[arg-type]  # a protocol by its methods
        tls = transport.get_extra_info("ssl_object")
        connection.open(transport, address, tls.selected_alpn_protocol() or "http/1.1")
        if self._early:
            connection.data_received(self._early)
        if self._ended:
            connection.eof_received()

"""TLS in front of the connections: the certificate and pending handshakes.

A connection is counted when it is accepted, before its handshake, so that unfinished ones are
bounded too. Which protocol it will speak is agreed on in the handshake (ALPN).
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from corvo.errors import ConfigError
from corvo.net.http.server import Server

_PROTOCOLS: Final = ("h2", "http/1.1")
# The cipher suites of TLS 1.2 that RFC 9113 (9.2.2) allows; TLS 1.3 has no others.
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
    raise ValueError("the key is protected by a password")


class Handshakes:
    """Accepts connections of a server by TLS, and hands them over when they may begin."""

    def __init__(self, server: Server, certificate: Certificate) -> None:
        self._server = server
        self._certificate = certificate
        self._running: set[asyncio.Task[None]] = set()

    def protocol(self) -> "_Accepted":
        """The protocol factory of the listeners."""
        return _Accepted(self._accept)

    def close(self) -> None:
        """Give up those that have not finished."""
        for task in list(self._running):
            task.cancel()

    def _accept(self, transport: asyncio.Transport) -> None:
        address = self._server.admit(transport)
        if address is None:
            return
        # A transport of its own has the handshake: this one would begin to read.
        accepted = transport.get_extra_info("socket").dup()
        transport.abort()
        task = self._server.loop.create_task(self._shake(accepted, address))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _shake(self, accepted: socket.socket, address: str) -> None:
        server = self._server
        secured = _Secured(server, address)
        try:
            await server.loop.connect_accepted_socket(
                lambda: secured,
                accepted,
                ssl=self._certificate.context,
                ssl_handshake_timeout=server.limits.handshake_wait_s,
            )
        except OSError:  # not TLS, an unsupported version, or too late
            server.context.abuse_counters.count("tls_handshake")
        finally:
            if not secured.opened:
                server.release(address)


class _Accepted(asyncio.Protocol):
    """A connection that has just been accepted."""

    def __init__(self, accept: Callable[[asyncio.Transport], None]) -> None:
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._accept(cast(asyncio.Transport, transport))


class _Secured(asyncio.Protocol):
    """A connection that shakes hands."""

    def __init__(self, server: Server, address: str) -> None:
        self._server = server
        self._address = address
        self.opened = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is done: from here on the server has it."""
        self.opened = True
        transport = cast(asyncio.Transport, transport)
        connection = self._server.protocol()
        transport.set_protocol(cast(Any, connection))
        tls = transport.get_extra_info("ssl_object")
        connection.open(transport, self._address, tls.selected_alpn_protocol() or "http/1.1")

"""Notifications to systemd: ready, stopping, and watchdog.

The protocol is a datagram of `NAME=value` lines to the socket in NOTIFY_SOCKET (a leading `@` means
the abstract namespace). Without that variable nothing is sent.
"""

import contextlib
import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends notifications to the service manager; does nothing without one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        self.watchdog_s = _watchdog_s(environ) if address else 0.0

    def ready(self) -> None:
        """Notify that the server accepts requests."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Notify that the server drains and will exit."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """Notify that the event loop runs; must be called every `watchdog_s` seconds, unless that
        is 0."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket; later notifications are dropped."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, state: str) -> None:
        if self._socket is None:
            return
        with contextlib.suppress(OSError):  # a failed notification must not stop the server
            self._socket.sendto(state.encode(), self._address)


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """Half of the watchdog timeout of systemd; 0 if the watchdog is off."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    interval_us = environ.get("WATCHDOG_USEC", "")
    return int(interval_us) / 2e6 if interval_us.isdigit() else 0.0

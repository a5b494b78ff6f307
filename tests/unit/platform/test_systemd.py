"""Notifications to a service manager that is a socket of ours."""

import os
import socket
from pathlib import Path

import pytest

from corvo.platform.systemd import Notifier


@pytest.mark.parametrize("abstract", [False, True])
def test_tells_the_service_manager(tmp_path: Path, abstract: bool) -> None:
    name = f"@corvo-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        notifier = Notifier({"NOTIFY_SOCKET": name})
        notifier.ready()
        notifier.watchdog()
        notifier.stopping()
        assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
        notifier.close()
        notifier.ready()
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)


def test_silent_without_a_manager(tmp_path: Path) -> None:
    Notifier({"WATCHDOG_USEC": "1000000"}).ready()
    deaf = Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    deaf.ready()
    deaf.close()


def test_watchdog_interval() -> None:
    environ = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    intervals = []
    for change in ({}, {"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": ""}, {"NOTIFY_SOCKET": ""}):
        notifier = Notifier(environ | change)
        intervals.append(notifier.watchdog_s)
        notifier.close()
    assert intervals == [1.5, 0, 0, 0]

"""Real servers and small clients for the process tests.

A server is started as users start it (`corvo server`), on a port of its own, and is ready when it
says so. `Api` is a plain keep-alive HTTP client that answers (status, JSON).
"""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

READY_WAIT_S = 60


class ServerProcess:
    """One `corvo server`; keeps its port over restarts, so that clients find it again."""

    def __init__(self, data_dir: Path, *flags: str) -> None:
        self.data_dir = data_dir
        self.flags = flags
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.log: list[str] = []

    def start(self) -> "ServerProcess":
        """Start and wait until the server says that it is ready."""
        command = [sys.executable, "-m", "corvo", "server", "--data-dir", str(self.data_dir)]
        command += ["--bind", f"127.0.0.1:{self.port}", *self.flags]
        env = {key: value for key, value in os.environ.items() if not key.startswith("CORVO_")}
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=env, cwd=self.data_dir.parent
        )
        ready = threading.Event()
        reader = threading.Thread(target=self._read_log, args=(self.process, ready), daemon=True)
        reader.start()
        if not ready.wait(READY_WAIT_S) or self.process.poll() is not None:
            self.kill()
            raise AssertionError("the server did not start:\n" + "".join(self.log[-40:]))
        return self

    def _read_log(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line)
            if "corvo server ready" in line:
                match = re.search(r'bind="?127\.0\.0\.1:(\d+)', line)
                assert match, line
                self.port = int(match.group(1))
                ready.set()
        ready.set()

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def api(self) -> "Api":
        """A new client of this server."""
        return Api(self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Api:
    """A keep-alive client. A call that finds the connection closed is sent once more; what fails
    then is raised (OSError or http.client.HTTPException)."""

    def __init__(self, port: int, timeout_s: float = 70) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """One request under /api/v1 (or from the root when the path starts with `//`)."""
        target = path[1:] if path.startswith("//") else "/api/v1" + path
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            return self._send(method, target, data, headers or {})
        except (http.client.RemoteDisconnected, BrokenPipeError):
            self._connection.close()
            return self._send(method, target, data, headers or {})

    def _send(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, Any]:
        try:
            self._connection.request(method, target, data, headers)
            response = self._connection.getresponse()
            text = response.read()
        except BaseException:
            self._connection.close()
            raise
        if not text:
            return response.status, None
        is_json = "json" in (response.getheader("content-type") or "")
        return response.status, json.loads(text) if is_json else text.decode()

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        return self.call("POST", path, {} if body is None else body)

    def get(self, path: str) -> tuple[int, Any]:
        return self.call("GET", path)

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of a call that must succeed."""
        status, answer = self.call(method, path, body)
        assert status < 300, (method, path, status, answer)
        return answer

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def running_server(data_dir: Path, *flags: str) -> Iterator[ServerProcess]:
    """A server for the length of a block; killed at its end if it still runs."""
    server = ServerProcess(data_dir, *flags).start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()


def advance(api: Api, duration: str) -> None:
    """Move the test clock."""
    api.ok("POST", "/test/clock", {"advance": duration})

"""For tests: a real server on a free port with a settable clock, and a way to work without threads.

def test_welcome(corvo):                     # the fixture of corvo_client.pytest_plugin
    corvo.connect(app)
    send.with_options(delay="1h").enqueue(to="a@example.com")
    corvo.advance("1h")
    assert Worker(app).drain() == 1
    assert corvo.jobs("emails")[0].state == "completed"
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from corvo_client.client import Client
from corvo_client.documents import Job
from corvo_client.errors import CorvoError
from corvo_client.options import Duration
from corvo_client.tasks import App, Task

_READY_S = 60.0
_LOG_LINES = 200


def server_command() -> list[str]:
    """Return the command that runs Corvo: that of this Python, or the one on the path."""
    import importlib.util

    if importlib.util.find_spec("corvo") is not None:
        return [sys.executable, "-m", "corvo"]
    found = shutil.which("corvo")
    if found is None:
        raise RuntimeError("the server is not installed: pip install corvo")
    return [found]


class Server:
    """A server of its own, with its data in a temporary folder. It keeps its port over restarts."""

    def __init__(self, *flags: str, data_dir: str | None = None) -> None:
        self.flags = flags
        self.port = 0
        self.log: list[str] = []
        self._own_dir = tempfile.mkdtemp(prefix="corvo-") if data_dir is None else None
        self.data_dir = data_dir or f"{self._own_dir}/data"
        self._process: subprocess.Popen[str] | None = None
        self._client: Client | None = None

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> Client:
        """A client of the server."""
        if self._client is None:
            self._client = Client(self.url, api_key="", namespace="")
        return self._client

    def start(self) -> Self:
        """Start the server, and return when it is ready."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CORVO_")}
        command = [*server_command(), "server", "--data-dir", self.data_dir]
        command += ["--bind", f"127.0.0.1:{self.port}", "--test-clock", *self.flags]
        process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self._own_dir,  # so that sources in the present folder do not hide the installation
        )
        self._process = process
        ready = threading.Event()
        threading.Thread(target=self._read, args=(process, ready), daemon=True).start()
        if not ready.wait(_READY_S) or process.poll() is not None:
            self.kill()
            raise RuntimeError("the server did not start:\n" + "".join(self.log[-20:]))
        return self

    def _read(self, process: "subprocess.Popen[str]", ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self.log = [*self.log[-_LOG_LINES:], line]
                if "corvo server ready" in line:
                    found = re.search(r'bind="?[\d.]+:(\d+)', line)
                    assert found, line
                    self.port = int(found[1])
                    ready.set()
        ready.set()

    def kill(self) -> None:
        """Kill the server as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server, and remove the data if it is temporary."""
        self._end(signal.SIGTERM)
        if self._client is not None:
            self._client.close()
        if self._own_dir is not None:
            shutil.rmtree(self._own_dir, ignore_errors=True)

    def restart(self) -> None:
        """Kill the server, and start it again with its data."""
        self.kill()
        self.start()

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(60)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- what tests do ----

    def connect(self, app: App) -> None:
        """Let an app use this server."""
        app.connect(self.url, api_key="", namespace="")

    def advance(self, duration: Duration) -> None:
        """Move the clock of the server forward."""
        self.client.test_clock(advance=duration)

    def clear(self) -> None:
        """Delete all queues with their jobs, and all schedules."""
        for schedule in self.client.list_schedules().schedules:
            self.client.delete_schedule(schedule.id)
        cursor: str | None = None
        while True:
            page = self.client.list_queues(cursor=cursor)
            for queue in page.queues:
                with suppress(CorvoError):
                    self.client.delete_queue(queue.name)
            cursor = page.cursor
            if cursor is None:
                return

    def jobs(self, queue: str, *states: str) -> list[Job]:
        """Return the jobs of a queue, the oldest first, in one of these states or in any."""
        found = self.client.search_all(queue=queue, sort="created_at", order="asc")
        return [self.client.get_job(job.id) for job in found if not states or job.state in states]

    def assert_enqueued(self, task: "Task[Any, Any] | str", **arguments: Any) -> Job:
        """Return the job of this task or queue whose payload has these members. Raises
        AssertionError if there is none."""
        queue = task if isinstance(task, str) else task.queue
        jobs = self.jobs(queue)
        for job in jobs:
            payload = job.payload if isinstance(job.payload, dict) else {}
            if arguments.items() <= payload.items():
                return job
        payloads = [job.payload for job in jobs]
        raise AssertionError(f"no job of {queue} has {arguments}; there are {payloads}")

    def assert_not_enqueued(self, task: "Task[Any, Any] | str") -> None:
        """Raise AssertionError if the queue of this task has a job."""
        queue = task if isinstance(task, str) else task.queue
        payloads: Sequence[Any] = [job.payload for job in self.jobs(queue)]
        assert not payloads, f"{queue} has jobs: {payloads}"

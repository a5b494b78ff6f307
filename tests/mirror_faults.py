"""A server under load whose mirror is disturbed: what the load feels, and what the mirror knows in
the end.

Two clients work all the time: one makes lives in batches, so that there is much to mirror, the
other sends one request at a time and says how long each took. A fault is something that is done
to the sidecar or its files for some seconds, while both go on. Afterwards the mirror has to catch
up by itself and to equal the base row by row.
"""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from harness import Api, ServerProcess, running_server, until
from mirror_check import MemoryReader, catch_up, check_view

from corvo import limits
from corvo._fast import keys
from corvo.kv.base import Base
from corvo.kv.memory import MemoryBase
from corvo.kv.outbox import decode_state
from corvo.kv.reader import Reader
from corvo.mirror.view import View

BATCH = 50
Fault = Callable[["Trial", float], int]  # does something for so long; how many times it did it


@dataclass
class Row:
    """What came of one fault."""

    fault: str
    times: int = 0
    lives: int = 0
    errors: int = 0
    before_ms: tuple[float, float] = (0, 0)  # p50, p99
    during_ms: tuple[float, float] = (0, 0)
    growth: int = 0  # of the base beyond what its jobs need, in bytes
    lag: int = 0  # most flushes that the mirror had not read
    caught_up_s: float = 0
    jobs: int = 0  # compared row by row


@dataclass
class Trial:
    """A server with its load."""

    server: ServerProcess
    api: Api
    chance: random.Random
    took_ms: list[float] = field(default_factory=list)
    lives: int = 0
    errors: int = 0
    lag: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def directory(self) -> Path:
        return self.server.data_dir / "mirror"

    def mirror(self) -> dict[str, Any]:
        state: dict[str, Any] = self.api.ok("GET", "/cluster/status")["sqlite_mirror"]
        self.lag = max(self.lag, state["lag"])
        return state

    def sidecar(self) -> int:
        return int(self.mirror()["pid"])

    # ---- load ----

    def _bulk(self) -> None:
        api = self.server.api()
        while not self.stopping.is_set():
            api.enqueue_many("bulk", BATCH, tags={"n": self.chance.randrange(9)})
            for job in api.fetch_batch("bulk", count=BATCH):
                status = (api.ack if self.chance.random() < 0.9 else api.fail)(job)[0]
                self.errors += status != 200
                self.lives += 1

    def _lone(self) -> None:
        api = self.server.api()
        while not self.stopping.wait(0.002):
            began = time.perf_counter()
            status = api.post("/enqueue", {"queue": "lone", "payload": {"n": self.lives}})[0]
            self.took_ms.append((time.perf_counter() - began) * 1000)
            self.errors += status != 201

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        threads = [threading.Thread(target=work) for work in (self._bulk, self._lone)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()

    def percentiles(self) -> tuple[float, float]:
        """p50 and p99 of what the lone client has felt since the last call."""
        took, self.took_ms = sorted(self.took_ms), []
        return took[len(took) // 2], took[len(took) * 99 // 100]


# ---- faults ----


def stalled(trial: Trial, seconds: float) -> int:
    """Stop the sidecar, and each one that the server starts in its place."""
    stopped: set[int] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid = trial.sidecar()
        if pid and pid not in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped.add(pid)
        trial.stopping.wait(0.05)
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return len(stopped)


def killed(trial: Trial, kills: float) -> int:
    """kill -9, again and again, each time at a random moment of its life."""
    for _ in range(int(kills)):
        until(trial.sidecar, "the sidecar is not started again")
        trial.stopping.wait(trial.chance.random() * 1.5)
        pid = trial.sidecar()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda gone=pid: trial.sidecar() not in (0, gone), "it is not started again")
    return int(kills)


def deleted(trial: Trial, seconds: float) -> int:
    """Delete its files while it has them open."""
    times = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        paths = list(trial.directory.glob("*.sqlite*"))
        for path in paths:
            path.unlink(missing_ok=True)
        times += bool(paths)
        trial.stopping.wait(2)
    return times


def full(trial: Trial, seconds: float) -> int:
    """Leave no space on the volume of the mirror."""
    ballast = trial.directory / "ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 65_536)
    trial.stopping.wait(seconds)
    assert trial.mirror()["error"], "the mirror finds space where there is none"
    ballast.unlink()
    return 1


@contextlib.contextmanager
def small_volume(data_dir: Path, size: int) -> Iterator[None]:
    """A data directory whose mirror has a file system of its own; OSError where that is not
    allowed."""
    with running_server(data_dir, "--no-mirror") as server:
        assert server.stop() == 0
    path = data_dir / "mirror"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    mount = shutil.which("mount")
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        raise OSError("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


# ---- trials ----


def run(name: str, fault: Fault, amount: float, data_dir: Path, before_s: float) -> Row:
    """One fault on a server of its own."""
    row = Row(name)
    with running_server(data_dir) as server:
        trial = Trial(server, server.api(), random.Random(name))
        until(lambda: trial.mirror()["available"], "the mirror never answers")
        with trial.load():
            trial.stopping.wait(before_s)
            row.before_ms = trial.percentiles()
            trial.lag = 0
            row.times = fault(trial, amount)
            row.during_ms = trial.percentiles()
        row.lives, row.errors, row.lag = trial.lives, trial.errors, trial.lag
        began = time.monotonic()
        wait_shown(trial.api)
        row.caught_up_s = time.monotonic() - began
        assert server.stop() == 0
    row.jobs, row.growth = asyncio.run(compare(data_dir))
    return row


def wait_shown(api: Api) -> None:
    """Wait until the mirror has all that is applied now."""
    index = int(api.raw("GET", "/info").headers["X-Corvo-Index"])

    def there() -> bool:
        header = {"X-Corvo-Min-Index": str(index)}
        reply = api.raw("POST", "/jobs/search", {"limit": 1}, header)
        return reply.status == 200 and reply.headers["X-Corvo-Stale"] is None

    end = time.monotonic() + 120
    while not there():
        assert time.monotonic() < end, "the mirror does not catch up"
        time.sleep(0.05)


async def compare(data_dir: Path) -> tuple[int, int]:
    """Every row of the mirror with its document; how many jobs, and the size of the outbox."""
    base = Base.open(data_dir)
    try:
        memory = MemoryBase()
        for first in range(255):
            memory.write(list(base.scan(bytes((first,)))), [])
    finally:
        base.close()
    stored = memory.get(keys.OUTBOX_STATE)
    assert stored is not None
    [path] = (data_dir / "mirror").glob("mirror-*.sqlite")
    view = await View.open(path, cast(Reader, MemoryReader(memory)), *decode_state(stored))
    try:
        assert view.complete, "the mirror was left unfinished"
        await catch_up(view)
        await check_view(view, memory)
        outbox = sum(len(row) for _, row in memory.scan(keys.OUTBOX))
        assert outbox <= limits.OUTBOX_SIZE_MAX
        return len(view.facets.all), outbox
    finally:
        await view.close()

"""A server under load whose mirror is disturbed: what the load feels, and what the mirror knows in
the end.

Two clients work all the time: one makes lives in batches, at a steady pace, so that there is much
to mirror; the other, a process of its own, sends one request at a time and says when, and how long
it took. A fault is something that is done to the sidecar or its files for some seconds, while both
go on. It comes in rounds, with quiet windows before, between and behind them: what the lone client
feels in the one is to be what it feels in the other. Afterwards the mirror has to catch up by
itself and to equal the base row by row.
"""

import asyncio
import contextlib
import multiprocessing
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

from corvo import limits
from corvo._fast.codec import keys
from corvo.mirror.file import MirrorFile
from corvo.storage.lmdb import StateStore
from corvo.storage.memory import MemoryStore
from corvo.storage.reader import Reader
from corvo.storage.records.outbox import decode_state
from lib.harness import Api, ServerProcess, running_server
from lib.mirror_check import MemoryReader, catch_up, check_view

BATCH = 50
PACE_S = 0.1  # from batch to batch
WAIT_S = 120.0
LONE_PACE_S = 0.002
QUANTILES = (0.5, 0.99, 0.999)
Felt = tuple[float, float, int]  # when a request was sent, how many ms it took, its status
Fault = Callable[["Trial", float], int]  # does something for so long; how many times it did it


@dataclass
class Row:
    """What came of one fault."""

    fault: str
    times: int = 0
    lives: int = 0
    errors: int = 0
    quiet_ms: list[float] = field(default_factory=list)  # by QUANTILES
    during_ms: list[float] = field(default_factory=list)
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
    lives: int = 0
    errors: int = 0
    lag: int = 0
    felt: list[Felt] = field(default_factory=list)
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
        while not self.stopping.wait(PACE_S):
            api.enqueue_many("bulk", BATCH, tags={"n": self.chance.randrange(9)})
            for job in api.fetch_batch("bulk", count=BATCH):
                status = (api.ack if self.chance.random() < 0.9 else api.fail)(job)[0]
                self.errors += status != 200
                self.lives += 1

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Both clients, to the end of a block; then `felt` is what the lone one has felt."""
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        lone = context.Process(target=_lone, args=(self.server.api(), theirs))
        lone.start()
        bulk = threading.Thread(target=self._bulk)
        bulk.start()
        try:
            yield
        finally:
            self.stopping.set()
            ours.send("stop")
            self.felt = ours.recv()
            lone.join()
            bulk.join()
        self.errors += sum(status != 201 for _, _, status in self.felt)


def _lone(api: Api, channel: Any) -> None:
    """One request after the other, until told to stop; when, for how long, with what status. It is
    served before others, where that is allowed: what it waits for is the server."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    felt: list[Felt] = []
    while not channel.poll(LONE_PACE_S):
        began = time.monotonic()
        status = api.post("/enqueue", {"queue": "lone", "payload": {"n": len(felt)}})[0]
        felt.append((began, (time.monotonic() - began) * 1000, status))
    channel.send(felt)


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
        _await(trial.sidecar, "the sidecar is not started again")
        trial.stopping.wait(trial.chance.random() * 1.5)
        pid = trial.sidecar()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _await(lambda gone=pid: trial.sidecar() not in (0, gone), "it is not started again")
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
    _await(lambda: trial.mirror()["error"], "the mirror finds space where there is none")
    time.sleep(seconds)
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


def _await(check: Callable[[], Any], what: str) -> None:
    """Ask now and then, so that asking is no load."""
    end = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < end, what
        time.sleep(0.02)


# ---- trials ----


def run(
    name: str, fault: Fault, amount: float, data_dir: Path, quiet_s: float, rounds: int = 1
) -> Row:
    """One fault on a server of its own, so much of it in each round."""
    row = Row(name)
    with running_server(data_dir) as server:
        trial = Trial(server, server.api(), random.Random(name))
        _await(lambda: trial.mirror()["available"], "the mirror never answers")
        with trial.load():
            windows = []
            for _ in range(rounds):
                time.sleep(quiet_s)
                began = time.monotonic()
                row.times += fault(trial, amount)
                windows.append((began, time.monotonic()))
                _await(lambda: trial.mirror()["available"], "the mirror does not come back")
            time.sleep(quiet_s)
        row.quiet_ms, row.during_ms = quantiles(trial.felt, windows)
        row.lives, row.errors, row.lag = trial.lives, trial.errors, trial.lag
        began = time.monotonic()
        wait_shown(trial.api)
        row.caught_up_s = time.monotonic() - began
        assert server.stop() == 0
    row.jobs, row.growth = asyncio.run(compare(data_dir))
    return row


def quantiles(
    felt: list[Felt], windows: list[tuple[float, float]]
) -> tuple[list[float], list[float]]:
    """Of requests outside and inside the windows."""
    inside, outside = [], []
    for at, took_ms, _ in felt:
        within = any(began <= at <= ended for began, ended in windows)
        (inside if within else outside).append(took_ms)
    return _quantiles(outside), _quantiles(inside)


def _quantiles(took_ms: list[float]) -> list[float]:
    took_ms.sort()
    return [took_ms[int(len(took_ms) * share)] for share in QUANTILES]


def wait_shown(api: Api) -> None:
    """Wait until the mirror has all that is applied now."""
    index = int(api.raw("GET", "/info").headers["X-Corvo-Index"])

    def there() -> bool:
        header = {"X-Corvo-Min-Index": str(index)}
        reply = api.raw("POST", "/jobs/search", {"limit": 1}, header)
        return reply.status == 200 and reply.headers["X-Corvo-Stale"] is None

    _await(there, "the mirror does not catch up")


async def compare(data_dir: Path) -> tuple[int, int]:
    """Every row of the mirror with its document; how many jobs, and the size of the outbox."""
    base = StateStore.open(data_dir)
    try:
        memory = MemoryStore()
        for first in range(255):
            memory.write(list(base.scan(bytes((first,)))), [])
    finally:
        base.close()
    stored = memory.get(keys.OUTBOX_STATE)
    assert stored is not None
    [path] = (data_dir / "mirror").glob("mirror-*.sqlite")
    view = await MirrorFile.open(path, cast(Reader, MemoryReader(memory)), *decode_state(stored))
    try:
        assert view.complete, "the mirror was left unfinished"
        await catch_up(view)
        await check_view(view, memory)
        outbox = sum(len(row) for _, row in memory.scan(keys.OUTBOX))
        assert outbox <= limits.OUTBOX_SIZE_MAX
        return len(view.facets.all), outbox
    finally:
        await view.close()

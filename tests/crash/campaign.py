"""Life after life of one server under load, each ended by a kill, each judged."""

import contextlib
import itertools
import os
import random
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

from crash.history import History, Run
from crash.recovery import copy_data, read_identity, recovered
from lib.harness import Api, ServerProcess, advance

from corvo.platform.failpoints import VARIABLE

QUEUES = ("a", "b", "c")
SEGMENT = 128 * 1024
LIVES_A_DIRECTORY = 10
PRODUCERS = 3
WORKERS = 4
WAIT_S = 60


class Clients:
    """Producers and workers of one life. Each stops at the first call without an answer."""

    def __init__(self, server: ServerProcess, history: History, seed: int) -> None:
        self._server = server
        self._history = history
        self._seed = seed
        self._changed = threading.Condition()
        self.odd: list[str] = []
        # What earlier lives left to do.
        self._unsure, history.unsure = history.unsure, []
        self._held, history.held = history.held, []
        targets = [(self._produce, n) for n in range(PRODUCERS)]
        targets += [(self._work, n) for n in range(WORKERS)]
        self._threads = [threading.Thread(target=self._guard, args=pair) for pair in targets]
        self._running = len(targets)

    def run_until(self, answers: int) -> None:
        """Start, and wait for so many answers or the end of the server."""
        wanted = self._history.answers + answers
        for thread in self._threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._history.answers >= wanted or not self._running, WAIT_S
            )

    def join(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert not self.odd, self.odd

    def _guard(self, work: Callable[[Api, str, random.Random], None], number: int) -> None:
        name = f"{self._seed}-{work.__name__.strip('_')}-{number}"
        try:
            with contextlib.suppress(OSError, HTTPException):
                work(self._server.api(), name, random.Random(name))
        except Exception as error:
            self.odd.append(f"{name}: {error!r}")
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def _call(self, api: Api, path: str, body: Any) -> tuple[int, Any]:
        status, answer = api.post(path, body)
        if status == 503:  # it is being stopped
            raise HTTPException("not ready")
        self._history.answered()
        with self._changed:
            self._changed.notify_all()
        return status, answer

    # Producers.

    def _produce(self, api: Api, name: str, draw: random.Random) -> None:
        history = self._history
        if name.endswith("-0"):
            for key in [key for key, job_id in history.keys.copy().items() if not job_id]:
                self._enqueue_keyed(api, key, draw)
        for number in itertools.count():
            if draw.random() < 0.2:
                self._enqueue_batch(api, draw)
            else:
                key = f"{name}-{number}"
                with history.lock:
                    history.keys[key] = ""
                self._enqueue_keyed(api, key, draw)

    def _job(self, draw: random.Random) -> dict[str, Any]:
        job: dict[str, Any] = {
            "queue": draw.choice(QUEUES),
            "priority": draw.randrange(3),
            "max_retries": draw.choice([1, 2, 3, 20]),
            "retry_base_delay": draw.choice([0, 5]),
        }
        if draw.random() < 0.1:
            job["scheduled_at"] = "2020-01-01T00:00:00Z"
        return job

    def _enqueue_keyed(self, api: Api, key: str, draw: random.Random) -> None:
        job = self._job(draw) | {"queue": "a", "payload": key}
        job |= {"unique_key": key, "unique_until": "period", "unique_period": "1d"}
        status, answer = self._call(api, "/enqueue", job)
        assert status in (200, 201), (status, answer)
        self._history.keyed(key, answer["job_id"])

    def _enqueue_batch(self, api: Api, draw: random.Random) -> None:
        payloads = [next(self._history.numbers) for _ in range(draw.randrange(1, 30))]
        jobs = [self._job(draw) | {"payload": number} for number in payloads]
        status, answer = self._call(api, "/enqueue/batch", {"jobs": jobs})
        assert status == 201, (status, answer)
        for job_id, number in zip(answer["job_ids"], payloads, strict=True):
            self._history.enqueued(job_id, str(number))

    # Workers.

    def _work(self, api: Api, name: str, draw: random.Random) -> None:
        while self._unsure:
            with contextlib.suppress(IndexError):
                self._ack(api, self._unsure.pop())
        while self._held:
            with contextlib.suppress(IndexError):
                self._finish(api, self._held.pop(), draw)
        while True:
            for run in self._fetch(api, name, draw):
                self._finish(api, run, draw)

    def _fetch(self, api: Api, name: str, draw: random.Random) -> list[Run]:
        body = {
            "queues": draw.sample(QUEUES, 3),
            "worker_id": name,
            "timeout": 1,
            "lease_duration": draw.choice([1, 5, 60]),
        }
        if draw.random() < 0.5:
            status, answer = self._call(api, "/fetch", body)
            jobs = [answer] if status == 200 else []
        else:
            status, answer = self._call(api, "/fetch/batch", body | {"count": 8})
            jobs = answer["jobs"]
        assert status in (200, 204), (status, answer)
        runs = [
            Run(job["job_id"], job["lease_token"], job["fencing"], job["attempt"], name)
            for job in jobs
        ]
        for run in runs:
            self._history.delivered(run)
        return runs

    def _finish(self, api: Api, run: Run, draw: random.Random) -> None:
        choice = draw.random()
        if choice < 0.08:
            return  # its worker has forgotten it
        if choice < 0.14:
            self._history.held.append(run)
            return
        if choice < 0.3 and not self._beat(api, run):
            return
        if choice < 0.7:
            self._ack(api, run)
        elif choice < 0.85:
            self._fail(api, run)
        else:
            self._end(api, run, "release", {})

    def _beat(self, api: Api, run: Run) -> bool:
        run.touch_sent = True
        number = next(self._history.numbers)
        beat = {"lease_token": run.token, "checkpoint": number}
        status, answer = self._call(api, "/heartbeat", {"jobs": {run.job_id: beat}})
        assert status == 200, (status, answer)
        if answer["jobs"][run.job_id]["status"] == "lost":
            run.lost = True
            return False
        self._history.jobs[run.job_id].checkpoint = number
        return True

    def _ack(self, api: Api, run: Run) -> None:
        run.end = "ack"
        self._history.unsure.append(run)
        status = self._end(api, run, "ack", {"result": run.token})
        self._history.unsure.remove(run)
        if status == 200:
            self._history.acked(run)

    def _fail(self, api: Api, run: Run) -> None:
        text = f"failure {next(self._history.numbers)}"
        if self._end(api, run, "fail", {"error": text}) == 200:
            self._history.jobs[run.job_id].errors.append(text)

    def _end(self, api: Api, run: Run, verb: str, body: dict[str, Any]) -> int:
        run.end = verb
        status, answer = self._call(api, f"/{verb}/{run.job_id}", body | {"lease_token": run.token})
        assert status in (200, 409), (status, answer)
        run.ended = status == 200
        run.lost = status == 409
        return status


class Campaign:
    """Lives of a server in data directories of its own."""

    def __init__(self, directory: Path, *flags: str, seed: int = 1) -> None:
        self._directory = directory
        self._flags = flags
        self._draw = random.Random(seed)
        self._numbers = itertools.count(1)
        self._lives = 0
        self.counts: Counter[str] = Counter()
        self.broken: list[tuple[str, str]] = []
        self._new_directory()

    def _new_directory(self) -> None:
        self._data = Path(tempfile.mkdtemp(prefix="data-", dir=self._directory))
        self._server = ServerProcess(self._data, "--test-clock", *self._flags)
        self._history = History()
        self._lives = 0

    def life(self, failpoint: str = "", stop: bool = False, answers_max: int = 1500) -> None:
        """One life: ended by kill -9 at a random moment, or by a failpoint.

        With `stop` the server is asked to stop under load, so that points of the stop are met.
        """
        if self._lives == LIVES_A_DIRECTORY:
            shutil.rmtree(self._data)
            self._new_directory()
        self._lives += 1
        settings = f"wal.segment_size={SEGMENT}"
        self._server.environment[VARIABLE] = settings + (f",{failpoint}" if failpoint else "")
        if "unlink" in failpoint:  # a spare of an earlier life is deleted by each start
            (self._data / "wal").mkdir(exist_ok=True)
            (self._data / "wal" / "spare").touch()
        if self._start():
            self._load(failpoint, stop, answers_max)
        self.counts["lives"] += 1
        self._judge()

    def _start(self) -> bool:
        try:
            self._server.start()
        except AssertionError:
            process = self._server.process
            if process is None or process.returncode != -signal.SIGKILL or not self._armed:
                raise
            return False
        if self._draw.random() < 0.3:
            advance(self._server.api(), "20s")
        return True

    @property
    def _armed(self) -> bool:
        return "," in self._server.environment[VARIABLE]

    def _load(self, failpoint: str, stop: bool, answers_max: int) -> None:
        process = self._server.process
        assert process is not None
        clients = Clients(self._server, self._history, next(self._numbers))
        if failpoint and not stop:
            clients.run_until(1_000_000)
        else:
            clients.run_until(self._draw.randrange(1, answers_max))
            os.kill(process.pid, signal.SIGTERM if stop else signal.SIGKILL)
        assert process.wait(WAIT_S) == -signal.SIGKILL, "".join(self._server.log[-30:])
        clients.join()

    def _judge(self) -> None:
        history = self._history
        target = Path(tempfile.mkdtemp(dir=self._directory))
        copy_data(self._data, target)
        with recovered(target, read_identity(self._data), SEGMENT) as state:
            history.check(state.machine)
            try:
                state.check()
            except AssertionError as error:
                history.complain("other", f"rows disagree: {error}")
        shutil.rmtree(target)
        self.counts += history.counts
        history.counts.clear()
        self.broken += history.broken
        history.broken.clear()

    def close(self) -> None:
        """Remove what is left on disk."""
        process = self._server.process
        if process is not None and process.poll() is None:
            self._server.kill()
        shutil.rmtree(self._data)

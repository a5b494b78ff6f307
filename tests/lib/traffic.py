"""Traffic for tests: many clients at once, and random calls with a count of their results."""

import contextlib
import itertools
import random
import threading
from collections import Counter
from http.client import HTTPException
from typing import Any

from lib.harness import WAIT_S, Api, ServerProcess, advance, frozen_clock

STATES = ("scheduled", "pending", "active", "held", "completed", "retrying", "dead", "cancelled")


class Traffic:
    """Two producers and two workers that run until the server is gone."""

    _runs = itertools.count()

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._run = next(self._runs)
        self._changed = threading.Condition()
        self.accepted: dict[str, str] = {}
        self.acked: list[str] = []
        targets = [(self._produce, n) for n in range(2)] + [(self._work, n) for n in range(2)]
        self._threads = [threading.Thread(target=self._guard, args=pair) for pair in targets]

    def run_until(self, acks: int) -> None:
        for thread in self._threads:
            thread.start()
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.acked) >= acks, WAIT_S)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def _guard(self, work: Any, number: int) -> None:
        with contextlib.suppress(OSError, HTTPException):
            work(self._server.api(), number)

    def _produce(self, api: Api, number: int) -> None:
        for count in itertools.count():
            key = f"{self._run}-{number}-{count}"
            self.accepted[key] = api.enqueue("q", unique_key=key, unique_until="period")

    def _work(self, api: Api, number: int) -> None:
        while True:
            job = api.fetch("q", timeout=1)
            if job is not None and api.ack(job)[0] == 200:
                with self._changed:
                    self.acked.append(job["job_id"])
                    self._changed.notify()


class Shuffle:
    """Random calls on a few queues, and all jobs that they created."""

    def __init__(self, api: Api, queue: str, seed: int) -> None:
        self.api = api
        self.random = random.Random(seed)
        self.names = [f"{queue}-{n}" for n in range(3)]
        self.ids: list[str] = []
        self.runs: list[dict[str, Any]] = []

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.3:
            self.enqueue()
        elif draw < 0.55:
            self.runs += self.api.fetch_batch(*self.names, count=3, lease_duration=30)
        elif draw < 0.8 and self.runs:
            self.finish(self.runs.pop(self.random.randrange(len(self.runs))))
        elif draw < 0.98 and self.ids:
            self.manage(self.random.choice(self.ids))
        else:
            advance(self.api, self.random.choice(["1s", "31s"]))

    def enqueue(self) -> None:
        body: dict[str, Any] = {
            "queue": self.random.choice(self.names),
            "priority": self.random.randrange(3),
            "max_retries": self.random.randrange(3),
            "retry_base_delay": self.random.choice([0, "1s", "20s"]),
        }
        if self.random.random() < 0.5:
            body["unique_key"] = str(self.random.randrange(5))
            body["unique_until"] = self.random.choice(["start", "success", "final", "period"])
            body["unique_period"] = self.random.choice([0, "1s", "1m"])
        answer = self.api.ok("POST", "/enqueue", body)
        if not answer["unique_existing"]:
            self.ids.append(answer["job_id"])

    def finish(self, run: dict[str, Any]) -> None:
        verb = self.random.choice([self.api.ack, self.api.fail, self.api.release])
        assert verb(run)[0] in (200, 404, 409)

    def manage(self, job_id: str) -> None:
        draw = self.random.random()
        if draw < 0.2:
            assert self.api.call("DELETE", f"/jobs/{job_id}")[0] == 200
            self.ids.remove(job_id)
        elif draw < 0.5:
            force = {"force": self.random.random() < 0.5}
            assert self.api.post(f"/jobs/{job_id}/cancel", force)[0] in (200, 409)
        else:
            assert self.api.post(f"/jobs/{job_id}/retry")[0] in (200, 409)

    def check_counters(self) -> None:
        """Check the counters of the queues."""
        check_counters(self.api, self.names, self.ids)


def check_counters(api: Api, queues: list[str], ids: list[str]) -> None:
    """Check that the counters of queues equal a count of all their jobs. Work that was due when the
    clock was stopped may still be in progress; then the count is repeated."""
    with contextlib.ExitStack() as stack:
        if api.post("/test/clock")[0] == 200:
            stack.enter_context(frozen_clock(api))
        for _ in range(10):
            before = read_counters(api, queues)
            counts: dict[str, Counter[str]] = {name: Counter() for name in queues}
            for job_id in ids:
                job = api.job(job_id)
                counts[job["queue"]][job["state"]] += 1
            if read_counters(api, queues) == before:
                break
        else:
            raise AssertionError("the counters do not come to rest")
    assert before == {name: {state: counts[name][state] for state in STATES} for name in queues}


def read_counters(api: Api, queues: list[str]) -> dict[str, dict[str, int]]:
    """Return the number of jobs by state of each queue."""
    documents = {document["name"]: document for document in api.listed("queues")}
    return {name: {state: documents[name][state] for state in STATES} for name in queues}

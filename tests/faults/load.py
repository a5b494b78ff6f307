"""Producers, workers and a person who look for a node that answers, and note what it said."""

import contextlib
import http.client
import itertools
import json
import random
import select
import threading
import time
from collections.abc import Callable
from typing import Any

from faults.machines import eventually
from faults.record import Record
from lib.harness import ServerProcess
from sim.histories import PENDING

PRODUCERS = 4
WORKERS = 6
PATIENCE_S = 2.5  # of a client, with one node
_IMPATIENT_S = 0.5  # of one that looks for a node that answers: the first producer
_PAUSE_S = 0.02
_TRIES = 4  # of a worker, to say how a job ended
_WAITING = ("scheduled", "retrying")
_NOTHING_DONE = (429, 503, 507)


class Client:
    """Calls some node, and another one when that fails."""

    def __init__(
        self, nodes: list[ServerProcess], draw: random.Random, patience_s: float = PATIENCE_S
    ) -> None:
        self._nodes = nodes
        self._patience_s = patience_s
        self._draw = draw
        self._turn = draw.randrange(100)
        self._lines: dict[tuple[str, int], http.client.HTTPConnection] = {}
        self.asked = ""  # the last one, and what went wrong with it

    @property
    def is_patient(self) -> bool:
        """Whether it gives a node time."""
        return self._patience_s == PATIENCE_S

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and answer; status 0: there was none."""
        if self._draw.random() < 0.2:
            self._turn += 1
        nodes = list(self._nodes)
        node = nodes[self._turn % len(nodes)]
        key = (node.host, node.port)
        self.asked = node.flags[1]
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = http.client.HTTPConnection(*key, timeout=self._patience_s)
        elif line.sock is not None and select.select([line.sock], [], [], 0)[0]:
            line.close()  # it was kept, and the node has closed it meanwhile
        try:
            data = None if body is None else json.dumps(body).encode()
            line.request(method, "/api/v1" + path, data, headers or {})
            reply = line.getresponse()
            text = reply.read()
        except (OSError, http.client.HTTPException) as error:
            line.close()
            self._turn += 1
            self.asked += f" {error!r}"
            return 0, None
        if reply.status in _NOTHING_DONE or reply.status == 504:
            self._turn += 1
        return reply.status, json.loads(text) if text else None


class Load:
    """All clients of a round, each on a thread."""

    def __init__(self, nodes: list[ServerProcess], name: str, seed: int) -> None:
        self.record = Record()
        self.queues = [f"{name}-a", f"{name}-b"]
        self.tries: list[str] = []  # of one enqueue of a patient client, the most
        self.odd: list[str] = []
        self._nodes = nodes
        self._name = name
        self._changed = threading.Condition()
        self._written: list[tuple[int, int]] = []  # enqueues: sent, and acknowledged
        self._producing = threading.Event()
        self._producing.set()
        self._over = threading.Event()
        self._recent: list[tuple[str, str]] = []  # key and id, for the person
        work = [(self._produce, n) for n in range(PRODUCERS)]
        work += [(self._work, n) for n in range(WORKERS)]
        work += [(self._look, 0)]
        self._threads = [
            threading.Thread(target=self._guard, args=(target, n, seed), daemon=True)
            for target, n in work
        ]
        self._producers = self._threads[:PRODUCERS]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Nobody calls any more, whatever is unfinished."""
        self._producing.clear()
        self._over.set()

    def wait_more(self, count: int, wait_s: float = 60) -> None:
        """Until so many more enqueues and ends of jobs are acknowledged."""
        enqueues, ends = len(self._written) + count, self.record.ends + count
        with self._changed:
            done = self._changed.wait_for(
                lambda: len(self._written) >= enqueues and self.record.ends >= ends, wait_s
            )
        assert done, f"the load does not get on: {self.odd}"

    def written_after(self, moment_ns: int, wait_s: float = 60) -> float:
        """Seconds from a moment until an enqueue that was sent later is acknowledged."""

        def first() -> int:
            times = [end for sent, end in reversed(self._written) if sent >= moment_ns]
            return min(times, default=0)

        with self._changed:
            done = self._changed.wait_for(first, wait_s)
        assert done, f"writes do not go on within {wait_s} s"
        return (first() - moment_ns) / 1e9

    def stop_producing(self) -> None:
        """Every enqueue that was begun is acknowledged."""
        self._producing.clear()
        for thread in self._producers:
            thread.join(60)
            assert not thread.is_alive(), "a write was never acknowledged"

    def stop(self) -> None:
        """All go home."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not self.odd, self.odd

    @property
    def acknowledged(self) -> int:
        """Enqueues."""
        return len(self._written)

    def _guard(self, work: Callable[[Client, random.Random, str], None], n: int, seed: int) -> None:
        name = f"{self._name}-{work.__name__.strip('_')}-{n}"
        draw = random.Random(f"{seed} {name}")
        impatient = n == 0 and work == self._produce
        try:
            patience_s = _IMPATIENT_S if impatient else PATIENCE_S
            work(Client(self._nodes, draw, patience_s), draw, name)
        except Exception as error:
            self.odd.append(f"{name}: {error!r}")

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # Producers.

    def _produce(self, client: Client, draw: random.Random, name: str) -> None:
        for number in itertools.count():
            if not self._producing.is_set():
                return
            self._enqueue(client, draw, f"{name}-{number}")

    def _enqueue(self, client: Client, draw: random.Random, key: str) -> None:
        job: dict[str, Any] = {
            "queue": draw.choice(self.queues),
            "payload": key,
            "priority": draw.randrange(3),
            "max_retries": draw.choice((1, 3, 20)),
            "retry_base_delay": 0,
        }
        headers = {}
        if draw.random() < 0.5:
            headers["Idempotency-Key"] = key
        else:
            job |= {"unique_key": key, "unique_until": "period", "unique_period": "1d"}
        with self.record.lock:
            self.record.begun.add(key)
        number = self.record.invoke(key, "enqueue")
        tries = []
        while True:
            sent_ns = time.monotonic_ns()
            status, answer = client.call("POST", "/enqueue", job, headers)
            tries.append(f"{status} {client.asked}")
            if status in (200, 201):
                break
            assert status in (0, 504, *_NOTHING_DONE), (status, answer)
            if self._over.wait(_PAUSE_S):
                return
        self.record.answer(number, True)
        self.record.enqueued(key, answer["job_id"])
        with self._changed:
            self._written.append((sent_ns, time.monotonic_ns()))
            if client.is_patient:
                self.tries = max(self.tries, tries, key=len)
            self._recent = [*self._recent[-20:], (key, answer["job_id"])]
            self._changed.notify_all()

    # Workers.

    def _work(self, client: Client, draw: random.Random, name: str) -> None:
        held: list[dict[str, Any]] = []
        while not self._over.is_set():
            if held and draw.random() < 0.3:
                self._finish(client, draw, held.pop(0))
            job = self._fetch(client, draw, name)
            if job is None:
                for late in held:
                    self._finish(client, draw, late)
                held.clear()
            elif draw.random() < 0.1:
                held.append(job)
            else:
                self._finish(client, draw, job)

    def _fetch(self, client: Client, draw: random.Random, name: str) -> dict[str, Any] | None:
        body = {
            "queues": draw.sample(self.queues, 2),
            "worker_id": name,
            "timeout": draw.choice((0.2, 1)),
            "lease_duration": draw.choice((5, 60)),
        }
        number = self.record.invoke("", "fetch")
        status, job = client.call("POST", "/fetch", body)
        if status != 200:
            assert status in (0, 204, 504, *_NOTHING_DONE), (status, job)
            self.record.refuse(number)
            return None
        key = job["payload"]
        self.record.answer(number, (job["lease_token"], job["attempt"]), key)
        self.record.delivered(key, job["job_id"], job["attempt"])
        return dict(job)

    def _finish(self, client: Client, draw: random.Random, job: dict[str, Any]) -> None:
        key, token = job["payload"], job["lease_token"]
        self.record.touch(key, job["attempt"])
        if draw.random() < 0.25 and not self._beat(client, job):
            return
        choice = draw.random()
        final = draw.random() < 0.2
        if choice < 0.03:
            beaten = self._beat(client, job)  # and then its worker forgets it
            if beaten:
                return
        if choice < 0.15:
            body: dict[str, Any] = {"error": "no"} | ({"retry": False} if final else {})
            self._end(client, job, "fail", body, token, final)
        elif choice < 0.23:
            self._end(client, job, "release", {}, token)
        else:
            for _ in range(_TRIES):
                if self._end(client, job, "ack", {}, token) is not None:
                    break

    def _end(
        self, client: Client, job: dict[str, Any], verb: str, body: dict[str, Any], *arguments: Any
    ) -> bool | None:
        """Whether it was taken; None: nobody knows, or it was not done."""
        body = body | {"lease_token": job["lease_token"]}
        number = self.record.invoke(job["payload"], verb, *arguments)
        status, answer = client.call("POST", f"/{verb}/{job['job_id']}", body)
        taken = self._taken(number, status, answer, lambda: True)
        if taken:
            with self.record.lock:
                self.record.ends += 1
            self._tell()
        return taken

    def _beat(self, client: Client, job: dict[str, Any]) -> bool:
        beat = {job["job_id"]: {"lease_token": job["lease_token"], "progress": 1}}
        number = self.record.invoke(job["payload"], "beat", job["lease_token"])
        status, answer = client.call("POST", "/heartbeat", {"jobs": beat})

        def ok() -> bool:
            return bool(answer["jobs"][job["job_id"]]["status"] != "lost")

        return self._taken(number, status, answer, ok) is not False

    def _taken(
        self, number: int, status: int, answer: Any, meaning: Callable[[], Any]
    ) -> Any | None:
        """Note what came of a call on a job."""
        if status in _NOTHING_DONE:
            self.record.refuse(number)
            return None
        if status in (0, 504):
            return None
        assert status in (200, 404, 409), (status, answer)
        taken = meaning() if status == 200 else False
        self.record.answer(number, taken)
        return taken

    # A person.

    def _look(self, client: Client, draw: random.Random, _: str) -> None:
        while not self._over.wait(_PAUSE_S):
            with contextlib.suppress(IndexError):
                key, job_id = draw.choice(self._recent)
                if draw.random() < 0.1:
                    self._cancel(client, key, job_id, draw.random() < 0.5)
                else:
                    self._see(client, key, job_id)

    def _cancel(self, client: Client, key: str, job_id: str, force: bool) -> None:
        number = self.record.invoke(key, "cancel", force)
        status, answer = client.call("POST", f"/jobs/{job_id}/cancel", {"force": force})
        self._taken(number, status, answer, lambda: answer["status"])

    def _see(self, client: Client, key: str, job_id: str) -> None:
        number = self.record.invoke(key, "see")
        status, answer = client.call("GET", f"/jobs/{job_id}?consistent=true")
        if status == 404:
            self.record.answer(number, ("absent", 0))
        elif status == 200:
            self.record.answer(number, seen(answer))
        else:
            self.record.refuse(number)


def seen(document: dict[str, Any]) -> tuple[str, int]:
    """State and attempt of a job, as the checker of histories names them."""
    state = document["state"]
    return (PENDING if state in _WAITING else state, document["attempt"])


def drain(count_open: Callable[[], int], move: Callable[[], None]) -> None:
    """Until no job is left to do; `move` lets leases end when nothing else happens."""
    fewest, since = 1 << 62, time.monotonic()

    def done() -> bool:
        nonlocal fewest, since
        count = count_open()
        if count < fewest:
            fewest, since = count, time.monotonic()
        elif time.monotonic() - since > 1:
            move()
            since = time.monotonic()
        return count == 0

    eventually(done, "the queues do not become empty", 90)

"""Clients of full runs: producers, workers that forget and come late, and people who cancel."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lib.consistency import check_machine
from lib.fsm_driver import Step, enqueue_step
from sim.clients import Client, Clients
from sim.ghost import demand
from sim.histories import PENDING
from sim.job_server import REFUSED
from sim.node import LOST, UNKNOWN, Node

from corvo import ops
from corvo._fast.codec.layouts import encode_fields
from corvo.errors import CorvoError
from corvo.limits import SECOND_NS
from corvo.model import COMPLETED, RETRYING, SCHEDULED, STATES, Enqueued, Fetched

if TYPE_CHECKING:
    from sim.world import World

QUEUES: Final = ("a", "b")
MILLISECOND_NS: Final = 1_000_000
FETCHES_OPEN_MAX: Final = 40
"""Fetches without an answer that a run may have: each may have leased any job."""

# What the history is to say about a result; None: nothing.
Meaning = Callable[[Any], Any]


class JobClient(Client):
    """A client of the job server."""

    clients: "JobClients"

    def submit(
        self,
        node: Node,
        step: Step,
        key: str,
        name: str,
        arguments: tuple[Any, ...],
        meaning: Meaning,
    ) -> None:
        """Send an op and note how it ended."""
        number = self.history.invoke(self.world.schedule.now_us, key, name, *arguments)
        ended = self.ended()

        def answered(result: Any) -> None:
            if result in (LOST, REFUSED):
                self.history.refuse(number)
            elif result != UNKNOWN:
                answer = meaning(result)
                if answer is None:
                    self.history.refuse(number)
                else:
                    found = key or key_of(result.job_id)
                    self.history.answer(number, self.world.schedule.now_us, answer, found)
            ended(not isinstance(result, str))

        node.machine.submit(node, step, answered)


def key_of(job_id: str) -> str:
    """The unique key of a job: each try to enqueue it had an id of its own."""
    return job_id.partition(".")[0]


class Producer(JobClient):
    """Enqueues, and tries again under the same key when there was no answer."""

    _key = ""
    _queue = ""
    _tries = 0

    def send(self, node: Node) -> None:
        if not self._key:
            self._key, self._tries = f"j{self.world.next_number()}", 0
            self._queue = self.world.draw.choice(QUEUES)  # keys are unique in a queue
        self._tries += 1
        key, draw = self._key, self.world.draw
        step = enqueue_step(
            f"{key}.{self._tries}",
            queue=self._queue,
            priority=draw.randrange(3),
            max_retries=draw.choice((1, 3, 10)),
            base_delay_ms=draw.choice((0, 20)),
            unique_key=key.encode(),
            unique_until=3,
            unique_period_ns=3_600 * SECOND_NS,
        )

        def meaning(result: Enqueued) -> bool:
            if self._key == key:
                self._key = ""
            self.clients.ids.setdefault(key, result.job_id)
            demand(self.clients.ids[key] == result.job_id, "one job for a key", key)
            return not result.duplicate

        self.submit(node, step, key, "enqueue", (), meaning)


class Worker(JobClient):
    """Fetches, then acknowledges, fails, releases or beats: in time, late, twice or never."""

    def __init__(self, clients: "Clients", name: str) -> None:
        super().__init__(clients, name)
        self._runs: list[Fetched] = []
        self._done: list[Fetched] = []  # to be acknowledged once more

    def send(self, node: Node) -> None:
        draw = self.world.draw
        if self._done and draw.random() < 0.1:
            self._finish(node, draw.choice(self._done))
        elif self._runs and draw.random() < 0.6:
            run = self._runs[draw.randrange(len(self._runs))]
            if draw.random() < 0.8:
                self._runs.remove(run)
            self._finish(node, run)
        else:
            self._fetch(node)

    def _fetch(self, node: Node) -> None:
        draw = self.world.draw
        lease_ns = draw.choice((20, 200, 5_000)) * MILLISECOND_NS
        names = list(QUEUES) if draw.random() < 0.5 else [draw.choice(QUEUES)]
        step = (ops.FETCH, (names, self.name, "host", lease_ns, 1 << 20))

        def meaning(result: Fetched | None) -> Any:
            if result is None:
                return None
            demand(result.token not in self.clients.tokens, "a token is given once", result.job_id)
            self.clients.tokens.add(result.token)
            if draw.random() < 0.9:
                self._runs.append(result)
            return (result.token, result.attempt)

        self.submit(node, step, "", "fetch", (), meaning)

    def _finish(self, node: Node, run: Fetched) -> None:
        draw = self.world.draw
        key, token = key_of(run.job_id), run.token
        name = draw.choices(("ack", "fail", "release", "beat"), (6, 2, 1, 2))[0]
        arguments: tuple[Any, ...] = (token,)
        if name == "ack":
            self._done = [*self._done[-3:], run]
            step: Step = (ops.ACK, (run.job_id, token, b"", b"", b""))
        elif name == "fail":
            final = draw.random() < 0.2
            arguments = (token, final)
            step = (ops.FAIL, (run.job_id, token, b'"boom"', b"", final, -1, False))
        elif name == "release":
            step = (ops.RELEASE, (run.job_id, token, 0, b"", False))
        else:
            item = encode_fields(ops.BEAT_LAYOUT, (run.job_id, token, b"", b""))
            step = (ops.HEARTBEAT, ([item],))

        def meaning(result: Any) -> bool:
            if isinstance(result, dict):
                return bool(result[run.job_id] != "lost")
            taken = not isinstance(result, CorvoError)
            if name == "ack" and taken:
                self.clients.acked.add(run.job_id)
            return taken

        self.submit(node, step, key, name, arguments, meaning)


class Person(JobClient):
    """Looks at jobs, and cancels some."""

    def send(self, node: Node) -> None:
        draw, ids = self.world.draw, self.clients.ids
        if not ids:
            self.ended()(True)
            return
        key = draw.choice(list(ids)[-10:])
        if draw.random() < 0.7:
            self.read(node, key, "see", lambda: see(node, ids[key]))
            return
        force = draw.random() < 0.5
        step = (ops.CANCEL_JOB, (ids[key], force))
        self.submit(
            node,
            step,
            key,
            "cancel",
            (force,),
            lambda result: False if isinstance(result, CorvoError) else result,
        )


def see(node: Node, job_id: str) -> tuple[str, int]:
    """State and attempt of a job as the automaton of histories names them."""
    job = node.machine.machine.job(job_id)
    if job is None:
        return ("absent", 0)
    state = PENDING if job.state in (SCHEDULED, RETRYING) else STATES[job.state]
    return (state, job.attempt)


class JobClients(Clients):
    """All clients of a full run, and what they were promised."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, [Producer, Worker, Worker, Person])
        self.ids: dict[str, str] = {}  # of enqueued jobs, by key
        self.acked: set[str] = set()
        self.tokens: set[str] = set()

    def check_end(self) -> None:
        """No acknowledged job is lost, no acknowledged ack undone, all rows tell one story."""
        leader = next(node for node in self.world.nodes.values() if node.is_leader)
        for key, job_id in self.ids.items():
            job = leader.machine.machine.job(job_id)
            demand(job is not None, "no acknowledged enqueue is lost", key, job_id)
            if job_id in self.acked:
                demand(job.state == COMPLETED, "no acknowledged ack is undone", job_id)
        for node in self.world.nodes.values():
            if node.is_up:
                node.machine.machine.flush()
                check_machine(node.machine.machine, node.machine.rows)

"""Rounds of disturbance: no job is lost, none completes twice, no attempt is wasted.

An attempt is wasted if it counts although no handler ran it. In each round a worker gets eight
jobs and runs five at a time; something breaks while five run, and all jobs must complete.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from corvo_client import App, Context, Delivery
from corvo_client.testing import Server
from sdk_lib.running import working
from test_conformance import module

JOBS, BUSY = 8, 5
Proxy = module("proxy").Proxy


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Round:
    """One round: its jobs, and what their handlers saw."""

    def __init__(self, number: int, server: Server, proxy: Any) -> None:
        self.queue = f"round-{number}"
        self.server, self.proxy = server, proxy
        self.gate = threading.Event()  # lets the handlers end
        self.runs: list[tuple[str, int]] = []
        self.app = App(proxy.url)
        self.app.register(self.queue, self.handle)
        jobs = [{"queue": self.queue, "payload": n, "max_retries": 20} for n in range(JOBS)]
        self.ids = server.client.enqueue_batch(jobs).job_ids  # type: ignore[arg-type]

    def handle(self, job: Delivery, ctx: Context) -> Any:
        self.runs.append((job.job_id, job.attempt))
        while not self.gate.wait(0.01):
            if ctx.lost:
                return "dropped"
        return [job.payload, job.attempt]

    def work(self, **options: Any) -> Any:
        options = {"lease_duration": 30, "heartbeat_interval": 0.1, **options}
        return working(self.app, concurrency=BUSY, queues=[self.queue], **options)

    def wait_full(self) -> None:
        until(lambda: len(self.runs) >= BUSY, "five jobs never run")

    def end_leases(self) -> None:
        """Move the clock by much more than a lease, until the leases have ended: a heartbeat that
        is on its way during the jump may renew them."""

        jumped_at = 0.0

        def ended() -> bool:
            nonlocal jumped_at
            if time.monotonic() - jumped_at > 1:
                self.server.advance(600)
                jumped_at = time.monotonic()
            return bool(self.server.client.get_queue(self.queue)["lease_expired_total"] >= BUSY)

        until(ended, "the leases never end")

    def wait_again(self) -> None:
        """Wait until the jobs whose leases ended run once more."""
        until(lambda: sum(attempt > 1 for _, attempt in self.runs) >= BUSY, "no second attempt")

    def finish(self) -> None:
        """Let the handlers end, and check the outcome."""
        client = self.server.client
        self.gate.set()
        until(lambda: client.get_queue(self.queue).completed == JOBS, f"{self.queue} never ends")

    def check(self) -> None:
        client = self.server.client
        assert client.get_queue(self.queue)["completed_total"] == JOBS
        for place, job_id in enumerate(self.ids):
            job = client.get_job(job_id)
            attempts = {attempt for run, attempt in self.runs if run == job_id}
            assert attempts == set(range(1, job.attempt + 1)), (job, attempts)
            assert job.result[0] == place and job.result[1] == job.attempt
            types = Counter(event.type for event in client.job_events(job_id).events)
            assert types["completed"] == 1, types


def kill_the_server(round_: Round) -> None:
    with round_.work():
        round_.wait_full()
        round_.server.kill()
        round_.gate.set()  # the acks of five jobs find no server
        round_.server.start()
        round_.finish()


def stop_the_worker(round_: Round) -> None:
    with round_.work(shutdown_timeout=0.1):
        round_.wait_full()
    with round_.work():
        until(lambda: len(round_.runs) >= 2 * BUSY, "the jobs were not released")
        assert {attempt for _, attempt in round_.runs} == {1}
        round_.finish()


def cut_the_network(round_: Round) -> None:
    with round_.work():
        round_.wait_full()
        round_.proxy.set_cut(True)
        round_.end_leases()
        round_.proxy.set_cut(False)
        round_.wait_again()
        round_.finish()


def lose_the_leases(round_: Round) -> None:
    with round_.work():
        round_.wait_full()
        round_.end_leases()
        round_.wait_again()
        round_.finish()


DISTURBANCES = [kill_the_server, stop_the_worker, cut_the_network, lose_the_leases]


@pytest.fixture
def proxy(corvo: Server) -> Iterator[Any]:
    with Proxy("127.0.0.1", corvo.port) as made:
        yield made


def play(rounds: range, server: Server, proxy: Any) -> None:
    for number in rounds:
        round_ = Round(number, server, proxy)
        DISTURBANCES[number % len(DISTURBANCES)](round_)
        round_.check()
        server.client.delete_queue(round_.queue)


@pytest.mark.timeout(600)
def test_rounds(corvo: Server, proxy: Any) -> None:
    play(range(50), corvo, proxy)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_many_rounds(corvo: Server, proxy: Any) -> None:
    play(range(1000), corvo, proxy)

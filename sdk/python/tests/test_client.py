"""Both clients against a real server: every method once, and what they do with its answers."""

import asyncio
import inspect
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from corvo_client import (
    AsyncClient,
    Client,
    InvalidStateError,
    LeaseLostError,
    NotFoundError,
    PayloadTooLargeError,
    RawJson,
    ResultSchemaError,
    UniqueConflictError,
    Unreachable,
    ValidationError,
)
from corvo_client.testing import Server

DIGITS = '{"b":1.10000000000000000000000001,"a":1e400,"n":12345678901234567890123,"a":[ -0.0]}'


class AwaitedClient:
    """An AsyncClient with a loop of its own; its methods block, so that one test fits both."""

    def __init__(self, url: Any, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.client = AsyncClient(url, **options)

    def await_(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if inspect.isasyncgen(result):
                return self.each(result)
            return self.await_(result)

        return call if callable(method) else method

    def each(self, items: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self.await_(anext(items))
                except StopAsyncIteration:
                    return
        finally:
            self.await_(items.aclose())

    def close(self) -> None:
        self.await_(self.client.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


KINDS: list[Any] = [Client, AwaitedClient]


@pytest.fixture(params=KINDS, ids=["sync", "async"])
def client(request: pytest.FixtureRequest, corvo: Server) -> Iterator[Any]:
    made = request.param(corvo.url)
    yield made
    made.close()


def test_the_life_of_a_job(client: Any) -> None:
    enqueued = client.enqueue("q", {"n": 1}, priority="high", tags={"a": 1}, max_retries=2)
    assert (enqueued.status, enqueued.unique_existing) == ("pending", False)
    job = client.fetch(["q"], timeout=5, worker_id="w", hostname="h", lease_duration=30)
    assert (job.job_id, job.payload, job.attempt) == (enqueued.job_id, {"n": 1}, 1)
    assert (job.tags, job.lease_duration, job.checkpoint) == ({"a": "1"}, 30, None)
    beat = {"lease_token": job.lease_token, "progress": {"current": 1}, "checkpoint": [1]}
    assert client.heartbeat({job.job_id: beat}).jobs[job.job_id]["status"] == "ok"
    assert client.append_logs(job.job_id, [{"message": "m"}], lease_token=job.lease_token)
    failed = client.fail(job.job_id, "boom", lease_token=job.lease_token, retry_after=0)
    assert failed.status in ("retrying", "pending") and failed.attempts_remaining == 1
    job = client.fetch(["q"], timeout=5)
    assert (job.attempt, job.checkpoint) == (2, [1])
    assert client.release(job.job_id, lease_token=job.lease_token).status == "released"
    job = client.fetch(["q"], timeout=5)
    assert client.ack(job.job_id, lease_token=job.lease_token, result={"r": 1}).state == "completed"
    done = client.wait(job.job_id, timeout=5)
    assert (done.state, done.result, done.errors[0].error) == ("completed", {"r": 1}, "boom")
    assert client.job_logs(job.job_id).lines[0].message == "m"
    assert client.job_errors(job.job_id).error_count == 1
    assert "completed" in [e.type for e in client.job_events(job.job_id).events]
    assert client.explain(job.job_id).state == "completed"
    assert client.fetch(["q"], timeout=0) is None
    assert client.server_duration > 0


def test_batches_of_jobs(client: Any) -> None:
    jobs = [{"queue": "q", "payload": n, "unique_key": str(n)} for n in range(3)]
    batch = client.enqueue_batch(jobs, batch={"on_success": {"queue": "done"}})
    assert len(batch.job_ids) == 3 and client.get_batch(batch.batch_id).pending == 3
    fetched = client.fetch_batch(["q"], count=10, timeout=5)
    assert [job.payload for job in fetched] == [0, 1, 2]
    acks = [{"job_id": j.job_id, "lease_token": j.lease_token} for j in fetched[:2]]
    acks.append({"job_id": fetched[2].job_id, "lease_token": "wrong"})
    answer = client.ack_batch(acks)
    assert answer.acked == 2 and answer.failed[0]["code"] == "LEASE_LOST"
    assert client.fetch_batch(["q"], timeout=0) == []


def test_chains_take_the_name_of_a_queue(client: Any) -> None:
    steps = [{"queue": "q"}, {"queue": "q2"}]
    client.enqueue("q", chain={"steps": steps, "on_failure": "broken"})
    job = client.fetch(["q"], timeout=5)
    client.fail(job.job_id, "x", lease_token=job.lease_token, retry=False)
    assert client.fetch(["broken"], timeout=5).payload["error"] == "x"


def test_digits_survive_in_both_directions(client: Any, corvo: Server) -> None:
    enqueued = client.enqueue("q", RawJson(DIGITS))
    job = client.fetch(["q"], timeout=5)
    assert job.text("payload") == DIGITS and job.payload["n"] == 12345678901234567890123
    client.ack(job.job_id, lease_token=job.lease_token, result=RawJson(DIGITS))
    done = client.get_job(enqueued.job_id)
    assert done.text("result") == done.text("payload") == DIGITS


def test_refusals_are_errors_of_their_own(client: Any) -> None:
    with pytest.raises(NotFoundError):
        client.get_job("job_01JZZZZZZZZZZZZZZZZZZZZZZZ")
    with pytest.raises(ValidationError, match="did you mean priority"):
        client.enqueue("q", prioritty="high")
    with pytest.raises(PayloadTooLargeError):
        client.enqueue("q", "x" * 300_000)
    first = client.enqueue("q", unique_key="k").job_id
    again = client.enqueue("q", unique_key="k")
    assert (again.job_id, again.unique_existing, again.state) == (first, True, "pending")
    job = client.fetch(["q"], timeout=5)
    with pytest.raises(LeaseLostError):
        client.ack(job.job_id, lease_token="wrong")
    with pytest.raises(InvalidStateError):
        client.approve_job(job.job_id)
    client.fail(job.job_id, "x", lease_token=job.lease_token, retry=False)
    client.enqueue("q", unique_key="k")
    with pytest.raises(UniqueConflictError):
        client.requeue_job(first)
    client.clear_queue("q")
    client.enqueue("q", result_schema={"type": "object"})
    job = client.fetch(["q"], timeout=5)
    with pytest.raises(ResultSchemaError) as caught:
        client.ack(job.job_id, lease_token=job.lease_token, result=1)
    assert caught.value.validation_errors


def test_actions(client: Any) -> None:
    one = client.enqueue("q", delay="1h").job_id
    assert client.run_job(one).status == "pending"
    assert client.set_priority(one, "critical").status == "ok"
    assert client.move_job(one, "r").status == "moved"
    assert client.hold_job(one, reason="look").status == "held"
    assert client.reject_job(one, reason="no", revise=True).status == "pending"
    assert client.hold_job(one).status == "held"
    assert client.approve_job(one, approved_by="me").status == "pending"
    assert client.cancel_job(one).status == "cancelled"
    assert client.retry_job(one).status == "retried"
    assert client.get_job(one, consistent=True).state == "pending"
    with pytest.raises(TimeoutError, match="still pending"):
        client.wait(one, timeout=0.05)
    assert client.delete_job(one).status == "deleted"


def test_search_and_bulk(client: Any) -> None:
    client.enqueue_batch({"queue": "s", "payload": {"word": f"word{n}"}} for n in range(5))
    assert client.search(queue="s", limit=2).total == 5
    assert len(list(client.search_all(queue="s", state=["pending"]))) == 5
    assert client.facets(["state"], filter={"queue": "s"})["facets"]["state"] == {"pending": 5}
    assert client.bulk("cancel", filter={"queue": "s"}, dry_run=True).matched == 5
    operation = client.bulk("cancel", filter={"queue": "s"}, background=True)
    done = client.bulk_wait(operation.bulk_operation_id, timeout=30)
    assert (done.status, done.affected) == ("completed", 5)
    assert [e.name for e in client.bulk_progress(done.id)][-1] == "bulk.async.completed"
    assert len(client.bulk_results(done.id, kind="done")["items"]) == 5
    assert client.bulk_status(done.id).id == done.id
    assert client.bulk_undo(done.id).affected == 5
    assert client.bulk_cancel(done.id).status == "completed"
    assert client.dead_jobs(queue="s").jobs == []
    assert client.fulltext("word3")["q"] == "word3"


def test_queues(client: Any) -> None:
    assert client.pause_queue("l").status == "paused"
    client.resume_queue("l")
    client.set_concurrency("l", 2)
    client.set_throttle("l", 5, "1m")
    client.set_group_concurrency("l", 1)
    client.set_aging("l", 60)
    client.set_retention("l", completed="1h", reset=["dead"])
    queue = client.get_queue("l")
    assert (queue.max_concurrency, queue.rate_limit, queue.group_concurrency) == (2, 5, 1)
    client.remove_throttle("l")
    client.set_group_concurrency("l", None)
    client.enqueue("l", unique_key="k", group_key="g")
    assert client.list_groups("l")["groups"][0]["group_key"] == "g"
    assert client.list_locks(queue="l").locks[0]["unique_key"] == "k"
    assert client.release_lock("l", "k").status == "released"
    assert [q.name for q in client.list_queues().queues] == ["l"]
    assert client.queue_events("l").events
    assert client.drain_queue("l").status == "draining"
    assert client.clear_queue("l").deleted == 1
    assert client.delete_queue("l").status == "deleted"


def test_schedules(client: Any) -> None:
    made = client.create_schedule("nightly", "0 3 * * *", "q", payload={"a": 1}, priority="high")
    assert client.get_schedule("nightly").id == made.id and len(made.next_runs) == 10
    assert client.update_schedule("nightly", cron="@hourly", priority=None).cron == "@hourly"
    assert client.pause_schedule("nightly").enabled is False
    assert client.resume_schedule("nightly").enabled is True
    assert client.run_schedule("nightly").job_id
    assert [s.name for s in client.list_schedules().schedules] == ["nightly"]
    assert client.delete_schedule("nightly").status == "deleted"


def test_the_server(client: Any) -> None:
    assert client.get_server_info().server_version
    assert client.health()["status"] == "ok" and client.ready()["status"] == "ready"
    client.fetch(["q"], timeout=0, worker_id="me")
    assert "me" in [w.id for w in client.list_workers().workers]
    assert client.cluster_status()["mode"] == "single"
    assert client.cluster_events(after_seq=0, limit=1).events
    assert client.snapshot()["status"] == "ok"
    assert "corvo_jobs" in client.metrics()
    assert len(client.throughput()) == 60
    assert client.history(period="1h", step="5m")["points"]
    assert "run" in client.latency()
    assert client.runtime()
    assert client.test_clock().frozen is False
    for refused in (client.remove_node, client.promote_node, client.transfer_leadership):
        with pytest.raises(Exception, match="single"):
            refused("n1")
    assert client.rebuild_search()["rebuilt"] is True


def test_events_continue_after_a_restart(client: Any, corvo: Server) -> None:
    queue = f"ev-{type(client).__name__}"  # events outlive the jobs of other tests
    first = client.enqueue(queue).job_id
    events = client.subscribe(queues=[queue], from_start=True)
    assert next(e.job_id for e in events if e.type == "enqueued") == first
    corvo.restart()
    second = client.enqueue(queue).job_id
    assert next(e.job_id for e in events if e.type == "enqueued") == second
    events.close()


def test_live_output(client: Any) -> None:
    client.enqueue("out")
    job = client.fetch(["out"], timeout=5)
    beat = {"lease_token": job.lease_token, "stream_delta": "héllo"}
    client.heartbeat({job.job_id: beat})
    client.ack(job.job_id, lease_token=job.lease_token)
    events = list(client.job_stream(job.job_id))
    assert (events[0].delta, events[-1].state) == ("héllo", "completed")


def test_hooks_see_each_job(corvo: Server) -> None:
    def tagged(job: dict[str, Any]) -> dict[str, Any]:
        return {**job, "tags": {"by": "hook"}}

    with Client(corvo.url, before_enqueue=[tagged]) as client:
        client.enqueue("q")
        client.enqueue_batch([{"queue": "q"}])
        jobs = client.fetch_batch(["q"], timeout=5)
    assert [job.tags for job in jobs] == [{"by": "hook"}] * 2


def test_a_server_that_is_not_there_is_skipped(corvo: Server) -> None:
    for kind in KINDS:
        client = kind(["http://127.0.0.1:1", corvo.url])
        assert client.enqueue("q").job_id
        client.close()


def test_the_reason_of_a_failure_is_named(corvo: Server) -> None:
    for kind in KINDS:
        client = kind("http://127.0.0.1:1", retry_timeout=0)
        with pytest.raises(Unreachable, match=r"127.0.0.1:1: .*refused") as caught:
            client.enqueue("q")
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)
        assert not caught.value.sent
        client.close()


def test_a_client_works_after_a_fork(corvo: Server) -> None:
    with Client(corvo.url) as client:
        client.enqueue("fork")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                client.enqueue("fork")
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        client.enqueue("fork")
        assert client.get_queue("fork").pending == 3


def test_threads_share_a_client(corvo: Server) -> None:
    with Client(corvo.url) as client:
        threads = [
            threading.Thread(target=lambda: [client.enqueue("t") for _ in range(10)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.get_queue("t").pending == 80


def test_many_requests_share_a_few_connections(corvo: Server, monkeypatch: Any) -> None:
    opened: list[Any] = []
    connect = asyncio.open_connection

    async def counted(*args: Any, **kwargs: Any) -> Any:
        opened.append(args)
        return await connect(*args, **kwargs)

    monkeypatch.setattr(asyncio, "open_connection", counted)

    async def produce() -> int:
        async with AsyncClient(corvo.url) as client:
            waits = [asyncio.create_task(client.wait_once("x", timeout=0)) for _ in range(3)]
            await asyncio.gather(*(client.enqueue("many") for _ in range(500)))
            await asyncio.gather(*waits, return_exceptions=True)
            return (await client.get_queue("many")).pending

    assert asyncio.run(produce()) == 500
    assert len(opened) < 250


def test_a_server_with_tls(tmp_path: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=test", "-addext"]
    command += ["subjectAltName=IP:127.0.0.1", "-out", "cert.pem", "-keyout", "key.pem"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    cert = str(tmp_path / "cert.pem")
    flags = ("--tls-cert", cert, "--tls-key", str(tmp_path / "key.pem"))
    with Server(*flags) as server:
        url = server.url.replace("http:", "https:")
        for kind in KINDS:
            client = kind(url, ca_file=cert)
            client.enqueue("q")
            assert client.fetch(["q"], timeout=5)
            client.close()
            stranger = kind(url, retry_timeout=0)
            with pytest.raises(Unreachable, match="certificate is not trusted") as caught:
                stranger.enqueue("q")
            assert isinstance(caught.value.__cause__, ssl.SSLError)
            stranger.close()


def test_abandoned_streams_are_closed(client: Any, corvo: Server) -> None:
    client.enqueue("ab")
    for _ in range(3):
        assert list(islice(client.subscribe(queues=["ab"], from_start=True), 1))

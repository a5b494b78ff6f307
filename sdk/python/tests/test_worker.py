"""The worker against a real server: leases, cancels, outcomes, shutdown, and bad servers."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sdk_lib.worker_app as jobs
from corvo_client import (
    App,
    Delivery,
    JobFailed,
    NotFoundError,
    UnauthorizedError,
    Unreachable,
    Worker,
    core,
)
from corvo_client.context import Context
from corvo_client.testing import Server
from corvo_client.trace import carry, trace_headers
from sdk_lib.fake_server import FakeServer
from sdk_lib.running import working

HERE = Path(__file__).parent
SDK = HERE.parent


@pytest.fixture
def app(corvo: Server) -> App:
    corvo.connect(jobs.app)
    jobs.runs.clear()
    jobs.started.clear()
    return jobs.app


def until(condition: Callable[[], Any], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_many_jobs_at_a_time(app: App, corvo: Server) -> None:
    with working(app, concurrency=20):
        handles = [jobs.quick.enqueue(n) for n in range(60)]
        assert [handle.wait(30) for handle in handles] == list(range(60))
    assert sorted(jobs.runs) == sorted((handle.id, 1) for handle in handles)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("retry", 2), ("snooze", 1), ("plain", 1)],
)
def test_outcomes(app: App, kind: str, expected: int) -> None:
    with working(app):
        assert jobs.outcomes.enqueue(kind).wait(20) == expected


def test_a_hold_waits_for_approval(app: App) -> None:
    with working(app):
        handle = jobs.outcomes.enqueue("hold")
        until(lambda: handle.get().state == "held", "never held")
        assert handle.get().hold_reason == "look at it"
        app.client.approve_job(handle.id)
        assert handle.wait(20) == 1  # the hold has used up no attempt


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("not json", "object is not JSON"),
        ("huge", "refused"),
    ],
)
def test_a_result_that_cannot_be_sent_is_a_failure(app: App, kind: str, error: str) -> None:
    with working(app), pytest.raises(JobFailed, match=error):
        jobs.outcomes.with_options(max_retries=1).enqueue(kind).wait(20)


@pytest.mark.parametrize("kind", ["exit", "interrupt"])
def test_no_exception_ends_the_loop_of_the_handlers(app: App, kind: str) -> None:
    with working(app):
        with pytest.raises(JobFailed):
            jobs.async_outcomes.with_options(max_retries=1).enqueue(kind).wait(20)
        with pytest.raises(JobFailed):
            jobs.async_outcomes.with_options(max_retries=1).enqueue(kind).wait(20)


def test_the_last_output_arrives(app: App) -> None:
    with working(app):
        handle = jobs.prints.enqueue("0123456789", 10_000)
        text = "".join(event.delta or "" for event in handle.stream())
    assert len(text) == 100_000 and text == "0123456789" * 10_000


def test_a_refused_checkpoint_concerns_its_job_only(app: App) -> None:
    with working(app, concurrency=10):
        greedy = jobs.greedy.enqueue(2_000_000)
        modest = [jobs.greedy.enqueue(n) for n in range(5)]
        assert greedy.wait(20) == "PayloadTooLargeError"
        assert {handle.wait(20) for handle in modest} == {"stored"}


def test_a_coroutine_is_cancelled_once(app: App) -> None:
    with working(app, lease_duration=1, cancel_grace=0.1):
        handle = jobs.cleans.enqueue()
        until(lambda: handle.get().state == "active", "never active")
        handle.cancel()
        with pytest.raises(JobFailed):
            handle.wait(20)
    assert jobs.runs == [("cleaned", 0)]


@pytest.mark.parametrize("task", [jobs.sync_slow, jobs.async_slow, jobs.process_slow])
def test_cancel_reaches_every_kind_of_handler(app: App, task: Any) -> None:
    with working(app, lease_duration=2, cancel_grace=0.2):
        handle = task.enqueue()
        until(lambda: handle.get().state == "active", "never active")
        if task is jobs.process_slow:
            until(lambda: handle.get().progress, "no progress")
        handle.cancel()
        with pytest.raises(JobFailed, match=r"cancel|terminated"):
            handle.wait(20)
        assert handle.get().state == "cancelled"
        assert jobs.quick.enqueue(5).wait(20) == 5  # the worker still works


@pytest.mark.parametrize(
    "count", [100, pytest.param(1000, marks=[pytest.mark.full, pytest.mark.timeout(900)])]
)
def test_many_cancels_leave_the_worker_whole(app: App, count: int) -> None:
    with working(app, lease_duration=2, cancel_grace=0.1, concurrency=50) as worker:
        handles = [task.enqueue() for task in (jobs.sync_slow, jobs.async_slow) * (count // 2)]
        until(lambda: worker.health()["active"] == 50, "the worker is never full")
        for handle in handles:
            handle.cancel()
        for handle in handles:
            with pytest.raises(JobFailed):
                handle.wait(60)
        assert [jobs.quick.enqueue(n).wait(20) for n in range(5)] == list(range(5))
        until(lambda: worker.health()["active"] == 0, "a job is never forgotten")
    assert threading.active_count() < 30


@pytest.mark.parametrize("task", [jobs.blocks_the_loop, jobs.holds_the_gil])
def test_a_handler_that_blocks_keeps_its_lease(app: App, task: Any, corvo: Server) -> None:
    with working(app, lease_duration=2), working(app, lease_duration=2):
        handle = task.enqueue(6.0)
        assert handle.wait(30) == "done"
    job = handle.get()
    assert (job.attempt, job.error_count) == (1, None)
    assert task is jobs.holds_the_gil or jobs.runs == [(handle.id, 1)]


def test_a_process_reports_and_may_die(app: App) -> None:
    with working(app):
        handle = jobs.reports.enqueue()
        pid = handle.wait(20)
        job = handle.get()
        assert pid != os.getpid() and job.checkpoint == {"pid": pid}
        assert job.progress == {"current": 1, "total": 2}
        assert app.client.job_logs(job.id).lines[0].message == "from the process"
        with pytest.raises(JobFailed, match="exit code 7"):
            jobs.dies.enqueue().wait(20)


def test_shutdown_releases_with_the_checkpoint(app: App) -> None:
    handle = jobs.saves.enqueue("lost")  # ignores the cancel
    with working(app, shutdown_timeout=0.5):
        jobs.wait_started("saves")
        until(lambda: handle.get().checkpoint, "no checkpoint")
    job = handle.get()
    assert (job.state, job.attempt, job.checkpoint) == ("pending", 0, {"attempt": 1})
    handle.cancel()


def test_handlers_learn_of_the_shutdown_at_once(app: App) -> None:
    handle = jobs.saves.enqueue("shutting_down")
    with working(app, shutdown_timeout=20):
        jobs.wait_started("saves")
    assert handle.wait(5) == "shutting_down"


def test_a_lost_lease_drops_the_result(app: App, caplog: Any) -> None:
    handle = jobs.saves.enqueue("lost")
    with caplog.at_level(logging.WARNING), working(app, lease_duration=1.5):
        jobs.wait_started("saves")
        handle.cancel(force=True)
        until(lambda: "the lease was lost" in caplog.text, "no warning")
    assert handle.get().state == "cancelled" and handle.get().result is None
    assert caplog.text.count("the lease was lost") == 1


def test_acks_that_end_together_share_a_request(corvo: Server, caplog: Any) -> None:
    gate, app = threading.Event(), App(corvo.url)
    app.register("together", lambda job, ctx: gate.wait(30))
    ids = corvo.client.enqueue_batch({"queue": "together"} for _ in range(20)).job_ids
    with working(app, concurrency=20, heartbeat_interval=30):
        until(lambda: corvo.client.get_queue("together").active == 20, "not all are active")
        corvo.client.cancel_job(ids[3], force=True)
        corvo.client.delete_job(ids[4])
        gate.set()
        until(lambda: corvo.client.get_queue("together").completed == 18, "acks are missing")
        until(lambda: caplog.text.count("the lease was lost") == 2, "no warnings")
    metrics = corvo.client.metrics()
    assert 'corvo_http_requests_total{method="POST",route="/ack/batch"}' in metrics


def test_a_job_that_arrives_at_the_end_is_released(app: App, corvo: Server) -> None:
    worker = Worker(app)
    worker._stopping.set()  # as if the stop came between the poll and its answer
    handle = jobs.quick.enqueue()
    job = corvo.client.fetch(["quick"], timeout=5)
    assert job is not None

    async def arrive() -> None:
        worker._reports = worker.app.new_async_client()
        worker._calls = worker._reports
        worker._changed = asyncio.Event()
        worker._begin(job)
        while worker._leases:
            await worker._changed.wait()
            worker._changed.clear()

    asyncio.run(arrive())
    assert (handle.get().state, handle.get().attempt, jobs.runs) == ("pending", 0, [])


def test_queues_without_handlers_are_not_fetched(app: App) -> None:
    with pytest.raises(ValueError, match="no handler is registered for queue 'other'"):
        Worker(app, queues=["other"])
    with pytest.raises(ValueError, match="no queue"):
        Worker(App())
    every = App()
    every.register("*", lambda job, ctx: None)
    assert Worker(every, queues=["other"]).queues == ["other"]


def test_the_environment_configures_a_worker(app: App, monkeypatch: Any) -> None:
    monkeypatch.setenv("CORVO_QUEUES", "quick,sync")
    monkeypatch.setenv("CORVO_CONCURRENCY", "3")
    worker = Worker(app)
    assert (worker.queues, worker.concurrency) == (["quick", "sync"], 3)
    given = Worker(app, queues=["saves"], concurrency=4)
    assert (given.queues, given.concurrency) == (["saves"], 4)


def test_handlers_of_job_and_context(corvo: Server) -> None:
    app = App(corvo.url)

    @app.handler("h")
    async def handle(job: Delivery, ctx: Context) -> Any:
        return [job.payload, ctx.job_id]

    with working(app):
        enqueued = app.client.enqueue("h", 1)
        assert app.client.wait(enqueued.job_id, timeout=20).result == [1, enqueued.job_id]


def test_the_trace_reaches_the_handler(app: App, monkeypatch: Any) -> None:
    context = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    seen: list[Any] = []
    local = App()
    local.register("q", lambda job, ctx: seen.append(trace_headers()))
    with FakeServer() as server:
        server.answer("POST", "/enqueue", 201, {"job_id": "j", "status": "pending"})
        delivered = {"job_id": "j", "queue": "q", "payload": {}, "lease_token": "t", "attempt": 1}
        server.answer("POST", "/fetch/batch", 200, {"jobs": [{**delivered, **context}]})
        server.answer("POST", "/ack/j", 200, {"status": "ok"})
        local.connect(server.url)
        with carry(context):
            local.client.enqueue("q")
        assert server.requests[0].headers["traceparent"] == context["traceparent"]
        Worker(local, queues=["q"]).drain(limit=1)
    assert seen == [context]


# ---- servers that refuse, hang or are not there ----


def one_handler(url: Any) -> App:
    app = App(url)
    app.register("q", lambda job, ctx: None)
    return app


@pytest.mark.parametrize(("status", "error"), [(401, UnauthorizedError), (404, NotFoundError)])
def test_a_refusal_ends_the_worker(status: int, error: Any) -> None:
    with FakeServer() as server:
        server.answer("POST", "/fetch/batch", status, {"error": "no", "code": "X"})
        with pytest.raises(error):
            Worker(one_handler(server.url)).start()


def test_an_absent_server_ends_the_worker() -> None:
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="refused"):
        Worker(one_handler("http://127.0.0.1:1"), start_timeout=1).start()
    assert time.monotonic() - begun < 10


def test_a_server_that_never_answers_ends_the_worker() -> None:
    begun = time.monotonic()
    with FakeServer() as silent:
        silent.hang("POST", "/fetch/batch")
        with pytest.raises(Unreachable, match=r"no server has answered within 0.5 s"):
            Worker(one_handler(silent.url), start_timeout=0.5).start()
    assert time.monotonic() - begun < 5


def test_a_deaf_worker_changes_the_server(corvo: Server, caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(core, "WAIT_MARGIN_S", 0.5)
    with FakeServer() as silent:
        silent.hang("POST", "/fetch/batch")
        app = one_handler([silent.url, corvo.url])
        worker = Worker(app, poll_timeout=0.1)
        thread = threading.Thread(target=worker.start)
        thread.start()
        until(lambda: worker.health()["status"] == "ok", "still deaf", 40)
        worker.stop()
        thread.join(20)
    assert "no response within" in caplog.text


def test_a_fault_of_the_worker_itself_is_raised(app: App, monkeypatch: Any) -> None:
    async def broken(*_: Any) -> None:
        raise TypeError("a fault")

    monkeypatch.setattr(Worker, "_beat", broken)
    jobs.saves.enqueue("shutting_down")
    with pytest.raises(TypeError, match="a fault"):
        Worker(app, heartbeat_interval=0.1, shutdown_timeout=1).start()


def test_health(app: App) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with working(app, health=f"127.0.0.1:{port}") as worker:
        until(lambda: worker.health()["status"] == "ok", "never ok")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            assert json.load(answer)["worker_id"] == worker.worker_id
        worker._answered_at -= 1000
        assert worker.health()["status"] == "deaf"
    assert worker.health()["status"] == "stopping"


# ---- the runner ----


def run(*arguments: str, url: str = "", cwd: Path = HERE) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": f"{SDK}", "CORVO_URL": url}
    command = [sys.executable, "-m", "corvo_client", "worker", *arguments]
    return subprocess.Popen(command, cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True)


def test_the_runner(corvo: Server) -> None:
    runner = run("sdk_lib.worker_app:app", "-q", "quick", "-c", "3", url=corvo.url)
    corvo.connect(jobs.app)
    assert jobs.quick.enqueue(4).wait(20) == 4
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(20) == 0, runner.stderr


def test_sigterm_with_five_active_jobs(corvo: Server) -> None:
    corvo.connect(jobs.app)
    handles = [jobs.saves.enqueue("lost") for _ in range(5)]
    runner = run("sdk_lib.worker_app:app", "-q", "saves", "--shutdown-timeout", "1", url=corvo.url)
    until(lambda: all(handle.get().checkpoint for handle in handles), "not all are active")
    runner.send_signal(signal.SIGTERM)
    _, log = runner.communicate(timeout=30)
    assert runner.returncode == 0 and "Traceback" not in log, log
    for handle in handles:
        job = handle.get()
        assert (job.state, job.attempt, job.checkpoint) == ("pending", 0, {"attempt": 1})


def test_a_second_signal_does_not_wait(corvo: Server) -> None:
    corvo.connect(jobs.app)
    handle = jobs.saves.enqueue("lost")
    runner = run("sdk_lib.worker_app:app", "-q", "saves", "--shutdown-timeout", "90", url=corvo.url)
    until(lambda: handle.get().checkpoint, "not active")
    runner.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert runner.poll() is None
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(20) == 0 and handle.get().attempt == 0


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("no_such_module:app", "No module named"),
        ("sdk_lib.worker_app:nothing", "no attribute 'nothing'"),
        ("sdk_lib.worker_app:runs", "is a list, not an App"),
    ],
)
def test_the_runner_names_what_is_wrong(app: str, message: str) -> None:
    runner = run(app)
    _, errors = runner.communicate(timeout=20)
    assert runner.returncode == 1 and message in errors and "Traceback" not in errors


def test_the_runner_ends_when_the_server_refuses() -> None:
    with FakeServer() as server:
        server.answer("POST", "/fetch/batch", 401, {"error": "wrong key", "code": "UNAUTHORIZED"})
        runner = run("sdk_lib.worker_app:app", url=server.url)
        _, errors = runner.communicate(timeout=30)
    assert runner.returncode == 1 and "wrong key" in errors and "Traceback" not in errors


def test_the_runner_watches_the_sources(corvo: Server, tmp_path: Path) -> None:
    source = tmp_path / "shop.py"
    text = (
        "from corvo_client import App\n"
        "app = App()\n"
        "@app.task(queue='version')\n"
        "def version() -> int:\n"
        "    return {}\n"
    )
    source.write_text(text.format(1))
    runner = run("shop:app", "--watch", url=corvo.url, cwd=tmp_path)
    try:
        job = corvo.client.enqueue("version", {})
        assert corvo.client.wait(job.job_id, timeout=20).result == 1
        source.write_text("def\n")  # the worker cannot start
        time.sleep(1)
        source.write_text(text.format(2) + "# longer\n")

        def renewed() -> bool:
            job = corvo.client.enqueue("version", {})
            return bool(corvo.client.wait(job.job_id, timeout=20).result == 2)

        until(renewed, "the new source is not in use", 30)
    finally:
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(30) in (0, -15)

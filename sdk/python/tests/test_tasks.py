"""Tasks: calls that become jobs, arguments that become types, and the testing kit."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import pytest
from corvo_client import (
    App,
    Context,
    Discard,
    JobFailed,
    LogHandler,
    Retry,
    Worker,
    context,
    conversion,
)
from corvo_client.testing import Server
from sdk_lib.running import working


class Receipt(msgspec.Struct):
    to: str
    at: datetime | None = None


@dataclass
class Point:
    x: int
    y: float = 0


def test_a_call_becomes_a_job_and_its_result(app: App, corvo: Server) -> None:
    @app.task(queue="emails", retries=5, priority="high")
    def send(to: str, n: int = 1) -> Receipt:
        return Receipt(to * n)

    handle = send.with_options(tags={"a": "b"}).enqueue("x", n=2)
    job = handle.get()
    assert (job.payload, job.max_retries, job.priority_name) == ({"to": "x", "n": 2}, 5, "high")
    assert job.tags == {"a": "b"} and send.options.get("tags") is None
    assert Worker(app).drain() == 1
    assert handle.wait(5) == Receipt("xx") and send("y") == Receipt("y")
    assert corvo.assert_enqueued(send, to="x").state == "completed"
    with pytest.raises(AssertionError, match="no job of emails has"):
        corvo.assert_enqueued(send, to="z")
    with pytest.raises(AssertionError, match="emails has jobs"):
        corvo.assert_not_enqueued(send)
    with pytest.raises(TypeError, match="missing a required argument: 'to'"):
        send.enqueue(n=1)  # type: ignore[call-arg]


def test_a_call_from_asyncio(app: App) -> None:
    @app.task()
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    async def produce() -> int:
        handle = await double.enqueue_async(21)
        assert (await handle.explain()).job_id == handle.id
        result = await handle.wait(10)
        await app.async_client.close()
        return result + await double(1)

    with working(app):
        assert asyncio.run(produce()) == 44
    assert double.queue == "double"


def test_several_tasks_share_a_queue_by_name(app: App, corvo: Server) -> None:
    @app.task(queue="mail", name="hello")
    def hello() -> str:
        return "hello"

    @app.task(queue="mail", name="bye")
    def bye() -> str:
        return "bye"

    handles = [hello.enqueue(), bye.with_options(tags={"x": "y"}).enqueue()]
    Worker(app).drain()
    assert [handle.wait(5) for handle in handles] == ["hello", "bye"]
    assert handles[1].get().tags == {"x": "y", "task": "bye"}
    with pytest.raises(ValueError, match="already"):
        app.task(queue="mail", name="bye")(lambda: None)
    corvo.client.enqueue("mail", tags={"task": "unknown"})
    Worker(app).drain()
    (failed,) = corvo.jobs("mail", "retrying")
    assert (failed.errors or [])[0].error == "no handler registered for queue mail"


@pytest.mark.parametrize("library", [True, False])
def test_arguments_are_converted(app: App, library: bool, monkeypatch: Any) -> None:
    if not library:
        monkeypatch.setattr(conversion, "_by_library", lambda _: None)
    seen: list[Any] = []

    @app.task()
    def plot(points: list[int], point: Point, label: str | None = None, *, scale: float) -> Point:
        seen.append((points, point, label, scale))
        return point

    assert plot.run_inline([1], Point(1), scale=2) == Point(1, 0)
    assert seen == [([1], Point(1, 0), None, 2)]
    for payload in ({"points": 1}, {"point": {"x": "1"}}, {"unknown": 1}):
        given = {"points": [1], "point": {"x": 1}, "scale": 1, **payload}
        app.client.enqueue("plot", given, max_retries=1)
    Worker(app).drain()
    errors = [job.errors[0].error for job in app.client.search_all(queue="plot") if job.errors]
    assert library is False or len(seen) == 1, errors


def test_a_type_without_json_is_refused_early(app: App) -> None:
    with pytest.raises(TypeError, match=r"install corvo-client\[msgspec\]"):

        @app.task()
        def bad(x: Context) -> None: ...

    with pytest.raises(TypeError, match="no name in a payload"):

        @app.task()
        def worse(*x: int) -> None: ...


def test_run_inline_raises_outcomes(app: App) -> None:
    @app.task()
    def fails(kind: str) -> None:
        context().progress(1)
        context().checkpoint({"a": 1})
        raise Retry(after=5) if kind == "retry" else ValueError(kind)

    with pytest.raises(Retry):
        fails.run_inline("retry")
    with pytest.raises(ValueError, match="other"):
        fails.run_inline("other")
    with pytest.raises(RuntimeError, match="inside a handler"):
        context()


def test_failures_reach_the_caller(app: App) -> None:
    @app.task(retries=3)
    def fails() -> None:
        raise Discard("no such user")

    handle = fails.enqueue()
    Worker(app).drain()
    with pytest.raises(JobFailed, match="no such user") as caught:
        handle.wait(5)
    assert (caught.value.code, caught.value.job.attempt) == ("DEAD", 1)


def test_secrets_can_be_kept_out_of_errors(corvo: Server) -> None:
    app = App(corvo.url, exc_to_fail=lambda error: (type(error).__name__, ""))

    @app.task(retries=1)
    def fails() -> None:
        raise ValueError("password")

    handle = fails.enqueue()
    Worker(app).drain()
    error = (handle.get().errors or [])[0]
    assert (error.error, error.backtrace) == ("ValueError", None)


def test_middleware_is_an_onion(app: App) -> None:
    seen: list[str] = []

    def layer(name: str) -> Any:
        @app.middleware
        @contextlib.contextmanager
        def around(ctx: Context) -> Iterator[None]:
            seen.append(f"{name} {ctx.job.queue}")
            try:
                yield
            except ValueError as error:
                seen.append(f"{name} {error}")
                raise
            finally:
                seen.append(f"{name} end")

        return around

    layer("outer"), layer("inner")

    @app.task()
    async def fails() -> None:
        assert context().attempt == 1
        raise ValueError("boom")

    fails.enqueue()
    Worker(app).drain()
    expected = ["outer fails", "inner fails", "inner boom", "inner end", "outer boom", "outer end"]
    assert seen == expected


def test_time_passes_by_request(app: App, corvo: Server) -> None:
    @app.task(retry_base_delay="1h", retry_jitter=0)
    def twice() -> int:
        if context().attempt == 1:
            raise ValueError("first")
        return context().attempt

    handle = twice.with_options(delay="1d").enqueue()
    worker = Worker(app)
    assert worker.drain() == 0
    corvo.advance("1d")
    assert worker.drain() == 1 and handle.get().state == "retrying"
    corvo.advance("1h")
    assert worker.drain(limit=1) == 1 and handle.wait(5) == 2


def test_a_drained_job_reports_like_any_other(app: App, corvo: Server) -> None:
    import logging

    logger = logging.getLogger("shop")
    logger.addHandler(LogHandler())

    @app.task()
    def report() -> None:
        ctx = context()
        ctx.progress(1, 2, "half")
        ctx.stream("output")
        ctx.checkpoint({"at": 1})
        ctx.log("by hand", "debug")
        logger.warning("by %s", "logging")

    handle = report.enqueue()
    Worker(app).drain()
    job = handle.get()
    assert job.progress == {"current": 1, "total": 2, "message": "half"}
    assert job.checkpoint == {"at": 1}
    lines = app.client.job_logs(handle.id).lines
    assert [(line.level, line.message) for line in lines] == [
        ("debug", "by hand"),
        ("warn", "by logging"),
    ]
    assert [e.delta for e in handle.stream() if e.delta] == ["output"]

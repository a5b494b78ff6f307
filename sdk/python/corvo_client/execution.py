"""How handlers run: in a thread, on an event loop of their own, or in a process.

All three end with a `Report`, and none of them is the thread that talks to the server. A thread is
never interrupted: it sees `context().cancelled`. An asynchronous handler is cancelled after a grace
time, a process is terminated after it.
"""

import asyncio
import contextlib
import importlib
import inspect
import multiprocessing
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from corvo_client import json_text
from corvo_client.context import Context, Level, Link, working_on
from corvo_client.documents import Delivery
from corvo_client.outcomes import Cancelled, ExceptionToFail, Report, completed, failed
from corvo_client.tasks import Handler, Middleware
from corvo_client.trace import carry

Finish = Callable[[Report], None]
Stop = Callable[[], None]  # ends a handler that has not stopped by itself


@contextlib.contextmanager
def surroundings(ctx: Context, middlewares: Sequence[Middleware]) -> Any:
    """Enter the context of a job, its trace, and the middleware, the outermost first."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(working_on(ctx))
        stack.enter_context(carry(ctx.job))
        for middleware in middlewares:
            stack.enter_context(middleware(ctx))
        yield


def run_sync(
    handler: Handler,
    ctx: Context,
    middlewares: Sequence[Middleware],
    to_fail: ExceptionToFail | None,
) -> Report:
    """Run a handler in this thread. An asynchronous one gets an event loop."""
    try:
        with surroundings(ctx, middlewares):
            result = handler.invoke(ctx)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
        return completed(result)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        return failed(error, to_fail)


async def _awaited(result: Any) -> Any:
    return await result


async def run_async(
    handler: Handler,
    ctx: Context,
    middlewares: Sequence[Middleware],
    to_fail: ExceptionToFail | None,
) -> Report:
    """Run an asynchronous handler on the present event loop."""
    try:
        with surroundings(ctx, middlewares):
            result = await handler.invoke(ctx)
        return completed(result)
    except asyncio.CancelledError:
        return failed(Cancelled(), to_fail)
    except BaseException as error:  # else it would end the event loop of all handlers
        return failed(error, to_fail)


class _NoLink:
    """Reports that go nowhere."""

    def note(self, kind: Literal["progress", "stream"], value: Any) -> None:
        """Drop it."""

    def log(self, message: str, level: Level) -> None:
        """Drop it."""

    def checkpoint(self, value: Any) -> None:
        """Drop it."""

    async def checkpoint_async(self, value: Any) -> None:
        """Drop it."""


def run_inline(handler: Handler, job: Delivery, middlewares: Sequence[Middleware]) -> Any:
    """Run a handler here, and return its result or raise its exception."""
    ctx = Context(job, _NoLink())
    with surroundings(ctx, middlewares):
        result = handler.invoke(ctx)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    members = completed(result).members
    return json_text.decode(members["result"].text.encode()) if members else None


class Executors:
    """Starts handlers. `start` returns how to stop one that ignores its cancellation."""

    def __init__(self, middlewares: Sequence[Middleware], to_fail: ExceptionToFail | None) -> None:
        self._rest = middlewares, to_fail
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, handler: Handler, ctx: Context, finish: Finish) -> Stop:
        """Start a handler; `finish` is called with its report, on any thread."""
        if handler.executor == "process":
            return self._start_process(handler, ctx, finish)
        if handler.is_async:
            return self._start_async(handler, ctx, finish)

        def run() -> None:
            try:
                report = run_sync(handler, ctx, *self._rest)
            except BaseException as error:  # else the job would run for as long as the worker
                report = failed(error, self._rest[1])
            finish(report)

        _thread("corvo-handler", run)
        return lambda: None

    def _start_async(self, handler: Handler, ctx: Context, finish: Finish) -> Stop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            _thread("corvo-async-handlers", partial(_run_loop, self._loop))
        loop = self._loop
        tasks: list[asyncio.Task[Any] | None] = []

        async def run() -> Report:
            tasks.append(asyncio.current_task())
            return await run_async(handler, ctx, *self._rest)

        running = asyncio.run_coroutine_threadsafe(run(), loop)
        running.add_done_callback(
            lambda done: finish(failed(Cancelled()) if done.cancelled() else done.result())
        )

        def cancel() -> None:
            for task in tasks:
                if task is not None:
                    task.cancel()

        def stop() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(cancel)

        return stop

    def _start_process(self, handler: Handler, ctx: Context, finish: Finish) -> Stop:
        start_method = "spawn" if sys.platform == "win32" else "forkserver"
        methods: Any = multiprocessing.get_context(start_method)
        ours, theirs = methods.Pipe()
        process = methods.Process(
            target=_child, args=(theirs, *handler.reference, ctx.job), daemon=True
        )
        stopped = threading.Event()

        def run() -> None:
            try:
                process.start()
                theirs.close()
                report = _follow(process, ours, ctx, stopped)
            except Exception as error:
                report = failed(error, self._rest[1])
            ours.close()
            finish(report)

        _thread("corvo-process", run)

        def stop() -> None:
            stopped.set()
            if process.pid is not None:
                process.terminate()

        return stop

    def close(self) -> None:
        """End the event loop of asynchronous handlers."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run coroutines until the loop is stopped. Those that still run then are cancelled."""
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _thread(name: str, run: Callable[[], None]) -> None:
    # A thread of a handler that never ends must not keep the process alive.
    threading.Thread(target=run, name=name, daemon=True).start()


# ---- the process of a handler ----


class _PipeLink:
    """Sends what a handler reports through a pipe, to the process that has the lease."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self.answers: list[str | None] = []
        self.answered = threading.Condition()

    def send(self, *message: Any) -> None:
        """Send a message."""
        with self._lock:
            self._pipe.send(message)

    def note(self, kind: Literal["progress", "stream"], value: Any) -> None:
        """Send a value."""
        self.send("note", kind, value)

    def log(self, message: str, level: Level) -> None:
        """Send a log line."""
        self.send("log", message, level)

    def checkpoint(self, value: Any) -> None:
        """Send a checkpoint, and wait for the answer."""
        self.send("checkpoint", value)
        with self.answered:
            self.answered.wait_for(lambda: bool(self.answers))
            problem = self.answers.pop(0)
        if problem is not None:
            raise RuntimeError(problem)

    async def checkpoint_async(self, value: Any) -> None:
        """Do the same without blocking the loop."""
        await asyncio.to_thread(self.checkpoint, value)


def _child(pipe: Connection, module: str, name: str, job: Delivery) -> None:
    """Run a handler in this process."""
    from corvo_client.tasks import FunctionHandler

    link = _PipeLink(pipe)
    ctx = Context(job, link)

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, value = pipe.recv()
                if kind == "flag":
                    getattr(ctx, value).set()
                else:
                    with link.answered:
                        link.answers.append(value)
                        link.answered.notify_all()

    _thread("corvo-pipe", listen)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        handler = found if isinstance(found, Handler) else FunctionHandler(found, "process")
        app = getattr(handler, "app", None)
        rest = (app.middlewares, app.exc_to_fail) if app else ((), None)
        report = run_sync(handler, ctx, *rest)
    except Exception as error:
        report = failed(error)
    link.send("report", report)


def _follow(process: Any, pipe: Connection, ctx: Context, stopped: threading.Event) -> Report:
    """Pass on what a process reports until it ends."""
    told: set[str] = set()
    while True:
        ready = wait([pipe, process.sentinel], 0.1)
        for flag in ("cancelled", "lost", "shutting_down"):
            if getattr(ctx, flag) and flag not in told:
                told.add(flag)
                with contextlib.suppress(OSError):
                    pipe.send(("flag", flag))
        if pipe in ready:
            try:
                kind, *values = pipe.recv()
            except (EOFError, OSError):
                kind, values = "ended", []
            if kind == "report":
                process.join()
                report: Report = values[0]
                return report
            if kind == "ended":
                process.join()
                return _died(process, stopped)
            problem = _pass_on(ctx, kind, values)
            if kind == "checkpoint":
                pipe.send(("answer", problem))
        elif process.sentinel in ready:
            return _died(process, stopped)


def _pass_on(ctx: Context, kind: str, values: list[Any]) -> str | None:
    link: Link = ctx._link
    try:
        if kind == "note":
            link.note(*values)
        elif kind == "log":
            link.log(*values)
        else:
            link.checkpoint(*values)
            ctx.last_checkpoint = values[0]
    except Exception as error:
        return str(error)
    return None


def _died(process: Any, stopped: threading.Event) -> Report:
    if stopped.is_set():
        return failed(Cancelled("the process was terminated"))
    return failed(RuntimeError(f"the process ended with exit code {process.exitcode}"))

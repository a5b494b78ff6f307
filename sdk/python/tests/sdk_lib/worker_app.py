"""The app of the worker tests; handlers in processes import it by name."""

import asyncio
import os
import time
from threading import Event
from typing import Any

from corvo_client import App, Hold, Retry, Snooze, context

app = App()
started: dict[str, Event] = {}
runs: list[tuple[str, int]] = []  # job and attempt of each run


def began() -> None:
    ctx = context()
    runs.append((ctx.job_id, ctx.attempt))
    started.setdefault(ctx.job.queue, Event()).set()


def wait_started(queue: str) -> None:
    assert started.setdefault(queue, Event()).wait(20), f"no job of {queue} began"


@app.task(queue="quick")
def quick(n: int = 0) -> int:
    began()
    return n


@app.task(queue="sync")
def sync_slow() -> str:
    began()
    assert context().cancelled.wait(30)
    context().raise_if_cancelled()
    return "not cancelled"


@app.task(queue="async")
async def async_slow() -> None:
    began()
    await asyncio.sleep(60)


@app.task(queue="process", executor="process")
def process_slow() -> None:
    context().progress(1)
    time.sleep(60)


@app.task(queue="blocks")
async def blocks_the_loop(seconds: float) -> str:
    began()
    time.sleep(seconds)
    return "done"


@app.task(queue="gil", executor="process")
def holds_the_gil(seconds: float) -> str:
    """Hold the interpreter lock for a while, as badly written C code does."""
    import ctypes

    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    return "done"


@app.task(queue="outcomes")
def outcomes(kind: str) -> Any:
    began()
    if kind == "retry" and context().attempt == 1:
        raise Retry(after=0)
    if kind == "snooze" and not context().last_checkpoint:
        context().checkpoint("snoozed")
        raise Snooze(0)
    if kind == "hold" and not context().last_checkpoint:
        raise Hold("look at it", checkpoint="held")
    if kind == "exit":
        raise SystemExit(3)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "not json":
        return object()
    if kind == "huge":
        return "x" * 3_000_000
    return context().attempt


@app.task(queue="async outcomes")
async def async_outcomes(kind: str) -> None:
    if kind == "exit":
        raise SystemExit(3)
    raise KeyboardInterrupt


@app.task(queue="prints")
def prints(text: str, times: int) -> None:
    for _ in range(times):
        context().stream(text)


@app.task(queue="greedy")
def greedy(size: int) -> str:
    try:
        context().checkpoint("x" * size)
    except Exception as error:
        return type(error).__name__
    return "stored"


@app.task(queue="cleans")
async def cleans() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(1.0)
        runs.append(("cleaned", 0))


@app.task(queue="dies", executor="process", retries=1)
def dies() -> None:
    os._exit(7)


@app.task(queue="reports", executor="process")
def reports() -> Any:
    ctx = context()
    ctx.progress(1, 2)
    ctx.log("from the process")
    ctx.checkpoint({"pid": os.getpid()})
    return os.getpid()


@app.task(queue="saves")
def saves(until: str) -> str:
    began()
    ctx = context()
    ctx.checkpoint({"attempt": ctx.attempt})
    getattr(ctx, until).wait(30)
    return until

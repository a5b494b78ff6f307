"""The context of a running job: what a handler can learn about it, and report while it runs."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol

from corvo_client.documents import Delivery
from corvo_client.outcomes import Cancelled

Level = Literal["debug", "info", "warn", "error"]
_current: ContextVar["Context | None"] = ContextVar("corvo_context", default=None)


class Flag:
    """A fact that becomes true once. It can be tested (`if flag`) and waited for."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Make it true."""
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is true, or until the timeout; return whether it is true."""
        return self._event.wait(timeout)


class Link(Protocol):
    """Carries what a handler reports to the server."""

    def note(self, kind: Literal["progress", "stream"], value: Any) -> None:
        """Send a value soon, without waiting."""

    def log(self, message: str, level: Level) -> None:
        """Append a log line."""

    def checkpoint(self, value: Any) -> None:
        """Store a checkpoint, and return when the server has it."""

    async def checkpoint_async(self, value: Any) -> None:
        """Do the same without blocking the event loop."""


class Context:
    """The job at hand.

    cancelled      someone cancelled the job, or the lease is lost: stop soon
    lost           the worker no longer has the job; its result will be dropped
    shutting_down  the worker stops: save a checkpoint, or finish quickly
    """

    def __init__(self, job: Delivery, link: Link) -> None:
        self.job = job
        self.cancelled = Flag()
        self.lost = Flag()
        self.shutting_down = Flag()
        self.last_checkpoint: Any = job.checkpoint
        self._link = link

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self.job.job_id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.job.attempt

    @property
    def fencing(self) -> int:
        """A number that rises with every lease: pass it to systems that this job writes to."""
        return self.job.fencing

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled if the job is cancelled or lost."""
        if self.cancelled:
            raise Cancelled

    def progress(self, current: float, total: float | None = None, message: str = "") -> None:
        """Report progress. It is sent soon; of several reports the last one counts."""
        value = {"current": current, "total": total, "message": message or None}
        self._link.note("progress", {k: v for k, v in value.items() if v is not None})

    def stream(self, delta: str) -> None:
        """Send a piece of live output to the clients that follow the job."""
        self._link.note("stream", delta)

    def checkpoint(self, value: Any) -> None:
        """Store a checkpoint for the next attempt, and return when the server has it."""
        self._link.checkpoint(value)
        self.last_checkpoint = value

    async def checkpoint_async(self, value: Any) -> None:
        """Store a checkpoint from an asynchronous handler."""
        await self._link.checkpoint_async(value)
        self.last_checkpoint = value

    def log(self, message: str, level: Level = "info") -> None:
        """Add a line to the log of the job. It never blocks; lines that do not fit are counted."""
        self._link.log(message, level)


def context() -> Context:
    """Return the context of the job that this code works for. Raises RuntimeError outside."""
    found = _current.get()
    if found is None:
        raise RuntimeError("context() works inside a handler only")
    return found


@contextmanager
def working_on(entered: Context) -> Iterator[None]:
    """Make a context the present one."""
    token = _current.set(entered)
    try:
        yield
    finally:
        _current.reset(token)


class LogHandler(logging.Handler):
    """Copies log records of handlers to the log of their job. Add it to a logger:
    `logging.getLogger().addHandler(LogHandler())`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, if a job is running here."""
        found = _current.get()
        if found is None or record.name.startswith("corvo_client"):
            return
        level: Level = "error"
        if record.levelno < logging.INFO:
            level = "debug"
        elif record.levelno < logging.WARNING:
            level = "info"
        elif record.levelno < logging.ERROR:
            level = "warn"
        try:
            found.log(self.format(record), level)
        except Exception:
            self.handleError(record)

"""Starts the sidecar, sees to it that it lives, and asks it questions.

The sidecar is a process of its own group, started by exec with one end of a socket pair. When it
dies it is started again, later each time it dies soon; when it says nothing for a while (it is
stopped, or hangs) it is killed, because the snapshot it may hold keeps pages of the base from being
used again. Nothing here ever waits for it: what needs the mirror is refused while there is none.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from typing import Any, Final

from corvo import limits
from corvo.config import Config
from corvo.engine.pipeline import Pipeline
from corvo.errors import MirrorUnavailable
from corvo.fsm.state.outbox import Outbox
from corvo.platform.clock import Clock
from corvo.sidecar.channel import Channel, Completion
from corvo.storage.lmdb import StateStore

logger = logging.getLogger(__name__)

_TICK_S: Final = 1.0
_READERS_CHECK_NS: Final = 60 * limits.SECOND_NS
_LIVED_NS: Final = 30 * limits.SECOND_NS  # who lives that long is started again at once
_STOP_WAIT_S: Final = 2.0


class Supervisor:
    """The sidecar of one server."""

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        state_store: StateStore,
        outbox: Outbox,
        pipeline: Pipeline,
    ) -> None:
        self._config = config
        self._loop = loop
        self._clock = clock
        self._state_store = state_store
        self._outbox = outbox
        self._pipeline = pipeline
        self._transport: asyncio.SubprocessTransport | None = None
        self._channel: Channel | None = None
        self._task: asyncio.Task[None] | None = None
        self._tick_timer: Any = None
        self._start_timer: Any = None
        self._closed = False
        self._flushed = -1
        self._told = -1  # the flush that the sidecar was told of last
        self._heard_ns = 0
        self._started_ns = 0
        self._backoff_ns = limits.SIDECAR_BACKOFF_MIN_NS
        self._readers_checked_ns = 0
        self._gone = asyncio.Event()
        self.state: dict[str, Any] = {}  # as the sidecar told it last; empty = it has not
        self.starts = 0

    # ---- life ----

    def start(self) -> None:
        """Start the sidecar, in the background."""
        self._pipeline.flusher.on_flushed = self._on_flushed
        self._start()
        self._tick_timer = self._loop.call_later(_TICK_S, self._tick)

    def restored(self, state_store: StateStore, outbox: Outbox) -> None:
        """The base is another one: let a new sidecar read that. What the old one may still say is
        about entries that the new outbox does not go back to."""
        self._state_store, self._outbox = state_store, outbox
        if self._task is not None:  # it may not be there yet
            self._task.add_done_callback(lambda _: self._kill())

    async def stop(self) -> None:
        """Let the sidecar end."""
        self._closed = True
        if self._task is not None:
            await self._task
        if self._transport is not None and self._channel is not None:
            self._channel.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), _STOP_WAIT_S)

    def close(self) -> None:
        """End the sidecar at once, if it has not ended."""
        self._closed = True
        for timer in (self._tick_timer, self._start_timer):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._kill()

    def _start(self) -> None:
        if not self._closed:
            self._task = self._loop.create_task(self._spawn())

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        self.starts += 1
        self._started_ns = self._heard_ns = self._clock.monotonic_ns()
        self._told = -1
        config = self._config
        arguments = (str(theirs.fileno()), config.data_dir, config.log_level, config.log_format)
        try:
            self._transport, _ = await self._loop.subprocess_exec(
                lambda: _Process(self._on_exit),
                sys.executable,
                "-m",
                "corvo.sidecar.main",
                *arguments,
                stdin=None,
                stdout=None,
                stderr=None,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            logger.warning("the sidecar cannot be started: %s", error)
            self._again()
            return
        finally:
            theirs.close()
        self._gone.clear()
        channel = self._channel = Channel(self._loop, self._on_note, _nothing)
        await self._loop.create_connection(lambda: channel, sock=ours)

    def _on_exit(self) -> None:
        self._gone.set()
        self._transport = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self.state = {}
        if self._closed:
            return
        self._state_store.reader_check()
        lived_ns = self._clock.monotonic_ns() - self._started_ns
        if lived_ns > _LIVED_NS:
            self._backoff_ns = limits.SIDECAR_BACKOFF_MIN_NS
        logger.warning("the sidecar has died and is started again")
        self._again()

    def _again(self) -> None:
        self._start_timer = self._loop.call_later(self._backoff_ns / 1e9, self._start)
        self._backoff_ns = min(2 * self._backoff_ns, limits.SIDECAR_BACKOFF_MAX_NS)

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(_TICK_S, self._tick)
        now_ns = self._clock.monotonic_ns()
        if self._transport is not None and now_ns - self._heard_ns > limits.SIDECAR_SILENT_NS:
            logger.warning("the sidecar says nothing and is killed")
            self._heard_ns = now_ns
            self._kill()
        if now_ns - self._readers_checked_ns > _READERS_CHECK_NS:
            self._readers_checked_ns = now_ns
            self._state_store.reader_check()

    def _kill(self) -> None:
        transport = self._transport
        if transport is not None and transport.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(transport.get_pid(), signal.SIGKILL)

    @property
    def pid(self) -> int:
        """The process; 0 = there is none."""
        return self._transport.get_pid() if self._transport is not None else 0

    # ---- talk ----

    def ask(
        self, method: str, arguments: dict[str, Any], wait_s: float, completion: Completion
    ) -> None:
        """Ask the mirror; the slot gets the answer, or a CorvoError, within that time."""
        if self._channel is None:
            raise MirrorUnavailable("the mirror is not running; it is being started")
        self._channel.call(method, arguments, wait_s, completion)

    def _on_flushed(self, index: int) -> None:
        """A sidecar that has not read the last flush it was told of needs no other note yet."""
        self._flushed = index
        if self._channel is not None and self.state.get("watermark", -1) >= self._told:
            self._told = index
            self._channel.note("flushed", index)

    def _on_note(self, name: str, value: Any) -> None:
        assert name == "state", name
        self.state = value
        self._heard_ns = self._clock.monotonic_ns()
        self._outbox.read = max(self._outbox.read, value["durable"])
        if self._told < self._flushed:
            self._on_flushed(self._flushed)

    @property
    def lag(self) -> int:
        """Flushes that the mirror has not read, or has not yet on its disk."""
        return len(self._outbox)


class _Process(asyncio.SubprocessProtocol):
    def __init__(self, on_exit: Any) -> None:
        self._on_exit = on_exit

    def process_exited(self) -> None:
        self._on_exit()


def _nothing() -> None:
    pass

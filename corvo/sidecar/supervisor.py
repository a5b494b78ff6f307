"""Starts the sidecar, restarts it when it dies, and calls it.

The sidecar is a process in a group of its own, started by exec with one end of a socket pair. When
it dies it is restarted, with a growing delay if it dies soon. When it is silent for a while (it is
suspended, or hangs) it is killed, because a snapshot that it holds keeps pages of LMDB from being
reused. The server never waits for it: requests that need the mirror are refused while it is down.
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
from corvo.platform.loop import after_reading
from corvo.platform.noop import noop
from corvo.platform.periodic import Periodic
from corvo.sidecar.channel import Channel, Completion
from corvo.storage.lmdb import StateStore

logger = logging.getLogger(__name__)

_TICK_S: Final = 1.0
_READERS_CHECK_NS: Final = 60 * limits.SECOND_NS
_LIVED_NS: Final = (
    30 * limits.SECOND_NS
)  # one that lived that long is restarted without a longer delay
_STOP_WAIT_S: Final = 2.0


class Supervisor:
    """The sidecar process of one server."""

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
        self._ticker = Periodic(loop, _TICK_S, self._tick)
        self._start_timer: Any = None
        self._closed = False  # the sidecar is not to be restarted
        self._flushed = -1  # index of the last flush
        self._noted = -1  # index of the last flush that this sidecar was notified of
        self._heard_ns = 0  # monotonic time of its last note, or of its start
        self._started_ns = 0  # monotonic time of its start
        self._backoff_ns = limits.SIDECAR_BACKOFF_MIN_NS  # delay of the next restart
        self._readers_checked_ns = 0  # monotonic time of the last check for stale LMDB readers
        self._gone = asyncio.Event()  # set when the process has exited
        self.state: dict[str, Any] = {}  # as of its last note; empty = there was none yet
        self.starts = 0

    # ---- life ----

    def start(self) -> None:
        """Start the sidecar, without waiting for it."""
        self._pipeline.flusher.on_flushed.append(self._on_flushed)
        self._start()
        self._ticker.start()

    def restored(self, state_store: StateStore, outbox: Outbox) -> None:
        """The state store was replaced: let a new sidecar read it. Late notes of the old sidecar
        are about entries before the new outbox, so they do no harm."""
        self._state_store, self._outbox = state_store, outbox
        if self._task is not None:  # the process may not exist yet
            self._task.add_done_callback(lambda _: self._kill())

    async def stop(self) -> None:
        """Ask the sidecar to exit, and wait for that for a moment."""
        self._closed = True
        if self._task is not None:
            await self._task
        if self._transport is not None and self._channel is not None:
            self._channel.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), _STOP_WAIT_S)

    def close(self) -> None:
        """Kill the sidecar if it still runs."""
        self._closed = True
        self._ticker.close()
        if self._start_timer is not None:
            self._start_timer.cancel()
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
        self._noted = -1
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
            self._restart_later()
            return
        finally:
            theirs.close()
        self._gone.clear()
        channel = self._channel = Channel(self._loop, self._on_note, noop)
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
        logger.warning("the sidecar has died and is restarted")
        self._restart_later()

    def _restart_later(self) -> None:
        self._start_timer = self._loop.call_later(self._backoff_ns / 1e9, self._start)
        self._backoff_ns = min(2 * self._backoff_ns, limits.SIDECAR_BACKOFF_MAX_NS)

    def _tick(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._transport is not None and now_ns - self._heard_ns > limits.SIDECAR_SILENT_NS:
            after_reading(self._loop, self._kill_if_silent)  # this process may have stood still
        if now_ns - self._readers_checked_ns > _READERS_CHECK_NS:
            self._readers_checked_ns = now_ns
            self._state_store.reader_check()

    def _kill_if_silent(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._transport is not None and now_ns - self._heard_ns > limits.SIDECAR_SILENT_NS:
            logger.warning("the sidecar is silent and is killed")
            self._heard_ns = now_ns
            self._kill()

    def _kill(self) -> None:
        transport = self._transport
        if transport is not None and transport.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(transport.get_pid(), signal.SIGKILL)

    @property
    def available(self) -> bool:
        """Whether search can answer."""
        return self._channel is not None and bool(self.state.get("ready"))

    @property
    def pid(self) -> int:
        """Process id of the sidecar; 0 = it does not run."""
        return self._transport.get_pid() if self._transport is not None else 0

    # ---- calls and notes ----

    def ask(
        self, method: str, arguments: dict[str, Any], wait_s: float, completion: Completion
    ) -> None:
        """Call the mirror; the completion gets the result or a CorvoError within `wait_s`."""
        if self._channel is None:
            raise MirrorUnavailable("the mirror is not running; it is being started")
        self._channel.call(method, arguments, wait_s, completion)

    def _on_flushed(self, index: int) -> None:
        """Notify the sidecar, unless it has not yet read up to the last flush it was notified of:
        then it gets the next note when it has."""
        self._flushed = index
        if self._channel is not None and self.state.get("watermark", -1) >= self._noted:
            self._noted = index
            self._channel.note("flushed", index)

    def _on_note(self, name: str, value: Any) -> None:
        assert name == "state", name
        self.state = value
        self._heard_ns = self._clock.monotonic_ns()
        self._outbox.read = max(self._outbox.read, value["durable"])
        if self._noted < self._flushed:
            self._on_flushed(self._flushed)

    @property
    def lag(self) -> int:
        """Number of flushes that the mirror has not read or not yet written durably."""
        return len(self._outbox)


class _Process(asyncio.SubprocessProtocol):
    def __init__(self, on_exit: Any) -> None:
        self._on_exit = on_exit

    def process_exited(self) -> None:
        self._on_exit()

"""The composition root of the server: opens the stores, wires the parts, runs until told to stop.

Start: lock and open the log, open the base, replay what the base does not have, then listen.
Stop (SIGTERM, SIGINT): take no more work, answer what is in flight, flush, close. A second signal
stops at once; nothing acknowledged is lost by that either, the next start replays it.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from corvo import __version__, limits, logs, systemd
from corvo.clock import Clock, TestClock
from corvo.config import Config
from corvo.consensus.solo import SoloLog
from corvo.errors import CorvoError
from corvo.fsm.machine import Machine
from corvo.ids import JobIds
from corvo.kv.base import Base
from corvo.net.handlers.admin import Admin
from corvo.net.router import Router
from corvo.net.routes import routes
from corvo.net.server import Server
from corvo.pipeline import Pipeline
from corvo.scheduler import Scheduler
from corvo.service import Service

logger = logging.getLogger(__name__)

_STOP_POLL_S = 0.01


class Node:
    """One server process."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.loop = loop
        self.exit_status = 0
        self.clock: Clock = TestClock() if config.test_clock else Clock()
        data_dir = Path(config.data_dir)
        data_dir.mkdir(parents=True, exist_ok=True)
        self.log = SoloLog(data_dir, durable=config.durable, node_id=config.node_id)
        self.base = Base(data_dir / "state")
        self.machine = Machine(self.base)
        self.pipeline = Pipeline(loop, self.clock, self.log, self.machine, config.max_pending)
        self.scheduler = Scheduler(loop, self.clock, self.machine, self.pipeline)
        self.service = Service(config, self.clock, self.machine, self.pipeline, JobIds(self.clock))
        self.server: Server | None = None
        self._stopping = False
        self._stopped = asyncio.Event()

    def open(self) -> None:
        """Replay the log over the base and begin to take ops."""
        self.log.on_failed = self._on_fatal
        self.pipeline.on_fatal = self._on_fatal
        self.pipeline.on_disk_full = self._on_disk_full
        began_ns = self.clock.monotonic_ns()
        replayed = 0
        for entry in self.log.start(self.machine.applied_index, self.loop):
            self.machine.apply(entry.index, entry.term, entry.data)
            replayed += 1
            if self.machine.overlay_documents >= limits.FLUSH_DOCUMENTS:
                self.machine.flush()
        self.machine.take_woken()
        self.clock.observe(self.machine.stamp_ns)
        took_ms = (self.clock.monotonic_ns() - began_ns) // limits.MS_NS
        logger.info(
            "state is loaded",
            extra={"fields": {"replayed_entries": replayed, "took_ms": took_ms}},
        )
        self.pipeline.start()
        self.scheduler.start()
        # What lives now lives long: keep it out of the collector's sight, and never let the
        # oldest generation be walked while requests wait.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 1_000_000_000)

    async def listen(self) -> None:
        """Open the HTTP port."""
        admin = Admin(self.service, self.status, self.metrics)
        router = Router(routes(self.service, admin, self.config.test_clock))
        self.server = Server(router.handle, self.clock, self.config)
        self.pipeline.on_applied.append(self.server.flush)
        await self.server.listen(self.config.bind_host, self.config.bind_port)

    async def run(self) -> int:
        """Serve until a signal or a fatal error; the exit status."""
        self.open()
        await self.listen()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._on_signal)
        systemd.notify("READY=1")
        self._greet()
        await self._stopped.wait()
        return self.exit_status

    # ---- stop ----

    def _on_signal(self) -> None:
        if self._stopping:
            logger.warning("second signal: stopping at once")
            os._exit(1)
        self._stopping = True
        systemd.notify("STOPPING=1")
        logger.info("stopping")
        self.loop.create_task(self._stop())

    async def _stop(self) -> None:
        try:
            self.pipeline.drain()
            assert self.server is not None
            await self.server.drain(self.config.shutdown_timeout_ns)
            while not self.pipeline.idle:
                await asyncio.sleep(_STOP_POLL_S)
            self.close()
            logger.info("stopped")
        finally:
            self._stopped.set()

    def close(self) -> None:
        """Flush and close the stores."""
        self.scheduler.close()
        self.pipeline.close()
        self.log.close()
        self.base.close()

    def _on_fatal(self, error: Exception) -> None:
        """The log or the base failed: acknowledge nothing more. What was acknowledged is on disk
        and the next start replays it."""
        logger.critical("fatal: %s", error, exc_info=error)
        self.exit_status = 1
        sys.stderr.flush()
        os._exit(1)

    def _on_disk_full(self, full: bool) -> None:
        if full:
            self.base.release_ballast()
        else:
            self.base.restore_ballast()

    # ---- what the admin handlers show ----

    def status(self) -> dict[str, Any]:
        """The body of /cluster/status."""
        address = f"{self.config.bind_host}:{self.config.bind_port}"
        node = {
            "id": self.config.node_id,
            "address": self.config.raft_bind,
            "http_addr": address,
            "role": "leader",
            "voter": True,
            "self": True,
            "status": "healthy",
            "lag": 0,
        }
        return {
            "mode": "single",
            "status": "degraded" if self.pipeline.disk_full else "healthy",
            "state": "Leader",
            "node_id": self.config.node_id,
            "leader_id": self.config.node_id,
            "leader_addr": address,
            "term": self.log.term,
            "applied_index": self.machine.applied_index,
            "commit_index": self.log.commit_index,
            "durable": self.config.durable,
            "raft_nosync": not self.config.durable,
            "disk_full": self.pipeline.disk_full,
            "apply_max_pending": self.config.max_pending,
            "apply_pending_now": self.pipeline.pending,
            "waiting_fetches": self.pipeline.waiting.count,
            "overload_total": self.pipeline.meters.overloads,
            "applied_total": self.pipeline.meters.ops,
            "entries_total": self.pipeline.meters.entries,
            "base_flushes_total": self.pipeline.meters.flushes,
            "nodes": [node],
        }

    def metrics(self) -> bytes:
        """The body of /metrics."""
        raise NotImplementedError

    def _greet(self) -> None:
        config = self.config
        host = "127.0.0.1" if config.bind_host in ("", "0.0.0.0", "::") else config.bind_host
        url = f"http://{host}:{config.bind_port}/api/v1"
        logger.info(
            "corvo server ready",
            extra={
                "fields": {
                    "version": __version__,
                    "bind": f"{config.bind_host}:{config.bind_port}",
                    "data_dir": config.data_dir,
                    "durable": config.durable,
                }
            },
        )
        if not config.durable:
            logger.warning("--no-durable: a power cut may lose the newest acknowledged writes")
        print(_GREETING.format(url=url), file=sys.stderr, flush=True)


_GREETING = """
Corvo is listening. Try it from another terminal:

  curl -X POST {url}/enqueue -d '{{"queue": "hello", "payload": {{"to": "world"}}}}'
  curl -X POST {url}/fetch -d '{{"queues": ["hello"], "worker_id": "curl"}}'
  curl {url}/queues
"""


def run(config: Config) -> int:
    """Run a server with this configuration until it is told to stop; the exit status."""
    logs.configure(config.log_level, config.log_format)
    return with_loop(lambda loop: Node(config, loop).run())


def with_loop(main: Callable[[asyncio.AbstractEventLoop], Any]) -> int:
    """Run a coroutine on a fresh uvloop."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return int(loop.run_until_complete(main(loop)))
    except CorvoError as error:
        logger.error("%s", error.message)
        return error.exit_status
    finally:
        loop.close()

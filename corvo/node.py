"""The composition root of the server: opens the stores, wires the parts, runs until told to stop.

Start: lock and open the log, open the base, replay what the base does not have, then listen.
Stop (SIGTERM, SIGINT): take no more work, answer what is in flight, flush, close. A second signal
stops at once; nothing acknowledged is lost by that either, the next start replays it.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from pathlib import Path

import uvloop

from corvo import __version__, failpoints, limits, logs
from corvo.background import Background
from corvo.clock import Clock, TestClock
from corvo.config import Address, Config, retention_by_ending
from corvo.consensus.datadir import DataDir, Identity
from corvo.consensus.files import Files
from corvo.consensus.solo import SoloLog
from corvo.errors import ConfigError, CorvoError
from corvo.fsm.machine import Machine
from corvo.ids import JobIds
from corvo.kv.base import Base
from corvo.net.handlers.admin import Admin
from corvo.net.idempotency import Idempotency
from corvo.net.router import Router
from corvo.net.routes import routes
from corvo.net.server import HttpLimits, Server
from corvo.pipeline import Pipeline
from corvo.report import Report
from corvo.scheduler import Scheduler
from corvo.service import Service
from corvo.systemd import Notifier

logger = logging.getLogger(__name__)

_STOP_POLL_S = 0.01


class Node:
    """One server process."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.loop = loop
        self.exit_status = 0
        _arm_failpoints(config)
        self.clock: Clock = TestClock() if config.test_clock else Clock()
        self.notifier = Notifier(os.environ)
        self.data_dir = self._lock_data_dir()
        self.log = SoloLog(
            os.path.join(config.data_dir, "wal"),
            self.data_dir.identity,
            durable=config.durable,
            new_salt=lambda: int.from_bytes(self.clock.random_bytes(4), "big"),
            segment_size=failpoints.size("wal.segment_size", limits.WAL_SEGMENT_SIZE),
        )
        self.base = Base.open(Path(config.data_dir))
        self.machine = Machine(self.base)
        self.pipeline = Pipeline(
            loop, self.clock, self.log, self.machine, self.base, config.max_pending
        )
        self.scheduler = Scheduler(
            loop, self.clock, self.machine, self.pipeline, config.retention_ns
        )
        self.background = Background(
            loop,
            self.clock,
            self.machine,
            self.pipeline,
            retention_by_ending(config),
            config.retention_interval_ns,
        )
        ids = JobIds(self.clock.random_bytes)
        self.service = Service(config, self.clock, self.machine, self.pipeline, ids)
        self.report = Report(config, self.clock, self.log, self.machine, self.pipeline)
        self.log.on_flushed = self.report.wal_flush.observe
        self.server: Server | None = None
        self.address = config.bind  # with the real port once it listens
        self._stopping = False
        self._stopped = asyncio.Event()

    def _lock_data_dir(self) -> DataDir:
        identity = Identity(
            cluster_id=self.clock.random_bytes(16).hex(),
            node_id=self.config.node_id,
            incarnation=self.clock.random_bytes(8).hex(),
        )
        config = self.config
        try:
            return DataDir(config.data_dir, identity, Files(), bootstrap=config.bootstrap)
        except OSError as error:
            raise ConfigError(
                f"cannot use the data directory {config.data_dir}: {error.strerror}"
            ) from None

    def open(self) -> None:
        """Replay the log over the base and begin to take ops."""
        self.log.on_failed = self._on_fatal
        self.pipeline.on_fatal = self._on_fatal
        began_ns = self.clock.monotonic_ns()
        replayed = 0
        machine = self.machine
        for entry in self.log.start(machine.applied_index, machine.applied_term, self.loop):
            machine.apply(entry.index, entry.term, entry.data)
            replayed += 1
            self.pipeline.flusher.after_apply()
        machine.take_woken()
        self.clock.observe(machine.stamp_ns)
        took_ms = (self.clock.monotonic_ns() - began_ns) // limits.MS_NS
        logger.info(
            "state is loaded",
            extra={"fields": {"replayed_entries": replayed, "took_ms": took_ms}},
        )
        self.pipeline.start()
        self.scheduler.start()
        self.background.start()
        # What lives now lives long: keep it out of the collector's sight, and never let the
        # oldest generation be walked while requests wait.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 1_000_000_000)

    async def listen(self) -> None:
        """Open the HTTP port."""
        admin = Admin(self.service, self.report.status, self.report.metrics)
        with_key = Idempotency(self.service).handle
        router = Router(routes(self.service, admin, self.config.test_clock), with_key)
        http_limits = HttpLimits(
            body_size_max=self.config.max_body_size, connections_max=_raise_connections_max()
        )
        self.server = Server(router.handle, self.clock, http_limits, self.loop)
        self.server.on_drain = self.pipeline.drain
        self.pipeline.on_applied.append(self.server.flush)
        bind = self.config.bind
        try:
            port = await self.server.listen(bind.host, bind.port)
        except OSError as error:
            raise ConfigError(f"cannot listen on {bind}: {error.strerror}") from None
        self.address = Address(bind.host, port)
        self.report.listening(self.server, router.routes, self.address)
        self.pipeline.on_entry = self._on_entry
        self._on_entry(self.machine.applied_index)

    async def run(self) -> int:
        """Serve until a signal or a fatal error; the exit status."""
        self.open()
        await self.listen()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._on_signal)
        self.notifier.ready()
        self._watchdog()
        self._greet()
        await self._stopped.wait()
        return self.exit_status

    def _on_entry(self, index: int) -> None:
        assert self.server is not None
        self.server.context.index = index

    # ---- stop ----

    def _on_signal(self) -> None:
        if self._stopping:
            logger.warning("second signal: stopping at once")
            os._exit(1)
        self._stopping = True
        self.notifier.stopping()
        logger.info("stopping")
        self.loop.create_task(self._stop())

    async def _stop(self) -> None:
        try:
            assert self.server is not None
            await self.server.drain(self.config.shutdown_timeout_ns / 1e9)
            while not self.pipeline.idle:
                await asyncio.sleep(_STOP_POLL_S)
            self.close()
            logger.info("stopped")
        finally:
            self._stopped.set()

    def close(self) -> None:
        """Flush and close the stores."""
        self.scheduler.close()
        self.background.close()
        self.pipeline.close()
        self.log.close()
        self.base.close()
        self.data_dir.close()
        self.notifier.close()

    def _watchdog(self) -> None:
        if self.notifier.watchdog_s and not self._stopping:
            self.notifier.watchdog()
            self.loop.call_later(self.notifier.watchdog_s, self._watchdog)

    def _on_fatal(self, error: Exception) -> None:
        """The log or the base failed: acknowledge nothing more. What was acknowledged is on disk
        and the next start replays it."""
        logger.critical("fatal: %s", error, exc_info=error)
        self.exit_status = 1
        sys.stderr.flush()
        os._exit(1)

    def _greet(self) -> None:
        config = self.config
        fields = {"bind": str(self.address), "durable": config.durable}
        logger.info("corvo server ready", extra={"fields": fields})
        for name in config.ignored:
            logger.warning("%s means nothing to this version and is ignored", name)
        if not config.durable:
            logger.warning("not durable: a power cut may lose the newest acknowledged writes")
        if not config.bind.loopback:
            logger.warning("the API is open to everybody who can reach this address")
        if config.log_format != "text":
            return  # every line has to be JSON
        host = self.address.host or "127.0.0.1"
        url = f"http://{Address(host, self.address.port)}/api/v1"
        sys.stderr.write(_GREETING.format(url=url))
        sys.stderr.flush()


def _raise_connections_max() -> int:
    """How many connections there are file descriptors for, beside the server's own files; the
    soft limit is raised as far as it may be."""
    wanted = limits.CONNECTIONS_MAX + limits.FILES_RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            logger.warning("the limit of open files, %d, bounds the number of connections", hard)
    return max(1, min(wanted, soft) - limits.FILES_RESERVED)


def _arm_failpoints(config: Config) -> None:
    text = os.environ.get(failpoints.VARIABLE, "")
    if text and not config.test_clock:
        raise ConfigError(f"{failpoints.VARIABLE} is for tests: it needs --test-clock")
    failpoints.arm(text)


_GREETING = """
Corvo is listening. Try it from another terminal:

  curl -X POST {url}/enqueue -d '{{"queue": "hello", "payload": {{"to": "world"}}}}'
  curl -X POST {url}/fetch -d '{{"queues": ["hello"], "worker_id": "curl"}}'
  curl {url}/queues
"""


def run(config: Config) -> int:
    """Run a server with this configuration until it is told to stop; the exit status."""
    logs.configure(config.log_level, config.log_format)
    fields = {name.replace("-", "_"): value for name, value, _ in config.settings}
    logger.info("corvo server starting", extra={"fields": {"version": __version__, **fields}})
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(Node(config, loop).run())
    except CorvoError as error:
        logger.error("%s", error.message)
        return 1
    finally:
        loop.close()

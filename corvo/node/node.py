"""The composition root of the server: opens the stores, wires the parts, runs until a signal.

Start: lock the data directory, open the log and LMDB, replay the entries that LMDB lacks, listen.
Stop (SIGTERM, SIGINT): take no more ops, resolve those in flight, flush, close. A second signal
stops at once; no acknowledged write is lost by that either: the next start replays the log.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from corvo import __version__, limits
from corvo._fast.metrics import TurnMetrics
from corvo.config import Address, Config, retention_by_ending
from corvo.consensus.cluster.discovery import Discovery
from corvo.consensus.raft.messages import ConfState, SnapshotMeta
from corvo.consensus.raft_log import RaftLog
from corvo.consensus.single_log import SingleLog
from corvo.engine.housekeeping import Housekeeping
from corvo.engine.leadership import Leadership
from corvo.engine.pipeline import Pipeline
from corvo.engine.scheduler import Scheduler
from corvo.engine.service import Service
from corvo.errors import ConfigError, CorvoError, EntryFailed
from corvo.fsm.machine import Machine
from corvo.net.api.handlers.admin import Admin
from corvo.net.api.idempotency import handle_once
from corvo.net.http.browser_guard import BrowserGuard, host_names
from corvo.net.http.router import Router
from corvo.net.http.server import HttpLimits, Server
from corvo.net.http.tls import Certificate, Handshakes
from corvo.net.hub import StreamHub
from corvo.net.routes import PROBES, routes, takes_pieces
from corvo.node.cluster import Cluster
from corvo.node.status import Status
from corvo.platform import failpoints, logging_setup
from corvo.platform.clock import Clock, TestClock
from corvo.platform.files import Files
from corvo.platform.ids import JobIds
from corvo.platform.periodic import Periodic
from corvo.platform.systemd import Notifier
from corvo.sidecar.supervisor import Supervisor
from corvo.storage.data_dir import DataDir, Identity, has_identity
from corvo.storage.lmdb import StateStore

logger = logging.getLogger(__name__)

_STOP_POLL_S = 0.01
_CLOCK_TICK_S = limits.PAUSE_NOTICED_NS / limits.SECOND_NS / 2
_SETTLE_POLLS_MAX = 100
_EPOCH_SIZE = 8
EXIT_ENTRY_FAILED = 3  # a restart does not help


class Node:
    """One server process."""

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        cluster_id: str = "",
        discovery: Discovery | None = None,
    ) -> None:
        """A node of a cluster has a `discovery`; `cluster_id` is that of the cluster to join, empty
        = a new one or its own."""
        self.config = config
        self.loop = loop
        self.exit_status = 0
        _arm_failpoints(config)
        self.clock: Clock = TestClock() if config.test_clock else Clock()
        self._clock_ticker = Periodic(loop, _CLOCK_TICK_S, self.clock.tick)
        self.notifier = Notifier(os.environ)
        self.data_dir = self._lock_data_dir(cluster_id)
        self.log = self._cluster_log() if config.clustered else self._single_log()
        self.state_store = StateStore.open(Path(config.data_dir))
        self.machine = Machine(self.state_store)
        self.machine.skipped_index = config.skip_entry
        self.machine.adopt(bytes.fromhex(self.data_dir.identity.cluster_id))
        self.pipeline = Pipeline(
            loop, self.clock, self.log, self.machine, self.state_store, config.max_pending
        )
        self.pipeline.flusher.turns = TurnMetrics(loop.call_soon, self.clock.monotonic_ns)
        self.scheduler = Scheduler(
            loop, self.clock, self.machine, self.pipeline, config.retention_ns
        )
        self.housekeeping = Housekeeping(
            loop,
            self.clock,
            self.machine,
            self.pipeline,
            retention_by_ending(config),
            config.retention_interval_ns,
        )
        self.cluster = None if discovery is None else self._cluster(discovery)
        ids = JobIds(self.clock.random_bytes)
        self.service = Service(config, self.clock, self.machine, self.pipeline, ids)
        self.hub = StreamHub(loop, self.service)
        self.sidecar = self._mirror()
        parts = self.machine, self.pipeline, self.hub, self.sidecar
        self.report = Status(config, self.clock, self.log, *parts)
        self.report.due_counters = {
            "promote": self.scheduler.promoted,
            "reclaim": self.scheduler.reclaimed,
            "expire": self.scheduler.expired,
            "purge": self.housekeeping.purged,
        }
        if self.cluster is not None:
            self.report.cluster = self.cluster.status
            self.report.divergence = self.cluster.divergence
        self.log.on_flushed = self.report.wal_flush.observe
        self.server: Server | None = None
        self.address = config.bind  # with the actual port once it listens
        self.certificate: Certificate | None = None
        if config.tls_cert:
            self.certificate = Certificate(config.tls_cert, config.tls_key)
        self.handshakes: Handshakes | None = None
        self._loading: asyncio.Task[None] | None = None  # of a snapshot
        self._stopping = False
        self._stopped = asyncio.Event()

    def _mirror(self) -> Supervisor | None:
        """The sidecar with the mirror; None = the mirror is off."""
        if not self.config.mirror:
            self.machine.drop_outbox()
            return None
        outbox = self.machine.keep_outbox(self._new_epoch())
        sidecar = Supervisor(
            self.config, self.loop, self.clock, self.state_store, outbox, self.pipeline
        )
        self.service.mirror = sidecar
        return sidecar

    def _new_epoch(self) -> bytes:
        return self.clock.random_bytes(_EPOCH_SIZE)

    def _new_salt(self) -> int:
        return int.from_bytes(self.clock.random_bytes(4), "big")

    def _single_log(self) -> SingleLog:
        return SingleLog(
            os.path.join(self.config.data_dir, "wal"),
            self.data_dir.identity,
            durable=self.config.durable,
            new_salt=self._new_salt,
            segment_size=failpoints.size("wal.segment_size", limits.WAL_SEGMENT_SIZE),
        )

    def _cluster_log(self) -> RaftLog:
        return RaftLog(
            os.path.join(self.config.data_dir, "wal"),
            self.data_dir.identity,
            None,
            conf=ConfState([]),
            durable=self.config.durable,
            new_salt=self._new_salt,
            seed=int.from_bytes(self.clock.random_bytes(8), "big"),
            segment_size=failpoints.size("wal.segment_size", limits.WAL_SEGMENT_SIZE),
            kept_size=failpoints.size("raft.log_kept_size", limits.RAFT_LOG_KEPT_SIZE),
        )

    def _cluster(self, discovery: Discovery) -> Cluster:
        assert isinstance(self.log, RaftLog)
        parts = self.clock, self.machine, self.pipeline
        leadership = Leadership(self.log, *parts, self.scheduler, self.housekeeping)
        identity = self.data_dir.identity
        self.log.on_restored = self._on_restored
        return Cluster(
            self.config,
            self.loop,
            self.clock,
            identity,
            self.log,
            self.machine,
            self.pipeline,
            leadership,
            discovery,
        )

    def _lock_data_dir(self, cluster_id: str) -> DataDir:
        config = self.config
        identity = Identity(
            cluster_id=cluster_id or self.clock.random_bytes(16).hex(),
            node_id=config.node_id,
            incarnation=self.clock.random_bytes(8).hex(),
            joined=bool(cluster_id),
        )
        bootstrap = config.bootstrap or bool(cluster_id)
        try:
            return DataDir(config.data_dir, identity, Files(), bootstrap=bootstrap)
        except OSError as error:
            raise ConfigError(
                f"cannot use the data directory {config.data_dir}: {error.strerror}"
            ) from None

    def open(self) -> None:
        """Apply the log entries that LMDB lacks, and begin to take ops."""
        self.log.on_failed = self._on_fatal
        self.pipeline.on_fatal = self._on_fatal
        began_ns = self.clock.monotonic_ns()
        replayed = 0
        machine = self.machine
        if machine.configuration and self.cluster is None:
            raise ConfigError(
                f"the data in {self.config.data_dir} belongs to a node of a cluster: start it with"
                " --raft-bind and the cluster-secret"
            )
        self.pipeline.flusher.index = machine.applied_index
        for entry in self.log.start(machine.applied_index, machine.applied_term, self.loop):
            try:
                machine.apply(entry.index, entry.term, entry.data)
            except EntryFailed as error:
                self._on_fatal(error)
            replayed += 1
            self.pipeline.flusher.after_apply()
        machine.take_woken()
        self._report_skipped()
        self.clock.observe(machine.stamp_ns)
        took_ms = (self.clock.monotonic_ns() - began_ns) // limits.MS_NS
        logger.info(
            "state is loaded",
            extra={"fields": {"replayed_entries": replayed, "took_ms": took_ms}},
        )
        self.clock.tick()
        self._clock_ticker.start()
        if self.cluster is None:
            self.pipeline.start()
            self.scheduler.start()
            self.housekeeping.start()
        else:
            self.pipeline.start(leading=False)
            self.cluster.start()
        if self.sidecar is not None:
            self.sidecar.start()
        # Objects that live now live long: exempt them from garbage collection, and never collect
        # the oldest generation while requests wait.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 1_000_000_000)

    def _report_skipped(self) -> None:
        skipped = self.config.skip_entry
        if skipped and skipped <= self.machine.applied_index:
            logger.warning("entry %d lies in the past: --skip-entry can be removed", skipped)
        elif skipped:
            logger.warning("entry %d will not be applied (--skip-entry)", skipped)

    async def listen(self) -> None:
        """Open the HTTP port."""
        report, cluster = self.report, self.cluster
        admin = Admin(
            self.service, report.status, report.metrics, report.state, report.search_trouble
        )
        members = None if cluster is None else cluster.members
        table = routes(self.service, admin, self.hub, self.config.test_clock, members)
        router = Router(table, handle_once)
        http_limits = HttpLimits(
            body_size_max=self.config.max_body_size, connections_max=_raise_connections_max()
        )
        server = self.server = Server(router.handle, self.clock, http_limits, self.loop)
        server.on_drain = self._drain
        server.turns = self.pipeline.flusher.turns
        server.context.takes_pieces = takes_pieces
        server.context.browser_guard = BrowserGuard(
            host_names(self.config), self.config.cors_origins, PROBES
        )
        if cluster is not None:
            cluster.guard(router, server, self.hub)
        self.pipeline.on_applied += [server.flush, self.hub.events.dispatch]
        protocol = server.protocol if self.certificate is None else self._secure(server)
        bind = self.config.bind
        try:
            port = await server.listen(bind.host, bind.port, protocol)
        except OSError as error:
            raise ConfigError(f"cannot listen on {bind}: {error.strerror}") from None
        self.address = Address(bind.host, port)
        self.report.listening(server, router.routes, self.address)
        self.pipeline.on_entry = self._on_entry
        self._on_entry(self.machine.applied_index)

    def _secure(self, server: Server) -> Callable[[], Any]:
        assert self.certificate is not None
        self.handshakes = Handshakes(server, self.certificate)
        return self.handshakes.protocol

    async def run(self) -> int:
        """Serve until a signal or a fatal error; the exit status."""
        if self.cluster is None:
            self.open()
            await self.listen()
        else:
            # A node reports its addresses to the others when it joins, so it listens first.
            await self.listen()
            await self.cluster.listen(self.address)
            self.open()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._on_signal)
        self.loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        self.notifier.ready()
        self._watchdog()
        self._greet()
        await self._stopped.wait()
        return self.exit_status

    def _on_entry(self, index: int) -> None:
        assert self.server is not None
        self.server.context.index = index
        if self.cluster is not None:
            self.cluster.divergence.record(index)

    def _on_restored(self, meta: SnapshotMeta) -> bool:
        """A snapshot is the state store now. It is loaded in the background; until then this node
        lags as before."""
        if self._loading is not None:
            self._loading.cancel()
        self._loading = self.loop.create_task(self._load(meta))
        return False

    async def _load(self, meta: SnapshotMeta) -> None:
        began_ns = self.clock.monotonic_ns()
        assert self.cluster is not None and isinstance(self.log, RaftLog)
        self.cluster.loading = True
        state_store: StateStore | None = None
        try:
            state_store = StateStore.open(Path(self.config.data_dir))
            for _ in self.machine.load(state_store):
                await asyncio.sleep(0)
            self._use(state_store, meta)
        except asyncio.CancelledError:
            if state_store is not None:
                state_store.close()
            raise
        except Exception as error:
            self._on_fatal(error)
        self.cluster.loading = False
        self.log.restored(meta)
        took_ms = (self.clock.monotonic_ns() - began_ns) // limits.MS_NS
        fields = {"index": meta.index, "took_ms": took_ms}
        logger.info("state is loaded from a snapshot", extra={"fields": fields})

    def _use(self, state_store: StateStore, meta: SnapshotMeta) -> None:
        """Continue with a state store that the machine has loaded."""
        old, self.state_store = self.state_store, state_store
        self.machine.adopt(bytes.fromhex(self.data_dir.identity.cluster_id))
        assert self.machine.applied_index == meta.index, "the state store is that of the snapshot"
        if failpoints.armed:
            failpoints.reach("snapshot.restored")
        self.pipeline.flusher.use(self.state_store, meta.index)
        if self.sidecar is None:
            self.machine.drop_outbox()
        else:
            self.sidecar.restored(
                self.state_store, self.machine.keep_outbox(self._new_epoch(), replace=True)
            )
        old.close()
        assert self.cluster is not None
        self.cluster.snapshots.clean()
        self.pipeline.restored(meta.index)

    # ---- stop ----

    def _on_signal(self) -> None:
        if self._stopping:
            logger.warning("second signal: stopping at once")
            os._exit(1)
        self._stopping = True
        self.notifier.stopping()
        logger.info("stopping")
        self.loop.create_task(self._stop())

    def _on_hangup(self) -> None:
        """Reload the certificates."""
        if self.certificate is None and not self.config.raft_tls_cert:
            logger.info("SIGHUP: there is no certificate to reload")
            return
        try:
            if self.certificate is not None:
                self.certificate.reload()
            if self.cluster is not None:
                self.cluster.renew_certificate()
        except ConfigError as error:
            logger.warning("SIGHUP: %s; the old certificate stays in use", error.message)
        else:
            logger.info("SIGHUP: the certificate was reloaded")

    async def _stop(self) -> None:
        try:
            assert self.server is not None
            if self.cluster is not None:
                await self.cluster.hand_over()
            await self.server.drain(self.config.shutdown_timeout_ns / 1e9)
            await self._settle()
            if self.cluster is not None:
                await self.cluster.close()
            if self.sidecar is not None:
                await self.sidecar.stop()
            self.close()
            logger.info("stopped")
        finally:
            self._stopped.set()

    def _drain(self) -> None:
        self.pipeline.drain()
        self.hub.end_all()
        if self.cluster is not None:
            self.cluster.drain()

    async def _settle(self) -> None:
        """Wait until no op is in flight; in a cluster, for a second at most, since entries that
        lack a majority may be committed later."""
        polls = 0
        while not self.pipeline.idle and (self.cluster is None or polls < _SETTLE_POLLS_MAX):
            polls += 1
            await asyncio.sleep(_STOP_POLL_S)

    def close(self) -> None:
        """Flush and close the stores."""
        if self._loading is not None:
            self._loading.cancel()
        if self.handshakes is not None:
            self.handshakes.close()
        if self.sidecar is not None:
            self.sidecar.close()
        self._clock_ticker.close()
        self.scheduler.close()
        self.housekeeping.close()
        self.pipeline.close()
        self.log.close()
        self.state_store.close()
        self.data_dir.close()
        self.notifier.close()

    def _watchdog(self) -> None:
        if self.notifier.watchdog_s and not self._stopping:
            self.notifier.watchdog()
            self.loop.call_later(self.notifier.watchdog_s, self._watchdog)

    def _on_fatal(self, error: Exception) -> None:
        """The log or LMDB failed, or an entry cannot be applied: exit and acknowledge nothing more.
        Acknowledged writes are on disk, and the next start replays them."""
        self.exit_status = _log_fatal(error)
        sys.stderr.flush()
        os._exit(self.exit_status)

    def _greet(self) -> None:
        config = self.config
        fields = {"bind": str(self.address), "durable": config.durable}
        logger.info("corvo server ready", extra={"fields": fields})
        for warning in config.misspelled:
            logger.warning("%s", warning)
        for name in config.ignored:
            logger.warning("setting %s is not supported by this version and is ignored", name)
        if not config.durable:
            logger.warning("not durable: a power loss can lose the newest acknowledged writes")
        if not config.bind.loopback:
            logger.warning("the API is open to every client that can reach this address")
        if config.log_format != "text":
            return  # every line of the output must be JSON
        host = self.address.host or "127.0.0.1"
        scheme = "https" if config.tls_cert else "http"
        url = f"{scheme}://{Address(host, self.address.port)}/api/v1"
        sys.stderr.write(_GREETING.format(url=url))
        sys.stderr.flush()


def _raise_connections_max() -> int:
    """Number of connections for which there are file descriptors, apart from those of the server's
    own files. Raises the soft limit as far as allowed."""
    wanted = limits.CONNECTIONS_MAX + limits.FILES_RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            logger.warning("the limit of open files, %d, limits the number of connections", hard)
    return max(1, min(wanted, soft) - limits.FILES_RESERVED)


def _log_fatal(error: Exception) -> int:
    """Log an error that stops the node; return the exit status."""
    logger.critical("fatal: %s", error, exc_info=error)
    if not isinstance(error, EntryFailed):
        return 1
    logger.critical(
        "every start will fail at this entry; to continue without its effect, stop every node and"
        " start it with its usual settings and: corvo server --skip-entry %d",
        error.fields["index"],
    )
    return EXIT_ENTRY_FAILED


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
    """Run a server with this configuration until a signal; the exit status."""
    logging_setup.configure(config.log_level, config.log_format)
    fields = {name.replace("-", "_"): value for name, value, _ in config.settings}
    logger.info("corvo server starting", extra={"fields": {"version": __version__, **fields}})
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        cluster_id = ""
        discovery = Discovery(config, os.urandom) if config.clustered else None
        joins = bool(config.join or config.discover) and not has_identity(config.data_dir)
        if discovery is not None and joins:
            cluster_id = loop.run_until_complete(discovery.cluster_id())
        return loop.run_until_complete(Node(config, loop, cluster_id, discovery).run())
    except CorvoError as error:
        logger.error("%s", error.message)
        return 1
    finally:
        loop.close()

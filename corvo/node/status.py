"""The status of this node: bodies of /cluster/status and /metrics."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from corvo import limits
from corvo._fast.metrics import Histogram
from corvo.config import Address, Config
from corvo.consensus.cluster.divergence import DivergenceCheck
from corvo.consensus.log import Log
from corvo.engine.due_counters import DueCounter
from corvo.engine.pipeline import ENTRY_BOUNDS_NS, Pipeline
from corvo.fsm.machine import Machine
from corvo.limits import READY_SEARCH_WAIT_NS
from corvo.model import PENDING, PRIORITIES, STATES, Queue
from corvo.net.api import prometheus
from corvo.net.http.router import Route
from corvo.net.http.server import Server
from corvo.net.hub import StreamHub
from corvo.platform.clock import Clock
from corvo.sidecar.supervisor import Supervisor

_QUEUES_PER_STEP = 50
_STATE_NUMBERS = {"follower": 0, "candidate": 1, "leader": 2}


class Status:
    """Reads the parts of a node; changes nothing."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        log: Log,
        machine: Machine,
        pipeline: Pipeline,
        hub: StreamHub,
        sidecar: Supervisor | None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._machine = machine
        self._pipeline = pipeline
        self._hub = hub
        self._sidecar = sidecar
        self._server: Server | None = None
        self._routes: Sequence[Route] = ()
        self._address = config.bind
        # Until when a node that has started is not ready because search is not open, by the
        # monotonic clock; 0 = search was open, or that time has passed.
        self._search_due_ns = clock.monotonic_ns() + READY_SEARCH_WAIT_NS
        self.due_counters: dict[str, DueCounter] = {}  # by name in metrics
        self.wal_flush = Histogram(ENTRY_BOUNDS_NS)
        self.cluster: Callable[[], dict[str, Any]] | None = None  # its status; None = no cluster
        self.divergence: DivergenceCheck | None = None  # None = no cluster

    def listening(self, server: Server, routes: Sequence[Route], address: Address) -> None:
        """The server listens: its address, routes and connections are known."""
        self._server = server
        self._routes = routes
        self._address = address
        self._search_due_ns = self._clock.monotonic_ns() + READY_SEARCH_WAIT_NS

    def state(self) -> tuple[str, str]:
        """The role of this node, and the reason why it cannot serve; empty if it can."""
        if self.cluster is None:
            return "leader", ""
        status = self.cluster()
        trouble = "" if status["leader_id"] else "no leader is known"
        if status["snapshot"]["loading"]:
            trouble = "a snapshot of the state is being loaded"
        if status["state_is_wrong"]:
            trouble = "the state of this node differs from that of the other nodes"
        return status["state"].lower(), trouble

    def search_trouble(self, required: bool) -> str:
        """The reason why search cannot answer; empty if it can. Without `required` it counts only
        for a while after the start, until search was open once."""
        sidecar = self._sidecar
        if sidecar is not None and sidecar.available:
            self._search_due_ns = 0
            return ""
        if required:
            return "the mirror is off" if sidecar is None else "search is not available"
        if sidecar is None or self._clock.monotonic_ns() >= self._search_due_ns:
            self._search_due_ns = 0
            return ""
        return "search is not open yet"

    def status(self) -> dict[str, Any]:
        """The body of /cluster/status."""
        status = self._own_status()
        if self.cluster is not None:
            status |= self.cluster()
            if self._pipeline.flusher.disk_full and status["status"] == "healthy":
                status["status"] = "degraded"
        return status

    def _own_status(self) -> dict[str, Any]:
        """The status of a single server."""
        config, pipeline, metrics = self._config, self._pipeline, self._pipeline.metrics
        flusher = pipeline.flusher
        node = {
            "id": config.node_id,
            "address": "",
            "http_addr": str(self._address),
            "role": "leader",
            "voter": True,
            "self": True,
            "status": "healthy",
            "lag": 0,
        }
        return {
            "mode": "single",
            "status": "degraded" if flusher.disk_full else "healthy",
            "state": "Leader",
            "node_id": config.node_id,
            "leader_id": config.node_id,
            "leader_addr": str(self._address),
            "term": self._log.term,
            "applied_index": self._machine.applied_index,
            "commit_index": self._log.commit_index,
            "durable": config.durable,
            "raft_nosync": not config.durable,
            "raft_store": "segments",
            "disk_full": flusher.disk_full,
            "apply_max_pending": config.max_pending,
            "apply_pending_now": pipeline.pending,
            "waiting_fetches": pipeline.fetches.waiting.count,
            "waiting_for_ends": pipeline.results.count,
            "overload_total": metrics.overloads,
            "applied_total": metrics.ops,
            "entries_total": metrics.entries,
            "queue_time_hist": _histogram(metrics.queue_time),
            "apply_time_hist": _histogram(metrics.apply_time),
            "log_flush_time_hist": _histogram(self.wal_flush),
            "base_flushes_total": flusher.flushes,
            **self._mirror_status(),
            "nodes": [node],
        }

    def _mirror_status(self) -> dict[str, Any]:
        sidecar = self._sidecar
        if sidecar is None:
            return {"sqlite_mirror": {"enabled": False}}
        state = sidecar.state
        mirror = {
            "enabled": True,
            "async": True,
            "available": bool(state.get("ready")),
            "stale": bool(state.get("stale")),
            "pid": sidecar.pid,
            "starts": sidecar.starts,
            "dropped": 0,
            "applied": state.get("watermark", -1),
            "lag": sidecar.lag,
            "jobs": state.get("jobs", 0),
            "file_size": state.get("file_size", 0),
            "wal_size": state.get("wal_size", 0),
            "error": state.get("error", ""),
        }
        rebuild = {
            "ran": state.get("rebuilds", 0) > 0,
            "running": bool(state.get("building")),
            "scanned": state.get("scanned", 0),
            "last_duration_ms": state.get("rebuild_ms", 0),
        }
        return {"sqlite_mirror": mirror, "sqlite_rebuild": rebuild}

    def metrics(self) -> Generator[None, None, bytes]:
        """The body of /metrics, made in steps."""
        machine = self._machine
        now_ns = self._clock.stamp()
        series = prometheus.QueueSeries(machine.queue_count, machine.totals().jobs)
        queues = machine.first_queues(limits.METRIC_QUEUES_MAX)
        for number, queue in enumerate(queues, 1):
            if not queue.destroyed:
                series.add(self._queue_sample(queue, now_ns))
            if number % _QUEUES_PER_STEP == 0:
                yield
        text = series.render()
        yield
        routes = [
            prometheus.RouteSample(
                route.method,
                route.name,
                route.route_metrics.requests,
                route.route_metrics.errors,
                route.route_metrics.duration,
            )
            # Methods of the worker service share the metrics of one row.
            for route in {row.route_metrics: row for row in self._routes}.values()
            if route.route_metrics.requests
        ]
        text += prometheus.render(prometheus.Snapshot(routes=routes))
        yield
        return prometheus.render(self._snapshot()) + text

    def _snapshot(self) -> prometheus.Snapshot:
        metrics, flusher = self._pipeline.metrics, self._pipeline.flusher
        turns = flusher.turns
        return prometheus.Snapshot(
            values=self._values(self._clock.stamp()),
            histograms={
                "corvo_raft_queue_time_seconds": metrics.queue_time,
                "corvo_raft_apply_time_seconds": metrics.apply_time,
                "corvo_wal_flush_seconds": self.wal_flush,
                "corvo_base_flush_seconds": flusher.flush_time,
                **({} if turns is None else {"corvo_loop_turn_seconds": turns.duration}),
            },
            abuse_counters=self._server.context.abuse_counters.counts
            if self._server is not None
            else {},
        )

    def _queue_sample(self, queue: Queue, now_ns: int) -> prometheus.QueueSample:
        ages = []
        for priority in range(PRIORITIES):
            ready_ns = self._machine.oldest_ready_ns(queue.name, priority)
            ages.append(max(0, now_ns - ready_ns) / 1e9 if ready_ns else 0.0)
        jobs = [queue.jobs(state) for state in range(len(STATES))]
        groups, group_blocked = self._machine.group_counts(queue.name)
        closed = self._machine.opens_ns(queue.name, now_ns) > 0
        ready = queue.jobs(PENDING) - self._machine.blocked_count(queue.name)
        rate_blocked = ready - group_blocked if closed else 0
        return prometheus.QueueSample(queue.name, jobs, ages, groups, group_blocked, rate_blocked)

    def _values(self, now_ns: int) -> dict[str, float]:
        machine, pipeline, metrics = self._machine, self._pipeline, self._pipeline.metrics
        hub = self._hub
        totals = machine.totals()
        state, _ = self.state()
        values: dict[str, float] = {
            "corvo_throughput_enqueued": totals.enqueued,
            "corvo_throughput_completed": totals.completed,
            "corvo_throughput_failed": totals.failed,
            "corvo_leases_expired": totals.expired,
            "corvo_streams_open": len(hub.streams),
            "corvo_lifecycle_streams_open": len(hub.lifecycles),
            "corvo_lifecycle_streams": hub.lifecycles.opened,
            "corvo_lifecycle_relays_open": len(hub.lifecycles.relays or ()),
            "corvo_lifecycle_frames": hub.lifecycles.frames,
            "corvo_lifecycle_frames_in_flight": hub.lifecycles.at_work,
            "corvo_lifecycle_overloads": hub.lifecycles.overloads,
            "corvo_event_subscribers": len(hub.events),
            "corvo_event_subscribers_behind": hub.events.behind,
            "corvo_event_gaps": hub.events.gaps,
            "corvo_raft_apply_overload": metrics.overloads,
            "corvo_ops_refused": machine.refused_ops,
            "corvo_raft_applied": metrics.ops,
            "corvo_raft_entries": metrics.entries,
            "corvo_raft_apply_pending": pipeline.pending,
            "corvo_raft_apply_max_pending": self._config.max_pending,
            "corvo_raft_state": _STATE_NUMBERS[state],
            "corvo_raft_applied_index": machine.applied_index,
            "corvo_raft_commit_index": self._log.commit_index,
            "corvo_cluster_is_leader": state == "leader",
            "corvo_workers_registered": machine.worker_count,
            "corvo_workers_active": machine.active_workers(now_ns - limits.WORKER_OFFLINE_NS),
            "corvo_fetches_waiting": pipeline.fetches.waiting.count,
            "corvo_base_flushes": pipeline.flusher.flushes,
            "corvo_base_flush_seconds_last": pipeline.flusher.flush_ns_last / 1e9,
            "corvo_base_flush_seconds_max": pipeline.flusher.flush_ns_max / 1e9,
            "corvo_overlay_bytes": machine.write_buffer_size,
            "corvo_idempotency_entries": machine.idempotency_records,
            "corvo_clock_pauses": self._clock.pauses,
        }
        for name, counter in self.due_counters.items():
            values[f"corvo_scheduler_{name}"] = counter.jobs
            values[f"corvo_scheduler_{name}_errors"] = counter.errors
            values[f"corvo_scheduler_last_{name}_seconds"] = counter.last_ns / 1e9
        if self._sidecar is not None:
            mirror = self._sidecar.state
            values["corvo_sqlite_mirror_available"] = int(bool(mirror.get("ready")))
            values["corvo_sqlite_mirror_lag_updates"] = self._sidecar.lag
            values["corvo_sqlite_mirror_bytes"] = mirror.get("file_size", 0)
            values["corvo_sqlite_mirror_wal_bytes"] = mirror.get("wal_size", 0)
            values["corvo_sqlite_mirror_rebuilds"] = mirror.get("rebuilds", 0)
            values["corvo_sidecar_starts"] = self._sidecar.starts
        if self.cluster is not None:
            values["corvo_peer_refusals"] = sum(self.cluster()["peer_refusals"].values())
        if self.divergence is not None:
            values["corvo_cluster_state_comparisons"] = self.divergence.compared
            values["corvo_cluster_state_mismatches"] = self.divergence.mismatches
            values["corvo_cluster_state_differs"] = len(self.divergence.diverged)
        if self._server is not None:
            values["corvo_http_connections"] = len(self._server.connections)
            values["corvo_http_requests_in_flight"] = self._server.requests_in_flight()
        return values


def _histogram(histogram: Histogram) -> dict[str, Any]:
    if not histogram.count:
        return {"count": 0}
    buckets = histogram.buckets()
    summary: dict[str, Any] = {
        "count": histogram.count,
        "avg": _milliseconds(histogram.sum_ns // histogram.count),
    }
    for name, share in (("p50", 50), ("p90", 90), ("p99", 99)):
        bound = next(b for b, count in buckets if count * 100 >= histogram.count * share)
        summary[name] = "+Inf" if bound is None else _milliseconds(bound)
    summary["buckets"] = [
        {"le": "+Inf" if bound is None else _milliseconds(bound), "count": count}
        for bound, count in buckets
    ]
    return summary


def _milliseconds(length_ns: int) -> str:
    return f"{length_ns / 1e6:g}ms"

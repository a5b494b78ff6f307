"""The metrics page: plain values in, Prometheus text out.

Names and help texts of all metrics are here. The handler of the page fills a `Snapshot` at scrape
time; a field that is left None has no series. The series of queues, which are many, are made queue
by queue (`QueueSeries`), so that a page can be made in steps.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from corvo._fast.metrics import Histogram
from corvo.model import PRIORITY_NAMES, STATES

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4.encode()
OTHER: Final = "other"


@dataclass(slots=True)
class QueueSample:
    """One queue: jobs by state (as in model.STATES) and the age of the oldest ready job by
    priority (0 when there is none), groups, ready jobs that their group or the rate limit of the
    queue keeps waiting."""

    name: str
    jobs: Sequence[int]
    oldest_ready_s: Sequence[float]
    groups: int = 0
    group_blocked: int = 0
    rate_blocked: int = 0


@dataclass(slots=True)
class RouteSample:
    """Counters of one route. `route` is its pattern."""

    method: str
    route: str
    requests: int
    errors: int
    duration: Histogram


@dataclass(slots=True)
class Snapshot:
    """Everything the page can show, except queues."""

    routes: Sequence[RouteSample] = ()
    values: dict[str, float] = field(default_factory=dict)  # by the names of VALUES
    histograms: dict[str, Histogram] = field(default_factory=dict)  # by the names of HISTOGRAMS
    abuse_counters: dict[str, int] = field(default_factory=dict)  # by reason


_COUNTER: Final = CounterMetricFamily
_GAUGE: Final = GaugeMetricFamily

# Metrics without labels. The names of counters get `_total` from the format.
VALUES: Final[dict[str, tuple[type[Metric], str]]] = {
    "corvo_throughput_enqueued": (_COUNTER, "Jobs enqueued."),
    "corvo_throughput_completed": (_COUNTER, "Jobs completed."),
    "corvo_throughput_failed": (_COUNTER, "Failed attempts."),
    "corvo_raft_apply_overload": (_COUNTER, "Writes refused because too many were in flight."),
    "corvo_ops_refused": (_COUNTER, "Ops of the log refused because of a name that is invalid."),
    "corvo_raft_applied": (_COUNTER, "Operations applied."),
    "corvo_raft_entries": (_COUNTER, "Log entries applied."),
    "corvo_raft_apply_pending": (_GAUGE, "Operations waiting to be applied."),
    "corvo_raft_apply_max_pending": (_GAUGE, "Most operations that may wait."),
    "corvo_raft_state": (_GAUGE, "0 follower, 1 candidate, 2 leader, 3 shut down."),
    "corvo_raft_applied_index": (_GAUGE, "Index of the last applied log entry."),
    "corvo_raft_commit_index": (_GAUGE, "Index of the last committed log entry."),
    "corvo_cluster_is_leader": (_GAUGE, "1 on the leader."),
    "corvo_cluster_state_comparisons": (_COUNTER, "Comparisons of the state with another node's."),
    "corvo_cluster_state_mismatches": (_COUNTER, "Those that found a difference."),
    "corvo_cluster_state_differs": (_GAUGE, "Nodes whose state differs from that of this one."),
    "corvo_peer_refusals": (_COUNTER, "Refused connections to the port for nodes."),
    "corvo_workers_registered": (_GAUGE, "Workers known."),
    "corvo_workers_active": (_GAUGE, "Workers seen in the last five minutes."),
    "corvo_leases_expired": (_COUNTER, "Leases that expired."),
    "corvo_fetches_waiting": (_GAUGE, "Fetches that wait for work."),
    "corvo_streams_open": (_GAUGE, "Streams of events and text that are open."),
    "corvo_lifecycle_streams_open": (_GAUGE, "Lifecycle streams of workers that are open."),
    "corvo_lifecycle_streams": (_COUNTER, "Lifecycle streams begun."),
    "corvo_lifecycle_relays_open": (_GAUGE, "Lifecycle streams relayed to the leader."),
    "corvo_lifecycle_frames": (_COUNTER, "Frames received on lifecycle streams."),
    "corvo_lifecycle_frames_in_flight": (_GAUGE, "Frames in progress."),
    "corvo_lifecycle_overloads": (_COUNTER, "Frames with a part refused for overload."),
    "corvo_event_subscribers": (_GAUGE, "Streams of events."),
    "corvo_event_subscribers_behind": (_GAUGE, "Those that read the stored event log."),
    "corvo_event_gaps": (_COUNTER, "Gaps reported to streams of events."),
    "corvo_http_connections": (_GAUGE, "Open connections."),
    "corvo_http_requests_in_flight": (_GAUGE, "Requests without a complete answer, streams too."),
    "corvo_scheduler_promote": (_COUNTER, "Scheduled and retrying jobs made ready."),
    "corvo_scheduler_promote_errors": (_COUNTER, "Refused ops of this kind."),
    "corvo_scheduler_last_promote_seconds": (
        _GAUGE,
        "Unix time of the last of these ops; 0 = none.",
    ),
    "corvo_scheduler_reclaim": (_COUNTER, "Leases ended."),
    "corvo_scheduler_reclaim_errors": (_COUNTER, "Refused ops of this kind."),
    "corvo_scheduler_last_reclaim_seconds": (
        _GAUGE,
        "Unix time of the last of these ops; 0 = none.",
    ),
    "corvo_scheduler_expire": (_COUNTER, "Jobs expired, and holds timed out."),
    "corvo_scheduler_expire_errors": (_COUNTER, "Refused ops of this kind."),
    "corvo_scheduler_last_expire_seconds": (
        _GAUGE,
        "Unix time of the last of these ops; 0 = none.",
    ),
    "corvo_scheduler_purge": (_COUNTER, "Finished jobs removed."),
    "corvo_scheduler_purge_errors": (_COUNTER, "Refused ops of this kind."),
    "corvo_scheduler_last_purge_seconds": (_GAUGE, "Unix time of the last of these ops; 0 = none."),
    "corvo_base_flushes": (_COUNTER, "Flushes of the write buffer into the state store."),
    "corvo_base_flush_seconds_last": (_GAUGE, "How long the last flush took."),
    "corvo_base_flush_seconds_max": (_GAUGE, "How long the longest flush took."),
    "corvo_overlay_bytes": (
        _GAUGE,
        "Size of the write buffer: changes not in the state store yet.",
    ),
    "corvo_idempotency_entries": (_GAUGE, "Recorded outcomes of requests with an Idempotency-Key."),
    "corvo_sqlite_mirror_available": (_GAUGE, "1 when the mirror answers."),
    "corvo_sqlite_mirror_lag_updates": (_GAUGE, "Flushes that the mirror has not written to disk."),
    "corvo_sqlite_mirror_bytes": (_GAUGE, "Size of the files of the mirror."),
    "corvo_sqlite_mirror_wal_bytes": (_GAUGE, "Size of their write-ahead logs."),
    "corvo_sqlite_mirror_rebuilds": (_GAUGE, "Times this sidecar built the mirror from nothing."),
    "corvo_sidecar_starts": (_COUNTER, "Times the sidecar was started."),
    "corvo_clock_pauses": (_COUNTER, "Pauses of the process that gave leases a grace."),
}
HISTOGRAMS: Final[dict[str, str]] = {
    "corvo_raft_queue_time_seconds": "From the arrival of an operation to its proposal.",
    "corvo_raft_apply_time_seconds": "Applying one log entry.",
    "corvo_wal_flush_seconds": "Writing the log to the disk.",
    "corvo_base_flush_seconds": "Writing the state to the state store; the loop waits meanwhile.",
    "corvo_loop_turn_seconds": "Turns of the loop that had something to do.",
}
# Gauges of queues.
_QUEUE_SERIES: Final[dict[str, str]] = {
    "corvo_queues_total": "Queues.",
    "corvo_jobs": "Jobs by state.",
    "corvo_queue_jobs": "Jobs by queue and state.",
    "corvo_queue_oldest_ready_seconds": (
        "How long the oldest job that is ready to run has been waiting."
    ),
    "corvo_queue_groups": "Groups that have jobs.",
    "corvo_queue_blocked_jobs": (
        "Ready jobs that a limit keeps waiting: that of their group, or the rate limit."
    ),
}


def render(snapshot: Snapshot) -> bytes:
    """The part of the page that is not about queues."""
    return generate_latest(_Page(snapshot))


class QueueSeries:
    """The part of the page about queues: the first METRIC_QUEUES_MAX of them have series of their
    own; the others share the series `other`, which has numbers of jobs only.

    Queues keep their series as long as they live, because the oldest come first. A queue that
    really has the name of the others is counted with them.
    """

    def __init__(self, count: int, jobs: Sequence[int]) -> None:
        """`count` is the number of all queues, and `jobs` are all their jobs by state."""
        self._count = count
        self._jobs = list(jobs)
        self._others = list(jobs)
        self._shown = 0
        self._lines: dict[str, list[str]] = {name: [] for name in _QUEUE_SERIES}

    def add(self, sample: QueueSample) -> None:
        """Add the series of a queue."""
        if sample.name == OTHER:
            return
        self._shown += 1
        label = _label(sample.name)
        self._add_jobs(label, sample.jobs)
        for state, number in enumerate(sample.jobs):
            self._others[state] -= number
        lines = self._lines["corvo_queue_oldest_ready_seconds"]
        for priority, age_s in zip(PRIORITY_NAMES, sample.oldest_ready_s, strict=True):
            lines.append(f'{{priority="{priority}",queue="{label}"}} {float(age_s)}')
        if sample.groups:
            lines = self._lines["corvo_queue_groups"]
            lines.append(f'{{queue="{label}"}} {float(sample.groups)}')
        lines = self._lines["corvo_queue_blocked_jobs"]
        for by, number in (("group", sample.group_blocked), ("rate", sample.rate_blocked)):
            if number:
                lines.append(f'{{by="{by}",queue="{label}"}} {float(number)}')

    def _add_jobs(self, label: str, jobs: Sequence[int]) -> None:
        lines = self._lines["corvo_queue_jobs"]
        for state, number in zip(STATES, jobs, strict=True):
            lines.append(f'{{queue="{label}",state="{state}"}} {float(number)}')

    def render(self) -> bytes:
        """The text."""
        if self._shown < self._count:
            self._add_jobs(OTHER, [max(0, number) for number in self._others])
        self._lines["corvo_queues_total"] = [f" {float(self._count)}"]
        self._lines["corvo_jobs"] = [
            f'{{state="{state}"}} {float(number)}'
            for state, number in zip(STATES, self._jobs, strict=True)
        ]
        parts = []
        for name, text in _QUEUE_SERIES.items():
            if self._lines[name]:
                parts.append(f"# HELP {name} {text}\n# TYPE {name} gauge\n")
                parts += [f"{name}{line}\n" for line in self._lines[name]]
        return "".join(parts).encode()


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class _Page(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        for name, value in snapshot.values.items():
            family, text = VALUES[name]
            yield family(name, text, value=value)  # type: ignore[call-arg]
        for name, histogram in snapshot.histograms.items():
            metric = HistogramMetricFamily(name, HISTOGRAMS[name])
            _add_histogram(metric, [], histogram)
            yield metric
        yield from _routes(snapshot.routes)
        if snapshot.abuse_counters:
            yield _abuse_counters(snapshot.abuse_counters)


def _routes(routes: Iterable[RouteSample]) -> Iterator[Metric]:
    labels = ["method", "route"]
    requests = CounterMetricFamily("corvo_http_requests", "Requests answered.", labels=labels)
    errors = CounterMetricFamily(
        "corvo_http_request_errors", "Requests answered with 4xx or 5xx.", labels=labels
    )
    duration = HistogramMetricFamily(
        "corvo_http_request_duration_seconds", "From request to answer.", labels=labels
    )
    for route in routes:
        names = [route.method, route.route]
        requests.add_metric(names, route.requests)
        errors.add_metric(names, route.errors)
        _add_histogram(duration, names, route.duration)
    for metric in (requests, errors, duration):
        if metric.samples:
            yield metric


def _abuse_counters(counts: dict[str, int]) -> Metric:
    metric = CounterMetricFamily(
        "corvo_http_refusals", "Refused connections and requests, by reason.", labels=["reason"]
    )
    for reason, count in counts.items():
        metric.add_metric([reason], count)
    return metric


def _add_histogram(metric: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    buckets = [
        ("+Inf" if bound_ns is None else repr(bound_ns / 1e9), count)
        for bound_ns, count in histogram.buckets()
    ]
    metric.add_metric(labels, buckets, histogram.sum_ns / 1e9)

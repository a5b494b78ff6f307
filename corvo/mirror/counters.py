"""Report counters of one sync batch: jobs per minute, and latency histograms."""

from bisect import bisect_left
from typing import Final

from corvo.limits import MS_NS, REPORT_BUCKET_NS, REPORT_KEPT_NS, SECOND_NS
from corvo.model import COMPLETED, ERROR_KINDS, Job

ALL: Final = 0  # queue number that means all queues
MINUTE_NS: Final = 60 * SECOND_NS
BUCKET_NS: Final = REPORT_BUCKET_NS
DELIVERY: Final = 0
RUN: Final = 1
_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_S: Final = (1, 2, 5, 10, 30, 60, 300, 900, 3_600, 21_600)
BOUNDS_NS: Final = (*[n * MS_NS for n in _MS], *[n * SECOND_NS for n in _S])
# The same as C integers, declared in the .pxd.
_MINUTE_NS = MINUTE_NS
_BUCKET_NS = BUCKET_NS

_FAILED: Final = [name in ("failed", "lease_expired", "provider") for name in ERROR_KINDS]

_ENQUEUED: Final = 0
_COMPLETED: Final = 1
_ATTEMPT_FAILED: Final = 2


class ReportCounters:
    """Counters by (queue, minute) and by (queue, kind, time bucket, latency bucket).

    Events older than a day are ignored."""

    def __init__(self, now_ns: int) -> None:
        self._horizon_ns: int = now_ns - REPORT_KEPT_NS
        self._minutes: dict[tuple[int, int], list[int]] = {}
        self._latencies: dict[tuple[int, int, int, int], int] = {}

    def enqueued(self, queue: int, at_ns: int) -> None:
        """Count an enqueued job."""
        self._count(queue, at_ns, _ENQUEUED)

    def failed(self, queue: int, kind: int, at_ns: int) -> None:
        """Count a failed attempt, if the kind of the error record is one."""
        if _FAILED[kind]:
            self._count(queue, at_ns, _ATTEMPT_FAILED)

    def see(self, job: Job, was_completed: bool, was_started_ns: int) -> None:
        """Count the start and the completion of a job, if they are new since its last version."""
        started_ns = job.started_ns
        if started_ns != was_started_ns and started_ns and job.attempt == 1:
            ready_ns = job.ready_since() or job.created_ns
            if ready_ns > started_ns:  # it has returned since
                ready_ns = job.ready_ns
            waited_ns = started_ns - ready_ns
            self._add_latency(job.queue_number, DELIVERY, started_ns, waited_ns)
        if job.state == COMPLETED and not was_completed:
            self._count(job.queue_number, job.completed_ns, _COMPLETED)
            self._add_latency(
                job.queue_number, RUN, job.completed_ns, job.completed_ns - started_ns
            )

    def _add_latency(self, queue: int, kind: int, at_ns: int, took_ns: int) -> None:
        if at_ns < self._horizon_ns:
            return
        key = queue, kind, at_ns // _BUCKET_NS, bisect_left(BOUNDS_NS, took_ns)
        self._latencies[key] = self._latencies.get(key, 0) + 1

    def _count(self, queue: int, at_ns: int, counter: int) -> None:
        if at_ns < self._horizon_ns:
            return
        key = queue, at_ns // _MINUTE_NS
        counts = self._minutes.get(key)
        if counts is None:
            counts = self._minutes[key] = [0, 0, 0]
        counts[counter] += 1

    def minutes(self) -> list[tuple[int, ...]]:
        """Rows (queue, minute, enqueued, completed, failed), and their sums over all queues."""
        totals: dict[int, list[int]] = {}
        for (_, minute), counts in self._minutes.items():
            sums = totals.setdefault(minute, [0, 0, 0])
            for counter in range(len(sums)):
                sums[counter] += counts[counter]
        rows = [(*key, *counts) for key, counts in self._minutes.items()]
        return rows + [(ALL, minute, *sums) for minute, sums in totals.items()]

    def latencies(self) -> list[tuple[int, ...]]:
        """Rows (queue, kind, time bucket, latency bucket, count), and their sums over all
        queues."""
        totals: dict[tuple[int, ...], int] = {}
        for (_, *rest), count in self._latencies.items():
            key = (*rest,)
            totals[key] = totals.get(key, 0) + count
        rows = [(*key, count) for key, count in self._latencies.items()]
        return rows + [(ALL, *key, count) for key, count in totals.items()]

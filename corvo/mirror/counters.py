"""What one step adds to the reports: by minute, and by how long jobs waited and ran."""

from bisect import bisect_left
from typing import Final

from corvo.limits import MS_NS, REPORT_BUCKET_NS, REPORT_KEPT_NS, SECOND_NS
from corvo.model import COMPLETED, ERROR_KINDS, Job

ALL: Final = 0  # the number of no queue: it stands for all of them
MINUTE_NS: Final = 60 * SECOND_NS
BUCKET_NS: Final = REPORT_BUCKET_NS
DELIVERY: Final = 0
RUN: Final = 1
_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_S: Final = (1, 2, 5, 10, 30, 60, 300, 900, 3_600, 21_600)
BOUNDS_NS: Final = (*[n * MS_NS for n in _MS], *[n * SECOND_NS for n in _S])
# As C integers, see the .pxd.
_MINUTE_NS = MINUTE_NS
_BUCKET_NS = BUCKET_NS

_FAILED: Final = [name in ("failed", "lease_expired", "provider") for name in ERROR_KINDS]

_ENQUEUED: Final = 0
_COMPLETED: Final = 1
_ATTEMPT_FAILED: Final = 2


class ReportCounters:
    """Counts of (queue, minute) and (queue, kind, slot, bucket). What is more than a day old does
    not count."""

    def __init__(self, now_ns: int) -> None:
        self._horizon_ns: int = now_ns - REPORT_KEPT_NS
        self._minutes: dict[tuple[int, int], list[int]] = {}
        self._latencies: dict[tuple[int, int, int, int], int] = {}

    def enqueued(self, queue: int, at_ns: int) -> None:
        """A job came."""
        self._count(queue, at_ns, _ENQUEUED)

    def failed(self, queue: int, kind: int, at_ns: int) -> None:
        """A job has got an error record; not every one is of a failed attempt."""
        if _FAILED[kind]:
            self._count(queue, at_ns, _ATTEMPT_FAILED)

    def see(self, job: Job, was_completed: bool, was_started_ns: int) -> None:
        """A job that was not as it is now."""
        started_ns = job.started_ns
        if started_ns != was_started_ns and started_ns and job.attempt == 1:
            waited_ns = started_ns - (job.ready_ns or job.created_ns)
            self._took(job.queue_number, DELIVERY, started_ns, waited_ns)
        if job.state == COMPLETED and not was_completed:
            self._count(job.queue_number, job.completed_ns, _COMPLETED)
            self._took(job.queue_number, RUN, job.completed_ns, job.completed_ns - started_ns)

    def _took(self, queue: int, kind: int, at_ns: int, took_ns: int) -> None:
        if at_ns < self._horizon_ns:
            return
        key = queue, kind, at_ns // _BUCKET_NS, bisect_left(BOUNDS_NS, took_ns)
        self._latencies[key] = self._latencies.get(key, 0) + 1

    def _count(self, queue: int, at_ns: int, what: int) -> None:
        if at_ns < self._horizon_ns:
            return
        key = queue, at_ns // _MINUTE_NS
        counts = self._minutes.get(key)
        if counts is None:
            counts = self._minutes[key] = [0, 0, 0]
        counts[what] += 1

    def minutes(self) -> list[tuple[int, ...]]:
        """(queue, minute, enqueued, completed, failed), of all queues together too."""
        everywhere: dict[int, list[int]] = {}
        for (_, minute), counts in self._minutes.items():
            sums = everywhere.setdefault(minute, [0, 0, 0])
            for what in range(len(sums)):
                sums[what] += counts[what]
        found = [(*key, *counts) for key, counts in self._minutes.items()]
        return found + [(ALL, minute, *sums) for minute, sums in everywhere.items()]

    def latencies(self) -> list[tuple[int, ...]]:
        """(queue, kind, slot, bucket, count), of all queues together too."""
        everywhere: dict[tuple[int, ...], int] = {}
        for (_, *rest), count in self._latencies.items():
            facet = (*rest,)
            everywhere[facet] = everywhere.get(facet, 0) + count
        found = [(*key, count) for key, count in self._latencies.items()]
        return found + [(ALL, *facet, count) for facet, count in everywhere.items()]

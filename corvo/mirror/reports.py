"""Reports of the last day, by minute, for charts and histograms.

There are three report tables. They are updated in the same transaction as the job rows, so a crash
neither loses nor repeats a count. Queue 0 means all queues.

- `report_minutes`: jobs enqueued and completed, and attempts failed, by the minute of the event,
  however late the mirror reads it.
- `report_states`: jobs by state, and the time at which the oldest ready job became ready, at the
  end of each minute in which the queue changed; other minutes equal the one before.
- `report_latencies`: histograms of waiting time (from ready to started) and run time (from started
  to completed). Only first deliveries count, because a retry waits on purpose.

A job that is deleted before the mirror reads it is in none of them. A rebuilt file counts the
existing jobs and copies the reports of the previous file. Rows older than a day are deleted; if
there are too many rows, the oldest are deleted earlier.
"""

from collections.abc import Iterable
from typing import Any, Final

from corvo import limits
from corvo.limits import REPORT_KEPT_NS, REPORT_ROWS_MAX, SECOND_NS
from corvo.mirror.counters import ALL, BOUNDS_NS, BUCKET_NS, MINUTE_NS, ReportCounters
from corvo.mirror.database import Database
from corvo.mirror.sync import SyncBatch
from corvo.model import STATES, Queue
from corvo.platform.durations import format_time

KINDS: Final = ("delivery", "run")  # by counters.DELIVERY, counters.RUN
_PRUNE_NS: Final = 600 * SECOND_NS
_STATE_COLUMNS: Final = ", ".join(STATES)
TABLES: Final = f"""
CREATE TABLE report_minutes (
    queue      INTEGER NOT NULL,
    minute     INTEGER NOT NULL,
    enqueued   INTEGER NOT NULL,
    completed  INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    PRIMARY KEY (queue, minute)
) WITHOUT ROWID;
CREATE TABLE report_states (
    queue         INTEGER NOT NULL,
    minute        INTEGER NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in STATES)},
    oldest_ready  INTEGER NOT NULL,
    PRIMARY KEY (queue, minute)
) WITHOUT ROWID;
CREATE TABLE report_latencies (
    queue   INTEGER NOT NULL,
    kind    INTEGER NOT NULL,
    slot    INTEGER NOT NULL,
    bucket  INTEGER NOT NULL,
    count   INTEGER NOT NULL,
    PRIMARY KEY (queue, kind, slot, bucket)
) WITHOUT ROWID;
"""
_NAMES: Final = ("report_minutes", "report_states", "report_latencies")
_ADD_MINUTES: Final = (
    "INSERT INTO report_minutes VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " enqueued = enqueued + excluded.enqueued, completed = completed + excluded.completed,"
    " failed = failed + excluded.failed"
)
_ADD_LATENCIES: Final = (
    "INSERT INTO report_latencies VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET count = count + excluded.count"
)
_LAST_STATES: Final = (
    "SELECT * FROM report_states s WHERE queue != ? AND minute ="
    " (SELECT max(minute) FROM report_states t WHERE t.queue = s.queue)"
)
_PUT_STATES: Final = (
    f"INSERT OR REPLACE INTO report_states VALUES ({', '.join('?' * (3 + len(STATES)))})"
)
# Where both files have a count, the larger one is right.
_ADOPT: Final = (
    "INSERT INTO report_minutes SELECT * FROM old.report_minutes WHERE true ON CONFLICT DO UPDATE"
    " SET enqueued = max(enqueued, excluded.enqueued), completed = max(completed,"
    " excluded.completed), failed = max(failed, excluded.failed)",
    "INSERT OR IGNORE INTO report_states SELECT * FROM old.report_states",
    "INSERT INTO report_latencies SELECT * FROM old.report_latencies WHERE true"
    " ON CONFLICT DO UPDATE SET count = max(count, excluded.count)",
)


class Reports:
    """Writer of the report tables of one file."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[int, ...]] = {}  # the last row of each queue
        self._pruned_ns = 0

    async def load(self, writer: Database) -> None:
        """Load the last states from an existing file."""
        self._states = {row[0]: row for row in await writer.all(_LAST_STATES, (ALL,))}

    async def write(
        self,
        writer: Database,
        read: SyncBatch,
        report_counters: ReportCounters,
        queues: dict[int, Queue],
    ) -> None:
        """Write the counters of a sync batch, inside its transaction."""
        await writer.many(_ADD_MINUTES, report_counters.minutes())
        await writer.many(_ADD_LATENCIES, report_counters.latencies())
        if read.queues:
            changed = [queue for _, queue in read.queues if queue is not None]
            for queue in changed:
                counts = [queue.jobs(state) for state in range(len(STATES))]
                since_ns = read.oldest.get(queue.number, 0)
                row = _states_row(queue.number, read.stamp_ns, counts, since_ns)
                self._states[queue.number] = row
            self._states = {n: row for n, row in self._states.items() if n in queues}
            found = [self._states[q.number] for q in changed if q.number in self._states]
            found.append(_sum_of(read.stamp_ns, self._states.values()))
            await writer.many(_PUT_STATES, found)
        if read.stamp_ns - self._pruned_ns > _PRUNE_NS:
            self._pruned_ns = read.stamp_ns
            await prune(writer, read.stamp_ns)


def _states_row(queue: int, stamp_ns: int, counts: list[int], oldest_ns: int) -> tuple[int, ...]:
    """A row of report_states; `counts` are indexed by state."""
    return queue, stamp_ns // MINUTE_NS, *counts, min(oldest_ns, limits.DUE_MAX_NS)


def _sum_of(stamp_ns: int, rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The row for all queues, summed from the last row of each."""
    columns = list(zip(*rows, strict=True)) or [()] * (3 + len(STATES))
    oldest_ns = min((since_ns for since_ns in columns[-1] if since_ns), default=0)
    return _states_row(ALL, stamp_ns, [sum(column) for column in columns[2:-1]], oldest_ns)


async def adopt(writer: Database, path: str) -> None:
    """Merge the reports of the previous file into this file."""
    await writer.run("ATTACH DATABASE ? AS old", (path,))
    try:
        await writer.script(";".join(("BEGIN IMMEDIATE", *_ADOPT, "COMMIT")))
    finally:
        await writer.run("DETACH DATABASE old")


async def prune(writer: Database, now_ns: int) -> None:
    """Delete rows older than a day, or than a shorter time if there are too many rows.

    The last row of report_states before that time stays for each queue: it is the initial state."""
    kept_ns = REPORT_KEPT_NS
    while True:
        minute, bucket = (now_ns - kept_ns) // MINUTE_NS, (now_ns - kept_ns) // BUCKET_NS
        await writer.run("DELETE FROM report_minutes WHERE minute < ?", (minute,))
        await writer.run("DELETE FROM report_latencies WHERE slot < ?", (bucket,))
        await writer.run(
            "DELETE FROM report_states AS s WHERE minute < ?1 AND EXISTS (SELECT 1 FROM"
            " report_states t WHERE t.queue = s.queue AND t.minute > s.minute AND t.minute < ?1)",
            (minute,),
        )
        counts = [(await writer.all(f"SELECT count(*) FROM {name}"))[0][0] for name in _NAMES]
        if max(counts) <= REPORT_ROWS_MAX or kept_ns < MINUTE_NS:
            return
        kept_ns //= 2


# ---- queries ----


async def throughput(
    database: Database, queue: int, now_ns: int, minutes: int
) -> list[dict[str, Any]]:
    """Counts of each of the last minutes, including the current one, the oldest first."""
    last = now_ns // MINUTE_NS
    first = last - minutes + 1
    text = (
        "SELECT minute, enqueued, completed, failed FROM report_minutes"
        " WHERE queue = ? AND minute >= ? AND minute <= ?"
    )
    found = {row[0]: row[1:] for row in await database.all(text, (queue, first, last))}
    points = []
    for minute in range(first, last + 1):
        enqueued, completed, failed = found.get(minute, (0, 0, 0))
        counts = {"enqueued": enqueued, "completed": completed, "failed": failed}
        points.append({"minute": format_time(minute * MINUTE_NS), **counts})
    return points


async def history(
    database: Database, queue: int, now_ns: int, minutes: int, step: int
) -> list[dict[str, Any]]:
    """Points of a chart, one per `step` minutes.

    A point has the counts of its minutes, and the jobs by state at its end, if known."""
    last = now_ns // MINUTE_NS
    first = last - minutes + 1
    text = (
        f"SELECT minute, {_STATE_COLUMNS}, oldest_ready FROM report_states WHERE queue = ?1"
        " AND minute <= ?3 AND minute >= IFNULL((SELECT max(minute) FROM report_states"
        " WHERE queue = ?1 AND minute < ?2), ?2) ORDER BY minute"
    )
    states = await database.all(text, (queue, first, last))
    counts = await throughput(database, queue, now_ns, minutes)
    points: list[dict[str, Any]] = []
    at = 0
    current: Any = None
    for start in range(0, minutes, step):
        end = min(start + step, minutes)
        while at < len(states) and states[at][0] < first + end:
            current = states[at]
            at += 1
        point: dict[str, Any] = {"at": counts[start]["minute"]}
        for name in ("enqueued", "completed", "failed"):
            point[name] = sum(minute[name] for minute in counts[start:end])
        if current is not None:
            point["jobs"] = dict(zip(STATES, current[1:-1], strict=True))
            end_ns = min((first + end) * MINUTE_NS, now_ns)
            waits_ns = end_ns - current[-1] if current[-1] else 0
            point["oldest_ready_seconds"] = round(max(0, waits_ns) / SECOND_NS, 3)
        points.append(point)
    return points


async def latencies(
    database: Database, queue: int, now_ns: int, period_ns: int
) -> dict[str, dict[str, Any]]:
    """A cumulative histogram of each kind, with bounds in seconds."""
    text = (
        "SELECT kind, bucket, sum(count) FROM report_latencies"
        " WHERE queue = ? AND kind IN (0, 1) AND slot >= ? AND slot <= ? GROUP BY kind, bucket"
    )
    buckets = (now_ns - period_ns) // BUCKET_NS, now_ns // BUCKET_NS
    counts = [[0] * (len(BOUNDS_NS) + 1) for _ in KINDS]
    for kind, bucket, count in await database.all(text, (queue, *buckets)):
        counts[kind][bucket] = count
    return {name: _histogram(counts[kind]) for kind, name in enumerate(KINDS)}


def _histogram(counts: list[int]) -> dict[str, Any]:
    names = [bound / SECOND_NS for bound in BOUNDS_NS]
    bounds: list[float | str] = [*names, "+Inf"]
    upto = [sum(counts[: n + 1]) for n in range(len(counts))]
    total = upto[-1]
    summary: dict[str, Any] = {"count": total}
    if total:
        for name, share in (("p50", 50), ("p90", 90), ("p99", 99)):
            summary[name] = next(
                bound
                for bound, count in zip(bounds, upto, strict=True)
                if count * 100 >= total * share
            )
    pairs = zip(bounds, upto, strict=True)
    summary["buckets"] = [{"le": bound, "count": count} for bound, count in pairs]
    return summary

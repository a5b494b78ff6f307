"""The report of `corvo bench`: statistics, the saved file, and the comparison of two runs.

Every statistic is computed from all measured latencies, one per job, in nanoseconds. The saved file
is one JSON object, see `Results`.
"""

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from corvo.cli.bench.pauses import Pauses
from corvo.limits import SECOND_NS

PHASES = {
    "enqueue": "Enqueue Benchmark",
    "lifecycle": "Processing Benchmark (fetch -> ack)",
    "combined": "Combined Benchmark (enqueue + fetch + ack)",
    "latency": "Latency Benchmark (enqueue -> handler)",
}


class Summary(msgspec.Struct, omit_defaults=True):
    """The statistics of one phase."""

    ops_per_sec: float
    avg_us: int
    p50_us: int
    p90_us: int
    p99_us: int
    p999_us: int
    min_us: int
    max_us: int
    stddev_us: int
    cv_pct: float
    completed: int
    server_cpu_pct: float | None = None
    server_rss_mb: float | None = None
    server_gc_p99_us: int | None = None
    server_pauses: Pauses | None = None


class Machine(msgspec.Struct):
    """The machine that generated the load."""

    os: str
    arch: str
    cpus: int
    memory_gb: float
    hostname: str


class ServerFacts(msgspec.Struct, omit_defaults=True):
    """Facts that the server reports; runs that differ here are not comparable."""

    mode: str = "unknown"
    nodes: int = 1
    shards: int | None = None
    raft_store: str | None = None
    durable: bool | None = None


class Config(msgspec.Struct):
    """The flags of a run."""

    jobs: int
    concurrency: int
    workers: int
    worker_queues: bool
    protocol: str
    enqueue_batch: int
    fetch_batch: int
    ack_batch: int
    work_duration: float
    combined: bool
    rate: float = 0
    payload_size: int = 2


class Results(msgspec.Struct, omit_defaults=True):
    """The content of a saved file."""

    timestamp: str
    machine: Machine
    server: ServerFacts
    config: Config
    preset: str | None = None
    enqueue: Summary | None = None
    lifecycle: Summary | None = None
    combined: Summary | None = None
    latency: Summary | None = None

    def phases(self) -> Iterator[tuple[str, Summary]]:
        """Name and statistics of the phases that were run."""
        for name in PHASES:
            summary: Summary | None = getattr(self, name)
            if summary is not None:
                yield name, summary


def percentile(ordered: Sequence[int], permille: int) -> int:
    """The value at index floor(p * (n - 1)) of sorted values, with p = permille / 1000."""
    return ordered[permille * (len(ordered) - 1) // 1000]


def summarize(latencies_ns: "array[int]", completed: int, elapsed_ns: int) -> Summary | None:
    """Compute the statistics of a phase; None if no operation succeeded."""
    count = len(latencies_ns)
    if not count or elapsed_ns <= 0:
        return None
    ordered = sorted(latencies_ns)
    mean = sum(ordered) / count
    stddev = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / count)

    def us(ns: float) -> int:
        return round(ns / 1000)

    return Summary(
        ops_per_sec=completed * SECOND_NS / elapsed_ns,
        avg_us=us(mean),
        p50_us=us(percentile(ordered, 500)),
        p90_us=us(percentile(ordered, 900)),
        p99_us=us(percentile(ordered, 990)),
        p999_us=us(percentile(ordered, 999)),
        min_us=us(ordered[0]),
        max_us=us(ordered[-1]),
        stddev_us=us(stddev),
        cv_pct=round(stddev / mean * 100, 1) if mean else 0.0,
        completed=completed,
    )


def duration(us: float) -> str:
    """Format microseconds: 850µs, 1.234ms, 2.5s."""
    if us < 1000:
        return f"{us:.0f}µs"
    scaled, unit = (us / 1000, "ms") if us < 1_000_000 else (us / 1_000_000, "s")
    return f"{scaled:.3f}".rstrip("0").rstrip(".") + unit


def facts(rows: Sequence[tuple[str, object]]) -> list[str]:
    """Format labels and values as indented, aligned lines; skip rows without a value."""
    return [
        f"  {label + ':':<16}{_text(value)}" for label, value in rows if value not in (None, "")
    ]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def summary_lines(summary: Summary) -> list[str]:
    """The statistics of a phase, one per line."""
    rss, gc_us = summary.server_rss_mb, summary.server_gc_p99_us
    cpu = summary.server_cpu_pct
    return facts(
        [
            ("ops/sec", f"{summary.ops_per_sec:.1f}"),
            ("avg", duration(summary.avg_us)),
            ("p50", duration(summary.p50_us)),
            ("p90", duration(summary.p90_us)),
            ("p99", duration(summary.p99_us)),
            ("p99.9", duration(summary.p999_us)),
            ("min", duration(summary.min_us)),
            ("max", duration(summary.max_us)),
            ("stddev", duration(summary.stddev_us)),
            ("cv", f"{summary.cv_pct:.1f}%"),
            ("srv cpu", None if cpu is None else f"{cpu:.1f}%"),
            ("srv rss", None if rss is None else f"{rss:.1f}MB"),
            ("srv gc99", None if gc_us is None else f"{gc_us / 1000:.3f}ms"),
            *(() if summary.server_pauses is None else summary.server_pauses.rows()),
        ]
    )


def middle(runs: Sequence[Summary]) -> Summary:
    """The run with the median throughput (the slower of the two middle ones)."""
    return sorted(runs, key=lambda run: run.ops_per_sec)[(len(runs) - 1) // 2]


def repeat_lines(phase: str, runs: Sequence[Summary]) -> list[str]:
    """The summary over all repeats of a phase."""

    def of(get: Callable[[Summary], float], permille: int) -> float:
        ordered = sorted(get(run) for run in runs)
        return ordered[permille * (len(ordered) - 1) // 1000]

    return [
        f"=== Repeat Summary: {phase} ===",
        *facts(
            [
                ("ops/sec median", f"{of(lambda run: run.ops_per_sec, 500):.1f}"),
                ("ops/sec p90", f"{of(lambda run: run.ops_per_sec, 900):.1f}"),
                ("p99 median", duration(of(lambda run: run.p99_us, 500))),
                ("p99 p90", duration(of(lambda run: run.p99_us, 900))),
            ]
        ),
    ]


def save(path: Path, results: Results) -> None:
    """Save results to a file."""
    text = msgspec.json.format(msgspec.json.encode(results), indent=2)
    try:
        path.write_bytes(text + b"\n")
    except OSError as e:
        raise click.ClickException(f"cannot save the results: {path}: {e.strerror}") from e


def load(path: Path) -> Results:
    """Load results from a file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except OSError as e:
        raise click.ClickException(f"cannot read the baseline: {path}: {e.strerror}") from e
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise click.ClickException(f"{path} is not a saved benchmark: {e}") from e


def differences(baseline: Results, current: Results) -> list[str]:
    """One warning per difference that makes two runs hard to compare."""
    return [
        f"warning: {part}.{name} differs: {_text(before)} -> {_text(after)}"
        for part in ("server", "config")
        for name, before, after in _pairs(getattr(baseline, part), getattr(current, part))
        if before != after
    ]


def _pairs(before: msgspec.Struct, after: msgspec.Struct) -> Iterator[tuple[str, object, object]]:
    for name in before.__struct_fields__:
        yield name, getattr(before, name), getattr(after, name)


def change(before: float, after: float) -> str:
    """The change from `before` to `after` as a signed percentage."""
    return f"{(after - before) / before * 100:+.1f}%" if before else "n/a"


def comparison(baseline: Results, current: Results) -> list[list[str]]:
    """The rows of the comparison table: throughput and p99 of the phases that both runs have."""
    before = dict(baseline.phases())
    rows = []
    for name, now in current.phases():
        if name in before:
            was = before[name]
            ops = (was.ops_per_sec, now.ops_per_sec)
            rows.append([name, "ops/sec", *(f"{value:.1f}" for value in ops), change(*ops)])
            p99 = (was.p99_us, now.p99_us)
            rows.append([name, "p99", *map(duration, p99), change(*p99)])
    return rows

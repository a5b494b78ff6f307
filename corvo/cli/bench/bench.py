"""The command `corvo bench`: measures throughput and latency of a running server.

It enqueues jobs, then fetches and acks them (or both at once). With --rate it also measures the
latency from enqueue to handler. `corvo.cli.bench.load` generates the load, and
`corvo.cli.bench.report` computes the report.
"""

import contextlib
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import Client, ServerError
from corvo.cli.bench import pauses, report
from corvo.cli.options import DURATION, Session, client_options
from corvo.limits import (
    ACK_BATCH_MAX,
    ENQUEUE_BATCH_MAX,
    FETCH_BATCH_MAX,
    LIFECYCLE_ENQUEUES_MAX,
)

if TYPE_CHECKING:
    from corvo.cli.bench.load import Load, Plan

PRESETS: dict[str, dict[str, object]] = {
    "single-node": {"jobs": 10_000, "concurrency": 10, "workers": 1},
}
PROTOCOLS = ("http", "h2", "rpc")
BAR_WIDTH = 40
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Runtime(msgspec.Struct):
    """Process figures that the server reports."""

    cpu_user_ns: int = 0
    cpu_sys_ns: int = 0
    heap_inuse_bytes: int | None = None
    gc_pause_p99_ns: int = 0


class ClusterStatus(msgspec.Struct):
    """Cluster mode that the server reports."""

    mode: str = "unknown"
    nodes: list[msgspec.Raw] = []
    shards: int | None = None
    raft_store: str | None = None
    durable: bool | None = None


def _protocol(context: click.Context, option: click.Parameter, value: str) -> str:
    if value not in PROTOCOLS:
        raise click.BadParameter(f'invalid --protocol "{value}" (expected {", ".join(PROTOCOLS)})')
    return value


@click.command(context_settings={"show_default": True})
@click.option(
    "--protocol",
    metavar="NAME",
    default="http",
    callback=_protocol,
    help="http, h2 (same requests, 32 concurrent per connection), rpc (lifecycle streams).",
)
@click.option(
    "--jobs", metavar="N", type=click.IntRange(min=1), default=10_000, help="Jobs per phase."
)
@click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(min=1),
    default=10,
    help="Connections per phase and role, or streams.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    help="Worker ids that share the connections.",
)
@click.option("--worker-queues", is_flag=True, help="Use one queue per worker.")
@click.option(
    "--repeats", metavar="N", type=click.IntRange(min=1), default=1, help="Number of runs."
)
@click.option("--repeat-pause", type=DURATION, default="0s", help="Pause between runs.")
@click.option(
    "--queue",
    metavar="NAME",
    default="bench.q",
    help="Queue name; each run adds its own suffix.",
)
@click.option(
    "--enqueue-batch-size",
    metavar="N",
    type=click.IntRange(1, ENQUEUE_BATCH_MAX),
    default=64,
    help="Jobs per enqueue request; 1 uses the single-job endpoint.",
)
@click.option(
    "--fetch-batch-size",
    metavar="N",
    type=click.IntRange(1, FETCH_BATCH_MAX),
    default=64,
    help="Jobs per fetch request; 1 uses the single-job endpoint.",
)
@click.option(
    "--ack-batch-size",
    metavar="N",
    type=click.IntRange(1, ACK_BATCH_MAX),
    default=64,
    help="Jobs per ack request; 1 uses the single-job endpoint.",
)
@click.option("--work-duration", type=DURATION, default="0s", help="Simulated work per job.")
@click.option("--combined", is_flag=True, help="Enqueue and process at the same time.")
@click.option(
    "--rate",
    metavar="N",
    type=click.FloatRange(min=0),
    default=0,
    help="Also measure enqueue-to-handler latency at this rate (jobs per second); 0 = off.",
)
@click.option(
    "--payload-size",
    metavar="BYTES",
    type=click.IntRange(min=2),
    default=2,
    help="Size of each payload.",
)
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), help="Defaults for flags that are not given."
)
@click.option("--save", metavar="FILE", help="File for the results.  [default: bench-<time>.json]")
@click.option("--compare", metavar="FILE", help="Saved results to compare with.")
@client_options
@click.pass_context
def bench(
    context: click.Context,
    session: Session,
    /,
    preset: str | None,
    save: str | None,
    compare: str | None,
    **flags: Any,
) -> None:
    """Measure the throughput and latency of a running server.

    Enqueues jobs, then fetches and acks them, at full speed. The queues stay on the server: use a
    server whose data can be discarded."""
    for name, value in PRESETS.get(preset or "", {}).items():
        if context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT:
            flags[name] = value
    baseline = report.load(Path(compare)) if compare else None
    if session.client.tls:
        raise click.UsageError("bench supports only plain http://")
    if flags["rate"] and flags["protocol"] == "rpc":
        raise click.UsageError("--rate sends single requests: use --protocol http or h2")
    if flags["protocol"] == "rpc" and flags["enqueue_batch_size"] > LIFECYCLE_ENQUEUES_MAX:
        raise click.UsageError(f"a frame enqueues up to {LIFECYCLE_ENQUEUES_MAX} jobs")
    begun = time.localtime()
    results = report.Results(
        timestamp=time.strftime("%Y-%m-%dT%H:%M:%S%z", begun),
        machine=_machine(),
        server=_check_server(session.client),
        config=_config(flags),
        preset=preset,
    )
    say: Callable[..., None] = (lambda *lines: None) if session.as_json else display.lines
    say(*_header(session.client.server, flags, results))
    _allow_files(2 * flags["concurrency"] + flags["workers"] + 64)
    _run_all(session, results, flags, say)
    path = Path(save or f"bench-{time.strftime('%Y%m%d-%H%M%S', begun)}.json")
    report.save(path, results)
    say("", f"Results saved to {path}")
    if session.as_json:
        session.show(msgspec.json.encode(results))
    elif baseline is not None:
        _compare(baseline, results)


def _config(flags: dict[str, Any]) -> report.Config:
    return report.Config(
        jobs=flags["jobs"],
        concurrency=flags["concurrency"],
        workers=flags["workers"],
        worker_queues=flags["worker_queues"],
        protocol=flags["protocol"],
        enqueue_batch=flags["enqueue_batch_size"],
        fetch_batch=flags["fetch_batch_size"],
        ack_batch=flags["ack_batch_size"],
        work_duration=flags["work_duration"],
        combined=flags["combined"],
        rate=flags["rate"],
        payload_size=flags["payload_size"],
    )


def _machine() -> report.Machine:
    return report.Machine(
        os=platform.system().lower(),
        arch=platform.machine(),
        cpus=os.cpu_count() or 1,
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        hostname=platform.node(),
    )


def _check_server(client: Client) -> report.ServerFacts:
    """Check the health of the server and read its mode."""
    try:
        client.get("/healthz")
    except ServerError as e:
        raise click.ClickException(f"server unhealthy: {e.message}") from e
    status = client.decode(client.get("/api/v1/cluster/status"), ClusterStatus)
    return report.ServerFacts(
        mode=status.mode,
        nodes=len(status.nodes) or 1,
        shards=status.shards,
        raft_store=status.raft_store,
        durable=status.durable,
    )


def _header(server: str, flags: dict[str, Any], results: report.Results) -> list[str]:
    config, facts = results.config, results.server
    return [
        "Corvo Benchmark",
        *report.facts(
            [
                ("server", server),
                ("protocol", config.protocol),
                ("jobs", config.jobs),
                ("concurrency", config.concurrency),
                ("workers", config.workers),
                ("worker-queues", config.worker_queues),
                ("repeats", flags["repeats"]),
                ("queue", flags["queue"]),
                ("enqueue-batch", config.enqueue_batch),
                ("fetch-batch", config.fetch_batch),
                ("ack-batch", config.ack_batch),
                ("work", report.duration(config.work_duration * 1_000_000)),
                ("combined", config.combined),
                ("rate", f"{config.rate:g}/s" if config.rate else None),
                ("payload", f"{config.payload_size}B"),
                ("preset", results.preset),
                ("server-mode", facts.mode),
                ("nodes", facts.nodes),
                ("raft-shards", facts.shards),
                ("raft-store", facts.raft_store),
                ("durable", facts.durable),
            ]
        ),
    ]


def _allow_files(count: int) -> None:
    """Raise the limit of open files to the number that the connections need, if possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _run_all(
    session: Session, results: report.Results, flags: dict[str, Any], say: Callable[..., None]
) -> None:
    """Run all phases --repeats times and store the median run of each phase in the results."""
    runs: dict[str, list[report.Summary]] = {}
    for number in range(1, flags["repeats"] + 1):
        if number > 1:
            time.sleep(flags["repeat_pause"])
        if flags["repeats"] > 1:
            say("", f"-- Run {number}/{flags['repeats']} --")
        plan = _plan(session.client, flags, results.config)
        for name, load in _phases(plan, results.config):
            say("", f"=== {report.PHASES[name]} ===")
            summary = _measure(session.client, name, load)
            say(*_outcome(name, load, summary))
            if summary is not None:
                runs.setdefault(name, []).append(summary)
    for name, summaries in runs.items():
        setattr(results, name, report.middle(summaries))
        if flags["repeats"] > 1:
            say("", *report.repeat_lines(name, summaries))


def _plan(client: Client, flags: dict[str, Any], config: report.Config) -> "Plan":
    """The plan of one run, on new queues."""
    from corvo.cli.bench.load import Plan

    queue = f"{flags['queue']}.{_suffix(time.time_ns())}"
    own = config.worker_queues and config.workers > 1
    return Plan(
        host=client.host,
        port=client.port,
        prefix=client.prefix,
        queues=tuple(f"{queue}.w{i}" for i in range(config.workers)) if own else (queue,),
        jobs=config.jobs,
        concurrency=config.concurrency,
        workers=config.workers,
        enqueue_batch=config.enqueue_batch,
        fetch_batch=config.fetch_batch,
        ack_batch=config.ack_batch,
        work_s=config.work_duration,
        payload_size=config.payload_size,
        protocol=config.protocol,
    )


def _suffix(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, len(DIGITS))
        text = DIGITS[digit] + text
    return text


def _phases(plan: "Plan", config: report.Config) -> Iterator[tuple[str, "Load"]]:
    from corvo.cli.bench.load import Load

    if config.combined:
        yield "combined", Load(plan, produce=True, work=True)
    else:
        yield "enqueue", Load(plan, produce=True, work=False)
        yield "lifecycle", Load(plan, produce=False, work=True)
    if config.rate:
        queues = tuple(f"{queue}.paced" for queue in plan.queues)
        paced = msgspec.structs.replace(plan, rate=config.rate, queues=queues)
        yield "latency", Load(paced, produce=True, work=True)


def _measure(client: Client, name: str, load: "Load") -> report.Summary | None:
    """Run one phase, and measure the server process before and after it."""
    before, pauses_before = _runtime(client), pauses.read(client)
    with _progress(name, load.plan.jobs) as progress:
        load.run(progress)
    after, pauses_after = _runtime(client), pauses.read(client)
    summary = report.summarize(load.latencies_ns, load.completed, load.elapsed_ns)
    if summary is None:
        return None
    summary.server_pauses = pauses.between(pauses_before, pauses_after)
    if before is not None and after is not None:
        used = after.cpu_user_ns + after.cpu_sys_ns - before.cpu_user_ns - before.cpu_sys_ns
        summary.server_cpu_pct = round(used / load.elapsed_ns * 100, 1)
        if after.heap_inuse_bytes is not None:
            summary.server_rss_mb = round(after.heap_inuse_bytes / 2**20, 1)
        if after.gc_pause_p99_ns:
            summary.server_gc_p99_us = round(after.gc_pause_p99_ns / 1000)
    return summary


def _runtime(client: Client) -> Runtime | None:
    try:
        return client.decode(client.get("/api/v1/debug/runtime"), Runtime)
    except ServerError:
        return None


@contextlib.contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Draw a progress bar on stderr if stderr is a terminal.

    It runs inside the measured loop: here it costs one write, while a display library would take
    milliseconds, which would show up as latency.
    """
    if not sys.stderr.isatty():
        yield lambda completed: None
        return

    def draw(completed: int) -> None:
        bar = "#" * (completed * BAR_WIDTH // total)
        sys.stderr.write(f"\r  {name}  [{bar:.<{BAR_WIDTH}}]  {completed}/{total}")
        sys.stderr.flush()

    try:
        yield draw
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _outcome(name: str, load: "Load", summary: report.Summary | None) -> list[str]:
    total = load.plan.jobs
    took = report.duration(load.elapsed_ns / 1000)
    rows: list[tuple[str, object]] = [("completed", f"{load.completed}/{total} in {took}")]
    if name != "enqueue":
        rows.append(("acked", f"{load.acked}/{total}"))
    if load.produce and load.work:
        rows.append(("enqueued", load.enqueued))
    rows.append(("overloaded", load.overloaded or None))
    numbers = ["  no successful operations"] if summary is None else report.summary_lines(summary)
    stall = ["  stalled: no progress for 30 s, the phase was aborted"] if load.stalled else []
    return [*report.facts(rows), *stall, *numbers]


def _compare(baseline: report.Results, results: report.Results) -> None:
    for label, run in (("baseline", baseline), ("current", results)):
        hosted = f"{run.machine.hostname}, {run.machine.cpus} CPUs"
        display.lines(f"{label + ':':<10}{run.timestamp} ({hosted}, {run.server.mode})")
    display.lines(*report.differences(baseline, results))
    heads = ["Phase", "Metric", "Baseline", "Current", "Change"]
    display.table(heads, report.comparison(baseline, results))

"""The load tool: its numbers, its load on a small server, its report, file and comparison."""

import json
import random
import re
import statistics
import sys
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corvo.cli.bench import pauses, report
from corvo.cli.bench.load import Load, Plan
from corvo.errors import CorvoError

SMALL = ["--jobs", "60", "--concurrency", "3"]
NUMBERS = ["ops/sec", "avg", "p50", "p90", "p99", "p99.9", "min", "max", "stddev", "cv"]


def make_plan(server: Any, **changes: Any) -> Plan:
    plan = Plan(
        host="127.0.0.1",
        port=server.server_port,
        prefix="",
        queues=("q",),
        jobs=40,
        concurrency=3,
        workers=2,
        enqueue_batch=7,
        fetch_batch=5,
        ack_batch=3,
    )
    return msgspec.structs.replace(plan, **changes)


def make_summary(ops: float, p99_us: int = 100) -> report.Summary:
    return report.Summary(ops, 1, 1, 1, p99_us, p99_us, 1, 1, 1, 1.0, 10)


def make_results(**phases: report.Summary) -> report.Results:
    return report.Results(
        timestamp="2026-01-01T00:00:00Z",
        machine=report.Machine("linux", "x86_64", 2, 4.0, "host"),
        server=report.ServerFacts(mode="single", durable=True),
        config=report.Config(10, 1, 1, False, "http", 1, 1, 1, 0, False),
        **phases,
    )


# The numbers.


def test_percentiles_of_known_values() -> None:
    values = list(range(1, 101))
    assert [report.percentile(values, p) for p in (0, 500, 900, 990, 999, 1000)] == [
        1,
        50,
        90,
        99,
        99,
        100,
    ]
    assert report.percentile([7], 999) == 7


@given(st.lists(st.integers(0, 10**12), min_size=1), st.integers(0, 1000))
def test_percentile_is_a_value_at_its_place(values: list[int], permille: int) -> None:
    ordered = sorted(values)
    found = report.percentile(ordered, permille)
    assert found == ordered[(permille * (len(values) - 1)) // 1000]
    assert min(values) <= found <= max(values)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50))
def test_summary_agrees_with_the_library(values: list[int]) -> None:
    random.Random(1).shuffle(values)
    summary = report.summarize(array("q", values), len(values), 2_000_000_000)
    assert summary is not None
    assert summary.ops_per_sec == len(values) / 2
    assert summary.avg_us == pytest.approx(statistics.mean(values) / 1000, abs=0.51)
    assert summary.stddev_us == pytest.approx(statistics.pstdev(values) / 1000, abs=0.51)
    assert summary.min_us <= summary.p50_us <= summary.p99_us <= summary.p999_us <= summary.max_us
    assert summary.max_us == round(max(values) / 1000)


def test_summary_of_nothing() -> None:
    assert report.summarize(array("q"), 0, 5) is None


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0µs"),
        (999, "999µs"),
        (1000, "1ms"),
        (1234, "1.234ms"),
        (2_500_000, "2.5s"),
        (61_000_000, "61s"),
    ],
)
def test_duration(us: int, text: str) -> None:
    assert report.duration(us) == text


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [(100, 150, "+50.0%"), (100, 75, "-25.0%"), (3, 3, "+0.0%"), (0, 5, "n/a")],
)
def test_change(before: float, after: float, text: str) -> None:
    assert report.change(before, after) == text


def test_middle_run_and_repeat_summary() -> None:
    runs = [make_summary(ops, p99) for ops, p99 in [(30, 1), (10, 5000), (20, 3), (40, 2)]]
    assert report.middle(runs).ops_per_sec == 20
    assert report.repeat_lines("enqueue", runs) == [
        "=== Repeat Summary: enqueue ===",
        "  ops/sec median: 20.0",
        "  ops/sec p90:    30.0",
        "  p99 median:     2µs",
        "  p99 p90:        3µs",
    ]


def test_comparison_has_the_phases_of_both() -> None:
    before = make_results(enqueue=make_summary(100, 2000), combined=make_summary(1))
    after = make_results(enqueue=make_summary(150, 1000), lifecycle=make_summary(1))
    assert report.comparison(before, after) == [
        ["enqueue", "ops/sec", "100.0", "150.0", "+50.0%"],
        ["enqueue", "p99", "2ms", "1ms", "-50.0%"],
    ]


def test_differences_are_named() -> None:
    before, after = make_results(), make_results()
    assert report.differences(before, after) == []
    after.server.durable = False
    after.config.concurrency = 64
    assert report.differences(before, after) == [
        "warning: server.durable differs: true -> false",
        "warning: config.concurrency differs: 1 -> 64",
    ]


def test_saved_file_round_trip(tmp_path: Path) -> None:
    results = make_results(enqueue=make_summary(5))
    report.save(tmp_path / "r.json", results)
    assert report.load(tmp_path / "r.json") == results
    saved = json.loads((tmp_path / "r.json").read_text())
    assert set(saved) == {"timestamp", "machine", "server", "config", "enqueue"}
    assert "server_cpu_pct" not in saved["enqueue"]


# The load.


@pytest.mark.parametrize("batch", [1, 7])
def test_every_job_is_enqueued_once_and_completed(server: Any, batch: int) -> None:
    plan = make_plan(server, enqueue_batch=batch, fetch_batch=batch, ack_batch=min(batch, 3))
    enqueue = Load(plan, produce=True, work=False)
    enqueue.run(lambda completed: None)
    assert (enqueue.enqueued, enqueue.completed, len(enqueue.latencies_ns)) == (40, 40, 40)
    assert len(server.jobs) == 40
    work = Load(plan, produce=False, work=True)
    work.run(lambda completed: None)
    assert (work.acked, work.completed, len(work.latencies_ns)) == (40, 40, 40)
    assert server.jobs == {}
    assert not work.stalled and work.elapsed_ns > 0


def test_combined_with_a_queue_for_each_worker(server: Any) -> None:
    plan = make_plan(server, queues=("q.w0", "q.w1"), work_s=0.0001)
    load = Load(plan, produce=True, work=True)
    load.run(lambda completed: None)
    assert (load.enqueued, load.acked) == (40, 40)
    assert {queue for body in server.bodies for queue in body.get("queues", [])} == {"q.w0", "q.w1"}


def test_open_loop_measures_from_due_to_delivery(server: Any) -> None:
    load = Load(make_plan(server, rate=2000, payload_size=64), produce=True, work=True)
    load.run(lambda completed: None)
    assert (load.enqueued, load.acked, len(load.latencies_ns)) == (40, 40, 40)
    assert all(latency > 0 for latency in load.latencies_ns)
    assert load.elapsed_ns > 15_000_000
    payloads = [body["payload"] for body in server.bodies if "payload" in body]
    assert {len(json.dumps(payload, separators=(",", ":"))) for payload in payloads} == {64}


@pytest.mark.parametrize("size", [2, 9, 100])
def test_payload_size(server: Any, size: int) -> None:
    plan = make_plan(server, payload_size=size, enqueue_batch=1)
    body = plan.enqueue("q", 1).partition(b"\r\n\r\n")[2]
    payload = msgspec.json.decode(body, type=dict[str, msgspec.Raw])["payload"]
    assert len(bytes(payload)) == size


def test_overload_is_waited_out(server: Any) -> None:
    for path in ("enqueue/batch", "fetch/batch", "ack/batch"):
        for _ in range(3):
            refusal = {"error": "busy", "code": "OVERLOADED", "retry_after_ms": 5}
            server.can("POST", f"/api/v1/{path}", refusal, 429)
    load = Load(make_plan(server), produce=True, work=True)
    load.run(lambda completed: None)
    assert (load.acked, load.overloaded) == (40, 9)


def test_refusal_ends_the_load(server: Any) -> None:
    server.can("POST", "/api/v1/enqueue/batch", {"error": "disk full", "code": "DISK_FULL"}, 507)
    with pytest.raises(CorvoError, match="disk full"):
        Load(make_plan(server), produce=True, work=False).run(lambda completed: None)


@pytest.mark.parametrize("body", [b"<html>", b'{"jobs": [{"job_id": 5}]}', b"{}"])
def test_unexpected_answer_ends_the_load(server: Any, body: bytes) -> None:
    server.put({"queue": "q"})
    server.can("POST", "/api/v1/fetch/batch", body)
    with pytest.raises(CorvoError, match="unexpected response"):
        Load(make_plan(server), produce=False, work=True).run(lambda completed: None)


def test_lost_lease_is_not_counted(server: Any) -> None:
    plan = make_plan(server, jobs=3, enqueue_batch=1, fetch_batch=1, ack_batch=1)
    Load(plan, produce=True, work=False).run(lambda completed: None)
    server.put({"queue": "q"})
    server.can("POST", "/api/v1/ack/job-0", {"error": "lost", "code": "LEASE_LOST"}, 409)
    load = Load(plan, produce=False, work=True)
    load.run(lambda completed: None)
    assert load.acked == 3 and set(server.jobs) == {"job-0"}


# The command.


def test_report_file_and_comparison(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "first.json"
    status, out, err = run("bench", *SMALL, "--save", str(file))
    assert (status, err) == (0, "")
    assert re.search(r"^  durable: +true$", out, re.MULTILINE)
    for title in ("Enqueue Benchmark", "Processing Benchmark (fetch -> ack)"):
        assert f"\n=== {title} ===\n  completed:      60/60 in " in out
    for label in NUMBERS:
        assert len(re.findall(rf"^  {re.escape(label)}: +\S+$", out, re.MULTILINE)) == 2
    assert out.endswith(f"\nResults saved to {file}\n")
    saved = json.loads(file.read_text())
    assert saved["config"]["jobs"] == 60 and saved["lifecycle"]["completed"] == 60

    second = str(tmp_path / "second.json")
    out = run("bench", *SMALL, "--combined", "--save", second, "--compare", str(file)).out
    assert "=== Combined Benchmark (enqueue + fetch + ack) ===" in out
    assert "warning: config.combined differs: false -> true" in out
    out = run("bench", *SMALL, "--save", second, "--compare", str(file)).out
    assert re.search(r"^enqueue +ops/sec +[\d.]+ +[\d.]+ +[+-][\d.]+%$", out, re.MULTILINE)


def test_repeats_use_fresh_queues(server: Any, run: Any, tmp_path: Path) -> None:
    words = ["--repeats", "2", "--preset", "single-node", "--save", str(tmp_path / "r")]
    out = run("bench", *SMALL, *words).out
    assert "-- Run 2/2 --" in out and "=== Repeat Summary: lifecycle ===" in out
    assert len(server.pending) == 2
    assert all(re.fullmatch(r"bench\.q\.[0-9a-z]+", name) for name in server.pending)


def test_json_output_is_the_saved_file(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    status, out, _ = run("bench", *SMALL, "--rate", "1000", "--output", "json", "--save", str(file))
    assert status == 0
    assert json.loads(out) == json.loads(file.read_text())
    assert json.loads(out)["latency"]["completed"] == 60


def test_server_process_numbers_are_shown_if_known(server: Any, run: Any, tmp_path: Path) -> None:
    for cpu_ns in (0, 1_000_000, 1_000_000, 2_000_000):
        facts = {"cpu_user_ns": cpu_ns, "cpu_sys_ns": 0, "heap_inuse_bytes": 2**20}
        server.can("GET", "/api/v1/debug/runtime", facts)
    out = run("bench", *SMALL, "--save", str(tmp_path / "r")).out
    assert len(re.findall(r"^  srv cpu: +[\d.]+%\n  srv rss: +1.0MB$", out, re.MULTILINE)) == 2


def page(flushes: list[int], turns: list[int]) -> bytes:
    """Metrics with these counts in three buckets each."""
    lines = ["# TYPE corvo_base_flush_seconds histogram", 'corvo_jobs{state="held"} 3']
    for name, counts in ((pauses.FLUSHES, flushes), (pauses.TURNS, turns)):
        for bound, count in zip(("0.001", "0.02", "+Inf"), counts, strict=True):
            lines.append(f'{name}_bucket{{le="{bound}"}} {float(count)}')
    return "\n".join(lines).encode()


def test_pauses_of_the_server_are_shown_if_known(server: Any, run: Any, tmp_path: Path) -> None:
    before, between = page([4, 4, 4], [10, 10, 10]), page([4, 5, 5], [40, 41, 41])
    for metrics in (before, between, between, page([4, 5, 6], [40, 42, 43])):
        server.can("GET", "/api/v1/metrics", metrics)
    file = tmp_path / "r.json"
    out = run("bench", *SMALL, "--save", str(file)).out
    assert "  flush gaps:     1, longest <= 20ms\n" in out
    assert "  loop turns:     31, 3.23% above 1ms, longest <= 20ms\n" in out
    assert "  loop turns:     2, 100.00% above 1ms, longest above the largest bucket\n" in out
    assert report.load(file).enqueue.server_pauses.flushes == 1  # type: ignore[union-attr]


def test_progress_is_drawn_only_for_a_person(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    outcome = run("bench", *SMALL, "--save", str(tmp_path / "r"))
    assert outcome.status == 0 and "\r" not in outcome.out
    assert "\r  enqueue  [########################################]  60/60" in outcome.err
    assert outcome.err.endswith("\r\x1b[K")


def test_what_bench_refuses(server: Any, run: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    assert "not a saved benchmark" in run("bench", "--compare", str(bad)).err
    assert "cannot read the baseline" in run("bench", "--compare", str(tmp_path / "no")).err
    assert "plain http" in run("bench", "--server", "https://127.0.0.1:1").err
    assert "expected http, h2, rpc" in run("bench", "--protocol", "tcp").err
    assert "--rate sends single" in run("bench", "--protocol", "rpc", "--rate", "9").err
    large = ("--enqueue-batch-size", "1001")
    assert "up to 1000 jobs" in run("bench", "--protocol", "rpc", *large).err
    assert server.requests == []
    server.can("GET", "/healthz", {"error": "database unavailable", "code": "UNHEALTHY"}, 503)
    assert run("bench").err == "Error: server unhealthy: database unavailable\n"
    nowhere = str(tmp_path / "no" / "file")
    outcome = run("bench", *SMALL, "--save", nowhere)
    assert outcome.status == 1 and "cannot save the results" in outcome.err

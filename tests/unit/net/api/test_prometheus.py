"""The metrics page, read back by the parser of the format."""

from prometheus_client.parser import text_string_to_metric_families

from corvo import limits
from corvo._fast.metrics import Histogram
from corvo.model import STATES
from corvo.net.api import prometheus
from corvo.net.api.prometheus import QueueSample, QueueSeries, RouteSample, Snapshot, render
from corvo.net.http.router import HTTP_BOUNDS_NS


def samples(page: bytes) -> dict[tuple[str, ...], float]:
    """Values by name and label values in the order of the labels; every series is there once."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def queue(name: str, pending: int, oldest: float = 0.0) -> QueueSample:
    return QueueSample(name, [0, pending, 2, 0, 0, 0, 0, 0], [0.0, 0.0, oldest])


def series(*queues: QueueSample, count: int = 0) -> dict[tuple[str, ...], float]:
    """The page of some queues: those after the cap count only in the sums."""
    jobs = [sum(numbers) for numbers in zip(*(queue.jobs for queue in queues), strict=True)]
    part = QueueSeries(count or len(queues), jobs)
    for sample in queues[: limits.METRIC_QUEUES_MAX]:
        part.add(sample)
    return samples(part.render())


def test_queues() -> None:
    page = series(queue("a/b", 3, 1.5), queue('q"\\\n', 4))
    assert page["corvo_queues_total",] == 2
    assert page["corvo_jobs", "pending"] == 7
    assert page["corvo_jobs", "cancelled"] == 0
    assert page["corvo_queue_jobs", "a/b", "pending"] == 3
    assert page["corvo_queue_jobs", 'q"\\\n', "active"] == 2
    assert page["corvo_queue_oldest_ready_seconds", "normal", "a/b"] == 1.5


def test_what_limits_keep_waiting() -> None:
    plain = queue("a", 3)
    limited = QueueSample("b", plain.jobs, plain.oldest_ready_s, 5, 2, 7)
    page = series(plain, limited)
    assert page["corvo_queue_groups", "b"] == 5 and ("corvo_queue_groups", "a") not in page
    blocked = {key[1:]: value for key, value in page.items() if "blocked" in key[0]}
    assert blocked == {("group", "b"): 2, ("rate", "b"): 7}


def test_queues_beyond_the_cap_share_a_series() -> None:
    count = limits.METRIC_QUEUES_MAX
    queues = [queue("other", 1, 7.0), *(queue(f"q{n}", 1, float(n)) for n in range(count + 9))]
    page = series(*queues)
    assert page["corvo_queues_total",] == count + 10
    assert page["corvo_jobs", "pending"] == count + 10
    assert page["corvo_queue_jobs", "other", "pending"] == 11
    assert not [key for key in page if key[0] != "corvo_queue_jobs" and key[1:2] == ("other",)]
    assert ("corvo_queue_oldest_ready_seconds", "normal", "other") not in page
    assert ("corvo_queue_jobs", f"q{count - 2}", "pending") in page
    assert ("corvo_queue_jobs", f"q{count - 1}", "pending") not in page


def test_values_and_routes() -> None:
    duration = Histogram(HTTP_BOUNDS_NS)
    duration.observe(3_000_000)
    duration.observe(60_000_000_000)
    log = Histogram(HTTP_BOUNDS_NS)
    snapshot = Snapshot(
        routes=[
            RouteSample("POST", "/ack/{job_id}", 5, 1, duration),
            RouteSample("GET", "/", 2, 0, log),
        ],
        values=dict.fromkeys(prometheus.VALUES, 3),
        histograms=dict.fromkeys(prometheus.HISTOGRAMS, log),
    )
    page = samples(render(snapshot))
    assert page["corvo_http_requests_total", "POST", "/ack/{job_id}"] == 5
    assert page["corvo_http_request_errors_total", "GET", "/"] == 0
    name = "corvo_http_request_duration_seconds_bucket"
    bounds = ("0.001", "0.005", "10.0", "+Inf")
    assert [page[name, le, "POST", "/ack/{job_id}"] for le in bounds] == [0, 1, 1, 2]
    assert page["corvo_http_request_duration_seconds_sum", "POST", "/ack/{job_id}"] == 60.003
    assert page["corvo_throughput_enqueued_total",] == 3
    assert page["corvo_raft_applied_index",] == 3
    assert page["corvo_wal_flush_seconds_count",] == 0


def test_what_does_not_exist_is_not_shown() -> None:
    page = render(Snapshot()) + QueueSeries(0, [0] * len(STATES)).render()
    names = {name for name, *_ in samples(page)}
    assert names == {"corvo_queues_total", "corvo_jobs"}

"""Counters on the metrics page: they never decrease while the process lives."""

import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from lib.harness import Api, ServerProcess, running_server
from prometheus_client.parser import text_string_to_metric_families

STEPS = 120
# A gauge, in spite of its name.
GAUGES = {"corvo_queues_total"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("corvo") / "data", "--test-clock") as server:
        yield server


def rising_samples(api: Api) -> dict[tuple[str, ...], float]:
    """All samples that may only rise: of counters, and of histograms."""
    found = {}
    text = api.raw("GET", "/metrics").body.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in GAUGES:
                continue
            if family.type in ("counter", "histogram") or sample.name.endswith("_total"):
                found[sample.name, *map(str, sorted(sample.labels.items()))] = sample.value
    return found


def step(api: Api, chance: random.Random) -> None:
    """One request of a user, which may be refused."""
    queue = chance.choice(["a", "b", "c/d"])
    path = f"/queues/{quote(queue, safe='')}"
    jobs = api.ok("POST", "/fetch/batch", {"queues": [queue], "timeout": 0, "count": 2})["jobs"]
    for job in jobs:
        token = {"lease_token": job["lease_token"]}
        call = chance.choice(["ack", "fail", "release", "delete", "keep"])
        if call == "delete":
            api.raw("DELETE", f"/jobs/{job['job_id']}")
        elif call != "keep":
            api.raw("POST", f"/{call}/{job['job_id']}", token)
    match chance.randrange(7):
        case 0:
            api.raw("DELETE", f"{path}?confirm=true")
        case 1:
            api.raw("POST", f"{path}/clear")
        case 2:
            body = {"action": "delete", "all": True}
            api.raw("POST", "/jobs/bulk", body)
        case 3:
            api.raw("POST", "/test/clock", {"advance": "70s"})  # leases expire
        case 4:
            api.raw("POST", f"{path}/typo", {})
        case _:
            for _ in range(chance.randrange(1, 4)):
                api.enqueue(queue, max_retries=chance.randrange(1, 3), payload=chance.random())


@pytest.mark.parametrize("seed", range(2))
def test_no_counter_decreases(server: ServerProcess, seed: int) -> None:
    api, chance = server.api(), random.Random(seed)
    before = rising_samples(api)
    assert any(name.endswith("_total") for name, *_ in before)
    for _ in range(STEPS):
        step(api, chance)
        after = rising_samples(api)
        fallen = {
            sample: (value, after.get(sample))
            for sample, value in before.items()
            if after.get(sample, -1) < value
        }
        assert not fallen
        before = after


def test_a_restart_counts_from_what_the_queues_have(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        api.enqueue_many("a", 3)
        api.enqueue_many("b", 2)
        name = ("corvo_throughput_enqueued_total",)
        assert rising_samples(api)[name] == 5
        api.raw("DELETE", "/queues/b?confirm=true")
        assert rising_samples(api)[name] == 5
        server.stop()
        server.start()
        assert rising_samples(server.api())[name] == 3

"""Rounds: load, a fault in it, healing, an end to all jobs, a verdict."""

import asyncio
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from faults.arena import FaultyCluster, name_of
from faults.judge import Before, Judge
from faults.load import Load
from faults.machines import Unavailable
from lib.mirror_faults import compare, wait_shown

WARM_UP = 60  # enqueues and ends before the fault
_GOES_ON = 40  # after it


@dataclass(frozen=True)
class Scenario:
    """A fault by name: what is done, to what kind of cluster, and how soon writes must go on."""

    name: str
    what: str
    act: "Callable[[Trial], None]"
    limit_s: float
    count: int = 3
    network: bool = False
    disk_size: int = 0
    knobs: bool = False
    failpoints: str = ""
    mirror: bool = False


@dataclass
class Result:
    """What came of the rounds of a scenario."""

    scenario: Scenario
    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    recovered_s: list[float] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)
    failed: str = ""  # it could not be brought to an end, or was not possible here


class Trial:
    """What a scenario works with: the cluster, the load, and the moments of its faults."""

    def __init__(self, cluster: FaultyCluster, load: Load, number: int, draw: Random) -> None:
        self.cluster = cluster
        self.load = load
        self.number = number
        self.draw = draw
        self.recovered_s: list[float] = []
        self._hit_ns = 0

    def hit(self) -> None:
        """The fault comes now; or it goes now, if it left no majority."""
        self._hit_ns = time.monotonic_ns()

    def writes_go_on(self) -> None:
        """Wait until a write that was sent after the fault is acknowledged."""
        self.recovered_s.append(self.load.written_after(self._hit_ns))


def run(
    scenario: Scenario, rounds: int, seed: int, told: Callable[[], None] = lambda: None
) -> Result:
    """So many rounds on one cluster. Raises Unavailable where the fault cannot be made."""
    result = Result(scenario)
    with tempfile.TemporaryDirectory(prefix="corvo-faults-") as directory:
        cluster = FaultyCluster(
            Path(directory),
            scenario.count,
            network=scenario.network,
            disk_size=scenario.disk_size,
            knobs=scenario.knobs,
            failpoints=scenario.failpoints,
            mirror=scenario.mirror,
        )
        try:
            cluster.start()
            for number in range(rounds):
                run_round(cluster, scenario, result, number, seed)
                told()
            if scenario.mirror:
                check_mirrors(cluster, result)
        except Unavailable:
            raise
        except Exception:  # whatever it is, the other faults have their turn
            last = [line for node in cluster.nodes for line in node.log[-15:]]
            logs = "".join(line for line in last if "level=" in line and "starting" not in line)
            result.failed = f"{traceback.format_exc(limit=-4)}\n{logs}"
        finally:
            cluster.close()
        check_logs(cluster, result)
    return result


def run_round(
    cluster: FaultyCluster, scenario: Scenario, result: Result, number: int, seed: int
) -> None:
    """One of them."""
    name = f"{scenario.name}.{number}"
    with Load(cluster.nodes, name, seed) as load:
        load.wait_more(WARM_UP)
        judge = Judge(cluster, load, Before(cluster.term(), cluster.stamp_ns()))
        one = Trial(cluster, load, number, Random(f"{seed} {name}"))
        scenario.act(one)
        cluster.heal()
        load.wait_more(_GOES_ON)
        cluster.wait_healthy()
        judge.drain()
    judge.check()
    result.rounds += 1
    result.counts += judge.counts
    result.broken += judge.broken
    result.recovered_s += one.recovered_s


def check_mirrors(cluster: FaultyCluster, result: Result) -> None:
    """Each says what its base says, row by row."""
    nodes = cluster.up()
    for node in nodes:
        wait_shown(node.api())
    cluster.stop()
    for node in nodes:
        try:
            asyncio.run(compare(node.data_dir))
        except AssertionError:
            text = f"the mirror of {name_of(node)}: {traceback.format_exc(limit=-2)}"
            result.broken.append(("unequal", text))


def check_logs(cluster: FaultyCluster, result: Result) -> None:
    """No node has met an exception, but for a disk that failed."""
    for node in cluster.nodes:
        said = ""
        for at, line in enumerate(node.log):
            if "level=" in line:
                said = line
            elif line.startswith("Traceback") and "Input/output error" not in said:
                result.failed += said + "".join(node.log[at : at + 30])

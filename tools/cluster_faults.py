"""Breaks real clusters under load and counts what was lost; `make faults` runs it.

    cluster_faults.py [--rounds 3] [--only A1,A7] [--seed 1]

Prints the table of docs/testing.md; exit status 1 when a promise was broken. `--only` takes
names of faults, or beginnings of them. Network namespaces and file systems need root; what cannot
be broken here is named.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from statistics import median

from faults.campaign import Result, run
from faults.judge import COLUMNS
from faults.machines import Unavailable
from faults.scenarios import SCENARIOS
from rich.console import Console
from rich.progress import Progress


def main() -> int:
    parser = argparse.ArgumentParser(description="Break clusters and count what is lost.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    wanted = tuple(filter(None, arguments.only.split(",")))
    chosen = [
        s for s in SCENARIOS if not wanted or s.name.split("-")[0] in wanted or s.name in wanted
    ]
    print_header()
    good = True
    with Progress(console=Console(stderr=True)) as progress:
        for scenario in chosen:
            task = progress.add_task(scenario.name, total=arguments.rounds)
            told = partial(progress.advance, task)
            try:
                result = run(scenario, arguments.rounds, arguments.seed, told)
            except Unavailable as error:
                progress.print(f"{scenario.name} is not possible here: {error}")
                continue
            print_row(result)
            for trouble in troubles(result):
                good = False
                sys.stderr.write(f"{scenario.name}: {trouble}\n")
    return 0 if good else 1


def print_header() -> None:
    """The first lines of the table."""
    names = ("fault", "what happens", "nodes", "rounds", "jobs", "leases", *COLUMNS)
    names = (*names, "writes again, median", "slowest")
    print("| " + " | ".join(names) + " |")
    print("| --- | --- |" + " ---: |" * (len(names) - 2), flush=True)


def print_row(result: Result) -> None:
    """What came of one fault."""
    scenario, times = result.scenario, result.recovered_s
    cells = [scenario.name, scenario.what, str(scenario.count), str(result.rounds)]
    cells += [f"{result.counts[column]:,}" for column in ("acknowledged", "leases")]
    cells += [str(sum(kind == column for kind, _ in result.broken)) for column in COLUMNS]
    cells += [f"{median(times):.2f} s", f"{max(times):.2f} s"] if times else ["", ""]
    print("| " + " | ".join(cells) + " |", flush=True)


def troubles(result: Result) -> Iterator[str]:
    """Everything that was not as promised."""
    for kind, text in result.broken:
        yield f"{kind}: {text}"
    limit_s = result.scenario.limit_s
    if result.recovered_s and max(result.recovered_s) > limit_s:
        yield f"writes were to go on within {limit_s} s, took {max(result.recovered_s):.2f} s"
    if result.failed:
        yield result.failed


if __name__ == "__main__":
    sys.exit(main())

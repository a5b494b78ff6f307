"""Kills a loaded server again and again and counts what was lost; `make kills` runs it.

    kills.py [--rounds 200] [--seed 1]

For each mode: so many kills at random moments, then one at every failpoint. Prints the table of
docs/testing.md; exit status 1 when a promise was broken.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from crash.campaign import Campaign
from crash.history import BROKEN
from crash.points import FAILPOINTS
from rich.progress import Progress

COLUMNS = ("lives", "jobs", "leases", "acks", "restored", "expired")


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a loaded server and count what is lost.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows: list[tuple[str, Campaign]] = []
    with tempfile.TemporaryDirectory() as directory, Progress() as progress:
        for mode in ("durable", "no-durable"):
            for what in ("random moments", "failpoints"):
                campaign = Campaign(Path(directory), f"--{mode}", seed=arguments.seed)
                points = FAILPOINTS if what == "failpoints" else [("", False)] * arguments.rounds
                for point, stop in progress.track(points, description=f"{mode}, {what}"):
                    campaign.life(point, stop)
                campaign.close()
                rows.append((f"{mode}, {what}", campaign))
    report(rows)
    return int(any(campaign.broken for _, campaign in rows))


def report(rows: list[tuple[str, Campaign]]) -> None:
    """Print the table, and each broken promise."""
    names = ("kills at", *COLUMNS, *BROKEN)
    print("| " + " | ".join(names) + " |")
    print("| --- |" + " ---: |" * (len(names) - 1))
    for name, campaign in rows:
        broken = [sum(kind == column for kind, _ in campaign.broken) for column in BROKEN]
        cells = [f"{campaign.counts[column]:,}" for column in COLUMNS]
        print("| " + " | ".join([name, *cells, *map(str, broken)]) + " |")
    for name, campaign in rows:
        for kind, text in campaign.broken:
            print(f"{name}: {kind}: {text}")


if __name__ == "__main__":
    sys.exit(main())

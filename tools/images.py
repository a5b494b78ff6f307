"""Cuts the power in recorded workloads and starts from what is left; `make images` runs it.

    images.py [--count 100] [--seed 1] [--traces 4]

For each mode and kind: so many images, taken from several recorded workloads. Prints the table of
docs/testing.md; exit status 1 when one of them was not recovered exactly.
"""

import argparse
import sys
from collections import Counter

from crash.images import KINDS, campaign, record
from rich.progress import Progress


def main() -> int:
    parser = argparse.ArgumentParser(description="Recover from images of power cuts.")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--traces", type=int, default=4)
    arguments = parser.parse_args()
    rows: list[tuple[str, str, Counter[str]]] = []
    wrong: list[str] = []
    share = -(-arguments.count // arguments.traces)
    with Progress() as progress:
        for mode in ("durable", "not durable"):
            seeds = range(arguments.seed, arguments.seed + arguments.traces)
            traces = [record(mode == "durable", seed) for seed in seeds]
            for kind in progress.track(KINDS, description=mode):
                total: Counter[str] = Counter()
                for seed, trace in zip(seeds, traces, strict=True):
                    counts, failed = campaign(trace, KINDS[kind], share, seed)
                    most = max(total["most lost"], counts["most lost"])
                    total += counts
                    total["most lost"] = most
                    wrong += [f"{mode}, {kind}, seed {seed}: {text}" for text in failed]
                rows.append((mode, kind, total))
    report(rows, wrong)
    return int(bool(wrong))


def report(rows: list[tuple[str, str, Counter[str]]], wrong: list[str]) -> None:
    """Print the table, and what went wrong."""
    print("| mode | what the power cut leaves | images | exact | most entries lost |")
    print("| --- | --- | ---: | ---: | ---: |")
    for mode, kind, counts in rows:
        cells = [mode, kind, counts["images"], counts["exact"], counts["most lost"]]
        print("| " + " | ".join(map(str, cells)) + " |")
    for text in wrong:
        print(text)


if __name__ == "__main__":
    sys.exit(main())

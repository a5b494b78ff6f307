"""Micro-benchmarks of the way of a write, module by module: `make bench-micro`.

Prints the CPU time of one operation in nanoseconds: the best of several rounds, because whatever
else the machine does can only make a round slower. With `--instructions` every figure is also
counted by Valgrind's callgrind (slow: minutes), which does not depend on the machine's load at
all; compare those between two commits. Names given as arguments choose by the beginning.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time_ns, thread_time_ns

from bench.micro.cases import CASES

ROUNDS = 7
ROUND_NS = 60_000_000


def measure(run: Callable[[int], None], unit: int, cpu_ns: Callable[[], int]) -> float:
    """Nanoseconds of CPU for one of the `unit` operations in a call of `run(1)`."""
    count = 1
    while True:
        began_ns = cpu_ns()
        run(count)
        took_ns = cpu_ns() - began_ns
        if took_ns >= ROUND_NS // 4:
            break
        count *= 2
    count = max(1, count * ROUND_NS // took_ns)
    best_ns = took_ns * 1e3
    for _ in range(ROUNDS):
        began_ns = cpu_ns()
        run(count)
        best_ns = min(best_ns, (cpu_ns() - began_ns) / count)
    return best_ns / unit


def instructions(name: str) -> float:
    """Instructions of one operation: the difference of two runs of unequal length, which start
    alike (the one before them makes sure that all bytecode is cached)."""
    few, many = 20, 220
    totals = []
    for count in (1, few, many):
        with tempfile.NamedTemporaryFile() as out:
            subprocess.run(
                [
                    *("valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}"),
                    *(sys.executable, "-m", "bench.micro", "--exact", "--count", str(count), name),
                ],
                check=True,
                capture_output=True,
                env={"PYTHONHASHSEED": "0", "PYTHONPATH": str(Path.cwd())},
            )
            summary = next(
                line
                for line in Path(out.name).read_text().splitlines()
                if line.startswith(("summary:", "totals:"))
            )
            totals.append(int(summary.split()[1]))
    return (totals[2] - totals[1]) / (many - few) / CASES[name].unit


def main() -> None:
    """Run the chosen cases and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of case names; all when left out")
    parser.add_argument("--instructions", action="store_true", help="also count by callgrind")
    parser.add_argument("--exact", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help="only run each case so often, print nothing")
    options = parser.parse_args()
    for name, case in CASES.items():
        if options.names and not any(
            name == given if options.exact else name.startswith(given) for given in options.names
        ):
            continue
        if options.count:
            case.prepare()(options.count)
            continue
        cpu_ns = thread_time_ns if case.one_thread else process_time_ns
        line = f"{name:<28} {measure(case.prepare(), case.unit, cpu_ns):>9,.0f} ns"
        if options.instructions:
            line += f" {instructions(name):>11,.0f} instructions"
        print(f"{line}   {case.what}", flush=True)


if __name__ == "__main__":
    main()

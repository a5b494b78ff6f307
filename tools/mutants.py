"""Put every known bug back, one at a time, and see whether its scenario notices.

    python tools/mutants.py [--seeds 100] [name ...]

Each runs in a process of its own, which must fail. With `--seeds` the simulator tries, too, and the
table names the first seed that noticed; it need not find what a scenario does. Prints a
table; the exit status is the number of survivors.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from lib.known_mutants import MUTANTS, NONE  # noqa: E402
from lib.mutation import Mutant  # noqa: E402

SCENARIOS = "tests/unit/consensus/raft"
NO_TESTS = 5  # exit status of pytest


def scenarios(mutant: Mutant) -> str:
    """What selects the tests of this bug: b13a is caught by test_b13_... or test_b13a_..."""
    names = dict.fromkeys([mutant.name, mutant.name.rstrip("ab")])
    return " or ".join(f"test_{name}_" for name in names)


def run(mutant: Mutant | None) -> tuple[int, float]:
    """Exit status and seconds of the scenarios of this bug, with it or (None) of all without."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "--no-header", "--tb=no"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if mutant is None:
        command.append(SCENARIOS)
    else:
        environment["CORVO_MUTANT"] = mutant.name
        command += mutant.scenario or [SCENARIOS, "-k", scenarios(mutant)]
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    return done.returncode, time.monotonic() - start


def simulate(mutant: Mutant, seeds: int) -> str:
    """The first seed, counted from 1, that notices; empty if none does."""
    if not seeds:
        return ""
    command = [sys.executable, "tools/simulate.py", "--first", "1", "--seeds", str(seeds)]
    command += ["--stop", "--processes", "1"]
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}",
        "CORVO_MUTANT": mutant.name,
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, check=False, text=True
    )
    failed = re.search(r"^--seed (\d+)", done.stdout, re.MULTILINE)
    return f"seed {failed[1]}" if failed else ""


def main() -> int:
    """Returns the number of mutants that nothing noticed."""
    parser = argparse.ArgumentParser(description="Put known bugs back, one at a time.")
    parser.add_argument("--seeds", type=int, default=0, help="seeds of the simulator for each")
    parser.add_argument("names", nargs="*", metavar="name")
    arguments = parser.parse_args()
    wanted = arguments.names or list(MUTANTS)
    seeds = arguments.seeds
    for control in (None, NONE):
        status, seconds = run(control)
        if status != 0:
            print("the scenarios fail without any mutant", file=sys.stderr)
            return 1
        text = "without any bug" if control is None else "without any bug, outside the core"
        print(f"{'':8} {text:56} passed    {seconds:5.1f} s", flush=True)
    survivors = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        mutants = [MUTANTS[name] for name in wanted]
        simulated = pool.map(
            lambda m: simulate(m, seeds) if seeds and not m.scenario else "", mutants
        )
        for mutant, (status, seconds), seed in zip(
            mutants, pool.map(run, mutants), simulated, strict=True
        ):
            caught = status == 1 or seed != ""
            survivors += not caught
            verdict = "caught" if caught else "no test" if status == NO_TESTS else "SURVIVED"
            print(
                f"{mutant.name:8} {mutant.bug:56.56} {verdict:9} {seconds:5.1f} s  {seed}",
                flush=True,
            )
    print(f"{len(wanted) - survivors} of {len(wanted)} caught")
    return survivors


if __name__ == "__main__":
    sys.exit(main())

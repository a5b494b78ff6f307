"""Runs clusters on a broken network, disk and clock, each from one seed; `make sim` calls it.

    simulate.py --minutes 5                    random seeds of the core, on all processors
    simulate.py --full --seeds 1000 --first 1  these seeds of whole nodes
    simulate.py --seed 40                      one seed: its options, and what became of it
    simulate.py --seed 40 --trace --until 900  every event of it up to step 900, as JSON lines

Exit status 1 when a seed failed. A seed and a commit say everything about a run. CORVO_MUTANT=b16
in the environment puts that known bug in first (tests/lib/known_mutants.py).
"""

import argparse
import contextlib
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from lib import known_mutants
from rich.progress import Progress, TextColumn

known_mutants.install_wanted()

from sim.world import World  # noqa: E402

STEPS = 3_000
SEED_MAX = 1 << 40
CHUNK = 10
QUEUED = 4  # chunks a process has waiting


class Outcome(NamedTuple):
    """What became of one seed."""

    seed: int
    steps: int
    failure: str


def run(seed: int, full: bool, steps: int) -> Outcome:
    """Run one seed to its end."""
    world = World(seed, full)
    try:
        world.run(steps)
    except Exception as error:
        return Outcome(seed, world.schedule.steps, f"{type(error).__name__}: {error}")
    return Outcome(seed, world.schedule.steps, "")


def run_chunk(seeds: list[int], full: bool, steps: int) -> list[Outcome]:
    """Run some seeds in another process."""
    return [run(seed, full, steps) for seed in seeds]


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate clusters that break.")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--steps", type=int, default=STEPS, help="events before the repair")
    parser.add_argument("--full", action="store_true", help="whole nodes, not the core alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    parser.add_argument("--until", type=int, default=0, help="with --seed: stop at this event")
    parser.add_argument("--first", type=int, help="first seed; random when absent")
    parser.add_argument("--seeds", type=int, default=0, help="how many seeds")
    parser.add_argument("--minutes", type=float, default=1, help="how long, without --seeds")
    parser.add_argument("--stop", action="store_true", help="at the first seed that fails")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    return run_one(arguments) if arguments.seed is not None else run_many(arguments)


def run_one(arguments: argparse.Namespace) -> int:
    """One seed, in detail."""
    tracer = print if arguments.trace else None
    world = World(arguments.seed, arguments.full, tracer)
    if not arguments.trace:
        print("\n".join(world.options.lines()))
    try:
        world.run(arguments.steps, arguments.until)
    except Exception as error:
        print(f"seed {arguments.seed} failed at step {world.schedule.steps}", file=sys.stderr)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    calls = world.clients.history.calls
    print(
        f"seed {arguments.seed}: {world.schedule.steps} events in"
        f" {world.schedule.now_us / 1e6:.1f} s of its time, {len(calls)} answers,"
        f" {len(world.ghost.leaders)} leaders, {world.ghost.commit} entries",
        file=sys.stderr,
    )
    return 0


def chunks(arguments: argparse.Namespace) -> Iterator[list[int]]:
    """The seeds to run."""
    first = random.randrange(SEED_MAX) if arguments.first is None else arguments.first
    end = time.monotonic() + 60 * arguments.minutes
    for start in itertools.count(first, CHUNK):
        if arguments.seeds:
            if start >= first + arguments.seeds:
                return
            yield list(range(start, min(start + CHUNK, first + arguments.seeds)))
        elif time.monotonic() >= end:
            return
        else:
            yield list(range(start, start + CHUNK))


def run_many(arguments: argparse.Namespace) -> int:
    """Many seeds on several processors, with a progress bar and the rate."""
    failed: list[Outcome] = []
    done = events = 0
    began = time.monotonic()
    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[rate]}"))
    with (
        ProcessPoolExecutor(arguments.processes) as pool,
        Progress(*columns, disable=not sys.stderr.isatty()) as bar,
    ):
        task = bar.add_task("seeds", total=arguments.seeds or None, rate="")
        for outcomes in results(pool, arguments):
            done += len(outcomes)
            events += sum(outcome.steps for outcome in outcomes)
            rate = 60 * done / (time.monotonic() - began)
            bar.update(task, completed=done, rate=f"{rate:,.0f} seeds a minute")
            for outcome in outcomes:
                if outcome.failure:
                    failed.append(outcome)
                    full = " --full" if arguments.full else ""
                    bar.console.print(f"--seed {outcome.seed}{full}: {outcome.failure}")
            if failed and arguments.stop:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    seconds = time.monotonic() - began
    print(
        f"{done:,} seeds, {events:,} events, {len(failed)} failed; {60 * done / seconds:,.0f}"
        f" seeds a minute, {events / seconds:,.0f} events a second"
    )
    return int(bool(failed))


def results(pool: ProcessPoolExecutor, arguments: argparse.Namespace) -> Iterator[list[Outcome]]:
    """Keep all processes busy without deciding on more seeds than are run soon."""
    waiting = []
    source = chunks(arguments)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            while len(waiting) < QUEUED * arguments.processes:
                seeds = next(source, None)
                if seeds is None:
                    break
                waiting.append(pool.submit(run_chunk, seeds, arguments.full, arguments.steps))
            if not waiting:
                return
            yield waiting.pop(0).result()


if __name__ == "__main__":
    sys.exit(main())

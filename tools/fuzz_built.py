"""Feeds changed inputs to the fuzz targets in the compiled build; `make fuzz-built` runs it.

    fuzz_built.py [--minutes 1] [--corpus build/fuzz] [--seed N] [TARGET ...]

The fuzzer sees coverage only where the sources are interpreted. Here the same targets run as they
are compiled, where bytes are reached by pointers: unguided, but most many times as fast, on
changes of the seeds and of what the fuzzer has left in its corpus. Each target has a process of its
own. The input under test stands in a file that is mapped into memory, so it is still there when
that process dies. Exit status 1 when a target broke.
"""

import argparse
import mmap
import random
import subprocess
import sys
import time
from pathlib import Path

from fuzz.changes import changed
from fuzz.targets import TARGETS

import corvo._fast.codec.fields as built

ONE = "--one-target"
SIZE_MAX = 64 * 1024
_HEAD = 4  # size of the input


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the compiled build, unguided.")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("targets", nargs="*", metavar="TARGET", default=list(TARGETS))
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - TARGETS.keys():
        parser.error(f"no targets: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if not built.__file__.endswith(".so"):
        sys.exit("nothing is compiled here: run `make build` first")
    broken = []
    for name in arguments.targets:
        input_path = arguments.corpus / f"{name}.input"
        input_path.parent.mkdir(parents=True, exist_ok=True)
        input_path.write_bytes(bytes(_HEAD + SIZE_MAX))
        options = [name, str(arguments.corpus), str(arguments.minutes), str(arguments.seed)]
        print(f"{name}: ", end="", flush=True)
        if subprocess.run([sys.executable, __file__, ONE, *options]).returncode:
            stored = input_path.read_bytes()
            kept = arguments.corpus / name / "broken-built"
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(stored[_HEAD : _HEAD + int.from_bytes(stored[:_HEAD], "little")])
            print(f"broken by the input in {kept}")
            broken.append(name)
        input_path.unlink()
    print("broken: " + (", ".join(broken) or "none"))
    return int(bool(broken))


def fuzz(name: str, corpus: Path, minutes: float, seed: int) -> None:
    """Run one target on changed inputs until the time is over."""
    target = TARGETS[name]
    inputs = [*target.seeds]
    inputs += [path.read_bytes()[:SIZE_MAX] for path in sorted((corpus / name).glob("*"))]
    draw = random.Random(f"{seed} {name}")
    runs = 0
    with (corpus / f"{name}.input").open("r+b") as file, mmap.mmap(file.fileno(), 0) as shown:
        began = time.monotonic()
        while time.monotonic() - began < minutes * 60:
            data = changed(draw, draw.choice(inputs), draw.choice(inputs))[:SIZE_MAX]
            shown[_HEAD : _HEAD + len(data)] = data
            shown[:_HEAD] = len(data).to_bytes(_HEAD, "little")
            target.run(data)
            runs += 1
    print(f"{runs:,} inputs in {time.process_time():.0f} s of CPU", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE]:
        fuzz(sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
    else:
        sys.exit(main())

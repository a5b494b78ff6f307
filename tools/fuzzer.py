"""Fuzzes the targets of tests/fuzz one after the other; `make fuzz` runs it.

    fuzzer.py [--minutes 5] [--corpus build/fuzz] [TARGET ...]

Each target runs in a process of its own, guided by coverage of the interpreted sources (atheris).
What it learns is kept in the corpus directory; an input that breaks a target is printed by name
and kept there, too. Exit status 1 when there was one.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["corvo"]):
    from fuzz.targets import TARGETS

ONE = "--one-target"


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz what gets bytes from outside.")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"))
    parser.add_argument("targets", nargs="*", metavar="TARGET", default=list(TARGETS))
    arguments = parser.parse_args()
    broken = []
    for name in arguments.targets:
        corpus = arguments.corpus / name
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(TARGETS[name].seeds):
            (corpus / f"seed-{number}").write_bytes(seed)
        command = [sys.executable, __file__, ONE, name, str(corpus)]
        command += [f"-max_total_time={round(arguments.minutes * 60)}", "-max_len=4096"]
        command += [f"-artifact_prefix={corpus}/broken-", "-print_final_stats=1", "-verbosity=0"]
        print(f"== {name}", flush=True)
        if subprocess.run(command).returncode:
            broken.append(name)
    print("broken: " + (", ".join(broken) or "none"))
    return int(bool(broken))


def fuzz(name: str, arguments: list[str]) -> None:
    """Never returns."""
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name].run)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE]:
        fuzz(sys.argv[2], sys.argv[3:])
    sys.exit(main())

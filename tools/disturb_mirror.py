"""Disturb the mirror of a loaded server in every way, for long, and print what came of it.

python tools/disturb_mirror.py --seconds 60 --kills 50
"""

import argparse
import tempfile
from pathlib import Path

from lib import mirror_faults
from lib.mirror_faults import Row

VOLUME_SIZE = 256 << 20
ROUNDS = 5


def main() -> None:
    """One trial for each fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--only", default="", help="stalled, killed, deleted or no space")
    options = parser.parse_args()
    print(
        "| fault | times | lives | errors | quiet p50 / p99 / p99.9 ms | during | most lag |",
        end="",
    )
    print(" caught up s | jobs equal |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    quiet_s = options.seconds / 4
    faults = [
        ("stalled", mirror_faults.stalled, options.seconds, 1),
        ("killed", mirror_faults.killed, options.kills / ROUNDS, ROUNDS),
        ("deleted", mirror_faults.deleted, options.seconds / ROUNDS, ROUNDS),
    ]
    for name, fault, amount, rounds in faults:
        if options.only not in ("", name):
            continue
        with tempfile.TemporaryDirectory() as path:
            data_dir = Path(path) / "data"
            show(mirror_faults.run(name, fault, amount, data_dir, quiet_s, rounds))
    if options.only not in ("", "no space"):
        return
    with tempfile.TemporaryDirectory() as path:
        data_dir = Path(path) / "data"
        with mirror_faults.small_volume(data_dir, VOLUME_SIZE):
            amount = options.seconds / ROUNDS
            show(
                mirror_faults.run("no space", mirror_faults.full, amount, data_dir, quiet_s, ROUNDS)
            )


def show(row: Row) -> None:
    """A line of the table."""
    quiet, during = (
        " / ".join(f"{took_ms:.2f}" for took_ms in felt) for felt in (row.quiet_ms, row.during_ms)
    )
    counts = f"{row.times} | {row.lives:,} | {row.errors} | {quiet} | {during} | {row.lag}"
    print(f"| {row.fault} | {counts} | {row.caught_up_s:.1f} | {row.jobs:,} |", flush=True)


if __name__ == "__main__":
    main()

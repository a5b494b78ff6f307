"""What many groups cost: time per operation, memory, start.

    python bench/groups.py --groups 1000,100000 --jobs 200000

For each number of groups a state machine over a state store on disk takes that many jobs, spread
over the groups in turn, at most one active job of each. Then entries of 64 fetches, 64 acks and 64
new jobs of the groups just served are applied, with a flush whenever the server would flush. Times
are CPU of this thread per operation, the flush included; each number of groups is measured in turn,
several times, and the smallest time counts. Compare rows of one run with each other.
"""

import argparse
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

from corvo import ops
from corvo._fast.codec.layouts import encode_fields, encode_frame
from corvo.fsm.machine import Machine
from corvo.limits import FLUSH_RECORDS, MIB, SECOND_NS
from corvo.model import Fetched
from corvo.storage.lmdb import StateStore

QUEUE = "groups"
BATCH = 64
ROUNDS = 40
STAMP_NS = 1_760_000_000 * SECOND_NS
STEP_NS = 1_000_000


def anonymous_mb() -> float:
    """Memory of this process that is not backed by a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0


class Subject:
    """A state machine with `groups` groups of jobs."""

    def __init__(self, groups: int, jobs: int, folder: Path) -> None:
        before_mb = anonymous_mb()
        self.groups = groups
        self._state_store = StateStore.open(folder)
        self._machine = Machine(self._state_store)
        self._number = 0
        self.times_us: dict[str, float] = {}
        self.entry([(ops.SET_GROUP_LIMIT, (QUEUE, 1))])
        for start in range(0, jobs, BATCH):
            self.entry([self.enqueue(n % groups) for n in range(start, min(jobs, start + BATCH))])
            self.flush(FLUSH_RECORDS)
        self.flush(1)
        began = time.perf_counter()
        self._machine = Machine(self._state_store)
        self.start_s = time.perf_counter() - began
        gc.collect()
        self.memory_mb = anonymous_mb() - before_mb

    def enqueue(self, group: int) -> tuple[ops.Op, tuple[Any, ...]]:
        """A new job of a group."""
        self._number += 1
        options = encode_fields(
            ops.OPTIONS_LAYOUT,
            (f"tenant-{group}", 0, "", "", 0, b"", [], 0, False, "", 0, 0, b""),
        )
        text = (b"{}", b"", 3, 3, 5_000, 600_000, 0, 0, b"", "", b"", 0, 0, options)
        return ops.ENQUEUE, (f"job_{self._number:026}", QUEUE, 2, *text)

    def entry(self, steps: list[tuple[ops.Op, tuple[Any, ...]]]) -> list[Any]:
        """Apply one entry."""
        machine = self._machine
        index = machine.applied_index + 1
        stamp = encode_fields(ops.STAMP.layout, (STAMP_NS + index * STEP_NS, index))
        frame = [(0, stamp)]
        frame += [(op.number, encode_fields(op.layout, values)) for op, values in steps]
        results = machine.apply(index, 1, encode_frame(frame))
        machine.take_events()
        machine.take_woken()
        return results

    def flush(self, documents: int) -> None:
        """Flush when as much is dirty."""
        if self._machine.write_buffer_records >= documents:
            self._machine.flush()

    def timed(self, name: str, steps: list[tuple[ops.Op, tuple[Any, ...]]]) -> list[Any]:
        """Apply one entry and flush; returns the results."""
        began_ns = time.thread_time_ns()
        results = self.entry(steps)
        self.flush(FLUSH_RECORDS)
        spent_us = (time.thread_time_ns() - began_ns) / 1_000 / len(steps)
        self._sums[name] += spent_us / ROUNDS
        return results

    def measure(self) -> None:
        """One round of measurements."""
        self._sums = dict.fromkeys(("fetch", "ack", "enqueue"), 0.0)
        fetch = (ops.FETCH, ([QUEUE], "w", "h", 60 * SECOND_NS, 8 * MIB))
        for _ in range(ROUNDS):
            jobs: list[Fetched] = self.timed("fetch", [fetch] * BATCH)
            assert None not in jobs
            groups = [self._machine.job(job.job_id).options.group_key for job in jobs]
            self.timed("ack", [(ops.ACK, (job.job_id, job.token, b"", b"", b"")) for job in jobs])
            again = [self.enqueue(int(key.removeprefix("tenant-"))) for key in groups]
            self.timed("enqueue", again)
        for name, time_us in self._sums.items():
            self.times_us[name] = min(time_us, self.times_us.get(name, time_us))

    def row(self) -> list[str]:
        """The row of the table."""
        times = [f"{time_us:.1f}" for time_us in self.times_us.values()]
        return [f"{self.groups:,}", *times, f"{self.memory_mb:.0f}", f"{self.start_s:.2f}"]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--groups", default="1000,100000", help="numbers of groups")
    parser.add_argument("--jobs", type=int, default=200_000, help="waiting jobs")
    parser.add_argument("--repeat", type=int, default=5, help="rounds of measurements")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subjects = [
            Subject(int(groups), arguments.jobs, Path(folder) / groups)
            for groups in arguments.groups.split(",")
        ]
        gc.collect()
        gc.freeze()
        gc.disable()
        for _ in range(arguments.repeat):
            for subject in subjects:
                subject.measure()
        heads = ["groups", "fetch us", "ack us", "enqueue us", "memory MB", "start s"]
        print("| " + " | ".join(heads) + " |")
        print("| " + " | ".join("---:" for _ in heads) + " |")
        for subject in subjects:
            print("| " + " | ".join(subject.row()) + " |")


if __name__ == "__main__":
    main()

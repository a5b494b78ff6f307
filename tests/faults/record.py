"""What clients of a cluster did and were told, in the words of the checker of histories.

A job is known by its payload, the *key*, so that what is said of it before its id is known counts,
too. An enqueue is one call however often it is repeated: it carries an idempotency key, or a unique
one. The moments of calls are nanoseconds of this machine's monotonic clock.

A fetch whose answer was lost may have leased any job, and so may one that a node repeated by
itself; such leases cannot be told apart. Every history gets room for a few.
"""

import threading
import time
from collections import defaultdict
from typing import Any

from sim.histories import Call, History, JobState, is_linearizable, job

HIDDEN_LEASES = 6


class Record:
    """The calls of one round, from any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ids: dict[str, set[str]] = defaultdict(set)  # by key, as producers were told
        self.fetched: dict[str, set[str]] = defaultdict(set)  # by key, as workers were told
        self.begun: set[str] = set()  # keys that somebody tried to enqueue
        self.touched: set[tuple[str, int]] = set()  # attempts that somebody began to use
        self.leases = 0
        self.ends = 0
        self._history = History()

    def invoke(self, key: str, name: str, *arguments: Any) -> int:
        """A client is about to call; the number of the call."""
        with self.lock:
            return self._history.invoke(time.monotonic_ns(), key, name, *arguments)

    def answer(self, number: int, answer: Any, key: str = "") -> None:
        """It was answered."""
        with self.lock:
            self._history.answer(number, time.monotonic_ns(), answer, key)

    def refuse(self, number: int) -> None:
        """It was answered that nothing was done, or it says nothing of any job."""
        with self.lock:
            self._history.refuse(number)

    def enqueued(self, key: str, job_id: str) -> None:
        """A producer was told the id."""
        with self.lock:
            self.ids[key].add(job_id)

    def delivered(self, key: str, job_id: str, attempt: int) -> None:
        """A worker got the job."""
        with self.lock:
            self.fetched[key].add(job_id)
            self.leases += 1

    def touch(self, key: str, attempt: int) -> None:
        """A worker is about to use the lease of this attempt."""
        with self.lock:
            self.touched.add((key, attempt))

    def unexplained(self, final: dict[str, tuple[str, int]]) -> list[str]:
        """Jobs whose calls, and how they were found in the end, no order explains."""
        by_key: dict[str, list[Call]] = defaultdict(list)
        for call in self._history.all_calls():
            if call.key:
                by_key[call.key].append(call)
        now = time.monotonic_ns()
        found = []
        for key, calls in sorted(by_key.items()):
            first = min(call.invoked for call in calls)
            hidden = [Call(key, "fetch", (), None, first)] * HIDDEN_LEASES
            if key in final:
                calls.append(Call(key, "see", (), final[key], now, now + 1))
            if not is_linearizable(calls + hidden, job, JobState()):
                found.append(_story(key, calls))
        return found


def _story(key: str, calls: list[Call]) -> str:
    lines = [f"no order explains the history of {key}:"]
    for call in sorted(calls, key=lambda call: call.invoked):
        returned = "…" if call.is_open else str(call.returned // 1000)
        arguments = ", ".join(map(repr, call.arguments))
        times = f"{call.invoked // 1000:>16} {returned:>16}"
        lines.append(f"    {times}  {call.name}({arguments}) -> {call.answer!r}")
    return "\n".join(lines)

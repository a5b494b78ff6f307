"""Counters of the ops that the leader proposes when something is due."""

from typing import Any

from corvo.errors import CorvoError


class DueCounter:
    """Counts the results of one op: jobs, errors, and the time of the last result."""

    def __init__(self) -> None:
        self.jobs = 0
        self.errors = 0
        self.last_ns = 0

    def done(self, result: Any, now_ns: int) -> None:
        """Count a result: a number of jobs or an error."""
        if isinstance(result, CorvoError):
            self.errors += 1
        elif isinstance(result, int):
            self.jobs += result
            self.last_ns = now_ns

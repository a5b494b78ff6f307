"""Linearizable reads (ReadIndex): a leader confirms its leadership before it serves a read.

Reads wait until the leader has committed an entry of its own term; before that its commit index can
be older than a state that a client has seen. Then all waiting reads share one round: the leader
records the commit index, and every later append has the number of the round. A reply to round n
shows that the member followed the leader after the start of round n, so it confirms all rounds up
to n. When a majority has confirmed the round, its reads may be served once the recorded index is
applied.
"""

from collections import deque
from typing import final


@final
class Read:
    """A request for a read index; `from_id` is empty for a read of the leader itself."""

    __slots__ = ("context", "from_id")

    def __init__(self, context: bytes, from_id: str) -> None:
        self.context = context
        self.from_id = from_id


@final
class ReadRound:
    """Reads that are confirmed together."""

    __slots__ = ("index", "number", "reads")

    def __init__(self, number: int, index: int, reads: list[Read]) -> None:
        self.number = number
        self.index = index
        self.reads = reads


@final
class ReadRounds:
    """The read rounds of one leadership."""

    __slots__ = ("_running", "_waiting", "number")

    def __init__(self) -> None:
        self.number = 0  # number of the newest round
        self._waiting: list[Read] = []
        self._running: deque[ReadRound] = deque()

    def add(self, read: Read) -> None:
        """Add a read to the next round."""
        self._waiting.append(read)

    @property
    def are_waiting(self) -> bool:
        """Whether reads wait for a round."""
        return bool(self._waiting)

    def begin(self, commit: int) -> None:
        """Start a round with all waiting reads."""
        self.number += 1
        self._running.append(ReadRound(self.number, commit, self._waiting))
        self._waiting = []

    def confirmed(self, number: int) -> list[ReadRound]:
        """Remove and return the rounds up to `number`, which a majority has confirmed."""
        confirmed: list[ReadRound] = []
        while self._running and self._running[0].number <= number:
            confirmed.append(self._running.popleft())
        return confirmed

    def drop(self) -> list[Read]:
        """Remove and return all pending reads at the end of the leadership."""
        dropped: list[Read] = []
        for running in self._running:
            dropped += running.reads
        dropped += self._waiting
        self._running.clear()
        self._waiting = []
        return dropped

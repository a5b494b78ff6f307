"""Linearizable reads: a leader makes sure that it still leads before it answers.

Reads wait until the leader has committed an entry of its own term; before, its commit index may
be older than what a client has seen. Then all that wait share one round: the commit index is
noted, and every append from then on carries the number of the round. A member that answers round
n recognises the leader after round n began, so it confirms all rounds up to n, and none after. When
a majority has answered, the reads may be served once the noted index is applied.
"""

from collections import deque
from typing import final


@final
class Read:
    """A request for a read index. `from_id` is empty if it was made on the leader itself."""

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
    """The reads of one leadership."""

    __slots__ = ("_running", "_waiting", "number")

    def __init__(self) -> None:
        self.number = 0  # of the newest round
        self._waiting: list[Read] = []
        self._running: deque[ReadRound] = deque()

    def add(self, read: Read) -> None:
        """Wait for the next round."""
        self._waiting.append(read)

    @property
    def are_waiting(self) -> bool:
        """Whether there is reason to begin a round."""
        return bool(self._waiting)

    def begin(self, commit: int) -> None:
        """Begin a round with all that wait."""
        self.number += 1
        self._running.append(ReadRound(self.number, commit, self._waiting))
        self._waiting = []

    def confirmed(self, number: int) -> list[ReadRound]:
        """A majority has answered this round: the rounds that are over."""
        over: list[ReadRound] = []
        while self._running and self._running[0].number <= number:
            over.append(self._running.popleft())
        return over

    def drop(self) -> list[Read]:
        """The leadership has ended: all that were not answered."""
        dropped: list[Read] = []
        for running in self._running:
            dropped += running.reads
        dropped += self._waiting
        self._running.clear()
        self._waiting = []
        return dropped

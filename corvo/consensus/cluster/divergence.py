"""Whether the nodes of a cluster have the same state.

The state has a rolling hash of all that ever changed (`corvo.fsm`), which is the same on all nodes
after the same entry. Every second each node tells the others which one it has after which entry.
Who hears that compares it with its own after that entry: it still knows those of the newest
entries, and waits for one that it has not applied yet.

A difference is a damaged disk, faulty memory or a fault of ours; it never goes away by itself. It
is told loudly, and all data stays where it is. Who differs from a majority is wrong: it says that
it is not ready, and does not want to lead.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger(__name__)

_KEPT: Final = 4096  # entries whose hash is known; a power of two
NONE: Final = b""


class State(Protocol):
    """What has a hash."""

    @property
    def applied_index(self) -> int: ...
    @property
    def hash(self) -> bytes: ...


class DivergenceCheck:
    """Compares the hash of this node's state with those of others."""

    def __init__(self, state: State, tell: Callable[[int, bytes], None]) -> None:
        """`tell` takes what to say to all others: an index and the hash after it."""
        self._state = state
        self._tell = tell
        self._told_index = -1
        self._known: list[tuple[int, bytes]] = [(-1, NONE)] * _KEPT
        self._awaited: dict[str, tuple[int, bytes]] = {}  # what others have, further on
        self._due_index = 0  # the first of those; 0 = none
        self.compared = 0
        self.mismatches = 0
        self.diverged: dict[str, int] = {}  # nodes whose state differs; after which entry

    def note(self, index: int) -> None:
        """An entry was applied, or the state has jumped to it."""
        self._known[index & (_KEPT - 1)] = (index, self._state.hash)
        if 0 < self._due_index <= index:
            awaited, self._awaited = self._awaited, {}
            self._due_index = 0
            for node_id, (at, hash) in awaited.items():
                self.heard(node_id, at, hash)

    def tick(self) -> None:
        """Tell the others, if there is news."""
        index = self._state.applied_index
        if index != self._told_index:
            self._told_index = index
            self._tell(index, self._state.hash)

    def heard(self, node_id: str, index: int, hash: bytes) -> None:
        """Another node has this hash after that entry."""
        if index > self._state.applied_index:
            if node_id not in self._awaited:
                self._awaited[node_id] = (index, hash)
                self._due_index = min(self._due_index or index, index)
            return
        known_index, own = self._known[index & (_KEPT - 1)]
        if known_index != index:
            return  # too long ago
        self.compared += 1
        if own == hash:
            self.diverged.pop(node_id, None)
            return
        self.mismatches += 1
        if node_id not in self.diverged:
            self.diverged[node_id] = index
            logger.critical(
                "the state differs from that of node %s after entry %d: one of them is damaged",
                node_id,
                index,
            )

    def forget(self, members: list[str]) -> None:
        """Only these nodes belong to the cluster."""
        for node_id in [node_id for node_id in self.diverged if node_id not in members]:
            del self.diverged[node_id]

    def is_wrong(self, voters: list[str]) -> bool:
        """Whether this node differs from a majority of the voters."""
        diverged = sum(voter in self.diverged for voter in voters)
        return diverged > len(voters) // 2

"""Divergence check: whether the nodes of a cluster have the same state.

The state has a rolling hash of all changes (`corvo.fsm`), which is equal on all nodes at the same
index. Every second each node sends its applied index and hash to the others. A node that receives a
hash compares it with its own hash at the same index: it keeps the hashes of the newest entries, and
defers the comparison if it has not applied the entry yet.

A difference means a damaged disk, faulty memory or a bug; it is permanent. It is logged as
CRITICAL; no data is touched. A node that differs from a majority has the wrong state: it reports
that it is not ready, and it does not become leader.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger(__name__)

_KEPT: Final = 4096  # number of hashes kept; a power of two
NONE: Final = b""


class State(Protocol):
    """The state machine, as far as the check needs it."""

    @property
    def applied_index(self) -> int: ...
    @property
    def hash(self) -> bytes: ...


class DivergenceCheck:
    """Compares the state hash of this node with those of other nodes."""

    def __init__(self, state: State, send: Callable[[int, bytes], None]) -> None:
        """`send` sends an index and the hash after it to all other nodes."""
        self._state = state
        self._send = send
        self._sent_index = -1
        self._known: list[tuple[int, bytes]] = [(-1, NONE)] * _KEPT
        self._awaited: dict[str, tuple[int, bytes]] = {}  # node -> hash at an index not applied yet
        self._due_index = 0  # lowest index in `_awaited`; 0 = none
        self.compared = 0
        self.mismatches = 0
        self.diverged: dict[str, int] = {}  # node -> first index with another hash

    def record(self, index: int) -> None:
        """Record the hash at an index after an apply or a restore."""
        self._known[index & (_KEPT - 1)] = (index, self._state.hash)
        if 0 < self._due_index <= index:
            awaited, self._awaited = self._awaited, {}
            self._due_index = 0
            for node_id, (at, hash) in awaited.items():
                self.compare(node_id, at, hash)

    def tick(self) -> None:
        """Send the hash to the other nodes if the index has changed."""
        index = self._state.applied_index
        if index != self._sent_index:
            self._sent_index = index
            self._send(index, self._state.hash)

    def compare(self, node_id: str, index: int, hash: bytes) -> None:
        """Compare the hash of another node at an index with the hash of this node."""
        if index > self._state.applied_index:
            if node_id not in self._awaited:
                self._awaited[node_id] = (index, hash)
                self._due_index = min(self._due_index or index, index)
            return
        known_index, own = self._known[index & (_KEPT - 1)]
        if known_index != index:
            return  # the hash is not kept any more
        self.compared += 1
        if own == hash:
            self.diverged.pop(node_id, None)
            return
        self.mismatches += 1
        if node_id not in self.diverged:
            self.diverged[node_id] = index
            logger.critical(
                "the state differs from node %s after entry %d: one of the two is damaged",
                node_id,
                index,
            )

    def forget(self, members: list[str]) -> None:
        """Forget nodes that are not members any more."""
        for node_id in [node_id for node_id in self.diverged if node_id not in members]:
            del self.diverged[node_id]

    def is_wrong(self, voters: list[str]) -> bool:
        """Whether the state of this node differs from a majority of the voters."""
        diverged = sum(voter in self.diverged for voter in voters)
        return diverged > len(voters) // 2

"""Replication state of one member on the leader.

State       sends                                       until
PROBE       one append, then only heartbeats            the member confirms entries before `next`
REPLICATE   appends while the window has room           an append is rejected, or messages are lost
SNAPSHOT    only heartbeats                             the member confirms, or the transfer fails

Invariant: `match < next`. In PROBE `next` is a guess; in REPLICATE it is ahead of the confirmed
entries.
"""

from collections import deque
from typing import Final, final

PROBE: Final = 0
REPLICATE: Final = 1
SNAPSHOT: Final = 2
STATE_NAMES: Final = ("probe", "replicate", "snapshot")


@final
class Progress:
    """Replication state of one member."""

    __slots__ = (
        "_inflight",
        "_inflight_size",
        "active",
        "commit",
        "heard",
        "heartbeat_due",
        "lost",
        "match",
        "next",
        "node_id",
        "probing",
        "round",
        "session",
        "snapshot_index",
        "state",
    )

    def __init__(self, node_id: str, session: int, next: int) -> None:
        self.node_id = node_id
        # The last index of the log when the member was added or the leader was elected. Replies
        # repeat it, so that a reply from an earlier membership of the node is ignored.
        self.session = session
        self.match = 0  # its log matches and is durable up to this index
        self.next = next  # index of the next entry to send
        self.state = PROBE
        self.probing = False  # PROBE: an append is in flight
        self.snapshot_index = 0  # SNAPSHOT: last index of the snapshot in transfer
        self.commit = 0  # last commit index sent to it
        self.round = 0  # newest read round that it has confirmed
        self.heard = False  # whether it sent a message since the last quorum check
        self.active = False  # whether it sent a message since the check before that
        self.heartbeat_due = True
        # Whether it rejected an entry that it had confirmed. The core only reports this: a member
        # that lost its disk must be removed and joins again as a new member.
        self.lost = False
        self._inflight: deque[tuple[int, int]] = deque()  # last index and size of each append
        self._inflight_size = 0

    @property
    def inflight(self) -> int:
        """Number of appends without a reply."""
        return len(self._inflight)

    def has_window(self, count_max: int, size_max: int) -> bool:
        """Whether another append may be sent."""
        return len(self._inflight) < count_max and self._inflight_size < size_max

    def hear(self) -> None:
        """Record a message of the member."""
        self.heard = self.active = True

    def check(self) -> bool:
        """Whether the member sent a message since the last check."""
        heard = self.active = self.heard
        self.heard = False
        return heard

    def sent(self, last_index: int, size: int) -> None:
        """Record a sent append with entries up to last_index, of `size` bytes."""
        if self.state == PROBE:
            self.probing = True
        else:
            self.next = last_index + 1
            self._inflight.append((last_index, size))
            self._inflight_size += size

    def confirmed(self, index: int) -> bool:
        """Record that the member has everything up to index; return whether `match` advanced."""
        is_new = index > self.match
        if is_new:
            self.match = index
            self.next = max(self.next, index + 1)
            self.probing = False
        if index >= self.match:
            self.lost = False
        inflight = self._inflight
        while inflight and inflight[0][0] <= index:
            self._inflight_size -= inflight.popleft()[1]
        if self.state == PROBE and index >= self.next - 1:
            self.become(REPLICATE)
        return is_new

    def refused(self, index: int, hint: int) -> bool:
        """Handle a rejected append after entry `index`; the logs may match up to `hint`.

        Return False if the reply is outdated, because it does not refer to the last append.
        """
        if self.state == SNAPSHOT or (self.state == PROBE and index != self.next - 1):
            return False
        if index <= self.match:
            if index == self.next - 1 and hint < self.match:
                self.lost = True
            return False
        self.become(PROBE)
        self.next = max(min(index, hint + 1), self.match + 1)
        return True

    def become(self, state: int) -> None:
        """Change the state and forget in-flight appends."""
        self.state = state
        self.probing = False
        self.snapshot_index = 0
        self._inflight.clear()
        self._inflight_size = 0
        if state == PROBE:
            self.next = self.match + 1

    def become_snapshot(self, index: int) -> None:
        """Record that a snapshot that ends at index is in transfer."""
        self.become(SNAPSHOT)
        self.snapshot_index = index
        self.next = index + 1

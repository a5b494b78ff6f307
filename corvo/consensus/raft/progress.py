"""What a leader knows of one other member, and what it may send to it.

State       sends                                       until
PROBE       one append, then only heartbeats            the member confirms all before `next`
REPLICATE   appends as long as the window allows        an append is refused, or messages get lost
SNAPSHOT    only heartbeats                             the member confirms the snapshot, or fails

`match < next`. In PROBE `next` is a guess; in REPLICATE it runs ahead of what is confirmed.
"""

from collections import deque
from typing import Final, final

PROBE: Final = 0
REPLICATE: Final = 1
SNAPSHOT: Final = 2
STATE_NAMES: Final = ("probe", "replicate", "snapshot")


@final
class Progress:
    """One member as the leader sees it."""

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
        # The last entry of the log when the member was added, or the leader elected. Repeated in
        # each reply: one of an earlier stay in the configuration proves nothing.
        self.session = session
        self.match = 0  # its log is known to be durable, and to be ours, up to here
        self.next = next  # the entry to send next
        self.state = PROBE
        self.probing = False  # PROBE: an append is on its way
        self.snapshot_index = 0  # SNAPSHOT: where the one on its way ends
        self.commit = 0  # what it was last told
        self.round = 0  # the newest round of read confirmations that it has answered
        self.heard = False  # since the last check of the quorum
        self.active = False  # heard of since the check before
        self.heartbeat_due = True
        # It has refused what it once confirmed. Nothing is done about it here: a member that
        # lost its disk has to be removed, and comes back as another one.
        self.lost = False
        self._inflight: deque[tuple[int, int]] = deque()  # last index and size of each append
        self._inflight_size = 0

    @property
    def inflight(self) -> int:
        """Appends that are not answered."""
        return len(self._inflight)

    def has_window(self, count_max: int, size_max: int) -> bool:
        """Whether another append may be on its way."""
        return len(self._inflight) < count_max and self._inflight_size < size_max

    def hear(self) -> None:
        """A message of it has come."""
        self.heard = self.active = True

    def check(self) -> bool:
        """Whether it was heard of since this was asked last."""
        heard = self.active = self.heard
        self.heard = False
        return heard

    def sent(self, last_index: int, size: int) -> None:
        """Entries up to last_index have been sent, `size` bytes of them in this append."""
        if self.state == PROBE:
            self.probing = True
        else:
            self.next = last_index + 1
            self._inflight.append((last_index, size))
            self._inflight_size += size

    def confirmed(self, index: int) -> bool:
        """The member has everything up to index. Whether that is news."""
        news = index > self.match
        if news:
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
        return news

    def refused(self, index: int, hint: int) -> bool:
        """The append behind entry `index` was refused; the logs may agree up to `hint`.

        Whether that is news: an answer to something other than what was sent last is not.
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
        """Change the state, forgetting what is on its way."""
        self.state = state
        self.probing = False
        self.snapshot_index = 0
        self._inflight.clear()
        self._inflight_size = 0
        if state == PROBE:
            self.next = self.match + 1

    def become_snapshot(self, index: int) -> None:
        """A snapshot that ends at index is on its way."""
        self.become(SNAPSHOT)
        self.snapshot_index = index
        self.next = index + 1

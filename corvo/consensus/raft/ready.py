"""What the core hands to its driver."""

from typing import Final, final

from corvo.consensus.log import Entry
from corvo.consensus.raft.messages import ConfState, HardState, Message, SnapshotMeta

# Roles.
FOLLOWER: Final = 0
PRE_CANDIDATE: Final = 1  # asks whether it would win, changing nothing
CANDIDATE: Final = 2
LEADER: Final = 3
ROLE_NAMES: Final = ("follower", "pre-candidate", "candidate", "leader")


class Refused(Exception):
    """The node cannot take the proposal now, and nothing of it was kept. Says why."""


@final
class RoleChange:
    """Role, term or leader of this node are not what they were."""

    __slots__ = ("leader_id", "role", "term")

    def __init__(self, role: int, term: int, leader_id: str) -> None:
        self.role = role
        self.term = term
        self.leader_id = leader_id  # empty: unknown

    def __repr__(self) -> str:
        return f"RoleChange({ROLE_NAMES[self.role]}, t{self.term}, leader={self.leader_id!r})"


@final
class ReadState:
    """The answer to `Raft.read_index`: the read may be served from the applied state now.

    `index` 0 means that nobody could confirm it; ask again.
    """

    __slots__ = ("context", "index")

    def __init__(self, context: bytes, index: int) -> None:
        self.context = context
        self.index = index

    def __repr__(self) -> str:
        return f"ReadState({self.context!r}, {self.index})"


@final
class Ready:
    """Work for the driver, in this order:

    1. `messages`: send, in order, without waiting for anything.
    2. `snapshot`, then `entries`, then `hard_state`: start to make them durable, in the order of
       the Readys; when done call `Raft.persisted(number)`. `number` is 0 if there is nothing.
       The first entry may overwrite: entries of the log from its index on are void. A snapshot
       replaces the state machine and the whole log. The hard state comes last because its
       commit index speaks of these entries: a write that is torn must not leave it without them.
    3. `committed`: apply, in order; then call `Raft.applied`.
    """

    __slots__ = (
        "committed",
        "entries",
        "hard_state",
        "messages",
        "number",
        "read_states",
        "role_change",
        "snapshot",
    )

    def __init__(self) -> None:
        self.number = 0
        self.hard_state: HardState | None = None
        self.entries: list[Entry] = []
        self.snapshot: SnapshotMeta | None = None
        self.messages: list[Message] = []
        self.committed: list[Entry] = []
        self.read_states: list[ReadState] = []
        self.role_change: RoleChange | None = None


@final
class PeerStatus:
    """What a leader knows of one other member."""

    __slots__ = ("active", "inflight", "learner", "lost", "match", "next", "snapshot", "state")

    def __init__(
        self,
        *,
        learner: bool,
        state: str,
        match: int,
        next: int,
        inflight: int,
        snapshot: int,
        active: bool,
        lost: bool,
    ) -> None:
        self.learner = learner
        self.state = state
        self.match = match
        self.next = next
        self.inflight = inflight  # appends that are not answered
        self.snapshot = snapshot  # index of the snapshot on the way, 0: none
        self.active = active  # heard of within the last two election time-outs
        self.lost = lost  # it no longer has entries that it had confirmed


@final
class RaftStatus:
    """One node at one moment. `peers` is empty unless it leads."""

    __slots__ = (
        "applied",
        "commit",
        "conf",
        "durable",
        "last_index",
        "leader_id",
        "peers",
        "role",
        "term",
        "transferee",
        "vote",
    )

    def __init__(
        self,
        *,
        role: int,
        term: int,
        vote: str,
        leader_id: str,
        transferee: str,
        last_index: int,
        durable: int,
        commit: int,
        applied: int,
        conf: ConfState,
        peers: dict[str, PeerStatus],
    ) -> None:
        self.role = role
        self.term = term
        self.vote = vote
        self.leader_id = leader_id
        self.transferee = transferee  # who is to lead next; empty: nobody
        self.last_index = last_index
        self.durable = durable
        self.commit = commit
        self.applied = applied
        self.conf = conf
        self.peers = peers

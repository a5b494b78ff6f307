"""Work of the core for its driver, and status of a node."""

from typing import Final, final

from corvo.consensus.log import Entry
from corvo.consensus.raft.messages import ConfState, HardState, Message, SnapshotMeta

# Roles.
FOLLOWER: Final = 0
PRE_CANDIDATE: Final = 1  # requests pre-votes, which change no state
CANDIDATE: Final = 2
LEADER: Final = 3
ROLE_NAMES: Final = ("follower", "pre-candidate", "candidate", "leader")


class Refused(Exception):
    """The node refuses a proposal, without any effect; the text is the reason."""


@final
class RoleChange:
    """New role, term and leader after a change of any of them."""

    __slots__ = ("leader_id", "role", "term")

    def __init__(self, role: int, term: int, leader_id: str) -> None:
        self.role = role
        self.term = term
        self.leader_id = leader_id  # empty: unknown

    def __repr__(self) -> str:
        return f"RoleChange({ROLE_NAMES[self.role]}, t{self.term}, leader={self.leader_id!r})"


@final
class ReadState:
    """Result of `Raft.read_index`: the read may be served from the applied state now.

    `index` 0 means that no leader could confirm the read, so the caller must retry.
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

    1. `messages`: send them in order, without waiting.
    2. `snapshot`, then `entries`, then `hard_state`: start to write them, in the order of the
       Readys, and call `Raft.persisted(number)` when they are durable. `number` is 0 if there is
       nothing to write. The first entry can overwrite: log entries from its index on are void. A
       snapshot replaces the state machine and the whole log. The hard state is last, because its
       commit index refers to these entries: a torn write must not keep it without them.
    3. `committed`: apply them in order, then call `Raft.applied`.
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
    """Replication status of one other member, on the leader."""

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
        self.inflight = inflight  # appends without a reply
        self.snapshot = snapshot  # index of the snapshot in transfer, 0: none
        self.active = active  # sent a message within the last two election timeouts
        self.lost = lost  # it lost entries that it had confirmed


@final
class RaftStatus:
    """Status of one node; `peers` is empty unless the node is the leader."""

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
        self.transferee = transferee  # target of a leadership transfer, or empty
        self.last_index = last_index
        self.durable = durable
        self.commit = commit
        self.applied = applied
        self.conf = conf
        self.peers = peers

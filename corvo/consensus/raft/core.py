"""One node of a Raft cluster, without clock, network or disk."""

from typing import final

from corvo.consensus.raft.config import RaftConfig
from corvo.consensus.raft.membership import Change
from corvo.consensus.raft.messages import ConfState, Message
from corvo.consensus.raft.ready import RaftStatus, Ready
from corvo.consensus.raft.storage import Storage


@final
class Raft:
    """See README.md. One call at a time; every call returns at once.

    The driver's turn: `step` what arrived, `tick` when time has passed, `propose` what clients
    want; then, while `has_ready()`: take `ready()` and do what it says (`Ready`). The calls
    `persisted` and `applied` come when that work is done, in the order in which it was given.
    """

    def __init__(self, config: RaftConfig, storage: Storage, applied: int = 0) -> None:
        """A node as it comes back from a stop: a follower with what `storage` has.

        `applied` is the last entry whose effect the state machine has; entries above it are
        handed out again. It is at least `storage.base().index`. Members are those of the newest
        CONFIGURATION entry in the log, else of the base.
        """

    # Inputs

    def step(self, message: Message) -> None:
        """Take a message that came over the network, addressed to this node."""

    def tick(self) -> None:
        """Some time has passed: the same for every tick."""

    def campaign(self) -> None:
        """Stand for election now, without waiting for the time-out. For a node that starts alone."""

    def propose(self, data: bytes) -> tuple[int, int]:
        """Append an entry; returns its (index, term). Leader only.

        It is committed if it comes back in `Ready.committed` with this term; if another entry
        comes back at this index, it is lost. Raises Refused, with nothing kept: not leader,
        leadership being handed over, too much uncommitted.
        """

    def propose_change(self, change: Change) -> tuple[int, int]:
        """Append the configuration with this change; it is in force at once.

        Raises Refused: as `propose`; also before the leader has committed an entry of its term,
        while an earlier change is not applied, for a learner that lags, for the last voter.
        """

    def read_index(self, context: bytes) -> bool:
        """Ask for a linearizable read; a ReadState with this context follows.

        False if no leader is known. The request, or its answer, may be lost on the way to
        another leader: ask again after a while with a new context.
        """

    def transfer(self, to_id: str) -> None:
        """Hand leadership over to this voter. Proposals are refused until it leads, or for one
        election time-out. Raises Refused: not leader, not a voter."""

    def persisted(self, number: int) -> None:
        """Everything of the Readys up to this number is durable."""

    def applied(self, index: int) -> None:
        """The state machine has applied everything up to index."""

    def snapshot_failed(self, to_id: str) -> None:
        """The snapshot for this member could not be sent, or was refused. Success is learned
        from the member's reply."""

    def unreachable(self, to_id: str) -> None:
        """Messages to this member are being lost: do not pipeline."""

    # Outputs

    def has_ready(self) -> bool:
        """Whether `ready` would give the driver anything to do."""

    def ready(self) -> Ready:
        """What has come up since the last call."""

    def trim_limit(self) -> int:
        """Entries above this index must be kept: members are being sent a snapshot that ends
        here. A very large number if there is none."""

    def status(self) -> RaftStatus:
        """A copy of what operators look at."""

    @property
    def term(self) -> int:
        """Current term."""

    @property
    def role(self) -> int:
        """FOLLOWER, PRE_CANDIDATE, CANDIDATE or LEADER."""

    @property
    def leader_id(self) -> str:
        """Who leads this term; empty: unknown."""

    @property
    def conf(self) -> ConfState:
        """The configuration in force: the newest in the log, committed or not."""

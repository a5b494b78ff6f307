"""Who belongs to the cluster.

One member changes at a time: any majority before the change and any majority after it have a
node in common, so that no joint configuration is needed. A log entry carries the whole new
configuration and is in force as soon as a node has it in its log, committed or not; when the entry
is overwritten, the configuration before it is in force again. Votes, commits, the check of the
quorum and reads all ask the one `conf` of this class.
"""

from typing import Final, final

from corvo.consensus.raft.messages import ConfState
from corvo.consensus.raft.ready import Refused

# Kinds of changes. A node joins as a learner: it must catch up before it may hold up a commit.
ADD_LEARNER: Final = 1
PROMOTE: Final = 2  # a learner that has caught up becomes a voter
REMOVE: Final = 3
UPDATE: Final = 4  # another context of a member


@final
class Change:
    """A wish to change the configuration."""

    __slots__ = ("context", "kind", "node_id")

    def __init__(self, kind: int, node_id: str, context: bytes = b"") -> None:
        self.kind = kind
        self.node_id = node_id
        self.context = context  # of a learner to add, or the new one: see ConfState.contexts


@final
class Membership:
    """The configurations that the log holds, from the newest applied one on."""

    __slots__ = ("_confs", "_indexes", "conf")

    def __init__(self, index: int, conf: ConfState) -> None:
        """`conf` is in force from entry `index` on."""
        self.conf = conf  # the newest
        self._indexes = [index]  # rising; of the entries that brought ...
        self._confs = [conf]  # ... these

    @property
    def index(self) -> int:
        """The entry that brought the configuration in force."""
        return self._indexes[-1]

    def is_voter(self, node_id: str) -> bool:
        """Whether the node decides."""
        return node_id in self.conf.voters

    def may_lead(self, node_id: str) -> bool:
        """Whether the node is a voter, or is until its removal is committed: the entry that
        removes it may be known to nobody else, and then nobody else can win an election."""
        return any(node_id in conf.voters for conf in self._confs)

    def append(self, index: int, conf: ConfState) -> None:
        """A configuration has entered the log."""
        assert index > self._indexes[-1]
        self._indexes.append(index)
        self._confs.append(conf)
        self.conf = conf

    def truncate(self, last_index: int) -> None:
        """Entries above have left the log."""
        while self._indexes[-1] > last_index:
            self._indexes.pop()
            self._confs.pop()
        self.conf = self._confs[-1]

    def restore(self, index: int, conf: ConfState) -> None:
        """A snapshot has replaced the log."""
        self._indexes = [index]
        self._confs = [conf]
        self.conf = conf

    def applied(self, index: int) -> None:
        """Entries up to index cannot leave the log any more."""
        while len(self._indexes) > 1 and self._indexes[1] <= index:
            del self._indexes[0]
            del self._confs[0]


def changed(conf: ConfState, change: Change) -> ConfState:
    """The configuration after the change. Raises Refused if it makes no sense."""
    node_id = change.node_id
    voters = list(conf.voters)
    learners = list(conf.learners)
    contexts = dict(conf.contexts)
    if change.kind == ADD_LEARNER:
        if node_id in contexts:
            raise Refused(f"{node_id!r} is a member already")
        learners.append(node_id)
        contexts[node_id] = change.context
    elif change.kind == PROMOTE:
        if node_id not in learners:
            raise Refused(f"{node_id!r} is not a learner")
        learners.remove(node_id)
        voters.append(node_id)
    elif change.kind == UPDATE:
        if node_id not in contexts:
            raise Refused(f"{node_id!r} is not a member")
        contexts[node_id] = change.context
    elif change.kind == REMOVE:
        if node_id in learners:
            learners.remove(node_id)
        elif node_id not in voters:
            raise Refused(f"{node_id!r} is not a member")
        elif len(voters) == 1:
            raise Refused(f"{node_id!r} is the last voter")
        else:
            voters.remove(node_id)
    else:
        raise Refused(f"unknown kind of change {change.kind}")
    return ConfState(voters, learners, contexts)

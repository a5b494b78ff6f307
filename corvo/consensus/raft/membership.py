"""Membership: the configurations of the cluster.

One member changes at a time: any majority before the change and any majority after it have a node
in common, so joint consensus is not needed. A log entry contains the whole new configuration. It is
in force as soon as the entry is in the log of a node, committed or not; if the entry is
overwritten, the previous configuration is in force again. Votes, commits, the quorum check and
reads all use `Membership.conf`.
"""

from typing import Final, final

from corvo.consensus.raft.messages import ConfState
from corvo.consensus.raft.ready import Refused

# Kinds of changes. A node joins as a learner, so that it catches up before it counts for commits.
ADD_LEARNER: Final = 1
PROMOTE: Final = 2  # a learner that has caught up becomes a voter
REMOVE: Final = 3
UPDATE: Final = 4  # changes the context of a member


@final
class Change:
    """A proposed change of the configuration."""

    __slots__ = ("context", "kind", "node_id")

    def __init__(self, kind: int, node_id: str, context: bytes = b"") -> None:
        self.kind = kind
        self.node_id = node_id
        self.context = context  # of an added or updated member, see ConfState.contexts


@final
class Membership:
    """The configurations in the log, from the newest applied one on."""

    __slots__ = ("_confs", "_indexes", "conf")

    def __init__(self, index: int, conf: ConfState) -> None:
        """`conf` is in force from entry `index` on."""
        self.conf = conf  # the newest
        self._indexes = [index]  # ascending indexes of the CONFIGURATION entries
        self._confs = [conf]  # their configurations

    @property
    def index(self) -> int:
        """Index of the entry with the configuration in force."""
        return self._indexes[-1]

    def is_voter(self, node_id: str) -> bool:
        """Whether the node is a voter."""
        return node_id in self.conf.voters

    def may_lead(self, node_id: str) -> bool:
        """Whether the node is a voter, or its removal is not applied yet.

        A node whose removal is not committed may be the only one with that entry; then no other
        node can win an election."""
        return any(node_id in conf.voters for conf in self._confs)

    def append(self, index: int, conf: ConfState) -> None:
        """Add a configuration that was appended to the log."""
        assert index > self._indexes[-1]
        self._indexes.append(index)
        self._confs.append(conf)
        self.conf = conf

    def truncate(self, last_index: int) -> None:
        """Drop the configurations of truncated entries after last_index."""
        while self._indexes[-1] > last_index:
            self._indexes.pop()
            self._confs.pop()
        self.conf = self._confs[-1]

    def restore(self, index: int, conf: ConfState) -> None:
        """Replace all configurations by that of a snapshot."""
        self._indexes = [index]
        self._confs = [conf]
        self.conf = conf

    def applied(self, index: int) -> None:
        """Drop configurations that cannot come into force again, because index is applied."""
        while len(self._indexes) > 1 and self._indexes[1] <= index:
            del self._indexes[0]
            del self._confs[0]


def changed(conf: ConfState, change: Change) -> ConfState:
    """The configuration after a change. Raises Refused if the change is invalid."""
    node_id = change.node_id
    voters = list(conf.voters)
    learners = list(conf.learners)
    contexts = dict(conf.contexts)
    if change.kind == ADD_LEARNER:
        if node_id in contexts:
            raise Refused(f"{node_id!r} is already a member")
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

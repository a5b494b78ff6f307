"""Who belongs to the cluster."""

from typing import Final, final

# Kinds of changes. One node at a time: any quorum before and any quorum after have a node in
# common, so that no joint configuration is needed.
ADD_LEARNER: Final = 1
PROMOTE: Final = 2  # a learner that has caught up becomes a voter
REMOVE: Final = 3


@final
class Change:
    """A wish to change the configuration."""

    __slots__ = ("context", "kind", "node_id")

    def __init__(self, kind: int, node_id: str, context: bytes = b"") -> None:
        self.kind = kind
        self.node_id = node_id
        self.context = context  # of a learner to add: see ConfState.contexts

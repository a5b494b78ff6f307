"""How a node behaves, as far as it may be chosen. Times are counted in ticks of the driver."""

from typing import Final, final

from corvo.limits import (
    RAFT_APPEND_SIZE_MAX,
    RAFT_APPLYING_SIZE_MAX,
    RAFT_INFLIGHT_MAX,
    RAFT_INFLIGHT_SIZE_MAX,
    RAFT_PROMOTE_LAG_MAX,
    RAFT_UNCOMMITTED_MAX,
    RAFT_UNCOMMITTED_SIZE_MAX,
)

_U64: Final = (1 << 64) - 1


@final
class RaftConfig:
    """Refuses, rather than repairs, what cannot work."""

    def __init__(
        self,
        node_id: str,
        *,
        seed: int,
        election_ticks: int = 10,
        heartbeat_ticks: int = 1,
        append_size_max: int = RAFT_APPEND_SIZE_MAX,
        inflight_max: int = RAFT_INFLIGHT_MAX,
        inflight_size_max: int = RAFT_INFLIGHT_SIZE_MAX,
        uncommitted_max: int = RAFT_UNCOMMITTED_MAX,
        uncommitted_size_max: int = RAFT_UNCOMMITTED_SIZE_MAX,
        applying_size_max: int = RAFT_APPLYING_SIZE_MAX,
        promote_lag_max: int = RAFT_PROMOTE_LAG_MAX,
    ) -> None:
        assert node_id, "a node needs an id"
        assert 0 <= seed <= _U64
        assert 0 < heartbeat_ticks < election_ticks, "several heartbeats fit into a time-out"
        assert inflight_max > 0
        assert uncommitted_max > 0
        self.node_id = node_id
        # Of the election time-outs. Nodes of a cluster need different ones.
        self.seed = seed
        # Without word from a leader for this long, up to twice this long, a node stands for
        # election; for this long after a word from a leader it votes for nobody else; a leader
        # that did not hear from a quorum for this long steps down.
        self.election_ticks = election_ticks
        self.heartbeat_ticks = heartbeat_ticks
        # Bytes of entries in one append. An entry that is larger travels alone.
        self.append_size_max = append_size_max
        # Appends, and bytes of entries in them, on the way to one follower.
        self.inflight_max = inflight_max
        self.inflight_size_max = inflight_size_max
        # Own proposals that are not committed: number and bytes. More are refused.
        self.uncommitted_max = uncommitted_max
        self.uncommitted_size_max = uncommitted_size_max
        # Bytes of committed entries that were handed out and not yet applied. At least one
        # entry is always handed out.
        self.applying_size_max = applying_size_max
        # A learner may be promoted when it lacks at most this many entries.
        self.promote_lag_max = promote_lag_max

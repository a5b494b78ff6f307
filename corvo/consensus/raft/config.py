"""Settings of a Raft node; times are in ticks of the driver."""

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
    """Settings of a node; assertions reject invalid values."""

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
        # Seed of the random election timeouts; it must differ between nodes.
        self.seed = seed
        # Election timeout: without messages of a leader for one to two times this long, a node
        # starts an election. For this long after a message of a leader, it grants no votes. A
        # leader without messages of a quorum for this long steps down.
        self.election_ticks = election_ticks
        self.heartbeat_ticks = heartbeat_ticks
        # Bytes of entries in one append. A larger entry is sent alone.
        self.append_size_max = append_size_max
        # In-flight appends to one follower: number, and bytes of entries.
        self.inflight_max = inflight_max
        self.inflight_size_max = inflight_size_max
        # Uncommitted proposals of a leader: number and bytes. Further ones are refused.
        self.uncommitted_max = uncommitted_max
        self.uncommitted_size_max = uncommitted_size_max
        # Bytes of committed entries that are handed out and not applied. An idle state machine
        # always gets at least one entry.
        self.applying_size_max = applying_size_max
        # A learner may be promoted if it lacks at most this many entries.
        self.promote_lag_max = promote_lag_max

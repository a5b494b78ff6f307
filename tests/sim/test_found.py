"""What the simulator has found: each failing seed, as the shortest story that shows it."""

from raft_cluster import Cluster

from corvo.consensus.raft.membership import REMOVE, Change
from corvo.consensus.raft.ready import LEADER


def test_a_removal_known_only_to_who_is_removed_is_completed() -> None:
    """Seeds 40, 65, 101: B wrote its own removal and stepped down before anybody had the entry.
    Its log was the newest, so A could not win; and it did not stand, for it was no voter."""
    cluster = Cluster("AB")
    cluster.elect("B")
    cluster.lose = lambda message: message.to_id == "A"
    cluster["B"].propose_change(Change(REMOVE, "B"))
    cluster.settle()
    cluster.tick(30)
    assert cluster["B"].role != LEADER
    cluster.lose = lambda message: False
    cluster.tick(200)
    assert cluster.leader() == "A"
    assert cluster["A"].conf.voters == ["A"]

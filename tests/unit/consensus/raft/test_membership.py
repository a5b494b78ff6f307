"""Members join, are promoted and leave, one at a time."""

import pytest
from lib.raft_cluster import ELECTION, Cluster

from corvo.consensus.log import CONFIGURATION, Entry
from corvo.consensus.raft.membership import ADD_LEARNER, PROMOTE, REMOVE, UPDATE, Change, changed
from corvo.consensus.raft.messages import (
    APPEND,
    APPEND_REPLY,
    PRE_VOTE_REPLY,
    SNAPSHOT,
    VOTE_REPLY,
    ConfState,
    Message,
    encode_conf_state,
)
from corvo.consensus.raft.ready import CANDIDATE, FOLLOWER, LEADER, PRE_CANDIDATE, Refused


def grow(cluster: Cluster, leader: str, node_id: str) -> None:
    """Join, catch up, be promoted."""
    cluster.change(leader, ADD_LEARNER, node_id)
    cluster.tick(3)
    cluster.change(leader, PROMOTE, node_id)
    cluster.tick(1)


def test_from_one_node_to_three_and_to_three_others() -> None:
    cluster = Cluster("A", outside="BCDEF")
    cluster.elect("A")
    cluster.propose("A", "x")
    for name in "BC":
        grow(cluster, "A", name)
    assert cluster["C"].conf.voters == ["A", "B", "C"]
    for old, new in zip("CBA", "DEF", strict=True):
        grow(cluster, cluster.leader(), new)
        cluster.change(cluster.leader(), REMOVE, old)
        cluster.settle()
    cluster.tick(ELECTION)
    leader = cluster.leader()
    assert cluster[leader].conf.voters == ["D", "E", "F"]
    cluster.propose(leader, "y")
    assert [cluster.applied(name) for name in "DEF"] == [["x", "y"]] * 3


def test_addresses_are_part_of_the_configuration() -> None:
    cluster = Cluster("A", outside="B")
    cluster.elect("A")
    cluster["A"].propose_change(Change(ADD_LEARNER, "B", b"10.0.0.2:7000"))
    cluster.tick(3)
    cluster.change("A", PROMOTE, "B")
    cluster.tick(1)
    assert cluster["B"].conf.contexts == {"A": b"", "B": b"10.0.0.2:7000"}
    cluster["A"].propose_change(Change(UPDATE, "B", b"10.0.0.3:7000"))
    cluster.tick(3)
    assert cluster["B"].conf.contexts == {"A": b"", "B": b"10.0.0.3:7000"}
    assert cluster["A"].conf.voters == ["A", "B"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Change(ADD_LEARNER, "A"), "is already a member"),
        (Change(ADD_LEARNER, "L"), "is already a member"),
        (Change(PROMOTE, "A"), "is not a learner"),
        (Change(PROMOTE, "Z"), "is not a learner"),
        (Change(REMOVE, "Z"), "is not a member"),
        (Change(UPDATE, "Z"), "is not a member"),
        (Change(REMOVE, "A"), "is the last voter"),
        (Change(9, "A"), "unknown kind"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(change: Change, why: str) -> None:
    with pytest.raises(Refused, match=why):
        changed(ConfState(["A"], ["L"]), change)


def test_a_lagging_learner_is_not_promoted() -> None:
    """The quorum stays as it is until the newcomer has the snapshot and nearly all of the log."""
    cluster = Cluster("AB", outside="C", promote_lag_max=3, inflight_max=1, append_size_max=1)
    cluster.elect("A")
    cluster.propose("A", *"abcdefgh")
    cluster.compact("A", 4)
    cluster.lose = lambda m: m.to_id == "C"
    cluster.change("A", ADD_LEARNER, "C")
    with pytest.raises(Refused, match="not caught up"):
        cluster.change("A", PROMOTE, "C")
    cluster.lose = lambda m: m.type == APPEND and bool(m.entries) and m.to_id == "C"
    cluster.tick(2)
    assert cluster["C"].log.last_index() == 4
    with pytest.raises(Refused, match="not caught up"):
        cluster.change("A", PROMOTE, "C")
    cluster.lose = lambda m: False
    cluster.tick(3)
    cluster.change("A", PROMOTE, "C")
    cluster.tick(1)
    assert cluster["C"].conf.voters == ["A", "B", "C"]


# Which configuration


def test_no_change_before_the_leader_knows_what_is_committed() -> None:
    """Two leaders of four nodes remove different members: only one change is ever committed."""
    cluster = Cluster("ABCD")
    cluster.elect("A")
    cluster.cut = ["A"]
    cluster["A"].propose_change(Change(REMOVE, "D"))
    cluster.collect()
    cluster.lose = lambda m: m.type == APPEND and bool(m.entries)
    cluster.elect("B")
    with pytest.raises(Refused, match="no entry of this term is committed"):
        cluster["B"].propose_change(Change(REMOVE, "C"))
    cluster.lose = lambda m: False
    cluster.tick(1)
    cluster.change("B", REMOVE, "C")
    cluster.cut = []
    cluster.tick(4 * ELECTION)
    for name in "ABD":
        assert cluster[name].conf.voters == ["A", "B", "D"]


def test_one_change_at_a_time_until_it_is_applied() -> None:
    cluster = Cluster("ABC", outside="D")
    cluster.elect("A")
    cluster.nodes["A"].apply_hangs = True
    cluster.settle()
    cluster.change("A", ADD_LEARNER, "D")
    assert cluster["A"].log.commit == 2
    with pytest.raises(Refused, match="the previous change"):
        cluster.change("A", REMOVE, "C")
    cluster.nodes["A"].apply_hangs = False
    cluster.settle()
    cluster.change("A", REMOVE, "C")
    assert cluster["A"].conf.members == ["A", "B", "D"]


def test_an_overwritten_configuration_is_void() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.cut = ["A"]
    cluster["A"].propose_change(Change(REMOVE, "C"))
    cluster.collect()
    assert cluster["A"].conf.voters == ["A", "B"]
    cluster.elect("B")
    cluster.cut = []
    cluster.tick(2)
    assert cluster["A"].conf.voters == ["A", "B", "C"]
    cluster.elect("A")
    cluster.change("A", REMOVE, "B")
    assert cluster["A"].conf.voters == ["A", "C"]


def test_a_removed_leader_does_not_count_itself() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.lose = lambda m: m.to_id in "BC" and bool(m.entries)
    cluster.change("A", REMOVE, "A")
    assert cluster["A"].role == LEADER, "it leads until the others have the change"
    cluster.lose = lambda m: m.to_id == "C" and bool(m.entries)
    cluster.tick(2)
    assert cluster["A"].log.commit == 1, "B alone is no majority of B and C"
    assert cluster["A"].role == LEADER
    cluster.lose = lambda m: False
    cluster.tick(2)
    assert cluster["A"].role == FOLLOWER
    assert cluster.leader() in ("B", "C"), "and hands over"
    assert cluster[cluster.leader()].conf.voters == ["B", "C"]
    cluster.tick(3 * ELECTION)
    assert cluster["A"].role == FOLLOWER


def test_the_newest_log_may_be_on_a_node_that_is_removed() -> None:
    """A has its own removal in its log, B lacks it: only A can win, and finish it."""
    cluster = Cluster("AB")
    cluster.elect("A")
    cluster.cut = ["B"]
    cluster.change("A", REMOVE, "A")
    cluster.tick(2 * ELECTION)
    assert cluster["A"].role != LEADER
    cluster.cut = []
    cluster.tick(5 * ELECTION)
    assert cluster.leader() == "B"
    assert cluster["B"].conf.voters == ["B"]
    assert cluster["A"].role == FOLLOWER


def test_elections_go_by_the_newest_configuration() -> None:
    """Four members in the log, three of them in the applied part: two votes are not enough."""
    cluster = Cluster("ABC", outside="D")
    cluster.set_log("A", "1", term=1)
    node = cluster.nodes["A"]
    conf = ConfState(["A", "B", "C", "D"])
    node.storage.append([Entry(2, 1, encode_conf_state(conf), CONFIGURATION)])
    node.start()
    raft = cluster["A"]
    raft.campaign()
    cluster.deliver(Message(PRE_VOTE_REPLY, "A", from_id="B", term=2))
    assert raft.role == PRE_CANDIDATE
    cluster.deliver(Message(PRE_VOTE_REPLY, "A", from_id="D", term=2))
    assert raft.role == CANDIDATE
    cluster.collect()
    cluster.deliver(Message(VOTE_REPLY, "A", from_id="B", term=2))
    assert raft.role == CANDIDATE
    cluster.deliver(Message(VOTE_REPLY, "A", from_id="D", term=2))
    assert raft.role == LEADER


def test_votes_of_nodes_outside_the_configuration_do_not_count() -> None:
    """A node that lost its disk comes back under another id, and is nobody till it is added."""
    cluster = Cluster("ABC")
    cluster["A"].campaign()
    for stranger in ("B.2", "C.2"):
        cluster["A"].step(Message(PRE_VOTE_REPLY, "A", from_id=stranger, term=1))
    assert cluster["A"].role == PRE_CANDIDATE


def test_a_reply_from_an_earlier_membership_is_ignored() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.propose("A", *"abcdefgh")
    cluster["A"].tick()
    cluster.collect()
    for message in [m for m in cluster.wire if m.to_id == "C"]:
        cluster.wire.remove(message)
        cluster.deliver(message)
    cluster.collect()
    (old,) = [m for m in cluster.take_messages(APPEND_REPLY) if m.from_id == "C"]
    assert old.index == 9
    cluster.change("A", REMOVE, "C")
    cluster.lose = lambda m: m.to_id == "C"
    cluster.change("A", ADD_LEARNER, "C")
    cluster.lose = lambda m: False
    assert cluster["A"].term == old.term
    cluster.deliver(old)
    assert cluster["A"].status().peers["C"].match == 0
    cluster.nodes["C"].storage = type(cluster.nodes["C"].storage)(cluster.conf)
    cluster.nodes["C"].applied.clear()
    cluster.nodes["C"].start()
    cluster.tick(3)
    assert cluster["C"].log.last_index() == cluster["A"].log.last_index()


def test_a_learner_that_joins_changes_no_quorum() -> None:
    cluster = Cluster("AB", outside="C")
    cluster.elect("A")
    cluster.cut = ["C"]
    cluster.change("A", ADD_LEARNER, "C")
    cluster.propose("A", "x")
    assert cluster.applied("A") == cluster.applied("B") == ["x"]


def test_removing_a_slow_voter_commits_what_waited_for_it() -> None:
    cluster = Cluster("AB")
    cluster.elect("A")
    cluster.cut = ["B"]
    cluster.propose("A", "x")
    assert cluster.applied("A") == []
    cluster.change("A", REMOVE, "B")
    assert cluster.applied("A") == ["x"]


def test_removing_a_learner_ends_its_snapshot() -> None:
    cluster = Cluster("A", outside="B")
    cluster.elect("A")
    cluster.propose("A", *"abcd")
    cluster.compact("A", 4)
    cluster.lose = lambda m: m.type == SNAPSHOT
    cluster.change("A", ADD_LEARNER, "B")
    cluster.tick(2)
    assert cluster["A"].trim_limit() == 4
    cluster.change("A", REMOVE, "B")
    assert cluster["A"].trim_limit() > 1 << 60
    cluster["A"].snapshot_failed("B")
    cluster["A"].unreachable("B")


def test_status() -> None:
    cluster = Cluster("AB", learners="C")
    cluster.elect("A")
    cluster.propose("A", "x")
    cluster.cut = ["C"]
    cluster.propose("A", "y")
    status = cluster["A"].status()
    assert (status.role, status.term, status.vote, status.leader_id) == (LEADER, 1, "A", "A")
    assert (status.last_index, status.durable, status.commit, status.applied) == (3, 3, 3, 3)
    assert (status.conf.voters, status.conf.learners) == (["A", "B"], ["C"])
    assert (status.transferee, list(status.peers)) == ("", ["B", "C"])
    b, c = status.peers["B"], status.peers["C"]
    assert (b.learner, b.state, b.match, b.next, b.inflight) == (False, "replicate", 3, 4, 0)
    assert (c.learner, c.state, c.match, c.next, c.inflight) == (True, "replicate", 2, 4, 1)
    assert (b.snapshot, b.active, b.lost) == (0, True, False)
    follower = cluster["B"].status()
    assert (follower.role, follower.leader_id, follower.peers) == (FOLLOWER, "A", {})

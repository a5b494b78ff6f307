"""Terms, votes, leaders, and the transfer of leadership."""

import pytest
from lib.raft_cluster import ELECTION, Cluster

from corvo.consensus.raft.membership import PROMOTE, REMOVE
from corvo.consensus.raft.messages import (
    APPEND,
    APPEND_REPLY,
    PRE_VOTE,
    PRE_VOTE_REPLY,
    TIMEOUT_NOW,
    VOTE,
    VOTE_REPLY,
    HardState,
    Message,
)
from corvo.consensus.raft.ready import CANDIDATE, FOLLOWER, LEADER, Refused


def vote(from_id: str, to_id: str, term: int, log_term: int = 0, index: int = 0) -> Message:
    return Message(VOTE, to_id, from_id=from_id, term=term, log_term=log_term, index=index)


def grant(from_id: str, to_id: str, term: int) -> Message:
    return Message(VOTE_REPLY, to_id, from_id=from_id, term=term)


# The hard state


def test_vote_is_durable_before_it_leaves() -> None:
    cluster = Cluster()
    a = cluster.nodes["A"]
    a.disk_hangs = True
    cluster.deliver(vote("B", "A", 5))
    assert cluster.take_messages(VOTE_REPLY) == []
    a.flush()
    (reply,) = cluster.take_messages(VOTE_REPLY)
    assert not reply.reject
    cluster.crash("A")
    cluster.deliver(vote("C", "A", 5))
    (reply,) = cluster.take_messages(VOTE_REPLY)
    assert reply.reject


def test_a_vote_lost_in_a_crash_was_never_sent() -> None:
    cluster = Cluster()
    cluster.nodes["A"].disk_hangs = True
    cluster.deliver(vote("B", "A", 5))
    cluster.collect()
    cluster.crash("A")
    cluster.nodes["A"].disk_hangs = False
    cluster.deliver(vote("C", "A", 5))
    assert [reply.to_id for reply in cluster.take_messages(VOTE_REPLY)] == ["C"]


@pytest.mark.parametrize("flushed", range(4))
def test_term_and_vote_are_one_write(flushed: int) -> None:
    """A crash after any number of writes: the vote is on disk, or it was not given."""
    cluster = Cluster()
    cluster.set_log("A", "1 1", term=5, vote="C")
    a = cluster.nodes["A"]
    a.disk_hangs = True
    cluster.deliver(vote("B", "A", 6, log_term=1, index=2))
    cluster.collect()
    for _ in range(min(flushed, len(a.writes))):
        a.flush()
        cluster.collect()
    granted = cluster.take_messages(VOTE_REPLY)
    on_disk = (a.storage.state.term, a.storage.state.vote)
    assert on_disk == ((6, "B") if granted else (5, "C"))


@pytest.mark.parametrize("kind", ["pre-vote", "vote", "append", "transfer"])
def test_nothing_leaves_before_term_and_vote_are_durable(kind: str) -> None:
    cluster = Cluster()
    cluster.elect("B")
    a = cluster.nodes["A"]
    a.disk_hangs = True
    term = cluster["A"].term
    if kind == "pre-vote":
        cluster.expire()
        cluster["A"].campaign()
        cluster.collect()
        assert cluster.sent(PRE_VOTE) == 2  # asks without having changed anything
        cluster.deliver(Message(PRE_VOTE_REPLY, "A", from_id="C", term=term + 1))
    elif kind == "vote":
        cluster.expire()
        cluster.deliver(vote("C", "A", term + 1, log_term=term, index=1))
    elif kind == "append":
        append = Message(APPEND, "A", from_id="C", term=term + 1, index=1, log_term=term)
        cluster.deliver(append)
    else:
        cluster.deliver(Message(TIMEOUT_NOW, "A", from_id="B", term=term))
    cluster.wire.clear()
    cluster.collect()
    assert cluster.wire == []
    while a.writes:
        a.flush()
    cluster.collect()
    assert cluster.wire


def test_vote_survives_a_step_down_in_its_term() -> None:
    cluster = Cluster()
    cluster.set_log("A", "", term=4)
    cluster["A"].campaign()
    cluster.deliver(Message(PRE_VOTE_REPLY, "A", from_id="C", term=5))
    assert (cluster["A"].role, cluster["A"].term) == (CANDIDATE, 5)
    cluster.deliver(Message(APPEND, "A", from_id="B", term=5))
    assert (cluster["A"].role, cluster["A"].vote) == (FOLLOWER, "A")
    cluster["A"].leader_id = ""
    cluster.take_messages(VOTE, PRE_VOTE)
    cluster.deliver(vote("C", "A", 5))
    (reply,) = cluster.take_messages(VOTE_REPLY)
    assert reply.reject


def test_own_vote_counts_when_it_is_durable() -> None:
    cluster = Cluster()
    a = cluster.nodes["A"]
    cluster["A"].campaign()
    a.disk_hangs = True
    cluster.deliver(Message(PRE_VOTE_REPLY, "A", from_id="B", term=1))
    cluster.collect()
    assert cluster.sent(VOTE) == 0
    cluster.deliver(grant("B", "A", 1))
    assert cluster["A"].role == CANDIDATE
    a.flush()
    assert cluster["A"].role == LEADER


# Elections


def test_the_last_term_counts_before_the_length() -> None:
    cluster = Cluster()
    cluster.set_log("A", "1 1 1 1 1 1 1 1 1")
    cluster.set_log("B", "1 2")
    cluster.deliver(vote("A", "B", 3, log_term=1, index=9))
    cluster.deliver(vote("B", "A", 3, log_term=2, index=2))
    replies = cluster.take_messages(VOTE_REPLY)
    assert {reply.from_id: reply.reject for reply in replies} == {"B": True, "A": False}


def test_a_late_grant_of_an_older_term_is_ignored() -> None:
    cluster = Cluster()
    cluster.set_log("A", "", term=5)
    cluster["A"].campaign()
    cluster.deliver(Message(PRE_VOTE_REPLY, "A", from_id="B", term=6))
    cluster.collect()
    assert (cluster["A"].role, cluster["A"].term) == (CANDIDATE, 6)
    cluster.deliver(grant("C", "A", 5))
    assert cluster["A"].role == CANDIDATE


def test_a_grant_counts_once() -> None:
    cluster = Cluster("ABCDE")
    cluster["A"].campaign()
    for name in "BC":
        cluster.deliver(Message(PRE_VOTE_REPLY, "A", from_id=name, term=1))
    cluster.collect()
    assert cluster["A"].role == CANDIDATE
    for _ in range(3):
        cluster.deliver(grant("B", "A", 1))
    assert cluster["A"].role == CANDIDATE
    cluster.deliver(grant("C", "A", 1))
    assert cluster["A"].role == LEADER


def test_a_pre_vote_changes_nothing() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.cut = ["A"]
    for _ in range(2 * ELECTION):
        ask = Message(PRE_VOTE, "B", from_id="C", term=2, log_term=1, index=1)
        cluster.deliver(ask)
        cluster["B"].tick()
    assert cluster["B"].role != FOLLOWER, "stands for election in its own time"


def test_a_node_in_a_higher_term_rejoins_the_cluster() -> None:
    cluster = Cluster()
    cluster.set_log("C", "1", term=9)
    cluster.cut = ["C"]
    cluster.set_log("A", "1 1", term=4)
    cluster.set_log("B", "1 1", term=4)
    cluster.elect("A")
    cluster.cut = []
    cluster.tick(5 * ELECTION)
    leader = cluster.leader()
    assert leader in ("A", "B")
    cluster.propose(leader, "x")
    assert cluster.applied("C") == cluster.applied(leader)


def test_a_candidate_follows_a_leader_whose_append_does_not_fit() -> None:
    cluster = Cluster()
    cluster.set_log("A", "1", term=4)
    cluster["A"].campaign()
    cluster.deliver(Message(PRE_VOTE_REPLY, "A", from_id="C", term=5))
    assert cluster["A"].role == CANDIDATE
    cluster.collect()
    cluster.deliver(Message(APPEND, "A", from_id="B", term=5, index=7, log_term=3))
    (reply,) = cluster.take_messages(APPEND_REPLY)
    assert reply.reject
    assert (cluster["A"].role, cluster["A"].leader_id) == (FOLLOWER, "B")


def test_a_leader_that_reaches_no_majority_steps_down() -> None:
    """A reaches only B; B, C, D and E reach each other."""
    cluster = Cluster("ABCDE")
    cluster.elect("A")
    cluster.lose = lambda m: "A" in (m.from_id, m.to_id) and "B" not in (m.from_id, m.to_id)
    cluster.tick(2 * ELECTION)
    assert cluster["A"].role == FOLLOWER, "no heartbeats after two time-outs"
    with pytest.raises(Refused):
        cluster["A"].propose(b"x")
    cluster.tick(ELECTION)
    assert cluster.leader() in ("B", "C", "D", "E")


def test_an_isolated_leader_steps_down() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.cut = ["A"]
    cluster.tick(2 * ELECTION)
    with pytest.raises(Refused, match="not the leader"):
        cluster["A"].propose(b"x")
    cluster.lost.clear()
    cluster.tick(3)
    assert not [m for m in cluster.lost if m.type == APPEND]


def test_a_removed_node_does_not_disturb_the_cluster() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.lose = lambda m: m.to_id == "C"
    cluster.change("A", REMOVE, "C")
    cluster.lose = lambda m: False
    term = cluster["A"].term
    cluster.tick(100 * ELECTION)
    assert (cluster.leader(), cluster["A"].term, cluster["B"].term) == ("A", term, term)


def test_learners_neither_campaign_nor_count() -> None:
    cluster = Cluster("AB", learners="CD")
    cluster.tick(4 * ELECTION, names="CD")
    assert [cluster[name].role for name in "CD"] == [FOLLOWER, FOLLOWER]
    assert cluster["C"].term == 0
    cluster.elect("A")
    cluster.cut = ["B"]
    cluster.propose("A", "x")
    assert cluster.applied("A") == []
    cluster.cut = []
    cluster.tick(1)
    assert cluster.applied("A") == cluster.applied("C") == ["x"]


def test_a_promoted_learner_votes_before_it_has_the_configuration() -> None:
    cluster = Cluster("AB", learners="C")
    cluster.elect("A")
    cluster.tick(1)
    cluster.lose = lambda m: m.to_id == "C"
    cluster.change("A", PROMOTE, "C")
    assert cluster["B"].conf.voters == ["A", "B", "C"]
    assert cluster["C"].conf.voters == ["A", "B"]
    cluster.lose = lambda m: False
    cluster.cut = ["A"]
    cluster.elect("B")


def test_an_isolated_node_rejoins_without_an_election() -> None:
    cluster = Cluster()
    cluster.elect("A")
    term = cluster["A"].term
    cluster.cut = ["C"]
    cluster.propose("A", "x", "y")
    cluster.tick(100 * ELECTION)
    cluster.cut = []
    cluster.tick(2)
    assert (cluster.leader(), cluster["A"].term, cluster["B"].term) == ("A", term, term)
    assert cluster.applied("C") == ["x", "y"]


def test_a_node_that_hears_its_leader_elects_no_other() -> None:
    """C has lost the leader, and only the leader."""
    cluster = Cluster()
    cluster.elect("A")
    cluster.lose = lambda m: {m.from_id, m.to_id} == {"A", "C"}
    cluster.tick(10 * ELECTION)
    assert (cluster.leader(), cluster["A"].term) == ("A", 1)


def test_simultaneous_candidates_elect_a_leader() -> None:
    """A leader within ten time-outs every time, within two for half of the seeds."""
    needed: list[int] = []
    for seed in range(40):
        cluster = Cluster("ABCDE")
        for number, node in enumerate(cluster.nodes.values()):
            node.config.seed = 1000 * seed + number
            node.start()
        ticks = 0
        while not cluster.leader():
            cluster.tick()
            ticks += 1
        needed.append(ticks)
    assert max(needed) <= 10 * ELECTION
    assert sorted(needed)[len(needed) // 2] <= 2 * ELECTION


def test_a_leader_whose_disk_hangs_steps_down() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.nodes["A"].disk_hangs = True
    cluster.propose("A", "x")
    cluster.tick(2 * ELECTION)
    assert cluster["A"].role == FOLLOWER
    cluster.cut = ["B", "C"]
    cluster.tick(4 * ELECTION)
    assert cluster["A"].role == FOLLOWER, "and does not stand while the disk hangs"
    cluster.nodes["A"].disk_hangs = False
    cluster.cut = []
    cluster.tick(4 * ELECTION)
    assert cluster.leader()


# Handing over


def test_transfer_to_a_voter_that_lags() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.lose = lambda m: m.to_id == "B"
    cluster.propose("A", "x", "y")
    cluster.lose = lambda m: False
    cluster["A"].transfer("B")
    with pytest.raises(Refused, match="transfer to 'B'"):
        cluster["A"].propose(b"z")
    cluster.tick(2)
    assert cluster.leader() == "B"
    assert cluster.applied("B") == ["x", "y"]


def test_a_transfer_skips_the_election_timeout() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster["A"].transfer("C")
    cluster.settle()
    assert cluster.leader() == "C"


@pytest.mark.parametrize("to_id", ["A", "D", "Z"])
def test_transfer_to_itself_a_learner_or_an_unknown_node_is_rejected(to_id: str) -> None:
    cluster = Cluster("ABC", learners="D")
    cluster.elect("A")
    with pytest.raises(Refused, match="not another voter"):
        cluster["A"].transfer(to_id)
    cluster.propose("A", "x")
    assert cluster.applied("A") == ["x"]


def test_a_transfer_to_a_dead_node_ends() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.cut = ["B"]
    cluster["A"].transfer("B")
    cluster.tick(ELECTION)
    cluster.propose("A", "x")
    assert cluster.applied("A") == ["x"]


def test_only_the_leader_of_this_term_can_start_a_transfer_election() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.elect("B")
    term = cluster["C"].term
    cluster.deliver(Message(TIMEOUT_NOW, "C", from_id="A", term=term - 1))
    cluster.deliver(Message(TIMEOUT_NOW, "C", from_id="A", term=term))
    cluster.settle()
    assert (cluster["C"].role, cluster["C"].term) == (FOLLOWER, term)


# Alone


def test_one_voter_leads_at_once() -> None:
    cluster = Cluster("A")
    cluster["A"].campaign()
    cluster.settle()
    assert cluster["A"].role == LEADER
    cluster.propose("A", "x")
    assert cluster.applied("A") == ["x"]
    cluster.crash("A")
    assert cluster.nodes["A"].storage.state.term == 1
    cluster["A"].campaign()
    cluster.settle()
    assert (cluster["A"].role, cluster["A"].term) == (LEADER, 2)


def test_a_node_without_members_waits() -> None:
    cluster = Cluster("AB", outside="C")
    cluster.tick(5 * ELECTION, names="C")
    assert (cluster["C"].role, cluster["C"].term) == (FOLLOWER, 0)


def test_a_message_for_somebody_else_is_ignored() -> None:
    cluster = Cluster()
    cluster["A"].step(vote("C", "B", 7))
    assert cluster["A"].term == 0
    assert not cluster["A"].has_ready()


def test_the_hard_state_on_disk_never_goes_back() -> None:
    cluster = Cluster()
    seen = HardState()
    for name in "ABCAB":
        cluster.elect(name)
        state = cluster.nodes["C"].storage.state
        assert (state.term, state.commit) >= (seen.term, seen.commit)
        seen = state

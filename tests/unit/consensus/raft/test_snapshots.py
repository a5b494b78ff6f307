"""Followers whose next entry is not in the log of the leader any more."""

from lib.raft_cluster import ELECTION, Cluster

from corvo.consensus.raft.membership import ADD_LEARNER
from corvo.consensus.raft.messages import (
    APPEND,
    APPEND_REPLY,
    SNAPSHOT,
    ConfState,
    Message,
    SnapshotMeta,
)


def offer(cluster: Cluster, term: int, index: int, log_term: int) -> Message:
    snapshot = SnapshotMeta(index, log_term, cluster.conf)
    return Message(SNAPSHOT, "B", from_id="A", term=term, snapshot=snapshot, session=7)


def stranded(cluster: Cluster, count: int = 8) -> None:
    """A leads, B has missed so much that A has cut it off its log."""
    cluster.elect("A")
    cluster.cut = ["B"]
    cluster.propose("A", *(f"x{i}" for i in range(count)))
    cluster.compact("A", count)
    cluster.cut = []


def test_a_stranded_follower_gets_the_snapshot_then_the_log() -> None:
    cluster = Cluster()
    stranded(cluster)
    cluster.tick(2)
    assert cluster["B"].log.first_index() == 9
    assert cluster.applied("B") == ["x7"]
    assert cluster["A"].status().peers["B"].state == "replicate"


def test_b36_a_contradicting_entry_goes() -> None:
    cluster = Cluster()
    cluster.set_log("B", "1 1 1 1 1 1 1 1 1 4 4", term=5)
    cluster.deliver(offer(cluster, 5, 10, 5))
    (reply,) = cluster.take_messages(APPEND_REPLY)
    assert (reply.reject, reply.index) == (False, 10)
    assert cluster["B"].log.last_index() == 10
    cluster.deliver(Message(APPEND, "B", from_id="A", term=5, index=10, log_term=5))
    (reply,) = cluster.take_messages(APPEND_REPLY)
    assert (reply.reject, reply.index) == (False, 10)


def test_b37_what_lies_behind_the_snapshot_stays() -> None:
    cluster = Cluster()
    cluster.set_log("B", "1 " * 20, term=1)
    cluster.deliver(offer(cluster, 1, 10, 1))
    (reply,) = cluster.take_messages(APPEND_REPLY)
    assert reply.index >= 10
    assert cluster["B"].log.last_index() == 20
    assert cluster["B"].log.commit == 10


def test_b38_an_old_snapshot_is_ignored() -> None:
    cluster = Cluster()
    cluster.set_log("B", "1 " * 30, term=1)
    heartbeat = Message(APPEND, "B", from_id="A", term=1, index=30, log_term=1, commit=30)
    cluster.deliver(heartbeat)
    cluster.take_messages(APPEND_REPLY)
    cluster.deliver(offer(cluster, 1, 25, 1))
    (reply,) = cluster.take_messages(APPEND_REPLY)
    assert reply.index == 30
    assert cluster["B"].log.commit == 30
    assert len(cluster.applied("B")) == 30


def test_b39_a_snapshot_knows_the_members() -> None:
    cluster = Cluster("AB", outside="C")
    cluster.elect("A")
    cluster.propose("A", *"abcd")
    cluster.cut = ["C"]
    cluster.change("A", ADD_LEARNER, "C")
    cluster.compact("A", cluster["A"].log.last_index())
    cluster.cut = []
    cluster.tick(2)
    assert cluster["C"].conf.members == ["A", "B", "C"]
    cluster.crash("C")
    assert cluster["C"].conf.members == ["A", "B", "C"]


def test_b40_a_snapshot_on_its_way_is_not_replaced() -> None:
    """New snapshots come faster than one can be sent."""
    cluster = Cluster()
    stranded(cluster)
    cluster.lose = lambda m: m.type == SNAPSHOT
    cluster.tick(2)
    (first,) = [m for m in cluster.lost if m.type == SNAPSHOT]
    assert first.snapshot is not None
    assert cluster["A"].trim_limit() == first.snapshot.index
    cluster.nodes["A"].storage.offered = cluster.snapshot("A", 9)
    for _ in range(3):
        cluster.propose("A", "more")
        cluster.compact("A", cluster["A"].log.last_index())
        cluster.tick(2)
    assert sum(m.type == SNAPSHOT for m in cluster.lost) == 1
    cluster.lose = lambda m: False
    cluster.deliver(first)
    cluster.tick(3)
    assert cluster.nodes["B"].applied_index == cluster["A"].log.commit


def test_f20_a_log_that_keeps_what_is_needed_needs_one_snapshot() -> None:
    cluster = Cluster()
    stranded(cluster)
    cluster.lose = lambda m: m.type == SNAPSHOT
    cluster.tick(2)
    for _ in range(3):
        cluster.propose("A", "more")
        cluster.tick(1)
    limit = cluster["A"].trim_limit()
    assert limit == 8
    (first,) = [m for m in cluster.lost if m.type == SNAPSHOT]
    cluster.lose = lambda m: False
    cluster.deliver(first)
    cluster.tick(2)
    assert cluster.applied("B") == ["x7", "more", "more", "more"]
    assert cluster["A"].trim_limit() > 1 << 60


def test_f20_a_short_absence_needs_no_snapshot() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.propose("A", *"abcd")
    cluster.compact("A", 3)
    cluster.cut = ["B"]
    cluster.propose("A", *"efgh")
    cluster.cut = []
    cluster.lose = lambda m: m.type == SNAPSHOT
    cluster.tick(3)
    assert cluster.applied("B") == list("abcdefgh")
    assert not [m for m in cluster.lost if m.type == SNAPSHOT]


def test_a_failed_snapshot_is_sent_again() -> None:
    cluster = Cluster()
    stranded(cluster)
    cluster.lose = lambda m: m.type == SNAPSHOT
    cluster.tick(2)
    for count in (2, 3):
        cluster["A"].snapshot_failed("B")
        cluster.tick(2)
        assert sum(m.type == SNAPSHOT for m in cluster.lost) == count
    cluster["A"].snapshot_failed("B")
    cluster.lose = lambda m: False
    cluster.tick(2)
    assert cluster.nodes["B"].applied_index == cluster["A"].log.commit


def test_no_snapshot_for_a_node_that_is_not_heard_of() -> None:
    cluster = Cluster()
    stranded(cluster)
    cluster.cut = ["B"]
    cluster.tick(3 * ELECTION)
    assert not [m for m in cluster.lost if m.type == SNAPSHOT]


def test_b41_the_log_begins_right_behind_the_snapshot() -> None:
    """Nothing is kept below the snapshot; the follower lacks only the last entry."""
    cluster = Cluster()
    cluster.elect("A")
    cluster.propose("A", *"abcd")
    cluster.lose = lambda m: m.to_id == "B" and bool(m.entries)
    cluster.propose("A", "e")
    cluster.lose = lambda m: False
    cluster.compact("A", 5)
    cluster.nodes["A"].applied_index = 5
    cluster.crash("A")
    cluster.elect("A")
    cluster.nodes["A"].storage.offered = None
    cluster.tick(2)
    assert cluster.applied("B") == list("abcde")


def test_b69_a_snapshot_overtakes_the_apply() -> None:
    cluster = Cluster()
    cluster.elect("A")
    b = cluster.nodes["B"]
    b.apply_hangs = True
    cluster.propose("A", *"abcdefgh")
    cluster.tick(1)
    assert b.to_apply
    cluster.cut = ["B"]
    cluster.propose("A", *"ijkl")
    cluster.compact("A", 12)
    cluster.cut = []
    cluster.tick(2)
    assert b.applied_index == 12
    assert [entry.index for entry in b.to_apply] == [13]
    cluster["B"].applied(5)  # the last that was under way is done
    assert cluster["B"].applied_index == 12
    b.apply_hangs = False
    cluster.settle()
    assert b.applied_index == 13


def test_f21_a_crash_while_the_snapshot_is_installed_leaves_the_old_state() -> None:
    cluster = Cluster()
    stranded(cluster)
    b = cluster.nodes["B"]
    b.disk_hangs = True
    cluster.tick(2)
    assert b.writes
    assert cluster["B"].log.commit == 8
    assert cluster["B"].applied_index == 1
    assert cluster["A"].status().peers["B"].state == "snapshot"
    cluster.crash("B")
    assert cluster["B"].log.last_index() == 1
    b.disk_hangs = False
    cluster["A"].snapshot_failed("B")
    cluster.tick(2)
    assert b.applied_index == 9


def test_a_node_does_not_stand_while_it_restores() -> None:
    cluster = Cluster()
    cluster.nodes["B"].disk_hangs = True
    cluster.deliver(offer(cluster, 1, 10, 1))
    cluster.collect()
    cluster["B"].campaign()
    assert cluster["B"].role == 0


def test_a_snapshot_may_replace_a_snapshot() -> None:
    cluster = Cluster()
    b = cluster.nodes["B"]
    b.disk_hangs = True
    cluster.deliver(offer(cluster, 1, 10, 1))
    cluster.collect()
    cluster.deliver(offer(cluster, 1, 20, 1))
    cluster.collect()
    b.flush()
    assert cluster["B"].log.last_index() == 20
    assert cluster["B"].applied_index < 20
    b.flush()
    cluster.collect()
    assert cluster["B"].applied_index == 20
    assert [m.index for m in cluster.take_messages(APPEND_REPLY)] == [10, 20]


def test_a_configuration_in_the_base_is_in_force_after_a_restart() -> None:
    cluster = Cluster("AB")
    node = cluster.nodes["A"]
    node.storage.install(SnapshotMeta(4, 1, ConfState(["A", "B", "C"])))
    node.start()
    assert cluster["A"].conf.voters == ["A", "B", "C"]

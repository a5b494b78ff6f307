"""Reads that see everything that was committed before they began."""

from lib.raft_cluster import ELECTION, Cluster

from corvo.consensus.raft.messages import APPEND, APPEND_REPLY, READ_INDEX_REPLY
from corvo.consensus.raft.ready import FOLLOWER


def reads(cluster: Cluster, name: str) -> list[tuple[bytes, int]]:
    """The answers so far."""
    return [(read.context, read.index) for read in cluster.nodes[name].reads]


def test_f7_reads_on_the_leader_and_on_a_follower() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.propose("A", "x")
    assert cluster["A"].read_index(b"a")
    assert cluster["B"].read_index(b"b")
    cluster.settle()
    assert reads(cluster, "A") == [(b"a", 2)]
    assert reads(cluster, "B") == [(b"b", 2)]


def test_f7_reads_of_one_turn_share_a_round() -> None:
    cluster = Cluster()
    cluster.elect("A")
    for context in (b"1", b"2", b"3"):
        cluster["A"].read_index(context)
    assert len(cluster.take_messages(APPEND)) == 2


def test_f7_no_leader_no_read() -> None:
    cluster = Cluster()
    assert not cluster["A"].read_index(b"a")


def test_f7_a_single_node_answers_at_once() -> None:
    cluster = Cluster("A")
    cluster.elect("A")
    cluster["A"].read_index(b"a")
    cluster.settle()
    assert reads(cluster, "A") == [(b"a", 1)]


def test_f7_a_leader_that_is_none_any_more_answers_nothing() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.cut = ["A"]
    cluster["A"].read_index(b"a")
    cluster.settle()
    cluster.elect("B")
    cluster.propose("B", "x")
    cluster.tick(ELECTION)
    assert reads(cluster, "A") == []
    cluster.cut = []
    cluster.tick(2)
    assert cluster["A"].role == FOLLOWER
    assert reads(cluster, "A") == [(b"a", 0)]


def test_f7_a_follower_is_told_when_nobody_can_confirm() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.lose = lambda m: m.type == APPEND_REPLY
    cluster["B"].read_index(b"b")
    cluster.tick(2 * ELECTION - 1)
    cluster.lose = lambda m: m.type == READ_INDEX_REPLY and not m.reject
    cluster.tick(ELECTION)
    assert reads(cluster, "B") in ([], [(b"b", 0)])


def test_f7_a_lost_round_is_confirmed_by_the_next_heartbeat() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.lose = lambda m: m.type == APPEND
    cluster["A"].read_index(b"a")
    cluster.settle()
    assert reads(cluster, "A") == []
    cluster.lose = lambda m: False
    cluster.tick(1)
    assert reads(cluster, "A") == [(b"a", 1)]


def test_b50_a_new_leader_waits_for_its_first_commit() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.lose = lambda m: m.from_id == "A" and m.to_id == "B"
    cluster.propose("A", "x")
    cluster.lose = lambda m: m.from_id == "A"
    cluster.propose("A", "y")
    assert cluster["C"].log.commit == 2 - 0
    cluster.lose = lambda m: m.type == APPEND and bool(m.entries)
    cluster.cut = ["A"]
    cluster.elect("C")
    cluster["C"].read_index(b"c")
    cluster.tick(2)
    assert reads(cluster, "C") == []
    cluster.lose = lambda m: False
    cluster.tick(2)
    assert reads(cluster, "C") == [(b"c", cluster["C"].log.commit)]
    assert cluster["C"].log.commit > 2


def test_b51_an_answer_to_an_earlier_round_confirms_no_later_read() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster["A"].read_index(b"1")
    for message in cluster.take_messages(APPEND):
        cluster.deliver(message)
    delayed = cluster.take_messages(APPEND_REPLY)
    cluster.cut = ["A"]
    cluster.elect("B")
    cluster.propose("B", "x")
    cluster["A"].read_index(b"2")
    cluster.settle()
    cluster.cut = []
    for message in delayed:
        cluster.deliver(message)
    cluster.cut = ["A"]
    cluster.collect()
    assert reads(cluster, "A") == [(b"1", 1)]


def test_b53_a_read_waits_for_the_apply() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.nodes["B"].apply_hangs = True
    cluster.propose("A", "x")
    cluster.tick(1)
    cluster["B"].read_index(b"b")
    cluster.settle()
    assert reads(cluster, "B") == []
    cluster.nodes["B"].apply_hangs = False
    cluster.settle()
    assert reads(cluster, "B") == [(b"b", 2)]
    assert cluster.applied("B") == ["x"]

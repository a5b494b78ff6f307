"""How entries get to the followers, and when they are committed and applied."""

import pytest
from lib.raft_cluster import ELECTION, Cluster

from corvo.consensus.log import Entry
from corvo.consensus.raft.messages import APPEND, APPEND_REPLY, Message
from corvo.consensus.raft.ready import FOLLOWER, LEADER, Refused


def append(
    to_id: str,
    term: int,
    index: int,
    log_term: int,
    *terms: int,
    from_id: str = "A",
    commit: int = 0,
) -> Message:
    """Entries of these terms behind (log_term/index)."""
    entries = [Entry(index + 1 + i, t, b"%d" % t) for i, t in enumerate(terms)]
    return Message(
        APPEND,
        to_id,
        from_id=from_id,
        term=term,
        index=index,
        log_term=log_term,
        entries=entries,
        commit=commit,
    )


# Commit


def test_figure_8() -> None:
    """An entry of an older term on a majority can still be overwritten."""
    cluster = Cluster("ABCDE")
    # A led term 2 and reached only B; E led term 3 and reached nobody.
    for name, terms in {"A": "1 2", "B": "1 2", "C": "1", "D": "1", "E": "1 3"}.items():
        cluster.set_log(name, terms, term=4 if name == "E" else 3)
    # A leads term 4. Its own first entry gets lost, 2/2 gets to C: a majority has it.
    cluster.cut = ["D", "E"]
    cluster.lose = lambda m: any(entry.term == 4 for entry in m.entries)
    for node in cluster.nodes.values():
        node.config.append_size_max = 1
    cluster.elect("A")
    cluster.tick(3)
    assert cluster.nodes["C"].log() == "1/1 2/2"
    assert cluster["A"].log.commit < 2
    # So E may still win and overwrite it.
    cluster.lose = lambda m: False
    cluster.cut = ["A"]
    cluster.crash("A")
    cluster.elect("E")
    cluster.cut = []
    cluster.tick(2)
    for name in "ABCDE":
        assert cluster.nodes[name].log().startswith("1/1 3/2")
        assert cluster.applied(name) == cluster.applied("E")


def test_older_entries_are_committed_with_the_first_of_the_term() -> None:
    cluster = Cluster()
    for name in "ABC":
        cluster.set_log(name, "1 1")
    cluster.nodes["A"].disk_hangs = False
    cluster.lose = lambda m: m.type == APPEND and bool(m.entries)
    cluster.elect("A")
    assert cluster.applied("A") == []
    cluster.lose = lambda m: False
    cluster.tick(2)
    assert cluster.applied("A") == ["1/1", "1/2"]


def test_a_follower_commits_only_entries_that_an_append_has_confirmed() -> None:
    cluster = Cluster()
    cluster.set_log("B", "1 1 1 1 1 1 1 1", term=2)
    cluster.deliver(append("B", 2, 4, 1, commit=8))
    assert cluster["B"].log.commit == 4


def test_a_single_node_commits_after_its_flush() -> None:
    cluster = Cluster("A")
    cluster["A"].campaign()
    cluster.settle()
    cluster.nodes["A"].disk_hangs = True
    cluster.propose("A", "x")
    assert cluster.applied("A") == []
    assert cluster["A"].log.commit == 1
    cluster.crash("A")
    assert cluster.nodes["A"].log() == "1/1"


def test_apply_waits_for_the_local_disk() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.nodes["A"].disk_hangs = True
    cluster.propose("A", "x")
    cluster.tick(1)
    assert cluster["A"].log.commit == 2, "the others have it"
    assert cluster.applied("B") == ["x"]
    assert cluster.applied("A") == []
    cluster.nodes["A"].disk_hangs = False
    cluster.settle()
    assert cluster.applied("A") == ["x"]


def test_leader_and_followers_write_in_parallel() -> None:
    """The append leaves before the leader's own flush; its own vote counts after it."""
    cluster = Cluster()
    cluster.elect("A")
    cluster.nodes["A"].disk_hangs = True
    cluster["A"].propose(b"x")
    appends = cluster.take_messages(APPEND)
    assert [len(m.entries) for m in appends] == [1, 1]
    cluster.deliver(appends[0])
    cluster.settle()
    assert cluster["A"].log.commit == 1
    cluster.nodes["A"].flush()
    assert cluster["A"].log.commit == 2


def test_a_commit_index_beyond_the_log_is_limited() -> None:
    cluster = Cluster()
    cluster.set_log("A", "1 1 1 1 1", term=1)
    cluster.nodes["A"].storage.state.commit = 9
    cluster.nodes["A"].start()
    assert cluster["A"].log.commit == 5
    cluster.set_log("B", "1 1 1 1 1 1 1 1 1")
    cluster.set_log("C", "1 1 1 1 1 1 1 1 1")
    cluster.elect("B")
    assert cluster["A"].log.commit == 10


def test_the_term_is_at_least_that_of_the_log() -> None:
    """A crash has left the entries of a write, and not the term behind them."""
    cluster = Cluster()
    cluster.set_log("A", "1 1 4", term=3, vote="B")
    assert (cluster["A"].term, cluster["A"].vote) == (4, "")
    cluster.elect("A")
    assert cluster["A"].term == 5


# Appending


def test_a_late_append_truncates_nothing() -> None:
    cluster = Cluster()
    cluster.deliver(append("B", 1, 0, 0, 1, 1, 1, 1, 1))
    cluster.deliver(append("B", 1, 0, 0, 1, 1))
    assert cluster.nodes["B"].log() == "1/1 1/2 1/3 1/4 1/5"


def test_conflict_cuts_what_follows() -> None:
    cluster = Cluster()
    cluster.deliver(append("B", 1, 0, 0, 1, 1, 1, 1))
    cluster.collect()
    cluster.deliver(append("B", 2, 1, 1, 2, from_id="C"))
    cluster.collect()
    assert cluster.nodes["B"].log() == "1/1 2/2"
    assert cluster.nodes["B"].storage.last_index() == 2


def test_a_duplicate_of_what_is_being_written_waits_for_it() -> None:
    cluster = Cluster()
    b = cluster.nodes["B"]
    b.disk_hangs = True
    for _ in range(2):
        cluster.deliver(append("B", 1, 0, 0, 1, 1))
        assert cluster.take_messages(APPEND_REPLY) == []
    b.disk_hangs = False
    assert [reply.index for reply in cluster.take_messages(APPEND_REPLY)] == [2, 2]


def test_completion_of_an_old_write_does_not_confirm_a_new_one() -> None:
    """3/3 is written, overwritten by 4/3, and comes back, while the first write is on its way."""
    cluster = Cluster()
    cluster.set_log("B", "1 1", term=5)
    b = cluster.nodes["B"]
    b.disk_hangs = True
    cluster.deliver(append("B", 5, 2, 1, 3, from_id="A"))
    cluster.collect()
    cluster.deliver(append("B", 6, 2, 1, 4, from_id="C"))
    cluster.collect()
    cluster.deliver(append("B", 7, 2, 1, 3, from_id="A"))
    cluster.collect()
    assert len(b.writes) == 3
    b.flush()
    assert cluster["B"].log.durable == 2
    b.flush()
    cluster.deliver(append("B", 7, 3, 3, from_id="A", commit=3))
    assert cluster["B"].log.durable == 2
    assert [m.index for m in cluster.take_messages(APPEND_REPLY) if m.term == 7] == []
    b.flush()
    cluster.collect()
    assert cluster["B"].log.durable == 3
    assert cluster.nodes["B"].applied[3].term == 3


def test_heartbeats_are_answered_while_the_disk_hangs() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.nodes["B"].disk_hangs = cluster.nodes["C"].disk_hangs = True
    cluster.propose("A", "x")
    cluster.tick(5 * ELECTION)
    assert cluster["A"].role == LEADER
    assert cluster["A"].log.commit == 1, "and prove no more than what is on disk"


# Where logs part


@pytest.mark.parametrize(
    ("leader", "follower", "rounds"),
    [
        ("1 1 1", "1", 2),
        ("1 1 1 4 4 4 4", "1 1 1 2 2 2 2", 3),
        ("1 1 1 4 4 5 5 6 6 6", "1 1 1 4 4", 2),
        ("1 1 1 4 4 5 5 6 6 6", "1 1 1 4 4 4 4", 3),
        ("1 1 1 4 4 5 5 6 6 6", "1 1 1 2 2 2 3 3 3 3 3", 4),
        ("1 2 3 4 5 6", "1 1 1 1 1 1 1 1", 3),
        ("1 1 1 1 1 1 1 9", "1 2 3 4 5 6 7 8", 3),
    ],
)
def test_a_rejection_skips_a_whole_term(leader: str, follower: str, rounds: int) -> None:
    cluster = Cluster()
    cluster.set_log("A", leader, term=9)
    cluster.set_log("B", follower, term=9)
    cluster.set_log("C", leader, term=9)
    refused = 0
    cluster.lose = lambda m: m.type == APPEND and m.to_id == "B"
    cluster.elect("A")
    cluster.lose = lambda m: False
    for node in cluster.nodes.values():
        node.raft.tick()
    for _ in range(1000):
        cluster.collect()
        if not cluster.wire:
            break
        message = cluster.wire.pop(0)
        refused += message.type == APPEND_REPLY and message.reject
        cluster.deliver(message)
    assert cluster.nodes["B"].log() == cluster.nodes["A"].log()
    assert refused <= rounds


def test_many_conflicts_with_appends_of_one_entry() -> None:
    cluster = Cluster(append_size_max=1)
    cluster.set_log("A", "1 " * 24 + "3", term=3)
    cluster.set_log("B", "1 " * 24 + "2 " * 100, term=2)
    cluster.set_log("C", "1 " * 24 + "3", term=3)
    cluster.lose = lambda m: "B" in (m.from_id, m.to_id)
    cluster.elect("A")
    delivered = 0
    cluster.lose = lambda m: False
    cluster["A"].tick()
    for _ in range(1000):
        cluster.collect()
        if not cluster.wire:
            break
        message = cluster.wire.pop(0)
        delivered += "B" in (message.from_id, message.to_id)
        cluster.deliver(message)
    assert cluster.nodes["B"].log() == cluster.nodes["A"].log()
    assert delivered <= 20, "ten there and ten back"


def test_a_probe_that_confirms_nothing_new_ends_the_probing() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster["A"].unreachable("B")
    cluster.tick(1)
    assert cluster["A"].status().peers["B"].state == "replicate"


def test_a_follower_that_lost_its_log_is_detected() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.propose("A", "x", "y")
    b = cluster.nodes["B"]
    b.storage = type(b.storage)(cluster.conf)
    b.applied.clear()
    b.start()
    cluster.tick(5)
    assert cluster["B"].log.last_index() == 0
    status = cluster["A"].status().peers
    assert (status["B"].lost, status["C"].lost) == (True, False)
    assert cluster.leader() == "A"


def test_a_late_rejection_does_not_lower_next_below_match() -> None:
    cluster = Cluster()
    cluster.elect("A")
    cluster.propose("A", *"abcdefghi")
    peer = cluster["A"].status().peers["B"]
    assert (peer.match, peer.next) == (10, 11)
    late = Message(APPEND_REPLY, "A", from_id="B", term=1, index=6, reject=True, reject_hint=3)
    late.session = 1
    cluster.deliver(late)
    peer = cluster["A"].status().peers["B"]
    assert (peer.match, peer.next) == (10, 11)


# Flow


def test_pipeline_up_to_the_window() -> None:
    cluster = Cluster(inflight_max=4, append_size_max=1)
    cluster.elect("A")
    for text in "abcdefgh":
        cluster["A"].propose(text.encode())
    cluster.collect()
    assert cluster.sent(APPEND) == 2 * 4
    assert cluster["A"].status().peers["B"].inflight == 4
    cluster.settle()
    assert cluster.applied("A") == list("abcdefgh")


def test_pipeline_up_to_the_bytes() -> None:
    cluster = Cluster(inflight_size_max=3, append_size_max=1)
    cluster.elect("A")
    for text in "abcdefgh":
        cluster["A"].propose(text.encode())
    cluster.collect()
    assert cluster["A"].status().peers["B"].inflight == 3


def test_lost_replies_free_the_window() -> None:
    cluster = Cluster(inflight_max=4, append_size_max=1)
    cluster.elect("A")
    cluster.lose = lambda m: m.type == APPEND_REPLY
    for text in "abcdefgh":
        cluster["A"].propose(text.encode())
    cluster.settle()
    assert cluster["A"].status().peers["B"].inflight == 4
    cluster.lose = lambda m: False
    cluster.tick(2)
    assert cluster["A"].status().peers["B"].inflight == 0
    assert cluster.applied("A") == list("abcdefgh")


def test_lost_appends_are_sent_again() -> None:
    cluster = Cluster(append_size_max=1)
    cluster.elect("A")
    cluster.lose = lambda m: m.type == APPEND and bool(m.entries)
    cluster.propose("A", *"abcd")
    cluster.lose = lambda m: False
    cluster.tick(2)
    assert cluster.applied("B") == list("abcd")


def test_proposals_of_one_turn_share_a_message() -> None:
    cluster = Cluster()
    cluster.elect("A")
    for text in "abcd":
        cluster["A"].propose(text.encode())
    appends = cluster.take_messages(APPEND)
    assert [len(m.entries) for m in appends] == [4, 4]


def test_without_a_quorum_the_tail_is_bounded() -> None:
    cluster = Cluster(uncommitted_max=5, uncommitted_size_max=100)
    cluster.elect("A")
    cluster.cut = ["B", "C"]
    with pytest.raises(Refused, match="too many entries are uncommitted"):
        cluster.propose("A", *"abcdefgh")
    assert cluster["A"].log.last_index() == 1 + 5
    cluster.cut = []
    cluster.tick(2)
    cluster.propose("A", "z" * 90)
    assert cluster.applied("B") == [*"abcde", "z" * 90]


def test_the_tail_is_bounded_in_bytes() -> None:
    cluster = Cluster(uncommitted_size_max=100)
    cluster.elect("A")
    cluster.cut = ["B", "C"]
    cluster.propose("A", "y" * 200)
    with pytest.raises(Refused):
        cluster.propose("A", "z")


def test_a_slow_state_machine_gets_bounded_batches() -> None:
    cluster = Cluster(applying_size_max=3)
    cluster.elect("A")
    b = cluster.nodes["B"]
    b.apply_hangs = True
    cluster.propose("A", *"abcdefgh")
    cluster.tick(1)
    assert sum(len(entry.data) for entry in b.to_apply) <= 3
    assert cluster.applied("A") == list("abcdefgh"), "nobody else waits"
    assert not cluster["B"].has_ready(), "and the node itself does not spin"
    b.apply_hangs = False
    cluster.settle()
    assert cluster.applied("B") == list("abcdefgh")


def test_an_apply_backlog_disturbs_no_election() -> None:
    cluster = Cluster()
    cluster.elect("A")
    for node in cluster.nodes.values():
        node.apply_hangs = True
    cluster.propose("A", *("x" for _ in range(300)))
    cluster.tick(5 * ELECTION)
    assert (cluster.leader(), cluster["A"].term) == ("A", 1)
    for node in cluster.nodes.values():
        node.apply_hangs = False
    cluster.settle()
    assert len(cluster.applied("C")) == 300


def test_only_a_leader_takes_proposals() -> None:
    cluster = Cluster()
    cluster.elect("A")
    assert cluster["B"].role == FOLLOWER
    with pytest.raises(Refused, match="not the leader; the leader is A"):
        cluster["B"].propose(b"x")

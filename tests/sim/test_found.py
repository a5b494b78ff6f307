"""What the simulator has found: each failing seed, as the shortest story that shows it."""

from lib.raft_cluster import Cluster
from sim.world import World

from corvo.consensus.driver import Driver, Write
from corvo.consensus.log import Entry
from corvo.consensus.raft.config import RaftConfig
from corvo.consensus.raft.core import Raft
from corvo.consensus.raft.membership import REMOVE, Change
from corvo.consensus.raft.messages import (
    APPEND,
    READ_INDEX,
    READ_INDEX_REPLY,
    SNAPSHOT,
    ConfState,
    Message,
    SnapshotMeta,
    encode_message,
)
from corvo.consensus.raft.ready import LEADER, RoleChange
from corvo.consensus.raft.storage import MemoryStorage


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


class _Shell:
    """Writes nothing down, and keeps what is to be sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.writes: list[int] = []

    def send(self, messages: list[Message]) -> None:
        self.sent += messages

    def write(self, write: Write) -> None:
        self.writes.append(write.number)

    def install(self, meta: SnapshotMeta) -> None:
        pass

    def restore(self, meta: SnapshotMeta) -> bool:
        return True

    def apply(self, entries: list[Entry]) -> None:
        pass

    def role_changed(self, change: RoleChange) -> None:
        pass

    def apply_soon(self) -> None:
        pass


def test_the_answer_to_a_read_before_a_restart_is_not_taken_for_one_behind_it() -> None:
    """Seed 105556: B asked A for a read and lost power. It was up again before A's answer came,
    which confirmed the first read of its new life by an index older than an answered write."""
    asked: list[bytes] = []
    answers: list[bool] = []
    for seed in (1, 2):
        ports = _Shell()
        core = Raft(RaftConfig("B", seed=seed), MemoryStorage(ConfState(["A", "B"])), 0)
        driver = Driver(core, ports, 0)
        core.step(Message(APPEND, "B", from_id="A", term=1))
        driver.turn()
        driver.written(ports.writes[0])
        driver.read(answers.append)
        asked += [message.context for message in ports.sent if message.type == READ_INDEX]
    for context, expected in zip(asked, ([], [False]), strict=True):
        reply = Message(READ_INDEX_REPLY, "B", from_id="A", term=1, reject=True, context=context)
        core.step(reply)
        driver.turn()
        assert answers == expected


def test_a_paused_node_that_is_killed_has_failed_the_snapshot_that_waited_for_it() -> None:
    """Seed 717584, a fault of the simulator: n2 was paused when the snapshot came, and was killed
    before it went on. Nobody told the leader, which sent nothing but heartbeats from then on."""
    world = World(1)
    target = world.nodes["n2"]
    failed: list[tuple[str, str]] = []
    world.tell_snapshot_failed = lambda *who: failed.append(who)  # type: ignore[method-assign]
    target.start()
    target.pause()
    meta = SnapshotMeta(20, 3, ConfState(["n1"], ["n2"]))
    message = Message(SNAPSHOT, "n2", from_id="n1", term=3, snapshot=meta)
    target.deliver((encode_message(message), b""))
    assert failed == []
    target.stop()
    assert failed == [("n1", "n2")]

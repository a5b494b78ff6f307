"""A cluster of cores in the hands of a test: who hears what, whose disk is done, who is dead.

Nothing happens by itself. `settle` delivers and flushes until nothing is left to do; before it a
test says who is cut off, whose disk hangs and which messages get lost. Every step checks what must
always hold: one leader in a term, one vote in a term, and the same entries applied by all.
"""

from collections.abc import Callable

from corvo.consensus.log import CONFIGURATION, FRAME, Entry
from corvo.consensus.raft.config import RaftConfig
from corvo.consensus.raft.core import Raft
from corvo.consensus.raft.membership import Change
from corvo.consensus.raft.messages import (
    TYPE_NAMES,
    VOTE_REPLY,
    ConfState,
    HardState,
    Message,
    SnapshotMeta,
    decode_conf_state,
    decode_message,
    encode_message,
)
from corvo.consensus.raft.ready import LEADER, ReadState, Ready
from corvo.consensus.raft.storage import MemoryStorage

ELECTION = 10
SETTLE_STEPS = 10_000


class Node:
    """One member: its core, its disk, and what it has applied."""

    def __init__(self, node_id: str, conf: ConfState, seed: int, options: dict[str, int]) -> None:
        self.node_id = node_id
        self.config = RaftConfig(node_id, seed=seed, election_ticks=ELECTION, **options)
        self.storage = MemoryStorage(conf)
        self.disk_hangs = False
        self.apply_hangs = False
        self.writes: list[Ready] = []  # not durable
        self.to_apply: list[Entry] = []
        self.applied: dict[int, Entry] = {}
        self.reads: list[ReadState] = []
        self.start()

    def start(self) -> None:
        self.applied_index = self.storage.base().index
        self.raft = Raft(self.config, self.storage, self.applied_index)

    def flush(self) -> None:
        """The oldest write is on disk now."""
        ready = self.writes.pop(0)
        if ready.snapshot is not None:
            self.storage.install(ready.snapshot)
            self.storage.offered = ready.snapshot
            self.applied_index = ready.snapshot.index
        self.storage.append(ready.entries)
        if ready.hard_state is not None:
            self.storage.state = ready.hard_state
        self.raft.persisted(ready.number)

    def apply(self) -> None:
        """The oldest entry that was handed out takes effect."""
        entry = self.to_apply.pop(0)
        assert entry.index <= self.storage.last_index(), "applied is durable"
        assert entry.term == self.storage.term(entry.index)
        assert entry.index == self.applied_index + 1, "in order, without gaps"
        self.applied_index = entry.index
        self.applied[entry.index] = entry
        self.raft.applied(entry.index)

    def log(self) -> str:
        """The whole log as `term/index` words, newest last."""
        log = self.raft.log
        return " ".join(
            f"{log.term(index)}/{index}" for index in range(log.first_index(), log.last_index() + 1)
        )


class Cluster:
    """Nodes named by letters, and the wires between them."""

    def __init__(
        self, voters: str = "ABC", learners: str = "", outside: str = "", **options: int
    ) -> None:
        """`outside` are running nodes that no configuration names yet."""
        self.conf = ConfState(list(voters), list(learners))
        self.nodes: dict[str, Node] = {}
        self.wire: list[Message] = []
        self.lost: list[Message] = []
        self.cut: list[str] = []  # who hears and says nothing
        self.lose: Callable[[Message], bool] = lambda message: False
        self.leaders: dict[int, str] = {}
        self.votes: dict[tuple[str, int], str] = {}
        self.committed: dict[int, tuple[int, bytes]] = {}
        for number, name in enumerate(voters + learners + outside):
            conf = ConfState([]) if name in outside else self.conf
            self.nodes[name] = Node(name, conf, 7 + number, options)

    def __getitem__(self, name: str) -> Raft:
        return self.nodes[name].raft

    # What a test does

    def set_log(self, name: str, terms: str, term: int = 0, vote: str = "") -> None:
        """Start this node with a log of entries of these terms; `term` is that of the newest."""
        node = self.nodes[name]
        numbers = [int(word) for word in terms.split()]
        entries = [Entry(i + 1, t, b"%d/%d" % (t, i + 1)) for i, t in enumerate(numbers)]
        node.storage.append(entries)
        node.storage.state = HardState(term or max([0, *numbers]), vote)
        node.start()

    def elect(self, name: str) -> None:
        """Make this node the leader."""
        self.expire(name)
        self[name].campaign()
        self.settle()
        assert self[name].role == LEADER, f"{name} did not win"

    def expire(self, *but: str) -> None:
        """Let every other node forget that it heard of a leader, without standing itself."""
        for name, node in self.nodes.items():
            if name not in but and name not in self.cut and node.raft.role != LEADER:
                node.raft._ticks = ELECTION

    def propose(self, name: str, *data: str) -> None:
        for text in data:
            self[name].propose(text.encode())
        self.settle()

    def change(self, name: str, kind: int, node_id: str) -> None:
        self[name].propose_change(Change(kind, node_id))
        self.settle()

    def tick(self, count: int = 1, names: str = "") -> None:
        """Time passes, for all or some."""
        for _ in range(count):
            for name in names or "".join(self.nodes):
                if name in self.nodes:
                    self.nodes[name].raft.tick()
            self.settle()

    def settle(self) -> None:
        """Deliver, flush and apply until nothing is left."""
        for _ in range(SETTLE_STEPS):
            self.collect()
            if not self.wire:
                return
            self.deliver(self.wire.pop(0))
        raise AssertionError("the cluster does not come to rest")

    def deliver(self, message: Message) -> None:
        """One message arrives, or is lost if its ends are cut off or the test says so."""
        if self.is_lost(message):
            self.lost.append(message)
            return
        self.nodes[message.to_id].raft.step(decode_message(encode_message(message)))

    def is_lost(self, message: Message) -> bool:
        ends = (message.from_id, message.to_id)
        gone = any(name in self.cut or name not in self.nodes for name in ends)
        return gone or self.lose(message)

    def collect(self) -> None:
        """Take the work of every node, and do what does not hang."""
        for node in self.nodes.values():
            self.take(node)

    def take(self, node: Node) -> None:
        raft = node.raft
        busy = True
        while busy:
            busy = False
            while raft.has_ready():
                busy = True
                ready = raft.ready()
                self.wire += ready.messages
                if ready.snapshot is not None:
                    node.to_apply = []
                if ready.number:
                    node.writes.append(ready)
                node.to_apply += ready.committed
                node.reads += ready.read_states
                self.check(node, ready)
            while node.writes and not node.disk_hangs:
                busy = True
                node.flush()
            while node.to_apply and not node.apply_hangs:
                busy = True
                node.apply()

    def take_messages(self, *kinds: int) -> list[Message]:
        """Take from the wire what is of these types; nothing else is delivered or lost."""
        self.collect()
        taken = [message for message in self.wire if message.type in kinds]
        self.wire = [message for message in self.wire if message.type not in kinds]
        return taken

    def crash(self, name: str) -> None:
        """Lose what is not on disk, and come back."""
        node = self.nodes[name]
        node.writes = []
        node.to_apply = []
        node.start()

    def compact(self, name: str, index: int) -> None:
        """Cut the log of this node, which now offers a snapshot that ends there."""
        node = self.nodes[name]
        snapshot = self.snapshot(name, index)
        node.storage.compact(snapshot)
        node.storage.offered = snapshot

    def snapshot(self, name: str, index: int) -> SnapshotMeta:
        """What a snapshot at this index stands for: not what has come into force since."""
        storage = self.nodes[name].storage
        conf = storage.base().conf
        for entry in storage.entries(storage.first_index(), index + 1, 1 << 40):
            if entry.kind == CONFIGURATION:
                conf = decode_conf_state(entry.data)
        return SnapshotMeta(index, storage.term(index), conf)

    # What must always hold

    def check(self, node: Node, ready: Ready) -> None:
        raft = node.raft
        assert raft.log.commit <= raft.log.last_index()
        assert raft.log.durable <= raft.log.last_index()
        if raft.role == LEADER:
            leader = self.leaders.setdefault(raft.term, node.node_id)
            assert leader == node.node_id, f"{leader} and {node.node_id} lead term {raft.term}"
        for entry in ready.committed:
            here = (entry.term, entry.data)
            assert self.committed.setdefault(entry.index, here) == here, entry
        for message in ready.messages:
            if message.type == VOTE_REPLY and not message.reject:
                voted = self.votes.setdefault((node.node_id, message.term), message.to_id)
                assert voted == message.to_id, f"{node.node_id} voted twice: {message}"

    # What a test looks at

    def leader(self) -> str:
        """The one node that leads; empty: none or several."""
        names = [name for name, node in self.nodes.items() if node.raft.role == LEADER]
        return names[0] if len(names) == 1 else ""

    def applied(self, name: str) -> list[str]:
        """The data this node has applied; no-ops and configurations left out."""
        rows = sorted(self.nodes[name].applied.items())
        return [entry.data.decode() for _, entry in rows if entry.kind == FRAME and entry.data]

    def sent(self, kind: int) -> int:
        """Messages of this type on the wire."""
        return sum(message.type == kind for message in self.wire)


def names(messages: list[Message]) -> list[str]:
    """The types of messages, in words."""
    return [TYPE_NAMES[message.type] for message in messages]

"""The log of a node in a cluster: the core over real files, with a network of queues."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from corvo import limits
from corvo.consensus.log import FRAME, Entry
from corvo.consensus.raft.membership import ADD_LEARNER, PROMOTE, REMOVE, Change
from corvo.consensus.raft.messages import (
    ConfState,
    Message,
    SnapshotMeta,
    decode_conf_state,
    decode_message,
    encode_message,
)
from corvo.consensus.raft_log import RaftLog, raft_id
from corvo.consensus.wal.inline_thread import InlineSync
from corvo.errors import Conflict, CorvoError, NoLeader
from corvo.platform.files import Files
from corvo.storage.data_dir import Identity

CLUSTER = "0123456789abcdef" * 2
SEGMENT_SIZE = 64 * 1024


def identity(number: int) -> Identity:
    return Identity(CLUSTER, f"node-{number}", f"{number:016x}")


class Network:
    """Delivers in a later turn of the loop, as bytes, unless the way is cut."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.cut: set[str] = set()

    def deliver(self, message: Message) -> None:
        if message.from_id in self.cut or message.to_id in self.cut:
            return
        node = self.nodes.get(message.to_id)
        if node is not None and node.up:
            data = encode_message(message)
            asyncio.get_running_loop().call_soon(node.log.take_message, decode_message(data))


class Way:
    """`cluster.Peers` over the network of the test."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def send(self, messages: list[Message]) -> None:
        for message in messages:
            self._network.deliver(message)


class FullFiles(Files):
    """A disk on which no further segment fits, as long as the test says so."""

    full = False
    broken = False

    def allocate(self, fd: int, size: int) -> None:
        if self.full:
            raise OSError(28, "injected")
        super().allocate(fd, size)

    def sync(self, fd: int, how: int) -> None:
        if self.broken:
            raise OSError(5, "injected")
        super().sync(fd, how)


class Node:
    """A log, what it has told, and its restarts."""

    def __init__(self, network: Network, path: Path, number: int, conf: ConfState) -> None:
        self.network = network
        self.path = path / f"{number}"
        self.identity = identity(number)
        self.id = raft_id(self.identity)
        self.conf = conf
        self.files = FullFiles()
        self.applied: list[Entry] = []
        self.flushed: tuple[int, int] = (0, 0)  # what a base would know
        self.led: list[int] = []
        self.followed: list[str] = []
        self.errors: list[Exception] = []
        self.up = False
        network.nodes[self.id] = self

    def start(self, durable: bool = True) -> "Node":
        salts = itertools.count(1)
        self.log = RaftLog(
            str(self.path),
            self.identity,
            Way(self.network),
            conf=self.conf,
            durable=durable,
            new_salt=lambda: next(salts),
            seed=int(self.identity.incarnation, 16),
            segment_size=SEGMENT_SIZE,
            kept_size=2 * SEGMENT_SIZE,
            tick_s=0.005,
            election_ticks=10,
            files=self.files,
            flusher=InlineSync(self.files),
        )
        log = self.log
        log.on_committed = self._on_committed
        log.on_failed = self.errors.append
        log.on_leader = self.led.append
        log.on_follower = self.followed.append
        log.on_restored = self._on_restored
        del self.applied[self.flushed[0] :]
        assert log.start(*self.flushed, asyncio.get_running_loop()) == []
        self.up = True
        return self

    def _on_committed(self, entries: list[Entry]) -> None:
        for entry in entries:
            assert entry.index == len(self.applied) + 1
            self.applied.append(entry)

    def _on_restored(self, meta: SnapshotMeta) -> bool:
        raise AssertionError(meta)

    def flush(self) -> None:
        """The base covers what is applied."""
        last = self.applied[-1]
        self.flushed = last.index, last.term
        for entry in self.applied:
            if entry.kind != FRAME:
                self.conf = decode_conf_state(entry.data)
        self.log.trim(last.index)

    def kill(self) -> None:
        """Without a clean close."""
        self.up = False
        self.log._closed = True
        if self.log._timer is not None:
            self.log._timer.cancel()
        self.log._wal._flusher.close()

    def stop(self) -> None:
        self.up = False
        self.log.close()

    @property
    def data(self) -> list[bytes]:
        return [entry.data for entry in self.applied if entry.data and entry.kind == FRAME]


async def until(check: Callable[[], object]) -> None:
    """Until it is so; the ticks of the logs bring the loop on."""
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0.001)


class Cluster:
    """Nodes 1 .. count, all voters."""

    def __init__(self, path: Path, count: int) -> None:
        self.network = Network()
        conf = ConfState([raft_id(identity(number)) for number in range(1, count + 1)])
        self.nodes = [Node(self.network, path, n, conf) for n in range(1, count + 1)]
        self._number = itertools.count(1)

    def start(self) -> "Cluster":
        for node in self.nodes:
            node.start()
        return self

    async def leader(self) -> Node:
        """Who leads, and has committed an entry of its term."""

        def leads(node: Node) -> bool:
            return (
                node.up
                and node.log.leading
                and node.id not in self.network.cut
                and node.log.status().commit > 0
                and bool(node.applied)
                and node.applied[-1].term == node.log.term
            )

        await until(lambda: any(leads(node) for node in self.nodes))
        return next(node for node in self.nodes if leads(node))

    async def write(self, node: Node, size: int = 1) -> bytes:
        """Propose an entry that no other is like; its data when the node has applied it."""
        await until(lambda: not node.log.busy)
        data = b"%d;" % next(self._number) + bytes(size)
        node.log.propose(data)
        await until(lambda: data in node.data[-8:])
        return data

    def others(self, node: Node) -> list[Node]:
        return [other for other in self.nodes if other is not node]

    async def agree(self) -> None:
        """Until all that are up have applied the same."""
        up = [node for node in self.nodes if node.up]
        await until(lambda: len({tuple(e.index for e in n.applied[-1:]) for n in up}) == 1)
        for node in up:
            assert node.data == up[0].data

    def stop(self) -> None:
        for node in self.nodes:
            if node.up:
                node.stop()


def test_three_nodes_elect_and_replicate(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = Cluster(tmp_path, 3).start()
        leader = await cluster.leader()
        assert leader.led == [leader.log.term]
        written = [await cluster.write(leader) for _ in range(20)]
        await cluster.agree()
        assert all(node.data == written for node in cluster.nodes)
        for other in cluster.others(leader):
            assert other.log.leader_id == leader.id and other.followed[-1] == leader.id
            with pytest.raises(NoLeader):
                other.log.propose(b"x")
        status = leader.log.status()
        assert status.durable == status.commit == status.applied == status.last_index
        cluster.stop()

    asyncio.run(run())


def test_restarts_keep_what_was_committed(tmp_path: Path) -> None:
    """Each node is killed in turn and comes back with what its base covers; one misses a few."""

    async def run() -> None:
        cluster = Cluster(tmp_path, 3).start()
        written = []
        for turn in range(6):
            leader = await cluster.leader()
            written.append(await cluster.write(leader))
            victim = leader if turn % 2 else cluster.others(leader)[turn % 3 % 2]
            victim.kill()
            leader = await cluster.leader()
            for _ in range(3):
                written.append(await cluster.write(leader))
            if turn % 3 == 0:
                leader.flush()
            victim.start()
            await cluster.agree()
        assert cluster.nodes[0].data == written
        cluster.stop()
        for node in cluster.nodes:
            node.start()
            assert node.log.clean
        await cluster.leader()
        await until(lambda: all(node.data == written for node in cluster.nodes))
        cluster.stop()

    asyncio.run(run())


def test_segments_roll_and_go_while_followers_lag(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = Cluster(tmp_path, 3).start()
        leader = await cluster.leader()
        behind = cluster.others(leader)[0]
        for number in range(40):
            await cluster.write(leader, 12_000)
            if number == 32:
                await cluster.agree()
                behind.kill()
            if number < 32 or number > 36:
                leader.flush()
        behind.start()
        await cluster.agree()
        assert leader.log._storage.base().index > 10
        assert len(list(leader.path.glob("*.wal"))) < 8
        for node in cluster.nodes:
            node.flush()
            node.kill()
            node.start()
        leader = await cluster.leader()
        await cluster.write(leader)
        await cluster.agree()
        cluster.stop()

    asyncio.run(run())


def test_a_leader_alone_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only a cut-off leader had is gone from its disk, too, when it comes back."""

    async def run() -> None:
        cluster = Cluster(tmp_path, 3).start()
        old = await cluster.leader()
        await cluster.write(old)
        follower = next(node for node in cluster.nodes if node is not old)
        await until(lambda: follower.log.hears_leader)
        monkeypatch.setattr(limits, "LEADER_SILENT_NS", 20 * limits.MS_NS)
        cluster.network.cut = {old.id}
        for _ in range(3):
            await until(lambda: not old.log.busy)
            old.log.propose(b"lost")
        await until(lambda: not follower.log.hears_leader and follower.log.leader_id == old.id)
        leader = await cluster.leader()
        assert not leader.log.hears_leader
        await cluster.write(leader)
        await until(lambda: not old.log.leading)
        cluster.network.cut = set()
        await cluster.agree()
        assert b"lost" not in old.data
        old.kill()
        old.start()
        assert old.log.last_index == leader.log.last_index
        await cluster.agree()
        await cluster.write(leader)
        await cluster.agree()
        cluster.stop()

    asyncio.run(run())


def test_members_come_and_go(tmp_path: Path) -> None:
    async def change(node: Node, change: Change) -> CorvoError | None:
        answers: list[CorvoError | None] = []
        node.log.change(change, answers.append)
        await until(lambda: answers)
        return answers[0]

    async def run() -> None:
        cluster = Cluster(tmp_path, 1).start()
        leader = await cluster.leader()
        await cluster.write(leader)
        for number in (2, 3):
            node = Node(cluster.network, tmp_path, number, ConfState([]))
            cluster.nodes.append(node.start())
            assert await change(leader, Change(ADD_LEARNER, node.id, b"where")) is None
            assert isinstance(await change(leader, Change(ADD_LEARNER, node.id)), Conflict)
            await cluster.agree()
            assert await change(leader, Change(PROMOTE, node.id)) is None
            assert node.log.conf.contexts[node.id] == b"where"
        await cluster.agree()
        assert await change(leader, Change(REMOVE, leader.id)) is None
        cluster.network.cut = {leader.id}
        leader.stop()
        second = await cluster.leader()
        assert second is not leader and len(second.log.conf.voters) == 2
        await cluster.write(second)
        second.log.transfer()
        await until(lambda: not second.log.leading)
        third = await cluster.leader()
        assert third is not second
        await cluster.agree()
        cluster.stop()

    asyncio.run(run())


def test_reads_on_all_nodes(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = Cluster(tmp_path, 3).start()
        leader = await cluster.leader()
        for node in cluster.nodes:
            data = await cluster.write(leader)
            seen: list[bool] = []
            node.log.read(seen.append)
            await until(lambda seen=seen: seen)
            assert seen == [True] and data in node.data
        cluster.stop()

    asyncio.run(run())


def test_a_full_disk_makes_a_node_wait(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = Cluster(tmp_path, 3).start()
        leader = await cluster.leader()
        behind = cluster.others(leader)[0]
        behind.files.full = True
        for _ in range(14):
            await cluster.write(leader, 12_000)
        assert behind.log.full and len(behind.applied) < len(leader.applied)
        assert not behind.errors
        behind.files.full = False
        await cluster.agree()
        cluster.stop()

    asyncio.run(run())


def test_a_failed_flush_is_final(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = Cluster(tmp_path, 3).start()
        leader = await cluster.leader()
        await cluster.write(leader)
        leader.files.broken = True
        leader.log.propose(b"never acknowledged by this node")
        await until(lambda: leader.errors)
        assert leader.log.failed is not None
        assert leader.data[-1] != b"never acknowledged by this node"
        leader.files.broken = False
        leader.kill()
        second = await cluster.leader()
        await cluster.write(second)
        leader.start()
        await cluster.agree()
        cluster.stop()

    asyncio.run(run())


def test_without_durability(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = Cluster(tmp_path, 3)
        for node in cluster.nodes:
            node.start(durable=False)
        leader = await cluster.leader()
        for _ in range(10):
            await cluster.write(leader)
        leader.log.sync()
        await cluster.agree()
        cluster.stop()

    asyncio.run(run())

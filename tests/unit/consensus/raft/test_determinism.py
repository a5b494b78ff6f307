"""Same inputs, same outputs, byte for byte; and what comes out keeps its promises."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from lib.raft_cluster import Cluster

from corvo.consensus.raft.membership import ADD_LEARNER, PROMOTE, REMOVE, Change
from corvo.consensus.raft.messages import SNAPSHOT, encode_message
from corvo.consensus.raft.ready import Refused

ROOT = Path(__file__).parents[4]


class Chaos(Cluster):
    """Anything may happen in any order. Keeps a transcript of all that was sent."""

    def __init__(self, seed: int, **options: int) -> None:
        super().__init__("ABC", learners="D", outside="E", **options)
        self.random = Random(seed)
        self.transcript: list[bytes] = []
        self.proposed = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.happen()
            self.transcript += [encode_message(message) for message in self.wire]
        self.heal()

    def happen(self) -> None:
        random = self.random
        name = random.choice("ABCDE")
        node = self.nodes[name]
        dice = random.randrange(100)
        if dice < 60 and self.wire:
            for _ in range(random.randrange(1, 20)):
                if self.wire:
                    self.arrive(self.wire.pop(min(random.randrange(3), len(self.wire) - 1)))
        elif dice < 70:
            node.raft.tick()
        elif dice < 85:
            self.ask(name)
        elif dice < 87:
            node.disk_hangs = not node.disk_hangs and random.randrange(3) == 0
        elif dice < 89:
            node.apply_hangs = not node.apply_hangs and random.randrange(3) == 0
        elif dice < 90:
            if random.randrange(4) == 0:
                self.crash(name)
        elif dice < 91:
            self.cut = [] if self.cut else [name]
        elif dice < 92 and node.applied_index > node.storage.base().index:
            self.compact(name, node.applied_index)
        else:
            self.collect()

    def arrive(self, message) -> None:
        dice = self.random.randrange(60)
        if dice == 0 or self.is_lost(message):
            if message.type == SNAPSHOT and message.from_id in self.nodes:
                self[message.from_id].snapshot_failed(message.to_id)
            return
        self.deliver(message)
        if dice == 1:
            self.wire.append(message)

    def ask(self, name: str) -> None:
        random = self.random
        raft = self[name]
        other = random.choice("ABCDE")
        dice = random.randrange(24)
        try:
            if dice == 0:
                raft.transfer(other)
            elif dice == 1:
                kind = random.choice([ADD_LEARNER, PROMOTE, PROMOTE, REMOVE])
                raft.propose_change(Change(kind, other, b"at " + other.encode()))
            elif dice == 2:
                raft.read_index(b"r")
            elif dice == 3:
                raft.campaign()
            else:
                self.proposed += 1
                raft.propose(b"%d" % self.proposed)
        except Refused:
            pass

    def heal(self) -> None:
        self.cut = []
        for node in self.nodes.values():
            node.disk_hangs = node.apply_hangs = False
        for _ in range(40):
            for name, node in self.nodes.items():
                status = node.raft.status().peers
                for peer in [p for p in status if status[p].state == "snapshot"]:
                    self[name].snapshot_failed(peer)
            self.tick(5)
            if self.leader():
                break


@pytest.mark.parametrize("seed", range(30))
def test_chaos_breaks_no_promise(seed: int) -> None:
    cluster = Chaos(seed, append_size_max=10, inflight_max=3)
    cluster.run(3000)
    leader = cluster.leader()
    assert leader, "and when all is well again somebody leads"
    cluster.tick(5)
    cluster.propose(leader, "the end")
    cluster.tick(5)
    conf = cluster[leader].conf
    for name in conf.members:
        assert cluster.nodes[name].applied_index == cluster[leader].log.commit
        assert cluster.applied(name)[-1] == "the end"
        assert cluster[name].conf.members == conf.members


def transcript() -> bytes:
    cluster = Chaos(5)
    cluster.run(2000)
    return b"".join(cluster.transcript)


def test_the_same_inputs_give_the_same_bytes() -> None:
    """In this process, and in others with other seeds of the hash."""
    mine = transcript()
    assert transcript() == mine
    here = Path(__file__)
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}, {str(here.parent)!r}];"
        f"from {here.stem} import transcript; sys.stdout.buffer.write(transcript())"
    )
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        )
        assert done.stdout == mine

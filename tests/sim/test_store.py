"""The log of simulated nodes keeps what it said is done, whatever the power cut leaves."""

import random
from collections.abc import Callable

import pytest
from sim.disk import Disk
from sim.store import Store

from corvo.consensus.log import Entry
from corvo.consensus.raft.messages import ConfState, HardState, SnapshotMeta

CONF = ConfState(["a"])


class Bench:
    """A store whose syncs end one by one, when the test says so."""

    def __init__(self, disk: Disk, draw: random.Random) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.done: list[str] = []
        self.store = Store(disk, draw, self.waiting.append, CONF)

    def step(self) -> None:
        self.waiting.pop(0)()

    def finish(self) -> None:
        while self.waiting:
            self.step()

    def append(self, first: int, last: int, term: int, name: str = "append") -> None:
        entries = [Entry(i, term, b"%d/%d" % (term, i) * 100) for i in range(first, last + 1)]
        state = HardState(term, "a", 0)
        self.store.append(state, entries, lambda: self.done.append(name))


def terms(store: Store) -> list[int]:
    log = store.log
    return [log.term(index) for index in range(log.first_index(), log.last_index() + 1)]


@pytest.mark.parametrize("seed", range(40))
def test_an_overwritten_log_is_the_old_or_the_new_one(seed: int) -> None:
    draw, disk = random.Random(seed), Disk()
    bench = Bench(disk, draw)
    bench.append(1, 5, 1)
    bench.finish()
    bench.append(4, 6, 2)
    if seed % 2:
        bench.finish()
    disk.cut_power(draw)
    store = Bench(disk, draw).store
    found = terms(store)
    if seed % 2:
        assert found == [1, 1, 1, 2, 2, 2]
        assert store.log.hard_state().term == 2
    else:  # records are on disk from the first on: the truncation, then entries
        assert found in ([1] * 5, [1] * 3, [1, 1, 1, 2], [1, 1, 1, 2, 2], [1, 1, 1, 2, 2, 2])


@pytest.mark.parametrize("seed", range(60))
def test_a_snapshot_is_installed_or_not(seed: int) -> None:
    """A crash after any number of steps leaves the old log, or the snapshot and none of it."""
    draw, disk = random.Random(seed), Disk()
    bench = Bench(disk, draw)
    bench.append(1, 5, 1)
    bench.finish()
    meta = SnapshotMeta(9, 2, ConfState(["a", "b"]))
    bench.store.install(meta, b"state", lambda: bench.done.append("installed"))
    for _ in range(seed % 5):
        if bench.waiting:
            bench.step()
    disk.cut_power(draw)
    store = Bench(disk, draw).store
    if store.snapshot is None:
        assert "installed" not in bench.done
        assert terms(store) == [1] * 5
    else:
        assert store.snapshot_data == b"state"
        assert (store.log.base().index, store.log.base().conf.voters) == (9, ["a", "b"])
        assert terms(store) == []


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_log_keeps_its_end(seed: int) -> None:
    draw, disk = random.Random(seed), Disk()
    bench = Bench(disk, draw)
    bench.append(1, 5, 1)
    bench.store.save_snapshot(SnapshotMeta(4, 1, CONF), b"state", lambda: None)
    bench.store.cut(SnapshotMeta(3, 1, CONF))
    bench.append(6, 6, 1, "last")
    for _ in range(seed % 7):
        if bench.waiting:
            bench.step()
    disk.cut_power(draw)
    store = Bench(disk, draw).store
    assert store.log.base().index in (0, 3)
    assert store.log.last_index() >= (6 if "last" in bench.done else 5 if bench.done else 0)


def test_appends_that_wait_share_a_sync_and_keep_their_order() -> None:
    disk = Disk()
    bench = Bench(disk, random.Random(1))
    bench.append(1, 1, 1, "first")
    syncs = disk.syncs
    for index in range(2, 6):
        bench.append(index, index, 1, str(index))
    bench.store.cut(SnapshotMeta(1, 1, CONF))
    bench.append(6, 6, 1, "behind the cut")
    bench.finish()
    assert bench.done == ["first", "2", "3", "4", "5", "behind the cut"]
    assert disk.syncs - syncs == 5  # two appends, the cut and its name, the last append
    assert terms(bench.store) == [1] * 5

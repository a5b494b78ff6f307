"""The state machine gives the same rows over LMDB and over a dict."""

from pathlib import Path

from lib.consistency import check_machine
from lib.fsm_driver import (
    START_NS,
    batch_step,
    chain,
    encode_entry,
    enqueue_step,
    follower,
    idempotent_step,
    plain,
)

from corvo import ops
from corvo.fsm.machine import Machine
from corvo.limits import SECOND_NS
from corvo.storage.lmdb import StateStore
from corvo.storage.memory import MemoryStore


def test_on_disk_as_in_memory(tmp_path: Path) -> None:
    """The same entries over LMDB and over a dict: same rows, and the disk opens again."""
    disk, rows = StateStore.open(tmp_path / "data", map_size=1 << 26, ballast_size=0), MemoryStore()
    fetch = (ops.FETCH_BATCH, (["q"], "w", "h", SECOND_NS, 1 << 20, 3))
    machines = [Machine(disk), Machine(rows)]
    for index in range(1, 40):
        steps = [enqueue_step(f"job_{index:02}{n}", unique_key=b"%d" % n) for n in range(3)]
        steps += [(ops.CANCEL_JOB, (f"job_{index - 1:02}1", True)), fetch]
        steps += [(ops.DELETE_JOB, (f"job_{index - 5:02}0",))]
        name = f"batch_{index:02}"
        tied = {"batch_id": name, "depends_on": [f"job_{index:02}2"], "parent_id": "p"}
        tied |= {"chain": chain(follower("q"), follower("r")), "chain_id": name}
        tied_job = enqueue_step(f"tied_{index:02}", **tied)
        steps += [batch_step(name, tied_job, on_complete=follower("done"))]
        steps += [idempotent_step(b"%d" % (index % 7), enqueue_step(f"idem_{index:02}"), count=5)]
        steps += [(ops.ACK, (f"job_{index - 7:02}{n}", "", b"[1]", b"", b"")) for n in range(3)]
        data = encode_entry(START_NS + index * SECOND_NS, index, steps)
        results = [plain(machine.apply(index, 1, data)) for machine in machines]
        assert results[0] == results[1]
        if index % 3 == 0:
            assert machines[0].flush().size == machines[1].flush().size
    disk.close()
    disk = StateStore.open(tmp_path / "data", map_size=1 << 26, ballast_size=0)
    check_machine(Machine(disk), disk)
    prefixes = sorted({key.partition(b"|")[0] + b"|" for key in rows._rows})
    assert [row for prefix in prefixes for row in disk.scan(prefix)] == sorted(rows._rows.items())
    disk.close()

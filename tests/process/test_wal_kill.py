"""kill -9 in the middle of appending: every acknowledged entry is there at the next start."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corvo.consensus.log import Entry
from corvo.consensus.single_log import SingleLog
from corvo.storage.data_dir import Identity

ROOT = Path(__file__).parents[2]
SEGMENT = 64 * 1024
IDENTITY = Identity("0123456789abcdef" * 2, "node-1", "fedcba9876543210")

CHILD = """
import asyncio, os, sys
from corvo.storage.data_dir import Identity
from corvo.consensus.single_log import SoloLog

path, identity, durable, segment_size = sys.argv[1], sys.argv[2].split(","), *sys.argv[3:]

def committed(entries):
    index = entries[-1].index
    os.write(1, b"%d\\n" % index)
    log.trim(index - 500)
    log.propose((b"%d " % (index + 1)) * (1 + index % 300))

async def main():
    log.start(0, 0, asyncio.get_running_loop())
    await asyncio.Event().wait()

log = SoloLog(path, Identity(*identity), durable=durable == "durable",
              new_salt=lambda: int.from_bytes(os.urandom(4), "big"),
              segment_size=int(segment_size))
log.on_committed = committed
asyncio.run(main())
"""


def acknowledged_before_kill(path: Path, durable: str, count: int) -> int:
    """The last index the child printed; it is killed after about `count` lines."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, path, ",".join(IDENTITY[:3]), durable, str(SEGMENT)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(count)]
    child.kill()
    lines += child.stdout.readlines()
    child.wait()
    return int([line for line in lines if line.endswith(b"\n")][-1])


async def replayed(path: Path, applied_index: int) -> list[Entry]:
    log = SingleLog(str(path), IDENTITY, durable=True, new_salt=lambda: 1, segment_size=SEGMENT)
    entries = log.start(applied_index, 0, asyncio.get_running_loop())
    log.close()
    return entries


@pytest.mark.parametrize("durable", ["durable", "not durable"])
def test_acknowledged_entries_survive_a_kill(tmp_path: Path, durable: str) -> None:
    last = acknowledged_before_kill(tmp_path, durable, 1500)
    base = last - 400
    entries = asyncio.run(replayed(tmp_path, base))
    assert [entry.index for entry in entries] == list(range(base + 1, base + 1 + len(entries)))
    assert entries[-1].index >= last
    for entry in entries:
        assert entry.data == (b"%d " % entry.index) * (1 + (entry.index - 1) % 300)

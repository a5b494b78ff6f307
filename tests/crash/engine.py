"""The stores of a server without its front, driven through lives that end in the middle.

What is done to the disk goes to a `Disk`. The log records itself through `RecordingFiles`. LMDB
does not say what it writes, but the pages that a commit changed can be seen, and their order is
fixed: first the data pages, then a flush, then one meta page through a descriptor that flushes
with each write.
"""

import asyncio
import random
from pathlib import Path
from string import ascii_lowercase
from typing import Any
from unittest.mock import patch

from crash.disk import PAGE, Disk, Killed, RecordingFiles, Sync, SyncNames, Write
from lib.fsm_driver import START_NS, Step, encode_entry, enqueue_step

from corvo import ops
from corvo._fast.codec.layouts import encode_fields
from corvo.consensus.log import Entry
from corvo.consensus.single_log import SingleLog
from corvo.consensus.wal.inline_thread import InlineSync
from corvo.engine.flusher import StoreFlusher
from corvo.fsm.machine import Machine
from corvo.limits import SECOND_NS
from corvo.model import Fetched
from corvo.platform.clock import Clock
from corvo.storage.data_dir import DataDir, Identity
from corvo.storage.lmdb import DATA_FILE, NEW_FILE, STATE, StateStore
from corvo.storage.memory import MemoryStore
from corvo.storage.rows import Row, Rows

IDENTITY = Identity("0123456789abcdef" * 2, "node-1", "fedcba9876543210")
SEGMENT = 16 * 1024
QUEUES = ["a", "b"]


class RecordingBase(StateStore):
    """Tells a disk which pages each commit wrote."""

    disk: Disk

    @property
    def file(self) -> Path:
        return self._path / DATA_FILE

    def write(self, puts: list[Row], deletes: list[bytes]) -> None:
        before = self.file.read_bytes()
        super().write(puts, deletes)
        after = self.file.read_bytes()
        inode = self.disk.inode(self.file)
        changed = [
            Write(inode, at, after[at : at + PAGE])
            for at in range(0, len(after), PAGE)
            if before[at : at + PAGE] != after[at : at + PAGE]
        ]
        # A kill in the middle of these is a kill before or after: the file is already written.
        self.disk.steps += [write for write in changed if write.offset >= 2 * PAGE]
        self.disk.steps.append(Sync(inode))
        for write in changed:
            if write.offset < 2 * PAGE:
                self.disk.steps += [write, Sync(inode)]


def open_base(disk: Disk, data_dir: Path) -> RecordingBase:
    """Open the base of a data directory; its creation is recorded, too."""
    state = data_dir / STATE
    new = state / NEW_FILE

    def flushed(path: Path) -> None:
        if path == new:
            disk.make(state, directory=True)
            disk.add(Write(disk.make(new), 0, new.read_bytes()))
            disk.add(Sync(disk.inode(new)))
            return
        if disk.knows(new) and not new.exists():
            disk.rename(new, state / DATA_FILE)
        disk.add(SyncNames(disk.relative(path)))

    with patch("corvo.storage.lmdb._sync", flushed):
        state_store = RecordingBase.open(data_dir, ballast_size=0)
    assert isinstance(state_store, RecordingBase)
    state_store.disk = disk
    return state_store


class Load:
    """Entries of random ops on few jobs."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._ids: list[str] = []
        self._runs: list[Fetched] = []
        self._now_ns = START_NS

    def entry(self, machine: Machine) -> bytes:
        """The next entry, for a machine in this state."""
        draw = self._draw
        self._now_ns = max(self._now_ns, machine.stamp_ns) + draw.randrange(2 * SECOND_NS)
        steps = [self.step() for _ in range(draw.randrange(1, 5))]
        if ids := machine.due_promotions(self._now_ns, 100):
            steps.append((ops.PROMOTE_DUE, (ids,)))
        if ids := machine.due_leases(self._now_ns, 100):
            steps.append((ops.EXPIRE_LEASES, (ids,)))
        return encode_entry(self._now_ns, draw.getrandbits(60), steps)

    def take(self, results: list[Any]) -> None:
        """The results of an entry of ours."""
        for result in results:
            if isinstance(result, list):
                self._runs += [run for run in result if isinstance(run, Fetched)]

    def step(self) -> Step:
        """One op."""
        draw = self._draw
        choice = draw.random()
        if choice < 0.35 or not self._ids:
            return self._enqueue()
        if choice < 0.55 or not self._runs:
            queues = draw.sample(QUEUES, 2)
            lease_ns = draw.choice([5, 60]) * SECOND_NS
            return ops.FETCH_BATCH, (queues, f"w{draw.randrange(3)}", "", lease_ns, 1 << 20, 3)
        if choice < 0.6:
            return ops.CANCEL_JOB, (draw.choice(self._ids), draw.random() < 0.5)
        if choice < 0.63:
            return ops.DELETE_JOB, (self._ids.pop(draw.randrange(len(self._ids))),)
        run = self._runs[draw.randrange(len(self._runs))]
        if choice < 0.75:
            beat = (run.job_id, run.token, b'"progress"', b"%d" % draw.randrange(1000))
            return ops.HEARTBEAT, ([encode_fields(ops.BEAT_LAYOUT, beat)],)
        self._runs.remove(run)
        if choice < 0.9:
            return ops.ACK, (run.job_id, run.token, b'"done"', b"", b"")
        if choice < 0.95:
            return ops.RELEASE, (run.job_id, run.token, 0, b"", False)
        return ops.FAIL, (run.job_id, run.token, b'"no"', b"", draw.random() < 0.2, -1, False)

    def _enqueue(self) -> Step:
        draw = self._draw
        job_id = f"job_{draw.getrandbits(80):020x}"
        self._ids.append(job_id)
        return enqueue_step(
            job_id,
            queue=draw.choice(QUEUES),
            payload=b'"%s"' % (b"x" * draw.randrange(600)),
            max_retries=draw.randrange(1, 4),
            unique_key=b"%d" % draw.randrange(20) if draw.random() < 0.3 else b"",
        )


class Engine:
    """One data directory over several lives; `disk` tells what happened to it."""

    def __init__(self, root: Path, durable: bool, seed: int) -> None:
        self.disk = Disk(root)
        self.data_dir = root / "data"
        self.durable = durable
        self.load = Load(seed)
        self.entries: dict[int, tuple[int, bytes]] = {}  # index -> term, data; the last written
        self._draw = random.Random(seed)

    def life(self, entries: int, kill_after: int = 0, unnamed: bool = False) -> None:
        """Start, write so many entries, stop. Killed after so many steps instead, if given, or
        behind the next change of names that nobody has flushed."""
        self.disk.kill_at = len(self.disk.steps) + kill_after if kill_after else -1
        self.disk.kill_unnamed = unnamed
        files = RecordingFiles(self.disk)
        data_dir: DataDir | None = None
        state_store: RecordingBase | None = None
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda _loop, _context: None)  # of tasks that never end
        try:
            data_dir = DataDir(str(self.data_dir), IDENTITY, files)
            state_store = open_base(self.disk, self.data_dir)
            loop.run_until_complete(self._run(files, state_store, entries))
        except Killed:
            pass
        finally:
            loop.close()
            files.close_all()
            if state_store is not None:
                state_store.close()
            if data_dir is not None:
                data_dir.close()

    async def _run(self, files: RecordingFiles, state_store: RecordingBase, count: int) -> None:
        machine = Machine(state_store)
        loop = asyncio.get_running_loop()
        log = SingleLog(
            str(self.data_dir / "wal"),
            IDENTITY,
            durable=self.durable,
            new_salt=lambda: self._draw.getrandbits(32),
            segment_size=SEGMENT,
            files=files,
            flusher=InlineSync(files),
        )
        committed = asyncio.Event()

        def apply(entries: list[Entry]) -> None:
            for entry in entries:
                self.load.take(machine.apply(entry.index, entry.term, entry.data))
                self.disk.tell(acknowledged=entry.index)
            committed.set()

        log.on_committed = apply
        for entry in log.start(machine.applied_index, machine.applied_term, loop):
            machine.apply(entry.index, entry.term, entry.data)
        self.disk.tell(acknowledged=machine.applied_index, term=log.term)
        self.disk.tell(flushed=machine.applied_index)
        self.entries[log.last_index] = (log.term, b"")
        flusher = StoreFlusher(loop, Clock(), log, machine, state_store, _raise)
        for _ in range(count):
            await committed.wait()
            committed.clear()
            for _ in range(self._draw.choice([0, 0, 2, 10])):
                await asyncio.sleep(0)  # the spare may be zeroed meanwhile, or not
            if self._draw.random() < 0.2:
                flusher.flush()
                self.disk.tell(flushed=machine.applied_index)
            data = self.load.entry(machine)
            self.entries[log.last_index + 1] = (log.term, data)
            log.propose(data)
        await committed.wait()
        flusher.flush()
        log.close()
        self.disk.tell(flushed=machine.applied_index)


def _raise(error: Exception) -> None:
    raise error


def all_rows(state_store: Rows) -> dict[bytes, bytes]:
    """Every row of a base; the names of all families begin with a small letter."""
    return {
        key: row for letter in ascii_lowercase for key, row in state_store.scan(letter.encode())
    }


class Model:
    """What log entries add up to, at any index."""

    def __init__(self, entries: dict[int, tuple[int, bytes]]) -> None:
        state_store = MemoryStore()
        machine = Machine(state_store)
        self.rows: list[dict[bytes, bytes]] = []
        for index in range(max(entries) + 1):
            if index:
                machine.apply(index, *entries[index])
            machine.flush()
            self.rows.append(all_rows(state_store))

"""The log of a simulated node, as files on a simulated disk.

    log        a salt of 8 bytes, then records: the base, the hard state, what was appended
    snapshot   the newest snapshot: 4 bytes length and its meta, then the state

The records are those of the real log (`corvo._fast.codec.wal_record`), chained by their CRCs, so
that a torn one ends the log. The base is a TRUNCATE record with the members as payload. A log that
is cut at its front, or begun again above a snapshot, is written as `log.new` and takes the place of
`log` by a rename; so do snapshots.

Everything is a queue of jobs, each a few steps with a sync behind each of them, so that a crash
finds every state there can be.
"""

import random
from collections import deque
from collections.abc import Callable

from sim.disk import Disk

from corvo._fast.codec.wal_record import ENTRY, HARD_STATE, TRUNCATE, Writer, parse
from corvo.consensus.log import Entry
from corvo.consensus.raft.messages import (
    ConfState,
    HardState,
    SnapshotMeta,
    decode_conf_state,
    decode_snapshot,
    encode_conf_state,
    encode_snapshot,
)
from corvo.consensus.raft.storage import MemoryStorage

Done = Callable[[], None]
# Called with what is to follow when a sync is over; the node gives it its time.
Wait = Callable[[Done], None]
Step = tuple[Callable[[], None], Callable[[], None]]  # a write, and the sync of it

LOG, LOG_NEW = "log", "log.new"
SNAPSHOT, SNAPSHOT_NEW = "snapshot", "snapshot.new"
SALT_SIZE = 8


class Store:
    """What a node has on disk for certain (`log`, which the core reads, and the snapshot), and
    the jobs that change it."""

    def __init__(self, disk: Disk, draw: random.Random, wait: Wait, conf: ConfState) -> None:
        """Recover; `conf` are the members when there is nothing on disk yet."""
        self.log = MemoryStorage(conf)
        self.snapshot_data = b""
        self._disk = disk
        self._draw = draw
        self._wait = wait
        self._jobs: deque[tuple[deque[Step], Done]] = deque()
        # Appends that wait behind another job, as long as nothing else follows them.
        self._group: list[tuple[HardState | None, list[Entry], Done]] | None = None
        self._writer: Writer
        self._end = 0
        self._written_index = 0  # the last entry that was written, synced or not
        self._open()

    def has(self, index: int, term: int) -> bool:
        """Whether this very entry, or a snapshot of what it did, is durable here."""
        return index <= self.log.base().index or self.log.term(index) == term

    @property
    def snapshot(self) -> SnapshotMeta | None:
        """The newest durable snapshot."""
        return self.log.offered

    # Jobs.

    def append(self, hard_state: HardState | None, entries: list[Entry], done: Done) -> None:
        """Store both. Entries take the place of what conflicts. What waits for the disk at one
        time shares one sync."""
        if self._group is not None:
            self._group.append((hard_state, entries, done))
            return
        group = [(hard_state, entries, done)]

        def write() -> None:
            if self._group is group:
                self._group = None
            self._put(LOG, b"".join(self._records(state, new) for state, new, _ in group))

        def synced() -> None:
            self._disk.sync(LOG)
            for state, new, _ in group:
                if state is not None:
                    self.log.state = state
                self.log.append(new)

        def all_done() -> None:
            for _, _, each_done in group:
                each_done()

        is_idle = not self._jobs
        self._submit([(write, synced)], all_done)
        self._group = None if is_idle else group

    def _records(self, hard_state: HardState | None, entries: list[Entry]) -> bytes:
        parts = []
        if entries and entries[0].index <= self._written_index:
            parts.append(self._writer.add(TRUNCATE, entries[0].index - 1, 0, b"", 0))
        if hard_state is not None:
            parts.append(self._hard_state(hard_state))
        parts += [self._entry(entry) for entry in entries]
        return b"".join(parts)

    def save_snapshot(self, meta: SnapshotMeta, data: bytes, done: Done) -> None:
        """Store a snapshot of this node's own state."""
        self._submit(self._snapshot_steps(meta, data), done)

    def cut(self, base: SnapshotMeta) -> None:
        """Entries up to the base are no longer needed."""

        def write() -> None:
            index = max(base.index, self.log.base().index)
            kept = self.log.entries(index + 1, self.log.last_index() + 1, 1 << 62)
            self._begin_log(base if index == base.index else self.log.base(), kept)

        def named() -> None:
            self._disk.sync_names()
            self.log.compact(base)

        self._submit([(write, self._sync_new_log), (self._name_log, named)], lambda: None)

    def install(self, meta: SnapshotMeta, data: bytes, done: Done) -> None:
        """Store a snapshot of somebody else, and begin the log above it."""

        def named() -> None:
            self._disk.sync_names()
            self.log.install(meta)

        steps = self._snapshot_steps(meta, data)
        steps.append((lambda: self._begin_log(meta, []), self._sync_new_log))
        steps.append((self._name_log, named))
        self._submit(steps, done)

    def _submit(self, steps: list[Step], done: Done) -> None:
        self._group = None
        self._jobs.append((deque(steps), done))
        if len(self._jobs) == 1:
            self._begin()

    def _begin(self) -> None:
        write, _ = self._jobs[0][0][0]
        write()
        self._wait(self._finish)

    def _finish(self) -> None:
        steps, done = self._jobs[0]
        _, sync = steps.popleft()
        sync()
        if not steps:
            self._jobs.popleft()
        if self._jobs:
            self._begin()
        if not steps:
            done()

    def _snapshot_steps(self, meta: SnapshotMeta, data: bytes) -> list[Step]:
        def write() -> None:
            head = encode_snapshot(meta)
            self._disk.create(SNAPSHOT_NEW)
            self._disk.write(SNAPSHOT_NEW, 0, len(head).to_bytes(4, "little") + head + data)

        def named() -> None:
            self._disk.sync_names()
            self.log.offered, self.snapshot_data = meta, data

        return [
            (write, lambda: self._disk.sync(SNAPSHOT_NEW)),
            (lambda: self._disk.rename(SNAPSHOT_NEW, SNAPSHOT), named),
        ]

    def _sync_new_log(self) -> None:
        self._disk.sync(LOG_NEW)

    def _name_log(self) -> None:
        self._disk.rename(LOG_NEW, LOG)

    # Records.

    def _put(self, name: str, data: bytes) -> None:
        self._disk.write(name, self._end, data)
        self._end += len(data)

    def _entry(self, entry: Entry) -> bytes:
        self._written_index = entry.index
        payload = bytes([entry.kind]) + entry.data
        return self._writer.add(ENTRY, entry.index, entry.term, payload, 0)

    def _hard_state(self, state: HardState) -> bytes:
        payload = state.commit.to_bytes(8, "little") + state.vote.encode()
        return self._writer.add(HARD_STATE, 0, state.term, payload, 0)

    def _begin_log(self, base: SnapshotMeta, entries: list[Entry]) -> None:
        """Write `log.new`; what is written from now on goes behind it."""
        salt = self._draw.getrandbits(32)
        self._disk.create(LOG_NEW)
        self._writer = Writer(salt, 0, SALT_SIZE)
        self._end = 0
        self._written_index = base.index
        conf = encode_conf_state(base.conf)
        parts = [salt.to_bytes(SALT_SIZE, "little")]
        parts.append(self._writer.add(TRUNCATE, base.index, base.term, conf, 0))
        parts.append(self._hard_state(self.log.state))
        parts += [self._entry(entry) for entry in entries]
        self._put(LOG_NEW, b"".join(parts))

    # Start.

    def _open(self) -> None:
        """Read what there is, and make it durable before anybody relies on it."""
        disk, log = self._disk, self.log
        names = disk.names()
        if LOG in names:
            self._read_log()
        if SNAPSHOT in names:
            content = disk.read(SNAPSHOT)
            end = 4 + int.from_bytes(content[:4], "little")
            meta = decode_snapshot(content[4:end])
            log.offered, self.snapshot_data = meta, content[end:]
            if meta.index > log.base().index and log.term(meta.index) != meta.term:
                log.install(meta)  # the crash came before the log was begun again above it
            disk.sync(SNAPSHOT)
        entries = log.entries(log.first_index(), log.last_index() + 1, 1 << 62)
        self._begin_log(log.base(), entries)
        self._sync_new_log()
        self._name_log()
        disk.sync_names()

    def _read_log(self) -> None:
        content = self._disk.read(LOG)
        salt = int.from_bytes(content[:SALT_SIZE], "little")
        offset, crc = SALT_SIZE, 0
        entries: list[Entry] = []
        while (record := parse(content, offset, salt)) is not None and record.previous == crc:
            if record.kind == HARD_STATE:
                commit = int.from_bytes(record.payload[:8], "little")
                self.log.state = HardState(record.term, record.payload[8:].decode(), commit)
            elif record.kind == ENTRY:
                payload = record.payload
                entries.append(Entry(record.index, record.term, payload[1:], payload[0]))
            elif offset == SALT_SIZE:
                conf = decode_conf_state(record.payload)
                self.log.install(SnapshotMeta(record.index, record.term, conf))
            else:
                del entries[record.index - self.log.base().index :]
            offset += record.size
            crc = record.crc
        self.log.append(entries)

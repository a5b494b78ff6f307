"""A simulated node: the real core and the real driver of it, over a simulated disk.

It is the shell of `corvo.consensus.driver`: it sends, stores, and applies in slices of its own.
Each of these ends in an event of its own, so that anything may happen in between.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from sim.disk import Disk, DiskError
from sim.ghost import demand
from sim.store import Store

from corvo.consensus.driver import Driver, Write
from corvo.consensus.log import CONFIGURATION, Entry
from corvo.consensus.raft.config import RaftConfig
from corvo.consensus.raft.core import Raft
from corvo.consensus.raft.messages import (
    SNAPSHOT,
    ConfState,
    Message,
    SnapshotMeta,
    decode_conf_state,
    decode_message,
    encode_message,
)
from corvo.consensus.raft.ready import LEADER, Ready, RoleChange
from corvo.storage.memory import MemoryStore

if TYPE_CHECKING:
    from sim.world import World

LOST = "lost"  # another entry was committed in this one's place
UNKNOWN = "unknown"  # nobody can say any more what became of it

TURNS_MAX = 1_000

Answered = Callable[[Any], None]
Packet = tuple[bytes, bytes]  # a message, and the data of the snapshot that it announces


class StateMachine(Protocol):
    """What entries are applied to."""

    applied_index: int
    hash: bytes

    def apply(self, entry: Entry) -> Any:
        """Apply one entry."""

    def skip(self, entry: Entry) -> None:
        """Take note of an entry that is not for the state machine."""

    def encode(self) -> bytes:
        """What a snapshot of this moment holds."""

    def abandon(self) -> list[Answered]:
        """Who waits for something that was not proposed yet, and never will be."""


class WatchedDriver(Driver):
    """Shows the ghost what the core hands out."""

    def __init__(self, node: "Node", applied: int) -> None:
        super().__init__(node.raft, node, applied)
        self._node = node
        self._turns = 0

    def turn(self) -> None:
        self._turns = 0
        super().turn()

    def take(self) -> Ready:
        self._turns += 1
        demand(self._turns < TURNS_MAX, "a node comes to rest", self._node.name)
        ready = super().take()
        self._node.world.ghost.ready(self._node, ready)
        return ready


class Node:
    """One node through all its lives."""

    def __init__(self, world: "World", name: str, conf: ConfState) -> None:
        self.world = world
        self.name = name
        self.disk = Disk()
        self.rows = MemoryStore()  # of the real state machine; a flush is durable as a whole
        self.clock_offset_us = world.draw.choice((0, 0, -1, 1)) * world.draw.randint(0, 2_000_000)
        self.first_conf = conf
        self.life = 0
        self.is_up = False
        self.is_paused = False
        self.stalled_until_us = 0  # no sync ends before
        self.tick_us = world.options.tick_us
        self.raft: Raft
        self.store: Store
        self.machine: Any

    # Life and death.

    def start(self) -> None:
        """A process starts with what is on disk."""
        world, options = self.world, self.world.options
        assert not self.is_up
        self.life += 1
        self.is_up = True
        self.is_paused = False
        self.disk.fails_next_sync = False
        self.store = Store(self.disk, world.draw, self._wait, self.first_conf)
        self.machine = world.recover_machine(self)
        self._pending: dict[int, tuple[int, Answered]] = {}
        self._is_applying = False
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._incoming: dict[tuple[int, int], bytes] = {}
        self._snapshot_senders: list[str] = []
        self._is_saving = False
        self.tick_us = round(options.tick_us * (1 + world.draw.uniform(-1, 1) * options.skew))
        config = RaftConfig(
            self.name,
            seed=world.draw.getrandbits(64),
            election_ticks=options.election_ticks,
            heartbeat_ticks=options.heartbeat_ticks,
            append_size_max=options.append_size_max,
            inflight_max=options.inflight_max,
            uncommitted_max=options.uncommitted_max,
            applying_size_max=options.applying_size_max,
            promote_lag_max=options.promote_lag_max,
        )
        self.raft = Raft(config, self.store.log, self.machine.applied_index)
        self.driver = WatchedDriver(self, self.machine.applied_index)
        world.ghost.started(self)
        self.later(world.draw.randint(0, self.tick_us), self._tick)
        self.driver.turn()

    def stop(self) -> None:
        """The process is gone. Who waited for an answer gets none."""
        if not self.is_up:
            return
        self.is_up = False
        waiting = [answered for _, answered in self._pending.values()]
        waiting += self.machine.abandon()
        self._pending.clear()
        self.world.ghost.stopped(self)
        for source in self._snapshot_senders:
            self.world.tell_snapshot_failed(source, self.name)
        for answered in waiting:
            answered(UNKNOWN)
        self.driver.fail_reads()

    def cut_power(self) -> None:
        """The process is gone, and what was not synced."""
        self.stop()
        self.disk.cut_power(self.world.draw)

    def pause(self) -> None:
        """The process stands still; what arrives waits."""
        self.is_paused = True

    def resume(self) -> None:
        """The process goes on, knowing nothing of the pause."""
        self.is_paused = False
        held, self._held = self._held, []
        for action, arguments in held:
            self._run(self.life, action, arguments)

    def later(self, delay_us: int, action: Callable[..., None], *arguments: Any) -> None:
        """An event of this life."""
        self.world.schedule.after(delay_us, self._run, self.life, action, arguments)

    def _run(self, life: int, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if life != self.life or not self.is_up:
            return
        if self.is_paused:
            self._held.append((action, arguments))
            return
        try:
            action(*arguments)
            if self.is_up:
                self.world.ghost.check(self)
        except DiskError:
            self.world.trace("disk failed", self.name)
            self.stop()

    # Inputs.

    def _tick(self) -> None:
        self.later(self.tick_us, self._tick)
        self.raft.tick()
        self.world.ticked(self)
        self.driver.turn()

    def deliver(self, packet: Packet) -> None:
        """A message arrived. A snapshot is the target's affair from here on, paused or not."""
        message = decode_message(packet[0])
        if message.snapshot is not None:
            self._snapshot_senders.append(message.from_id)
        self._run(self.life, self._step, (message, packet[1]))

    def _step(self, message: Message, snapshot_data: bytes) -> None:
        if message.snapshot is not None:
            meta = message.snapshot
            self._incoming[meta.index, meta.term] = snapshot_data
        self.raft.step(message)
        self.driver.turn()

    def call(self, action: Callable[["Node"], None]) -> None:
        """A call from outside, unless nobody is there."""
        if self.is_up:
            self._run(self.life, self._call, (action,))

    def _call(self, action: Callable[["Node"], None]) -> None:
        action(self)
        self.driver.turn()

    def propose(self, data: bytes, answered: Answered) -> None:
        """Propose an entry; `answered` takes the result, LOST or UNKNOWN. Raises Refused."""
        index, term = self.raft.propose(data)
        overwritten = self._pending.pop(index, None)
        self._pending[index] = (term, answered)
        if overwritten is not None:
            overwritten[1](UNKNOWN)

    def read(self, answered: Answered) -> bool:
        """Call back when a linearizable read may be served from the state."""
        if not self.raft.leader_id:
            return False
        self.driver.read(lambda ok: answered(True if ok else UNKNOWN))
        return True

    def known_confs(self) -> list[ConfState]:
        """Configurations that may be in force as far as this node's disk says."""
        log = self.store.log
        confs = [self.driver.conf_at(self.machine.applied_index)]
        for entry in log.entries(log.first_index(), log.last_index() + 1, 1 << 62):
            if entry.kind == CONFIGURATION and entry.index > self.machine.applied_index:
                confs.append(decode_conf_state(entry.data))
        return confs

    @property
    def is_leader(self) -> bool:
        """Whether it believes to lead."""
        return self.is_up and self.raft.role == LEADER

    # The shell of the driver.

    def send(self, messages: list[Message]) -> None:
        for message in messages:
            data = b""
            if message.type == SNAPSHOT:
                data = self.store.snapshot_data
            self.world.network.send(self.name, message.to_id, (encode_message(message), data))

    def write(self, write: Write) -> None:
        number = write.number
        assert number
        self.store.append(write.hard_state, write.entries, lambda: self.driver.written(number))

    def install(self, meta: SnapshotMeta) -> None:
        data = self._incoming[meta.index, meta.term]
        self._incoming.clear()

        def installed() -> None:
            self.world.save_machine(self, data)
            self.driver.installed(meta)

        self.store.install(meta, data, installed)

    def role_changed(self, change: RoleChange) -> None:
        pass

    def apply_soon(self) -> None:
        if not self._is_applying:
            self._is_applying = True
            self.later(self.world.draw.choice((0, 0, 100, 3_000)), self._apply)

    def _wait(self, then: Callable[[], None]) -> None:
        """Syncing takes its time."""
        world = self.world
        delay_us = world.draw.randint(world.options.sync_min_us, world.options.sync_max_us)
        delay_us = max(delay_us, self.stalled_until_us - world.schedule.now_us)
        self.later(delay_us, self._synced, then)

    def _synced(self, then: Callable[[], None]) -> None:
        then()
        self.driver.turn()

    # Applying.

    def _apply(self) -> None:
        self._is_applying = False
        for _ in range(self.world.options.apply_batch):
            if self.driver.has_work:
                self.driver.apply(1)
        self._save_snapshot()
        self.driver.turn()
        if self.driver.has_work:
            self.apply_soon()

    def restore(self, meta: SnapshotMeta) -> bool:
        self.world.trace("restored", self.name, repr(meta))
        waiting = self.machine.abandon()
        self.machine = self.world.recover_machine(self)
        for index in [index for index in self._pending if index <= meta.index]:
            waiting.append(self._pending.pop(index)[1])
        for answered in waiting:
            answered(UNKNOWN)
        return True

    def apply(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._apply_entry(entry)

    def _apply_entry(self, entry: Entry) -> None:
        result = None
        if entry.kind == CONFIGURATION:
            self.machine.skip(entry)
        else:
            result = self.machine.apply(entry)
        self.world.ghost.applied(self, entry)
        term, answered = self._pending.pop(entry.index, (0, None))
        if answered is not None:
            answered(result if term == entry.term else LOST)

    # Snapshots.

    def _save_snapshot(self) -> None:
        interval = self.world.options.snapshot_interval
        last = self.store.snapshot
        log = self.store.log
        index = self.machine.applied_index
        if not interval or self._is_saving or index > log.last_index():
            return
        if index < (0 if last is None else last.index) + interval:
            return
        meta = SnapshotMeta(index, log.term(index), self.driver.conf_at(index))
        self._is_saving = True
        data = self.machine.encode()

        def saved() -> None:
            self._is_saving = False
            self._cut()

        self.store.save_snapshot(meta, data, saved)

    def _cut(self) -> None:
        """Give up entries of the log that the snapshot covers."""
        log, snapshot = self.store.log, self.store.snapshot
        assert snapshot is not None
        index = min(snapshot.index - self.world.options.trailing, self.raft.trim_limit())
        if index > log.base().index and log.term(index) >= 0:
            self.store.cut(SnapshotMeta(index, log.term(index), self.driver.conf_at(index)))

"""The log of a cluster node: the Raft core, the write-ahead log and the network.

A timer ticks the core. All messages of one event-loop turn are stepped into the core and then
processed together: there is one write per peer and one flush, and the leader writes to its disk in
parallel with the network. See README.md, "The driver's turn".

Entries retained for followers are both in memory and in segments: the newest ones, up to a limit in
bytes. A follower that needs older entries gets a snapshot.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from corvo import limits
from corvo.consensus.driver import Driver, ReadAnswer, Write
from corvo.consensus.log import Entry
from corvo.consensus.raft.config import RaftConfig
from corvo.consensus.raft.core import Raft
from corvo.consensus.raft.membership import Change
from corvo.consensus.raft.messages import (
    SNAPSHOT,
    ConfState,
    HardState,
    Message,
    SnapshotMeta,
)
from corvo.consensus.raft.ready import LEADER, RaftStatus, Refused, RoleChange
from corvo.consensus.raft.storage import MemoryStorage
from corvo.consensus.wal.wal import Flusher
from corvo.consensus.wal_log import WalLog
from corvo.errors import Conflict, CorvoError, DiskFull, NoLeader, Overloaded, StorageError
from corvo.platform.files import Files
from corvo.platform.noop import noop
from corvo.storage.data_dir import Identity

TICK_S = 0.05
ELECTION_TICKS = 12
_APPLY_SLICE = limits.MIB
_WRITE_SIZE_MAX = 4 * limits.MIB
_PIN_TICKS = 100
_CONFIRM_TICKS = 200
_NO_PIN = 1 << 62
_ENTRY_OVERHEAD = 128  # bytes of memory in addition to the data

ChangeAnswer = Callable[[CorvoError | None], None]


class Peers(Protocol):
    """Network connection to the other nodes."""

    def send(self, messages: list[Message]) -> None:
        """Send messages without waiting; losses are reported by `RaftLog.peer_unreachable`."""


class Snapshots(Protocol):
    """Creation, transfer and installation of snapshots."""

    def prepare(self) -> None:
        """Create a snapshot to send, and announce it with `RaftLog.offer`."""

    def send(self, message: Message) -> None:
        """Send snapshot and message; calls `RaftLog.snapshot_sent` at the end."""

    def install(self, meta: SnapshotMeta) -> None:
        """Replace the state store by the received snapshot, durably and atomically."""


class RaftLog(WalLog):
    """Implementation of `corvo.consensus.log.Log` with any number of voters.

    Every node gets all committed entries through `on_committed`, including those of kind
    CONFIGURATION. Only the leader may propose; `on_leader` and `on_follower` report changes.
    """

    def __init__(
        self,
        path: str,
        identity: Identity,
        peers: Peers | None,
        *,
        conf: ConfState,
        durable: bool,
        new_salt: Callable[[], int],
        seed: int,
        segment_size: int = limits.WAL_SEGMENT_SIZE,
        kept_size: int = limits.RAFT_LOG_KEPT_SIZE,
        tick_s: float = TICK_S,
        election_ticks: int = ELECTION_TICKS,
        files: Files | None = None,
        flusher: Flusher | None = None,
    ) -> None:
        """`peers` may be set later, before the start.

        `conf` is the configuration in the state store, or the initial one of a new cluster.
        `new_salt` returns 32 random bits; `seed` is 64 bits, different on every node.
        """
        self.node_id = raft_id(identity)
        self.clean = True
        self.on_committed: Callable[[list[Entry]], None] = noop
        self.on_failed: Callable[[Exception], None] = noop
        self.on_idle: Callable[[], None] = noop
        self.on_leader: Callable[[int], None] = noop
        self.on_follower: Callable[[str], None] = noop
        self.on_members: Callable[[ConfState, int], None] = noop
        self.on_restored: Callable[[SnapshotMeta], bool] = _restored_at_once
        self.snapshots: Snapshots | None = None
        self.heard_ns: dict[str, int] = {}  # monotonic time of the last message of each peer
        self.peers = peers
        self.first_conf = conf  # may be set later, before the start
        self._seed = seed
        self._kept_size_max = kept_size
        self._tick_s = tick_s
        self._election_ticks = election_ticks
        self.started = False  # before the start there is no status
        self._timer: Any = None
        self._turn_due = False
        self._apply_due = False
        self._closed = False
        self._broken: Exception | None = None
        self._writes: deque[Write | SnapshotMeta] = deque()  # not started
        self._write_size_max = min(_WRITE_SIZE_MAX, segment_size // 4)
        self._proposed_index = 0  # newest own proposal that is not on this node's disk
        self._kept_size = 0
        self._covered_index = 0
        self._pin_index = _NO_PIN  # later entries are retained while a snapshot is created
        self._pin_ticks = 0
        self._unconfirmed: dict[str, int] = {}  # receiver of a complete snapshot -> ticks left
        self._conf: ConfState | None = None
        self._changes: dict[int, tuple[int, ChangeAnswer]] = {}
        self._open_wal(
            path,
            identity,
            durable=durable,
            new_salt=new_salt,
            segment_size=segment_size,
            files=files,
            flusher=flusher,
        )

    # Status.

    @property
    def term(self) -> int:
        return self._raft.term

    @property
    def last_index(self) -> int:
        return self._raft.log.last_index()

    @property
    def commit_index(self) -> int:
        return self._raft.log.commit

    @property
    def busy(self) -> bool:
        """Whether a proposal is not on this node's disk; waits for followers are pipelined."""
        return self._proposed_index > 0

    @property
    def failed(self) -> Exception | None:
        return self._wal.failed or self._broken

    @property
    def leading(self) -> bool:
        """Whether this node is the leader, as far as it knows."""
        return self._raft.role == LEADER

    @property
    def leader_id(self) -> str:
        """The leader of this term, or "" if unknown."""
        return self._raft.leader_id

    @property
    def conf(self) -> ConfState:
        """The configuration in force."""
        return self._raft.conf

    def status(self) -> RaftStatus:
        """The Raft status for operators."""
        return self._raft.status()

    # Start and stop.

    def start(self, applied_index: int, applied_term: int, loop: AbstractEventLoop) -> list[Entry]:
        """Open the log and join the cluster.

        The result is empty: committed entries follow through `on_committed` when there is a
        leader."""
        self._loop = loop
        conf = self.first_conf
        recovered = self._wal.open(applied_index, applied_term, keep_older=True)
        self.clean = recovered.clean
        storage = self._storage = MemoryStorage(conf)
        storage.install(SnapshotMeta(recovered.base_index, recovered.base_term, conf))
        storage.append(recovered.entries)
        storage.state = HardState(self._wal.term, self._wal.vote, 0)
        for entry in recovered.entries:
            self._kept_size += _size(entry)
        config = RaftConfig(
            self.node_id, seed=self._seed, election_ticks=self._election_ticks, heartbeat_ticks=1
        )
        self._raft = Raft(config, storage, applied_index)
        self._driver = Driver(self._raft, self, applied_index)
        self._wal.attach(loop)
        self._report_members()
        self._timer = loop.call_later(self._tick_s, self._tick)
        if self.conf.voters == [self.node_id]:
            self._raft.campaign()
        self.started = True
        self._turn_soon()
        return []

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._wal.close()

    # Inputs.

    def propose(self, data: bytes) -> tuple[int, int]:
        """Propose an entry as the leader.

        Raises NoLeader on other nodes, and Overloaded if too much is uncommitted."""
        if self.failed is not None:
            raise self.failed
        assert not self.busy, "one own write in flight"
        try:
            index, term = self._raft.propose(data)
        except Refused as error:
            if self.leading and not self._raft.status().transferee:
                raise Overloaded(str(error), retry_after_ms=limits.RETRY_AFTER_MAX_MS) from None
            raise NoLeader("this node is not the leader any more") from None
        self._proposed_index = index
        self._turn_soon()
        return index, term

    def take_message(self, message: Message) -> None:
        """Process a message of another node; ignored before the start and after the close."""
        if not self.started or self._closed:
            return
        self.heard_ns[message.from_id] = self.now_ns()
        self._guarded(self._raft.step, message)
        self._turn_soon()

    @property
    def hears_leader(self) -> bool:
        """Whether another node is the leader and has sent a message recently."""
        heard_ns = self.heard_ns.get(self.leader_id, 0)
        return heard_ns > 0 and self.now_ns() - heard_ns < limits.LEADER_SILENT_NS

    def now_ns(self) -> int:
        """The current time on the clock of `heard_ns`."""
        return int(self._loop.time() * limits.SECOND_NS)

    def peer_unreachable(self, node_id: str) -> None:
        """Handle the loss of messages to a node; ignored before the start and after the close."""
        if self.started and not self._closed:
            self._give_up_snapshot(node_id)
            self._raft.unreachable(node_id)
            self._turn_soon()

    def change(self, change: Change, answer: ChangeAnswer) -> None:
        """Propose a configuration change; `answer` is called with None when it is applied, or an
        error."""
        try:
            index, term = self._raft.propose_change(change)
        except Refused as error:
            answer(Conflict(str(error)) if self.leading else NoLeader(str(error)))
            return
        self._changes[index] = (term, answer)
        self._turn_soon()

    def transfer(self, to_id: str = "") -> None:
        """Transfer the leadership to a voter, by default the most up-to-date one.

        Raises Conflict if this is not possible."""
        if not to_id:
            peers = self._raft.status().peers
            voters = [(-p.match, node_id) for node_id, p in peers.items() if p.active]
            voters = [v for v in voters if v[1] in self.conf.voters]
            if not voters:
                raise Conflict("no other voter is available")
            to_id = min(voters)[1]
        try:
            self._raft.transfer(to_id)
        except Refused as error:
            raise Conflict(str(error)) from None
        self._turn_soon()

    def read(self, answer: ReadAnswer) -> None:
        """Call `answer(True)` when a linearizable read may be served; see `Driver.read`."""
        self._driver.read(answer)

    def fail_reads(self) -> None:
        """Fail all pending reads after a timeout."""
        self._driver.fail_reads()

    def trim(self, index: int) -> None:
        """Trim entries that the state store covers, once the retained size exceeds its limit."""
        self._covered_index = max(self._covered_index, index)
        if self._kept_size > self._kept_size_max + self._kept_size_max // 4:
            self._compact(self._kept_size_max, self._covered_index)
        self._wal.trim(self._storage.base().index)

    def cut(self) -> None:
        """Trim all entries that the state store covers, except those about to be sent."""
        peers = self._raft.status().peers.values()
        matched = min((peer.match for peer in peers if peer.active), default=self._covered_index)
        self._compact(0, matched)
        self._wal.trim(self._storage.base().index)

    def _compact(self, kept_size_max: int, limit: int) -> None:
        """Drop entries up to `limit` until the retained size is at most `kept_size_max`."""
        storage = self._storage
        base_index = storage.base().index
        limit = min(limit, self._covered_index, self._raft.trim_limit(), storage.last_index())
        limit = min(limit, self._pin_index)
        if storage.offered is not None:
            limit = min(limit, storage.offered.index)
        index = base_index
        last = max(limit, base_index)
        for entry in storage.entries(base_index + 1, last + 1, self._kept_size):
            if self._kept_size <= kept_size_max:
                break
            self._kept_size -= _size(entry)
            index = entry.index
        if index > base_index:
            conf = self._driver.conf_at(index)
            storage.compact(SnapshotMeta(index, storage.term(index), conf))
            self._driver.trim_confs(index)

    # Snapshots.

    def offer(self, index: int, term: int) -> None:
        """Announce a snapshot at this applied entry, ready to be sent."""
        self._pin_index = _NO_PIN
        if index < self._storage.base().index:
            return  # the log has no entries right after the snapshot any more
        self._storage.offered = SnapshotMeta(index, term, self._driver.conf_at(index))
        self._turn_soon()

    def withdraw_offer(self) -> None:
        """Withdraw the announced snapshot, which is deleted."""
        self._storage.offered = None

    def snapshot_sent(self, node_id: str, ok: bool) -> None:
        """Handle the end of a transfer; after success the peer confirms the snapshot itself."""
        if ok:
            self._unconfirmed[node_id] = _CONFIRM_TICKS
        elif not self._closed:
            self._raft.snapshot_failed(node_id)
            self._turn_soon()

    def _give_up_snapshot(self, node_id: str) -> None:
        """Give up on a member that received a snapshot but did not confirm it; it needs another
        one."""
        if self._unconfirmed.pop(node_id, 0):
            self._raft.snapshot_failed(node_id)

    def _await_snapshots(self) -> None:
        for node_id, ticks in list(self._unconfirmed.items()):
            self._unconfirmed[node_id] = ticks - 1
            if ticks == 1:
                self._give_up_snapshot(node_id)

    # Ports of the driver.

    def send(self, messages: list[Message]) -> None:
        if any(message.type == SNAPSHOT for message in messages):
            assert self.snapshots is not None, "only offered snapshots are sent"
            for message in messages:
                if message.type == SNAPSHOT:
                    self._unconfirmed.pop(message.to_id, None)
                    self.snapshots.send(message)
            messages = [message for message in messages if message.type != SNAPSHOT]
        assert self.peers is not None
        if messages:
            self.peers.send(messages)

    def write(self, write: Write) -> None:
        """Queue a write, split into parts that fit into a segment."""
        part: list[Entry] = []
        size = 0
        previous_term = write.previous_term
        for entry in write.entries:
            if part and size + len(entry.data) > self._write_size_max:
                self._writes.append(Write(0, part, previous_term, None))
                previous_term = part[-1].term
                part, size = [], 0
            part.append(entry)
            size += len(entry.data)
        self._writes.append(Write(write.number, part, previous_term, write.hard_state))
        self._start_writes()

    def install(self, meta: SnapshotMeta) -> None:
        self._writes.append(meta)
        self._start_writes()

    def restore(self, meta: SnapshotMeta) -> bool:
        for index in [index for index in self._changes if index <= meta.index]:
            self._changes.pop(index)[1](NoLeader("the outcome of the change is unknown"))
        return self.on_restored(meta)

    def restored(self, meta: SnapshotMeta) -> None:
        """Handle the end of a restore for which `on_restored` returned False."""
        if not self._closed:
            self._guarded(self._driver.restored, meta)

    def apply(self, entries: list[Entry]) -> None:
        self.on_committed(entries)
        for entry in entries:
            if entry.index in self._changes:
                term, answer = self._changes.pop(entry.index)
                lost = term != entry.term
                answer(NoLeader("another leader was elected in the meantime") if lost else None)

    def apply_soon(self) -> None:
        if not self._apply_due and not self._closed:
            self._driver.apply(_APPLY_SLICE)
            self._apply_rest()

    def _apply_rest(self) -> None:
        """Apply the rest in slices, so that other events of the loop run in between."""
        if self._driver.has_work and not self._apply_due:
            self._apply_due = True
            self._loop.call_soon(self._apply_later)

    def _apply_later(self) -> None:
        self._apply_due = False
        self._guarded(self.apply_soon)

    def role_changed(self, change: RoleChange) -> None:
        self._proposed_index = 0
        if change.role == LEADER:
            self.on_leader(change.term)
        else:
            self.on_follower(change.leader_id)

    # Turns.

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        """Run an action; an exception stops the node.

        After an internal error the node no longer knows which promises it made to others."""
        if self._broken is not None:
            return
        try:
            action(*args)
        except Exception as error:
            self._broken = error
            self._loop.call_soon(self.on_failed, error)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        self._guarded(self._on_tick)

    def _on_tick(self) -> None:
        self._raft.tick()
        self._prepare_snapshot()
        self._await_snapshots()
        if self._writes:
            self._wal.reserve()
            self._start_writes()
        self._turn()

    def _prepare_snapshot(self) -> None:
        """Start to create a snapshot if a follower needs one.

        The snapshot will include at least the present state store, so later entries are
        retained."""
        storage = self._storage
        if storage.wanted and storage.offered is None and self.snapshots is not None:
            storage.wanted = False
            self._pin_ticks = 0
            self._pin_index = min(self._pin_index, self._covered_index)
            self.snapshots.prepare()
        elif self._pin_index < _NO_PIN:
            self._pin_ticks += 1
            if self._pin_ticks > _PIN_TICKS:
                self._pin_index = _NO_PIN

    def _turn_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_due = False
        self._guarded(self._turn)

    def _turn(self) -> None:
        if not self._closed and self.failed is None:
            self._driver.turn()
            self._report_members()

    def _report_members(self) -> None:
        """Report a new configuration as soon as it is in force."""
        conf = self._raft.conf
        if conf is not self._conf:
            self._conf = conf
            self.on_members(conf, self._raft.membership.index)

    # The disk.

    def _start_writes(self) -> None:
        """Start the queued writes that can be started.

        Only one segment can be sealed at a time. On a full disk all writes wait; to the core this
        is the same as a disk that does not respond."""
        wal = self._wal
        while self._writes and wal.failed is None and not wal.rolling:
            item = self._writes.popleft()
            try:
                if isinstance(item, Write):
                    self._begin(item)
                else:
                    self._install(item)
            except DiskFull:
                self._writes.appendleft(item)
                break
            except StorageError:
                if self.failed is None:
                    raise
                break  # the failure is already reported

    def _begin(self, write: Write) -> None:
        state = write.hard_state
        self._wal.write(
            write.entries,
            write.previous_term,
            None if state is None else (state.term, state.vote),
            self._sync,
            lambda: self._guarded(self._written, write),
        )

    def _written(self, write: Write) -> None:
        """Handle a written part: it is on disk, or in the operating system if the log is not
        durable."""
        entries = write.entries
        storage = self._storage
        if entries:
            if entries[0].index <= storage.last_index():
                first, last = entries[0].index, storage.last_index()
                for entry in storage.entries(first, last + 1, self._kept_size):
                    self._kept_size -= _size(entry)
            storage.append(entries)
            for entry in entries:
                self._kept_size += _size(entry)
        if write.number:
            self._driver.written(write.number)
            self._report_members()
        self._start_writes()
        if entries and 0 < self._proposed_index <= entries[-1].index:
            self._proposed_index = 0
            self.on_idle()

    def _install(self, meta: SnapshotMeta) -> None:
        assert self.snapshots is not None, "a snapshot was received"
        self.snapshots.install(meta)
        self._wal.begin_above(meta.index, meta.term, lambda: self._guarded(self._installed, meta))

    def _installed(self, meta: SnapshotMeta) -> None:
        self._storage.install(meta)
        self._storage.offered = None
        self._kept_size = 0
        self._driver.installed(meta)
        self._start_writes()

    def _wal_failed(self, error: Exception) -> None:
        self._loop.call_soon(self.on_failed, error)


def raft_id(identity: Identity) -> str:
    """The id of a node in the Raft core; a node that lost its data gets another id."""
    return f"{identity.node_id}/{identity.incarnation}"


def _size(entry: Entry) -> int:
    return len(entry.data) + _ENTRY_OVERHEAD


def _restored_at_once(_: SnapshotMeta) -> bool:
    return True

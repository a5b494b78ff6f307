"""Driver of the Raft core, independent of network, disk and state machine.

The core returns work (`raft.ready`). The driver orders it: messages are sent at once, writes are
started in the order of their numbers, committed entries are applied in order, and a read is
confirmed when the applied state includes its read index. The server (`raft_log`) and the simulator
implement `Ports` with their sockets, disk and state machine.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from corvo.consensus.log import CONFIGURATION, Entry
from corvo.consensus.raft.core import Raft
from corvo.consensus.raft.messages import (
    ConfState,
    HardState,
    Message,
    SnapshotMeta,
    decode_conf_state,
)
from corvo.consensus.raft.ready import Ready, RoleChange

ReadAnswer = Callable[[bool], None]


class Write:
    """One write: entries, then the hard state; both may be missing.

    The first entry may overwrite entries of the log."""

    def __init__(
        self, number: int, entries: list[Entry], previous_term: int, hard_state: HardState | None
    ) -> None:
        self.number = number  # argument of `Raft.persisted` when the write is durable
        self.entries = entries
        self.previous_term = previous_term  # term of the entry before the first
        self.hard_state = hard_state


class Ports(Protocol):
    """I/O of a driver.

    Methods must not call the driver, except `Driver.written` and `Driver.installed`."""

    def send(self, messages: list[Message]) -> None:
        """Send messages in order, without waiting."""

    def write(self, write: Write) -> None:
        """Start a write after all earlier ones; call `Driver.written` when it is durable."""

    def install(self, meta: SnapshotMeta) -> None:
        """Start to install a received snapshot durably, and to start the log after it.

        Later writes must come after it. Call `Driver.installed` when it is durable."""

    def restore(self, meta: SnapshotMeta) -> bool:
        """Replace the state by a durable snapshot.

        Return False if this takes time; then call `Driver.restored` at the end."""

    def apply(self, entries: list[Entry]) -> None:
        """Apply committed entries of all kinds."""

    def role_changed(self, change: RoleChange) -> None:
        """Handle a change of role, term or leader."""

    def apply_soon(self) -> None:
        """Schedule a call of `Driver.apply`, now or later."""


class _Restore:
    """Item of the apply queue that replaces the state by a snapshot."""

    def __init__(self, meta: SnapshotMeta) -> None:
        self.meta = meta
        self.durable = False
        self.begun = False


class Driver:
    """Runs the Raft core of one node; callers call `turn` after every input."""

    def __init__(self, raft: Raft, ports: Ports, applied: int) -> None:
        """`applied` is the last entry that the state machine has applied."""
        self.raft = raft
        self.applied = applied
        self._ports = ports
        self._queue: deque[Entry | _Restore] = deque()
        self._turning = False
        self._reads: dict[bytes, ReadAnswer] = {}
        self._reads_confirmed: list[tuple[int, ReadAnswer]] = []
        self._read_number = 0
        self._confs = self._known_confs()

    def _known_confs(self) -> list[tuple[int, ConfState]]:
        """Configurations from the start of the log on, each with the index of its entry."""
        storage = self.raft.storage
        base = storage.base()
        confs = [(base.index, base.conf)]
        for entry in storage.entries(base.index + 1, self.applied + 1, 1 << 62):
            if entry.kind == CONFIGURATION:
                confs.append((entry.index, decode_conf_state(entry.data)))
        return confs

    def conf_at(self, index: int) -> ConfState:
        """The configuration at an applied index that is not below the start of the log."""
        return [conf for at, conf in self._confs if at <= index][-1]

    def trim_confs(self, index: int) -> None:
        """Drop configurations that ended before this index, because the log now starts after it."""
        while len(self._confs) > 1 and self._confs[1][0] <= index:
            del self._confs[0]

    # Inputs.

    def turn(self) -> None:
        """Process the work of the core until there is none."""
        if self._turning:
            return
        self._turning = True
        try:
            while self.raft.has_ready():
                self._do(self.take())
        finally:
            self._turning = False

    def take(self) -> Ready:
        """Take the next work of the core."""
        return self.raft.ready()

    def written(self, number: int) -> None:
        """Handle the completion of a write."""
        self.raft.persisted(number)
        self.turn()

    def installed(self, meta: SnapshotMeta) -> None:
        """Handle a durable snapshot; the write issued with it is still pending."""
        for item in self._queue:
            if isinstance(item, _Restore) and item.meta is meta:
                item.durable = True
        self._ports.apply_soon()

    def read(self, answer: ReadAnswer) -> None:
        """Call `answer(True)` when a linearizable read may be served from the applied state.

        `answer(False)` means that no leader could confirm the read. If messages are lost, `answer`
        is called only by `fail_reads`."""
        self._read_number += 1
        # The context includes the seed, which differs at every start: a late reply to a read of an
        # earlier run must not confirm a read of this run.
        context = b"%x.%d" % (self.raft.config.seed, self._read_number)
        self._reads[context] = answer
        if not self.raft.read_index(context):
            del self._reads[context]
            answer(False)
            return
        self.turn()

    def fail_reads(self) -> None:
        """Fail all pending reads after a timeout."""
        reads, self._reads = self._reads, {}
        confirmed, self._reads_confirmed = self._reads_confirmed, []
        for answer in [*reads.values(), *(answer for _, answer in confirmed)]:
            answer(False)

    @property
    def reading(self) -> bool:
        """Whether there are pending reads."""
        return bool(self._reads or self._reads_confirmed)

    # Outputs.

    def _do(self, ready: Ready) -> None:
        ports = self._ports
        if ready.messages:
            ports.send(ready.messages)
        if ready.snapshot is not None:
            self._install(ready.snapshot, ready)
        elif ready.number:
            self._write(ready)
        if ready.role_change is not None:
            ports.role_changed(ready.role_change)
        if ready.committed:
            self._queue.extend(ready.committed)
            ports.apply_soon()
        for state in ready.read_states:
            answer = self._reads.pop(state.context, None)
            if answer is not None and state.index:
                self._reads_confirmed.append((state.index, answer))
            elif answer is not None:
                answer(False)
        if self._reads_confirmed:
            self._answer_reads()

    def _write(self, ready: Ready) -> None:
        entries = ready.entries
        previous_term = self.raft.log.term(entries[0].index - 1) if entries else 0
        self._ports.write(Write(ready.number, entries, previous_term, ready.hard_state))

    def _install(self, meta: SnapshotMeta, ready: Ready) -> None:
        self._queue.clear()  # the snapshot includes these entries
        self._queue.append(_Restore(meta))
        self._ports.install(meta)
        self._write(ready)

    def _answer_reads(self) -> None:
        waiting: list[tuple[int, ReadAnswer]] = []
        for index, answer in self._reads_confirmed:
            if index <= self.applied:
                answer(True)
            else:
                waiting.append((index, answer))
        self._reads_confirmed = waiting

    # Applying.

    @property
    def has_work(self) -> bool:
        """Whether `apply` can make progress."""
        item = self._queue[0] if self._queue else None
        return item is not None and (
            not isinstance(item, _Restore) or (item.durable and not item.begun)
        )

    def apply(self, size_max: int) -> None:
        """Apply the next entries, up to about `size_max` bytes."""
        entries: list[Entry] = []
        size = 0
        while self._queue and size < size_max:
            item = self._queue[0]
            if isinstance(item, _Restore):
                if entries or not self._restore(item):
                    break
            else:
                self._queue.popleft()
                entries.append(item)
                size += len(item.data)
        if entries:
            self._ports.apply(entries)
            for entry in entries:
                if entry.kind == CONFIGURATION:
                    self._confs.append((entry.index, decode_conf_state(entry.data)))
            self.applied = entries[-1].index
            self.raft.applied(self.applied)
        if self._reads_confirmed:
            self._answer_reads()
        self.turn()

    def restored(self, meta: SnapshotMeta) -> None:
        """Handle the end of a restore for which `Ports.restore` returned False."""
        item = self._queue[0] if self._queue else None
        if isinstance(item, _Restore) and item.meta is meta:
            self._end_restore(meta)
            self._ports.apply_soon()
        # Otherwise a newer snapshot has replaced this one.

    def _restore(self, item: _Restore) -> bool:
        """Replace the state; return whether this is complete."""
        if not item.durable or item.begun:
            return False
        item.begun = True
        if not self._ports.restore(item.meta):
            return False
        self._end_restore(item.meta)
        return True

    def _end_restore(self, meta: SnapshotMeta) -> None:
        self._queue.popleft()
        self._confs = [(meta.index, meta.conf)]
        self.applied = meta.index
        self.raft.applied(meta.index)

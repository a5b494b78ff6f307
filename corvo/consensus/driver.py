"""What every driver of the Raft core does, whatever it sends, writes and applies with.

The core hands out work (`raft.ready`). This module puts it in order: messages leave at once,
writes are started in the order of their numbers, committed entries go to the state machine one
after the other, and reads are answered from a state that has what they must see. The server
(`cluster`) and the simulator bring the sockets, the disk and the state machine as a `Ports`.
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
    """Work for the disk: entries, then the hard state; or none of both. The first entry may
    overwrite."""

    def __init__(
        self, number: int, entries: list[Entry], previous_term: int, hard_state: HardState | None
    ) -> None:
        self.number = number  # what to tell the core when it is done
        self.entries = entries
        self.previous_term = previous_term  # of the entry before the first
        self.hard_state = hard_state


class Ports(Protocol):
    """What a driver is made of. No call may come back into the driver, but for `written` and
    `installed`."""

    def send(self, messages: list[Message]) -> None:
        """Send, in order, without waiting for anything."""

    def write(self, write: Write) -> None:
        """Start to make it durable, behind what was started before; ends with `Driver.written`."""

    def install(self, meta: SnapshotMeta) -> None:
        """Start to make the snapshot that the core was told of durable, and the log begin above
        it; ends with `Driver.installed`. It comes before the writes that follow."""

    def restore(self, meta: SnapshotMeta) -> bool:
        """The snapshot is durable: let the state machine go on from it. False: that takes a while,
        and ends with `Driver.restored`."""

    def apply(self, entries: list[Entry]) -> None:
        """Apply committed entries, of all kinds."""

    def role_changed(self, change: RoleChange) -> None:
        """Role, term or leader are not what they were."""

    def apply_soon(self) -> None:
        """There is something to apply: call `Driver.apply`, now or later."""


class _Restore:
    """In the queue of what is to be applied: the state is replaced."""

    def __init__(self, meta: SnapshotMeta) -> None:
        self.meta = meta
        self.durable = False
        self.begun = False


class Driver:
    """One node at work. Every input is followed by `turn`."""

    def __init__(self, raft: Raft, ports: Ports, applied: int) -> None:
        """`applied` is what the state machine has, as the core was told."""
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
        """The members from which applied entry on, from the base of the log."""
        storage = self.raft.storage
        base = storage.base()
        confs = [(base.index, base.conf)]
        for entry in storage.entries(base.index + 1, self.applied + 1, 1 << 62):
            if entry.kind == CONFIGURATION:
                confs.append((entry.index, decode_conf_state(entry.data)))
        return confs

    def conf_at(self, index: int) -> ConfState:
        """The members as of an applied entry that is not below the base of the log."""
        return [conf for at, conf in self._confs if at <= index][-1]

    def forget_confs(self, index: int) -> None:
        """The log begins behind this entry now."""
        while len(self._confs) > 1 and self._confs[1][0] <= index:
            del self._confs[0]

    # Inputs.

    def turn(self) -> None:
        """Do what the core has come up with, until it rests."""
        if self._turning:
            return
        self._turning = True
        try:
            while self.raft.has_ready():
                self._do(self.take())
        finally:
            self._turning = False

    def take(self) -> Ready:
        """The next piece of work of the core."""
        return self.raft.ready()

    def written(self, number: int) -> None:
        """A write is durable."""
        self.raft.persisted(number)
        self.turn()

    def installed(self, meta: SnapshotMeta) -> None:
        """A snapshot is durable. The write that was handed out with it follows."""
        for item in self._queue:
            if isinstance(item, _Restore) and item.meta is meta:
                item.durable = True
        self._ports.apply_soon()

    def read(self, answer: ReadAnswer) -> None:
        """Answer True when a linearizable read may be served from the state, False when nobody
        can say so; in time or never, if messages are lost."""
        self._read_number += 1
        # With the seed, which is new at every start: the answer to a read of an earlier start may
        # still be under way, and must not be taken for one of this start's.
        context = b"%x.%d" % (self.raft.config.seed, self._read_number)
        self._reads[context] = answer
        if not self.raft.read_index(context):
            del self._reads[context]
            answer(False)
            return
        self.turn()

    def forget_reads(self) -> None:
        """Whoever asked for reads has waited long enough."""
        reads, self._reads = self._reads, {}
        confirmed, self._reads_confirmed = self._reads_confirmed, []
        for answer in [*reads.values(), *(answer for _, answer in confirmed)]:
            answer(False)

    @property
    def reading(self) -> bool:
        """Whether reads wait to be confirmed."""
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
        self._queue.clear()  # the snapshot has what these did
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
        """Whether `apply` would get on."""
        item = self._queue[0] if self._queue else None
        return item is not None and (
            not isinstance(item, _Restore) or (item.durable and not item.begun)
        )

    def apply(self, size_max: int) -> None:
        """Let the state machine apply what comes next, some bytes of it."""
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
        """The state machine goes on from this snapshot, which took it a while."""
        item = self._queue[0] if self._queue else None
        if isinstance(item, _Restore) and item.meta is meta:
            self._end_restore(meta)
            self._ports.apply_soon()
        # Else a newer one has come, and what this one was for with it.

    def _restore(self, item: _Restore) -> bool:
        """Replace the state; whether that is done."""
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

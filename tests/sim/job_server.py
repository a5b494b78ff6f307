"""The state machine of full runs: the real one, and what its leader does by the clock."""

import marshal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lib.fsm_driver import START_NS, Step, encode_entry
from sim.ghost import demand

from corvo import ops
from corvo.consensus.log import Entry
from corvo.consensus.raft.ready import Refused
from corvo.fsm.machine import Machine
from corvo.limits import SECOND_NS
from corvo.model import Fetched
from corvo.storage.memory import MemoryStore

if TYPE_CHECKING:
    from sim.node import Node

REFUSED: Final = "refused"  # nothing was done
SEAL_US: Final = 300  # what arrives within this time becomes one entry
DUE_MAX: Final = 5
GRACE_NS: Final = SECOND_NS // 2
"""How long a new leader lets leases of others live on: in step with how long runs are."""
FLUSH_SHARE: Final = 0.1  # of the ticks

Answered = Callable[[Any], None]


class JobServer:
    """The machine of one life of a node, over rows that outlive it."""

    def __init__(self, rows: MemoryStore) -> None:
        self.machine = Machine(rows)
        self.rows = rows
        self._batch: list[tuple[Step, Answered]] = []
        self._term = 0  # in which this node leads and serves
        self._grace_fencing = 0
        self._grace_ends_ns = 0
        self._timers_pending = False  # what was due has been proposed and has no result yet

    @property
    def applied_index(self) -> int:
        return self.machine.applied_index

    @property
    def hash(self) -> bytes:
        return self.machine.hash

    def apply(self, entry: Entry) -> list[object]:
        """Apply a frame; returns one result for each op."""
        fencing = self.machine.fencing
        results = self.machine.apply(entry.index, entry.term, entry.data)
        for result in results:
            if isinstance(result, Fetched):
                demand(result.fencing > fencing, "fencing numbers rise", result.job_id)
                fencing = result.fencing
        self.machine.take_events()
        return results

    def skip(self, entry: Entry) -> None:
        """An entry that is not for the state machine moves its index."""
        self.machine.apply(entry.index, entry.term, b"")

    def encode(self) -> bytes:
        """Flush, and take all rows."""
        self.machine.flush()
        return marshal.dumps(sorted(self.rows._rows.items()))

    @staticmethod
    def decode(data: bytes) -> MemoryStore:
        """Rows of their own, from what `encode` gave."""
        rows = MemoryStore()
        rows.write(marshal.loads(data), [])
        return rows

    def abandon(self) -> list[Answered]:
        """Who waits for something that was not proposed yet, and never will be."""
        waiting = [answered for _, answered in self._batch]
        self._batch = []
        return waiting

    # Leading.

    def submit(self, node: "Node", step: Step, answered: Answered) -> None:
        """Put an op into the next entry, or answer REFUSED."""
        if not self._serves(node):
            answered(REFUSED)
            return
        if not self._batch:
            node.later(SEAL_US, self._seal, node)
        self._batch.append((step, answered))

    def _serves(self, node: "Node") -> bool:
        """A leader serves once it has applied everything from before its term."""
        term = node.raft.term
        if not node.is_leader or self.machine.applied_term != term:
            return False
        if self._term != term:
            self._term = term
            self._grace_fencing = self.machine.fencing
            self._grace_ends_ns = self._now_ns(node) + GRACE_NS
        return True

    def _now_ns(self, node: "Node") -> int:
        """The stamp of an entry made now: this node's clock, but never back."""
        clock_ns = START_NS + (node.world.schedule.now_us + node.clock_offset_us) * 1_000
        return max(self.machine.stamp_ns, clock_ns)

    def _seal(self, node: "Node") -> None:
        batch, self._batch = self._batch, []
        if batch:
            self._propose(node, batch)

    def _propose(self, node: "Node", batch: list[tuple[Step, Answered]]) -> None:
        world = node.world
        steps = [step for step, _ in batch]
        data = encode_entry(self._now_ns(node), world.draw.getrandbits(62), steps)

        def answered(results: Any) -> None:
            for position, (_, each) in enumerate(batch):
                each(results if isinstance(results, str) else results[position])

        try:
            node.propose(data, answered)
        except Refused:
            answered(REFUSED)

    def ticked(self, node: "Node") -> None:
        """Flush now and then; as a leader, propose what has become due."""
        if node.world.draw.random() < FLUSH_SHARE:
            self.machine.flush()
        if self._timers_pending or not self._serves(node):
            return
        now_ns = self._now_ns(node)
        grace = self._grace_fencing if now_ns < self._grace_ends_ns else 0
        due = [
            (ops.PROMOTE_DUE, self.machine.due_promotions(now_ns, DUE_MAX)),
            (ops.EXPIRE_LEASES, self.machine.due_leases(now_ns, DUE_MAX, grace)),
        ]
        batch: list[tuple[Step, Answered]]
        batch = [((op, (ids,)), self._timed) for op, ids in due if ids]
        if batch:
            self._timers_pending = True
            self._propose(node, batch)

    def _timed(self, _: Any) -> None:
        self._timers_pending = False


def recover_jobs(node: "Node") -> JobServer:
    """The state machine over what is on disk: the rows, or a newer snapshot of somebody else."""
    snapshot = node.store.snapshot
    server = JobServer(node.rows)
    if snapshot is not None and snapshot.index > server.applied_index:
        node.rows = JobServer.decode(node.store.snapshot_data)
        server = JobServer(node.rows)
    return server

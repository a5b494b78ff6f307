"""A cluster in one thread: nodes, network and disks on one virtual clock, all from one seed.

A run has two phases. While faults happen, only safety is asked for. Then the faults end, and a
quorum, or everything, is repaired: now what was asked must be answered, within a bound.
"""

import json
import random
from collections.abc import Callable
from typing import Any

from sim.clients import Clients, RegisterClient
from sim.faults import Faults
from sim.ghost import Ghost, demand
from sim.histories import JobState, check, job, register, with_open_fetches
from sim.job_server import JobServer, recover_jobs
from sim.jobs import JobClients
from sim.network import Network
from sim.node import Node, Packet
from sim.options import Options, draw_options
from sim.registers import Registers
from sim.schedule import Schedule

from corvo.consensus.raft.messages import ConfState, decode_message

RECOVERY_TIMEOUTS = 150
"""Election time-outs within which a repaired cluster must be whole again, beside the time that
copying takes."""


class World:
    """One run of one seed."""

    def __init__(
        self,
        seed: int,
        full: bool = False,
        tracer: Callable[[str], None] | None = None,
        options: Options | None = None,
    ) -> None:
        self.options = options or draw_options(seed, full)
        self.draw = random.Random(f"world {seed} {full}")
        self.schedule = Schedule()
        self.network = Network(self.schedule, self.draw, self.options, self._deliver, self._lost)
        self.ghost = Ghost()
        self._tracer = tracer
        self._numbers = 0
        self.nodes = self._make_nodes()
        self.clients: Any
        self.clients = JobClients(self) if full else Clients(self, [RegisterClient])
        self.faults = Faults(self)

    def _make_nodes(self) -> dict[str, Node]:
        options = self.options
        names = [f"n{i + 1}" for i in range(options.voters + options.learners + options.spares)]
        voters = names[: options.voters]
        learners = names[options.voters : options.voters + options.learners]
        nodes: dict[str, Node] = {}
        for name in names:
            members = name in voters or name in learners
            conf = ConfState(voters, learners) if members else ConfState([])
            nodes[name] = Node(self, name, conf)
            self.ghost.add(nodes[name])
        return nodes

    def next_number(self) -> int:
        """A number that was not there before."""
        self._numbers += 1
        return self._numbers

    @property
    def election_us(self) -> int:
        """One election time-out."""
        return self.options.election_ticks * self.options.tick_us

    # What nodes need of the world.

    def recover_machine(self, node: Node) -> Any:
        """The state machine as the node finds it on its disk."""
        if self.options.full:
            return recover_jobs(node)
        return Registers(node.store.snapshot_data)

    def save_machine(self, node: Node, data: bytes) -> None:
        """Put the state of somebody else in the place of the node's own."""
        if self.options.full:
            node.rows = JobServer.decode(data)

    def ticked(self, node: Node) -> None:
        """A tick of a node, for what a leader does by the clock."""
        if self.options.full:
            node.machine.ticked(node)

    def _deliver(self, source: str, target: str, packet: Packet) -> None:
        if self._tracer is not None:
            self.trace("arrives", target, repr(decode_message(packet[0])))
        if self.nodes[target].is_up:
            self.nodes[target].deliver(packet)
        else:
            self._lost(source, target, packet)

    def _lost(self, source: str, target: str, packet: Packet) -> None:
        """A connection that breaks tells its sender, most of the time."""
        if decode_message(packet[0]).snapshot is not None:
            self.tell_snapshot_failed(source, target)
        elif self.draw.random() < 0.3:
            self.schedule.after(
                0, self.nodes[source].call, lambda node: node.raft.unreachable(target)
            )

    def tell_snapshot_failed(self, source: str, target: str) -> None:
        """The target died on a snapshot, or never got it: its sender finds out after a while."""
        self.schedule.after(
            self.election_us,
            self.nodes[source].call,
            lambda node: node.raft.snapshot_failed(target),
        )

    # Trace.

    def trace(self, what: str, name: str = "", text: str = "") -> None:
        """Say what happens, one JSON object a line."""
        if self._tracer is None:
            return
        line: dict[str, Any] = {
            "step": self.schedule.steps,
            "us": self.schedule.now_us,
            "what": what,
        }
        if name:
            line["node"] = name
            node = self.nodes[name]
            if node.is_up:
                raft = node.raft
                line["role"], line["term"] = raft.role, raft.term
                line["commit"], line["applied"] = raft.status().commit, node.machine.applied_index
        if text:
            line["text"] = text
        self._tracer(json.dumps(line))

    # The run.

    def run(self, steps: int, until: int = 0) -> None:
        """Run both phases; raises Broken, Unexplained or whatever a core raises. `until` stops
        after so many steps."""
        for node in self.nodes.values():
            node.start()
        self.clients.start()
        self.faults.start()
        limit = until or 1 << 62
        while self.schedule.steps < min(steps, limit):
            self.schedule.step()
        if self.schedule.steps >= limit:
            return
        self.faults.end()
        self.trace("repaired")
        self._recover(limit)
        self.check_histories()

    def _recover(self, limit: int) -> None:
        began_us = self.schedule.now_us
        self.clients.begin_last_round()
        while self.schedule.steps < limit:
            took_us = self.schedule.now_us - began_us
            demand(
                took_us < self._timeout_us(),
                "a repaired cluster recovers",
                f"not within {took_us // 1_000} ms",
                *self.describe(),
            )
            self.schedule.step()
            if self.schedule.steps % 50 == 0 and self.clients.is_done() and self._is_whole():
                return

    def _timeout_us(self) -> int:
        """How long a repair may take: a follower may have to get all entries one by one."""
        options = self.options
        entry_us = 2 * options.latency_max_us + options.sync_max_us
        entries = max(view.last_index for view in self.ghost.views.values())
        return RECOVERY_TIMEOUTS * self.election_us + 2 * entries * entry_us

    def _is_whole(self) -> bool:
        """Whether all repaired members have applied the same, and nothing is under way."""
        core = [self.nodes[name] for name in sorted(self.faults.core)]
        leaders = [node for node in core if node.is_leader]
        if len(leaders) != 1:
            return False
        conf = leaders[0].raft.conf
        members = [node for node in core if node.name in conf.members]
        applied = {node.machine.applied_index for node in members}
        return applied == {leaders[0].raft.status().last_index}

    def describe(self) -> list[str]:
        """One line about each node."""
        lines = []
        for node in self.nodes.values():
            state = repr_status(node) if node.is_up else "down"
            mark = "*" if node.name in self.faults.core else " "
            lines.append(f"\n  {mark}{node.name} {state}")
        return lines

    def check_histories(self) -> None:
        """What clients saw can be explained."""
        calls = self.clients.history.all_calls()
        if self.options.full:
            self.clients.check_end()
            check(with_open_fetches(calls), job, JobState())
        else:
            check(calls, register, None)


def repr_status(node: Node) -> str:
    """The state of a node in one line."""
    status = node.raft.status()
    return (
        f"role {status.role} term {status.term} leader {status.leader_id!r} "
        f"last {status.last_index} durable {status.durable} commit {status.commit} "
        f"applied {node.machine.applied_index} {status.conf}"
    )

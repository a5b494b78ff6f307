"""What goes wrong: crashes, power cuts, pauses, partitions, slow and failing disks, changes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sim.node import Node

from corvo.consensus.raft.membership import ADD_LEARNER, PROMOTE, REMOVE, Change
from corvo.consensus.raft.messages import ConfState
from corvo.consensus.raft.ready import Refused

if TYPE_CHECKING:
    from sim.world import World


class Faults:
    """Draws faults, and in the end repairs what has to be repaired."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.core: set[str] = set()
        """After the end: the nodes that work."""
        self._draw = world.draw
        self._ended = False
        kinds: list[tuple[int, Callable[[], None]]] = [
            (3, self._kill),
            (3, self._cut_power),
            (1, self._cut_power_everywhere),
            (2, self._pause),
            (3, self._partition),
            (2, self._cut_links),
            (2, self._isolate),
            (1, self._bridge),
            (1, self._clog),
            (1, self._slow),
            (1, self._reset),
            (3, self._heal),
            (1, self._stall_disk),
            (1, self._fail_disk),
            (2, self._transfer),
            (1, self._campaign),
        ]
        # A run sees some kinds of faults, not all: rare orders become likely ones.
        self._kinds = [kind for kind in kinds if self._draw.random() < 0.7] or kinds

    def start(self) -> None:
        self._next()
        if self.world.options.change_interval_us:
            self._next_change()

    def _next(self) -> None:
        delay_us = self._draw.randint(0, 2 * self.world.options.fault_interval_us)
        self.world.schedule.after(delay_us, self._strike)

    def _strike(self) -> None:
        if self._ended:
            return
        weights = [weight for weight, _ in self._kinds]
        _, fault = self._draw.choices(self._kinds, weights)[0]
        self.world.trace("fault " + fault.__name__.strip("_").replace("_", " "))
        fault()
        self._next()

    def _nodes(self) -> list[Node]:
        return list(self.world.nodes.values())

    def _any(self) -> Node:
        """Any node, and the leader more often than others."""
        leaders = [node for node in self._nodes() if node.is_leader]
        if leaders and self._draw.random() < 0.4:
            return self._draw.choice(leaders)
        return self._draw.choice(self._nodes())

    # Processes.

    def _restart_later(self, node: Node) -> None:
        delay_us = self._draw.choice(
            (0, 1_000, self.world.election_us, 10 * self.world.election_us)
        )
        self.world.schedule.after(delay_us, self._restart, node)

    def _restart(self, node: Node) -> None:
        if not node.is_up and not (self._ended and node.name not in self.core):
            node.start()

    def _kill(self) -> None:
        node = self._any()
        node.stop()
        self._restart_later(node)

    def _cut_power(self) -> None:
        node = self._any()
        node.cut_power()
        self._restart_later(node)

    def _cut_power_everywhere(self) -> None:
        for node in self._nodes():
            node.cut_power()
            self._restart_later(node)

    def _pause(self) -> None:
        node = self._any()
        if node.is_up and not node.is_paused:
            node.pause()
            delay_us = self._draw.choice((1, 3, 10)) * self.world.election_us
            self.world.schedule.after(delay_us, self._resume, node, node.life)

    def _resume(self, node: Node, life: int) -> None:
        if node.is_up and node.life == life and node.is_paused:
            node.resume()

    def _stall_disk(self) -> None:
        delay_us = self._draw.choice((1, 3, 10)) * self.world.election_us
        self._any().stalled_until_us = self.world.schedule.now_us + delay_us

    def _fail_disk(self) -> None:
        node = self._any()
        node.disk.fails_next_sync = node.is_up
        self.world.schedule.after(3 * self.world.election_us, self._restart, node)

    # The network.

    def _links(self) -> list[tuple[str, str]]:
        names = list(self.world.nodes)
        return [(a, b) for a in names for b in names if a != b]

    def _separate(self, group: set[str]) -> None:
        for a, b in self._links():
            if (a in group) != (b in group):
                self.world.network.cut(a, b)

    def _partition(self) -> None:
        names = list(self.world.nodes)
        self._separate(set(self._draw.sample(names, self._draw.randint(0, len(names)))))

    def _isolate(self) -> None:
        self._separate({self._any().name})

    def _cut_links(self) -> None:
        """Some links, in one direction only."""
        for a, b in self._links():
            if self._draw.random() < 0.3:
                self.world.network.cut(a, b)

    def _bridge(self) -> None:
        """Two halves that see each other only through one node."""
        bridge = self._any().name
        for a, b in self._links():
            if bridge not in (a, b) and (a < bridge) != (b < bridge):
                self.world.network.cut(a, b)

    def _clog(self) -> None:
        for a, b in self._links():
            if self._draw.random() < 0.3:
                self.world.network.clog(a, b)

    def _slow(self) -> None:
        for a, b in self._links():
            if self._draw.random() < 0.2:
                self.world.network.slow(a, b)

    def _reset(self) -> None:
        for a, b in self._links():
            if self._draw.random() < 0.5:
                self.world.network.reset(a, b)

    def _heal(self) -> None:
        self.world.network.heal()

    # The cluster.

    def _transfer(self) -> None:
        target = self._draw.choice(list(self.world.nodes))

        def transfer(node: Node) -> None:
            try:
                node.raft.transfer(target)
            except Refused:
                self.world.trace("transfer refused", node.name)

        self._any().call(transfer)

    def _campaign(self) -> None:
        self._any().call(lambda node: node.raft.campaign())

    def _next_change(self) -> None:
        delay_us = self._draw.randint(0, 2 * self.world.options.change_interval_us)
        self.world.schedule.after(delay_us, self._change)

    def _change(self) -> None:
        if self._ended:
            return
        self._next_change()
        leaders = [node for node in self._nodes() if node.is_leader]
        if leaders:
            self._draw.choice(leaders).call(self._propose_change)

    def _propose_change(self, node: Node) -> None:
        if self._ended:
            return  # the node was paused when it was asked
        conf = node.raft.conf
        kinds = [(REMOVE, name) for name in conf.members if len(conf.voters) > 1]
        kinds += [(PROMOTE, name) for name in conf.learners]
        strangers = [name for name in self.world.nodes if name not in conf.members]
        kinds += [(ADD_LEARNER, name) for name in strangers]
        if not kinds:
            return
        kind, name = self._draw.choice(kinds)
        try:
            node.raft.propose_change(Change(kind, name))
        except Refused:
            self.world.trace("change refused", node.name)

    # The end.

    def end(self) -> None:
        """No more faults: a quorum works from now on, or everybody does."""
        self._ended = True
        world = self.world
        self.core = set(world.nodes)
        if self._draw.random() < 0.5:
            self._choose_core()
        world.network.calm()
        for node in self._nodes():
            node.stalled_until_us = 0
            node.disk.fails_next_sync = False
            if node.name not in self.core:
                node.stop()
            elif node.is_up and node.is_paused:
                node.resume()
            elif not node.is_up:
                node.start()

    def _choose_core(self) -> None:
        """Leave nodes out as long as every configuration that may be in force keeps a quorum."""
        names = sorted(self.world.nodes)
        self._draw.shuffle(names)
        for name in names:
            core = self.core - {name}
            if all(has_quorum(conf, core) for conf in self._confs()):
                self.core = core

    def _confs(self) -> list[ConfState]:
        """Configurations that may be in force, now or when a message under way has arrived."""
        confs = [node.raft.conf for node in self._nodes()]
        confs += [conf for node in self._nodes() for conf in node.known_confs()]
        confs += self.world.ghost.open_confs()
        return [conf for conf in confs if conf.voters]


def has_quorum(conf: ConfState, names: set[str]) -> bool:
    """Whether these nodes are a majority of the voters."""
    return 2 * len(names.intersection(conf.voters)) > len(conf.voters)

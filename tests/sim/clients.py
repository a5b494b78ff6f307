"""Clients of core runs: they write and read registers, and note what they saw."""

from typing import TYPE_CHECKING, Any

from sim.histories import History
from sim.node import LOST, UNKNOWN, Node
from sim.registers import encode_write

from corvo.consensus.raft.ready import Refused

if TYPE_CHECKING:
    from sim.world import World

CALLS_A_KEY = 20  # histories stay short, so that they can be judged
TIMEOUT_ELECTIONS = 5


class Client:
    """One client. It has one call at a time; a call that takes too long is left open."""

    def __init__(self, clients: "RegisterClients", name: str) -> None:
        self.clients = clients
        self.name = name
        self.attempt = 0
        self.is_waiting = False

    def act(self) -> None:
        """The next call."""
        world = self.clients.world
        node = self.clients.choose_node()
        self.is_waiting = True
        self.attempt += 1
        key = self.clients.next_key()
        value = world.next_number()
        world.schedule.after(
            TIMEOUT_ELECTIONS * world.election_us, self._timed_out, self.attempt
        )
        before = self.attempt
        if world.draw.random() < 0.5:
            node.call(lambda node: self._write(node, key, value))
        else:
            node.call(lambda node: self._read(node, key))
        if before == self.attempt and not self.clients.is_reached(node):
            self._over(before, False)

    def _write(self, node: Node, key: str, value: int) -> None:
        history, now_us = self.clients.history, self.clients.world.schedule.now_us
        number = history.invoke(now_us, key, "write", value)
        attempt = self.attempt

        def answered(result: Any) -> None:
            if result == LOST:
                history.refuse(number)
            elif result != UNKNOWN:
                history.answer(number, self.clients.world.schedule.now_us, True)
            self._over(attempt, result is True)

        try:
            node.propose(encode_write(key, value), answered)
        except Refused:
            history.refuse(number)
            self._over(attempt, False)

    def _read(self, node: Node, key: str) -> None:
        history, now_us = self.clients.history, self.clients.world.schedule.now_us
        number = history.invoke(now_us, key, "read")
        attempt = self.attempt

        def answered(result: Any) -> None:
            if result == UNKNOWN:
                history.refuse(number)
            else:
                value = node.machine.read(key)
                history.answer(number, self.clients.world.schedule.now_us, value)
            self._over(attempt, result is True)

        if not node.read(answered):
            history.refuse(number)
            self._over(attempt, False)

    def _timed_out(self, attempt: int) -> None:
        self._over(attempt, False)

    def _over(self, attempt: int, succeeded: bool) -> None:
        """The call of this attempt has ended; it may have been given up before."""
        if attempt != self.attempt or not self.is_waiting:
            return
        self.is_waiting = False
        self.clients.ended(self, succeeded)


class RegisterClients:
    """All clients of a run."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.history = History()
        self.succeeded = 0
        self._clients = [Client(self, f"c{n + 1}") for n in range(world.options.clients)]
        self._calls = 0
        self._last_round = False
        self._to_do: set[str] = set()

    def start(self) -> None:
        """Begin."""
        for client in self._clients:
            self._soon(client)

    def _soon(self, client: Client) -> None:
        interval_us = self.world.options.request_interval_us
        self.world.schedule.after(self.world.draw.randint(0, 2 * interval_us), client.act)

    def next_key(self) -> str:
        """The register to use: a few at a time, each for a limited number of calls."""
        self._calls += 1
        group = self._calls // (3 * CALLS_A_KEY)
        return f"r{group}-{self._calls % 3}"

    def choose_node(self) -> Node:
        """A leader most of the time, and sometimes anybody."""
        world = self.world
        nodes = list(world.nodes.values())
        leaders = [node for node in nodes if node.is_leader]
        if leaders and world.draw.random() < 0.8:
            return world.draw.choice(leaders)
        return world.draw.choice(nodes)

    def is_reached(self, node: Node) -> bool:
        """Whether a call reaches the node."""
        return node.is_up and not node.is_paused

    def ended(self, client: Client, succeeded: bool) -> None:
        """A client is free again."""
        self.succeeded += succeeded
        if succeeded:
            self._to_do.discard(client.name)
        if not self._last_round or self._to_do:
            self._soon(client)

    def begin_last_round(self) -> None:
        """From now on each client has to succeed once."""
        self._last_round = True
        self._to_do = {client.name for client in self._clients}

    def is_done(self) -> bool:
        """Whether everybody has."""
        return not self._to_do and not any(client.is_waiting for client in self._clients)

"""Clients: each has one call at a time, notes what it sees, and gives up what takes too long."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sim.histories import History
from sim.node import LOST, UNKNOWN, Node
from sim.registers import encode_write

from corvo.consensus.raft.ready import Refused

if TYPE_CHECKING:
    from sim.world import World

CALLS_A_KEY: Final = 20  # histories stay short, so that they can be judged
TIMEOUT_ELECTIONS: Final = 5
LAST_TIMEOUT_ELECTIONS: Final = 50  # what was asked before may take its time


class Client:
    """One client. Subclasses say in `send` what it asks for."""

    def __init__(self, clients: "Clients", name: str) -> None:
        self.clients = clients
        self.world = clients.world
        self.history = clients.history
        self.name = name
        self.is_waiting = False
        self._attempt = 0

    def act(self) -> None:
        """The next call, to some node; it may be down."""
        self.is_waiting = True
        self._attempt += 1
        attempt = self._attempt
        node = self.clients.choose_node()
        timeout_us = self.clients.timeout_elections * self.world.election_us
        self.world.schedule.after(timeout_us, self._end, attempt, False)
        if node.is_up and not node.is_paused:
            node.call(self.send)
        else:
            self._end(attempt, False)

    def send(self, node: Node) -> None:
        """Call `node`, which is up."""
        raise NotImplementedError

    def ended(self) -> Callable[[bool], None]:
        """What to call when this call is over: with whether it succeeded."""
        attempt = self._attempt
        return lambda succeeded: self._end(attempt, succeeded)

    def read(self, node: Node, key: str, name: str, value: Callable[[], Any]) -> None:
        """A linearizable read; `value` takes it from the node's state."""
        number = self.history.invoke(self.world.schedule.now_us, key, name)
        ended = self.ended()

        def answered(result: Any) -> None:
            if result == UNKNOWN:
                self.history.refuse(number)
            else:
                self.history.answer(number, self.world.schedule.now_us, value())
            ended(result is True)

        if not node.read(answered):
            self.history.refuse(number)
            ended(False)

    def _end(self, attempt: int, succeeded: bool) -> None:
        if attempt == self._attempt and self.is_waiting:
            self.is_waiting = False
            self.clients.ended(self, succeeded)


class RegisterClient(Client):
    """Writes and reads registers."""

    def send(self, node: Node) -> None:
        key = self.clients.next_key()
        if self.world.draw.random() < 0.5:
            self._write(node, key)
        else:
            self.read(node, key, "read", lambda: node.machine.read(key))

    def _write(self, node: Node, key: str) -> None:
        value = self.world.next_number()
        number = self.history.invoke(self.world.schedule.now_us, key, "write", value)
        ended = self.ended()

        def answered(result: Any) -> None:
            if result == LOST:
                self.history.refuse(number)
            elif result != UNKNOWN:
                self.history.answer(number, self.world.schedule.now_us, True)
            ended(result is True)

        try:
            node.propose(encode_write(key, value), answered)
        except Refused:
            self.history.refuse(number)
            ended(False)


class Clients:
    """All clients of a run."""

    def __init__(self, world: "World", kinds: list[type[Client]]) -> None:
        self.world = world
        self.history = History()
        self.succeeded = 0
        self._clients = [
            kind(self, f"{kind.__name__} {n + 1}")
            for n in range(world.options.clients)
            for kind in kinds
        ]
        self.timeout_elections = TIMEOUT_ELECTIONS
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

    def ended(self, client: Client, succeeded: bool) -> None:
        """A client is free again."""
        self.succeeded += succeeded
        if succeeded:
            self._to_do.discard(client.name)
        # In the last round who is done stops: thousands of entries would go by otherwise while
        # one client waits for an answer that was lost.
        if not self._last_round or client.name in self._to_do:
            self._soon(client)

    def begin_last_round(self) -> None:
        """From now on each client has to succeed once."""
        self._last_round = True
        self.timeout_elections = LAST_TIMEOUT_ELECTIONS
        self._to_do = {client.name for client in self._clients}

    def is_done(self) -> bool:
        """Whether everybody has."""
        return not self._to_do and not any(client.is_waiting for client in self._clients)

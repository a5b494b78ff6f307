"""A cluster that can be broken in every way that `machines` offers, and what heals it."""

import contextlib
import http.client
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from faults.machines import Disk, Knobs, Network, eventually
from lib.clusters import ClusterProcess
from lib.harness import ServerProcess, clock_ns

READY_S = 40


class FaultyCluster(ClusterProcess):
    """`network`, `disks` and `knobs` say what its nodes are to have of their own."""

    def __init__(
        self,
        directory: Path,
        count: int,
        *flags: str,
        network: bool = False,
        disk_size: int = 0,
        knobs: bool = False,
        failpoints: str = "",
        mirror: bool = False,
    ) -> None:
        self.network = Network() if network else None
        self.disks: dict[str, Disk] = {}
        self.knobs: dict[str, Knobs] = {}
        self._disk_size = disk_size
        self._with_knobs = knobs
        self._paused: list[ServerProcess] = []
        environment = {"CORVO_FAILPOINTS": failpoints} if failpoints else {}
        flags = ("--test-clock", *flags) if mirror else ("--test-clock", "--no-mirror", *flags)
        super().__init__(directory, count, *flags, environment=environment)

    def add(self) -> ServerProcess:
        """One more node, with all that a node has here."""
        node = super().add()
        name = name_of(node)
        if self.network is not None:
            number = number_of(node)
            self.network.add(number)
            node.host, node.prefix = self.network.host(number), self.network.prefix(number)
            raft = f"{node.host}:{node.flags[3].rpartition(':')[2]}"
            node.flags = (*node.flags[:3], raft, *node.flags[4:], "--insecure")
            if number > 1:
                seed = self.nodes[0]
                join = node.flags.index("--join") + 1
                target = f"{seed.host}:{seed.port}"
                node.flags = (*node.flags[:join], target, *node.flags[join + 1 :])
        if self._disk_size:
            disk = self.disks[name] = Disk(self.directory / name, self._disk_size)
            node.data_dir = disk.path / "data"
        if self._with_knobs:
            knobs = self.knobs[name] = Knobs(self.directory / f"{name}.knobs")
            node.environment = self.environment | knobs.environment
        return node

    def start(self) -> "FaultyCluster":
        """Until all are voters."""
        for node in self.nodes:
            node.start()
            self.lead()
        self.wait_healthy()
        return self

    # What is asked.

    def members(self) -> list[dict[str, Any]]:
        """The rows of the members, as a leader has them; empty if there is none."""
        leader = self.leader()
        return [] if leader is None else list(self.status(leader).get("nodes", []))

    def mirror_process(self, node: ServerProcess) -> int:
        """The process that writes the mirror of a node; 0 while there is none."""
        return int(self.status(node).get("sqlite_mirror", {}).get("pid", 0))

    def lead(self) -> ServerProcess:
        """The node that leads and serves, as soon as one does."""
        node: ServerProcess = eventually(self.leader, "nobody leads")
        return node

    def rest(self) -> list[ServerProcess]:
        """All that are up but the leader."""
        leader = self.lead()
        return [node for node in self.up() if node is not leader]

    def term(self) -> int:
        """Of the leader."""
        return int(self.status(self.lead())["term"])

    def stamp_ns(self) -> int:
        """The time that the state goes by."""
        api = self.lead().api()
        try:
            return clock_ns(api)
        finally:
            api.close()

    def is_healthy(self) -> bool:
        """One leads, hears from all, all vote, and all that are up have all."""
        leader = self.leader()
        if leader is None:
            return False
        status = self.status(leader)
        rows = status.get("nodes", [])
        up = self.up()
        return (
            status.get("status") == "healthy"
            and len(rows) == len(up)
            and all(row["voter"] for row in rows)
            and all(self._follows(node, status) for node in up)
        )

    def _follows(self, node: ServerProcess, led: dict[str, Any]) -> bool:
        status = self.status(node)
        return (
            status.get("leader_id") == led["leader_id"]
            and status["applied_index"] >= led["commit_index"]
            and len(status["nodes"]) == len(led["nodes"])
        )

    def wait_healthy(self) -> None:
        """Until it is."""
        eventually(self.is_healthy, "the cluster does not become healthy")

    def wait_caught_up(self, node: ServerProcess) -> None:
        """Until it follows, and has what was committed when it was asked for."""
        committed = self.status(self.lead())["commit_index"]

        def there() -> bool:
            status = self.status(node)
            return bool(status.get("leader_id")) and status["applied_index"] >= committed

        eventually(there, f"{name_of(node)} does not catch up")

    def wait_dead(self, node: ServerProcess, wait_s: float = READY_S) -> int:
        """Until its process has ended by itself; the exit status."""
        process = node.process
        assert process is not None
        eventually(lambda: process.poll() is not None, f"{name_of(node)} does not end", wait_s)
        return int(process.returncode)

    def call(self, node: ServerProcess, method: str, path: str, body: Any = None) -> Any:
        """One call to a node; status and answer, or None without one."""
        api = node.api(15)
        try:
            return api.call(method, path, body)
        except (OSError, http.client.HTTPException):
            return None
        finally:
            api.close()

    # What is done.

    def pause(self, node: ServerProcess) -> None:
        """SIGSTOP."""
        assert node.process is not None
        self._paused.append(node)
        node.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT for who was paused."""
        for node in self._paused:
            assert node.process is not None
            node.process.send_signal(signal.SIGCONT)
        self._paused.clear()

    def split(self, *groups: list[ServerProcess]) -> None:
        """Nobody reaches who is in another group."""
        for group in groups:
            for other in groups:
                if other is not group:
                    for sender in group:
                        for receiver in other:
                            self.cut(sender, receiver)

    def cut(self, sender: ServerProcess, receiver: ServerProcess) -> None:
        """Lose what one node sends to another."""
        assert self.network is not None
        self.network.cut(number_of(sender), number_of(receiver))

    def lead_by(self, node: ServerProcess) -> None:
        """Let this node lead."""

        def led() -> bool:
            leader = self.leader()
            if leader is not None and leader is not node:
                self.call(leader, "POST", "/cluster/transfer", {"node_id": name_of(node)})
            return leader is node

        eventually(led, f"{name_of(node)} does not take over")

    def remove(self, node: ServerProcess) -> None:
        """Remove a member, which stops, and its data."""
        name = name_of(node)

        def removed() -> bool:
            if any(row["id"] == name for row in self.members()):
                self.call(self.lead(), "POST", "/cluster/remove", {"node_id": name})
                return False
            return self.leader() is not None

        eventually(removed, f"{name} is not removed")
        if node in self.up():
            node.kill()
        shutil.rmtree(node.data_dir, ignore_errors=True)

    def retire(self, node: ServerProcess) -> None:
        """Remove a member for ever."""
        self.remove(node)
        self.nodes.remove(node)

    def start_in_vain(self, node: ServerProcess) -> str:
        """Start a node that must not start; what it says."""
        begun = len(node.log)
        try:
            node.start()
        except AssertionError:
            assert node.process is not None and node.process.returncode == 1, node.log[begun:]
            return "".join(node.log[begun:])
        raise AssertionError(f"{name_of(node)} starts on damaged data")

    def join_anew(self, node: ServerProcess) -> None:
        """Start a node without data, as the documentation says: with the address of another."""
        seed = next(other for other in self.up() if other is not node)
        flags = list(node.flags)
        target = f"{seed.host}:{seed.port}"
        if "--join" in flags:
            flags[flags.index("--join") + 1] = target
        else:
            flags += ["--join", target]
        node.flags = tuple(flags)
        node.start()

    def heal(self) -> None:
        """Undo every fault."""
        for knobs in self.knobs.values():
            knobs.rest()
        for disk in self.disks.values():
            disk.free()
        if self.network is not None:
            self.network.heal()
        self.go_on()
        self.start_together([node for node in self.nodes if node not in self.up()])

    def start_together(self, nodes: list[ServerProcess]) -> None:
        """Start several nodes at once."""
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(lambda node: node.start(), nodes))

    def close(self) -> None:
        """Remove everything."""
        self.go_on()
        with contextlib.suppress(AssertionError):
            self.stop()
        for disk in self.disks.values():
            disk.close()
        if self.network is not None:
            self.network.close()


def number_of(node: ServerProcess) -> int:
    """Nodes are named n1, n2 and so on."""
    return int(name_of(node)[1:])


def name_of(node: ServerProcess) -> str:
    """As its cluster calls it."""
    return node.flags[1]

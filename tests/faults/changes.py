"""Faults while something goes on between nodes: snapshots, changes of members, strangers."""

import contextlib
import random
import socket
import threading
from pathlib import Path

from faults.arena import FaultyCluster, name_of
from faults.campaign import Trial
from faults.machines import MIB, eventually
from lib.harness import ServerProcess

from corvo.consensus.cluster.peer_protocol import (
    MESSAGES,
    NONCE_SIZE,
    WIRE_VERSION,
    Dialing,
    Hello,
)

# ---- snapshots ----


def behind(trial: Trial) -> None:
    """A follower has missed more than the log keeps."""
    victim = fall_behind(trial)
    victim.start()
    _wait_installed(trial.cluster, victim)


def behind_and_killed(trial: Trial) -> None:
    """The same, and it is killed while its snapshot arrives."""
    victim = fall_behind(trial)
    victim.start()
    _wait_arriving(trial.cluster)
    victim.kill()
    victim.start()
    _wait_installed(trial.cluster, victim)


def behind_a_killed(trial: Trial) -> None:
    """The same, and its leader is killed while it sends."""
    victim = fall_behind(trial)
    victim.start()
    sender = _wait_arriving(trial.cluster)
    sender.kill()
    trial.hit()  # until it is back, or the copy is there, one node alone has all
    sender.start()
    trial.writes_go_on()
    _wait_installed(trial.cluster, victim)


def fall_behind(trial: Trial) -> ServerProcess:
    """Who does; from a moment on when no copy of an earlier fault keeps the log long."""
    cluster = trial.cluster
    copies = [node.data_dir / "outgoing" for node in cluster.nodes]
    eventually(lambda: not any(path.exists() for path in copies), "copies stay")
    victim = trial.draw.choice(cluster.rest())
    trial.hit()
    victim.kill()
    for number in range(200):
        payload = f"{trial.number}.{number} ".ljust(250_000, "x")
        eventually(lambda payload=payload: _enqueue(cluster, payload), "nobody takes large jobs")
    trial.writes_go_on()
    return victim


def _enqueue(cluster: FaultyCluster, payload: str) -> bool:
    body = {"queue": "big", "payload": payload, "unique_key": payload[:10]}
    reply = cluster.call(cluster.lead(), "POST", "/enqueue", body)
    return bool(reply is not None and reply[0] in (200, 201))


def _wait_arriving(cluster: FaultyCluster) -> ServerProcess:
    def sending() -> ServerProcess | None:
        leader = cluster.leader()
        if leader is None or not cluster.status(leader).get("snapshot", {}).get("sending"):
            return None
        return leader

    node: ServerProcess = eventually(sending, "nobody sends a snapshot")
    return node


def _wait_installed(cluster: FaultyCluster, node: ServerProcess) -> None:
    def installed() -> bool:
        return bool(cluster.status(node).get("snapshot", {}).get("installed"))

    eventually(installed, f"{name_of(node)} gets no snapshot")
    cluster.wait_caught_up(node)


# ---- members ----


def come_and_go(trial: Trial) -> None:
    """One joins, a follower is removed, one joins, the leader is removed."""
    cluster = trial.cluster
    for choose in (lambda: trial.draw.choice(cluster.rest()), cluster.lead):
        cluster.join_anew(cluster.add())
        cluster.wait_healthy()
        victim = choose()
        trial.hit()
        cluster.retire(victim)
        trial.writes_go_on()
        cluster.wait_healthy()


def replace_all(trial: Trial) -> None:
    cluster = trial.cluster
    for old in list(cluster.nodes):
        cluster.join_anew(cluster.add())
        cluster.wait_healthy()
        trial.hit()
        cluster.retire(old)
        trial.writes_go_on()
        cluster.wait_healthy()


def change_and_kill(trial: Trial) -> None:
    """The leader is killed while a node joins and while one is removed."""
    cluster = trial.cluster
    new = cluster.add()
    cluster.join_anew(new)
    _kill_and_start(trial)
    cluster.wait_healthy()
    victim = trial.draw.choice([node for node in cluster.rest() if node is not new])
    leader = cluster.lead()
    asked = threading.Thread(
        target=cluster.call, args=(leader, "POST", "/cluster/remove", {"node_id": name_of(victim)})
    )
    asked.start()
    _kill_and_start(trial)
    asked.join()
    cluster.retire(victim)
    cluster.wait_healthy()


def _kill_and_start(trial: Trial) -> None:
    leader = trial.cluster.lead()
    trial.hit()
    leader.kill()
    trial.writes_go_on()
    leader.start()


# ---- strangers ----

_STORM = 300


def storm(trial: Trial) -> None:
    """Garbage, giant frames, half-open and wrong connections on the port for other nodes; in the
    middle of it a node comes back."""
    cluster = trial.cluster
    leader = cluster.lead()
    term, before = cluster.term(), _memory(leader)
    port = int(leader.flags[3].rpartition(":")[2])
    over = threading.Event()
    thread = threading.Thread(target=_knock, args=(port, over))
    trial.hit()
    thread.start()
    try:
        trial.writes_go_on()
        victim = trial.draw.choice(cluster.rest())
        victim.kill()
        victim.start()
        cluster.wait_caught_up(victim)
        trial.load.wait_more(100)
        assert cluster.term() == term
    finally:
        over.set()
        thread.join()
    assert _memory(leader) - before < 64 * MIB


def _knock(port: int, over: threading.Event) -> None:
    wrong = Hello(WIRE_VERSION, MESSAGES, "0" * 32, "n2/0", "0" * 16, "n1/0", 1, bytes(NONCE_SIZE))
    texts = (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        random.Random(1).randbytes(1000),
        b"\xff\xff\xff\xff\x01" + bytes(100),
        Dialing(wrong, bytes(32)).begin(),
    )
    open_ones: list[socket.socket] = []
    turn = 0
    while not over.is_set():
        turn += 1
        with contextlib.suppress(OSError):
            line = socket.create_connection(("127.0.0.1", port), 1)
            open_ones.append(line)
            line.sendall(texts[turn % len(texts)])
        if len(open_ones) > _STORM:
            open_ones.pop(0).close()
    for line in open_ones:
        line.close()


def _memory(node: ServerProcess) -> int:
    """Resident bytes."""
    assert node.process is not None
    pages = Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096

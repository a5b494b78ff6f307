"""The faults, by the names that `make faults ONLY=` knows."""

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

from crash.points import FAILPOINTS, POINTS
from faults.arena import FaultyCluster, name_of
from faults.campaign import Scenario, Trial
from faults.changes import (
    behind,
    behind_a_killed,
    behind_and_killed,
    change_and_kill,
    come_and_go,
    fall_behind,
    replace_all,
    storm,
)
from faults.machines import MIB, eventually
from lib.harness import ServerProcess, refused

HOUR_NS = 3_600 * 10**9
_ELECTION_S = 2.0  # at default time-outs, with room for a busy machine
_RESTART_S = 5.0


# ---- processes ----


def kill_leader(trial: Trial) -> None:
    for _ in range(5):
        _kill(trial, trial.cluster.lead())


def kill_any(trial: Trial) -> None:
    for _ in range(5):
        _kill(trial, trial.draw.choice(trial.cluster.nodes))


def _kill(trial: Trial, victim: ServerProcess) -> None:
    trial.hit()
    victim.kill()
    trial.writes_go_on()
    victim.start()
    trial.cluster.wait_caught_up(victim)


def kill_all(trial: Trial) -> None:
    for node in trial.cluster.nodes:
        node.kill()
    trial.hit()
    trial.cluster.heal()
    trial.writes_go_on()


def pause_leader(trial: Trial) -> None:
    cluster = trial.cluster
    victim = cluster.lead()
    term = cluster.term()
    trial.hit()
    cluster.pause(victim)
    trial.writes_go_on()
    trial.load.wait_more(40)
    cluster.go_on()
    cluster.wait_caught_up(victim)
    assert cluster.term() > term


def pause_follower(trial: Trial) -> None:
    cluster = trial.cluster
    term = cluster.term()
    victim = trial.draw.choice(cluster.rest())
    trial.hit()
    cluster.pause(victim)
    trial.writes_go_on()
    trial.load.wait_more(200)
    cluster.go_on()
    cluster.wait_caught_up(victim)
    assert cluster.term() == term, "who was away has disturbed the others"


def stop_each(trial: Trial) -> None:
    """SIGTERM; the next one when the last is back, and who tried again meanwhile is done."""
    cluster = trial.cluster
    for node in list(cluster.nodes):
        trial.hit()
        assert node.stop() == 0
        trial.writes_go_on()
        node.start()
        cluster.wait_healthy()
        trial.load.wait_more(20)
    assert len(trial.load.tries) <= 2, trial.load.tries  # one that is sent once more is done


# ---- links ----


def alone(trial: Trial) -> None:
    cluster = trial.cluster
    old = cluster.lead()
    cluster.split([old], cluster.rest())
    trial.hit()
    trial.writes_go_on()
    trial.load.wait_more(40)
    answer = cluster.call(old, "POST", "/enqueue", {"queue": "nobody"})
    refused(answer, 503, "NO_LEADER")


def with_one(trial: Trial) -> None:
    cluster = trial.cluster
    old, rest = cluster.lead(), cluster.rest()
    cluster.split([old, rest[0]], rest[1:])
    trial.hit()
    trial.writes_go_on()
    trial.load.wait_more(40)


def ring(trial: Trial) -> None:
    """Each node reaches its two neighbors only."""
    nodes = trial.cluster.nodes
    for at, node in enumerate(nodes):
        for away in (2, 3):
            trial.cluster.cut(node, nodes[(at + away) % 5])
    trial.hit()
    trial.writes_go_on()
    trial.load.wait_more(40)


def bridge(trial: Trial) -> None:
    """The leader reaches one node only; all others reach each other."""
    cluster = trial.cluster
    old, rest = cluster.lead(), cluster.rest()
    cluster.split([old], rest[1:])
    trial.hit()
    trial.writes_go_on()
    trial.load.wait_more(40)


def unheard(trial: Trial) -> None:
    """The leader hears all others, and none of them hears it."""
    _one_way(trial, hears=True)


def deaf(trial: Trial) -> None:
    """All others hear the leader, and it hears none of them."""
    _one_way(trial, hears=False)


def _one_way(trial: Trial, hears: bool) -> None:
    cluster = trial.cluster
    old = cluster.lead()
    for node in cluster.rest():
        cluster.cut(*((old, node) if hears else (node, old)))
    trial.hit()
    trial.writes_go_on()
    trial.load.wait_more(40)


def flapping(trial: Trial) -> None:
    """The leader is cut off, and reconnected as soon as another node leads."""
    cluster = trial.cluster
    assert cluster.network is not None
    for _ in range(4):
        old = cluster.lead()
        cluster.split([old], cluster.rest())
        trial.hit()
        trial.writes_go_on()
        cluster.network.heal()
        trial.load.wait_more(10)


# ---- disks ----


def fill_follower(trial: Trial) -> None:
    cluster = trial.cluster
    victim = trial.draw.choice(cluster.rest())
    disk = cluster.disks[name_of(victim)]
    trial.hit()
    disk.fill()
    trial.writes_go_on()
    trial.load.wait_more(200)
    disk.free()
    cluster.wait_caught_up(victim)


def fill_leader(trial: Trial) -> None:
    cluster = trial.cluster
    victim = cluster.lead()
    disk = cluster.disks[name_of(victim)]
    disk.fill()
    answer = cluster.call(victim, "POST", "/enqueue", {"queue": "full", "payload": "x"})
    assert answer[0] in (200, 201, 503, 507), answer
    trial.hit()
    disk.free()
    trial.writes_go_on()


def fill_all(trial: Trial) -> None:
    cluster = trial.cluster
    for disk in cluster.disks.values():
        disk.fill()
    eventually(lambda: _is_full(trial), "nobody says that the disks are full")
    trial.hit()
    for disk in cluster.disks.values():
        disk.free()
    trial.writes_go_on()


def _is_full(trial: Trial) -> bool:
    leader = trial.cluster.leader()
    if leader is None:
        return True
    answer = trial.cluster.call(leader, "POST", "/enqueue", {"queue": "full", "payload": "x"})
    return bool(answer is not None and answer[0] in (503, 507))


def slow_follower(trial: Trial) -> None:
    _slow(trial, trial.draw.choice(trial.cluster.rest()), 200_000)


def slow_leader(trial: Trial) -> None:
    _slow(trial, trial.cluster.lead(), 200_000)


def stalled_leader(trial: Trial) -> None:
    _slow(trial, trial.cluster.lead(), 10_000_000)


def _slow(trial: Trial, victim: ServerProcess, sync_us: int) -> None:
    knobs = trial.cluster.knobs[name_of(victim)]
    trial.hit()
    knobs.turn("sync_us", sync_us)
    trial.writes_go_on()
    trial.load.wait_more(40)
    knobs.turn("sync_us", 0)


def broken_sync(trial: Trial) -> None:
    cluster = trial.cluster
    victim = cluster.lead()
    trial.hit()
    cluster.knobs[name_of(victim)].turn("sync_errno", 5)
    assert cluster.wait_dead(victim) == 1
    trial.writes_go_on()
    victim.start()
    cluster.wait_caught_up(victim)


# ---- failpoints ----

_SMALL_LOG = "wal.segment_size=131072,raft.log_kept_size=65536"
_OF_ONE_SERVER = ("hard_state", "clean_close")  # points that a node of a cluster does not pass
_POINTS = [point for point, _ in FAILPOINTS if not any(name in point for name in _OF_ONE_SERVER)]


def kill_at_points(trial: Trial) -> None:
    """A third of all points in a round."""
    cluster = trial.cluster
    for point in _POINTS[trial.number % 3 :: 3]:
        victim = trial.draw.choice(cluster.nodes)
        victim.kill()
        cluster.lead()
        if "unlink" in point:  # a spare of an earlier life is deleted by each start
            (victim.data_dir / "wal" / "spare").touch()
        victim.environment = cluster.environment | {"CORVO_FAILPOINTS": f"{_SMALL_LOG},{point}"}
        with contextlib.suppress(AssertionError):
            victim.start()
            if trial.draw.random() < 0.5:
                target = {"node_id": name_of(victim)}
                cluster.call(cluster.lead(), "POST", "/cluster/transfer", target)
        assert cluster.wait_dead(victim) == -signal.SIGKILL, victim.log[-10:]
        trial.hit()
        trial.writes_go_on()
        victim.environment = cluster.environment
        victim.start()
        cluster.wait_caught_up(victim)


def kill_at_install(trial: Trial) -> None:
    """Kill a node at a step that replaces the state store by a snapshot; rounds take turns."""
    cluster = trial.cluster
    points = [point for point in POINTS if point.startswith("snapshot")]
    point = points[trial.number % len(points)]
    victim = fall_behind(trial)
    victim.environment = cluster.environment | {"CORVO_FAILPOINTS": f"{_SNAPSHOTS},{point}=kill"}
    victim.start()
    assert cluster.wait_dead(victim) == -signal.SIGKILL, victim.log[-10:]
    trial.hit()
    trial.writes_go_on()
    victim.environment = cluster.environment
    victim.start()
    cluster.wait_caught_up(victim)


def kill_mirrors(trial: Trial) -> None:
    """The process of any node that writes its mirror; then a node beside its mirror."""
    cluster = trial.cluster
    for _ in range(5):
        node = trial.draw.choice(cluster.nodes)
        pid = eventually(lambda node=node: cluster.mirror_process(node), "it is not started again")
        trial.load.wait_more(trial.draw.randrange(20))
        trial.hit()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        trial.writes_go_on()
    _kill(trial, trial.draw.choice(cluster.nodes))


# ---- clocks ----


def leader_ahead(trial: Trial) -> None:
    _jump(trial, trial.cluster.lead(), HOUR_NS)


def leader_behind(trial: Trial) -> None:
    _jump(trial, trial.cluster.lead(), -HOUR_NS)


def follower_ahead(trial: Trial) -> None:
    _jump(trial, trial.draw.choice(trial.cluster.rest()), HOUR_NS)


def follower_behind(trial: Trial) -> None:
    _jump(trial, trial.draw.choice(trial.cluster.rest()), -HOUR_NS)


def _jump(trial: Trial, victim: ServerProcess, wall_ns: int) -> None:
    """Nobody notices: no election, no lease that ends early. Then the node leads."""
    cluster = trial.cluster
    term = cluster.term()
    api = cluster.lead().api()
    api.enqueue("canary")
    lease = api.take("canary", lease_duration=60)
    later = api.enqueue("canary", scheduled_at="2100-01-01T00:00:00Z")
    trial.hit()
    cluster.knobs[name_of(victim)].turn("wall_ns", wall_ns)
    trial.writes_go_on()
    trial.load.wait_more(200)
    assert cluster.term() == term
    assert cluster.lead().api().beat(lease) == "ok"
    cluster.lead_by(victim)
    trial.load.wait_more(200)
    api = cluster.lead().api()
    assert api.beat(lease) == "ok"
    assert api.ack(lease)[0] == 200
    assert api.job(later)["state"] == "scheduled"


# ---- damage and loss ----

_DAMAGED = ("the log is damaged", "cannot open the state store")


def cut_tail(trial: Trial) -> None:
    """The last bytes of a log that was closed cleanly are gone."""
    victim = trial.draw.choice(trial.cluster.rest())
    assert victim.stop() == 0
    path = _newest_segment(victim)
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    begin = max(4096, end - trial.draw.randrange(1024, 65536))
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))
    _come_back_empty(trial, victim)


def flip_byte(trial: Trial) -> None:
    """In the middle of the log of a node that was killed."""
    victim = trial.draw.choice(trial.cluster.rest())
    victim.kill()
    path = _newest_segment(victim)
    end = len(path.read_bytes().rstrip(b"\0"))
    with path.open("r+b") as file:
        at = trial.draw.randrange(end // 4, end // 2)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << trial.draw.randrange(8)]))
    _come_back_empty(trial, victim)


def damage_base(trial: Trial) -> None:
    """Both meta pages of the state store are garbage."""
    victim = trial.draw.choice(trial.cluster.rest())
    victim.kill()
    with (_state(victim) / "data.mdb").open("r+b") as file:
        file.write(random.Random(1).randbytes(8192))
    _come_back_empty(trial, victim)


def _newest_segment(node: ServerProcess) -> Path:
    return max((node.data_dir / "wal").glob("*.wal"))


def _state(node: ServerProcess) -> Path:
    current = node.data_dir / "CURRENT"
    return node.data_dir / (current.read_text().strip() if current.exists() else "state")


def _come_back_empty(trial: Trial, victim: ServerProcess) -> None:
    """The node does not start; as documented it is removed and starts as a new node."""
    cluster = trial.cluster
    trial.hit()
    said = cluster.start_in_vain(victim)
    assert any(text in said for text in _DAMAGED), said
    trial.writes_go_on()
    cluster.remove(victim)
    cluster.join_anew(victim)
    cluster.wait_healthy()


def lose_data(trial: Trial) -> None:
    """A node comes back without its data: it gets nowhere until the old one is removed."""
    cluster = trial.cluster
    victim = trial.draw.choice(cluster.rest())
    trial.hit()
    victim.kill()
    for path in victim.data_dir.iterdir():
        _delete(path)
    cluster.join_anew(victim)
    eventually(lambda: any("another node" in line for line in victim.log), "nobody refuses it")
    trial.writes_go_on()
    eventually(lambda: _status(cluster, victim) == "unreachable", "nobody misses the old one")
    assert len(cluster.members()) == len(cluster.nodes)
    trial.load.wait_more(40)
    reply = cluster.call(cluster.lead(), "POST", "/cluster/remove", {"node_id": name_of(victim)})
    assert reply is not None and reply[0] == 200, reply
    cluster.wait_healthy()


def _status(cluster: FaultyCluster, node: ServerProcess) -> str:
    """What the others say of a member."""
    rows = [row for row in cluster.members() if row["id"] == name_of(node)]
    return str(rows[0]["status"]) if rows else ""


def _delete(path: Path) -> None:
    if path.is_dir():
        for inside in path.iterdir():
            _delete(inside)
        path.rmdir()
    else:
        path.unlink()


def power_of_one(trial: Trial) -> None:
    _cut_power(trial, [trial.draw.choice(trial.cluster.nodes)])


def power_of_majority(trial: Trial) -> None:
    _cut_power(trial, trial.draw.sample(trial.cluster.nodes, 2))


def power_of_all(trial: Trial) -> None:
    _cut_power(trial, list(trial.cluster.nodes))


def _cut_power(trial: Trial, victims: list[ServerProcess]) -> None:
    cluster = trial.cluster
    trial.hit()
    for victim in victims:
        cluster.disks[name_of(victim)].cut_power()
    for victim in victims:
        victim.kill()
    if len(victims) == 1:
        trial.writes_go_on()
    for victim in victims:
        cluster.disks[name_of(victim)].power_on()
    trial.hit()
    cluster.start_together(victims)
    trial.writes_go_on()


_OWN_DISK = 400 * MIB
_LOG_OF_DISK = f"wal.segment_size={8 * MIB}"
_SNAPSHOTS = f"wal.segment_size={MIB},raft.log_kept_size={MIB // 4}"


def _full(name: str, what: str, act: Callable[[Trial], None], limit_s: float) -> Scenario:
    return Scenario(name, what, act, limit_s, disk_size=_OWN_DISK, failpoints=_LOG_OF_DISK)


SCENARIOS = (
    Scenario("A1", "kill -9 of the leader, five times", kill_leader, _ELECTION_S),
    Scenario("A2", "kill -9 of any node, five times", kill_any, _ELECTION_S),
    Scenario("A3", "kill -9 of all nodes", kill_all, _RESTART_S),
    Scenario("A4", "kill -9 at each failpoint", kill_at_points, 3, failpoints=_SMALL_LOG),
    Scenario(
        "A4-install",
        "kill -9 while a snapshot is installed",
        kill_at_install,
        3,
        failpoints=_SNAPSHOTS,
    ),
    Scenario("A4-mirror", "kill -9 of mirrors, and of a node", kill_mirrors, 3, mirror=True),
    Scenario("A5", "SIGSTOP of the leader, then SIGCONT", pause_leader, 3),
    Scenario("A6", "SIGSTOP of a follower, then SIGCONT", pause_follower, 3),
    Scenario("A7-alone", "the leader is isolated", alone, 3, network=True),
    Scenario(
        "A7-with-one", "the leader and another node are isolated", with_one, 3, 5, network=True
    ),
    Scenario("A7-ring", "each node reaches two neighbors", ring, 3, 5, network=True),
    Scenario("A7-bridge", "the leader reaches one other node only", bridge, 3, 5, network=True),
    Scenario("A7-unheard", "no node receives messages of the leader", unheard, 3, network=True),
    Scenario("A7-deaf", "the leader receives no messages", deaf, 3, network=True),
    Scenario("A7-flapping", "each leader is isolated in turn", flapping, 3, network=True),
    _full("A8-follower", "the disk of a follower is full", fill_follower, 3),
    _full("A8-leader", "the disk of the leader is full", fill_leader, 5),
    _full("A8-all", "all disks are full", fill_all, 5),
    Scenario("A9-follower", "fdatasync of a follower + 200 ms", slow_follower, 3, knobs=True),
    Scenario("A9-leader", "fdatasync of the leader + 200 ms", slow_leader, 3, knobs=True),
    Scenario("A9-stall", "fdatasync of the leader + 10 s", stalled_leader, 5, knobs=True),
    Scenario("A10", "an fdatasync of the leader fails", broken_sync, 3, knobs=True),
    Scenario("A11-ahead", "clock of the leader + 1 h", leader_ahead, 3, knobs=True),
    Scenario("A11-behind", "clock of the leader - 1 h", leader_behind, 3, knobs=True),
    Scenario("A11-next-ahead", "clock of the next leader + 1 h", follower_ahead, 3, knobs=True),
    Scenario("A11-next-behind", "clock of the next leader - 1 h", follower_behind, 3, knobs=True),
    Scenario("A12", "the end of a cleanly closed log is lost", cut_tail, 3),
    Scenario("A14", "a bit of a log is flipped", flip_byte, 3),
    Scenario("A15", "the state of a node is damaged", damage_base, 3),
    Scenario("A16", "the data of a node are deleted", lose_data, 3),
    _full("A17-one", "power cut of one node", power_of_one, _RESTART_S),
    _full("A17-majority", "power cut of two nodes", power_of_majority, _RESTART_S),
    _full("A17-all", "power cut of all nodes", power_of_all, _RESTART_S),
    Scenario("A18", "a follower needs a snapshot", behind, 3, failpoints=_SNAPSHOTS),
    Scenario(
        "A18-receiver",
        "the same, and the follower is killed",
        behind_and_killed,
        3,
        failpoints=_SNAPSHOTS,
    ),
    Scenario(
        "A18-sender",
        "the same, and the leader is killed",
        behind_a_killed,
        _RESTART_S,
        failpoints=_SNAPSHOTS,
    ),
    Scenario("A19", "two nodes join, a follower and the leader leave", come_and_go, 3),
    Scenario("A19-all", "all nodes are replaced, one at a time", replace_all, 3),
    Scenario("A19-kills", "kill -9 during membership changes", change_and_kill, 3),
    Scenario("A21", "a storm on the Raft port", storm, 3),
    Scenario("A23", "SIGTERM of one node after the other", stop_each, 3),
)

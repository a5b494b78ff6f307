"""The faults, by the names that `make faults ONLY=` knows."""

from faults.campaign import Round, Scenario
from faults.machines import eventually
from harness import refused

MIB = 1024 * 1024
HOUR_NS = 3_600 * 10**9
_ELECTION_S = 2.0  # at default time-outs, with room for a busy machine
_RESTART_S = 5.0


# ---- processes ----


def kill_leader(fight: Round) -> None:
    victim = fight.cluster.lead()
    fight.hit()
    victim.kill()
    fight.writes_go_on()


def kill_any(fight: Round) -> None:
    cluster = fight.cluster
    for _ in range(5):
        victim = fight.draw.choice(cluster.nodes)
        fight.hit()
        victim.kill()
        fight.writes_go_on()
        victim.start()
        cluster.wait_caught_up(victim)


def kill_all(fight: Round) -> None:
    for node in fight.cluster.nodes:
        node.kill()
    fight.hit()
    fight.cluster.heal()
    fight.writes_go_on()


def pause_leader(fight: Round) -> None:
    cluster = fight.cluster
    victim = cluster.lead()
    term = cluster.term()
    fight.hit()
    cluster.pause(victim)
    fight.writes_go_on()
    fight.load.wait_more(40)
    cluster.go_on()
    cluster.wait_caught_up(victim)
    assert cluster.term() > term


def pause_follower(fight: Round) -> None:
    cluster = fight.cluster
    term = cluster.term()
    victim = fight.draw.choice(cluster.rest())
    fight.hit()
    cluster.pause(victim)
    fight.writes_go_on()
    fight.load.wait_more(200)
    cluster.go_on()
    cluster.wait_caught_up(victim)
    assert cluster.term() == term, "who was away has disturbed the others"


def stop_each(fight: Round) -> None:
    """SIGTERM; the next one when the last is back."""
    cluster = fight.cluster
    for node in list(cluster.nodes):
        fight.hit()
        assert node.stop() == 0
        fight.writes_go_on()
        node.start()
        cluster.wait_healthy()
    assert fight.load.tries_max <= 2, "a client had to try more than twice"


# ---- links ----


def alone(fight: Round) -> None:
    cluster = fight.cluster
    old = cluster.lead()
    fight.hit()
    cluster.split([old], cluster.rest())
    fight.writes_go_on()
    fight.load.wait_more(40)
    answer = cluster.call(old, "POST", "/enqueue", {"queue": "nobody"})
    refused(answer, 503, "NO_LEADER")


def with_one(fight: Round) -> None:
    cluster = fight.cluster
    old, rest = cluster.lead(), cluster.rest()
    fight.hit()
    cluster.split([old, rest[0]], rest[1:])
    fight.writes_go_on()
    fight.load.wait_more(40)


def ring(fight: Round) -> None:
    """Each node reaches its two neighbours only."""
    nodes = fight.cluster.nodes
    fight.hit()
    for at, node in enumerate(nodes):
        for away in (2, 3):
            fight.cluster.cut(node, nodes[(at + away) % 5])
    fight.writes_go_on()
    fight.load.wait_more(40)


def bridge(fight: Round) -> None:
    """The leader reaches one node only; all others reach each other."""
    cluster = fight.cluster
    old, rest = cluster.lead(), cluster.rest()
    fight.hit()
    cluster.split([old], rest[1:])
    fight.writes_go_on()
    fight.load.wait_more(40)


def unheard(fight: Round) -> None:
    cluster = fight.cluster
    old = cluster.lead()
    rest = cluster.rest()
    fight.hit()
    for node in rest:
        cluster.cut(old, node)
    fight.writes_go_on()
    fight.load.wait_more(40)


def deaf(fight: Round) -> None:
    cluster = fight.cluster
    old = cluster.lead()
    rest = cluster.rest()
    fight.hit()
    for node in rest:
        cluster.cut(node, old)
    fight.writes_go_on()
    fight.load.wait_more(40)


def flapping(fight: Round) -> None:
    """Whoever leads is cut off, and back as soon as somebody else leads."""
    cluster = fight.cluster
    assert cluster.network is not None
    for _ in range(4):
        fight.hit()
        old = cluster.lead()
        cluster.split([old], cluster.rest())
        fight.writes_go_on()
        cluster.network.heal()
        fight.load.wait_more(10)


# ---- disks ----


def fill_follower(fight: Round) -> None:
    cluster = fight.cluster
    victim = fight.draw.choice(cluster.rest())
    disk = cluster.disks[victim.flags[1]]
    fight.hit()
    disk.fill()
    fight.writes_go_on()
    fight.load.wait_more(200)
    disk.free()
    cluster.wait_caught_up(victim)


def fill_leader(fight: Round) -> None:
    cluster = fight.cluster
    victim = cluster.lead()
    disk = cluster.disks[victim.flags[1]]
    disk.fill()
    answer = cluster.call(victim, "POST", "/enqueue", {"queue": "full", "payload": "x"})
    assert answer[0] in (200, 201, 503, 507), answer
    fight.hit()
    disk.free()
    fight.writes_go_on()


def fill_all(fight: Round) -> None:
    cluster = fight.cluster
    for disk in cluster.disks.values():
        disk.fill()
    eventually(lambda: _is_full(fight), "nobody says that the disks are full")
    fight.hit()
    for disk in cluster.disks.values():
        disk.free()
    fight.writes_go_on()


def _is_full(fight: Round) -> bool:
    leader = fight.cluster.leader()
    if leader is None:
        return True
    answer = fight.cluster.call(leader, "POST", "/enqueue", {"queue": "full", "payload": "x"})
    return bool(answer is not None and answer[0] in (503, 507))


def slow_follower(fight: Round) -> None:
    _slow(fight, fight.draw.choice(fight.cluster.rest()), 200_000)


def slow_leader(fight: Round) -> None:
    _slow(fight, fight.cluster.lead(), 200_000)


def stalled_leader(fight: Round) -> None:
    _slow(fight, fight.cluster.lead(), 10_000_000)


def _slow(fight: Round, victim: object, sync_us: int) -> None:
    knobs = fight.cluster.knobs[victim.flags[1]]  # type: ignore[attr-defined]
    fight.hit()
    knobs.turn("sync_us", sync_us)
    fight.writes_go_on()
    fight.load.wait_more(40)
    knobs.turn("sync_us", 0)


def broken_sync(fight: Round) -> None:
    cluster = fight.cluster
    victim = cluster.lead()
    fight.hit()
    cluster.knobs[victim.flags[1]].turn("sync_errno", 5)
    assert cluster.wait_dead(victim) == 1
    fight.writes_go_on()
    victim.start()
    cluster.wait_caught_up(victim)


SCENARIOS = (
    Scenario("A1", "kill -9 of the leader", kill_leader, _ELECTION_S),
    Scenario("A2", "kill -9 of any node, five times", kill_any, _ELECTION_S),
    Scenario("A3", "kill -9 of all nodes", kill_all, _RESTART_S),
    Scenario("A5", "the leader is stopped, and goes on", pause_leader, 3),
    Scenario("A6", "a follower is stopped, and goes on", pause_follower, 3),
    Scenario("A7-alone", "the leader is cut off", alone, 3, network=True),
    Scenario("A7-with-one", "the leader and one more are cut off", with_one, 3, 5, network=True),
    Scenario("A7-ring", "each node reaches two neighbours", ring, 3, 5, network=True),
    Scenario("A7-bridge", "the leader reaches one other only", bridge, 3, 5, network=True),
    Scenario("A7-unheard", "nobody hears the leader", unheard, 3, network=True),
    Scenario("A7-deaf", "the leader hears nobody", deaf, 3, network=True),
    Scenario("A7-flapping", "who leads is cut off, again and again", flapping, 3, network=True),
    Scenario(
        "A8-follower", "the disk of a follower is full", fill_follower, 3, disk_size=360 * MIB
    ),
    Scenario("A8-leader", "the disk of the leader is full", fill_leader, 5, disk_size=360 * MIB),
    Scenario("A8-all", "all disks are full", fill_all, 5, disk_size=360 * MIB),
    Scenario(
        "A9-follower", "200 ms more for each fdatasync of a follower", slow_follower, 3, knobs=True
    ),
    Scenario("A9-leader", "the same, of the leader", slow_leader, 3, knobs=True),
    Scenario("A9-stall", "the disk of the leader stalls", stalled_leader, 5, knobs=True),
    Scenario("A10", "an fdatasync of the leader fails", broken_sync, 3, knobs=True),
    Scenario("A23", "SIGTERM of one node after the other", stop_each, 3),
)

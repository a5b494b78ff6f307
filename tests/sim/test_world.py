"""A few seeds of the simulator, and what every run of it must be: the same each time."""

import pytest
from sim.options import draw_options
from sim.world import World

CORE_SEEDS = range(1, 9)
FULL_SEEDS = range(1, 4)


@pytest.mark.parametrize("seed", CORE_SEEDS)
def test_core(seed: int) -> None:
    World(seed).run(1_500)


@pytest.mark.parametrize("seed", FULL_SEEDS)
def test_whole_nodes(seed: int) -> None:
    World(seed, full=True).run(1_500)


@pytest.mark.parametrize("full", [False, True])
def test_a_seed_is_replayed_exactly(full: bool) -> None:
    traces: list[list[str]] = []
    for _ in range(2):
        lines: list[str] = []
        World(11, full, tracer=lines.append).run(800)
        traces.append(lines)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100


def test_a_run_stops_where_it_is_told() -> None:
    world = World(11)
    world.run(3_000, until=500)
    assert world.schedule.steps == 500


def test_options_name_everything_a_seed_decides() -> None:
    assert draw_options(7) == draw_options(7)
    assert draw_options(7) != draw_options(8)
    assert any(
        line.split() == ["voters", "1"] for s in range(50) for line in draw_options(s).lines()
    )


def test_runs_do_something() -> None:
    """Over a few seeds there are several leaders, changes of members, answers and snapshots."""
    worlds = [World(seed) for seed in range(20, 26)]
    for world in worlds:
        world.run(1_500)
    assert sum(len(world.ghost.leaders) for world in worlds) > 10
    assert sum(len(world.clients.history.calls) for world in worlds) > 50
    assert any(node.life > 1 for world in worlds for node in world.nodes.values())
    assert any(node.store.snapshot for world in worlds for node in world.nodes.values())
    assert any(kind == 1 for world in worlds for _, kind, _ in world.ghost.entries.values())

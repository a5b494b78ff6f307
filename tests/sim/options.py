"""What a seed stands for: every size, rate and delay of a run, drawn once and printed."""

import random
from dataclasses import dataclass, fields

from sim.schedule import MILLISECOND_US


@dataclass(frozen=True)
class Options:
    """One run. Extremes are drawn as often as usual values: bugs live at the edges."""

    seed: int
    full: bool  # whole nodes with the real state machine, or the core alone with registers
    voters: int
    learners: int
    spares: int  # nodes that are no members at first

    # Protocol.
    election_ticks: int
    heartbeat_ticks: int
    append_size_max: int
    inflight_max: int
    uncommitted_max: int
    applying_size_max: int
    promote_lag_max: int
    snapshot_interval: int  # entries between snapshots; 0: none are made
    trailing: int  # entries that stay in the log below a snapshot
    apply_batch: int  # entries applied in one go

    # Network.
    latency_min_us: int
    latency_max_us: int
    in_order: bool  # as on a connection; otherwise messages overtake each other
    drop: float
    duplicate: float

    # Disk, clocks.
    sync_min_us: int
    sync_max_us: int
    tick_us: int
    skew: float  # how much faster or slower than true a clock may go

    # Faults and load.
    fault_interval_us: int
    change_interval_us: int  # between changes of the members; 0: none
    request_interval_us: int
    clients: int

    def lines(self) -> list[str]:
        """The options as text, one a line."""
        return [f"{field.name:20} {getattr(self, field.name)}" for field in fields(self)]


def draw_options(seed: int, full: bool = False) -> Options:
    """The options of a seed."""
    draw = random.Random(f"options {seed} {full}")
    latency_min_us = draw.choice((20, 200, 1_000))
    sync_min_us = draw.choice((20, 200, 2_000))
    latency_max_us = latency_min_us * draw.choice((1, 2, 10, 30))
    sync_max_us = sync_min_us * draw.choice((1, 10, 30))
    tick_us = 10 * MILLISECOND_US
    # Raft asks for it: time-outs are long beside what an answer takes.
    election_ticks_min = 5 * (2 * latency_max_us + sync_max_us) // tick_us
    quiet = draw.random() < 0.2
    return Options(
        seed=seed,
        full=full,
        voters=draw.choice((1, 3, 3, 3, 5) if full else (1, 2, 3, 3, 3, 3, 4, 5, 5)),
        learners=draw.choice((0, 0, 1)),
        spares=draw.choice((0, 1, 2)),
        election_ticks=max(election_ticks_min, draw.choice((5, 10, 20))),
        heartbeat_ticks=draw.choice((1, 1, 2)),
        append_size_max=draw.choice((1, 64, 1 << 20)),
        inflight_max=draw.choice((1, 2, 16, 256)),
        uncommitted_max=draw.choice((3, 20, 200)),
        applying_size_max=draw.choice((1, 100, 1 << 20)),
        promote_lag_max=draw.choice((0, 5, 1_000)),
        snapshot_interval=draw.choice((0, 3, 10, 40)),
        trailing=draw.choice((0, 1, 5, 100)),
        apply_batch=draw.choice((1, 3, 1_000)),
        latency_min_us=latency_min_us,
        latency_max_us=latency_max_us,
        in_order=draw.random() < 0.5,
        drop=0.0 if quiet else draw.choice((0.0, 0.01, 0.1)),
        duplicate=0.0 if quiet else draw.choice((0.0, 0.01, 0.1)),
        sync_min_us=sync_min_us,
        sync_max_us=sync_max_us,
        tick_us=tick_us,
        skew=draw.choice((0.0, 0.01, 0.2)),
        fault_interval_us=draw.choice((30, 100, 300, 1_000)) * MILLISECOND_US,
        change_interval_us=draw.choice((0, 50, 200, 1_000)) * MILLISECOND_US,
        request_interval_us=draw.choice((2, 5, 20)) * MILLISECOND_US,
        clients=draw.choice((1, 3, 6)),
    )

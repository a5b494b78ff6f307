"""Pauses of the server's event loop during a phase, computed from its metrics.

The metrics are histograms of flush times and loop-turn times, so every figure is the upper bound of
a bucket.
"""

import math
import re

import msgspec

from corvo.cli.api import Client, ServerError

FLUSHES = "corvo_base_flush_seconds"
TURNS = "corvo_loop_turn_seconds"
SLOW_S = 0.001
_BUCKET = re.compile(r'^(\w+)_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)

Histogram = dict[float, float]  # upper bound in seconds -> number of pauses


class Pauses(msgspec.Struct):
    """The pauses of one phase."""

    flushes: int
    flush_max_ms: float | None  # None: longer than the last bound
    turns: int
    turn_max_ms: float | None
    slow_turns_pct: float  # turns longer than a millisecond

    def rows(self) -> list[tuple[str, object]]:
        """Labels and values for the report."""
        share = f"{self.slow_turns_pct:.2f}% above 1ms"
        return [
            ("flush gaps", f"{self.flushes}, longest {_bound(self.flush_max_ms)}"),
            ("loop turns", f"{self.turns}, {share}, longest {_bound(self.turn_max_ms)}"),
        ]


def read(client: Client) -> dict[str, Histogram] | None:
    """Read both histograms; None if the server does not export them."""
    try:
        page = client.get("/api/v1/metrics").decode()
    except ServerError:
        return None
    found: dict[str, Histogram] = {FLUSHES: {}, TURNS: {}}
    for name, bound, count in _BUCKET.findall(page):
        if name in found:
            found[name][float(bound)] = float(count)
    return found if all(found.values()) else None


def between(
    before: dict[str, Histogram] | None, after: dict[str, Histogram] | None
) -> Pauses | None:
    """The pauses between two readings."""
    if before is None or after is None:
        return None
    flushes, turns = (
        {bound: count - before[name].get(bound, 0) for bound, count in after[name].items()}
        for name in (FLUSHES, TURNS)
    )
    count = turns[max(turns)]
    slow = 100 * (1 - turns.get(SLOW_S, count) / count) if count else 0.0
    return Pauses(
        flushes=round(flushes[max(flushes)]),
        flush_max_ms=_longest_ms(flushes),
        turns=round(count),
        turn_max_ms=_longest_ms(turns),
        slow_turns_pct=round(slow, 3),
    )


def _longest_ms(histogram: Histogram) -> float | None:
    """The lowest bound that no pause exceeds."""
    count = max(histogram.values())
    if not count:
        return 0
    bound = min(bound for bound, up_to in histogram.items() if up_to == count)
    return None if bound == math.inf else bound * 1000


def _bound(length_ms: float | None) -> str:
    return "above the largest bucket" if length_ms is None else f"<= {length_ms:g}ms"

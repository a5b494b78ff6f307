"""A few simulated power cuts of each kind; `make images` runs many."""

import functools

import pytest
from crash.images import KINDS, Trace, campaign, record

IMAGES = 15


@functools.cache
def trace(durable: bool) -> Trace:
    return record(durable, seed=9)


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "not durable"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_start_after_a_power_cut(kind: str, durable: bool) -> None:
    """Every row is as the model has it at some entry; in durable mode not before the last
    acknowledged one, otherwise not before the last flush of the state store."""
    counts, wrong = campaign(trace(durable), KINDS[kind], IMAGES, seed=1)
    assert not wrong, wrong
    assert counts["exact"] == IMAGES
    assert not (durable and counts["entries lost"])


def test_a_power_cut_without_flushes_does_lose_entries() -> None:
    """The images are what they say: not durable, something is missing in some of them."""
    counts, _ = campaign(trace(False), KINDS["lost pages"], 3 * IMAGES, seed=1)
    assert counts["entries lost"] > 0

"""When a node is ready as far as search matters."""

from types import SimpleNamespace
from typing import Any

import pytest

from corvo.config import Address, load
from corvo.limits import READY_SEARCH_WAIT_NS
from corvo.node.status import Status

NOT_OPEN = "search is not open yet"


class World:
    """A node with a clock and a sidecar that a test sets."""

    def __init__(self, mirror: bool = True) -> None:
        self.now_ns = 10**12
        self.sidecar = SimpleNamespace(available=False) if mirror else None
        nothing: Any = None
        clock: Any = SimpleNamespace(monotonic_ns=lambda: self.now_ns)
        sidecar: Any = self.sidecar
        self.status = Status(load({}, {}), clock, *(nothing,) * 4, sidecar)

    def opens(self, available: bool) -> None:
        assert self.sidecar is not None
        self.sidecar.available = available


def test_search_must_be_open_after_a_start() -> None:
    world = World()
    assert world.status.search_trouble(False) == NOT_OPEN
    world.opens(True)
    assert world.status.search_trouble(False) == ""
    world.opens(False)
    assert world.status.search_trouble(False) == "", "a mirror that fails later does not matter"
    assert world.status.search_trouble(True) == "search is not available"


@pytest.mark.parametrize("open_at_last", [False, True])
def test_for_five_seconds_at_most(open_at_last: bool) -> None:
    world = World()
    world.now_ns += READY_SEARCH_WAIT_NS - 1
    assert world.status.search_trouble(False) == NOT_OPEN
    world.now_ns += 1
    assert world.status.search_trouble(False) == ""
    world.opens(open_at_last)
    assert (world.status.search_trouble(True) == "") is open_at_last


def test_the_time_counts_from_when_the_node_listens() -> None:
    world = World()
    world.now_ns += READY_SEARCH_WAIT_NS
    nothing: Any = None
    world.status.listening(nothing, (), Address("127.0.0.1", 1))
    assert world.status.search_trouble(False) == NOT_OPEN


def test_without_a_mirror() -> None:
    world = World(mirror=False)
    assert world.status.search_trouble(False) == ""
    assert world.status.search_trouble(True) == "the mirror is off"

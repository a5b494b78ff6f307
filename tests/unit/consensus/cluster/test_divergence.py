"""F26: nodes that compare what has become of their state."""

import logging

import pytest

from corvo.consensus.cluster.divergence import DivergenceCheck


class State:
    """A state whose hash is its history."""

    def __init__(self) -> None:
        self.applied_index = 0
        self.hash = b"0"


class Node:
    def __init__(self, name: str, network: dict[str, "Node"]) -> None:
        self.name = name
        self.state = State()
        self.network = network
        self.divergence = DivergenceCheck(self.state, self.tell)
        network[name] = self

    def tell(self, index: int, hash: bytes) -> None:
        for other in self.network.values():
            if other is not self:
                other.divergence.compare(self.name, index, hash)

    def apply(self, *entries: str) -> None:
        for entry in entries:
            self.state.applied_index += 1
            self.state.hash += entry.encode()
            self.divergence.record(self.state.applied_index)


@pytest.fixture
def network() -> dict[str, Node]:
    made: dict[str, Node] = {}
    for name in "abc":
        Node(name, made)
    return made


def test_equal_states_agree(network: dict[str, Node]) -> None:
    for node in network.values():
        node.apply("x", "y")
    for node in network.values():
        node.divergence.tick()
    assert all(n.divergence.compared == 2 for n in network.values())
    assert not any(n.divergence.diverged for n in network.values())
    network["a"].divergence.tick()  # no news
    assert network["b"].divergence.compared == 2


def test_a_node_behind_compares_after_it_has_applied_the_entry(
    network: dict[str, Node], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = network["a"], network["b"]
    a.apply("x", "y", "z")
    a.divergence.tick()
    a.apply("z")
    a.divergence.tick()
    b.apply("x", "Y")
    assert b.divergence.compared == 0
    with caplog.at_level(logging.CRITICAL):
        b.apply("z")
    assert b.divergence.diverged == {"a": 3}
    assert (b.divergence.compared, b.divergence.mismatches) == (1, 1)
    assert "differs from node a after entry 3" in caplog.text


def test_the_minority_has_diverged(network: dict[str, Node]) -> None:
    for name, node in network.items():
        node.apply("x", "Y" if name == "c" else "y")
    for node in network.values():
        node.divergence.tick()
    voters = list("abc")
    assert network["c"].divergence.is_wrong(voters)
    assert not network["a"].divergence.is_wrong(voters)
    assert network["a"].divergence.diverged == {"c": 2}
    two = network["a"].divergence
    assert not two.is_wrong(["a", "c"])  # nobody can say which of two it is
    two.forget(["a", "b"])
    assert not two.diverged


def test_a_node_with_a_restored_state_agrees_again(network: dict[str, Node]) -> None:
    a, b = network["a"], network["b"]
    a.apply("x", "y")
    b.apply("x", "Y")
    a.divergence.tick()
    b.divergence.tick()
    assert a.divergence.diverged and b.divergence.diverged
    a.apply("z")
    b.state.applied_index, b.state.hash = 3, a.state.hash  # a snapshot
    b.divergence.record(3)
    a.divergence.tick()
    b.divergence.tick()
    assert not a.divergence.diverged and not b.divergence.diverged


def test_old_hashes_are_not_compared(network: dict[str, Node]) -> None:
    a, b = network["a"], network["b"]
    a.apply("x")
    for _ in range(5000):
        b.apply("x")
    a.divergence.tick()
    assert b.divergence.compared == 0

"""Each fuzz target with its seeds and a few thousand random changes of them; `make fuzz` goes on
for as long as it is told, guided by what the code does."""

import random

import pytest
from fuzz.changes import changed
from fuzz.targets import TARGETS, Target

ROUNDS = 400


@pytest.mark.parametrize("name", TARGETS)
def test_target(name: str) -> None:
    target: Target = TARGETS[name]
    draw = random.Random(name)
    for seed in target.seeds:
        target.run(seed)
    for _ in range(ROUNDS):
        target.run(changed(draw, draw.choice(target.seeds), draw.choice(target.seeds)))

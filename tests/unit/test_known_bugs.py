"""The lists of what must work and of what must not come back, against the tests that are there."""

import re
from pathlib import Path

import pytest
from lib import known_mutants, server_mutants
from lib.mutation import Mutant, mutated

TESTS = Path(__file__).parents[1]
README = TESTS.parent / "corvo" / "consensus" / "README.md"
BUGS = range(1, 70)


def is_there(test: str) -> bool:
    """Whether a test named as `path::function` exists; the path alone is a whole file."""
    path, _, function = test.partition("::")
    source = (TESTS / path).read_text()
    return not function or re.search(rf"^def {function}\(", source, re.MULTILINE) is not None


def test_each_function_of_the_log_is_shown_by_tests() -> None:
    rows = re.findall(r"^\| (F\d+) \| .* \| (.*) \|$", README.read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == [f"F{n}" for n in range(1, 28) if n not in (8, 23)]
    for name, cell in rows:
        tests = re.findall(r"`([^`]+)`", cell)
        assert tests and all("::" in test for test in tests), name
        assert [test for test in tests if not is_there(test)] == [], name


def test_each_known_bug_can_be_put_back() -> None:
    """Those with a number; each by one mutant or more, or it says why it has no place here."""
    known = {re.sub(r"\D", "", name) for name in known_mutants.MUTANTS if name[0] == "b"}
    known |= {name.removeprefix("b") for name in server_mutants.NO_PLACE}
    assert known == {str(number) for number in BUGS}


@pytest.mark.parametrize("mutant", known_mutants.MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_mutants_fit_the_sources(mutant: Mutant) -> None:
    mutated(mutant)
    for test in mutant.scenario:
        assert is_there(test.removeprefix("tests/")), test

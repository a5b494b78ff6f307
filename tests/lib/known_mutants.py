"""All known bugs as mutants, and the one that CORVO_MUTANT selects."""

from lib import raft_mutants, server_mutants
from lib.mutation import Mutant, install, wanted

MUTANTS = raft_mutants.MUTANTS | server_mutants.MUTANTS
# Not a bug: loads the interpreted sources, on which tests of bugs outside the core run.
NONE = Mutant("none", "no bug, interpreted", (), tuple(server_mutants.SCENARIOS))


def install_wanted() -> None:
    """Install the selected mutant. It must run before any import of the server's code."""
    if wanted():
        install(NONE if wanted() == NONE.name else MUTANTS[wanted()])

"""All known bugs that can be put back, and the one that is wanted."""

from lib import raft_mutants, server_mutants
from lib.mutation import Mutant, install, wanted

MUTANTS = raft_mutants.MUTANTS | server_mutants.MUTANTS
# No bug, but the sources that tests of bugs outside the core run on.
NONE = Mutant("none", "no bug, interpreted", (), tuple(server_mutants.SCENARIOS))


def install_wanted() -> None:
    """Called first of all by what runs the server's code, before it imports anything of it."""
    if wanted():
        install(NONE if wanted() == NONE.name else MUTANTS[wanted()])

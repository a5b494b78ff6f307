"""The known bugs of Raft implementations that could live in `corvo/consensus/raft`."""

from mutation import Edit, Mutant, install, wanted

PACKAGE = "corvo.consensus.raft"


def _mutant(name: str, bug: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name, bug, tuple(Edit(*edit) for edit in edits))


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        _mutant(
            "b1",
            "a vote leaves before it is on disk",
            (
                "core.py",
                "        if self._is_state_durable():\n            self._messages.append(message)",
                "        if True:\n            self._messages.append(message)",
            ),
        ),
    )
}


def install_wanted() -> None:
    """Called first of all by what runs the core, before it imports anything of it."""
    if wanted():
        install(MUTANTS[wanted()], PACKAGE)

"""Majorities of voters, and the result of votes."""

from typing import Final

PENDING: Final = 0
WON: Final = 1
LOST: Final = 2


def majority(count: int) -> int:
    """The smallest number of voters such that any two groups of that size overlap."""
    return count // 2 + 1


def majority_has(values: list[int]) -> int:
    """The largest number that a majority has reached; `values` has one number per voter.

    The result for a cluster without voters is 0.
    """
    if not values:
        return 0
    ordered = sorted(values, reverse=True)
    return ordered[majority(len(values)) - 1]


def tally(voters: list[str], votes: dict[str, bool]) -> int:
    """Count votes; return PENDING, WON or LOST. Votes of non-voters are ignored."""
    granted = refused = 0
    for voter in voters:
        vote = votes.get(voter)
        if vote is not None:
            if vote:
                granted += 1
            else:
                refused += 1
    if granted >= majority(len(voters)):
        return WON
    if len(voters) - refused < majority(len(voters)):
        return LOST
    return PENDING

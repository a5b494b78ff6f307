"""What a majority of voters has, and what it has decided."""

from typing import Final

PENDING: Final = 0
WON: Final = 1
LOST: Final = 2


def majority(count: int) -> int:
    """The smallest number of voters of which any two groups have one in common."""
    return count // 2 + 1


def majority_has(values: list[int]) -> int:
    """The largest number that a majority of the voters has reached; `values` holds one of each.

    Nobody decides for a cluster without voters: 0.
    """
    if not values:
        return 0
    ordered = sorted(values, reverse=True)
    return ordered[majority(len(values)) - 1]


def tally(voters: list[str], votes: dict[str, bool]) -> int:
    """PENDING, WON or LOST. Votes of others than voters do not count."""
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

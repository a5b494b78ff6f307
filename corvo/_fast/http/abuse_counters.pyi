from corvo.errors import CorvoError

REASONS: dict[str, str]

class AbuseCounters:
    """The counters, by the names of REASONS."""

    counts: dict[str, int]
    def __init__(self) -> None: ...
    def count(self, reason: str) -> None: ...

def reason_of(error: CorvoError) -> str: ...

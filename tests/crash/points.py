"""How often each failpoint is passed before it kills, and how it is met."""

from corvo.platform.failpoints import POINTS

# Points that every entry passes are passed a number of times first.
_OFTEN = ("wal.before_write", "wal.after_write", "wal.before_sync", "wal.after_sync", "apply")
_STOP = ("wal.before_clean_close", "wal.after_clean_close")


def _kill(point: str) -> str:
    often = point.startswith(_OFTEN)
    return f"{point}=kill@{20 if often else 2 if point.startswith(('flush', 'state_store')) else 1}"


# The setting that kills at each point of a single server, and whether that has to be stopped to
# meet it.
FAILPOINTS: list[tuple[str, bool]] = [
    (_kill(point), point in _STOP) for point in POINTS if not point.startswith("snapshot")
]

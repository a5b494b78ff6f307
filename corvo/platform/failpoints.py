"""Named places in which a test can kill, stop or fail a server.

    CORVO_FAILPOINTS="wal.before_sync=kill@3,base.before_commit=full"

arms points: `point=action@n` acts the n-th time the point is reached (the first when `@n` is left
out), `point=action@n+` from then on. The variable counts only in a server that runs with
`--test-clock`, as tests do; any other one refuses to start with it. Nothing can be armed later.

Off, a point costs one look at a module variable, and none lies on the way of a single request.
Armed, the log is written by the loop's own thread instead of the C thread, so that the points
around a write and its flush exist at all.
"""

import errno
import os
import signal
from typing import Final

from corvo.errors import ConfigError

VARIABLE: Final = "CORVO_FAILPOINTS"

POINTS: Final[dict[str, str]] = {
    "wal.before_write": "Bytes are about to be written to the log.",
    "wal.after_write": "They are in the page cache, not yet flushed.",
    "wal.before_sync": "A file or the directory of the log is about to be flushed.",
    "wal.after_sync": "It is on disk; nobody has been told.",
    "wal.before_hard_state": "A start is about to store its new term.",
    "wal.after_hard_state": "The term is stored; its first entry is not.",
    "wal.create": "A file for the next segment is about to be made.",
    "wal.roll": "The active segment is full; nothing of the next one is written.",
    "wal.before_name": "The next segment is on disk under a name that does not count.",
    "wal.after_name": "It has its name, and the directory is not flushed.",
    "wal.before_recycle": "A trimmed segment is about to become the spare.",
    "wal.after_recycle": "It has been renamed, and the directory is not flushed.",
    "wal.zero": "The spare is about to be filled with another slice of zeros.",
    "wal.before_unlink": "A trimmed segment is about to be deleted.",
    "wal.after_unlink": "It is deleted, and the directory is not flushed.",
    "wal.before_clean_close": "A stop is about to mark the log as cleanly closed.",
    "wal.after_clean_close": "The mark is on disk; the base is still open.",
    "apply.before": "A committed entry is about to be applied.",
    "apply.after": "It is applied; its requests are not answered.",
    "flush.begin": "The overlay is about to be written to the base.",
    "base.before_commit": "The rows are in the transaction, which is not committed.",
    "base.after_commit": "The base has them; the overlay does not know.",
    "flush.before_trim": "The base is ahead; the log has not been cut.",
    "snapshot.before_current": "A received snapshot has its place, and does not count yet.",
    "snapshot.installed": "It counts; the server still has the old base, the log is as it was.",
    "snapshot.restored": "The log begins behind it; the server still has the old base.",
}

SIZES: Final[dict[str, str]] = {
    "wal.segment_size": "Bytes of a log segment, so that small loads roll, too.",
    "raft.log_kept_size": "Bytes of entries that are kept for followers.",
}

armed: bool = False
"""Whether any point is armed. Look here before calling `reach`."""

_ERRNO: Final = {"error": errno.EIO, "full": errno.ENOSPC}
_SIGNALS: Final = {"kill": signal.SIGKILL, "stall": signal.SIGSTOP}
_plans: dict[str, "_Plan"] = {}
_sizes: dict[str, int] = {}


class _Plan:
    """What happens at one point, and when."""

    def __init__(self, action: str, first: int, always: bool) -> None:
        self.action = action
        self.first = first
        self.always = always
        self.reached = 0


def arm(text: str) -> None:
    """Replace what is armed by what `text` says; empty disarms everything."""
    global armed
    _plans.clear()
    _sizes.clear()
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        if name in SIZES:
            if not value.isdigit():
                raise ConfigError(f"{VARIABLE}: {item!a}: want a number")
            _sizes[name] = int(value)
        elif name in POINTS:
            _plans[name] = _parse_plan(item, value)
        else:
            raise ConfigError(f"{VARIABLE}: there is no point {name!a}")
    armed = bool(_plans)


def _parse_plan(item: str, value: str) -> _Plan:
    action, at, count = value.partition("@")
    number = count.removesuffix("+")
    if action not in _ERRNO and action not in _SIGNALS:
        raise ConfigError(f"{VARIABLE}: {item!a}: want kill, stall, error or full")
    if at and not (number.isdigit() and int(number) > 0):
        raise ConfigError(f"{VARIABLE}: {item!a}: want a count behind @")
    return _Plan(action, int(number or 1), count.endswith("+"))


def reach(point: str) -> None:
    """Do what is planned for this point, if anything.

    `kill` ends the process as kill -9 does; `stall` stops it until it gets SIGCONT; `error` and
    `full` raise the OSError of a broken and of a full disk.
    """
    plan = _plans.get(point)
    if plan is None:
        return
    plan.reached += 1
    if plan.reached != plan.first and not (plan.always and plan.reached > plan.first):
        return
    if plan.action in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[plan.action])
    else:
        raise OSError(_ERRNO[plan.action], f"failpoint {point}")


def size(name: str, default: int) -> int:
    """A size as set for tests, else the default."""
    return _sizes.get(name, default)


def table() -> str:
    """The points as a Markdown table; docs/testing.md holds it."""
    rows = ["| Point | Where it is |", "| --- | --- |"]
    rows += [f"| `{name}` | {text} |" for name, text in (POINTS | SIZES).items()]
    return "\n".join(rows) + "\n"

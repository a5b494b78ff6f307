"""Named points in the code at which a test can kill, stop or fail a server.

    CORVO_FAILPOINTS="wal.before_sync=kill@3,base.before_commit=full"

arms points: `point=action@n` acts when the point is reached for the n-th time (default: 1), and
`point=action@n+` from then on. The variable requires a server with `--test-clock`; any other server
does not start with it. Points cannot be armed later.

An unarmed point costs one read of a module variable, and no point is on the path of a single
request. When a point is armed, the event-loop thread writes the log instead of the C thread,
because only that code has points around a write and its flush.
"""

import errno
import os
import signal
from typing import Final

from corvo.errors import ConfigError

VARIABLE: Final = "CORVO_FAILPOINTS"

POINTS: Final[dict[str, str]] = {
    "wal.before_write": "Bytes are about to be written to the log.",
    "wal.after_write": "The bytes are in the page cache, not yet flushed.",
    "wal.before_sync": "A file or the directory of the log is about to be flushed.",
    "wal.after_sync": "The file or directory is on disk; no write is acknowledged.",
    "wal.before_hard_state": "A start is about to store its new term.",
    "wal.after_hard_state": "The term is stored; its first entry is not.",
    "wal.create": "A file for the next segment is about to be created.",
    "wal.roll": "The active segment is full; nothing of the next one is written.",
    "wal.before_name": "The next segment is on disk under a temporary name.",
    "wal.after_name": "The segment has its final name; the directory is not flushed.",
    "wal.before_recycle": "A trimmed segment is about to become the spare file.",
    "wal.after_recycle": "The segment is renamed; the directory is not flushed.",
    "wal.zero": "Another slice of the spare file is about to be filled with zeros.",
    "wal.before_unlink": "A trimmed segment is about to be deleted.",
    "wal.after_unlink": "The segment is deleted; the directory is not flushed.",
    "wal.before_clean_close": "A stop is about to write the clean-shutdown marker.",
    "wal.after_clean_close": "The clean-shutdown marker is on disk; the state store is still open.",
    "apply.before": "A committed entry is about to be applied.",
    "apply.after": "The entry is applied; its requests have no response yet.",
    "flush.begin": "The write buffer is about to be written to the state store.",
    "base.before_commit": "The rows are in the transaction, which is not committed.",
    "base.after_commit": "The state store has the rows; the write buffer still holds them.",
    "flush.before_trim": "The state store is flushed; the log is not trimmed.",
    "snapshot.before_current": "A received snapshot is in its directory, but is not current.",
    "snapshot.installed": "The snapshot is current; the server still has its old data.",
    "snapshot.restored": "The log starts after the snapshot; the old state store is open.",
}

SIZES: Final[dict[str, str]] = {
    "wal.segment_size": "Bytes of a log segment, so that small loads also roll segments.",
    "raft.log_kept_size": "Bytes of log entries retained for followers.",
}

armed: bool = False
"""Whether any point is armed; callers check this before they call `reach`."""

_ERRNO: Final = {"error": errno.EIO, "full": errno.ENOSPC}
_SIGNALS: Final = {"kill": signal.SIGKILL, "stall": signal.SIGSTOP}
_plans: dict[str, "_Plan"] = {}
_sizes: dict[str, int] = {}


class _Plan:
    """The armed action of one point, and the count at which it happens."""

    def __init__(self, action: str, first: int, always: bool) -> None:
        self.action = action
        self.first = first
        self.always = always
        self.reached = 0


def arm(text: str) -> None:
    """Arm the points in `text` and disarm all others."""
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
            raise ConfigError(f"{VARIABLE}: unknown point {name!a}")
    armed = bool(_plans)


def _parse_plan(item: str, value: str) -> _Plan:
    action, at, count = value.partition("@")
    number = count.removesuffix("+")
    if action not in _ERRNO and action not in _SIGNALS:
        raise ConfigError(f"{VARIABLE}: {item!a}: want kill, stall, error or full")
    if at and not (number.isdigit() and int(number) > 0):
        raise ConfigError(f"{VARIABLE}: {item!a}: want a count after @")
    return _Plan(action, int(number or 1), count.endswith("+"))


def reach(point: str) -> None:
    """Run the armed action of this point, if any.

    `kill` ends the process like kill -9; `stall` stops it until SIGCONT; `error` and `full` raise
    the OSError of a broken or full disk.
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
    """The size set by a test, or the default."""
    return _sizes.get(name, default)


def table() -> str:
    """The points as a Markdown table; docs/testing.md holds it."""
    rows = ["| Point | Where it is |", "| --- | --- |"]
    rows += [f"| `{name}` | {text} |" for name, text in (POINTS | SIZES).items()]
    return "\n".join(rows) + "\n"

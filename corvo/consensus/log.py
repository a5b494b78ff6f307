"""The log as the rest of the server sees it: propose an entry, learn its fate, trim.

Nothing outside this package knows whether one voter (`solo.SingleLog`) or a cluster stands behind
it, or where the entries are kept.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Final, Protocol, final

# What the data of an entry is.
FRAME: Final = 0  # ops for the state machine; empty: the no-op with which a leader begins its term
CONFIGURATION: Final = 1  # the members of the cluster from this entry on; nothing to apply


@final
class Entry:
    """One entry of the log."""

    __slots__ = ("data", "index", "kind", "term")

    def __init__(self, index: int, term: int, data: bytes, kind: int = FRAME) -> None:
        self.index = index
        self.term = term
        self.data = data
        self.kind = kind

    def __repr__(self) -> str:
        return f"Entry({self.index}, {self.term}, {len(self.data)} bytes)"


class Log(Protocol):
    """An ordered, durable list of entries with one writer: the leader's event loop.

    Set the three callbacks before `start`. They run on the loop, never inside `propose`.
    """

    @property
    def term(self) -> int:
        """The term in which this node proposes. Rises with every start."""

    @property
    def last_index(self) -> int:
        """The newest entry in the log, committed or not. `commit_index <= last_index`."""

    @property
    def commit_index(self) -> int:
        """The newest entry that has been given to `on_committed` or returned by `start`."""

    @property
    def durable(self) -> bool:
        """Whether an entry is flushed to disk before it is committed."""

    @property
    def busy(self) -> bool:
        """A write is in flight. Proposing now is an error; the next `on_committed` ends it."""

    @property
    def failed(self) -> Exception | None:
        """Why the log is dead: an I/O error, after which nothing is acknowledged any more."""

    @property
    def full(self) -> bool:
        """There is no disk space for another segment. What the current one still holds is taken;
        `propose` raises DiskFull beyond it. `reserve` tries again."""

    @property
    def flushes(self) -> int:
        """Completed flushes since the start."""

    on_committed: Callable[[list[Entry]], None]
    """Takes committed entries, in order, each exactly once."""

    on_failed: Callable[[Exception], None]
    """Called once, when `failed` is set. The node must stop."""

    on_idle: Callable[[], None]
    """Called when `busy` ends before the entry is committed. Proposing is possible again."""

    on_flushed: Callable[[int], None]
    """Takes the duration in nanoseconds of each write and flush, as the disk saw it."""

    def start(self, applied_index: int, applied_term: int, loop: AbstractEventLoop) -> list[Entry]:
        """Open the log and become ready to propose.

        Returns the committed entries above `applied_index`, to be replayed before anything is
        proposed. The no-op of the new term follows through `on_committed`.
        """

    def propose(self, data: bytes) -> tuple[int, int]:
        """Start writing an entry; returns its (index, term).

        Raises DiskFull, with nothing written, when it does not fit into the space at hand.
        """

    def reserve(self) -> bool:
        """Try to get the disk space that is missing while `full`. True when there is enough."""

    def sync(self) -> None:
        """Block until every committed entry is on disk. Needed only when not `durable`."""

    def trim(self, index: int) -> None:
        """Entries up to index are covered by the base and will not be read again."""

    def cut(self) -> None:
        """What is kept of them for others goes, too, as far as nobody is about to get it."""

    def close(self) -> None:
        """Flush, mark the log as cleanly closed, and stop. No callback comes after this.

        Does nothing if the log was not started. Raises StorageError if it has failed.
        """

"""The interface of the log to the rest of the server.

Code outside this package does not depend on the implementation: a single node
(`single_log.SingleLog`) or a cluster node (`raft_log.RaftLog`).
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Final, Protocol, final

# Kinds of entries.
FRAME: Final = 0  # ops for the state machine; empty: the no-op at the start of a term
CONFIGURATION: Final = 1  # the cluster members from this entry on; not applied


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
    """An ordered, durable log of entries with one writer, the event loop of the leader.

    Callers set the callbacks before `start`. Callbacks run on the event loop, never inside
    `propose`.
    """

    @property
    def term(self) -> int:
        """The term in which this node proposes; it increases at every start."""

    @property
    def last_index(self) -> int:
        """Index of the newest entry, committed or not; `commit_index <= last_index`."""

    @property
    def commit_index(self) -> int:
        """Index of the newest entry passed to `on_committed` or returned by `start`."""

    @property
    def durable(self) -> bool:
        """Whether an entry is flushed to disk before it is committed."""

    @property
    def busy(self) -> bool:
        """Whether a write is in flight, until the next `on_committed` or `on_idle`.

        Callers must not propose while the log is busy."""

    @property
    def failed(self) -> Exception | None:
        """The I/O error that stopped the log; after it nothing is acknowledged."""

    @property
    def full(self) -> bool:
        """Whether there is no disk space for another segment.

        Entries that fit into the current segment are still accepted; after that `propose` raises
        DiskFull. `reserve` tries again."""

    @property
    def flushes(self) -> int:
        """Number of flushes since the start."""

    on_committed: Callable[[list[Entry]], None]
    """Called with committed entries, in order, each exactly once."""

    on_failed: Callable[[Exception], None]
    """Called once, when `failed` is set. The node must stop."""

    on_idle: Callable[[], None]
    """Called when `busy` ends before the entry is committed; proposing is possible again."""

    on_flushed: Callable[[int], None]
    """Called with the duration of each write and flush, in nanoseconds."""

    def start(self, applied_index: int, applied_term: int, loop: AbstractEventLoop) -> list[Entry]:
        """Open the log and become ready to propose.

        Returns the committed entries after `applied_index`; the caller replays them before it
        proposes. The no-op of the new term follows through `on_committed`.
        """

    def propose(self, data: bytes) -> tuple[int, int]:
        """Start to write an entry; return its (index, term).

        Raises DiskFull, with nothing written, if the entry does not fit into the available space.
        """

    def reserve(self) -> bool:
        """Try to allocate disk space for another segment; return whether there is enough."""

    def sync(self) -> None:
        """Block until every committed entry is on disk; needed only if not `durable`."""

    def trim(self, index: int) -> None:
        """Trim entries up to index, which the state store covers."""

    def cut(self) -> None:
        """Also drop entries retained for followers, except those about to be sent."""

    def close(self) -> None:
        """Flush, write the clean-shutdown marker, and stop; no callback is called after this.

        Does nothing if the log is not started. Raises StorageError if the log has failed.
        """

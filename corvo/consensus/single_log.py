"""The log of a single node: an entry is committed when it is durable on this node."""

from asyncio import AbstractEventLoop
from collections.abc import Callable

from corvo.consensus.log import FRAME, Entry
from corvo.consensus.wal.wal import Flusher
from corvo.consensus.wal_log import WalLog
from corvo.errors import StorageError
from corvo.limits import WAL_SEGMENT_SIZE
from corvo.platform import failpoints
from corvo.platform.files import Files
from corvo.platform.noop import noop
from corvo.storage.data_dir import Identity


class SingleLog(WalLog):
    """Implementation of `corvo.consensus.log.Log` with one voter.

    If not `durable`, an entry is written before it is committed, so a crash of the process loses
    nothing; it is flushed only by `sync`, at the end of a segment, and with a new term.
    """

    def __init__(
        self,
        path: str,
        identity: Identity,
        *,
        durable: bool,
        new_salt: Callable[[], int],
        segment_size: int = WAL_SEGMENT_SIZE,
        files: Files | None = None,
        flusher: Flusher | None = None,
    ) -> None:
        """`path` is the directory of the segments; `new_salt` returns 32 random bits."""
        self.busy = False
        self.term = 0
        self.last_index = 0
        self.commit_index = 0
        self.clean = True  # whether the last shutdown was clean
        self.on_committed: Callable[[list[Entry]], None] = noop
        self.on_failed: Callable[[Exception], None] = noop
        self.on_idle: Callable[[], None] = noop
        self._node_id = identity.node_id
        self._closed = False
        self._in_flight: Entry
        self._written: list[Entry] = []  # if not durable: to be committed in the next turn
        self._on_entry_written = self._entry_written
        self._open_wal(
            path,
            identity,
            durable=durable,
            new_salt=new_salt,
            segment_size=segment_size,
            files=files,
            flusher=flusher,
        )

    def start(self, applied_index: int, applied_term: int, loop: AbstractEventLoop) -> list[Entry]:
        self._loop = loop
        wal = self._wal
        recovered = wal.open(applied_index, applied_term)
        self.clean = recovered.clean
        if any(entry.kind != FRAME for entry in recovered.entries):
            # Checked before the first write: an entry proposed here would have no elected leader.
            raise StorageError("the log belongs to a cluster node, not to a single server")
        self.term = max(recovered.term, wal.last_term, applied_term) + 1
        if failpoints.armed:
            failpoints.reach("wal.before_hard_state")
        wal.set_hard_state(self.term, self._node_id, noop)
        if failpoints.armed:
            failpoints.reach("wal.after_hard_state")
        if wal.failed is not None:
            raise wal.failed
        self.last_index = self.commit_index = wal.last_index
        wal.attach(loop)
        self.propose(b"")
        return recovered.entries

    def propose(self, data: bytes) -> tuple[int, int]:
        if self._wal.failed is not None:
            raise self._wal.failed
        assert not self.busy, "one entry in flight"
        index = self.last_index + 1
        entry = self._in_flight = Entry(index, self.term, data)
        self.busy = True
        try:
            self._wal.append(index, self.term, data, self._sync, self._on_entry_written)
        except BaseException:
            self.busy = False
            raise
        self.last_index = index
        return index, entry.term

    def trim(self, index: int) -> None:
        self._wal.trim(index)

    def cut(self) -> None:
        pass  # there are no followers

    def close(self) -> None:
        if self._closed or self.term == 0:
            return
        self._closed = True
        if failpoints.armed:
            failpoints.reach("wal.before_clean_close")
        self._wal.close()
        if failpoints.armed:
            failpoints.reach("wal.after_clean_close")

    def _entry_written(self) -> None:
        self.busy = False
        if self.durable:
            self._commit([self._in_flight])
            return
        self._written.append(self._in_flight)
        if len(self._written) == 1:
            self._loop.call_soon(self._commit_written)

    def _commit_written(self) -> None:
        entries, self._written = self._written, []
        self._commit(entries)

    def _commit(self, entries: list[Entry]) -> None:
        if not self._closed and self._wal.failed is None:
            self.commit_index = entries[-1].index
            self.on_committed(entries)

    def _wal_failed(self, error: Exception) -> None:
        self._loop.call_soon(self.on_failed, error)

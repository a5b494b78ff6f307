"""Base class of the logs: opens the write-ahead log and exposes its state."""

from collections.abc import Callable

from corvo.consensus.wal.inline_thread import InlineSync
from corvo.consensus.wal.wal import Flusher, Wal, new_flusher
from corvo.platform import failpoints
from corvo.platform.failing_files import FailingFiles
from corvo.platform.files import SYNC_DATA, SYNC_NONE, Files
from corvo.storage.data_dir import Identity


class WalLog:
    """A log whose entries are in a `Wal`; subclasses define `_wal_failed`."""

    durable: bool

    def _open_wal(
        self,
        path: str,
        identity: Identity,
        *,
        durable: bool,
        new_salt: Callable[[], int],
        segment_size: int,
        files: Files | None,
        flusher: Flusher | None,
    ) -> None:
        """Open the WAL; `path` is the directory of the segments; `new_salt` returns 32 random
        bits."""
        if failpoints.armed:
            files = FailingFiles()
            flusher = InlineSync(files)
        files = files or Files()
        self.durable = durable
        self._sync = SYNC_DATA if durable else SYNC_NONE
        self._wal = Wal(
            path,
            identity,
            files,
            flusher or new_flusher(files),
            segment_size=segment_size,
            new_salt=new_salt,
            on_failed=self._wal_failed,
        )

    def _wal_failed(self, error: Exception) -> None:
        raise NotImplementedError

    @property
    def failed(self) -> Exception | None:
        """See `corvo.consensus.log.Log`."""
        return self._wal.failed

    @property
    def full(self) -> bool:
        return self._wal.full

    @property
    def flushes(self) -> int:
        return self._wal.flushes

    @property
    def on_flushed(self) -> Callable[[int], None]:
        return self._wal.on_flushed

    @on_flushed.setter
    def on_flushed(self, callback: Callable[[int], None]) -> None:
        self._wal.on_flushed = callback

    def reserve(self) -> bool:
        return self._wal.reserve()

    def sync(self) -> None:
        if not self.durable:
            self._wal.sync()

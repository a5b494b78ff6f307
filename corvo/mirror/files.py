"""The mirror files of a data directory: sync loop, rebuild, and selection of the serving file.

Files are named `mirror-<n>.sqlite`. The serving file has a complete scan. A newer file may be built
at the same time, on request or because the serving file missed outbox rows; a serving file that
missed rows is not updated any more, and its results are marked as stale. When the new file is
complete, it replaces the serving file, which is deleted. A file that is damaged, deleted while
open, or of another state store is discarded at once; queries then fail until a new file is
complete.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from corvo import limits
from corvo._fast.codec import keys
from corvo.errors import MirrorUnavailable
from corvo.mirror import search
from corvo.mirror.database import Failure
from corvo.mirror.file import MirrorFile, Missed, delete_file
from corvo.storage.reader import Reader
from corvo.storage.records.outbox import decode_state

logger = logging.getLogger(__name__)

DIRECTORY: Final = "mirror"
_PATTERN: Final = "mirror-*.sqlite"
_CHECKPOINT_S: Final = 1.0
_CHECKPOINT_SIZE: Final = 64 * limits.MIB
_RETRY_S: Final = 1.0
_IDLE_S: Final = 1.0
_REPORT_S: Final = 1.0
_QUERIES: Final = {
    "search": search.search,
    "facets": search.facets,
    "ids": search.ids,
    "fulltext": search.fulltext,
    "throughput": search.throughput,
    "history": search.history,
    "latency": search.latency,
}


class MirrorFiles:
    """The mirror files of one data directory."""

    def __init__(self, data_dir: Path, report: Callable[[dict[str, Any]], None]) -> None:
        """`report` is called with the status of the mirror, at least once per second."""
        self._directory = data_dir / DIRECTORY
        self._data_dir = data_dir
        self._report = report
        self._reader: Reader | None = None
        self._serving: MirrorFile | None = None
        self._building: MirrorFile | None = None
        self._missed = False  # the serving file is stale
        self._last = 0  # number of the newest file
        self._wake = asyncio.Event()
        self._flushed = -1
        self._rebuild_wanted = False
        self._rebuilt = asyncio.Condition()
        self._rebuilds = 0
        self._build_began = 0.0
        self._build_ms = 0
        self._error = ""
        self._checked = 0.0
        self._stopping = False

    # ---- calls from the server ----

    def on_flushed(self, index: int) -> None:
        """Wake the loop after a flush of the state store."""
        self._flushed = index
        self._wake.set()

    async def serve(self, method: str, arguments: Any) -> Any:
        """Run a query; the argument `index` is the flush that the mirror should have read."""
        if method == "rebuild":
            return await self._rebuild()
        mirror_file = self._serving
        if mirror_file is None:
            raise MirrorUnavailable(self._why_not())
        index = arguments["index"]
        if mirror_file.watermark < index and not self._missed:
            self.on_flushed(max(index, self._flushed))
            try:
                async with asyncio.timeout(arguments["wait_ms"] / 1000), mirror_file.caught_up:
                    await mirror_file.caught_up.wait_for(lambda: mirror_file.watermark >= index)
            except TimeoutError:
                pass
        stale = mirror_file.watermark < index or self._missed
        try:
            return [await _QUERIES[method](mirror_file, arguments, stale), stale]
        except Failure as error:
            logger.warning("mirror query failed: %s", error)
            raise MirrorUnavailable(f"mirror query failed: {error}") from None

    def _why_not(self) -> str:
        if self._building is not None:
            return f"the mirror is being built: {self._building.scanned} jobs scanned"
        return (
            f"the mirror cannot be built: {self._error}"
            if self._error
            else "the mirror is starting"
        )

    async def _rebuild(self) -> dict[str, Any]:
        began = time.monotonic()
        rebuilds = self._rebuilds
        self._rebuild_wanted = True
        self._wake.set()
        async with self._rebuilt:
            await self._rebuilt.wait_for(lambda: self._rebuilds > rebuilds)
        return {"duration_ms": round((time.monotonic() - began) * 1000)}

    # ---- the loop ----

    async def run(self) -> None:
        """Follow the outbox until `stop` is called."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._report_repeatedly()
        while not self._stopping:
            try:
                worked = await self._turn()
                self._error = ""
            except (Failure, OSError) as error:
                await self._on_failure(error)
                worked = False
                await asyncio.sleep(_RETRY_S)
            if not worked:
                await self._rest()

    def stop(self) -> None:
        """Make `run` return after its present step."""
        self._stopping = True
        self._wake.set()

    async def close(self) -> None:
        """Close the open files."""
        for mirror_file in (self._serving, self._building):
            if mirror_file is not None:
                await mirror_file.close()
        if self._reader is not None:
            self._reader.close()

    def _report_repeatedly(self) -> None:
        if not self._stopping:
            asyncio.get_running_loop().call_later(_REPORT_S, self._report_repeatedly)
        self._send_status()

    async def _rest(self) -> None:
        self._send_status()
        try:
            async with asyncio.timeout(_IDLE_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _turn(self) -> bool:
        if self._reader is None:
            self._reader = Reader(self._data_dir)
            await self._open_files()
        await self._check_files()
        worked = False
        if self._serving is not None and not self._missed:
            worked = await self._step(self._serving)
        if self._building is not None:
            await self._step(self._building)
            if self._building is not None and self._building.complete:
                await self._take_over()
            worked = True
        mirror_file = self._serving
        if not worked and mirror_file is not None and not self._missed:
            worked = await mirror_file.index_texts()
        await self._checkpoint()
        return worked

    async def _step(self, mirror_file: MirrorFile) -> bool:
        try:
            return await mirror_file.step()
        except Missed as error:
            logger.info("the mirror is rebuilt: %s", error)
            if mirror_file is self._building:
                self._building = None
                await mirror_file.discard()
            else:
                self._missed = True
            return True

    async def _take_over(self) -> None:
        old, self._serving, self._building = self._serving, self._building, None
        self._missed = False
        self._rebuilds += 1
        self._build_ms = round((time.monotonic() - self._build_began) * 1000)
        assert self._serving is not None
        if old is not None:
            try:
                await self._serving.adopt(old)
            except Failure as error:
                logger.warning("cannot copy the reports of %s: %s", old.path, error)
        await self._serving.checkpoint()
        if old is not None:
            await old.discard()
        logger.info(
            "the mirror is complete",
            extra={"fields": {"jobs": len(self._serving.facets.all), "took_ms": self._build_ms}},
        )
        async with self._rebuilt:
            self._rebuilt.notify_all()

    async def _checkpoint(self) -> None:
        now = time.monotonic()
        mirror_file = self._building or self._serving
        due = now - self._checked >= _CHECKPOINT_S
        if mirror_file is not None and (due or mirror_file.file_sizes()[1] > _CHECKPOINT_SIZE):
            self._checked = now
            for each in (self._serving, self._building):
                if each is not None:
                    await each.checkpoint()
            self._send_status()

    # ---- files ----

    def _state(self) -> tuple[bytes, int] | None:
        assert self._reader is not None
        with self._reader.snapshot() as snapshot:
            stored = snapshot.get(keys.OUTBOX_STATE)
        return None if stored is None else decode_state(stored)

    async def _open_files(self) -> None:
        """Open the existing files, the newest first."""
        state = self._state()
        assert self._reader is not None
        for path in sorted(self._directory.glob(_PATTERN), key=_number, reverse=True):
            mirror_file = None
            if state is not None and self._serving is None:
                try:
                    mirror_file = await MirrorFile.open(path, self._reader, *state)
                except (Failure, OSError) as error:
                    logger.warning("the mirror file %s is discarded: %s", path, error)
            if mirror_file is None:
                delete_file(path)
            elif mirror_file.epoch != state[0]:  # type: ignore[index]
                await mirror_file.discard()
            elif mirror_file.complete:
                self._serving = mirror_file
            elif self._building is None:
                self._building = mirror_file
                self._build_began = time.monotonic()
            else:
                await mirror_file.discard()

    async def _check_files(self) -> None:
        for mirror_file in (self._serving, self._building):
            if mirror_file is not None and not mirror_file.path.exists():
                logger.warning(
                    "the mirror file %s was deleted; the mirror is rebuilt", mirror_file.path
                )
                await self._discard(mirror_file)
        wanted = self._serving is None or self._missed or self._rebuild_wanted
        if self._building is None and wanted:
            await self._build()

    async def _build(self) -> None:
        state = self._state()
        if state is None:
            return
        self._rebuild_wanted = False
        assert self._reader is not None
        self._last = max([self._last, *map(_number, self._directory.glob(_PATTERN))]) + 1
        path = self._directory / f"mirror-{self._last}.sqlite"
        self._build_began = time.monotonic()
        self._building = await MirrorFile.open(path, self._reader, *state)

    async def _discard(self, mirror_file: MirrorFile) -> None:
        if mirror_file is self._serving:
            self._serving = None
            self._missed = False
        else:
            self._building = None
        await mirror_file.discard()

    async def _on_failure(self, error: Exception) -> None:
        """Retry after a temporary error, such as a full disk; discard a damaged file."""
        if str(error) != self._error:
            logger.warning("mirror sync failed: %s", error)
        self._error = str(error)
        if "malformed" in self._error or "not a database" in self._error:
            for mirror_file in (self._serving, self._building):
                if mirror_file is not None:
                    await self._discard(mirror_file)

    # ---- status reports to the server ----

    def _send_status(self) -> None:
        files = [
            mirror_file
            for mirror_file in (self._serving, self._building)
            if mirror_file is not None
        ]
        following = [
            mirror_file
            for mirror_file in files
            if not (self._missed and mirror_file is self._serving)
        ]
        sizes = [mirror_file.file_sizes() for mirror_file in files]
        serving = self._serving
        self._report(
            {
                "ready": serving is not None,
                "stale": self._missed,
                "watermark": serving.watermark if serving is not None else -1,
                "durable": min((mirror_file.durable for mirror_file in following), default=-1),
                "jobs": len(serving.facets.all) if serving is not None else 0,
                "building": self._building is not None,
                "scanned": self._building.scanned if self._building is not None else 0,
                "rebuilds": self._rebuilds,
                "rebuild_ms": self._build_ms,
                "file_size": sum(size for size, _ in sizes),
                "wal_size": sum(size for _, size in sizes),
                "error": self._error,
            }
        )


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("mirror-")
    return int(digits) if digits.isdigit() else 0

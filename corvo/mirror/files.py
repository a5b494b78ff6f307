"""Keeps the right file of the mirror up to date and answers from it.

Files are called `mirror-<n>.sqlite`. The one that serves has seen the whole base. Beside it there
may be a newer one that is being built, because somebody asked for it, or because the one that
serves has missed something: that one then stays as it is, its answers are marked as stale. When the
new one is complete it takes over, and the old one is deleted. A file that is damaged, deleted while
it is open, or of another base is given up at once: no answer until a new one is complete.
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
_TELL_S: Final = 1.0
_QUESTIONS: Final = {
    "search": search.search,
    "facets": search.facets,
    "ids": search.ids,
    "fulltext": search.fulltext,
    "throughput": search.throughput,
    "history": search.history,
    "latency": search.latency,
}


class MirrorFiles:
    """The files of one data directory."""

    def __init__(self, data_dir: Path, report: Callable[[dict[str, Any]], None]) -> None:
        """`report` is called with the state of the mirror, at least once a second."""
        self._directory = data_dir / DIRECTORY
        self._data_dir = data_dir
        self._report = report
        self._reader: Reader | None = None
        self._serving: MirrorFile | None = None
        self._building: MirrorFile | None = None
        self._missed = False  # the one that serves is stale
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

    # ---- from the server ----

    def on_flushed(self, index: int) -> None:
        """There is something new in the base."""
        self._flushed = index
        self._wake.set()

    async def serve(self, method: str, arguments: Any) -> Any:
        """Answer a question; `index` among the arguments is the flush it has to know."""
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
            return [await _QUESTIONS[method](mirror_file, arguments, stale), stale]
        except Failure as error:
            logger.warning("the mirror cannot answer: %s", error)
            raise MirrorUnavailable(f"the mirror cannot answer: {error}") from None

    def _why_not(self) -> str:
        if self._building is not None:
            return f"the mirror is being built: {self._building.scanned} jobs so far"
        return f"the mirror cannot be built: {self._error}" if self._error else "it is starting"

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
        """Follow the outbox until told to stop."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._tell_again()
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
        """Have `run` return when it has done what it is at."""
        self._stopping = True
        self._wake.set()

    async def close(self) -> None:
        """Close what is open."""
        for mirror_file in (self._serving, self._building):
            if mirror_file is not None:
                await mirror_file.close()
        if self._reader is not None:
            self._reader.close()

    def _tell_again(self) -> None:
        if not self._stopping:
            asyncio.get_running_loop().call_later(_TELL_S, self._tell_again)
        self._tell()

    async def _rest(self) -> None:
        self._tell()
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
        await self._look_after_files()
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
            logger.info("the mirror is built again: %s", error)
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
                logger.warning("the reports of %s are lost: %s", old.path, error)
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
            self._tell()

    # ---- files ----

    def _state(self) -> tuple[bytes, int] | None:
        assert self._reader is not None
        with self._reader.snapshot() as snapshot:
            stored = snapshot.get(keys.OUTBOX_STATE)
        return None if stored is None else decode_state(stored)

    async def _open_files(self) -> None:
        """Go on with the files that there are, the newest first."""
        state = self._state()
        assert self._reader is not None
        for path in sorted(self._directory.glob(_PATTERN), key=_number, reverse=True):
            mirror_file = None
            if state is not None and self._serving is None:
                try:
                    mirror_file = await MirrorFile.open(path, self._reader, *state)
                except (Failure, OSError) as error:
                    logger.warning("the mirror in %s is given up: %s", path, error)
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

    async def _look_after_files(self) -> None:
        for mirror_file in (self._serving, self._building):
            if mirror_file is not None and not mirror_file.path.exists():
                logger.warning("the mirror in %s was deleted: it is built again", mirror_file.path)
                await self._give_up(mirror_file)
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

    async def _give_up(self, mirror_file: MirrorFile) -> None:
        if mirror_file is self._serving:
            self._serving = None
            self._missed = False
        else:
            self._building = None
        await mirror_file.discard()

    async def _on_failure(self, error: Exception) -> None:
        """What may pass, such as a full disk, is tried again; a damaged file is given up."""
        if str(error) != self._error:
            logger.warning("the mirror cannot go on: %s", error)
        self._error = str(error)
        if "malformed" in self._error or "not a database" in self._error:
            for mirror_file in (self._serving, self._building):
                if mirror_file is not None:
                    await self._give_up(mirror_file)

    # ---- what the server is told ----

    def _tell(self) -> None:
        views = [
            mirror_file
            for mirror_file in (self._serving, self._building)
            if mirror_file is not None
        ]
        following = [
            mirror_file
            for mirror_file in views
            if not (self._missed and mirror_file is self._serving)
        ]
        sizes = [mirror_file.file_sizes() for mirror_file in views]
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

"""The one-voter log and the data directory it lives in."""

import asyncio
import errno
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from corvo.consensus.log import Entry, Log
from corvo.consensus.single_log import SingleLog
from corvo.consensus.wal.inline_thread import InlineSync
from corvo.errors import DiskFull, StorageError
from corvo.platform.files import Files
from corvo.storage.data_dir import DataDir, Identity

IDENTITY = Identity("0123456789abcdef" * 2, "node-1", "fedcba9876543210")


class FaultyFiles(Files):
    """Fails the operations that a test names."""

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.syncs = 0

    def allocate(self, fd: int, size: int) -> None:
        self._check("allocate")
        super().allocate(fd, size)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._check("pwrite")
        return super().pwrite(fd, data, offset)

    def sync(self, fd: int, how: int) -> None:
        self.syncs += bool(how)
        self._check("sync")
        super().sync(fd, how)

    def _check(self, name: str) -> None:
        if name in self.faults:
            raise OSError(self.faults[name], "injected")


class Driver:
    """A log, what it has told, and the waiting for it."""

    def __init__(self, path: Path, *, durable: bool = True, **options: Any) -> None:
        salts = itertools.count(1)
        self.log = SingleLog(
            str(path), IDENTITY, durable=durable, new_salt=lambda: next(salts), **options
        )
        self.committed: list[Entry] = []
        self.errors: list[Exception] = []
        self._told = asyncio.Event()
        self.log.on_committed = self._on_committed
        self.log.on_failed = self._on_failed

    def _on_committed(self, entries: list[Entry]) -> None:
        self.committed += entries
        self._told.set()

    def _on_failed(self, error: Exception) -> None:
        self.errors.append(error)
        self._told.set()

    async def start(self, applied_index: int = 0, applied_term: int = 0) -> list[Entry]:
        replayed = self.log.start(applied_index, applied_term, asyncio.get_running_loop())
        await self.told()
        return replayed

    async def told(self) -> None:
        await self._told.wait()
        self._told.clear()

    async def propose(self, data: bytes) -> tuple[int, int]:
        proposed = self.log.propose(data)
        await self.told()
        return proposed


def plain(entries: list[Entry]) -> list[tuple[int, int, bytes]]:
    return [(entry.index, entry.term, entry.data) for entry in entries]


@pytest.mark.parametrize("durable", [True, False])
def test_propose_commit_restart(tmp_path: Path, durable: bool) -> None:
    async def main() -> None:
        driver = Driver(tmp_path / "wal", durable=durable)
        log: Log = driver.log
        assert await driver.start() == []
        assert (log.term, log.last_index, log.commit_index) == (1, 1, 1)
        assert await driver.propose(b"a") == (2, 1)
        assert await driver.propose(b"b") == (3, 1)
        assert plain(driver.committed) == [(1, 1, b""), (2, 1, b"a"), (3, 1, b"b")]
        assert (log.last_index, log.commit_index, log.busy) == (3, 3, False)
        log.close()

        driver = Driver(tmp_path / "wal", durable=durable)
        assert plain(await driver.start(applied_index=2)) == [(3, 1, b"b")]
        assert plain(driver.committed) == [(4, 2, b"")]
        assert driver.log.clean
        driver.log.close()

    asyncio.run(main())


def test_terms_rise_with_every_start_however_it_ended(tmp_path: Path) -> None:
    async def life(number: int) -> None:
        driver = Driver(tmp_path / "wal", segment_size=4096)
        replayed = await driver.start()
        assert driver.log.term == number
        assert [entry.term for entry in replayed] == list(range(1, number))
        assert driver.log.clean == (number % 2 == 1)
        if number % 2 == 0:
            driver.log.close()

    for number in range(1, 60):
        asyncio.run(life(number))


def test_the_term_is_above_that_of_the_base(tmp_path: Path) -> None:
    async def main() -> None:
        driver = Driver(tmp_path / "wal")
        await driver.start()
        driver.log.close()
        driver = Driver(tmp_path / "wal")
        assert await driver.start(applied_index=10, applied_term=7) == []
        assert plain(driver.committed) == [(11, 8, b"")]
        driver.log.close()

    asyncio.run(main())


def test_a_commit_never_comes_from_inside_propose(tmp_path: Path) -> None:
    async def main(durable: bool, path: Path) -> None:
        driver = Driver(path, durable=durable)
        await driver.start()
        driver.log.propose(b"x")
        assert len(driver.committed) == 1
        assert driver.log.busy == durable
        if not durable:
            driver.log.propose(b"y")
        await driver.told()
        assert [entry.data for entry in driver.committed[1:]] == (
            [b"x"] if durable else [b"x", b"y"]
        )
        driver.log.close()

    asyncio.run(main(True, tmp_path / "durable"))
    asyncio.run(main(False, tmp_path / "not"))


def test_proposing_while_busy_is_a_bug(tmp_path: Path) -> None:
    async def main() -> None:
        driver = Driver(tmp_path / "wal")
        await driver.start()
        driver.log.propose(b"x")
        with pytest.raises(AssertionError):
            driver.log.propose(b"y")
        await driver.told()
        driver.log.close()

    asyncio.run(main())


def test_not_durable_flushes_only_when_told(tmp_path: Path) -> None:
    async def main() -> None:
        files = FaultyFiles()
        driver = Driver(tmp_path / "wal", durable=False, files=files, flusher=InlineSync(files))
        await driver.start()
        before = files.syncs
        assert before > 0, "the term is flushed in every mode"
        for _ in range(10):
            await driver.propose(b"x")
        assert files.syncs == before
        driver.log.sync()
        assert files.syncs == before + 1
        driver.log.close()

    asyncio.run(main())


def test_not_durable_over_many_segments(tmp_path: Path) -> None:
    async def main() -> None:
        driver = Driver(tmp_path / "wal", durable=False, segment_size=4096)
        await driver.start()
        for number in range(100):
            driver.log.sync()
            while driver.log.busy:
                await driver.told()
            driver.log.propose(bytes([number]) * 300)
        while driver.log.commit_index < driver.log.last_index:
            await driver.told()
        assert [entry.index for entry in driver.committed] == list(range(1, 102))
        driver.log.trim(60)
        driver.log.close()
        replayed = await Driver(tmp_path / "wal", segment_size=4096).start(60)
        assert [entry.index for entry in replayed] == list(range(61, 102))

    asyncio.run(main())


@pytest.mark.parametrize("durable", [True, False])
def test_a_failed_write_stops_everything(tmp_path: Path, durable: bool) -> None:
    async def main() -> None:
        files = FaultyFiles()
        driver = Driver(tmp_path / "wal", durable=durable, files=files, flusher=InlineSync(files))
        await driver.start()
        files.faults["sync" if durable else "pwrite"] = errno.EIO
        driver.log.propose(b"never acknowledged")
        assert driver.errors == []
        await driver.told()
        files.faults.clear()
        assert driver.errors == [driver.log.failed]
        assert len(driver.committed) == 1
        with pytest.raises(StorageError):
            driver.log.propose(b"more")
        with pytest.raises(StorageError):
            driver.log.close()

    asyncio.run(main())


def test_a_failed_sync_before_a_base_flush(tmp_path: Path) -> None:
    async def main() -> None:
        files = FaultyFiles()
        driver = Driver(tmp_path / "wal", durable=False, files=files, flusher=InlineSync(files))
        await driver.start()
        await driver.propose(b"x")
        files.faults["sync"] = errno.EIO
        with pytest.raises(StorageError):
            driver.log.sync()
        files.faults.clear()
        with pytest.raises(StorageError):
            driver.log.sync()
        await driver.told()
        assert len(driver.errors) == 1

    asyncio.run(main())


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    async def main() -> None:
        files = FaultyFiles()
        driver = Driver(tmp_path / "wal", files=files, flusher=InlineSync(files), segment_size=4096)
        await driver.start()
        files.faults["allocate"] = errno.ENOSPC
        await driver.propose(b"a" * 3000)
        assert driver.log.full
        with pytest.raises(DiskFull):
            driver.log.propose(b"b" * 3000)
        assert not driver.log.busy
        await driver.propose(b"small")
        files.faults.clear()
        assert driver.log.reserve()
        assert await driver.propose(b"b" * 3000) == (4, 1)
        assert driver.log.failed is None
        driver.log.close()

    asyncio.run(main())


def test_close_waits_for_the_write_in_flight(tmp_path: Path) -> None:
    async def main() -> None:
        driver = Driver(tmp_path / "wal", segment_size=4096)
        await driver.start()
        await driver.propose(b"a" * 3000)
        driver.log.propose(b"b" * 3000)
        driver.log.close()
        await asyncio.sleep(0)
        assert driver.log.commit_index == 2
        driver = Driver(tmp_path / "wal", segment_size=4096)
        assert [entry.index for entry in await driver.start()] == [1, 2, 3]
        assert driver.log.clean
        driver.log.close()

    asyncio.run(main())


def test_close_without_start_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "00000001-00000000000000000001.wal").write_bytes(b"no segment")
    driver = Driver(tmp_path)
    driver.log.close()
    with pytest.raises(StorageError, match="not a log segment"):
        driver.log.start(0, 0, asyncio.new_event_loop())
    driver.log.close()


def test_the_name_of_the_data_directory_is_flushed(tmp_path: Path) -> None:
    class Watched(Files):
        def __init__(self) -> None:
            self.directories: list[str] = []

        def open_directory(self, path: str) -> int:
            self.directories.append(path)
            return super().open_directory(path)

    for _ in range(2):  # also by the start after the one that made it: that one may be killed
        files = Watched()
        DataDir(f"{tmp_path}/data/", IDENTITY, files).close()
        assert str(tmp_path) in files.directories


def test_a_data_directory_has_one_server_and_one_identity(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    first = DataDir(path, IDENTITY, Files())
    with pytest.raises(StorageError, match="another server is running"):
        DataDir(path, IDENTITY, Files())
    first.close()
    other = Identity("f" * 32, "node-1", "0" * 16)
    second = DataDir(path, other, Files())
    assert second.identity == IDENTITY
    second.close()
    assert json.loads((tmp_path / "data/identity.json").read_text())["format"] == 1
    with pytest.raises(StorageError, match="belongs to node 'node-1', not to 'node-2'"):
        DataDir(path, other._replace(node_id="node-2"), Files())


def test_a_new_node_needs_bootstrap(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    with pytest.raises(StorageError, match="there is no data, and bootstrap = false"):
        DataDir(path, IDENTITY, Files(), bootstrap=False)
    DataDir(path, IDENTITY, Files()).close()
    DataDir(path, IDENTITY, Files(), bootstrap=False).close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "recursion"),
        ('{"format": 2}', "format is 2"),
        ('{"format": 1, "cluster_id": "00"}', "node_id is missing"),
        (
            '{"format": 1, "cluster_id": "00", "node_id": "a", "incarnation": "b"}',
            "cluster_id must have 32",
        ),
    ],
)
def test_a_damaged_identity_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "identity.json").write_text(text)
    with pytest.raises(StorageError, match=message):
        DataDir(str(tmp_path), IDENTITY, Files())
    # The lock is let go.
    (tmp_path / "identity.json").unlink()
    DataDir(str(tmp_path), IDENTITY, Files()).close()


def test_data_without_identity_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    with pytest.raises(StorageError, match=r"no identity\.json"):
        DataDir(str(tmp_path), IDENTITY, Files())

"""Snapshots between two data directories: made, sent, cut, damaged, installed, and power cuts."""

import asyncio
import contextlib
import json
import logging
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from crash.disk import PAGE, Disk, Image, Name, RecordingFiles, Write, nothing, some, whole
from lib.peer_nodes import Node, play, until

from corvo._fast.codec.keys import META
from corvo._fast.codec.layouts import encode_fields
from corvo.consensus.cluster import snapshots as snapshots_module
from corvo.consensus.cluster.peer_protocol import CHUNK, DONE, OFFER, RESUME
from corvo.consensus.cluster.snapshots import OUTGOING, Snapshots
from corvo.consensus.raft.messages import (
    SNAPSHOT,
    ConfState,
    Message,
    SnapshotMeta,
    encode_message,
)
from corvo.errors import StorageError
from corvo.limits import SNAPSHOT_CHUNK_SIZE
from corvo.platform.clock import Clock
from corvo.storage import backup, generations
from corvo.storage.lmdb import StateStore
from corvo.storage.records.meta import FORMAT, Meta, encode_meta


class FakeLog:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.offers: list[tuple[int, int]] = []
        self.withdrawn = 0
        self.sent: list[tuple[str, bool]] = []
        self.messages: list[Message] = []

    def offer(self, index: int, term: int) -> None:
        self.offers.append((index, term))

    def withdraw_offer(self) -> None:
        self.withdrawn += 1

    def snapshot_sent(self, node_id: str, ok: bool) -> None:
        self.sent.append((node_id, ok))

    def take_message(self, message: Message) -> None:
        self.messages.append(message)


def fill(base: StateStore, index: int, count: int = 2000, value: bytes = b"v" * 500) -> None:
    """A flush of some entries."""
    meta = Meta()
    meta.applied_index, meta.applied_term = index, 3
    rows = [(b"j|%08d" % number, b"%d" % index + value) for number in range(count)]
    base.write([*rows, (META, encode_meta(meta))], [])


def rows(base: StateStore) -> list[tuple[bytes, bytes]]:
    return [*base.scan(b"j|"), (META, base.get(META) or b"")]


class Place:
    """A node with a data directory and snapshots."""

    def __init__(self, node_id: str, path: Path, **options: Any) -> None:
        self.node_id = node_id
        self.path = path
        self.base = StateStore.open(path, map_size=1 << 30, ballast_size=0)
        self.log = FakeLog()
        self.options = options
        self.node = Node(node_id, on_channel=lambda channel: self.snapshots.accept(channel))
        self.restart()

    def restart(self) -> None:
        self.snapshots = Snapshots(
            str(self.path),
            self.node_id,
            self.log,
            self.node.transport.open_channel,
            Clock(),
            **self.options,
        )

    async def prepare(self) -> tuple[int, int]:
        count = len(self.log.offers)
        self.snapshots.prepare()
        await until(lambda: len(self.log.offers) > count)
        return self.log.offers[-1]

    def message(self, to_id: str, index: int, term: int = 3) -> Message:
        meta = SnapshotMeta(index, term, ConfState(["a", "b"]))
        return Message(SNAPSHOT, to_id, from_id=self.node_id, term=4, snapshot=meta)

    async def send(self, to_id: str) -> bool:
        index, _ = await self.prepare()
        self.snapshots.send(self.message(to_id, index))
        count = len(self.log.sent)
        await until(lambda: len(self.log.sent) > count)
        assert self.log.sent[-1][0] == to_id
        return self.log.sent[-1][1]

    def install(self) -> None:
        meta = self.log.messages[-1].snapshot
        assert meta is not None
        self.snapshots.install(meta)
        self.base.close()
        self.base = StateStore.open(self.path, map_size=1 << 30, ballast_size=0)
        self.snapshots.clean()


@contextlib.asynccontextmanager
async def places(*made: Place, relays: dict[str, "Relay"] | None = None) -> AsyncIterator[None]:
    for place in made:
        await place.node.transport.start()
    addresses = {place.node_id: place.node.address for place in made}
    for node_id, relay in (relays or {}).items():
        addresses[node_id] = await relay.start(addresses[node_id])
    for place in made:
        place.node.transport.set_peers(addresses, 1)
    try:
        yield
    finally:
        for place in made:
            await place.snapshots.close()
            await place.node.transport.close()
            place.base.close()
        for relay in (relays or {}).values():
            relay.close()


class Relay:
    """Passes bytes on, or does to each piece what a test wants; None cuts the connection."""

    def __init__(self, change: Callable[[bytes], bytes | None]) -> None:
        self.change = change
        self.passed = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, address: str) -> str:
        self._to = address.rpartition(":")
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other = await asyncio.open_connection(self._to[0], int(self._to[2]))
        except OSError:
            writer.close()
            return
        back = asyncio.create_task(self._back(other_reader, writer))
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                changed = self.change(data)
                if changed is None:
                    break
                self.passed += len(changed)
                other.write(changed)
                await other.drain()
        back.cancel()
        writer.transport.abort()
        other.transport.abort()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.transport.abort()


# The whole way.


def test_from_one_base_to_another(tmp_path: Path) -> None:
    async def story() -> None:
        a, b = Place("a", tmp_path / "a"), Place("b", tmp_path / "b")
        fill(a.base, 7)
        fill(b.base, 2, count=10)
        async with places(a, b):
            assert await a.send("b")
            message = b.log.messages[0]
            assert message.snapshot is not None and message.snapshot.index == 7
            assert message.snapshot.conf.voters == ["a", "b"]
            assert len(rows(b.base)) == 11, "nothing has changed yet"
            b.install()
            assert rows(b.base) == rows(a.base)
            assert generations.current(b.path) == "state.1"
            names = sorted(path.name for path in b.path.iterdir())
            assert names == ["CURRENT", "state.1"]
            # The copy is gone when it has served; the next one is of a newer state.
            assert a.log.withdrawn == 1 and not (a.path / OUTGOING).exists()
            fill(a.base, 9, count=30)
            assert await a.send("b")
            b.install()
            assert rows(b.base) == rows(a.base)
            assert generations.current(b.path) == "state.2"
            assert a.snapshots.sent == b.snapshots.received == b.snapshots.installed == 2
            assert not a.snapshots.sending and b.snapshots.receiving is None

    play(story)


def test_label_and_content_are_of_one_flush(tmp_path: Path) -> None:
    """The state store is written to while it is copied."""

    async def story() -> None:
        a = Place("a", tmp_path / "a")
        fill(a.base, 1, count=20_000)
        async with places(a):
            for round in range(3):
                a.snapshots.prepare()
                index = 10 * round + 1
                while len(a.log.offers) == round:
                    index += 1
                    fill(a.base, index, count=100)
                    await asyncio.sleep(0)
                found, _ = a.log.offers[-1]
                copy = tmp_path / f"copy{round}" / "state"
                copy.mkdir(parents=True)
                (a.path / OUTGOING).rename(copy / "data.mdb")
                base = StateStore.open(copy.parent, ballast_size=0)
                assert base.get(b"j|%08d" % 5) == b"%d" % found + b"v" * 500
                assert len(rows(base)) == 20_001
                base.close()

    play(story)


def test_connections_cut_anywhere(tmp_path: Path) -> None:
    async def story() -> None:
        draw = random.Random(5)
        a, b = Place("a", tmp_path / "a"), Place("b", tmp_path / "b")
        fill(a.base, 7, count=20_000)
        size = 0
        left = 600_000

        def cut(data: bytes) -> bytes | None:
            nonlocal left
            left -= len(data)
            if left > 0:
                return data
            left = draw.randrange(300_000, 4_000_000)
            return None

        relay = Relay(cut)
        async with places(a, b, relays={"b": relay}):
            assert await a.send("b")
            b.install()
            assert rows(b.base) == rows(a.base)
            size = (b.path / "state.1" / "data.mdb").stat().st_size
            assert size > 10_000_000
            assert relay.passed < size + 4_000_000, "it went on where it was"

    play(story)


def test_a_receiver_that_restarts_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        a, b = Place("a", tmp_path / "a"), Place("b", tmp_path / "b")
        fill(a.base, 7, count=10_000)
        async with places(a, b):
            index, _ = await a.prepare()
            a.snapshots.send(a.message("b", index))
            await until(lambda: b.snapshots.receiving and b.snapshots.receiving.offset > 500_000)
            await b.snapshots.close()
            b.restart()
            b.snapshots.clean()
            (half,) = (b.path / "state.1").iterdir()
            assert half.stat().st_size > 500_000
            await until(lambda: a.log.sent)
            assert a.log.sent == [("b", True)]
            b.install()
            assert rows(b.base) == rows(a.base)

    play(story)


def test_flipped_bytes_do_not_get_through(tmp_path: Path) -> None:
    async def story() -> None:
        a, b = Place("a", tmp_path / "a"), Place("b", tmp_path / "b")
        fill(a.base, 7, count=10_000)
        flips = 0
        seen = 0

        def flip(data: bytes) -> bytes:
            nonlocal flips, seen
            seen += len(data)
            if flips < 3 and seen > 1_000_000 * (flips + 1):
                flips += 1
                return data[:-1] + bytes([data[-1] ^ 1])
            return data

        async with places(a, b, relays={"b": Relay(flip)}):
            assert await a.send("b")
            assert flips == 3 and b.node.transport.refusals["frame"] == 3
            b.install()
            assert rows(b.base) == rows(a.base)

    play(story)


@pytest.mark.parametrize("place", ["sender", "receiver"])
def test_a_damaged_copy_is_refused_and_deleted(tmp_path: Path, place: str) -> None:
    async def story() -> None:
        a, b = Place("a", tmp_path / "a"), Place("b", tmp_path / "b")
        fill(a.base, 7, count=10_000)
        fill(b.base, 2, count=10)
        async with places(a, b):
            index, _ = await a.prepare()
            if place == "sender":
                flip_byte(a.path / OUTGOING)
            a.snapshots.send(a.message("b", index))
            if place == "receiver":
                await until(lambda: b.snapshots.receiving and b.snapshots.receiving.offset > 10**6)
                (half,) = (b.path / "state.1").iterdir()
                flip_byte(half)
            await until(lambda: a.log.sent)
            assert a.log.sent == [("b", False)] and a.snapshots.failed == 1
            assert not b.log.messages and not list((b.path / "state.1").iterdir())
            assert len(rows(b.base)) == 11
            with pytest.raises(StorageError, match="has not been received"):
                b.snapshots.install(SnapshotMeta(index, 3, ConfState(["a"])))
            # The next one comes through.
            assert await a.send("b")
            b.install()
            assert rows(b.base) == rows(a.base)

    play(story)


def flip_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(700_000)
        byte = file.read(1)
        file.seek(700_000)
        file.write(bytes([byte[0] ^ 1]))


def test_the_rate_is_limited(tmp_path: Path) -> None:
    async def story() -> None:
        a = Place("a", tmp_path / "a", rate_max=8_000_000)
        b = Place("b", tmp_path / "b")
        fill(a.base, 7, count=5_000)
        async with places(a, b):
            await a.prepare()
            size = (a.path / OUTGOING).stat().st_size
            began = asyncio.get_running_loop().time()
            a.snapshots.send(a.message("b", 7))
            await until(lambda: a.log.sent)
            took = asyncio.get_running_loop().time() - began
            assert took > (size - SNAPSHOT_CHUNK_SIZE) / 8_000_000

    play(story)


# Offers that are not taken, and copies that are not wanted.


def test_only_the_copy_that_the_message_names_is_sent(tmp_path: Path) -> None:
    async def story() -> None:
        a, b = Place("a", tmp_path / "a"), Place("b", tmp_path / "b")
        fill(a.base, 7)
        async with places(a, b):
            a.snapshots.send(a.message("b", 7))
            await until(lambda: a.log.sent == [("b", False)])
            await a.prepare()
            a.snapshots.send(a.message("b", 6))
            await until(lambda: a.log.sent == [("b", False)] * 2)
            assert not b.log.messages

    play(story)


def test_a_peer_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "_RETRY_S", 0.01)

    async def story() -> None:
        a = Place("a", tmp_path / "a")
        fill(a.base, 7)
        async with places(a):
            assert not await a.send("b")

    play(story)


def test_a_copy_that_nobody_asks_for_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "SNAPSHOT_UNWANTED_NS", 10_000_000)

    async def story() -> None:
        a = Place("a", tmp_path / "a")
        fill(a.base, 7)
        async with places(a):
            await a.prepare()
            await until(lambda: a.log.withdrawn)
            assert not (a.path / OUTGOING).exists()

    play(story)


def test_a_copy_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        a = Place("a", tmp_path / "a")  # never flushed
        async with places(a):
            a.snapshots.prepare()
            await until(lambda: "cannot create a snapshot" in caplog.text)
            assert "is not a copy of a state store that was flushed" in caplog.text
            caplog.clear()
            a.snapshots.prepare()
            assert not a.snapshots._tasks, "not again at once"
            fill(a.base, 7)
            a.snapshots._prepare_at_ns = 0
            assert await a.prepare() == (7, 3)

    with caplog.at_level(logging.INFO):
        play(story)


def offer(place: Place, to: str = "b", **changes: Any) -> bytes:
    message = place.message(to, 7)
    for name, value in changes.pop("message", {}).items():
        setattr(message, name, value)
    fields = {
        "format": FORMAT,
        "size": 3 * SNAPSHOT_CHUNK_SIZE,
        "digest": b"d" * 32,
        "message": encode_message(message),
    } | changes
    return encode_fields("uubb", tuple(fields.values()))


def test_offers_that_are_not_taken(tmp_path: Path) -> None:
    async def story() -> None:
        a, b = Place("a", tmp_path / "a"), Place("b", tmp_path / "b")
        async with places(a, b):
            for kind, payload, reason in (
                (OFFER, b"nonsense", "invalid offer"),
                (CHUNK, b"", "is not an offer"),
                (OFFER, offer(a, format=FORMAT + 1), "format"),
                (OFFER, offer(a, digest=b"short"), "no snapshot message"),
                (OFFER, offer(a, message={"from_id": "c"}), "from 'c'"),
                (OFFER, offer(a, to="c"), "to 'c'"),
                (OFFER, offer(a, size=1 << 60), "disk space"),
            ):
                channel = await a.node.transport.open_channel("b")
                await channel.send(kind, payload)
                answer, text = await channel.receive()
                assert answer == DONE and reason in text.decode(), text
                channel.close()
            for chunk in (
                (RESUME, bytes(8)),
                (CHUNK, (1).to_bytes(8, "big") + b"x"),
                (CHUNK, bytes(8)),
                (CHUNK, bytes(8 + 3 * SNAPSHOT_CHUNK_SIZE + 1)),
            ):
                channel = await a.node.transport.open_channel("b")
                await channel.send(OFFER, offer(a))
                assert await channel.receive() == (RESUME, bytes(8))
                await channel.send(*chunk)
                answer, text = await channel.receive()
                assert answer == DONE and text
                channel.close()
            assert not b.log.messages

    play(story)


def test_one_snapshot_arrives_at_a_time(tmp_path: Path) -> None:
    async def story() -> None:
        a, b, c = (Place(name, tmp_path / name) for name in "abc")
        async with places(a, b, c):
            first = await a.node.transport.open_channel("b")
            await first.send(OFFER, offer(a, message={"term": 5}))
            assert (await first.receive())[0] == RESUME
            # A leader of an earlier term.
            older = await c.node.transport.open_channel("b")
            await older.send(OFFER, offer(c, message={"term": 4}))
            answer, text = await older.receive()
            assert answer == DONE and b"newer leader" in text
            await first.send(CHUNK, bytes(8) + b"x" * SNAPSHOT_CHUNK_SIZE)
            # A later one takes its place; the same copy goes on where it was.
            newer = await c.node.transport.open_channel("b")
            await newer.send(OFFER, offer(c, message={"term": 6}))
            answer, text = await newer.receive()
            assert answer == RESUME
            with pytest.raises(ConnectionResetError):
                await first.receive()

    play(story)


# Copies.


def test_the_program_says_what_is_wrong(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "garbage").write_bytes(b"x" * 100_000)
    nice = backup._NICE
    backup._NICE = 0  # type: ignore[misc]
    try:
        assert backup.main(["check", str(tmp_path / "garbage")]) == 1
        assert backup.main(["check", str(tmp_path / "missing")]) == 1
        assert backup.main(["copy", str(tmp_path / "missing"), str(tmp_path / "x")]) == 1
        assert capsys.readouterr().err.count("\n") == 3
        base = StateStore.open(tmp_path / "data", ballast_size=0)
        fill(base, 7)
        base.close()
        words = ["copy", str(tmp_path / "data" / "state"), str(tmp_path / "copy")]
        assert backup.main(words) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["index"], found["term"]) == (7, 3)
        assert found["size"] == (tmp_path / "copy").stat().st_size
        # What is short would have to be read as a whole when it is opened.
        with (tmp_path / "copy").open("r+b") as file:
            file.truncate(found["size"] - 1)
        assert backup.main(["check", str(tmp_path / "copy")]) == 1
        assert "is truncated" in capsys.readouterr().err
    finally:
        backup._NICE = nice  # type: ignore[misc]


GROW = """
import sys
from pathlib import Path
from corvo.storage.lmdb import StateStore

base = StateStore.open(Path(sys.argv[1]), map_size=1 << 30, ballast_size=0)
base.write([(b"k|%08d" % n, bytes(500)) for n in range(40_000)], [])
"""


def test_a_base_may_grow_while_a_copy_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = StateStore.open(tmp_path / "a", map_size=1 << 30, ballast_size=0)
    fill(base, 7, count=20_000)
    base.close()
    really = lmdb.open

    def open(*args: Any, **options: Any) -> Any:
        env = really(*args, **options)
        monkeypatch.undo()
        subprocess.run([sys.executable, "-c", GROW, str(tmp_path / "a")], check=True)
        return env

    monkeypatch.setattr(backup.lmdb, "open", open)
    assert backup.copy(tmp_path / "a" / generations.FIRST, tmp_path / "copy")["index"] == 7


def test_which_directory_counts(tmp_path: Path) -> None:
    assert generations.current(tmp_path) == "state"
    assert generations.following("state") == "state.1"
    assert generations.following("state.9") == "state.10"
    (tmp_path / "CURRENT").write_text("state.3\n")
    assert generations.current(tmp_path) == "state.3"
    with pytest.raises(StorageError, match="missing"):
        StateStore.open(tmp_path)
    for text in ("", "state.3", "state.x\n", "../elsewhere\n", "state.01\n"):
        (tmp_path / "CURRENT").write_text(text)
        with pytest.raises(StorageError, match="is not the name of a generation"):
            StateStore.open(tmp_path)


# Power cuts while a snapshot is installed.


OLD, NEW = b"old" * 3000, b"new" * 3000


def record_install(root: Path) -> Disk:
    """The steps of an install on a disk that remembers."""
    disk = Disk(root)
    files = RecordingFiles(disk)
    files.make_directory(f"{root}/state")
    put(files, f"{root}/state/data.mdb", OLD)
    log: Any = FakeLog()
    snapshots = Snapshots(str(root), "b", log, None, Clock(), files)  # type: ignore[arg-type]
    files.make_directory(f"{root}/state.1")
    path = f"{root}/state.1/received-x"
    put(files, path, NEW)
    snapshots._received = [(7, 3, path)]
    snapshots.install(SnapshotMeta(7, 3, ConfState(["a"])))
    files.close_all()
    return disk


def put(files: RecordingFiles, path: str, data: bytes) -> None:
    fd = files.open(path, create=True)
    files.pwrite(fd, data, 0)
    files.sync(fd, 1)
    for directory in (path.rpartition("/")[0], path.rpartition("/")[0].rpartition("/")[0]):
        if path.endswith("data.mdb"):
            directory_fd = files.open_directory(directory)
            files.sync(directory_fd, 2)
            files.close(directory_fd)
    files.close(fd)


def test_a_power_cut_at_any_step_leaves_the_old_base_or_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    steps = record_install(tmp_path / "disk").steps
    first = next(at for at, step in enumerate(steps) if isinstance(step, Name) and at > 5)
    draw = random.Random(1)
    seen = set()
    for at in range(first, len(steps) + 1):
        for number in range(30):
            image = Image(steps[:at])
            keep = draw.choice([whole, nothing, some(draw, PAGE)])
            image.keep(keep, draw.randrange(len(image.changes) + 1))
            root = tmp_path / f"{at}-{number}"
            root.mkdir()
            image.build(root)
            seen.add(found := found_base(root))
            if at == len(steps):
                assert found == NEW, "it was said to be durable"
    assert seen == {OLD, NEW}


def found_base(root: Path) -> bytes:
    """What a start opens, and what it leaves when it has removed the rest."""
    name = generations.current(root)
    found = (root / name / "data.mdb").read_bytes()
    log: Any = FakeLog()
    Snapshots(str(root), "b", log, None, Clock()).clean()  # type: ignore[arg-type]
    assert (root / name / "data.mdb").read_bytes() == found
    assert [path.name for path in root.glob("state*/data.mdb")] == ["data.mdb"]
    assert found in (OLD, NEW)
    return found


def test_the_images_would_show_a_missing_flush(tmp_path: Path) -> None:
    """The directory of the new state store is not flushed before CURRENT names it."""
    (tmp_path / "disk").mkdir()
    steps = record_install(tmp_path / "disk").steps
    current = next(
        at for at, s in enumerate(steps) if isinstance(s, Write) and s.data == b"state.1\n"
    )
    careless = [s for at, s in enumerate(steps) if at > current or type(s).__name__ != "SyncNames"]
    image = Image(careless)
    image.keep(whole, 0)
    image.build(tmp_path)
    with pytest.raises(FileNotFoundError):
        found_base(tmp_path)

"""The log on disk: what a crash, a full disk or damage leaves, and what a start makes of it."""

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corvo._fast.codec.wal_record import Writer, record_size
from corvo.consensus.log import CONFIGURATION, FRAME, Entry
from corvo.consensus.wal.inline_thread import InlineSync
from corvo.consensus.wal.segment import HEAD_SIZE, encode_head, parse_head, parse_segment_name
from corvo.consensus.wal.wal import Flusher, Recovered, Wal, new_flusher
from corvo.errors import DiskFull, StorageError
from corvo.platform.files import SYNC_DATA, SYNC_FULL, SYNC_NONE, Files
from corvo.storage.data_dir import Identity

IDENTITY = Identity("0123456789abcdef" * 2, "node-1", "fedcba9876543210")
SEGMENT = 4096


class FaultyFiles(Files):
    """Counts operations and fails those that a test names."""

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.short_write = False
        self.calls: list[str] = []

    def _call(self, name: str, *details: Any) -> None:
        self.calls.append(" ".join([name, *map(str, details)]))
        if name in self.faults:
            raise OSError(self.faults[name], "injected")

    def open(self, path: str, *, create: bool = False) -> int:
        if "open" in self.faults:
            raise OSError(self.faults["open"], "injected")
        return super().open(path, create=create)

    def allocate(self, fd: int, size: int) -> None:
        self._call("allocate")
        super().allocate(fd, size)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._call("pwrite")
        return super().pwrite(fd, data[:-1] if self.short_write else data, offset)

    def sync(self, fd: int, how: int) -> None:
        self._call("sync", {SYNC_DATA: "data", SYNC_FULL: "full"}.get(how, "none"))
        super().sync(fd, how)

    def rename(self, old: str, new: str) -> None:
        self._call("rename", Path(old).name, Path(new).name)
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._call("unlink", Path(path).name)
        super().unlink(path)


class Node:
    """A Wal on a loop, with the waiting done."""

    def __init__(
        self,
        path: Path,
        files: Files | None = None,
        flusher: Flusher | None = None,
        segment_size: int = SEGMENT,
    ) -> None:
        self.files = files or Files()
        self.errors: list[Exception] = []
        salts = itertools.count(len(list(path.glob("*"))) + 1000)
        self.wal = Wal(
            str(path),
            IDENTITY,
            self.files,
            flusher or InlineSync(self.files),
            segment_size=segment_size,
            new_salt=lambda: next(salts),
            on_failed=self.errors.append,
        )
        self.loop = asyncio.new_event_loop()

    def start(self, applied_index: int = 0, term: int = 1) -> Recovered:
        recovered = self.wal.open(applied_index, 0)
        self.wal.set_hard_state(term, "node-1", lambda: None)
        self.wal.attach(self.loop)
        return recovered

    def run(self, action: Callable[[Callable[[], None]], None]) -> None:
        """Run the loop until the action has called what it was given, or the log has failed."""

        async def main() -> None:
            done = asyncio.Event()
            action(done.set)
            while not done.is_set() and self.wal.failed is None:
                await asyncio.sleep(0)

        self.loop.run_until_complete(main())

    def append(self, data: bytes, sync: int = SYNC_DATA) -> int:
        index = self.wal.last_index + 1
        self.run(lambda done: self.wal.append(index, self.wal.term, data, sync, done))
        return index

    def settle(self) -> None:
        """Let the zeroing of the spare come to its end."""

        async def main() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        self.loop.run_until_complete(main())

    def close(self) -> None:
        self.wal.close()
        self.loop.close()

    def crash(self) -> None:
        """The process is gone; what was written stays."""
        self.loop.close()


def reopen(path: Path, applied_index: int = 0) -> list[tuple[int, bytes]]:
    """What a start would replay."""
    node = Node(path)
    entries = node.wal.open(applied_index, 0).entries
    node.loop.close()
    return [(entry.index, entry.data) for entry in entries]


def segments(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if parse_segment_name(p.name))


def filled(path: Path, count: int, size: int = 100) -> None:
    """Several segments of entries 1..count, then a crash."""
    node = Node(path)
    node.start()
    for number in range(1, count + 1):
        node.append(bytes([number]) * size)
    node.crash()


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


@pytest.fixture
def wal_path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "wal"
    path.mkdir()
    yield path


def test_golden_head() -> None:
    head, data = encode_head(
        IDENTITY,
        size=4096,
        number=2,
        first_index=9,
        previous_term=3,
        previous_crc=0x11223344,
        salt=0x55667788,
    )
    assert data.hex() == (
        "434f52564f57414c"
        "01000000"
        "00100000" + IDENTITY.cluster_id + IDENTITY.incarnation + "0200000000000000"
        "0900000000000000"
        "0300000000000000"
        "44332211"
        "88776655"
        "00000000"
        "81687ed8"
    )
    assert len(data) == HEAD_SIZE
    assert parse_head(data, "x", IDENTITY) == head


@given(st.integers(0, HEAD_SIZE - 1), st.integers(1, 255))
@settings(deadline=None)
def test_a_flipped_byte_in_the_head_is_noticed(at: int, bits: int) -> None:
    _, data = encode_head(
        IDENTITY, size=1, number=2, first_index=3, previous_term=4, previous_crc=5, salt=6
    )
    damaged = bytearray(data)
    damaged[at] ^= bits
    with pytest.raises(StorageError):
        parse_head(bytes(damaged), "x", IDENTITY)


def test_entries_term_and_vote_survive(wal_path: Path) -> None:
    node = Node(wal_path)
    assert node.start(term=5) == Recovered([], 0, True, 0, 0)
    node.append(b"one")
    node.append(b"")
    node.close()
    node = Node(wal_path)
    recovered = node.wal.open(0, 0)
    assert [(e.index, e.term, e.data) for e in recovered.entries] == [(1, 5, b"one"), (2, 5, b"")]
    assert (recovered.term, node.wal.vote, recovered.clean) == (5, "node-1", True)
    assert (node.wal.last_index, node.wal.last_term) == (2, 5)
    assert reopen(wal_path, 1) == [(2, b"")]


def test_a_crash_is_not_a_clean_close(wal_path: Path) -> None:
    filled(wal_path, 2)
    assert not Node(wal_path).wal.open(0, 0).clean


def test_many_segments_and_restarts(wal_path: Path) -> None:
    expected: list[tuple[int, bytes]] = []
    for start in range(30):
        node = Node(wal_path)
        recovered = node.start(term=start + 1)
        assert [(e.index, e.data) for e in recovered.entries] == expected
        assert recovered.term == start
        for number in range(start % 7):
            data = bytes([start, number]) * 150
            expected.append((node.append(data), data))
        if start % 3:
            node.close()
        else:
            node.crash()
    assert len(segments(wal_path)) > 5


def test_a_segment_counts_only_after_its_name_is_flushed(wal_path: Path) -> None:
    files = FaultyFiles()
    node = Node(wal_path, files)
    node.start()
    node.append(b"a" * 2000)
    node.settle()
    files.calls.clear()
    node.append(b"b" * 2000)
    assert files.calls[:6] == [
        "pwrite", "sync data",
        "pwrite", "sync data", "rename spare 00000002-00000000000000000002.wal",
        "sync full",
    ]  # fmt: skip


def test_every_prefix_of_the_last_write_recovers_to_the_last_whole_record(
    wal_path: Path,
) -> None:
    filled(wal_path, 3, 20)
    (path,) = segments(wal_path)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    size = record_size(20)
    for cut in range(end - size, end):
        path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
        assert [index for index, _ in reopen(wal_path)] == [1, 2]
    path.write_bytes(whole)
    assert [index for index, _ in reopen(wal_path)] == [1, 2, 3]


def test_a_torn_write_is_cut_off_and_its_rest_never_comes_back(wal_path: Path) -> None:
    filled(wal_path, 3, 20)
    (path,) = segments(wal_path)
    flip(path, len(path.read_bytes().rstrip(b"\0")) - 30)
    node = Node(wal_path)
    node.start(term=2)
    assert node.wal.last_index == 2
    node.append(b"new")
    node.crash()
    assert reopen(wal_path)[2:] == [(3, b"new")]


def test_what_a_torn_write_left_does_not_follow_the_next_one(wal_path: Path) -> None:
    """A whole record of the torn write stands right where the one that is written next will end."""
    node = Node(wal_path)
    node.start()
    node.append(b"first")
    offset = node.wal._active.writer.offset
    writer = node.wal._active.writer
    salt = writer.salt
    node.crash()
    (path,) = segments(wal_path)
    with path.open("r+b") as file:
        file.seek(offset + record_size(6) + record_size(3))  # behind the term and an entry
        file.write(Writer(salt, 12345, 0).add(1, 3, 1, b"stale", 0))
    node = Node(wal_path)
    node.start(term=2)
    node.append(b"new")
    node.crash()
    assert reopen(wal_path)[1:] == [(2, b"new")]


def test_damage_before_a_later_write_is_refused(wal_path: Path) -> None:
    filled(wal_path, 3, 20)
    (path,) = segments(wal_path)
    whole = path.read_bytes()
    last = len(whole.rstrip(b"\0")) - record_size(20)
    for at in range(last - record_size(20), last):
        path.write_bytes(whole)
        flip(path, at)
        with pytest.raises(StorageError, match="damaged at offset") as caught:
            reopen(wal_path)
        assert caught.value.fields["path"] == str(path)
        assert caught.value.fields["offset"] == last - record_size(20)


def test_damage_before_a_clean_close_is_refused(wal_path: Path) -> None:
    node = Node(wal_path)
    node.start()
    node.append(b"x" * 20)
    node.close()
    (path,) = segments(wal_path)
    flip(path, path.read_bytes().index(b"x" * 20))
    with pytest.raises(StorageError, match="damaged"):
        reopen(wal_path)


def test_a_closed_log_of_a_cluster_that_lost_its_end_is_refused(wal_path: Path) -> None:
    """Every record of it that goes is missed, the clean close alone, too; what a single server has
    is in its state store."""
    node = Node(wal_path)
    node.wal.open(0, 0, keep_older=True)
    ends = []
    for number in range(1, 4):
        ends.append(node.wal._active.writer.offset)
        node.wal.append(number, 1, b"x" * 50, SYNC_DATA, lambda: None)
    ends.append(node.wal._active.writer.offset)
    node.close()
    (path,) = segments(wal_path)
    whole = path.read_bytes()
    for end in ends:
        path.write_bytes(whole[:end].ljust(len(whole), b"\0"))
        for _ in range(2):  # the mark stays
            with pytest.raises(StorageError, match="the log is damaged: it was closed at"):
                Node(wal_path).wal.open(0, 0, keep_older=True)
        assert len(reopen(wal_path)) == ends.index(end)
    path.write_bytes(whole)
    again = Node(wal_path)
    assert len(again.wal.open(0, 0, keep_older=True).entries) == 3
    again.wal.append(4, 1, b"", SYNC_DATA, lambda: None)
    again.crash()
    assert len(Node(wal_path).wal.open(0, 0, keep_older=True).entries) == 4


def test_a_mark_of_a_close_that_is_no_mark_means_nothing(wal_path: Path) -> None:
    node = Node(wal_path)
    node.wal.open(0, 0, keep_older=True)
    node.close()
    for text in (b"", b"x", b"1 2 3 4\n", b"\xff \n"):
        (wal_path / "closed").write_bytes(text)
        again = Node(wal_path)
        assert again.wal.open(0, 0, keep_older=True).clean
        assert not (wal_path / "closed").exists()
        again.crash()


def test_a_hole_in_writes_that_were_never_flushed_is_a_torn_write(wal_path: Path) -> None:
    node = Node(wal_path)
    node.start()
    for number in range(5):
        node.append(bytes([65 + number]) * 20, SYNC_NONE)
    node.crash()
    (path,) = segments(wal_path)
    flip(path, path.read_bytes().index(b"CCCC"))
    assert [index for index, _ in reopen(wal_path)] == [1, 2]


def test_a_hole_below_a_sync_is_damage(wal_path: Path) -> None:
    node = Node(wal_path)
    node.start()
    for number in range(5):
        node.append(bytes([65 + number]) * 20, SYNC_NONE)
    node.wal.sync()
    node.append(b"after", SYNC_NONE)
    node.crash()
    (path,) = segments(wal_path)
    flip(path, path.read_bytes().index(b"CCCC"))
    with pytest.raises(StorageError, match="damaged"):
        reopen(wal_path)


def test_damage_in_an_older_segment_is_refused(wal_path: Path) -> None:
    filled(wal_path, 60)
    older = segments(wal_path)[0]
    # Its last record: no valid one follows in this file.
    flip(older, len(older.read_bytes().rstrip(b"\0")) - 20)
    with pytest.raises(StorageError, match="newer segments exist"):
        reopen(wal_path)


def test_a_missing_segment_is_refused(wal_path: Path) -> None:
    filled(wal_path, 120)
    segments(wal_path)[1].unlink()
    with pytest.raises(StorageError, match="does not continue"):
        reopen(wal_path)
    segments(wal_path)[0].unlink()
    with pytest.raises(StorageError, match="entries from 1 on are missing"):
        reopen(wal_path)


def test_a_shortened_file_is_refused(wal_path: Path) -> None:
    filled(wal_path, 1)
    (path,) = segments(wal_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="should have 4096 bytes"):
        reopen(wal_path)


def test_a_segment_of_another_node_is_refused(wal_path: Path) -> None:
    filled(wal_path, 1)
    node = Node(wal_path)
    node.wal._identity = IDENTITY._replace(incarnation="0" * 16)
    with pytest.raises(StorageError, match="incarnation"):
        node.wal.open(0, 0)


def test_truncated_entries_stay_away(wal_path: Path) -> None:
    node = Node(wal_path)
    node.start()
    for number in range(1, 11):
        node.append(bytes([number]) * 100)
    node.run(lambda done: node.wal.truncate(5, 1, done))
    node.append(b"six")
    node.crash()
    assert [(i, d[:3]) for i, d in reopen(wal_path)][4:] == [(5, b"\5\5\5"), (6, b"six")]


def test_a_truncation_into_an_older_segment(wal_path: Path) -> None:
    node = Node(wal_path)
    node.start()
    for number in range(1, 41):
        node.append(bytes([number]) * 100)
    assert len(segments(wal_path)) == 2
    node.run(lambda done: node.wal.truncate(3, 1, done))
    for _ in range(40):
        node.append(b"new" * 30)
    node.crash()
    assert len(segments(wal_path)) == 3
    replayed = reopen(wal_path)
    assert [index for index, _ in replayed] == list(range(1, 44))
    assert all(data == b"new" * 30 for _, data in replayed[3:])


def test_a_base_ahead_of_the_log_wins(wal_path: Path) -> None:
    filled(wal_path, 3)
    node = Node(wal_path)
    recovered = node.start(applied_index=10)
    assert recovered.entries == []
    assert node.append(b"eleven") == 11
    node.crash()
    assert reopen(wal_path, 10) == [(11, b"eleven")]
    with pytest.raises(StorageError):
        reopen(wal_path, 0)


def test_a_base_without_a_log_is_refused(wal_path: Path) -> None:
    with pytest.raises(StorageError, match="but no log"):
        Node(wal_path).start(applied_index=10)
    assert list(wal_path.iterdir()) == []


def test_trim_keeps_what_is_needed(wal_path: Path) -> None:
    node = Node(wal_path)
    node.start()
    for number in range(1, 101):
        node.append(bytes([number]) * 100)
    firsts = [parse_segment_name(p.name) for p in segments(wal_path)]
    assert len(firsts) > 3
    node.settle()
    for _ in range(5):
        node.wal.trim(90)
    assert len(segments(wal_path)) == 2
    node.close()
    assert [index for index, _ in reopen(wal_path, 90)] == list(range(91, 101))


def test_a_trimmed_segment_is_used_again_and_its_records_are_not(wal_path: Path) -> None:
    files = FaultyFiles()
    node = Node(wal_path, files)
    node.start()
    for number in range(1, 200):
        node.append(bytes([number]) * 100)
        node.settle()
        node.wal.trim(node.wal.last_index)
    recycled = [call for call in files.calls if call.endswith(".wal spare")]
    assert len(recycled) > 3
    at = files.calls.index(recycled[0])
    assert files.calls[at + 1 : at + 4] == ["sync full", "pwrite", "sync data"]
    assert len(segments(wal_path)) <= 2
    node.crash()
    assert [index for index, _ in reopen(wal_path, 198)] == [199]


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("reserve", [False, True])
def test_trimming_in_the_middle_of_a_roll(wal_path: Path, turns: int, reserve: bool) -> None:
    """The spare that becomes a segment keeps its name until it gets the one of the segment: a
    trimmed one, or a new spare, must not take that name meanwhile."""
    node = Node(wal_path)
    node.start()
    for number in range(1, 200):

        async def main(number: int = number) -> None:
            node.wal.append(number, 1, bytes([number]) * 100, SYNC_DATA, lambda: None)
            for turn in range(20):
                if node.wal.rolling and turn == turns:
                    node.wal.trim(number - 40)
                    if reserve:
                        node.wal.reserve()
                await asyncio.sleep(0)

        node.loop.run_until_complete(main())
        assert node.wal.failed is None, node.wal.failed
    node.crash()
    assert [index for index, _ in reopen(wal_path, 190)] == list(range(191, 200))


def test_records_of_an_earlier_life_of_the_file_never_parse(wal_path: Path) -> None:
    """Even if the zeros had not reached the disk."""
    filled(wal_path, 10)
    (path,) = segments(wal_path)
    old = path.read_bytes()
    head, start = encode_head(
        IDENTITY, size=SEGMENT, number=1, first_index=1, previous_term=0, previous_crc=0, salt=77
    )
    start += Writer(77, head.crc, HEAD_SIZE).add(2, 0, 1, b"node-1", 0)
    path.write_bytes(start + old[len(start) :])
    assert reopen(wal_path) == []


def test_a_write_in_flight_when_something_else_fails_is_not_done(wal_path: Path) -> None:
    files = FaultyFiles()
    node = Node(wal_path, files)
    node.start()
    for number in range(1, 101):
        node.append(bytes([number]) * 100)
    node.settle()
    odd: list[object] = []
    node.loop.set_exception_handler(lambda _loop, context: odd.append(context))
    done: list[bool] = []
    node.wal.append(101, 1, b"lost", SYNC_DATA, lambda: done.append(True))
    files.faults = {"rename": errno.EIO, "unlink": errno.EIO}
    node.wal.trim(100)
    node.settle()
    assert not done and not odd
    assert len(node.errors) == 1


def test_a_start_flushes_the_names_of_the_life_before(wal_path: Path) -> None:
    """A process that is killed behind a rename leaves a name that only the page cache has."""
    filled(wal_path, 3)
    files = FaultyFiles()
    Node(wal_path, files).start()
    flushed = files.calls[: files.calls.index("pwrite")]
    assert flushed.count("sync full") == 2  # of the directory, and of the one it is in


@pytest.mark.parametrize(
    ("path", "flags", "expected"),
    [("/dev/full", os.O_RDWR, errno.ENOSPC), (__file__, os.O_RDONLY, errno.EBADF)],
)
def test_the_thread_reports_what_went_wrong(path: str, flags: int, expected: int) -> None:
    async def main() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[tuple[int, int]] = loop.create_future()
        flusher = new_flusher(Files())
        flusher.attach(loop, lambda *outcome: told.set_result(outcome), lambda _: None)
        flusher.submit(fd, 0, b"x" * 100, SYNC_DATA)
        outcome = await told
        assert flusher.close() == 0
        return outcome

    fd = os.open(path, flags)
    try:
        assert asyncio.run(main())[0] == expected
    finally:
        os.close(fd)


@pytest.mark.parametrize("fault", ["pwrite", "sync", "short write"])
def test_an_io_error_is_final(wal_path: Path, fault: str) -> None:
    files = FaultyFiles()
    node = Node(wal_path, files)
    node.start()
    node.append(b"kept")
    done: list[bool] = []
    if fault == "short write":
        files.short_write = True
    else:
        files.faults[fault] = errno.EIO
    node.run(lambda _: node.wal.append(2, 1, b"lost", SYNC_DATA, lambda: done.append(True)))
    files.faults.clear()
    files.short_write = False
    assert not done
    assert len(node.errors) == 1
    assert node.wal.failed is node.errors[0]
    files.calls.clear()
    for action in (
        lambda: node.wal.append(2, 1, b"x", SYNC_DATA, lambda: None),
        node.wal.sync,
        node.wal.close,
    ):
        with pytest.raises(StorageError):
            action()
    assert files.calls == []


def test_no_space_for_a_segment_is_told_before_writing(wal_path: Path) -> None:
    files = FaultyFiles()
    node = Node(wal_path, files)
    node.start()
    files.faults["allocate"] = errno.ENOSPC
    node.append(b"a" * 2500)
    assert node.wal.full
    assert not node.wal.reserve()
    node.append(b"what fits is taken")
    before = segments(wal_path)[0].read_bytes()
    with pytest.raises(DiskFull):
        node.append(b"b" * 2500)
    assert segments(wal_path)[0].read_bytes() == before
    assert node.wal.failed is None
    files.faults.clear()
    assert node.wal.reserve()
    assert not node.wal.full
    node.settle()
    assert node.append(b"b" * 2500) == 3
    node.close()
    assert [len(data) for _, data in reopen(wal_path)] == [2500, 18, 2500]


def test_no_file_descriptor_is_like_no_space(wal_path: Path) -> None:
    files = FaultyFiles()
    node = Node(wal_path, files)
    node.start()
    node.append(b"a" * 2500)
    node.append(b"b" * 2500)
    files.faults["open"] = errno.EMFILE
    node.wal.trim(1)
    with pytest.raises(DiskFull):
        for _ in range(3):
            node.append(b"c" * 2500)
            node.settle()
    assert node.wal.full and node.wal.failed is None
    files.faults.clear()
    assert node.wal.reserve()
    last = node.append(b"d" * 2500)
    node.crash()
    assert reopen(wal_path, 1)[-1] == (last, b"d" * 2500)


def test_no_space_while_filling_the_spare_with_zeros(wal_path: Path) -> None:
    files = FaultyFiles()
    node = Node(wal_path, files)
    node.start()
    node.append(b"a" * 1000)
    node.wal.reserve()
    files.faults["pwrite"] = errno.ENOSPC
    node.settle()
    assert node.wal.full
    assert not (wal_path / "spare").exists()
    files.faults.clear()
    assert node.wal.reserve()
    node.append(b"b")
    assert node.wal.failed is None


def test_leftovers_of_a_roll_are_removed(wal_path: Path) -> None:
    filled(wal_path, 2)
    (wal_path / "spare").write_bytes(b"x")
    (wal_path / "next").write_bytes(b"x")
    assert len(reopen(wal_path)) == 2
    assert {p.name for p in wal_path.iterdir()} == {p.name for p in segments(wal_path)}


def test_a_sealed_segment_without_successor(wal_path: Path) -> None:
    """A crash between sealing a segment and naming the next."""
    filled(wal_path, 40)
    _, newer = segments(wal_path)
    first = parse_segment_name(newer.name)
    assert first is not None
    newer.unlink()
    node = Node(wal_path)
    node.start()
    assert node.append(b"next") == first[1]
    node.close()
    assert reopen(wal_path)[-1] == (first[1], b"next")


@given(st.lists(st.integers(0, 900), max_size=30), st.integers(0, 2**32))
@settings(deadline=None, max_examples=25)
def test_a_cut_anywhere_in_the_unflushed_part_recovers_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    path = tmp_path_factory.mktemp("cut")
    node = Node(path, segment_size=1 << 15)
    node.start()
    for size in sizes:
        node.append(b"z" * size, SYNC_NONE)
    node.crash()
    (segment,) = segments(path)
    whole = segment.read_bytes()
    start = HEAD_SIZE + 2 * record_size(6)
    end = len(whole.rstrip(b"\0"))
    cut = start + seed % (end - start + 1) if end > start else end
    segment.write_bytes(whole[:cut] + bytes(len(whole) - cut))
    replayed = reopen(path)
    assert [len(data) for _, data in replayed] == sizes[: len(replayed)]


def test_the_flusher_that_this_build_has(wal_path: Path) -> None:
    """The C thread where it is compiled: same results, and the spare becomes ready."""
    files = Files()
    node = Node(wal_path, files, new_flusher(files))
    node.start()
    durations: list[int] = []
    node.wal.on_flushed = durations.append
    for number in range(1, 121):
        node.append(bytes([number]) * 100)
        if number > 50:
            node.wal.trim(number - 20)
    assert len(durations) == node.wal.flushes >= 120
    assert all(duration > 0 for duration in durations)
    node.close()
    assert [index for index, _ in reopen(wal_path, 110)] == list(range(111, 121))


def test_the_flusher_reports_errors(wal_path: Path) -> None:
    files = Files()
    flusher = new_flusher(files)
    loop = asyncio.new_event_loop()
    errors: list[int] = []
    flusher.attach(loop, lambda error, _: errors.append(error), errors.append)

    async def reported(count: int) -> None:
        while len(errors) < count:
            await asyncio.sleep(0)

    directory_fd = files.open_directory(str(wal_path))
    flusher.submit(1 << 20, 0, b"x", SYNC_DATA)
    loop.run_until_complete(reported(1))
    flusher.zero(1 << 20, 100, directory_fd)
    loop.run_until_complete(reported(2))
    flusher.submit(directory_fd, 0, b"", SYNC_FULL)
    loop.run_until_complete(reported(3))
    assert errors == [errno.EBADF, errno.EBADF, 0]
    flusher.submit(1 << 20, 0, b"x", SYNC_DATA)
    assert flusher.close() == errno.EBADF
    files.close(directory_fd)
    loop.close()


# What only a cluster writes.


def some(first: int, count: int, term: int, size: int = 10, kind: int = FRAME) -> list[Entry]:
    return [
        Entry(n, term, bytes([n % 256, term]) * size, kind) for n in range(first, first + count)
    ]


def write(node: Node, entries: list[Entry], previous_term: int = 0, term: int = 0) -> None:
    state = (term, "voted-for") if term else None
    node.run(lambda done: node.wal.write(entries, previous_term, state, SYNC_DATA, done))


def whole(path: Path, applied: int = 0, term: int = 0) -> tuple[tuple[int, int], list[list[int]]]:
    """The state store of the log, and index, term and kind of all entries."""
    node = Node(path)
    found = node.wal.open(applied, term, keep_older=True)
    node.loop.close()
    rows = [[entry.index, entry.term, entry.kind] for entry in found.entries]
    return (found.base_index, found.base_term), rows


def test_entries_and_term_share_a_flush(wal_path: Path) -> None:
    files = FaultyFiles()
    node = Node(wal_path, files)
    node.start()
    node.settle()
    files.calls.clear()
    write(node, [*some(1, 3, 2), *some(4, 1, 2, kind=CONFIGURATION)], term=2)
    assert files.calls == ["pwrite", "sync data"]
    node.crash()
    assert whole(wal_path) == ((0, 0), [[1, 2, 0], [2, 2, 0], [3, 2, 0], [4, 2, 1]])
    node = Node(wal_path)
    node.wal.open(0, 0)
    assert (node.wal.term, node.wal.vote) == (2, "voted-for")


def test_what_waits_shares_a_flush(wal_path: Path) -> None:
    files = FaultyFiles()
    node = Node(wal_path, files)
    node.start()
    node.settle()
    files.calls.clear()
    told: list[int] = []

    def action(done: Callable[[], None]) -> None:
        for number in range(1, 5):
            last = done if number == 4 else lambda: None
            node.wal.write(some(number, 1, 1), 0, None, SYNC_DATA, last)
            node.wal.write([], 0, None, SYNC_DATA, lambda number=number: told.append(number))

    node.run(action)
    node.settle()
    assert files.calls == ["pwrite", "sync data"] * 2
    assert told == [1, 2, 3, 4]


def test_entries_take_the_place_of_others(wal_path: Path) -> None:
    node = Node(wal_path)
    node.start()
    write(node, some(1, 5, 1))
    write(node, some(3, 2, 2), previous_term=1, term=2)
    write(node, some(4, 1, 3), previous_term=2)
    assert (node.wal.last_index, node.wal.last_term) == (4, 3)
    node.crash()
    expected = [[1, 1, 0], [2, 1, 0], [3, 2, 0], [4, 3, 0]]
    assert whole(wal_path) == ((0, 0), expected)


def test_a_write_is_whole_in_one_segment(wal_path: Path) -> None:
    node = Node(wal_path)
    node.start()
    for first in range(1, 100, 3):
        write(node, some(first, 3, 1, size=100))
        node.settle()
    assert len(segments(wal_path)) > 5
    node.crash()
    assert whole(wal_path) == ((0, 0), [[n, 1, 0] for n in range(1, 100)])


def test_a_write_without_room_leaves_nothing(wal_path: Path) -> None:
    files = FaultyFiles()
    node = Node(wal_path, files)
    node.start()
    node.settle()
    write(node, some(1, 3, 1, size=250))
    files.faults["allocate"] = errno.ENOSPC
    node.wal.reserve()
    with contextlib.suppress(DiskFull):
        for first in range(4, 100, 3):
            write(node, some(first, 3, 1, size=250))
            kept = first + 2
    assert node.wal.last_index == kept
    del files.faults["allocate"]
    assert node.wal.reserve()
    write(node, some(kept + 1, 1, 1))
    node.crash()
    assert len(whole(wal_path)[1]) == kept + 1


def test_a_log_that_begins_above_a_snapshot(wal_path: Path) -> None:
    node = Node(wal_path)
    node.start()
    write(node, some(1, 5, 1))
    node.run(lambda done: node.wal.begin_above(100, 7, done))
    assert (node.wal.last_index, node.wal.last_term) == (100, 7)
    write(node, some(101, 2, 7))
    node.crash()
    assert whole(wal_path, 100, 7) == ((100, 7), [[101, 7, 0], [102, 7, 0]])
    assert whole(wal_path, 102, 7) == ((100, 7), [[101, 7, 0], [102, 7, 0]])


@pytest.mark.parametrize(("applied", "term"), [(100, 7), (3, 7)])
def test_a_base_of_which_the_log_does_not_know(wal_path: Path, applied: int, term: int) -> None:
    """The crash came behind the install of a snapshot: ahead of the log, or against it."""
    node = Node(wal_path)
    node.start()
    write(node, some(1, 5, 1))
    node.crash()
    node = Node(wal_path)
    found = node.wal.open(applied, term, keep_older=True)
    assert (found.base_index, found.base_term, found.entries) == (applied, term, [])
    node.wal.attach(node.loop)
    write(node, some(applied + 1, 1, 8))
    node.crash()
    assert whole(wal_path, applied, term) == ((applied, term), [[applied + 1, 8, 0]])


def test_older_entries_are_kept_for_others(wal_path: Path) -> None:
    filled(wal_path, 30, 300)
    base, rows = whole(wal_path, 20, 1)
    assert base == (0, 0) and len(rows) == 30
    node = Node(wal_path)
    node.start(20)
    for _ in range(10):
        node.wal.trim(20)
        node.settle()
    node.crash()
    base, rows = whole(wal_path, 20, 1)
    assert 0 < base[0] < 20 and [row[0] for row in rows] == list(range(base[0] + 1, 31))


@pytest.mark.parametrize("ask", ["trim", "reserve"])
def test_a_segment_that_has_no_name_yet_keeps_its_file(wal_path: Path, ask: str) -> None:
    """The file of a new segment is the spare of before, until it has been flushed and got its name.
    In that time the log is trimmed, and the next spare is wanted."""
    node = Node(wal_path)
    node.start()
    rolls = 0
    for number in range(1, 400):
        index = node.wal.last_index + 1

        def write(done: Callable[[], None], index: int = index, number: int = number) -> None:
            node.wal.append(index, 1, b"%100d" % number, SYNC_DATA, done)
            if node.wal.rolling:
                nonlocal rolls
                rolls += 1
                if ask == "trim":
                    node.wal.trim(index - 30)
                else:
                    node.wal.reserve()

        node.run(write)
        if number % 20 == 0:
            node.settle()
            if ask == "trim":
                node.wal.trim(index - 60)
    assert node.wal.failed is None and rolls > 5
    node.crash()
    first = 370 if ask == "trim" else 1
    found = reopen(wal_path, first - 1)
    assert [index for index, _ in found] == list(range(first, 400))
    assert found[-1][1] == b"%100d" % 399

"""The contract of a state store, for LMDB and for memory; and LMDB with crashes, a full disk and
foreign files."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corvo.errors import DiskFull, StorageError
from corvo.limits import KIB, MIB
from corvo.storage import lmdb as base_module
from corvo.storage.lmdb import StateStore
from corvo.storage.memory import MemoryStore
from corvo.storage.rows import SLICE_ROWS_MAX, Rows

Make = Callable[[], AbstractContextManager[Rows]]
KEYS = st.builds(bytes.__add__, st.sampled_from([b"a|", b"b|", b"c|"]), st.binary(max_size=3))
WRITES = st.lists(
    st.tuples(st.dictionaries(KEYS, st.binary(max_size=20), max_size=20), st.sets(KEYS)),
    max_size=5,
)


@contextmanager
def disk() -> Iterator[Rows]:
    with tempfile.TemporaryDirectory() as directory:
        state_store = StateStore.open(Path(directory), ballast_size=0)
        yield state_store
        state_store.close()


@contextmanager
def memory() -> Iterator[Rows]:
    yield MemoryStore()


BOTH = pytest.mark.parametrize("make", [disk, memory])


@pytest.fixture(params=[disk, memory])
def state_store(request: pytest.FixtureRequest) -> Iterator[Rows]:
    with request.param() as made:
        yield made


@BOTH
@settings(max_examples=60)
@given(WRITES, KEYS)
def test_against_a_dict(
    make: Make, writes: list[tuple[dict[bytes, bytes], set[bytes]]], start: bytes
) -> None:
    with make() as state_store:
        model: dict[bytes, bytes] = {}
        for puts, deletes in writes:
            state_store.write(list(puts.items()), list(deletes))
            model = {key: value for key, value in model.items() if key not in deletes} | puts
            rows = sorted(item for item in model.items() if item[0].startswith(b"b|"))
            assert all(state_store.get(key) == value for key, value in model.items())
            assert all(state_store.get(key) == puts.get(key) for key in deletes)
            assert list(state_store.scan(b"b|")) == rows
            assert list(state_store.scan(b"b|", reverse=True)) == rows[::-1]
            assert list(state_store.scan(b"b|", start)) == [row for row in rows if row[0] >= start]
            down = [row for row in rows[::-1] if row[0] <= start]
            assert list(state_store.scan(b"b|", start, reverse=True)) == down
            assert state_store.floor(b"b|", start) == (down[0] if down else None)


def test_an_empty_base(state_store: Rows) -> None:
    assert state_store.get(b"m|") is None
    assert list(state_store.scan(b"a|")) == list(state_store.scan(b"a|", reverse=True)) == []
    assert state_store.floor(b"a|", b"a|x") is None
    state_store.write([], [b"never|there"])


def test_a_scan_of_many_slices(state_store: Rows) -> None:
    rows = [(b"a|%06d" % i, b"%d" % i) for i in range(3 * SLICE_ROWS_MAX)]
    state_store.write(rows[::-1], [])
    assert list(state_store.scan(b"a|")) == rows
    assert list(state_store.scan(b"a|", reverse=True)) == rows[::-1]


def test_a_row_in_both_lists_is_put(state_store: Rows) -> None:
    state_store.write([(b"a|1", b"old")], [])
    state_store.write([(b"a|1", b"new")], [b"a|1"])
    assert state_store.get(b"a|1") == b"new"


def test_a_scan_goes_on_behind_what_is_written_meanwhile(state_store: Rows) -> None:
    state_store.write([(b"a|%06d" % i, b"") for i in range(2 * SLICE_ROWS_MAX)], [])
    scan = state_store.scan(b"a|")
    first = next(scan)[0]
    state_store.write([(b"a|999999", b"late")], [first, b"a|%06d" % (2 * SLICE_ROWS_MAX - 1)])
    seen = [first, *(key for key, _ in scan)]
    assert seen == sorted(seen) and len(seen) == len(set(seen))
    assert seen[-1] == b"a|999999" and b"a|%06d" % (2 * SLICE_ROWS_MAX - 1) not in seen


def test_what_was_read_stays_after_a_write(state_store: Rows) -> None:
    state_store.write([(b"a|1", b"old" * 1000)], [])
    value, rows = state_store.get(b"a|1"), list(state_store.scan(b"a|"))
    state_store.write([(b"a|1", b"new" * 1000)], [])
    assert value == b"old" * 1000 and rows == [(b"a|1", b"old" * 1000)]


def test_large_values_and_the_longest_key(state_store: Rows) -> None:
    rows = [(b"a|" + b"x" * 509, os.urandom(3 * MIB)), (b"b|", b"")]
    state_store.write(rows, [])
    assert [state_store.get(key) for key, _ in rows] == [value for _, value in rows]


def test_a_copy_in_memory_is_independent() -> None:
    state_store = MemoryStore()
    state_store.write([(b"a|1", b"1")], [])
    other = state_store.copy()
    state_store.write([(b"a|2", b"2")], [b"a|1"])
    assert list(other.scan(b"a|")) == [(b"a|1", b"1")]
    assert list(state_store.scan(b"a|")) == [(b"a|2", b"2")]


def test_every_write_is_flushed_with_its_meta_page(tmp_path: Path) -> None:
    state_store = StateStore.open(tmp_path, ballast_size=0)
    flags = state_store._env.flags()
    assert (flags["sync"], flags["metasync"], flags["writemap"]) == (True, True, False)
    state_store.close()


def test_half_a_new_table_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "new.mdb").write_bytes(bytes(4096))
    state_store = StateStore.open(tmp_path, ballast_size=0)
    state_store.write([(b"a|1", b"1")], [])
    state_store.close()
    assert [path.name for path in sorted((tmp_path / "state").iterdir())] == [
        "data.mdb",
        "lock.mdb",
    ]


def test_rows_are_there_after_reopening(tmp_path: Path) -> None:
    state_store = StateStore.open(tmp_path / "data")
    state_store.write([(b"a|1", b"1")], [])
    state_store.close()
    state_store = StateStore.open(tmp_path / "data")
    assert state_store.get(b"a|1") == b"1"
    state_store.close()


# Writes transaction after transaction, each of them 50 rows that carry its number, and says so
# when it is on disk.
WRITER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from corvo.storage import lmdb as base_module
from corvo.storage.lmdb import StateStore

base = StateStore.open(Path(sys.argv[1]), ballast_size=0)
number = int(base.get(b"m|") or b"0")
while True:
    number += 1
    value = b"%d" % number
    puts = [(b"a|%d" % i, value * 100) for i in range(50)] + [(b"m|", value)]
    base.write(puts, [b"b|%d" % (number - 1)])
    base.write([(b"b|%d" % number, b"")], [])
    print(number, flush=True)
"""


def python(script: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", script, *arguments]


def environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}


def test_kill_between_and_during_writes(tmp_path: Path) -> None:
    last = 0
    for lines in (1, 2, 30):
        with subprocess.Popen(
            python(WRITER, str(tmp_path)), stdout=subprocess.PIPE, text=True, env=environment()
        ) as child:
            assert child.stdout is not None
            for _ in range(lines):
                last = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split()
        last = int(rest[-1]) if rest else last
        state_store = StateStore.open(tmp_path, ballast_size=0)
        number = int(state_store.get(b"m|") or b"0")
        assert number in (last, last + 1)
        assert {value for _, value in state_store.scan(b"a|")} == {b"%d" % number * 100}
        assert [key for key, _ in state_store.scan(b"b|")] in ([], [b"b|%d" % number])
        assert state_store.reader_check() == 0  # no reader is left in the table
        state_store.close()


READER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from corvo.storage import lmdb as base_module
from corvo.storage.lmdb import StateStore

base = StateStore.open(Path(sys.argv[1]), ballast_size=0)
print("reading", flush=True)
sys.stdin.read()
"""


def test_slots_of_dead_readers_are_freed(tmp_path: Path) -> None:
    state_store = StateStore.open(tmp_path, ballast_size=0)
    with subprocess.Popen(
        python(READER, str(tmp_path)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "reading\n"
        assert state_store.reader_check() == 0
        child.send_signal(signal.SIGKILL)
    assert state_store.reader_check() >= 1
    assert state_store.reader_check() == 0
    state_store.close()


# Fills a state store under a file size limit, which to LMDB looks like a full disk, until a write
# fails. Then it checks that nothing changed, that the write fails again, and that it works once
# there is room.
FILLER = """
import resource, signal, sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from corvo.errors import DiskFull
from corvo.storage import lmdb as base_module
from corvo.storage.lmdb import StateStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
base = StateStore.open(Path(sys.argv[1]), ballast_size=0)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), most))

def puts(round):
    return [(b"a|%d|%d" % (round, i), bytes(int(sys.argv[3]))) for i in range(100)]

def refused(round):
    try:
        base.write(puts(round), [b"a|%d|0" % (round - 1)])
    except DiskFull as error:
        assert "no space left" in error.message
        return True
    return False

round = 0
while not refused(round):
    round += 1
before = list(base.scan(b"a|"))
assert len(before) == 99 * round + min(round, 1)
assert refused(round) and list(base.scan(b"a|")) == before
base.write([], [b"a|%d|1" % (round - 1)])
assert base.get(b"a|%d|1" % (round - 1)) is None
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
assert not refused(round)
base.close()
base = StateStore.open(Path(sys.argv[1]), ballast_size=0)
assert base.get(b"a|%d|99" % round) == bytes(int(sys.argv[3]))
print("done", round)
"""


@pytest.mark.parametrize("value_size", [300, 3000, 9000])
@pytest.mark.parametrize("room", [1_000_000, 2_097_152])
def test_a_full_disk_changes_nothing(tmp_path: Path, value_size: int, room: int) -> None:
    done = subprocess.run(
        python(FILLER, str(tmp_path), str(room), str(value_size)),
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.stdout.startswith("done"), done.stderr


def fill(state_store: StateStore) -> int:
    for round in range(10_000):
        try:
            state_store.write([(b"a|%d" % round, bytes(20 * KIB))], [])
        except DiskFull:
            return round
    raise AssertionError("never full")


def test_a_full_map_changes_nothing(tmp_path: Path) -> None:
    state_store = StateStore.open(tmp_path, map_size=MIB, ballast_size=0)
    full = fill(state_store)
    assert len(list(state_store.scan(b"a|"))) == full
    with pytest.raises(DiskFull):
        state_store.write([(b"a|more", bytes(100 * KIB))], [b"a|0"])
    assert state_store.get(b"a|0") is not None
    state_store.write([], [b"a|%d" % i for i in range(full)])
    state_store.write([(b"m|", b"")], [])  # what a write frees is there for the one after the next
    state_store.write([(b"a|more", bytes(100 * KIB))], [])
    assert [key for key, _ in state_store.scan(b"a|")] == [b"a|more"]
    state_store.close()


def test_bad_rows_are_fatal(tmp_path: Path) -> None:
    state_store = StateStore.open(tmp_path, ballast_size=0)
    with pytest.raises(StorageError, match="cannot write the state store in"):
        state_store.write([(b"a|1", b"1"), (b"", b"")], [])
    assert state_store.get(b"a|1") is None
    state_store.close()


def test_a_table_of_another_engine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    lmdb.open(str(tmp_path / "state"), lib_version=1).close()
    with pytest.raises(StorageError, match="cannot open the state store in"):
        StateStore.open(tmp_path)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "data.mdb").write_bytes(b"not a table" * 1000)
    with pytest.raises(StorageError, match="cannot open the state store in"):
        StateStore.open(tmp_path)


def test_a_table_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    state_store = StateStore.open(tmp_path / "d")
    state_store.write([(b"k%06d" % n, b"v" * 100) for n in range(10_000)], [])
    state_store.close()
    path = tmp_path / "d" / "state" / "data.mdb"
    size = path.stat().st_size
    for kept in (size - 4_096, size // 2, 5 * 4_096):
        os.truncate(path, kept)
        with pytest.raises(StorageError, match=f"truncated: it has {kept} of {size} bytes"):
            StateStore.open(tmp_path / "d")


def test_a_table_that_lacks_only_free_pages_is_not_refused(tmp_path: Path) -> None:
    """LMDB leaves them away now and then; here its meta page is made to claim three more."""
    StateStore.open(tmp_path).close()
    path = tmp_path / "state"
    env = lmdb.open(str(path), lib_version=0)
    more = SimpleNamespace(
        info=lambda: {"last_pgno": env.info()["last_pgno"] + 3}, stat=env.stat, begin=env.begin
    )
    base_module._check_size(path, cast(Any, more))
    env.close()


def test_ballast(tmp_path: Path) -> None:
    ballast = tmp_path / "state" / "ballast"
    state_store = StateStore.open(tmp_path, ballast_size=MIB)
    assert ballast.stat().st_blocks * 512 >= MIB
    state_store.release_ballast()
    state_store.release_ballast()
    assert not ballast.exists()
    assert state_store.restore_ballast() and state_store.restore_ballast()
    assert ballast.stat().st_size == MIB
    state_store.close()


def test_no_ballast_where_it_does_not_fit(tmp_path: Path) -> None:
    state_store = StateStore.open(tmp_path, ballast_size=1 << 60)
    assert not state_store.restore_ballast()
    state_store.close()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    state_store = StateStore.open(tmp_path, ballast_size=MIB)
    state_store.release_ballast()
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, most))
    try:
        assert not state_store.restore_ballast()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, previous)
    assert not (tmp_path / "state" / "ballast").exists()
    state_store.close()

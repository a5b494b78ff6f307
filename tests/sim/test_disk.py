"""The simulated disk loses what a real one may lose, and nothing else."""

import random

import pytest
from sim.disk import SECTOR, Disk, DiskError


def disk_with(name: str, data: bytes) -> Disk:
    disk = Disk()
    disk.create(name)
    disk.sync_names()
    disk.write(name, 0, data)
    return disk


def test_the_process_sees_its_own_writes() -> None:
    disk = disk_with("log", b"abc")
    disk.write("log", 1, b"xyz")
    assert disk.read("log") == b"axyz"
    assert disk.durable("log") == b""


def test_a_sync_makes_a_write_durable() -> None:
    disk = disk_with("log", b"abc")
    disk.sync("log")
    disk.write("log", 3, b"def")
    for seed in range(20):
        disk.cut_power(random.Random(seed))
        assert disk.read("log")[:3] == b"abc"


def test_a_power_cut_keeps_any_mixture_of_sectors() -> None:
    size = 4 * SECTOR
    found = set()
    for seed in range(300):
        disk = disk_with("log", b"\1" * size)
        disk.cut_power(random.Random(seed))
        content = disk.read("log").ljust(size, b"\0")
        parts = [content[at : at + SECTOR] for at in range(0, size, SECTOR)]
        assert all(part in (bytes(SECTOR), b"\1" * SECTOR) for part in parts)  # never half of one
        found.add(tuple(part[0] for part in parts))
    assert {(0, 0, 0, 0), (1, 1, 1, 1)} <= found
    assert any(parts[0] == 0 and parts[-1] == 1 for parts in found)  # a hole before a later part


def test_overwritten_sectors_keep_one_of_their_contents() -> None:
    contents = set()
    for seed in range(50):
        disk = disk_with("log", b"old")
        disk.sync("log")
        disk.write("log", 0, b"new")
        disk.cut_power(random.Random(seed))
        contents.add(disk.read("log"))
    assert contents == {b"old", b"new"}


def test_a_rename_may_be_lost_until_the_names_are_synced() -> None:
    contents = set()
    for seed in range(50):
        disk = disk_with("log", b"old")
        disk.sync("log")
        disk.create("log.new")
        disk.write("log.new", 0, b"new")
        disk.sync("log.new")
        disk.rename("log.new", "log")
        disk.cut_power(random.Random(seed))
        contents.add(disk.read("log"))
    assert contents == {b"old", b"new"}


def test_synced_names_stay() -> None:
    disk = disk_with("log", b"old")
    disk.rename("log", "other")
    disk.sync_names()
    disk.cut_power(random.Random(1))
    assert disk.names() == ["other"]


def test_changes_of_names_are_lost_from_the_last_one() -> None:
    found = set()
    for seed in range(100):
        disk = Disk()
        disk.create("a")
        disk.create("b")
        disk.unlink("a")
        disk.cut_power(random.Random(seed))
        found.add(tuple(disk.names()))
    assert found == {(), ("a",), ("a", "b"), ("b",)}


def test_a_failed_sync_drops_the_pages_and_the_next_one_does_not_tell() -> None:
    disk = disk_with("log", b"kept")
    disk.sync("log")
    disk.write("log", 4, b"lost")
    disk.fails_next_sync = True
    with pytest.raises(DiskError):
        disk.sync("log")
    disk.sync("log")
    assert disk.read("log") == b"kept"

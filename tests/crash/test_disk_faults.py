"""A full disk is lived through; a broken one ends the server before it can lie."""

import contextlib
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest
from lib.harness import Api, ServerProcess, refused, until

from corvo.platform.failpoints import VARIABLE

MIB = 1024 * 1024
# Room for what the server wants to have free before it takes jobs, and for its stores.
DISK_SIZE = 320 * MIB
SMALL = f"wal.segment_size={64 * 1024}"


class Tmpfs:
    """A small file system, filled to the last byte."""

    settings = f"wal.segment_size={8 * MIB}"

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "none", str(path)]
        subprocess.run(command, check=True, capture_output=True)

    def fill(self, _: ServerProcess) -> None:
        with (self.path / "filler").open("ab") as file:
            for size in (MIB, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        os.write(file.fileno(), bytes(size))

    def free(self, _: ServerProcess) -> None:
        (self.path / "filler").unlink()

    def close(self) -> None:
        # The sidecar of a server that was killed may need a moment to end.
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)


class FileLimit:
    """A limit on the size of files: the log has room, the base cannot grow."""

    settings = SMALL

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def fill(self, server: ServerProcess) -> None:
        assert server.process is not None
        size = (server.data_dir / "state" / "data.mdb").stat().st_size
        self._limit(server.process.pid, max(size, 128 * 1024))

    def free(self, server: ServerProcess) -> None:
        assert server.process is not None
        self._limit(server.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)[1])

    def _limit(self, pid: int, size: int) -> None:
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))

    def close(self) -> None:
        pass


Disk = Tmpfs | FileLimit


def may_mount(path: Path = Path("/tmp")) -> bool:
    """Whether this user can make a small file system."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", str(path)]
    try:
        return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


DISKS: list[type[Disk]] = [FileLimit, Tmpfs] if may_mount() else [FileLimit]


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made = request.param(tmp_path / "disk")
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def server_with(data_dir: Path, settings: str, *flags: str) -> Iterator[ServerProcess]:
    """A server with failpoints."""
    made = ServerProcess(data_dir, "--test-clock", *flags)
    made.environment[VARIABLE] = settings
    made.start()
    try:
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.kill()


@pytest.fixture
def server(disk: Disk) -> Iterator[ServerProcess]:
    with server_with(disk.path / "data", disk.settings) as made:
        yield made


def fill_until_refused(api: Api) -> list[str]:
    """Enqueue until the server says that the disk is full; the ids that it took before."""
    taken: list[str] = []

    def is_refused() -> bool:
        status, answer = api.post("/enqueue", {"queue": "more", "payload": "x" * 2_000})
        if status == 201:
            taken.append(answer["job_id"])
            return False
        refused((status, answer), 507, "DISK_FULL")
        return True

    until(is_refused, "the disk is never full")
    return taken


def test_a_full_disk_refuses_jobs_and_keeps_the_rest_going(
    disk: Disk, server: ServerProcess
) -> None:
    api = server.api()
    ids = api.enqueue_many("q", 60)
    runs = api.take_many("q", count=40)
    disk.fill(server)
    ids += fill_until_refused(api)
    for run in runs[:20]:
        assert api.beat(run, checkpoint=1) == "ok"
        assert api.ack(run)[0] == 200
    assert api.fail(runs[20], error="no")[0] == 200
    assert api.release(runs[21])[0] == 200
    late = api.take("q")
    assert api.ack(late)[0] == 200
    assert all(api.job(job_id)["id"] == job_id for job_id in ids)
    refused(api.post("/enqueue", {"queue": "q"}), 507, "DISK_FULL")
    disk.free(server)
    until(lambda: api.post("/enqueue", {"queue": "q"})[0] == 201, "the disk stays full")
    server.kill()
    api = server.start().api()
    assert all(api.job(run["job_id"])["state"] == "completed" for run in runs[:20])
    assert all(api.job(job_id)["id"] == job_id for job_id in ids)


def test_a_server_starts_on_a_full_disk(disk: Disk, server: ServerProcess) -> None:
    api = server.api()
    api.enqueue_many("q", 5)
    runs = api.take_many("q", count=5)
    disk.fill(server)
    ids = fill_until_refused(api)
    assert api.ack(runs[0])[0] == 200
    server.kill()
    api = server.start().api()
    assert api.ack(runs[1])[0] == 200
    assert all(api.job(run["job_id"])["state"] == "completed" for run in runs[:2])
    assert all(api.job(job_id)["state"] == "pending" for job_id in ids)


def enqueue_until_gone(server: ServerProcess) -> list[str]:
    """The ids that a server acknowledged before it went away by itself."""
    ids: list[str] = []
    api = server.api()
    with contextlib.suppress(OSError, HTTPException):
        while len(ids) < 5_000:
            ids.append(api.enqueue("q", payload="x" * 500))
    assert server.process is not None
    assert server.process.wait(20) == 1
    return ids


@pytest.mark.parametrize(
    ("failpoint", "mode"),
    [
        ("wal.before_sync=error@12", "--durable"),
        ("wal.after_write=error@30", "--no-durable"),
        ("wal.after_name=error@2", "--durable"),
        ("base.before_commit=error@2", "--no-durable"),
    ],
)
def test_a_broken_disk_ends_the_server(tmp_path: Path, failpoint: str, mode: str) -> None:
    with server_with(tmp_path / "data", f"{SMALL},{failpoint}", mode) as server:
        ids = enqueue_until_gone(server)
        until(lambda: any("fatal" in line for line in server.log), "nothing is said about it")
        server.environment[VARIABLE] = SMALL
        api = server.start().api()
        assert api.queue("q")["pending"] in (len(ids), len(ids) + 1)
        assert [run["job_id"] for run in api.take_many("q", count=len(ids))] == ids


def test_a_base_without_space_for_a_moment(tmp_path: Path) -> None:
    with server_with(tmp_path / "data", f"{SMALL},base.before_commit=full@2") as server:
        api = server.api()
        api.enqueue("q")
        ids = fill_until_refused(api)
        until(lambda: api.post("/enqueue", {"queue": "q"})[0] == 201, "it stays full")
        assert all(api.job(job_id)["state"] == "pending" for job_id in ids)
        assert server.stop() == 0


def test_a_start_whose_replay_has_no_space_in_the_base(tmp_path: Path) -> None:
    with server_with(tmp_path / "data", "base.before_commit=full@1+") as server:
        ids = server.api().enqueue_many("q", 2500)
        for _ in range(2):
            server.kill()
            api = server.start().api()
            assert api.ack(api.take("q"))[0] == 200
            fill_until_refused(api)
        server.kill()
        server.environment.clear()
        api = server.start().api()
        assert api.post("/enqueue", {"queue": "q"})[0] == 201
        assert [api.job(job_id)["state"] for job_id in ids[:3]] == ["completed"] * 2 + ["pending"]


def test_a_log_without_space_for_another_segment(tmp_path: Path) -> None:
    """New jobs are refused while there is room for acks; a later start finds everything."""
    with server_with(tmp_path / "data", f"{SMALL},wal.create=full@2+") as server:
        api = server.api()
        ids = api.enqueue_many("q", 10)
        runs = api.take_many("q", count=10)
        fill_until_refused(api)
        assert [api.ack(run)[0] for run in runs] == [200] * 10
        server.kill()
        server.environment[VARIABLE] = SMALL
        api = server.start().api()
        assert all(api.job(job_id)["state"] == "completed" for job_id in ids)
        assert api.post("/enqueue", {"queue": "q"})[0] == 201


def test_a_write_in_a_stalled_flush_is_answered_after_it(tmp_path: Path) -> None:
    with server_with(tmp_path / "data", "wal.before_sync=stall@20") as server:
        assert server.process is not None
        ids: list[str] = []
        producer = threading.Thread(target=lambda: ids.extend(_enqueue_some(server)))
        producer.start()
        os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
        answered = len(ids)
        os.kill(server.process.pid, signal.SIGCONT)
        producer.join(20)
        assert answered < len(ids) == 30
        assert server.api().queue("q")["pending"] == 30


def _enqueue_some(server: ServerProcess) -> Iterator[str]:
    api = server.api()
    for _ in range(30):
        yield api.enqueue("q")

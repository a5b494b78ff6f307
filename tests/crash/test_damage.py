"""A log that lost bytes at rest: nothing that was acknowledged goes without a word."""

from pathlib import Path

import pytest
from crash.recovery import copy_data
from lib.harness import failed_start, running_server

TAILS = (1, 40, 64 * 1024)


def newest_segment(data_dir: Path) -> Path:
    return max((data_dir / "wal").glob("*.wal"))


def end_of_log(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


def test_a_clean_stop_survives_the_loss_of_the_end_of_the_log(tmp_path: Path) -> None:
    """A stop flushes the base, which then knows more than the log that is left."""
    data_dir = tmp_path / "data"
    with running_server(data_dir) as server:
        ids = server.api().enqueue_many("q", 200)
        for tail in TAILS:
            assert server.stop() == 0
            path = newest_segment(data_dir)
            end = end_of_log(path)
            with path.open("r+b") as file:
                file.seek(max(80, end - tail))
                file.write(bytes(end - max(80, end - tail)))
            api = server.start().api()
            ids += [api.enqueue("q")]
            assert api.queue("q")["pending"] == len(ids)
        server.kill()
        assert server.start().api().queue("q")["pending"] == len(ids)


@pytest.mark.parametrize("clean", [True, False])
def test_damage_in_the_middle_stops_the_start(tmp_path: Path, clean: bool) -> None:
    data_dir = tmp_path / "data"
    with running_server(data_dir) as server:
        api = server.api()
        for _ in range(20):
            api.enqueue("q")
        if clean:
            assert server.stop() == 0
        else:
            server.kill()
    path = newest_segment(data_dir)
    with path.open("r+b") as file:
        file.seek(end_of_log(path) // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    before = copy_data(data_dir, tmp_path / "copy")
    assert "the log is damaged at offset" in failed_start(data_dir)
    assert newest_segment(before).read_bytes() == path.read_bytes()

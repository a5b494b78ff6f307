"""Stops, kills and starts: nothing is lost, nobody is left without an answer, and a server that
cannot start says why."""

import asyncio
import contextlib
import gc
import shutil
import threading
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from lib.harness import (
    WAIT_S,
    Api,
    Poll,
    ServerProcess,
    advance,
    clock_ns,
    failed_start,
    frozen_clock,
    nanoseconds,
    refused,
    rfc3339,
    running_server,
    until,
)
from lib.traffic import Shuffle

from corvo.config import load
from corvo.errors import DiskFull
from corvo.node.node import Node
from corvo.storage.lmdb import StateStore

SECOND_NS = 10**9


def restart(server: ServerProcess, how: str) -> Api:
    """Stop or kill it, start it again; a client of the new process."""
    if how == "kill":
        server.kill()
    else:
        assert server.stop() == 0
    return server.start().api()


HOW = pytest.mark.parametrize("how", ["stop", "kill"])


@HOW
def test_a_restart_keeps_everything(data_dir: Path, how: str) -> None:
    with running_server(data_dir, "--test-clock") as server:
        api = server.api()
        ids = mixed_jobs(api)
        api.ok("POST", "/queues/paused/pause")
        api.ok("POST", "/queues/limited/concurrency", {"max": 3})
        with frozen_clock(api):
            before = everything(api, ids)
        for _ in range(2):
            api = restart(server, how)
            with frozen_clock(api):
                assert everything(api, ids) == before


def mixed_jobs(api: Api) -> list[str]:
    """Jobs in all states, with all that can be attached to them."""
    fields = {"max_retries": 2, "retry_base_delay": "1h", "retry_max_delay": "1h"}
    ids = [api.enqueue("q", payload={"n": n}, tags={"n": n}, **fields) for n in range(12)]
    ids += [api.enqueue("q", priority=n, unique_key=str(n), **fields) for n in range(3)]
    ids += [api.enqueue("paused"), api.enqueue("later", scheduled_at="9999-01-01T00:00:00Z")]
    runs = api.take_many("q", count=12, worker_id="w", hostname="h", lease_duration=86_400)
    api.ack(runs[0], result=[0], checkpoint="c")
    api.fail(runs[1], error="first", backtrace="here", retry_after="1d")
    api.fail(runs[2], error="once", retry_after=0)
    api.fail(runs[3], retry=False)
    api.beat(runs[4], progress={"current": 4}, checkpoint={"page": 4})
    api.release(runs[5], checkpoint=5)
    api.release(runs[6], delay="1d")
    api.ok("POST", f"/jobs/{runs[7]['job_id']}/cancel")
    api.ok("POST", f"/jobs/{runs[8]['job_id']}/cancel", {"force": True})
    api.ok("DELETE", f"/jobs/{runs[9]['job_id']}")
    api.ok("POST", f"/jobs/{runs[3]['job_id']}/retry")
    ids.remove(runs[9]["job_id"])
    return ids


def everything(api: Api, ids: list[str]) -> dict[str, Any]:
    """All that can be read."""
    return {
        "jobs": [api.job(job_id) for job_id in ids],
        "events": [api.ok("GET", f"/jobs/{job_id}/events") for job_id in ids],
        "queues": api.listed("queues"),
        "workers": [w | {"status": ""} for w in api.listed("workers")],
    }


@HOW
def test_workers_with_odd_names_reach_the_base(data_dir: Path, how: str) -> None:
    names = {"a\0b", "\0", "größe\n"}
    with running_server(data_dir) as server:
        api = server.api()
        for name in sorted(names):
            api.enqueue("q")
            api.take("q", worker_id=name)
        for _ in range(2):
            api = restart(server, how)
            assert {worker["id"] for worker in api.listed("workers")} == names


@HOW
def test_leases_and_locks_go_on(data_dir: Path, how: str) -> None:
    """Tokens, fencing numbers, unique locks and the row of releases are part of the state."""
    with running_server(data_dir, "--test-clock") as server:
        api = server.api()
        holder = api.enqueue("q", unique_key="k", unique_until="period", priority="critical")
        releases = api.enqueue("q", priority="critical")
        api.enqueue_many("q", 2)
        assert api.ack(api.take("q"))[0] == 200
        for _ in range(3):
            assert api.release(api.take("q"))[1]["state"] == "pending"
        run = api.take("q")
        assert run["job_id"] == releases
        live = api.take("q")
        api = restart(server, how)
        assert api.release(run)[1]["state"] == "scheduled"
        assert api.beat(live) == "ok"
        newer = api.take("q")
        assert newer["fencing"] > live["fencing"]
        assert api.ack(live)[0] == api.ack(live)[0] == 200
        answer = api.ok("POST", "/enqueue", {"queue": "q", "unique_key": "k"})
        assert (answer["job_id"], answer["state"]) == (holder, "completed")


@HOW
def test_what_was_due_while_the_server_was_down_happens_then(data_dir: Path, how: str) -> None:
    with running_server(data_dir) as server:
        api = server.api()
        due = rfc3339(time.time_ns() + SECOND_NS // 2)
        job_id = api.enqueue("q", scheduled_at=due)
        api = restart(server, how)
        assert api.take("q")["job_id"] == job_id


def test_counters_equal_a_recount_after_each_kill(data_dir: Path) -> None:
    with running_server(data_dir, "--test-clock") as server:
        shuffle = Shuffle(server.api(), "q", seed=7)
        for _ in range(3):
            for _ in range(100):
                shuffle.step()
            shuffle.check_counters()
            shuffle.api = restart(server, "kill")
            shuffle.check_counters()


def test_ids_and_places_go_on_after_a_restart(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        ids: list[str] = []
        for how in ("kill", "stop", "kill", "stop"):
            ids += server.api().enqueue_many("q", 5)
            restart(server, how)
        api = server.api()
        assert len(set(ids)) == 20 and ids == sorted(ids)
        assert [run["job_id"] for run in api.take_many("q", count=20)] == ids


def test_a_kill_during_the_start_does_no_harm(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        ids = server.api().enqueue_many("q", 2000)
        for _ in range(3):
            server.kill()
            server.log.clear()
            starter = threading.Thread(target=start_quietly, args=(server,))
            starter.start()
            until(lambda: server.log, "the server logs nothing")
            server.kill()
            starter.join(WAIT_S)
        server.start()
        api = server.api()
        assert api.queue("q")["pending"] == 2000
        assert [run["job_id"] for run in api.take_many("q", count=2000)] == ids


def start_quietly(server: ServerProcess) -> None:
    """A start that is allowed to fail."""
    with contextlib.suppress(AssertionError):
        server.start()


def test_a_stop_answers_waiting_fetches(data_dir: Path) -> None:
    """At once, with nothing, and the server is gone soon, idle connections or not."""
    with running_server(data_dir) as server:
        api = server.api()
        idle = [server.api() for _ in range(3)]
        for other in idle:
            other.ok("GET", "/info")
        job_id = api.enqueue("other")
        polls = [Poll(api, server, "q") for _ in range(5)]
        assert server.stop() == 0
        assert [poll.answer() for poll in polls] == [(204, None)] * 5
        assert any('"stopped"' in line or "msg=stopped" in line for line in server.log)
        assert server.start().api().job(job_id)["state"] == "pending"


def test_a_stop_under_traffic_loses_nothing(data_dir: Path) -> None:
    """Every call is answered or finds the connection closed; what was answered is there."""
    with running_server(data_dir) as server:
        accepted: list[str] = []
        odd: list[Any] = []
        enough = threading.Event()

        def produce() -> None:
            own = server.api()
            try:
                while True:
                    status, answer = own.post("/enqueue", {"queue": "q"})
                    if status == 503:
                        assert answer["code"] == "NOT_READY"
                        return
                    if status != 201:
                        odd.append((status, answer))
                    accepted.append(answer["job_id"])
                    if len(accepted) > 200:
                        enough.set()
            except (OSError, HTTPException):
                return

        threads = [threading.Thread(target=produce) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert enough.wait(WAIT_S)
        assert server.stop() == 0
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert not odd
        api = server.start().api()
        assert api.queue("q")["pending"] >= len(accepted)
        assert len(set(accepted)) == len(accepted)
        for job_id in accepted:
            assert api.job(job_id)["state"] == "pending"


def test_a_lease_without_a_word_is_restored_once_per_start(data_dir: Path) -> None:
    """A lease that its worker never touched and that a restart survived gives the attempt back;
    the one granted after it does not."""
    with running_server(data_dir, "--test-clock") as server:
        job_id = server.api().enqueue("q", max_retries=2)
        server.api().take("q", lease_duration=5)
        for _ in range(2):
            api = restart(server, "kill")
            advance(api, "30s")
            run = api.take("q", lease_duration=5)
            assert (run["job_id"], run["attempt"]) == (job_id, 1)
        advance(api, "5s")
        assert api.take("q")["attempt"] == 2
        kinds = [record["kind"] for record in api.job(job_id)["errors"]]
        assert kinds == ["delivery_unknown", "delivery_unknown", "lease_expired"]


@pytest.mark.parametrize("touch", ["beat", "progress"])
def test_a_touched_lease_counts_after_a_restart(data_dir: Path, touch: str) -> None:
    with running_server(data_dir, "--test-clock") as server:
        api = server.api()
        job_id = api.enqueue("q", max_retries=1)
        run = api.take("q", lease_duration=5)
        assert api.beat(run, **({"progress": {}} if touch == "progress" else {})) == "ok"
        api = restart(server, "kill")
        assert nanoseconds(api.job(job_id)["lease_expires_at"]) > clock_ns(api)
        advance(api, "90s")
        api.wait_state(job_id, "dead")
        assert [e["kind"] for e in api.job(job_id)["errors"]] == ["lease_expired"]
        refused(api.ack(run), 409, "LEASE_LOST")


# ---- starts that must fail ----


def test_one_server_at_a_time_has_a_data_directory(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        job_id = server.api().enqueue("q")
        message = failed_start(data_dir)
        assert "another server" in message and str(data_dir) in message
        assert server.api().take("q")["job_id"] == job_id
        assert server.stop() == 0
        assert server.start().api().job(job_id)["state"] == "active"


def test_a_taken_port_is_named(data_dir: Path, tmp_path: Path) -> None:
    with running_server(data_dir) as server:
        message = failed_start(tmp_path / "other", port=server.port)
        assert str(server.port) in message


def test_a_data_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("not a directory")
    message = failed_start(path)
    assert f"cannot use the data directory {path}: File exists" in message


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--max-payload-size", "none"), "max-payload-size"),
        (("--max-payload-size", "99999999"), "max-payload-size"),
        (("--log-level", "loud"), "log-level"),
        (("--shutdown-timeout", "-1s"), "shutdown-timeout"),
    ],
)
def test_a_wrong_setting_is_named(data_dir: Path, flags: tuple[str, ...], word: str) -> None:
    assert word in failed_start(data_dir, *flags)
    assert not data_dir.exists()


def test_the_test_clock_is_off_unless_asked_for(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        refused(server.api().post("/test/clock", {"advance": "1s"}), 404, "NOT_FOUND")


def test_a_lost_log_is_not_replaced(data_dir: Path) -> None:
    with running_server(data_dir) as server:
        server.api().enqueue("q")
        assert server.stop() == 0
    shutil.move(data_dir / "wal", data_dir.parent / "wal")
    assert "but no log" in failed_start(data_dir)
    (data_dir / "wal").rmdir()
    shutil.move(data_dir.parent / "wal", data_dir / "wal")
    with running_server(data_dir) as server:
        assert server.api().queue("q")["pending"] == 1


def test_a_replay_needs_no_disk_space(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_server(data_dir) as server:
        for _ in range(3):
            server.api().enqueue_many("q", 1_000)
        server.kill()
    shutil.rmtree(data_dir / "state")  # everything has to come from the log

    def no_space(*_: Any) -> None:
        raise DiskFull("no space left")

    async def main() -> None:
        node = Node(load({"data-dir": str(data_dir)}, {}), asyncio.get_running_loop())
        with monkeypatch.context() as patch:
            patch.setattr(StateStore, "write", no_space)
            node.open()
        queue = node.machine.queue("q")
        assert queue is not None and queue.enqueued_total == 3_000
        node.close()

    collector = gc.get_threshold()
    try:
        asyncio.run(main())
    finally:
        gc.unfreeze()
        gc.set_threshold(*collector)
    with running_server(data_dir) as server:
        assert server.api().queue("q")["pending"] == 3_000

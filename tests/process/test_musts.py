"""Requirements of a job server, by kind of failure: lost jobs, double runs, stuck jobs, races of
leases, poison jobs. `test_musts_values` and `test_musts_search` have the requirements on values and
on search."""

import socket
import struct
import threading
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
    raw_fetch,
    refused,
    rfc3339,
    running_server,
)
from lib.traffic import STATES, Traffic, check_counters

SECOND_NS = 10**9

# ---- g1: lost jobs ----


@pytest.mark.parametrize("flags", [(), ("--no-durable",)], ids=["durable", "no-durable"])
def test_acknowledged_writes_survive_a_kill(data_dir: Path, flags: tuple[str, ...]) -> None:
    """A success reply is a promise: after kill -9 every job reads exactly as before it."""
    with running_server(data_dir, *flags) as server:
        api = server.api()
        ids = api.enqueue_many("q", 20, max_retries=2)
        ids += api.enqueue_many("q", 3, scheduled_at="9999-12-31T00:00:00Z")
        runs = api.take_many("q", count=12)
        for run in runs[:4]:
            assert api.ack(run, result={"n": run["payload"]})[0] == 200
        assert api.fail(runs[4], error="no")[0] == 200
        assert api.fail(runs[5], error="never", retry=False)[0] == 200
        assert api.release(runs[6], checkpoint=[1])[0] == 200
        assert api.beat(runs[7], progress={"at": 1}, checkpoint="c") == "ok"
        api.ok("POST", f"/jobs/{runs[8]['job_id']}/cancel", {})
        api.ok("POST", f"/jobs/{ids[-1]}/cancel", {})
        api.ok("DELETE", f"/jobs/{ids[-2]}")
        ids.remove(ids[-2])
        before = [api.job(job_id) for job_id in ids]
        server.kill()
        server.start()
        assert [api.job(job_id) for job_id in ids] == before
        check_counters(api, ["q"], ids)


def test_a_kill_leaves_every_job_in_exactly_one_state(data_dir: Path) -> None:
    """A job leaves a state in the same step that puts it into the next. Under traffic on all
    sides the server is killed at moments nobody chose; counters, jobs and replies agree."""
    with running_server(data_dir) as server:
        for kills in range(1, 4):
            traffic = Traffic(server)
            traffic.run_until(acks=300)
            server.kill()
            traffic.join()
            server.start()
            api = server.api()
            for job_id in traffic.acked:
                assert api.job(job_id)["state"] == "completed"
            again = [{"queue": "q", "unique_key": key} for key in traffic.accepted]
            answer = api.ok("POST", "/enqueue/batch", {"jobs": again})
            assert answer["job_ids"] == list(traffic.accepted.values())
            assert answer["duplicates"] == len(again)
            document = api.queue("q")
            assert document["enqueued"] == sum(document[state] for state in STATES)
            assert document["enqueued"] >= len(traffic.accepted), kills
            assert document["completed"] >= len(traffic.acked)


def test_nothing_is_trimmed_silently(api: Api, queue: str) -> None:
    """Ten thousand finished jobs, six days later: all counted, and the oldest still readable."""
    ids = api.enqueue_many(queue, 10_000)
    while jobs := api.fetch_batch(queue):
        acks = [{"job_id": job["job_id"], "lease_token": job["lease_token"]} for job in jobs]
        assert api.ok("POST", "/ack/batch", {"acks": acks}) == {"acked": len(jobs)}
    advance(api, "6d")
    assert api.queue(queue)["completed"] == 10_000
    for job_id in (ids[0], ids[5_000], ids[-1]):
        assert api.job(job_id)["state"] == "completed"


def test_a_worker_that_does_not_know_a_job_cannot_lose_it(api: Api, queue: str) -> None:
    """Whatever workers do short of acking or deleting it, the job stays."""
    job_id = api.enqueue(queue, payload={"kind": "of another version"}, max_retries=2)
    assert api.release(api.take(queue))[1]["state"] == "pending"
    assert api.fail(api.take(queue), error="unknown kind", retry_after=0)[0] == 200
    assert api.fail(api.take(queue), error="unknown kind")[1]["status"] == "dead"
    job = api.job(job_id)
    assert job["payload"] == {"kind": "of another version"}
    assert api.ok("POST", f"/jobs/{job_id}/retry", {}) == {"status": "retried"}
    assert api.take(queue)["job_id"] == job_id


def test_a_flipped_bit_in_the_log_stops_the_start(data_dir: Path) -> None:
    """Acknowledged writes are checksummed: the server says that they are damaged, and does not
    go on without them."""
    with running_server(data_dir) as server:
        api = server.api()
        for number in range(50):
            api.enqueue("q", payload=f"mark-{number:03}")
        server.kill()
    segments = list((data_dir / "wal").glob("*.wal"))
    damaged = bytearray(segments[0].read_bytes())
    damaged[damaged.index(b"mark-020")] ^= 1
    segments[0].write_bytes(damaged)
    message = failed_start(data_dir)
    assert segments[0].name in message, message


# ---- g2: double runs ----


def test_only_the_live_token_may_write(api: Api, queue: str) -> None:
    """Every write of a worker is checked against the one live lease; a late one changes nothing."""
    job_id = api.enqueue(queue, max_retries=5)
    late = api.take(queue, lease_duration=1)
    advance(api, "1s")
    live = api.take(queue)
    assert live["job_id"] == job_id
    assert live["lease_token"] != late["lease_token"]
    assert live["fencing"] > late["fencing"]
    before = api.job(job_id)
    refused(api.ack(late, result=1), 409, "LEASE_LOST")
    refused(api.fail(late, error="no"), 409, "LEASE_LOST")
    refused(api.release(late, checkpoint=1), 409, "LEASE_LOST")
    assert api.beat(late, progress={"at": 1}, checkpoint=2) == "lost"
    acks = [{"job_id": job_id, "lease_token": late["lease_token"], "result": 1}]
    answer = api.ok("POST", "/ack/batch", {"acks": acks})
    assert answer["acked"] == 0
    assert [item["code"] for item in answer["failed"]] == ["LEASE_LOST"]
    assert api.job(job_id) == before
    assert api.ack(live)[0] == 200


def test_waiting_jobs_hold_no_lease(api: Api, queue: str) -> None:
    """A scheduled or retrying job has no lease that could expire, and takes no concurrency slot."""
    api.ok("POST", f"/queues/{queue}/concurrency", {"max": 1})
    delayed = api.enqueue(queue, scheduled_at=rfc3339(clock_ns(api) + 3600 * SECOND_NS))
    retried = api.enqueue(queue, retry_base_delay="1h", retry_max_delay="1h")
    assert api.fail(api.take(queue))[0] == 200
    free = api.enqueue(queue)
    assert api.ack(api.take(queue))[0] == 200
    advance(api, "30m")
    for job_id, attempt in ((delayed, 0), (retried, 1)):
        job = api.job(job_id)
        assert job["attempt"] == attempt
        assert not {"lease_expires_at", "worker_id", "fencing"} & job.keys()
    assert api.queue(queue)["lease_expired_total"] == 0
    assert api.job(free)["state"] == "completed"


def test_leases_get_a_grace_period_after_a_restart(data_dir: Path) -> None:
    """What ran out while nobody could reach the server stays with its worker for 15 s: one that
    speaks up then keeps its job, one that had spoken and is silent now loses an attempt."""
    with running_server(data_dir, "--test-clock") as server:
        api = server.api()
        api.enqueue_many("q", 3)
        acks, talks, silent = api.take_many("q", count=3, lease_duration=1)
        assert [api.beat(run) for run in (acks, talks, silent)] == ["ok"] * 3
        advance(api, "55s")
        api.enqueue("other")  # so that this time is stored
        server.kill()
        server.start()
        with frozen_clock(api):
            advance(api, "10s")
            for run in (acks, talks, silent):
                assert nanoseconds(api.job(run["job_id"])["lease_expires_at"]) < clock_ns(api)
            assert api.fetch("q") is None
            assert api.ack(acks)[0] == 200
            assert api.beat(talks) == "ok"
            advance(api, "5s")
            again = api.take("q")
            assert (again["job_id"], again["attempt"]) == (silent["job_id"], 2)
            assert api.fetch("q") is None
        refused(api.ack(silent), 409, "LEASE_LOST")
        assert api.ack(talks)[0] == 200


# ---- g3: stuck jobs ----


def test_lease_expiry_needs_no_record_of_the_worker(api: Api, queue: str) -> None:
    """A worker is silent for so long that it is forgotten; its job still comes back."""
    job_id = api.enqueue(queue)
    api.take(queue, worker_id=f"gone-{queue}", lease_duration=86_400)
    assert f"gone-{queue}" in [worker["id"] for worker in api.listed("workers")]
    advance(api, "86399s")
    assert api.job(job_id)["state"] == "active"
    advance(api, "60s")
    assert api.take(queue, worker_id=f"new-{queue}")["job_id"] == job_id


def test_a_reused_worker_id_does_not_block_lease_expiry(api: Api, queue: str) -> None:
    """A new worker under an old name neither keeps the old one's lease alive nor has it."""
    first, second = api.enqueue_many(queue, 2)
    old = api.take(queue, worker_id="same", lease_duration=1)
    new = api.take(queue, worker_id="same", lease_duration=600)
    advance(api, "1s")
    assert api.beat(new) == "ok"
    again = api.take(queue, worker_id="same")
    assert (again["job_id"], again["attempt"]) == (first, 2)
    assert api.beat(old) == "lost"
    assert api.job(second)["state"] == "active"


def test_one_row_does_not_block_the_expiry_of_other_leases(api: Api, queue: str) -> None:
    """Twelve hundred leases end at once; some of the jobs were deleted or cancelled meanwhile."""
    ids = api.enqueue_many(queue, 1200, max_retries=2)
    with frozen_clock(api):
        api.take_many(queue, count=1200, lease_duration=1)
        for job_id in ids[0::400]:
            api.ok("DELETE", f"/jobs/{job_id}")
        for job_id in ids[1::400]:
            api.ok("POST", f"/jobs/{job_id}/cancel", {"force": True})
        for job_id in ids[2::400]:
            api.ok("POST", f"/jobs/{job_id}/cancel", {})
        advance(api, "1s")
        back = [job["job_id"] for job in api.take_many(queue, count=1191)]
    assert back == [job_id for number, job_id in enumerate(ids) if number % 400 > 2]
    document = api.queue(queue)
    assert (document["active"], document["cancelled"], document["pending"]) == (1191, 6, 0)


def test_a_lease_expires_when_it_is_due(shared_server: ServerProcess, api: Api, queue: str) -> None:
    """By itself, in real time, never early, and a waiting fetch has the job at once."""
    job_id = api.enqueue(queue)
    api.take(queue, lease_duration=1)
    due_ns = nanoseconds(api.job(job_id)["lease_expires_at"])
    assert Poll(api, shared_server, queue).job()["job_id"] == job_id
    at_ns = {e["type"]: e["at_ns"] for e in api.ok("GET", f"/jobs/{job_id}/events")["events"]}
    assert 0 <= at_ns["reclaimed"] - due_ns < SECOND_NS


# ---- g4: races of leases ----


def test_of_two_racing_results_exactly_one_counts(
    shared_server: ServerProcess, api: Api, queue: str
) -> None:
    """Ack and fail of the same delivery at the same time, many times over."""
    for _ in range(20):
        job_id = api.enqueue(queue, max_retries=1)
        run = api.take(queue)
        verbs = [Api.ack, Api.fail] * 3
        replies = together(shared_server, run, verbs)
        job = api.job(job_id)
        winner = Api.ack if job["state"] == "completed" else Api.fail
        assert job["state"] in ("completed", "dead")
        assert len(job.get("errors", [])) == (job["state"] == "dead")
        for verb, reply in zip(verbs, replies, strict=True):
            if verb is not winner:
                refused(reply, 409, "LEASE_LOST")
        won = [status for verb, (status, _) in zip(verbs, replies, strict=True) if verb is winner]
        assert won.count(200) == (3 if winner is Api.ack else 1)


def together(server: ServerProcess, run: dict[str, Any], verbs: list[Any]) -> list[Any]:
    """The replies to several calls about one delivery, sent at the same moment."""
    barrier = threading.Barrier(len(verbs))
    replies: list[Any] = [None] * len(verbs)

    def send(position: int) -> None:
        own = server.api()
        barrier.wait()
        replies[position] = verbs[position](own, run)

    threads = [threading.Thread(target=send, args=(n,)) for n in range(len(verbs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return replies


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_dead_connection_keeps_no_job(
    shared_server: ServerProcess, api: Api, queue: str, reset: bool
) -> None:
    """The client of a waiting fetch goes away and a job arrives in the same moment: it goes to
    the next in line, with its attempt unused and no lease to wait out."""
    for _ in range(20):
        gone = raw_fetch(shared_server.port, queue)
        api.wait_parked(1)
        if reset:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        job_id = api.enqueue(queue)
        run = api.take(queue)
        assert (run["job_id"], run["attempt"]) == (job_id, 1)
        assert api.ack(run)[0] == 200
        api.wait_parked(0)


def test_a_heartbeat_names_every_lost_lease(api: Api, queue: str) -> None:
    """One call for many jobs says of each whether it is still this worker's."""
    api.enqueue_many(queue, 5)
    runs = api.take_many(queue, count=5)
    kept, acked, cancelled, killed, deleted = runs
    assert api.ack(acked)[0] == 200
    api.ok("POST", f"/jobs/{cancelled['job_id']}/cancel", {})
    api.ok("POST", f"/jobs/{killed['job_id']}/cancel", {"force": True})
    api.ok("DELETE", f"/jobs/{deleted['job_id']}")
    beats = {run["job_id"]: {"lease_token": run["lease_token"]} for run in runs}
    beats["job_never_heard_of"] = {"lease_token": "x"}
    answer = api.ok("POST", "/heartbeat", {"jobs": beats})["jobs"]
    assert {job_id: item["status"] for job_id, item in answer.items()} == {
        kept["job_id"]: "ok",
        acked["job_id"]: "lost",
        cancelled["job_id"]: "cancel",
        killed["job_id"]: "lost",
        deleted["job_id"]: "lost",
        "job_never_heard_of": "lost",
    }


def test_a_heartbeat_extends_the_lease(api: Api, queue: str) -> None:
    api.enqueue(queue)
    run = api.take(queue, lease_duration=90)
    for _ in range(4):
        advance(api, "60s")
        assert api.beat(run) == "ok"
    job = api.job(run["job_id"])
    assert (job["state"], job["attempt"]) == ("active", 1)
    assert nanoseconds(job["lease_expires_at"]) - clock_ns(api) > 80 * SECOND_NS
    assert api.ack(run)[0] == 200


# ---- g5: poison pills ----


def test_a_job_that_kills_its_workers_becomes_dead(api: Api, queue: str) -> None:
    """Each lost lease is an attempt with a record of its own kind; at the limit the job is dead,
    and those behind it were never held up."""
    poison = api.enqueue(queue, max_retries=3)
    neighbours = api.enqueue_many(queue, 3)
    for attempt in (1, 2, 3):
        run = api.take(queue, lease_duration=1)
        assert (run["job_id"], run["attempt"]) == (poison, attempt)
        healthy = api.take(queue, lease_duration=60)
        assert healthy["job_id"] == neighbours[attempt - 1]
        assert api.ack(healthy)[0] == 200
        advance(api, "1s")
        state = "dead" if attempt == 3 else "pending"
        api.wait_state(poison, state)
    job = api.job(poison)
    assert job["attempt"] == 3
    records = [(record["attempt"], record["kind"]) for record in job["errors"]]
    assert records == [(n, "lease_expired") for n in (1, 2, 3)]
    assert api.fetch(queue) is None
    document = api.queue(queue)
    assert (document["lease_expired_total"], document["dead_total"]) == (3, 1)


@pytest.mark.parametrize("max_retries", [0, 1])
def test_a_single_run_is_not_repeated(api: Api, queue: str, max_retries: int) -> None:
    job_id = api.enqueue(queue, max_retries=max_retries)
    api.take(queue, lease_duration=1)
    advance(api, "1s")
    api.wait_state(job_id, "dead")
    assert api.job(job_id)["attempt"] == 1

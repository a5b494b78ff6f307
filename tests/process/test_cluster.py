"""Three real servers as a cluster: elections, kill -9 under load, restarts, members, hand-over."""

import json
import shutil
import time
from pathlib import Path

import grpc
import pytest
from lib.clusters import Writer, free_port, running_cluster, take_all
from lib.harness import (
    Lines,
    Poll,
    ServerProcess,
    failed_start,
    refused,
    running_server,
    until,
    wait_mirrored,
)


def test_kill_9_of_the_leader_under_load(tmp_path: Path) -> None:
    """Nothing acknowledged is lost or doubled, and writes go on within two seconds."""
    with running_cluster(tmp_path) as cluster:
        writers = [Writer(cluster, "load", first * 1_000_000) for first in range(1, 5)]
        for _ in range(3):
            before = sum(len(writer.acknowledged) for writer in writers)
            until(
                lambda before=before: sum(len(w.acknowledged) for w in writers) > before + 200,
                "writes do not go on",
            )
            victim = cluster.wait_leader()
            victim.kill()
            cluster.wait_leader()
            victim.start()
            cluster.wait_caught_up(victim)
        for writer in writers:
            writer.finish()
        assert max(writer.gap_s for writer in writers) < 4, [w.gap_s for w in writers]
        cluster.wait_equal()
        counts = {node.api().queue("load")["pending"] for node in cluster.nodes}
        numbers = sorted(number for writer in writers for number in writer.acknowledged)
        assert counts == {len(numbers)}
        assert sorted(take_all(cluster.wait_leader().api(), "load", len(numbers))) == numbers
        ids = [job_id for writer in writers for job_id in writer.acknowledged.values()]
        assert len(set(ids)) == len(ids)


def test_all_killed_at_once(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        writers = [Writer(cluster, "load", first * 1_000_000) for first in (1, 2)]
        until(lambda: all(len(writer.acknowledged) > 100 for writer in writers), "no writes")
        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start()
        cluster.wait_leader()
        for writer in writers:
            writer.finish()
        numbers = sorted(number for writer in writers for number in writer.acknowledged)
        cluster.wait_equal()
        assert sorted(take_all(cluster.wait_leader().api(), "load", len(numbers))) == numbers


def test_a_rolling_restart(tmp_path: Path) -> None:
    """SIGTERM hands leadership over first; a client that tries again sees no failure."""
    with running_cluster(tmp_path) as cluster:
        writer = Writer(cluster, "load", 0)
        for node in cluster.nodes:
            until(lambda: len(writer.acknowledged) > 20, "no writes")
            assert node.stop() == 0
            assert cluster.wait_leader() is not node
            node.start()
            cluster.wait_caught_up(node)
        writer.finish()
        assert writer.gap_s < 4
        numbers = sorted(writer.acknowledged)
        assert sorted(take_all(cluster.wait_leader().api(), "load", len(numbers))) == numbers


def test_members_come_and_go(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        leader = cluster.wait_leader()
        api = leader.api()
        job_id = api.enqueue("q")
        fourth = cluster.add().start()
        cluster.wait_voters(4)
        cluster.wait_equal()
        assert fourth.api().job(job_id)["state"] == "pending"
        victim = cluster.followers()[0]
        name = victim.flags[1]
        # 409 while the promotion of the node is not applied yet.
        until(lambda: api.post("/cluster/remove", {"node_id": name})[0] == 200, "not removed")
        refused(api.post("/cluster/remove", {"node_id": name}), 404, "NOT_FOUND")
        victim.kill()
        cluster.wait_voters(3)
        # With its data it is not let in again by itself; without, it is another node.
        shutil.rmtree(victim.data_dir)
        victim.start()
        cluster.wait_voters(4)
        answer = api.ok("POST", "/cluster/transfer", {})
        until(lambda: cluster.status(leader)["leader_id"] == answer["node_id"], "no hand-over")
        # A new leader has to hear from everybody first.
        until(lambda: cluster.status(cluster.wait_leader())["status"] == "healthy", "missing nodes")
        status = cluster.status(cluster.wait_leader())
        assert (status["mode"], status["state"], status["status"]) == (
            "cluster",
            "Leader",
            "healthy",
        )
        assert {row["role"] for row in status["nodes"]} == {"leader", "follower"}


def test_who_lags_too_far_gets_a_snapshot(tmp_path: Path) -> None:
    """A follower whose next entries are gone, and a newcomer; both then go on by the log."""
    sizes = {"CORVO_FAILPOINTS": "wal.segment_size=1048576,raft.log_kept_size=262144"}
    with running_cluster(tmp_path, 3, "--test-clock", environment=sizes) as cluster:
        api = cluster.wait_leader().api()
        victim = cluster.followers()[0]
        api.enqueue_many("q", 10)
        cluster.wait_equal()
        victim.kill()
        for _ in range(30):
            api.enqueue("q", payload="x" * 50_000)
        victim.start()
        newcomer = cluster.add()
        newcomer.start()
        cluster.wait_voters(4)
        cluster.wait_equal()
        for node in (victim, newcomer):
            assert cluster.status(node)["snapshot"]["installed"] >= 1, node.data_dir
            assert node.api().queue("q")["pending"] == 40
        job_id = api.enqueue("q")
        cluster.wait_equal()
        victim.kill()
        victim.start()
        until(lambda: victim.api().get(f"/jobs/{job_id}")[0] == 200, "it does not catch up")
        assert victim.api().queue("q")["pending"] == 41


def test_a_snapshot_on_demand(tmp_path: Path) -> None:
    """Who was away while the log was cut gets one; who was there goes on as before."""
    with running_cluster(tmp_path, 3) as cluster:
        leader = cluster.wait_leader()
        api = leader.api()
        victim, other = cluster.followers()
        api.enqueue_many("q", 10)
        index = cluster.wait_equal()
        assert api.ok("POST", "/cluster/snapshot") == {"status": "ok", "index": index}
        victim.kill()
        until(lambda: cluster.status(leader)["status"] == "degraded", "it is not missed")
        api.enqueue_many("q", 10)
        assert api.ok("POST", "/cluster/snapshot")["index"] > index
        api.enqueue("q")
        victim.start()
        cluster.wait_equal()
        assert cluster.status(victim)["snapshot"]["installed"] == 1
        assert cluster.status(other)["snapshot"]["installed"] == 0
        assert other.api().ok("POST", "/cluster/snapshot")["index"] > 0
        assert victim.api().queue("q")["pending"] == 21


def test_each_node_has_a_mirror(tmp_path: Path) -> None:
    """A node serves searches from its own mirror, which is rebuilt when the state store comes from
    another node, with an outbox of this one."""
    sizes = {"CORVO_FAILPOINTS": "wal.segment_size=1048576,raft.log_kept_size=262144"}
    with running_cluster(tmp_path, 3, "--test-clock", environment=sizes) as cluster:
        api = cluster.wait_leader().api()
        victim = cluster.followers()[0]
        api.enqueue_many("q", 10)
        for node in cluster.nodes:
            wait_mirrored(node.api(), 10)
        victim.kill()
        for _ in range(30):
            api.enqueue("q", payload="x" * 50_000)
        assert api.ok("DELETE", f"/jobs/{api.enqueue('other')}")
        victim.start()
        cluster.wait_caught_up(victim)
        assert cluster.status(victim)["snapshot"]["installed"] == 1
        wait_mirrored(victim.api(), 40)
        page = victim.api().ok("POST", "/jobs/search", {"payload_contains": "xxx", "limit": 1})
        assert page["total"] == 30 and page["jobs"][0]["payload"] == "x" * 50_000
        api.enqueue("q")
        for node in cluster.nodes:
            wait_mirrored(node.api(), 41)
        victim.kill()
        victim.start()
        wait_mirrored(victim.api(), 41)


def test_any_node_takes_any_request(tmp_path: Path) -> None:
    """Followers pass on what is not a read, and long polls wait through them."""
    with running_cluster(tmp_path) as cluster:
        first, second = (node.api() for node in cluster.followers())
        leader = cluster.wait_leader().api()
        job_id = first.enqueue("q", payload={"to": "world"})
        assert leader.job(job_id)["state"] == "pending"
        job = second.take("q", worker_id="w")
        assert job["job_id"] == job_id
        assert first.beat(job) == "ok"
        assert second.ack(job)[0] == 200
        refused(first.ack(job | {"lease_token": "1-1"}), 409, "LEASE_LOST")
        poll = Poll(leader, cluster.followers()[0], "empty")
        leader.enqueue("empty")
        assert poll.job()["queue"] == "empty"
        keyed = {"Idempotency-Key": "once"}
        answers = {
            api.call("POST", "/enqueue", {"queue": "once"}, keyed)[1]["job_id"]
            for api in (first, second, leader)
        }
        assert len(answers) == 1


def test_a_long_poll_outlives_its_leader(tmp_path: Path) -> None:
    """Parked on a leader that is stopped, and through a follower on one that is killed."""
    with running_cluster(tmp_path) as cluster:
        for end in (ServerProcess.stop, ServerProcess.kill):
            leader = cluster.wait_leader()
            poll = Poll(leader.api(), cluster.followers()[0], "later")
            end(leader)
            api = cluster.wait_leader().api()
            api.wait_parked(1)
            job_id = api.enqueue("later")
            assert poll.job()["job_id"] == job_id
            leader.start()
            cluster.wait_caught_up(leader)


def test_from_one_server_to_two_and_to_other_addresses(tmp_path: Path) -> None:
    with running_server(tmp_path / "n1", "--node-id", "n1") as server:
        job_id = server.api().enqueue("q")
        server.stop()
    with running_cluster(tmp_path, 2) as cluster:
        second = cluster.nodes[1]
        assert second.api().job(job_id)["state"] == "pending"
        second.stop()
        second.port = free_port()
        raft = f"127.0.0.1:{free_port()}"
        second.flags = ("--node-id", "n2", "--raft-bind", raft)
        second.start()
        cluster.wait_caught_up(second)

        def told() -> bool:
            row = cluster.status(cluster.nodes[0])["nodes"][1]
            return (row["address"], row["http_addr"]) == (raft, f"127.0.0.1:{second.port}")

        until(told, "nobody says where the node is now")
        cluster.nodes[0].api().enqueue("q")
        cluster.wait_equal()


def test_reads_on_followers(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        api = cluster.wait_leader().api()
        for node in cluster.followers():
            job_id = api.enqueue("q")
            reply = node.api().raw("GET", f"/jobs/{job_id}?consistent=true")
            assert reply.status == 200
            assert int(reply.headers["X-Corvo-Index"]) > 0
            until(lambda node=node: node.api().get("//readyz")[0] == 200, "it is never ready")


def test_without_a_majority(tmp_path: Path) -> None:
    """Writes are refused and nothing of them is done; local reads go on."""
    with running_cluster(tmp_path) as cluster:
        api = cluster.wait_leader().api()
        job_id = api.enqueue("q")
        cluster.wait_equal()
        for node in cluster.followers():
            node.kill()
        began = time.monotonic()
        status, answer = api.post("/enqueue", {"queue": "q"})
        assert status in (503, 504) and answer["code"] in ("NO_LEADER", "OUTCOME_UNKNOWN")
        assert time.monotonic() - began < 15
        assert api.job(job_id)["state"] == "pending"
        refused(api.call("GET", f"/jobs/{job_id}?consistent=true"), 503, "NO_LEADER")
        refused(api.call("GET", "//readyz"), 503, "NOT_READY")


def test_starts_that_must_fail(tmp_path: Path) -> None:
    text = failed_start(tmp_path / "a", "--raft-bind", "127.0.0.1:0")
    assert "cluster-secret" in text
    with running_cluster(tmp_path, 2) as cluster:
        node = cluster.nodes[0]
        node.kill()  # its log names the members, its state store does not yet
        assert "belongs to a cluster node" in failed_start(node.data_dir, "--node-id", "n1")
        node.start()
        cluster.wait_leader().api().enqueue("q")
        cluster.wait_equal()
        node.stop()
        assert "--raft-bind" in failed_start(node.data_dir, "--node-id", "n1")


def test_windows_and_tasks_go_on_at_the_next_leader(tmp_path: Path) -> None:
    """What a rate limit has let pass still counts there, and a bulk that was begun is ended."""
    with running_cluster(tmp_path) as cluster:
        leader = cluster.wait_leader()
        api = leader.api()
        api.ok("POST", "/queues/slow/throttle", {"rate": 3, "period": "1h"})
        api.enqueue_many("slow", 10)
        assert len(api.fetch_batch("slow", lease_duration=3_600)) == 3
        ids = api.enqueue_many("many", 3_000)
        body = {"action": "cancel", "job_ids": ids, "async": True}
        path = f"/bulk/{api.ok('POST', '/jobs/bulk', body)['bulk_operation_id']}"
        until(lambda: api.ok("GET", path)["processed"] >= 500, "it does not begin")
        leader.kill()
        api = cluster.wait_leader().api()
        assert api.fetch("slow") is None and api.queue("slow")["rate_used"] == 3
        until(lambda: api.ok("GET", path)["status"] == "completed", "it does not end")
        task = api.ok("GET", path)
        assert (task["affected"], task["skipped"], task["conflicts"]) == (3_000, 0, 0)
        assert api.queue("many")["cancelled"] == 3_000


def test_text_and_grpc_through_a_follower(tmp_path: Path) -> None:
    """What workers stream is read anywhere, over a change of the leader; and gRPC has its say."""
    with running_cluster(tmp_path) as cluster:
        leader, follower = cluster.wait_leader(), cluster.followers()[0]
        api = follower.api()
        job_id = api.enqueue("q")
        job = api.take("q", lease_duration=600)
        lines = Lines(follower, f"/jobs/{job_id}/stream")
        assert lines.status == 200
        assert api.beat(job, stream_delta="hello") == "ok"
        assert json.loads(lines.frames(1)[0]["data"])["delta"] == "hello"
        with grpc.insecure_channel(f"127.0.0.1:{follower.port}") as channel:
            fetch = channel.unary_unary("/corvo.v1.WorkerService/Fetch")
            enqueue = channel.unary_unary("/corvo.v1.WorkerService/Enqueue")
            assert fetch(b"\x0a\x05other", timeout=2) == b""  # found nothing in a second
            waiting = fetch.future(b"\x0a\x05other", timeout=60)
            leader.api().wait_parked(1)
            assert enqueue(b"\x0a\x05other", timeout=10)
            assert waiting.result(timeout=30).startswith(b"\x08\x01")
            with pytest.raises(grpc.RpcError) as caught:
                enqueue(b"", timeout=10)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        leader.kill()
        assert lines.chunk() == b""
        lines.close()
        again = Lines(follower, f"/jobs/{job_id}/stream")
        assert again.status == 200
        for name in ("one", "two"):
            assert api.beat(job, stream_delta=name) == "ok"
        assert json.loads(again.frames(1)[0]["data"])["delta"].startswith("one")
        again.close()

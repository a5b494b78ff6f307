"""Real clusters that find each other in other ways, and that speak TLS; and all that a node of a
cluster says of itself."""

import json
import shutil
import signal
import ssl
import subprocess
from pathlib import Path
from typing import Any

import lmdb
import pytest
from lib.clusters import running_cluster, take_all
from lib.harness import (
    Api,
    Lines,
    Poll,
    ServerProcess,
    connect,
    failed_start,
    make_certificate,
    refused,
    running_server,
    until,
    wait_mirrored,
)
from lib.stream_peer import ConnectStream

from corvo._fast.codec import keys
from corvo.storage.lmdb import ENGINE
from corvo.storage.records import jobs as job_records


def make_authority(directory: Path) -> tuple[str, ...]:
    """An authority and a node's certificate of it; the flags that name them."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=directory)

    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(*new, "-x509", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(*new, "-subj", "/CN=node", "-keyout", "node.key", "-out", "node.csr")
    sign = ["x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key"]
    openssl(*sign, "-CAcreateserial", "-out", "node.pem")
    files = {"cert": "node.pem", "key": "node.key", "ca": "ca.pem"}
    flags = [(f"--raft-tls-{part}", str(directory / file)) for part, file in files.items()]
    return tuple(word for pair in flags for word in pair)


def test_tls_everywhere(tmp_path: Path) -> None:
    """Writes and polls through followers, a snapshot, and a newcomer that knows the port for nodes
    only."""
    make_certificate(tmp_path, "first")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    flags = "--tls-cert", cert, "--tls-key", key, "--tls-ca", cert, *make_authority(tmp_path)
    sizes = {"CORVO_FAILPOINTS": "wal.segment_size=1048576,raft.log_kept_size=262144"}
    trust = ssl.create_default_context(cafile=cert)
    with running_cluster(
        tmp_path, 3, "--test-clock", *flags, environment=sizes, tls=trust
    ) as cluster:
        leader = cluster.wait_leader()
        first, second = cluster.followers()
        assert cluster.status(first)["leader_addr"] == f"https://127.0.0.1:{leader.port}"
        job_id = first.api().enqueue("q")
        assert second.api().take("q")["job_id"] == job_id
        stream = ConnectStream(
            first.port,
            "json",
            {"x-corvo-proxy-stream": "1"},
            ssl.create_default_context(cafile=cert),
        )
        assert (
            len(stream.exchange(request_id=1, enqueues=[{"queue": "s"}])["enqueued_job_ids"]) == 1
        )
        stream.close()
        poll = Poll(leader.api(), first, "later")
        leader.api().enqueue("later")
        assert poll.job()["queue"] == "later"
        for _ in range(30):
            leader.api().enqueue("big", payload="x" * 50_000)
        newcomer = cluster.add()
        raft = leader.flags[leader.flags.index("--raft-bind") + 1]
        newcomer.flags = (*newcomer.flags[:-1], raft)
        newcomer.start()
        cluster.wait_voters(4)
        cluster.wait_equal()
        assert cluster.status(newcomer)["snapshot"]["installed"] == 1
        assert newcomer.api().queue("big")["pending"] == 30
        assert len(take_all(newcomer.api(), "big", 30)) == 30
        # Certificates are read again, if they are right.
        for text in ("the certificate was reloaded", "the old certificate stays"):
            assert first.process is not None
            first.process.send_signal(signal.SIGHUP)
            until(lambda text=text: any(text in line for line in first.log), text)
            (tmp_path / "node.pem").write_text("nonsense")
        first.api().enqueue("q")


def test_a_node_that_finds_the_cluster_by_dns(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 2) as cluster:
        third = cluster.add()
        port = cluster.nodes[0].port
        third.flags = (*third.flags[:-2], f"--discover=dns:localhost:{port}")
        third.start()
        cluster.wait_voters(3)
        job_id = third.api().enqueue("q")
        third.kill()
        third.start()
        cluster.wait_caught_up(third)
        assert third.api().job(job_id)["state"] == "pending"


NUMBERS = (
    "applied_index",
    "apply_max_pending",
    "apply_pending_now",
    "applied_total",
    "base_flushes_total",
    "commit_index",
    "durable_index",
    "entries_total",
    "last_index",
    "overload_total",
    "requests_held",
    "requests_passed_on",
    "term",
    "waiting_fetches",
    "waiting_for_ends",
)
TEXTS = ("cluster_id", "leader_addr", "leader_id", "mode", "node_id")
TEXTS += ("raft_store", "state", "state_hash")
OF_EVERY_NODE = {
    "address",
    "http_addr",
    "id",
    "member_id",
    "role",
    "self",
    "state_differs",
    "voter",
}
OF_PEERS = {"connected", "round_trip_ms", "last_contact_ms"}
AS_THE_LEADER_SEES_IT = {
    "inflight",
    "lag",
    "match_index",
    "next_index",
    "progress",
    "snapshot_index",
    "status",
}


def test_status_and_metrics_of_a_node(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        leader = cluster.wait_leader()
        followers = cluster.followers()
        job = followers[0].api().enqueue("q")
        leader.api().take("q")
        index = cluster.wait_equal()
        until(lambda: cluster.status(leader)["status"] == "healthy", "never healthy")
        statuses = [cluster.status(node) for node in cluster.nodes]
        for node, status in zip(cluster.nodes, statuses, strict=True):
            name = node.flags[1]
            leads = node is leader
            assert status.keys() == {
                *NUMBERS,
                *TEXTS,
                *("apply_time_hist", "log_flush_time_hist", "queue_time_hist"),
                *("disk_full", "durable", "raft_nosync", "serving", "state_is_wrong"),
                *("nodes", "peer_refusals", "snapshot", "sqlite_mirror", "sqlite_rebuild"),
                *("status", "transferring_to"),
            }
            assert all(isinstance(status[key], int) for key in NUMBERS), status
            assert all(isinstance(status[key], str) and status[key] for key in TEXTS), status
            assert status["mode"] == "cluster" and status["node_id"] == name
            assert status["state"] == ("Leader" if leads else "Follower")
            assert status["serving"] == leads and status["leader_id"] == leader.flags[1]
            assert status["leader_addr"] == f"127.0.0.1:{leader.port}"
            assert status["term"] == statuses[0]["term"] >= 1
            assert status["cluster_id"] == statuses[0]["cluster_id"]
            assert status["applied_index"] == status["commit_index"] == index
            assert status["last_index"] == status["durable_index"] == index
            assert status["state_hash"] == statuses[0]["state_hash"] != "0" * 32
            assert (status["durable"], status["raft_nosync"]) == (True, False)
            assert not status["state_is_wrong"] and not status["disk_full"]
            assert not status["transferring_to"] and not status["requests_held"]
            assert status["requests_passed_on"] == (1 if node is followers[0] else 0)
            assert status["entries_total"] == (2 if leads else 0)
            assert status["log_flush_time_hist"]["count"] > 0
            assert status["peer_refusals"].keys() <= {"unknown"}
            assert status["snapshot"] == {
                **dict.fromkeys(("prepared", "sent", "failed", "received", "installed"), 0),
                "sending": {},
                "loading": False,
            }
            check_nodes(status, leads, leader, cluster.nodes)
        assert leader.api().job(job)["state"] == "active"
        page = leader.api().raw("GET", "/metrics").body.decode()
        assert "corvo_peer_refusals_total" in page
        assert "corvo_cluster_state_differs 0.0" in page


def check_nodes(
    status: dict[str, Any], leads: bool, leader: ServerProcess, nodes: list[ServerProcess]
) -> None:
    """The list of nodes in the status of one of them."""
    assert [row["id"] for row in status["nodes"]] == [node.flags[1] for node in nodes]
    for row, node in zip(status["nodes"], nodes, strict=True):
        own = row["id"] == status["node_id"]
        seen = {"lag", "last_contact_ms", "status"} if own else OF_PEERS
        known = AS_THE_LEADER_SEES_IT if leads and not own else set()
        # Followers do not hear of each other.
        assert row.keys() - {"last_contact_ms"} == (OF_EVERY_NODE | seen | known) - {
            "last_contact_ms"
        }
        assert row["member_id"].startswith(f"{row['id']}/") and row["self"] == own
        assert row["address"] == node.flags[3] and row["http_addr"] == f"127.0.0.1:{node.port}"
        assert row["role"] == ("leader" if node is leader else "follower")
        assert row["voter"] and not row["state_differs"]
        assert row.get("status", "healthy") == "healthy" and row.get("lag", 0) == 0
        if not own:
            assert row["connected"]
        if known:
            assert row["match_index"] == status["last_index"] == row["next_index"] - 1
            assert (row["inflight"], row["progress"]) == (0, "replicate")
            assert row["last_contact_ms"] < 1000


def test_a_diverged_state_is_detected(tmp_path: Path) -> None:
    """A row of a follower is changed on its disk. The next change of that job gives it away."""
    with running_cluster(tmp_path, 3, "--no-mirror") as cluster:
        leader = cluster.wait_leader()
        job_id = leader.api().enqueue("q")
        cluster.wait_equal()
        victim, other = cluster.followers()
        assert victim.stop() == 0
        path = victim.data_dir / "state"
        with lmdb.open(str(path), lib_version=ENGINE) as env, env.begin(write=True) as transaction:
            row = transaction.get(keys.job(job_id))
            job = job_records.decode_head(job_id, row)
            job.event_seq += 1
            transaction.put(keys.job(job_id), job_records.encode_head(job))
        victim.start()
        cluster.wait_caught_up(victim)
        assert cluster.status(victim)["status"] != "diverged"
        leader.api().take("q")
        until(lambda: cluster.status(victim)["state_is_wrong"], "nobody notices")
        refused(victim.api().call("GET", "//readyz"), 503, "NOT_READY")
        name = victim.flags[1]
        for node in (leader, other):
            until(lambda node=node: cluster.status(node)["status"] == "diverged", "it is quiet")
            rows = cluster.status(node)["nodes"]
            assert [row["id"] for row in rows if row["state_differs"]] == [name]
            assert not cluster.status(node)["state_is_wrong"]
        page = victim.api().raw("GET", "/metrics").body.decode()
        assert "corvo_cluster_state_differs 2.0" in page
        # As one that lost its data it comes back whole.
        leader.api().ok("POST", "/cluster/remove", {"node_id": name})
        until(lambda: any("the state differs" in line for line in victim.log), "it is quiet")
        victim.kill()
        shutil.rmtree(victim.data_dir)
        for node in cluster.nodes:
            node.log.clear()
        if "--join" not in victim.flags:
            victim.flags = (*victim.flags, "--join", f"127.0.0.1:{leader.port}")
        victim.start()
        cluster.wait_voters(3)
        until(lambda: cluster.status(leader)["status"] == "healthy", "it is not whole again")


SIZES = "wal.segment_size=1048576,raft.log_kept_size=262144"


def lag(api: Api) -> None:
    """More than the log keeps for followers."""
    for _ in range(30):
        api.enqueue("q", payload="x" * 50_000)


def longest_silence_ms(status: dict[str, Any]) -> int:
    """Of all nodes. After so many seconds the connections with it are given up."""
    return max(row["last_contact_ms"] for row in status["nodes"])


def test_events_of_a_node_that_gets_a_snapshot(tmp_path: Path) -> None:
    """Who listens there misses nothing: what the node has not applied itself is read from the log
    of events that came with the state."""
    environment = {"CORVO_FAILPOINTS": SIZES}
    with running_cluster(tmp_path, 3, "--test-clock", environment=environment) as cluster:
        api = cluster.wait_leader().api()
        api.enqueue("q")
        cluster.wait_equal()
        victim = cluster.followers()[0]
        stream = Lines(victim, "/events?from=start")
        assert victim.process is not None
        victim.process.send_signal(signal.SIGSTOP)
        leader = cluster.wait_leader()
        until(lambda: longest_silence_ms(cluster.status(leader)) > 7_000, "it is not missed")
        flushes = cluster.status(leader)["base_flushes_total"]
        lag(api)
        # The log goes up to where the state store is.
        until(lambda: cluster.status(leader)["base_flushes_total"] > flushes, "no flush")
        victim.process.send_signal(signal.SIGCONT)
        cluster.wait_caught_up(victim)
        assert cluster.status(victim)["snapshot"]["installed"] == 1
        for count in (31, 1):  # before anything else happens, and then
            seqs = [json.loads(frame["data"])["seq"] for frame in stream.frames(count)]
            assert seqs == (list(range(1, 32)) if count > 1 else [32])
            api.enqueue("q")
        stream.close()


@pytest.mark.parametrize(
    "point", ["snapshot.before_current", "snapshot.installed", "snapshot.restored"]
)
def test_killed_while_it_installs_a_snapshot(tmp_path: Path, point: str) -> None:
    """The snapshot has the outbox of the node that sent it, which is still there when this node is
    killed. The mirror of this node does not take it for its own."""
    environment = {"CORVO_FAILPOINTS": SIZES}
    with running_cluster(tmp_path, 3, "--test-clock", environment=environment) as cluster:
        api = cluster.wait_leader().api()
        api.enqueue_many("q", 10)
        victim = cluster.followers()[0]
        wait_mirrored(victim.api(), 10)
        victim.kill()
        lag(api)
        victim.environment = victim.environment | {"CORVO_FAILPOINTS": f"{SIZES},{point}=kill"}
        victim.start()
        assert victim.process is not None
        assert victim.process.wait(60) == -signal.SIGKILL
        victim.environment = cluster.environment
        victim.start()
        cluster.wait_caught_up(victim)
        wait_mirrored(victim.api(), 40)
        api.enqueue("q")
        wait_mirrored(victim.api(), 41)
        cluster.wait_equal()
        assert len({cluster.status(node)["state_hash"] for node in cluster.nodes}) == 1


def test_the_state_of_another_cluster_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with running_server(tmp_path / name) as server:
            server.api().enqueue("q")
            server.stop()
    shutil.copy(tmp_path / "a" / "state" / "data.mdb", tmp_path / "b" / "state" / "data.mdb")
    assert "the state belongs to cluster" in failed_start(tmp_path / "b")


def test_an_idempotency_key_survives_a_change_of_leader(tmp_path: Path) -> None:
    """Across three leaders, on a node that has the outcome from a snapshot only, and when that one
    leads."""
    environment = {"CORVO_FAILPOINTS": SIZES}
    key = {"Idempotency-Key": "once"}
    with running_cluster(tmp_path, 3, "--test-clock", environment=environment) as cluster:
        ids = set()

        def ask(node: ServerProcess) -> None:
            status, answer = node.api().call("POST", "/enqueue", {"queue": "once"}, key)
            assert status in (200, 201), answer
            ids.add(answer["job_id"])

        def let_lead(node: ServerProcess) -> None:
            name = node.flags[1]
            cluster.wait_leader().api().ok("POST", "/cluster/transfer", {"node_id": name})
            until(lambda: cluster.leader() is node, "it does not lead")

        for node in cluster.nodes:
            if cluster.wait_leader() is not node:
                let_lead(node)
            for other in cluster.nodes:
                ask(other)
        lag(cluster.wait_leader().api())
        newcomer = cluster.add().start()
        cluster.wait_voters(4)
        cluster.wait_equal()
        assert cluster.status(newcomer)["snapshot"]["installed"] == 1
        let_lead(newcomer)
        ask(newcomer)
        assert len(ids) == 1
        assert newcomer.api().queue("once")["pending"] == 1


def test_many_writes_share_a_flush(tmp_path: Path) -> None:
    """256 requests at a time; a flush for 32 of them, or more."""
    body = b'{"queue":"q"}'
    request = b"POST /api/v1/enqueue HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
    request %= (len(body), body)
    with running_cluster(tmp_path, 3, "--no-mirror") as cluster:
        leader = cluster.wait_leader()
        before = cluster.status(leader)["log_flush_time_hist"]["count"]
        sockets = [connect(leader.port) for _ in range(32)]
        for _ in range(8):
            for client in sockets:
                client.sendall(8 * request)
            for client in sockets:
                answers = b""
                while answers.count(b"HTTP/1.1 201") < 8:
                    answers += client.recv(65536)
        flushes = cluster.status(leader)["log_flush_time_hist"]["count"] - before
        assert leader.api().queue("q")["pending"] == 8 * 256
        assert flushes <= 8 * 256 / 32
        for client in sockets:
            client.close()

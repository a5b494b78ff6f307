"""Real clusters that find each other in other ways, and that speak TLS; and all that a node of a
cluster says of itself."""

import ssl
import subprocess
from pathlib import Path

from clusters import running_cluster, take_all
from harness import Poll, make_certificate


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

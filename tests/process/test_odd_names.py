"""Names that cannot be part of a key: the door refuses them, and a log that has one is harmless.
An entry that cannot be applied stops every node, until an operator skips it."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from lib import forged_ops
from lib.clusters import ClusterProcess
from lib.harness import Api, ServerProcess, refused, running_server, until

NUL = "a\0b"
EXIT_ENTRY_FAILED = 3


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/enqueue", {"queue": "q", "parent_id": NUL}),
        ("/enqueue", {"queue": "q", "parent_id": "a\x1fb"}),
        ("/enqueue", {"queue": "q", "parent_id": "a" * 129}),
        ("/enqueue", {"queue": NUL}),
        ("/enqueue", {"queue": "q", "batch_id": NUL}),
        ("/enqueue", {"queue": "q", "depends_on": [NUL]}),
        ("/enqueue", {"queue": "q", "chain_id": NUL}),
        ("/enqueue", {"queue": "q", "chain": {"steps": [{"queue": "q"}, {"queue": NUL}]}}),
        ("/enqueue/batch", {"jobs": [{"queue": "q", "parent_id": NUL}]}),
        ("/enqueue/batch", {"jobs": [{"queue": "q"}], "batch": {"callback_queue": NUL}}),
        ("/jobs/bulk", {"job_ids": [NUL], "action": "cancel"}),
        ("/jobs/bulk", {"job_ids": ["j"], "action": "move", "move_to_queue": NUL}),
        ("/ack/batch", {"acks": [{"job_id": NUL}]}),
        ("/heartbeat", {"jobs": {NUL: {}}}),
        ("/queues/a%00b/pause", {}),
        ("/schedules", {"name": NUL, "cron": "* * * * *", "queue": "q"}),
        ("/schedules", {"name": "n", "cron": "* * * * *", "queue": NUL}),
        ("/enqueue", {"queue": "a::b"}),
        ("/enqueue", {"queue": "q", "chain": {"steps": [{"queue": "q"}, {"queue": "::"}]}}),
        ("/fetch", {"queues": ["q", "a::b"], "timeout": 0}),
        ("/jobs/bulk", {"job_ids": ["j"], "action": "move", "move_to_queue": "a::"}),
        ("/queues/a%3A%3Ab/pause", {}),
        ("/schedules", {"name": "n", "cron": "* * * * *", "queue": "::a"}),
    ],
)
def test_the_door_refuses_names(api: Api, path: str, body: Any) -> None:
    refused(api.post(path, body), 400, "VALIDATION_ERROR")
    assert api.post("/enqueue", {"queue": "q"})[0] == 201


def test_the_refusal_names_the_field(api: Api) -> None:
    reply = refused(api.post("/enqueue", {"queue": "q", "parent_id": NUL}), 400, "VALIDATION_ERROR")
    assert reply["error"] == r'parent_id "a\u0000b" contains a control character'


def test_texts_that_are_no_names_may_have_any_character(data_dir: Path) -> None:
    """They survive a flush, a restart and the mirror."""
    with running_server(data_dir) as server:
        api = server.api()
        job_id = api.enqueue(
            "q",
            group_key=NUL,
            unique_key=NUL,
            tags={NUL: "\x01"},
            payload={NUL: NUL},
            result_schema={},
        )
        job = api.take("q", worker_id=NUL, hostname="\x7f\0")
        assert job["job_id"] == job_id
        lines = [{"message": NUL}]
        api.ok("POST", f"/jobs/{job_id}/logs", {"lease_token": job["lease_token"], "lines": lines})
        assert api.fail(job, error="\0\x1b", backtrace="\0")[0] == 200
        assert server.stop() == 0
        server.start()
        shown = server.api().job(job_id)
        assert (shown["group_key"], shown["tags"]) == (NUL, {NUL: "\x01"})
        until(lambda: server.api().post("/jobs/search", {})[1].get("total") == 1, "not mirrored")


def forging(server: ServerProcess) -> ServerProcess:
    """Have the server propose ops on signals from its next start on."""
    server.prefix = [sys.executable, str(Path(forged_ops.__file__))]
    server.environment = server.environment | {"PYTHONPATH": ":".join(sys.path)}
    return server


def send(server: ServerProcess, number: signal.Signals) -> None:
    assert server.process is not None
    server.process.send_signal(number)


def exit_status(server: ServerProcess) -> int:
    assert server.process is not None
    return server.process.wait(30)


def failed_entry(server: ServerProcess) -> int:
    """The index in the command that the log of a stopped node names."""
    line = next(line for line in reversed(server.log) if "--skip-entry" in line)
    assert "level=error" in line or "level=critical" in line
    return int(line.rpartition("--skip-entry ")[2].strip().rstrip('"'))


def refused_ops(api: Api) -> int:
    page = api.raw("GET", "/metrics").body.decode()
    line = next(line for line in page.splitlines() if line.startswith("corvo_ops_refused_total"))
    return int(float(line.split()[1]))


def test_a_log_of_an_older_version_with_such_a_name(data_dir: Path) -> None:
    server = forging(ServerProcess(data_dir, "--no-mirror")).start()
    try:
        send(server, signal.SIGUSR2)
        until(lambda: refused_ops(server.api()) == 1, "the op is not refused")
        job_id = server.api().enqueue("q")
        server.kill()
        server.start()
        api = server.api()
        assert refused_ops(api) == 1, "the log is applied again"
        assert api.take("q")["job_id"] == job_id
        assert api.call("GET", "/jobs/forged")[0] == 404
        assert server.stop() == 0
    finally:
        server.kill()


def test_an_entry_that_cannot_be_applied(data_dir: Path) -> None:
    server = forging(ServerProcess(data_dir, "--no-mirror")).start()
    try:
        job_id = server.api().enqueue("q")
        send(server, signal.SIGUSR1)
        assert exit_status(server) == EXIT_ENTRY_FAILED
        index = failed_entry(server)
        text = f"entry {index} cannot be applied: op 1 (RetryJob): CodecError: version 2"
        assert any("level=error" in line and text in line for line in server.log)
        for flags in ((), ("--skip-entry", str(index - 1)), ("--skip-entry", str(index + 1))):
            server.flags = ("--no-mirror", *flags)
            with pytest.raises(AssertionError, match="did not start"):
                server.start()
            assert exit_status(server) == EXIT_ENTRY_FAILED and failed_entry(server) == index
        server.flags = ("--no-mirror", "--skip-entry", str(index))
        server.start()
        api = server.api()
        assert api.take("q")["job_id"] == job_id
        found = api.ok("GET", "/cluster/events?limit=100")["events"]
        (event,) = [event for event in found if event["type"] == "entry.skipped"]
        assert event["data"] == {"index": index, "ops": ["RetryJob"]}
        assert server.stop() == 0
        server.flags = ("--no-mirror",)
        server.start()
        assert server.stop() == 0
    finally:
        server.kill()


def test_three_nodes_skip_an_entry(tmp_path: Path) -> None:
    """A node without the setting stops at the entry, too; with it, all nodes stay equal."""
    cluster = ClusterProcess(tmp_path, 3, "--no-mirror")
    try:
        for node in cluster.nodes:
            forging(node)
        leader = cluster.start().wait_leader()
        job_id = leader.api().enqueue("q")
        cluster.wait_equal()
        send(leader, signal.SIGUSR1)
        until(lambda: len(cluster.up()) <= 1, "two nodes do not stop")
        last = next((node for node in cluster.nodes if node in cluster.up()), cluster.nodes[2])
        stopped = [node for node in cluster.nodes if node is not last]
        assert [exit_status(node) for node in stopped] == [EXIT_ENTRY_FAILED] * 2
        index = failed_entry(leader)
        for node in stopped:
            node.flags = (*node.flags, "--skip-entry", str(index))
            node.start()
        assert exit_status(last) == EXIT_ENTRY_FAILED and failed_entry(last) == index
        last.flags = (*last.flags, "--skip-entry", str(index))
        last.start()
        cluster.wait_leader()
        assert cluster.wait_leader().api().take("q")["job_id"] == job_id
        cluster.wait_equal()
        for node in cluster.nodes:
            until(lambda node=node: metric(node, "state_comparisons_total"), "never compared")
            assert metric(node, "state_mismatches_total") == metric(node, "state_differs") == 0
            found = node.api().ok("GET", "/cluster/events?limit=100")["events"]
            assert [row["data"] for row in found if row["type"] == "entry.skipped"] == [
                {"index": index, "ops": ["RetryJob"]}
            ]
    finally:
        cluster.stop()


def metric(node: ServerProcess, name: str) -> float:
    """A metric of the cluster, without labels."""
    page = node.api().raw("GET", "/metrics").body.decode()
    name = f"corvo_cluster_{name} "
    return float(next(line for line in page.splitlines() if line.startswith(name)).split()[1])

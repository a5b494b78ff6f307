"""Attacks on a running server: each is answered as it should be, counted, and bounded in memory,
and a client that does nothing wrong is served all the while."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lib.attacks import ATTACKS, CLASSES, UNTESTED, Attack, counted
from lib.clusters import running_cluster
from lib.conversations import converse
from lib.harness import ServerProcess, running_server
from lib.honest import honest_client

from corvo._fast.http import exchange

MIB = 1024 * 1024
NEW_MEMORY_MAX = 48 * MIB
# How long an honest client may wait while the server works for others, in its CPU time. The worst
# is 17 ms compiled (chunks of a mebibyte), and 160 ms interpreted (Huffman codes).
COMPILED = not exchange.__file__.endswith(".py")
FELT_MAX_S = 0.05 if COMPILED else 0.5
ON_FOLLOWER = 33


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("corvo") / "data"
    with running_server(data_dir, "--no-durable", "--test-clock") as server:
        yield server


@pytest.fixture(scope="module")
def follower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_cluster(tmp_path_factory.mktemp("corvo")) as cluster:
        yield cluster.followers()[0]


def memory(server: ServerProcess, kind: str) -> int:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(rf"{kind}:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def forget_peak(server: ServerProcess) -> None:
    assert server.process is not None
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


def test_every_class_is_tested_or_says_why_not() -> None:
    tested = {attack.number for attack in ATTACKS}
    assert not tested & set(UNTESTED)
    assert tested | set(UNTESTED) == set(CLASSES) == set(range(1, 35))


@pytest.mark.parametrize("attack", ATTACKS, ids=[f"{a.number} {a.name}" for a in ATTACKS])
def test_attack(request: pytest.FixtureRequest, attack: Attack) -> None:
    victim = "follower" if attack.number == ON_FOLLOWER else "victim"
    server: ServerProcess = request.getfixturevalue(victim)
    api = server.api()
    assert server.process is not None
    with honest_client(server.port, server.process.pid) as honest:
        before, used = counted(api, attack.counter), memory(server, "VmRSS")
        forget_peak(server)
        honest.ask()
        attack.run(server)
        while not honest.has_answered(0):
            attack.run(server)
        felt_s = honest.p99_s()
    assert counted(api, attack.counter) > before
    assert memory(server, "VmHWM") - used < NEW_MEMORY_MAX
    assert felt_s < FELT_MAX_S
    api.close()


def test_trailers_mean_nothing(victim: ServerProcess) -> None:
    head = b"POST /api/v1/enqueue HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailers = b"0\r\nX-Corvo-Namespace: x\r\nAuthorization: Bearer y\r\n\r\n"
    request = head + b'd\r\n{"queue":"t"}\r\n' + trailers
    answer = converse(victim.port, [request + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
    assert answer.count(b"HTTP/1.1 201 ") == answer.count(b"HTTP/1.1 200 ") == 1

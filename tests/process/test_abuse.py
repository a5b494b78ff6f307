"""Attacks on a running server: each is answered as it should be, counted, and bounded in memory,
and a client that does nothing wrong is served all the while."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from h2_peer import ENHANCE_YOUR_CALM, FLOODS, PREFACE, Peer, flood
from harness import ServerProcess, connect, running_server
from hyperframe import frame as frames

MIB = 1024 * 1024
PATIENCE_S = 30.0
GET = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /api/v1/enqueue HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
NEW_MEMORY_MAX = 48 * MIB


class Honest(threading.Thread):
    """Enqueues all the time; remembers the longest wait."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(daemon=True)
        self._api = server.api()
        self._enough = threading.Event()
        self.served = threading.Event()
        self.waits: list[float] = []
        self.failed = ""

    def run(self) -> None:
        try:
            while not self._enough.is_set():
                began = time.monotonic()
                self._api.enqueue("honest", payload={})
                self.waits.append(time.monotonic() - began)
                self.served.set()
        except Exception as error:  # told by the test
            self.failed = repr(error)
        self._api.close()

    def stop(self) -> None:
        self._enough.set()
        self.join()
        assert not self.failed and self.waits and max(self.waits) < 2.0


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("corvo") / "data", "--no-durable") as server:
        yield server


def refusals(server: ServerProcess) -> dict[str, float]:
    api = server.api()
    page = api.raw("GET", "/metrics").body.decode()
    api.close()
    found = re.findall(r'^corvo_http_refusals_total\{reason="(\w+)"\} (\S+)$', page, re.MULTILINE)
    return {reason: float(count) for reason, count in found}


def memory(server: ServerProcess) -> int:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def converse(port: int, sent: list[bytes]) -> bytes:
    """All that is answered until the server has had enough, or until it stops answering."""
    answers: list[bytes] = []
    with connect(port) as client:
        client.settimeout(PATIENCE_S)

        def read() -> None:
            with contextlib.suppress(ConnectionError):
                while data := client.recv(65_536):
                    answers.append(data)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        with contextlib.suppress(ConnectionError):
            for piece in sent:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
        reader.join(PATIENCE_S)
        assert not reader.is_alive()
    return b"".join(answers)


def goaway_code(answer: bytes) -> int:
    code = -1
    while len(answer) >= 9:
        frame, size = frames.Frame.parse_frame_header(memoryview(answer[:9]))
        if isinstance(frame, frames.GoAwayFrame) and len(answer) >= 9 + size:
            frame.parse_body(memoryview(answer[9 : 9 + size]))
            code = frame.error_code
        answer = answer[9 + size :]
    return code


@contextlib.contextmanager
def under_attack(server: ServerProcess, reason: str) -> Iterator[None]:
    """What has to hold around an attack of any kind."""
    honest = Honest(server)
    honest.start()
    assert honest.served.wait(PATIENCE_S)
    before, used = refusals(server), memory(server)
    yield
    honest.stop()
    assert refusals(server)[reason] > before[reason]
    assert memory(server) - used < NEW_MEMORY_MAX


PLAIN: list[tuple[str, Callable[[], list[bytes]], bytes, str]] = [
    (
        "endless head",
        lambda: [POST, *[b"X: " + b"y" * 1_000 + b"\r\n"] * 5_000],
        b" 431 ",
        "head_size",
    ),
    ("endless target", lambda: [b"GET /", *[b"y" * 1_000] * 5_000], b" 414 ", "head_size"),
    (
        "endless chunks",
        lambda: [CHUNKED, *[b"100000\r\n" + b"x" * MIB + b"\r\n"] * 40],
        b" 413 ",
        "body_size",
    ),
    (
        "announced body",
        lambda: [POST + b"Content-Length: 99999999999\r\n\r\n"],
        b" 413 ",
        "body_size",
    ),
    ("tiny chunks", lambda: [CHUNKED, b"1\r\nx\r\n" * 200_000], b" 400 ", "chunks"),
    ("extensions", lambda: [CHUNKED, b"1;", *[b"x" * 1_000] * 5_000], b" 400 ", "chunks"),
    ("trailers", lambda: [CHUNKED, b"0\r\n", b"a: b\r\n" * 100_000], b" 400 ", "trailers"),
    (
        "smuggling",
        lambda: [POST + b"Content-Length: 4\r\n" + CHUNKED[len(POST) :]],
        b" 400 ",
        "malformed",
    ),
    ("pipeline", lambda: [GET * 20_000], b" 200 ", "pipeline"),
    (
        "upgrade",
        lambda: [POST + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}"],
        b" 400 ",
        "upgrade",
    ),
]


@pytest.mark.parametrize(("name", "sent", "answer", "reason"), PLAIN, ids=[row[0] for row in PLAIN])
def test_plain_attacks(
    victim: ServerProcess, name: str, sent: Callable[[], list[bytes]], answer: bytes, reason: str
) -> None:
    with under_attack(victim, reason):
        for _ in range(3):
            assert answer in converse(victim.port, sent())


# Floods of one kind of frame.
BUDGETED = ("settings", "pings", "priorities", "window updates", "empty data", "unknown frames")


@pytest.mark.parametrize(("name", "reason"), FLOODS.items())
def test_floods(victim: ServerProcess, name: str, reason: str) -> None:
    sent = [frame.serialize() for frame in flood(name, Peer())]
    hello = PREFACE + frames.SettingsFrame(0).serialize()
    # A client may be told about many single frames before the last one of them arrives.
    # Budgets grow meanwhile, too.
    burst = b"".join(sent + sent[1:] if name in BUDGETED else sent)
    with under_attack(victim, reason):
        for _ in range(3):
            answer = converse(victim.port, [hello, burst])
            assert goaway_code(answer) == ENHANCE_YOUR_CALM


def test_trailers_mean_nothing(victim: ServerProcess) -> None:
    answer = converse(
        victim.port, [CHUNKED + b"2\r\n{}\r\n0\r\nX-Corvo-Namespace: x\r\n\r\n" + GET]
    )
    assert answer.count(b"HTTP/1.1 ") == 2 and answer.endswith(b"}")


def test_forwarding_headers_of_strangers_mean_nothing(victim: ServerProcess) -> None:
    api = victim.api()
    spoofed = {"X-Corvo-Forwarded": "1", "X-Corvo-Proxy-Stream": "1", "X-Forwarded-For": "9.9.9.9"}
    assert api.raw("GET", "/queues", headers=spoofed).status == 200
    api.close()


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b"\x1f\x8b\x08" + b"\0" * 999]
)
def test_deep_and_packed_bodies_are_refused(victim: ServerProcess, body: bytes) -> None:
    length = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert b" 400 " in converse(victim.port, [POST + length + body])

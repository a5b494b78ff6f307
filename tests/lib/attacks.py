"""Attacks on a running server, by class of abuse.

An attack is a function that abuses the server once and checks the reply. Its row in ATTACKS names
the metric that counts it. `tests/process/test_abuse.py` checks the invariants of all attacks, and
that no class is missing.
"""

import contextlib
import gzip
import resource
import select
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from hyperframe import frame as frames

from corvo import limits
from lib.conversations import (
    PATIENCE_S,
    Multiplexed,
    converse,
    goaway_code,
    read_all,
    stalled,
)
from lib.h2_peer import (
    CANCEL,
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    FLOODS,
    FRAME_SIZE_ERROR,
    GET,
    POST,
    PREFACE,
    PROTOCOL_ERROR,
    STREAM_CLOSED,
    Pairs,
    Peer,
    data,
    flood,
)
from lib.harness import Api, ServerProcess, advance, connect, post_bytes, until

KIB = 1024
MIB = 1024 * KIB
HELLO = PREFACE + frames.SettingsFrame(0).serialize()

_GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_POST = b"POST /api/v1/enqueue HTTP/1.1\r\nHost: localhost\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"
_RPC = "//corvo.v1.WorkerService/"
_RPC_ERRORS = 'corvo_http_request_errors_total{method="POST",route="/corvo.v1.WorkerService'
_ERRORS = "corvo_http_request_errors_total{"

CLASSES = {
    1: "heads that are too large",
    2: "heads that come slowly, or never",
    3: "bodies that come slowly",
    4: "replies that are not read",
    5: "bodies that are too large",
    6: "tiny chunks, endless extensions",
    7: "requests that two servers read as different ones",
    8: "trailers: too many, or passed off as headers",
    9: "floods of pipelined requests",
    10: "offers of an upgrade that hide something",
    11: "too many connections",
    12: "streams that are opened and reset",
    13: "streams that the server is made to reset",
    14: "header blocks in endless pieces",
    15: "header blocks that grow when they are decoded",
    16: "header blocks that take long to decode",
    17: "tables of headers that are resized again and again",
    18: "floods of settings",
    19: "floods of pings",
    20: "answers to pings and settings that are not read",
    21: "floods of frames with no data",
    22: "floods of frames with little data",
    23: "header fields without a name",
    24: "floods of priorities",
    25: "floods of window updates",
    26: "oddities of any other kind, again and again",
    27: "more in one read than others should wait for",
    28: "header fields that hold more than one",
    29: "names that would split a reply",
    30: "compressed bodies that grow",
    31: "messages that are too large, too long or too deep",
    32: "more open streams than there may be",
    33: "headers that only other nodes may send",
    34: "another door to the same thing, without a lock",
}
UNTESTED = {
    34: "nobody is authenticated in this version, so no door has a lock: addresses that other "
    "machines can reach are refused without --insecure",
}

Run = Callable[[ServerProcess], None]


class Attack(NamedTuple):
    """`counter` is the prefix of the /metrics series that count it."""

    number: int
    name: str
    counter: str
    run: Run


ATTACKS: list[Attack] = []


def attack(number: int, counter: str) -> Callable[[Run], Run]:
    """Add a function to ATTACKS. A counter without a prefix is a reason for rejected requests."""
    series = counter if "{" in counter else f'corvo_http_refusals_total{{reason="{counter}"}}'

    def enter(run: Run) -> Run:
        ATTACKS.append(Attack(number, run.__name__.replace("_", " "), series, run))
        return run

    return enter


def counted(api: Api, series: str) -> float:
    """Return the sum of all /metrics series with this prefix."""
    lines = api.raw("GET", "/metrics").body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))


# ---- HTTP/1.1 ----


@attack(1, "head_size")
def endless_head(server: ServerProcess) -> None:
    sent = [_POST, *[b"X: " + b"y" * 1_000 + b"\r\n"] * 5_000]
    assert b" 431 " in converse(server.port, sent)


@attack(1, "head_size")
def endless_target(server: ServerProcess) -> None:
    assert b" 414 " in converse(server.port, [b"GET /", *[b"y" * 1_000] * 5_000])


@attack(2, "head_time")
def slow_heads(server: ServerProcess) -> None:
    answers = stalled(server, 20, [_POST], "11s")
    assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)


@attack(2, "head_time")
def slow_prefaces(server: ServerProcess) -> None:
    assert stalled(server, 20, [b""], "11s") == [b""] * 20
    assert all(b" 408 " in a for a in stalled(server, 20, [PREFACE[:5]], "11s"))
    answers = stalled(server, 20, [PREFACE], "11s")
    assert all(answer and b" 408 " not in answer for answer in answers)


@attack(3, "body_time")
def slow_bodies(server: ServerProcess) -> None:
    head = _POST + b"Content-Length: 9999\r\n\r\n"
    for sent, pause in (([head + b"x"], "31s"), ([head, b"x", b"x"], "16s")):
        answers = stalled(server, 20, sent, pause)
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)


@attack(3, "body_time")
def slow_bodies_of_streams(server: ServerProcess) -> None:
    api = server.api()
    with Multiplexed(server.port) as client:
        streams = range(1, 41, 2)
        for stream in streams:
            client.send(client.peer.headers(stream, POST), data(stream, b"x"))
        client.ask(41)
        client.read(lambda: len(client.statuses) == 1)  # the other requests have been read now, too
        advance(api, "31s")
        client.read(lambda: len(client.statuses) == len(streams) + 1)
        assert list(client.statuses.values()) == [404] + [408] * len(streams)
    api.close()


@attack(4, "unread_replies")
def readers_that_do_not_read(server: ServerProcess) -> None:
    api = server.api()
    before = counted(api, _refused("unread_replies"))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
        client.connect(("127.0.0.1", server.port))
        client.setblocking(False)
        while select.select([], [client], [], 1.0)[1]:
            client.send(_GET * 500)
        advance(api, "61s")
        until(lambda: counted(api, _refused("unread_replies")) > before, "it may stay")
    api.close()


@attack(4, "unread_replies")
def windows_that_stay_closed(server: ServerProcess) -> None:
    api = server.api()
    with Multiplexed(server.port, window=0) as client:
        for stream in range(1, 101, 2):
            client.ask(stream, [*GET[:3], (":path", "/api/v1/info")])
        client.read(lambda: len(client.statuses) == 50)
        advance(api, "61s")
        client.read(lambda: len(client.resets()) == 50)
        assert client.resets() == [CANCEL] * 50
    api.close()


@attack(5, "body_size")
def endless_chunks(server: ServerProcess) -> None:
    sent = [_CHUNKED, *[b"100000\r\n" + b"x" * MIB + b"\r\n"] * 40]
    assert b" 413 " in converse(server.port, sent)


@attack(5, "body_size")
def announced_bodies(server: ServerProcess) -> None:
    sent = [_POST + b"Content-Length: 99999999999\r\n\r\n"]
    assert b" 413 " in converse(server.port, sent)


@attack(6, "chunks")
def tiny_chunks(server: ServerProcess) -> None:
    assert b" 400 " in converse(server.port, [_CHUNKED, b"1\r\nx\r\n" * 200_000])


@attack(6, "chunks")
def chunk_extensions(server: ServerProcess) -> None:
    assert b" 400 " in converse(server.port, [_CHUNKED, b"1;", *[b"x" * 1_000] * 5_000])


@attack(7, "malformed")
def two_lengths(server: ServerProcess) -> None:
    length = b"Content-Length: 4\r\n"
    for head in (
        _POST + length + b"Transfer-Encoding: chunked\r\n\r\n",
        _POST + b"Transfer-Encoding: chunked\r\n" + length + b"\r\n",
        _POST + length + b"Content-Length: 5\r\n\r\n",
        _POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n",
        _POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n",
    ):
        answer = converse(server.port, [head + b"0\r\n\r\n" + _GET])
        assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1


@attack(8, "trailers")
def trailers_without_end(server: ServerProcess) -> None:
    assert b" 400 " in converse(server.port, [_CHUNKED, b"0\r\n", b"a: b\r\n" * 100_000])


@attack(9, "pipeline")
def full_pipelines(server: ServerProcess) -> None:
    answer = converse(server.port, [_GET * 20_000])
    assert answer.count(b"HTTP/1.1 200 ") == 20_000


@attack(10, "upgrade")
def upgrades_with_a_body(server: ServerProcess) -> None:
    offer = b"Connection: upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n"
    sent = _POST + offer + b'Content-Length: 13\r\n\r\n{"queue":"u"}'
    answer = converse(server.port, [(sent + _GET) * 200])
    assert answer.count(b"HTTP/1.1 201 ") == answer.count(b"HTTP/1.1 200 ") == 200


@attack(11, "connections")
def too_many_connections(server: ServerProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients = [connect(server.port, "127.0.0.2") for _ in range(1_050)]
    for client in clients[1_000:]:
        assert read_all(client) == b""
    clients[0].sendall(_GET)
    assert clients[0].recv(1_000).startswith(b"HTTP/1.1 200 ")
    for client in clients:
        client.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- HTTP/2 ----

_FETCH: Pairs = [*POST[:3], (":path", "/api/v1/fetch")]

# Floods of one kind of frame: their class, and whether they cost one token of a budget a frame.
_FLOOD_CLASSES = {
    "rapid reset": (12, False),
    "malformed requests": (13, False),
    "continuations": (14, False),
    "large block": (14, False),
    "empty continuations": (14, False),
    "header bomb": (15, False),
    "settings": (18, True),
    "settings in one frame": (18, False),
    "pings": (19, True),
    "pings without work": (19, False),
    "empty data": (21, True),
    "tiny data": (22, False),
    "priorities": (24, True),
    "window updates": (25, True),
    "unknown frames": (26, True),
}


def _enter_flood(name: str, number: int, budgeted: bool) -> None:
    sent = [frame.serialize() for frame in flood(name, Peer())]
    # A client may be told about many single frames before the last one of them arrives; budgets
    # grow meanwhile.
    burst = HELLO + b"".join(sent + sent[1:] if budgeted else sent)

    def run(server: ServerProcess) -> None:
        assert goaway_code(converse(server.port, [burst])) == ENHANCE_YOUR_CALM

    run.__name__ = name
    attack(number, FLOODS[name])(run)


for _name, (_number, _budgeted) in _FLOOD_CLASSES.items():
    _enter_flood(_name, _number, _budgeted)


@attack(13, 'corvo_http_refusals_total{reason="')
def resets_that_the_server_is_made_to_send(server: ServerProcess) -> None:
    """Each is a connection error, so a client cannot make the server send resets."""
    short = frames.ExtensionFrame(2, 1, body=b"\0\0\0\1")
    for sent, code in (
        (frames.WindowUpdateFrame(1, 1).serialize()[:-4] + bytes(4), PROTOCOL_ERROR),
        (short.serialize(), FRAME_SIZE_ERROR),
        (frames.PriorityFrame(1, 1, 1).serialize(), PROTOCOL_ERROR),
        (data(1, b"x").serialize(), STREAM_CLOSED),
        (frames.HeadersFrame(1, b"\x82", flags=["END_HEADERS"]).serialize(), STREAM_CLOSED),
    ):
        with Multiplexed(server.port) as client:
            body = data(1, b'{"queues":["none"],"timeout":60}', "END_STREAM")
            client.send(client.peer.headers(1, _FETCH), body)
            client._socket.sendall(sent)
            assert client.wait_end() == code


@attack(13, "faulty_requests")
def windows_that_are_too_wide(server: ServerProcess) -> None:
    """Each is a stream error, as the standard demands, and the resets are counted."""
    wide = 2**31 - 1
    with Multiplexed(server.port) as client:
        body = b'{"queues":["none"],"timeout":60}'
        for stream in range(1, 401, 2):
            client.send(client.peer.headers(stream, _FETCH), data(stream, body, "END_STREAM"))
            client.send(frames.WindowUpdateFrame(stream, wide))
        assert client.wait_end() == ENHANCE_YOUR_CALM


@attack(15, "head_size")
def fields_that_grow(server: ServerProcess) -> None:
    with Multiplexed(server.port) as client:
        client.send(client.peer.headers(1, [*GET, ("x", "y" * 3_000)], "END_STREAM"))
        for stream in range(3, 41, 2):
            client.ask(stream, [*GET, *[("x", "y" * 3_000)] * 6])
        client.read(lambda: len(client.statuses) == 20)
        assert sorted(client.statuses.values())[1:] == [431] * 19


@attack(16, "compression")
def endless_numbers(server: ServerProcess) -> None:
    with Multiplexed(server.port) as client:
        client.send(frames.HeadersFrame(1, b"\x7f" + b"\xff" * 9_000, flags=["END_HEADERS"]))
        assert client.wait_end() == COMPRESSION_ERROR


@attack(16, "head_size")
def huffman_all_over(server: ServerProcess) -> None:
    with Multiplexed(server.port) as client:
        for stream in range(1, 41, 2):
            client.ask(stream, [*GET, ("x", "0" * 25_000)])
        client.read(lambda: len(client.statuses) == 20)
        assert set(client.statuses.values()) == {431}


@attack(17, "compression")
def table_sizes_up_and_down(server: ServerProcess) -> None:
    with Multiplexed(server.port) as client:
        client.send(frames.HeadersFrame(1, b"\x20\x30\x20\x82", flags=["END_HEADERS"]))
        assert client.wait_end() == COMPRESSION_ERROR


@attack(20, "pings")
def answers_that_are_not_read(server: ServerProcess) -> None:
    pings = frames.PingFrame(0, b"12345678").serialize() * 10_000
    with connect(server.port) as client:
        client.settimeout(PATIENCE_S)
        client.sendall(HELLO)
        give_up = time.monotonic() + PATIENCE_S
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < give_up:
                client.sendall(pings)
            raise AssertionError("pings are taken without end")


@attack(23, "malformed")
def fields_without_a_name(server: ServerProcess) -> None:
    _assert_malformed(server, [[*GET, ("", "x")]] * 20)


@attack(27, "turns")
def more_than_a_turn(server: ServerProcess) -> None:
    with Multiplexed(server.port) as client:
        streams = range(1, 1_601, 2)
        client.send(*[client.peer.headers(stream, GET, "END_STREAM") for stream in streams])
        client.read(lambda: len(client.statuses) == len(streams))
        assert len(client.statuses) == len(streams)


@attack(28, "malformed")
def fields_with_more_in_them(server: ServerProcess) -> None:
    extra: Pairs = [
        ("x", "a\r\nHost: b"),
        ("x", "a\0b"),
        ("x", " a"),
        ("x\r\ny", "a"),
        ("x y", "a"),
        ("X", "a"),
        ("host", "other"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
    ]
    requests: list[Pairs] = [[*GET, pair] for pair in extra]
    requests += [[*GET[:3], (":path", "/a\r\nb")], [*GET[:3], (":path", "/a b")]]
    requests += [[*GET, GET[2]], [GET[0], GET[1], ("host", "a"), ("host", "b"), GET[3]]]
    _assert_malformed(server, requests)


def _assert_malformed(server: ServerProcess, requests: list[Pairs]) -> None:
    with Multiplexed(server.port) as client:
        for number, fields in enumerate(requests):
            client.ask(2 * number + 1, fields)
        client.read(lambda: len(client.resets()) == len(requests))
        assert client.resets() == [PROTOCOL_ERROR] * len(requests)


@attack(29, _ERRORS)
def names_that_would_split_a_reply(server: ServerProcess) -> None:
    evil = "a%0d%0aSet-Cookie:%20b=c%0d%0a"
    api = server.api()
    for method, path in (
        ("GET", f"/jobs/{evil}"),
        ("POST", f"/ack/{evil}"),
        ("GET", f"/queues/{evil}"),
        ("GET", f"/events?queues={evil}"),
        ("POST", f"{_RPC}{evil}"),
    ):
        reply = api.raw(method, path, b"{}" if method == "POST" else None)
        assert 400 <= reply.status < 500 and reply.headers["Set-Cookie"] is None
    reply = api.raw("GET", "/info", headers={"X-Request-Id": "a b=c"})
    assert reply.status == 200 and reply.headers["X-Request-Id"] != "a b=c"
    api.close()


# ---- the worker service, and the cluster ----


@attack(30, _RPC_ERRORS)
def packed_bombs(server: ServerProcess) -> None:
    bomb = gzip.compress(b" " * (64 * MIB), 9)
    api = server.api()
    packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    status, answer = api.call("POST", f"{_RPC}Enqueue", bomb, packed)
    assert (status, answer["code"]) == (429, "resource_exhausted")
    assert api.call("POST", "/enqueue", bomb, packed)[0] == 400  # the server does not decompress it
    api.close()


@attack(31, _RPC_ERRORS)
def large_messages(server: ServerProcess) -> None:
    api = server.api()
    kind = {"Content-Type": "application/json"}
    nested = b'{"queue":"q","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    acks = b'{"items":[' + b",".join([b'{"jobId":"x"}'] * (limits.ACK_BATCH_MAX + 1)) + b"]}"
    queues = b'{"queues":[' + b",".join([b'"q"'] * (limits.FETCH_QUEUES_MAX + 1)) + b"]}"
    for method, body, code in (
        ("Enqueue", b" " * (limits.RPC_MESSAGE_SIZE_MAX + 1), "resource_exhausted"),
        ("Enqueue", nested, "invalid_argument"),
        ("AckBatch", acks, "invalid_argument"),
        ("Fetch", queues, "invalid_argument"),
    ):
        assert api.call("POST", _RPC + method, body, kind)[1]["code"] == code
    api.close()


@attack(32, _ERRORS)
def more_streams_than_may_be_open(server: ServerProcess) -> None:
    subscribe = [*GET[:3], (":path", "/api/v1/events")]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Multiplexed(server.port)) for _ in range(5)]
        statuses = []
        for client in clients:
            streams = range(1, 1_801, 2)
            client.send(*[client.peer.headers(s, subscribe, "END_STREAM") for s in streams])
            client.read(lambda client=client: len(client.statuses) == 900)  # type: ignore[misc]
            statuses += list(client.statuses.values())
        assert statuses.count(200) == limits.OPEN_STREAMS_MAX
        assert statuses.count(429) == 4_500 - limits.OPEN_STREAMS_MAX


@attack(33, "forwarded")
def forwarding_that_never_was(server: ServerProcess) -> None:
    """A follower neither forwards a request that claims to be forwarded, nor trusts its headers."""
    api = server.api()
    spoofed = {"X-Corvo-Forwarded": "1", "X-Corvo-Proxy-Stream": "1", "X-Forwarded-For": "9.9.9.9"}
    status, answer = api.call("POST", "/enqueue", {"queue": "q"}, spoofed)
    assert (status, answer["code"]) == (503, "NO_LEADER")
    assert api.call("GET", "/queues", None, spoofed)[0] == 200
    packet = post_bytes("/enqueue", {"queue": "q"})
    head = b"X-Corvo-Forwarded: 1\r\n" * 2
    assert b" 400 " in converse(
        server.port, [packet.replace(b"Host: localhost\r\n", b"Host: localhost\r\n" + head)]
    )
    api.close()
    fields = [(name.lower(), value) for name, value in spoofed.items()]
    with Multiplexed(server.port) as client:
        client.ask(1, [*POST[:3], (":path", "/api/v1/queues/q/pause"), *fields])
        client.read(lambda: len(client.statuses) == 1)
        assert client.statuses == {1: 503}


def _refused(reason: str) -> str:
    return f'corvo_http_refusals_total{{reason="{reason}"}}'

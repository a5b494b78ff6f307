"""Browser safety on a running server: hosts and origins, in all protocols."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hyperframe import frame as frames
from lib.conversations import Multiplexed
from lib.harness import Api, ServerProcess, failed_start, running_server

APP = "https://app.example.com"
FLAGS = ("--allowed-hosts", "queue.lan", "--allowed-hosts", "jobs", "--cors-origin", APP)
RPC = "//corvo.v1.WorkerService/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("corvo") / "data", *FLAGS) as running:
        yield running


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    client = server.api()
    yield client
    client.close()


CROSS = [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
CROSS += [{"Sec-Fetch-Site": "same-site"}, {"Origin": "http://localhost:1"}]
PLACES = [
    ("POST", "/enqueue"),
    ("GET", "/queues"),
    ("GET", "/events"),
    ("GET", "/metrics"),
    ("GET", "//healthz"),
    ("GET", "//"),
    ("POST", RPC + "Enqueue"),
]


@pytest.mark.parametrize(("method", "path"), PLACES)
def test_pages_of_other_sites_are_refused(api: Api, method: str, path: str) -> None:
    body = {"queue": "never"} if method == "POST" else None
    for headers in CROSS:
        kind = {"Content-Type": "application/json"} if body else {}
        reply = api.raw(method, path, body, headers | kind)
        assert (reply.status, json.loads(reply.body)["code"]) == (403, "CROSS_SITE")
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert api.get("/queues/never")[0] == 404, "nothing happened"


@pytest.mark.parametrize(
    ("method", "path"), [place for place in PLACES if "healthz" not in place[1]]
)
def test_other_hosts_are_refused(api: Api, method: str, path: str) -> None:
    body = {"queue": "never"} if method == "POST" else None
    reply = api.raw(method, path, body, {"Host": "evil.example"})
    answer = json.loads(reply.body)
    assert (reply.status, answer["code"]) == (421, "MISDIRECTED_REQUEST")
    assert "--allowed-hosts evil.example" in answer["error"]
    assert api.get("/queues/never")[0] == 404


@pytest.mark.parametrize("host", ["queue.lan", "jobs:80", "localhost:9", "10.9.8.7", "[::1]:1"])
def test_own_hosts_are_served(api: Api, host: str) -> None:
    assert api.call("GET", "/queues", None, {"Host": host})[0] == 200
    own = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert api.call("POST", "/enqueue", {"queue": "own"}, own)[0] == 201


def test_probes_answer_to_any_host(api: Api) -> None:
    for path in ("//healthz", "//readyz", "/healthz"):  # not ready is an answer, too
        assert api.call("GET", path, None, {"Host": "balancer.example"})[0] in (200, 503)


def test_pages_of_an_allowed_origin(api: Api) -> None:
    page = {"Origin": APP, "Sec-Fetch-Site": "cross-site"}
    asked = page | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    reply = api.raw("OPTIONS", "/enqueue", None, asked)
    assert reply.status == 204 and "POST" in reply.headers["Access-Control-Allow-Methods"]
    assert reply.headers["Access-Control-Allow-Origin"] == APP
    for path, status in (("/enqueue", 201), ("/nowhere", 404)):
        reply = api.raw("POST", path, {"queue": "app"}, page)
        assert reply.status == status and reply.headers["Access-Control-Allow-Origin"] == APP
    reply = api.raw("GET", "/queues", None, {})
    assert "Access-Control-Allow-Origin" not in reply.headers


def test_http2_and_grpc(server: ServerProcess, api: Api) -> None:
    enqueue = [(":method", "POST"), (":scheme", "http"), (":path", "/api/v1/enqueue")]
    call = [*enqueue[:2], (":path", RPC[1:] + "Enqueue"), ("content-type", "application/grpc")]
    own, other = (":authority", f"127.0.0.1:{server.port}"), (":authority", "evil.example")
    page, fetched = ("origin", "http://evil.example"), ("sec-fetch-site", "same-site")
    message = b"\x0a\x05never"  # the queue
    bodies = b'{"queue":"never"}', struct.pack(">BI", 0, len(message)) + message
    with Multiplexed(server.port) as client:
        expected = {}
        for number, (head, more, status) in enumerate(
            (
                (head, more, status)
                for head in (enqueue, call)
                for more, status in (([own, page], 403), ([own, fetched], 403), ([other], 421))
            )
        ):
            stream = 2 * number + 1
            body = frames.DataFrame(stream, bodies[head is call], flags=["END_STREAM"])
            fields = [*head[:3], *more[:1], *head[3:], *more[1:]]
            client.send(client.peer.headers(stream, fields), body)
            expected[stream] = status
        client.ask(101, [(":method", "GET"), *enqueue[1:2], own, (":path", "/healthz")])
        expected[101] = 200
        client.read(lambda: len(client.statuses) == len(expected))
        assert client.statuses == expected
    assert api.get("/queues/never")[0] == 404


def test_settings_that_are_wrong(tmp_path: Path) -> None:
    for flag, text in (("--cors-origin", "*"), ("--cors-origin", "https://a/b")):
        assert "cors-origin" in failed_start(tmp_path / "data", flag, text)
    assert "allowed-hosts" in failed_start(tmp_path / "data", "--allowed-hosts", "a:80")

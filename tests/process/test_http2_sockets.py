"""HTTP/2 on a running server: curl, and a client made of the h2 library."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest
from hyperframe import frame as frames
from lib.harness import Api, ServerProcess, connect

KIB = 1024
ROOT = Path(__file__).parents[2]


class Client:
    """One connection of HTTP/2 with prior knowledge."""

    def __init__(self, port: int) -> None:
        self.socket = connect(port)
        self.socket.settimeout(60)
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.http.initiate_connection()
        self.replies: dict[int, tuple[dict[str, str], bytes]] = {}
        self.ended: list[int] = []
        self.gone = False
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.http.data_to_send())

    def ask(self, method: str, path: str, body: bytes = b"") -> int:
        stream: int = self.http.get_next_available_stream_id()
        fields = [(":method", method), (":scheme", "http"), (":authority", "localhost")]
        fields += [(":path", path[1:] if path.startswith("//") else f"/api/v1{path}")]
        self.http.send_headers(stream, fields, end_stream=not body)
        at = 0
        while at < len(body):
            size = min(self.http.local_flow_control_window(stream), 16 * KIB, len(body) - at)
            if size == 0:
                self.read()
                continue
            at += size
            self.http.send_data(stream, body[at - size : at], end_stream=at == len(body))
            self.flush()
        self.flush()
        return stream

    def read(self) -> None:
        data = self.socket.recv(65_536)
        self.gone = not data
        for event in self.http.receive_data(data) if data else ():
            if isinstance(event, h2.events.ResponseReceived):
                self.replies[event.stream_id] = dict(event.headers), b""
            elif isinstance(event, h2.events.DataReceived):
                fields, body = self.replies[event.stream_id]
                self.replies[event.stream_id] = fields, body + event.data
                size = event.flow_controlled_length
                self.http.acknowledge_received_data(size, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.append(event.stream_id)
        self.flush()

    def reply(self, stream: int) -> tuple[int, dict[str, str], bytes]:
        while stream not in self.ended:
            assert not self.gone
            self.read()
        fields, body = self.replies[stream]
        return int(fields[":status"]), fields, body


@pytest.fixture
def client(shared_server: ServerProcess) -> Iterator[Client]:
    made = Client(shared_server.port)
    yield made
    made.socket.close()


def test_a_life_of_many_jobs_on_one_connection(client: Client, queue: str) -> None:
    body = json.dumps({"queue": queue, "payload": {"n": 1}}).encode()
    asked = [client.ask("POST", "/enqueue", body) for _ in range(100)]
    ids = {json.loads(client.reply(stream)[2])["job_id"] for stream in asked}
    assert len(ids) == 100 and {client.reply(stream)[0] for stream in asked} == {201}
    fetch = json.dumps({"queues": [queue], "worker_id": "w", "count": 100}).encode()
    status, fields, text = client.reply(client.ask("POST", "/fetch/batch", fetch))
    jobs = json.loads(text)["jobs"]
    assert status == 200 and int(fields["content-length"]) == len(text)
    acks = [{"job_id": job["job_id"], "lease_token": job["lease_token"]} for job in jobs]
    done = client.ask("POST", "/ack/batch", json.dumps({"acks": acks}).encode())
    assert json.loads(client.reply(done)[2])["acked"] == 100
    assert {job["job_id"] for job in jobs} == ids


def test_large_bodies_both_ways(client: Client, queue: str) -> None:
    jobs = [{"queue": queue, "payload": "x" * (200 * KIB)} for _ in range(20)]
    sent = client.ask("POST", "/enqueue/batch", json.dumps({"jobs": jobs}).encode())
    assert client.reply(sent)[0] == 201
    fetch = json.dumps({"queues": [queue], "worker_id": "w", "count": 20}).encode()
    _, _, text = client.reply(client.ask("POST", "/fetch/batch", fetch))
    assert [job["payload"] for job in json.loads(text)["jobs"]] == [jobs[0]["payload"]] * 20


def test_a_fetch_waits_beside_other_streams(client: Client, queue: str) -> None:
    fetch = json.dumps({"queues": [queue], "worker_id": "w", "timeout": 60}).encode()
    waiting = client.ask("POST", "/fetch", fetch)
    assert client.reply(client.ask("GET", "//healthz"))[0] == 200 and waiting not in client.ended
    client.ask("POST", "/enqueue", json.dumps({"queue": queue}).encode())
    assert client.reply(waiting)[0] == 200


def test_a_fetch_that_is_reset_takes_no_job(client: Client, api: Api, queue: str) -> None:
    fetch = json.dumps({"queues": [queue], "worker_id": "w", "timeout": 60}).encode()
    waiting = client.ask("POST", "/fetch", fetch)
    api.wait_parked(1)
    client.http.reset_stream(waiting)
    client.flush()
    api.wait_parked(0)
    job_id = api.enqueue(queue)
    assert api.job(job_id)["state"] == "pending"


def test_errors_and_head(client: Client) -> None:
    status, fields, _ = client.reply(client.ask("DELETE", "//healthz"))
    assert status == 405 and fields["allow"] == "GET, HEAD, OPTIONS"
    assert json.loads(client.reply(client.ask("GET", "/nothing"))[2])["code"] == "NOT_FOUND"
    status, fields, text = client.reply(client.ask("HEAD", "//healthz"))
    assert status == 200 and not text and int(fields["content-length"]) > 0


def test_what_is_in_flight_is_answered_before_the_server_goes(data_dir: Path) -> None:
    server = ServerProcess(data_dir).start()
    client = Client(server.port)
    streams = [client.ask("POST", "/enqueue", b'{"queue":"q"}') for _ in range(20)]
    assert {client.reply(stream)[0] for stream in streams} == {201}
    waiting = client.ask("POST", "/fetch", b'{"queues":["none"],"worker_id":"w","timeout":60}')
    server.api().wait_parked(1)
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    data, answered, last_streams = b"", [], []
    while piece := client.socket.recv(65_536):
        data += piece
        while len(data) >= 9:
            frame, size = frames.Frame.parse_frame_header(memoryview(data[:9]))
            if len(data) < 9 + size:
                break
            frame.parse_body(memoryview(data[9 : 9 + size]))
            data = data[9 + size :]
            if isinstance(frame, frames.PingFrame):
                ack = frames.PingFrame(0, frame.opaque_data, flags=["ACK"])
                client.socket.sendall(ack.serialize())
            elif isinstance(frame, frames.GoAwayFrame):
                last_streams.append(frame.last_stream_id)
            elif isinstance(frame, frames.HeadersFrame):
                answered.append(frame.stream_id)
    assert answered == [waiting] and last_streams == [0x7FFF_FFFF, waiting]
    assert server.process.wait(30) == 0
    client.socket.close()


@pytest.mark.parametrize("flag", ["--http2", "--http2-prior-knowledge"])
def test_curl(shared_server: ServerProcess, queue: str, flag: str) -> None:
    url = f"{shared_server.url}/api/v1"
    shown = ["-w", " %{http_code} %{http_version}\n"]
    get = [
        "curl",
        "-sS",
        flag,
        *shown,
        f"{shared_server.url}/healthz",
        "--next",
        "-sS",
        *shown,
        f"{url}/queues",
    ]
    out = subprocess.run(get, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [line[-6:] for line in out] == [" 200 2", " 200 2"]
    post = ["curl", "-sS", flag, *shown, "-d", json.dumps({"queue": queue}), f"{url}/enqueue"]
    out = subprocess.run(post, check=True, capture_output=True, text=True).stdout.splitlines()
    # An offer to switch is not taken up when the request has a body.
    assert out[0].endswith(" 201 1.1" if flag == "--http2" else " 201 2")


def test_upgrade_by_hand(shared_server: ServerProcess) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    http = h2.connection.H2Connection()
    http.initiate_upgrade_connection()
    with socket.create_connection(("127.0.0.1", shared_server.port), 60) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + offer + b"\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += client.recv(1_000)
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        client.sendall(http.data_to_send())
        events = http.receive_data(rest) if rest else []
        while not any(isinstance(event, h2.events.StreamEnded) for event in events):
            events += http.receive_data(client.recv(65_536))
    reply = next(event for event in events if isinstance(event, h2.events.ResponseReceived))
    assert reply.stream_id == 1 and (b":status", b"200") in reply.headers


H2SPEC = """#!{python}
import http.client, ssl, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
client = http.client.HTTPConnection("127.0.0.1", port)
if "--tls" in sys.argv:
    trusting = ssl._create_unverified_context()
    client = http.client.HTTPSConnection("127.0.0.1", port, context=trusting)
client.request("GET", "/")
sys.exit(client.getresponse().status != 200)
"""


def test_make_h2spec_has_a_server_to_test(tmp_path: Path) -> None:
    """The tool itself needs Go. In its place, something that only asks whether there is an
    answer."""
    stand_in = tmp_path / "h2spec"
    stand_in.write_text(H2SPEC.format(python=sys.executable))
    stand_in.chmod(0o755)
    command = [sys.executable, str(ROOT / "tools/h2spec/run.py"), str(stand_in)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr

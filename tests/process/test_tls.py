"""TLS on a running server: with openssl for certificates, curl, and Python's own client."""

import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lib.harness import (
    ServerProcess,
    clean_environment,
    connect,
    failed_start,
    make_certificate,
    running_server,
    until,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    make_certificate(tmp_path, "first")
    flags = "--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")
    with running_server(tmp_path / "data", *flags) as process:
        yield process


def curl(server: ServerProcess, *args: str) -> str:
    url = f"https://127.0.0.1:{server.port}/api/v1/enqueue"
    command = ["curl", "-sS", "--cacert", str(server.data_dir.parent / "cert.pem")]
    command += ["-d", '{"queue":"q"}', "-w", " %{http_code} %{http_version}", *args, url]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def shake_hands(port: int, *protocols: str, **versions: ssl.TLSVersion) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for name, version in versions.items():
        setattr(context, name, version)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context.wrap_socket(connect(port))


def common_name(port: int) -> bytes:
    with shake_hands(port) as client:
        certificate = client.getpeercert(binary_form=True)
        assert certificate is not None
        return b"first" if b"first" in certificate else b"second"


def test_the_handshake_chooses_the_protocol(server: ServerProcess) -> None:
    assert curl(server, "--http2").endswith(" 201 2")
    assert curl(server, "--http1.1").endswith(" 201 1.1")
    for offered, chosen in ((["h2", "http/1.1"], "h2"), (["http/1.1"], "http/1.1"), ([], None)):
        with shake_hands(server.port, *offered) as client:
            assert client.selected_alpn_protocol() == chosen and client.version() == "TLSv1.3"
    with shake_hands(server.port, maximum_version=ssl.TLSVersion.TLSv1_2) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")  # not agreed on
        assert client.recv(1_000).startswith(b"HTTP/1.1 505 ")


def test_commands_verify_the_certificate(server: ServerProcess) -> None:
    file = str(server.data_dir.parent / "cert.pem")
    url = f"https://127.0.0.1:{server.port}"

    def corvo(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "corvo", *words]
        return subprocess.run(command, capture_output=True, text=True, env=clean_environment())

    refused = corvo("queues", "--server", url)
    assert refused.returncode == 1
    assert "the certificate of the server is not trusted" in refused.stderr
    assert "--cacert FILE" in refused.stderr
    assert corvo("--server", url, "--cacert", file, "queues").stdout == "No queues\n"
    plain = corvo("queues", "--server", url.replace("https", "http"))
    assert plain.returncode == 1 and "use https://" in plain.stderr


def test_what_is_no_handshake_is_closed_and_counted(server: ServerProcess) -> None:
    with connect(server.port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in read_all(client)
    line = 'corvo_http_refusals_total{reason="tls_handshake"} 1.0'
    with shake_hands(server.port) as client:
        client.sendall(
            b"GET /api/v1/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        page = read_all(client)
    assert line.encode() in page and b"corvo_http_connections 1.0" in page


def read_all(client: socket.socket) -> bytes:
    pieces = []
    try:
        while piece := client.recv(65_536):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


def test_a_new_certificate_is_read_on_a_signal(server: ServerProcess) -> None:
    assert server.process is not None
    with shake_hands(server.port) as old:
        make_certificate(server.data_dir.parent, "second")
        assert common_name(server.port) == b"first"
        server.process.send_signal(signal.SIGHUP)
        until(lambda: common_name(server.port) == b"second", "the new certificate")
        (server.data_dir.parent / "key.pem").write_text("no key")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "the old certificate stays" in "".join(server.log), "the complaint")
        assert common_name(server.port) == b"second"
        old.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert old.recv(1_000).startswith(b"HTTP/1.1 200 ")
    assert server.stop() == 0


def test_a_signal_without_a_certificate_changes_nothing(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "no certificate to reload" in "".join(server.log), "the remark")
        assert server.api().get("//healthz")[0] == 200


def test_files_that_are_not_right_stop_the_start(tmp_path: Path) -> None:
    make_certificate(tmp_path, "first")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    assert "must be set together" in failed_start(tmp_path / "data", "--tls-cert", cert)
    for wrong in (str(tmp_path / "none.pem"), cert):
        assert wrong in failed_start(tmp_path / "data", "--tls-cert", cert, "--tls-key", wrong)
    locked = str(tmp_path / "locked.pem")
    command = ["openssl", "ec", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    complaint = failed_start(tmp_path / "data", "--tls-cert", cert, "--tls-key", locked)
    assert "protected by a password" in complaint

"""Run h2spec, an independent suite of conformance tests of HTTP/2, against the front end.

    python tools/h2spec/run.py PATH_OF_H2SPEC

Serves an answer to every request, in the clear and by TLS, and runs all suites of the tool, its
strict cases too. The exit status is the number of runs that failed.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import uvloop

from corvo.net.http.server import Server
from corvo.net.http.tls import Certificate, Handshakes
from corvo.platform.clock import Clock

SUITES = ("generic", "http2", "hpack")


def make_certificate(directory: Path) -> tuple[str, str]:
    """A certificate for localhost and its key, made by openssl."""
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost", "-out", cert, "-keyout", key]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


async def run(h2spec: str) -> int:
    """The number of runs that failed."""
    server = Server(lambda request: request.reply(200, b"{}"), Clock())
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        certificate = Certificate(*make_certificate(Path(directory)))
        handshakes = Handshakes(server, certificate)
        plain_port = await server.listen("127.0.0.1", 0)
        tls_port = await server.listen("127.0.0.1", 0, handshakes.protocol)
        for suite in SUITES:
            for port, flags in ((plain_port, []), (tls_port, ["--tls", "--insecure"])):
                command = [h2spec, suite, "--strict", "--port", str(port), *flags]
                print("$", *command, flush=True)
                process = await asyncio.create_subprocess_exec(*command)
                failed += await process.wait() != 0
    await server.drain(0)
    return failed


if __name__ == "__main__":
    sys.exit(uvloop.run(run(sys.argv[1])))

"""A server that gives answers of a list, for what the real one does not do."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class Seen(NamedTuple):
    """A request that arrived."""

    method: str
    path: str
    headers: Any
    body: bytes


class FakeServer:
    """Answers each route with a fixed status and document; the rest is 404."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.hanging: set[tuple[str, str]] = set()
        self.requests: list[Seen] = []
        self.ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size)
                route = self.command, self.path.removeprefix("/api/v1").partition("?")[0]
                outer.requests.append(Seen(*route, self.headers, body))
                if route in outer.hanging:
                    outer.ended.wait()
                    return
                status, document = outer.answers.get(route, (404, {"error": "no such path"}))
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_DELETE = do_PUT = do_POST  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, method: str, path: str, status: int, document: Any) -> None:
        self.answers[method, path] = status, document

    def hang(self, method: str, path: str) -> None:
        self.hanging.add((method, path))

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()

"""Bare conversations with a running server: bytes or frames out, whatever comes back in."""

import contextlib
import socket
import threading
from collections.abc import Callable

import hpack
from hyperframe import frame as frames

from lib.h2_peer import GET, PREFACE, Pairs, Peer
from lib.harness import ServerProcess, advance, connect

PATIENCE_S = 60.0


def read_all(client: socket.socket) -> bytes:
    """What comes until the server has had enough."""
    answers = []
    client.settimeout(PATIENCE_S)
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65_536):
            answers.append(piece)
    return b"".join(answers)


def converse(port: int, sent: list[bytes]) -> bytes:
    """All that is answered to somebody who sends, whatever is answered, and then ends."""
    answers: list[bytes] = []
    with connect(port) as client:
        client.settimeout(PATIENCE_S)
        reader = threading.Thread(target=lambda: answers.append(read_all(client)), daemon=True)
        reader.start()
        with contextlib.suppress(ConnectionError):
            for piece in sent:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
        reader.join(PATIENCE_S)
        assert not reader.is_alive()
    return b"".join(answers)


class Multiplexed:
    """One connection of HTTP/2, and what the server has said on it."""

    def __init__(self, port: int, window: int = 65_535) -> None:
        self._socket = connect(port)
        self._socket.settimeout(PATIENCE_S)
        self._decoder = hpack.Decoder()
        self._rest = b""
        self.peer = Peer()  # makes frames
        self.frames: list[frames.Frame] = []
        self.statuses: dict[int, int] = {}
        settings = {frames.SettingsFrame.INITIAL_WINDOW_SIZE: window}
        self._socket.sendall(PREFACE + frames.SettingsFrame(0, settings).serialize())
        self.send(frames.SettingsFrame(0, flags=["ACK"]))

    def __enter__(self) -> "Multiplexed":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *sent: frames.Frame) -> None:
        self._socket.sendall(b"".join([frame.serialize() for frame in sent]))

    def ask(self, stream: int, fields: Pairs = GET) -> None:
        self.send(self.peer.headers(stream, fields, "END_STREAM"))

    def read(self, enough: Callable[[], bool]) -> None:
        """Until it is, or the connection ends."""
        while not enough():
            try:
                data = self._socket.recv(65_536)
            except ConnectionError:
                return
            if not data:
                return
            self._rest += data
            while len(self._rest) >= 9:
                head = memoryview(self._rest[:9])
                frame, size = frames.Frame.parse_frame_header(head)
                if len(self._rest) < 9 + size:
                    break
                frame.parse_body(memoryview(self._rest[9 : 9 + size]))
                self._rest = self._rest[9 + size :]
                self.frames.append(frame)
                if isinstance(frame, frames.HeadersFrame):
                    fields = {str(k): str(v) for k, v in self._decoder.decode(frame.data)}
                    self.statuses[frame.stream_id] = int(fields.get(":status", 0))

    def resets(self) -> list[int]:
        return [frame.error_code for frame in self.frames if frame.type == 3]

    def wait_end(self) -> int:
        """The code with which the server ends all."""
        self.read(lambda: False)
        codes = [f.error_code for f in self.frames if isinstance(f, frames.GoAwayFrame)]
        assert codes, self.frames
        return int(codes[-1])


def stalled(server: ServerProcess, count: int, sent: list[bytes], pause: str) -> list[bytes]:
    """What is answered to many who send pieces with pauses in between, and then nothing."""
    api = server.api()
    clients = [connect(server.port) for _ in range(count)]
    for piece in sent:
        for client in clients:
            client.sendall(piece)
        advance(api, pause)
    api.close()
    answers = [read_all(client) for client in clients]
    for client in clients:
        client.close()
    return answers


def goaway_code(answer: bytes) -> int:
    """Why the server has ended a connection; -1 = it has not."""
    code = -1
    while len(answer) >= 9:
        frame, size = frames.Frame.parse_frame_header(memoryview(answer[:9]))
        if isinstance(frame, frames.GoAwayFrame) and len(answer) >= 9 + size:
            frame.parse_body(memoryview(answer[9 : 9 + size]))
            code = frame.error_code
        answer = answer[9 + size :]
    return code

"""Clients of lifecycle streams: grpcio's, and a Connect client made of the h2 library."""

import queue
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import h2.settings
import msgspec

from corvo._fast.codec import protobuf
from corvo.net.rpc import proto_json
from corvo.net.rpc.proto_file import load

TYPES = load("worker.proto")
PATH = "/corvo.v1.WorkerService/"
STREAM = f"{PATH}StreamLifecycle"
WAIT_S = 20
Values = dict[str, Any]


class Ended(Exception):
    """The stream has ended: with this code, or well."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


def encode(values: Values, type: str = "LifecycleStreamRequest") -> bytes:
    return protobuf.encode(TYPES[type], values)


def decode(data: bytes, type: str = "LifecycleStreamResponse") -> Values:
    return protobuf.decode(TYPES[type], data, 100_000)


class GrpcStream:
    """A lifecycle stream by grpcio."""

    def __init__(self, port: int, headers: dict[str, str] | None = None) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._requests: queue.Queue[Values | None] = queue.Queue()
        call = self._channel.stream_stream(STREAM, encode, decode)
        sent: Iterator[Values] = iter(self._requests.get, None)
        self._call: Any = call(sent, metadata=list((headers or {}).items()))

    def send(self, **values: Any) -> None:
        self._requests.put(values)

    def receive(self) -> Values:
        """The next response; Ended when there is none."""
        try:
            response: Values = next(self._call)
            return response
        except StopIteration:
            raise Ended("ok", "") from None
        except grpc.RpcError:
            raise Ended(self._call.code().name.lower(), self._call.details()) from None

    def end(self) -> None:
        """Nothing more will be sent."""
        self._requests.put(None)

    def close(self) -> None:
        self._call.cancel()
        self._requests.put(None)
        self._channel.close()

    def exchange(self, **values: Any) -> Values:
        self.send(**values)
        return self.receive()


class ConnectStream:
    """A lifecycle stream by Connect."""

    def __init__(
        self,
        port: int,
        form: str,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._form = form
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._conn = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._conn.initiate_connection()
        fields = [
            (":method", "POST"),
            (":scheme", "http" if tls is None else "https"),
            (":authority", f"127.0.0.1:{port}"),
            (":path", STREAM),
            ("content-type", f"application/connect+{form}"),
            ("connect-protocol-version", "1"),
        ]
        self._conn.send_headers(1, fields + list((headers or {}).items()))
        self._flush()
        self._received = b""
        self._ended = False
        self.status = ""

    def send(self, **values: Any) -> None:
        self.send_bytes(self._encode(values))

    def send_bytes(self, message: bytes, flags: int = 0) -> None:
        """A message in its envelope, as the windows allow."""
        data = struct.pack(">BI", flags, len(message)) + message
        while data and not self._ended:
            size = min(len(data), self._conn.local_flow_control_window(1), 16_384)
            if size:
                self._conn.send_data(1, data[:size])
                data = data[size:]
                self._flush()
            else:
                self._read()

    def receive(self) -> Values:
        while True:
            if len(self._received) >= 5:
                flags, size = struct.unpack(">BI", self._received[:5])
                if len(self._received) >= 5 + size:
                    message = self._received[5 : 5 + size]
                    self._received = self._received[5 + size :]
                    if flags & 2:
                        error = msgspec.json.decode(message).get("error") or {"code": "ok"}
                        raise Ended(error["code"], error.get("message", ""))
                    return self._decode(message)
            assert not self._ended, "the stream ended without saying how"
            self._read()

    def end(self) -> None:
        self._conn.end_stream(1)
        self._flush()

    def close(self) -> None:
        self._socket.close()

    def exchange(self, **values: Any) -> Values:
        self.send(**values)
        return self.receive()

    def _encode(self, values: Values) -> bytes:
        if self._form == "proto":
            return encode(values)
        return proto_json.encode(TYPES["LifecycleStreamRequest"], values)

    def _decode(self, data: bytes) -> Values:
        if self._form == "proto":
            return decode(data)
        return proto_json.decode(TYPES["LifecycleStreamResponse"], data, 100_000)

    def _flush(self) -> None:
        self._socket.sendall(self._conn.data_to_send())

    def _read(self) -> None:
        data = self._socket.recv(65_536)
        assert data, "the connection was closed"
        for event in self._conn.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                self.status = dict(event.headers)[":status"]
            elif isinstance(event, h2.events.DataReceived):
                self._received += event.data
                self._conn.acknowledge_received_data(event.flow_controlled_length, 1)
            elif isinstance(event, h2.events.StreamEnded) or _is_no_error(event):
                self._ended = True
            elif isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                raise Ended(type(event).__name__, str(event.error_code))
        self._flush()


def _is_no_error(event: Any) -> bool:
    """Whether all has been said, and the server wants to hear no more."""
    return isinstance(event, h2.events.StreamReset) and event.error_code == 0


Stream = GrpcStream | ConnectStream


def open_stream(port: int, kind: str, headers: dict[str, str] | None = None) -> Stream:
    """A stream of a kind: grpc, proto or json."""
    if kind == "grpc":
        return GrpcStream(port, headers)
    return ConnectStream(port, kind, headers)

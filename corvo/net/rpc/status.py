"""How calls of the worker service end: codes, and their forms in Connect and gRPC."""

from base64 import b64encode
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from corvo._fast.codec.protobuf import ProtobufError, encode, encode_varint
from corvo._fast.http.exchange import header_line
from corvo.errors import MESSAGE_SIZE_MAX, CorvoError, cut
from corvo.net.rpc.proto_file import load

TYPES: Final = load("worker.proto")
_ENCODE: Final = msgspec.json.Encoder().encode

# The codes with their HTTP status in Connect; gRPC numbers them in this order, from 1 on.
HTTP_STATUS: Final = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "out_of_range": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "data_loss": 500,
    "unauthenticated": 401,
}
GRPC_NUMBERS: Final = {code: number for number, code in enumerate(HTTP_STATUS, 1)}

# Codes of our errors where the status alone does not say it.
_BY_CODE: Final = {
    "INVALID_STATE": "failed_precondition",
    "LEASE_LOST": "failed_precondition",
    "UNIQUE_CONFLICT": "already_exists",
    "CONFLICT": "aborted",
    "RESULT_SCHEMA_VALIDATION_ERROR": "invalid_argument",
}
_BY_STATUS: Final = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    409: "aborted",
    413: "invalid_argument",
    422: "invalid_argument",
    429: "resource_exhausted",
    501: "unimplemented",
    503: "unavailable",
    504: "deadline_exceeded",
    507: "resource_exhausted",
}


# Details of errors, for programs: messages by the full names of their types.
Details = tuple[tuple[str, bytes], ...]


class RpcError(Exception):
    """The end of a call that did not succeed."""

    def __init__(self, code: str, message: str, details: Details = ()) -> None:
        message = cut(message, MESSAGE_SIZE_MAX)
        super().__init__(message)
        assert code in HTTP_STATUS
        self.code = code
        self.message = message
        self.details = details


def rpc_error(error: Exception) -> RpcError:
    """An error as the status of a call."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, ProtobufError):
        return RpcError("invalid_argument", str(error))
    if not isinstance(error, CorvoError):
        return RpcError("internal", "internal error")
    code = _BY_CODE.get(error.code) or _BY_STATUS.get(error.status, "internal")
    retry_after_ms = error.fields.get("retry_after_ms")
    suffix = f" (retry_after_ms={retry_after_ms})" if retry_after_ms else ""
    info: dict[str, Any] = {"code": error.code}
    if error.fields:
        info["fields_json"] = _ENCODE(error.fields).decode()
    detail = "corvo.v1.ErrorInfo", encode(TYPES["ErrorInfo"], info)
    return RpcError(code, error.message + suffix, (detail,))


def connect_error(error: RpcError) -> bytes:
    """The body of a Connect answer that is an error."""
    return _ENCODE(_document(error))


def connect_end(error: RpcError | None, metadata: Iterable[tuple[str, str]] = ()) -> bytes:
    """The last message of a Connect stream."""
    document: dict[str, Any] = {}
    if error is not None:
        document["error"] = _document(error)
    fields: dict[str, list[str]] = {}
    for name, value in metadata:
        fields.setdefault(name, []).append(value)
    if fields:
        document["metadata"] = fields
    return _ENCODE(document)


def _document(error: RpcError) -> dict[str, Any]:
    document: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.details:
        document["details"] = [
            {"type": name, "value": _unpadded(data)} for name, data in error.details
        ]
    return document


def grpc_trailers(error: RpcError | None) -> bytes:
    """The trailers of a gRPC answer, as header lines."""
    if error is None:
        return header_line("grpc-status", "0")
    lines = header_line("grpc-status", str(GRPC_NUMBERS[error.code]))
    lines += header_line("grpc-message", _percent_encode(error.message))
    if error.details:
        lines += header_line("grpc-status-details-bin", _unpadded(_grpc_status(error)))
    return lines


def _grpc_status(error: RpcError) -> bytes:
    """The message google.rpc.Status: code, text, and of each detail an Any."""
    status = b"\x08" + encode_varint(GRPC_NUMBERS[error.code]) + _field(2, error.message.encode())
    for name, data in error.details:
        url = f"type.googleapis.com/{name}".encode()
        status += _field(3, _field(1, url) + _field(2, data))
    return status


def _field(number: int, data: bytes) -> bytes:
    """A field with bytes, as Protocol Buffers write it."""
    return encode_varint(number << 3 | 2) + encode_varint(len(data)) + data


def _unpadded(data: bytes) -> str:
    return b64encode(data).rstrip(b"=").decode()


def _percent_encode(text: str) -> str:
    """Printable ASCII but for the percent sign stays as it is."""
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}"
        for byte in text.encode("utf-8", "replace")
    )

"""The two forms of the messages of the worker service."""

from typing import Any, Final

from corvo import limits
from corvo._fast.codec import protobuf
from corvo._fast.codec.protobuf import Message
from corvo.model import Fetched
from corvo.net.rpc import proto_json
from corvo.net.rpc.status import TYPES
from corvo.net.rpc.worker_service import Values, job_values, jobs_field


class Codec:
    """One of the two forms."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._module: Any = protobuf if name == "proto" else proto_json

    def encode(self, type: str, values: Values) -> bytes:
        """A message."""
        data: bytes = self._module.encode(TYPES[type], values)
        return data

    def jobs(self, jobs: list[Fetched]) -> Any:
        """Delivered jobs, as the response of a stream has them."""
        return jobs_field(jobs) if self.name == "proto" else [job_values(job) for job in jobs]

    def decode(self, type: str, data: bytes, items_max: int = limits.RPC_ITEMS_MAX) -> Values:
        """A message; ProtobufError when it is none."""
        message: Message = TYPES[type]
        values: Values = self._module.decode(message, data, items_max)
        return values


CODECS: Final = {name: Codec(name) for name in ("proto", "json")}

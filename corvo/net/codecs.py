"""The two forms of the messages of the worker service."""

from typing import Any, Final

from corvo import limits
from corvo._fast import protobuf
from corvo._fast.protobuf import Message
from corvo.model import Fetched
from corvo.net import proto_json
from corvo.net.rpc_status import TYPES
from corvo.net.worker_calls import Values, job_message, job_values


class Codec:
    """One of the two forms."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._module: Any = protobuf if name == "proto" else proto_json
        self._job: Any = job_message if name == "proto" else job_values

    def encode(self, type: str, values: Values) -> bytes:
        """A message."""
        data: bytes = self._module.encode(TYPES[type], values)
        return data

    def jobs(self, jobs: list[Fetched]) -> list[Any]:
        """Delivered jobs, as a message has them."""
        return [self._job(job) for job in jobs]

    def decode(self, type: str, data: bytes) -> Values:
        """A message; ProtobufError when it is none."""
        message: Message = TYPES[type]
        values: Values = self._module.decode(message, data, limits.RPC_ITEMS_MAX)
        return values


CODECS: Final = {name: Codec(name) for name in ("proto", "json")}

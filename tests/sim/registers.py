"""The state machine of core runs: registers, and a hash of everything that was applied."""

import hashlib
import json
from typing import Any

from corvo.consensus.log import Entry


class Registers:
    """A command is the JSON of [key, value]. All of the state is in every snapshot."""

    def __init__(self, state: bytes = b"") -> None:
        self.applied_index = 0
        self.hash = b""
        self.values: dict[str, Any] = {}
        if state:
            self.applied_index, code, self.values = json.loads(state)
            self.hash = bytes.fromhex(code)

    def apply(self, entry: Entry) -> Any:
        """Apply a FRAME entry; returns True."""
        assert entry.index > self.applied_index
        self.applied_index = entry.index
        self.hash = hashlib.blake2b(self.hash + entry.data, digest_size=8).digest()
        if entry.data:
            key, value = json.loads(entry.data)
            self.values[key] = value
        return True

    def skip(self, entry: Entry) -> None:
        """An entry that is not for the state machine."""
        self.applied_index = entry.index

    def read(self, key: str) -> Any:
        """The value of the last write."""
        return self.values.get(key)

    def abandon(self) -> list[Any]:
        """Commands are proposed at once, so nobody waits."""
        return []

    def encode(self) -> bytes:
        """What a snapshot holds."""
        return json.dumps([self.applied_index, self.hash.hex(), self.values]).encode()


def encode_write(key: str, value: Any) -> bytes:
    """A command."""
    return json.dumps([key, value]).encode()

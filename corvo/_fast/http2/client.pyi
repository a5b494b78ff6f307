from collections.abc import Iterable

class Event:
    """Something that came: fields or data of a stream, the reset of one, or a good-bye."""

    stream_id: int
    fields: list[tuple[bytes, bytes]] | None
    data: bytes
    ended: bool
    code: int
    leaving: bool

class H2Client:
    """One connection to a server."""

    streams_max: int
    leaving: bool
    @property
    def streams(self) -> int: ...
    @property
    def unsent_size(self) -> int: ...
    def __init__(self, authority: bytes, scheme: bytes = b"http") -> None: ...
    def post(
        self,
        path: bytes,
        fields: Iterable[tuple[bytes, bytes]],
        body: bytes = b"",
        ends: bool = True,
    ) -> int: ...
    def send(self, stream_id: int, data: bytes, ends: bool = False) -> None: ...
    def reset(self, stream_id: int, code: int) -> None: ...
    def data_to_send(self) -> bytes: ...
    def feed(self, data: bytes) -> list[Event]: ...

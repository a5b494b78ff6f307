from collections.abc import Iterable

DATA: int
HEADERS: int
PRIORITY: int
RST_STREAM: int
SETTINGS: int
PUSH_PROMISE: int
PING: int
GOAWAY: int
WINDOW_UPDATE: int
CONTINUATION: int

class ConnectionFault(Exception):
    """The peer broke the protocol or asked too much: GOAWAY with this code, then close."""

    code: int
    text: str
    reason: str
    def __init__(self, code: int, text: str, reason: str = "protocol") -> None: ...

class FrameReader:
    """The frame it has read last; one object serves a whole connection."""

    type: int
    flags: int
    ends_stream: bool
    ends_headers: bool
    stream_id: int
    size: int
    start: int
    end: int
    following: int
    value: int
    def __init__(self) -> None: ...
    def read(self, data: bytes, pos: int) -> bool: ...

def too_many(reason: str) -> ConnectionFault: ...
def window_too_large() -> ConnectionFault: ...
def idle_stream() -> ConnectionFault: ...
def after_the_end() -> ConnectionFault: ...
def frame_head(size: int, kind: int, flags: int, stream_id: int) -> bytes: ...
def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes: ...
def u32_frame(kind: int, stream_id: int, value: int) -> bytes: ...
def settings_frame(values: Iterable[tuple[int, int]]) -> bytes: ...
def goaway_frame(last_stream: int, code: int, text: str) -> bytes: ...

from corvo._fast.http.exchange import HttpConn, Request

class Stream:
    """One request and its reply, on their way."""

    def __init__(self, stream_id: int, request: Request, window: int, room: int) -> None: ...

class ReplyStreams(HttpConn):
    """The answering half of a connection of HTTP/2; a subclass reads."""

    def data_to_send(self) -> bytes: ...

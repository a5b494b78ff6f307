"""Server-sent events: bytes of a stream to events."""

from typing import NamedTuple


class SseEvent(NamedTuple):
    """A server-sent event."""

    name: str
    data: str
    id: str | None


class SseParser:
    """Cuts the bytes of a stream into server-sent events. A comment with an id gives an event
    without data, so that the position is known."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            text = line.rstrip(b"\r").decode("utf-8", "replace")
            if not text:
                if self._data or self._id is not None:
                    events.append(SseEvent(self._name, "\n".join(self._data), self._id))
                self._name, self._data, self._id = "", [], None
                continue
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._name = value
            elif name == "data":
                self._data.append(value)
            elif name == "id":
                self._id = value
        return events

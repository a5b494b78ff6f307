"""The channel between the server and its sidecar: calls, answers and notes over a Unix socket.

A frame is its length in 4 bytes (big-endian) and a MessagePack array:

    [0, id, method, arguments, wait_ms]   a call, and the time that the caller waits for the answer
    [1, id, result]                       its answer
    [2, id, code, status, message]        its answer, if the call is refused
    [3, name, value]                      a note, which is not answered

Both ends are asyncio protocols over a socket pair, so there is no path, no port and no third party.
An end closes when its peer is gone or sends an invalid frame.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgpack

from corvo import limits
from corvo.errors import CorvoError, MirrorUnavailable, Overloaded

_CALL: Final = 0
_RESULT: Final = 1
_REFUSAL: Final = 2
_NOTE: Final = 3
_SIZES: Final = {_CALL: 5, _RESULT: 3, _REFUSAL: 5, _NOTE: 3}
_HEAD: Final = struct.Struct(">I")

Completion = tuple[Callable[[Any, Any], None], Any]
Handler = Callable[[str, Any], Awaitable[Any]]


class Refused(CorvoError):
    """An error from the other end, with its code and status."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class Channel(asyncio.Protocol):
    """One end. The server calls, the sidecar serves; both send notes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_note: Callable[[str, Any], None],
        on_lost: Callable[[], None],
        serve: Handler | None = None,
    ) -> None:
        self._loop = loop
        self._on_note = on_note
        self._on_lost = on_lost
        self._serve = serve
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._calls: dict[int, tuple[Completion, Any]] = {}  # calls in flight: completion, timer
        self._last_id = 0  # of a call
        self._tasks: set[asyncio.Task[None]] = set()  # calls being served

    # ---- calls and notes ----

    def call(self, method: str, arguments: Any, wait_s: float, completion: Completion) -> None:
        """Call the other end; the completion gets the result or a CorvoError within `wait_s`."""
        if self._transport is None or self._transport.is_closing():
            raise MirrorUnavailable("the mirror is not running; it is being started")
        if len(self._calls) >= limits.IPC_CALLS_MAX:
            raise Overloaded(
                f"{limits.IPC_CALLS_MAX} calls to the mirror are in flight",
                retry_after_ms=limits.RETRY_AFTER_MAX_MS,
            )
        self._last_id += 1
        number = self._last_id
        self._send([_CALL, number, method, arguments, int(wait_s * 1000)])
        timer = self._loop.call_later(wait_s, self._on_late, number, wait_s)
        self._calls[number] = completion, timer

    def note(self, name: str, value: Any) -> None:
        """Send a note, which is not answered; dropped if the peer is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._send([_NOTE, name, value])

    def close(self) -> None:
        """Close this end; calls in flight are refused."""
        if self._transport is not None:
            self._transport.close()

    def _send(self, message: list[Any]) -> None:
        assert self._transport is not None
        data = msgpack.packb(message)
        self._transport.write(_HEAD.pack(len(data)) + data)

    def _on_late(self, number: int, wait_s: float) -> None:
        (callback, argument), _ = self._calls.pop(number)
        callback(argument, MirrorUnavailable(f"the mirror did not answer within {wait_s:g} s"))

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by asyncio."""
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, _error: Exception | None) -> None:
        """Refuse the calls in flight: the peer is gone."""
        calls = list(self._calls.values())
        self._calls.clear()
        for (callback, argument), timer in calls:
            timer.cancel()
            callback(argument, MirrorUnavailable("the mirror has stopped; it is being started"))
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Handle all complete frames."""
        received = self._received
        received += data
        at = 0
        while len(received) - at >= _HEAD.size:
            size = _HEAD.unpack_from(received, at)[0]
            if size > limits.IPC_FRAME_SIZE_MAX:
                self.close()
                return
            end = at + _HEAD.size + size
            if len(received) < end:
                break
            message = _parse(bytes(received[at + _HEAD.size : end]))
            if message is None:
                self.close()
                return
            at = end
            self._handle(message)
        del received[:at]

    def _handle(self, message: list[Any]) -> None:
        kind = message[0]
        if kind == _NOTE:
            self._on_note(message[1], message[2])
        elif kind == _CALL:
            task = self._loop.create_task(self._answer(*message[1:]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif message[1] in self._calls:  # else the call has timed out
            (callback, argument), timer = self._calls.pop(message[1])
            timer.cancel()
            callback(argument, message[2] if kind == _RESULT else Refused(*message[2:]))

    async def _answer(self, number: int, method: str, arguments: Any, wait_ms: int) -> None:
        assert self._serve is not None
        try:
            async with asyncio.timeout(wait_ms / 1000):
                result = await self._serve(method, arguments)
            message = [_RESULT, number, result]
        except TimeoutError:
            return  # the call of the caller times out at the same time
        except CorvoError as error:
            message = [_REFUSAL, number, error.code, error.status, error.message]
        if self._transport is not None and not self._transport.is_closing():
            self._send(message)


def _parse(data: bytes) -> list[Any] | None:
    """The message of a frame; None if it is invalid."""
    try:
        message = msgpack.unpackb(data)
    except ValueError:
        return None
    if isinstance(message, list) and message and len(message) == _SIZES.get(message[0]):
        return message
    return None

"""The channel between server and sidecar: calls, answers, notes, deadlines, ends."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from corvo import limits
from corvo.errors import CorvoError, MirrorUnavailable, NotFound, Overloaded
from corvo.sidecar.channel import Channel


class Ends:
    """Both ends of a channel in one loop."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Any]] = []
        self.lost: list[str] = []
        self.release = asyncio.Event()

    async def open(self) -> "Ends":
        loop = asyncio.get_running_loop()
        a, b = socket.socketpair()
        self.asking = Channel(loop, self._note, lambda: self.lost.append("asking"))
        self.serving = Channel(loop, self._note, lambda: self.lost.append("serving"), self.serve)
        self.raw = b
        await loop.create_connection(lambda: self.asking, sock=a)
        await loop.create_connection(lambda: self.serving, sock=b)
        return self

    def _note(self, name: str, value: Any) -> None:
        self.notes.append((name, value))

    async def serve(self, method: str, arguments: Any) -> Any:
        if method == "wait":
            await self.release.wait()
        if method == "refuse":
            raise NotFound("no such thing")
        return [method, arguments]

    async def call(self, method: str, arguments: Any = None, wait_s: float = 5) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        completion = (lambda _, result: answer.set_result(result), None)
        self.asking.call(method, arguments, wait_s, completion)
        return await answer


def check(story: Callable[[Ends], Any]) -> None:
    async def run() -> None:
        ends = await Ends().open()
        try:
            await story(ends)
        finally:
            ends.asking.close()
            ends.serving.close()
            await asyncio.sleep(0)

    asyncio.run(run())


def test_calls_and_notes() -> None:
    async def story(ends: Ends) -> None:
        assert await ends.call("say", {"a": [1, b"\xff", "ü"]}) == ["say", {"a": [1, b"\xff", "ü"]}]
        ends.asking.note("flushed", 7)
        ends.serving.note("state", {"x": None})
        big = "x" * 3_000_000
        assert await ends.call("big", big) == ["big", big]
        assert sorted(ends.notes) == [("flushed", 7), ("state", {"x": None})]

    check(story)


def test_answers_come_in_any_order() -> None:
    async def story(ends: Ends) -> None:
        slow = asyncio.ensure_future(ends.call("wait"))
        assert await ends.call("quick") == ["quick", None]
        assert not slow.done()
        ends.release.set()
        assert await slow == ["wait", None]

    check(story)


def test_a_refusal_keeps_code_and_status() -> None:
    async def story(ends: Ends) -> None:
        error = await ends.call("refuse")
        assert isinstance(error, CorvoError)
        assert (error.code, error.status, error.message) == ("NOT_FOUND", 404, "no such thing")

    check(story)


def test_a_call_ends_at_its_deadline() -> None:
    async def story(ends: Ends) -> None:
        error = await ends.call("wait", wait_s=0.01)
        assert isinstance(error, MirrorUnavailable)
        ends.release.set()  # the late answer goes nowhere
        assert await ends.call("quick") == ["quick", None]

    check(story)


def test_calls_in_flight_are_refused_when_the_peer_goes() -> None:
    async def story(ends: Ends) -> None:
        slow = asyncio.ensure_future(ends.call("wait"))
        await asyncio.sleep(0)
        ends.serving.close()
        assert isinstance(await slow, MirrorUnavailable)
        assert "asking" in ends.lost
        with pytest.raises(MirrorUnavailable):
            ends.asking.call("quick", None, 1, (print, None))
        ends.asking.note("nobody", 1)

    check(story)


def test_there_is_a_bound_on_calls() -> None:
    async def story(ends: Ends) -> None:
        calls = [asyncio.ensure_future(ends.call("wait")) for _ in range(limits.IPC_CALLS_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await ends.call("one too many")
        ends.release.set()
        await asyncio.gather(*calls)

    check(story)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\1\x05"])
def test_what_is_no_frame_ends_the_channel(data: bytes) -> None:
    async def story(ends: Ends) -> None:
        ends.asking.data_received(data)
        call = asyncio.ensure_future(ends.call("wait"))
        with pytest.raises(MirrorUnavailable):
            await call
        assert not ends.notes

    check(story)

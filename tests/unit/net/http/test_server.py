"""The socket shell, driven through a fake loop and fake transports: writes, timers, limits."""

from collections.abc import Callable
from typing import Any

import pytest

from corvo._fast.http.exchange import Request, header_line
from corvo._fast.http.monotonic import MonotonicClock
from corvo.errors import InvalidState
from corvo.limits import SECOND_NS
from corvo.net.http.server import Connection, HttpLimits, Server

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class FakeTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback


class FakeLoop:
    """A loop of which the test runs each turn."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.timers: list[FakeTimer] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(callback))
        return self.timers[-1]

    def turn(self) -> None:
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()


class FakeTransport:
    """Keeps what is written; the protocol's view of a socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.writes: list[bytes] = []
        self.reading = True
        self.ended = False
        self.state = "open"
        self.buffered = 0

    def get_extra_info(self, name: str) -> tuple[str, int]:
        assert name == "peername"
        return (self.address, 1)

    def write(self, data: bytes) -> None:
        assert self.state == "open" and not self.ended
        self.writes.append(data)

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"


class Shell(MonotonicClock):
    """A server whose clock, loop and sockets belong to the test."""

    def __init__(self, handle: Callable[[Request], None] | None = None, **limits: int) -> None:
        self.now_ns = SECOND_NS
        self.loop = FakeLoop()
        self.requests: list[Request] = []
        loop: Any = self.loop
        clock: Any = self
        self.server = Server(handle or self.requests.append, clock, HttpLimits(**limits), loop)

    def elapsed_ns(self) -> int:
        return self.now_ns

    def stamp(self) -> int:
        return 0

    def connect(self, address: str = "10.0.0.1") -> tuple[Connection, FakeTransport]:
        connection = self.server.protocol()
        transport = FakeTransport(address)
        made: Any = connection.connection_made
        made(transport)
        return connection, transport

    def pass_time(self, seconds: float) -> None:
        """Move the clock and let the timer, if it runs, look at it."""
        self.now_ns += int(seconds * SECOND_NS)
        timers, self.loop.timers = self.loop.timers, []
        for timer in timers:
            timer.callback()
        self.loop.turn()


def answer(request: Request) -> None:
    request.reply(200, b"{}")


# Writes.


def test_replies_of_a_read_leave_in_one_write() -> None:
    shell = Shell(answer)
    connection, transport = shell.connect()
    connection.data_received(GET * 16)
    assert len(transport.writes) == 1 and transport.writes[0].count(b"200 OK") == 16
    shell.loop.turn()
    assert len(transport.writes) == 1


def test_replies_made_later_leave_in_one_write_per_connection() -> None:
    shell = Shell()
    sockets = [shell.connect() for _ in range(3)]
    for connection, _ in sockets:
        connection.data_received(GET * 5)
    for request in reversed(shell.requests):
        request.reply(200)
    assert [t.writes for _, t in sockets] == [[], [], []] and len(shell.loop.soon) == 1
    shell.loop.turn()
    assert [len(t.writes) for _, t in sockets] == [1, 1, 1]
    assert shell.loop.soon == []


def test_flush_sends_at_once() -> None:
    shell = Shell()
    connection, transport = shell.connect()
    connection.data_received(GET * 2)
    for request in shell.requests:
        request.reply(200)
    shell.server.flush()
    assert len(transport.writes) == 1 and all(r.delivered for r in shell.requests)
    shell.loop.turn()
    assert len(transport.writes) == 1


def test_a_reply_to_another_connection_made_while_reading() -> None:
    shell = Shell()
    (waiting, waiting_transport), (other, other_transport) = shell.connect(), shell.connect()
    waiting.data_received(GET)
    parked = shell.requests.pop()

    def wake(request: Request) -> None:
        request.reply(201)
        parked.reply(200)

    shell.server.handle = wake
    other.data_received(GET)
    assert len(other_transport.writes) == 1 and waiting_transport.writes == []
    shell.loop.turn()
    assert len(other_transport.writes) == 1 and len(waiting_transport.writes) == 1


# Errors.


def test_a_refusal_becomes_its_reply() -> None:
    def refuse(request: Request) -> None:
        raise InvalidState("job j is completed", state="completed")

    connection, transport = Shell(refuse).connect()
    connection.data_received(GET)
    assert b"409 Conflict" in transport.writes[0]
    assert b'"code":"INVALID_STATE","state":"completed"' in transport.writes[0]


def test_an_exception_becomes_a_500_and_one_log_record(caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Request) -> None:
        raise RuntimeError("broken")

    connection, transport = Shell(fail).connect()
    connection.data_received(GET)
    assert b"500 Internal Server Error" in transport.writes[0]
    assert b"broken" not in transport.writes[0]
    assert len(caplog.records) == 1 and caplog.records[0].exc_info
    connection.data_received(GET)
    assert len(transport.writes) == 2 and transport.state == "open"


def test_response_splitting_is_a_500() -> None:
    from corvo._fast.http.exchange import header_line

    def split(request: Request) -> None:
        request.reply(200, headers=header_line("X-Job", "a\r\nSet-Cookie: b"))

    connection, transport = Shell(split).connect()
    connection.data_received(GET)
    assert b"500 Internal" in transport.writes[0] and b"Set-Cookie" not in transport.writes[0]


# Class 4: readers that do not read.


def test_a_stalled_writer_is_aborted() -> None:
    shell = Shell(answer)
    connection, transport = shell.connect()
    transport.buffered = 1000
    connection.pause_writing()
    connection.data_received(GET)
    assert transport.writes == [] and not transport.reading
    for _ in range(10):
        shell.pass_time(50)
        transport.buffered -= 1
    assert transport.state == "open"
    shell.pass_time(50)
    shell.pass_time(61)
    assert transport.state == "aborted"


def test_writing_resumes() -> None:
    shell = Shell(answer)
    connection, transport = shell.connect()
    connection.data_received(GET)
    connection.pause_writing()
    connection.data_received(GET)
    connection.resume_writing()
    shell.loop.turn()
    shell.loop.turn()
    assert len(transport.writes) == 2 and transport.reading


def test_replies_that_are_not_taken_stop_the_pipeline() -> None:
    served: list[Request] = []

    def large(request: Request) -> None:
        served.append(request)
        request.reply(200, b"x" * 1000)

    shell = Shell(large, unsent_size_max=2500)
    connection, transport = shell.connect()
    connection.data_received(GET * 60)
    assert len(served) == 3 and len(transport.writes) == 1
    connection.pause_writing()
    for _ in range(9):
        shell.loop.turn()
    assert len(served) < 7 and len(transport.writes) == 1
    connection.resume_writing()
    for _ in range(60):
        shell.loop.turn()
    assert len(served) == 60 and transport.reading
    assert max(len(data) for data in transport.writes) < 4 * 1300
    assert b"".join(transport.writes).count(b"200 OK") == 60


def test_what_is_read_meanwhile_waits_behind_the_held_requests() -> None:
    served: list[bytes] = []

    def large(request: Request) -> None:
        served.append(request.query)
        request.reply(200, b"x" * 1000)

    shell = Shell(large, unsent_size_max=2500)
    connection, _ = shell.connect()
    numbered = [GET.replace(b" HTTP", b"?%d HTTP" % number) for number in range(20)]
    connection.data_received(b"".join(numbered[:10]))
    connection.data_received(b"".join(numbered[10:]))
    while shell.loop.soon:
        shell.loop.turn()
    assert served == [b"%d" % number for number in range(20)]


# Classes 9 and 27: floods and fairness.


def test_a_flood_is_read_in_turns() -> None:
    shell = Shell(answer)
    (flood, flood_transport), (other, other_transport) = shell.connect(), shell.connect()
    flood.data_received(GET * 9000)
    assert flood_transport.writes[0].count(b"200 OK") == 64 and not flood_transport.reading
    other.data_received(GET)
    assert len(other_transport.writes) == 1
    turns = 0
    while shell.loop.soon:
        written = len(flood_transport.writes)
        shell.loop.turn()
        turns += 1
        assert len(flood_transport.writes) <= written + 1
    assert turns == 140 and flood_transport.reading
    assert sum(data.count(b"200 OK") for data in flood_transport.writes) == 9000


def test_a_full_pipeline_stops_the_reading() -> None:
    shell = Shell()
    connection, transport = shell.connect()
    connection.data_received(GET * 100)
    assert len(shell.requests) == 64 and not transport.reading and shell.loop.soon == []
    for request in shell.requests[:48]:
        request.reply(200)
    shell.loop.turn()
    shell.loop.turn()
    assert len(shell.requests) == 100


# Class 11: connections.


def test_connections_per_address() -> None:
    shell = Shell(connections_per_address_max=2)
    first, _ = shell.connect()
    shell.connect()
    _, third = shell.connect()
    assert (
        third.state == "aborted" and shell.server.context.abuse_counters.counts["connections"] == 1
    )
    assert shell.connect("10.0.0.2")[1].state == "open"
    first.connection_lost(None)
    assert shell.connect()[1].state == "open"


def test_connections_in_total() -> None:
    shell = Shell(connections_max=3)
    states = [shell.connect(f"10.0.0.{n}")[1].state for n in range(4)]
    assert states == ["open", "open", "open", "aborted"]
    assert len(shell.server.connections) == 3 and len(shell.server.by_address) == 3


# Time.


def test_no_timer_without_connections() -> None:
    shell = Shell(answer)
    assert shell.loop.timers == []
    connection, _ = shell.connect()
    shell.connect()
    assert len(shell.loop.timers) == 1
    connection.data_received(GET)
    assert len(shell.loop.timers) == 1
    for connection in list(shell.server.connections):
        connection.connection_lost(None)
    shell.pass_time(1)
    assert shell.loop.timers == [] and shell.server.by_address == {}


def test_idle_connections_close_after_their_time() -> None:
    shell = Shell(answer)
    connection, transport = shell.connect()
    connection.data_received(GET)
    shell.pass_time(75)
    assert not transport.ended
    shell.pass_time(1)
    assert transport.ended and len(transport.writes) == 1
    shell.pass_time(1)
    assert transport.state == "closed"


def test_a_slow_head_gets_a_408() -> None:
    shell = Shell(answer)
    connection, transport = shell.connect()
    connection.data_received(b"GET / HTTP/1.1\r\n")
    shell.pass_time(10.5)
    assert b"408 Request Timeout" in transport.writes[0] and transport.ended


def test_a_header_that_could_split_the_reply() -> None:
    def handle(request: Request) -> None:
        request.reply(200, b"", header_line("X-Job", "a\r\nX-Evil: 1"))

    shell = Shell(handle)
    connection, transport = shell.connect()
    connection.data_received(GET)
    assert b" 500 " in transport.writes[0] and b"Evil" not in transport.writes[0]
    assert shell.server.context.abuse_counters.counts["reply_headers"] == 1


def test_the_shell_goes_on_in_http2() -> None:
    shell = Shell(answer)
    connection, transport = shell.connect()
    connection.data_received(b"PRI * HTTP/2.0\r\n")
    connection.data_received(b"\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
    ask = b"\x82\x86\x84\x41\x01a"
    connection.data_received(bytes((0, 0, len(ask), 1, 5, 0, 0, 0, 1)) + ask)
    assert b"".join(transport.writes).endswith(b"{}") and len(transport.writes) <= 3
    connection.data_received(bytes((0, 0, 0, 4, 1, 0, 0, 0, 0)))  # it acknowledges our settings
    shell.pass_time(76)
    assert transport.ended


# Ends.


def test_lingering_reads_and_ignores() -> None:
    shell = Shell()
    connection, transport = shell.connect()
    connection.data_received(b"NONSENSE\r\n\r\n")
    assert transport.ended and transport.state == "open"
    connection.data_received(GET)
    assert shell.requests == [] and len(transport.writes) == 1
    assert connection.eof_received() is False


def test_half_close_is_answered_then_closed() -> None:
    shell = Shell()
    connection, transport = shell.connect()
    connection.data_received(GET)
    assert connection.eof_received() is True
    assert transport.state == "open"
    shell.requests[0].reply(200)
    shell.loop.turn()
    assert len(transport.writes) == 1 and transport.state == "closed"


def test_a_reset_abandons_parked_requests() -> None:
    shell = Shell()
    connection, _ = shell.connect()
    connection.data_received(GET)
    told: list[Request] = []
    shell.requests[0].on_abandoned = told.append
    connection.connection_lost(ConnectionResetError())
    assert told == shell.requests and shell.requests[0].abandoned
    shell.requests[0].reply(200)
    shell.loop.turn()
    assert shell.server.connections == set()


def test_nothing_keeps_a_closed_connection_alive() -> None:
    import gc

    shell = Shell(answer)
    gc.collect()
    gc.disable()
    try:
        connection, transport = shell.connect()
        connection.data_received(GET)
        connection.connection_lost(None)
        shell.loop.turn()
        del connection, transport
        assert not any(isinstance(thing, Connection) for thing in gc.get_objects())
    finally:
        gc.enable()

"""Who serves a request, over a log and a leadership that the test plays."""

from typing import Any

import pytest
from lib.route_table import ROUTER
from unit.net.http.test_server import Shell

from corvo import limits
from corvo._fast.http.exchange import Request
from corvo.consensus.cluster.membership import NodeAddresses, encode_addresses
from corvo.consensus.raft.messages import ConfState
from corvo.engine.parked import Wait
from corvo.errors import LeaseLost, Overloaded
from corvo.net.forward.gate import Gate

JOB = "/api/v1/jobs/"


class Loop:
    """Runs callbacks and timers when told to."""

    def __init__(self) -> None:
        self.soon: list[Any] = []
        self.timers: list[Any] = []

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.soon.append((callback, args))

    def call_later(self, _delay: float, callback: Any, *args: Any) -> "Loop":
        self.timers.append((callback, args))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def run(self, timers: bool = False) -> None:
        due, self.soon = self.soon, []
        if timers:
            due, self.timers = due + self.timers, []
        for callback, args in due:
            callback(*args)


class Log:
    """Says who leads, and answers reads when told to."""

    node_id = "n1/x"

    def __init__(self) -> None:
        self.started = True
        self.leader_id = ""
        contexts = {f"n{n}/x": encode_addresses(NodeAddresses("r", f"h{n}:80")) for n in (1, 2)}
        self.conf = ConfState(["n1/x", "n2/x"], contexts=contexts)
        self.reads: list[Any] = []
        self.silent = False

    @property
    def hears_leader(self) -> bool:
        return self.leader_id not in ("", self.node_id) and not self.silent

    def leader_address(self) -> str:
        return f"h{self.leader_id[1]}:80" if self.leader_id else ""

    def read(self, answer: Any) -> None:
        self.reads.append(answer)

    def fail_reads(self) -> None:
        reads, self.reads = self.reads, []
        for answer in reads:
            answer(False)


class Leadership:
    """Led by the test."""

    def __init__(self) -> None:
        self.serving = False
        self.on_change: list[Any] = []


class Rig:
    """A gate, and requests that come through a real front end."""

    def __init__(self) -> None:
        self.shell = Shell(self.handle)
        self.loop = Loop()
        self.log = Log()
        self.leadership = Leadership()
        self.served: list[bytes] = []
        self.forwarded: list[tuple[bytes, str]] = []
        parts: tuple[Any, ...] = (
            self.serve,
            ROUTER.find,
            self.log,
            self.leadership,
            self.log.leader_address,
            self.forward,
            self.loop,
        )
        self.gate = Gate(*parts, self.shell.elapsed_ns, self.shell.server.flush)
        self.connection, self.transport = self.shell.connect()
        self.lost: Request | None = None
        self.error: Exception | None = None

    def handle(self, request: Request) -> None:
        self.gate.handle(request)

    def serve(self, request: Request) -> None:
        if self.error is not None:
            raise self.error
        self.served.append(request.path)
        if request.path == b"/lost":
            self.lost = request
            request.context = "something"
        else:
            request.reply(200, b"{}")

    def forward(self, request: Request, address: str, until_ns: int) -> None:
        self.forwarded.append((request.path, address))
        if request.path == b"/unsent":
            self.gate.returned(request, until_ns)
        else:
            request.reply(200, b"{}")

    def send(self, method: str, target: str, head: str = "") -> None:
        text = f"{method} {target} HTTP/1.1\r\nHost: t\r\n{head}\r\n"
        self.connection.data_received(text.encode())
        self.shell.loop.turn()

    def lead(self, serving: bool, leader_id: str = "n1/x") -> None:
        self.leadership.serving = serving
        self.log.leader_id = leader_id
        for callback in self.leadership.on_change:
            callback()
        self.loop.run()

    def answers(self) -> list[bytes]:
        """Status lines, and codes of errors, in order."""
        self.shell.server.flush()
        output = b"".join(self.transport.writes)
        self.transport.writes.clear()
        return [part[:3] for part in output.split(b"HTTP/1.1 ")[1:]]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_reads_are_served_here_and_writes_by_the_leader(rig: Rig) -> None:
    rig.lead(False, "n2/x")
    rig.send("GET", "/a")
    rig.send("HEAD", "/b")
    rig.send("POST", "/c")
    assert rig.served == [b"/a", b"/b"] and rig.forwarded == [(b"/c", "h2:80")]
    rig.lead(True)
    rig.send("POST", "/d")
    assert rig.served[2:] == [b"/d"]
    assert rig.answers() == [b"200"] * 4


def test_text_is_read_where_it_is_written(rig: Rig) -> None:
    rig.lead(False, "n2/x")
    rig.send("GET", "/api/v1/jobs/j/stream")
    rig.send("HEAD", "/api/v1/jobs/j/stream")
    assert rig.forwarded == [(b"/api/v1/jobs/j/stream", "h2:80")] and len(rig.served) == 1
    rig.lead(True)
    rig.send("GET", "/api/v1/jobs/j/stream")
    assert len(rig.forwarded) == 1 and len(rig.served) == 2


def test_the_mirror_of_this_node_is_asked_here(rig: Rig) -> None:
    rig.lead(False, "n2/x")
    rig.send("POST", "/api/v1/jobs/search")
    rig.send("POST", "/api/v1/jobs/facets")
    rig.send("POST", "/api/v1/jobs/bulk")
    assert len(rig.served) == 2 and rig.forwarded == [(b"/api/v1/jobs/bulk", "h2:80")]


def test_nothing_is_served_before_the_log_has_started(rig: Rig) -> None:
    rig.log.started = False
    for method in ("GET", "POST"):
        rig.send(method, "/api/v1/queues")
    assert rig.answers() == [b"503", b"503"] and not rig.served


def test_a_request_waits_for_a_leader(rig: Rig) -> None:
    for target in ("/a", "/b", "/c"):
        rig.send("POST", target)
    assert rig.gate.held == 3 and rig.answers() == []
    rig.lead(False, "")
    assert rig.gate.held == 3
    rig.lead(False, "n2/x")
    assert [path for path, _ in rig.forwarded] == [b"/a", b"/b", b"/c"]
    rig.send("DELETE", "/d")
    assert rig.answers() == [b"200"] * 4 and rig.gate.held == 0


def test_a_request_waits_no_longer_than_that(rig: Rig) -> None:
    rig.send("POST", "/a")
    rig.loop.run(timers=True)
    assert rig.gate.held == 1
    rig.shell.now_ns += limits.LEADER_WAIT_NS
    rig.loop.run(timers=True)
    assert rig.gate.held == 0 and rig.answers() == [b"503"]


def test_who_is_cut_off_says_so_at_once(rig: Rig) -> None:
    """Requests wait for an election to end, not each for itself."""
    rig.lead(False, "")
    rig.shell.now_ns += limits.LEADER_WAIT_NS - 1
    rig.send("POST", "/a")
    rig.loop.run(timers=True)
    assert rig.gate.held == 1
    rig.shell.now_ns += 1
    rig.send("POST", "/b")
    rig.loop.run(timers=True)
    assert rig.answers() == [b"503", b"503"]
    for leads in (True, False):  # and then for the next one
        rig.lead(leads, "n1/x" if leads else "")
    rig.send("POST", "/c")
    rig.loop.run(timers=True)
    assert rig.gate.held == 1


def test_nothing_is_sent_to_a_leader_that_is_silent(rig: Rig) -> None:
    """It may be gone, and what was sent to it with it."""
    rig.lead(False, "n2/x")
    rig.log.silent = True
    rig.send("POST", "/a")
    assert rig.gate.held == 1 and not rig.forwarded
    rig.log.silent = False
    rig.loop.run(timers=True)
    assert rig.forwarded == [(b"/a", "h2:80")] and rig.answers() == [b"200"]


def test_leading_is_not_serving_yet(rig: Rig) -> None:
    rig.lead(False)
    rig.send("POST", "/a")
    assert rig.gate.held == 1 and not rig.forwarded
    rig.lead(True)
    assert rig.served == [b"/a"]


def test_what_was_lost_is_asked_for_again(rig: Rig) -> None:
    rig.lead(True)
    rig.send("POST", "/lost")
    assert rig.lost is not None
    rig.leadership.serving, rig.log.leader_id = False, ""
    assert rig.gate.again((print, rig.lost))
    assert rig.lost.context is None
    rig.loop.run()
    rig.lead(False, "n2/x")
    assert rig.forwarded == [(b"/lost", "h2:80")]
    assert rig.answers() == [b"200"]


def test_a_lost_fetch_is_asked_for_again(rig: Rig) -> None:
    rig.lead(True)
    rig.send("POST", "/lost")
    wait = Wait(["q"], "w", b"", False, 0, rig.lost, print)
    assert rig.gate.again((print, wait))
    # Handed over at this moment: it is tried again with the next tick, not at once.
    rig.loop.run()
    assert rig.served == [b"/lost"]
    rig.loop.run(timers=True)
    assert rig.served == [b"/lost", b"/lost"]
    assert not rig.gate.again((print, 7))


def test_what_could_not_be_passed_on_is_tried_again(rig: Rig) -> None:
    rig.lead(False, "n2/x")
    rig.send("POST", "/unsent")
    assert rig.gate.held == 1
    rig.loop.run(timers=True)
    assert len(rig.forwarded) == 2 and rig.gate.held == 1
    rig.shell.now_ns += limits.LEADER_WAIT_NS
    rig.loop.run(timers=True)
    assert len(rig.forwarded) == 2 and rig.answers() == [b"503"]


def test_what_may_have_been_done_is_not_said_to_be_undone(rig: Rig) -> None:
    rig.lead(True)
    rig.send("POST", "/lost")
    assert rig.lost is not None
    rig.leadership.serving, rig.log.leader_id = False, ""
    rig.lost.unsure = True  # an earlier leader was lost with it
    rig.gate.returned(rig.lost, rig.shell.now_ns)
    rig.loop.run(timers=True)
    assert rig.answers() == [b"504"]


def test_what_may_have_been_done_is_not_refused_as_if_not(rig: Rig) -> None:
    """By the node that leads next, which is this one."""
    rig.send("POST", "/a")
    rig.gate._held[0][1].unsure = True
    rig.error = Overloaded("too much", retry_after_ms=5)
    rig.lead(True)
    assert rig.answers() == [b"504"]


def test_nobody_waits_any_more(rig: Rig) -> None:
    rig.send("POST", "/a")
    rig.connection.connection_lost(None)
    rig.lead(True)
    assert rig.served == [] and rig.gate.held == 0


def test_a_request_that_was_passed_on_is_not_passed_on_again(rig: Rig) -> None:
    rig.lead(False, "n2/x")
    rig.send("POST", "/a", "X-Corvo-Forwarded: 1\r\n")
    assert rig.answers() == [b"503"] and not rig.forwarded
    rig.lead(True)
    rig.send("POST", "/lost", "X-Corvo-Forwarded: 1\r\n")
    rig.leadership.serving = False
    assert rig.gate.again((print, rig.lost))
    rig.loop.run()
    assert rig.answers() == [b"503"]


def test_consistent_reads(rig: Rig) -> None:
    rig.lead(False, "n2/x")
    rig.send("GET", JOB + "a?consistent=true")
    rig.send("GET", JOB + "b/events?limit=1&consistent=true")
    rig.send("GET", JOB + "c?consistent=false")
    assert rig.served == [b"/api/v1/jobs/c"]
    rig.log.reads.pop(0)(True)
    assert rig.served == [b"/api/v1/jobs/c", b"/api/v1/jobs/a"]
    rig.log.reads.pop(0)(False)
    assert rig.gate.held == 1
    rig.shell.now_ns += limits.LEADER_WAIT_NS
    rig.loop.run(timers=True)
    assert rig.answers() == [b"200", b"503", b"200"]
    rig.send("GET", JOB + "d?consistent=%74rue")
    rig.shell.now_ns += limits.LEADER_WAIT_NS
    rig.loop.run(timers=True)
    assert rig.answers() == [b"503"]


def test_a_read_is_asked_for_again_at_the_next_leader(rig: Rig) -> None:
    rig.lead(False, "n2/x")
    rig.send("GET", JOB + "a?consistent=true")
    [lost] = rig.log.reads
    rig.lead(False, "")
    assert rig.log.reads != [lost] and not rig.served
    rig.lead(True)
    assert not rig.served and len(rig.log.reads) == 1
    rig.log.reads.pop()(True)
    assert rig.served == [b"/api/v1/jobs/a"] and rig.answers() == [b"200"]


def test_errors_of_handlers_are_answers(rig: Rig) -> None:
    rig.send("POST", "/a")
    rig.error = LeaseLost("gone")
    rig.lead(True)
    assert rig.answers() == [b"409"]


def test_close_refuses_all_that_wait(rig: Rig) -> None:
    rig.send("POST", "/a")
    rig.gate.close()
    assert rig.answers() == [b"503"] and not rig.loop.timers

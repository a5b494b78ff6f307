"""Requests passed on to a leader: what goes over, what comes back, and what breaks on the way."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from lib.peer_nodes import cut_off, play, until
from lib.route_table import ROUTER

from corvo import limits
from corvo._fast.http.exchange import Request, header_line, reply_error
from corvo.errors import NoLeader, NotFound
from corvo.limits import SECOND_NS
from corvo.net.forward.proxy import Proxy
from corvo.net.forward.upstream import Chunks
from corvo.net.http.server import Server
from corvo.platform.clock import TestClock

Handle = Callable[[Request], None]


class Leader:
    """A front end whose requests the test answers."""

    def __init__(self, index: int = 77) -> None:
        self.requests: list[Request] = []
        self.handle: Handle = self.requests.append
        self.gone: list[Request] = []
        self.index = index
        self.port = 0

    async def start(self) -> "Leader":
        self.server = Server(self._handle, TestClock())
        self.server.context.index = self.index
        self.port = await self.server.listen("127.0.0.1", self.port)
        return self

    def _handle(self, request: Request) -> None:
        self.handle(request)

    def park(self, request: Request) -> None:
        """As a fetch does that finds nothing."""
        request.on_abandoned = self.gone.append
        self.requests.append(request)

    async def stop(self) -> None:
        """As kill -9 does."""
        await cut_off(self.server)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class Follower:
    """A front end that passes everything on."""

    def __init__(self, **options: int) -> None:
        self.clock = TestClock()
        self.address = ""
        self.unsent: list[tuple[Request, int]] = []
        self.options = options

    async def start(self) -> "Follower":
        loop = asyncio.get_running_loop()
        self.proxy = Proxy(loop, self.clock.elapsed_ns, self._on_unsent, **self.options)
        self.server = Server(self._handle, self.clock)
        self.server.context.index = 5
        self.port = await self.server.listen("127.0.0.1", 0)
        return self

    def _handle(self, request: Request) -> None:
        ROUTER.find(request)
        self.proxy.forward(request, self.address)

    def _on_unsent(self, request: Request, until_ns: int) -> None:
        self.unsent.append((request, until_ns))

    async def stop(self) -> None:
        await self.proxy.close()
        await cut_off(self.server)


@contextlib.asynccontextmanager
async def cluster(**options: int) -> AsyncIterator[tuple[Leader, Follower]]:
    leader, follower = await Leader().start(), await Follower(**options).start()
    follower.address = leader.address
    try:
        yield leader, follower
    finally:
        await follower.stop()
        await leader.stop()


class Client:
    """One connection to a node."""

    def __init__(self, node: Any) -> None:
        self._node = node

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._node.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def send(self, head: str, body: bytes = b"", **headers: str) -> None:
        lines = [f"{head} HTTP/1.1", "Host: follower", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        assert len(fields) == len([line for line in head[1:] if line]), "no field comes twice"
        body = await self.reader.readexactly(int(fields.get("content-length", 0)))
        return int(head[0].split()[1]), fields, body

    async def call(
        self, head: str, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        self.send(head, body, **headers)
        return await self.receive()


def answer(request: Request) -> None:
    request.reply(201, request.body, header_line("X-More", "yes"))


# There and back.


def test_a_request_and_its_answer_come_over_whole() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            client.send(
                "POST /api/v1/enqueue?a=b&c=%20",
                b'{"queue": "q"}',
                Content_Type="application/x-json",
                Authorization="Bearer t",
                X_API_Key="key",
                Cookie="a=b",
                X_Request_Id="r-1",
                Idempotency_Key="once",
                X_Corvo_Namespace="default",
                X_Corvo_Client_Name="py",
                X_Corvo_Client_Version="1",
            )
            await until(lambda: leader.requests)
            (request,) = leader.requests
            assert (request.method, request.path) == ("POST", b"/api/v1/enqueue")
            assert (request.query, request.body) == (b"a=b&c=%20", b'{"queue": "q"}')
            assert request.content_type == b"application/x-json"
            assert (request.authorization, request.api_key) == (b"Bearer t", b"key")
            assert (request.cookie, request.request_id) == (b"a=b", b"r-1")
            assert (request.idempotency_key, request.namespace) == (b"once", b"default")
            assert (request.client_name, request.client_version) == (b"py", b"1")
            assert request.forwarded == b"1"
            more = header_line("X-More", "yes") + header_line("Retry-After", "3")
            request.reply(409, b"text", more, b"text/plain")
            status, fields, body = await client.receive()
            assert (status, body) == (409, b"text")
            assert fields["content-type"] == "text/plain"
            assert fields["x-request-id"] == "r-1"
            assert (fields["x-more"], fields["retry-after"]) == ("yes", "3")
            assert fields["x-corvo-forwarded"] == "1"
            assert fields["x-corvo-index"] == "77", "the leader's, not ours"
            assert follower.server.context.index == 5

    play(story)


def test_bodies_of_any_size() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            leader.handle = answer
            for size in (0, 1, 999, 1000, 70_000, 3_000_000, limits.BODY_SIZE_MAX):
                body = bytes(i % 251 for i in range(1000)) * (size // 1000) + b"x" * (size % 1000)
                status, fields, got = await client.call("POST /big", body)
                assert status == 201 and got == body
                assert fields["x-more"] == "yes"
            leader.handle = lambda request: request.reply(204)
            status, fields, got = await client.call("DELETE /x")
            assert status == 204 and "content-length" not in fields
            assert follower.proxy.connections == 1, "one after the other, on one connection"

    play(story)


def test_many_clients_share_connections() -> None:
    async def story() -> None:
        async with cluster(connections_max=8) as (leader, follower):
            leader.handle = answer

            async def client(number: int) -> None:
                async with Client(follower) as client:
                    for turn in range(10):
                        body = b"%d/%d" % (number, turn)
                        assert (await client.call("POST /echo", body))[2] == body

            await asyncio.gather(*(client(number) for number in range(60)))
            assert follower.proxy.connections <= 8
            assert follower.proxy.passed_on == 600 and not follower.proxy.in_line
            assert len(leader.server.connections) <= 8

    play(story)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            for number in range(5):
                client.send("POST /x", b"%d" % number)
            await until(lambda: len(leader.requests) == 5)
            for request in sorted(leader.requests, key=lambda r: r.body, reverse=True):
                request.reply(200, request.body)
            assert [(await client.receive())[2] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]

    play(story)


# The leader goes away.


def test_what_was_never_sent_may_be_asked_again() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            await leader.stop()
            client.send("POST /x", b"body")
            await until(lambda: follower.unsent)
            request, until_ns = follower.unsent.pop()
            assert until_ns > follower.clock.elapsed_ns()
            await leader.start()
            leader.handle = answer
            follower.proxy.forward(request, leader.address, until_ns)
            assert (await client.receive())[2] == b"body"
            # But not for ever.
            await leader.stop()
            await until(lambda: not follower.proxy.connections)
            client.send("POST /x", b"body")
            await until(lambda: follower.unsent)
            request, until_ns = follower.unsent.pop()
            follower.clock.advance(until_ns - follower.clock.elapsed_ns())
            follower.proxy.forward(request, leader.address, until_ns)
            status, fields, body = await client.receive()
            assert status == 503 and json.loads(body)["code"] == "NO_LEADER"
            assert fields["retry-after"]
            await leader.start()

    play(story)


def test_without_anybody_to_ask_it_is_refused() -> None:
    async def story() -> None:
        follower = Follower()
        await follower.start()
        follower.proxy = Proxy(asyncio.get_running_loop(), follower.clock.elapsed_ns)
        follower.address = "127.0.0.1:1"
        async with Client(follower) as client:
            status, _, body = await client.call("POST /x", b"body")
            assert status == 503 and json.loads(body)["code"] == "NO_LEADER"
            follower.address = "no address"
            assert (await client.call("POST /x", b"body"))[0] == 503
        await follower.stop()

    play(story)


def test_a_leader_that_does_not_lead() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            leader.handle = lambda request: reply_error(request, NoLeader("not me"))
            client.send("POST /x", b"body")
            await until(lambda: follower.unsent)
            assert follower.proxy.asked_again == 1
            # Any other refusal is the answer.
            leader.handle = lambda request: reply_error(request, NotFound("no such job"))
            follower.proxy.forward(follower.unsent[0][0], leader.address)
            status, _, body = await client.receive()
            assert status == 404 and json.loads(body)["code"] == "NOT_FOUND"

    play(story)


def test_a_leader_that_dies_with_a_request() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            client.send("POST /api/v1/enqueue", b"body")
            await until(lambda: leader.requests)
            await leader.stop()
            status, _, body = await client.receive()
            assert status == 504 and json.loads(body)["code"] == "OUTCOME_UNKNOWN"
            assert follower.proxy.unknown == 1 and not follower.unsent
            # With a key it is safe to ask again.
            await leader.start()
            client.send("POST /api/v1/enqueue", b"body", Idempotency_Key="k")
            await until(lambda: len(leader.requests) == 2)
            await leader.stop()
            await until(lambda: follower.unsent)
            await leader.start()
            leader.handle = answer
            follower.proxy.forward(follower.unsent[0][0], leader.address)
            assert (await client.receive())[2] == b"body"

    play(story)


def test_an_old_leader_that_hangs_with_a_request() -> None:
    """It was stopped, or cut off: its connections stay. Another one leads."""

    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            other = await Leader().start()
            other.handle = answer
            client.send("POST /api/v1/enqueue", b"body", Idempotency_Key="k")
            await until(lambda: leader.requests)
            follower.proxy.turn_to(other.address)
            await until(lambda: follower.unsent)
            follower.proxy.forward(*follower.unsent.pop()[:1], other.address)
            assert (await client.receive())[2] == b"body"
            # What may not be asked again goes on waiting, for a moment.
            for count, answered in ((2, True), (3, False)):
                follower.address = leader.address
                client.send("POST /api/v1/enqueue", b"more")
                await until(lambda n=count: len(leader.requests) == n)
                follower.proxy.turn_to("")
                if answered:
                    leader.requests[-1].reply(201, b"{}")
                else:
                    follower.clock.advance(limits.PROXY_OLD_LEADER_NS + 1)
                assert (await client.receive())[0] == (201 if answered else 504)
                assert follower.proxy.unknown == (not answered) and not follower.unsent
            await other.stop()

    play(story)


def test_nobody_says_that_nothing_was_done_who_does_not_know() -> None:
    """A request with a key was sent, its leader is gone, and nobody leads for too long."""

    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            client.send("POST /api/v1/enqueue", b"body", Idempotency_Key="k")
            await until(lambda: leader.requests)
            follower.clock.advance(limits.LEADER_WAIT_NS)
            await leader.stop()
            status, _, body = await client.receive()
            assert status == 504 and json.loads(body)["code"] == "OUTCOME_UNKNOWN"

    play(story)


def test_a_leader_that_says_nothing_or_nonsense() -> None:
    async def story() -> None:
        says: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(says[-1])

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        follower = await Follower().start()
        follower.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Client(follower) as client:
            for nonsense in (
                b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
                b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
                b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore",
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
                b"x" * (limits.HEAD_SIZE_MAX + 1),
            ):
                says.append(nonsense)
                assert (await client.call("POST /x", b"body"))[0] == 504
            says.append(b"HTTP/1.1 200 OK\r\nContent-")
            client.send("POST /x", b"body")
            await until(lambda: follower.proxy.connections)
            follower.clock.advance(limits.PROXY_ANSWER_NS + SECOND_NS)
            assert (await client.receive())[0] == 504
        await follower.stop()
        server.close()

    play(story)


def test_an_answer_in_crumbs() -> None:
    async def story() -> None:
        text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            for byte in text:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        follower = await Follower().start()
        follower.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Client(follower) as client:
            for _ in range(2):
                status, fields, body = await client.call("POST /x", b"body")
                assert (status, body) == (200, b"hello") and "connection" not in fields
                await until(lambda: not follower.proxy.connections)
        await follower.stop()
        server.close()

    play(story)


# Fetches.


FETCH = "POST /api/v1/fetch"


def test_a_client_that_goes_away_is_heard_of_by_the_leader() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower):
            leader.handle = leader.park
            async with Client(follower) as client:
                client.send(FETCH, b"{}")
                await until(lambda: leader.requests)
            await until(lambda: leader.gone)
            assert not follower.unsent
            # A write goes on without its client.
            leader.handle = leader.requests.append
            async with Client(follower) as client:
                client.send("POST /api/v1/enqueue", b"{}")
                await until(lambda: len(leader.requests) == 2)
            leader.requests[1].reply(201, b"{}")
            assert not leader.requests[1].abandoned
            await until(lambda: follower.proxy.connections == 1 and not follower.proxy._busy)

    play(story)


def test_jobs_for_a_client_that_has_gone_are_given_back() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower):
            for batch, jobs in (("", 1), ("/batch", 2)):
                leader.requests.clear()
                async with Client(follower) as client:
                    client.send(FETCH + batch, b"{}", X_API_Key="key")
                    await until(lambda: leader.requests)
                    (connection,) = follower.server.connections
                    assert connection.http is not None
                    connection.http.blocked = True  # it does not take its replies
                    job = {"job_id": "a/b", "lease_token": "t"}
                    body: Any = {"jobs": [job, job | {"job_id": "c"}]} if batch else job
                    leader.requests[0].reply(200, json.dumps(body).encode())
                    await until(lambda: not follower.proxy._busy)
                await until(lambda count=jobs: len(leader.requests) == 1 + count)
                release = leader.requests[1]
                assert (release.method, release.path) == ("POST", b"/api/v1/release/a%2Fb")
                assert json.loads(release.body) == {"lease_token": "t"}
                assert release.api_key == b"key" and release.forwarded
                for request in leader.requests[1:]:
                    request.reply(200, b"{}")
                await until(lambda: not follower.proxy._busy)

    play(story)


def test_waiting_fetches_follow_the_leader() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            other = await Leader().start()
            waited: list[int] = []

            def echo(request: Request) -> None:
                waited.append(int((request.rare or {})[b"x-corvo-waited"]))
                request.reply(200, request.body)

            other.handle = echo
            client.send(FETCH, b'{"queues": ["q"], "timeout": 20}')
            await until(lambda: leader.requests)
            follower.clock.advance(8 * SECOND_NS)
            # Somebody else leads, which a write finds out.
            follower.address = other.address
            async with Client(follower) as writer:
                assert (await writer.call("POST /x", b"w"))[2] == b"w"
            await until(lambda: follower.unsent)
            request, until_ns = follower.unsent.pop()
            assert until_ns > follower.clock.elapsed_ns()
            follower.proxy.forward(request, other.address, until_ns)
            body = json.loads((await client.receive())[2])
            assert 8_000 <= waited[-1] < 9_000
            assert body == {"queues": ["q"], "timeout": 20}
            # The leader dies under one.
            other.handle = other.requests.append
            client.send(FETCH, b'{"queues": ["q"], "timeout": "1m"}')
            await until(lambda: other.requests)
            await other.stop()
            await until(lambda: follower.unsent)
            assert follower.proxy.unknown == 0

    play(story)


def test_fetches_leave_connections_for_the_rest() -> None:
    async def story() -> None:
        options = {"connections_max": 4, "line_max": 3}
        async with cluster(**options) as (leader, follower), contextlib.AsyncExitStack() as stack:
            workers = [await stack.enter_async_context(Client(follower)) for _ in range(8)]
            for worker in workers[:6]:
                worker.send(FETCH, b"{}")
            await until(lambda: len(leader.requests) == 3 and follower.proxy.in_line == 3)
            workers[6].send(FETCH, b"{}")
            status, _, body = await workers[6].receive()
            assert status == 429 and json.loads(body)["code"] == "OVERLOADED"
            # A write finds its way.
            workers[7].send("POST /x", b"w")
            await until(lambda: len(leader.requests) == 4)
            leader.requests[3].reply(200, b"w")
            assert (await workers[7].receive())[0] == 200
            # The next in line gets the place of one that is done, or gone.
            leader.requests[0].reply(204)
            assert (await workers[0].receive())[0] == 204
            await until(lambda: len(leader.requests) == 5 and follower.proxy.in_line == 2)
            workers[1].writer.transport.abort()
            workers[4].writer.transport.abort()
            await until(lambda: len(leader.requests) == 6 and not follower.proxy.in_line)
            follower.clock.advance(limits.PROXY_FETCH_NS + SECOND_NS)
            await until(lambda: len(follower.unsent) == 3)
            assert follower.proxy._lasting == 0

    play(story)


def test_who_waits_too_long_in_line() -> None:
    async def story() -> None:
        async with (
            cluster(connections_max=1) as (leader, follower),
            Client(follower) as first,
            Client(follower) as second,
        ):
            first.send("POST /x", b"1")
            await until(lambda: leader.requests)
            second.send("POST /x", b"2")
            await until(lambda: follower.proxy.in_line == 1)
            follower.clock.advance(limits.PROXY_LINE_NS + SECOND_NS)
            status, fields, _ = await second.receive()
            assert status == 429 and fields["retry-after"]
            leader.requests[0].reply(200, b"1")
            assert (await first.receive())[0] == 200
            assert len(leader.requests) == 1

    play(story)


def test_idle_connections_are_closed() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            leader.handle = answer
            await client.call("POST /x", b"x")
            assert follower.proxy.connections == 1
            follower.clock.advance(limits.PROXY_IDLE_NS + SECOND_NS)
            await until(lambda: not follower.proxy.connections)
            # And one that the leader closes is not used.
            await client.call("POST /x", b"x")
            for connection in list(leader.server.connections):
                connection.drain()
            await until(lambda: not follower.proxy.connections)
            assert (await client.call("POST /x", b"x"))[0] == 201

    play(story)


def test_a_follower_that_stops_answers_its_fetches() -> None:
    async def story() -> None:
        async with (
            cluster(connections_max=4) as (leader, follower),
            contextlib.AsyncExitStack() as stack,
        ):
            leader.handle = leader.park
            workers = [await stack.enter_async_context(Client(follower)) for _ in range(5)]
            for number, worker in enumerate(workers):
                worker.send(FETCH + ("/batch" if number % 2 else ""), b"{}")
            await until(lambda: len(leader.requests) == 3 and follower.proxy.in_line == 2)
            follower.proxy.drain()
            for number, worker in enumerate(workers):
                status, _, body = await worker.receive()
                assert (status, body) == ((200, b'{"jobs":[]}') if number % 2 else (204, b""))
            await until(lambda: len(leader.gone) == 3)
            assert not follower.unsent

    play(story)


# Streams.


def begin(request: Request) -> None:
    request.start(200, header_line("Cache-Control", "no-cache"), b"text/event-stream")


TEXT = "GET /api/v1/jobs/j/stream"


async def chunk(client: Client) -> bytes:
    """The next chunk of an answer, empty for the last one."""
    size = int(await client.reader.readline(), 16)
    data = await client.reader.readexactly(size)
    assert await client.reader.readline() == b"\r\n"
    return data


def test_a_stream_comes_as_it_is_written() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            client.send(TEXT, Last_Event_ID="7")
            await until(lambda: leader.requests)
            (request,) = leader.requests
            assert request.rare is not None and request.rare[b"last-event-id"] == b"7"
            begin(request)
            head = (await client.reader.readuntil(b"\r\n\r\n")).lower()
            assert b"content-type: text/event-stream\r\n" in head
            assert b"cache-control: no-cache\r\n" in head
            assert b"x-corvo-forwarded: 1\r\n" in head and b"x-corvo-index: 77\r\n" in head
            for text in (b"a", b"b" * 100_000, b"c\r\n\r\n0\r\n\r\n"):
                request.send(text)
                got = b""
                while len(got) < len(text):
                    got += await chunk(client)
                assert got == text
            # It lasts for as long as there is something to say now and then.
            for _ in range(3):
                follower.clock.advance(limits.PROXY_FETCH_NS - SECOND_NS)
                request.send(b":keepalive\n\n")
                assert await chunk(client) == b":keepalive\n\n"
            request.end()
            assert await chunk(client) == b""
            # The connections can be used again, at both ends.
            leader.handle = answer
            assert (await client.call("POST /x", b"x"))[0] == 201
            assert follower.proxy.connections == 1 and follower.proxy._lasting == 0

    play(story)


def test_trailers_come_over() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            client.send("POST /corvo.v1.WorkerService/Enqueue", b"x", grpc_timeout="5S")
            await until(lambda: leader.requests)
            (request,) = leader.requests
            assert request.rare is not None and request.rare[b"grpc-timeout"] == b"5S"
            request.start(200, b"", b"application/grpc")
            request.send(b"message")
            request.end(header_line("grpc-status", "0"))
            await client.reader.readuntil(b"\r\n\r\n")
            assert await client.reader.readuntil(b"\r\n\r\n") == (
                b"7\r\nmessage\r\n0\r\ngrpc-status: 0\r\n\r\n"
            )

    play(story)


def test_who_does_not_read_a_stream_stops_who_writes_it() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower), Client(follower) as client:
            client.send(TEXT)
            await until(lambda: leader.requests)
            (request,) = leader.requests
            begin(request)
            await client.reader.readuntil(b"\r\n\r\n")
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            sent = 0
            while request.unsent_size < limits.STREAM_UNSENT_SIZE_MAX:
                request.send(b"x" * 65_536)
                sent += 65_536
                await asyncio.sleep(0)
            assert sent < 64 * 1024 * 1024
            (upstream,) = follower.proxy._busy
            assert upstream.paused
            assert upstream.forwarded is not None and upstream.forwarded.request is not None
            unsent = upstream.forwarded.request.unsent_size
            assert unsent <= limits.STREAM_UNSENT_SIZE_MAX + 256_000  # one read more
            follower.clock.advance(limits.PROXY_FETCH_NS + SECOND_NS)
            request.end()
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            got = 0
            while data := await chunk(client):
                got += len(data)
            assert got == sent

    play(story)


def test_the_end_of_a_stream_on_either_side() -> None:
    async def story() -> None:
        async with cluster() as (leader, follower):

            def handle(request: Request) -> None:
                leader.park(request)
                begin(request)

            leader.handle = handle
            async with Client(follower) as client:
                client.send(TEXT)
                await client.reader.readuntil(b"\r\n\r\n")
            await until(lambda: leader.gone)

            async def stop() -> None:
                await leader.stop()

            async def turn() -> None:
                follower.proxy.turn_to("")

            async def drain() -> None:
                follower.proxy.drain()

            for end in (stop, turn, drain):
                async with Client(follower) as client:
                    client.send(TEXT)
                    await client.reader.readuntil(b"\r\n\r\n")
                    await end()
                    assert await chunk(client) == b""
                    await until(lambda: not follower.proxy._busy)
                if end is stop:
                    await leader.start()
            assert follower.proxy._lasting == 0 and not follower.unsent

    play(story)


@pytest.mark.parametrize(
    ("wire", "pieces", "trailers"),
    [
        (b"3\r\nabc\r\n0\r\n\r\n", b"abc", b""),
        (b"1\r\na\r\n1\r\nb\r\n0\r\na: b\r\nc: d\r\n\r\n", b"ab", b"a: b\r\nc: d\r\n"),
        (b"0\r\n\r\n", b"", b""),
    ],
)
def test_chunks_in_any_pieces(wire: bytes, pieces: bytes, trailers: bytes) -> None:
    for size in range(1, len(wire) + 1):
        chunks = Chunks()
        got = b""
        for at in range(0, len(wire), size):
            assert chunks.trailers is None
            got += b"".join(chunks.feed(wire[at : at + size]))
        assert (got, chunks.trailers, chunks.after_end) == (pieces, trailers, b"")


@pytest.mark.parametrize("wire", [b"x\r\n", b"1" * 19, b"0\r\n" + b"a: b\r\n" * 1_000])
def test_what_are_no_chunks(wire: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        Chunks().feed(wire)

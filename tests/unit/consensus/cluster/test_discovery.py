"""Finding a cluster: what --join may say, and what is behind a DNS name."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from corvo.config import Address, load
from corvo.consensus.cluster.discovery import Discovery, Source, is_own, parse_join_address, resolve
from corvo.consensus.cluster.transport import Transport
from corvo.errors import ConfigError
from corvo.platform.clock import Clock

SECRET = {"CORVO_CLUSTER_SECRET": "a secret of the cluster"}
ID = "f" * 32


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(timed())


async def node(answer: Any) -> int:
    """Something that answers every request with this; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    return port


def test_what_join_may_say() -> None:
    assert parse_join_address("h:80") == Source(Address("h", 80))
    assert parse_join_address("http://h:80/") == Source(Address("h", 80), False)
    assert parse_join_address("https://[::1]:80") == Source(Address("::1", 80), True)
    assert str(parse_join_address("https://[::1]:80")) == "https://[::1]:80"
    for wrong in ("h", "h:", ":80", "ftp://h:80", "h:80/x", "http://h"):
        with pytest.raises(ConfigError, match="want HOST:PORT"):
            parse_join_address(wrong)


def test_nobody_to_join() -> None:
    discovery = Discovery(load({"join": "127.0.0.1:1"}, SECRET), os.urandom)
    with pytest.raises(ConfigError, match="cannot join the cluster at 127.0.0.1:1: "):
        asyncio.run(discovery.cluster_id(0))


def test_a_single_server_cannot_be_joined() -> None:
    async def story() -> None:
        port = await node({"mode": "single", "cluster_id": ID})
        discovery = Discovery(load({"join": f"http://127.0.0.1:{port}"}, SECRET), os.urandom)
        with pytest.raises(ConfigError, match="it needs --raft-bind"):
            await discovery.cluster_id(0)

    play(story)


def test_the_port_for_other_nodes_tells_where_the_api_is() -> None:
    async def story() -> None:
        port = await node({"mode": "cluster", "cluster_id": ID})
        secret = SECRET["CORVO_CLUSTER_SECRET"].encode()
        rest = (lambda _: None, lambda _: None)
        transport = Transport("a/1", ID, "1", secret, "127.0.0.1:0", *rest, clock=Clock())
        transport.api = f"127.0.0.1:{port}"
        await transport.start()
        flags = {"join": f"127.0.0.1:{transport.port}"}
        assert await Discovery(load(flags, SECRET), os.urandom).cluster_id(0) == ID
        other = {"CORVO_CLUSTER_SECRET": "another secret of 32 bytes"}
        with pytest.raises(ConfigError, match="the response is not HTTP"):
            await Discovery(load(flags, other), os.urandom).cluster_id(0)
        assert transport.refusals["secret"] == 1
        await transport.close()

    play(story)


def test_discovery_asks_all_that_the_name_has() -> None:
    async def story() -> None:
        port = await node({"mode": "cluster", "cluster_id": ID})
        found = [Address("127.0.0.1", 1), Address("127.0.0.1", port)]
        asked: list[tuple[str, int]] = []

        async def look_up(name: str, port: int) -> list[Address]:
            asked.append((name, port))
            return found

        config = load({"discover": f"dns:nodes:{port}", "bind": "127.0.0.1:1"}, SECRET)
        discovery = Discovery(config, os.urandom, look_up)
        assert await discovery.cluster_id(0) == ID
        assert asked == [("nodes", port)]
        candidates, is_first = await discovery.candidates()
        assert [seed.address.port for seed in candidates] == [port] and is_first

    play(story)


def test_the_first_node_begins_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody answers: the lowest address does, in Kubernetes the pod with ordinal 0."""

    async def story() -> None:
        found = [Address("127.0.0.1", 1), Address("127.0.0.1", 2)]

        async def look_up(_name: str, _port: int) -> list[Address]:
            return found

        def discovery(**flags: str) -> Discovery:
            given = {"discover": "dns:nodes", "bind": "127.0.0.1:1", **flags}
            return Discovery(load(given, SECRET), os.urandom, look_up, first_after_s=0)

        assert await discovery().cluster_id() == ""
        with pytest.raises(
            ConfigError, match="cannot join the cluster at nodes: http://127.0.0.1:1"
        ):
            await discovery(bind="127.0.0.1:2").cluster_id(0)
        patient = Discovery(load({"discover": "dns:nodes"}, SECRET), os.urandom, look_up)
        with pytest.raises(ConfigError, match="cannot join"):
            await patient.cluster_id(0)
        found.clear()
        with pytest.raises(ConfigError, match="no address of another node"):
            await discovery().cluster_id(0)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        assert await discovery(**{"node-id": "corvo-0"}).cluster_id() == ""
        with pytest.raises(ConfigError, match="cannot join"):
            await discovery(**{"node-id": "corvo-10"}).cluster_id(0)

    play(story)


def test_a_name_that_cannot_be_looked_up_is_tried_again() -> None:
    async def story() -> None:
        port = await node({"mode": "cluster", "cluster_id": ID})
        turns = 0

        async def look_up(_name: str, _port: int) -> list[Address]:
            nonlocal turns
            turns += 1
            if turns == 1:
                raise OSError("no such name")
            return [Address("127.0.0.1", port)]

        config = load({"discover": "dns:nodes"}, SECRET)
        assert await Discovery(config, os.urandom, look_up).cluster_id(5) == ID
        assert turns == 2

    play(story)


def test_looking_up() -> None:
    async def story() -> None:
        found = await resolve("localhost", 81)
        assert Address("127.0.0.1", 81) in found
        assert is_own(found[0]) and not is_own(Address("192.0.2.1", 81))

    play(story)


def test_files_that_are_not_right() -> None:
    three = {f"raft-tls-{part}": "/absent.pem" for part in ("cert", "key", "ca")}
    with pytest.raises(ConfigError, match="raft-tls: cannot use /absent.pem"):
        Discovery(load({**three, "raft-bind": ":9000"}, SECRET), os.urandom)
    with pytest.raises(ConfigError, match="tls-ca: cannot use /absent.pem"):
        Discovery(load({"tls-ca": "/absent.pem", "raft-bind": ":9000"}, SECRET), os.urandom)
